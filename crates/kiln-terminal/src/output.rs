//! Where all words of the command go: standard output, whose losses are counted, and standard error, whose losses are not.
//!
//! ```text
//!  print!, println! ──▶ standard output ──▶ no reader any more (`| head`): the command ends, quietly, with 0
//!                                      └──▶ cannot be written (a full disk): it goes on; at its end, an error and 1
//!  eprint!, eprintln! ──▶ standard error ──▶ cannot be written: there is nobody to tell
//! ```
//!
//! The macros have the names of the standard library's and stand in their place in every crate of the command (`#[macro_use]
//! extern crate kiln_terminal`), so that no line of it can lose what it prints without the exit code saying so.

use std::any::Any;
use std::fmt;
use std::io::{self, ErrorKind, Write};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Prints to standard output through [`write_out`](crate::output::write_out).
#[macro_export]
macro_rules! print {
    ($($words:tt)*) => { $crate::output::write_out(format_args!($($words)*)) };
}

/// Prints a line to standard output through [`write_out`](crate::output::write_out).
#[macro_export]
macro_rules! println {
    () => { $crate::output::write_out(format_args!("\n")) };
    ($($words:tt)*) => { $crate::output::write_out(format_args!("{}\n", format_args!($($words)*))) };
}

/// Prints to standard error through [`write_error`](crate::output::write_error).
#[macro_export]
macro_rules! eprint {
    ($($words:tt)*) => { $crate::output::write_error(format_args!($($words)*)) };
}

/// Prints a line to standard error through [`write_error`](crate::output::write_error).
#[macro_export]
macro_rules! eprintln {
    ($($words:tt)*) => { $crate::output::write_error(format_args!("{}\n", format_args!($($words)*))) };
}

/// What became of standard output.
#[derive(Debug)]
enum State {
    Open,
    /// The reader has gone.
    Closed,
    /// Why something of it was lost.
    Lost(io::Error),
}

static STATE: Mutex<State> = Mutex::new(State::Open);

fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What unwinds the stack when the reader has gone.
struct ReaderGone;

/// Writes to standard output. After a write that failed nothing more is written.
pub fn write_out(words: fmt::Arguments<'_>) {
    if !matches!(*state(), State::Open) {
        return;
    }
    if let Err(error) = io::stdout().lock().write_fmt(words) {
        failed(error);
    }
}

/// Lets what was written be seen at once.
pub fn flush() {
    if matches!(*state(), State::Open)
        && let Err(error) = io::stdout().lock().flush()
    {
        failed(error);
    }
}

/// Writes to standard error, as far as that can be.
pub fn write_error(words: fmt::Arguments<'_>) {
    let _ = io::stderr().lock().write_fmt(words);
}

fn failed(error: io::Error) {
    let gone = error.kind() == ErrorKind::BrokenPipe;
    *state() = if gone { State::Closed } else { State::Lost(error) };
    if gone {
        // Not `exit`: what was made for the run, files and processes, goes away with its owners.
        resume_unwind(Box::new(ReaderGone));
    }
}

/// Does the work of a command; nothing comes back where the reader of its output has gone.
pub fn until_reader_goes<T>(work: impl FnOnce() -> T) -> Option<T> {
    let is_gone = |payload: &Box<dyn Any + Send>| payload.is::<ReaderGone>();
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(result) => Some(result),
        Err(payload) if is_gone(&payload) => None,
        Err(payload) => resume_unwind(payload),
    }
}

/// Whether everything that was printed has arrived; a reader that has gone wanted no more.
pub fn finish() -> io::Result<()> {
    until_reader_goes(flush);
    match std::mem::replace(&mut *state(), State::Open) {
        State::Open | State::Closed => Ok(()),
        State::Lost(error) => Err(error),
    }
}
