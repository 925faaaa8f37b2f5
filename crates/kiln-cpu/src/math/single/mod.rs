//! Functions of 32-bit floats. No 64-bit vector occurs in them: it would halve the lanes of the whole kernel.

mod exponential;
mod gamma;
mod logarithm;
mod sigmoid;
mod tables;

pub use exponential::*;
pub use gamma::*;
pub use logarithm::*;
pub use sigmoid::*;

use super::lanes::Float;
use super::remainder::rem;
use super::{arc, circle, power};
use kiln_ir::{BinaryOp, UnaryOp};
use tables::{ARC, CIRCLE, POWER};

/// A function of one operand, if there is one of that name.
pub fn unary<F: Float>(op: UnaryOp, x: F) -> Option<F> {
    Some(match op {
        UnaryOp::Exp => exp(x),
        UnaryOp::Exp2 => exp2(x),
        UnaryOp::Expm1 => expm1(x),
        UnaryOp::Log => log(x),
        UnaryOp::Log2 => log2(x),
        UnaryOp::Log1p => log1p(x),
        UnaryOp::Sin => circle::sin(&CIRCLE, x),
        UnaryOp::Cos => circle::cos(&CIRCLE, x),
        UnaryOp::Tan => circle::tan(&CIRCLE, x),
        UnaryOp::Asin => arc::asin(&ARC, x),
        UnaryOp::Acos => arc::acos(&ARC, x),
        UnaryOp::Atan => arc::atan(&ARC, x),
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
        BinaryOp::Pow => power::pow(&POWER, logarithm::split, x, y),
        BinaryOp::Atan2 => arc::atan2(&ARC, x, y),
        BinaryOp::Rem => rem(x, y),
        _ => return None,
    })
}
