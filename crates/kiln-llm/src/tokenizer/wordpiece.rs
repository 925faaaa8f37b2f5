//! WordPiece: the longest token that begins a word, then the longest that continues it.

use super::TokenizerError;
use super::file::{ModelPart, Vocabulary};
use super::json::{count, text};
use super::prefixes::Prefixes;
use serde_json::Value;

const PART: &str = "model";

/// A vocabulary in which tokens within words have a prefix.
#[derive(Debug, Clone)]
pub(super) struct WordPiece {
    vocabulary: Vocabulary,
    /// The same, to find the longest token.
    tokens: Prefixes,
    prefix: String,
    unknown: u32,
    longest_word: usize,
}

impl WordPiece {
    pub(super) fn parse(part: ModelPart) -> Result<WordPiece, TokenizerError> {
        let model = &part.fields;
        let vocabulary = part.vocabulary.ok_or(TokenizerError::Malformed { part: PART, field: "vocab" })?;
        let unknown = vocabulary.get(text(model, PART, "unk_token")?).copied();
        Ok(WordPiece {
            prefix: model.get("continuing_subword_prefix").and_then(Value::as_str).unwrap_or("##").into(),
            unknown: unknown.ok_or(TokenizerError::Malformed { part: PART, field: "unk_token" })?,
            longest_word: count(model, PART, "max_input_chars_per_word", 100)?,
            tokens: Prefixes::new(vocabulary.iter().map(|(text, &id)| (text.clone(), id))),
            vocabulary,
        })
    }

    pub(super) fn vocabulary(&self) -> &Vocabulary {
        &self.vocabulary
    }

    pub(super) fn encode(&self, word: &str, out: &mut Vec<u32>) {
        let before = out.len();
        let mut start = 0;
        let mut known = word.chars().count() <= self.longest_word;
        while known && start < word.len() {
            let prefix = if start == 0 { "" } else { &*self.prefix };
            match self.tokens.longest_after(prefix, &word[start..]) {
                Some((length, token)) => {
                    out.push(token);
                    start += length;
                }
                None => known = false,
            }
        }
        if !known {
            out.truncate(before);
            out.push(self.unknown);
        }
    }
}
