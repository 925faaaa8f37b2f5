//! Settings of GPT-2.

use super::{Activation, Fields};
use crate::Result;
use crate::models::Sizes;

/// What `config.json` says about a GPT-2.
#[derive(Debug, Clone, PartialEq)]
pub struct Gpt2Config {
    /// Tokens with an embedding.
    pub vocab_size: usize,
    /// Positions with an embedding.
    pub n_positions: usize,
    /// Width of the residual stream.
    pub n_embd: usize,
    /// Blocks.
    pub n_layer: usize,
    /// Heads.
    pub n_head: usize,
    /// Width inside of the feed-forward part.
    pub n_inner: usize,
    /// Between the projections of the feed-forward part.
    pub activation: Activation,
    /// Keeps the norms' divisors from 0.
    pub layer_norm_epsilon: f64,
    /// Whether scores are divided by the root of a head's width.
    pub scale_attn_weights: bool,
    /// Whether scores of layer i, from 0, are divided by i + 1.
    pub scale_attn_by_inverse_layer_idx: bool,
    /// Whether the embedding also makes the logits.
    pub tie_word_embeddings: bool,
    /// Begins a text.
    pub bos_token_id: Option<u32>,
    /// Any of these ends a text.
    pub eos_token_ids: Vec<u32>,
}

impl Gpt2Config {
    /// From the members of a `config.json`.
    ///
    /// ```
    /// use kiln_llm::config::{Fields, Gpt2Config};
    /// let config = Gpt2Config::from_fields(&Fields::parse(br#"{"model_type": "gpt2"}"#, "config.json")?)?;
    /// assert_eq!((config.n_layer, config.n_inner), (12, 3072));
    /// # Ok::<(), kiln_llm::Error>(())
    /// ```
    pub fn from_fields(fields: &Fields) -> Result<Gpt2Config> {
        fields.model_type(&["gpt2"])?;
        fields.supported(&[])?;
        let n_embd = fields.positive("n_embd", 768)?;
        let n_head = fields.heads("n_head", 12, n_embd)?;
        fields.head_dim_is(n_embd / n_head)?;
        Ok(Gpt2Config {
            vocab_size: fields.positive("vocab_size", 50257)?,
            n_positions: fields.positive("n_positions", 1024)?,
            n_embd,
            n_layer: fields.layers("n_layer", 12)?,
            n_head,
            n_inner: fields.positive("n_inner", 4 * n_embd)?,
            activation: fields.activation("activation_function", Activation::GeluTanh)?,
            layer_norm_epsilon: fields.epsilon("layer_norm_epsilon", 1e-5)?,
            scale_attn_weights: fields.flag("scale_attn_weights", true)?,
            scale_attn_by_inverse_layer_idx: fields.flag("scale_attn_by_inverse_layer_idx", false)?,
            tie_word_embeddings: fields.flag("tie_word_embeddings", true)?,
            bos_token_id: fields.tokens("bos_token_id")?.first().copied(),
            eos_token_ids: fields.tokens("eos_token_id")?,
        })
    }

    /// What caches and sampling need.
    pub fn sizes(&self) -> Sizes {
        Sizes {
            vocab: self.vocab_size,
            layers: self.n_layer,
            kv_heads: self.n_head,
            head_dim: self.n_embd / self.n_head,
            context: self.n_positions,
        }
    }
}
