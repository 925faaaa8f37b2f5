//! Settings of Mistral.

use super::llama::Defaults;
use super::rope::Known;
use super::{Activation, Fields, LlamaConfig, Rope};
use crate::Result;

/// What `config.json` says about a Mistral.
#[derive(Debug, Clone, PartialEq)]
pub struct MistralConfig {
    /// What it has in common with a Llama.
    pub llama: LlamaConfig,
    /// The attention window in tokens, including the token itself; `None` for all.
    pub sliding_window: Option<usize>,
}

const DEFAULTS: Defaults = Defaults {
    vocab_size: 32000,
    hidden_size: 4096,
    intermediate_size: 14336,
    num_hidden_layers: 32,
    num_attention_heads: 32,
    num_key_value_heads: Some(8),
    head_dim: None,
    max_position_embeddings: 4096 * 32,
    rms_norm_eps: 1e-6,
    tie_word_embeddings: false,
    honoured: &["sliding_window", "layer_types"],
};

impl MistralConfig {
    /// From the members of a `config.json`.
    ///
    /// ```
    /// use kiln_llm::config::{Fields, MistralConfig};
    /// let fields = Fields::parse(br#"{"model_type": "mistral", "sliding_window": null}"#, "config.json")?;
    /// assert_eq!(MistralConfig::from_fields(&fields)?.sliding_window, None);
    /// # Ok::<(), kiln_llm::Error>(())
    /// ```
    pub fn from_fields(fields: &Fields) -> Result<MistralConfig> {
        fields.model_type(&["mistral"])?;
        fields.activation("hidden_act", Activation::Silu)?.only(Activation::Silu, fields, "hidden_act")?;
        let llama = LlamaConfig::shared(fields, &DEFAULTS)?;
        let rope = Rope::from_fields(fields, Known::new(llama.head_dim, llama.max_position_embeddings))?;
        let llama = llama.with_rope(fields, rope)?;
        // The first models had a window where nothing is said; a `null` says that there is none.
        let sliding_window = match fields.says("sliding_window") {
            true => fields.size_if("sliding_window")?,
            false => Some(4096),
        };
        if sliding_window == Some(0) {
            return Err(fields.bad("sliding_window", "must not be 0"));
        }
        fields.same_layers(sliding_window)?;
        Ok(MistralConfig { llama, sliding_window })
    }
}
