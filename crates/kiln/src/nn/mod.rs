//! Networks: modules over variables, with PyTorch's names, shapes and initial values.
//!
//! ```text
//!  struct of Vars, modules, values ──derive(Module)──▶ one walk by name ──▶ parameters, state dict, save, load, to, train, eval
//! ```
//!
//! ```
//! use kiln::nn::{Forward, Gelu, LayerNorm, Linear, Module, Sequential};
//! use kiln::{DType, Device, Tensor};
//! let model = Sequential::new()
//!     .then(LayerNorm::new(8, 1e-5)?)
//!     .then(Linear::new(8, 32)?)
//!     .then(Gelu::default())
//!     .then(Linear::new(32, 8)?);
//! assert_eq!(model.forward(&Tensor::ones([2, 8], DType::F32, Device::Cpu)?)?.shape(), [2, 8]);
//! assert_eq!(model.num_parameters(), 16 + 8 * 32 + 32 + 32 * 8 + 8);
//! # Ok::<(), kiln::Error>(())
//! ```
//!
//! Invariants: a module visits its parts always in the same order; a variable under two names stays one variable whatever
//! is done to the module.

mod activation;
mod attention;
mod batch_norm;
mod compiled;
mod container;
mod conv;
mod dropout;
mod embedding;
pub mod init;
mod linear;
mod mode;
mod module;
mod norm;
mod part;
mod pool;
mod quantized;
mod recurrent;
mod state;
mod upsample;

pub use crate::error::{Loaded, ShapeMismatch, StateDictError};
pub use activation::{
    Elu, Gelu, Hardsigmoid, Hardswish, Identity, LeakyRelu, LogSigmoid, Mish, Relu, Relu6, Selu, Sigmoid, Silu,
    Softmax, Softplus, Softsign, Tanh,
};
pub use attention::MultiHeadAttention;
pub use batch_norm::{BatchNorm, BatchNorm1d, BatchNorm2d};
pub use compiled::{Network, compile_module, compile_module_with};
pub use container::{Layer, ModuleList, Sequential};
pub use conv::{Conv1d, Conv2d, Conv3d, ConvTranspose1d, ConvTranspose2d, ConvTranspose3d};
pub use dropout::Dropout;
pub use embedding::{BagMode, Embedding, EmbeddingBag};
pub use linear::Linear;
pub use mode::Mode;
pub use module::{Forward, Module};
pub use norm::{GroupNorm, LayerNorm, RmsNorm};
pub use part::{Met, MetMut, Part, Role, Visit, VisitMut};
pub use pool::{
    AdaptiveAvgPool1d, AdaptiveAvgPool2d, AdaptiveAvgPool3d, AvgPool1d, AvgPool2d, AvgPool3d, Flatten, MaxPool1d,
    MaxPool2d, MaxPool3d,
};
pub use quantized::{Int8Linear, QuantizedEmbedding, QuantizedLinear};
pub use recurrent::{Gru, Lstm, LstmState};
pub use upsample::{Interpolation, PixelShuffle, PixelUnshuffle, Upsample};

/// Derives [`trait@Module`] for a struct or an enum of [`Part`]s. The name of a field becomes a component of the names in
/// the state dict; a single unnamed field adds none, nor does the variant of an enum. Attributes of a field:
///
/// - `#[module(buffer)]`: its variables are buffers: saved with the parameters, but not trained;
/// - `#[module(transient)]`: its variables are buffers that are not saved;
/// - `#[module(rename = "name")]`: its name in the state dict;
/// - `#[module(flatten)]`: the names of its parts are not prefixed with the field's;
/// - `#[module(skip)]`: not part of the module; the field may have any type.
///
/// ```
/// use kiln::nn::{Linear, Module};
/// use kiln::{DType, Device, Tensor, Var};
/// #[derive(Module)]
/// struct Scaled {
///     #[module(rename = "fc")]
///     inner: Linear,
///     #[module(buffer)]
///     scale: Var,
///     label: &'static str,
///     #[module(skip)]
///     started: std::time::Instant,
/// }
/// let scale = Var::new(&Tensor::ones((), DType::F32, Device::Cpu)?);
/// let module = Scaled { inner: Linear::new(2, 2)?, scale, label: "a", started: std::time::Instant::now() };
/// let names: Vec<String> = module.state_dict().into_keys().collect();
/// assert_eq!(names, ["fc.bias", "fc.weight", "scale"]);
/// assert_eq!(module.named_buffers()[0].0, "scale");
/// # Ok::<(), kiln::Error>(())
/// ```
///
/// A field that is neither a part nor skipped, or an unknown attribute, is an error:
///
/// ```compile_fail,E0277
/// #[derive(kiln::nn::Module)]
/// struct Timed { started: std::time::Instant }
/// ```
/// ```compile_fail
/// #[derive(kiln::nn::Module)]
/// struct Frozen { #[module(frozen)] weight: kiln::Var }
/// ```
/// ```compile_fail
/// #[derive(kiln::nn::Module)]
/// struct Both { #[module(buffer, skip)] weight: kiln::Var }
/// ```
pub use kiln_derive::Module;
