//! Architectures, each a file, and what generation needs of them.

pub mod bert;
pub mod llama;
pub mod vit;

pub use bert::Bert;
pub use llama::Llama;
pub use vit::Vit;

use crate::config::Fields;
use crate::{Error, Result, Step, Weights};
use kiln::nn::Module;
use kiln::{DType, Device, RopeStyle, Tensor};
use std::fmt::Debug;
use std::sync::Arc;

/// A model that says which token comes next.
pub trait CausalLm: Debug + Send + Sync {
    /// Sizes that caches and sampling need.
    fn sizes(&self) -> &Sizes;

    /// How positions turn queries and keys; empty for a model with learned positions.
    fn rotations(&self) -> Vec<Rotation>;

    /// Dtype of activations and of the cache.
    fn dtype(&self) -> DType;

    /// Where the weights are.
    fn device(&self) -> Device;

    /// What the layers make of tokens, `[batch, tokens]` (i64): `[batch, tokens, width]`. Keys and values go to the step's
    /// cache.
    fn hidden(&self, tokens: &Tensor, step: &Step) -> kiln::Result<Tensor>;

    /// Logits of the next token, `[…, vocabulary]`.
    fn logits(&self, hidden: &Tensor) -> kiln::Result<Tensor>;

    /// Memory of the weights.
    fn weight_bytes(&self) -> usize;
}

/// Sizes of a [`CausalLm`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    /// Tokens that have a logit.
    pub vocab: usize,
    /// Layers that keep keys and values.
    pub layers: usize,
    /// Heads of keys and values.
    pub kv_heads: usize,
    /// Width of a head, of keys and of values.
    pub head_dim: usize,
    /// The longest text that the model was made for.
    pub context: usize,
}

/// A rotary embedding of positions.
#[derive(Debug, Clone, PartialEq)]
pub struct Rotation {
    /// Radians a position for each pair of elements; with fewer than half a head's elements the rest is not turned.
    pub frequencies: Vec<f64>,
    /// Cosines and sines are multiplied by it.
    pub factor: f64,
    /// Which elements are a pair.
    pub style: RopeStyle,
}

impl Rotation {
    /// Pairs half a head apart, not scaled.
    pub fn new(frequencies: Vec<f64>) -> Rotation {
        Rotation { frequencies, factor: 1.0, style: RopeStyle::Half }
    }
}

/// Makes a model of its `config.json` and its weights; with `layers` of only so many of its first layers.
pub type Load = fn(config: &Fields, weights: &Weights<'_>, layers: Option<usize>) -> Result<Arc<dyn CausalLm>>;

/// The models there is code for, by `model_type`.
pub const ARCHITECTURES: &[(&str, Load)] = &[("llama", llama::load)];

/// Makes a model of its `config.json` and its weights.
pub fn load(config: &Fields, weights: &Weights<'_>, layers: Option<usize>) -> Result<Arc<dyn CausalLm>> {
    let found = config.text("model_type")?.unwrap_or("llama");
    match ARCHITECTURES.iter().find(|(name, _)| *name == found) {
        Some((_, load)) => load(config, weights, layers),
        None => Err(Error::UnknownArchitecture { path: config.path().to_owned(), found: found.into() }),
    }
}

/// Memory of the variables of a module; those of several places count once.
pub fn bytes_of(module: &impl Module) -> usize {
    let mut vars = module.parameters();
    vars.extend(module.named_buffers().into_iter().map(|(_, var)| var));
    vars.sort_unstable_by_key(kiln::Var::id);
    vars.dedup_by_key(|var| var.id());
    vars.iter().map(|var| var.dtype().bytes_for(var.elements()).unwrap_or(0)).sum()
}
