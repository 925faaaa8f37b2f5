//! Sine, cosine and tangent.
//!
//! Sine and cosine: x = (k + s)·π + r with |r| ≤ π/2, where s is 0 or ½, and ±sin r by one polynomial. Up to a bound k·π is
//! subtracted in three parts. Beyond, the scalar function is called.

use super::lanes::*;
use crate::vir::ScalarFn;
use kiln_ir::UnaryOp;
use std::f64::consts::{FRAC_1_PI, FRAC_2_PI};

/// Constants for one width.
pub(super) struct CircleConstants {
    /// (sin r / r − 1) / r² by r², for |r| ≤ π/2. At the end of the range a fifth of a unit in the last place is taken off,
    /// so that no result rounds to more than 1.
    pub(super) sin: &'static [f64],
    /// (tan r / r − 1) / r² by r², for |r| ≤ π/4.
    pub(super) tan: &'static [f64],
    /// π as a sum of three floats.
    pub(super) pi: [f64; 3],
    /// Up to this size k·π is subtracted in three parts.
    pub(super) near: f64,
    /// A float of this size has its integer part in the lowest bits.
    pub(super) magic: f64,
    /// The number of the highest bit.
    pub(super) top: u32,
}

/// sin x
pub(super) fn sin<F: Float>(c: &CircleConstants, x: F) -> F {
    // Of |x|, then with x's sign: so −0 stays.
    let (size, sign) = (x.abs(), x.sign());
    let t = size.mul_add(x.lit(FRAC_1_PI), x.lit(c.magic));
    let near = sin_reduced(c, subtract(c, size, t - x.lit(c.magic)), t.bits().shl(c.top) ^ sign);
    near.unless(size.gt(x.lit(c.near)), ScalarFn::Unary(UnaryOp::Sin), x, x)
}

/// cos x = sin(x + π/2)
pub(super) fn cos<F: Float>(c: &CircleConstants, x: F) -> F {
    let t = x.mul_sub(x.lit(FRAC_1_PI), x.lit(0.5)) + x.lit(c.magic);
    // x − (k + ½)·π, of which cos x is −sin for even k.
    let k = (t - x.lit(c.magic)) + x.lit(0.5);
    let near = sin_reduced(c, subtract(c, x, k), (t.bits() + x.int(1)).shl(c.top));
    near.unless(x.abs().gt(x.lit(c.near)), ScalarFn::Unary(UnaryOp::Cos), x, x)
}

/// tan x
pub(super) fn tan<F: Float>(c: &CircleConstants, x: F) -> F {
    let (size, sign) = (x.abs(), x.sign());
    let t = size.mul_add(x.lit(FRAC_2_PI), x.lit(c.magic));
    let k = t - x.lit(c.magic);
    let part = |n: usize| x.lit(c.pi[n] * 0.5);
    let r = k.neg_mul_add(part(0), size);
    let product = k * part(1);
    let high = r - product;
    // What the product and the difference lost, and the third part.
    let low = (r - high) - product - k.mul_sub(part(1), product);
    let low = k.neg_mul_add(part(2), low);
    let near = tan_reduced(c, high, low, t.bits(), sign);
    near.unless(size.gt(x.lit(c.near)), ScalarFn::Unary(UnaryOp::Tan), x, x)
}

/// x − k·π
fn subtract<F: Float>(c: &CircleConstants, x: F, k: F) -> F {
    c.pi.iter().fold(x, |r, &part| k.neg_mul_add(x.lit(part), r))
}

/// sin r with these sign bits flipped.
fn sin_reduced<F: Float>(c: &CircleConstants, r: F, sign: F::Int) -> F {
    let z = r.square();
    polynomial(z, c.sin).mul_add(r * z, r).flip(sign)
}

/// tan r, or −1 / tan r where the lowest bit of `odd` is set, for r = high + low; then with these sign bits flipped.
fn tan_reduced<F: Float>(c: &CircleConstants, high: F, low: F, odd: F::Int, sign: F::Int) -> F {
    let z = high.square();
    // The derivative, 1 + tan², to first order.
    let low = low.mul_add(z, low);
    let t = polynomial(z, c.tan).mul_add(high * z, low) + high;
    let odd = odd.shl(c.top).eq(high.sign_mask());
    let (over, under) = (F::select(odd, high.lit(-1.0), t), F::select(odd, t, high.lit(1.0)));
    (over / under).flip(sign)
}
