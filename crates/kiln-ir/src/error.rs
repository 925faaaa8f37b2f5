//! Errors of this floor, with the facts in fields.

use crate::{DType, NodeId, Source, TensorType};

/// Why a graph is not a graph.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A node's op does not accept its operands.
    #[error("{node} = {op}: {cause}, at {at}")]
    Type {
        /// The node.
        node: NodeId,
        /// Its op.
        op: String,
        /// What is wrong.
        cause: Box<TypeError>,
        /// The user's line.
        at: Source,
    },
    /// An operand that is not in the graph, or comes later.
    #[error("{node} is used before it is defined, at {at}")]
    UnknownNode {
        /// The operand.
        node: NodeId,
        /// The user's line.
        at: Source,
    },
    /// A node's recorded type is not the one its op gives.
    #[error("{node} is declared {declared} but its op gives {inferred}, at {at}")]
    WrongType {
        /// The node.
        node: NodeId,
        /// As recorded.
        declared: TensorType,
        /// As inferred.
        inferred: TensorType,
        /// The user's line.
        at: Source,
    },
    /// An input node out of order or not listed.
    #[error("{node}: inputs must be numbered in order and listed once")]
    InputOrder {
        /// The node.
        node: NodeId,
    },
    /// An updated output that does not fit its input.
    #[error("output {output} updates input {input}: {reason}")]
    BadUpdate {
        /// Which output.
        output: usize,
        /// Which input.
        input: usize,
        /// What is wrong.
        reason: &'static str,
    },
    /// More than 2³² nodes.
    #[error("a graph has at most 2^32 nodes")]
    TooManyNodes,
}

/// Why an op does not accept its operands or attributes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TypeError {
    /// Wrong number of operands.
    #[error("takes {expected} operands, not {got}")]
    OperandCount {
        /// Wanted, in words or digits.
        expected: &'static str,
        /// Given.
        got: usize,
    },
    /// A dtype the op does not work on.
    #[error("operand {operand} is {got}, expected {expected}")]
    WrongDType {
        /// Which operand.
        operand: usize,
        /// Its dtype.
        got: DType,
        /// What the op takes.
        expected: &'static str,
    },
    /// Operands whose dtypes must agree and do not.
    #[error("{lhs} and {rhs} differ in dtype")]
    DTypesDiffer {
        /// One operand.
        lhs: TensorType,
        /// The other.
        rhs: TensorType,
    },
    /// Operands whose shapes must agree and do not.
    #[error("{lhs} and {rhs} do not agree{detail}")]
    ShapesDiffer {
        /// One operand.
        lhs: TensorType,
        /// The other.
        rhs: TensorType,
        /// For instance ` (3 ≠ 4)`.
        detail: String,
    },
    /// An axis beyond the rank.
    #[error("axis {axis} is out of range for {ty}")]
    AxisOutOfRange {
        /// The axis.
        axis: usize,
        /// The operand.
        ty: TensorType,
    },
    /// An operand of the wrong rank.
    #[error("operand {operand} is {ty}, expected rank {expected}")]
    WrongRank {
        /// Which operand.
        operand: usize,
        /// Its type.
        ty: TensorType,
        /// What the op takes.
        expected: String,
    },
    /// Attributes that make no sense for the operand.
    #[error("{what} for {ty}")]
    BadAttribute {
        /// What is wrong, with the numbers.
        what: String,
        /// The operand (or the result, if there is none).
        ty: TensorType,
    },
    /// A result too large to address.
    #[error("{ty} is too large to address")]
    TooLarge {
        /// The result.
        ty: TensorType,
    },
}
