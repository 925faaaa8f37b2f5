//! Qwen3: a Llama that norms each head of queries and keys; layers from some on may see only so far back.

use super::llama::{Llama, Variant};
use super::{CausalLm, cut};
use crate::config::{Fields, Qwen3Config};
use crate::{Result, Weights};
use std::sync::Arc;

/// Makes one of its `config.json`.
pub(super) fn load(config: &Fields, weights: &Weights<'_>, layers: Option<usize>) -> Result<Arc<dyn CausalLm>> {
    let Qwen3Config { mut llama, windows } = Qwen3Config::from_fields(config)?;
    llama.num_hidden_layers = cut(layers, llama.num_hidden_layers)?;
    Ok(Arc::new(Llama::variant(&llama, &Variant { head_norms: true, windows, ..Variant::default() }, weights)?))
}
