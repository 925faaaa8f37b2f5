//! ln x, log₂ x, ln(1 + x).

use super::super::lanes::*;
use super::exponential::{LN2_HIGH, LN2_LOW};

/// (ln(1 + f) − f + f²/2) / f³ for √½ ≤ 1 + f ≤ √2.
const LOG: [f64; 8] = [
    -7.640_989_12e-2,
    0.127_656_072,
    -0.131_595_477,
    0.142_010_823,
    -0.166_233_465,
    0.200_012_594,
    -0.250_008_225,
    0.333_333_313,
];

/// The bits of √½.
const SQRT_HALF: i64 = 0x3f35_04f3;

/// e and f with x = 2ᵉ·(1 + f) and √½ ≤ 1 + f < √2, for positive x, also below the normal range.
pub fn split<F: Float>(x: F) -> (F, F) {
    let tiny = x.lt(x.lit(f32::MIN_POSITIVE.into()));
    let x = F::select(tiny, x * x.lit(8_388_608.0), x);
    let (e, f) = split_normal(x);
    (e - F::select(tiny, x.lit(23.0), x.lit(0.0)), f)
}

/// As [`split`], for normal x.
fn split_normal<F: Float>(x: F) -> (F, F) {
    let e = exponent(x);
    (e.to_float(), (x.bits() - e.shl(23)).float() - x.lit(1.0))
}

fn exponent<F: Float>(x: F) -> F::Int {
    (x.bits() - x.int(SQRT_HALF)).sar(23)
}

/// e·ln 2 + ln(1 + f)
fn log_of_parts<F: Float>(e: F, f: F) -> F {
    let z = f.square();
    let y = polynomial(f, &LOG).mul_add(f * z, e * f.lit(LN2_LOW));
    let y = z.neg_mul_add(f.lit(0.5), y) + f;
    e.mul_add(f.lit(LN2_HIGH), y)
}

/// The logarithm of x where that is no number to compute: −∞ at 0, NaN below, x itself if it is ∞ or NaN.
fn with_special<F: Float>(x: F, y: F) -> F {
    let pole = F::select(x.eq(x.lit(0.0)), x.lit(f64::NEG_INFINITY), x.lit(f64::NAN));
    let y = F::select(x.lt(x.lit(f64::INFINITY)), y, x);
    F::select(x.gt(x.lit(0.0)), y, pole)
}

/// ln x
pub fn log<F: Float>(x: F) -> F {
    let (e, f) = split(x);
    with_special(x, log_of_parts(e, f))
}

/// log₂ x
pub fn log2<F: Float>(x: F) -> F {
    const HIGH: f64 = 1.442_695_021_629_333_5;
    const LOW: f64 = 1.925_963_033_500_011e-8;
    let (e, f) = split(x);
    let y = (polynomial(f, &LOG).mul_sub(f, f.lit(0.5))) * f.square();
    // (f + y)·log₂e: the product of f, which is the larger, with the error of its rounding.
    let high = f * f.lit(HIGH);
    let low = f.mul_add(f.lit(LOW), f.mul_sub(f.lit(HIGH), high));
    let low = y.mul_add(f.lit(HIGH), low);
    with_special(x, e + (high + low))
}

/// ln(1 + x)
pub fn log1p<F: Float>(x: F) -> F {
    let one = x.lit(1.0);
    let u = x + one;
    let e = exponent(u);
    // 1 + f = (1 + x)·2⁻ᵉ with one rounding; for large x, where 2⁻ᵉ could leave the range, x itself counts.
    let power = (x.int(127) - e).shl(23).float();
    let near = x.mul_add(power, power - one);
    let far = (u.bits() - e.shl(23)).float() - one;
    let f = F::select(x.gt(x.lit(1e30)), far, near);
    let y = log_of_parts(e.to_float(), f);
    // −0 stays.
    with_special(u, F::select(x.eq(x.lit(0.0)), x, y))
}
