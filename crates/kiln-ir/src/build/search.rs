//! Positions of values among sorted boundaries, and histograms.

use super::{
    Built, Emit, add_scalar, and, cast, compare, compare_scalar, div, fail, full, full_like, max_over, min_over,
    minimum, mul_scalar, not, reshape, scatter_rows, select, sub, sum, unsqueeze,
};
use crate::{CompareOp, DType, Dim, Scalar, ScatterKind, TypeError};

/// The number of ascending boundaries below each element, those equal to it included if `right`: the position at which the
/// element would be inserted. NaN comes after all of them. Every element is compared with every boundary where these are few or not
/// counted; else it is [`searchsorted`].
#[track_caller]
pub fn bucketize<E: Emit>(e: &mut E, x: &E::Value, boundaries: &E::Value, right: bool, dtype: DType) -> Built<E> {
    let ty = e.ty(boundaries);
    if ty.rank() != 1 {
        return fail::<_, E>("bucketize", TypeError::WrongRank { operand: 1, ty, expected: "1".into() });
    }
    if ty.shape[0].as_usize().is_some_and(|count| count > MOST_COMPARED) {
        let elements = e.ty(x);
        let flat = reshape(e, x, &[elements.elements()])?;
        let places = searchsorted(e, boundaries, &flat, right)?;
        let places = reshape(e, &places, &elements.shape)?;
        return cast(e, &places, dtype);
    }
    let rank = e.ty(x).rank();
    let column = unsqueeze(e, x, rank)?;
    // Not "below": NaN is neither above nor below anything.
    let reached = if right { CompareOp::Gt } else { CompareOp::Ge };
    let after = compare(e, reached, boundaries, &column)?;
    let before = not(e, &after)?;
    let ones = cast(e, &before, dtype)?;
    sum(e, &ones, &[rank], false)
}

/// The most boundaries that each element is compared with.
const MOST_COMPARED: usize = 32;

/// For each of `values: […, k]` the number of elements of `sorted: […, n]`, ascending along the last axis of known length, that are below
/// it, those equal to it included if `right`; as i64. NaN comes after all of them. It takes log₂ n steps of a search by halves.
#[track_caller]
pub fn searchsorted<E: Emit>(e: &mut E, sorted: &E::Value, values: &E::Value, right: bool) -> Built<E> {
    const NAME: &str = "searchsorted";
    let (ty, of) = (e.ty(sorted), e.ty(values));
    let same = ty.rank() > 0 && ty.rank() == of.rank() && ty.dtype == of.dtype;
    if !same || ty.shape[..ty.rank() - 1] != of.shape[..of.rank() - 1] {
        return fail::<_, E>(NAME, TypeError::ShapesDiffer { lhs: ty, rhs: of, sizes: None });
    }
    let last = ty.rank() - 1;
    let Some(count) = ty.shape[last].as_usize() else {
        return fail::<_, E>(NAME, TypeError::BadAttribute { what: "a symbolic size", ty });
    };
    let mut place = full(e, Scalar::int(DType::I64, 0), &of.shape)?;
    let mut step = if count == 0 { 0 } else { 1usize << count.ilog2() };
    let end = full_like(e, &place, count as f64)?;
    while step > 0 {
        // Whether the element before the next place is still below the value.
        let next = add_scalar(e, &place, step as f64)?;
        let inside = compare(e, CompareOp::Le, &next, &end)?;
        let bounded = minimum(e, &next, &end)?;
        let before = add_scalar(e, &bounded, -1.0)?;
        let element = super::gather(e, sorted, last, &before)?;
        // Not "below": NaN is neither above nor below anything.
        let reached = compare(e, if right { CompareOp::Gt } else { CompareOp::Ge }, &element, values)?;
        let below = not(e, &reached)?;
        let moves = and(e, &inside, &below)?;
        place = select(e, &moves, &next, &place)?;
        step /= 2;
    }
    Ok(place)
}

/// How many elements of a float tensor fall into each of `bins` parts of equal length of low ≤ x ≤ high, in x's dtype. Where
/// low equals high the range is that of the elements.
#[track_caller]
pub fn histogram<E: Emit>(e: &mut E, x: &E::Value, bins: usize, low: f64, high: f64) -> Built<E> {
    let ty = e.ty(x);
    if !ty.dtype.is_float() {
        let got = ty.dtype;
        return fail::<_, E>("histogram", TypeError::WrongDType { operand: 0, got, expected: "a float" });
    }
    if bins == 0 {
        return fail::<_, E>("histogram", TypeError::NotPositive { attribute: "bins", axis: 0, got: Dim::from(0) });
    }
    let zero = Scalar::float(ty.dtype, 0.0);
    let empty = full(e, zero, &[Dim::from(bins)])?;
    if ty.elements().is_zero() {
        return Ok(empty);
    }
    let flat = reshape(e, x, &[ty.elements()])?;
    let (low, high) = if low == high {
        let (lowest, highest) = (min_over(e, &flat, &[0], false)?, max_over(e, &flat, &[0], false)?);
        // A single distinct value is in the middle.
        let single = compare(e, CompareOp::Eq, &lowest, &highest)?;
        let (below, above) = (add_scalar(e, &lowest, -1.0)?, add_scalar(e, &highest, 1.0)?);
        (select(e, &single, &below, &lowest)?, select(e, &single, &above, &highest)?)
    } else {
        (full(e, Scalar::float(ty.dtype, low), &[])?, full(e, Scalar::float(ty.dtype, high), &[])?)
    };
    let from_low = compare(e, CompareOp::Ge, &flat, &low)?;
    let to_high = compare(e, CompareOp::Le, &flat, &high)?;
    let inside = and(e, &from_low, &to_high)?;
    let distance = sub(e, &flat, &low)?;
    let range = sub(e, &high, &low)?;
    let scaled = mul_scalar(e, &distance, bins as f64)?;
    let place = div(e, &scaled, &range)?;
    let nowhere = full(e, zero, &[])?;
    let place = select(e, &inside, &place, &nowhere)?;
    let place = cast(e, &place, DType::I64)?;
    let last = full(e, Scalar::int(DType::I64, bins as i64 - 1), &[])?;
    let place = minimum(e, &place, &last)?;
    let counted = cast(e, &inside, ty.dtype)?;
    scatter_rows(e, ScatterKind::Add, &empty, 0, &place, &counted)
}

/// For each place of a bool tensor, in row-major order, how many true elements come before it.
#[track_caller]
pub fn true_positions<E: Emit>(e: &mut E, mask: &E::Value) -> Built<E> {
    let ty = e.ty(mask);
    let flat = reshape(e, mask, &[ty.elements()])?;
    let ones = cast(e, &flat, DType::I64)?;
    let inclusive = super::cumsum(e, &ones, 0)?;
    let before = sub(e, &inclusive, &ones)?;
    reshape(e, &before, &ty.shape)
}

/// True where 0 ≤ index < size.
#[track_caller]
pub(super) fn within<E: Emit>(e: &mut E, index: &E::Value, size: &E::Value) -> Built<E> {
    let from_start = compare_scalar(e, CompareOp::Ge, index, 0.0)?;
    let before_end = compare(e, CompareOp::Lt, index, size)?;
    and(e, &from_start, &before_end)
}
