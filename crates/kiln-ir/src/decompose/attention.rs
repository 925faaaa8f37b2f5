//! Attention and its gradients by products and softmax.
//!
//! ```text
//!  p  = softmax(q·kᵀ·scale + mask)      dv = pᵀ·g
//!  ds = p ∘ (g·vᵀ − Σ g∘y)              dq = scale·ds·k      dk = scale·dsᵀ·q      dmask = ds
//! ```
//!
//! Products take short floats without widening; everything between them is f32.

use crate::build::{
    Built, Emit, add, broadcast_to, cast, compare, compare_scalar, div, exp, flip, full, iota, log, masked_fill,
    max_over, mul, mul_scalar, reshape, select, slice_axis, sub, sum,
};
use crate::{AttentionOperand, BinaryOp, CompareOp, DType, Dim, DotDims, Op, Scalar};

/// What the scores of attention are computed from; see [`Op::Attention`].
#[derive(Debug)]
pub struct AttentionScores<'a, V> {
    /// Whether keys after a row's own place are hidden.
    pub causal: bool,
    /// The factor.
    pub scale: Scalar,
    /// `[batch, heads, rows, depth]`.
    pub q: &'a V,
    /// `[batch, groups, columns, depth]`.
    pub k: &'a V,
    /// `[batch, heads, rows, columns]`.
    pub mask: Option<&'a V>,
}

/// exp(scores − the row's largest), `[batch, heads, rows, columns]`, its sum over the columns, which stay with size 1, and the
/// largest. A row without visible columns has powers of 0, a sum of 1 and a largest score of −∞.
struct Powers<V> {
    powers: V,
    total: V,
    largest: V,
}

impl<V: Clone> AttentionScores<'_, V> {
    /// The scores, −∞ where a column is hidden, of the type that the operands are computed in.
    fn scores<E: Emit<Value = V>>(&self, b: &mut E) -> Built<E> {
        let (q_ty, k_ty) = (b.ty(self.q), b.ty(self.k));
        let wide = q_ty.dtype.compute_type();
        let (rows, columns) = (&q_ty.shape[2], &k_ty.shape[2]);
        let q = share_keys(b, self.q, &k_ty.shape[1])?;
        let scores = along_last(b, &q, self.k, 3, wide)?;
        let shape = [&q_ty.shape[0], &q_ty.shape[1], rows, columns].map(Dim::clone);
        let scores = reshape(b, &scores, &shape)?;
        let mut scores = mul_scalar(b, &scores, self.scale.as_f64())?;
        let hidden = |b: &mut E| full(b, Scalar::float(wide, f64::NEG_INFINITY), &shape);
        if let Some(mask) = self.mask {
            scores = match b.ty(mask).dtype {
                DType::Bool | DType::I64 => {
                    let (kept, hidden) = (kept_by(b, mask, columns)?, hidden(b)?);
                    select(b, &kept, &scores, &hidden)?
                }
                _ => {
                    let mask = cast(b, mask, wide)?;
                    add(b, &scores, &mask)?
                }
            };
        }
        if self.causal {
            // j ≤ i + s − t, counted from the ends so that symbolic sizes need no arithmetic.
            let row = iota(b, DType::I64, &[rows.clone(), Dim::from(1)], 0)?;
            let from_last_row = flip(b, &row, &[0])?;
            let column = iota(b, DType::I64, std::slice::from_ref(columns), 0)?;
            let from_last_column = flip(b, &column, &[0])?;
            let seen = compare(b, CompareOp::Ge, &from_last_column, &from_last_row)?;
            let hidden = hidden(b)?;
            scores = select(b, &seen, &scores, &hidden)?;
        }
        Ok(scores)
    }

    fn powers<E: Emit<Value = V>>(&self, b: &mut E) -> Result<Powers<V>, E::Error> {
        let scores = self.scores(b)?;
        let largest = max_over(b, &scores, &[3], true)?;
        let nothing = compare_scalar(b, CompareOp::Eq, &largest, f64::NEG_INFINITY)?;
        let shift = masked_fill(b, &largest, &nothing, 0.0)?;
        let shifted = sub(b, &scores, &shift)?;
        let powers = exp(b, &shifted)?;
        let total = sum(b, &powers, &[3], true)?;
        let total = masked_fill(b, &total, &nothing, 1.0)?;
        Ok(Powers { powers, total, largest })
    }

    /// The softmax of the scores, of the type that the operands are computed in; 0 in a row without visible columns.
    pub fn weights<E: Emit<Value = V>>(&self, b: &mut E) -> Built<E> {
        let Powers { powers, total, .. } = self.powers(b)?;
        div(b, &powers, &total)
    }

    /// The same from the logarithms of the rows' sums.
    pub(super) fn weights_by<E: Emit<Value = V>>(&self, b: &mut E, logsumexp: &V) -> Built<E> {
        let scores = self.scores(b)?;
        let hidden = compare_scalar(b, CompareOp::Eq, &scores, f64::NEG_INFINITY)?;
        // A hidden row's logarithm is −∞ too.
        let shifted = sub(b, &scores, logsumexp)?;
        let shifted = masked_fill(b, &shifted, &hidden, f64::NEG_INFINITY)?;
        exp(b, &shifted)
    }
}

/// The mask of bools that bounds of the visible columns stand for (see [`Op::Attention`]); any other mask as it is.
pub fn kept_by<E: Emit>(b: &mut E, mask: &E::Value, columns: &Dim) -> Built<E> {
    let mut ty = b.ty(mask);
    if ty.dtype != DType::I64 {
        return Ok(mask.clone());
    }
    let column = iota(b, DType::I64, std::slice::from_ref(columns), 0)?;
    let first = slice_axis(b, mask, 3, &Dim::from(0), &Dim::from(1), 1)?;
    let end = slice_axis(b, mask, 3, &Dim::from(1), &Dim::from(1), 1)?;
    let begun = compare(b, CompareOp::Ge, &column, &first)?;
    let not_ended = compare(b, CompareOp::Lt, &column, &end)?;
    let kept = b.emit(Op::Binary(BinaryOp::And), &[begun, not_ended])?;
    ty.shape[3] = columns.clone();
    broadcast_to(b, &kept, &ty.shape)
}

pub(super) fn attention<E: Emit>(b: &mut E, scores: &AttentionScores<'_, E::Value>, v: &E::Value) -> Built<E> {
    let (q_ty, k_ty, v_ty) = (b.ty(scores.q), b.ty(scores.k), b.ty(v));
    let wide = q_ty.dtype.compute_type();
    let Powers { powers, total, .. } = scores.powers(b)?;
    let powers = share_keys(b, &powers, &k_ty.shape[1])?;
    let v = cast(b, v, wide)?;
    let y = along_last(b, &powers, &v, 2, wide)?;
    let [batch, heads, rows] = [0, 1, 2].map(|i| q_ty.shape[i].clone());
    let y = reshape(b, &y, &[batch, heads, rows, v_ty.shape[3].clone()])?;
    let y = div(b, &y, &total)?;
    cast(b, &y, q_ty.dtype)
}

pub(super) fn logsumexp<E: Emit>(b: &mut E, scores: &AttentionScores<'_, E::Value>) -> Built<E> {
    let Powers { total, largest, .. } = scores.powers(b)?;
    let total = log(b, &total)?;
    add(b, &largest, &total)
}

/// What the gradients of attention are computed from.
#[derive(Debug)]
pub struct AttentionBackward<'a, V> {
    /// The scores.
    pub scores: AttentionScores<'a, V>,
    /// Their softmax, see [`AttentionScores::weights`].
    pub weights: V,
    /// `[batch, groups, columns, width]`.
    pub v: &'a V,
    /// The gradient of the result, `[batch, heads, rows, width]`.
    pub gradient: &'a V,
    /// The sum of gradient · result over the width, which stays with size 1, of the type that the operands are computed in.
    pub delta: &'a V,
}

impl<V: Clone> AttentionBackward<'_, V> {
    /// The gradient of the scores: that of the mask.
    pub fn of_scores<E: Emit<Value = V>>(&self, b: &mut E) -> Built<E> {
        let (q_ty, k_ty) = (b.ty(self.scores.q), b.ty(self.scores.k));
        let gradient = share_keys(b, self.gradient, &k_ty.shape[1])?;
        let products = along_last(b, &gradient, self.v, 3, q_ty.dtype.compute_type())?;
        let shape = [&q_ty.shape[0], &q_ty.shape[1], &q_ty.shape[2], &k_ty.shape[2]].map(Dim::clone);
        let products = reshape(b, &products, &shape)?;
        let distance = sub(b, &products, self.delta)?;
        mul(b, &self.weights, &distance)
    }
}

/// The gradient in one of the operands.
pub(super) fn gradient<E: Emit>(b: &mut E, of: AttentionOperand, from: &AttentionBackward<'_, E::Value>) -> Built<E> {
    let q_ty = b.ty(from.scores.q);
    let groups = &b.ty(from.scores.k).shape[1];
    if of == AttentionOperand::Values {
        let weights = cast(b, &from.weights, q_ty.dtype)?;
        let weights = share_keys(b, &weights, groups)?;
        let gradient = share_keys(b, from.gradient, groups)?;
        return over_rows(b, &weights, &gradient);
    }
    let scores = from.of_scores(b)?;
    let scaled = mul_scalar(b, &scores, from.scores.scale.as_f64())?;
    let scaled = cast(b, &scaled, q_ty.dtype)?;
    let scaled = share_keys(b, &scaled, groups)?;
    if of == AttentionOperand::Queries {
        let d = along_last(b, &scaled, from.scores.k, 2, q_ty.dtype)?;
        return reshape(b, &d, &q_ty.shape);
    }
    let q = share_keys(b, from.scores.q, groups)?;
    over_rows(b, &scaled, &q)
}

/// `[batch, heads, rows, …]` with the heads that share keys as one more axis, `[batch, groups, heads/groups, rows, …]`; the
/// same where each head has its own.
fn share_keys<E: Emit>(b: &mut E, x: &E::Value, groups: &Dim) -> Built<E> {
    let mut shape = b.ty(x).shape;
    if let Some(shared) = (shape[1] != *groups).then(|| shape[1].div_exact(groups)).flatten() {
        shape.splice(1..2, [groups.clone(), shared]);
    }
    reshape(b, x, &shape)
}

/// Σ over the last axis of x and an axis of a value per group of heads.
fn along_last<E: Emit>(b: &mut E, x: &E::Value, per_group: &E::Value, axis: usize, out: DType) -> Built<E> {
    let last = b.ty(x).rank() - 1;
    let dims =
        DotDims { lhs_batch: vec![0, 1], rhs_batch: vec![0, 1], lhs_contract: vec![last], rhs_contract: vec![axis] };
    b.emit(Op::Dot { dims: dims.into(), out }, &[x.clone(), per_group.clone()])
}

/// Σ over rows, and over the heads that share keys.
fn over_rows<E: Emit>(b: &mut E, x: &E::Value, y: &E::Value) -> Built<E> {
    let ty = b.ty(x);
    let summed: Vec<usize> = (2..ty.rank() - 1).collect();
    let dims =
        DotDims { lhs_batch: vec![0, 1], rhs_batch: vec![0, 1], lhs_contract: summed.clone(), rhs_contract: summed };
    b.emit(Op::Dot { dims: dims.into(), out: ty.dtype }, &[x.clone(), y.clone()])
}
