//! Errors of this crate, with the facts in fields.

use crate::{DType, Dim, NodeId, Source, TensorType};

/// An error of a graph.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A node's op does not accept its operands.
    #[error("{node} = {op}: {cause}{}", place(.at))]
    Type {
        /// The node.
        node: NodeId,
        /// Its op.
        op: String,
        /// The cause.
        cause: Box<TypeError>,
        /// The user's line.
        at: Source,
    },
    /// An operand that is not in the graph, or comes later.
    #[error("{node} is used before it is defined{}", place(.at))]
    UnknownNode {
        /// The operand.
        node: NodeId,
        /// The user's line.
        at: Source,
    },
    /// A node's recorded type is not the one its op gives.
    #[error("{node} is declared {declared} but its op gives {inferred}{}", place(.at))]
    WrongType {
        /// The node.
        node: NodeId,
        /// The recorded type.
        declared: TensorType,
        /// The inferred type.
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
        /// The output's index.
        output: usize,
        /// The input's index.
        input: usize,
        /// The reason, as text.
        reason: &'static str,
    },
    /// An input of an impossible type.
    #[error("input {index}: {cause}{}", place(.at))]
    InputType {
        /// The input's index.
        index: usize,
        /// The cause.
        cause: Box<TypeError>,
        /// The user's line.
        at: Source,
    },
    /// An output that is not in the graph.
    #[error("output {output} is {node}, which the graph does not have")]
    UnknownOutput {
        /// The output's index.
        output: usize,
        /// The node it names.
        node: NodeId,
    },
    /// A composite that does not accept its arguments.
    #[error(transparent)]
    Build(#[from] crate::build::BuildError),
    /// More than 2³² nodes.
    #[error("a graph has at most 2^32 nodes")]
    TooManyNodes,
}

/// An error of an op's operands or attributes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TypeError {
    /// Wrong number of operands.
    #[error("takes {expected}, not {got}")]
    OperandCount {
        /// A description of what is expected.
        expected: &'static str,
        /// The number given.
        got: usize,
    },
    /// A dtype the op does not work on.
    #[error("operand {operand} is {got}, expected {expected}")]
    WrongDType {
        /// The operand's index.
        operand: usize,
        /// Its dtype.
        got: DType,
        /// A description of what the op takes.
        expected: &'static str,
    },
    /// A storage-only dtype in a computation.
    #[error("operand {operand} is {got}, which is for storage only: cast it first")]
    StorageOnly {
        /// The operand's index.
        operand: usize,
        /// Its dtype.
        got: DType,
    },
    /// Operands whose dtypes must agree and do not.
    #[error("{lhs} and {rhs} differ in dtype")]
    DTypesDiffer {
        /// The left operand.
        lhs: TensorType,
        /// The right operand.
        rhs: TensorType,
    },
    /// Operands whose shapes must agree and do not.
    #[error("{lhs} and {rhs} do not agree{}", differ(.lhs, .rhs, .sizes))]
    ShapesDiffer {
        /// The left operand.
        lhs: TensorType,
        /// The right operand.
        rhs: TensorType,
        /// The first two sizes that cannot be proven equal; none where the ranks differ.
        sizes: Option<Box<(Dim, Dim)>>,
    },
    /// An axis beyond the rank.
    #[error("axis {axis} is out of range for {ty}")]
    AxisOutOfRange {
        /// The axis.
        axis: usize,
        /// The operand.
        ty: TensorType,
    },
    /// An axis that is named twice.
    #[error("axis {axis} of {ty} is named twice")]
    RepeatedAxis {
        /// The axis.
        axis: usize,
        /// The operand.
        ty: TensorType,
    },
    /// Axes that must ascend and do not.
    #[error("axes {axes:?} are not ascending")]
    AxesNotAscending {
        /// The axes as given.
        axes: Vec<usize>,
    },
    /// An order that is no permutation of the axes.
    #[error("{order:?} is not a permutation of the axes of {ty}")]
    NotAPermutation {
        /// The order as given.
        order: Vec<usize>,
        /// The operand.
        ty: TensorType,
    },
    /// An operand of the wrong rank.
    #[error("operand {operand} is {ty}, expected rank {expected}")]
    WrongRank {
        /// The operand's index.
        operand: usize,
        /// Its type.
        ty: TensorType,
        /// A description of what the op takes.
        expected: String,
    },
    /// An attribute with a wrong number of entries.
    #[error("{attribute} has {got} entries, expected {expected}")]
    AttributeLength {
        /// The attribute.
        attribute: &'static str,
        /// Its entries.
        got: usize,
        /// The expected number.
        expected: usize,
    },
    /// A stride, dilation, window or step that is zero or negative.
    #[error("{attribute} must be positive, axis {axis} has {got}")]
    NotPositive {
        /// The attribute.
        attribute: &'static str,
        /// The entry.
        axis: usize,
        /// Its value.
        got: Dim,
    },
    /// A start or padding that is negative.
    #[error("{attribute} must not be negative, axis {axis} has {got}")]
    Negative {
        /// The attribute.
        attribute: &'static str,
        /// The entry.
        axis: usize,
        /// Its value.
        got: Dim,
    },
    /// A shape with a negative size.
    #[error("{ty} has a negative size")]
    NegativeSize {
        /// The shape.
        ty: TensorType,
    },
    /// A reshape to another number of elements.
    #[error("{from} has {} elements, {to} has {}", .from.elements(), .to.elements())]
    ElementCounts {
        /// The operand.
        from: TensorType,
        /// The result.
        to: TensorType,
    },
    /// A slice that leaves its operand.
    #[error("{size} elements from {start} by {step} do not fit axis {axis} of {ty}")]
    SliceOutOfRange {
        /// The axis.
        axis: usize,
        /// First index.
        start: Dim,
        /// Number of elements.
        size: Dim,
        /// Step.
        step: i64,
        /// The operand.
        ty: TensorType,
    },
    /// Padding by which a window of a pool could miss the input altogether.
    #[error("padding of {padding} on axis {axis} is more than half of the window of {window}")]
    PaddingTooLarge {
        /// Among the pooled axes.
        axis: usize,
        /// Elements added on each side.
        padding: usize,
        /// Elements from the first to the last of the window.
        window: usize,
    },
    /// An equation that does not parse, or does not fit its operands.
    #[error("{equation:?}: {what}{}", named(.label))]
    BadEquation {
        /// The equation as given.
        equation: String,
        /// A description of the problem.
        what: &'static str,
        /// The label it is about.
        label: Option<char>,
    },
    /// A window that is larger than what it slides over.
    #[error("a window of {window} does not fit the {padded} elements of axis {axis} of {ty}, padding included")]
    WindowTooLarge {
        /// The axis.
        axis: usize,
        /// Extent of the window, dilation included.
        window: Dim,
        /// Extent of the axis, padding included.
        padded: Dim,
        /// The operand.
        ty: TensorType,
    },
    /// A size that is not provably a multiple of another.
    #[error("{what}: {size} is not a multiple of {by}")]
    NotDivisible {
        /// What must be divisible.
        what: &'static str,
        /// Its value.
        size: Dim,
        /// The divisor.
        by: Dim,
    },
    /// More elements requested than there are.
    #[error("{count} elements requested on axis {axis} of {ty}")]
    CountTooLarge {
        /// The requested number of elements.
        count: Dim,
        /// The axis.
        axis: usize,
        /// The operand.
        ty: TensorType,
    },
    /// The index of an extreme among no elements.
    #[error("axis {axis} of {ty} is empty and has no extreme element")]
    EmptyAxis {
        /// The axis.
        axis: usize,
        /// The operand.
        ty: TensorType,
    },
    /// A bitcast between types of different widths, or to bool.
    #[error("the bits of {from} are not {to}s")]
    BadBitcast {
        /// The operand's dtype.
        from: DType,
        /// The result's dtype.
        to: DType,
    },
    /// A constant whose bytes are not its shape's.
    #[error("{ty} takes {expected} bytes, not {got}")]
    LiteralLength {
        /// The constant's type.
        ty: TensorType,
        /// Bytes its type takes.
        expected: usize,
        /// Bytes it has.
        got: usize,
    },
    /// An attribute that makes no sense for the operand.
    #[error("{what} for {ty}")]
    BadAttribute {
        /// A description of the problem.
        what: &'static str,
        /// The operand (or the result, if there is none).
        ty: TensorType,
    },
    /// A result too large to address.
    #[error("{ty} is too large to address")]
    TooLarge {
        /// The result.
        ty: TensorType,
    },
    /// A loop whose body does not fit it.
    #[error("{what}")]
    BadLoop {
        /// A description of the problem.
        what: &'static str,
    },
    /// A choice whose sides do not fit it.
    #[error("{what}")]
    BadCond {
        /// A description of the problem.
        what: &'static str,
    },
    /// An input, whose type nothing determines.
    #[error("the type of an input is given, not inferred")]
    InputType,
}

fn place(at: &Source) -> String {
    if at.is_unknown() { String::new() } else { format!(", at {at}") }
}

fn named(label: &Option<char>) -> String {
    label.map_or_else(String::new, |label| format!(" ({label:?})"))
}

fn differ(lhs: &TensorType, rhs: &TensorType, sizes: &Option<Box<(Dim, Dim)>>) -> String {
    match sizes.as_deref() {
        Some((l, r)) => format!(" ({l} ≠ {r})"),
        None => format!(" (rank {} ≠ {})", lhs.rank(), rhs.rank()),
    }
}
