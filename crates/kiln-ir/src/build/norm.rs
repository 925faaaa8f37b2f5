//! Normalisations. Statistics are computed in f32 for short floats; variances take two passes.

use super::reduce::check_float;
use super::{Built, Emit, add, add_scalar, along_axis, cast, fail, mean, mul, reshape, rsqrt, sub, widen};
use crate::{Dim, TypeError};

/// The last `count` axes of x.
#[track_caller]
fn last_axes<E: Emit>(e: &E, name: &'static str, x: &E::Value, count: usize) -> Result<Vec<usize>, E::Error> {
    let ty = e.ty(x);
    match ty.rank().checked_sub(count) {
        Some(first) => Ok((first..ty.rank()).collect()),
        None => fail::<_, E>(name, TypeError::WrongRank { operand: 0, ty, expected: format!("{count} or more") }),
    }
}

/// (x − mean) / √(variance + epsilon) over axes, of a value that is already wide.
#[track_caller]
fn standardize<E: Emit>(e: &mut E, x: &E::Value, axes: &[usize], epsilon: f64) -> Built<E> {
    let center = mean(e, x, axes, true)?;
    let distance = sub(e, x, &center)?;
    let square = mul(e, &distance, &distance)?;
    let variance = mean(e, &square, axes, true)?;
    let raised = add_scalar(e, &variance, epsilon)?;
    let factor = rsqrt(e, &raised)?;
    mul(e, &distance, &factor)
}

/// x · weight + bias, each where given, brought to x's dtype.
#[track_caller]
fn affine<E: Emit>(e: &mut E, x: &E::Value, weight: Option<&E::Value>, bias: Option<&E::Value>) -> Built<E> {
    let dtype = e.ty(x).dtype;
    let mut y = x.clone();
    if let Some(weight) = weight {
        let weight = cast(e, weight, dtype)?;
        y = mul(e, &y, &weight)?;
    }
    if let Some(bias) = bias {
        let bias = cast(e, bias, dtype)?;
        y = add(e, &y, &bias)?;
    }
    Ok(y)
}

/// Layer norm over the last `axes` axes, whose shape weight and bias have.
#[track_caller]
pub fn layer_norm<E: Emit>(
    e: &mut E,
    x: &E::Value,
    axes: usize,
    weight: Option<&E::Value>,
    bias: Option<&E::Value>,
    epsilon: f64,
) -> Built<E> {
    check_float(e, "layer_norm", x)?;
    let axes = last_axes(e, "layer_norm", x, axes)?;
    let (x, dtype) = widen(e, x)?;
    let normal = standardize(e, &x, &axes, epsilon)?;
    let y = affine(e, &normal, weight, bias)?;
    cast(e, &y, dtype)
}

/// x / √(mean of x² + epsilon) over the last `axes` axes, times weight.
#[track_caller]
pub fn rms_norm<E: Emit>(e: &mut E, x: &E::Value, axes: usize, weight: Option<&E::Value>, epsilon: f64) -> Built<E> {
    check_float(e, "rms_norm", x)?;
    let axes = last_axes(e, "rms_norm", x, axes)?;
    let (x, dtype) = widen(e, x)?;
    let square = mul(e, &x, &x)?;
    let average = mean(e, &square, &axes, true)?;
    let raised = add_scalar(e, &average, epsilon)?;
    let factor = rsqrt(e, &raised)?;
    let normal = mul(e, &x, &factor)?;
    let y = affine(e, &normal, weight, None)?;
    cast(e, &y, dtype)
}

/// Group norm of `x: [n, c, …]`: statistics over each of `groups` groups of channels; weight and bias have c elements.
#[track_caller]
pub fn group_norm<E: Emit>(
    e: &mut E,
    x: &E::Value,
    groups: usize,
    weight: Option<&E::Value>,
    bias: Option<&E::Value>,
    epsilon: f64,
) -> Built<E> {
    check_float(e, "group_norm", x)?;
    let ty = e.ty(x);
    if ty.rank() < 2 {
        return fail::<_, E>("group_norm", TypeError::WrongRank { operand: 0, ty, expected: "2 or more".into() });
    }
    let by = Dim::from(groups);
    let Some(channels) = ty.shape[1].div_exact(&by) else {
        let size = ty.shape[1].clone();
        return fail::<_, E>("group_norm", TypeError::NotDivisible { what: "channels", size, by });
    };
    let (x, dtype) = widen(e, x)?;
    let mut grouped = ty.shape.clone();
    grouped.splice(1..2, [by, channels]);
    let split = reshape(e, &x, &grouped)?;
    let axes: Vec<usize> = (2..grouped.len()).collect();
    let normal = standardize(e, &split, &axes, epsilon)?;
    let normal = reshape(e, &normal, &ty.shape)?;
    let weight = match weight {
        Some(w) => Some(along_axis(e, w, ty.rank(), 1)?),
        None => None,
    };
    let bias = match bias {
        Some(b) => Some(along_axis(e, b, ty.rank(), 1)?),
        None => None,
    };
    let y = affine(e, &normal, weight.as_ref(), bias.as_ref())?;
    cast(e, &y, dtype)
}

/// Batch norm of `x: [n, c, …]` with given statistics, as for inference.
#[track_caller]
pub fn batch_norm<E: Emit>(
    e: &mut E,
    x: &E::Value,
    mean: &E::Value,
    variance: &E::Value,
    weight: Option<&E::Value>,
    bias: Option<&E::Value>,
    epsilon: f64,
) -> Built<E> {
    check_float(e, "batch_norm", x)?;
    let rank = e.ty(x).rank();
    let (x, dtype) = widen(e, x)?;
    let (mean, _) = widen(e, mean)?;
    let (variance, _) = widen(e, variance)?;
    let raised = add_scalar(e, &variance, epsilon)?;
    // One factor a channel, so that x meets a single product and a sum.
    let mut factor = rsqrt(e, &raised)?;
    if let Some(weight) = weight {
        let (weight, _) = widen(e, weight)?;
        factor = mul(e, &factor, &weight)?;
    }
    let mean = along_axis(e, &mean, rank, 1)?;
    let factor = along_axis(e, &factor, rank, 1)?;
    let distance = sub(e, &x, &mean)?;
    let mut y = mul(e, &distance, &factor)?;
    if let Some(bias) = bias {
        let (bias, _) = widen(e, bias)?;
        let bias = along_axis(e, &bias, rank, 1)?;
        y = add(e, &y, &bias)?;
    }
    cast(e, &y, dtype)
}
