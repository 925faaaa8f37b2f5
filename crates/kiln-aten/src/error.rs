//! What can be wrong with a graph.

use kiln_ir::Source;

/// Why a call or a graph has no Kiln expression.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An op that no row covers.
    #[error("{op} has no Kiln expression, at {at}")]
    UnknownOp {
        /// The op.
        op: String,
        /// The user's line.
        at: Source,
    },
    /// A call that its row does not cover.
    #[error("{op} is not supported {reason}, at {at}")]
    Unsupported {
        /// The op.
        op: String,
        /// The reason: "with …", "of …".
        reason: String,
        /// The user's line.
        at: Source,
    },
    /// An argument that is not what its row takes it for.
    #[error("the argument '{name}' of {op} is not {expected}, at {at}")]
    Argument {
        /// The op.
        op: String,
        /// The argument.
        name: String,
        /// What it should be: "a number".
        expected: &'static str,
        /// The user's line.
        at: Source,
    },
    /// A result with another dtype or other sizes than PyTorch found.
    #[error("result {result} of {op} is {got}, not {expected}, at {at}")]
    Mismatch {
        /// The op.
        op: String,
        /// Which of its results.
        result: usize,
        /// The type that the expression gives.
        got: String,
        /// The type that PyTorch found.
        expected: String,
        /// The user's line.
        at: Source,
    },
    /// A number that is no value of the graph, or one that has no value yet.
    #[error("the graph uses value {value} before it is there")]
    NoSuchValue {
        /// The number.
        value: u32,
    },
    /// An expression that does not type.
    #[error("{op}: {cause}")]
    Graph {
        /// The op; empty for the graph itself.
        op: String,
        /// The cause.
        cause: Box<kiln_ir::Error>,
    },
}

impl From<kiln_ir::Error> for Error {
    fn from(cause: kiln_ir::Error) -> Error {
        Error::Graph { op: String::new(), cause: Box::new(cause) }
    }
}

impl Error {
    /// The error, with the op it happened in.
    pub(crate) fn in_op(self, name: &str) -> Error {
        match self {
            Error::Graph { op, cause } if op.is_empty() => Error::Graph { op: name.to_owned(), cause },
            other => other,
        }
    }
}
