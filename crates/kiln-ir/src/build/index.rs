//! Reading and writing by index.

use super::shape::check_axis;
use super::{
    Built, Emit, add, along_axis, broadcast_to, cast, compare, compare_scalar, fail, flatten, iota, reshape, select,
    size_value, slice_axis, unsqueeze,
};
use crate::{CompareOp, DType, Dim, Op, ScatterKind, TypeError};

/// Indices with negative ones counted from the end of an axis of some size. One that is out of range stays unchanged, so that
/// an error names the index that was given.
#[track_caller]
pub fn wrap_index<E: Emit>(e: &mut E, index: &E::Value, size: &Dim) -> Built<E> {
    let dtype = e.ty(index).dtype;
    let size = size_value(e, size, dtype)?;
    let negative = compare_scalar(e, CompareOp::Lt, index, 0.0)?;
    let wrapped = add(e, index, &size)?;
    let inside = compare_scalar(e, CompareOp::Ge, &wrapped, 0.0)?;
    let from_end = super::and(e, &negative, &inside)?;
    select(e, &from_end, &wrapped, index)
}

/// The indices unchanged; one outside `0..size` is an error at run time, also where no memory is indexed by it.
///
/// It is a gather from the numbers 0, 1, …, which checks its indices like any other and takes no memory.
#[track_caller]
pub fn check_index<E: Emit>(e: &mut E, index: &E::Value, size: &Dim) -> Built<E> {
    let ty = e.ty(index);
    let mut shape = if ty.rank() == 0 { vec![Dim::from(1)] } else { ty.shape.clone() };
    let index = reshape(e, index, &shape)?;
    shape[0] = size.clone();
    let numbers = iota(e, ty.dtype, &shape, 0)?;
    let checked = e.emit(Op::Gather { axis: 0 }, &[numbers, index])?;
    reshape(e, &checked, &ty.shape)
}

/// Integer divisors unchanged; a zero is an error at run time: index 2 of an axis of 2.
#[track_caller]
pub fn check_divisor<E: Emit>(e: &mut E, y: &E::Value) -> Built<E> {
    let dtype = e.ty(y).dtype;
    let zero = compare_scalar(e, CompareOp::Eq, y, 0.0)?;
    let index = cast(e, &zero, DType::I32)?;
    let index = super::mul_scalar(e, &index, 2.0)?;
    let nothing = check_index(e, &index, &Dim::from(2))?;
    let nothing = cast(e, &nothing, dtype)?;
    add(e, y, &nothing)
}

/// `y[…, i, …] = x[…, index[…, i, …], …]`; where the index is shorter than x on another axis, x is cut to it.
#[track_caller]
pub fn gather<E: Emit>(e: &mut E, x: &E::Value, axis: usize, index: &E::Value) -> Built<E> {
    check_axis(e, "gather", x, axis)?;
    let mut x = x.clone();
    let (from, to) = (e.ty(&x), e.ty(index));
    if from.rank() != to.rank() {
        return fail::<_, E>("gather", TypeError::ShapesDiffer { lhs: from, rhs: to, sizes: None });
    }
    for (other, size) in to.shape.iter().enumerate() {
        if other != axis {
            x = slice_axis(e, &x, other, &Dim::from(0), size, 1)?;
        }
    }
    e.emit(Op::Gather { axis }, &[x, index.clone()])
}

/// The elements of an axis that a vector of indices names.
#[track_caller]
pub fn index_select<E: Emit>(e: &mut E, x: &E::Value, axis: usize, index: &E::Value) -> Built<E> {
    let index = spread_index(e, "index_select", x, axis, index)?;
    e.emit(Op::Gather { axis }, &[x.clone(), index])
}

/// A vector of indices repeated along every other axis of x.
#[track_caller]
fn spread_index<E: Emit>(e: &mut E, name: &'static str, x: &E::Value, axis: usize, index: &E::Value) -> Built<E> {
    check_axis(e, name, x, axis)?;
    let (mut shape, ty) = (e.ty(x).shape, e.ty(index));
    if ty.rank() != 1 {
        return fail::<_, E>(name, TypeError::WrongRank { operand: 1, ty, expected: "1".into() });
    }
    let lined_up = along_axis(e, index, shape.len(), axis)?;
    shape[axis] = ty.shape[0].clone();
    broadcast_to(e, &lined_up, &shape)
}

/// `x[…, index, …]`: the axis is replaced by the axes of the index. Negative indices count from the end.
#[track_caller]
pub fn take<E: Emit>(e: &mut E, x: &E::Value, axis: usize, index: &E::Value) -> Built<E> {
    check_axis(e, "take", x, axis)?;
    let size = e.ty(x).shape[axis].clone();
    let index = wrap_index(e, index, &size)?;
    take_unwrapped(e, x, axis, &index)
}

#[track_caller]
fn take_unwrapped<E: Emit>(e: &mut E, x: &E::Value, axis: usize, index: &E::Value) -> Built<E> {
    let (mut shape, index_ty) = (e.ty(x).shape, e.ty(index));
    let flat = reshape(e, index, &[index_ty.elements()])?;
    let picked = index_select(e, x, axis, &flat)?;
    shape.splice(axis..axis + 1, index_ty.shape);
    reshape(e, &picked, &shape)
}

/// Rows of `weight: [entries, width]` for indices of any shape; they must not be negative.
#[track_caller]
pub fn embedding<E: Emit>(e: &mut E, weight: &E::Value, index: &E::Value) -> Built<E> {
    let ty = e.ty(weight);
    if ty.rank() != 2 {
        return fail::<_, E>("embedding", TypeError::WrongRank { operand: 0, ty, expected: "2".into() });
    }
    take_unwrapped(e, weight, 0, index)
}

/// x with `updates[…, i, …]` combined into `x[…, index[i], …]`, for a vector of indices.
#[track_caller]
pub fn scatter_rows<E: Emit>(
    e: &mut E,
    kind: ScatterKind,
    x: &E::Value,
    axis: usize,
    index: &E::Value,
    updates: &E::Value,
) -> Built<E> {
    let index = spread_index(e, "scatter_rows", x, axis, index)?;
    let shape = e.ty(&index).shape;
    let updates = broadcast_to(e, updates, &shape)?;
    e.emit(Op::Scatter { axis, kind }, &[x.clone(), index, updates])
}

/// An index of [`index_put`]. Of several, one beyond its own axis would land in another row, so it is checked; one alone is
/// checked by the scatter.
#[track_caller]
fn own_axis<E: Emit>(e: &mut E, index: &E::Value, size: &Dim, several: bool) -> Built<E> {
    let index = wrap_index(e, index, size)?;
    let index = if several { check_index(e, &index, size)? } else { index };
    cast(e, &index, DType::I64)
}

/// x with `x[index0[i], index1[i], …] ∘= values[i]` over its first axes, for indices of one shape (negative ones count from
/// the end); values broadcast to that shape and x's other axes.
#[track_caller]
pub fn index_put<E: Emit>(
    e: &mut E,
    kind: ScatterKind,
    x: &E::Value,
    indices: &[E::Value],
    values: &E::Value,
) -> Built<E> {
    let ty = e.ty(x);
    let Some((first, others)) = indices.split_first() else {
        return fail::<_, E>("index_put", TypeError::OperandCount { expected: "at least one index", got: 0 });
    };
    if indices.len() > ty.rank() {
        return fail::<_, E>("index_put", TypeError::AxisOutOfRange { axis: indices.len() - 1, ty });
    }
    // The indexed axes become one, and so do the indices.
    let several = !others.is_empty();
    let mut flat = own_axis(e, first, &ty.shape[0], several)?;
    for (index, size) in others.iter().zip(&ty.shape[1..]) {
        let index = own_axis(e, index, size, several)?;
        let size = size_value(e, size, DType::I64)?;
        let scaled = super::mul(e, &flat, &size)?;
        flat = add(e, &scaled, &index)?;
    }
    let index_ty = e.ty(&flat);
    let rest = &ty.shape[indices.len()..];
    let value_shape: Vec<Dim> = index_ty.shape.iter().chain(rest).cloned().collect();
    let values = broadcast_to(e, values, &value_shape)?;
    let rows: Vec<Dim> = [index_ty.elements()].into_iter().chain(rest.iter().cloned()).collect();
    let values = reshape(e, &values, &rows)?;
    let index = reshape(e, &flat, &[index_ty.elements()])?;
    let joined = flatten(e, x, 0, indices.len() - 1)?;
    let written = scatter_rows(e, kind, &joined, 0, &index, &values)?;
    reshape(e, &written, &ty.shape)
}

/// 1 where a new last axis equals the index, 0 elsewhere. An index outside `0..classes` is an error at run time.
#[track_caller]
pub fn one_hot<E: Emit>(e: &mut E, index: &E::Value, classes: impl Into<Dim>, dtype: DType) -> Built<E> {
    let (ty, classes) = (e.ty(index), classes.into());
    let index = check_index(e, index, &classes)?;
    let column = unsqueeze(e, &index, ty.rank())?;
    let classes = iota(e, ty.dtype, &[classes], 0)?;
    let hit = compare(e, CompareOp::Eq, &column, &classes)?;
    cast(e, &hit, dtype)
}
