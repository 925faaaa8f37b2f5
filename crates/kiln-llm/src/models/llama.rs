//! Llama 2 and 3, and what has their shape: SmolLM2, TinyStories' models; with a [`Variant`] Mistral, Qwen2 and Qwen3.
//!
//! ```text
//!  tokens ─▶ embedding ─▶ N × [ x + attention(norm(x)) ; x + mlp(norm(x)) ] ─▶ norm ─▶ logits
//! ```

use super::{CausalLm, Facts, Rotation, cut, heads, joined, masks, trunk};
use crate::cache::{Mask, Step};
use crate::config::{Activation, Fields};
use crate::layers::{Projection, TokenEmbedding};
use crate::{Checkpoint, LlamaConfig, Result, Weights};
use kiln::nn::{Forward, Module, RmsNorm};
use kiln::{DType, RopeStyle, Tensor};
use std::sync::Arc;

/// A Llama with its weights, under the names that its checkpoints have.
#[derive(Debug, Module)]
pub struct Llama {
    /// All but the logits.
    pub model: Decoder,
    /// The logits; without it the embedding makes them.
    pub lm_head: Option<Projection>,
    /// Settings.
    #[module(skip)]
    pub config: LlamaConfig,
    #[module(skip)]
    windows: Vec<Option<usize>>,
    #[module(skip)]
    style: RopeStyle,
    #[module(skip)]
    facts: Facts,
}

/// What sets the models apart that are else as Llama.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Variant {
    /// Queries, keys and values have biases, and the projection behind them has none.
    pub qkv_bias: bool,
    /// Queries and keys are normed, each head by itself, before they are turned.
    pub head_norms: bool,
    /// For each layer, how many of the last tokens it sees; `None` and layers beyond the list: all.
    pub windows: Vec<Option<usize>>,
    /// The two elements of a pair that turns are neighbours, as GGUF files have them, and not half a head apart.
    pub neighbours_turn: bool,
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

/// Attention with rotary positions; several heads of queries share one of keys and values.
#[derive(Debug, Module)]
pub struct Attention {
    /// To queries.
    pub q_proj: Projection,
    /// To keys.
    pub k_proj: Projection,
    /// To values.
    pub v_proj: Projection,
    /// From the heads back.
    pub o_proj: Projection,
    /// Of each head of the queries.
    pub q_norm: Option<RmsNorm>,
    /// Of each head of the keys.
    pub k_norm: Option<RmsNorm>,
    /// Width of a head.
    pub head_dim: usize,
}

/// down(activation(gate(x)) · up(x)).
#[derive(Debug, Module)]
pub struct Mlp {
    /// What is let through.
    pub gate_proj: Projection,
    /// What is there.
    pub up_proj: Projection,
    /// Back to the width.
    pub down_proj: Projection,
    /// Of the gate.
    #[module(skip)]
    pub activation: Activation,
}

/// Makes one of its `config.json`.
pub(super) fn load(config: &Fields, weights: &Weights<'_>, layers: Option<usize>) -> Result<Arc<dyn CausalLm>> {
    let mut config = LlamaConfig::from_fields(config)?;
    config.num_hidden_layers = cut(layers, config.num_hidden_layers);
    Ok(Arc::new(Llama::new(&config, weights)?))
}

impl Llama {
    /// With the weights of a checkpoint, in a dtype; those that have it already stay mapped.
    pub fn load(config: &LlamaConfig, checkpoint: &Checkpoint, dtype: DType) -> Result<Llama> {
        Llama::new(config, &Weights::new(checkpoint, dtype))
    }

    /// With these weights.
    pub fn new(config: &LlamaConfig, weights: &Weights<'_>) -> Result<Llama> {
        Llama::variant(config, &Variant::default(), weights)
    }

    /// One that is not quite a Llama, with these weights.
    pub fn variant(config: &LlamaConfig, variant: &Variant, weights: &Weights<'_>) -> Result<Llama> {
        let (width, vocabulary) = (config.hidden_size, config.vocab_size);
        let model = trunk(weights, &["model", ""], "embed_tokens.weight");
        let layers = model.under("layers");
        let layers: Result<Vec<Block>> =
            (0..config.num_hidden_layers).map(|layer| Block::load(config, variant, &layers.under(layer))).collect();
        let window = |layer: usize| variant.windows.get(layer).copied().flatten();
        Ok(Llama {
            model: Decoder {
                embed_tokens: model.token_embedding("embed_tokens", vocabulary, width)?,
                layers: layers?,
                norm: model.rms_norm("norm", width, config.rms_norm_eps)?,
            },
            lm_head: weights.head("lm_head", width, vocabulary, config.tie_word_embeddings)?,
            windows: (0..config.num_hidden_layers).map(window).collect(),
            style: if variant.neighbours_turn { RopeStyle::Interleaved } else { RopeStyle::Half },
            facts: weights.facts(config.sizes()),
            config: config.clone(),
        })
    }
}

impl CausalLm for Llama {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn rotations(&self) -> Vec<Rotation> {
        vec![Rotation { style: self.style, ..Rotation::from(&self.config.rope()) }]
    }

    #[track_caller]
    fn hidden(&self, tokens: &Tensor, step: &Step) -> kiln::Result<Tensor> {
        let masks = masks(step, &self.windows)?;
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
    fn load(config: &LlamaConfig, variant: &Variant, weights: &Weights<'_>) -> Result<Block> {
        let (width, eps) = (config.hidden_size, config.rms_norm_eps);
        Ok(Block {
            input_layernorm: weights.rms_norm("input_layernorm", width, eps)?,
            self_attn: Attention::load(config, variant, &weights.under("self_attn"))?,
            post_attention_layernorm: weights.rms_norm("post_attention_layernorm", width, eps)?,
            mlp: Mlp::load(config, Activation::Silu, &weights.under("mlp"))?,
        })
    }

    #[track_caller]
    fn forward(&self, x: &Tensor, layer: usize, step: &Step, mask: &Mask) -> kiln::Result<Tensor> {
        let x = (x + self.self_attn.forward(&self.input_layernorm.forward(x)?, layer, step, mask)?)?;
        &x + self.mlp.forward(&self.post_attention_layernorm.forward(&x)?)?
    }
}

impl Attention {
    fn load(config: &LlamaConfig, variant: &Variant, weights: &Weights<'_>) -> Result<Attention> {
        let (width, depth) = (config.hidden_size, config.head_dim);
        let (queries, shared) = (config.num_attention_heads * depth, config.num_key_value_heads * depth);
        let (biased, out_biased) = (config.attention_bias || variant.qkv_bias, config.attention_bias);
        let norm = |name: &str| {
            let norm = || weights.rms_norm(name, depth, config.rms_norm_eps);
            variant.head_norms.then(norm).transpose()
        };
        Ok(Attention {
            q_proj: weights.projection("q_proj", width, queries, biased)?,
            k_proj: weights.projection("k_proj", width, shared, biased)?,
            v_proj: weights.projection("v_proj", width, shared, biased)?,
            o_proj: weights.projection("o_proj", queries, width, out_biased)?,
            q_norm: norm("q_norm")?,
            k_norm: norm("k_norm")?,
            head_dim: depth,
        })
    }

    #[track_caller]
    fn forward(&self, x: &Tensor, layer: usize, step: &Step, mask: &Mask) -> kiln::Result<Tensor> {
        let mut q = heads(&self.q_proj.forward(x)?, self.head_dim)?;
        let mut k = heads(&self.k_proj.forward(x)?, self.head_dim)?;
        let v = heads(&self.v_proj.forward(x)?, self.head_dim)?;
        if let (Some(q_norm), Some(k_norm)) = (&self.q_norm, &self.k_norm) {
            (q, k) = (q_norm.forward(&q)?, k_norm.forward(&k)?);
        }
        let mixed = step.attend(layer, &step.rotate(0, &q)?, &step.rotate(0, &k)?, &v, mask, None)?;
        self.o_proj.forward(&joined(&mixed)?)
    }
}

impl Mlp {
    /// With the sizes and biases of a configuration.
    pub(super) fn load(config: &LlamaConfig, activation: Activation, weights: &Weights<'_>) -> Result<Mlp> {
        let (width, inner, biased) = (config.hidden_size, config.intermediate_size, config.mlp_bias);
        Ok(Mlp {
            gate_proj: weights.projection("gate_proj", width, inner, biased)?,
            up_proj: weights.projection("up_proj", width, inner, biased)?,
            down_proj: weights.projection("down_proj", inner, width, biased)?,
            activation,
        })
    }
}

impl Forward for Mlp {
    type Output = Tensor;
    #[track_caller]
    fn forward(&self, x: &Tensor) -> kiln::Result<Tensor> {
        let gate = self.activation.apply(&self.gate_proj.forward(x)?)?;
        self.down_proj.forward(&(gate * self.up_proj.forward(x)?)?)
    }
}
