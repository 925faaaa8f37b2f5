//! Products of matrices: matmul, linear, outer.

use super::{Built, Emit, add, broadcast_shapes, broadcast_to, fail, mul, permute, squeeze, sum, transpose, unsqueeze};
use crate::{CompareOp, Dim, DotDims, Op, TypeError};

/// A sum of products with given dimension numbers, in the operands' dtype.
#[track_caller]
pub fn dot<E: Emit>(e: &mut E, x: &E::Value, y: &E::Value, dims: DotDims) -> Built<E> {
    let out = e.ty(x).dtype;
    e.emit(Op::Dot { dims: dims.into(), out }, &[x.clone(), y.clone()])
}

/// An axis multiplied by a matrix, `y[…, j, …] = Σ x[…, i, …]·m[i, j]`: the axis takes the length of the matrix's rows.
#[track_caller]
pub fn transform_axis<E: Emit>(e: &mut E, x: &E::Value, axis: usize, matrix: &E::Value) -> Built<E> {
    let rank = e.ty(x).rank();
    let dims = DotDims { lhs_contract: vec![axis], rhs_contract: vec![0], ..DotDims::default() };
    let y = dot(e, x, matrix, dims)?;
    // The new axis came last.
    let order: Vec<usize> = (0..axis).chain([rank - 1]).chain(axis..rank - 1).collect();
    permute(e, &y, &order)
}

/// x·wᵀ + bias over the last axis of x, with `w: [out, in]`.
#[track_caller]
pub fn linear<E: Emit>(e: &mut E, x: &E::Value, w: &E::Value, bias: Option<&E::Value>) -> Built<E> {
    let (x_ty, w_ty) = (e.ty(x), e.ty(w));
    let Some(last) = x_ty.rank().checked_sub(1) else {
        return fail::<_, E>("linear", TypeError::WrongRank { operand: 0, ty: x_ty, expected: "1 or more".into() });
    };
    if w_ty.rank() != 2 {
        return fail::<_, E>("linear", TypeError::WrongRank { operand: 1, ty: w_ty, expected: "2".into() });
    }
    let dims = DotDims { lhs_contract: vec![last], rhs_contract: vec![1], ..DotDims::default() };
    let y = dot(e, x, w, dims)?;
    match bias {
        Some(bias) => add(e, &y, bias),
        None => Ok(y),
    }
}

/// The product of matrices in the last two axes; the others broadcast. A vector on the left is a row, on the right a
/// column, and its axis goes from the result.
#[track_caller]
pub fn matmul<E: Emit>(e: &mut E, x: &E::Value, y: &E::Value) -> Built<E> {
    let (x_rank, y_rank) = (e.ty(x).rank(), e.ty(y).rank());
    for (operand, value, rank) in [(0, x, x_rank), (1, y, y_rank)] {
        if rank == 0 {
            let ty = e.ty(value);
            return fail::<_, E>("matmul", TypeError::WrongRank { operand, ty, expected: "1 or more".into() });
        }
    }
    if x_rank == 1 && y_rank > 2 {
        let row = unsqueeze(e, x, 0)?;
        let product = matmul(e, &row, y)?;
        return squeeze(e, &product, &[y_rank - 2]);
    }
    if y_rank == 1 && x_rank > 2 {
        let dims = DotDims { lhs_contract: vec![x_rank - 1], rhs_contract: vec![0], ..DotDims::default() };
        return dot(e, x, y, dims);
    }
    if y_rank <= 2 {
        let dims = DotDims { lhs_contract: vec![x_rank - 1], rhs_contract: vec![0], ..DotDims::default() };
        return dot(e, x, y, dims);
    }
    // One shape of batch axes on both sides.
    let x_ty = e.ty(x);
    let y_ty = e.ty(y);
    let batch = broadcast_batch(e, x, y)?;
    let x_shape: Vec<Dim> = batch.iter().chain(&x_ty.shape[x_rank - 2..]).cloned().collect();
    let y_shape: Vec<Dim> = batch.iter().chain(&y_ty.shape[y_rank - 2..]).cloned().collect();
    let x = broadcast_to(e, x, &x_shape)?;
    let y = broadcast_to(e, y, &y_shape)?;
    let n = batch.len();
    let axes: Vec<usize> = (0..n).collect();
    let dims = DotDims { lhs_batch: axes.clone(), rhs_batch: axes, lhs_contract: vec![n + 1], rhs_contract: vec![n] };
    dot(e, &x, &y, dims)
}

/// The broadcast shape of all axes but the last two of both sides.
#[track_caller]
fn broadcast_batch<E: Emit>(e: &E, x: &E::Value, y: &E::Value) -> Result<Vec<Dim>, E::Error> {
    let (x, y) = (e.ty(x), e.ty(y));
    let (a, b) = (&x.shape[..x.rank() - 2], &y.shape[..y.rank() - 2]);
    let rank = a.len().max(b.len());
    let one = Dim::from(1);
    let mut batch = Vec::with_capacity(rank);
    for axis in 0..rank {
        let size = |shape: &[Dim]| (axis + shape.len()).checked_sub(rank).map_or(one.clone(), |i| shape[i].clone());
        let (m, n) = (size(a), size(b));
        if m != n && !m.is_one() && !n.is_one() {
            return fail::<_, E>("matmul", TypeError::ShapesDiffer { lhs: x, rhs: y, sizes: Some(Box::new((m, n))) });
        }
        batch.push(if m.is_one() { n } else { m });
    }
    Ok(batch)
}

/// `y[i, j] = a[i] · b[j]` of two vectors.
#[track_caller]
pub fn outer<E: Emit>(e: &mut E, a: &E::Value, b: &E::Value) -> Built<E> {
    let column = unsqueeze(e, a, 1)?;
    let row = unsqueeze(e, b, 0)?;
    mul(e, &column, &row)
}

/// xᵀ in the last two axes.
#[track_caller]
pub fn matrix_transpose<E: Emit>(e: &mut E, x: &E::Value) -> Built<E> {
    let ty = e.ty(x);
    match ty.rank().checked_sub(2) {
        Some(corner) => transpose(e, x, corner, corner + 1),
        None => fail::<_, E>("matrix_transpose", TypeError::WrongRank { operand: 0, ty, expected: "2 or more".into() }),
    }
}

/// Σ x·y over an axis of two values that broadcast.
#[track_caller]
pub fn inner<E: Emit>(e: &mut E, x: &E::Value, y: &E::Value, axis: usize) -> Built<E> {
    broadcast_shapes(e, x, y)?;
    let products = mul(e, x, y)?;
    sum(e, &products, &[axis], false)
}

/// Rows of `x: [rows, in]` times the matrix of their group, `w: [groups, in, out]`: group g has the rows before `ends[g]` that
/// no earlier group has, and rows that no group has give 0. Every row meets every group's matrix with zeros for those that
/// are not its own, in a single product of `groups` times the work that is needed.
#[track_caller]
pub fn grouped_matmul<E: Emit>(e: &mut E, x: &E::Value, w: &E::Value, ends: &E::Value) -> Built<E> {
    let (x_ty, w_ty) = (e.ty(x), e.ty(w));
    for (operand, ty, rank) in [(0, &x_ty, 2), (1, &w_ty, 3)] {
        if ty.rank() != rank {
            let expected = rank.to_string();
            return fail::<_, E>("grouped_matmul", TypeError::WrongRank { operand, ty: ty.clone(), expected });
        }
    }
    let member = group_members(e, &x_ty.shape[0], &w_ty.shape[0], ends)?;
    let member = unsqueeze(e, &member, 2)?;
    let rows = unsqueeze(e, x, 1)?;
    let zero = super::full(e, crate::Scalar::int(x_ty.dtype, 0), &[])?;
    let spread = super::select(e, &member, &rows, &zero)?;
    let dims = DotDims { lhs_contract: vec![1, 2], rhs_contract: vec![0, 1], ..DotDims::default() };
    dot(e, &spread, w, dims)
}

/// One product per group, `y[g] = Σ x[:, i]·y[i, :]` over the columns i of `x: [rows, columns]` and rows of `y: [columns, out]`
/// that belong to group g as in [`grouped_matmul`]: the gradient of its matrices.
#[track_caller]
pub fn grouped_inner<E: Emit>(e: &mut E, x: &E::Value, y: &E::Value, ends: &E::Value) -> Built<E> {
    let (x_ty, y_ty) = (e.ty(x), e.ty(y));
    for (operand, ty) in [(0, &x_ty), (1, &y_ty)] {
        if ty.rank() != 2 {
            let (ty, expected) = (ty.clone(), "2".into());
            return fail::<_, E>("grouped_inner", TypeError::WrongRank { operand, ty, expected });
        }
    }
    let groups = e.ty(ends).elements();
    let member = group_members(e, &x_ty.shape[1], &groups, ends)?;
    let member = transpose(e, &member, 0, 1)?;
    let member = unsqueeze(e, &member, 1)?;
    let columns = unsqueeze(e, x, 0)?;
    let zero = super::full(e, crate::Scalar::int(x_ty.dtype, 0), &[])?;
    let spread = super::select(e, &member, &columns, &zero)?;
    let dims = DotDims { lhs_contract: vec![2], rhs_contract: vec![0], ..DotDims::default() };
    dot(e, &spread, y, dims)
}

/// True in `[rows, groups]` where a row belongs to a group.
#[track_caller]
fn group_members<E: Emit>(e: &mut E, rows: &Dim, groups: &Dim, ends: &E::Value) -> Built<E> {
    let dtype = e.ty(ends).dtype;
    let row = super::iota(e, dtype, std::slice::from_ref(rows), 0)?;
    let group = super::bucketize(e, &row, ends, true, dtype)?;
    let group = unsqueeze(e, &group, 1)?;
    let each = super::iota(e, dtype, std::slice::from_ref(groups), 0)?;
    super::compare(e, CompareOp::Eq, &group, &each)
}
