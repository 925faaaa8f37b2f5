//! Settings of transformers' configurations that change what a model computes. An architecture says which of them it
//! honours; any other that is set to more than its neutral value is refused, since the model would run and say something else.

use super::Fields;
use crate::Result;
use serde_json::Value;

/// The values of a setting that change nothing; `null` never does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Neutral {
    /// None but `null`.
    Null,
    /// `false`, or 0.
    Off,
    /// `true`.
    On,
    /// 1.
    One,
    /// A list of nothing but this, or an empty one.
    ListOf(&'static str),
}

/// A setting that changes what a model computes.
struct Setting {
    name: &'static str,
    neutral: Neutral,
    /// What it would do.
    what: &'static str,
}

const fn setting(name: &'static str, neutral: Neutral, what: &'static str) -> Setting {
    Setting { name, neutral, what }
}

const SOFTCAP: &str = "a soft limit";
const SCALE: &str = "another scale";
const QK_NORM: &str = "norms of queries and keys";
const LATENT: &str = "latent attention";
const CAUSAL: &str = "only causal decoders are supported";
const WINDOW: &str = "attention with a window";
const ROTATION: &str = "another rotation of positions";
const ORDER: &str = "another order of norms and sums";

const SETTINGS: &[Setting] = &[
    setting("compression_config", Neutral::Null, "compressed weights"),
    setting("attn_logit_softcapping", Neutral::Off, "scores of attention with a soft limit"),
    setting("attn_logit_softcap", Neutral::Off, SOFTCAP),
    setting("final_logit_softcapping", Neutral::Off, SOFTCAP),
    setting("final_logit_softcap", Neutral::Off, SOFTCAP),
    setting("logits_soft_cap", Neutral::Off, SOFTCAP),
    setting("embedding_multiplier", Neutral::One, SCALE),
    setting("residual_multiplier", Neutral::One, SCALE),
    setting("attention_multiplier", Neutral::Null, SCALE),
    setting("logits_scaling", Neutral::One, SCALE),
    setting("logit_scale", Neutral::One, SCALE),
    setting("lm_head_multiplier", Neutral::One, SCALE),
    setting("key_multiplier", Neutral::One, SCALE),
    setting("scale_emb", Neutral::One, SCALE),
    setting("scale_depth", Neutral::Null, SCALE),
    setting("dim_model_base", Neutral::Null, SCALE),
    setting("embedding_scale", Neutral::One, SCALE),
    setting("embed_scale", Neutral::One, SCALE),
    setting("residual_scale", Neutral::One, SCALE),
    setting("scale_embedding", Neutral::Off, SCALE),
    setting("scale_embeddings", Neutral::Off, SCALE),
    setting("use_mup", Neutral::Off, SCALE),
    setting("query_pre_attn_scalar", Neutral::Null, SCALE),
    setting("attention_scale", Neutral::Null, SCALE),
    setting("attn_scale", Neutral::Null, SCALE),
    setting("softmax_scale", Neutral::Null, SCALE),
    setting("attn_temperature_tuning", Neutral::Off, SCALE),
    setting("clip_qkv", Neutral::Off, "limits of queries, keys and values"),
    setting("qk_norm", Neutral::Off, QK_NORM),
    setting("use_qk_norm", Neutral::Off, QK_NORM),
    setting("qk_layernorm", Neutral::Off, QK_NORM),
    setting("use_qk_layernorm", Neutral::Off, QK_NORM),
    setting("use_rope", Neutral::On, ROTATION),
    setting("rotary_dim", Neutral::Null, ROTATION),
    setting("rope_base", Neutral::Null, ROTATION),
    setting("rotary_base", Neutral::Null, ROTATION),
    setting("rope_interleave", Neutral::Off, ROTATION),
    setting("rope_interleaved", Neutral::Off, ROTATION),
    setting("rotary_interleaved", Neutral::Off, ROTATION),
    setting("no_rope_layers", Neutral::ListOf("1"), "layers without positions"),
    setting("no_rope_layer_interval", Neutral::Off, "layers without positions"),
    setting("alibi", Neutral::Off, "biases of attention by distance"),
    setting("use_alibi", Neutral::Off, "biases of attention by distance"),
    setting("kv_lora_rank", Neutral::Null, LATENT),
    setting("q_lora_rank", Neutral::Null, LATENT),
    setting("qk_rope_head_dim", Neutral::Null, LATENT),
    setting("qk_nope_head_dim", Neutral::Null, LATENT),
    setting("v_head_dim", Neutral::Null, "values of another width than keys"),
    setting("parallel_attn", Neutral::Off, ORDER),
    setting("parallel_block", Neutral::Off, ORDER),
    setting("use_parallel_residual", Neutral::Off, ORDER),
    setting("apply_residual_connection_post_layernorm", Neutral::Off, ORDER),
    setting("do_layer_norm_before", Neutral::On, ORDER),
    setting("norm_after", Neutral::Off, ORDER),
    setting("layer_types", Neutral::ListOf("\"full_attention\""), WINDOW),
    setting("sliding_window_pattern", Neutral::Null, WINDOW),
    setting("attention_chunk_size", Neutral::Off, WINDOW),
    setting("attention_types", Neutral::Null, WINDOW),
    setting("global_attn_every_n_layers", Neutral::Null, WINDOW),
    setting("cross_attention_layers", Neutral::ListOf(""), "attention to pictures"),
    setting("num_kv_shared_layers", Neutral::Off, "layers that share keys and values"),
    setting("activation_sparsity_pattern", Neutral::Null, "sparse activations"),
    setting("block_configs", Neutral::Null, "layers that differ"),
    setting("attn_config", Neutral::Null, "another attention"),
    setting("is_encoder_decoder", Neutral::Off, CAUSAL),
    setting("add_cross_attention", Neutral::Off, CAUSAL),
    setting("use_bidirectional_attention", Neutral::Off, CAUSAL),
];

impl Neutral {
    fn is(self, value: &Value) -> bool {
        let number = |number: f64| value.as_f64() == Some(number);
        match self {
            Neutral::Null => value.is_null(),
            Neutral::Off => value.as_bool() == Some(false) || number(0.0),
            Neutral::On => value.as_bool() == Some(true),
            Neutral::One => number(1.0),
            Neutral::ListOf(only) => {
                let texts = value.as_array().map(|all| all.iter().map(Value::to_string));
                texts.is_some_and(|mut texts| texts.all(|text| text == only))
            }
        }
    }
}

impl Fields {
    /// Refuses settings that change what a model computes and that are not among those that its architecture honours.
    pub fn supported(&self, honoured: &[&str]) -> Result<()> {
        if let Some(quantization) = self.object("quantization_config")? {
            let method = quantization.text("quant_method")?.unwrap_or("unknown");
            return Err(self.bad("quantization_config", format!("weights quantised by '{method}' are not supported")));
        }
        for Setting { name, neutral, what } in SETTINGS.iter().filter(|setting| !honoured.contains(&setting.name)) {
            match self.get(name) {
                Some(value) if !neutral.is(value) && *what == CAUSAL => return Err(self.bad(name, CAUSAL)),
                Some(value) if !neutral.is(value) => {
                    return Err(self.bad(name, format!("{what} ({value}) is not supported for this model type")));
                }
                _ => {}
            }
        }
        if !honoured.contains(&"sliding_window") {
            self.no_window()?;
        }
        match self.text("position_embedding_type")? {
            None | Some("absolute" | "rope" | "rotary" | "default") => Ok(()),
            Some(other) => Err(self.bad("position_embedding_type", format!("'{other}' is not supported"))),
        }
    }

    /// Refuses a window that some text of the model would notice, for architectures that have none.
    fn no_window(&self) -> Result<()> {
        let used = self.flag("use_sliding_window", true)?;
        let Some(window) = self.size_if("sliding_window")?.filter(|_| used) else { return Ok(()) };
        match self.size_if("max_position_embeddings")? {
            Some(context) if window >= context => Ok(()),
            _ => Err(self.bad("sliding_window", format!("{window} is not supported for this model type: {WINDOW}"))),
        }
    }

    /// Refuses `layer_types` that are not all of the one kind that an architecture's window says.
    pub(super) fn same_layers(&self, window: Option<usize>) -> Result<()> {
        let only = if window.is_some() { "\"sliding_attention\"" } else { "\"full_attention\"" };
        match self.get("layer_types") {
            Some(value) if !Neutral::ListOf(only).is(value) => {
                Err(self.bad("layer_types", format!("{value} is not supported for this model type: all are {only}")))
            }
            _ => Ok(()),
        }
    }

    /// Refuses a `head_dim` other than this one, for architectures whose heads divide the width.
    pub(super) fn head_dim_is(&self, width: usize) -> Result<()> {
        match self.size_if("head_dim")? {
            Some(other) if other != width => {
                Err(self.bad("head_dim", format!("{other} is not supported for this model type: heads have {width}")))
            }
            _ => Ok(()),
        }
    }
}
