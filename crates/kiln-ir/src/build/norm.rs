//! Normalisations. Statistics are computed in f32 for short floats; variances take two passes.

use super::reduce::check_float;
use super::{
    Built, Emit, add, add_scalar, along_axis, cast, div, fail, mean, mul, mul_scalar, norm, reshape, rsqrt, size_value,
    sub, sum, widen,
};
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

/// The statistics of a normalisation, for its gradient and for running averages.
#[derive(Debug, Clone, PartialEq)]
pub struct Statistics<V> {
    /// The mean over the axes that are normalised.
    pub mean: V,
    /// 1 / √(variance + epsilon), the variance that of the whole population.
    pub rstd: V,
    /// That variance.
    pub variance: V,
}

/// A normalised value and its statistics.
type Normalized<E> = Result<(<E as Emit>::Value, Statistics<<E as Emit>::Value>), <E as Emit>::Error>;

/// (x − mean) / √(variance + epsilon) over axes, of a value that is already wide. The axes stay in the statistics.
#[track_caller]
fn standardize<E: Emit>(e: &mut E, x: &E::Value, axes: &[usize], epsilon: f64) -> Normalized<E> {
    let center = mean(e, x, axes, true)?;
    let distance = sub(e, x, &center)?;
    let square = mul(e, &distance, &distance)?;
    let variance = mean(e, &square, axes, true)?;
    let raised = add_scalar(e, &variance, epsilon)?;
    let rstd = rsqrt(e, &raised)?;
    let y = mul(e, &distance, &rstd)?;
    Ok((y, Statistics { mean: center, rstd, variance }))
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
    Ok(layer_norm_statistics(e, x, axes, weight, bias, epsilon)?.0)
}

/// [`layer_norm`] and its statistics, with the normalised axes of size 1, in f32 for short floats.
#[track_caller]
pub fn layer_norm_statistics<E: Emit>(
    e: &mut E,
    x: &E::Value,
    axes: usize,
    weight: Option<&E::Value>,
    bias: Option<&E::Value>,
    epsilon: f64,
) -> Normalized<E> {
    check_float(e, "layer_norm", x)?;
    let axes = last_axes(e, "layer_norm", x, axes)?;
    let (x, dtype) = widen(e, x)?;
    let (normal, statistics) = standardize(e, &x, &axes, epsilon)?;
    let y = affine(e, &normal, weight, bias)?;
    Ok((cast(e, &y, dtype)?, statistics))
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
    Ok(group_norm_statistics(e, x, groups, weight, bias, epsilon)?.0)
}

/// [`group_norm`] and its statistics `[n, groups]`, in f32 for short floats.
#[track_caller]
pub fn group_norm_statistics<E: Emit>(
    e: &mut E,
    x: &E::Value,
    groups: usize,
    weight: Option<&E::Value>,
    bias: Option<&E::Value>,
    epsilon: f64,
) -> Normalized<E> {
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
    let (normal, statistics) = standardize(e, &split, &axes, epsilon)?;
    let normal = reshape(e, &normal, &ty.shape)?;
    let y = affine_channels(e, &normal, weight, bias)?;
    let statistics = reshape_statistics(e, &statistics, &grouped[..2])?;
    Ok((cast(e, &y, dtype)?, statistics))
}

/// [`affine`] with weight and bias per channel, which axis 1 counts.
#[track_caller]
fn affine_channels<E: Emit>(e: &mut E, x: &E::Value, weight: Option<&E::Value>, bias: Option<&E::Value>) -> Built<E> {
    let rank = e.ty(x).rank();
    let weight = match weight {
        Some(w) => Some(along_axis(e, w, rank, 1)?),
        None => None,
    };
    let bias = match bias {
        Some(b) => Some(along_axis(e, b, rank, 1)?),
        None => None,
    };
    affine(e, x, weight.as_ref(), bias.as_ref())
}

#[track_caller]
fn reshape_statistics<E: Emit>(
    e: &mut E,
    statistics: &Statistics<E::Value>,
    shape: &[Dim],
) -> Result<Statistics<E::Value>, E::Error> {
    Ok(Statistics {
        mean: reshape(e, &statistics.mean, shape)?,
        rstd: reshape(e, &statistics.rstd, shape)?,
        variance: reshape(e, &statistics.variance, shape)?,
    })
}

/// Batch norm of `x: [n, c, …]` with the statistics of the batch itself, as for training, and those `[c]`, in f32 for short
/// floats. [`running_average`] keeps an average of them.
#[track_caller]
pub fn batch_norm_statistics<E: Emit>(
    e: &mut E,
    x: &E::Value,
    weight: Option<&E::Value>,
    bias: Option<&E::Value>,
    epsilon: f64,
) -> Normalized<E> {
    check_float(e, "batch_norm", x)?;
    let ty = e.ty(x);
    if ty.rank() < 2 {
        return fail::<_, E>("batch_norm", TypeError::WrongRank { operand: 0, ty, expected: "2 or more".into() });
    }
    let (x, dtype) = widen(e, x)?;
    let axes: Vec<usize> = (0..ty.rank()).filter(|&axis| axis != 1).collect();
    let (normal, statistics) = standardize(e, &x, &axes, epsilon)?;
    let y = affine_channels(e, &normal, weight, bias)?;
    let statistics = reshape_statistics(e, &statistics, &ty.shape[1..2])?;
    Ok((cast(e, &y, dtype)?, statistics))
}

/// An average moved towards a new value: (1 − momentum)·average + momentum·value.
#[track_caller]
pub fn running_average<E: Emit>(e: &mut E, average: &E::Value, value: &E::Value, momentum: f64) -> Built<E> {
    let (average, dtype) = widen(e, average)?;
    let wide = e.ty(&average).dtype;
    let value = cast(e, value, wide)?;
    let kept = mul_scalar(e, &average, 1.0 - momentum)?;
    let moved = mul_scalar(e, &value, momentum)?;
    let y = add(e, &kept, &moved)?;
    cast(e, &y, dtype)
}

/// The variance of a sample, n/(n − 1) times that of a population of n = `count`.
#[track_caller]
pub fn unbiased_variance<E: Emit>(e: &mut E, variance: &E::Value, count: &Dim) -> Built<E> {
    let dtype = e.ty(variance).dtype;
    let (n, less) = (size_value(e, count, dtype)?, size_value(e, &(count - 1), dtype)?);
    let factor = div(e, &n, &less)?;
    mul(e, variance, &factor)
}

/// `direction` scaled to the norm `magnitude` over all axes but one, and the norms it had (both with the other axes of size 1).
#[track_caller]
pub fn weight_norm<E: Emit>(
    e: &mut E,
    direction: &E::Value,
    magnitude: &E::Value,
    axis: usize,
) -> Result<(E::Value, E::Value), E::Error> {
    let axes: Vec<usize> = (0..e.ty(direction).rank()).filter(|&a| a != axis).collect();
    let (wide, dtype) = widen(e, direction)?;
    let norms = norm(e, &wide, 2.0, &axes, true)?;
    let (magnitude, _) = widen(e, magnitude)?;
    let factor = div(e, &magnitude, &norms)?;
    let y = mul(e, &wide, &factor)?;
    Ok((cast(e, &y, dtype)?, norms))
}

/// The gradients of [`weight_norm`] in direction and magnitude, from that of its result and the norms it gave.
#[track_caller]
pub fn weight_norm_backward<E: Emit>(
    e: &mut E,
    gradient: &E::Value,
    direction: &E::Value,
    magnitude: &E::Value,
    norms: &E::Value,
    axis: usize,
) -> Result<(E::Value, E::Value), E::Error> {
    let axes: Vec<usize> = (0..e.ty(direction).rank()).filter(|&a| a != axis).collect();
    let magnitude_dtype = e.ty(magnitude).dtype;
    let (direction, dtype) = widen(e, direction)?;
    let (gradient, _) = widen(e, gradient)?;
    let (magnitude, _) = widen(e, magnitude)?;
    let products = mul(e, &gradient, &direction)?;
    let along = sum(e, &products, &axes, true)?;
    let magnitude_gradient = div(e, &along, norms)?;
    // The component of the gradient that is orthogonal to the direction.
    let part = div(e, &magnitude_gradient, norms)?;
    let shadow = mul(e, &direction, &part)?;
    let across = sub(e, &gradient, &shadow)?;
    let factor = div(e, &magnitude, norms)?;
    let direction_gradient = mul(e, &across, &factor)?;
    Ok((cast(e, &direction_gradient, dtype)?, cast(e, &magnitude_gradient, magnitude_dtype)?))
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
    // One factor per channel, so that x needs a single product and a sum.
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
