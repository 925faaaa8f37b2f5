//! Strings of files in messages. A name in a checkpoint may be a megabyte long, and may hold the codes that move a terminal's
//! cursor, set its title or turn its writing round; what is shown of it is short and harmless.

use std::fmt::{Display, Formatter, Result, Write};

/// A foreign text as a message may quote it, by [`shown`].
#[derive(Debug, Clone, Copy)]
pub struct Shown<'a> {
    text: &'a str,
    most: usize,
}

/// The default limit on the characters shown of a text.
const MOST: usize = 120;

/// Returns a foreign text for a message: control characters, line ends and direction marks are escaped, and a long text is
/// cut.
///
/// ```
/// use kiln::shown;
/// assert_eq!(shown("layers.0.weight").to_string(), "layers.0.weight");
/// assert_eq!(shown("a\x1b[31m\nb\u{202e}").to_string(), r"a\u{1b}[31m\nb\u{202e}");
/// assert_eq!(shown(&"x".repeat(1000)).up_to(3).to_string(), "xxx… (1000 bytes)");
/// ```
pub fn shown(text: &(impl AsRef<str> + ?Sized)) -> Shown<'_> {
    Shown { text: text.as_ref(), most: MOST }
}

impl Shown<'_> {
    /// Sets the largest number of characters shown.
    pub fn up_to(self, most: usize) -> Self {
        Shown { most, ..self }
    }
}

impl Display for Shown<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        for (count, c) in self.text.chars().enumerate() {
            if count == self.most {
                return write!(f, "… ({} bytes)", self.text.len());
            }
            write_char(c, f)?;
        }
        Ok(())
    }
}

fn write_char(c: char, f: &mut impl Write) -> Result {
    match c {
        '\n' => f.write_str("\\n"),
        '\r' => f.write_str("\\r"),
        '\t' => f.write_str("\\t"),
        c if commands(c) => write!(f, "{}", c.escape_unicode()),
        c => f.write_char(c),
    }
}

/// Whether a terminal may take a character for a command: C0 and C1 controls, marks and overrides of direction, separators
/// of lines, invisible tags.
fn commands(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{206f}')
        || matches!(c, '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}')
}

/// Escapes the control characters of a text of several lines except for line ends and tabs, as [`shown`] does.
///
/// ```
/// assert_eq!(kiln::printable("Line\n\tand\x1b[2J"), "Line\n\tand\\u{1b}[2J");
/// ```
pub fn printable(text: &str) -> std::borrow::Cow<'_, str> {
    let plain = |c: char| matches!(c, '\n' | '\t') || !commands(c);
    if text.chars().all(plain) {
        return text.into();
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        // Writing to a text does not fail.
        let _ = if plain(c) { out.write_char(c) } else { write_char(c, &mut out) };
    }
    out.into()
}
