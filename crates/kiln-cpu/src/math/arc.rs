//! Arc sine, arc cosine, arc tangent.

use super::lanes::*;

/// Constants for one width.
pub(super) struct ArcConstants {
    /// (asin s / s − 1) / s² by s², for s ≤ 1/2.
    pub(super) asin: &'static [f64],
    /// (atan s / s − 1) / s² by s², for s ≤ 1.
    pub(super) atan: &'static [f64],
    /// π/2 as a sum of two floats.
    pub(super) half_pi: [f64; 2],
}

/// Whether |x| > 1/2, then s and asin(s) − s, where s = |x| or, for |x| > 1/2, √((1 − |x|)/2): asin |x| = π/2 − 2·asin s.
fn asin_parts<F: Float>(c: &ArcConstants, x: F) -> (F::Mask, F, F) {
    let size = x.abs();
    let large = size.gt(x.lit(0.5));
    let half = size.neg_mul_add(x.lit(0.5), x.lit(0.5));
    let z = F::select(large, half, size.square());
    let s = F::select(large, half.sqrt(), size);
    (large, s, polynomial(z, c.asin) * (s * z))
}

/// asin x
pub(super) fn asin<F: Float>(c: &ArcConstants, x: F) -> F {
    let (large, s, rest) = asin_parts(c, x);
    let rest_large = rest - x.lit(0.5 * c.half_pi[1]);
    let y = s + F::select(large, rest_large, rest);
    let y = F::select(large, y.neg_mul_add(x.lit(2.0), x.lit(c.half_pi[0])), y);
    y.signed(x.sign())
}

/// acos x
pub(super) fn acos<F: Float>(c: &ArcConstants, x: F) -> F {
    let (large, s, rest) = asin_parts(c, x);
    let sign = x.sign();
    // π/2 − asin x for |x| ≤ 1/2; 2·asin s for x above; π − 2·asin s for x below.
    let zero = x.lit(0.0);
    let below = x.lt(zero);
    let (base, base_low) = (
        F::select(large, F::select(below, x.lit(2.0 * c.half_pi[0]), zero), x.lit(c.half_pi[0])),
        F::select(large, F::select(below, x.lit(2.0 * c.half_pi[1]), zero), x.lit(c.half_pi[1])),
    );
    let factor = F::select(large, x.lit(2.0), x.lit(-1.0)).flip(sign);
    let y = factor.mul_add(s, base);
    // What is lost in that sum matters where base and s are of one size.
    let lost = factor.mul_add(s, base - y);
    y + (factor.mul_add(rest, base_low) + lost)
}

/// atan of s ≤ 1.
fn atan_reduced<F: Float>(c: &ArcConstants, s: F, low: F) -> F {
    let z = s.square();
    s + polynomial(z, c.atan).mul_add(s * z, low)
}

/// atan x
pub(super) fn atan<F: Float>(c: &ArcConstants, x: F) -> F {
    let size = x.abs();
    let (one, zero) = (x.lit(1.0), x.lit(0.0));
    let large = size.gt(one);
    // atan |x| = π/2 + atan(−1/|x|)
    let s = F::select(large, x.lit(-1.0), size) / F::select(large, size, one);
    let y = atan_reduced(c, s, F::select(large, x.lit(c.half_pi[1]), zero));
    (y + F::select(large, x.lit(c.half_pi[0]), zero)).signed(x.sign())
}

/// The angle of the point (x, y).
pub(super) fn atan2<F: Float>(c: &ArcConstants, y: F, x: F) -> F {
    let (zero, one, infinity) = (x.lit(0.0), x.lit(1.0), x.lit(f64::INFINITY));
    let (width, height) = (x.abs(), y.abs());
    let steep = height.gt(width);
    let (over, under) = (F::select(steep, width, height), F::select(steep, height, width));
    // 0/0 counts as 0, ∞/∞ as 1.
    let q = over / under;
    let q = F::select(under.eq(zero), zero, q);
    let q = F::select(over.eq(infinity), one, q);
    // The quarter: the angle is base ± atan q, then y's sign.
    let left = zero.bits().gt(x.bits());
    let base = F::select(steep, x.lit(c.half_pi[0]), F::select(left, x.lit(2.0 * c.half_pi[0]), zero));
    let base_low = F::select(steep, x.lit(c.half_pi[1]), F::select(left, x.lit(2.0 * c.half_pi[1]), zero));
    // Below: steep and right, or flat and left.
    let flip = F::Int::select(steep, x.sign_mask(), x.int(0)) ^ x.sign();
    let a = atan_reduced(c, q, zero).flip(flip);
    let angle = (base + (a + base_low)).signed(y.sign());
    F::select(x.ne(x), x, F::select(y.ne(y), y, angle))
}
