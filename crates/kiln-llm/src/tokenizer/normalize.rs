//! Normalizers: what is done to a text before it is split.

use super::json::{count, flag, kind, parts, text};
use super::sentencepiece::Rules;
use super::{Bounds, Class, Pattern, TokenizerError};
use serde_json::Value;
use std::sync::Arc;
use unicode_normalization::UnicodeNormalization;

const PART: &str = "normalizer";

/// One step of normalizing.
#[derive(Debug, Clone)]
pub(super) enum Normalizer {
    Prepend(String),
    Replace(Pattern, String),
    Nfc,
    Nfd,
    Nfkc,
    Nfkd,
    Lowercase,
    StripAccents,
    Strip {
        left: bool,
        right: bool,
    },
    /// All that a SentencePiece model says.
    SentencePiece(Arc<Rules>),
    Bert {
        clean: bool,
        chinese: bool,
        accents: bool,
        lowercase: bool,
    },
}

impl Normalizer {
    pub(super) fn parse(value: Option<&Value>) -> Result<Vec<Normalizer>, TokenizerError> {
        parts(value, "normalizers", PART)?.into_iter().map(Normalizer::one).collect()
    }

    fn one(value: &Value) -> Result<Normalizer, TokenizerError> {
        Ok(match kind(value, PART)? {
            "Prepend" => Normalizer::Prepend(text(value, PART, "prepend")?.into()),
            "Replace" => Normalizer::Replace(Pattern::parse(value, PART)?, text(value, PART, "content")?.into()),
            "NFC" => Normalizer::Nfc,
            "NFD" => Normalizer::Nfd,
            "NFKC" => Normalizer::Nfkc,
            "NFKD" => Normalizer::Nfkd,
            "Lowercase" => Normalizer::Lowercase,
            "StripAccents" => Normalizer::StripAccents,
            "Strip" => Normalizer::Strip {
                left: flag(value, PART, "strip_left", true)?,
                right: flag(value, PART, "strip_right", true)?,
            },
            "BertNormalizer" => {
                let lowercase = flag(value, PART, "lowercase", true)?;
                Normalizer::Bert {
                    clean: flag(value, PART, "clean_text", true)?,
                    chinese: flag(value, PART, "handle_chinese_chars", true)?,
                    accents: flag(value, PART, "strip_accents", lowercase)?,
                    lowercase,
                }
            }
            other => return Err(TokenizerError::Unsupported { part: PART, kind: other.into() }),
        })
    }

    pub(super) fn apply(&self, text: &str, bounds: &Bounds) -> Result<String, TokenizerError> {
        Ok(match self {
            Normalizer::Prepend(_) if text.is_empty() => String::new(),
            Normalizer::Prepend(prefix) => format!("{prefix}{text}"),
            Normalizer::Replace(pattern, content) => pattern.replace(text, content, PART, bounds)?,
            Normalizer::Nfc => text.nfc().collect(),
            Normalizer::Nfd => text.nfd().collect(),
            Normalizer::Nfkc => text.nfkc().collect(),
            Normalizer::Nfkd => text.nfkd().collect(),
            Normalizer::Lowercase => text.chars().flat_map(char::to_lowercase).collect(),
            Normalizer::StripAccents => text.chars().filter(|&c| !Class::Mark.holds(c)).collect(),
            Normalizer::Strip { left, right } => {
                let text = if *left { text.trim_start() } else { text };
                if *right { text.trim_end() } else { text }.into()
            }
            Normalizer::SentencePiece(rules) => rules.apply(text)?,
            Normalizer::Bert { clean, chinese, accents, lowercase } => {
                let mut text = text.to_owned();
                if *clean {
                    text = text.chars().filter(|&c| !is_debris(c)).map(|c| if is_space(c) { ' ' } else { c }).collect();
                }
                if *chinese {
                    text = spaced_chinese(&text);
                }
                if *accents {
                    text = text.nfd().filter(|&c| !Class::Mark.holds(c)).collect();
                }
                if *lowercase {
                    text = text.chars().flat_map(char::to_lowercase).collect();
                }
                text
            }
        })
    }
}

/// A replacement in the decoder is one in the normalizer too.
pub(super) fn replacement(value: &Value, part: &'static str) -> Result<(Pattern, String), TokenizerError> {
    Ok((Pattern::parse(value, part)?, text(value, part, "content")?.into()))
}

/// How many of a character are taken from the ends of a token: content, start, stop.
pub(super) fn stripping(value: &Value, part: &'static str) -> Result<(char, usize, usize), TokenizerError> {
    let content = text(value, part, "content")?.chars().next();
    let content = content.ok_or(TokenizerError::Malformed { part, field: "content" })?;
    Ok((content, count(value, part, "start", 0)?, count(value, part, "stop", 0)?))
}

fn is_space(c: char) -> bool {
    matches!(c, '\t' | '\n' | '\r') || c.is_whitespace()
}

/// What BERT drops from a text.
fn is_debris(c: char) -> bool {
    matches!(c, '\0' | '\u{fffd}') || !matches!(c, '\t' | '\n' | '\r') && Class::Other.holds(c)
}

fn spaced_chinese(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        let chinese = matches!(c as u32,
            0x4e00..=0x9fff | 0x3400..=0x4dbf | 0x20000..=0x2a6df | 0x2a700..=0x2b73f | 0x2b740..=0x2b81f
            | 0x2b920..=0x2ceaf | 0xf900..=0xfaff | 0x2f800..=0x2fa1f);
        if chinese {
            out.extend([' ', c, ' ']);
        } else {
            out.push(c);
        }
    }
    out
}
