//! Phi-3, 3.5 and 4: a Llama whose projections from the same input are stored as one, with positions that change beyond the
//! original context.

use super::llama::{Llama, Variant};
use super::{CausalLm, cut};
use crate::config::{Fields, Phi3Config};
use crate::{Result, Weights};
use std::sync::Arc;

/// Makes one of its `config.json`.
pub(super) fn load(config: &Fields, weights: &Weights<'_>, layers: Option<usize>) -> Result<Arc<dyn CausalLm>> {
    let Phi3Config { mut llama, rope, sliding_window } = Phi3Config::from_fields(config)?;
    llama.num_hidden_layers = cut(layers, llama.num_hidden_layers)?;
    let windows = vec![sliding_window; llama.num_hidden_layers];
    let variant = Variant { joined: true, rope: Some(rope), windows, ..Variant::default() };
    Ok(Arc::new(Llama::variant(&llama, &variant, weights)?))
}
