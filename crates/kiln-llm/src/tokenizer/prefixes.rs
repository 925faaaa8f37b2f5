//! Texts of a list that another text begins with.

use std::sync::Arc;

/// A sorted list of texts with their tokens.
#[derive(Debug, Clone, Default)]
pub(super) struct Prefixes(Vec<(Arc<str>, u32)>);

impl Prefixes {
    /// Of these texts; empty ones are left out.
    pub(super) fn new(texts: impl Iterator<Item = (Arc<str>, u32)>) -> Prefixes {
        let mut sorted: Vec<(Arc<str>, u32)> = texts.filter(|(text, _)| !text.is_empty()).collect();
        sorted.sort();
        Prefixes(sorted)
    }

    /// Calls `found` with the length and the token of each text that `text` begins with, shorter ones first.
    pub(super) fn each(&self, text: &str, found: impl FnMut(usize, u32)) {
        self.each_of(text.bytes(), found);
    }

    fn each_of(&self, bytes: impl Iterator<Item = u8>, mut found: impl FnMut(usize, u32)) {
        let mut range = &self.0[..];
        for (depth, byte) in bytes.enumerate() {
            let at = |entry: &(Arc<str>, u32)| entry.0.as_bytes().get(depth).copied();
            range = &range[range.partition_point(|entry| at(entry) < Some(byte))..];
            range = &range[..range.partition_point(|entry| at(entry) == Some(byte))];
            match range.first() {
                None => return,
                Some((text, token)) if text.len() == depth + 1 => found(depth + 1, *token),
                Some(_) => {}
            }
        }
    }

    /// The longest text that `text` begins with: its length and token.
    pub(super) fn longest(&self, text: &str) -> Option<(usize, u32)> {
        let mut longest = None;
        if !self.0.is_empty() {
            self.each(text, |length, token| longest = Some((length, token)));
        }
        longest
    }

    /// The longest text that begins with `start` and goes on as `text` does: how much it has of `text`, and its token.
    pub(super) fn longest_after(&self, start: &str, text: &str) -> Option<(usize, u32)> {
        let mut longest = None;
        let more = |length: usize, token| (length > start.len()).then(|| (length - start.len(), token));
        self.each_of(start.bytes().chain(text.bytes()), |length, token| longest = more(length, token).or(longest));
        longest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_prefix_is_found_shorter_ones_first() {
        let texts = ["ab", "a", "abcd", "b", "", "ä", "aé"];
        let prefixes = Prefixes::new(texts.iter().enumerate().map(|(id, text)| ((*text).into(), id as u32)));
        let all = |text: &str| {
            let mut all = Vec::new();
            prefixes.each(text, |length, token| all.push((length, token)));
            all
        };
        assert_eq!(all("abcdx"), [(1, 1), (2, 0), (4, 2)]);
        assert_eq!(all("äb"), [(2, 5)]);
        assert_eq!(all("c"), []);
        assert_eq!(prefixes.longest("abc"), Some((2, 0)));
        assert_eq!(Prefixes::default().longest("abc"), None);
        assert_eq!(prefixes.longest_after("a", "bcd"), Some((3, 2)));
        assert_eq!(prefixes.longest_after("a", "bc"), Some((1, 0)));
        assert_eq!(prefixes.longest_after("a", "x"), None);
        assert_eq!(prefixes.longest_after("", "a"), Some((1, 1)));
    }
}
