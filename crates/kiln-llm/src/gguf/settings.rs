//! The settings of a file under its architecture's name. All that stands there describes the model, so that a key that is
//! not known is refused: it may change what the model computes.

use super::{Gguf, GgufError, Metadata};
use crate::config::{Rope, RopeScaling};
use crate::models::Unsupported;
use crate::{Error, Result};

/// What is known of an architecture.
pub(super) struct Architecture {
    /// Files name it so, and begin the keys of its settings with it.
    pub(super) name: &'static str,
    /// Pairs that turn are neighbours: the rows of queries and keys were put in that order when the file was written.
    pub(super) interleaved_rope: bool,
    /// Queries, keys and values have biases.
    pub(super) qkv_bias: bool,
}

const ARCHITECTURES: [Architecture; 2] = [
    Architecture { name: "llama", interleaved_rope: true, qkv_bias: false },
    Architecture { name: "qwen2", interleaved_rope: false, qkv_bias: true },
];

/// Architectures of files whose models are supported as folders.
const AS_FOLDERS: &[&str] = &["qwen3", "gemma3", "phi3", "gpt2", "gptneox"];

/// What a key may say.
enum Rule {
    /// It is read elsewhere, or changes nothing.
    Any,
    /// Nothing but these numbers.
    Only(&'static [f64]),
    /// Nothing but this flag.
    Flag(bool),
}

/// Every key that is known, without the architecture before it.
const KEYS: &[(&str, Rule)] = &[
    ("vocab_size", Rule::Any),
    ("context_length", Rule::Any),
    ("embedding_length", Rule::Any),
    ("block_count", Rule::Any),
    ("feed_forward_length", Rule::Any),
    // The order of rows that the file's writer chose, which the architecture fixes.
    ("tensor_data_layout", Rule::Any),
    // Pooling of token vectors, which is not used here.
    ("pooling_type", Rule::Any),
    ("attention.head_count", Rule::Any),
    ("attention.head_count_kv", Rule::Any),
    ("attention.key_length", Rule::Any),
    ("attention.value_length", Rule::Any),
    ("attention.layer_norm_rms_epsilon", Rule::Any),
    // Of layer norms, which these architectures do not have.
    ("attention.layer_norm_epsilon", Rule::Any),
    ("attention.scale", Rule::Any),
    ("attention.sliding_window", Rule::Any),
    ("attention.causal", Rule::Flag(true)),
    ("attention.clamp_kqv", Rule::Only(&[0.0])),
    ("attention.max_alibi_bias", Rule::Only(&[0.0])),
    ("rope.dimension_count", Rule::Any),
    ("rope.freq_base", Rule::Any),
    ("rope.scale_linear", Rule::Any),
    ("rope.scaling.type", Rule::Any),
    ("rope.scaling.factor", Rule::Any),
    ("rope.scaling.attn_factor", Rule::Any),
    ("rope.scaling.original_context_length", Rule::Any),
    // Whether the model was trained further with it.
    ("rope.scaling.finetuned", Rule::Any),
    ("rope.scaling.yarn_beta_fast", Rule::Any),
    ("rope.scaling.yarn_beta_slow", Rule::Any),
    ("rope.scaling.yarn_attn_factor", Rule::Only(&[1.0])),
    ("rope.scaling.yarn_ext_factor", Rule::Only(&[1.0])),
    ("rope.scaling.yarn_log_multiplier", Rule::Only(&[0.0])),
    ("expert_count", Rule::Only(&[0.0])),
    ("expert_used_count", Rule::Only(&[0.0])),
    ("use_parallel_residual", Rule::Flag(false)),
    ("logit_scale", Rule::Only(&[0.0, 1.0])),
    ("embedding_scale", Rule::Only(&[0.0, 1.0])),
    ("residual_scale", Rule::Only(&[0.0, 1.0])),
    ("attn_logit_softcapping", Rule::Only(&[0.0])),
    ("final_logit_softcapping", Rule::Only(&[0.0])),
];

/// The settings of one architecture in a file.
pub(super) struct Settings<'a> {
    pub(super) file: &'a Gguf,
    pub(super) architecture: &'static Architecture,
}

impl<'a> Settings<'a> {
    /// The settings of a file whose architecture there is code for and whose keys are all known.
    pub(super) fn of(file: &'a Gguf) -> Result<Settings<'a>> {
        let found = file.text("general.architecture").unwrap_or("");
        let unknown = |why| Error::UnknownArchitecture { path: file.name(), found: found.into(), why };
        let kind = file.text("general.type").unwrap_or("model");
        if kind != "model" {
            return Err(file.bad("general.type", format!("a file of type '{kind}' holds no whole model")));
        }
        let experts = file.get(&format!("{found}.expert_count")).and_then(Metadata::as_u64);
        if experts.is_some_and(|experts| experts > 0) {
            return Err(unknown(Unsupported::Experts));
        }
        if let Some(parts) = file.get("split.count").and_then(Metadata::as_u64).filter(|&parts| parts > 1) {
            let problem = format!(
                "the model is split into {parts} files, which have to be merged first (llama-gguf-split --merge)"
            );
            return Err(file.bad("split.count", problem));
        }
        let Some(architecture) = ARCHITECTURES.iter().find(|architecture| architecture.name == found) else {
            return Err(unknown(match Unsupported::of_type(found) {
                Unsupported::NoCode if AS_FOLDERS.contains(&found) => Unsupported::OnlyFolders,
                why => why,
            }));
        };
        let settings = Settings { file, architecture };
        settings.check_keys()?;
        Ok(settings)
    }

    fn check_keys(&self) -> Result<()> {
        for (key, value) in self.file.metadata() {
            let own = key.strip_prefix(self.architecture.name).and_then(|rest| rest.strip_prefix('.'));
            let Some(name) = own else { continue };
            match KEYS.iter().find(|(known, _)| *known == name) {
                None => {
                    return Err(
                        self.bad(name, "there is no code for this setting, which may change the model's answers")
                    );
                }
                Some((_, Rule::Any)) => {}
                Some((_, Rule::Only(numbers))) => {
                    if !value.as_f64().is_some_and(|number| numbers.contains(&number)) {
                        return Err(self.bad(name, format!("{value} is not supported")));
                    }
                }
                Some((_, Rule::Flag(flag))) => {
                    if *value != Metadata::Bool(*flag) {
                        return Err(self.bad(name, format!("{value} is not supported")));
                    }
                }
            }
        }
        Ok(())
    }

    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.architecture.name)
    }

    pub(super) fn bad(&self, name: &str, problem: impl Into<String>) -> Error {
        self.file.bad(&self.key(name), problem)
    }

    pub(super) fn size_if(&self, name: &str) -> Result<Option<usize>> {
        let Some(value) = self.file.get(&self.key(name)) else { return Ok(None) };
        if let Metadata::List(_) = value {
            return Err(self.bad(name, "layers that differ in it are not supported"));
        }
        let size = value.as_u64().filter(|&n| n > 0 && n < 1 << 31).map(|n| n as usize);
        size.map(Some).ok_or_else(|| self.bad(name, "no size"))
    }

    pub(super) fn size(&self, name: &str) -> Result<usize> {
        self.size_if(name)?.ok_or_else(|| self.bad(name, "it is missing"))
    }

    pub(super) fn number_if(&self, name: &str) -> Result<Option<f64>> {
        let Some(value) = self.file.get(&self.key(name)) else { return Ok(None) };
        let number = value.as_f64().filter(|x| x.is_finite() && *x > 0.0);
        number.map(Some).ok_or_else(|| self.bad(name, "no positive number"))
    }

    pub(super) fn number(&self, name: &str, default: f64) -> Result<f64> {
        Ok(self.number_if(name)?.unwrap_or(default))
    }

    /// The width of a head, of keys and of values.
    pub(super) fn head_dim(&self, width: usize, heads: usize) -> Result<usize> {
        let usual = width / heads;
        let head_dim = self.size_if("attention.key_length")?.unwrap_or(usual);
        if self.size_if("attention.value_length")?.unwrap_or(usual) != head_dim {
            return Err(self.bad("attention.value_length", "values of another width than keys are not supported"));
        }
        if head_dim == 0 || !head_dim.is_multiple_of(2) {
            return Err(self.bad("attention.head_count", "heads of an odd width cannot rotate"));
        }
        let scale = (head_dim as f64).powf(-0.5);
        match self.file.get(&self.key("attention.scale")).map(Metadata::as_f64) {
            // 0 stands for the usual one; files have it in f32.
            None | Some(Some(0.0)) => Ok(head_dim),
            Some(Some(given)) if (given - scale).abs() <= scale * 1e-6 => Ok(head_dim),
            Some(_) => {
                Err(self.bad("attention.scale", format!("scores scaled by other than {scale:.6} are not supported")))
            }
        }
    }

    /// The rotary embedding.
    pub(super) fn rope(&self, head_dim: usize, context: usize) -> Result<Rope> {
        let width = self.size_if("rope.dimension_count")?.unwrap_or(head_dim);
        if width > head_dim || !width.is_multiple_of(2) {
            let problem = format!("{width} is no even part of a head of {head_dim} elements");
            return Err(self.bad("rope.dimension_count", problem));
        }
        let theta = self.number("rope.freq_base", 10000.0)?;
        Ok(Rope { theta, scaling: self.scaling(width, context)?, width })
    }

    /// Refuses a window that some text of the model would notice.
    pub(super) fn no_window(&self, context: usize) -> Result<()> {
        let name = "attention.sliding_window";
        match self.file.get(&self.key(name)).map(Metadata::as_u64) {
            None | Some(Some(0)) => Ok(()),
            Some(Some(window)) if window >= context as u64 => Ok(()),
            Some(_) => Err(self.bad(name, "attention with a window is not supported in GGUF files")),
        }
    }

    /// How the rotary embedding is scaled for longer contexts: by factors stored beside the weights, or by a rule.
    fn scaling(&self, width: usize, context: usize) -> Result<RopeScaling> {
        let factor = match self.number_if("rope.scaling.factor")? {
            Some(factor) => Some(factor),
            // Files from before there were several rules.
            None => self.number_if("rope.scale_linear")?,
        };
        let kind = match self.file.get(&self.key("rope.scaling.type")) {
            // llama.cpp takes a factor alone for a linear one.
            None => factor.map_or("none", |_| "linear"),
            Some(Metadata::Text(kind)) => kind,
            Some(_) => return Err(self.bad("rope.scaling.type", "no text")),
        };
        let factor = factor.unwrap_or(1.0);
        let by_rule = match kind {
            "none" => RopeScaling::None,
            "linear" if factor == 1.0 => RopeScaling::None,
            "linear" => RopeScaling::Linear { factor },
            "yarn" => {
                let magnitude = if factor <= 1.0 { 1.0 } else { 0.1 * factor.ln() + 1.0 };
                RopeScaling::Yarn {
                    factor,
                    attention_factor: magnitude * self.number("rope.scaling.attn_factor", 1.0)?,
                    beta_fast: self.number("rope.scaling.yarn_beta_fast", 32.0)?,
                    beta_slow: self.number("rope.scaling.yarn_beta_slow", 1.0)?,
                    original_max_position_embeddings: self
                        .number("rope.scaling.original_context_length", context as f64)?,
                    truncate: true,
                }
            }
            other => {
                return Err(self.bad("rope.scaling.type", format!("positions scaled by '{other}' are not supported")));
            }
        };
        let Some(tensor) = self.file.tensors().get("rope_freqs.weight") else { return Ok(by_rule) };
        if by_rule != RopeScaling::None {
            return Err(
                self.bad("rope.scaling.type", "a rule beside the factors of rope_freqs.weight is not supported")
            );
        }
        let factors: Vec<f64> = self.file.elements(tensor).into_iter().map(f64::from).collect();
        if factors.len() != width / 2 || !factors.iter().all(|x| x.is_finite() && *x > 0.0) {
            let problem = "no positive factor for each pair of a head";
            let cause = GgufError::BadTensor { name: "rope_freqs.weight".into(), problem };
            return Err(Error::Gguf { path: self.file.name(), cause: Box::new(cause) });
        }
        Ok(RopeScaling::Each { factors })
    }
}
