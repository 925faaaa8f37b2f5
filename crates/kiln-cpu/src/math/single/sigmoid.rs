//! tanh, the error function and its inverse.

use super::super::lanes::*;
use super::{exp, exp_nonpositive, log};

/// (tanh x / x − 1) / x² by x², for |x| ≤ 0.6.
const TANH: [f64; 5] = [-5.897_972_267e-3, 2.079_862_729e-2, -5.378_471_687e-2, 1.333_193_630e-1, -3.333_329_856e-1];

/// erf x / x − 1 by x², for |x| ≤ 1.
const ERF_NEAR: [f64; 7] = [
    7.806_903_159e-5,
    -7.997_853_099e-4,
    5.187_162_198e-3,
    -2.685_334_72e-2,
    1.128_357_872e-1,
    -3.761_262_596e-1,
    1.283_791_661e-1,
];

/// The fourth root of 1 − erf x, for 1 ≤ x ≤ 3.93.
const ERF_FAR: [f64; 9] = [
    -2.276_961_459e-5,
    1.858_563_919e-4,
    7.225_650_479e-4,
    -1.254_906_598e-2,
    4.334_894_94e-2,
    -1.681_469_567e-2,
    -9.392_979_741e-2,
    -2.932_872_474e-1,
    1.002_115_726,
];

/// erf⁻¹(x) / |x| − 1 by w = −ln(1 − x²), for w ≤ 5.
const INVERSE_NEAR: [f64; 10] = [
    -8.807_018_226e-9,
    2.214_097_634e-7,
    -1.980_248_726e-6,
    4.003_941_740e-6,
    4.449_788_685e-5,
    -1.273_491_944e-4,
    -2.334_449_207e-3,
    1.154_874_917e-2,
    2.320_137_918e-1,
    -1.137_730_777e-1,
];

/// erf⁻¹(x) / |x| − 1 by √w − 3, for w ≥ 5 and x < 1.
const INVERSE_FAR: [f64; 10] = [
    9.512_498_946e-5,
    -2.915_582_445e-4,
    -2.697_839_227e-5,
    1.462_654_443e-3,
    -3.612_841_945e-3,
    5.695_560_947e-3,
    -7.634_067_908e-3,
    9.444_277_734e-3,
    1.001_674_771,
    1.832_976_818,
];

/// tanh x
pub fn tanh<F: Float>(x: F) -> F {
    let size = x.abs();
    let z = x.square();
    let near = polynomial(z, &TANH).mul_add(size * z, size);
    // 1 − 2e/(1 + e) with e = exp(−2|x|) ≤ 1.
    let e = exp_nonpositive(size * x.lit(-2.0));
    let one = x.lit(1.0);
    let far = one - (e + e) / (one + e);
    F::select(size.lt(x.lit(0.6)), near, far).signed(x.sign())
}

/// 1 + tanh x = 2 / (1 + e⁻²ˣ), without the cancellation for negative x.
pub fn one_plus_tanh<F: Float>(x: F) -> F {
    let e = exp(x * x.lit(-2.0));
    x.lit(2.0) / (e + x.lit(1.0))
}

/// The error function.
pub fn erf<F: Float>(x: F) -> F {
    let size = x.abs();
    let near = polynomial(x.square(), &ERF_NEAR).mul_add(size, size);
    // Beyond 3.93 the result is 1. The operand comes last, so that NaN passes.
    let far = polynomial(x.lit(3.93).min(size), &ERF_FAR);
    let far = far.square();
    let far = far.neg_mul_add(far, x.lit(1.0));
    F::select(size.lt(x.lit(1.0)), near, far).signed(x.sign())
}

/// The inverse of [`erf`]. Both polynomials after M. Giles, "Approximating the erfinv function" (2010), with more terms.
pub fn erf_inv<F: Float>(x: F) -> F {
    let (size, one) = (x.abs(), x.lit(1.0));
    let w = -log((one - size) * (one + size));
    let near = polynomial(w, &INVERSE_NEAR);
    let far = polynomial(w.sqrt() - x.lit(3.0), &INVERSE_FAR);
    let y = F::select(w.lt(x.lit(5.0)), near, far).mul_add(size, size);
    // At 1 the polynomial has no value.
    let y = F::select(size.eq(one), x.lit(f64::INFINITY), y);
    y.signed(x.sign())
}
