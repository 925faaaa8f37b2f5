//! The derivative of ln|Γ(x)|, which is no primitive.

use super::{Built, Emit, add, add_scalar, compare_scalar, floor, log, mul, mul_scalar, neg, recip, select, sub, tan};
use crate::CompareOp;
use std::f64::consts::PI;

/// Terms of the recurrence ψ(x) = ψ(x + 1) − 1/x that are spent on getting away from 0.
const STEPS: usize = 8;

/// B₂ₖ / 2k of the asymptotic series ψ(z) ≈ ln z − 1/2z − Σ B₂ₖ/2k · z⁻²ᵏ.
const SERIES: [f64; 7] =
    [1.0 / 12.0, -1.0 / 120.0, 1.0 / 252.0, -1.0 / 240.0, 1.0 / 132.0, -691.0 / 32760.0, 1.0 / 12.0];

/// ψ(x), the logarithmic derivative of Γ, of a value of f32 or f64: reflected to the right of 1/2, moved to the right of 8
/// by the recurrence, there by the asymptotic series.
#[track_caller]
pub fn digamma<E: Emit>(e: &mut E, x: &E::Value) -> Built<E> {
    // ψ(x) = ψ(1 − x) − π / tan(πx)
    let left = compare_scalar(e, CompareOp::Lt, x, 0.5)?;
    let negative = neg(e, x)?;
    let mirrored = add_scalar(e, &negative, 1.0)?;
    let right = select(e, &left, &mirrored, x)?;
    let mut z = right.clone();
    let mut sum: Option<E::Value> = None;
    for _ in 0..STEPS {
        let term = recip(e, &z)?;
        sum = Some(match sum {
            Some(sum) => add(e, &sum, &term)?,
            None => term,
        });
        z = add_scalar(e, &z, 1.0)?;
    }
    let inverse = recip(e, &z)?;
    let square = mul(e, &inverse, &inverse)?;
    let mut series = mul_scalar(e, &square, SERIES[SERIES.len() - 1])?;
    for &coefficient in SERIES[..SERIES.len() - 1].iter().rev() {
        let raised = add_scalar(e, &series, coefficient)?;
        series = mul(e, &raised, &square)?;
    }
    let half = mul_scalar(e, &inverse, 0.5)?;
    let small = add(e, &half, &series)?;
    let logarithm = log(e, &z)?;
    let mut value = sub(e, &logarithm, &small)?;
    if let Some(sum) = sum {
        value = sub(e, &value, &sum)?;
    }
    // The tangent has period 1 in x; near 0 its argument is as exact as x is.
    let whole = floor(e, x)?;
    let part = sub(e, x, &whole)?;
    let angle = mul_scalar(e, &part, PI)?;
    let slope = tan(e, &angle)?;
    let pi = mul_scalar(e, &slope, 1.0 / PI)?;
    let one = recip(e, &pi)?;
    let reflected = sub(e, &value, &one)?;
    select(e, &left, &reflected, &value)
}
