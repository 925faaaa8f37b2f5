//! Programs: a function, its variables and the calls it is for.

use kiln::{DType, Dynamic, Mode};
use std::sync::Arc;

/// A number of a value, a variable or a held tensor, modulo how many there are: every program is valid, also with statements left
/// out.
pub type ValueNumber = usize;

/// Variables that a program holds. Where a function has made none so far, the numbers of those that it makes mean one of these.
pub const HELD_VARIABLES: usize = 3;

/// Statements that share their values with what is around them, and keep their own to themselves.
pub type Block = Arc<Vec<Statement>>;

/// A function with the calls it is for.
#[derive(Debug, Clone)]
pub struct Program {
    /// Where its data comes from.
    pub seed: u64,
    /// The dtype of all floats.
    pub dtype: DType,
    /// The function. Its values begin with the two arguments.
    pub body: Block,
    /// The values it returns.
    pub returns: Vec<ValueNumber>,
    /// The calls, one after the other.
    pub calls: Vec<Call>,
    /// How it is compiled.
    pub choices: Choices,
}

/// How a program is compiled.
#[derive(Debug, Clone, PartialEq)]
pub struct Choices {
    /// [`kiln::Options::dynamic`].
    pub dynamic: Dynamic,
    /// [`kiln::Options::mode`].
    pub mode: Mode,
    /// [`kiln::Options::freeze`].
    pub freeze: bool,
    /// [`kiln::Options::background`].
    pub background: bool,
    /// [`kiln::Options::never_slower`].
    pub never_slower: bool,
    /// [`kiln::Options::verify`].
    pub verify: bool,
    /// [`kiln::Options::cache_limit`].
    pub cache_limit: usize,
    /// Whether the optimizer has momentum.
    pub momentum: bool,
}

/// A call of the function, and what is done around it.
#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    /// The seed of the arguments' elements.
    pub data: u64,
    /// The arguments are `[rows, 3]`.
    pub rows: usize,
    /// Whether the first argument is stored transposed.
    pub transposed: bool,
    /// Whether the first argument requires gradients.
    pub tapes: Tapes,
    /// Whether the call is inside of `no_grad`.
    pub no_grad: bool,
    /// The setting before the call.
    pub setting: u64,
    /// Whether `requires_grad` of the first variable is toggled before the call.
    pub toggles: bool,
    /// Whether gradients are cleared before the call.
    pub zeroes: bool,
    /// Whether `backward` is called on the sum of the results.
    pub backward: bool,
}

/// Whether gradients of an argument are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tapes {
    /// They are not.
    None,
    /// It is the start of a tape.
    Start,
    /// It was computed from a variable outside of the function.
    Variable,
}

/// A statement. What gives values adds them to those that later statements use.
#[derive(Debug, Clone)]
pub enum Statement {
    /// `let x = …`.
    Let(Expression),
    /// `x = …`, for a value from before.
    Assign(ValueNumber, Expression),
    /// The function makes a variable with a value, of which gradients are wanted, if said so.
    Make(ValueNumber, bool),
    /// A variable gets a value. The numbers of those that the function made come after [`HELD_VARIABLES`].
    Set(ValueNumber, ValueNumber),
    /// A value is added to a variable.
    Add(ValueNumber, ValueNumber),
    /// A variable is multiplied by a number.
    Scale(ValueNumber, i64),
    /// The first element of a variable becomes that of a value.
    SetFirst(ValueNumber, ValueNumber),
    /// The gradient of a variable is forgotten.
    ZeroGrad(ValueNumber),
    /// A value becomes the gradient of a variable.
    SetGrad(ValueNumber, ValueNumber),
    /// `backward` of the sum of a value; its error ends the function, or is ignored.
    Backward(ValueNumber, bool),
    /// A step of the optimizer, after which parameters are clamped.
    Step,
    /// A decision.
    If(Test, Block, Block),
    /// A number of turns.
    Repeat(usize, Block),
    /// While the sum of a value is positive, three turns at the most.
    While(ValueNumber, Block),
    /// Inside of `no_grad`.
    NoGrad(Block),
    /// Inside of [`kiln::disable`], which gets some values and gives some.
    Disabled(Vec<ValueNumber>, Block, Vec<ValueNumber>),
    /// A compiled function of its own, which gets some values and gives some; its number keeps it apart from others.
    Nested(usize, Vec<ValueNumber>, Block, Vec<ValueNumber>),
    /// An error.
    Fail,
}

/// What decides.
#[derive(Debug, Clone)]
pub enum Test {
    /// Whether the sum of a value, read as a number, is above this.
    Sum(ValueNumber, i64),
    /// Whether the first of a value's elements, read as a list, is positive.
    First(ValueNumber),
    /// Whether the setting is this.
    Setting(u64),
    /// Whether a variable has a gradient.
    HasGrad(ValueNumber),
    /// Whether the first argument has more rows than this.
    Rows(usize),
    /// The same, by a size that may be a symbol.
    Size(usize),
    /// Whether the sum of a value, read as a number that is guarded by its outcome, is above this.
    Float(ValueNumber, i64),
}

/// What a value is computed by.
#[derive(Debug, Clone)]
pub enum Expression {
    /// An operation on one value.
    Unary(Unary, ValueNumber),
    /// An operation on two values.
    Binary(Binary, ValueNumber, ValueNumber),
    /// The second where the first is positive, elsewhere the third.
    Where(ValueNumber, ValueNumber, ValueNumber),
    /// The second times the sum of the first, read as a number.
    Scaled(ValueNumber, ValueNumber),
    /// The sum of those elements of the second where the first, of the same shape, is positive.
    Selected(ValueNumber, ValueNumber),
    /// The second times the number of positive elements of the first, read as a number: that of a selection which a disabled part has seen.
    Counted(ValueNumber, ValueNumber),
    /// The sum of those rows of the second whose sums in the first are positive.
    Rows(ValueNumber, ValueNumber),
    /// The sum of the first rows of the second: as many as the sum of the first, an element that is read as a size, and no more than there are.
    Cut(ValueNumber, ValueNumber),
    /// The second times, or less, the sum of the first: by comparisons of sums, which are read as numbers that are guarded by outcomes.
    Decided(ValueNumber, ValueNumber),
    /// The second less the number of times that the sum of the first, such a number, can be halved.
    Halved(ValueNumber, ValueNumber),
    /// A loop over the rows: the last of their sums so far, and the sum of all of these.
    Scan(ValueNumber),
    /// A loop, or a choice with loops, of operations on rows.
    Loop(LoopKind, ValueNumber, Vec<Unary>),
    /// The snapshot of a variable.
    Get(ValueNumber),
    /// The gradient of a variable, or zeros.
    Grad(ValueNumber),
    /// A tensor that the function holds.
    Held(ValueNumber),
    /// Random integers.
    Random,
    /// `cond` by the sum of a value, between two operations on another. In a compiled function both sides are on the tape of what is
    /// chosen, so both are such that gradients pass.
    Cond(ValueNumber, ValueNumber, Unary, Unary),
    /// The gradient of the sum of a chain of operations, by [`kiln::grad`]; twice, if said so.
    GradOf(ValueNumber, Vec<Unary>, bool),
    /// A chain of operations and its derivative along the value plus one, by [`kiln::jvp`], added up and clamped.
    Jvp(ValueNumber, Vec<Unary>),
    /// The gradient of the sum of a value by another, or zeros; on the tape, if said so.
    Gradients(ValueNumber, ValueNumber, bool),
}

/// What loops of [`Expression::Loop`] are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoopKind {
    /// [`kiln::map`] over the rows.
    Map,
    /// [`kiln::vmap`] over the rows.
    Vmap,
    /// [`kiln::while_loop`] of so many turns on one row.
    While(usize),
    /// [`kiln::scan`] over the rows, with a [`kiln::cond`] in its body.
    Chosen,
    /// [`kiln::cond`] between a scan and a map.
    Within,
    /// A scan whose body is a `while_loop` of so many turns.
    Nested(usize),
    /// A scan that keeps one state in so many.
    Checkpointed(usize),
    /// A scan over none of the rows.
    NoRows,
}

/// Operations on one value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unary {
    /// −x.
    Neg,
    /// 2x.
    Double,
    /// x + 1.
    Next,
    /// The sum of the first half of the rows.
    Half,
    /// x plus the number of rows.
    Count,
    /// |x|.
    Abs,
    /// The positive part.
    Relu,
    /// x², clamped.
    Square,
    /// The sum of all elements.
    Sum,
    /// The sums over rows.
    SumRows,
    /// The product with a held matrix.
    Product,
    /// Without the tape.
    Detach,
    /// A leaf of a tape.
    RequiresGrad,
    /// With the columns reversed.
    Flip,
    /// As 64-bit integers and back, which gradients do not pass.
    Integer,
    /// By a function with a gradient of its own.
    Own,
    /// With a hook on the gradient.
    Hook,
}

/// Operations on two values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Binary {
    /// a + b.
    Add,
    /// a − b.
    Sub,
    /// a · b, clamped.
    Mul,
    /// The greater of 2a and 2b + 1, which are never equal: the gradient at a tie depends on which operands require
    /// gradients.
    Max,
}
