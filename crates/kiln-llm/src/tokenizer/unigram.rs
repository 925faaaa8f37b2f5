//! Unigram: of all ways to cut a text into pieces, the one whose scores add up to most.

use super::file::Vocabulary;
use super::prefixes::Prefixes;
use super::sentencepiece::{Kind, Piece, byte_tokens};

/// Pieces with their scores.
#[derive(Debug, Clone)]
pub(super) struct Unigram {
    vocabulary: Vocabulary,
    pieces: Prefixes,
    /// By token.
    scores: Vec<Score>,
    unknown: u32,
    unknown_score: f32,
    /// The tokens of bytes, where characters that are no pieces become these.
    bytes: Option<Box<[u32; 256]>>,
}

/// What a piece counts.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Score {
    Normal(f32),
    /// Of a piece that its makers asked for: better than any other way to cut it.
    Wanted,
    /// It is never taken.
    Never,
}

/// What a character that is no piece counts less than the worst piece.
const PENALTY: f32 = 10.0;

/// The best way to cut up to a place.
#[derive(Clone, Copy)]
struct Best {
    token: u32,
    /// Where the last piece begins; `None` where no way is known yet.
    start: Option<usize>,
    score: f32,
}

impl Unigram {
    pub(super) fn new(pieces: &[Piece], unknown: u32, byte_fallback: bool) -> Unigram {
        let score = |piece: &Piece| match piece.kind {
            Kind::Normal => Score::Normal(piece.score),
            Kind::UserDefined => Score::Wanted,
            _ => Score::Never,
        };
        let vocabulary: Vocabulary =
            pieces.iter().enumerate().map(|(id, piece)| (piece.text.clone(), id as u32)).collect();
        let normal = pieces.iter().filter(|piece| piece.kind == Kind::Normal).map(|piece| piece.score);
        let known = pieces.iter().enumerate().filter(|(_, piece)| score(piece) != Score::Never);
        Unigram {
            pieces: Prefixes::new(known.map(|(id, piece)| (piece.text.clone(), id as u32))),
            scores: pieces.iter().map(score).collect(),
            unknown,
            unknown_score: normal.fold(f32::MAX, f32::min) - PENALTY,
            bytes: if byte_fallback { byte_tokens(&vocabulary) } else { None },
            vocabulary,
        }
    }

    pub(super) fn vocabulary(&self) -> &Vocabulary {
        &self.vocabulary
    }

    pub(super) fn encode(&self, text: &str, out: &mut Vec<u32>) {
        let mut best = vec![Best { token: self.unknown, start: None, score: 0.0 }; text.len() + 1];
        let mut start = 0;
        while let Some(character) = text[start..].chars().next() {
            let (before, single) = (best[start].score, character.len_utf8());
            let mut known = false;
            let mut offer = |end: usize, token: u32, score: f64| {
                // Sums are kept in f32 and compared before they are rounded, so that ties fall as in SentencePiece.
                let sum = score + f64::from(before);
                if best[end].start.is_none() || sum > f64::from(best[end].score) {
                    best[end] = Best { token, start: Some(start), score: sum as f32 };
                }
            };
            self.pieces.each(&text[start..], |length, token| {
                let score = match self.scores[token as usize] {
                    Score::Normal(score) => f64::from(score),
                    Score::Wanted => -0.1,
                    Score::Never => return,
                };
                offer(start + length, token, score);
                known |= length == single;
            });
            if !known {
                offer(start + single, self.unknown, f64::from(self.unknown_score));
            }
            start += single;
        }
        self.path(text, &best, out);
    }

    /// The pieces of the best way, from the first on.
    fn path(&self, text: &str, best: &[Best], out: &mut Vec<u32>) {
        let mut pieces = Vec::new();
        let mut end = text.len();
        while let Some(start) = best[end].start.filter(|&start| start < end) {
            pieces.push((best[end].token, start, end));
            end = start;
        }
        let mut after_unknown = false;
        for (token, start, end) in pieces.into_iter().rev() {
            let unknown = token == self.unknown;
            match &self.bytes {
                Some(bytes) if unknown => out.extend(text[start..end].bytes().map(|byte| bytes[byte as usize])),
                // Neighbours that are no pieces are one.
                None if unknown && after_unknown => {}
                _ => out.push(token),
            }
            after_unknown = unknown;
        }
    }
}
