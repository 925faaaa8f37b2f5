//! Tensors that compile: the crate that users of Kiln import.
//!
//! ```text
//!  Tensor ──op──▶ graph of that op ──▶ passes ──▶ kernels ──▶ code, kept ──▶ Tensor      eager
//!  f(Tensors) ──capture──▶ graph of f ──▶ passes ──▶ kernels ──▶ code, guarded ──▶ Tensors  compile
//!  Graph ───────────────────────────▶ passes ──▶ kernels ──▶ code ─────────▶ Tensors     compile_graph
//! ```
//!
//! ```
//! use kiln::{DType, Device, Tensor};
//! let x = Tensor::arange(6, DType::F32, Device::Cpu)?.reshape([2, 3])?;
//! let y = (&x * 2.0)?.softmax(-1)?;
//! assert_eq!(y.sum(-1)?.shape(), [2]);
//! # Ok::<(), kiln::Error>(())
//! ```
//!
//! Each module below uses only modules to its left (docs/architecture.md has every edge, `tests/rooms.rs` checks them); what users
//! write is re-exported here:
//!
//! ```text
//!  error ◀ backend ◀ pipeline ◀ tensor ◀ autograd ◀ compile ◀ nn ◀ optim
//! ```
//!
//! Invariants: a tensor's elements never change; nothing above [`backend()`] knows which device it works for; every
//! error names the user's line.

// Derived code names the crate as its users do.
extern crate self as kiln;

pub mod autograd;
pub mod backend;
pub mod compile;
pub mod error;
pub mod inspect;
pub mod nn;
pub mod optim;
pub mod pipeline;
pub mod tensor;

pub use autograd::{Forward, Function, Gradients, MatrixNorm, apply, checkpoint, grad, jvp, no_grad, value_and_grad};
pub use backend::threads::{self, set_threads, threads};
pub use backend::{backend, release_memory, synchronize};
pub use compile::buckets::{self, Buckets};
pub use compile::capture::{
    self, Compiled, Declared, Disabled, Dynamic, Map, Mode, Options, Scan, Stance, StanceGuard, Stats, Vmap, WhileLoop,
    compile, compile_with, cond, disable, explain, map, own_error, scan, set_stance, vmap, while_loop,
};
pub use compile::freeze::{self, FrozenGraph, FrozenMemory};
pub use error::{Error, Result, Shown, Value, printable, shown};
/// Makes a struct or an enum of bundles a [`trait@Bundle`].
///
/// ```
/// use kiln::{Bundle, DType, Device, Tensor};
/// #[derive(Bundle)]
/// struct Batch { tokens: Tensor, mask: Option<Tensor>, causal: bool }
///
/// let fast = kiln::compile(|batch: &Batch| if batch.causal { batch.tokens.cumsum(0) } else { batch.tokens.sum(..) });
/// let tokens = Tensor::ones(3, DType::F32, Device::Cpu)?;
/// let batch = Batch { tokens, mask: None, causal: true };
/// assert_eq!(fast.call(&batch)?.to_vec::<f32>()?, [1., 2., 3.]);
/// assert_eq!(fast.call(&Batch { causal: false, ..batch })?.item::<f32>()?, 3.0);
/// # Ok::<(), kiln::Error>(())
/// ```
///
/// Every field must be a bundle, because no guard would notice a change of any other; unions are not supported:
///
/// ```compile_fail,E0277
/// #[derive(kiln::Bundle)]
/// struct Batch { tokens: kiln::Tensor, started: std::time::Instant }
/// ```
/// ```compile_fail
/// #[derive(kiln::Bundle)]
/// union Batch { tokens: std::mem::ManuallyDrop<kiln::Tensor>, number: u64 }
/// ```
pub use kiln_derive::Bundle;
/// Evaluates an arithmetic expression, with one `?` for the whole.
///
/// The operators are `+ - * / % & | ^`, unary `-` and `!`. Operands are tensors, [`Result`]s of tensors, variables and
/// numbers of any type on either side; operators between two numbers are Rust's. Calls, fields and other expressions are
/// left unchanged.
///
/// ```
/// use kiln::{Device, Tensor, expr};
/// let x = Tensor::new([1f32, 2., 4.], Device::Cpu)?;
/// let (scale, shift) = (0.5f32, 3);
/// let y = expr!(scale * &x * &x - (x.exp2()? + shift) / 2.0 + 1)?;
/// assert_eq!(y.to_vec::<f32>()?, [-1., -0.5, -0.5]);
/// # Ok::<(), kiln::Error>(())
/// ```
///
/// Other operators are not supported:
///
/// ```compile_fail
/// # let x = kiln::Tensor::new([1f32], kiln::Device::Cpu).unwrap();
/// let y = kiln::expr!(&x == 2.0);
/// ```
pub use kiln_derive::expr;
pub use kiln_inspect::escape_html;
pub use kiln_ir as ir;
pub use kiln_ir::BlockFormat;
pub use kiln_ir::DType;
pub use kiln_ir::build::{
    Filter, PadMode, Reduction, ResampleOptions, RoiAlignOptions, RopeStyle, SampleMode, SamplePadding,
};
pub use kiln_kernels::{Numerics, Precision};
pub use kiln_runtime as runtime;
pub use kiln_runtime::Device;
pub use nn::{compile_module, compile_module_with};
pub use pipeline::{CompileOptions, FreezeOptions, PackWeights};
pub use tensor::Tensor;
pub use tensor::autocast::{autocast, autocast_dtype, no_autocast};
pub use tensor::bundle::{Bundle, Leaf};
pub use tensor::compiled_graph::{CompiledGraph, compile_graph};
pub use tensor::create::{self, End, Nested};
pub use tensor::dim::{self, Dim};
pub use tensor::eager::{self, Eager, run_eagerly};
pub use tensor::element::{self, Element, Number};
pub use tensor::files::bytes::Bytes;
pub use tensor::files::mapping::report_truncated_files;
pub use tensor::files::{self, safetensors};
pub use tensor::float::{self, Float};
pub use tensor::index::{self, Ellipsis, Index, Indices, step};
pub use tensor::layout::{self, Layout};
pub use tensor::ops::expr::Expr;
pub use tensor::ops::fft::{self, FftNorm};
pub use tensor::ops::loss::{self, CrossEntropy};
pub use tensor::ops::pointwise::Argument;
pub use tensor::ops::product::{self, Conv, Pool};
pub use tensor::ops::quantized;
pub use tensor::ops::rearrange::Bag;
pub use tensor::pending::Pending;
pub use tensor::promotion;
pub use tensor::random::{self, Generator, manual_seed};
pub use tensor::setting::Setting;
pub use tensor::shape::{self, Axes, Shape, Size};
pub use tensor::var::{self, Var};
