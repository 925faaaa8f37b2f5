//! The remainder of a division, for both widths.

use super::lanes::*;
use crate::vir::ScalarFn;
use kiln_ir::BinaryOp;

/// Quotients up to here are exact integers in either width; beyond, the scalar function is called.
const LIMIT: f64 = 8_388_608.0;

/// The remainder of x / y with x's sign, exactly.
pub fn rem<F: Float>(x: F, y: F) -> F {
    let (a, b) = (x.abs(), y.abs());
    let quotient = a / b;
    let n = quotient.trunc();
    // Exact while n is, and n is at most one too large.
    let r = n.neg_mul_add(b, a);
    let r = F::select(r.lt(x.lit(0.0)), r + b, r);
    let r = F::select(b.eq(x.lit(f64::INFINITY)) & a.lt(b), a, r);
    r.signed(x.sign()).unless(quotient.gt(x.lit(LIMIT)), ScalarFn::Binary(BinaryOp::Rem), x, y)
}
