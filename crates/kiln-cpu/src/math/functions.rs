//! Selects the code of each function of the table of ops, for each width. A function without code is a scalar call, lane by
//! lane.

use super::lanes::Float;
use super::remainder::rem;
use super::{arc, circle, double, power, single};
use kiln_ir::{BinaryOp, UnaryOp};

/// Declares functions of one operand: `Op: of F32, of F64`, the latter if there is one.
macro_rules! unary_functions {
    ($($op:ident: $single:expr $(, $double:expr)?;)*) => {
        /// A function of 32-bit floats, if there is code for it.
        pub fn single_unary<F: Float>(op: UnaryOp, x: F) -> Option<F> {
            let f: fn(F) -> F = match op {
                $(UnaryOp::$op => $single,)*
                _ => return None,
            };
            Some(f(x))
        }

        /// A function of 64-bit floats, if there is code for it.
        pub fn double_unary<F: Float>(op: UnaryOp, x: F) -> Option<F> {
            let f: fn(F) -> F = match op {
                $($(UnaryOp::$op => $double,)?)*
                _ => return None,
            };
            Some(f(x))
        }
    };
}

unary_functions! {
    Exp: single::exp, double::exp;
    Exp2: single::exp2, double::exp2;
    Expm1: single::expm1, double::expm1;
    Log: single::log, double::log;
    Log2: single::log2, double::log2;
    Log1p: single::log1p, double::log1p;
    Sin: |x| circle::sin(&single::CIRCLE, x), |x| circle::sin(&double::CIRCLE, x);
    Cos: |x| circle::cos(&single::CIRCLE, x), |x| circle::cos(&double::CIRCLE, x);
    Tan: |x| circle::tan(&single::CIRCLE, x), |x| circle::tan(&double::CIRCLE, x);
    Asin: |x| arc::asin(&single::ARC, x), |x| arc::asin(&double::ARC, x);
    Acos: |x| arc::acos(&single::ARC, x), |x| arc::acos(&double::ARC, x);
    Atan: |x| arc::atan(&single::ARC, x), |x| arc::atan(&double::ARC, x);
    Tanh: single::tanh, double::tanh;
    Erf: single::erf, double::erf;
    ErfInv: single::erf_inv;
    Lgamma: single::lgamma;
}

/// A function of two 32-bit floats, if there is code for it.
pub fn single_binary<F: Float>(op: BinaryOp, x: F, y: F) -> Option<F> {
    Some(match op {
        BinaryOp::Pow => power::pow(&single::POWER, single::split, x, y),
        BinaryOp::Atan2 => arc::atan2(&single::ARC, x, y),
        BinaryOp::Rem => rem(x, y),
        _ => return None,
    })
}

/// A function of two 64-bit floats, if there is code for it.
pub fn double_binary<F: Float>(op: BinaryOp, x: F, y: F) -> Option<F> {
    Some(match op {
        BinaryOp::Pow => power::pow(&double::POWER, double::split, x, y),
        BinaryOp::Atan2 => arc::atan2(&double::ARC, x, y),
        BinaryOp::Rem => rem(x, y),
        _ => return None,
    })
}
