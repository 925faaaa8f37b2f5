//! Settings of the Llama family, and what the architectures that came from it share with them.

use super::rope::Known;
use super::{Activation, Fields, Rope, RopeScaling};
use crate::Result;
use crate::models::Sizes;
use std::path::Path;

/// What `config.json` says about a Llama.
#[derive(Debug, Clone, PartialEq)]
pub struct LlamaConfig {
    /// Tokens with an embedding.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width inside of the feed-forward part.
    pub intermediate_size: usize,
    /// Blocks.
    pub num_hidden_layers: usize,
    /// Heads of the queries.
    pub num_attention_heads: usize,
    /// Heads of keys and values, each shared by as many of the queries' heads.
    pub num_key_value_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Tokens that the model was made for.
    pub max_position_embeddings: usize,
    /// Keeps the norms' divisors from 0.
    pub rms_norm_eps: f64,
    /// Base of the rotary embedding.
    pub rope_theta: f64,
    /// How the rotary embedding reaches beyond the positions it was trained for.
    pub rope_scaling: RopeScaling,
    /// Whether the projections of attention have biases.
    pub attention_bias: bool,
    /// Whether the projections of the feed-forward part have biases.
    pub mlp_bias: bool,
    /// Whether the embedding also makes the logits.
    pub tie_word_embeddings: bool,
    /// Begins a text.
    pub bos_token_id: Option<u32>,
    /// Any of these ends a text.
    pub eos_token_ids: Vec<u32>,
}

/// What transformers takes where a file of the architecture says nothing.
pub(super) struct Defaults {
    pub vocab_size: usize,
    pub hidden_size: usize,
    pub intermediate_size: usize,
    pub num_hidden_layers: usize,
    pub num_attention_heads: usize,
    /// `None`: as many as heads of the queries.
    pub num_key_value_heads: Option<usize>,
    /// `None`: the width divided among the heads.
    pub head_dim: Option<usize>,
    pub max_position_embeddings: usize,
    pub rms_norm_eps: f64,
    pub tie_word_embeddings: bool,
    /// Settings beyond those of a Llama that are honoured.
    pub honoured: &'static [&'static str],
}

const DEFAULTS: Defaults = Defaults {
    vocab_size: 32000,
    hidden_size: 4096,
    intermediate_size: 11008,
    num_hidden_layers: 32,
    num_attention_heads: 32,
    num_key_value_heads: None,
    head_dim: None,
    max_position_embeddings: 2048,
    rms_norm_eps: 1e-6,
    tie_word_embeddings: false,
    honoured: &[],
};

impl LlamaConfig {
    /// Reads `config.json` of a folder.
    pub fn read(folder: impl AsRef<Path>) -> Result<LlamaConfig> {
        LlamaConfig::from_fields(&Fields::read(folder.as_ref().join("config.json"))?)
    }

    /// From the members of a `config.json`.
    pub fn from_fields(fields: &Fields) -> Result<LlamaConfig> {
        fields.model_type(&["llama"])?;
        fields.activation("hidden_act", Activation::Silu)?.only(Activation::Silu, fields, "hidden_act")?;
        let config = LlamaConfig::shared(fields, &DEFAULTS)?;
        let rope = Rope::from_fields(fields, Known::new(config.head_dim, config.max_position_embeddings))?;
        Ok(LlamaConfig {
            attention_bias: fields.flag("attention_bias", false)?,
            mlp_bias: fields.flag("mlp_bias", false)?,
            ..config.with_rope(fields, rope)?
        })
    }

    /// With a rotary embedding that has to be of whole heads.
    pub(super) fn with_rope(self, fields: &Fields, rope: Rope) -> Result<LlamaConfig> {
        if rope.width != self.head_dim {
            return Err(fields.bad("partial_rotary_factor", "not supported for this model type"));
        }
        Ok(LlamaConfig { rope_theta: rope.theta, rope_scaling: rope.scaling, ..self })
    }

    /// What the architectures that came from Llama call the same; positions and biases are the caller's.
    pub(super) fn shared(fields: &Fields, defaults: &Defaults) -> Result<LlamaConfig> {
        fields.supported(defaults.honoured)?;
        let hidden_size = fields.positive("hidden_size", defaults.hidden_size)?;
        let heads = fields.positive("num_attention_heads", defaults.num_attention_heads)?;
        let kv_heads = fields.positive("num_key_value_heads", defaults.num_key_value_heads.unwrap_or(heads))?;
        if !heads.is_multiple_of(kv_heads) {
            return Err(fields.bad("num_key_value_heads", format!("{kv_heads} does not divide {heads} heads")));
        }
        let head_dim = fields.positive("head_dim", defaults.head_dim.unwrap_or(hidden_size / heads))?;
        if !head_dim.is_multiple_of(2) {
            return Err(fields.bad("head_dim", format!("{head_dim} is odd, and rotates in pairs")));
        }
        Ok(LlamaConfig {
            vocab_size: fields.positive("vocab_size", defaults.vocab_size)?,
            hidden_size,
            intermediate_size: fields.positive("intermediate_size", defaults.intermediate_size)?,
            num_hidden_layers: fields.layers("num_hidden_layers", defaults.num_hidden_layers)?,
            num_attention_heads: heads,
            num_key_value_heads: kv_heads,
            head_dim,
            max_position_embeddings: fields.positive("max_position_embeddings", defaults.max_position_embeddings)?,
            rms_norm_eps: fields.epsilon("rms_norm_eps", defaults.rms_norm_eps)?,
            rope_theta: 10000.0,
            rope_scaling: RopeScaling::None,
            attention_bias: false,
            mlp_bias: false,
            tie_word_embeddings: fields.flag("tie_word_embeddings", defaults.tie_word_embeddings)?,
            bos_token_id: fields.tokens("bos_token_id")?.first().copied(),
            eos_token_ids: fields.tokens("eos_token_id")?,
        })
    }

    /// What caches and sampling need.
    pub fn sizes(&self) -> Sizes {
        Sizes {
            vocab: self.vocab_size,
            layers: self.num_hidden_layers,
            kv_heads: self.num_key_value_heads,
            head_dim: self.head_dim,
            context: self.max_position_embeddings,
        }
    }

    /// The rotary embedding, over whole heads.
    pub fn rope(&self) -> Rope {
        Rope { theta: self.rope_theta, scaling: self.rope_scaling.clone(), width: self.head_dim }
    }

    /// Radians a position for each pair of a head, scaled.
    ///
    /// ```
    /// use kiln_llm::config::{Fields, LlamaConfig};
    /// let json = br#"{"head_dim": 4, "rope_scaling": {"type": "linear", "factor": 2.0}}"#;
    /// let config = LlamaConfig::from_fields(&Fields::parse(json, "config.json")?)?;
    /// assert_eq!(config.frequencies(), [0.5, 0.005]);
    /// # Ok::<(), kiln_llm::Error>(())
    /// ```
    pub fn frequencies(&self) -> Vec<f64> {
        self.rope().frequencies(false)
    }
}
