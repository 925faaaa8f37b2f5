//! A template as a tree. What a grammar would nest to the left (sums, calls of calls) is a list here, so that the tree is no
//! deeper than the parser went.

use super::value::Value;
use std::sync::Arc;

/// A name, by its number.
pub(super) type Symbol = u32;

/// Statements with what they refer to.
#[derive(Debug, Default)]
pub(super) struct Program {
    pub(super) body: Vec<Statement>,
    /// Names by their numbers.
    pub(super) names: Vec<Arc<str>>,
    /// Macros and the bodies of call blocks.
    pub(super) macros: Vec<Macro>,
    pub(super) loops: Vec<For>,
    pub(super) special: Special,
}

/// Names that the machine binds itself, where the template uses them.
#[derive(Debug, Default)]
pub(super) struct Special {
    pub(super) loop_state: Option<Symbol>,
    pub(super) caller: Option<Symbol>,
    pub(super) varargs: Option<Symbol>,
    pub(super) kwargs: Option<Symbol>,
}

/// A statement and its line.
#[derive(Debug)]
pub(super) struct Statement {
    pub(super) line: u32,
    pub(super) kind: Action,
}

#[derive(Debug)]
pub(super) enum Action {
    Data(Arc<str>),
    Print(Expression),
    If {
        branches: Vec<(Expression, Vec<Statement>)>,
        otherwise: Vec<Statement>,
    },
    For(usize),
    Set {
        target: Target,
        value: Expression,
    },
    SetBlock {
        target: Target,
        filters: Vec<Suffix>,
        body: Vec<Statement>,
    },
    With {
        values: Vec<(Target, Expression)>,
        body: Vec<Statement>,
    },
    Filter {
        filters: Vec<Suffix>,
        body: Vec<Statement>,
    },
    Macro(usize),
    /// A call with a block: the macro of the block, and the call.
    Call {
        block: usize,
        call: Expression,
    },
    Break,
    Continue,
}

#[derive(Debug)]
pub(super) struct Macro {
    pub(super) name: Symbol,
    pub(super) parameters: Vec<(Symbol, Option<Expression>)>,
    pub(super) body: Vec<Statement>,
}

#[derive(Debug)]
pub(super) struct For {
    pub(super) target: Target,
    pub(super) items: Expression,
    pub(super) condition: Option<Expression>,
    pub(super) body: Vec<Statement>,
    pub(super) otherwise: Vec<Statement>,
    pub(super) recursive: bool,
}

/// What is assigned to.
#[derive(Debug)]
pub(super) enum Target {
    Name(Symbol),
    Member(Symbol, Arc<str>),
    Tuple(Vec<Target>),
}

#[derive(Debug, Clone)]
pub(super) enum Literal {
    None,
    Bool(bool),
    Integer(i64),
    Float(f64),
    Text(Arc<str>),
}

impl Literal {
    pub(super) fn value(&self) -> Value {
        match self {
            Literal::None => Value::None,
            Literal::Bool(flag) => Value::Bool(*flag),
            Literal::Integer(n) => Value::Integer(*n),
            Literal::Float(x) => Value::Float(*x),
            Literal::Text(text) => Value::Text(text.clone()),
        }
    }
}

#[derive(Debug)]
pub(super) enum Expression {
    Literal(Literal),
    Name(Symbol),
    List(Vec<Expression>),
    Tuple(Vec<Expression>),
    Map(Vec<(Expression, Expression)>),
    Or(Vec<Expression>),
    And(Vec<Expression>),
    Not(Box<Expression>),
    Negative(Box<Expression>),
    Positive(Box<Expression>),
    /// Texts one behind another.
    Concat(Vec<Expression>),
    /// `+`, `-`, `*`, `/`, `//`, `%` and `**`, from the left.
    Arithmetic(Box<Expression>, Vec<(&'static str, Expression)>),
    Compare(Box<Expression>, Vec<(Comparison, Expression)>),
    Choice(Box<Choice>),
    Postfix(Box<Expression>, Vec<Suffix>),
}

#[derive(Debug)]
pub(super) struct Choice {
    pub(super) condition: Expression,
    pub(super) then: Expression,
    pub(super) otherwise: Option<Expression>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
    In,
    NotIn,
}

/// What is done to a value.
#[derive(Debug)]
pub(super) enum Suffix {
    Member(Arc<str>),
    Item(Expression),
    Slice(Box<[Option<Expression>; 3]>),
    Call(Arguments),
    Filter(Arc<str>, Arguments),
    Test { name: Arc<str>, arguments: Arguments, negated: bool },
}

#[derive(Debug, Default)]
pub(super) struct Arguments {
    pub(super) positional: Vec<Expression>,
    pub(super) named: Vec<(Arc<str>, Expression)>,
    /// `*list` and `**map`.
    pub(super) rest: Option<Box<Expression>>,
    pub(super) rest_named: Option<Box<Expression>>,
}
