//! Sine, cosine and tangent.
//!
//! Sine and cosine: x = (k + s)·π + r with |r| ≤ π/2, where s is 0 or ½, and ±sin r by one polynomial. Up to [`NEAR`], k·π is
//! subtracted in three parts. Beyond, the scalar function is called.

use super::super::lanes::*;
use crate::vir::ScalarFn;
use std::f64::consts::{FRAC_1_PI, FRAC_2_PI};

/// (sin r / r − 1) / r² by r², for |r| ≤ π/2. At the end of the range a fifth of a unit in the last place is taken off, so
/// that no result rounds to more than 1.
const SIN: [f64; 4] = [2.605_620_011e-6, -1.980_967_791e-4, 8.333_068_341e-3, -1.666_665_971e-1];

/// (tan r / r − 1) / r² by r², for |r| ≤ π/4.
const TAN: [f64; 7] = [
    4.387_842_957e-3,
    6.978_384_772e-5,
    1.084_778_737e-2,
    2.127_937_414e-2,
    5.405_997_485e-2,
    1.333_266_944e-1,
    3.333_334_923e-1,
];

/// Up to this size k·π is subtracted in three parts.
const NEAR: f64 = 100_000.0;

/// 1.5·2²³: a float of this size has its integer part in the lowest bits.
const MAGIC: f64 = 12_582_912.0;

/// π as a sum of three floats.
const PI: [f64; 3] = [3.141_592_741_012_573_2, -8.742_277_657_347_586e-8, -3.430_249_020_011_763_7e-15];

/// sin x
pub fn sin<F: Float>(x: F) -> F {
    // Of |x|, then with x's sign: so −0 stays.
    let (size, sign) = (x.abs(), x.sign());
    let t = size.mul_add(x.lit(FRAC_1_PI), x.lit(MAGIC));
    let near = sin_reduced(subtract(size, t - x.lit(MAGIC)), t.bits().shl(31) ^ sign);
    near.unless(size.gt(x.lit(NEAR)), ScalarFn::Sin, x, x)
}

/// cos x = sin(x + π/2)
pub fn cos<F: Float>(x: F) -> F {
    let t = x.mul_sub(x.lit(FRAC_1_PI), x.lit(0.5)) + x.lit(MAGIC);
    // x − (k + ½)·π, of which cos x is −sin for even k.
    let k = (t - x.lit(MAGIC)) + x.lit(0.5);
    let near = sin_reduced(subtract(x, k), (t.bits() + x.int(1)).shl(31));
    near.unless(x.abs().gt(x.lit(NEAR)), ScalarFn::Cos, x, x)
}

/// tan x
pub fn tan<F: Float>(x: F) -> F {
    let (size, sign) = (x.abs(), x.sign());
    let t = size.mul_add(x.lit(FRAC_2_PI), x.lit(MAGIC));
    let k = t - x.lit(MAGIC);
    let part = |n: usize| x.lit(PI[n] * 0.5);
    let r = k.neg_mul_add(part(0), size);
    let product = k * part(1);
    let high = r - product;
    // What the product and the difference lost, and the third part.
    let low = (r - high) - product - k.mul_sub(part(1), product);
    let low = k.neg_mul_add(part(2), low);
    let near = tan_reduced(high, low, t.bits(), sign);
    near.unless(size.gt(x.lit(NEAR)), ScalarFn::Tan, x, x)
}

/// x − k·π
fn subtract<F: Float>(x: F, k: F) -> F {
    PI.iter().fold(x, |r, &part| k.neg_mul_add(x.lit(part), r))
}

/// sin r with these sign bits flipped.
fn sin_reduced<F: Float>(r: F, sign: F::Int) -> F {
    let z = r.square();
    polynomial(z, &SIN).mul_add(r * z, r).flip(sign)
}

/// tan r, or −1 / tan r where the lowest bit of `odd` is set, for r = high + low; then with these sign bits flipped.
fn tan_reduced<F: Float>(high: F, low: F, odd: F::Int, sign: F::Int) -> F {
    let z = high.square();
    // The derivative, 1 + tan², to first order.
    let low = low.mul_add(z, low);
    let t = polynomial(z, &TAN).mul_add(high * z, low) + high;
    let odd = odd.shl(31).eq(high.sign_mask());
    let (over, under) = (F::select(odd, high.lit(-1.0), t), F::select(odd, t, high.lit(1.0)));
    (over / under).flip(sign)
}
