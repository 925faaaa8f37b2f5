//! Rules of gather and scatter.

use super::{Gradients, when, zeros};
use kiln_ir::build::{
    Built, Emit, cast, compare, compare_scalar, div, full, full_like, iota, masked_fill, mul, select,
};
use kiln_ir::{CompareOp, DType, Op, Scalar, ScatterKind, TensorType};

fn take<E: Emit>(e: &mut E, axis: usize, x: &E::Value, index: &E::Value) -> Built<E> {
    e.emit(Op::Gather { axis }, &[x.clone(), index.clone()])
}

/// Zeros of a type with values added at indices, short floats in f32.
pub(super) fn scatter_add<E: Emit>(
    e: &mut E,
    axis: usize,
    ty: &TensorType,
    index: &E::Value,
    values: &E::Value,
) -> Built<E> {
    let wide = TensorType::new(ty.dtype.compute_type(), ty.shape.clone());
    let values = cast(e, values, wide.dtype)?;
    let zero = zeros(e, &wide)?;
    let d = e.emit(Op::Scatter { axis, kind: ScatterKind::Add }, &[zero, index.clone(), values])?;
    cast(e, &d, ty.dtype)
}

/// Each element's cotangent is added where the element was read.
pub(super) fn gather<E: Emit>(e: &mut E, axis: usize, x: &E::Value, index: &E::Value, g: &E::Value) -> Built<E> {
    let ty = e.ty(x);
    scatter_add(e, axis, &ty, index, g)
}

/// The cotangents of x and of the updates.
pub(super) fn scatter<E: Emit>(
    e: &mut E,
    axis: usize,
    kind: ScatterKind,
    [x, index, updates]: [&E::Value; 3],
    y: &E::Value,
    g: &E::Value,
    wanted: &[bool],
) -> Gradients<E> {
    let (dx, du) = match kind {
        ScatterKind::Add => (wanted[0].then(|| g.clone()), when::<E>(wanted[2], || take(e, axis, g, index))?),
        ScatterKind::Set => {
            let dx = when::<E>(wanted[0], || {
                let ty = e.ty(updates);
                let nothing = zeros(e, &ty)?;
                e.emit(Op::Scatter { axis, kind }, &[g.clone(), index.clone(), nothing])
            })?;
            (dx, when::<E>(wanted[2], || last_written(e, axis, x, index, g))?)
        }
        ScatterKind::Mul => {
            let dx = when::<E>(wanted[0], || {
                let ones = full_like(e, x, 1.0)?;
                let factor = e.emit(Op::Scatter { axis, kind }, &[ones, index.clone(), updates.clone()])?;
                mul(e, g, &factor)
            })?;
            (dx, when::<E>(wanted[2], || other_factors(e, axis, x, index, updates, g))?)
        }
        ScatterKind::Max | ScatterKind::Min => return extreme(e, axis, [x, index, updates], y, g, wanted),
    };
    Ok(vec![dx, None, du])
}

/// The cotangents of the updates that no later one replaced.
fn last_written<E: Emit>(e: &mut E, axis: usize, x: &E::Value, index: &E::Value, g: &E::Value) -> Built<E> {
    let (x_ty, index_ty) = (e.ty(x), e.ty(index));
    let number = iota(e, DType::I64, &index_ty.shape, axis)?;
    let none = full(e, Scalar::int(DType::I64, 0), &x_ty.shape)?;
    let writer = e.emit(Op::Scatter { axis, kind: ScatterKind::Set }, &[none, index.clone(), number.clone()])?;
    let writer = take(e, axis, &writer, index)?;
    let stays = compare(e, CompareOp::Eq, &writer, &number)?;
    let read = take(e, axis, g, index)?;
    let ty = e.ty(&read);
    let zero = zeros(e, &ty)?;
    select(e, &stays, &read, &zero)
}

/// g times all that an update was multiplied with: the product without zeros divided by the update, where no zero but
/// perhaps the update itself is part of it.
fn other_factors<E: Emit>(
    e: &mut E,
    axis: usize,
    x: &E::Value,
    index: &E::Value,
    updates: &E::Value,
    g: &E::Value,
) -> Built<E> {
    let dtype = e.ty(x).dtype;
    let wide = dtype.compute_type();
    let (x, updates, g) = (cast(e, x, wide)?, cast(e, updates, wide)?, cast(e, g, wide)?);
    let zero = compare_scalar(e, CompareOp::Eq, &updates, 0.0)?;
    let factors = masked_fill(e, &updates, &zero, 1.0)?;
    let ones = cast(e, &zero, wide)?;
    let none = full_like(e, &x, 0.0)?;
    let zeros_at = e.emit(Op::Scatter { axis, kind: ScatterKind::Add }, &[none, index.clone(), ones.clone()])?;
    let zeros_at = take(e, axis, &zeros_at, index)?;
    let product = e.emit(Op::Scatter { axis, kind: ScatterKind::Mul }, &[x, index.clone(), factors.clone()])?;
    let weighted = mul(e, &g, &product)?;
    let weighted = take(e, axis, &weighted, index)?;
    let others = div(e, &weighted, &factors)?;
    let alone = compare(e, CompareOp::Eq, &zeros_at, &ones)?;
    let nothing = full_like(e, &others, 0.0)?;
    let d = select(e, &alone, &others, &nothing)?;
    cast(e, &d, dtype)
}

/// All that equal the result share its cotangent evenly.
fn extreme<E: Emit>(
    e: &mut E,
    axis: usize,
    [x, index, updates]: [&E::Value; 3],
    y: &E::Value,
    g: &E::Value,
    wanted: &[bool],
) -> Gradients<E> {
    let (x_ty, updates_ty) = (e.ty(x), e.ty(updates));
    let wide = x_ty.dtype.compute_type();
    let kept = compare(e, CompareOp::Eq, x, y)?;
    let result = take(e, axis, y, index)?;
    let won = compare(e, CompareOp::Eq, updates, &result)?;
    let (ones, winners) = (cast(e, &kept, wide)?, cast(e, &won, wide)?);
    let count = e.emit(Op::Scatter { axis, kind: ScatterKind::Add }, &[ones, index.clone(), winners])?;
    let g = cast(e, g, wide)?;
    let share = div(e, &g, &count)?;
    let share = cast(e, &share, x_ty.dtype)?;
    let dx = when::<E>(wanted[0], || {
        let zero = zeros(e, &x_ty)?;
        select(e, &kept, &share, &zero)
    })?;
    let du = when::<E>(wanted[2], || {
        let read = take(e, axis, &share, index)?;
        let zero = zeros(e, &updates_ty)?;
        select(e, &won, &read, &zero)
    })?;
    Ok(vec![dx, None, du])
}
