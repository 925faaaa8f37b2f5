//! Phi-3, 3.5 and 4: a Llama whose projections from the same input are stored as one, with positions that change beyond the
//! original context.

use super::{CausalLm, Facts, Rotation, cut, heads, joined, masks, trunk};
use crate::cache::{Mask, Step};
use crate::config::{Fields, Phi3Config};
use crate::layers::{Projection, TokenEmbedding};
use crate::{Result, Weights};
use kiln::Tensor;
use kiln::nn::{Forward, Module, RmsNorm};
use std::sync::Arc;

/// A Phi-3 with its weights, under the names that its checkpoints have.
#[derive(Debug, Module)]
pub struct Phi3 {
    /// All but the logits.
    pub model: Decoder,
    /// The logits; without it the embedding makes them.
    pub lm_head: Option<Projection>,
    /// Settings.
    #[module(skip)]
    pub config: Phi3Config,
    #[module(skip)]
    facts: Facts,
}

/// The embedding, the blocks and the last norm.
#[derive(Debug, Module)]
pub struct Decoder {
    /// A row a token.
    pub embed_tokens: TokenEmbedding,
    /// In order.
    pub layers: Vec<Block>,
    /// Before the logits.
    pub norm: RmsNorm,
}

/// One layer.
#[derive(Debug, Module)]
pub struct Block {
    /// Before attention.
    pub input_layernorm: RmsNorm,
    /// Mixes tokens.
    pub self_attn: Attention,
    /// Before the feed-forward part.
    pub post_attention_layernorm: RmsNorm,
    /// Mixes what a token holds.
    pub mlp: Mlp,
}

/// Attention with rotary positions.
#[derive(Debug, Module)]
pub struct Attention {
    /// To queries, keys and values, one behind the other.
    pub qkv_proj: Projection,
    /// From the heads back.
    pub o_proj: Projection,
    /// Heads of the queries, of keys and of values, and their width.
    pub heads: (usize, usize, usize),
}

/// down(silu(gate) · up), where one projection makes gate and up.
#[derive(Debug, Module)]
pub struct Mlp {
    /// What is let through, then what is there.
    pub gate_up_proj: Projection,
    /// Back to the width.
    pub down_proj: Projection,
    /// Width of each of the two.
    pub inner: usize,
}

/// Makes one of its `config.json`.
pub(super) fn load(config: &Fields, weights: &Weights<'_>, layers: Option<usize>) -> Result<Arc<dyn CausalLm>> {
    let mut config = Phi3Config::from_fields(config)?;
    config.llama.num_hidden_layers = cut(layers, config.llama.num_hidden_layers);
    Ok(Arc::new(Phi3::new(&config, weights)?))
}

impl Phi3 {
    /// With these weights.
    pub fn new(config: &Phi3Config, weights: &Weights<'_>) -> Result<Phi3> {
        let llama = &config.llama;
        let (width, vocabulary) = (llama.hidden_size, llama.vocab_size);
        let model = trunk(weights, &["model", ""], "embed_tokens.weight");
        let layers = model.under("layers");
        let layers: Result<Vec<Block>> =
            (0..llama.num_hidden_layers).map(|layer| Block::load(config, &layers.under(layer))).collect();
        Ok(Phi3 {
            model: Decoder {
                embed_tokens: model.token_embedding("embed_tokens", vocabulary, width)?,
                layers: layers?,
                norm: model.rms_norm("norm", width, llama.rms_norm_eps)?,
            },
            lm_head: weights.head("lm_head", width, vocabulary, llama.tie_word_embeddings)?,
            facts: weights.facts(llama.sizes()),
            config: config.clone(),
        })
    }
}

impl CausalLm for Phi3 {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn rotations(&self) -> Vec<Rotation> {
        vec![Rotation::from(&self.config.rope)]
    }

    #[track_caller]
    fn hidden(&self, tokens: &Tensor, step: &Step) -> kiln::Result<Tensor> {
        let masks = masks(step, &vec![self.config.sliding_window; self.facts.sizes.layers])?;
        let mut x = self.model.embed_tokens.forward(tokens)?;
        for (index, (block, mask)) in self.model.layers.iter().zip(&masks).enumerate() {
            x = block.forward(&x, index, step, mask)?;
        }
        self.model.norm.forward(&x)
    }

    #[track_caller]
    fn logits(&self, hidden: &Tensor) -> kiln::Result<Tensor> {
        self.model.embed_tokens.logits_by(self.lm_head.as_ref(), hidden)
    }
}

impl Block {
    fn load(config: &Phi3Config, weights: &Weights<'_>) -> Result<Block> {
        let llama = &config.llama;
        let (width, inner, eps) = (llama.hidden_size, llama.intermediate_size, llama.rms_norm_eps);
        let (count, shared, depth) = (llama.num_attention_heads, llama.num_key_value_heads, llama.head_dim);
        let (attention, mlp) = (weights.under("self_attn"), weights.under("mlp"));
        Ok(Block {
            input_layernorm: weights.rms_norm("input_layernorm", width, eps)?,
            self_attn: Attention {
                qkv_proj: attention.projection("qkv_proj", width, (count + 2 * shared) * depth, false)?,
                o_proj: attention.projection("o_proj", count * depth, width, false)?,
                heads: (count, shared, depth),
            },
            post_attention_layernorm: weights.rms_norm("post_attention_layernorm", width, eps)?,
            mlp: Mlp {
                gate_up_proj: mlp.projection("gate_up_proj", width, 2 * inner, false)?,
                down_proj: mlp.projection("down_proj", inner, width, false)?,
                inner,
            },
        })
    }

    #[track_caller]
    fn forward(&self, x: &Tensor, layer: usize, step: &Step, mask: &Mask) -> kiln::Result<Tensor> {
        let x = (x + self.self_attn.forward(&self.input_layernorm.forward(x)?, layer, step, mask)?)?;
        &x + self.mlp.forward(&self.post_attention_layernorm.forward(&x)?)?
    }
}

impl Attention {
    #[track_caller]
    fn forward(&self, x: &Tensor, layer: usize, step: &Step, mask: &Mask) -> kiln::Result<Tensor> {
        let (count, shared, depth) = self.heads;
        let all = heads(&self.qkv_proj.forward(x)?, depth)?;
        let q = step.rotate(0, &all.narrow(1, 0, count)?)?;
        let k = step.rotate(0, &all.narrow(1, count, shared)?)?;
        let v = all.narrow(1, count + shared, shared)?;
        let mixed = step.attend(layer, &q, &k, &v, mask, None)?;
        self.o_proj.forward(&joined(&mixed)?)
    }
}

impl Forward for Mlp {
    type Output = Tensor;
    #[track_caller]
    fn forward(&self, x: &Tensor) -> kiln::Result<Tensor> {
        let both = self.gate_up_proj.forward(x)?;
        let (gate, up) = (both.narrow(-1, 0, self.inner)?, both.narrow(-1, self.inner, self.inner)?);
        self.down_proj.forward(&(gate.silu()? * up)?)
    }
}
