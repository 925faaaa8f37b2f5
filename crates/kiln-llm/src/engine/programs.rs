//! The programs of an engine: all that they depend on is data, so that texts join and leave without a new one.

use crate::cache::KvCache;
use crate::generate::{Program, program};
use crate::models::CausalLm;
use crate::sample::{Numbers, Rule};
use crate::{Result, Sampling};
use kiln::{Bundle, DType, Options, Tensor, Var};
use std::sync::Arc;

/// A row of a pass, as the engine knows it.
#[derive(Debug)]
pub(super) struct Line<'a> {
    /// Tokens of the pass.
    pub tokens: &'a [u32],
    /// Position of the first.
    pub start: usize,
    /// Tokens of the whole text.
    pub length: usize,
    /// Pages of the text.
    pub pages: &'a [usize],
    /// Where the tokens that the text has are kept.
    pub slot: usize,
    /// How its next token is chosen.
    pub sampling: &'a Sampling,
}

/// A pass over texts, as data.
#[derive(Debug, Clone, Bundle)]
struct Pass {
    /// `[rows, tokens]`.
    tokens: Tensor,
    /// Position of each row's first token, `[rows, 1]`.
    start: Tensor,
    /// Tokens of each text, `[rows, 1]`.
    lengths: Tensor,
    /// `[rows, pages]`.
    table: Tensor,
    /// Where the last token of each text is in the flattened tokens, `[rows]`.
    last: Tensor,
    /// Slots, `[rows]`.
    slots: Tensor,
    numbers: Numbers,
    rule: Rule,
}

struct State {
    model: Arc<dyn CausalLm>,
    cache: KvCache,
    /// Which tokens the text of a slot has, `[(slots + 1) · vocabulary]`; the last slot is that of rows without a text.
    seen: Var,
    slots: usize,
}

/// An engine's model with its cache.
pub(super) struct Programs {
    state: Arc<State>,
    fill: Program<Pass>,
    prefill: Program<Pass>,
    decode: Program<Pass>,
    /// Every table is as long as a context.
    steady: bool,
}

impl Programs {
    pub fn new(
        model: &Arc<dyn CausalLm>,
        cache: KvCache,
        slots: usize,
        steady: bool,
        compile: Option<&Options>,
    ) -> Result<Programs> {
        let (vocabulary, device) = (model.sizes().vocab, model.device());
        let seen = Tensor::zeros((slots + 1) * vocabulary, DType::Bool, device)?;
        let state = Arc::new(State { model: model.clone(), cache, seen: Var::named("seen", &seen), slots });
        Ok(Programs {
            fill: program(&state, compile, State::fill),
            prefill: program(&state, compile, State::next),
            decode: program(&state, compile, State::next),
            state,
            steady,
        })
    }

    pub fn cache(&self) -> &KvCache {
        &self.state.cache
    }

    /// Programs made for prompts and for further tokens.
    pub fn compiles(&self) -> (u64, u64) {
        let made = |program: &Program<Pass>| program.stats().compiles;
        (made(&self.fill) + made(&self.prefill), made(&self.decode))
    }

    /// A text with these tokens begins in a slot.
    pub fn begin(&self, slot: usize, tokens: &[u32], sampling: &Sampling) -> Result<()> {
        if !sampling.rule().penalise {
            return Ok(());
        }
        let vocabulary = self.state.model.sizes().vocab;
        let mut seen = vec![false; vocabulary];
        for &token in tokens {
            if let Some(seen) = seen.get_mut(token as usize) {
                *seen = true;
            }
        }
        let seen = Tensor::from_vec(seen, vocabulary, self.state.seen.device())?;
        Ok(self.state.seen.slice_assign(slot * vocabulary..(slot + 1) * vocabulary, &seen)?)
    }

    /// Writes a part of a text to the cache.
    pub fn fill(&self, line: &Line<'_>) -> Result<()> {
        self.fill.call(&self.pass(std::slice::from_ref(line), 1, line.tokens.len())?)?;
        Ok(())
    }

    /// Writes the rest of a text, filled up to a bucket, to the cache; gives the next token.
    pub fn prefill(&self, line: &Line<'_>, bucket: usize) -> Result<i64> {
        Ok(self.prefill.call(&self.pass(std::slice::from_ref(line), 1, bucket)?)?.item::<i64>()?)
    }

    /// The next token of each of these texts, filled up to so many rows.
    pub fn decode(&self, lines: &[Line<'_>], rows: usize) -> Result<Vec<i64>> {
        Ok(self.decode.call(&self.pass(lines, rows, 1)?)?.to_vec::<i64>()?)
    }

    fn pass(&self, lines: &[Line<'_>], rows: usize, bucket: usize) -> Result<Pass> {
        let (device, shape) = (self.state.model.device(), self.state.cache.shape());
        // Tables of a few lengths only, each a program.
        let end = lines.iter().map(|line| line.start + bucket).max().unwrap_or(1);
        let (needed, most) = (end.max(SHORTEST_TABLE).div_ceil(shape.page), shape.context.div_ceil(shape.page));
        let pages = if self.steady { most } else { needed.next_power_of_two().min(most) };
        let (mut tokens, mut table) = (vec![0i64; rows * bucket], vec![0i64; rows * pages]);
        let (mut start, mut last, mut slots) = (vec![0i64; rows], Vec::new(), vec![self.state.slots as i64; rows]);
        let (mut lengths, mut rule) = (vec![1i64; rows], Rule::default());
        for (row, line) in lines.iter().enumerate() {
            for (token, &value) in tokens[row * bucket..][..bucket].iter_mut().zip(line.tokens) {
                *token = value.into();
            }
            for (page, &value) in table[row * pages..][..pages].iter_mut().zip(line.pages) {
                *page = value as i64;
            }
            start[row] = line.start as i64;
            lengths[row] = line.length as i64;
            slots[row] = line.slot as i64;
            rule = rule.or(line.sampling.rule());
        }
        for row in 0..rows {
            let length = lines.get(row).map_or(1, |line| line.tokens.len().clamp(1, bucket));
            last.push((row * bucket + length - 1) as i64);
        }
        let silent = Sampling::default();
        let samplings = lines.iter().map(|line| line.sampling).chain(std::iter::repeat(&silent)).take(rows);
        Ok(Pass {
            tokens: Tensor::from_vec(tokens, [rows, bucket], device)?,
            start: Tensor::from_vec(start, [rows, 1], device)?,
            lengths: Tensor::from_vec(lengths, [rows, 1], device)?,
            table: Tensor::from_vec(table, [rows, pages], device)?,
            last: Tensor::from_vec(last, rows, device)?,
            slots: Tensor::from_vec(slots, rows, device)?,
            numbers: Numbers::new(samplings, device)?,
            rule,
        })
    }
}

/// Tokens that even the shortest table has pages for.
const SHORTEST_TABLE: usize = 256;

impl State {
    /// What the layers make of a pass; and the positions of its tokens. Filling behind a text goes to places that are
    /// overwritten before they are seen, or to page 0.
    #[track_caller]
    fn run(&self, pass: &Pass) -> kiln::Result<(Tensor, Tensor)> {
        let columns = Tensor::arange(pass.tokens.size(1)?, DType::I64, pass.tokens.device())?;
        let positions = (columns + &pass.start)?;
        let step = self.cache.paged_step(&positions, &pass.table)?.of_texts(&pass.lengths)?;
        let hidden = self.model.hidden(&pass.tokens, &step)?;
        Ok((hidden, positions))
    }

    #[track_caller]
    fn fill(&self, pass: &Pass) -> kiln::Result<Tensor> {
        self.run(pass)?;
        &pass.start + pass.tokens.size(1)?
    }

    /// The next token of each row.
    #[track_caller]
    fn next(&self, pass: &Pass) -> kiln::Result<Tensor> {
        let (hidden, positions) = self.run(pass)?;
        let last = |x: Tensor| x.flatten(0, 1)?.index_select(0, &pass.last);
        let (hidden, positions) = (last(hidden)?, last(positions)?.unsqueeze(1)?);
        let (logits, vocabulary) = (self.model.logits(&hidden)?, self.model.sizes().vocab);
        if !pass.rule.penalise {
            return pass.numbers.choose(&logits, &positions, None, pass.rule.draw);
        }
        let seen = self.seen.get().reshape([self.slots + 1, vocabulary])?.index_select(0, &pass.slots)?;
        let tokens = pass.numbers.choose(&logits, &positions, Some(&seen), pass.rule.draw)?;
        let places = ((&pass.slots * vocabulary as i64)? + &tokens)?;
        self.seen.index_copy(0, &places, &Tensor::ones(tokens.sizes(), DType::Bool, tokens.device())?)?;
        Ok(tokens)
    }
}
