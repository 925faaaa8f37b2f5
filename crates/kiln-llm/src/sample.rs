//! Choosing the next token, as a part of the program that made its logits.
//!
//! Every number of sampling is data, a row of a tensor for each text: texts of one batch may be sampled in different ways, and
//! what a text draws depends on its seed, its position and its logits, not on its neighbours.

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
    /// An error if a number is outside of its range.
    pub fn check(&self) -> Result<()> {
        let within = |name, value: f64, good: bool, expected| {
            if good { Ok(()) } else { Err(Error::BadSampling { name, value, expected }) }
        };
        let (t, p, m, r) = (self.temperature, self.top_p, self.min_p, self.repetition_penalty);
        within("temperature", t, t >= 0.0 && t.is_finite(), "0 or more")?;
        within("top_p", p, p > 0.0 && p <= 1.0, "above 0 and at most 1")?;
        within("min_p", m, (0.0..=1.0).contains(&m), "between 0 and 1")?;
        within("repetition_penalty", r, r > 0.0 && r.is_finite(), "above 0")
    }

    /// What of it decides which program runs.
    pub fn rule(&self) -> Rule {
        Rule { draw: self.temperature > 0.0, penalise: self.repetition_penalty != 1.0 }
    }
}

/// What of sampling decides which program runs; all the numbers are data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Bundle)]
pub struct Rule {
    /// Draw, rather than take the likeliest.
    pub draw: bool,
    /// Penalise what was there before.
    pub penalise: bool,
}

impl Rule {
    /// What texts of these two rules need together; each still gets its own.
    pub fn or(self, other: Rule) -> Rule {
        Rule { draw: self.draw || other.draw, penalise: self.penalise || other.penalise }
    }
}

/// The numbers of sampling of a batch, a row a text.
#[derive(Debug, Clone, Bundle)]
pub struct Numbers {
    /// Temperature, top-p, min-p and repetition penalty, `[rows, 4]` (f32).
    pub reals: Tensor,
    /// Top-k and the two halves of the seed, `[rows, 3]` (i64).
    pub wholes: Tensor,
}

impl Numbers {
    /// Of these choices, which have to be checked before.
    pub fn new<'a>(rows: impl Iterator<Item = &'a Sampling>, device: Device) -> kiln::Result<Numbers> {
        let (mut reals, mut wholes) = (Vec::new(), Vec::new());
        for row in rows {
            let [t, p, m, r] = [row.temperature, row.top_p, row.min_p, row.repetition_penalty].map(|x| x as f32);
            reals.extend([t, p, m, r]);
            let top_k = if row.top_k == 0 { i64::MAX } else { i64::try_from(row.top_k).unwrap_or(i64::MAX) };
            wholes.extend([top_k, i64::from(row.seed as u32 as i32), i64::from((row.seed >> 32) as u32 as i32)]);
        }
        let count = wholes.len() / 3;
        Ok(Numbers {
            reals: Tensor::from_vec(reals, [count, 4], device)?,
            wholes: Tensor::from_vec(wholes, [count, 3], device)?,
        })
    }

    #[track_caller]
    fn real(&self, column: usize) -> kiln::Result<Tensor> {
        self.reals.narrow(1, column, 1)
    }

    #[track_caller]
    fn whole(&self, column: usize) -> kiln::Result<Tensor> {
        self.wholes.narrow(1, column, 1)
    }

    /// The next tokens, `[rows]`, of their logits, `[rows, vocabulary]`, after the tokens at these positions, `[rows, 1]`.
    /// `seen`, `[rows, vocabulary]`, says which tokens a penalty is for.
    #[track_caller]
    pub fn choose(
        &self,
        logits: &Tensor,
        positions: &Tensor,
        seen: Option<&Tensor>,
        draw: bool,
    ) -> kiln::Result<Tensor> {
        let mut logits = logits.to_dtype(DType::F32)?;
        if let Some(seen) = seen {
            let penalty = self.real(3)?;
            let penalised = logits.gt(0.0)?.where_(&(&logits / &penalty)?, &(&logits * &penalty)?)?;
            logits = seen.where_(&penalised, &logits)?;
        }
        let likeliest = logits.argmax(-1)?;
        if !draw {
            return Ok(likeliest);
        }
        let drawn = self.real(0)?.gt(0.0)?.squeeze(-1)?;
        drawn.where_(&self.draw(&logits, positions)?, &likeliest)
    }

    /// Draws by the largest of logits with Gumbel noise, which is as likely as softmax says. The order of the restrictions
    /// is that of transformers: temperature, top-k, top-p, min-p.
    #[track_caller]
    fn draw(&self, logits: &Tensor, positions: &Tensor) -> kiln::Result<Tensor> {
        // A text that does not draw must not divide by 0 either.
        let temperature = self.real(0)?;
        let temperature = temperature.gt(0.0)?.where_(&temperature, 1.0)?;
        let (sorted, tokens) = (logits / temperature)?.sort(-1, true)?;
        let ranks = Tensor::arange(sorted.size(-1)?, DType::I64, logits.device())?;
        let sorted = ranks.lt(self.whole(0)?)?.where_(&sorted, f64::NEG_INFINITY)?;
        let likely = sorted.softmax(-1)?;
        let before = (likely.cumsum(-1)? - &likely)?;
        let enough = likely.ge(&(likely.narrow(-1, 0, 1)? * self.real(2)?)?)?;
        let kept = before.lt(self.real(1)?)?.logical_and(&enough)?;
        let uniform = self.uniform(positions, sorted.size(-1)?)?;
        let noise = uniform.log()?.neg()?.log()?.neg()?;
        let choice = kept.where_(&(&sorted + &noise)?, f64::NEG_INFINITY)?.argmax_keepdim(-1)?;
        tokens.to_dtype(DType::I64)?.gather(-1, &choice)?.squeeze(-1)
    }

    /// Numbers evenly distributed in 0 < x < 1, `[rows, count]`: a hash of the seed, the position and the column.
    #[track_caller]
    fn uniform(&self, positions: &Tensor, count: kiln::Dim) -> kiln::Result<Tensor> {
        let small = |x: Tensor| x.to_dtype(DType::I32);
        let columns = Tensor::arange(count, DType::I32, positions.device())?;
        let first = mixed(&(small(self.whole(1)?)? + (small(positions.clone())? * GOLDEN)?)?)?;
        // Multiplied, so that no column's own hash is the second one in every row.
        let second = mixed(&((&first ^ small(self.whole(2)?)?)? * 0x2c1b_3c6d_i64)?)?;
        let bits = mixed(&(mixed(&(columns * GOLDEN + &first)?)? ^ second)?)?;
        // 23 bits and a half: never 0, never 1.
        let fraction = (bits.shr(9)? & 0x7f_ffff)?.to_dtype(DType::F32)?;
        (fraction + 0.5)? * f64::from(1u32 << 23).recip()
    }
}

/// 2³² over the golden ratio, as the i32 of the same bits.
const GOLDEN: i64 = 0x9e37_79b9u32 as i32 as i64;

/// A bijection of 32 bits in which every bit of the argument changes about half of the result's ("lowbias32").
#[track_caller]
fn mixed(x: &Tensor) -> kiln::Result<Tensor> {
    let fold = |x: &Tensor, by: i64| x ^ (x.shr(by)? & ((1i64 << (32 - by)) - 1))?;
    let x = (fold(x, 16)? * 0x7feb_352d_i64)?;
    let x = (fold(&x, 15)? * i64::from(0x846c_a68b_u32 as i32))?;
    fold(&x, 16)
}

/// The sampling of the texts of a batch as variables, so that other numbers need no other program.
#[derive(Debug)]
pub struct Sampler {
    reals: Var,
    wholes: Var,
    /// Which tokens were there before, `[rows · vocabulary]`.
    seen: Var,
    /// Where the rows of `seen` begin, `[rows]`.
    begins: Tensor,
    shape: [usize; 2],
}

impl Sampler {
    /// For so many texts and tokens.
    pub fn new(rows: usize, vocabulary: usize, device: Device) -> Result<Sampler> {
        let begins = (0..rows).map(|row| (row * vocabulary) as i64).collect();
        Ok(Sampler {
            reals: Var::named("sampling.reals", &Tensor::ones([rows, 4], DType::F32, device)?),
            wholes: Var::named("sampling.wholes", &Tensor::ones([rows, 3], DType::I64, device)?),
            seen: Var::named("seen", &Tensor::zeros(rows * vocabulary, DType::Bool, device)?),
            begins: Tensor::from_vec(begins, rows, device)?,
            shape: [rows, vocabulary],
        })
    }

    /// Begins a text in each row: these choices, and these tokens before. Gives the rule of them all.
    pub fn start(&self, texts: &[(&Sampling, &[u32])]) -> Result<Rule> {
        let [rows, vocabulary] = self.shape;
        let mut rule = Rule::default();
        for (sampling, _) in texts {
            sampling.check()?;
            rule = rule.or(sampling.rule());
        }
        let silent = Sampling::default();
        let all = texts.iter().map(|(sampling, _)| *sampling).chain(std::iter::repeat(&silent)).take(rows);
        if rule.draw || rule.penalise {
            let numbers = Numbers::new(all, self.seen.device())?;
            self.reals.set(&numbers.reals)?;
            self.wholes.set(&numbers.wholes)?;
        }
        if rule.penalise {
            let mut seen = vec![false; rows * vocabulary];
            for (row, (_, tokens)) in seen.chunks_mut(vocabulary.max(1)).zip(texts) {
                for &token in *tokens {
                    let place = row.get_mut(token as usize);
                    *place.ok_or(Error::UnknownToken { token, vocabulary })? = true;
                }
            }
            self.seen.set(&Tensor::from_vec(seen, rows * vocabulary, self.seen.device())?)?;
        }
        Ok(rule)
    }

    /// The next tokens, `[rows]`, of their logits, `[rows, vocabulary]`, after the tokens at these positions, `[rows, 1]`.
    #[track_caller]
    pub fn choose(&self, logits: &Tensor, positions: &Tensor, rule: Rule) -> kiln::Result<Tensor> {
        let numbers = Numbers { reals: self.reals.get(), wholes: self.wholes.get() };
        let seen = if rule.penalise { Some(self.seen.get().reshape(self.shape)?) } else { None };
        let tokens = numbers.choose(logits, positions, seen.as_ref(), rule.draw)?;
        if rule.penalise {
            let flags = Tensor::ones(self.shape[0], DType::Bool, logits.device())?;
            self.seen.index_copy(0, &(&self.begins + &tokens)?, &flags)?;
        }
        Ok(tokens)
    }
}
