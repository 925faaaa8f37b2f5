//! The output of the command: colours on a terminal, plain text elsewhere.
//!
//! Colours are on when the stream is a terminal, unless `NO_COLOR` is set, `TERM` is `dumb` or `--color never` is given;
//! `--color always` and `CLICOLOR_FORCE` turn them on everywhere. With `--json` a command's last line on standard output is
//! one object, and everything for people goes to standard error.

#![warn(clippy::print_stdout, clippy::print_stderr)]

#[macro_use]
pub mod output;
pub mod device;
pub mod failure;
pub mod format;
pub mod numbers;
pub mod output_file;
mod progress;
pub mod svg;
mod table;
mod wrap;

pub use progress::Progress;
pub use table::{Align, Table};
pub use wrap::{Column, hung};

use serde_json::Value;
use std::fmt::Display;
use std::io::{IsTerminal, stderr, stdout};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use unicode_width::UnicodeWidthChar;

/// When there are colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Color {
    /// On a terminal, as the environment wishes
    #[default]
    Auto,
    /// Even into a pipe
    Always,
    /// Not even on a terminal
    Never,
}

static COLOR: OnceLock<Color> = OnceLock::new();

/// Decides on colours for the process; the first decision stands.
pub fn set_color(color: Color) {
    let _ = COLOR.set(color);
}

/// What the environment says of colours.
fn colored(is_terminal: bool) -> bool {
    let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty() && value != "0");
    match COLOR.get().copied().unwrap_or_default() {
        Color::Always => true,
        Color::Never => false,
        Color::Auto if std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty()) => false,
        Color::Auto if set("CLICOLOR_FORCE") => true,
        Color::Auto => is_terminal && std::env::var_os("TERM").is_none_or(|term| term != "dumb"),
    }
}

/// Columns of the terminal, of `COLUMNS` where there is none, or 100.
pub fn width() -> usize {
    let stated = || std::env::var("COLUMNS").ok()?.parse().ok();
    terminal_size::terminal_size().map(|(columns, _)| columns.0.into()).or_else(stated).unwrap_or(100).max(20)
}

/// Columns that lines to standard output should keep to: those of a terminal, or of `COLUMNS`; none into a file or a pipe.
pub fn columns() -> Option<usize> {
    columns_of(stdout())
}

/// Columns that lines to standard error should keep to.
pub fn error_columns() -> Option<usize> {
    columns_of(stderr())
}

fn columns_of(stream: impl std::os::fd::AsFd) -> Option<usize> {
    let stated = || std::env::var("COLUMNS").ok()?.parse().ok();
    terminal_size::terminal_size_of(stream)
        .map(|(columns, _)| columns.0.into())
        .or_else(stated)
        .map(|n: usize| n.clamp(20, 10_000))
}

/// Writes a dimmed line about the work to standard error.
pub fn note(line: impl Display) {
    let text = hung(&line.to_string(), error_columns(), 2);
    text.lines().for_each(|line| eprintln!("{}", Paint::stderr().dim(line)));
}

/// Colours text, or leaves it plain.
#[derive(Debug, Clone, Copy)]
pub struct Paint {
    on: bool,
}

macro_rules! styles {
    ($($name:ident = $code:literal, $doc:literal;)*) => {
        impl Paint {
            $(#[doc = $doc]
            pub fn $name(self, text: impl Display) -> String {
                self.wrap($code, text)
            })*
        }
    };
}

styles! {
    bold = "1", "Important words.";
    dim = "2", "Words in the background.";
    red = "31", "What is wrong.";
    green = "32", "What is right.";
    yellow = "33", "What needs a look.";
    cyan = "36", "Names and figures.";
    bold_red = "1;31", "The word `error`.";
    bold_green = "1;32", "The figure that matters.";
    ember = "1;38;5;208", "Kiln's own colour.";
}

impl Paint {
    /// For standard output.
    pub fn stdout() -> Paint {
        Paint { on: colored(stdout().is_terminal()) }
    }

    /// For standard error.
    pub fn stderr() -> Paint {
        Paint { on: colored(stderr().is_terminal()) }
    }

    /// No colours.
    pub fn off() -> Paint {
        Paint { on: false }
    }

    fn wrap(self, code: &str, text: impl Display) -> String {
        if self.on { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_string() }
    }
}

/// How many columns a text takes: colours take none.
pub fn visible_width(text: &str) -> usize {
    let mut width = 0;
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        if character == '\x1b' {
            // A colour ends at its first letter.
            let _ = characters.by_ref().find(char::is_ascii_alphabetic);
        } else {
            width += character.width().unwrap_or(0);
        }
    }
    width
}

/// Where a command talks: to people on standard output, or on standard error when standard output is for a program.
#[derive(Debug, Clone)]
pub struct Console {
    json: bool,
    /// The colours of the stream for people.
    pub paint: Paint,
    /// Whether that stream is a terminal, which obeys codes in what it is sent.
    terminal: bool,
    /// What was said so far, if somebody wants to have it.
    tape: Option<Arc<Mutex<String>>>,
}

impl Console {
    /// For a command; `json` if its result is an object on standard output.
    pub fn new(json: bool) -> Console {
        let (paint, terminal) = match json {
            true => (Paint::stderr(), stderr().is_terminal()),
            false => (Paint::stdout(), stdout().is_terminal()),
        };
        Console { json, paint, terminal, tape: None }
    }

    /// Keeps what is said, in colours.
    pub fn recorded(self) -> Console {
        Console { paint: Paint { on: true }, tape: Some(Arc::default()), ..self }
    }

    /// What was said since [`Console::recorded`].
    pub fn recording(&self) -> String {
        let tape = self.tape.as_ref().map(|tape| tape.lock().unwrap_or_else(PoisonError::into_inner).clone());
        tape.unwrap_or_default()
    }

    /// Columns that lines for people should keep to.
    pub fn columns(&self) -> Option<usize> {
        if self.json { error_columns() } else { columns() }
    }

    /// Says a line to people, with what is too long for the terminal hung beneath, so many columns behind its beginning.
    pub fn hang(&self, line: impl Display, deeper: usize) {
        self.say(hung(&line.to_string(), self.columns(), deeper));
    }

    /// Says a table to people.
    pub fn table(&self, table: &Table) {
        self.stream(table.render_in(self.paint, self.columns()));
    }

    /// Says a line to people.
    pub fn say(&self, line: impl Display) {
        self.stream(format_args!("{line}\n"));
    }

    /// Says a part of a line to people, at once.
    pub fn stream(&self, part: impl Display) {
        if let Some(tape) = &self.tape {
            tape.lock().unwrap_or_else(PoisonError::into_inner).push_str(&part.to_string());
        }
        if self.json {
            eprint!("{part}");
        } else {
            print!("{part}");
            output::flush();
        }
    }

    /// Says a part of a text that a model wrote, or a file. A terminal gets line ends and tabs of it and no other codes; a pipe
    /// or a file gets it as it is.
    pub fn foreign(&self, part: &str) {
        match self.terminal {
            true => self.stream(kiln::printable(part)),
            false => self.stream(part),
        }
    }

    /// Writes the result as one line of JSON, if `--json` was given.
    pub fn result(&self, value: impl FnOnce() -> Value) {
        if self.json {
            println!("{}", value());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_take_no_columns() {
        let paint = Paint { on: true };
        assert_eq!(paint.bold("née"), "\x1b[1mnée\x1b[0m");
        assert_eq!(visible_width(&paint.ember("née")), 3);
        assert_eq!(Paint::off().green("ok"), "ok");
    }
}
