//! Qwen2 and Qwen2.5: a Llama with biases of queries, keys and values; layers from some on may see only so far back.

use super::llama::{Llama, Variant};
use super::{CausalLm, cut};
use crate::config::{Fields, Qwen2Config};
use crate::{Result, Weights};
use std::sync::Arc;

/// Makes one of its `config.json`.
pub(super) fn load(config: &Fields, weights: &Weights<'_>, layers: Option<usize>) -> Result<Arc<dyn CausalLm>> {
    let Qwen2Config { mut llama, windows } = Qwen2Config::from_fields(config)?;
    llama.num_hidden_layers = cut(layers, llama.num_hidden_layers)?;
    Ok(Arc::new(Llama::variant(&llama, &Variant { qkv_bias: true, windows, ..Variant::default() }, weights)?))
}
