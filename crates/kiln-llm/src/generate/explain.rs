//! What one further token of a text runs, and how long it takes.

use super::prompt::prompts;
use super::{Generator, check};
use crate::sample::Rule;
use crate::{Error, Result};
use kiln::inspect::Explanation;
use kiln::inspect::explain::{Measured, Segment};
use std::time::Duration;

/// One step of decoding, explained and measured.
#[derive(Debug, Clone)]
pub struct DecodeStep {
    /// The program of a step: its launches, each measured by itself.
    pub explanation: Explanation,
    /// Whole steps of decoding, each until its token is on the host.
    pub step: Measured,
}

impl DecodeStep {
    /// The most tokens that are decoded to measure a step.
    pub const MOST_STEPS: usize = 48;

    /// The time of all launches run one after another, with nothing between them.
    pub fn launches(&self) -> Duration {
        self.explanation.segments.iter().map(|segment: &Segment| segment.run.median).sum()
    }
}

/// Steps before the measured ones: they compile, tune and record.
const WARM_UP: usize = 4;

impl Generator {
    /// Explains the program that makes one further token of each text after prompts of one length, and measures whole steps.
    /// The generator must be compiled, and the context must have room for a few tokens after the prompts.
    ///
    /// ```
    /// use kiln_llm::GeneratorOptions;
    /// let mut generator = kiln_llm::embedded()?.generator(GeneratorOptions { context: 64, ..GeneratorOptions::default() })?;
    /// let step = generator.explain_decode(&[&[1, 403, 407]])?;
    /// assert_eq!(step.explanation.segments[0].kernels.len(), generator.kernels_per_token().unwrap_or(0));
    /// assert!(step.launches() > std::time::Duration::ZERO);
    /// # Ok::<(), kiln_llm::Error>(())
    /// ```
    pub fn explain_decode(&mut self, texts: &[&[u32]]) -> Result<DecodeStep> {
        let (options, device) = (self.options.clone(), self.model.device());
        // A step for the explanation as well.
        for prompt in texts {
            check(prompt, options.context.saturating_sub(WARM_UP + 4), self.model.sizes().vocab)?;
        }
        let longest = texts.iter().map(|prompt| prompt.len()).max().ok_or(Error::EmptyPrompt)?;
        let steps = (options.context - longest - 1).min(DecodeStep::MOST_STEPS);
        self.held.clear();
        let programs = self.programs(texts.len())?;
        let rule = Rule::default();
        let (parts, _) = prompts(programs.rows(), texts, 0, rule, &options, device)?;
        programs.read(&parts, &|| false)?.ok_or(Error::EmptyPrompt)?;
        for _ in 0..WARM_UP {
            programs.decode.call(&rule)?.to_vec::<i64>()?;
        }
        let step = Measured::times(steps - WARM_UP, || -> Result<()> {
            programs.decode.call(&rule)?.to_vec::<i64>()?;
            Ok(())
        })?;
        Ok(DecodeStep { explanation: programs.decode.explain(&rule)?, step })
    }
}
