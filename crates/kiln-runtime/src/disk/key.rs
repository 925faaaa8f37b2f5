//! What an entry is found by: a digest of everything that it depends on, with a readable account of the same.

use std::fmt;
use std::hash::{Hash, Hasher};

/// The key of an entry: a digest, and in words what went into it. Two keys are equal when their digests are.
///
/// ```
/// use kiln_runtime::disk::Key;
/// let key = |tile: &str| Key::build().part("target", "cpu-avx2").part("tile", tile).note("label", "matmul").finish();
/// assert_eq!(key("4x16"), key("4x16"));
/// assert_ne!(key("4x16"), key("8x8"));
/// ```
#[derive(Debug, Clone)]
pub struct Key {
    digest: [u8; 32],
    about: About,
}

impl Key {
    /// Begins a key.
    pub fn build() -> KeyBuilder {
        KeyBuilder { hasher: blake3::Hasher::new(), about: About::default() }
    }

    /// The digest.
    pub fn digest(&self) -> &[u8; 32] {
        &self.digest
    }

    /// What it was made of.
    pub fn about(&self) -> &About {
        &self.about
    }

    /// The digest in hexadecimal: the name of the entry's file.
    pub fn hex(&self) -> String {
        hex(&self.digest)
    }

    /// The same key with something more for people, that the entry does not depend on.
    pub fn note(mut self, name: &str, value: &str) -> Key {
        self.about.push(name, value);
        self
    }

    /// The first letters of [`Key::hex`], for people.
    pub fn short(&self) -> String {
        hex(&self.digest[..6])
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Key) -> bool {
        self.digest == other.digest
    }
}

impl Eq for Key {}

/// A key in the making.
#[derive(Debug, Clone)]
pub struct KeyBuilder {
    hasher: blake3::Hasher,
    about: About,
}

impl KeyBuilder {
    /// Something that the entry depends on, short enough to be kept as text.
    pub fn part(mut self, name: &str, value: &str) -> KeyBuilder {
        self.mix(name, value.as_bytes());
        self.about.push(name, value);
        self
    }

    /// Something that the entry depends on, of any length; of which only a digest is kept as text.
    pub fn content(mut self, name: &str, bytes: &[u8]) -> KeyBuilder {
        self.mix(name, bytes);
        self.about.push(name, &hex(&blake3::hash(bytes).as_bytes()[..6]));
        self
    }

    /// Something that the entry depends on, as it hashes: every field of a type that derives `Hash`, and no address. Of it
    /// too only a digest is kept as text.
    pub fn hashed(self, name: &str, value: &impl Hash) -> KeyBuilder {
        let mut bytes = Bytes(Vec::new());
        value.hash(&mut bytes);
        self.content(name, &bytes.0)
    }

    /// Something for people, that the entry does not depend on.
    pub fn note(mut self, name: &str, value: &str) -> KeyBuilder {
        self.about.push(name, value);
        self
    }

    /// The key.
    pub fn finish(self) -> Key {
        Key { digest: *self.hasher.finalize().as_bytes(), about: self.about }
    }

    /// Lengths go in too, so that no two lists of parts are one string of bytes.
    fn mix(&mut self, name: &str, bytes: &[u8]) {
        for piece in [name.as_bytes(), bytes] {
            self.hasher.update(&(piece.len() as u64).to_le_bytes());
            self.hasher.update(piece);
        }
    }
}

/// Collects what a value feeds to a hash: for values that derive `Hash` no two of a type feed the same.
struct Bytes(Vec<u8>);

impl Hasher for Bytes {
    fn write(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    fn finish(&self) -> u64 {
        // Nobody asks: the bytes are what is wanted.
        self.0.len() as u64
    }
}

/// What is in an entry and what its key was made of, in words: names with values, in order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct About(Vec<(String, String)>);

/// Letters kept of one value: it is for people.
const VALUE_KEPT: usize = 1000;

impl About {
    /// The pairs.
    pub fn pairs(&self) -> impl ExactSizeIterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// The value of a name.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.pairs().find(|pair| pair.0 == name).map(|pair| pair.1)
    }

    fn push(&mut self, name: &str, value: &str) {
        let clean = |c: char| if c.is_control() { ' ' } else { c };
        let mut text: String = value.chars().take(VALUE_KEPT).map(clean).collect();
        if value.chars().nth(VALUE_KEPT).is_some() {
            text.push('…');
        }
        self.0.push((name.chars().map(clean).collect(), text));
    }

    /// One line a pair.
    pub(super) fn to_text(&self) -> String {
        self.pairs().map(|(name, value)| format!("{name}\t{value}\n")).collect()
    }

    pub(super) fn from_text(text: &str) -> About {
        let pair = |line: &str| line.split_once('\t').map(|(name, value)| (name.to_owned(), value.to_owned()));
        About(text.lines().filter_map(pair).collect())
    }
}

impl fmt::Display for About {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.pairs().map(|pair| pair.0.len()).max().unwrap_or(0);
        self.pairs().try_for_each(|(name, value)| writeln!(f, "{name:width$}  {value}"))
    }
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_do_not_run_into_each_other() {
        let key = |a: &str, b: &str| Key::build().part("x", a).part("y", b).finish();
        assert_ne!(key("ab", "c"), key("a", "bc"));
        assert_ne!(key("", "abc"), key("abc", ""));
        assert_ne!(Key::build().part("xa", "b").finish(), Key::build().part("x", "ab").finish());
    }

    #[test]
    fn notes_are_no_part_of_the_key() {
        let key = Key::build().part("x", "1").note("label", "add").finish();
        assert_eq!(key, Key::build().part("x", "1").note("label", "mul").finish());
        assert_eq!(key.about().get("label"), Some("add"));
        assert_eq!(key.hex().len(), 64);
    }

    #[test]
    fn text_goes_back_and_forth() {
        let long = "é".repeat(3000);
        let key = Key::build().note("two\nlines", "a\tb\nc").note("long", &long).content("graph", b"bytes").finish();
        assert_eq!(&About::from_text(&key.about().to_text()), key.about());
        assert_eq!(key.about().get("two lines"), Some("a b c"));
    }
}
