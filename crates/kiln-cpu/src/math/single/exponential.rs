//! eˣ, 2ˣ, eˣ − 1.

use super::super::lanes::*;
use std::f64::consts::LOG2_E;

/// ln 2 as a sum of two floats; n · `LN2_HIGH` is subtracted without error by a fused operation.
pub(super) const LN2_HIGH: f64 = 0.693_147_182_464_599_6;
pub(super) const LN2_LOW: f64 = -1.904_654_212_125_933_6e-9;

/// 1.5·2²³: a float of this size has its integer part in the lowest bits.
const MAGIC: f64 = 12_582_912.0;

/// (eʳ − 1 − r) / r² for |r| ≤ ln 2 / 2, as a coefficient list that ends with those of r and 1.
const EXP: [f64; 7] = [1.384_599_37e-3, 8.369_726_13e-3, 4.166_804_25e-2, 1.666_651_22e-1, 0.499_999_94, 1.0, 1.0];

/// The same, as close as it gets relative to eʳ − 1.
const EXPM1: [f64; 5] = [1.384_394_94e-3, 8.367_211_56e-3, 4.166_772_22e-2, 1.666_653_75e-1, 0.499_999_97];

/// 2ʳ for |r| ≤ 1/2.
const EXP2: [f64; 7] =
    [1.333_092_95e-4, 1.338_787_96e-3, 9.625_446_05e-3, 5.550_366_27e-2, 2.402_259_41e-1, 0.693_147_182, 1.0];

/// eˣ
pub fn exp<F: Float>(x: F) -> F {
    // Beyond these the result is ∞ or 0. The operand comes last, so that NaN passes.
    let x = x.lit(89.0).min(x);
    let x = x.lit(-104.0).max(x);
    let n = (x * x.lit(LOG2_E)).round();
    polynomial(reduced(x, n), &EXP).scale(n)
}

/// x − n·ln 2
fn reduced<F: Float>(x: F, n: F) -> F {
    let r = n.neg_mul_add(x.lit(LN2_HIGH), x);
    n.neg_mul_add(x.lit(LN2_LOW), r)
}

/// eˣ for x ≤ 0.
pub fn exp_nonpositive<F: Float>(x: F) -> F {
    let x = x.lit(-104.0).max(x);
    // The lowest bits of t are n + 159, the exponent of 2ⁿ⁺³²: only the last product can leave the normal range and round.
    let magic = x.lit(MAGIC + 159.0);
    let t = x.mul_add(x.lit(LOG2_E), magic);
    let p = polynomial(reduced(x, t - magic), &EXP);
    p * t.bits().shl(23).float() * x.lit(1.0 / 4_294_967_296.0)
}

/// 2ˣ
pub fn exp2<F: Float>(x: F) -> F {
    let x = x.lit(129.0).min(x);
    let x = x.lit(-151.0).max(x);
    let n = x.round();
    polynomial(x - n, &EXP2).scale(n)
}

/// eˣ − 1
pub fn expm1<F: Float>(x: F) -> F {
    let tiny = x.abs().lt(x.lit(1e-30));
    let x = x.lit(89.0).min(x);
    let x = x.lit(-18.0).max(x);
    // The lowest bits of t are n + 126, the exponent of 2ⁿ⁻¹.
    let magic = x.lit(MAGIC + 126.0);
    let t = x.mul_add(x.lit(LOG2_E), magic);
    let half = t.bits().shl(23).float();
    let r = reduced(x, t - magic);
    let p = polynomial(r, &EXPM1).mul_add(r.square(), r);
    // 2ⁿ·(p + 1) − 1, halved: 2ⁿ itself may be out of range. That would cost −0 its sign and denormals a bit.
    let y = half.mul_add(p, half - x.lit(0.5));
    F::select(tiny, x, y + y)
}
