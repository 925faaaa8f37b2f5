//! Patterns of tokenizer files, and classes of characters.

use super::{Bounds, TokenizerError};
use fancy_regex::{Regex, RegexBuilder};
use serde_json::Value;
use std::sync::LazyLock;

/// How often a search may go back; those of models do so a few times a match.
const MOST_BACKTRACKS: usize = 250_000;
/// How large the automaton of a part without look-around may be.
const MOST_BYTES: usize = 2 << 20;

/// A literal text or a regular expression.
#[derive(Debug, Clone)]
pub(super) enum Pattern {
    Literal(String),
    Regex(Box<Regex>),
}

impl Pattern {
    /// The `pattern` of a part.
    pub(super) fn parse(value: &Value, part: &'static str) -> Result<Pattern, TokenizerError> {
        let pattern = value.get("pattern").ok_or(TokenizerError::Malformed { part, field: "pattern" })?;
        if let Some(text) = pattern.get("String").and_then(Value::as_str) {
            return Ok(Pattern::Literal(text.into()));
        }
        let text = pattern.get("Regex").and_then(Value::as_str);
        Pattern::regex(text.ok_or(TokenizerError::Malformed { part, field: "pattern" })?)
    }

    /// A regular expression.
    pub(super) fn regex(text: &str) -> Result<Pattern, TokenizerError> {
        let bad = |e: fancy_regex::Error| TokenizerError::Pattern { pattern: text.into(), message: e.to_string() };
        let mut builder = RegexBuilder::new(text);
        builder.backtrack_limit(MOST_BACKTRACKS).delegate_size_limit(MOST_BYTES);
        Ok(Pattern::Regex(Box::new(builder.build().map_err(bad)?)))
    }

    /// Where it is found, in order; never empty matches.
    pub(super) fn matches(&self, text: &str, bounds: &Bounds) -> Result<Vec<(usize, usize)>, TokenizerError> {
        match self {
            Pattern::Literal(literal) if literal.is_empty() => Ok(Vec::new()),
            Pattern::Literal(literal) => {
                Ok(text.match_indices(literal.as_str()).map(|(at, found)| (at, at + found.len())).collect())
            }
            Pattern::Regex(regex) => {
                let mut found = Vec::new();
                for one in regex.find_iter(text) {
                    bounds.in_time(regex.as_str())?;
                    let one = one.map_err(|e| TokenizerError::Pattern {
                        pattern: regex.as_str().into(),
                        message: e.to_string(),
                    })?;
                    if !one.range().is_empty() {
                        found.push((one.start(), one.end()));
                    }
                }
                Ok(found)
            }
        }
    }

    /// The text with every match replaced; `part` is for messages.
    pub(super) fn replace(
        &self,
        text: &str,
        content: &str,
        part: &'static str,
        bounds: &Bounds,
    ) -> Result<String, TokenizerError> {
        let found = self.matches(text, bounds)?;
        let removed: usize = found.iter().map(|(start, end)| end - start).sum();
        let length = (text.len() - removed).saturating_add(found.len().saturating_mul(content.len()));
        bounds.fits(part, length)?;
        let mut out = String::with_capacity(length);
        let mut rest = 0;
        for (start, end) in found {
            out.push_str(&text[rest..start]);
            out.push_str(content);
            rest = end;
        }
        out.push_str(&text[rest..]);
        Ok(out)
    }
}

/// General categories that Rust's own methods do not tell apart.
#[derive(Debug, Clone, Copy)]
pub(super) enum Class {
    /// Marks without width.
    Mark,
    /// Controls, formats, what is not assigned.
    Other,
    /// Punctuation, with what ASCII counts as such.
    Punctuation,
}

impl Class {
    pub(super) fn holds(self, c: char) -> bool {
        static MARK: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(r"^\p{Mn}").ok());
        static OTHER: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(r"^\p{C}").ok());
        static PUNCTUATION: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(r"^\p{P}").ok());
        if c.is_ascii() {
            return match self {
                Class::Mark => false,
                Class::Other => c.is_ascii_control(),
                Class::Punctuation => c.is_ascii_punctuation(),
            };
        }
        let regex: &Option<Regex> = match self {
            Class::Mark => &MARK,
            Class::Other => &OTHER,
            Class::Punctuation => &PUNCTUATION,
        };
        let text = c.encode_utf8(&mut [0; 4]).to_owned();
        regex.as_ref().is_some_and(|regex| regex.is_match(&text).unwrap_or(false))
    }
}
