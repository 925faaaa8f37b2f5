//! Byte-pair encoding: neighbours are merged, best pair first, until no pair is known.

use super::TokenizerError;
use super::file::{ModelPart, Vocabulary};
use super::json::flag;
use super::prefixes::Prefixes;
use super::sentencepiece::{Kind, Piece, byte_tokens};
use serde_json::Value;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet};
use std::sync::Arc;

const PART: &str = "model";

/// A vocabulary with its merges.
#[derive(Debug, Clone)]
pub(super) struct Bpe {
    vocabulary: Vocabulary,
    merges: Merges,
    unknown: Option<u32>,
    fuse_unknown: bool,
    /// The tokens `<0x00>` to `<0xFF>`, where there are all of them.
    bytes: Option<Box<[u32; 256]>>,
    /// A word that is a token is that token, whatever the merges say.
    whole_words: bool,
    /// Texts that are tokens wherever they are found, and do not merge.
    kept: Prefixes,
    /// Tokens that are cut again into what they were merged of.
    unused: HashSet<u32>,
}

/// Which pairs merge, and which first.
#[derive(Debug, Clone)]
enum Merges {
    /// Rank and token of a pair.
    Listed(HashMap<(u32, u32), (u32, u32)>),
    /// Every pair that makes a token merges; the rank of each token, by its score, `None` for tokens that no merge makes. The
    /// texts are those of the tokens.
    Scored { ranks: Vec<Option<u32>>, texts: Vec<Arc<str>>, longest: usize },
}

/// A token in the making, in a list with neighbours; merged ones have no length.
#[derive(Clone, Copy)]
struct Symbol {
    token: u32,
    previous: Option<usize>,
    next: Option<usize>,
    alive: bool,
    /// Whether it may merge.
    merges: bool,
}

impl Bpe {
    pub(super) fn parse(part: ModelPart) -> Result<Bpe, TokenizerError> {
        let model = &part.fields;
        let malformed = |field| TokenizerError::Malformed { part: PART, field };
        for field in ["continuing_subword_prefix", "end_of_word_suffix"] {
            if model.get(field).and_then(Value::as_str).is_some_and(|affix| !affix.is_empty()) {
                return Err(TokenizerError::Unsupported { part: PART, kind: format!("BPE with {field}") });
            }
        }
        let vocabulary = part.vocabulary.ok_or(malformed("vocab"))?;
        let merges = ranked(&vocabulary, part.merges.ok_or(malformed("merges"))?.iter().map(Some))?;
        let unknown = match model.get("unk_token").and_then(Value::as_str) {
            Some(token) => Some(*vocabulary.get(token).ok_or(malformed("unk_token"))?),
            None => None,
        };
        let fallback = flag(model, PART, "byte_fallback", false)?;
        Ok(Bpe {
            merges,
            unknown,
            fuse_unknown: flag(model, PART, "fuse_unk", false)?,
            bytes: if fallback { byte_tokens(&vocabulary) } else { None },
            whole_words: flag(model, PART, "ignore_merges", false)?,
            kept: Prefixes::default(),
            unused: HashSet::new(),
            vocabulary,
        })
    }

    /// As SentencePiece does it: tokens have scores, and the pair that makes the best one merges first. Texts that are `kept`
    /// are tokens as they are; with `byte_fallback` characters that are no tokens are those of their bytes.
    pub(super) fn scored(pieces: &[Piece], unknown: Option<u32>, byte_fallback: bool, kept: Prefixes) -> Bpe {
        let mut order: Vec<usize> = (0..pieces.len()).filter(|&token| pieces[token].kind.merges()).collect();
        order.sort_by(|&a, &b| pieces[b].score.total_cmp(&pieces[a].score));
        let mut ranks = vec![None; pieces.len()];
        // Equals have one rank, so that the leftmost of them is first.
        let mut rank = 0;
        for (i, &token) in order.iter().enumerate() {
            if i > 0 && pieces[order[i - 1]].score != pieces[token].score {
                rank = i as u32;
            }
            ranks[token] = Some(rank);
        }
        let texts: Vec<Arc<str>> = pieces.iter().map(|piece| piece.text.clone()).collect();
        let vocabulary = index(texts.iter().cloned());
        let unused = pieces.iter().enumerate().filter(|(_, piece)| piece.kind == Kind::Unused);
        Bpe {
            bytes: if byte_fallback { byte_tokens(&vocabulary) } else { None },
            unused: unused.map(|(id, _)| id as u32).collect(),
            merges: Merges::Scored { ranks, longest: texts.iter().map(|text| text.len()).max().unwrap_or(0), texts },
            unknown,
            fuse_unknown: true,
            whole_words: false,
            kept,
            vocabulary,
        }
    }

    /// From a list of tokens and of merges, `left right` each.
    pub(super) fn listed(tokens: &[String], merges: &[String], whole_words: bool) -> Result<Bpe, TokenizerError> {
        let vocabulary = index(tokens.iter().map(|text| (**text).into()));
        let merges = ranked(&vocabulary, merges.iter().map(|merge| merge.split_once(' ')))?;
        Ok(Bpe {
            vocabulary,
            merges,
            unknown: None,
            fuse_unknown: false,
            bytes: None,
            whole_words,
            kept: Prefixes::default(),
            unused: HashSet::new(),
        })
    }

    pub(super) fn vocabulary(&self) -> &Vocabulary {
        &self.vocabulary
    }

    /// Rank and token of a pair.
    fn merge(&self, left: u32, right: u32) -> Option<(u32, u32)> {
        match &self.merges {
            Merges::Listed(merges) => merges.get(&(left, right)).copied(),
            Merges::Scored { ranks, texts, longest } => {
                let (left, right) = (texts.get(left as usize)?, texts.get(right as usize)?);
                if left.len() + right.len() > *longest {
                    return None;
                }
                let text = format!("{left}{right}");
                let token = *self.vocabulary.get(&*text)?;
                Some(((*ranks.get(token as usize)?)?, token))
            }
        }
    }

    pub(super) fn encode(&self, word: &str, out: &mut Vec<u32>) {
        if self.whole_words
            && let Some(&token) = self.vocabulary.get(word)
        {
            out.push(token);
            return;
        }
        let mut symbols = self.symbols(word);
        let mut queue = BinaryHeap::new();
        // What tokens that are not to be used were made of.
        let mut parts = HashMap::new();
        let mut offer = |queue: &mut BinaryHeap<_>, symbols: &[Symbol], left: usize| {
            let right = symbols[left].next.filter(|&right| symbols[left].merges && symbols[right].merges)?;
            let (rank, token) = self.merge(symbols[left].token, symbols[right].token)?;
            if self.unused.contains(&token) {
                parts.insert(token, (symbols[left].token, symbols[right].token));
            }
            queue.push(Reverse((rank, left, right, token, symbols[left].token, symbols[right].token)));
            Some(())
        };
        for left in 0..symbols.len() {
            offer(&mut queue, &symbols, left);
        }
        while let Some(Reverse((_, left, right, token, left_token, right_token))) = queue.pop() {
            // Offers are not withdrawn when one of the two merges with another.
            let stands = symbols[left].alive
                && symbols[right].alive
                && symbols[left].next == Some(right)
                && (symbols[left].token, symbols[right].token) == (left_token, right_token);
            if !stands {
                continue;
            }
            let next = symbols[right].next;
            symbols[right].alive = false;
            (symbols[left].token, symbols[left].next) = (token, next);
            if let Some(next) = next {
                symbols[next].previous = Some(left);
            }
            offer(&mut queue, &symbols, left);
            if let Some(previous) = symbols[left].previous {
                offer(&mut queue, &symbols, previous);
            }
        }
        for symbol in symbols.iter().filter(|symbol| symbol.alive) {
            let mut rest = vec![symbol.token];
            while let Some(token) = rest.pop() {
                match parts.get(&token) {
                    Some(&(left, right)) => rest.extend([right, left]),
                    None => out.push(token),
                }
            }
        }
    }

    /// A symbol a character; its bytes or the unknown token for one that is no token.
    fn symbols(&self, word: &str) -> Vec<Symbol> {
        let mut tokens: Vec<(u32, bool)> = Vec::with_capacity(word.len());
        let mut after_unknown = false;
        let mut rest = word;
        while let Some(c) = rest.chars().next() {
            let kept = self.kept.longest(rest);
            let length = kept.map_or(c.len_utf8(), |(length, _)| length);
            let (text, behind) = rest.split_at(length);
            rest = behind;
            let mut unknown = false;
            if let Some((_, token)) = kept {
                tokens.push((token, false));
            } else if let Some(&token) = self.vocabulary.get(text) {
                tokens.push((token, true));
            } else if let Some(bytes) = &self.bytes {
                tokens.extend(text.bytes().map(|byte| (bytes[byte as usize], true)));
            } else if let Some(token) = self.unknown {
                if !(after_unknown && self.fuse_unknown) {
                    tokens.push((token, true));
                }
                unknown = true;
            }
            after_unknown = unknown;
        }
        let last = tokens.len().wrapping_sub(1);
        let symbol = |(i, (token, merges)): (usize, (u32, bool))| Symbol {
            token,
            previous: i.checked_sub(1),
            next: (i != last).then_some(i + 1),
            alive: true,
            merges,
        };
        tokens.into_iter().enumerate().map(symbol).collect()
    }
}

/// Pairs of texts in the order they merge; `None` is one that could not be read.
fn ranked<'a>(
    vocabulary: &Vocabulary,
    pairs: impl ExactSizeIterator<Item = Option<(&'a str, &'a str)>>,
) -> Result<Merges, TokenizerError> {
    let mut merges = HashMap::with_capacity(pairs.len());
    let mut both = String::new();
    for (rank, pair) in pairs.enumerate() {
        let (left, right) = pair.ok_or(TokenizerError::Malformed { part: PART, field: "merges" })?;
        both.clear();
        both.extend([left, right]);
        let tokens = (vocabulary.get(left), vocabulary.get(right), vocabulary.get(&*both));
        let (Some(&first), Some(&second), Some(&merged)) = tokens else {
            return Err(TokenizerError::BadMerge { left: left.into(), right: right.into() });
        };
        merges.entry((first, second)).or_insert((rank as u32, merged));
    }
    Ok(Merges::Listed(merges))
}

fn index(tokens: impl Iterator<Item = Arc<str>>) -> Vocabulary {
    tokens.enumerate().map(|(id, text)| (text, id as u32)).collect()
}
