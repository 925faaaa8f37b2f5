//! Interpolation of the last axes.

use super::{
    Built, Emit, add, along_axis, cast, constant_f64, constant_i64, fail, index_select, mul, repeat_interleave, sub,
    transform_axis, widen,
};
use crate::{DType, Dim, TypeError};

/// The first of the last axes, and the constant length of each; nothing for an axis whose length is symbolic.
#[track_caller]
fn lengths<E: Emit>(
    e: &E,
    name: &'static str,
    x: &E::Value,
    sizes: &[usize],
) -> Result<(usize, Vec<Option<usize>>), E::Error> {
    let ty = e.ty(x);
    match ty.rank().checked_sub(sizes.len()) {
        Some(first) => Ok((first, ty.shape[first..].iter().map(Dim::as_usize).collect())),
        None => {
            fail::<_, E>(name, TypeError::WrongRank { operand: 0, ty, expected: format!("{} or more", sizes.len()) })
        }
    }
}

/// The last axes resized by whole factors, each element repeated; sizes may be symbolic.
#[track_caller]
pub fn upsample_nearest<E: Emit>(e: &mut E, x: &E::Value, factors: &[usize]) -> Built<E> {
    let (first, _) = lengths(e, "upsample_nearest", x, factors)?;
    let mut y = x.clone();
    for (i, &factor) in factors.iter().enumerate() {
        if factor != 1 {
            y = repeat_interleave(e, &y, first + i, factor)?;
        }
    }
    Ok(y)
}

/// The last axes, of constant length, resized: each element is the one at `⌊i·length/size⌋`.
#[track_caller]
pub fn interpolate_nearest<E: Emit>(e: &mut E, x: &E::Value, sizes: &[usize]) -> Built<E> {
    resample_nearest(e, x, sizes, None, false)
}

/// The last axes, of constant length, resized: each element is the one at `⌊i·step⌋`, or `⌊(i + ½)·step⌋` if `centered`, where
/// the step is the quotient of the lengths or, where scales are given, the reciprocal of an axis's scale.
#[track_caller]
pub fn resample_nearest<E: Emit>(
    e: &mut E,
    x: &E::Value,
    sizes: &[usize],
    scales: Option<&[f64]>,
    centered: bool,
) -> Built<E> {
    const NAME: &str = "resample_nearest";
    let (first, lengths) = lengths(e, NAME, x, sizes)?;
    check_scales(e, NAME, scales, sizes)?;
    let mut y = x.clone();
    for (i, (&size, length)) in sizes.iter().zip(lengths).enumerate() {
        let Some(length) = length else {
            let ty = e.ty(x);
            return fail::<_, E>(NAME, TypeError::BadAttribute { what: "a symbolic size", ty });
        };
        // In f32, as PyTorch computes the places.
        let step = match scales.map(|scales| scales[i]).filter(|&scale| scale > 0.0) {
            Some(scale) => (1.0 / scale) as f32,
            None => length as f32 / size as f32,
        };
        if length > 0 && size % length == 0 && step == length as f32 / size as f32 {
            if size != length {
                y = repeat_interleave(e, &y, first + i, size / length)?;
            }
            continue;
        }
        let shift = if centered { 0.5 } else { 0.0 };
        let place = |k: usize| (((k as f32 + shift) * step) as usize).min(length.saturating_sub(1)) as i64;
        let index = constant_i64(e, &(0..size).map(place).collect::<Vec<_>>())?;
        y = index_select(e, &y, first + i, &index)?;
    }
    Ok(y)
}

/// Fails unless scales, where given, are one an axis.
#[track_caller]
fn check_scales<E: Emit>(_: &E, name: &'static str, scales: Option<&[f64]>, sizes: &[usize]) -> Result<(), E::Error> {
    match scales {
        Some(scales) if scales.len() != sizes.len() => {
            let (got, expected) = (scales.len(), sizes.len());
            fail::<_, E>(name, TypeError::AttributeLength { attribute: "scales", got, expected })
        }
        _ => Ok(()),
    }
}

/// The last axes, of constant length, resized by a linear blend of neighbours. With `align_corners` the outermost elements
/// keep their places; otherwise elements are areas and the edges of the whole agree.
#[track_caller]
pub fn interpolate_linear<E: Emit>(e: &mut E, x: &E::Value, sizes: &[usize], align_corners: bool) -> Built<E> {
    const NAME: &str = "interpolate_linear";
    let (first, lengths) = lengths(e, NAME, x, sizes)?;
    let rank = first + sizes.len();
    let (mut y, dtype) = widen(e, x)?;
    let wide: DType = e.ty(&y).dtype;
    for (i, (&size, length)) in sizes.iter().zip(lengths).enumerate() {
        let length = match length {
            Some(length) if length > 0 => length,
            _ => {
                let ty = e.ty(x);
                return fail::<_, E>(NAME, TypeError::BadAttribute { what: "a symbolic or empty size", ty });
            }
        };
        if size == length {
            continue;
        }
        let place = |k: usize| -> f64 {
            if align_corners {
                if size > 1 { k as f64 * (length - 1) as f64 / (size - 1) as f64 } else { 0.0 }
            } else {
                ((k as f64 + 0.5) * length as f64 / size as f64 - 0.5).max(0.0)
            }
        };
        let places: Vec<f64> = (0..size).map(place).collect();
        let below: Vec<i64> = places.iter().map(|p| (p.floor() as i64).min(length as i64 - 1)).collect();
        let above: Vec<i64> = below.iter().map(|&b| (b + 1).min(length as i64 - 1)).collect();
        let blend: Vec<f64> = places.iter().zip(&below).map(|(p, &b)| p - b as f64).collect();
        let below = constant_i64(e, &below)?;
        let above = constant_i64(e, &above)?;
        let blend = constant_f64(e, wide, &[size], &blend)?;
        let blend = along_axis(e, &blend, rank, first + i)?;
        let low = index_select(e, &y, first + i, &below)?;
        let high = index_select(e, &y, first + i, &above)?;
        let difference = sub(e, &high, &low)?;
        let step = mul(e, &difference, &blend)?;
        y = add(e, &low, &step)?;
    }
    cast(e, &y, dtype)
}

/// The shape of the curve through neighbours that [`resample`] draws.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Filter {
    /// A straight line between two.
    Linear,
    /// A cubic through four.
    Cubic,
}

/// How [`resample`] resizes.
#[derive(Debug, Clone, PartialEq)]
pub struct ResampleOptions {
    /// The curve through neighbours.
    pub filter: Filter,
    /// The outermost elements keep their places; otherwise elements are areas and the edges of the whole agree.
    pub align_corners: bool,
    /// When shrinking, average over all that falls on a new element, so that nothing finer is left to alias.
    pub antialias: bool,
    /// New elements an old one, an axis, where that is not the quotient of the sizes.
    pub scales: Option<Vec<f64>>,
}

/// The last axes, of constant length, resized by weighted sums of neighbours: a product with a matrix of weights for each.
#[track_caller]
pub fn resample<E: Emit>(e: &mut E, x: &E::Value, sizes: &[usize], options: &ResampleOptions) -> Built<E> {
    const NAME: &str = "resample";
    let (first, lengths) = lengths(e, NAME, x, sizes)?;
    let (mut y, dtype) = widen(e, x)?;
    let wide: DType = e.ty(&y).dtype;
    check_scales(e, NAME, options.scales.as_deref(), sizes)?;
    // From the last axis, as PyTorch does.
    for (i, (&size, length)) in sizes.iter().zip(lengths).enumerate().rev() {
        let length = match length {
            Some(length) if length > 0 => length,
            _ => {
                let ty = e.ty(x);
                return fail::<_, E>(NAME, TypeError::BadAttribute { what: "a symbolic or empty size", ty });
            }
        };
        let step = match &options.scales {
            _ if options.align_corners && size > 1 => (length - 1) as f64 / (size - 1) as f64,
            _ if options.align_corners => 0.0,
            Some(scales) if scales[i] > 0.0 => 1.0 / scales[i],
            _ => length as f64 / size as f64,
        };
        if step == 1.0 && size == length {
            continue;
        }
        let weights = if options.antialias {
            antialiased_weights(options.filter, length, size, step)
        } else {
            point_weights(options, length, size, step)
        };
        let weights = constant_f64(e, wide, &[length, size], &weights)?;
        y = transform_axis(e, &y, first + i, &weights)?;
    }
    cast(e, &y, dtype)
}

/// A cubic convolution's weight at a distance from the middle; `a` is its slope at distance 1.
fn cubic_weight(distance: f64, a: f64) -> f64 {
    let d = distance.abs();
    if d < 1.0 {
        ((a + 2.0) * d - (a + 3.0)) * d * d + 1.0
    } else if d < 2.0 {
        (((d - 5.0) * d + 8.0) * d - 4.0) * a
    } else {
        0.0
    }
}

/// `[length, size]`: what each old element contributes to each new one, where the curve is read at points. Neighbours beyond
/// the edge are the edge.
fn point_weights(options: &ResampleOptions, length: usize, size: usize, step: f64) -> Vec<f64> {
    let mut weights = vec![0.0; length * size];
    for k in 0..size {
        let place = if options.align_corners { k as f64 * step } else { (k as f64 + 0.5) * step - 0.5 };
        // A line is not drawn beyond the first element, a cubic is.
        let place = if options.filter == Filter::Linear { place.max(0.0) } else { place };
        let (below, t) = (place.floor(), place - place.floor());
        let taps: &[(i64, f64)] = match options.filter {
            Filter::Linear => &[(0, 1.0 - t), (1, t)],
            Filter::Cubic => &[-1i64, 0, 1, 2].map(|tap| (tap, cubic_weight(tap as f64 - t, -0.75))),
        };
        for &(tap, weight) in taps {
            let neighbour = (below as i64 + tap).clamp(0, length as i64 - 1) as usize;
            weights[neighbour * size + k] += weight;
        }
    }
    weights
}

/// `[length, size]`: what each old element contributes to each new one, where the curve is as wide as a new element.
fn antialiased_weights(filter: Filter, length: usize, size: usize, step: f64) -> Vec<f64> {
    let radius = match filter {
        Filter::Linear => 1.0,
        Filter::Cubic => 2.0,
    };
    let width = step.max(1.0);
    let support = radius * width;
    let mut weights = vec![0.0; length * size];
    for k in 0..size {
        let center = step * (k as f64 + 0.5);
        let start = ((center - support + 0.5) as i64).max(0) as usize;
        let end = ((center + support + 0.5) as i64).clamp(0, length as i64) as usize;
        let at = |j: usize| {
            let distance = (j as f64 - center + 0.5) / width;
            match filter {
                Filter::Linear => (1.0 - distance.abs()).max(0.0),
                Filter::Cubic => cubic_weight(distance, -0.5),
            }
        };
        let total: f64 = (start..end).map(at).sum();
        for j in start..end {
            weights[j * size + k] = if total == 0.0 { 0.0 } else { at(j) / total };
        }
    }
    weights
}
