//! Pre-tokenizers: the cuts that no token crosses.

use super::json::{flag, kind, parts, text};
use super::{Bounds, Class, Pattern, TokenizerError, bytes};
use serde_json::Value;

const PART: &str = "pre_tokenizer";

/// GPT-2's cuts: contractions, words, numbers and the rest, each with the space before it.
pub(super) const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

/// One step of splitting.
#[derive(Debug, Clone)]
pub(super) enum Splitter {
    /// Bytes as letters, perhaps after GPT-2's cuts.
    ByteLevel { prefix_space: bool, cuts: Option<Pattern> },
    /// Cuts around what a pattern finds.
    Split { pattern: Pattern, behaviour: Behaviour, invert: bool },
    /// Cuts around characters of a kind.
    Chars { kind: CharKind, behaviour: Behaviour },
    /// Words and runs of other characters, without spaces.
    Whitespace(Pattern),
    /// Spaces as letters of the words after them.
    Metaspace { replacement: char, prepend: Prepend, split: bool },
}

/// What becomes of the text that was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Behaviour {
    Removed,
    Isolated,
    MergedWithPrevious,
    MergedWithNext,
    Contiguous,
}

/// Which characters are cut around.
#[derive(Debug, Clone, Copy)]
pub(super) enum CharKind {
    Digit,
    Space,
    Punctuation,
}

/// Where a space is put before a text that has none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Prepend {
    Always,
    First,
    Never,
}

impl Behaviour {
    fn parse(name: &str) -> Result<Behaviour, TokenizerError> {
        Ok(match name {
            "Removed" => Behaviour::Removed,
            "Isolated" => Behaviour::Isolated,
            "MergedWithPrevious" => Behaviour::MergedWithPrevious,
            "MergedWithNext" => Behaviour::MergedWithNext,
            "Contiguous" => Behaviour::Contiguous,
            _ => return Err(TokenizerError::Malformed { part: PART, field: "behavior" }),
        })
    }
}

impl Splitter {
    pub(super) fn parse(value: Option<&Value>) -> Result<Vec<Splitter>, TokenizerError> {
        let mut all = Vec::new();
        for part in parts(value, "pretokenizers", PART)? {
            Splitter::one(part, &mut all)?;
        }
        Ok(all)
    }

    fn one(value: &Value, all: &mut Vec<Splitter>) -> Result<(), TokenizerError> {
        let splitter = match kind(value, PART)? {
            "ByteLevel" => Splitter::ByteLevel {
                prefix_space: flag(value, PART, "add_prefix_space", true)?,
                cuts: if flag(value, PART, "use_regex", true)? { Some(Pattern::regex(GPT2)?) } else { None },
            },
            "Split" => Splitter::Split {
                pattern: Pattern::parse(value, PART)?,
                behaviour: Behaviour::parse(text(value, PART, "behavior")?)?,
                invert: flag(value, PART, "invert", false)?,
            },
            "Digits" => {
                let alone = flag(value, PART, "individual_digits", false)?;
                let behaviour = if alone { Behaviour::Isolated } else { Behaviour::Contiguous };
                Splitter::Chars { kind: CharKind::Digit, behaviour }
            }
            "Punctuation" => {
                let behaviour = value.get("behavior").and_then(Value::as_str).unwrap_or("Isolated");
                Splitter::Chars { kind: CharKind::Punctuation, behaviour: Behaviour::parse(behaviour)? }
            }
            "WhitespaceSplit" => Splitter::Chars { kind: CharKind::Space, behaviour: Behaviour::Removed },
            "BertPreTokenizer" => {
                all.push(Splitter::Chars { kind: CharKind::Space, behaviour: Behaviour::Removed });
                Splitter::Chars { kind: CharKind::Punctuation, behaviour: Behaviour::Isolated }
            }
            "Whitespace" => Splitter::Whitespace(Pattern::regex(r"\w+|[^\w\s]+")?),
            "Metaspace" => Splitter::metaspace(value)?,
            other => return Err(TokenizerError::Unsupported { part: PART, kind: other.into() }),
        };
        all.push(splitter);
        Ok(())
    }

    fn metaspace(value: &Value) -> Result<Splitter, TokenizerError> {
        let replacement = text(value, PART, "replacement")?.chars().next();
        let replacement = replacement.ok_or(TokenizerError::Malformed { part: PART, field: "replacement" })?;
        let old = if flag(value, PART, "add_prefix_space", true)? { "always" } else { "never" };
        let prepend = match value.get("prepend_scheme").and_then(Value::as_str).unwrap_or(old) {
            "always" => Prepend::Always,
            "first" => Prepend::First,
            "never" => Prepend::Never,
            _ => return Err(TokenizerError::Malformed { part: PART, field: "prepend_scheme" }),
        };
        Ok(Splitter::Metaspace { replacement, prepend, split: flag(value, PART, "split", true)? })
    }

    /// Splits one piece; `first` says that it begins the text.
    pub(super) fn apply(
        &self,
        piece: &str,
        first: bool,
        bounds: &Bounds,
        out: &mut Vec<String>,
    ) -> Result<(), TokenizerError> {
        match self {
            Splitter::ByteLevel { prefix_space, cuts } => {
                let spaced;
                let piece = if *prefix_space && !piece.starts_with(' ') {
                    spaced = format!(" {piece}");
                    &spaced
                } else {
                    piece
                };
                match cuts {
                    Some(cuts) => {
                        let found = cuts.matches(piece, bounds)?;
                        cut(piece, &found, Behaviour::Isolated, |part| out.push(bytes::to_letters(part)));
                    }
                    None => out.push(bytes::to_letters(piece)),
                }
            }
            Splitter::Split { pattern, behaviour, invert } => {
                let mut found = pattern.matches(piece, bounds)?;
                if *invert {
                    found = between(&found, piece.len());
                }
                cut(piece, &found, *behaviour, |part| out.push(part.into()));
            }
            Splitter::Chars { kind, behaviour } => {
                let holds = |c: char| match kind {
                    CharKind::Digit => c.is_numeric(),
                    CharKind::Space => c.is_whitespace(),
                    CharKind::Punctuation => Class::Punctuation.holds(c),
                };
                let found: Vec<(usize, usize)> =
                    piece.char_indices().filter(|&(_, c)| holds(c)).map(|(at, c)| (at, at + c.len_utf8())).collect();
                cut(piece, &found, *behaviour, |part| out.push(part.into()));
            }
            Splitter::Whitespace(words) => {
                out.extend(words.matches(piece, bounds)?.into_iter().map(|(start, end)| piece[start..end].to_owned()));
            }
            Splitter::Metaspace { replacement, prepend, split } => {
                let mut text = piece.replace(' ', replacement.encode_utf8(&mut [0; 4]));
                let wanted = *prepend == Prepend::Always || *prepend == Prepend::First && first;
                if wanted && !text.starts_with(*replacement) {
                    text.insert(0, *replacement);
                }
                if *split {
                    let found: Vec<(usize, usize)> =
                        text.match_indices(*replacement).map(|(at, one)| (at, at + one.len())).collect();
                    cut(&text, &found, Behaviour::MergedWithNext, |part| out.push(part.into()));
                } else {
                    out.push(text);
                }
            }
        }
        Ok(())
    }
}

/// Returns the gaps between ranges.
fn between(found: &[(usize, usize)], length: usize) -> Vec<(usize, usize)> {
    let starts = std::iter::once(0).chain(found.iter().map(|range| range.1));
    let ends = found.iter().map(|range| range.0).chain([length]);
    starts.zip(ends).filter(|(start, end)| start < end).collect()
}

/// Gives the parts of a text around what was found in it.
fn cut(text: &str, found: &[(usize, usize)], behaviour: Behaviour, mut give: impl FnMut(&str)) {
    // In order: what was found, and what was not.
    let mut ranges: Vec<(usize, usize, bool)> = Vec::with_capacity(found.len() * 2 + 1);
    ranges.extend(between(found, text.len()).into_iter().map(|(start, end)| (start, end, false)));
    ranges.extend(found.iter().map(|&(start, end)| (start, end, true)));
    ranges.sort_unstable();
    let mut merged: Vec<(usize, usize, bool)> = Vec::with_capacity(ranges.len());
    for (start, end, hit) in ranges {
        let joins = |last: &(usize, usize, bool)| match behaviour {
            Behaviour::Removed | Behaviour::Isolated => false,
            Behaviour::MergedWithPrevious => hit && !last.2,
            Behaviour::MergedWithNext => !hit && last.2,
            Behaviour::Contiguous => hit == last.2,
        };
        match merged.last_mut().filter(|last| joins(last)) {
            // What was merged is complete: neither a hit nor a gap that takes another.
            Some(last) => (last.1, last.2) = (end, hit),
            None => merged.push((start, end, hit)),
        }
    }
    for (start, end, hit) in merged {
        if !(hit && behaviour == Behaviour::Removed) {
            give(&text[start..end]);
        }
    }
}
