//! Architectures, each a file, and what generation needs of them.

pub mod bert;
pub mod convnet;
pub mod decoder;
pub mod gemma3;
pub mod gpt2;
pub mod gpt_neox;
mod harmless;
mod kinds;
pub mod llama;
pub mod mistral;
pub mod phi3;
pub mod qwen2;
pub mod qwen3;
pub mod unet;
pub mod vit;

pub use bert::Bert;
pub use convnet::ConvNet;
pub use gemma3::Gemma3;
pub use gpt_neox::GptNeox;
pub use gpt2::Gpt2;
pub use kinds::{KINDS, Kind, Task, Unsupported};
pub use llama::Llama;
pub use unet::Unet;
pub use vit::Vit;

use crate::cache::{Mask, Window};
use crate::config::{Fields, Rope};
use crate::{Error, Result, Step, Weights};
use kiln::nn::Module;
use kiln::{DType, Device, RopeStyle, Tensor};
use std::fmt::Debug;
use std::sync::Arc;

/// A model that says which token comes next.
pub trait CausalLm: Module + Debug + Send + Sync {
    /// What caches and programs have to know.
    fn facts(&self) -> &Facts;

    /// How positions turn queries and keys; empty for a model with learned positions.
    fn rotations(&self) -> Vec<Rotation>;

    /// What the layers make of tokens, `[batch, tokens]` (i64): `[batch, tokens, width]`. Keys and values go to the step's
    /// cache.
    fn hidden(&self, tokens: &Tensor, step: &Step) -> kiln::Result<Tensor>;

    /// Logits of the next token, `[…, vocabulary]`.
    fn logits(&self, hidden: &Tensor) -> kiln::Result<Tensor>;

    /// Sizes that caches and sampling need.
    fn sizes(&self) -> &Sizes {
        &self.facts().sizes
    }

    /// Dtype of activations and of the cache.
    fn dtype(&self) -> DType {
        self.facts().dtype
    }

    /// Where the weights are.
    fn device(&self) -> Device {
        self.facts().device
    }

    /// Memory of the weights.
    fn weight_bytes(&self) -> usize {
        bytes_of(self)
    }
}

/// What every model knows of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
    /// Sizes that caches and sampling need.
    pub sizes: Sizes,
    /// Dtype of activations and of the cache.
    pub dtype: DType,
    /// Where the weights are.
    pub device: Device,
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
    /// Radians per position for each pair of elements; with fewer than half a head's elements the rest is not rotated.
    pub frequencies: Vec<f64>,
    /// Cosines and sines are multiplied by it.
    pub factor: f64,
    /// Which elements are a pair.
    pub style: RopeStyle,
    /// A length of texts, and the frequencies that longer ones have, from their first token on.
    pub beyond: Option<(usize, Vec<f64>)>,
}

impl Rotation {
    /// Pairs half a head apart, not scaled.
    pub fn new(frequencies: Vec<f64>) -> Rotation {
        Rotation { frequencies, factor: 1.0, style: RopeStyle::Half, beyond: None }
    }
}

impl From<&Rope> for Rotation {
    fn from(rope: &Rope) -> Rotation {
        let beyond = rope.original_context().map(|context| (context, rope.frequencies(true)));
        Rotation { factor: rope.attention_factor(), beyond, ..Rotation::new(rope.frequencies(false)) }
    }
}

/// Makes a model of its `config.json` and its weights; with `layers` of only so many of its first layers.
pub type Load = fn(config: &Fields, weights: &Weights<'_>, layers: Option<usize>) -> Result<Arc<dyn CausalLm>>;

/// The models there is code for, by `model_type`.
pub const ARCHITECTURES: &[(&str, Load)] = &[
    ("llama", llama::load),
    ("mistral", mistral::load),
    ("qwen2", qwen2::load),
    ("qwen3", qwen3::load),
    ("gemma3_text", gemma3::load),
    ("gemma3", gemma3::load),
    ("phi3", phi3::load),
    ("gpt2", gpt2::load),
    ("gpt_neox", gpt_neox::load),
];

/// Makes a model of its `config.json` and its weights. A tensor of a checkpoint that the model does not use is an error,
/// unless it is known to be without effect.
pub fn load(config: &Fields, weights: &Weights<'_>, layers: Option<usize>) -> Result<Arc<dyn CausalLm>> {
    let kind = Kind::of(config)?.ok_or_else(|| no_kind(config))?;
    let Some((_, load)) = ARCHITECTURES.iter().find(|(name, _)| *name == kind.model_type) else {
        let (path, why) = (config.path().to_owned(), Unsupported::OtherTask(kind.task));
        return Err(Error::UnknownArchitecture { path, found: kind.model_type.into(), why });
    };
    let model = load(config, weights, layers)?;
    weights.all_used(kind.model_type, layers.map(|_| model.sizes().layers))?;
    Ok(model)
}

/// What is wrong with a configuration that does not say what its model is.
fn no_kind(config: &Fields) -> Error {
    let path = config.path().to_owned();
    // timm's files have a name for the architecture that says no more than its sizes.
    match config.text("architecture") {
        Ok(Some(timm)) if config.says("pretrained_cfg") || config.says("num_classes") => {
            Error::UnknownArchitecture { path, found: timm.into(), why: Unsupported::OtherTask(Task::Classify) }
        }
        _ => Error::NoArchitecture { path },
    }
}

/// Returns the number of layers to make: an error where more are requested than there are.
pub(crate) fn cut(layers: Option<usize>, all: usize) -> Result<usize> {
    match layers {
        Some(asked) if asked > all => Err(Error::TooManyLayers { asked, layers: all }),
        asked => Ok(asked.unwrap_or(all).max(1)),
    }
}

/// The part of the weights below the first of some prefixes under which a tensor is; an empty one stands for the whole.
/// Models that were saved without their head lack a prefix, and newer versions of transformers write others than older ones.
fn trunk<'a>(weights: &Weights<'a>, prefixes: &[&str], tensor: &str) -> Weights<'a> {
    let under = |prefix: &str| if prefix.is_empty() { weights.clone() } else { weights.under(prefix) };
    let found = prefixes.iter().map(|prefix| under(prefix)).find(|weights| weights.has(tensor));
    found.unwrap_or_else(|| under(prefixes.first().copied().unwrap_or_default()))
}

/// The mask of each layer, those of equal windows shared.
#[track_caller]
fn masks(step: &Step, windows: &[Option<usize>]) -> kiln::Result<Vec<Mask>> {
    let mut known: Vec<(Option<usize>, Mask)> = Vec::new();
    let mut masks = Vec::with_capacity(windows.len());
    for &window in windows {
        let mask = match known.iter().find(|(other, _)| *other == window) {
            Some((_, mask)) => mask.clone(),
            None => {
                let mask = step.mask(window.map_or(Window::All, Window::Last))?;
                known.push((window, mask.clone()));
                mask
            }
        };
        masks.push(mask);
    }
    Ok(masks)
}

/// Heads of a width, `[batch, heads, tokens, depth]`, of what a projection gave, `[batch, tokens, heads · depth]`.
#[track_caller]
fn heads(projected: &Tensor, depth: usize) -> kiln::Result<Tensor> {
    projected.unflatten(-1, [-1, depth as i64])?.transpose(1, 2)
}

/// The way back.
#[track_caller]
fn joined(heads: &Tensor) -> kiln::Result<Tensor> {
    heads.transpose(1, 2)?.flatten(-2, -1)
}

/// Memory of the variables of a module; those of several places count once.
pub fn bytes_of(module: &(impl Module + ?Sized)) -> usize {
    let mut vars = module.parameters();
    vars.extend(module.named_buffers().into_iter().map(|(_, var)| var));
    vars.sort_unstable_by_key(kiln::Var::id);
    vars.dedup_by_key(|var| var.id());
    vars.iter().map(|var| var.dtype().bytes_for(var.elements()).unwrap_or(0)).sum()
}
