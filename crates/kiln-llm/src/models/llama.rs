//! Llama 2 and 3, and what has their shape (SmolLM2, TinyStories' models).
//!
//! ```text
//!  tokens ─▶ embedding ─▶ N × [ x + attention(norm(x)) ; x + mlp(norm(x)) ] ─▶ norm ─▶ logits
//! ```

use super::{CausalLm, Rotation, Sizes};
use crate::cache::{Mask, Step, Window};
use crate::config::Fields;
use crate::layers::{Projection, TokenEmbedding};
use crate::{Checkpoint, LlamaConfig, Result, Weights};
use kiln::nn::{Forward, Module, RmsNorm};
use kiln::{DType, Device, Tensor};
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
    sizes: Sizes,
    #[module(skip)]
    place: (DType, Device),
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
    /// Width of a head.
    pub head_dim: usize,
}

/// down(silu(gate(x)) · up(x)).
#[derive(Debug, Module)]
pub struct Mlp {
    /// What is let through.
    pub gate_proj: Projection,
    /// What is there.
    pub up_proj: Projection,
    /// Back to the width.
    pub down_proj: Projection,
}

/// Makes one of its `config.json`.
pub(super) fn load(config: &Fields, weights: &Weights<'_>, layers: Option<usize>) -> Result<Arc<dyn CausalLm>> {
    let mut config = LlamaConfig::from_fields(config)?;
    config.num_hidden_layers = layers.unwrap_or(usize::MAX).clamp(1, config.num_hidden_layers);
    Ok(Arc::new(Llama::new(&config, weights)?))
}

impl Llama {
    /// With the weights of a checkpoint, in a dtype; those that have it already stay mapped.
    pub fn load(config: &LlamaConfig, checkpoint: &Checkpoint, dtype: DType) -> Result<Llama> {
        Llama::new(config, &Weights::new(checkpoint, dtype))
    }

    /// With these weights.
    pub fn new(config: &LlamaConfig, weights: &Weights<'_>) -> Result<Llama> {
        let (width, vocabulary) = (config.hidden_size, config.vocab_size);
        let model = weights.under("model");
        let layers = model.under("layers");
        let layers: Result<Vec<Block>> =
            (0..config.num_hidden_layers).map(|layer| Block::load(config, &layers.under(layer))).collect();
        let tied = config.tie_word_embeddings;
        Ok(Llama {
            model: Decoder {
                embed_tokens: model.token_embedding("embed_tokens", vocabulary, width)?,
                layers: layers?,
                norm: model.rms_norm("norm", width, config.rms_norm_eps)?,
            },
            lm_head: if tied { None } else { Some(weights.projection("lm_head", width, vocabulary, false)?) },
            sizes: Sizes {
                vocab: vocabulary,
                layers: config.num_hidden_layers,
                kv_heads: config.num_key_value_heads,
                head_dim: config.head_dim,
                context: config.max_position_embeddings,
            },
            place: (weights.dtype(), weights.device()),
            config: config.clone(),
        })
    }
}

impl CausalLm for Llama {
    fn sizes(&self) -> &Sizes {
        &self.sizes
    }

    fn rotations(&self) -> Vec<Rotation> {
        vec![Rotation::new(self.config.frequencies())]
    }

    fn dtype(&self) -> DType {
        self.place.0
    }

    fn device(&self) -> Device {
        self.place.1
    }

    #[track_caller]
    fn hidden(&self, tokens: &Tensor, step: &Step) -> kiln::Result<Tensor> {
        let mask = step.mask(Window::All)?;
        let mut x = self.model.embed_tokens.forward(tokens)?;
        for (index, block) in self.model.layers.iter().enumerate() {
            x = block.forward(&x, index, step, &mask)?;
        }
        self.model.norm.forward(&x)
    }

    #[track_caller]
    fn logits(&self, hidden: &Tensor) -> kiln::Result<Tensor> {
        match &self.lm_head {
            Some(head) => head.forward(hidden),
            None => self.model.embed_tokens.logits(hidden),
        }
    }

    fn weight_bytes(&self) -> usize {
        super::bytes_of(self)
    }
}

impl Block {
    fn load(config: &LlamaConfig, weights: &Weights<'_>) -> Result<Block> {
        let (width, inner, eps) = (config.hidden_size, config.intermediate_size, config.rms_norm_eps);
        let queries = config.num_attention_heads * config.head_dim;
        let shared = config.num_key_value_heads * config.head_dim;
        let (attention, mlp) = (weights.under("self_attn"), weights.under("mlp"));
        let (biased, mlp_biased) = (config.attention_bias, config.mlp_bias);
        Ok(Block {
            input_layernorm: weights.rms_norm("input_layernorm", width, eps)?,
            self_attn: Attention {
                q_proj: attention.projection("q_proj", width, queries, biased)?,
                k_proj: attention.projection("k_proj", width, shared, biased)?,
                v_proj: attention.projection("v_proj", width, shared, biased)?,
                o_proj: attention.projection("o_proj", queries, width, biased)?,
                head_dim: config.head_dim,
            },
            post_attention_layernorm: weights.rms_norm("post_attention_layernorm", width, eps)?,
            mlp: Mlp {
                gate_proj: mlp.projection("gate_proj", width, inner, mlp_biased)?,
                up_proj: mlp.projection("up_proj", width, inner, mlp_biased)?,
                down_proj: mlp.projection("down_proj", inner, width, mlp_biased)?,
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
        let heads = |projected: Tensor| projected.unflatten(-1, [-1, self.head_dim as i64])?.transpose(1, 2);
        let q = step.rotate(0, &heads(self.q_proj.forward(x)?)?)?;
        let k = step.rotate(0, &heads(self.k_proj.forward(x)?)?)?;
        let v = heads(self.v_proj.forward(x)?)?;
        let mixed = step.attend(layer, &q, &k, &v, mask, None)?;
        self.o_proj.forward(&mixed.transpose(1, 2)?.flatten(-2, -1)?)
    }
}

impl Forward for Mlp {
    type Output = Tensor;
    #[track_caller]
    fn forward(&self, x: &Tensor) -> kiln::Result<Tensor> {
        self.down_proj.forward(&(self.gate_proj.forward(x)?.silu()? * self.up_proj.forward(x)?)?)
    }
}
