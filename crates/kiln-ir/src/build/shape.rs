//! Functions about shapes: broadcasting, joining, cutting, repeating.

use super::{Built, Emit, constant_i64, fail, full, iota, select};
use crate::{CompareOp, DType, Dim, Op, Scalar, TensorType, TypeError};

/// The same elements under another shape; nothing is emitted when the shape is the same.
#[track_caller]
pub fn reshape<E: Emit>(e: &mut E, x: &E::Value, shape: &[Dim]) -> Built<E> {
    if e.ty(x).shape == shape {
        return Ok(x.clone());
    }
    e.emit(Op::Reshape { shape: shape.to_vec() }, std::slice::from_ref(x))
}

/// Axis `i` of the result is axis `order[i]` of x; nothing is emitted when the order is the same.
#[track_caller]
pub fn permute<E: Emit>(e: &mut E, x: &E::Value, order: &[usize]) -> Built<E> {
    if order.len() == e.ty(x).rank() && order.iter().enumerate().all(|(i, &a)| i == a) {
        return Ok(x.clone());
    }
    e.emit(Op::Permute { order: order.to_vec() }, std::slice::from_ref(x))
}

/// Two axes exchanged.
#[track_caller]
pub fn transpose<E: Emit>(e: &mut E, x: &E::Value, a: usize, b: usize) -> Built<E> {
    check_axis(e, "transpose", x, a)?;
    check_axis(e, "transpose", x, b)?;
    let mut order: Vec<usize> = (0..e.ty(x).rank()).collect();
    order.swap(a, b);
    permute(e, x, &order)
}

/// A new axis of size 1.
#[track_caller]
pub fn unsqueeze<E: Emit>(e: &mut E, x: &E::Value, axis: usize) -> Built<E> {
    let ty = e.ty(x);
    if axis > ty.rank() {
        return fail::<_, E>("unsqueeze", TypeError::AxisOutOfRange { axis, ty });
    }
    let mut shape = ty.shape;
    shape.insert(axis, Dim::from(1));
    reshape(e, x, &shape)
}

/// Axes of size 1 dropped.
#[track_caller]
pub fn squeeze<E: Emit>(e: &mut E, x: &E::Value, axes: &[usize]) -> Built<E> {
    for &axis in axes {
        check_axis(e, "squeeze", x, axis)?;
    }
    let kept = e.ty(x).shape.into_iter().enumerate().filter(|(i, _)| !axes.contains(i));
    let shape: Vec<Dim> = kept.map(|(_, d)| d).collect();
    reshape(e, x, &shape)
}

/// Axes `first..=last` joined into one.
#[track_caller]
pub fn flatten<E: Emit>(e: &mut E, x: &E::Value, first: usize, last: usize) -> Built<E> {
    check_axis(e, "flatten", x, first)?;
    check_axis(e, "flatten", x, last)?;
    let ty = e.ty(x);
    let joined = ty.shape[first..last.max(first) + 1].iter().fold(Dim::from(1), |n, d| n * d);
    let shape: Vec<Dim> =
        ty.shape[..first].iter().chain([&joined]).chain(&ty.shape[last.max(first) + 1..]).cloned().collect();
    reshape(e, x, &shape)
}

/// The shape that two shapes broadcast to: aligned at their ends, sizes equal or one of them 1.
#[track_caller]
pub fn broadcast_shapes<E: Emit>(e: &E, x: &E::Value, y: &E::Value) -> Result<Vec<Dim>, E::Error> {
    let (x, y) = (e.ty(x), e.ty(y));
    let rank = x.rank().max(y.rank());
    let one = Dim::from(1);
    let size = |ty: &TensorType, axis: usize| {
        (axis + ty.rank()).checked_sub(rank).map_or(one.clone(), |i| ty.shape[i].clone())
    };
    let mut shape = Vec::with_capacity(rank);
    for axis in 0..rank {
        let (a, b) = (size(&x, axis), size(&y, axis));
        if a == b || b == one {
            shape.push(a);
        } else if a == one {
            shape.push(b);
        } else {
            return fail::<_, E>(
                "broadcast",
                TypeError::ShapesDiffer { lhs: x, rhs: y, sizes: Some(Box::new((a, b))) },
            );
        }
    }
    Ok(shape)
}

/// x repeated to a shape of the same or higher rank, aligned at the end.
#[track_caller]
pub fn broadcast_to<E: Emit>(e: &mut E, x: &E::Value, shape: &[Dim]) -> Built<E> {
    let ty = e.ty(x);
    if ty.shape == shape {
        return Ok(x.clone());
    }
    let Some(missing) = shape.len().checked_sub(ty.rank()) else {
        let rhs = TensorType::new(ty.dtype, shape);
        return fail::<_, E>("broadcast_to", TypeError::ShapesDiffer { lhs: ty, rhs, sizes: None });
    };
    let aligned: Vec<Dim> = std::iter::repeat_n(Dim::from(1), missing).chain(ty.shape).collect();
    let aligned_x = reshape(e, x, &aligned)?;
    if aligned == shape {
        return Ok(aligned_x);
    }
    e.emit(Op::Expand { shape: shape.to_vec() }, &[aligned_x])
}

/// Two values brought to one shape.
#[track_caller]
pub fn broadcast<E: Emit>(e: &mut E, x: &E::Value, y: &E::Value) -> Result<(E::Value, E::Value), E::Error> {
    let shape = broadcast_shapes(e, x, y)?;
    let x = broadcast_to(e, x, &shape)?;
    let y = broadcast_to(e, y, &shape)?;
    Ok((x, y))
}

/// x with size 1 on every axis but one, so that a vector lines up with an axis of a tensor of some rank.
#[track_caller]
pub fn along_axis<E: Emit>(e: &mut E, x: &E::Value, rank: usize, axis: usize) -> Built<E> {
    let mut shape = vec![Dim::from(1); rank];
    let ty = e.ty(x);
    match shape.get_mut(axis) {
        Some(size) => *size = ty.elements(),
        None => return fail::<_, E>("along_axis", TypeError::AxisOutOfRange { axis, ty }),
    }
    reshape(e, x, &shape)
}

/// `size` elements of an axis from `start`, by `step`; nothing is emitted for the whole axis.
#[track_caller]
pub fn slice_axis<E: Emit>(e: &mut E, x: &E::Value, axis: usize, start: &Dim, size: &Dim, step: i64) -> Built<E> {
    check_axis(e, "slice", x, axis)?;
    let ty = e.ty(x);
    if start.is_zero() && *size == ty.shape[axis] && (step == 1 || size.is_one()) {
        return Ok(x.clone());
    }
    let mut starts = vec![Dim::from(0); ty.rank()];
    let mut sizes = ty.shape;
    let mut steps = vec![1; sizes.len()];
    starts[axis] = start.clone();
    sizes[axis] = size.clone();
    steps[axis] = step;
    e.emit(Op::Slice { start: starts, size: sizes, step: steps }, std::slice::from_ref(x))
}

/// `size` elements of an axis from `start`.
#[track_caller]
pub fn narrow<E: Emit>(e: &mut E, x: &E::Value, axis: usize, start: impl Into<Dim>, size: impl Into<Dim>) -> Built<E> {
    slice_axis(e, x, axis, &start.into(), &size.into(), 1)
}

/// One index of an axis, which is dropped.
#[track_caller]
pub fn pick<E: Emit>(e: &mut E, x: &E::Value, axis: usize, index: impl Into<Dim>) -> Built<E> {
    let y = narrow(e, x, axis, index, 1)?;
    squeeze(e, &y, &[axis])
}

/// Consecutive parts of an axis, of these sizes.
#[track_caller]
pub fn split<E: Emit>(e: &mut E, x: &E::Value, axis: usize, sizes: &[Dim]) -> Result<Vec<E::Value>, E::Error> {
    check_axis(e, "split", x, axis)?;
    let ty = e.ty(x);
    let total = sizes.iter().fold(Dim::from(0), |n, d| n + d);
    if total != ty.shape[axis] {
        return fail::<_, E>("split", TypeError::CountTooLarge { count: total, axis, ty });
    }
    let mut start = Dim::from(0);
    let mut parts = Vec::with_capacity(sizes.len());
    for size in sizes {
        parts.push(slice_axis(e, x, axis, &start, size, 1)?);
        start += size;
    }
    Ok(parts)
}

/// Equal parts of an axis.
#[track_caller]
pub fn chunk<E: Emit>(e: &mut E, x: &E::Value, axis: usize, parts: usize) -> Result<Vec<E::Value>, E::Error> {
    check_axis(e, "chunk", x, axis)?;
    let size = e.ty(x).shape[axis].clone();
    match size.div_exact(&Dim::from(parts)) {
        Some(part) => split(e, x, axis, &vec![part; parts]),
        None => fail::<_, E>("chunk", TypeError::NotDivisible { what: "the axis", size, by: Dim::from(parts) }),
    }
}

/// Values joined along an axis; one value alone is returned as it is.
#[track_caller]
pub fn concat<E: Emit>(e: &mut E, parts: &[E::Value], axis: usize) -> Built<E> {
    match parts {
        [one] => {
            check_axis(e, "concat", one, axis)?;
            Ok(one.clone())
        }
        _ => e.emit(Op::Concat { axis }, parts),
    }
}

/// Values joined along a new axis.
#[track_caller]
pub fn stack<E: Emit>(e: &mut E, parts: &[E::Value], axis: usize) -> Built<E> {
    let mut raised = Vec::with_capacity(parts.len());
    for part in parts {
        raised.push(unsqueeze(e, part, axis)?);
    }
    concat(e, &raised, axis)
}

/// Elements reversed along axes.
#[track_caller]
pub fn flip<E: Emit>(e: &mut E, x: &E::Value, axes: &[usize]) -> Built<E> {
    let mut axes = axes.to_vec();
    axes.sort_unstable();
    e.emit(Op::Flip { axes }, std::slice::from_ref(x))
}

/// Rotates elements along an axis by a shift: those that leave at one end enter at the other. The shift is taken modulo the
/// size; for a symbolic size it must be less than that.
#[track_caller]
pub fn roll<E: Emit>(e: &mut E, x: &E::Value, axis: usize, shift: i64) -> Built<E> {
    check_axis(e, "roll", x, axis)?;
    let size = e.ty(x).shape[axis].clone();
    let front = match size.as_const() {
        Some(0) => return Ok(x.clone()),
        Some(n) => Dim::from(shift.rem_euclid(n)),
        None if shift < 0 => &size + shift,
        None => Dim::from(shift),
    };
    if front.is_zero() {
        return Ok(x.clone());
    }
    let back = &size - &front;
    let moved = slice_axis(e, x, axis, &back, &front, 1)?;
    let rest = slice_axis(e, x, axis, &Dim::from(0), &back, 1)?;
    concat(e, &[moved, rest], axis)
}

/// The whole tensor repeated, `counts[i]` times along axis i; counts align at the end and may add axes.
#[track_caller]
pub fn repeat<E: Emit>(e: &mut E, x: &E::Value, counts: &[Dim]) -> Built<E> {
    let ty = e.ty(x);
    let rank = counts.len();
    let Some(missing) = rank.checked_sub(ty.rank()) else {
        return fail::<_, E>(
            "repeat",
            TypeError::AttributeLength { attribute: "counts", got: rank, expected: ty.rank() },
        );
    };
    let sizes: Vec<Dim> = std::iter::repeat_n(Dim::from(1), missing).chain(ty.shape).collect();
    let one = Dim::from(1);
    let split_up: Vec<Dim> = sizes.iter().flat_map(|n| [one.clone(), n.clone()]).collect();
    let repeated: Vec<Dim> = sizes.iter().zip(counts).flat_map(|(n, c)| [c.clone(), n.clone()]).collect();
    let joined: Vec<Dim> = sizes.iter().zip(counts).map(|(n, c)| n * c).collect();
    let y = reshape(e, x, &split_up)?;
    let y = broadcast_to(e, &y, &repeated)?;
    reshape(e, &y, &joined)
}

/// Each element of an axis repeated `count` times in place.
#[track_caller]
pub fn repeat_interleave<E: Emit>(e: &mut E, x: &E::Value, axis: usize, count: impl Into<Dim>) -> Built<E> {
    check_axis(e, "repeat_interleave", x, axis)?;
    let count = count.into();
    let mut shape = e.ty(x).shape;
    let raised = unsqueeze(e, x, axis + 1)?;
    let mut repeated = shape.clone();
    repeated.insert(axis + 1, count.clone());
    shape[axis] = &shape[axis] * &count;
    let y = broadcast_to(e, &raised, &repeated)?;
    reshape(e, &y, &shape)
}

/// x below and on a diagonal of its last two axes, 0 above it; `diagonal` counts upwards from the main one.
#[track_caller]
pub fn tril<E: Emit>(e: &mut E, x: &E::Value, diagonal: i64) -> Built<E> {
    triangle(e, "tril", x, CompareOp::Le, diagonal)
}

/// x above and on a diagonal of its last two axes, 0 below it; `diagonal` counts upwards from the main one.
#[track_caller]
pub fn triu<E: Emit>(e: &mut E, x: &E::Value, diagonal: i64) -> Built<E> {
    triangle(e, "triu", x, CompareOp::Ge, diagonal)
}

#[track_caller]
fn triangle<E: Emit>(e: &mut E, name: &'static str, x: &E::Value, keep: CompareOp, diagonal: i64) -> Built<E> {
    let ty = e.ty(x);
    let Some(corner) = ty.rank().checked_sub(2) else {
        return fail::<_, E>(name, TypeError::WrongRank { operand: 0, ty, expected: "2 or more".into() });
    };
    let row = iota(e, DType::I64, &ty.shape[corner..], 0)?;
    let column = iota(e, DType::I64, &ty.shape[corner..], 1)?;
    let shift = constant_i64(e, &[diagonal])?;
    let limit = super::add(e, &row, &shift)?;
    let kept = super::compare(e, keep, &column, &limit)?;
    let zero = full(e, Scalar::int(ty.dtype, 0), &ty.shape)?;
    select(e, &kept, x, &zero)
}

/// Fails for an axis that a value does not have.
#[track_caller]
pub(super) fn check_axis<E: Emit>(e: &E, name: &'static str, x: &E::Value, axis: usize) -> Result<(), E::Error> {
    let ty = e.ty(x);
    if axis < ty.rank() { Ok(()) } else { fail::<_, E>(name, TypeError::AxisOutOfRange { axis, ty }) }
}
