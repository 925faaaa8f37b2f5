//! Keys of entries: a digest of everything that an entry depends on, with a readable description of the same.

use std::hash::{Hash, Hasher};

/// The key of an entry: a digest, and a description of what went into it. Two keys are equal when their digests are.
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

/// The BLAKE3 digest of some bytes.
///
/// ```
/// use kiln_runtime::disk::digest;
/// assert_ne!(digest(b"one"), digest(b"other"));
/// ```
pub fn digest(bytes: &[u8]) -> [u8; 32] {
    blake3::hash(bytes).into()
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

    /// A description of what went into it.
    pub fn about(&self) -> &About {
        &self.about
    }

    /// The digest in hexadecimal: the name of the entry's file.
    pub fn hex(&self) -> String {
        hex(&self.digest)
    }

    /// The same key with a note that the entry does not depend on.
    pub fn note(mut self, name: &str, value: &str) -> Key {
        self.about.push(name, value, false);
        self
    }

    /// The first letters of [`Key::hex`], for display.
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

/// A key under construction.
#[derive(Debug, Clone)]
pub struct KeyBuilder {
    hasher: blake3::Hasher,
    about: About,
}

impl KeyBuilder {
    /// A part that the entry depends on, short enough to be kept as text.
    pub fn part(mut self, name: &str, value: &str) -> KeyBuilder {
        self.mix(name, value.as_bytes());
        self.about.push(name, value, true);
        self
    }

    /// A part that the entry depends on, of any length; only a digest is kept as text.
    pub fn content(mut self, name: &str, bytes: &[u8]) -> KeyBuilder {
        self.mix(name, bytes);
        self.about.push(name, &hex(&blake3::hash(bytes).as_bytes()[..6]), true);
        self
    }

    /// A part that the entry depends on, by its hash: every field of a type that derives `Hash`, and no address. Only a digest
    /// is kept as text.
    pub fn hashed(self, name: &str, value: &impl Hash) -> KeyBuilder {
        let mut bytes = Bytes(Vec::new());
        value.hash(&mut bytes);
        self.content(name, &bytes.0)
    }

    /// A note that the entry does not depend on.
    pub fn note(mut self, name: &str, value: &str) -> KeyBuilder {
        self.about.push(name, value, false);
        self
    }

    /// The key.
    pub fn finish(self) -> Key {
        Key { digest: *self.hasher.finalize().as_bytes(), about: self.about }
    }

    /// Lengths are hashed too, so that no two lists of parts are one string of bytes.
    fn mix(&mut self, name: &str, bytes: &[u8]) {
        for piece in [name.as_bytes(), bytes] {
            self.hasher.update(&(piece.len() as u64).to_le_bytes());
            self.hasher.update(piece);
        }
    }
}

/// Collects the bytes that a value feeds to a hash: for values that derive `Hash` no two of a type feed the same.
struct Bytes(Vec<u8>);

impl Hasher for Bytes {
    fn write(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    fn finish(&self) -> u64 {
        // Not needed: only the bytes are.
        self.0.len() as u64
    }
}

/// A description of an entry and of what went into its key.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct About(Vec<Fact>);

/// One fact about an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fact {
    /// Its name.
    pub name: String,
    /// Its value, or the beginning of it, or a digest.
    pub value: String,
    /// Whether it is part of the key; else it is a note.
    pub in_key: bool,
}

/// The most letters of one value: it is for display.
const VALUE_KEPT: usize = 1000;

impl About {
    /// In the order they were given.
    pub fn facts(&self) -> &[Fact] {
        &self.0
    }

    /// The value of a name.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|fact| fact.name == name).map(|fact| fact.value.as_str())
    }

    /// The parts of the key that differ from another's, or that only one of them has: name, here, there.
    pub fn differences<'a>(&'a self, other: &'a About) -> Vec<(&'a str, Option<&'a str>, Option<&'a str>)> {
        let keyed = |about: &'a About| about.0.iter().filter(|fact| fact.in_key);
        let here = keyed(self).map(|f| (f.name.as_str(), Some(f.value.as_str()), other.get(&f.name)));
        let there = keyed(other).filter(|f| self.get(&f.name).is_none());
        let there = there.map(|f| (f.name.as_str(), None, Some(f.value.as_str())));
        here.chain(there).filter(|(_, a, b)| a != b).collect()
    }

    fn push(&mut self, name: &str, value: &str, in_key: bool) {
        let clean = |c: char| if c.is_control() { ' ' } else { c };
        let mut text: String = value.chars().take(VALUE_KEPT).map(clean).collect();
        if value.chars().nth(VALUE_KEPT).is_some() {
            text.push('…');
        }
        self.0.push(Fact { name: name.chars().map(clean).collect(), value: text, in_key });
    }

    /// Renders one fact per line.
    pub(super) fn to_text(&self) -> String {
        let line = |fact: &Fact| format!("{}{}\t{}\n", if fact.in_key { '=' } else { ' ' }, fact.name, fact.value);
        self.0.iter().map(line).collect()
    }

    pub(super) fn from_text(text: &str) -> About {
        let fact = |line: &str| {
            let (name, value) = line.split_once('\t')?;
            let (in_key, name) = match name.strip_prefix('=') {
                Some(name) => (true, name),
                None => (false, name.strip_prefix(' ')?),
            };
            Some(Fact { name: name.to_owned(), value: value.to_owned(), in_key })
        };
        About(text.lines().filter_map(fact).collect())
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
        let facts: Vec<bool> = key.about().facts().iter().map(|fact| fact.in_key).collect();
        assert_eq!(facts, [false, false, true]);
    }

    #[test]
    fn differences_are_those_of_the_key() {
        let a = Key::build().part("target", "avx2").part("shape", "3").note("label", "one").finish();
        let b = Key::build().part("target", "avx2").part("shape", "4").part("more", "x").note("label", "two").finish();
        let expected = [("shape", Some("3"), Some("4")), ("more", None, Some("x"))];
        assert_eq!(a.about().differences(b.about()), expected);
    }
}
