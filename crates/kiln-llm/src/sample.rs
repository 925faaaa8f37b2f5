//! Choosing the next token, as a part of the program that made its logits.

use crate::{Error, Result};
use kiln::{Bundle, DType, Device, Tensor, Var};

/// How the next token is chosen.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampling {
    /// Logits are divided by it; 0 takes the likeliest token.
    pub temperature: f64,
    /// Only so many of the likeliest tokens; 0 means all.
    pub top_k: usize,
    /// Only the likeliest tokens that together are as likely as this.
    pub top_p: f64,
    /// Only tokens at least as likely as this share of the likeliest one.
    pub min_p: f64,
    /// Positive logits of tokens that were there before are divided by it, negative ones multiplied.
    pub repetition_penalty: f64,
    /// The same seed draws the same tokens.
    pub seed: u64,
}

impl Default for Sampling {
    /// The likeliest token.
    fn default() -> Sampling {
        Sampling { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, repetition_penalty: 1.0, seed: 0 }
    }
}

impl Sampling {
    fn check(&self) -> Result<()> {
        let within = |name, value: f64, good: bool, expected| {
            if good { Ok(()) } else { Err(Error::BadSampling { name, value, expected }) }
        };
        let (t, p, m, r) = (self.temperature, self.top_p, self.min_p, self.repetition_penalty);
        within("temperature", t, t >= 0.0 && t.is_finite(), "0 or more")?;
        within("top_p", p, p > 0.0 && p <= 1.0, "above 0 and at most 1")?;
        within("min_p", m, (0.0..=1.0).contains(&m), "between 0 and 1")?;
        within("repetition_penalty", r, r > 0.0 && r.is_finite(), "above 0")
    }
}

/// What of sampling decides which program runs; all the numbers are data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Bundle)]
pub struct Rule {
    /// Draw, rather than take the likeliest.
    pub draw: bool,
    /// Penalise what was there before.
    pub penalise: bool,
}

/// The numbers of sampling as variables, so that other ones need no other program.
#[derive(Debug)]
pub struct Sampler {
    temperature: Var,
    top_k: Var,
    top_p: Var,
    min_p: Var,
    penalty: Var,
    seen: Var,
    generator: kiln::Generator,
}

impl Sampler {
    /// For so many tokens.
    pub fn new(vocabulary: usize, device: Device) -> Result<Sampler> {
        let number = |name| Ok::<Var, Error>(Var::named(name, &Tensor::ones((), DType::F32, device)?));
        Ok(Sampler {
            temperature: number("temperature")?,
            top_k: Var::named("top_k", &Tensor::zeros((), DType::I64, device)?),
            top_p: number("top_p")?,
            min_p: number("min_p")?,
            penalty: number("repetition_penalty")?,
            seen: Var::named("seen", &Tensor::zeros(vocabulary, DType::Bool, device)?),
            generator: kiln::Generator::new(0),
        })
    }

    /// Begins a text: these choices, and these tokens before.
    pub fn start(&self, sampling: &Sampling, tokens: &[i64]) -> Result<Rule> {
        sampling.check()?;
        let vocabulary = self.seen.elements();
        let rule = Rule { draw: sampling.temperature > 0.0, penalise: sampling.repetition_penalty != 1.0 };
        if rule.draw {
            self.temperature.fill(sampling.temperature)?;
            self.top_k.fill(if sampling.top_k == 0 { vocabulary } else { sampling.top_k } as i64)?;
            self.top_p.fill(sampling.top_p)?;
            self.min_p.fill(sampling.min_p)?;
            self.generator.reseed(sampling.seed);
        }
        if rule.penalise {
            let mut seen = vec![false; vocabulary];
            for &token in tokens {
                let Some(seen) = usize::try_from(token).ok().and_then(|token| seen.get_mut(token)) else {
                    return Err(Error::UnknownToken { token: token as u32, vocabulary });
                };
                *seen = true;
            }
            self.seen.set(&Tensor::from_vec(seen, vocabulary, self.seen.device())?)?;
            self.penalty.fill(sampling.repetition_penalty)?;
        }
        Ok(rule)
    }

    /// The next token, `[1]`, of its logits, `[1, vocabulary]`.
    #[track_caller]
    pub fn choose(&self, logits: &Tensor, rule: Rule) -> kiln::Result<Tensor> {
        let mut logits = logits.to_dtype(DType::F32)?;
        if rule.penalise {
            let penalty = self.penalty.get();
            let penalised = logits.gt(0.0)?.where_(&(&logits / &penalty)?, &(&logits * &penalty)?)?;
            logits = self.seen.get().where_(&penalised, &logits)?;
        }
        let token = if rule.draw { self.draw(&logits)? } else { logits.argmax(-1)? };
        if rule.penalise {
            self.seen.index_copy(0, &token, &Tensor::ones(1, DType::Bool, logits.device())?)?;
        }
        Ok(token)
    }

    /// Draws by the largest of logits with Gumbel noise, which is as likely as softmax says. The order of the restrictions
    /// is that of transformers: temperature, top-k, top-p, min-p.
    #[track_caller]
    fn draw(&self, logits: &Tensor) -> kiln::Result<Tensor> {
        let (sorted, tokens) = (logits / self.temperature.get())?.sort(-1, true)?;
        let ranks = Tensor::arange(sorted.size(-1)?, DType::I64, logits.device())?;
        let sorted = ranks.lt(self.top_k.get())?.where_(&sorted, f64::NEG_INFINITY)?;
        let likely = sorted.softmax(-1)?;
        let before = (likely.cumsum(-1)? - &likely)?;
        let enough = likely.ge(&(likely.narrow(-1, 0, 1)? * self.min_p.get())?)?;
        let kept = before.lt(self.top_p.get())?.logical_and(&enough)?;
        let uniform = self.generator.rand(logits.sizes(), DType::F32, logits.device())?;
        let noise = uniform.clamp(f64::from(f32::MIN_POSITIVE), 1.0)?.log()?.neg()?.log()?.neg()?;
        let choice = kept.where_(&(&sorted + &noise)?, f64::NEG_INFINITY)?.argmax_keepdim(-1)?;
        tokens.to_dtype(DType::I64)?.gather(-1, &choice)?.squeeze(-1)
    }
}
