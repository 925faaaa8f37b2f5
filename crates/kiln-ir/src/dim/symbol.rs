//! Names of symbolic integers, stored inline so that a [`Symbol`] copies like a number.

use std::cmp::Ordering;
use std::fmt;

/// The name of a symbolic integer: an input size or a loop variable. At most 15 ASCII letters, digits and
/// underscores, not starting with a digit. Copies freely, and orders by name.
///
/// ```
/// use kiln_ir::Symbol;
/// let batch = Symbol::new("batch").unwrap();
/// assert_eq!(batch.as_str(), "batch");
/// assert!(Symbol::new("2b").is_none());
/// assert_eq!(Symbol::axis(3).as_str(), "i3");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Symbol([u8; 16]);

impl Symbol {
    /// The longest name, in bytes.
    pub const MAX_LEN: usize = 15;

    /// The symbol of that name, or `None` where it is not an identifier of 1 to 15 ASCII characters.
    /// `undefined` is a word of the text form and therefore no name.
    pub fn new(name: &str) -> Option<Symbol> {
        let bytes = name.as_bytes();
        let (first, rest) = bytes.split_first()?;
        let starts = first.is_ascii_alphabetic() || *first == b'_';
        let goes_on = rest.iter().all(|b| b.is_ascii_alphanumeric() || *b == b'_');
        if !starts || !goes_on || bytes.len() > Self::MAX_LEN || name == super::text::UNDEFINED {
            return None;
        }
        let mut inline = [0; 16];
        inline[..bytes.len()].copy_from_slice(bytes);
        Some(Symbol(inline))
    }

    /// The loop variable number `n`: `i0`, `i1`, … Distinct for every `n` below 10¹⁴, taken modulo that.
    pub fn axis(n: usize) -> Symbol {
        let mut digits = [0u8; 16];
        let mut rest = n as u64 % 100_000_000_000_000;
        let mut at = digits.len();
        loop {
            at -= 1;
            digits[at] = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        let mut inline = [0; 16];
        inline[0] = b'i';
        inline[1..1 + digits.len() - at].copy_from_slice(&digits[at..]);
        Symbol(inline)
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        let len = self.0.iter().position(|b| *b == 0).unwrap_or(self.0.len());
        std::str::from_utf8(&self.0[..len]).expect("a symbol's name is ASCII")
    }
}

impl Ord for Symbol {
    fn cmp(&self, other: &Symbol) -> Ordering {
        // Zero padding sorts before every name byte, so comparing big-endian numbers compares names.
        u128::from_be_bytes(self.0).cmp(&u128::from_be_bytes(other.0))
    }
}

impl PartialOrd for Symbol {
    fn partial_cmp(&self, other: &Symbol) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for Symbol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Debug for Symbol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
