//! The model of a GGUF file: its settings, and its weights under Hugging Face's names, as the file has them.

use super::names::{original, renamed};
use super::settings::Settings;
use super::{BlockType, Gguf, Metadata, TensorInfo};
use crate::models::llama::{Llama, StoredBiases, Variant};
use crate::tokenizer::CONTROL;
use crate::{Checkpoint, Error, LlamaConfig, Result, Weights};
use kiln::{DType, Device, Tensor};

/// Where files say which tokens end a document, a turn and a message.
const ENDING_KEYS: [&str; 3] =
    ["tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"];
/// What tokens are called that end a turn or a document.
const ENDING_NAMES: [&str; 7] =
    ["<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|end|>", "<end_of_turn>"];

impl Gguf {
    /// What the file calls its model.
    pub(super) fn name(&self) -> std::path::PathBuf {
        self.text("general.name").unwrap_or("GGUF").into()
    }

    /// The settings of the model; its architecture has to be `llama` (which SmolLM2 and Mistral are too) or `qwen2`.
    pub fn config(&self) -> Result<LlamaConfig> {
        let settings = Settings::of(self)?;
        let (width, heads) = (settings.size("embedding_length")?, settings.size("attention.head_count")?);
        let kv_heads = settings.size_if("attention.head_count_kv")?.unwrap_or(heads);
        if !heads.is_multiple_of(kv_heads) {
            return Err(settings.bad("attention.head_count_kv", "it does not divide the heads"));
        }
        let (head_dim, context) = (settings.head_dim(width, heads)?, settings.size("context_length")?);
        settings.no_window(context)?;
        let rope = settings.rope(head_dim, context)?;
        let embedding = self.tensors().get("token_embd.weight");
        let rows = embedding.and_then(|tensor| tensor.shape.first().copied());
        let epsilon = "attention.layer_norm_rms_epsilon";
        Ok(LlamaConfig {
            vocab_size: rows.ok_or_else(|| self.bad("token_embd.weight", "it is missing"))?,
            hidden_size: width,
            intermediate_size: settings.size("feed_forward_length")?,
            num_hidden_layers: settings.size("block_count")?,
            num_attention_heads: heads,
            num_key_value_heads: kv_heads,
            head_dim,
            max_position_embeddings: context,
            rms_norm_eps: settings.number_if(epsilon)?.ok_or_else(|| settings.bad(epsilon, "it is missing"))?,
            rope_theta: rope.theta,
            rope_scaling: rope.scaling,
            attention_bias: false,
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

    /// The differences from a Llama of Hugging Face's.
    pub fn variant(&self) -> Result<Variant> {
        let settings = Settings::of(self)?;
        let (width, heads) = (settings.size("embedding_length")?, settings.size("attention.head_count")?);
        let rope = settings.rope(settings.head_dim(width, heads)?, settings.size("context_length")?)?;
        Ok(Variant {
            interleaved_rope: settings.architecture.interleaved_rope,
            qkv_bias: settings.architecture.qkv_bias,
            rope: Some(rope),
            // No key says which projections have biases; the tensors do.
            stored_biases: StoredBiases { attention: true, mlp: true },
            ..Variant::default()
        })
    }

    /// Returns the weights under the names of Hugging Face's checkpoints, in their stored format: on the CPU all of them
    /// stay mapped.
    pub fn checkpoint(&self, device: Device) -> Result<Checkpoint> {
        let mut checkpoint = Checkpoint::default();
        for (name, tensor) in self.tensors() {
            // It is part of the settings.
            if name == "rope_freqs.weight" {
                continue;
            }
            let renamed = renamed(name);
            if let BlockType::Blocks(format) = tensor.block {
                checkpoint.formats.insert(renamed.clone(), format);
            }
            checkpoint.tensors.insert(renamed, self.tensor(tensor, device)?);
        }
        Ok(checkpoint)
    }

    /// The model with weights of [`Gguf::checkpoint`]; what is not quantised is in the weights' dtype, as activations are.
    /// A tensor that the model does not use is an error, but for those of layers that the configuration leaves out.
    pub fn model(&self, config: &LlamaConfig, weights: &Weights<'_>) -> Result<Llama> {
        let settings = Settings::of(self)?;
        let layers = config.num_hidden_layers;
        let cut = (layers < settings.size("block_count")?).then_some(layers);
        let model = Llama::variant(config, &self.variant()?, weights);
        let model = model.and_then(|model| {
            weights.all_used(settings.architecture.name, cut)?;
            Ok(model)
        });
        model.map_err(by_own_names)
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

/// An error about tensors by the names that the file has for them.
fn by_own_names(error: Error) -> Error {
    match error {
        Error::MissingTensor { name } => Error::MissingTensor { name: original(&name) },
        Error::WrongShape { name, expected, got } => Error::WrongShape { name: original(&name), expected, got },
        Error::WrongDType { name, got } => Error::WrongDType { name: original(&name), got },
        Error::UnusedTensors { kind, names, count } => {
            Error::UnusedTensors { kind, names: names.iter().map(|name| original(name)).collect(), count }
        }
        other => other,
    }
}
