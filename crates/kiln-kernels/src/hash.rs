//! A fast hash for small keys that never come from outside: ids, dtypes and short index expressions.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Multiply-and-rotate over words, as rustc's own tables use.
#[derive(Default, Clone, Copy)]
pub(crate) struct WordHasher(u64);

const MULTIPLIER: u64 = 0x517c_c1b7_2722_0a95;

impl WordHasher {
    #[inline]
    fn word(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(MULTIPLIER);
    }
}

impl Hasher for WordHasher {
    fn write(&mut self, bytes: &[u8]) {
        let mut chunks = bytes.chunks_exact(8);
        for chunk in &mut chunks {
            self.word(chunk.iter().rev().fold(0, |acc, &b| acc << 8 | u64::from(b)));
        }
        for &b in chunks.remainder() {
            self.word(b.into());
        }
    }
    #[inline]
    fn write_u8(&mut self, n: u8) {
        self.word(n.into());
    }
    #[inline]
    fn write_u32(&mut self, n: u32) {
        self.word(n.into());
    }
    #[inline]
    fn write_u64(&mut self, n: u64) {
        self.word(n);
    }
    #[inline]
    fn write_usize(&mut self, n: usize) {
        self.word(n as u64);
    }
    #[inline]
    fn finish(&self) -> u64 {
        // The multiplication leaves the low bits weak, and tables index by them.
        self.0 ^ (self.0 >> 29)
    }
}

/// A map with [`WordHasher`].
pub(crate) type FastMap<K, V> = HashMap<K, V, BuildHasherDefault<WordHasher>>;
