//! `kiln run --chat` on a real terminal: keys go in, what is said and what the terminal is like come out.
#![cfg(unix)]

mod chatty;

use chatty::Chatty;
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};
use serde_json::Value;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Longer than a slow and busy machine takes for anything here.
const PATIENCE: Duration = Duration::from_secs(120);

/// A conversation on a terminal of its own; results come by a pipe.
struct Session {
    child: Child,
    terminal: File,
    /// The other end, so that the terminal stays when the conversation has gone.
    end: File,
    seen: Arc<Mutex<String>>,
    results: BufReader<ChildStdout>,
    folder: Chatty,
}

impl Session {
    fn start(name: &str) -> Session {
        let folder = Chatty::new(name);
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let slave =
            File::options().read(true).write(true).open(ptsname(&master, Vec::new()).unwrap().to_str().unwrap());
        let slave = slave.unwrap();
        tcsetwinsize(&slave, Winsize { ws_row: 12, ws_col: 60, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_kiln"));
        command.args(["run", folder.path(), "--chat", "-n", "3", "--json", "--context", "200"]);
        command
            .env("KILN_CACHE", "off")
            .env("TERM", "xterm")
            .env("NO_COLOR", "1")
            .env("KILN_HISTORY", history(&folder));
        command.stdin(slave.try_clone().unwrap()).stdout(Stdio::piped()).stderr(slave.try_clone().unwrap());
        let mut child = command.spawn().unwrap();
        let results = BufReader::new(child.stdout.take().unwrap());
        let terminal = File::from(master);
        let seen = Arc::<Mutex<String>>::default();
        let (into, mut screen) = (seen.clone(), terminal.try_clone().unwrap());
        std::thread::spawn(move || {
            let mut bytes = [0; 1024];
            while let Ok(count @ 1..) = screen.read(&mut bytes) {
                into.lock().unwrap().push_str(&String::from_utf8_lossy(&bytes[..count]));
            }
        });
        let mut session = Session { child, terminal, end: slave, seen, results, folder };
        session.expect("› ");
        session
    }

    /// Waits until the terminal shows a text, and forgets what was shown up to it.
    fn expect(&mut self, text: &str) {
        let began = Instant::now();
        loop {
            {
                let mut seen = self.seen.lock().unwrap();
                if let Some(at) = seen.find(text) {
                    seen.drain(..at + text.len());
                    return;
                }
                assert!(began.elapsed() < PATIENCE, "no '{text}' in {}", seen.escape_debug());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn press(&mut self, keys: &str) {
        self.terminal.write_all(keys.as_bytes()).unwrap();
    }

    /// The next object on standard output.
    fn result(&mut self) -> Value {
        let mut line = String::new();
        self.results.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line}"))
    }

    /// Sends a text and waits for its answer and the next prompt; the tokens of the prompt.
    fn say(&mut self, keys: &str) -> Value {
        self.press(keys);
        let ids = self.result()["prompt_ids"].take();
        self.expect("kernels");
        self.expect("› ");
        ids
    }

    fn is_raw(&self) -> bool {
        !tcgetattr(&self.end).unwrap().local_modes.intersects(LocalModes::ICANON | LocalModes::ECHO)
    }

    fn ended(&mut self) -> ExitStatus {
        let began = Instant::now();
        while began.elapsed() < PATIENCE {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        self.child.kill().unwrap();
        panic!("it goes on: {}", self.seen.lock().unwrap().escape_debug());
    }

    fn history(&self) -> String {
        std::fs::read_to_string(history(&self.folder)).unwrap()
    }
}

fn history(folder: &Chatty) -> String {
    format!("{}/said", folder.path())
}

#[test]
fn lines_are_edited_and_come_back() {
    let mut session = Session::start("edited");
    assert!(session.is_raw());
    // A letter forgotten and put in, a word deleted, an accent.
    let first = session.say("Onc upon\x1b[D\x1b[D\x1b[D\x1b[D\x1b[De\x05 a xx\x17time né\x7fe\r");
    session.press("/reset\r");
    session.expect("forgotten");
    session.expect("› ");
    // Up: the command, then the text, which is the same prompt again.
    assert_eq!(session.say("\x1b[A\x1b[A\r"), first);
    session.press("/clear\r");
    session.expect("› ");
    assert_eq!(session.say("\x12upon\r"), first);
    // A text of lines, and a paste of lines.
    session.say("One day\\\rTim\r");
    session.say("\x1b[200~two\r\nlines\x1b[201~\r");
    session.press("/help\r");
    session.expect("Ctrl-R");
    assert!(session.is_raw());
    assert_eq!(
        session.history(),
        "Once upon a time ne\n/reset\nOnce upon a time ne\n/clear\nOnce upon a time ne\nOne day\\\\\\nTim\ntwo\\nlines\n/help\n"
    );
    session.press("\x04");
    assert!(session.ended().success());
    assert!(!session.is_raw());
}

#[test]
fn ctrl_c_gives_up_a_line_and_twice_the_conversation() {
    let mut session = Session::start("given-up");
    session.press("not this\x03");
    session.expect("^C");
    session.expect("› ");
    session.say("Once\r");
    session.press("\x03");
    session.expect("once more");
    session.expect("› ");
    session.press("\x03");
    assert_eq!(session.ended().code(), Some(130));
    assert!(!session.is_raw());
    assert_eq!(session.history(), "Once\n");
}

#[test]
fn a_signal_leaves_the_terminal_as_it_was() {
    for signal in [Signal::TERM, Signal::HUP, Signal::QUIT] {
        let mut session = Session::start(&format!("signal-{signal:?}"));
        session.press("half a li");
        session.expect("half a li");
        kill_process(Pid::from_child(&session.child), signal).unwrap();
        assert_eq!(session.ended().signal(), Some(signal.as_raw()));
        assert!(!session.is_raw(), "{signal:?}");
        session.expect("\x1b[?2004l");
    }
    // Of interrupts from elsewhere two end it, as from the keyboard.
    let mut session = Session::start("signal-int");
    kill_process(Pid::from_child(&session.child), Signal::INT).unwrap();
    session.expect("once more");
    session.expect("› ");
    kill_process(Pid::from_child(&session.child), Signal::INT).unwrap();
    assert_eq!(session.ended().code(), Some(130));
    assert!(!session.is_raw());
}

#[test]
fn a_terminal_of_another_width_is_laid_out_anew() {
    let mut session = Session::start("resized");
    session.press("a line of more than twenty columns");
    session.expect("twenty columns");
    tcsetwinsize(&session.end, Winsize { ws_row: 12, ws_col: 20, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
    // No controlling terminal, no signal from it.
    kill_process(Pid::from_child(&session.child), Signal::WINCH).unwrap();
    session.expect("› a line of more tha\r");
    session.expect("\nn twenty columns");
    session.press("\x15\x04");
    assert!(session.ended().success());
}
