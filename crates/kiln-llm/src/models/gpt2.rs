//! GPT-2: learned positions, layer norms, and projections stored with their inputs first.
//!
//! ```text
//!  tokens ─▶ embedding + position ─▶ N × [ x + attention(norm(x)) ; x + mlp(norm(x)) ] ─▶ norm ─▶ logits
//! ```

use super::{CausalLm, Facts, Rotation, cut, heads, joined, trunk};
use crate::cache::{Mask, Step, Window};
use crate::config::{Activation, Fields, Gpt2Config};
use crate::layers::{Projection, TokenEmbedding};
use crate::{Result, Weights};
use kiln::nn::{Embedding, Forward, LayerNorm, Module};
use kiln::{Tensor, Var};
use std::sync::Arc;

/// A GPT-2 with its weights, under the names that its checkpoints have.
#[derive(Debug, Module)]
pub struct Gpt2 {
    /// All but the logits.
    pub transformer: Decoder,
    /// The logits; without it the embedding makes them.
    pub lm_head: Option<Projection>,
    /// Settings.
    #[module(skip)]
    pub config: Gpt2Config,
    #[module(skip)]
    facts: Facts,
}

/// The embeddings, the blocks and the last norm.
#[derive(Debug, Module)]
pub struct Decoder {
    /// A row a token.
    pub wte: TokenEmbedding,
    /// A row a position.
    pub wpe: Embedding,
    /// In order.
    pub h: Vec<Block>,
    /// Before the logits.
    pub ln_f: LayerNorm,
}

/// One layer.
#[derive(Debug, Module)]
pub struct Block {
    /// Before attention.
    pub ln_1: LayerNorm,
    /// Mixes tokens.
    pub attn: Attention,
    /// Before the feed-forward part.
    pub ln_2: LayerNorm,
    /// Mixes what a token holds.
    pub mlp: Mlp,
}

/// Attention.
#[derive(Debug, Module)]
pub struct Attention {
    /// To queries, keys and values, one behind the other.
    pub c_attn: Conv1d,
    /// From the heads back.
    pub c_proj: Conv1d,
    /// How many heads.
    pub count: usize,
    /// Width of a head.
    pub depth: usize,
    /// Of the scores.
    pub scale: f64,
}

/// proj(activation(fc(x))).
#[derive(Debug, Module)]
pub struct Mlp {
    /// To the inner width.
    pub c_fc: Conv1d,
    /// Back.
    pub c_proj: Conv1d,
    /// Between them.
    #[module(skip)]
    pub activation: Activation,
}

/// x · W + b: a projection whose weight is stored the other way round, as a convolution of width 1 was.
#[derive(Debug, Module)]
pub enum Conv1d {
    /// As it is stored.
    Stored {
        /// `[inputs, outputs]`.
        weight: Var,
        /// `[outputs]`.
        bias: Var,
    },
    /// Quantised, with its outputs first.
    Quantized(Projection),
}

/// Makes one of its `config.json`.
pub(super) fn load(config: &Fields, weights: &Weights<'_>, layers: Option<usize>) -> Result<Arc<dyn CausalLm>> {
    let mut config = Gpt2Config::from_fields(config)?;
    config.n_layer = cut(layers, config.n_layer)?;
    Ok(Arc::new(Gpt2::new(&config, weights)?))
}

impl Gpt2 {
    /// With these weights.
    pub fn new(config: &Gpt2Config, weights: &Weights<'_>) -> Result<Gpt2> {
        let (width, vocabulary) = (config.n_embd, config.vocab_size);
        let model = trunk(weights, &["transformer", ""], "wte.weight");
        let (count, tied) = (config.n_layer, config.tie_word_embeddings);
        let layers: Result<Vec<Block>> =
            (0..count).map(|layer| Block::load(config, layer, &model.layer("h", layer, count))).collect();
        Ok(Gpt2 {
            transformer: Decoder {
                wte: model.token_embedding("wte", vocabulary, width, tied)?,
                wpe: model.embedding("wpe", config.n_positions, width)?,
                h: layers?,
                ln_f: model.layer_norm("ln_f", width, config.layer_norm_epsilon)?,
            },
            lm_head: weights.head("lm_head", width, vocabulary, tied)?,
            facts: weights.facts(config.sizes()),
            config: config.clone(),
        })
    }
}

impl CausalLm for Gpt2 {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn rotations(&self) -> Vec<Rotation> {
        Vec::new()
    }

    #[track_caller]
    fn hidden(&self, tokens: &Tensor, step: &Step) -> kiln::Result<Tensor> {
        let mask = step.mask(Window::All)?;
        let positions = self.transformer.wpe.forward(step.positions())?;
        let mut x = (self.transformer.wte.forward(tokens)? + positions)?;
        for (index, block) in self.transformer.h.iter().enumerate() {
            x = block.forward(&x, index, step, &mask)?;
        }
        self.transformer.ln_f.forward(&x)
    }

    #[track_caller]
    fn logits(&self, hidden: &Tensor) -> kiln::Result<Tensor> {
        self.transformer.wte.logits_by(self.lm_head.as_ref(), hidden)
    }
}

impl Block {
    fn load(config: &Gpt2Config, layer: usize, weights: &Weights<'_>) -> Result<Block> {
        let (width, inner, eps) = (config.n_embd, config.n_inner, config.layer_norm_epsilon);
        let (attention, mlp) = (weights.under("attn"), weights.under("mlp"));
        let depth = width / config.n_head;
        let mut scale = if config.scale_attn_weights { (depth as f64).powf(-0.5) } else { 1.0 };
        if config.scale_attn_by_inverse_layer_idx {
            scale /= (layer + 1) as f64;
        }
        Ok(Block {
            ln_1: weights.layer_norm("ln_1", width, eps)?,
            attn: Attention {
                c_attn: Conv1d::load("c_attn", width, 3 * width, &attention)?,
                c_proj: Conv1d::load("c_proj", width, width, &attention)?,
                count: config.n_head,
                depth,
                scale,
            },
            ln_2: weights.layer_norm("ln_2", width, eps)?,
            mlp: Mlp {
                c_fc: Conv1d::load("c_fc", width, inner, &mlp)?,
                c_proj: Conv1d::load("c_proj", inner, width, &mlp)?,
                activation: config.activation,
            },
        })
    }

    #[track_caller]
    fn forward(&self, x: &Tensor, layer: usize, step: &Step, mask: &Mask) -> kiln::Result<Tensor> {
        let x = (x + self.attn.forward(&self.ln_1.forward(x)?, layer, step, mask)?)?;
        &x + self.mlp.forward(&self.ln_2.forward(&x)?)?
    }
}

impl Attention {
    #[track_caller]
    fn forward(&self, x: &Tensor, layer: usize, step: &Step, mask: &Mask) -> kiln::Result<Tensor> {
        let all = heads(&self.c_attn.forward(x)?, self.depth)?;
        let part = |number: usize| all.narrow(1, number * self.count, self.count);
        let mixed = step.attend(layer, &part(0)?, &part(1)?, &part(2)?, mask, Some(self.scale))?;
        self.c_proj.forward(&joined(&mixed)?)
    }
}

impl Forward for Mlp {
    type Output = Tensor;
    #[track_caller]
    fn forward(&self, x: &Tensor) -> kiln::Result<Tensor> {
        self.c_proj.forward(&self.activation.apply(&self.c_fc.forward(x)?)?)
    }
}

impl Conv1d {
    fn load(name: &str, inputs: usize, outputs: usize, weights: &Weights<'_>) -> Result<Conv1d> {
        if weights.quantizes(name, inputs) {
            let weights = weights.clone().with_inputs_first();
            return Ok(Conv1d::Quantized(weights.projection(name, inputs, outputs, true)?));
        }
        let weights = weights.under(name);
        let (weight, bias) = (weights.var("weight", &[inputs, outputs])?, weights.zeros("bias", &[outputs])?);
        Ok(Conv1d::Stored { weight, bias })
    }
}

impl Forward for Conv1d {
    type Output = Tensor;
    #[track_caller]
    fn forward(&self, x: &Tensor) -> kiln::Result<Tensor> {
        match self {
            Conv1d::Stored { weight, bias } => x.matmul(&weight.get())? + bias.get(),
            Conv1d::Quantized(projection) => projection.forward(x),
        }
    }
}
