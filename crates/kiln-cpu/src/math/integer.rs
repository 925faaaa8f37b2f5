//! Division of 64-bit integers, which no vector unit has: by floats of 64 bits, exactly.
//!
//! Integers x, y with −2⁵¹ ≤ x, y < 2⁵¹ are floats, and so is every multiple of y up to x. If x / y is no integer, its distance from
//! the next one is at least 1 / |y|: more than half a unit in the last place of the quotient, so that rounding does not reach it and
//! truncation gives the quotient of the integers. Vectors with larger numbers in them call the scalar function for those lanes.

use crate::vir::*;
use kiln_ir::BinaryOp;

/// 1.5·2⁵²: an integer of 52 bits added to its bits are the bits of the sum.
const MAGIC: f64 = 6_755_399_441_055_744.0;

/// The float of an integer of 52 bits.
fn to_float(b: &mut Builder, x: V) -> V {
    let (bits, magic) = (b.bits(Ty::I64, MAGIC.to_bits()), b.splat(Ty::F64, MAGIC));
    let sum = b.add(Ty::I64, x, bits);
    b.sub(Ty::F64, sum, magic)
}

/// The integer, of 52 bits, that a float is.
fn to_integer(b: &mut Builder, x: V) -> V {
    let (bits, magic) = (b.bits(Ty::I64, MAGIC.to_bits()), b.splat(Ty::F64, MAGIC));
    let sum = b.add(Ty::F64, x, magic);
    b.sub(Ty::I64, sum, bits)
}

/// The quotient of I64 towards zero ([`BinaryOp::Div`]) or its remainder ([`BinaryOp::Rem`]); 0 where y is 0.
pub fn divide(b: &mut Builder, op: BinaryOp, x: V, y: V) -> V {
    let (ty, zero, offset) = (Ty::I64, b.bits(Ty::I64, 0), b.bits(Ty::I64, 1 << 51));
    let (from_x, from_y) = (b.add(ty, x, offset), b.add(ty, y, offset));
    let either = b.or(ty, from_x, from_y);
    let above = b.shift(BinOp::Shr, ty, either, 52);
    let large = b.compare(CompareOp::Ne, ty, above, zero);
    let (p, q) = (to_float(b, x), to_float(b, y));
    let ratio = b.div(Ty::F64, p, q);
    let whole = b.un(UnOp::Trunc, Ty::F64, ratio);
    let result = if op == BinaryOp::Div { whole } else { b.fnma(Ty::F64, whole, q, p) };
    let result = to_integer(b, result);
    let some = b.compare(CompareOp::Ne, ty, y, zero);
    let result = b.select(ty, some, result, zero);
    b.pure(Op::Call(ScalarFn::Binary(op)), ty, ty, &[x, y, large, result])
}
