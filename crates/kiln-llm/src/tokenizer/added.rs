//! Tokens that are found in a text before anything else is done to it.

use super::TokenizerError;
use super::json::{flag, id, text};
use super::prefixes::Prefixes;
use serde_json::Value;

const PART: &str = "added_tokens";

/// A token that was added to the vocabulary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Added {
    pub(super) id: u32,
    pub(super) content: String,
    /// Whether it is no text: it can be left out of what is decoded.
    pub(super) special: bool,
    /// Whether it is found in normalized text.
    pub(super) normalized: bool,
    single_word: bool,
    lstrip: bool,
    rstrip: bool,
}

impl Added {
    pub(super) fn parse(value: Option<&Value>) -> Result<Vec<Added>, TokenizerError> {
        let Some(items) = value.filter(|value| !value.is_null()) else { return Ok(Vec::new()) };
        let items = items.as_array().ok_or(TokenizerError::Malformed { part: PART, field: "added_tokens" })?;
        items.iter().map(Added::one).collect()
    }

    fn one(value: &Value) -> Result<Added, TokenizerError> {
        let special = flag(value, PART, "special", false)?;
        Ok(Added {
            id: id(value.get("id").unwrap_or(&Value::Null), PART, "id")?,
            content: text(value, PART, "content")?.into(),
            special,
            normalized: flag(value, PART, "normalized", !special)?,
            single_word: flag(value, PART, "single_word", false)?,
            lstrip: flag(value, PART, "lstrip", false)?,
            rstrip: flag(value, PART, "rstrip", false)?,
        })
    }

    /// A token that is found as it is.
    pub(super) fn plain(id: u32, content: &str, special: bool) -> Added {
        let content = content.to_owned();
        Added { id, content, special, normalized: false, single_word: false, lstrip: false, rstrip: false }
    }
}

/// A part of a text: tokens that were found, and what is between.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Piece<'a> {
    Token(u32),
    Text(&'a str),
}

/// Finds tokens in a text: the leftmost first, of several the longest. With each token comes the text it is found by.
#[derive(Debug, Clone)]
pub(super) struct Finder {
    tokens: Vec<Added>,
    /// By what each is found by.
    texts: Prefixes,
}

impl Finder {
    pub(super) fn new(tokens: Vec<(String, Added)>) -> Finder {
        let (texts, tokens): (Vec<String>, Vec<Added>) = tokens.into_iter().unzip();
        let numbered = texts.iter().enumerate().map(|(number, text)| (text.as_str().into(), number as u32));
        Finder { texts: Prefixes::new(numbered), tokens }
    }

    pub(super) fn split<'a>(&self, text: &'a str) -> Vec<Piece<'a>> {
        let mut pieces = Vec::new();
        let (mut at, mut rest) = (0, 0);
        while at < text.len() && !self.tokens.is_empty() {
            let Some((token, end)) = self.at(text, at) else {
                at += 1;
                continue;
            };
            let (mut start, mut end) = (at, end);
            if token.lstrip {
                start = rest + text[rest..start].trim_end().len();
            }
            if token.rstrip {
                end = text.len() - text[end..].trim_start().len();
            }
            if rest < start {
                pieces.push(Piece::Text(&text[rest..start]));
            }
            pieces.push(Piece::Token(token.id));
            (at, rest) = (end, end);
        }
        if rest < text.len() {
            pieces.push(Piece::Text(&text[rest..]));
        }
        pieces
    }

    /// The longest token that begins here, with its end.
    fn at(&self, text: &str, at: usize) -> Option<(&Added, usize)> {
        let (length, number) = self.texts.longest(text.get(at..)?)?;
        let token = &self.tokens[number as usize];
        let end = at + length;
        let word = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
        let inside = word(text[..at].chars().next_back()) || word(text[end..].chars().next());
        (!(token.single_word && inside)).then_some((token, end))
    }
}
