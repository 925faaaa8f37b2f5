//! Logarithms, for F32.

use super::*;

const F: Ty = Ty::F32;
const I: Ty = Ty::I32;

/// x = 2ⁱ·(1 + m) with m in −1/3..1/3: (i, m). For positive normal and denormal x.
fn split(b: &mut Builder, x: V) -> (V, V) {
    // Denormals are brought up by 2²³ first.
    let (least, up) = (b.splat(F, f64::from(f32::MIN_POSITIVE)), b.splat(F, 8388608.0));
    let (zero, lower) = (b.splat(F, 0.0), b.splat(F, -23.0));
    let tiny = b.compare(CompareOp::Lt, F, x, least);
    let larger = b.mul(F, x, up);
    let x = b.select(F, tiny, larger, x);
    let start = b.select(F, tiny, lower, zero);
    let two_thirds = b.bits(I, 0x3f2a_aaab);
    let offset = b.sub(I, x, two_thirds);
    let exponent = b.bits(I, 0xff80_0000);
    let e = b.and(I, offset, exponent);
    let mantissa = b.sub(I, x, e);
    let steps = b.convert(F, I, e);
    let unit = b.splat(F, 1.1920928955078125e-7);
    let i = b.fma(F, steps, unit, start);
    let one = b.splat(F, 1.0);
    (i, b.sub(F, mantissa, one))
}

/// ln(1 + m) for m in −1/3..1/3, as (m², the factor of it): ln(1 + m) = factor·m² + m.
fn series(b: &mut Builder, m: V) -> (V, V) {
    let s = b.mul(F, m, m);
    let r = polynomial(b, F, s, &[-0.130310059, -0.121483512, -0.166846126, -0.249996200]);
    let t = polynomial(b, F, s, &[0.140869141, 0.139814854, 0.200120345]);
    let r = b.fma(F, t, m, r);
    let (third, half) = (b.splat(F, 0.333331972), b.splat(F, -0.5));
    let r = b.fma(F, r, m, third);
    (s, b.fma(F, r, m, half))
}

/// Results outside the positive finite numbers: ∞ and NaN stay, 0 gives −∞, negative numbers NaN.
fn special(b: &mut Builder, x: V, r: V) -> V {
    let (zero, infinity) = (b.splat(F, 0.0), b.splat(F, f64::INFINITY));
    let (lowest, nan) = (b.splat(F, f64::NEG_INFINITY), b.splat(F, f64::NAN));
    let positive = b.compare(CompareOp::Gt, F, x, zero);
    let finite = b.compare(CompareOp::Lt, F, x, infinity);
    let plain = b.and(Ty::Mask, positive, finite);
    let is_zero = b.compare(CompareOp::Eq, F, x, zero);
    let rest = b.select(F, positive, x, nan);
    let rest = b.select(F, is_zero, lowest, rest);
    b.select(F, plain, r, rest)
}

/// ln x
pub(super) fn log(b: &mut Builder, x: V) -> V {
    let (i, m) = split(b, x);
    let (s, factor) = series(b, m);
    let r = b.fma(F, factor, s, m);
    let ln2 = b.splat(F, std::f64::consts::LN_2);
    let r = b.fma(F, i, ln2, r);
    special(b, x, r)
}

/// log₂ x: the product with log₂ e is carried in two parts.
pub(super) fn log2(b: &mut Builder, x: V) -> V {
    let (i, m) = split(b, x);
    let (s, factor) = series(b, m);
    let tail = b.mul(F, factor, s);
    // log₂ e = high + low, and m·high is exact in two parts.
    let (high, low) = (b.splat(F, 1.44269502162933349609375), b.splat(F, 1.925963033500011e-8));
    let p = b.mul(F, m, high);
    let lost = b.fma_op(FmaOp::Sub, F, m, high, p);
    let lost = b.fma(F, m, low, lost);
    let lost = b.fma(F, tail, high, lost);
    // i and p: i is integral and either 0 or larger.
    let sum = b.add(F, i, p);
    let back = b.sub(F, sum, i);
    let error = b.sub(F, p, back);
    let lost = b.add(F, lost, error);
    let r = b.add(F, sum, lost);
    special(b, x, r)
}

/// ln(1 + x)
pub(super) fn log1p(b: &mut Builder, x: V) -> V {
    let one = b.splat(F, 1.0);
    let u = b.add(F, x, one);
    let three_quarters = b.bits(I, u64::from(0.75f32.to_bits()));
    let offset = b.sub(I, u, three_quarters);
    let exponent = b.bits(I, 0xff80_0000);
    let e = b.and(I, offset, exponent);
    // (1 + x)·2⁻ⁱ − 1 = x·2⁻ⁱ + (2⁻ⁱ − 1)
    let m = b.sub(I, x, e);
    let four = b.bits(I, u64::from(4f32.to_bits()));
    let s = b.sub(I, four, e);
    let (quarter, minus) = (b.splat(F, 0.25), b.splat(F, -1.0));
    let shift = b.fma(F, quarter, s, minus);
    let m = b.add(F, m, shift);
    let steps = b.convert(F, I, e);
    let unit = b.splat(F, 1.1920928955078125e-7);
    let i = b.mul(F, steps, unit);
    let s = b.mul(F, m, m);
    let r = polynomial(b, F, s, &[-4.534_827_92e-2, -1.322_963_83e-1, -1.664_157_66e-1, -2.500_027_72e-1]);
    let t = polynomial(b, F, s, &[1.054_694_80e-1, 1.449_144_04e-1, 1.998_886_32e-1]);
    let r = b.fma(F, t, m, r);
    let (third, half) = (b.splat(F, 3.333_352_80e-1), b.splat(F, -0.5));
    let r = b.fma(F, r, m, third);
    let r = b.fma(F, r, m, half);
    let r = b.fma(F, r, s, m);
    let ln2 = b.splat(F, std::f64::consts::LN_2);
    let r = b.fma(F, i, ln2, r);
    // Outside −1 < x < ∞, and ±0, which stays.
    let (zero, infinity) = (b.splat(F, 0.0), b.splat(F, f64::INFINITY));
    let (lowest, nan) = (b.splat(F, f64::NEG_INFINITY), b.splat(F, f64::NAN));
    let above = b.compare(CompareOp::Gt, F, x, minus);
    let finite = b.compare(CompareOp::Lt, F, x, infinity);
    let plain = b.and(Ty::Mask, above, finite);
    let at_pole = b.compare(CompareOp::Eq, F, x, minus);
    let rest = b.select(F, above, x, nan);
    let rest = b.select(F, at_pole, lowest, rest);
    let r = b.select(F, plain, r, rest);
    let is_zero = b.compare(CompareOp::Eq, F, x, zero);
    b.select(F, is_zero, x, r)
}
