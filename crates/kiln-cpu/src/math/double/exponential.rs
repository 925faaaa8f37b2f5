//! eˣ, 2ˣ, eˣ − 1.

use super::super::lanes::*;
use std::f64::consts::LOG2_E;

/// ln 2 as a sum of two floats; n · `LN2_HIGH` is subtracted without error by a fused operation.
pub(super) const LN2_HIGH: f64 = std::f64::consts::LN_2;
pub(super) const LN2_LOW: f64 = 2.319_046_813_846_299_6e-17;

/// 1.5·2⁵²: a float of this size has its integer part in the lowest bits.
pub(super) const MAGIC: f64 = 6_755_399_441_055_744.0;

/// (eʳ − 1 − r) / r² for |r| ≤ ln 2 / 2.
const EXP: [f64; 10] = [
    2.501_097_222_959_902_3e-8,
    2.763_082_232_711_829e-7,
    2.755_755_766_156_55e-6,
    2.480_149_159_314_555_7e-5,
    0.000_198_412_695_322_051_9,
    0.001_388_888_894_497_076,
    0.008_333_333_333_485_668,
    0.041_666_666_666_525_555,
    0.166_666_666_666_664_21,
    0.500_000_000_000_001_1,
];

/// 2ʳ for |r| ≤ 1/2.
const EXP2: [f64; 12] = [
    4.519_333_912_021_681e-10,
    7.075_614_695_897_797_5e-9,
    1.017_765_601_647_354_8e-7,
    1.321_542_448_844_134_6e-6,
    1.525_273_473_802_637_7e-5,
    0.000_154_035_304_788_539_5,
    0.001_333_355_814_556_75,
    0.009_618_129_107_577_068,
    0.055_504_108_664_824_574,
    0.240_226_506_959_101_72,
    std::f64::consts::LN_2,
    1.0,
];

/// n = x / ln 2 rounded, as the lowest bits of a float: + `bias`.
fn steps<F: Float>(x: F, bias: f64) -> (F::Int, F) {
    let magic = x.lit(MAGIC + bias);
    let t = x.mul_add(x.lit(LOG2_E), magic);
    (t.bits(), t - magic)
}

/// eʳ − 1 for r = x − n·ln 2.
fn expm1_reduced<F: Float>(x: F, n: F) -> F {
    let r = n.neg_mul_add(x.lit(LN2_HIGH), x);
    let r = n.neg_mul_add(x.lit(LN2_LOW), r);
    polynomial(r, &EXP).mul_add(r.square(), r)
}

/// eˣ
pub fn exp<F: Float>(x: F) -> F {
    // Beyond these the result is ∞ or 0. The operand comes last, so that NaN passes.
    let x = x.lit(710.0).min(x);
    let x = x.lit(-746.0).max(x);
    let n = (x * x.lit(LOG2_E)).round();
    (expm1_reduced(x, n) + x.lit(1.0)).scale(n)
}

/// eˣ for x ≤ 0.
pub fn exp_nonpositive<F: Float>(x: F) -> F {
    let x = x.lit(-746.0).max(x);
    // The exponent of 2ⁿ⁺⁶⁴: only the last product can leave the normal range and round.
    let (bits, n) = steps(x, 1023.0 + 64.0);
    let p = expm1_reduced(x, n) + x.lit(1.0);
    p * bits.shl(52).float() * x.lit(2f64.powi(-64))
}

/// 2ˣ
pub fn exp2<F: Float>(x: F) -> F {
    let x = x.lit(1025.0).min(x);
    let x = x.lit(-1080.0).max(x);
    let n = x.round();
    polynomial(x - n, &EXP2).scale(n)
}

/// eˣ − 1
pub fn expm1<F: Float>(x: F) -> F {
    let tiny = x.abs().lt(x.lit(1e-300));
    let x = x.lit(710.0).min(x);
    let x = x.lit(-40.0).max(x);
    // The exponent of 2ⁿ⁻¹.
    let (bits, n) = steps(x, 1022.0);
    let half = bits.shl(52).float();
    let p = expm1_reduced(x, n);
    // 2ⁿ·(p + 1) − 1, halved: 2ⁿ itself may be out of range. That would cost −0 its sign and denormals a bit.
    let y = half.mul_add(p, half - x.lit(0.5));
    F::select(tiny, x, y + y)
}
