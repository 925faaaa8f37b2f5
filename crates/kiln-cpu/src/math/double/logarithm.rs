//! ln x, log₂ x, ln(1 + x).

use super::super::lanes::*;
use super::exponential::{LN2_HIGH, LN2_LOW};

/// (2·artanh(s) / s − 2) / s² by s², for |s| ≤ (√2 − 1)/(√2 + 1).
const LOG: [f64; 7] = [
    0.147_959_497_139_574_04,
    0.153_140_581_343_515_46,
    0.181_835_636_971_141_52,
    0.222_221_985_927_076_12,
    0.285_714_287_421_091_45,
    0.399_999_999_994_164_6,
    0.666_666_666_666_673_4,
];

/// The bits of √½ and of 1.
const SQRT_HALF: i64 = 0x3fe6_a09e_667f_3bcd;
const ONE: i64 = 0x3ff0_0000_0000_0000;

/// e and f with x = 2ᵉ·(1 + f) and √½ ≤ 1 + f < √2, for positive x, also below the normal range.
pub fn split<F: Float>(x: F) -> (F, F) {
    let tiny = x.lt(x.lit(f64::MIN_POSITIVE));
    let x = F::select(tiny, x * x.lit(2f64.powi(54)), x);
    let (e, f) = split_normal(x);
    (e.to_float() - F::select(tiny, x.lit(1023.0 + 54.0), x.lit(1023.0)), f)
}

/// As [`split`], for normal x, with e + 1023.
fn split_normal<F: Float>(x: F) -> (F::Int, F) {
    let bits = x.bits() + x.int(ONE - SQRT_HALF);
    let mantissa = (bits & x.int((1 << 52) - 1)) + x.int(SQRT_HALF);
    (bits.shr(52), mantissa.float() - x.lit(1.0))
}

/// ln(1 + f) − f
fn log_rest<F: Float>(f: F, low: F) -> F {
    let s = f / (f + f.lit(2.0));
    let z = s.square();
    let half = f.square() * f.lit(0.5);
    let r = polynomial(z, &LOG).mul_add(z, half);
    s.mul_add(r, low) - half
}

/// e·ln 2 + ln(1 + f)
fn log_of_parts<F: Float>(e: F, f: F) -> F {
    let y = log_rest(f, e * f.lit(LN2_LOW)) + f;
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
    const HIGH: f64 = std::f64::consts::LOG2_E;
    const LOW: f64 = 2.035_527_374_093_103_3e-17;
    let (e, f) = split(x);
    let y = log_rest(f, f.lit(0.0));
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
    let (biased, far) = split_normal(u);
    // 1 + f = (1 + x)·2⁻ᵉ with one rounding; for large x, where 2⁻ᵉ could leave the range, x itself counts.
    let power = (x.int(2046) - biased).shl(52).float();
    let near = x.mul_add(power, power - one);
    let f = F::select(x.gt(x.lit(1e250)), far, near);
    let y = log_of_parts(biased.to_float() - x.lit(1023.0), f);
    // −0 stays.
    with_special(u, F::select(x.eq(x.lit(0.0)), x, y))
}
