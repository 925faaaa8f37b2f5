//! Settings of Gemma 3's texts: of a text model, or of the text part of one that also sees images.

use super::llama::Defaults;
use super::rope::Known;
use super::{Activation, Fields, LlamaConfig, Rope, RopeScaling};
use crate::Result;
use crate::models::Kind;

/// What `config.json` says about a Gemma 3.
#[derive(Debug, Clone, PartialEq)]
pub struct Gemma3Config {
    /// What it has in common with a Llama, except for positions.
    pub llama: LlamaConfig,
    /// The rotary embedding of layers with a window.
    pub local_rope: Rope,
    /// That of layers that see everything.
    pub global_rope: Rope,
    /// The attention window of each layer in tokens; `None` for all.
    pub windows: Vec<Option<usize>>,
    /// Scores are divided by its root.
    pub query_pre_attn_scalar: f64,
    /// Between the projections of the feed-forward part.
    pub activation: Activation,
    /// Logits are bent to stay within it.
    pub final_logit_softcapping: Option<f64>,
}

const DEFAULTS: Defaults = Defaults {
    vocab_size: 262_208,
    hidden_size: 2304,
    intermediate_size: 9216,
    num_hidden_layers: 26,
    num_attention_heads: 8,
    num_key_value_heads: Some(4),
    head_dim: Some(256),
    max_position_embeddings: 131_072,
    rms_norm_eps: 1e-6,
    tie_word_embeddings: true,
    honoured: &[
        "final_logit_softcapping",
        "layer_types",
        "query_pre_attn_scalar",
        "sliding_window",
        "sliding_window_pattern",
    ],
};

impl Gemma3Config {
    /// From the members of a `config.json`.
    ///
    /// ```
    /// use kiln_llm::config::{Fields, Gemma3Config};
    /// let json = br#"{"model_type": "gemma3_text", "num_hidden_layers": 7, "sliding_window": 512}"#;
    /// let config = Gemma3Config::from_fields(&Fields::parse(json, "config.json")?)?;
    /// assert_eq!(config.windows[4..], [Some(512), None, Some(512)]);
    /// # Ok::<(), kiln_llm::Error>(())
    /// ```
    pub fn from_fields(fields: &Fields) -> Result<Gemma3Config> {
        fields.model_type(&["gemma3_text", "gemma3"])?;
        if Kind::of(fields)?.is_some_and(|kind| kind.model_type == "gemma3") {
            let text = fields.object("text_config")?;
            let mut text = text.ok_or_else(|| fields.bad("text_config", "it is missing"))?;
            // What is said about the whole counts where the part says nothing.
            for name in ["tie_word_embeddings", "bos_token_id", "eos_token_id", "quantization_config"] {
                text.inherit(fields, name);
            }
            return Gemma3Config::of_text(&text);
        }
        Gemma3Config::of_text(fields)
    }

    fn of_text(fields: &Fields) -> Result<Gemma3Config> {
        let llama = LlamaConfig::shared(fields, &DEFAULTS)?;
        let llama = LlamaConfig { attention_bias: fields.flag("attention_bias", false)?, ..llama };
        let window = fields.positive("sliding_window", 4096)?;
        let pattern = fields.positive("sliding_window_pattern", 6)?;
        let local = |layer: usize| !(layer + 1).is_multiple_of(pattern);
        let (local_rope, global_rope) = ropes(fields, Known::new(llama.head_dim, llama.max_position_embeddings))?;
        let scalar = fields.number("query_pre_attn_scalar", 256.0)?;
        if scalar <= 0.0 {
            return Err(fields.bad("query_pre_attn_scalar", format!("{scalar} is not positive")));
        }
        let cap = fields.number_if("final_logit_softcapping")?;
        if cap.is_some_and(|cap| cap <= 0.0) {
            return Err(fields.bad("final_logit_softcapping", "must be positive"));
        }
        let activation = fields.activation("hidden_activation", Activation::GeluTanh)?;
        // The first Gemmas said it there, and transformers does not look.
        fields.activation("hidden_act", activation)?.only(activation, fields, "hidden_act")?;
        Ok(Gemma3Config {
            windows: fields.windows(llama.num_hidden_layers, Some(window), local)?,
            llama,
            local_rope,
            global_rope,
            query_pre_attn_scalar: scalar,
            activation,
            final_logit_softcapping: cap,
        })
    }
}

/// Newer files have an object for each kind of layers; older ones a second base for layers with a window.
fn ropes(fields: &Fields, known: Known) -> Result<(Rope, Rope)> {
    let (local, global) = (known, Known { theta: 1_000_000.0, ..known });
    let local = match Rope::of_layers(fields, "sliding_attention", local)? {
        Some(rope) => rope,
        None => Rope::plain(fields, "rope_local_base_freq", local)?,
    };
    let global = match Rope::of_layers(fields, "full_attention", global)? {
        Some(rope) => rope,
        None => Rope::from_fields(fields, global)?,
    };
    for rope in [&local, &global] {
        if rope.width != known.head_dim || matches!(rope.scaling, RopeScaling::LongRope { .. }) {
            return Err(fields.bad("rope_parameters", "not supported for this model type"));
        }
    }
    Ok((local, global))
}
