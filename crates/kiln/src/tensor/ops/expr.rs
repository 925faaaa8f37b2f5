//! What [`crate::expr!`] computes with: a tensor, a number, or the first error.

use crate::{Argument, DType, Dim, Error, Float, Number, Result, Tensor, Var};
use kiln_ir::{BinaryOp, Source, UnaryOp};
use std::ops::{Add, BitAnd, BitOr, BitXor, Div, Mul, Neg, Not, Rem, Sub};

/// A part of the expression of [`crate::expr!`], which makes and uses these.
#[derive(Debug, Clone)]
pub struct Expr(Result<Argument>);

impl Expr {
    /// A tensor, a result, a number or a size.
    #[doc(hidden)]
    pub fn from_leaf(leaf: impl Into<Expr>) -> Expr {
        leaf.into()
    }

    /// The value of the whole.
    #[doc(hidden)]
    #[track_caller]
    pub fn finish(self) -> Result<Tensor> {
        match self.0? {
            Argument::Tensor(tensor) => Ok(tensor),
            Argument::Number(_) | Argument::Size(_) | Argument::Float(_) => {
                Err(Error::NoTensors { op: "expr", at: Source::caller() })
            }
        }
    }

    #[track_caller]
    fn binary(self, other: Expr, name: &'static str, op: BinaryOp, float: bool) -> Expr {
        let at = Source::caller();
        let compute = || -> Result<Argument> {
            Ok(match (self.0?, other.0?) {
                (Argument::Tensor(x), y) => x.binary(name, op, y, float, &at)?.into(),
                (Argument::Number(x), Argument::Tensor(y)) => y.binary_reversed(name, op, x.into(), float, &at)?.into(),
                (Argument::Float(x), Argument::Tensor(y)) => y.binary_reversed(name, op, x.into(), float, &at)?.into(),
                (Argument::Size(x), Argument::Tensor(y)) => {
                    let x = x.tensor(DType::I64, y.device(), &at)?;
                    x.binary(name, op, y.into(), float, &at)?.into()
                }
                (x @ Argument::Float(_), y) | (x, y @ Argument::Float(_)) if is_arithmetic(op) => {
                    float_of(x).binary(op, &float_of(y)).into()
                }
                (x, y) => numbers(name, op, number(&x), number(&y), &at)?.into(),
            })
        };
        Expr(compute())
    }
}

fn is_arithmetic(op: BinaryOp) -> bool {
    matches!(op, BinaryOp::Add | BinaryOp::Sub | BinaryOp::Mul | BinaryOp::Div | BinaryOp::Rem)
}

fn float_of(argument: Argument) -> Float {
    match argument {
        Argument::Float(number) => number,
        other => number(&other).as_f64().into(),
    }
}

fn number(argument: &Argument) -> Number {
    match argument {
        Argument::Number(number) => *number,
        Argument::Size(size) => Number::Int(size.hint()),
        Argument::Tensor(_) | Argument::Float(_) => Number::Float(f64::NAN),
    }
}

/// Arithmetic of two plain numbers, as Rust has it; what Rust panics at is an error.
fn numbers(name: &'static str, op: BinaryOp, x: Number, y: Number, at: &Source) -> Result<Number> {
    use BinaryOp::{Add, And, Div, Mul, Or, Rem, Sub, Xor};
    let result = match (x, y) {
        (Number::Int(x), Number::Int(y)) => match op {
            Add => x.checked_add(y).map(Number::Int),
            Sub => x.checked_sub(y).map(Number::Int),
            Mul => x.checked_mul(y).map(Number::Int),
            Div if y == 0 => return Err(Error::DivisionByZero { op: name.into(), at: at.clone() }),
            Rem if y == 0 => return Err(Error::DivisionByZero { op: name.into(), at: at.clone() }),
            Div => x.checked_div(y).map(Number::Int),
            Rem => x.checked_rem(y).map(Number::Int),
            And | Or | Xor => op.row().int.map(|f| Number::Int(f(DType::I64, x, y))),
            _ => None,
        },
        (Number::Bool(x), Number::Bool(y)) => match op {
            And | Or | Xor => op.row().int.map(|f| Number::Bool(f(DType::Bool, x.into(), y.into()) != 0)),
            _ => None,
        },
        _ => match op {
            Add | Sub | Mul | Div | Rem => op.row().float.map(|f| Number::Float(f(x.as_f64(), y.as_f64()))),
            _ => None,
        },
    };
    let expected = "its numbers have no such operator, or the result is too large";
    result.ok_or_else(|| Error::BadArgument { op: "expr", name, value: x.as_f64().into(), expected, at: at.clone() })
}

macro_rules! from_leaves {
    ($($type:ty)*) => { $(
        impl From<$type> for Expr {
            fn from(leaf: $type) -> Expr {
                Expr(Ok(leaf.into()))
            }
        }
    )* };
}
from_leaves! { Tensor &Tensor Dim f32 f64 half::f16 half::bf16 i8 i16 i32 i64 u8 u32 usize bool Number Float &Float }

impl From<Result<Tensor>> for Expr {
    fn from(leaf: Result<Tensor>) -> Expr {
        Expr(leaf.map(Argument::Tensor))
    }
}

impl From<&Var> for Expr {
    fn from(leaf: &Var) -> Expr {
        leaf.get().into()
    }
}

macro_rules! operator {
    ($($trait:ident $method:ident $op:ident $float:literal;)*) => { $(
        impl $trait for Expr {
            type Output = Expr;
            #[track_caller]
            fn $method(self, other: Expr) -> Expr {
                self.binary(other, stringify!($method), BinaryOp::$op, $float)
            }
        }
    )* };
}
operator! {
    Add add Add false;
    Sub sub Sub false;
    Mul mul Mul false;
    Div div Div true;
    Rem rem Rem false;
    BitAnd bitand And false;
    BitOr bitor Or false;
    BitXor bitxor Xor false;
}

impl Neg for Expr {
    type Output = Expr;
    #[track_caller]
    fn neg(self) -> Expr {
        let at = Source::caller();
        Expr(self.0.and_then(|x| match x {
            Argument::Tensor(x) => Ok(x.unary(UnaryOp::Neg, false, &at)?.into()),
            Argument::Float(x) => Ok((-x).into()),
            x => Ok(numbers("neg", BinaryOp::Sub, Number::Int(0), number(&x), &at)?.into()),
        }))
    }
}

impl Not for Expr {
    type Output = Expr;
    #[track_caller]
    fn not(self) -> Expr {
        let at = Source::caller();
        Expr(self.0.and_then(|x| match x {
            Argument::Tensor(x) => Ok(x.unary(UnaryOp::Not, false, &at)?.into()),
            Argument::Number(Number::Bool(x)) => Ok(Number::Bool(!x).into()),
            x => Ok(numbers("not", BinaryOp::Xor, Number::Int(-1), number(&x), &at)?.into()),
        }))
    }
}
