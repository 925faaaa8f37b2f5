//! Functions of 64-bit floats; the rarer ones call scalar functions.

mod circle;
mod exponential;
mod logarithm;
mod sigmoid;

pub use circle::*;
pub use exponential::*;
pub use logarithm::*;
pub use sigmoid::*;

use super::lanes::Float;
use super::remainder::rem;
use crate::vir::ScalarFn;
use kiln_ir::{BinaryOp, UnaryOp};

/// A function of one operand, if there is one of that name.
pub fn unary<F: Float>(op: UnaryOp, x: F) -> Option<F> {
    Some(match op {
        UnaryOp::Exp => exp(x),
        UnaryOp::Exp2 => exp2(x),
        UnaryOp::Expm1 => expm1(x),
        UnaryOp::Log => log(x),
        UnaryOp::Log2 => log2(x),
        UnaryOp::Log1p => log1p(x),
        UnaryOp::Sin => sin(x),
        UnaryOp::Cos => cos(x),
        UnaryOp::Tanh => tanh(x),
        UnaryOp::Erf => erf(x),
        UnaryOp::Tan => F::call(ScalarFn::Tan, x, x),
        UnaryOp::Asin => F::call(ScalarFn::Asin, x, x),
        UnaryOp::Acos => F::call(ScalarFn::Acos, x, x),
        UnaryOp::Atan => F::call(ScalarFn::Atan, x, x),
        UnaryOp::ErfInv => F::call(ScalarFn::ErfInv, x, x),
        UnaryOp::Lgamma => F::call(ScalarFn::Lgamma, x, x),
        _ => return None,
    })
}

/// A function of two operands, if there is one of that name.
pub fn binary<F: Float>(op: BinaryOp, x: F, y: F) -> Option<F> {
    Some(match op {
        BinaryOp::Pow => F::call(ScalarFn::Pow, x, y),
        BinaryOp::Atan2 => F::call(ScalarFn::Atan2, x, y),
        BinaryOp::Rem => rem(x, y),
        _ => return None,
    })
}
