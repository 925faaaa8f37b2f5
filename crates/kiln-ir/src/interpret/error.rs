//! Why a graph could not be interpreted.

use crate::host::HostError;
use crate::{DType, Dim, NodeId, OpKind, Source, TensorType};

/// Why a graph could not be interpreted on the given inputs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InterpretError {
    /// Wrong number of inputs.
    #[error("the graph takes {expected} inputs, not {got}")]
    InputCount {
        /// Wanted.
        expected: usize,
        /// Given.
        got: usize,
    },
    /// An input that does not fit its declaration.
    #[error("input {input} is {dtype}{shape:?}, expected {expected}")]
    InputType {
        /// The input's index.
        input: usize,
        /// As declared in the graph.
        expected: TensorType,
        /// The dtype given.
        dtype: DType,
        /// The shape given.
        shape: Vec<usize>,
    },
    /// One symbol with two sizes.
    #[error("input {input}: {dim} is {got} on axis {axis}, but {bound} before")]
    InputSize {
        /// The input's index.
        input: usize,
        /// The axis.
        axis: usize,
        /// The declared size.
        dim: Dim,
        /// The size given.
        got: usize,
        /// What the inputs before say.
        bound: i64,
    },
    /// A node that could not be computed.
    #[error("{node} = {}: {cause}, at {at}", .op.name())]
    Node {
        /// The node.
        node: NodeId,
        /// Its op.
        op: OpKind,
        /// The cause.
        cause: Fault,
        /// The user's line.
        at: Source,
    },
}

/// What can go wrong in one node at run time.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// A gather or scatter index beyond its axis.
    #[error("index {index} is out of range for size {size}")]
    IndexOutOfRange {
        /// The index.
        index: i64,
        /// The size of the axis.
        size: usize,
    },
    /// A size with a symbol that no input binds.
    #[error("the size {dim} depends on a symbol that no input gives")]
    Unbound {
        /// The size.
        dim: Dim,
    },
    /// A negative size.
    #[error("the size {dim} is {value}")]
    NegativeSize {
        /// The size.
        dim: Dim,
        /// Its value.
        value: i64,
    },
    /// Sizes that do not fit the op.
    #[error("{what}: {lhs:?} and {rhs:?} do not fit")]
    SizesDiffer {
        /// The sizes compared, as text.
        what: &'static str,
        /// The left sizes.
        lhs: Vec<usize>,
        /// The right sizes.
        rhs: Vec<usize>,
    },
    /// The extreme of nothing has no index.
    #[error("axis {axis} is empty")]
    EmptyAxis {
        /// The axis.
        axis: usize,
    },
    /// The op does not compute on this dtype.
    #[error("no {dtype} arithmetic")]
    NoArithmetic {
        /// The dtype.
        dtype: DType,
    },
    /// A result beyond [`super::MAX_ELEMENTS`].
    #[error("{shape:?} is too large to interpret")]
    TooLarge {
        /// The result's shape.
        shape: Vec<usize>,
    },
    /// A loop whose condition does not fail.
    #[error("the condition of a loop holds after {turns} turns")]
    Endless {
        /// The number of turns.
        turns: usize,
    },
    /// A turn of a loop that could not be computed.
    #[error("turn {turn}: {cause}")]
    Turn {
        /// The number of the turn.
        turn: usize,
        /// Its error.
        cause: Box<InterpretError>,
    },
    /// A side of a choice that could not be computed.
    #[error("{cause}")]
    Side {
        /// Its error.
        cause: Box<InterpretError>,
    },
    /// A tensor that could not be made.
    #[error(transparent)]
    Host(#[from] HostError),
}
