//! Rules of reductions and running combinations.

use super::views::{cut, inverse};
use super::zeros;
use kiln_ir::build::{
    self, Built, Emit, and, broadcast_to, cast, compare, compare_scalar, div, flip, full, iota, masked_fill, mul,
    permute, reshape, select,
};
use kiln_ir::{CompareOp, DType, Dim, Op, ReduceKind, Scalar};

/// The cotangent of x for `y = reduce(x)`, whose axes stay with size 1.
pub(super) fn reduce<E: Emit>(
    e: &mut E,
    kind: ReduceKind,
    axes: &[usize],
    x: &E::Value,
    y: &E::Value,
    g: &E::Value,
) -> Built<E> {
    if axes.is_empty() {
        return Ok(g.clone());
    }
    let ty = e.ty(x);
    match kind {
        ReduceKind::Sum => broadcast_to(e, g, &ty.shape),
        ReduceKind::Prod => {
            let wide = ty.dtype.compute_type();
            let (x, g) = (cast(e, x, wide)?, cast(e, g, wide)?);
            let others = products_of_others(e, &x, axes)?;
            let d = mul(e, &others, &g)?;
            cast(e, &d, ty.dtype)
        }
        ReduceKind::Max | ReduceKind::Min => {
            let wide = ty.dtype.compute_type();
            let equal = compare(e, CompareOp::Eq, x, y)?;
            let ones = cast(e, &equal, wide)?;
            let count = build::sum(e, &ones, axes, true)?;
            let g = cast(e, g, wide)?;
            let share = div(e, &g, &count)?;
            let share = cast(e, &share, ty.dtype)?;
            let zero = zeros(e, &ty)?;
            select(e, &equal, &share, &zero)
        }
    }
}

/// For each element the product of all others over the axes, without dividing: what comes before it times what comes after.
pub(super) fn products_of_others<E: Emit>(e: &mut E, x: &E::Value, axes: &[usize]) -> Built<E> {
    let ty = e.ty(x);
    let (order, joined) = match axes {
        [_] => ((0..ty.rank()).collect::<Vec<_>>(), ty.shape.clone()),
        _ => {
            let kept = (0..ty.rank()).filter(|axis| !axes.contains(axis));
            let mut joined: Vec<Dim> = kept.clone().map(|axis| ty.shape[axis].clone()).collect();
            joined.push(axes.iter().map(|&axis| ty.shape[axis].clone()).product());
            (kept.chain(axes.iter().copied()).collect(), joined)
        }
    };
    let axis = if axes.len() == 1 { axes[0] } else { joined.len() - 1 };
    let together = permute(e, x, &order)?;
    let apart = e.ty(&together).shape;
    let line = reshape(e, &together, &joined)?;
    let before = exclusive(e, &line, axis, false)?;
    let after = exclusive(e, &line, axis, true)?;
    let others = mul(e, &before, &after)?;
    let others = reshape(e, &others, &apart)?;
    permute(e, &others, &inverse(&order))
}

/// The running product of what comes before each element (after it, if `reverse`).
fn exclusive<E: Emit>(e: &mut E, x: &E::Value, axis: usize, reverse: bool) -> Built<E> {
    let ty = e.ty(x);
    let zero = vec![Dim::from(0); ty.rank()];
    let mut one = zero.clone();
    one[axis] = Dim::from(1);
    let (low, high) = if reverse { (zero.clone(), one.clone()) } else { (one.clone(), zero.clone()) };
    let value = Scalar::float(ty.dtype, 1.0);
    let longer = e.emit(Op::Pad { low, high, value }, std::slice::from_ref(x))?;
    let running = e.emit(Op::Scan { kind: ReduceKind::Prod, axis, reverse }, &[longer])?;
    cut(e, &running, if reverse { &one } else { &zero }, &ty.shape)
}

/// The cotangent of x for a running combination y.
pub(super) fn scan<E: Emit>(
    e: &mut E,
    kind: ReduceKind,
    axis: usize,
    reverse: bool,
    x: &E::Value,
    y: &E::Value,
    g: &E::Value,
) -> Built<E> {
    match kind {
        ReduceKind::Sum => running_sum(e, axis, !reverse, g),
        ReduceKind::Prod => running_product(e, axis, reverse, x, y, g),
        ReduceKind::Max => running_extreme(e, CompareOp::Ge, axis, reverse, x, y, g),
        ReduceKind::Min => running_extreme(e, CompareOp::Le, axis, reverse, x, y, g),
    }
}

fn running_sum<E: Emit>(e: &mut E, axis: usize, reverse: bool, x: &E::Value) -> Built<E> {
    e.emit(Op::Scan { kind: ReduceKind::Sum, axis, reverse }, std::slice::from_ref(x))
}

/// Σ g·y over all later elements, divided by x. The first zero, from which on y is 0, gets Σ g·y′ instead, where y′ is the
/// product without it; zeros after that get nothing.
fn running_product<E: Emit>(
    e: &mut E,
    axis: usize,
    reverse: bool,
    x: &E::Value,
    y: &E::Value,
    g: &E::Value,
) -> Built<E> {
    let dtype = e.ty(x).dtype;
    let wide = dtype.compute_type();
    let (x, y, g) = (cast(e, x, wide)?, cast(e, y, wide)?, cast(e, g, wide)?);
    let zero = compare_scalar(e, CompareOp::Eq, &x, 0.0)?;
    let counted = cast(e, &zero, DType::I64)?;
    let count = running_sum(e, axis, reverse, &counted)?;
    let single = compare_scalar(e, CompareOp::Eq, &count, 1.0)?;
    let first = and(e, &zero, &single)?;
    let without = masked_fill(e, &x, &first, 1.0)?;
    let product = e.emit(Op::Scan { kind: ReduceKind::Prod, axis, reverse }, &[without])?;
    let at_first = mul(e, &g, &product)?;
    let at_first = running_sum(e, axis, !reverse, &at_first)?;
    let elsewhere = mul(e, &g, &y)?;
    let elsewhere = running_sum(e, axis, !reverse, &elsewhere)?;
    let elsewhere = div(e, &elsewhere, &x)?;
    let elsewhere = masked_fill(e, &elsewhere, &zero, 0.0)?;
    let d = select(e, &first, &at_first, &elsewhere)?;
    cast(e, &d, dtype)
}

/// Each element's cotangent goes to the last place so far where x reached the extreme. Places are counted from the end that
/// the scan starts at.
fn running_extreme<E: Emit>(
    e: &mut E,
    reaches: CompareOp,
    axis: usize,
    reverse: bool,
    x: &E::Value,
    y: &E::Value,
    g: &E::Value,
) -> Built<E> {
    let ty = e.ty(x);
    let record = compare(e, reaches, x, y)?;
    let mut place = iota(e, DType::I64, &ty.shape, axis)?;
    if reverse {
        place = flip(e, &place, &[axis])?;
    }
    let first = full(e, Scalar::int(DType::I64, 0), &ty.shape)?;
    let place = select(e, &record, &place, &first)?;
    let source = e.emit(Op::Scan { kind: ReduceKind::Max, axis, reverse }, &[place])?;
    let d = super::indexing::scatter_add(e, axis, &ty, &source, g)?;
    if reverse { flip(e, &d, &[axis]) } else { Ok(d) }
}
