//! xʸ

use super::super::lanes::*;
use super::logarithm::split;

/// (artanh(s) / s − 1 − s²/3) / s⁴ by s², for |s| ≤ (√2 − 1)/(√2 + 1).
const ARTANH: [f64; 3] = [1.170_995_012e-1, 1.427_354_217e-1, 2.000_007_629e-1];

/// (2ʳ − 1 − r·ln 2) / r², for |r| ≤ 1/2.
const EXP2: [f64; 6] =
    [1.344_004_704e-5, 1.545_346_167e-4, 1.334_036_817e-3, 9.618_083_946e-3, 5.550_405_011e-2, 2.402_265_072e-1];

/// An unevaluated sum of two floats, of which the second is small.
#[derive(Clone, Copy)]
pub(super) struct Sum<F>(pub(super) F, pub(super) F);

impl<F: Float> Sum<F> {
    /// a + b exactly, for |a| ≥ |b| or a = 0.
    pub(super) fn of(a: F, b: F) -> Sum<F> {
        let sum = a + b;
        Sum(sum, b - (sum - a))
    }

    /// The product, but for the product of the small parts.
    pub(super) fn times(self, other: Sum<F>) -> Sum<F> {
        let product = self.0 * other.0;
        let low = self.0.mul_sub(other.0, product);
        Sum(product, self.1.mul_add(other.0, self.0.mul_add(other.1, low)))
    }

    /// A constant that needs two floats.
    pub(super) fn lit(x: F, high: f64, low: f64) -> Sum<F> {
        Sum(x.lit(high), x.lit(low))
    }
}

/// log₂ of a positive finite number, with an error below 2⁻³³ of it.
pub(super) fn log2_sum<F: Float>(x: F) -> Sum<F> {
    let (e, f) = split(x);
    // s = f / (2 + f); then ln(1 + f) = 2·artanh s.
    let below = Sum::of(x.lit(2.0), f);
    let inverse = x.lit(1.0) / below.0;
    let high = f * inverse;
    let rest = high.neg_mul_add(below.1, high.neg_mul_add(below.0, f));
    let s = Sum(high, rest * inverse);
    let z = s.times(s);
    let cube = s.times(z);
    let third = cube.times(Sum::lit(x, 0.333_333_343_267_440_8, -9.934_107_758_624_577e-9));
    let tail = polynomial(z.0, &ARTANH) * z.0 * cube.0;
    let head = Sum::of(s.0, third.0);
    let artanh = Sum(head.0, head.1 + (s.1 + (third.1 + tail)));
    let log = artanh.times(Sum::lit(x, 2.885_390_043_258_667, 3.851_926_067_000_022e-8));
    let sum = Sum::of(e, log.0);
    Sum(sum.0, sum.1 + log.1)
}

/// 2 to the power of a sum, where |p.0| ≤ 200.
fn exp2_sum<F: Float>(p: Sum<F>) -> F {
    let n = p.0.round();
    let one = n.lit(1.0);
    let r = Sum::of(p.0 - n, p.1);
    let linear = r.times(Sum::lit(n, 0.693_147_182_464_599_6, -1.904_654_212_125_933_6e-9));
    let rest = polynomial(r.0, &EXP2).mul_add(r.0.square(), linear.1);
    let head = Sum::of(one, linear.0);
    (head.0 + (head.1 + rest)).scale(n)
}

/// xʸ
pub fn pow<F: Float>(x: F, y: F) -> F {
    let (zero, one, infinity) = (x.lit(0.0), x.lit(1.0), x.lit(f64::INFINITY));
    let size = x.abs();
    let log = log2_sum(size);
    let log_high = F::select(size.eq(zero), -infinity, log.0);
    // ∞ and NaN stay.
    let log_high = F::select(size.lt(infinity), log_high, size);
    // Where the product is out of range its second part counts for nothing, and may be NaN.
    let product = y * log_high;
    let low = y.mul_add(log.1, y.mul_sub(log_high, product));
    let low = F::select(product.abs().lt(x.lit(200.0)), low, zero);
    let high = x.lit(200.0).min(product);
    let high = x.lit(-200.0).max(high);
    let power = exp2_sum(Sum(high, low));
    // (−1)^±∞ = 1; the product above is 0·∞.
    let unit = size.eq(one) & y.abs().eq(infinity);
    let power = F::select(unit, one, power);
    // Negative bases: odd powers have their sign, broken ones no value.
    let half = y * x.lit(0.5);
    let whole = y.trunc().eq(y);
    let odd = whole & half.trunc().ne(half);
    let power = power.signed(F::Int::select(odd, x.sign(), x.int(0)));
    let broken = x.lt(zero) & !(whole | size.eq(infinity));
    let power = F::select(broken, x.lit(f64::NAN), power);
    // x⁰ = 1ʸ = 1, even of NaN.
    F::select(x.eq(one) | y.eq(zero), one, power)
}
