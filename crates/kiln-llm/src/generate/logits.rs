//! Logits of texts whose tokens are given.

use super::programs::Next;
use super::prompt::{prompts, reusable};
use super::{Generator, check};
use crate::sample::Rule;
use crate::{Error, Result};
use kiln::Tensor;

impl Generator {
    /// Returns the logits after each prompt and after each of the tokens that follow it, `[1 + tokens, vocabulary]` per
    /// text, computed as in generation: prompts in parts, then one token at a time. All texts must have the same number of
    /// following tokens.
    ///
    /// ```
    /// use kiln_llm::GeneratorOptions;
    /// let mut generator = kiln_llm::embedded()?.generator(GeneratorOptions { context: 64, ..GeneratorOptions::default() })?;
    /// let logits = generator.logits(&[(&[1, 403, 407], &[261, 378])])?;
    /// assert_eq!(logits[0].shape(), [3, 512]);
    /// assert_eq!(logits[0].argmax(-1)?.to_vec::<i64>()?, [261, 378, 432]);
    /// # Ok::<(), kiln_llm::Error>(())
    /// ```
    pub fn logits(&mut self, texts: &[(&[u32], &[u32])]) -> Result<Vec<Tensor>> {
        let Some((first, follows)) = texts.first() else { return Ok(Vec::new()) };
        for (prompt, more) in texts {
            check(prompt, self.options.context.saturating_sub(follows.len()), self.model.sizes().vocab)?;
            if more.len() != follows.len() {
                return Err(Error::UnequalTexts { tokens: follows.len(), other: more.len() });
            }
            if !more.is_empty() {
                check(more, self.options.context, self.model.sizes().vocab)?;
            }
        }
        let single = texts.len() == 1;
        let mut held = if single { std::mem::take(&mut self.held) } else { Vec::new() };
        let reused = if self.options.reuse { reusable(self.one.cache(), &held, first) } else { 0 };
        let (options, device) = (self.options.clone(), self.model.device());
        let programs = self.programs(texts.len())?;
        let rows = programs.rows();
        let prompts_only: Vec<&[u32]> = texts.iter().map(|(prompt, _)| *prompt).collect();
        let (parts, _) = prompts(rows, &prompts_only, reused, Rule::default(), &options, device)?;
        let mut steps = vec![programs.read_logits(&parts)?];
        for at in 0..follows.len() {
            if texts.iter().any(|(prompt, _)| programs.cache().crosses_border(prompt.len() + at + 1)) {
                let whole: Vec<Vec<u32>> =
                    texts.iter().map(|(prompt, more)| [*prompt, &more[..=at]].concat()).collect();
                let whole: Vec<&[u32]> = whole.iter().map(Vec::as_slice).collect();
                let (parts, _) = prompts(rows, &whole, 0, Rule::default(), &options, device)?;
                steps.push(programs.read_logits(&parts)?);
                continue;
            }
            let (mut tokens, mut positions) = (vec![0i64; rows], vec![0i64; rows]);
            for (row, (prompt, more)) in texts.iter().enumerate() {
                (tokens[row], positions[row]) = (more[at].into(), (prompt.len() + at) as i64);
            }
            let tokens = Tensor::from_vec(tokens, [rows, 1], device)?;
            steps.push(
                programs
                    .next_logits
                    .call(&Next { tokens, positions: Tensor::from_vec(positions, [rows, 1], device)? })?,
            );
        }
        if single {
            held.clear();
            held.extend(first.iter().chain(*follows));
            self.held = held;
        }
        let all = Tensor::stack(&steps, 1)?;
        (0..texts.len()).map(|row| Ok(all.narrow(0, row as i64, 1)?.squeeze(0)?)).collect()
    }
}
