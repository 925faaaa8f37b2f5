//! Functions of floats as vector code.
//!
//! ```text
//!  functions, written once over the operations of `lanes`; coefficients and some functions are a width's own: single, double
//!       ├── code      on values of the vector IR: emits instructions
//!       └── numbers   on f32 and f64: the tests walk over every input
//! ```
//!
//! All functions handle NaN, ±∞, ±0 and denormals, operands and results, as C99 says. Largest errors, in units in the last
//! place, F32 against results in F64 over every input (erf_inv: below 10⁻⁵, lgamma: outside 10⁻³ to 10⁴ over every 61st; two
//! operands: over 40 million pairs), F64 against many digits over samples:
//!
//! | function | F32 | F64 | | function | F32 | F64 | | function | F32 | F64 |
//! |---|---|---|---|---|---|---|---|---|---|---|
//! | exp | 0.90 | 0.97 | | log1p | 1.44 | 0.74 | | atan | 1.22 | 1.10 |
//! | exp, x ≤ 0 | 0.90 | 0.97 | | sin | 1.89 | 1.74 | | atan2 | 1.46 | 1.43 |
//! | exp2 | 0.92 | 0.78 | | cos | 1.90 | 1.7 | | tanh | 1.45 | 1.24 |
//! | expm1 | 1.51 | 1.83 | | tan | 1.97 | 1.34 | | erf | 1.53 | 1.92 |
//! | log | 0.86 | 0.73 | | asin | 1.68 | 1.62 | | erf_inv | 1.67 | call |
//! | log2 | 1.14 | 0.83 | | acos | 1.14 | 1.14 | | lgamma | 1.94 | call |
//! | pow | 0.82 | 1.33 | | rem | exact | exact | | rsqrt, recip | 1.5, 0.5 | 1.5, 0.5 |
//!
//! *call*: a scalar function, lane by lane, as for every function without code here. One is called, too, where sine, cosine and tangent have operands beyond 10⁵ (F64:
//! 10⁷), lgamma negative ones and rem a quotient beyond 2²³; vectors without such a lane pay for a test.

mod arc;
mod circle;
mod code;
mod double;
mod functions;
mod integer;
mod lanes;
#[cfg(test)]
mod numbers;
mod power;
mod remainder;
mod single;
#[cfg(test)]
mod tests;

use crate::vir::*;
use code::Coder;
use kiln_ir::{BinaryOp, UnaryOp};
use lanes::Float;

/// |x|
pub fn abs(b: &mut Builder, ty: Ty, x: V) -> V {
    let mask = b.bits(ty, if ty == Ty::F32 { 0x7fff_ffff } else { i64::MAX as u64 });
    b.and(ty, x, mask)
}

/// The sign bit of x.
fn sign_bit(b: &mut Builder, ty: Ty, x: V) -> V {
    let mask = b.bits(ty, if ty == Ty::F32 { 1 << 31 } else { 1 << 63 });
    b.and(ty, x, mask)
}

/// −x
pub fn neg(b: &mut Builder, ty: Ty, x: V) -> V {
    let mask = b.bits(ty, if ty == Ty::F32 { 1 << 31 } else { 1 << 63 });
    b.xor(ty, x, mask)
}

/// A function of one operand, a vector of floats of type `ty`.
pub fn unary(b: &mut Builder, op: UnaryOp, ty: Ty, x: V) -> V {
    match op {
        UnaryOp::Neg => neg(b, ty, x),
        UnaryOp::Abs => abs(b, ty, x),
        UnaryOp::Sign => {
            // ±1 with x's sign where x is neither 0 nor NaN, else x.
            let one = b.splat(ty, 1.0);
            let sign = sign_bit(b, ty, x);
            let unit = b.or(ty, one, sign);
            let zero = b.splat(ty, 0.0);
            let size = abs(b, ty, x);
            let counts = b.compare(CompareOp::Gt, ty, size, zero);
            b.select(ty, counts, unit, x)
        }
        UnaryOp::Floor => b.un(UnOp::Floor, ty, x),
        UnaryOp::Ceil => b.un(UnOp::Ceil, ty, x),
        UnaryOp::Round => b.un(UnOp::Round, ty, x),
        UnaryOp::Trunc => b.un(UnOp::Trunc, ty, x),
        UnaryOp::Sqrt => b.un(UnOp::Sqrt, ty, x),
        UnaryOp::Rsqrt => {
            let (one, root) = (b.splat(ty, 1.0), b.un(UnOp::Sqrt, ty, x));
            b.div(ty, one, root)
        }
        UnaryOp::Recip => {
            let one = b.splat(ty, 1.0);
            b.div(ty, one, x)
        }
        UnaryOp::IsNan => b.compare(CompareOp::Ne, ty, x, x),
        UnaryOp::Not => x,
        _ => {
            let coder = Coder::new(b, ty);
            let x = coder.float(x);
            let y = if ty == Ty::F32 { functions::single_unary(op, x) } else { functions::double_unary(op, x) };
            y.unwrap_or_else(|| Float::call(ScalarFn::Unary(op), x, x)).v
        }
    }
}

/// A function of two operands that is no single instruction, on vectors of floats or of 64-bit integers.
pub fn binary(b: &mut Builder, op: BinaryOp, ty: Ty, x: V, y: V) -> V {
    if ty == Ty::I64 && matches!(op, BinaryOp::Div | BinaryOp::Rem) {
        return integer::divide(b, op, x, y);
    }
    if !ty.is_float() {
        return b.pure(Op::Call(ScalarFn::Binary(op)), ty, ty, &[x, y]);
    }
    let coder = Coder::new(b, ty);
    let (x, y) = (coder.float(x), coder.float(y));
    let z = if ty == Ty::F32 { functions::single_binary(op, x, y) } else { functions::double_binary(op, x, y) };
    z.unwrap_or_else(|| Float::call(ScalarFn::Binary(op), x, y)).v
}

/// 1 + tanh x of a vector of F32, without the cancellation for negative x.
pub fn one_plus_tanh(b: &mut Builder, x: V) -> V {
    let coder = Coder::new(b, Ty::F32);
    single::one_plus_tanh(coder.float(x)).v
}

/// eˣ of a vector of F32 that is known to be at most 0 or NaN, as in a softmax: fewer instructions.
pub fn exp_nonpositive(b: &mut Builder, x: V) -> V {
    let coder = Coder::new(b, Ty::F32);
    single::exp_nonpositive(coder.float(x)).v
}
