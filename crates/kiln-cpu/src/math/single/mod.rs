//! Functions of 32-bit floats. No 64-bit vector occurs in them: it would halve the lanes of the whole kernel.

mod circle;
mod exponential;
mod gamma;
mod inverse_circle;
mod logarithm;
mod power;
mod sigmoid;

pub use circle::*;
pub use exponential::*;
pub use gamma::*;
pub use inverse_circle::*;
pub use logarithm::*;
pub use power::*;
pub use sigmoid::*;

use super::lanes::Float;
use super::remainder::rem;
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
        UnaryOp::Tan => tan(x),
        UnaryOp::Asin => asin(x),
        UnaryOp::Acos => acos(x),
        UnaryOp::Atan => atan(x),
        UnaryOp::Tanh => tanh(x),
        UnaryOp::Erf => erf(x),
        UnaryOp::ErfInv => erf_inv(x),
        UnaryOp::Lgamma => lgamma(x),
        _ => return None,
    })
}

/// A function of two operands, if there is one of that name.
pub fn binary<F: Float>(op: BinaryOp, x: F, y: F) -> Option<F> {
    Some(match op {
        BinaryOp::Pow => pow(x, y),
        BinaryOp::Atan2 => atan2(x, y),
        BinaryOp::Rem => rem(x, y),
        _ => return None,
    })
}
