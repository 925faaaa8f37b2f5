//! xʸ, by a logarithm in two floats, so that small whole powers come out exact.

use super::lanes::*;

/// Constants for one width. Pairs are constants as sums of two floats.
pub(super) struct PowerConstants {
    /// (artanh(s) / s − 1 − s²/3) / s⁴ by s², for |s| ≤ (√2 − 1)/(√2 + 1).
    pub(super) artanh: &'static [f64],
    /// (2ʳ − 1 − r·ln 2) / r², for |r| ≤ 1/2.
    pub(super) exp2: &'static [f64],
    /// 1/3
    pub(super) third: [f64; 2],
    /// 2·log₂ e
    pub(super) two_log2_e: [f64; 2],
    /// ln 2
    pub(super) ln2: [f64; 2],
    /// 2 to this power is out of range, as is its inverse.
    pub(super) limit: f64,
}

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
    pub(super) fn lit(x: F, [high, low]: [f64; 2]) -> Sum<F> {
        Sum(x.lit(high), x.lit(low))
    }
}

/// log₂ of 2ᵉ·(1 + f), a positive finite number, with some 10 bits more than a float has.
pub(super) fn log2_sum<F: Float>(c: &PowerConstants, (e, f): (F, F)) -> Sum<F> {
    // s = f / (2 + f); then ln(1 + f) = 2·artanh s.
    let below = Sum::of(f.lit(2.0), f);
    let inverse = f.lit(1.0) / below.0;
    let high = f * inverse;
    let rest = high.neg_mul_add(below.1, high.neg_mul_add(below.0, f));
    let s = Sum(high, rest * inverse);
    let z = s.times(s);
    let cube = s.times(z);
    let third = cube.times(Sum::lit(f, c.third));
    let tail = polynomial(z.0, c.artanh) * z.0 * cube.0;
    let head = Sum::of(s.0, third.0);
    let artanh = Sum(head.0, head.1 + (s.1 + (third.1 + tail)));
    let log = artanh.times(Sum::lit(f, c.two_log2_e));
    let sum = Sum::of(e, log.0);
    Sum::of(sum.0, sum.1 + log.1)
}

/// 2 to the power of a sum, where |p.0| is at most the limit.
fn exp2_sum<F: Float>(c: &PowerConstants, p: Sum<F>) -> F {
    let n = p.0.round();
    let one = n.lit(1.0);
    let r = Sum::of(p.0 - n, p.1);
    let linear = r.times(Sum::lit(n, c.ln2));
    let rest = polynomial(r.0, c.exp2).mul_add(r.0.square(), linear.1);
    let head = Sum::of(one, linear.0);
    (head.0 + (head.1 + rest)).scale(n)
}

/// xʸ; `split` decomposes a positive number into e and f with 2ᵉ·(1 + f) and √½ ≤ 1 + f < √2.
pub(super) fn pow<F: Float>(c: &PowerConstants, split: impl FnOnce(F) -> (F, F), x: F, y: F) -> F {
    let (zero, one, infinity) = (x.lit(0.0), x.lit(1.0), x.lit(f64::INFINITY));
    let size = x.abs();
    let log = log2_sum(c, split(size));
    let log_high = F::select(size.eq(zero), x.lit(f64::NEG_INFINITY), log.0);
    // ∞ and NaN stay.
    let log_high = F::select(size.lt(infinity), log_high, size);
    // Where the product is out of range its second part counts for nothing, and may be NaN.
    let product = y * log_high;
    let low = y.mul_add(log.1, y.mul_sub(log_high, product));
    let low = F::select(product.abs().lt(x.lit(c.limit)), low, zero);
    let high = x.lit(c.limit).min(product);
    let high = x.lit(-c.limit).max(high);
    let power = exp2_sum(c, Sum(high, low));
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
