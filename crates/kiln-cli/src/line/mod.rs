//! Lines that people write on a terminal: with editing, with what they wrote before, of several lines if need be.
//!
//! ```text
//!  bytes ─▶ keys ─▶ editor ─▶ text and cursor ─▶ view: rows ─▶ escape codes
//!                   │  ▲ buffer, history
//!                   └─▶ a whole text
//! ```
//!
//! Everything but this file works without a terminal. The terminal is in raw mode while a text is written and at no other time; it
//! is as it was after a panic and after signals that end the process too.

mod buffer;
mod editor;
mod history;
mod keys;
mod turn;
mod view;

pub use history::History;
pub use turn::{is_open, meant};

use crate::interrupt::{self, Ending};
use editor::{Editor, Step};
use keys::{Decoder, Key};
use kiln_llm::Cancel;
use kiln_terminal::Paint;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::termios::{InputModes, LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcsetattr};
use signal_hook::consts::{SIGCONT, SIGHUP, SIGQUIT, SIGTERM, SIGTSTP, SIGWINCH};
use std::io::{self, IsTerminal, Write, stderr, stdin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use view::{Margins, Screen, layout};

/// How long the rest of an escape sequence may take.
const ESCAPE: Duration = Duration::from_millis(50);
/// How often signals are looked at where none wakes us.
const LOOK: Duration = Duration::from_millis(250);
/// Bytes that are read at once.
const CHUNK: usize = 4096;
/// Asks the terminal to mark what is pasted, and no longer to.
const PASTE_MARKS: [&str; 2] = ["\x1b[?2004h", "\x1b[?2004l"];

/// What came of a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Line {
    /// A text.
    Text(String),
    /// Ctrl-C where nothing was written.
    Interrupted,
    /// Ctrl-D where nothing was written, or the terminal has gone.
    End,
}

/// Whether a person can write and see what is written.
pub fn is_usable() -> bool {
    stdin().is_terminal() && stderr().is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// Reads lines from the terminal.
pub struct LineEditor {
    history: History,
    /// Whether the terminal is as it was.
    cooked: Arc<AtomicBool>,
    endings: Vec<Ending>,
    /// The window has another size, or was away: what is shown has to be shown again.
    changed: Arc<AtomicBool>,
    /// What was typed ahead of the end of a line.
    ahead: Vec<Key>,
}

/// What happened on the terminal.
enum Happened {
    Keys(Vec<Key>),
    /// Nothing of ours; what is shown may have to be shown again.
    Changed,
    /// There is no terminal any more.
    Gone,
}

impl LineEditor {
    /// With what was written before.
    pub fn new(history: History) -> io::Result<LineEditor> {
        let (cooked, changed) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicBool::new(false)));
        let endings = Ending::listen(&[SIGTERM, SIGHUP, SIGQUIT], &cooked)?;
        for signal in [SIGWINCH, SIGCONT] {
            signal_hook::flag::register(signal, changed.clone())?;
        }
        Ok(LineEditor { history, cooked, endings, changed, ahead: Vec::new() })
    }

    /// Lets somebody write a text behind a prompt.
    pub fn read(&mut self, prompt: &str, width: usize) -> io::Result<Line> {
        interrupt::held(|asked| self.edit(&Margins::new(prompt, width), asked))
    }

    fn edit(&mut self, margins: &Margins, asked: &Cancel) -> io::Result<Line> {
        let mut raw = Raw::enter(&self.cooked)?;
        let (mut editor, mut screen, mut decoder) = (Editor::default(), Screen::default(), Decoder::default());
        let mut keys = std::mem::take(&mut self.ahead);
        loop {
            let mut waiting = keys.drain(..);
            while let Some(key) = waiting.next() {
                match editor.press(key, &self.history) {
                    Step::Edit => {}
                    Step::ClearScreen => write(&screen.clear())?,
                    Step::Submit(text) => {
                        show(&mut screen, &Editor::showing(&text), margins)?;
                        write(&screen.leave())?;
                        self.ahead = waiting.collect();
                        self.history.add(&text);
                        return Ok(Line::Text(text));
                    }
                    Step::Interrupt(was_written) => {
                        write(&format!("^C{}", screen.leave()))?;
                        if !was_written {
                            return Ok(Line::Interrupted);
                        }
                    }
                    Step::End => {
                        write(&screen.leave())?;
                        return Ok(Line::End);
                    }
                    Step::Suspend => {
                        write(&screen.leave())?;
                        drop(raw);
                        signal_hook::low_level::raise(SIGTSTP)?;
                        raw = Raw::enter(&self.cooked)?;
                    }
                }
            }
            drop(waiting);
            show(&mut screen, &editor, margins)?;
            match self.wait(&mut decoder, asked)? {
                Happened::Keys(new) => keys = new,
                Happened::Changed => raw.enforce()?,
                Happened::Gone => return Ok(Line::End),
            }
            if let Some(ending) = self.endings.iter().find(|ending| ending.is_heard()) {
                write(&screen.leave())?;
                drop(raw);
                ending.obey()?;
                return Ok(Line::End);
            }
        }
    }

    /// Waits for keys or for a signal.
    fn wait(&self, decoder: &mut Decoder, asked: &Cancel) -> io::Result<Happened> {
        loop {
            // A signal between a look and the wait is seen at the next look.
            if self.changed.swap(false, Ordering::Relaxed) || self.endings.iter().any(Ending::is_heard) {
                return Ok(Happened::Changed);
            }
            if asked.is_asked() {
                asked.reset();
                return Ok(Happened::Keys(vec![Key::Ctrl('c')]));
            }
            let patience = if decoder.is_waiting() { ESCAPE } else { LOOK };
            let patience = Timespec { tv_sec: 0, tv_nsec: patience.as_nanos() as _ };
            let input = stdin();
            match poll(&mut [PollFd::new(&input, PollFlags::IN)], Some(&patience)) {
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
                Ok(0) => match decoder.flush() {
                    Some(key) => return Ok(Happened::Keys(vec![key])),
                    None => continue,
                },
                Ok(_) => {}
            }
            let mut bytes = [0; CHUNK];
            let count = match rustix::io::read(&input, &mut bytes) {
                Err(Errno::INTR | Errno::AGAIN) => continue,
                Ok(0) | Err(Errno::IO) => return Ok(Happened::Gone),
                count => count?,
            };
            let keys: Vec<Key> = bytes[..count].iter().filter_map(|&byte| decoder.push(byte)).collect();
            if !keys.is_empty() {
                return Ok(Happened::Keys(keys));
            }
        }
    }
}

/// Shows what is written now.
fn show(screen: &mut Screen, editor: &Editor, margins: &Margins) -> io::Result<()> {
    let size = terminal_size::terminal_size_of(stderr());
    let (columns, height) = size.map_or((80, 24), |(columns, rows)| (columns.0.into(), rows.0.into()));
    let search = editor.searching().map(|(query, found)| {
        let words = format!("{} '{query}': ", if found { "search" } else { "no such" });
        Margins::new(Paint::stderr().dim(&words), kiln_terminal::visible_width(&words))
    });
    let buffer = editor.buffer();
    let frame = layout(search.as_ref().unwrap_or(margins), buffer.text(), buffer.cursor(), columns);
    write(&screen.draw(frame, columns, height))
}

fn write(codes: &str) -> io::Result<()> {
    let mut stream = stderr().lock();
    stream.write_all(codes.as_bytes())?;
    stream.flush()
}

/// A terminal that gives every key as it is pressed and shows none by itself; dropped, it is as it was before.
struct Raw<'a> {
    before: Termios,
    cooked: &'a AtomicBool,
}

impl<'a> Raw<'a> {
    fn enter(cooked: &'a AtomicBool) -> io::Result<Raw<'a>> {
        let before = tcgetattr(stdin())?;
        // From here on signals that end the process wait until the terminal is as it was.
        cooked.store(false, Ordering::SeqCst);
        let raw = Raw { before, cooked };
        raw.enforce()?;
        write(PASTE_MARKS[0])?;
        Ok(raw)
    }

    /// Once more, after a shell may have had it otherwise.
    fn enforce(&self) -> io::Result<()> {
        let mut modes = self.before.clone();
        // What is written stays as it is: a line feed goes to the first column.
        modes.local_modes &= !(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG | LocalModes::IEXTEN);
        modes.input_modes &= !(InputModes::ICRNL | InputModes::INLCR | InputModes::IGNCR | InputModes::IXON);
        modes.special_codes[SpecialCodeIndex::VMIN] = 1;
        modes.special_codes[SpecialCodeIndex::VTIME] = 0;
        // Not what flushes: keys that were pressed before are for us.
        Ok(tcsetattr(stdin(), OptionalActions::Drain, &modes)?)
    }
}

impl Drop for Raw<'_> {
    fn drop(&mut self) {
        // A terminal that has gone need not be put right.
        let _ = write(PASTE_MARKS[1]);
        let _ = tcsetattr(stdin(), OptionalActions::Drain, &self.before);
        self.cooked.store(true, Ordering::SeqCst);
    }
}
