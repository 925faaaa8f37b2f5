//! Settings of the Llama family.

use super::Fields;
use crate::{Error, Result};
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

/// How the frequencies of a rotary embedding are changed for longer contexts.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum RopeScaling {
    /// They are not.
    #[default]
    None,
    /// All divided by a factor.
    Linear {
        /// The factor.
        factor: f64,
    },
    /// Llama 3's: slow ones divided by a factor, fast ones kept, a blend between.
    Llama3 {
        /// The factor.
        factor: f64,
        /// Waves longer than the original context over this are slow.
        low_freq_factor: f64,
        /// Waves shorter than the original context over this are fast.
        high_freq_factor: f64,
        /// The original context.
        original_max_position_embeddings: f64,
    },
}

impl LlamaConfig {
    /// Reads `config.json` of a folder.
    pub fn read(folder: impl AsRef<Path>) -> Result<LlamaConfig> {
        LlamaConfig::from_fields(&Fields::read(folder.as_ref().join("config.json"))?)
    }

    /// From the members of a `config.json`.
    pub fn from_fields(fields: &Fields) -> Result<LlamaConfig> {
        let model_type = fields.text("model_type")?.unwrap_or("llama");
        if model_type != "llama" {
            return Err(Error::UnknownArchitecture { path: fields.path().to_owned(), found: model_type.into() });
        }
        if let Some(act) = fields.text("hidden_act")?
            && act != "silu"
        {
            return Err(fields.bad("hidden_act", format!("'{act}' is not supported for this model type")));
        }
        let hidden_size = fields.positive("hidden_size", 4096)?;
        let heads = fields.positive("num_attention_heads", 32)?;
        let kv_heads = fields.positive("num_key_value_heads", heads)?;
        if !heads.is_multiple_of(kv_heads) {
            return Err(fields.bad("num_key_value_heads", format!("{kv_heads} does not divide {heads} heads")));
        }
        let head_dim = fields.positive("head_dim", hidden_size / heads)?;
        if !head_dim.is_multiple_of(2) {
            return Err(fields.bad("head_dim", format!("{head_dim} is odd, and rotates in pairs")));
        }
        let (rope_theta, rope_scaling) = rope(fields)?;
        let eps = fields.number("rms_norm_eps", 1e-6)?;
        if eps < 0.0 {
            return Err(fields.bad("rms_norm_eps", format!("{eps} is negative")));
        }
        Ok(LlamaConfig {
            vocab_size: fields.positive("vocab_size", 32000)?,
            hidden_size,
            intermediate_size: fields.positive("intermediate_size", 11008)?,
            num_hidden_layers: fields.positive("num_hidden_layers", 32)?,
            num_attention_heads: heads,
            num_key_value_heads: kv_heads,
            head_dim,
            max_position_embeddings: fields.positive("max_position_embeddings", 2048)?,
            rms_norm_eps: eps,
            rope_theta,
            rope_scaling,
            attention_bias: fields.flag("attention_bias", false)?,
            mlp_bias: fields.flag("mlp_bias", false)?,
            tie_word_embeddings: fields.flag("tie_word_embeddings", false)?,
            bos_token_id: fields.tokens("bos_token_id")?.first().copied(),
            eos_token_ids: fields.tokens("eos_token_id")?,
        })
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
        let width = self.head_dim as f64;
        let plain = (0..self.head_dim / 2).map(|i| self.rope_theta.powf(-(2.0 * i as f64) / width));
        plain.map(|frequency| self.rope_scaling.apply(frequency)).collect()
    }
}

impl RopeScaling {
    fn apply(self, frequency: f64) -> f64 {
        match self {
            RopeScaling::None => frequency,
            RopeScaling::Linear { factor } => frequency / factor,
            RopeScaling::Llama3 {
                factor,
                low_freq_factor: low,
                high_freq_factor: high,
                original_max_position_embeddings: original,
            } => {
                let waves = original * frequency / std::f64::consts::TAU;
                if waves < low {
                    frequency / factor
                } else if waves > high {
                    frequency
                } else {
                    let smooth = (waves - low) / (high - low);
                    (1.0 - smooth) * frequency / factor + smooth * frequency
                }
            }
        }
    }
}

/// The base and the scaling: `rope_parameters` holds both in newer files, `rope_theta` and `rope_scaling` in older ones.
fn rope(fields: &Fields) -> Result<(f64, RopeScaling)> {
    let (name, scaling) = match fields.object("rope_parameters")? {
        Some(parameters) => ("rope_parameters", Some(parameters)),
        None => ("rope_scaling", fields.object("rope_scaling")?),
    };
    let inner = scaling.as_ref().map(|s| s.number_if("rope_theta")).transpose()?.flatten();
    let theta = match inner {
        Some(theta) => theta,
        None => fields.number("rope_theta", 10000.0)?,
    };
    if theta <= 0.0 {
        return Err(fields.bad("rope_theta", format!("{theta} is not positive")));
    }
    let Some(scaling) = scaling else { return Ok((theta, RopeScaling::None)) };
    let needed = |member: &str| {
        let value = scaling.number_if(member)?.filter(|&x| x > 0.0);
        value.ok_or_else(|| fields.bad(name, format!("{member} is missing or not positive")))
    };
    let kind = scaling.text("rope_type")?.or(scaling.text("type")?).unwrap_or("default");
    let scaling = match kind {
        "default" => RopeScaling::None,
        "linear" => RopeScaling::Linear { factor: needed("factor")? },
        "llama3" => RopeScaling::Llama3 {
            factor: needed("factor")?,
            low_freq_factor: needed("low_freq_factor")?,
            high_freq_factor: needed("high_freq_factor")?,
            original_max_position_embeddings: needed("original_max_position_embeddings")?,
        },
        other => return Err(fields.bad(name, format!("rope type '{other}' is not supported"))),
    };
    Ok((theta, scaling))
}
