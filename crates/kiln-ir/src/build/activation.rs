//! Activation functions. On short floats each computes in f32 and rounds once.

use super::{
    Built, Emit, abs, add, add_scalar, binary_scalar, cast, chunk, clamp, compare_scalar, div, div_scalar, erf, exp,
    expm1, full_like, log1p, mul, mul_scalar, neg, select, sub, tanh, widen,
};
use crate::{BinaryOp, CompareOp};
use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_PI};

/// max(x, 0).
#[track_caller]
pub fn relu<E: Emit>(e: &mut E, x: &E::Value) -> Built<E> {
    binary_scalar(e, BinaryOp::Max, x, 0.0)
}

/// x between 0 and 6.
#[track_caller]
pub fn relu6<E: Emit>(e: &mut E, x: &E::Value) -> Built<E> {
    clamp(e, x, Some(0.0), Some(6.0))
}

/// x above 0, `slope`·x below.
#[track_caller]
pub fn leaky_relu<E: Emit>(e: &mut E, x: &E::Value, slope: f64) -> Built<E> {
    let (x, dtype) = widen(e, x)?;
    let positive = compare_scalar(e, CompareOp::Gt, &x, 0.0)?;
    let below = mul_scalar(e, &x, slope)?;
    let y = select(e, &positive, &x, &below)?;
    cast(e, &y, dtype)
}

/// x above 0, `alpha`·(eˣ − 1) below.
#[track_caller]
pub fn elu<E: Emit>(e: &mut E, x: &E::Value, alpha: f64) -> Built<E> {
    elu_scaled(e, x, alpha, 1.0, 1.0)
}

/// The scaled elu whose constants keep mean and variance.
#[track_caller]
pub fn selu<E: Emit>(e: &mut E, x: &E::Value) -> Built<E> {
    elu_scaled(e, x, 1.673_263_242_354_377_2, 1.050_700_987_355_480_5, 1.0)
}

/// x above 0, `alpha`·(e^(x/`alpha`) − 1) below.
#[track_caller]
pub fn celu<E: Emit>(e: &mut E, x: &E::Value, alpha: f64) -> Built<E> {
    elu_scaled(e, x, alpha, 1.0, 1.0 / alpha)
}

/// `scale`·x above 0, `scale`·`alpha`·(e^(`input_scale`·x) − 1) below.
#[track_caller]
pub fn elu_scaled<E: Emit>(e: &mut E, x: &E::Value, alpha: f64, scale: f64, input_scale: f64) -> Built<E> {
    let (x, dtype) = widen(e, x)?;
    let positive = compare_scalar(e, CompareOp::Gt, &x, 0.0)?;
    let above = if scale == 1.0 { x.clone() } else { mul_scalar(e, &x, scale)? };
    // Large x must not reach the exponential: its infinity would spoil the gradient of the other branch.
    let negative = binary_scalar(e, BinaryOp::Min, &x, 0.0)?;
    let inside = if input_scale == 1.0 { negative } else { mul_scalar(e, &negative, input_scale)? };
    let power = expm1(e, &inside)?;
    let below = mul_scalar(e, &power, alpha * scale)?;
    let y = select(e, &positive, &above, &below)?;
    cast(e, &y, dtype)
}

/// 1 + e⁻ˣ.
#[track_caller]
fn one_plus_exp_neg<E: Emit>(e: &mut E, x: &E::Value) -> Built<E> {
    let negative = neg(e, x)?;
    let power = exp(e, &negative)?;
    add_scalar(e, &power, 1.0)
}

/// 1 / (1 + e⁻ˣ); never NaN for a number.
#[track_caller]
pub fn sigmoid<E: Emit>(e: &mut E, x: &E::Value) -> Built<E> {
    let (x, dtype) = widen(e, x)?;
    let divisor = one_plus_exp_neg(e, &x)?;
    let y = super::recip(e, &divisor)?;
    cast(e, &y, dtype)
}

/// The logarithm of [`sigmoid`], without loss for large |x|.
#[track_caller]
pub fn log_sigmoid<E: Emit>(e: &mut E, x: &E::Value) -> Built<E> {
    let (x, dtype) = widen(e, x)?;
    let negative = binary_scalar(e, BinaryOp::Min, &x, 0.0)?;
    let rest = log1p_exp_neg_abs(e, &x)?;
    let y = sub(e, &negative, &rest)?;
    cast(e, &y, dtype)
}

/// ln(1 + e^−|x|).
#[track_caller]
pub(super) fn log1p_exp_neg_abs<E: Emit>(e: &mut E, x: &E::Value) -> Built<E> {
    let magnitude = abs(e, x)?;
    let negative = neg(e, &magnitude)?;
    let power = exp(e, &negative)?;
    log1p(e, &power)
}

/// x · sigmoid(x).
#[track_caller]
pub fn silu<E: Emit>(e: &mut E, x: &E::Value) -> Built<E> {
    let (x, dtype) = widen(e, x)?;
    let divisor = one_plus_exp_neg(e, &x)?;
    let y = div(e, &x, &divisor)?;
    cast(e, &y, dtype)
}

/// x · Φ(x), by the error function.
#[track_caller]
pub fn gelu<E: Emit>(e: &mut E, x: &E::Value) -> Built<E> {
    let (x, dtype) = widen(e, x)?;
    let scaled = mul_scalar(e, &x, FRAC_1_SQRT_2)?;
    let error = erf(e, &scaled)?;
    let error1 = add_scalar(e, &error, 1.0)?;
    let half = mul_scalar(e, &x, 0.5)?;
    let y = mul(e, &half, &error1)?;
    cast(e, &y, dtype)
}

/// The tanh approximation of [`gelu`]: x/2·(1 + tanh u) with u = √(2/π)·(x + 0.044715·x³), written as x / (1 + e^−2u),
/// which is the same and takes one exponential.
#[track_caller]
pub fn gelu_tanh<E: Emit>(e: &mut E, x: &E::Value) -> Built<E> {
    let (x, dtype) = widen(e, x)?;
    let square = mul(e, &x, &x)?;
    let scaled = mul_scalar(e, &square, 0.044_715)?;
    let factor = add_scalar(e, &scaled, 1.0)?;
    let cubic = mul(e, &factor, &x)?;
    let twice = mul_scalar(e, &cubic, 2.0 * FRAC_2_PI.sqrt())?;
    let divisor = one_plus_exp_neg(e, &twice)?;
    let y = div(e, &x, &divisor)?;
    cast(e, &y, dtype)
}

/// The sigmoid approximation of [`gelu`]: x · sigmoid(1.702·x).
#[track_caller]
pub fn quick_gelu<E: Emit>(e: &mut E, x: &E::Value) -> Built<E> {
    let (x, dtype) = widen(e, x)?;
    let scaled = mul_scalar(e, &x, 1.702)?;
    let divisor = one_plus_exp_neg(e, &scaled)?;
    let y = div(e, &x, &divisor)?;
    cast(e, &y, dtype)
}

/// ln(1 + e^(beta·x)) / beta; x itself where beta·x exceeds the threshold.
#[track_caller]
pub fn softplus<E: Emit>(e: &mut E, x: &E::Value, beta: f64, threshold: f64) -> Built<E> {
    let (x, dtype) = widen(e, x)?;
    let scaled = if beta == 1.0 { x.clone() } else { mul_scalar(e, &x, beta)? };
    let positive = relu(e, &scaled)?;
    let rest = log1p_exp_neg_abs(e, &scaled)?;
    let sum = add(e, &positive, &rest)?;
    let soft = if beta == 1.0 { sum } else { div_scalar(e, &sum, beta)? };
    let large = compare_scalar(e, CompareOp::Gt, &scaled, threshold)?;
    let y = select(e, &large, &x, &soft)?;
    cast(e, &y, dtype)
}

/// x · tanh(softplus(x)).
#[track_caller]
pub fn mish<E: Emit>(e: &mut E, x: &E::Value) -> Built<E> {
    let (x, dtype) = widen(e, x)?;
    let soft = softplus(e, &x, 1.0, 20.0)?;
    let gate = tanh(e, &soft)?;
    let y = mul(e, &x, &gate)?;
    cast(e, &y, dtype)
}

/// relu6(x + 3) / 6.
#[track_caller]
pub fn hardsigmoid<E: Emit>(e: &mut E, x: &E::Value) -> Built<E> {
    let (x, dtype) = widen(e, x)?;
    let shifted = add_scalar(e, &x, 3.0)?;
    let bounded = relu6(e, &shifted)?;
    let y = div_scalar(e, &bounded, 6.0)?;
    cast(e, &y, dtype)
}

/// x · relu6(x + 3) / 6.
#[track_caller]
pub fn hardswish<E: Emit>(e: &mut E, x: &E::Value) -> Built<E> {
    let (x, dtype) = widen(e, x)?;
    let shifted = add_scalar(e, &x, 3.0)?;
    let bounded = relu6(e, &shifted)?;
    let product = mul(e, &x, &bounded)?;
    let y = div_scalar(e, &product, 6.0)?;
    cast(e, &y, dtype)
}

/// x / (1 + |x|).
#[track_caller]
pub fn softsign<E: Emit>(e: &mut E, x: &E::Value) -> Built<E> {
    let (x, dtype) = widen(e, x)?;
    let magnitude = abs(e, &x)?;
    let divisor = add_scalar(e, &magnitude, 1.0)?;
    let y = div(e, &x, &divisor)?;
    cast(e, &y, dtype)
}

/// A value up to a threshold, x elsewhere, also NaN.
#[track_caller]
pub fn threshold<E: Emit>(e: &mut E, x: &E::Value, limit: f64, value: f64) -> Built<E> {
    let below = compare_scalar(e, CompareOp::Le, x, limit)?;
    let other = full_like(e, x, value)?;
    select(e, &below, &other, x)
}

/// The first half of an axis times the sigmoid of the second.
#[track_caller]
pub fn glu<E: Emit>(e: &mut E, x: &E::Value, axis: usize) -> Built<E> {
    let (x, dtype) = widen(e, x)?;
    let halves = chunk(e, &x, axis, 2)?;
    let divisor = one_plus_exp_neg(e, &halves[1])?;
    let y = div(e, &halves[0], &divisor)?;
    cast(e, &y, dtype)
}
