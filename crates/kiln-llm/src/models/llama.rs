//! Llama 2 and 3, and what has their shape (SmolLM2, TinyStories' models).
//!
//! ```text
//!  tokens ─▶ embedding ─▶ N × [ x + attention(norm(x)) ; x + mlp(norm(x)) ] ─▶ norm ─▶ logits
//! ```

use crate::cache::Places;
use crate::{Checkpoint, KvCache, LlamaConfig, Result, Weights};
use kiln::nn::{Embedding, Forward, Linear, Module, RmsNorm};
use kiln::{DType, Device, RopeStyle, Tensor};

/// A Llama with its weights, under the names that its checkpoints have.
#[derive(Debug, Module)]
pub struct Llama {
    /// All but the logits.
    pub model: Decoder,
    /// The logits; without it the embedding makes them.
    pub lm_head: Option<Linear>,
    /// Sizes.
    #[module(skip)]
    pub config: LlamaConfig,
}

/// The embedding, the blocks and the last norm.
#[derive(Debug, Module)]
pub struct Decoder {
    /// A row a token.
    pub embed_tokens: Embedding,
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
    pub q_proj: Linear,
    /// To keys.
    pub k_proj: Linear,
    /// To values.
    pub v_proj: Linear,
    /// From the heads back.
    pub o_proj: Linear,
    /// Width of a head.
    pub head_dim: usize,
}

/// down(silu(gate(x)) · up(x)).
#[derive(Debug, Module)]
pub struct Mlp {
    /// What is let through.
    pub gate_proj: Linear,
    /// What is there.
    pub up_proj: Linear,
    /// Back to the width.
    pub down_proj: Linear,
}

impl Llama {
    /// With the weights of a checkpoint, in a dtype; those that have it already stay mapped.
    pub fn load(config: &LlamaConfig, checkpoint: &Checkpoint, dtype: DType) -> Result<Llama> {
        let weights = Weights::new(checkpoint, dtype);
        let (width, vocabulary) = (config.hidden_size, config.vocab_size);
        let model = weights.under("model");
        let layers = model.under("layers");
        let layers: Result<Vec<Block>> =
            (0..config.num_hidden_layers).map(|layer| Block::load(config, &layers.under(layer))).collect();
        let tied = config.tie_word_embeddings;
        Ok(Llama {
            model: Decoder {
                embed_tokens: model.embedding("embed_tokens", vocabulary, width)?,
                layers: layers?,
                norm: model.rms_norm("norm", width, config.rms_norm_eps)?,
            },
            lm_head: if tied { None } else { Some(weights.linear("lm_head", width, vocabulary, false)?) },
            config: config.clone(),
        })
    }

    /// Dtype of the weights.
    pub fn dtype(&self) -> DType {
        self.model.embed_tokens.weight.dtype()
    }

    /// Where the weights are.
    pub fn device(&self) -> Device {
        self.model.embed_tokens.weight.device()
    }

    /// A cache for so many texts of up to `length` tokens.
    pub fn cache(&self, batch: usize, length: usize) -> Result<KvCache> {
        KvCache::new(&self.config, batch, length, self.dtype(), self.device())
    }

    /// What the blocks make of tokens, `[batch, tokens]`, at positions, `[tokens]`, that see what the cache holds before
    /// them: `[batch, tokens, width]`. The cache is written at those positions.
    #[track_caller]
    pub fn hidden(&self, tokens: &Tensor, positions: &Tensor, cache: &KvCache) -> kiln::Result<Tensor> {
        let places = cache.places(positions)?;
        let mut x = self.model.embed_tokens.forward(tokens)?;
        for (index, block) in self.model.layers.iter().enumerate() {
            x = block.forward(&x, &places, index, cache)?;
        }
        self.model.norm.forward(&x)
    }

    /// Logits of the next token, `[…, vocabulary]`.
    #[track_caller]
    pub fn logits(&self, hidden: &Tensor) -> kiln::Result<Tensor> {
        match &self.lm_head {
            Some(head) => head.forward(hidden),
            None => hidden.linear(&self.model.embed_tokens.weight.get(), None),
        }
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
                q_proj: attention.linear("q_proj", width, queries, biased)?,
                k_proj: attention.linear("k_proj", width, shared, biased)?,
                v_proj: attention.linear("v_proj", width, shared, biased)?,
                o_proj: attention.linear("o_proj", queries, width, biased)?,
                head_dim: config.head_dim,
            },
            post_attention_layernorm: weights.rms_norm("post_attention_layernorm", width, eps)?,
            mlp: Mlp {
                gate_proj: mlp.linear("gate_proj", width, inner, mlp_biased)?,
                up_proj: mlp.linear("up_proj", width, inner, mlp_biased)?,
                down_proj: mlp.linear("down_proj", inner, width, mlp_biased)?,
            },
        })
    }

    #[track_caller]
    fn forward(&self, x: &Tensor, places: &Places, layer: usize, cache: &KvCache) -> kiln::Result<Tensor> {
        let x = (x + self.self_attn.forward(&self.input_layernorm.forward(x)?, places, layer, cache)?)?;
        &x + self.mlp.forward(&self.post_attention_layernorm.forward(&x)?)?
    }
}

impl Attention {
    #[track_caller]
    fn forward(&self, x: &Tensor, places: &Places, layer: usize, cache: &KvCache) -> kiln::Result<Tensor> {
        let heads = |projected: Tensor| projected.unflatten(-1, [-1, self.head_dim as i64])?.transpose(1, 2);
        let rotated = |heads: Tensor| heads.rope(&places.cos, &places.sin, RopeStyle::Half);
        let q = rotated(heads(self.q_proj.forward(x)?)?)?;
        let k = rotated(heads(self.k_proj.forward(x)?)?)?;
        let v = heads(self.v_proj.forward(x)?)?;
        let (keys, values) = cache.update(layer, places, &k, &v)?;
        let mixed = q.scaled_dot_product_attention(&keys, &values, Some(&places.mask), false, None)?;
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
