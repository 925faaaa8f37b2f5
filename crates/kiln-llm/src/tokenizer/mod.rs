//! Tokenizers as `tokenizer.json`, SentencePiece's `tokenizer.model` or a GGUF file describe them.
//!
//! ```text
//!  text ─▶ added tokens cut out ─▶ normalizers ─▶ splitters ─▶ BPE, unigram or WordPiece ─▶ special tokens around ─▶ ids
//!  ids ─▶ texts of the tokens ─▶ decoders ─▶ text
//! ```
//!
//! The parts are those of Hugging Face's library, under its names; a part that is not known is an error when the file is
//! read, never a wrong token later.

mod added;
mod bounds;
mod bpe;
mod bytes;
mod charsmap;
mod decode;
mod file;
mod gguf;
mod json;
mod normalize;
mod pattern;
mod post;
mod prefixes;
mod proto;
mod sentencepiece;
mod split;
mod unigram;
mod wordpiece;

pub use decode::DecodeStream;
pub(crate) use decode::Decoding;
pub(crate) use gguf::CONTROL;

use crate::{Error, Result, files};
use added::{Added, Finder, Piece};
use bounds::{Bounds, LONGEST_TOKEN, MOST_PATTERNS, few};
use bpe::Bpe;
use decode::Decoder;
use file::{TokenizerFile, Vocabulary};
use kiln::shown;
use normalize::Normalizer;
use pattern::{Class, Pattern};
use post::Frame;
use serde_json::Value;
use split::Splitter;
use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use unigram::Unigram;
use wordpiece::WordPiece;

/// Why a tokenizer could not be read or used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// A member is missing or of the wrong kind.
    #[error("{part}: '{field}' is missing or of the wrong kind")]
    Malformed {
        /// The part of the file.
        part: &'static str,
        /// The member.
        field: &'static str,
    },
    /// A part that there is no code for.
    #[error("{part}: '{}' is not supported", shown(kind))]
    Unsupported {
        /// The part of the file.
        part: &'static str,
        /// Its kind.
        kind: String,
    },
    /// A merge of or to what is no token.
    #[error("model: the merge of '{}' and '{}' is not in the vocabulary", shown(left), shown(right))]
    BadMerge {
        /// The left one.
        left: String,
        /// The right one.
        right: String,
    },
    /// A regular expression that cannot be read, or gave up on a text.
    #[error("the pattern '{}': {}", shown(pattern), shown(message))]
    Pattern {
        /// The pattern.
        pattern: String,
        /// What is wrong.
        message: String,
    },
    /// A model of SentencePiece that ends too early, or something else under its name.
    #[error("tokenizer.model: damaged at byte {at}, or no SentencePiece model (tiktoken's files are not read)")]
    Damaged {
        /// Where the fault is.
        at: usize,
    },
    /// A text that would grow too long.
    #[error("{part}: a text would grow beyond {most} bytes")]
    TooLong {
        /// The part of the file that makes it grow.
        part: &'static str,
        /// As long as it may become.
        most: usize,
    },
    /// More of something than is read.
    #[error("{part}: {count} are more than the {most} that there may be")]
    TooMany {
        /// The part of the file.
        part: &'static str,
        /// As many as there are.
        count: usize,
        /// As many as there may be.
        most: usize,
    },
    /// A token with a text longer than any model has.
    #[error("the text of token {id} has {bytes} bytes, and may have {most}")]
    LongToken {
        /// The token.
        id: u32,
        /// As long as it is.
        bytes: usize,
        /// As long as it may be.
        most: usize,
    },
    /// An id without a token.
    #[error("there is no token {id}")]
    NoToken {
        /// The id.
        id: u32,
    },
}

#[derive(Debug, Clone)]
enum Model {
    Bpe(Bpe),
    Unigram(Unigram),
    WordPiece(WordPiece),
}

impl Model {
    fn encode(&self, word: &str, out: &mut Vec<u32>) {
        match self {
            Model::Bpe(bpe) => bpe.encode(word, out),
            Model::Unigram(unigram) => unigram.encode(word, out),
            Model::WordPiece(pieces) => pieces.encode(word, out),
        }
    }

    fn vocabulary(&self) -> &Vocabulary {
        match self {
            Model::Bpe(bpe) => bpe.vocabulary(),
            Model::Unigram(unigram) => unigram.vocabulary(),
            Model::WordPiece(pieces) => pieces.vocabulary(),
        }
    }
}

/// Text to tokens and back.
///
/// ```
/// use kiln_llm::Tokenizer;
/// let tokenizer = Tokenizer::read(concat!(env!("CARGO_MANIFEST_DIR"), "/models/stories260K"))?;
/// let ids = tokenizer.encode("Once upon a time", true)?;
/// assert_eq!(ids, [1, 403, 407, 261, 378]);
/// assert_eq!(tokenizer.decode(&ids, true)?, "Once upon a time");
/// # Ok::<(), kiln_llm::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Tokenizer {
    normalizers: Vec<Normalizer>,
    splitters: Vec<Splitter>,
    model: Model,
    frame: Frame,
    decoders: Vec<Decoder>,
    /// Those found in the text as it is.
    raw: Finder,
    /// Those found in normalized text.
    normalized: Finder,
    texts: HashMap<u32, Arc<str>>,
    /// The ids of added tokens; others are the model's.
    added: HashMap<Arc<str>, u32>,
    special: HashSet<u32>,
}

impl Tokenizer {
    /// Whether a folder has a file that [`Tokenizer::read`] reads.
    pub fn is_in(folder: impl AsRef<Path>) -> bool {
        ["tokenizer.json", "tokenizer.model"].iter().any(|name| folder.as_ref().join(name).exists())
    }

    /// Reads `tokenizer.json` of a folder or, where there is none, SentencePiece's `tokenizer.model`.
    pub fn read(folder: impl AsRef<Path>) -> Result<Tokenizer> {
        let folder = folder.as_ref();
        let model = folder.join("tokenizer.model");
        if !folder.join("tokenizer.json").exists() && model.exists() {
            let bytes = files::read(&model, files::Kind::Tokenizer)?;
            return Tokenizer::from_sentencepiece(&bytes, Some(folder));
        }
        let path = folder.join("tokenizer.json");
        let text = files::read(&path, files::Kind::Tokenizer)?;
        Tokenizer::parse(&text).map_err(|error| match error {
            Error::Json { message, .. } => Error::Json { path: path.clone(), message },
            other => other,
        })
    }

    /// Parses the text of a `tokenizer.json`.
    pub fn parse(text: &[u8]) -> Result<Tokenizer> {
        let json = |e: serde_json::Error| Error::Json { path: "tokenizer.json".into(), message: e.to_string() };
        let TokenizerFile { model, members: file } = serde_json::from_slice(text).map_err(json)?;
        let patterns = file.values().fold(0, |sum: usize, part| sum.saturating_add(pattern_bytes(part)));
        few("bytes of patterns", patterns, MOST_PATTERNS)?;
        // Older files do not name the model's type.
        let kind = model.fields.get("type").and_then(Value::as_str);
        let model = match kind.unwrap_or(if model.has_merges { "BPE" } else { "WordPiece" }) {
            "BPE" => Model::Bpe(Bpe::parse(model)?),
            "WordPiece" => Model::WordPiece(WordPiece::parse(model)?),
            other => return Err(TokenizerError::Unsupported { part: "model", kind: other.into() }.into()),
        };
        let tokenizer = Tokenizer::assemble(
            model,
            Normalizer::parse(file.get("normalizer"))?,
            Splitter::parse(file.get("pre_tokenizer"))?,
            Frame::parse(file.get("post_processor"))?,
            Decoder::parse(file.get("decoder"))?,
            Added::parse(file.get("added_tokens"))?,
        );
        Ok(tokenizer?)
    }

    fn assemble(
        model: Model,
        normalizers: Vec<Normalizer>,
        splitters: Vec<Splitter>,
        frame: Frame,
        decoders: Vec<Decoder>,
        added: Vec<Added>,
    ) -> Result<Tokenizer, TokenizerError> {
        let mut texts: HashMap<u32, Arc<str>> =
            model.vocabulary().iter().map(|(text, &id)| (id, text.clone())).collect();
        let mut ids = Vocabulary::new();
        let mut special = HashSet::new();
        let (mut raw, mut normalized) = (Vec::new(), Vec::new());
        for token in added {
            let text: Arc<str> = (*token.content).into();
            ids.insert(text.clone(), token.id);
            texts.insert(token.id, text);
            if token.special {
                special.insert(token.id);
            }
            if token.normalized {
                let mut bounds = Bounds::of(token.content.len());
                normalized.push((normalize(&normalizers, &token.content, &mut bounds)?, token));
            } else {
                raw.push((token.content.clone(), token));
            }
        }
        if let Some((&id, text)) = texts.iter().find(|(_, text)| text.len() > LONGEST_TOKEN) {
            return Err(TokenizerError::LongToken { id, bytes: text.len(), most: LONGEST_TOKEN });
        }
        let (raw, normalized) = (Finder::new(raw), Finder::new(normalized));
        Ok(Tokenizer { normalizers, splitters, model, frame, decoders, raw, normalized, texts, added: ids, special })
    }

    /// The tokens of a text; with `special`, those that begin and end a text around them.
    pub fn encode(&self, text: &str, special: bool) -> Result<Vec<u32>> {
        let mut out = if special { self.frame.before.clone() } else { Vec::new() };
        let mut first = true;
        let (mut bounds, mut words) = (Bounds::of(text.len()), Bounds::of(text.len()));
        for piece in self.raw.split(text) {
            match piece {
                Piece::Token(id) => out.push(id),
                Piece::Text(text) => {
                    let text = normalize(&self.normalizers, text, &mut bounds)?;
                    for piece in self.normalized.split(&text) {
                        match piece {
                            Piece::Token(id) => out.push(id),
                            Piece::Text(text) => self.encode_words(text, first, &mut words, &mut out)?,
                        }
                        first = false;
                    }
                }
            }
            first = false;
        }
        if special {
            out.extend(&self.frame.after);
        }
        Ok(out)
    }

    /// The special tokens that begin and end a text.
    pub fn frame(&self) -> (&[u32], &[u32]) {
        (&self.frame.before, &self.frame.after)
    }

    fn encode_words(
        &self,
        text: &str,
        first: bool,
        bounds: &mut Bounds,
        out: &mut Vec<u32>,
    ) -> Result<(), TokenizerError> {
        let mut words = vec![text.to_owned()];
        for splitter in &self.splitters {
            let mut split = Vec::with_capacity(words.len());
            for (i, word) in words.iter().enumerate() {
                splitter.apply(word, first && i == 0, bounds, &mut split)?;
            }
            bounds.fits("pre_tokenizer", split.iter().map(String::len).sum())?;
            words = split;
        }
        bounds.take("pre_tokenizer", words.iter().map(String::len).sum())?;
        words.iter().for_each(|word| self.model.encode(word, out));
        Ok(())
    }

    /// The text of tokens; without those that are no text if `skip_special`.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String> {
        let mut tokens = Vec::with_capacity(ids.len());
        for id in ids.iter().filter(|id| !(skip_special && self.special.contains(id))) {
            tokens.push(self.texts.get(id).ok_or(TokenizerError::NoToken { id: *id })?.to_string());
        }
        if self.decoders.is_empty() {
            return Ok(tokens.join(" "));
        }
        let bounds = Bounds::of(tokens.iter().map(String::len).sum());
        for decoder in &self.decoders {
            tokens = decoder.apply(tokens, &bounds)?;
            bounds.fits("decoder", tokens.iter().map(String::len).sum())?;
        }
        Ok(tokens.concat())
    }

    /// Text of tokens that come one by one.
    pub fn stream(&self, skip_special: bool) -> DecodeStream<'_> {
        DecodeStream::new(self, skip_special)
    }

    /// The id of a token.
    pub fn id(&self, token: &str) -> Option<u32> {
        self.added.get(token).or_else(|| self.model.vocabulary().get(token)).copied()
    }

    /// The token of an id, as the vocabulary writes it.
    pub fn token(&self, id: u32) -> Option<&str> {
        self.texts.get(&id).map(|text| &**text)
    }

    /// Whether a token is no text.
    pub fn is_special(&self, id: u32) -> bool {
        self.special.contains(&id)
    }

    /// How many tokens there are.
    pub fn len(&self) -> usize {
        self.texts.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.texts.is_empty()
    }
}

fn normalize(normalizers: &[Normalizer], text: &str, bounds: &mut Bounds) -> Result<String, TokenizerError> {
    let mut text = text.to_owned();
    for normalizer in normalizers {
        text = normalizer.apply(&text, bounds)?;
        bounds.fits("normalizer", text.len())?;
    }
    bounds.take("normalizer", text.len())?;
    Ok(text)
}

/// How long the regular expressions of a part are together.
fn pattern_bytes(part: &Value) -> usize {
    match part {
        Value::Object(members) => {
            let one = |(name, value): (&String, &Value)| match value {
                Value::String(pattern) if name == "Regex" => pattern.len(),
                value => pattern_bytes(value),
            };
            members.iter().map(one).fold(0, usize::saturating_add)
        }
        Value::Array(items) => items.iter().map(pattern_bytes).fold(0, usize::saturating_add),
        _ => 0,
    }
}
