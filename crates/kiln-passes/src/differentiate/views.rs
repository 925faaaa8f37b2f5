//! Rules of the ops that move elements: each takes the cotangent back to where the elements came from.

use super::Gradients;
use kiln_ir::build::{Built, Emit, flip, permute, reduce, reshape, slice_axis};
use kiln_ir::{Dim, Op, ReduceKind, Scalar, TensorType};

/// The cotangent of the one operand, of type `ty`, of a view or a pad.
pub(super) fn view<E: Emit>(e: &mut E, op: &Op, ty: &TensorType, g: &E::Value) -> Built<E> {
    match op {
        Op::Reshape { .. } => reshape(e, g, &ty.shape),
        Op::Permute { order } => permute(e, g, &inverse(order)),
        Op::Expand { shape } => {
            let axes: Vec<usize> = (0..shape.len()).filter(|&i| ty.shape[i] != shape[i]).collect();
            if axes.is_empty() { Ok(g.clone()) } else { reduce(e, ReduceKind::Sum, g, &axes, true) }
        }
        Op::Slice { start, size, step } => unslice(e, start, size, step, ty, g),
        Op::Pad { low, .. } => cut(e, g, low, &ty.shape),
        Op::Flip { axes } => flip(e, g, axes),
        Op::Unfold { axis, size, stride, dilation } => refold(e, *axis, *size, *stride, *dilation, ty, g),
        _ => unreachable!("the rules of the other ops are elsewhere"),
    }
}

/// The permutation that undoes one.
pub(super) fn inverse(order: &[usize]) -> Vec<usize> {
    let mut inverse = vec![0; order.len()];
    order.iter().enumerate().for_each(|(i, &axis)| inverse[axis] = i);
    inverse
}

/// `size` elements from `start` on every axis; nothing is emitted for the whole.
pub(super) fn cut<E: Emit>(e: &mut E, x: &E::Value, start: &[Dim], size: &[Dim]) -> Built<E> {
    if start.iter().all(Dim::is_zero) && e.ty(x).shape == size {
        return Ok(x.clone());
    }
    let step = vec![1; size.len()];
    e.emit(Op::Slice { start: start.to_vec(), size: size.to_vec(), step }, std::slice::from_ref(x))
}

/// Zeros around; nothing is emitted for none.
pub(super) fn pad<E: Emit>(e: &mut E, x: &E::Value, low: Vec<Dim>, high: Vec<Dim>) -> Built<E> {
    if low.iter().chain(&high).all(Dim::is_zero) {
        return Ok(x.clone());
    }
    let value = Scalar::float(e.ty(x).dtype, 0.0);
    e.emit(Op::Pad { low, high, value }, std::slice::from_ref(x))
}

/// `factor − 1` zeros after each element of an axis, with one factor per axis.
pub(super) fn spread<E: Emit>(e: &mut E, x: &E::Value, factors: &[usize]) -> Built<E> {
    if factors.iter().all(|&factor| factor == 1) {
        return Ok(x.clone());
    }
    let (mut split, mut high, mut joined) = (vec![], vec![], vec![]);
    for (size, &factor) in e.ty(x).shape.iter().zip(factors) {
        split.push(size.clone());
        high.push(Dim::from(0));
        if factor > 1 {
            split.push(Dim::from(1));
            high.push(Dim::from(factor - 1));
        }
        joined.push(size * Dim::from(factor));
    }
    let single = reshape(e, x, &split)?;
    let padded = pad(e, &single, vec![Dim::from(0); split.len()], high)?;
    reshape(e, &padded, &joined)
}

/// The elements of a slice back in their places, zeros everywhere else.
fn unslice<E: Emit>(e: &mut E, start: &[Dim], size: &[Dim], step: &[i64], ty: &TensorType, g: &E::Value) -> Built<E> {
    // With at most one element the step does not matter.
    let lone = |n: &Dim| n.is_zero() || n.is_one();
    let step_of = |(n, &step): (&Dim, &i64)| if lone(n) { 1 } else { usize::try_from(step).unwrap_or(1) };
    let factors: Vec<usize> = size.iter().zip(step).map(step_of).collect();
    let spaced = spread(e, g, &factors)?;
    let (mut kept, mut high) = (vec![], vec![]);
    for (axis, &factor) in factors.iter().enumerate() {
        let room = &ty.shape[axis] - &start[axis];
        let full = &size[axis] * Dim::from(factor);
        // The zeros after the last element may reach beyond the axis.
        let length = match (room.as_const(), full.as_const()) {
            _ if factor == 1 => full,
            (Some(room), Some(full)) => Dim::from(room.min(full)),
            _ => Dim::max_of([(&size[axis] - 1) * Dim::from(factor) + 1, Dim::from(0)]),
        };
        high.push(room - &length);
        kept.push(length);
    }
    let trimmed = cut(e, &spaced, &vec![Dim::from(0); kept.len()], &kept)?;
    pad(e, &trimmed, start.to_vec(), high)
}

/// Overlapping windows added back into their axis.
///
/// Windows that do not overlap only need zeros between them. Others become rows, one for each place inside the window, that
/// are laid out `dilation` longer than they are read back, so that each row is shifted against the one before; their sum
/// is the result. That takes as many nodes for a large window as for a small one, and no scatter.
fn refold<E: Emit>(
    e: &mut E,
    axis: usize,
    size: usize,
    stride: usize,
    dilation: usize,
    ty: &TensorType,
    g: &E::Value,
) -> Built<E> {
    let rank = ty.rank();
    let windows = e.ty(g).shape[axis].clone();
    let length = &ty.shape[axis];
    let mut shape = ty.shape.clone();
    let zero = |rank: usize| vec![Dim::from(0); rank];
    if stride >= size && (dilation == 1 || size == 1) {
        // […, windows, size, …] → […, windows, stride, …] → […, windows·stride, …]
        let order: Vec<usize> = (0..=axis).chain([rank]).chain(axis + 1..rank).collect();
        let beside = permute(e, g, &order)?;
        let mut high = zero(rank + 1);
        high[axis + 1] = Dim::from(stride - size);
        let padded = pad(e, &beside, zero(rank + 1), high)?;
        let covered = &windows * Dim::from(stride);
        shape[axis] = covered.clone();
        let joined = reshape(e, &padded, &shape)?;
        // From windows = ⌊(length − size)/stride⌋ + 1: fewer than `size` elements are left uncovered.
        let missing = match (length - &covered).as_const() {
            Some(missing) => missing.max(0),
            None => size as i64 - 1,
        };
        let mut high = zero(rank);
        high[axis] = Dim::from(missing);
        let long = pad(e, &joined, zero(rank), high)?;
        return slice_axis(e, &long, axis, &Dim::from(0), length, 1);
    }
    let order: Vec<usize> = (0..axis).chain([rank]).chain(axis..rank).collect();
    let rows = permute(e, g, &order)?;
    let mut factors = vec![1; rank + 1];
    factors[axis + 1] = stride;
    let rows = spread(e, &rows, &factors)?;
    let (taps, shift) = (Dim::from(size), Dim::from(dilation));
    let mut high = zero(rank + 1);
    high[axis + 1] = &taps * &shift;
    let rows = pad(e, &rows, zero(rank + 1), high)?;
    let width = &windows * Dim::from(stride) + &taps * &shift;
    shape[axis] = &taps * &width;
    let line = reshape(e, &rows, &shape)?;
    let read = &width - &shift;
    let line = slice_axis(e, &line, axis, &Dim::from(0), &(&taps * &read), 1)?;
    shape[axis] = read;
    let mut skewed = shape.clone();
    skewed.insert(axis, taps);
    let skewed = reshape(e, &line, &skewed)?;
    let total = reduce(e, ReduceKind::Sum, &skewed, &[axis], false)?;
    slice_axis(e, &total, axis, &Dim::from(0), length, 1)
}

/// Each part gets its own piece.
pub(super) fn concat<E: Emit>(
    e: &mut E,
    axis: usize,
    parts: &[E::Value],
    g: &E::Value,
    wanted: &[bool],
) -> Gradients<E> {
    let mut start = Dim::from(0);
    let mut gradients = Vec::with_capacity(parts.len());
    for (part, &wanted) in parts.iter().zip(wanted) {
        let size = e.ty(part).shape[axis].clone();
        gradients.push(if wanted { Some(slice_axis(e, g, axis, &start, &size, 1)?) } else { None });
        start += &size;
    }
    Ok(gradients)
}
