//! Mistral: a Llama whose tokens may see only so far back.

use super::llama::{Llama, Variant};
use super::{CausalLm, cut};
use crate::config::{Fields, MistralConfig};
use crate::{Result, Weights};
use std::sync::Arc;

/// Makes one of its `config.json`.
pub(super) fn load(config: &Fields, weights: &Weights<'_>, layers: Option<usize>) -> Result<Arc<dyn CausalLm>> {
    let MistralConfig { mut llama, sliding_window } = MistralConfig::from_fields(config)?;
    llama.num_hidden_layers = cut(layers, llama.num_hidden_layers)?;
    let windows = vec![sliding_window; llama.num_hidden_layers];
    Ok(Arc::new(Llama::variant(&llama, &Variant { windows, ..Variant::default() }, weights)?))
}
