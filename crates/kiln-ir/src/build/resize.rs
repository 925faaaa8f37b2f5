//! Interpolation of the last axes.

use super::{
    Built, Emit, add, along_axis, cast, constant_f64, constant_i64, fail, index_select, mul, repeat_interleave, sub,
    widen,
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
    const NAME: &str = "interpolate_nearest";
    let (first, lengths) = lengths(e, NAME, x, sizes)?;
    let mut y = x.clone();
    for (i, (&size, length)) in sizes.iter().zip(lengths).enumerate() {
        let Some(length) = length else {
            let ty = e.ty(x);
            return fail::<_, E>(NAME, TypeError::BadAttribute { what: "a symbolic size", ty });
        };
        if size == length {
            continue;
        }
        if length > 0 && size % length == 0 {
            y = repeat_interleave(e, &y, first + i, size / length)?;
            continue;
        }
        // In f32, as PyTorch computes the places.
        let scale = length as f32 / size as f32;
        let place = |k: usize| ((k as f32 * scale) as usize).min(length.saturating_sub(1)) as i64;
        let index = constant_i64(e, &(0..size).map(place).collect::<Vec<_>>())?;
        y = index_select(e, &y, first + i, &index)?;
    }
    Ok(y)
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
