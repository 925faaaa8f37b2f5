//! Decoders: from tokens back to text, all at once or one by one.

use super::json::{flag, kind, parts, text};
use super::normalize::{replacement, stripping};
use super::{Bounds, Pattern, Tokenizer, TokenizerError, bytes};
use serde_json::Value;

const PART: &str = "decoder";

/// One step of decoding a list of tokens.
#[derive(Debug, Clone)]
pub(super) enum Decoder {
    Replace(Pattern, String),
    ByteFallback,
    Fuse,
    Strip { content: char, start: usize, stop: usize },
    ByteLevel,
    WordPiece { prefix: String, cleanup: bool },
    Metaspace { replacement: char, prepended: bool },
}

impl Decoder {
    pub(super) fn parse(value: Option<&Value>) -> Result<Vec<Decoder>, TokenizerError> {
        parts(value, "decoders", PART)?.into_iter().map(Decoder::one).collect()
    }

    fn one(value: &Value) -> Result<Decoder, TokenizerError> {
        Ok(match kind(value, PART)? {
            "Replace" => {
                let (pattern, content) = replacement(value, PART)?;
                Decoder::Replace(pattern, content)
            }
            "ByteFallback" => Decoder::ByteFallback,
            "Fuse" => Decoder::Fuse,
            "Strip" => {
                let (content, start, stop) = stripping(value, PART)?;
                Decoder::Strip { content, start, stop }
            }
            "ByteLevel" => Decoder::ByteLevel,
            "WordPiece" => Decoder::WordPiece {
                prefix: text(value, PART, "prefix")?.into(),
                cleanup: flag(value, PART, "cleanup", true)?,
            },
            "Metaspace" => {
                let replacement = text(value, PART, "replacement")?.chars().next();
                Decoder::Metaspace {
                    replacement: replacement.ok_or(TokenizerError::Malformed { part: PART, field: "replacement" })?,
                    prepended: value.get("prepend_scheme").and_then(Value::as_str) != Some("never")
                        && flag(value, PART, "add_prefix_space", true)?,
                }
            }
            other => return Err(TokenizerError::Unsupported { part: PART, kind: other.into() }),
        })
    }

    pub(super) fn apply(&self, tokens: Vec<String>, bounds: &Bounds) -> Result<Vec<String>, TokenizerError> {
        Ok(match self {
            Decoder::Replace(pattern, content) => {
                let mut all = Vec::with_capacity(tokens.len());
                let mut length = 0;
                for token in &tokens {
                    let token = pattern.replace(token, content, PART, bounds)?;
                    length += token.len();
                    bounds.fits(PART, length)?;
                    all.push(token);
                }
                return Ok(all);
            }
            Decoder::ByteFallback => join_bytes(tokens),
            Decoder::Fuse => vec![tokens.concat()],
            Decoder::Strip { content, start, stop } => {
                tokens.iter().map(|token| strip(token, *content, *start, *stop).to_owned()).collect()
            }
            Decoder::ByteLevel => {
                let bytes: Vec<u8> = tokens.iter().flat_map(|token| level_bytes(token)).collect();
                vec![String::from_utf8_lossy(&bytes).into_owned()]
            }
            Decoder::WordPiece { prefix, cleanup } => {
                let word = |(i, token): (usize, String)| {
                    let token = match token.strip_prefix(prefix.as_str()) {
                        _ if i == 0 => token,
                        Some(rest) => rest.to_owned(),
                        None => format!(" {token}"),
                    };
                    if *cleanup { tidy(&token) } else { token }
                };
                tokens.into_iter().enumerate().map(word).collect()
            }
            Decoder::Metaspace { replacement, prepended } => {
                let spaced = |(i, token): (usize, String)| match token.strip_prefix(*replacement) {
                    Some(rest) if i == 0 && *prepended => rest.replace(*replacement, " "),
                    _ => token.replace(*replacement, " "),
                };
                tokens.into_iter().enumerate().map(spaced).collect()
            }
        })
    }
}

/// Runs of `<0xXX>` become the characters they are the bytes of; each byte of a run that is none, a replacement character.
fn join_bytes(tokens: Vec<String>) -> Vec<String> {
    let mut out = Vec::with_capacity(tokens.len());
    let mut run: Vec<u8> = Vec::new();
    let flush = |run: &mut Vec<u8>, out: &mut Vec<String>| {
        match String::from_utf8(std::mem::take(run)) {
            Ok(text) if text.is_empty() => {}
            Ok(text) => out.push(text),
            Err(error) => out.extend(vec!["\u{fffd}".to_owned(); error.as_bytes().len()]),
        };
    };
    for token in tokens {
        let digits = token.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>')).filter(|hex| hex.len() == 2);
        match digits.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) => run.push(byte),
            None => {
                flush(&mut run, &mut out);
                out.push(token);
            }
        }
    }
    flush(&mut run, &mut out);
    out
}

fn strip(token: &str, content: char, start: usize, stop: usize) -> &str {
    let mut token = token;
    let (mut start, mut stop) = (start, stop);
    // A file may ask for any number: what counts is how many there are.
    while let (1.., Some(rest)) = (start, token.strip_prefix(content)) {
        (token, start) = (rest, start - 1);
    }
    while let (1.., Some(rest)) = (stop, token.strip_suffix(content)) {
        (token, stop) = (rest, stop - 1);
    }
    token
}

/// A token that is not all letters of bytes is text itself.
fn level_bytes(token: &str) -> Vec<u8> {
    token.chars().map(bytes::to_byte).collect::<Option<Vec<u8>>>().unwrap_or_else(|| token.as_bytes().to_vec())
}

/// Without the spaces that splitting put into English.
fn tidy(text: &str) -> String {
    let pairs = [
        (" .", "."),
        (" ?", "?"),
        (" !", "!"),
        (" ,", ","),
        (" ' ", "'"),
        (" n't", "n't"),
        (" 'm", "'m"),
        (" do not", " don't"),
        (" 's", "'s"),
        (" 've", "'ve"),
        (" 're", "'re"),
    ];
    pairs.iter().fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
}

/// Text of tokens that come one by one; what is not yet a whole character is held back.
///
/// ```
/// use kiln_llm::Tokenizer;
/// let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/models/stories260K");
/// let tokenizer = Tokenizer::read(folder)?;
/// let mut stream = tokenizer.stream(true);
/// // The euro sign is no token: it comes as three bytes.
/// let texts: Vec<String> = [403, 229, 133, 175].iter().map(|&id| stream.push(id)).collect::<Result<_, _>>()?;
/// assert_eq!(texts, ["Once", "", "", "€"]);
/// # Ok::<(), kiln_llm::Error>(())
/// ```
#[derive(Debug)]
pub struct DecodeStream<'a> {
    tokenizer: &'a Tokenizer,
    decoding: Decoding,
}

impl<'a> DecodeStream<'a> {
    pub(super) fn new(tokenizer: &'a Tokenizer, skip_special: bool) -> DecodeStream<'a> {
        DecodeStream { tokenizer, decoding: Decoding::new(skip_special) }
    }

    /// The text that a further token completes; empty if it completes none.
    pub fn push(&mut self, id: u32) -> crate::Result<String> {
        self.decoding.push(self.tokenizer, id)
    }

    /// What was held back.
    pub fn finish(mut self) -> crate::Result<String> {
        self.decoding.rest(self.tokenizer)
    }
}

/// How far a stream of tokens is decoded; all calls take the same tokenizer.
#[derive(Debug)]
pub(crate) struct Decoding {
    skip_special: bool,
    ids: Vec<u32>,
    /// How many of `ids` are before those whose text was given last.
    given: usize,
    /// How many tokens in a row were held back.
    held: usize,
}

/// A character has no more bytes than this; what is still none after as many tokens is none.
const LONGEST_CHARACTER: usize = 4;
/// Tokens that have given no text and are kept.
const MOST_HELD: usize = 64;

impl Decoding {
    /// Before the first token.
    pub fn new(skip_special: bool) -> Decoding {
        Decoding { skip_special, ids: Vec::new(), given: 0, held: 0 }
    }

    /// The text that a further token completes.
    pub fn push(&mut self, tokenizer: &Tokenizer, id: u32) -> crate::Result<String> {
        self.ids.push(id);
        self.next_text(tokenizer, self.held + 1 < LONGEST_CHARACTER)
    }

    /// What was held back.
    pub fn rest(&mut self, tokenizer: &Tokenizer) -> crate::Result<String> {
        self.next_text(tokenizer, false)
    }

    fn next_text(&mut self, tokenizer: &Tokenizer, hold: bool) -> crate::Result<String> {
        // Decoders look at the beginning of a text: the tokens given last stand before the new ones.
        let before = tokenizer.decode(&self.ids[..self.given], self.skip_special)?;
        let all = tokenizer.decode(&self.ids, self.skip_special)?;
        if hold && all.ends_with(char::REPLACEMENT_CHARACTER) {
            self.held += 1;
            return Ok(String::new());
        }
        self.held = 0;
        let text = all.get(before.len()..).unwrap_or_default().to_owned();
        if text.is_empty() {
            // Tokens without a text are looked at again with every further one: with many, the first are left behind.
            if self.ids.len() > MOST_HELD {
                self.ids.drain(..self.ids.len() - LONGEST_CHARACTER);
                self.given = self.ids.len();
            }
            return Ok(text);
        }
        self.ids.drain(..self.given);
        self.given = self.ids.len();
        Ok(text)
    }
}
