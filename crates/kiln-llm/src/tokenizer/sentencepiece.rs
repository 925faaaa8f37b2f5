//! SentencePiece's models: the `tokenizer.model` of a folder, a protocol buffer with the pieces, their scores and the rules of
//! normalizing. What a model asks for and there is no code for is an error when the file is read.

use super::added::Added;
use super::bpe::Bpe;
use super::charsmap::Charsmap;
use super::decode::Decoder;
use super::file::Vocabulary;
use super::normalize::Normalizer;
use super::post::Frame;
use super::prefixes::Prefixes;
use super::proto::{Field, Message};
use super::unigram::Unigram;
use super::{Model, Pattern, Tokenizer, TokenizerError};
use crate::Result;
use crate::config::Fields;
use serde_json::Value;
use std::path::Path;
use std::sync::Arc;

const PART: &str = "tokenizer.model";

/// What a space becomes.
const SPACE: &str = "▁";

/// So many spaces are taken from the beginning of a text by models that remove them.
const LEADING_SPACES: usize = 64;

/// What a piece is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Normal,
    /// Stands for what is no piece.
    Unknown,
    /// Is no text: the beginning or the end of one.
    Control,
    /// Is always a piece where it is found.
    UserDefined,
    /// Is never a piece.
    Unused,
    /// Stands for a byte.
    Byte,
}

impl Kind {
    /// By its number, in models and in GGUF files.
    pub(super) fn numbered(number: u64) -> Option<Kind> {
        Some(match number {
            1 => Kind::Normal,
            2 => Kind::Unknown,
            3 => Kind::Control,
            4 => Kind::UserDefined,
            5 => Kind::Unused,
            6 => Kind::Byte,
            _ => return None,
        })
    }

    /// Whether it can come out of pieces that merge.
    pub(super) fn merges(self) -> bool {
        matches!(self, Kind::Normal | Kind::UserDefined | Kind::Unused)
    }
}

/// A piece.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Piece {
    pub(super) text: Arc<str>,
    pub(super) score: f32,
    pub(super) kind: Kind,
}

/// The tokens `<0x00>` to `<0xFF>`, where there are all of them.
pub(super) fn byte_tokens(vocabulary: &Vocabulary) -> Option<Box<[u32; 256]>> {
    let tokens: Option<Vec<u32>> = (0..256).map(|byte| vocabulary.get(&*format!("<0x{byte:02X}>")).copied()).collect();
    tokens?.try_into().ok().map(Box::new)
}

/// What is done to a text before it is cut.
#[derive(Debug, Clone)]
pub(super) struct Rules {
    charsmap: Option<Charsmap>,
    /// Pieces that stay as they are.
    kept: Prefixes,
    dummy_prefix: bool,
    remove_extra_spaces: bool,
}

impl Rules {
    /// The text as its pieces have it: replaced, spaces written as `▁`.
    pub(super) fn apply(&self, text: &str) -> Result<String, TokenizerError> {
        let mut rest = text;
        // Spaces at the beginning, by whatever characters they are written.
        while self.remove_extra_spaces && !rest.is_empty() {
            match self.next(rest)? {
                (length, " ") => rest = &rest[length..],
                _ => break,
            }
        }
        let mut out = String::with_capacity(rest.len() + SPACE.len());
        if self.dummy_prefix && !rest.is_empty() {
            out.push_str(SPACE);
        }
        let mut after_space = self.remove_extra_spaces;
        while !rest.is_empty() {
            let (length, mut becomes) = self.next(rest)?;
            if after_space {
                becomes = becomes.trim_start_matches(' ');
            }
            if !becomes.is_empty() {
                becomes.split_inclusive(' ').for_each(|word| match word.strip_suffix(' ') {
                    Some(word) => out.extend([word, SPACE]),
                    None => out.push_str(word),
                });
                after_space = self.remove_extra_spaces && becomes.ends_with(' ');
            }
            rest = &rest[length..];
        }
        while self.remove_extra_spaces && out.ends_with(SPACE) {
            out.truncate(out.len() - SPACE.len());
        }
        Ok(out)
    }

    /// How much of a text's beginning is replaced at once, and what it becomes.
    fn next<'a>(&'a self, text: &'a str) -> Result<(usize, &'a str), TokenizerError> {
        if let Some((length, _)) = self.kept.longest(text) {
            return Ok((length, &text[..length]));
        }
        if let Some(charsmap) = &self.charsmap
            && let Some(found) = charsmap.longest(text)?
        {
            return Ok(found);
        }
        let length = text.chars().next().map_or(0, char::len_utf8);
        Ok((length, &text[..length]))
    }
}

/// A model as its file has it.
#[derive(Debug, Default)]
struct File {
    pieces: Vec<Piece>,
    algorithm: u64,
    byte_fallback: bool,
    suffixes: bool,
    unknown: Option<u64>,
    begin: Option<u64>,
    end: Option<u64>,
    charsmap: Vec<u8>,
    dummy_prefix: Option<bool>,
    remove_extra_spaces: Option<bool>,
    escape_spaces: Option<bool>,
    denormalizes: bool,
}

impl File {
    fn parse(bytes: &[u8]) -> Result<File, TokenizerError> {
        let mut file = File { algorithm: 1, ..File::default() };
        let mut whole = Message::new(bytes);
        while let Some((number, field)) = whole.next()? {
            let message = field.bytes().map(|bytes| whole.within(bytes));
            match (number, message) {
                (1, Some(message)) => file.pieces.push(piece(message)?),
                (2, Some(message)) => file.trainer(message)?,
                (3, Some(message)) => file.normalizer(message)?,
                (5, Some(mut message)) => {
                    while let Some((number, field)) = message.next()? {
                        file.denormalizes |= number == 2 && field.bytes().is_some_and(|map| !map.is_empty());
                    }
                }
                _ => {}
            }
        }
        match file.pieces.is_empty() {
            true => Err(TokenizerError::Damaged { at: 0 }),
            false => Ok(file),
        }
    }

    fn trainer(&mut self, mut message: Message<'_>) -> Result<(), TokenizerError> {
        while let Some((number, field)) = message.next()? {
            match number {
                3 => self.algorithm = field.number().unwrap_or(0),
                24 => self.suffixes = field.flag().unwrap_or(false),
                35 => self.byte_fallback = field.flag().unwrap_or(false),
                40 => self.unknown = field.number(),
                41 => self.begin = field.number(),
                42 => self.end = field.number(),
                _ => {}
            }
        }
        Ok(())
    }

    fn normalizer(&mut self, mut message: Message<'_>) -> Result<(), TokenizerError> {
        while let Some((number, field)) = message.next()? {
            match number {
                2 => self.charsmap = field.bytes().unwrap_or_default().to_vec(),
                3 => self.dummy_prefix = field.flag(),
                4 => self.remove_extra_spaces = field.flag(),
                5 => self.escape_spaces = field.flag(),
                _ => {}
            }
        }
        Ok(())
    }

    /// What there is no code for.
    fn supported(&self) -> Result<(), TokenizerError> {
        let odd = match self.algorithm {
            3 => Some("a model of whole words"),
            4 => Some("a model of characters"),
            1 | 2 if self.suffixes => Some("treat_whitespace_as_suffix"),
            1 | 2 if self.escape_spaces == Some(false) => Some("escape_whitespaces: false"),
            1 | 2 if self.denormalizes => Some("denormalizer_spec"),
            1 | 2 => None,
            _ => Some("model_type"),
        };
        match odd {
            Some(kind) => Err(TokenizerError::Unsupported { part: PART, kind: kind.into() }),
            None => Ok(()),
        }
    }
}

fn piece(mut message: Message<'_>) -> Result<Piece, TokenizerError> {
    let malformed = |field| TokenizerError::Malformed { part: PART, field };
    let mut piece = Piece { text: "".into(), score: 0.0, kind: Kind::Normal };
    while let Some((number, field)) = message.next()? {
        match (number, field) {
            (1, field) => piece.text = field.text().ok_or(malformed("piece"))?.into(),
            (2, field) => piece.score = field.float().filter(|score| score.is_finite()).ok_or(malformed("score"))?,
            (3, Field::Number(number)) => piece.kind = Kind::numbered(number).ok_or(malformed("type"))?,
            _ => {}
        }
    }
    Ok(piece)
}

/// The classes of transformers whose tokens are those of the model, in its order.
const CLASSES: &[&str] =
    &["LlamaTokenizer", "CodeLlamaTokenizer", "GemmaTokenizer", "PreTrainedTokenizer", "TokenizersBackend"];

/// What the other files of a folder say about its tokenizer.
#[derive(Debug, Default)]
struct Beside {
    begins: Option<bool>,
    ends: Option<bool>,
    dummy_prefix: Option<bool>,
    added: Vec<Added>,
}

impl Beside {
    fn read(folder: &Path) -> Result<Beside> {
        let mut beside = Beside::default();
        let path = folder.join("added_tokens.json");
        if path.exists() {
            let fields = Fields::read(path)?;
            let names: Vec<String> = fields.names().map(str::to_owned).collect();
            for name in names {
                let id = fields.size_if(&name)?.and_then(|id| u32::try_from(id).ok());
                let id = id.ok_or_else(|| fields.bad(&name, "no token"))?;
                beside.added.push(Added::plain(id, &name, true));
            }
        }
        let path = folder.join("tokenizer_config.json");
        if !path.exists() {
            return Ok(beside);
        }
        let fields = Fields::read(path)?;
        let class = fields.text("tokenizer_class")?.unwrap_or("LlamaTokenizer");
        if !CLASSES.contains(&class.strip_suffix("Fast").unwrap_or(class)) {
            let kind = format!("{class} without a tokenizer.json");
            return Err(TokenizerError::Unsupported { part: "tokenizer_class", kind }.into());
        }
        let flag = |name: &str| fields.says(name).then(|| fields.flag(name, false)).transpose();
        (beside.begins, beside.ends) = (flag("add_bos_token")?, flag("add_eos_token")?);
        beside.dummy_prefix = fields.get("add_prefix_space").and_then(Value::as_bool).filter(|prefix| !prefix);
        if let Some(decoder) = fields.object("added_tokens_decoder")? {
            let ids: Vec<String> = decoder.names().map(str::to_owned).collect();
            for id in ids {
                let token = decoder.object(&id)?.unwrap_or_else(|| decoder.clone());
                let text = token
                    .text("content")?
                    .ok_or_else(|| fields.bad("added_tokens_decoder", "a token without content"))?;
                let number =
                    id.parse().map_err(|_| fields.bad("added_tokens_decoder", format!("'{id}' is no token")))?;
                beside.added.push(Added::plain(number, text, token.flag("special", false)?));
            }
        }
        Ok(beside)
    }
}

impl Tokenizer {
    /// The tokenizer of a SentencePiece model, with what other files of its folder say about special tokens.
    pub(super) fn from_sentencepiece(bytes: &[u8], folder: Option<&Path>) -> Result<Tokenizer> {
        let file = File::parse(bytes)?;
        file.supported()?;
        let beside = folder.map(Beside::read).transpose()?.unwrap_or_default();
        Ok(assemble(file, beside)?)
    }

    /// Parses the bytes of a `tokenizer.model` of SentencePiece: a unigram or a BPE model, with its normalization.
    ///
    /// ```
    /// use kiln_llm::Tokenizer;
    /// let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/reference/sentencepiece/bpe.model");
    /// let tokenizer = Tokenizer::parse_sentencepiece(&std::fs::read(path).unwrap())?;
    /// let ids = tokenizer.encode("a kiln", false)?;
    /// assert_eq!(tokenizer.decode(&ids, true)?, "a kiln");
    /// # Ok::<(), kiln_llm::Error>(())
    /// ```
    pub fn parse_sentencepiece(bytes: &[u8]) -> Result<Tokenizer> {
        Tokenizer::from_sentencepiece(bytes, None)
    }
}

fn assemble(file: File, beside: Beside) -> Result<Tokenizer, TokenizerError> {
    let count = file.pieces.len() as u64;
    let unknown = file.unknown.unwrap_or(0);
    if unknown >= count {
        return Err(TokenizerError::Malformed { part: PART, field: "unk_id" });
    }
    let of_kind = |kind: Kind| {
        let pieces = file.pieces.iter().enumerate().filter(move |(_, piece)| piece.kind == kind);
        pieces.map(|(id, piece)| (piece.text.clone(), id as u32))
    };
    let kept = Prefixes::new(of_kind(Kind::UserDefined));
    let model = match file.algorithm {
        1 => Model::Unigram(Unigram::new(&file.pieces, unknown as u32, file.byte_fallback)),
        _ => Model::Bpe(Bpe::scored(&file.pieces, Some(unknown as u32), file.byte_fallback, kept.clone())),
    };
    let dummy_prefix = beside.dummy_prefix.or(file.dummy_prefix).unwrap_or(true);
    let remove_extra_spaces = file.remove_extra_spaces.unwrap_or(true);
    let rules = Rules { charsmap: Charsmap::parse(&file.charsmap)?, kept, dummy_prefix, remove_extra_spaces };
    let mut decoders =
        vec![Decoder::Replace(Pattern::Literal(SPACE.into()), " ".into()), Decoder::ByteFallback, Decoder::Fuse];
    match (remove_extra_spaces, dummy_prefix) {
        (true, _) => decoders.push(Decoder::Strip { content: ' ', start: LEADING_SPACES, stop: 0 }),
        (false, true) => decoders.push(Decoder::Strip { content: ' ', start: 1, stop: 0 }),
        (false, false) => {}
    }
    // A negative number, which stands for none, is a large one here.
    let token = |wanted: bool, id: Option<u64>, default: u64| {
        let id = id.unwrap_or(default);
        if wanted && id < count { vec![id as u32] } else { Vec::new() }
    };
    let frame = Frame {
        before: token(beside.begins.unwrap_or(true), file.begin, 1),
        after: token(beside.ends.unwrap_or(false), file.end, 2),
    };
    let special = of_kind(Kind::Control).chain(of_kind(Kind::Unknown));
    let mut added: Vec<Added> = special.map(|(text, id)| Added::plain(id, &text, true)).collect();
    added.extend(beside.added);
    Tokenizer::assemble(model, vec![Normalizer::SentencePiece(Arc::new(rules))], vec![], frame, decoders, added)
}
