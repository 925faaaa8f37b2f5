//! Arc sine, arc cosine, arc tangent.

use super::super::lanes::*;

/// (asin s / s − 1) / s² by s², for s ≤ 1/2.
const ASIN: [f64; 5] = [4.216_639_698e-2, 2.418_074_571e-2, 4.546_977_952e-2, 7.495_306_432e-2, 1.666_675_210e-1];

/// (atan s / s − 1) / s² by s², for s ≤ 1.
const ATAN: [f64; 9] = [
    -1.782_816_718e-3,
    1.086_874_679e-2,
    -3.109_715_879e-2,
    5.788_154_900e-2,
    -8.399_312_198e-2,
    1.095_088_124e-1,
    -1.426_401_585e-1,
    1.999_852_955e-1,
    -3.333_329_856e-1,
];

/// π/2 as a sum of two floats.
const HALF_PI: f64 = 1.570_796_370_506_286_6;
const HALF_PI_LOW: f64 = -4.371_138_828_673_793e-8;

/// Whether |x| > 1/2, then s and asin(s) − s, where s = |x| or, for |x| > 1/2, √((1 − |x|)/2): asin |x| = π/2 − 2·asin s.
fn asin_parts<F: Float>(x: F) -> (F::Mask, F, F) {
    let size = x.abs();
    let large = size.gt(x.lit(0.5));
    let half = size.neg_mul_add(x.lit(0.5), x.lit(0.5));
    let z = F::select(large, half, size.square());
    let s = F::select(large, half.sqrt(), size);
    (large, s, polynomial(z, &ASIN) * (s * z))
}

/// asin x
pub fn asin<F: Float>(x: F) -> F {
    let (large, s, rest) = asin_parts(x);
    let rest_large = rest - x.lit(0.5 * HALF_PI_LOW);
    let y = s + F::select(large, rest_large, rest);
    let y = F::select(large, y.neg_mul_add(x.lit(2.0), x.lit(HALF_PI)), y);
    y.signed(x.sign())
}

/// acos x
pub fn acos<F: Float>(x: F) -> F {
    let (large, s, rest) = asin_parts(x);
    let sign = x.sign();
    // π/2 − asin x for |x| ≤ 1/2; 2·asin s for x above; π − 2·asin s for x below.
    let zero = x.lit(0.0);
    let below = x.lt(zero);
    let (base, base_low) = (
        F::select(large, F::select(below, x.lit(2.0 * HALF_PI), zero), x.lit(HALF_PI)),
        F::select(large, F::select(below, x.lit(2.0 * HALF_PI_LOW), zero), x.lit(HALF_PI_LOW)),
    );
    let factor = F::select(large, x.lit(2.0), x.lit(-1.0)).flip(sign);
    let y = factor.mul_add(s, base);
    // What is lost in that sum matters where base and s are of one size.
    let lost = factor.mul_add(s, base - y);
    y + (factor.mul_add(rest, base_low) + lost)
}

/// atan of s ≤ 1.
fn atan_reduced<F: Float>(s: F, low: F) -> F {
    let z = s.square();
    s + polynomial(z, &ATAN).mul_add(s * z, low)
}

/// atan x
pub fn atan<F: Float>(x: F) -> F {
    let size = x.abs();
    let (one, zero) = (x.lit(1.0), x.lit(0.0));
    let large = size.gt(one);
    // atan |x| = π/2 + atan(−1/|x|)
    let s = F::select(large, x.lit(-1.0), size) / F::select(large, size, one);
    let y = atan_reduced(s, F::select(large, x.lit(HALF_PI_LOW), zero));
    (y + F::select(large, x.lit(HALF_PI), zero)).signed(x.sign())
}

/// The angle of the point (x, y).
pub fn atan2<F: Float>(y: F, x: F) -> F {
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
    let base = F::select(steep, x.lit(HALF_PI), F::select(left, x.lit(2.0 * HALF_PI), zero));
    let base_low = F::select(steep, x.lit(HALF_PI_LOW), F::select(left, x.lit(2.0 * HALF_PI_LOW), zero));
    // Below: steep and right, or flat and left.
    let flip = F::Int::select(steep, x.sign_mask(), x.int(0)) ^ x.sign();
    let a = atan_reduced(q, zero).flip(flip);
    let angle = (base + (a + base_low)).signed(y.sign());
    F::select(x.ne(x), x, F::select(y.ne(y), y, angle))
}
