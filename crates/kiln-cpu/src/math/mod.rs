//! Functions of floats as vector code.

mod exponential;
mod logarithm;
mod trigonometric;

pub use exponential::one_plus_tanh;

use crate::vir::*;
use kiln_ir::{BinaryOp, UnaryOp};

/// A polynomial by Horner's rule, highest coefficient first.
fn polynomial(b: &mut Builder, ty: Ty, x: V, coefficients: &[f64]) -> V {
    let mut p = b.splat(ty, coefficients[0]);
    for &c in &coefficients[1..] {
        let c = b.splat(ty, c);
        p = b.fma(ty, p, x, c);
    }
    p
}

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

/// The scalar function of an op, called lane by lane.
fn call(b: &mut Builder, f: ScalarFn, ty: Ty, args: &[V]) -> V {
    b.pure(Op::Call(f), ty, ty, args)
}

/// A function of one operand.
pub fn unary(b: &mut Builder, op: UnaryOp, ty: Ty, x: V) -> V {
    let f32 = ty == Ty::F32;
    let by_lane = match op {
        UnaryOp::Neg => return neg(b, ty, x),
        UnaryOp::Abs => return abs(b, ty, x),
        UnaryOp::Sign => {
            // ±1 with x's sign where x is neither 0 nor NaN, else x.
            let one = b.splat(ty, 1.0);
            let sign = sign_bit(b, ty, x);
            let unit = b.or(ty, one, sign);
            let zero = b.splat(ty, 0.0);
            let size = abs(b, ty, x);
            let counts = b.compare(CompareOp::Gt, ty, size, zero);
            return b.select(ty, counts, unit, x);
        }
        UnaryOp::Floor => return b.un(UnOp::Floor, ty, x),
        UnaryOp::Ceil => return b.un(UnOp::Ceil, ty, x),
        UnaryOp::Round => return b.un(UnOp::Round, ty, x),
        UnaryOp::Trunc => return b.un(UnOp::Trunc, ty, x),
        UnaryOp::Sqrt => return b.un(UnOp::Sqrt, ty, x),
        UnaryOp::Rsqrt => {
            let (one, root) = (b.splat(ty, 1.0), b.un(UnOp::Sqrt, ty, x));
            return b.div(ty, one, root);
        }
        UnaryOp::Recip => {
            let one = b.splat(ty, 1.0);
            return b.div(ty, one, x);
        }
        UnaryOp::IsNan => return b.compare(CompareOp::Ne, ty, x, x),
        UnaryOp::Not => return x,
        UnaryOp::Exp if f32 => return exponential::exp(b, x),
        UnaryOp::Tanh if f32 => return exponential::tanh(b, x),
        UnaryOp::Exp2 if f32 => return exponential::exp2(b, x),
        UnaryOp::Expm1 if f32 => return exponential::expm1(b, x),
        UnaryOp::Erf if f32 => return exponential::erf(b, x),
        UnaryOp::Log if f32 => return logarithm::log(b, x),
        UnaryOp::Log2 if f32 => return logarithm::log2(b, x),
        UnaryOp::Log1p if f32 => return logarithm::log1p(b, x),
        UnaryOp::Sin if f32 => return trigonometric::sin(b, x),
        UnaryOp::Cos if f32 => return trigonometric::cos(b, x),
        UnaryOp::Tan if f32 => return trigonometric::tan(b, x),
        UnaryOp::Asin if f32 => return trigonometric::asin(b, x),
        UnaryOp::Acos if f32 => return trigonometric::acos(b, x),
        UnaryOp::Atan if f32 => return trigonometric::atan(b, x),
        UnaryOp::Exp => ScalarFn::Exp,
        UnaryOp::Exp2 => ScalarFn::Exp2,
        UnaryOp::Expm1 => ScalarFn::Expm1,
        UnaryOp::Log => ScalarFn::Log,
        UnaryOp::Log2 => ScalarFn::Log2,
        UnaryOp::Log1p => ScalarFn::Log1p,
        UnaryOp::Sin => ScalarFn::Sin,
        UnaryOp::Cos => ScalarFn::Cos,
        UnaryOp::Tan => ScalarFn::Tan,
        UnaryOp::Asin => ScalarFn::Asin,
        UnaryOp::Acos => ScalarFn::Acos,
        UnaryOp::Atan => ScalarFn::Atan,
        UnaryOp::Tanh => ScalarFn::Tanh,
        UnaryOp::Erf => ScalarFn::Erf,
        UnaryOp::ErfInv => ScalarFn::ErfInv,
        UnaryOp::Lgamma => ScalarFn::Lgamma,
    };
    call(b, by_lane, ty, &[x])
}

/// A function of two operands that is no single instruction.
pub fn binary(b: &mut Builder, op: BinaryOp, ty: Ty, x: V, y: V) -> V {
    let f = match op {
        BinaryOp::Atan2 if ty == Ty::F32 => return trigonometric::atan2(b, x, y),
        BinaryOp::Rem if ty.is_float() => return remainder(b, ty, x, y),
        BinaryOp::Pow => ScalarFn::Pow,
        BinaryOp::Atan2 => ScalarFn::Atan2,
        _ => ScalarFn::Rem,
    };
    call(b, f, ty, &[x, y])
}

/// x − trunc(x / y)·y, exactly. The quotient is at most one off as long as it is a small integer, and the product with it is
/// rounded together with the difference, which is exact; other lanes call the scalar function.
fn remainder(b: &mut Builder, ty: Ty, x: V, y: V) -> V {
    let quotient = b.div(ty, x, y);
    let n = b.un(UnOp::Trunc, ty, quotient);
    let r = b.fnma(ty, n, y, x);
    // One step back where the remainder has got the other sign than x; the result keeps x's sign, on zeros too.
    let (zero, divisor) = (b.splat(ty, 0.0), abs(b, ty, y));
    let sign = sign_bit(b, ty, x);
    let r = b.xor(ty, r, sign);
    let under = b.compare(CompareOp::Lt, ty, r, zero);
    let up = b.add(ty, r, divisor);
    let r = b.select(ty, under, up, r);
    let over = b.compare(CompareOp::Ge, ty, r, divisor);
    let down = b.sub(ty, r, divisor);
    let r = b.select(ty, over, down, r);
    let r = abs(b, ty, r);
    let r = b.or(ty, r, sign);
    let size = abs(b, ty, quotient);
    let limit = b.splat(ty, if ty == Ty::F32 { 4194304.0 } else { 1e15 });
    let small = b.compare(CompareOp::Lt, ty, size, limit);
    let infinity = b.splat(ty, f64::INFINITY);
    let finite = b.compare(CompareOp::Lt, ty, divisor, infinity);
    let plain = b.and(Ty::Mask, small, finite);
    let rest = b.not(plain);
    b.pure(Op::Call(ScalarFn::Rem), ty, ty, &[x, y, rest, r])
}
