//! Errors of tensor code: the facts in fields, and the user's line in each.

mod format;
mod shown;
mod state_dict;

pub use format::FormatError;
pub use shown::{Shown, printable, shown};
pub use state_dict::{Loaded, ShapeMismatch, StateDictError};

use crate::{DType, Device};
use kiln_ir::{Source, TypeError};
use std::fmt;

/// Why a tensor operation was refused.
///
/// ```
/// use kiln::{DType, Device, Tensor};
/// let a = Tensor::zeros([2, 3], DType::F32, Device::Cpu)?;
/// let b = Tensor::zeros([4, 5], DType::F32, Device::Cpu)?;
/// let message = a.matmul(&b).unwrap_err().to_string();
/// assert!(message.starts_with("matmul: [2, 3] and [4, 5] do not agree (3 ≠ 4), at "));
/// # Ok::<(), kiln::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Shapes that should fit together and do not.
    #[error("{op}: {lhs:?} and {rhs:?} do not agree{}, at {at}", Sizes(*.sizes))]
    ShapeMismatch {
        /// The operation.
        op: &'static str,
        /// One shape.
        lhs: Vec<usize>,
        /// The other.
        rhs: Vec<usize>,
        /// The two sizes that differ, where there is one such pair.
        sizes: Option<(usize, usize)>,
        /// The user's line.
        at: Source,
    },
    /// Dtypes that should be equal and are not.
    #[error("{op}: {lhs} and {rhs} differ in dtype, at {at}")]
    DTypeMismatch {
        /// The operation.
        op: &'static str,
        /// One dtype.
        lhs: DType,
        /// The other.
        rhs: DType,
        /// The user's line.
        at: Source,
    },
    /// A dtype that the operation does not work on.
    #[error("{op}: takes {expected}, not {got}, at {at}")]
    WrongDType {
        /// The operation.
        op: &'static str,
        /// The dtype given.
        got: DType,
        /// What it takes.
        expected: &'static str,
        /// The user's line.
        at: Source,
    },
    /// Tensors on different devices.
    #[error("{op}: one tensor is on {lhs}, another on {rhs}, at {at}")]
    DeviceMismatch {
        /// The operation.
        op: &'static str,
        /// One device.
        lhs: Device,
        /// The other.
        rhs: Device,
        /// The user's line.
        at: Source,
    },
    /// An axis beyond the rank.
    #[error("{op}: axis {axis} is out of range for {shape:?}, at {at}")]
    AxisOutOfRange {
        /// The operation.
        op: &'static str,
        /// The axis, as given.
        axis: i64,
        /// The tensor's shape.
        shape: Vec<usize>,
        /// The user's line.
        at: Source,
    },
    /// An axis named twice.
    #[error("{op}: axis {axis} is named twice for {shape:?}, at {at}")]
    DuplicateAxis {
        /// The operation.
        op: &'static str,
        /// The axis.
        axis: usize,
        /// The tensor's shape.
        shape: Vec<usize>,
        /// The user's line.
        at: Source,
    },
    /// A tensor with too few or too many axes.
    #[error("{op}: takes {expected}, not {shape:?}, at {at}")]
    WrongRank {
        /// The operation.
        op: &'static str,
        /// The tensor's shape.
        shape: Vec<usize>,
        /// What it takes.
        expected: &'static str,
        /// The user's line.
        at: Source,
    },
    /// An index outside its axis.
    #[error("{op}: index {index} is out of range for an axis of {size}, at {at}")]
    IndexOutOfRange {
        /// The operation.
        op: &'static str,
        /// The index, as given.
        index: i64,
        /// Size of the axis.
        size: usize,
        /// The user's line.
        at: Source,
    },
    /// A range that is not inside its axis, or runs backwards.
    #[error("{op}: {start}..{end} is no range of an axis of {size}, at {at}")]
    BadRange {
        /// The operation.
        op: &'static str,
        /// First index, as given.
        start: i64,
        /// Index after the last, as given.
        end: i64,
        /// Size of the axis.
        size: usize,
        /// The user's line.
        at: Source,
    },
    /// More indices than axes.
    #[error("index: {count} indices for {shape:?}, at {at}")]
    TooManyIndices {
        /// How many were given.
        count: usize,
        /// The tensor's shape.
        shape: Vec<usize>,
        /// The user's line.
        at: Source,
    },
    /// A shape with a negative size.
    #[error("{op}: {sizes:?} is no shape, at {at}")]
    BadShape {
        /// The operation.
        op: &'static str,
        /// As given.
        sizes: Vec<i64>,
        /// The user's line.
        at: Source,
    },
    /// Arguments cannot be padded, or results cannot be cut, as [`crate::Buckets`] require.
    #[error("buckets: {why}, at {at}")]
    Buckets {
        /// The reason.
        why: String,
        /// The line.
        at: Source,
    },
    /// An argument whose size is not as [`crate::Dynamic::range`] declares.
    #[error("{}, at {at}", declared_size(name, *tensor, *axis, *value, expected))]
    DeclaredSize {
        /// The name of the size.
        name: String,
        /// The tensor among the arguments' tensors.
        tensor: usize,
        /// The axis.
        axis: i64,
        /// The size, if there is such an axis.
        value: Option<usize>,
        /// What it should be.
        expected: String,
        /// The line of the call.
        at: Source,
    },
    /// A reshape to another number of elements.
    #[error("{op}: {from:?} has {elements} elements and cannot become {to:?}, at {at}")]
    BadReshape {
        /// The operation.
        op: &'static str,
        /// The tensor's shape.
        from: Vec<usize>,
        /// Its elements.
        elements: usize,
        /// The requested shape, with −1 for the inferred size.
        to: Vec<i64>,
        /// The user's line.
        at: Source,
    },
    /// Data of another length than the shape's.
    #[error("{op}: {shape:?} holds {expected} elements, {got} were given, at {at}")]
    ElementCount {
        /// The operation.
        op: &'static str,
        /// The requested shape.
        shape: Vec<usize>,
        /// Its elements.
        expected: usize,
        /// Elements given.
        got: usize,
        /// The user's line.
        at: Source,
    },
    /// `item` of a tensor that does not have exactly one element.
    #[error("item: {shape:?} does not hold exactly one element, at {at}")]
    NotOneElement {
        /// The tensor's shape.
        shape: Vec<usize>,
        /// The user's line.
        at: Source,
    },
    /// A maximum or minimum over no elements.
    #[error("{op}: {shape:?} has no elements to choose from, at {at}")]
    EmptyReduction {
        /// The operation.
        op: &'static str,
        /// The tensor's shape.
        shape: Vec<usize>,
        /// The user's line.
        at: Source,
    },
    /// An empty list of tensors.
    #[error("{op}: takes at least one tensor, at {at}")]
    NoTensors {
        /// The operation.
        op: &'static str,
        /// The user's line.
        at: Source,
    },
    /// An invalid argument.
    #[error("{op}: {name} = {value}, but {expected}, at {at}")]
    BadArgument {
        /// The operation.
        op: &'static str,
        /// The argument.
        name: &'static str,
        /// Its value.
        value: Value,
        /// What it has to be.
        expected: &'static str,
        /// The user's line.
        at: Source,
    },
    /// A tensor too large to address.
    #[error("{op}: {dtype}{shape:?} is too large to address, at {at}")]
    TooLarge {
        /// The operation.
        op: &'static str,
        /// Its dtype.
        dtype: DType,
        /// Its shape.
        shape: Vec<usize>,
        /// The user's line.
        at: Source,
    },
    /// A primitive op that does not accept its operands.
    #[error("{op}: {cause}, at {at}")]
    Type {
        /// The operation.
        op: String,
        /// What is wrong.
        cause: Box<TypeError>,
        /// The user's line.
        at: Source,
    },
    /// An invalid graph.
    #[error("{cause}")]
    Graph {
        /// What is wrong.
        cause: Box<kiln_ir::Error>,
    },
    /// A pass produced an invalid graph, which is a bug of the pass.
    #[error("{cause}, at {at}")]
    Passes {
        /// What is wrong.
        cause: Box<kiln_passes::Error>,
        /// The user's line.
        at: Source,
    },
    /// An index in a tensor that is outside of the axis it selects from.
    #[error("{op}: index {index} is out of range for an axis of {size}, at {at}")]
    ElementOutOfRange {
        /// The operation.
        op: String,
        /// The index.
        index: i64,
        /// Size of the axis.
        size: i64,
        /// The user's line.
        at: Source,
    },
    /// An integer was divided by zero. (Floats give infinities and NaN.)
    #[error("{op}: integer division by zero, at {at}")]
    DivisionByZero {
        /// The operation.
        op: String,
        /// The user's line.
        at: Source,
    },
    /// Memory, code generation or a launch failed.
    #[error("{op}: {cause}, at {at}")]
    Runtime {
        /// The operation.
        op: String,
        /// What happened.
        cause: Box<kiln_runtime::Error>,
        /// The user's line.
        at: Source,
    },
    /// The captured function does what a graph cannot: read elements, for instance.
    #[error(
        "compile: the function {what}, which ends the graph, at {at}; keep to tensors there (`where_` or `kiln::cond` instead of `if`), or compile without `fullgraph`"
    )]
    GraphBreak {
        /// What it does.
        what: &'static str,
        /// The user's line.
        at: Source,
    },
    /// A tensor of a function being captured was used after the capture, or on another thread.
    #[error(
        "a tensor that stands for a value of a captured function, or a variable that the function made, was used outside of it, at {at}; pass it as an argument or return it"
    )]
    Escaped {
        /// The user's line.
        at: Source,
    },
    /// Gradients were asked of what has none to start from.
    #[error(
        "{op}: takes one float, not {dtype}{shape:?}, at {at}; sum it up, or say with `backward_with` what each element counts"
    )]
    NotALoss {
        /// The operation.
        op: &'static str,
        /// Its dtype.
        dtype: DType,
        /// Its shape.
        shape: Vec<usize>,
        /// The user's line.
        at: Source,
    },
    /// Gradients were asked of a tensor that was computed from nothing that wants them, or by one that does not.
    #[error(
        "{op}: the tensor was not computed from anything that wants gradients, at {at}; see `Var::requires_grad` and `Tensor::requires_grad`, and mind `no_grad` and `detach`"
    )]
    NoTape {
        /// The operation.
        op: &'static str,
        /// The user's line.
        at: Source,
    },
    /// Gradients were asked of a tensor for the second time.
    #[error(
        "backward: its tape is gone since its first `backward`, at {at}; compute it again, or use `gradients`, which keep the tape"
    )]
    TapeReleased {
        /// The user's line.
        at: Source,
    },
    /// An operation that has no gradient.
    #[error("{op}: has no gradient: {cause}, at {at}")]
    NoGradient {
        /// The operation.
        op: &'static str,
        /// Why.
        cause: Box<kiln_passes::DifferentiateError>,
        /// The user's line.
        at: Source,
    },
    /// The reference interpreter cannot run a graph on these inputs.
    #[error("interpreter: {cause}, at {at}")]
    Interpret {
        /// Why.
        cause: Box<kiln_ir::interpret::InterpretError>,
        /// The user's line.
        at: Source,
    },
    /// A tensor whose elements cannot be read on the host.
    #[error("cannot read a tensor: {reason}, at {at}")]
    Unreadable {
        /// Why.
        reason: String,
        /// The user's line.
        at: Source,
    },
    /// A captured function did something else when it was called again with the same arguments.
    #[error(
        "compile: the function did something else when it was called again, at {at}; it has to be a pure function of its arguments and of the tensors, variables and settings it holds"
    )]
    NotAFunction {
        /// The line where it differs.
        at: Source,
    },
    /// A captured function made a variable that others can use when it has returned.
    #[error(
        "compile: the function, called at {at}, keeps the variable that it makes at {made}, or uses it in a disabled part; make it before the function is compiled, or return its value"
    )]
    KeptVariable {
        /// The line that makes it.
        made: Source,
        /// The line of the call.
        at: Source,
    },
    /// The two branches of a `cond` cannot be selected between.
    #[error("cond: {what}, at {at}")]
    Cond {
        /// Why.
        what: &'static str,
        /// The user's line.
        at: Source,
    },
    /// A loop that cannot run.
    #[error("scan: {what}, at {at}")]
    Loop {
        /// Why.
        what: &'static str,
        /// The user's line.
        at: Source,
    },
    /// A kernel does not agree with the reference interpreter.
    #[error("verify: at {at}:\n{report}")]
    Verify {
        /// Every kernel, with the first that is wrong.
        report: String,
        /// The line of the call.
        at: Source,
    },
    /// The number of threads was set to 0.
    #[error("set_threads: kernels run on 1 thread at the least, not on 0, at {at}")]
    NoThreads {
        /// The user's line.
        at: Source,
    },
    /// There is no program for a call, and the stance forbids compiling one.
    #[error("compile: there is no program for this call and the stance is fail_on_recompile: {guard}, at {at}")]
    Recompile {
        /// The guard that failed.
        guard: String,
        /// The line of the call.
        at: Source,
    },
    /// A checkpoint that cannot be read or written.
    #[error("{path}: {cause}, at {at}")]
    Safetensors {
        /// The file.
        path: String,
        /// What is wrong.
        cause: Box<FormatError>,
        /// The user's line.
        at: Source,
    },
    /// A state dict that does not fit a module.
    #[error("state dict: {cause}, at {at}")]
    StateDict {
        /// What is wrong.
        cause: Box<StateDictError>,
        /// The user's line.
        at: Source,
    },
}

/// The result of a tensor operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The value of an argument in an error.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Value {
    /// An integer.
    Int(i64),
    /// A number.
    Float(f64),
}

impl From<usize> for Value {
    fn from(v: usize) -> Value {
        Value::Int(v.try_into().unwrap_or(i64::MAX))
    }
}

impl From<i64> for Value {
    fn from(v: i64) -> Value {
        Value::Int(v)
    }
}

impl From<f64> for Value {
    fn from(v: f64) -> Value {
        Value::Float(v)
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Int(v) => write!(f, "{v}"),
            Value::Float(v) => write!(f, "{v}"),
        }
    }
}

/// Prints ` (3 ≠ 4)`.
struct Sizes(Option<(usize, usize)>);

impl fmt::Display for Sizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some((a, b)) => write!(f, " ({a} ≠ {b})"),
            None => Ok(()),
        }
    }
}

fn declared_size(name: &str, tensor: usize, axis: i64, value: Option<usize>, expected: &str) -> String {
    match value {
        Some(value) => format!("{name} is {value}, but {expected} (axis {axis} of tensor {tensor} of the arguments)"),
        None => format!("{name} is declared as axis {axis} of tensor {tensor} of the arguments, but {expected}"),
    }
}
