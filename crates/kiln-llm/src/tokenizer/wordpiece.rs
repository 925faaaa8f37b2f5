//! WordPiece: the longest token that begins a word, then the longest that continues it.

use super::TokenizerError;
use super::file::{ModelPart, Vocabulary};
use super::json::{count, text};
use serde_json::Value;

const PART: &str = "model";

/// A vocabulary in which tokens within words have a prefix.
#[derive(Debug, Clone)]
pub(super) struct WordPiece {
    vocabulary: Vocabulary,
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
            let found = (start + 1..=word.len()).rev().filter(|&end| word.is_char_boundary(end)).find_map(|end| {
                let part = &word[start..end];
                let token = match start {
                    0 => self.vocabulary.get(part),
                    _ => self.vocabulary.get(&*format!("{}{part}", self.prefix)),
                };
                token.map(|&token| (token, end))
            });
            match found {
                Some((token, end)) => {
                    out.push(token);
                    start = end;
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
