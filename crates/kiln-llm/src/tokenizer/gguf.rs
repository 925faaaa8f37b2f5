//! The tokenizer that a GGUF file holds.

use super::added::Added;
use super::bpe::Bpe;
use super::decode::Decoder;
use super::normalize::Normalizer;
use super::post::Frame;
use super::prefixes::Prefixes;
use super::sentencepiece::{Kind, Piece};
use super::split::{Behaviour, CharKind, GPT2, Splitter};
use super::{Model, Pattern, Tokenizer, TokenizerError};
use crate::gguf::Metadata;
use crate::{Gguf, Result};

/// Llama 3's cuts: as GPT-2's, with numbers of up to three digits and line ends of their own.
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Qwen 2's cuts: as Llama 3's, with single digits.
const QWEN2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

const PART: &str = "tokenizer.ggml.model";

/// The types of tokens that are found in a text as they are.
pub(crate) const CONTROL: u64 = 3;
const USER_DEFINED: u64 = 4;

impl Tokenizer {
    /// The tokenizer of a GGUF file: a byte-level one as GPT-2's, or SentencePiece's as Llama 2's.
    pub fn from_gguf(file: &Gguf) -> Result<Tokenizer> {
        let key = "tokenizer.ggml.tokens";
        let tokens = file.texts(key).ok_or_else(|| file.bad(key, "it is missing or no list of texts"))?;
        let kind = file.text(PART).ok_or_else(|| file.bad(PART, "it is missing"))?;
        let byte_level = match kind {
            "gpt2" => true,
            "llama" => false,
            other => return Err(TokenizerError::Unsupported { part: PART, kind: other.into() }.into()),
        };
        let frame = frame(file, !byte_level);
        let added = added(file, &tokens);
        let (model, normalizers, splitters, decoders) =
            if byte_level { byte_level_parts(file, &tokens)? } else { sentence_piece_parts(file, &tokens)? };
        Ok(Tokenizer::assemble(model, normalizers, splitters, frame, decoders, added)?)
    }
}

type Parts = (Model, Vec<Normalizer>, Vec<Splitter>, Vec<Decoder>);

fn byte_level_parts(file: &Gguf, tokens: &[String]) -> Result<Parts> {
    let key = "tokenizer.ggml.merges";
    let merges = file.texts(key).ok_or_else(|| file.bad(key, "it is missing or no list of texts"))?;
    let letters = |cuts: Option<Pattern>| Splitter::ByteLevel { prefix_space: false, cuts };
    let split = |regex: &str| -> Result<Splitter, TokenizerError> {
        Ok(Splitter::Split { pattern: Pattern::regex(regex)?, behaviour: Behaviour::Isolated, invert: false })
    };
    let digits = Splitter::Chars { kind: CharKind::Digit, behaviour: Behaviour::Isolated };
    let (normalizers, splitters, whole_words) = match file.text("tokenizer.ggml.pre").unwrap_or("gpt-2") {
        "gpt-2" => (vec![], vec![letters(Some(Pattern::regex(GPT2)?))], false),
        "smollm" => (vec![], vec![digits, letters(Some(Pattern::regex(GPT2)?))], false),
        "llama-bpe" | "llama3" | "llama-v3" => (vec![], vec![split(LLAMA3)?, letters(None)], true),
        "qwen2" => (vec![Normalizer::Nfc], vec![split(QWEN2)?, letters(None)], false),
        other => {
            return Err(TokenizerError::Unsupported { part: "tokenizer.ggml.pre", kind: other.into() }.into());
        }
    };
    let model = Model::Bpe(Bpe::listed(tokens, &merges, whole_words)?);
    Ok((model, normalizers, splitters, vec![Decoder::ByteLevel]))
}

fn sentence_piece_parts(file: &Gguf, tokens: &[String]) -> Result<Parts> {
    let key = "tokenizer.ggml.scores";
    let scores = match file.get(key) {
        Some(Metadata::List(items)) => {
            items.iter().map(|item| item.as_f64().map(|x| x as f32)).collect::<Option<Vec<f32>>>()
        }
        _ => None,
    };
    let scores = scores.filter(|scores| scores.len() == tokens.len());
    let scores = scores.ok_or_else(|| file.bad(key, "it is missing, or no list of a number a token"))?;
    let spaced = file.flag("tokenizer.ggml.add_space_prefix", true);
    let (space, mark) = (" ".to_owned(), "▁".to_owned());
    let mut normalizers = vec![Normalizer::Replace(Pattern::Literal(space.clone()), mark.clone())];
    let mut decoders =
        vec![Decoder::Replace(Pattern::Literal(mark.clone()), space), Decoder::ByteFallback, Decoder::Fuse];
    if spaced {
        normalizers.insert(0, Normalizer::Prepend(mark));
        decoders.push(Decoder::Strip { content: ' ', start: 1, stop: 0 });
    }
    let unknown = file.token("tokenizer.ggml.unknown_token_id").filter(|&id| (id as usize) < tokens.len());
    let kinds = match file.get("tokenizer.ggml.token_type") {
        Some(Metadata::List(kinds)) => kinds.as_slice(),
        _ => &[],
    };
    let kind = |id: usize| kinds.get(id).and_then(Metadata::as_u64).and_then(Kind::numbered).unwrap_or(Kind::Normal);
    let piece = |(id, (text, &score)): (usize, (&String, &f32))| Piece { text: (**text).into(), score, kind: kind(id) };
    let pieces: Vec<Piece> = tokens.iter().zip(&scores).enumerate().map(piece).collect();
    // Tokens that users defined are found before, with those that are no text.
    let model = Bpe::scored(&pieces, unknown, true, Prefixes::default());
    Ok((Model::Bpe(model), normalizers, vec![], decoders))
}

/// Which tokens stand around a text.
fn frame(file: &Gguf, begins: bool) -> Frame {
    let wanted = |flag: &str, default: bool, token: &str| {
        file.flag(flag, default).then(|| file.token(token)).flatten().into_iter().collect()
    };
    Frame {
        before: wanted("tokenizer.ggml.add_bos_token", begins, "tokenizer.ggml.bos_token_id"),
        after: wanted("tokenizer.ggml.add_eos_token", false, "tokenizer.ggml.eos_token_id"),
    }
}

/// The tokens that are found before anything else.
fn added(file: &Gguf, tokens: &[String]) -> Vec<Added> {
    let Some(Metadata::List(types)) = file.get("tokenizer.ggml.token_type") else { return Vec::new() };
    let found = tokens.iter().zip(types).enumerate().filter_map(|(id, (text, kind))| {
        let special = match kind.as_u64()? {
            CONTROL => true,
            USER_DEFINED => false,
            _ => return None,
        };
        Some(Added::plain(id as u32, text, special))
    });
    found.collect()
}
