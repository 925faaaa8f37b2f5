//! The model of a GGUF file: its settings, and its weights under Hugging Face's names, as the file has them.

use super::{BlockType, Gguf, GgufError, Metadata, TensorInfo};
use crate::config::RopeScaling;
use crate::models::llama::{Llama, Variant};
use crate::tokenizer::CONTROL;
use crate::{Checkpoint, Error, LlamaConfig, Result, Weights};
use kiln::{DType, Device, Tensor};

/// What is known of an architecture.
struct Architecture {
    /// Files name it so, and begin the keys of its settings with it.
    name: &'static str,
    /// Pairs that turn are neighbours: the rows of queries and keys were put in that order when the file was written.
    neighbours_turn: bool,
    /// Queries, keys and values have biases.
    qkv_bias: bool,
}

const ARCHITECTURES: [Architecture; 2] = [
    Architecture { name: "llama", neighbours_turn: true, qkv_bias: false },
    Architecture { name: "qwen2", neighbours_turn: false, qkv_bias: true },
];

/// Where files say which tokens end a document, a turn and a message.
const ENDING_KEYS: [&str; 3] =
    ["tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"];
/// What tokens are called that end a turn or a document.
const ENDING_NAMES: [&str; 7] =
    ["<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|end|>", "<end_of_turn>"];

/// The settings of one architecture in a file.
struct Settings<'a> {
    file: &'a Gguf,
    architecture: &'static Architecture,
}

impl Settings<'_> {
    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.architecture.name)
    }

    fn bad(&self, name: &str, problem: &'static str) -> Error {
        self.file.bad(&self.key(name), problem)
    }

    fn size_if(&self, name: &str) -> Result<Option<usize>> {
        let Some(value) = self.file.get(&self.key(name)) else { return Ok(None) };
        let size = value.as_u64().filter(|&n| n > 0 && n < 1 << 31).map(|n| n as usize);
        size.map(Some).ok_or_else(|| self.bad(name, "no size"))
    }

    fn size(&self, name: &str) -> Result<usize> {
        self.size_if(name)?.ok_or_else(|| self.bad(name, "it is missing"))
    }

    fn number(&self, name: &str, default: f64) -> Result<f64> {
        let Some(value) = self.file.get(&self.key(name)) else { return Ok(default) };
        let number = value.as_f64().filter(|x| x.is_finite() && *x > 0.0);
        number.ok_or_else(|| self.bad(name, "no positive number"))
    }

    /// How the rotary embedding is changed for longer contexts: factors that lie beside the weights, or by a rule.
    fn scaling(&self, head_dim: usize, context: usize) -> Result<RopeScaling> {
        if let Some(tensor) = self.file.tensors().get("rope_freqs.weight") {
            let factors: Vec<f64> = self.file.elements(tensor).into_iter().map(f64::from).collect();
            if factors.len() != head_dim / 2 || !factors.iter().all(|x| x.is_finite() && *x > 0.0) {
                let problem = "no positive factor for each pair of a head";
                let cause = GgufError::BadTensor { name: "rope_freqs.weight".into(), problem };
                return Err(Error::Gguf { path: self.file.name(), cause: Box::new(cause) });
            }
            return Ok(RopeScaling::Each { factors });
        }
        let kind = match self.file.get(&self.key("rope.scaling.type")) {
            None => "none",
            Some(Metadata::Text(kind)) => kind,
            Some(_) => return Err(self.bad("rope.scaling.type", "no text")),
        };
        let factor = || self.number("rope.scaling.factor", 1.0);
        match kind {
            "none" => Ok(RopeScaling::None),
            "linear" => Ok(RopeScaling::Linear { factor: factor()? }),
            "yarn" => {
                let factor = factor()?;
                let magnitude = if factor <= 1.0 { 1.0 } else { 0.1 * factor.ln() + 1.0 };
                Ok(RopeScaling::Yarn {
                    factor,
                    attention_factor: magnitude * self.number("rope.scaling.attn_factor", 1.0)?,
                    beta_fast: self.number("rope.scaling.yarn_beta_fast", 32.0)?,
                    beta_slow: self.number("rope.scaling.yarn_beta_slow", 1.0)?,
                    original_max_position_embeddings: self
                        .number("rope.scaling.original_context_length", context as f64)?,
                    truncate: true,
                })
            }
            _ => Err(self.bad("rope.scaling.type", "positions scaled so are not supported")),
        }
    }
}

impl Gguf {
    /// What the file calls its model.
    fn name(&self) -> std::path::PathBuf {
        self.text("general.name").unwrap_or("GGUF").into()
    }

    fn settings(&self) -> Result<Settings<'_>> {
        let found = self.text("general.architecture").unwrap_or("");
        let architecture = ARCHITECTURES.iter().find(|architecture| architecture.name == found);
        let unknown = || Error::UnknownArchitecture { path: self.name(), found: found.into() };
        Ok(Settings { file: self, architecture: architecture.ok_or_else(unknown)? })
    }

    /// The settings of the model; its architecture has to be `llama` (which SmolLM2 and Mistral are too) or `qwen2`.
    pub fn config(&self) -> Result<LlamaConfig> {
        let settings = self.settings()?;
        let (width, heads) = (settings.size("embedding_length")?, settings.size("attention.head_count")?);
        let kv_heads = settings.size_if("attention.head_count_kv")?.unwrap_or(heads);
        if !heads.is_multiple_of(kv_heads) {
            return Err(settings.bad("attention.head_count_kv", "it does not divide the heads"));
        }
        let head_dim = settings.size_if("attention.key_length")?.unwrap_or(width / heads);
        if head_dim == 0 || !head_dim.is_multiple_of(2) {
            return Err(settings.bad("attention.head_count", "heads of an odd width cannot rotate"));
        }
        let context = settings.size("context_length")?;
        let embedding = self.tensors().get("token_embd.weight");
        let rows = embedding.and_then(|tensor| tensor.shape.first().copied());
        let biased = !settings.architecture.qkv_bias && self.tensors().contains_key("blk.0.attn_q.bias");
        Ok(LlamaConfig {
            vocab_size: rows.ok_or_else(|| self.bad("token_embd.weight", "it is missing"))?,
            hidden_size: width,
            intermediate_size: settings.size("feed_forward_length")?,
            num_hidden_layers: settings.size("block_count")?,
            num_attention_heads: heads,
            num_key_value_heads: kv_heads,
            head_dim,
            max_position_embeddings: context,
            rms_norm_eps: settings.number("attention.layer_norm_rms_epsilon", 1e-5)?,
            rope_theta: settings.number("rope.freq_base", 10000.0)?,
            rope_scaling: settings.scaling(head_dim, context)?,
            attention_bias: biased,
            mlp_bias: false,
            tie_word_embeddings: !self.tensors().contains_key("output.weight"),
            bos_token_id: self.token("tokenizer.ggml.bos_token_id"),
            eos_token_ids: self.ending_tokens(),
        })
    }

    /// The tokens that end a text: those that the file says, and control tokens whose names tell it. A file has one
    /// `eos_token_id`, where Hugging Face's settings have several: that of a turn and that of a document.
    fn ending_tokens(&self) -> Vec<u32> {
        let said = ENDING_KEYS.iter().filter_map(|key| self.token(key));
        let mut ending: Vec<u32> = said.collect();
        let list = |key: &str| match self.get(key) {
            Some(Metadata::List(items)) => items.as_slice(),
            _ => &[],
        };
        let tokens = list("tokenizer.ggml.tokens").iter().zip(list("tokenizer.ggml.token_type"));
        for (id, (text, kind)) in tokens.enumerate() {
            let named = matches!(text, Metadata::Text(text) if ENDING_NAMES.contains(&text.as_str()));
            if named && kind.as_u64() == Some(CONTROL) && !ending.contains(&(id as u32)) {
                ending.push(id as u32);
            }
        }
        ending
    }

    /// What sets the model apart from a Llama of Hugging Face's.
    pub fn variant(&self) -> Result<Variant> {
        let Architecture { neighbours_turn, qkv_bias, .. } = *self.settings()?.architecture;
        Ok(Variant { neighbours_turn, qkv_bias, ..Variant::default() })
    }

    /// The weights under the names of Hugging Face's checkpoints, as they are stored: on the CPU all of them stay mapped.
    pub fn checkpoint(&self, device: Device) -> Result<Checkpoint> {
        let mut checkpoint = Checkpoint::default();
        for (name, tensor) in self.tensors() {
            let renamed = renamed(name);
            if let BlockType::Blocks(format) = tensor.block {
                checkpoint.formats.insert(renamed.clone(), format);
            }
            checkpoint.tensors.insert(renamed, self.tensor(tensor, device)?);
        }
        Ok(checkpoint)
    }

    /// The model with weights of [`Gguf::checkpoint`]; what is not quantised is in the weights' dtype, as activations are.
    pub fn model(&self, config: &LlamaConfig, weights: &Weights<'_>) -> Result<Llama> {
        Llama::variant(config, &self.variant()?, weights)
    }

    /// A tensor as it is: numbers, or the bytes of quantised blocks.
    fn tensor(&self, tensor: &TensorInfo, device: Device) -> Result<Tensor> {
        let mut shape = tensor.shape.clone();
        let dtype = match tensor.block {
            BlockType::F32 => DType::F32,
            BlockType::F16 => DType::F16,
            BlockType::Bf16 => DType::Bf16,
            BlockType::Blocks(format) => {
                if let Some(last) = shape.last_mut() {
                    *last = *last / format.elements() * format.bytes();
                }
                DType::U8
            }
        };
        Ok(self.bytes.tensor(tensor.range.clone(), shape, dtype, device)?)
    }
}

/// Hugging Face's name of a tensor; its own if there is none.
fn renamed(name: &str) -> String {
    let whole = match name {
        "token_embd.weight" => "model.embed_tokens.weight",
        "output_norm.weight" => "model.norm.weight",
        "output.weight" => "lm_head.weight",
        _ => "",
    };
    if !whole.is_empty() {
        return whole.into();
    }
    let parts: Vec<&str> = name.split('.').collect();
    let &["blk", layer, part, kind] = &parts[..] else { return name.into() };
    let part = match part {
        "attn_norm" => "input_layernorm",
        "attn_q" => "self_attn.q_proj",
        "attn_k" => "self_attn.k_proj",
        "attn_v" => "self_attn.v_proj",
        "attn_output" => "self_attn.o_proj",
        "ffn_norm" => "post_attention_layernorm",
        "ffn_gate" => "mlp.gate_proj",
        "ffn_up" => "mlp.up_proj",
        "ffn_down" => "mlp.down_proj",
        other => other,
    };
    format!("model.layers.{layer}.{part}.{kind}")
}
