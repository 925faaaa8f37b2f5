//! Settings of GPT-NeoX and Pythia.

use super::rope::Known;
use super::{Activation, Fields, Rope};
use crate::Result;
use crate::models::Sizes;

/// What `config.json` says about a GPT-NeoX.
#[derive(Debug, Clone, PartialEq)]
pub struct GptNeoxConfig {
    /// Tokens with an embedding.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width inside of the feed-forward part.
    pub intermediate_size: usize,
    /// Blocks.
    pub num_hidden_layers: usize,
    /// Heads.
    pub num_attention_heads: usize,
    /// Tokens that the model was made for.
    pub max_position_embeddings: usize,
    /// The rotary embedding, of a part of each head.
    pub rope: Rope,
    /// Between the projections of the feed-forward part.
    pub activation: Activation,
    /// Keeps the norms' divisors from 0.
    pub layer_norm_eps: f64,
    /// Whether attention and the feed-forward part both start from the block's input.
    pub use_parallel_residual: bool,
    /// Whether the projections of attention have biases.
    pub attention_bias: bool,
    /// Whether the embedding also makes the logits.
    pub tie_word_embeddings: bool,
    /// Begins a text.
    pub bos_token_id: Option<u32>,
    /// Any of these ends a text.
    pub eos_token_ids: Vec<u32>,
}

impl GptNeoxConfig {
    /// From the members of a `config.json`.
    ///
    /// ```
    /// use kiln_llm::config::{Fields, GptNeoxConfig};
    /// let json = br#"{"model_type": "gpt_neox", "hidden_size": 768, "num_attention_heads": 12, "rotary_pct": 0.25}"#;
    /// let config = GptNeoxConfig::from_fields(&Fields::parse(json, "config.json")?)?;
    /// assert_eq!(config.rope.width, 16);
    /// # Ok::<(), kiln_llm::Error>(())
    /// ```
    pub fn from_fields(fields: &Fields) -> Result<GptNeoxConfig> {
        fields.model_type(&["gpt_neox"])?;
        fields.supported(&["use_parallel_residual"])?;
        let hidden_size = fields.positive("hidden_size", 6144)?;
        let heads = fields.heads("num_attention_heads", 64, hidden_size)?;
        let head_dim = hidden_size / heads;
        fields.head_dim_is(head_dim)?;
        let max_position_embeddings = fields.positive("max_position_embeddings", 2048)?;
        let known = Known { part: 0.25, ..Known::new(head_dim, max_position_embeddings) };
        Ok(GptNeoxConfig {
            vocab_size: fields.positive("vocab_size", 50432)?,
            hidden_size,
            intermediate_size: fields.positive("intermediate_size", 24576)?,
            num_hidden_layers: fields.layers("num_hidden_layers", 44)?,
            num_attention_heads: heads,
            max_position_embeddings,
            rope: Rope::from_fields(fields, known)?,
            activation: fields.activation("hidden_act", Activation::Gelu)?,
            layer_norm_eps: fields.epsilon("layer_norm_eps", 1e-5)?,
            use_parallel_residual: fields.flag("use_parallel_residual", true)?,
            attention_bias: fields.flag("attention_bias", true)?,
            tie_word_embeddings: fields.flag("tie_word_embeddings", false)?,
            bos_token_id: fields.tokens("bos_token_id")?.first().copied(),
            eos_token_ids: fields.tokens("eos_token_id")?,
        })
    }

    /// What caches and sampling need.
    pub fn sizes(&self) -> Sizes {
        Sizes {
            vocab: self.vocab_size,
            layers: self.num_hidden_layers,
            kv_heads: self.num_attention_heads,
            head_dim: self.hidden_size / self.num_attention_heads,
            context: self.max_position_embeddings,
        }
    }
}
