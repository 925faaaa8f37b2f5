//! ln|Γ(x)|

use super::super::lanes::*;
use super::super::power::{Sum, log2_sum};
use super::logarithm::split;
use super::tables::POWER;
use crate::vir::ScalarFn;
use kiln_ir::UnaryOp;

/// ln Γ(1 + t) / t for −0.3 ≤ t ≤ 0.7.
const ONE: [f64; 12] = [
    2.077_573_910e-2,
    -7.034_289_837e-2,
    1.102_646_440e-1,
    -1.211_857_498e-1,
    1.266_892_999e-1,
    -1.430_776_417e-1,
    1.693_141_609e-1,
    -2.074_168_622e-1,
    2.705_917_656e-1,
    -4.006_853_998e-1,
    8.224_669_099e-1,
    -5.772_156_649e-1,
];

/// ln Γ(2 + t) / t for −0.6 ≤ t ≤ 1.
const TWO: [f64; 12] = [
    1.295_265_974e-5,
    -5.125_916_141e-5,
    1.094_418_549e-4,
    -2.231_035_032e-4,
    5.063_861_609e-4,
    -1.192_298_136e-3,
    2.890_742_850e-3,
    -7.385_595_702e-3,
    2.058_085_240e-2,
    -6.735_230_237e-2,
    3.224_670_291e-1,
    4.227_843_351e-1,
];

/// (ln Γ(x) − (x − ½)·(ln x − 1) − (ln 2π − 1)/2)·x by 1/x², for x ≥ 3.
const STIRLING: [f64; 3] = [6.792_466_738e-4, -2.769_936_575e-3, 8.333_316_445e-2];

/// What the last coefficients of both, −γ and 1 − γ, lose as floats.
const LAST: f64 = 6.637_773_78e-9;

/// ln|Γ(x)|. Positive x: polynomials up to 3, then Stirling's series with the logarithm in two floats. Negative x, where
/// the function has infinitely many zeros, call the scalar function.
pub fn lgamma<F: Float>(x: F) -> F {
    let (zero, one) = (x.lit(0.0), x.lit(1.0));
    let log = log2_sum(&POWER, split(x)).times(Sum::lit(x, POWER.ln2));

    // t from 1 or from 2, the zeros; below 0.7 one step up: ln Γ(x) = ln Γ(1 + x) − ln x.
    let (small, low) = (x.lt(x.lit(0.7)), x.lt(x.lit(1.4)));
    let t = F::select(small, x, x - one);
    let from_one = polynomial(t, &ONE).mul_add(t, t.mul_sub(x.lit(LAST), F::select(small, log.1, zero)))
        - F::select(small, log.0, zero);
    let t = x - x.lit(2.0);
    let from_two = polynomial(t, &TWO).mul_add(t, t * x.lit(LAST));
    let near = F::select(low, from_one, from_two);

    let inverse = one / x;
    let rest = polynomial(inverse.square(), &STIRLING).mul_add(inverse, x.lit(0.418_938_533_204_672_7));
    let less = Sum::of(log.0, -one);
    let product = Sum(x - x.lit(0.5), zero).times(Sum(less.0, less.1 + log.1));
    let far = product.0 + (product.1 + rest);

    let y = F::select(x.lt(x.lit(3.0)), near, far);
    // ∞ at 0; ∞ and NaN stay; beyond the range the sums above hold ∞ − ∞.
    let y = F::select(x.eq(zero), x.lit(f64::INFINITY), y);
    let y = F::select(x.gt(x.lit(4.085e36)), x.lit(f64::INFINITY), y);
    let y = F::select(x.ne(x), x, y);
    y.unless(x.lt(zero), ScalarFn::Unary(UnaryOp::Lgamma), x, x)
}
