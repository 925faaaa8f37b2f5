//! Attention for training: the logarithms of its sums, and its gradients from them.

use super::{
    AttentionOptions, Built, Emit, add, broadcast_to, cast, compare, fail, iota, mul, size_value, squeeze, sum,
    unsqueeze,
};
use crate::{AttentionOperand, CompareOp, DType, Dim, Op, Scalar, TensorType, TypeError};

/// A causal mask: true in `[rows, columns]` where column ≤ row + `offset`. With offset 0 the first column alone is visible to
/// the first row, with columns − rows all are visible to the last row.
#[track_caller]
pub fn causal_mask<E: Emit>(e: &mut E, rows: &Dim, columns: &Dim, offset: &Dim) -> Built<E> {
    let shape = [rows.clone(), columns.clone()];
    let (row, column) = (iota(e, DType::I64, &shape, 0)?, iota(e, DType::I64, &shape, 1)?);
    let offset = size_value(e, offset, DType::I64)?;
    let limit = add(e, &row, &offset)?;
    compare(e, CompareOp::Le, &column, &limit)
}

/// The factor on the scores.
#[track_caller]
fn scale_of<E: Emit>(
    name: &'static str,
    q: &TensorType,
    options: &AttentionOptions<E::Value>,
) -> Result<f64, E::Error> {
    match (options.scale, q.shape[3].as_const()) {
        (Some(scale), _) => Ok(scale),
        (None, Some(depth)) => Ok(1.0 / (depth as f64).sqrt()),
        (None, None) => {
            let what = "the scale must be given when the depth is symbolic";
            fail::<_, E>(name, TypeError::BadAttribute { what, ty: q.clone() })
        }
    }
}

/// Checks the ranks of queries and keys, and that heads share keys evenly.
#[track_caller]
fn check_heads<E: Emit>(e: &E, name: &'static str, q: &E::Value, k: &E::Value) -> Result<(), E::Error> {
    let (q, k) = (e.ty(q), e.ty(k));
    for (operand, ty) in [(0, &q), (1, &k)] {
        if ty.rank() != 4 {
            return fail::<_, E>(name, TypeError::WrongRank { operand, ty: ty.clone(), expected: "4".into() });
        }
    }
    match q.shape[1].div_exact(&k.shape[1]) {
        Some(_) => Ok(()),
        None => {
            let (size, by) = (q.shape[1].clone(), k.shape[1].clone());
            fail::<_, E>(name, TypeError::NotDivisible { what: "heads", size, by })
        }
    }
}

/// The mask of attention in the shape of its scores, and the factor on them.
#[track_caller]
fn with_mask<E: Emit>(
    e: &mut E,
    name: &'static str,
    [q, k]: [&E::Value; 2],
    options: &AttentionOptions<E::Value>,
) -> Result<(Option<E::Value>, Scalar), E::Error> {
    check_heads(e, name, q, k)?;
    let (q_ty, k_ty) = (e.ty(q), e.ty(k));
    let scale = Scalar::float(DType::F64, scale_of::<E>(name, &q_ty, options)?);
    let mask = match &options.mask {
        None => None,
        Some(mask) => {
            let dtype = e.ty(mask).dtype;
            let is_taken = dtype == DType::Bool || dtype == q_ty.dtype;
            let mask = if is_taken { mask.clone() } else { cast(e, mask, DType::F32)? };
            let shape = [&q_ty.shape[0], &q_ty.shape[1], &q_ty.shape[2], &k_ty.shape[2]].map(Dim::clone);
            Some(broadcast_to(e, &mask, &shape)?)
        }
    };
    Ok((mask, scale))
}

/// The logarithm of the sum of the exponentials of each row's scores, `[batch, heads, rows]`, which the gradients of
/// attention are computed from; in f32 for short floats.
#[track_caller]
pub fn attention_logsumexp<E: Emit>(
    e: &mut E,
    q: &E::Value,
    k: &E::Value,
    options: &AttentionOptions<E::Value>,
) -> Built<E> {
    let (mask, scale) = with_mask(e, "attention_logsumexp", [q, k], options)?;
    let operands: Vec<E::Value> = [q, k].into_iter().chain(&mask).cloned().collect();
    let y = e.emit(Op::AttentionLogsumexp { causal: options.causal, scale, mask: mask.is_some() }, &operands)?;
    squeeze(e, &y, &[3])
}

/// The operands and results of an attention.
#[derive(Debug, Clone, PartialEq)]
pub struct AttentionRecord<V> {
    /// `[batch, heads, rows, depth]`.
    pub q: V,
    /// `[batch, groups, columns, depth]`.
    pub k: V,
    /// `[batch, groups, columns, width]`.
    pub v: V,
    /// Its result, `[batch, heads, rows, width]`.
    pub output: V,
    /// The result of [`attention_logsumexp`].
    pub logsumexp: V,
}

/// The gradients of attention in q, k and v, from that of its result.
#[track_caller]
pub fn attention_backward<E: Emit>(
    e: &mut E,
    gradient: &E::Value,
    record: &AttentionRecord<E::Value>,
    options: &AttentionOptions<E::Value>,
) -> Result<[E::Value; 3], E::Error> {
    let AttentionRecord { q, k, v, output, logsumexp } = record;
    let (mask, scale) = with_mask(e, "attention_backward", [q, k], options)?;
    let dtype = e.ty(q).dtype;
    let wide = dtype.compute_type();
    let logsumexp = cast(e, logsumexp, wide)?;
    let logsumexp = unsqueeze(e, &logsumexp, 3)?;
    let gradient = cast(e, gradient, dtype)?;
    let (wide_gradient, wide_output) = (cast(e, &gradient, wide)?, cast(e, output, wide)?);
    let products = mul(e, &wide_gradient, &wide_output)?;
    let delta = sum(e, &products, &[3], true)?;
    let operands: Vec<E::Value> = [q, k, v, &gradient, &logsumexp, &delta].into_iter().chain(&mask).cloned().collect();
    let (causal, mask) = (options.causal, mask.is_some());
    let of = |of| Op::AttentionGradient { of, causal, scale, mask };
    Ok([
        e.emit(of(AttentionOperand::Queries), &operands)?,
        e.emit(of(AttentionOperand::Keys), &operands)?,
        e.emit(of(AttentionOperand::Values), &operands)?,
    ])
}
