//! The table of replacements within a SentencePiece model (`precompiled_charsmap`): a double-array trie over UTF-8 whose values
//! are places of a list of texts, each ended by a zero byte. NFKC and all other rules are written so.

use super::TokenizerError;

/// Replacements of beginnings of a text.
#[derive(Debug, Clone)]
pub(super) struct Charsmap {
    units: Vec<u32>,
    texts: Vec<u8>,
}

/// A replacement has no more bytes than this; the longest of NFKC has 33.
const LONGEST: usize = 256;

impl Charsmap {
    /// From the bytes of a model; `None` where there are none, which changes nothing.
    pub(super) fn parse(bytes: &[u8]) -> Result<Option<Charsmap>, TokenizerError> {
        if bytes.is_empty() {
            return Ok(None);
        }
        let malformed = TokenizerError::Malformed { part: "normalizer_spec", field: "precompiled_charsmap" };
        let Some((size, rest)) = bytes.split_first_chunk::<4>() else { return Err(malformed) };
        let size = u32::from_le_bytes(*size) as usize;
        if !size.is_multiple_of(4) || size == 0 || size > rest.len() {
            return Err(malformed);
        }
        let (trie, texts) = rest.split_at(size);
        let units = trie.chunks_exact(4).map(|unit| u32::from_le_bytes([unit[0], unit[1], unit[2], unit[3]])).collect();
        Ok(Some(Charsmap { units, texts: texts.to_vec() }))
    }

    /// The longest beginning that is replaced: its length and what it becomes.
    pub(super) fn longest(&self, text: &str) -> Result<Option<(usize, &str)>, TokenizerError> {
        let Some((length, value)) = self.search(text.as_bytes()) else { return Ok(None) };
        let malformed = TokenizerError::Malformed { part: "normalizer_spec", field: "precompiled_charsmap" };
        let rest = self.texts.get(value..).unwrap_or_default();
        let end = rest.iter().take(LONGEST + 1).position(|&byte| byte == 0);
        let replacement = end.and_then(|end| std::str::from_utf8(&rest[..end]).ok());
        match replacement.filter(|_| text.is_char_boundary(length)) {
            Some(replacement) => Ok(Some((length, replacement))),
            None => Err(malformed),
        }
    }

    /// Walks the trie. A unit has a label in its lowest byte, an offset to its children from bit 10 on (in steps of 256 with
    /// bit 9), and bit 8 where a value is among the children.
    fn search(&self, text: &[u8]) -> Option<(usize, usize)> {
        let offset = |unit: u32| (unit >> 10) << ((unit & (1 << 9)) >> 6);
        let mut place = offset(*self.units.first()?);
        let mut longest = None;
        for (depth, &byte) in text.iter().enumerate() {
            place ^= u32::from(byte);
            let Some(&unit) = self.units.get(place as usize) else { break };
            if unit & ((1 << 31) | 0xff) != u32::from(byte) {
                break;
            }
            place ^= offset(unit);
            if unit >> 8 & 1 == 1 {
                let value = *self.units.get(place as usize)? & 0x7fff_ffff;
                longest = Some((depth + 1, value as usize));
            }
        }
        longest
    }
}
