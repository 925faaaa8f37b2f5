//! Padding in the modes that PyTorch has.

use super::shape::check_axis;
use super::{Built, Emit, broadcast_to, concat, fail, flip, slice_axis};
use crate::{Dim, Op, Scalar, TypeError};

/// A constant added around every axis; negative amounts crop.
#[track_caller]
pub fn pad_constant<E: Emit>(e: &mut E, x: &E::Value, amounts: &[(i64, i64)], value: f64) -> Built<E> {
    let dims: Vec<(Dim, Dim)> = amounts.iter().map(|&(low, high)| (Dim::from(low), Dim::from(high))).collect();
    pad_by_sizes(e, x, &dims, value)
}

/// The same with amounts that may be symbolic; where the sign of one is not known, the axis is both extended and cut.
#[track_caller]
pub fn pad_by_sizes<E: Emit>(e: &mut E, x: &E::Value, amounts: &[(Dim, Dim)], value: f64) -> Built<E> {
    let ty = e.ty(x);
    if amounts.len() != ty.rank() {
        return fail::<_, E>(
            "pad",
            TypeError::AttributeLength { attribute: "amounts", got: amounts.len(), expected: ty.rank() },
        );
    }
    let extended = |amount: &Dim| Dim::max(amount, &Dim::from(0));
    let mut y = x.clone();
    if amounts.iter().any(|(low, high)| !extended(low).is_zero() || !extended(high).is_zero()) {
        let low = amounts.iter().map(|(low, _)| extended(low)).collect();
        let high = amounts.iter().map(|(_, high)| extended(high)).collect();
        y = e.emit(Op::Pad { low, high, value: Scalar::float(ty.dtype, value) }, &[y])?;
    }
    for (axis, (low, high)) in amounts.iter().enumerate() {
        if *low != extended(low) || *high != extended(high) {
            let size = &ty.shape[axis] + low + high;
            y = slice_axis(e, &y, axis, &extended(&(Dim::from(0) - low)), &size, 1)?;
        }
    }
    Ok(y)
}

/// The extension of an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PadMode {
    /// Its mirror image without the edge: `c b | a b c | b a`.
    Reflect,
    /// Its edge: `a a | a b c | c c`.
    Replicate,
    /// Itself from the other end: `b c | a b c | a b`.
    Circular,
}

/// One axis extended on both sides.
#[track_caller]
pub fn pad_axis<E: Emit>(e: &mut E, x: &E::Value, axis: usize, low: usize, high: usize, mode: PadMode) -> Built<E> {
    check_axis(e, "pad", x, axis)?;
    let size = e.ty(x).shape[axis].clone();
    let mut parts = Vec::with_capacity(3);
    for (amount, before) in [(low, true), (high, false)] {
        if !before {
            parts.push(x.clone());
        }
        if amount == 0 {
            continue;
        }
        let amount = Dim::from(amount);
        parts.push(match mode {
            PadMode::Reflect => {
                let start = if before { Dim::from(1) } else { &size - &amount - 1 };
                let edge = slice_axis(e, x, axis, &start, &amount, 1)?;
                flip(e, &edge, &[axis])?
            }
            PadMode::Replicate => {
                let start = if before { Dim::from(0) } else { &size - 1 };
                let edge = slice_axis(e, x, axis, &start, &Dim::from(1), 1)?;
                let mut shape = e.ty(&edge).shape;
                shape[axis] = amount;
                broadcast_to(e, &edge, &shape)?
            }
            PadMode::Circular => {
                let start = if before { &size - &amount } else { Dim::from(0) };
                slice_axis(e, x, axis, &start, &amount, 1)?
            }
        });
    }
    concat(e, &parts, axis)
}
