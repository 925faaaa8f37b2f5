//! Positions of values among sorted boundaries, and histograms.

use super::{
    Built, Emit, add_scalar, and, cast, compare, compare_scalar, div, fail, full, max_over, min_over, minimum,
    mul_scalar, not, reshape, scatter_rows, select, sub, sum, unsqueeze,
};
use crate::{CompareOp, DType, Dim, Scalar, ScatterKind, TypeError};

/// The number of ascending boundaries below each element, those equal to it included if `right`: the position at which the
/// element would be inserted. NaN comes after all of them. Every element is compared with every boundary, which suits few
/// boundaries.
#[track_caller]
pub fn bucketize<E: Emit>(e: &mut E, x: &E::Value, boundaries: &E::Value, right: bool, dtype: DType) -> Built<E> {
    let ty = e.ty(boundaries);
    if ty.rank() != 1 {
        return fail::<_, E>("bucketize", TypeError::WrongRank { operand: 1, ty, expected: "1".into() });
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
