//! `+ - * / % & | ^` and unary minus and not, between tensors and numbers. Every operator returns a [`Result`]. A result
//! may itself be the left operand of an operator with a tensor, and the right operand of one, which saves some `?`s;
//! Rust's orphan rule forbids the rest (a result and a number, two results). On the left, numbers are f64, i64, a
//! [`Number`] or a [`Float`]: were f32 there as well, Rust could not tell the type of the literal in `(2.0 * &x)?.exp()`.
//!
//! [`crate::expr!`] takes whole expressions without these limits.
//!
//! ```
//! use kiln::{Device, Tensor};
//! let x = Tensor::from_vec(vec![1f32, 2.], 2, Device::Cpu)?;
//! let y = (2.0 * &x * &x - &x)?;
//! assert_eq!(y.to_vec::<f32>()?, [1., 6.]);
//! # Ok::<(), kiln::Error>(())
//! ```

use crate::{Argument, Float, Number, Result, Tensor};
use kiln_ir::{BinaryOp, Source, UnaryOp};
use std::ops::{Add, BitAnd, BitOr, BitXor, Div, Mul, Neg, Not, Rem, Sub};

macro_rules! operator {
    ($trait:ident, $method:ident, $op:ident, $float:expr) => {
        operator! { @tensor $trait $method $op $float Tensor, &Tensor }
        operator! { @result $trait $method $op $float Tensor, &Tensor }
        operator! { @number $trait $method $op $float f64, i64, Number, Float, &Float }
    };
    (@tensor $trait:ident $method:ident $op:ident $float:tt $($left:ty),*) => { $(
        impl<T: Into<Argument>> $trait<T> for $left {
            type Output = Result<Tensor>;
            #[track_caller]
            fn $method(self, other: T) -> Result<Tensor> {
                self.binary(stringify!($method), BinaryOp::$op, other.into(), $float, &Source::caller())
            }
        }
        impl $trait<Result<Tensor>> for $left {
            type Output = Result<Tensor>;
            #[track_caller]
            fn $method(self, other: Result<Tensor>) -> Result<Tensor> {
                self.binary(stringify!($method), BinaryOp::$op, other?.into(), $float, &Source::caller())
            }
        }
    )* };
    (@result $trait:ident $method:ident $op:ident $float:tt $($right:ty),*) => { $(
        impl $trait<$right> for Result<Tensor> {
            type Output = Result<Tensor>;
            #[track_caller]
            fn $method(self, other: $right) -> Result<Tensor> {
                self?.binary(stringify!($method), BinaryOp::$op, other.into(), $float, &Source::caller())
            }
        }
    )* };
    (@number $trait:ident $method:ident $op:ident $float:tt $($number:ty),*) => { $(
        impl $trait<Tensor> for $number {
            type Output = Result<Tensor>;
            #[track_caller]
            fn $method(self, other: Tensor) -> Result<Tensor> {
                other.binary_reversed(stringify!($method), BinaryOp::$op, Argument::from(self), $float, &Source::caller())
            }
        }
        impl $trait<&Tensor> for $number {
            type Output = Result<Tensor>;
            #[track_caller]
            fn $method(self, other: &Tensor) -> Result<Tensor> {
                other.binary_reversed(stringify!($method), BinaryOp::$op, Argument::from(self), $float, &Source::caller())
            }
        }
    )* };
}

operator! { Add, add, Add, false }
operator! { Sub, sub, Sub, false }
operator! { Mul, mul, Mul, false }
operator! { Div, div, Div, true }
operator! { Rem, rem, Rem, false }
operator! { BitAnd, bitand, And, false }
operator! { BitOr, bitor, Or, false }
operator! { BitXor, bitxor, Xor, false }

macro_rules! unary_operator {
    ($($trait:ident $method:ident;)*) => { $(
        impl $trait for Tensor {
            type Output = Result<Tensor>;
            #[track_caller]
            fn $method(self) -> Result<Tensor> {
                self.unary(UnaryOp::$trait, false, &Source::caller())
            }
        }
        impl $trait for &Tensor {
            type Output = Result<Tensor>;
            #[track_caller]
            fn $method(self) -> Result<Tensor> {
                self.unary(UnaryOp::$trait, false, &Source::caller())
            }
        }
    )* };
}

unary_operator! {
    Neg neg;
    Not not;
}
