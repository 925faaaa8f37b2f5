//! The Llama of a GGUF file: its settings, and its weights under Hugging Face's names and in its order of rows.

use super::{BlockType, Gguf, GgufError, TensorInfo};
use crate::config::RopeScaling;
use crate::{Checkpoint, Error, LlamaConfig, Result};
use kiln::runtime::HostMemory;
use kiln::{DType, Device, Layout, Tensor};
use std::ptr::NonNull;

impl Gguf {
    /// The settings of the model; its architecture has to be `llama`.
    pub fn llama_config(&self) -> Result<LlamaConfig> {
        let architecture = self.text("general.architecture").unwrap_or("");
        if architecture != "llama" {
            let path = self.text("general.name").unwrap_or("GGUF").into();
            return Err(Error::UnknownArchitecture { path, found: architecture.into() });
        }
        let key = |name: &str| format!("llama.{name}");
        let size_if = |name: &str| {
            let Some(value) = self.get(&key(name)) else { return Ok(None) };
            let size = value.as_u64().filter(|&n| n > 0 && n < 1 << 31).map(|n| n as usize);
            size.map(Some).ok_or_else(|| self.bad(&key(name), "no size"))
        };
        let size = |name: &str| size_if(name)?.ok_or_else(|| self.bad(&key(name), "it is missing"));
        let number = |name: &str, default: f64| match self.get(&key(name)) {
            None => Ok(default),
            Some(value) => {
                let number = value.as_f64().filter(|x| x.is_finite() && *x > 0.0);
                number.ok_or_else(|| self.bad(&key(name), "no positive number"))
            }
        };
        let (width, heads) = (size("embedding_length")?, size("attention.head_count")?);
        let kv_heads = size_if("attention.head_count_kv")?.unwrap_or(heads);
        if !heads.is_multiple_of(kv_heads) {
            return Err(self.bad(&key("attention.head_count_kv"), "it does not divide the heads"));
        }
        let head_dim = size_if("attention.key_length")?.unwrap_or(width / heads);
        if head_dim == 0 || !head_dim.is_multiple_of(2) {
            return Err(self.bad(&key("attention.head_count"), "heads of an odd width cannot rotate"));
        }
        for name in ["rope.scaling.type", "rope.scaling.factor"] {
            if self.get(&key(name)).is_some_and(|value| *value != super::Metadata::Text("none".into())) {
                return Err(self.bad(&key(name), "scaled positions are not supported"));
            }
        }
        let embedding = self.tensors().get("token_embd.weight");
        let rows = embedding.and_then(|tensor| tensor.shape.first().copied());
        Ok(LlamaConfig {
            vocab_size: rows.ok_or_else(|| self.bad("token_embd.weight", "it is missing"))?,
            hidden_size: width,
            intermediate_size: size("feed_forward_length")?,
            num_hidden_layers: size("block_count")?,
            num_attention_heads: heads,
            num_key_value_heads: kv_heads,
            head_dim,
            max_position_embeddings: size("context_length")?,
            rms_norm_eps: number("attention.layer_norm_rms_epsilon", 1e-5)?,
            rope_theta: number("rope.freq_base", 10000.0)?,
            rope_scaling: RopeScaling::None,
            attention_bias: self.tensors().contains_key("blk.0.attn_q.bias"),
            mlp_bias: false,
            tie_word_embeddings: !self.tensors().contains_key("output.weight"),
            bos_token_id: self.token("tokenizer.ggml.bos_token_id"),
            eos_token_ids: self.token("tokenizer.ggml.eos_token_id").into_iter().collect(),
        })
    }

    /// The weights in a dtype, under the names and in the order of Hugging Face's checkpoints. Those stored in that dtype
    /// stay mapped, the others are dequantised.
    pub fn llama_checkpoint(&self, config: &LlamaConfig, dtype: DType, device: Device) -> Result<Checkpoint> {
        let mut checkpoint = Checkpoint::default();
        for (name, tensor) in self.tensors() {
            if name == "rope_freqs.weight" {
                let cause = GgufError::BadTensor { name: name.clone(), problem: "scaled positions are not supported" };
                return Err(Error::Gguf { path: "GGUF".into(), cause: Box::new(cause) });
            }
            let rotating =
                [("attn_q.weight", config.num_attention_heads), ("attn_k.weight", config.num_key_value_heads)];
            let heads = rotating.iter().find(|(end, _)| name.ends_with(end)).map(|&(_, heads)| heads);
            let value = match heads {
                Some(heads) => self.unrolled(name, tensor, heads, config.head_dim, device)?,
                None => self.tensor(tensor, device)?,
            };
            checkpoint.tensors.insert(renamed(name), value.to_dtype(dtype)?);
        }
        Ok(checkpoint)
    }

    /// A tensor as it is.
    fn tensor(&self, tensor: &TensorInfo, device: Device) -> Result<Tensor> {
        let dtype = match tensor.block {
            BlockType::F32 => DType::F32,
            BlockType::F16 => DType::F16,
            BlockType::Bf16 => DType::Bf16,
            _ => return Ok(Tensor::from_vec(self.elements(tensor), &tensor.shape[..], device)?),
        };
        let bytes = self.bytes(tensor);
        let aligned = (bytes.as_ptr() as usize).is_multiple_of(tensor.block.bytes());
        match NonNull::new(bytes.as_ptr().cast_mut()) {
            Some(ptr) if device == Device::Cpu && aligned && !bytes.is_empty() => {
                // SAFETY: the range lies in the bytes that the `Arc` keeps alive and unmoved; it is not writable.
                let buffer = unsafe { HostMemory::foreign(ptr, bytes.len(), false, self.bytes.clone()) };
                Ok(Tensor::from_buffer(buffer, Layout::contiguous(tensor.shape.clone()), dtype)?)
            }
            _ => Ok(Tensor::from_bytes(bytes, &tensor.shape[..], dtype, device)?),
        }
    }

    /// A projection whose rows turn in pairs: files have the two of a pair side by side, Hugging Face has them half a head
    /// apart.
    fn unrolled(
        &self,
        name: &str,
        tensor: &TensorInfo,
        heads: usize,
        head_dim: usize,
        device: Device,
    ) -> Result<Tensor> {
        let rows = heads * head_dim;
        let &[found, columns] = &tensor.shape[..] else {
            return Err(Error::WrongShape { name: name.into(), expected: vec![rows, 0], got: tensor.shape.clone() });
        };
        if found != rows {
            return Err(Error::WrongShape {
                name: name.into(),
                expected: vec![rows, columns],
                got: tensor.shape.clone(),
            });
        }
        let bytes = self.bytes(tensor);
        let row_bytes = columns / tensor.block.elements() * tensor.block.bytes();
        let mut elements = Vec::with_capacity(rows * columns);
        for row in 0..rows {
            let (head, place) = (row / head_dim, row % head_dim);
            let (half, pair) = (place / (head_dim / 2), place % (head_dim / 2));
            let source = head * head_dim + 2 * pair + half;
            tensor.block.dequantise(&bytes[source * row_bytes..][..row_bytes], &mut elements);
        }
        Ok(Tensor::from_vec(elements, [rows, columns], device)?)
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
