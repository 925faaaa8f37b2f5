//! How a command fails: what went wrong, why, what to try, and the exit code that says which kind of failure it was.

use crate::Paint;
use std::error::Error;
use std::fmt;
use std::path::Path;

/// What a command returns. Any error is printed and becomes exit code 1; a [`Failure`] chooses its own.
pub type Outcome = Result<(), Box<dyn Error>>;

/// The work itself failed: tokens that differ, a benchmark that could not run, a file that is damaged.
pub const FAILED: u8 = 1;
/// The work could not begin: a wrong option, a file or a device that is not there.
pub const UNUSABLE: u8 = 2;

/// An error with the advice that goes with it.
#[derive(Debug)]
pub struct Failure {
    message: String,
    cause: Option<Box<dyn Error>>,
    advice: Option<String>,
    code: u8,
}

impl Failure {
    /// The work failed: exit code 1.
    pub fn new(message: impl Into<String>) -> Failure {
        Failure { message: message.into(), cause: None, advice: None, code: FAILED }
    }

    /// The work could not begin, because of the arguments or of what this machine has: exit code 2.
    pub fn unusable(message: impl Into<String>) -> Failure {
        Failure { code: UNUSABLE, ..Failure::new(message) }
    }

    /// A file that cannot be read or written: exit code 2.
    pub fn file(path: &Path, error: std::io::Error) -> Failure {
        Failure::unusable(path.display().to_string()).caused_by(error)
    }

    /// Why.
    pub fn caused_by(self, cause: impl Into<Box<dyn Error>>) -> Failure {
        Failure { cause: Some(cause.into()), ..self }
    }

    /// What to try instead; usually a command.
    pub fn advise(self, advice: impl Into<String>) -> Failure {
        Failure { advice: Some(advice.into()), ..self }
    }

    /// The exit code.
    pub fn code(&self) -> u8 {
        self.code
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<kiln::Error> for Failure {
    /// Work that failed.
    fn from(error: kiln::Error) -> Failure {
        Failure::new(error.to_string())
    }
}

impl Error for Failure {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.cause.as_deref()
    }
}

/// The lines that people see of an error.
///
/// ```text
/// error: no model 'stories15'
///   caused by: there is no such file or folder
///   try: kiln run --list
/// ```
pub fn render(error: &(dyn Error + 'static), paint: Paint) -> String {
    let mut said = without_own_lines(&error.to_string());
    let mut text = format!("{} {}\n", paint.bold_red("error:"), harmless(&said));
    let mut source = error.source();
    while let Some(cause) = source {
        // An error that shows its cause as its own text says it once.
        let words = without_own_lines(&cause.to_string());
        if !said.contains(&words) {
            text.push_str(&format!("  {} {}\n", paint.dim("caused by:"), harmless(&words)));
        }
        said = words;
        source = cause.source();
    }
    if let Some(advice) = error.downcast_ref::<Failure>().and_then(|failure| failure.advice.as_ref()) {
        text.push_str(&format!("  {} {}\n", paint.green("try:"), harmless(advice)));
    }
    text
}

/// Words that may quote a file: none of its codes reach the terminal, and not all of a megabyte.
fn harmless(words: &str) -> String {
    /// More than any message of Kiln's own has.
    const MOST: usize = 16 << 10;
    let words = kiln::printable(words);
    match words.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}… ({} bytes)", &words[..end], words.len()),
        None => words.into_owned(),
    }
}

/// The words of an error without the line of Rust that they end in: to a program's author it is their own line, to
/// whoever runs this command it is one of Kiln's.
pub fn without_own_lines(words: &str) -> String {
    let (mut out, mut rest) = (String::with_capacity(words.len()), words);
    while let Some(begin) = rest.find(", at ") {
        let (before, after) = (&rest[..begin], &rest[begin + ", at ".len()..]);
        match source_line(after) {
            Some(length) => {
                out.push_str(before);
                rest = &after[length..];
            }
            None => {
                out.push_str(&rest[..begin + ", at ".len()]);
                rest = after;
            }
        }
    }
    out + rest
}

/// How long a line of Rust is that a text begins with: `crates/kiln/src/tensor/mod.rs:41`.
fn source_line(text: &str) -> Option<usize> {
    let unknown = "an unknown line";
    if text.starts_with(unknown) {
        return Some(unknown.len());
    }
    let file = text.find(".rs:")? + ".rs:".len();
    let digits = text[file..].bytes().take_while(u8::is_ascii_digit).count();
    // The line belongs to this place, and not to another one further on.
    let is_here = !text[..file].contains(", ") && !text[..file].contains('\n');
    (digits > 0 && is_here).then_some(file + digits)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a file says in an error cannot move the cursor, and does not fill the screen.
    #[test]
    fn an_error_cannot_command_the_terminal() {
        let words = format!("tensor '\u{1b}[2J\u{9b}31m\u{202e}': two\nlines {}", "x".repeat(1 << 20));
        let error: Box<dyn Error> = Failure::new(words.clone()).caused_by(words).into();
        let text = render(error.as_ref(), Paint::off());
        assert!(text.starts_with("error: tensor '\\u{1b}[2J\\u{9b}31m\\u{202e}': two\nlines x"), "{}", &text[..100]);
        assert!(text.chars().all(|c| c == '\n' || !c.is_control()) && text.len() < 40_000, "{} bytes", text.len());
    }

    /// Errors of tensors name the line that called them, which for users of the command is Kiln's own.
    #[test]
    fn lines_of_rust_are_not_shown() {
        let words =
            "model.safetensors: too short, at crates/kiln-llm/src/checkpoint.rs:27; try again, at once, at x.rs:3";
        assert_eq!(without_own_lines(words), "model.safetensors: too short; try again, at once");
        assert_eq!(without_own_lines("gather: index 7, at an unknown line"), "gather: index 7");
        for kept in ["line 3 of a.kiln", "meet, at noon", "tensor 'a, at b.rs' is odd", "x, at graph.kiln:3"] {
            assert_eq!(without_own_lines(kept), kept);
        }
        let shape = kiln::Tensor::zeros([2, 3], kiln::DType::F32, kiln::Device::Cpu).unwrap();
        let error: Box<dyn Error> = shape.matmul(&shape).unwrap_err().into();
        assert!(error.to_string().contains(".rs:"));
        assert_eq!(render(error.as_ref(), Paint::off()), "error: matmul: [2, 3] and [2, 3] do not agree (3 ≠ 2)\n");
    }

    #[test]
    fn an_error_shows_its_causes_and_advice_once() {
        let io = std::io::Error::new(std::io::ErrorKind::NotFound, "no such file");
        let failure = Failure::unusable("no model 'x'").caused_by(io).advise("kiln run --list");
        let error: Box<dyn Error> = failure.into();
        assert_eq!(
            render(error.as_ref(), Paint::off()),
            "error: no model 'x'\n  caused by: no such file\n  try: kiln run --list\n"
        );
        assert_eq!(error.downcast_ref::<Failure>().map(Failure::code), Some(UNUSABLE));
        let plain: Box<dyn Error> = "tokens differ".into();
        assert_eq!(render(plain.as_ref(), Paint::off()), "error: tokens differ\n");
    }
}
