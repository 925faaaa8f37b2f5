//! Ctrl-C: what commands do with it, and the exit codes.
#![cfg(unix)]

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::io::Read;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Longer than a slow and busy machine takes for anything here, shorter than the work that is called off.
const PATIENCE: Duration = Duration::from_secs(120);

/// Work that would take many minutes: a model of one layer, and as many tokens as its context holds, a thousand times.
const ENDLESS: [&str; 11] =
    ["run", "smollm2-135m", "--layers", "2", "--prompt-ids", "1,2,3", "-n", "8000", "--ignore-eos", "--mode", "eager"];

fn start(arguments: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kiln"));
    // As slow as can be: what is called off has to be under way still.
    command.args(arguments).env("KILN_CACHE", "off").env("KILN_THREADS", "1").env("KILN_CPU_ISA", "portable");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn interrupt(child: &Child) {
    kill_process(Pid::from_child(child), Signal::INT).unwrap();
}

/// Reads until so many bytes are there.
fn read(stream: &mut impl Read, bytes: usize) -> String {
    let mut read = vec![0; bytes];
    stream.read_exact(&mut read).unwrap();
    String::from_utf8_lossy(&read).into_owned()
}

fn rest(mut stream: impl Read) -> String {
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

fn ended(child: &mut Child) -> ExitStatus {
    let began = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if began.elapsed() > PATIENCE {
            child.kill().unwrap();
            panic!("it goes on");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_text_that_is_called_off_ends_with_what_there_is_of_it() {
    // Tokens go to standard error, the object to standard output.
    let mut child = start(&[&ENDLESS[..], &["--json"]].concat());
    let mut err = child.stderr.take().unwrap();
    read(&mut err, 4);
    interrupt(&child);
    let status = ended(&mut child);
    let (out, err) = (rest(child.stdout.take().unwrap()), rest(err));
    assert_eq!(status.code(), Some(130), "{err}");
    let told: Value =
        serde_json::from_str(out.lines().last().unwrap_or_default()).unwrap_or_else(|e| panic!("{e}: {err}"));
    let tokens = told["token_ids"].as_array().unwrap().len();
    assert!(told["stop"] == "interrupted" && (1..8000).contains(&tokens), "{told}");
    assert!(err.contains("· interrupted ·"), "{err}");
}

#[test]
fn a_single_turn_that_is_called_off_exits_with_130() {
    let folder = chatty::Chatty::new("interrupt");
    // No end of tokens and a small model: it is still talking when the first of them are seen.
    let words = ["run", folder.path(), "--chat", "--prompt", "Once", "-n", "250", "--ignore-eos", "--mode", "eager"];
    let mut child = start(&words);
    let mut out = child.stdout.take().unwrap();
    read(&mut out, 1);
    interrupt(&child);
    let status = ended(&mut child);
    assert_eq!(status.code(), Some(130), "{}", rest(child.stderr.take().unwrap()));
}

#[test]
fn where_there_is_nothing_to_say_it_ends_at_once() {
    // Waiting for a text; a long search.
    let mut child = start(&["fuzz", "graphs", "--count", "100000000", "--seed", "7"]);
    std::thread::sleep(Duration::from_millis(300));
    interrupt(&child);
    assert_eq!(ended(&mut child).code(), Some(130));
}

mod chatty;
