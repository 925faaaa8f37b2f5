//! Sine and cosine: x = (k + s)·π + r with |r| ≤ π/2, where s is 0 or ½, and ±sin r by one polynomial. Up to [`NEAR`], k·π is
//! subtracted in three parts. Beyond, the scalar function is called.

use super::super::lanes::*;
use super::exponential::MAGIC;
use crate::vir::ScalarFn;
use std::f64::consts::FRAC_1_PI;

/// (sin r / r − 1) / r² by r², for |r| ≤ π/2. At the end of the range a fifth of a unit in the last place is taken off, so
/// that no result rounds to more than 1.
const SIN: [f64; 8] = [
    2.721_038_459_288_818_2e-15,
    -7.642_985_215_169_286e-13,
    1.605_893_978_119_716_5e-10,
    -2.505_210_688_225_380_7e-8,
    2.755_731_921_135_307_4e-6,
    -0.000_198_412_698_412_114_92,
    0.008_333_333_333_333_205,
    -0.166_666_666_666_666_66,
];

/// Up to this size k·π is subtracted in three parts.
const NEAR: f64 = 1e7;

/// π as a sum of three floats.
const PI: [f64; 3] = [std::f64::consts::PI, 1.224_646_799_147_353_2e-16, -2.994_769_809_718_339_7e-33];

/// sin x
pub fn sin<F: Float>(x: F) -> F {
    // Of |x|, then with x's sign: so −0 stays.
    let (size, sign) = (x.abs(), x.sign());
    let t = size.mul_add(x.lit(FRAC_1_PI), x.lit(MAGIC));
    let near = sin_reduced(subtract(size, t - x.lit(MAGIC)), t.bits().shl(63) ^ sign);
    near.unless(size.gt(x.lit(NEAR)), ScalarFn::Sin, x, x)
}

/// cos x = sin(x + π/2)
pub fn cos<F: Float>(x: F) -> F {
    let t = x.mul_sub(x.lit(FRAC_1_PI), x.lit(0.5)) + x.lit(MAGIC);
    // x − (k + ½)·π, of which cos x is −sin for even k.
    let k = (t - x.lit(MAGIC)) + x.lit(0.5);
    let near = sin_reduced(subtract(x, k), (t.bits() + x.int(1)).shl(63));
    near.unless(x.abs().gt(x.lit(NEAR)), ScalarFn::Cos, x, x)
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
