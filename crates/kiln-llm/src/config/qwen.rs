//! Settings of Qwen 2 and 3.

use super::llama::Defaults;
use super::rope::Known;
use super::{Activation, Fields, LlamaConfig, Rope};
use crate::Result;

/// What `config.json` says about a Qwen2 or Qwen2.5.
#[derive(Debug, Clone, PartialEq)]
pub struct Qwen2Config {
    /// What it has in common with a Llama.
    pub llama: LlamaConfig,
    /// The attention window of each layer in tokens; `None` for all.
    pub windows: Vec<Option<usize>>,
}

/// What `config.json` says about a Qwen3.
#[derive(Debug, Clone, PartialEq)]
pub struct Qwen3Config {
    /// What it has in common with a Llama.
    pub llama: LlamaConfig,
    /// The attention window of each layer in tokens; `None` for all.
    pub windows: Vec<Option<usize>>,
}

const DEFAULTS: Defaults = Defaults {
    vocab_size: 151936,
    hidden_size: 4096,
    intermediate_size: 22016,
    num_hidden_layers: 32,
    num_attention_heads: 32,
    num_key_value_heads: Some(32),
    head_dim: None,
    max_position_embeddings: 32768,
    rms_norm_eps: 1e-6,
    tie_word_embeddings: false,
    honoured: &["sliding_window", "layer_types"],
};

impl Qwen2Config {
    /// From the members of a `config.json`.
    pub fn from_fields(fields: &Fields) -> Result<Qwen2Config> {
        fields.model_type(&["qwen2"])?;
        let (llama, windows) = shared(fields, &DEFAULTS)?;
        Ok(Qwen2Config { llama, windows })
    }
}

impl Qwen3Config {
    /// From the members of a `config.json`.
    pub fn from_fields(fields: &Fields) -> Result<Qwen3Config> {
        fields.model_type(&["qwen3"])?;
        let (mut llama, windows) = shared(fields, &Defaults { head_dim: Some(128), ..DEFAULTS })?;
        llama.attention_bias = fields.flag("attention_bias", false)?;
        Ok(Qwen3Config { llama, windows })
    }
}

fn shared(fields: &Fields, defaults: &Defaults) -> Result<(LlamaConfig, Vec<Option<usize>>)> {
    fields.activation("hidden_act", Activation::Silu)?.only(Activation::Silu, fields, "hidden_act")?;
    let llama = LlamaConfig::shared(fields, defaults)?;
    let rope = Rope::from_fields(fields, Known::new(llama.head_dim, llama.max_position_embeddings))?;
    let llama = llama.with_rope(fields, rope)?;
    let window = match fields.flag("use_sliding_window", false)? {
        true => Some(fields.positive("sliding_window", 4096)?),
        false => None,
    };
    let from = fields.size("max_window_layers", 28)?;
    let windows = fields.windows(llama.num_hidden_layers, window, |layer| layer >= from)?;
    Ok((llama, windows))
}
