//! Settings of Phi-3, 3.5 and 4.

use super::llama::Defaults;
use super::rope::Known;
use super::{Activation, Fields, LlamaConfig, Rope};
use crate::Result;

/// What `config.json` says about a Phi-3.
#[derive(Debug, Clone, PartialEq)]
pub struct Phi3Config {
    /// What it has in common with a Llama, except for positions.
    pub llama: LlamaConfig,
    /// The rotary embedding, maybe of a part of each head, maybe another beyond the original context.
    pub rope: Rope,
    /// The attention window in tokens, including the token itself; `None` for all.
    pub sliding_window: Option<usize>,
}

const DEFAULTS: Defaults = Defaults {
    vocab_size: 32064,
    hidden_size: 3072,
    intermediate_size: 8192,
    num_hidden_layers: 32,
    num_attention_heads: 32,
    num_key_value_heads: None,
    head_dim: None,
    max_position_embeddings: 4096,
    rms_norm_eps: 1e-5,
    tie_word_embeddings: false,
    honoured: &["sliding_window", "layer_types"],
};

impl Phi3Config {
    /// From the members of a `config.json`.
    pub fn from_fields(fields: &Fields) -> Result<Phi3Config> {
        fields.model_type(&["phi3"])?;
        fields.activation("hidden_act", Activation::Silu)?.only(Activation::Silu, fields, "hidden_act")?;
        let llama = LlamaConfig::shared(fields, &DEFAULTS)?;
        let rope = Rope::from_fields(fields, Known::new(llama.head_dim, llama.max_position_embeddings))?;
        let sliding_window = fields.size_if("sliding_window")?;
        if sliding_window == Some(0) {
            return Err(fields.bad("sliding_window", "must not be 0"));
        }
        fields.same_layers(sliding_window)?;
        Ok(Phi3Config { llama, rope, sliding_window })
    }
}
