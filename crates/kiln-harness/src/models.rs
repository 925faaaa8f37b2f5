//! Models that the benchmarks run: an MLP block, an attention block and whole pre-norm transformers, as plain functions of
//! tensors. Weights are structs of tensors that a compiled function may hold or take as arguments.

use kiln::{Bundle, Device, Leaf, Result, RopeStyle, Tensor};
use std::cell::Cell;

/// Which family of models.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// Layer norms with biases, learned positions, one tanh-GELU product pair.
    Gpt,
    /// RMS norms, rotary positions, SwiGLU, no biases.
    Llama,
}

impl Family {
    /// As the torch peer and the tables spell it.
    pub fn name(self) -> &'static str {
        match self {
            Family::Gpt => "gpt",
            Family::Llama => "llama",
        }
    }
}

/// The sizes of a transformer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// Which family.
    pub family: Family,
    /// Blocks of attention and MLP.
    pub layers: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Width inside of the MLP.
    pub inner: usize,
    /// Heads of queries.
    pub heads: usize,
    /// Heads of keys and values.
    pub groups: usize,
    /// Tokens there are.
    pub vocabulary: usize,
    /// Most tokens of one sequence.
    pub context: usize,
}

impl Config {
    /// A GPT: as many heads of keys as of queries, an MLP four times as wide.
    pub fn gpt(layers: usize, hidden: usize, heads: usize, vocabulary: usize, context: usize) -> Config {
        let family = Family::Gpt;
        Config { family, layers, hidden, inner: 4 * hidden, heads, groups: heads, vocabulary, context }
    }

    /// A Llama: half as many heads of keys as of queries, an MLP of 8/3 of the width in steps of 16.
    pub fn llama(layers: usize, hidden: usize, heads: usize, vocabulary: usize, context: usize) -> Config {
        let inner = (hidden * 8).div_ceil(3 * 16) * 16;
        let groups = heads.div_ceil(2);
        Config { family: Family::Llama, layers, hidden, inner, heads, groups, vocabulary, context }
    }

    fn depth(&self) -> usize {
        self.hidden / self.heads
    }
}

/// Random weights made on the host: a process that only loads its weights has compiled nothing yet either.
#[derive(Debug)]
pub struct Weights(Cell<u64>);

impl Weights {
    /// The same seed gives the same weights.
    pub fn new(seed: u64) -> Weights {
        Weights(Cell::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1))
    }

    fn next(&self) -> u64 {
        let mut state = self.0.get();
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        self.0.set(state);
        state
    }

    /// Numbers with mean 0 and this deviation: sums of four even ones.
    pub fn normal(&self, shape: &[usize], deviation: f64) -> Result<Tensor> {
        let value = |_| {
            let word = self.next();
            let sum: u64 = (0..4).map(|i| word >> (16 * i) & 0xffff).sum();
            ((sum as f64 / 65536.0 - 2.0) * 3f64.sqrt() * deviation) as f32
        };
        let values: Vec<f32> = (0..shape.iter().product()).map(value).collect();
        Tensor::from_slice(&values, shape, Device::Cpu)
    }

    /// Token numbers, `[batch, tokens]`.
    pub fn tokens(&self, batch: usize, tokens: usize, vocabulary: usize) -> Result<Tensor> {
        let values: Vec<i64> = (0..batch * tokens).map(|_| (self.next() % vocabulary as u64) as i64).collect();
        Tensor::from_slice(&values, [batch, tokens], Device::Cpu)
    }
}

/// `count` times the same number.
fn constant(value: f32, count: usize) -> Result<Tensor> {
    Tensor::from_vec(vec![value; count], count, Device::Cpu)
}

/// Norm of the last axis: RMS where there is no bias, else layer norm.
#[derive(Debug, Clone)]
pub struct Norm {
    /// Scale of each element.
    pub weight: Tensor,
    /// Added to each element.
    pub bias: Option<Tensor>,
}

impl Norm {
    /// Weights 1, biases 0.
    pub fn new(config: &Config) -> Result<Norm> {
        let weight = constant(1.0, config.hidden)?;
        let bias = match config.family {
            Family::Gpt => Some(constant(0.0, config.hidden)?),
            Family::Llama => None,
        };
        Ok(Norm { weight, bias })
    }

    /// The normed tensor.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        match &self.bias {
            Some(bias) => x.layer_norm(1, Some(&self.weight), Some(bias), 1e-5),
            None => x.rms_norm(1, Some(&self.weight), 1e-5),
        }
    }
}

/// x·wᵀ + bias.
#[derive(Debug, Clone)]
pub struct Linear {
    /// `[out, in]`.
    pub weight: Tensor,
    /// `[out]`.
    pub bias: Option<Tensor>,
}

impl Linear {
    /// Normally distributed weights of a size that keeps the variance; biases 0 if there are any.
    pub fn new(from: usize, to: usize, bias: bool, random: &Weights) -> Result<Linear> {
        let weight = random.normal(&[to, from], (from as f64).powf(-0.5))?;
        let bias = if bias { Some(constant(0.0, to)?) } else { None };
        Ok(Linear { weight, bias })
    }

    /// The product.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        x.linear(&self.weight, self.bias.as_ref())
    }
}

/// x + MLP(norm(x)).
#[derive(Debug, Clone)]
pub struct Mlp {
    /// Before the products.
    pub norm: Norm,
    /// Of a SwiGLU.
    pub gate: Option<Linear>,
    /// To the wide side.
    pub up: Linear,
    /// And back.
    pub down: Linear,
}

impl Mlp {
    /// Random weights.
    pub fn new(config: &Config, random: &Weights) -> Result<Mlp> {
        let (hidden, inner, bias) = (config.hidden, config.inner, config.family == Family::Gpt);
        let gate = match config.family {
            Family::Gpt => None,
            Family::Llama => Some(Linear::new(hidden, inner, bias, random)?),
        };
        let up = Linear::new(hidden, inner, bias, random)?;
        Ok(Mlp { norm: Norm::new(config)?, gate, up, down: Linear::new(inner, hidden, bias, random)? })
    }

    /// Of `[batch, tokens, hidden]`.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let normed = self.norm.forward(x)?;
        let wide = match &self.gate {
            Some(gate) => (gate.forward(&normed)?.silu()? * self.up.forward(&normed)?)?,
            None => self.up.forward(&normed)?.gelu_tanh()?,
        };
        x + self.down.forward(&wide)?
    }
}

/// Cosines and sines of rotary positions, `[tokens, depth / 2]`.
#[derive(Debug, Clone)]
pub struct Rotary {
    /// Cosines.
    pub cos: Tensor,
    /// Sines.
    pub sin: Tensor,
}

impl Rotary {
    /// For all positions of a context.
    pub fn new(config: &Config) -> Result<Rotary> {
        let half = config.depth() / 2;
        let angle = |i: usize| (i / half) as f64 * 10000f64.powf(-((i % half) as f64) / half as f64);
        let table = |f: fn(f64) -> f64| {
            let values = (0..config.context * half).map(|i| f(angle(i)) as f32).collect();
            Tensor::from_vec(values, [config.context, half], Device::Cpu)
        };
        Ok(Rotary { cos: table(f64::cos)?, sin: table(f64::sin)? })
    }

    fn turn(&self, x: &Tensor, tokens: usize) -> Result<Tensor> {
        x.rope(&self.cos.narrow(0, 0, tokens)?, &self.sin.narrow(0, 0, tokens)?, RopeStyle::Half)
    }
}

/// x + causal attention(norm(x)).
#[derive(Debug, Clone)]
pub struct Attention {
    /// Before the products.
    pub norm: Norm,
    /// Queries.
    pub q: Linear,
    /// Keys.
    pub k: Linear,
    /// Values.
    pub v: Linear,
    /// Back to the residual stream.
    pub out: Linear,
    heads: usize,
    groups: usize,
}

impl Attention {
    /// Random weights.
    pub fn new(config: &Config, random: &Weights) -> Result<Attention> {
        let (hidden, bias) = (config.hidden, config.family == Family::Gpt);
        let narrow = config.groups * config.depth();
        Ok(Attention {
            norm: Norm::new(config)?,
            q: Linear::new(hidden, hidden, bias, random)?,
            k: Linear::new(hidden, narrow, bias, random)?,
            v: Linear::new(hidden, narrow, bias, random)?,
            out: Linear::new(hidden, hidden, bias, random)?,
            heads: config.heads,
            groups: config.groups,
        })
    }

    /// Computes `[batch, tokens, hidden]`; with `rotary`, queries and keys are rotated.
    pub fn forward(&self, x: &Tensor, rotary: Option<&Rotary>) -> Result<Tensor> {
        let [batch, tokens, hidden] = x.shape() else { return x.reshape([0, 0, 0]) };
        let (batch, tokens, hidden) = (*batch, *tokens, *hidden);
        let normed = self.norm.forward(x)?;
        let depth = hidden / self.heads;
        let split = |y: Tensor, heads: usize| y.reshape([batch, tokens, heads, depth])?.transpose(1, 2);
        let mut q = split(self.q.forward(&normed)?, self.heads)?;
        let mut k = split(self.k.forward(&normed)?, self.groups)?;
        let v = split(self.v.forward(&normed)?, self.groups)?;
        if let Some(rotary) = rotary {
            (q, k) = (rotary.turn(&q, tokens)?, rotary.turn(&k, tokens)?);
        }
        let mixed = q.scaled_dot_product_attention(&k, &v, None, true, None)?;
        x + self.out.forward(&mixed.transpose(1, 2)?.reshape([batch, tokens, hidden])?)?
    }
}

/// A whole model: token numbers to logits.
#[derive(Debug, Clone)]
pub struct Transformer {
    /// One row per token.
    pub embedding: Tensor,
    /// One row per position, where positions are learned.
    pub positions: Option<Tensor>,
    /// The rotary embedding, where positions are rotations.
    pub rotary: Option<Rotary>,
    /// In order.
    pub layers: Vec<(Attention, Mlp)>,
    /// After the last.
    pub norm: Norm,
    /// To logits.
    pub head: Linear,
}

impl Transformer {
    /// Random weights.
    pub fn new(config: &Config, random: &Weights) -> Result<Transformer> {
        let small = |rows: usize| random.normal(&[rows, config.hidden], 0.02);
        let (positions, rotary) = match config.family {
            Family::Gpt => (Some(small(config.context)?), None),
            Family::Llama => (None, Some(Rotary::new(config)?)),
        };
        let layer = |_| Ok((Attention::new(config, random)?, Mlp::new(config, random)?));
        Ok(Transformer {
            embedding: small(config.vocabulary)?,
            positions,
            rotary,
            layers: (0..config.layers).map(layer).collect::<Result<_>>()?,
            norm: Norm::new(config)?,
            head: Linear::new(config.hidden, config.vocabulary, false, random)?,
        })
    }

    /// Logits `[batch, tokens, vocabulary]` of token numbers `[batch, tokens]`.
    pub fn forward(&self, tokens: &Tensor) -> Result<Tensor> {
        let mut x = self.embedding.embedding(tokens)?;
        if let Some(positions) = &self.positions {
            x = (x + positions.narrow(0, 0, tokens.shape()[tokens.rank() - 1])?)?;
        }
        for (attention, mlp) in &self.layers {
            x = mlp.forward(&attention.forward(&x, self.rotary.as_ref())?)?;
        }
        self.head.forward(&self.norm.forward(&x)?)
    }
}

/// Bundles whose parts are bundles; what follows the semicolon is kept as it is.
macro_rules! bundles {
    ($($type:ident { $($part:ident),* $(; $($kept:ident),*)? })*) => { $(
        impl Bundle for $type {
            fn leaves<'a>(&'a self, each: &mut dyn FnMut(Leaf<'a>)) {
                $(self.$part.leaves(each);)*
                $($(self.$kept.leaves(each);)*)?
            }
            fn map_tensors(&self, map: &mut dyn FnMut(&Tensor) -> Tensor) -> $type {
                $type { $($part: self.$part.map_tensors(map),)* $($($kept: self.$kept,)*)? }
            }
        }
    )* };
}
bundles! {
    Norm { weight, bias }
    Linear { weight, bias }
    Mlp { norm, gate, up, down }
    Rotary { cos, sin }
    Attention { norm, q, k, v, out; heads, groups }
    Transformer { embedding, positions, rotary, layers, norm, head }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Eager and compiled, with held weights and with weights as arguments, are one function.
    #[test]
    fn a_model_is_the_same_eager_and_compiled() {
        let random = Weights::new(1);
        for config in [Config::gpt(2, 32, 4, 50, 8), Config::llama(2, 32, 4, 50, 8)] {
            let model = Transformer::new(&config, &random).unwrap();
            let tokens = random.tokens(2, 7, 50).unwrap();
            let eager = model.forward(&tokens).unwrap();
            assert_eq!(eager.shape(), [2, 7, 50]);
            let held = kiln::compile({
                let model = model.clone();
                move |tokens: &Tensor| model.forward(tokens)
            });
            assert!(held.call(&tokens).unwrap().allclose(&eager, 1e-4, 1e-4).unwrap());
            let given = kiln::compile(|(model, tokens): &(Transformer, Tensor)| model.forward(tokens));
            assert!(given.call(&(model, tokens)).unwrap().allclose(&eager, 1e-4, 1e-4).unwrap());
        }
    }
}
