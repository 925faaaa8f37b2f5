//! Attention spelled out for training: the logarithms of its sums, and its gradients.

use super::{
    AttentionOptions, Built, Emit, add, cast, compare, compare_scalar, dot, exp, fail, full, iota, logsumexp, mul,
    mul_scalar, repeat_interleave, reshape, select, size_value, sub, sum, unsqueeze, widen,
};
use crate::{CompareOp, DType, Dim, DotDims, Scalar, TensorType, TypeError};

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

/// The number of heads that share a key, where the ranks are right.
#[track_caller]
fn shared_heads<E: Emit>(e: &E, name: &'static str, q: &E::Value, k: &E::Value) -> Result<Dim, E::Error> {
    let (q, k) = (e.ty(q), e.ty(k));
    for (operand, ty) in [(0, &q), (1, &k)] {
        if ty.rank() != 4 {
            return fail::<_, E>(name, TypeError::WrongRank { operand, ty: ty.clone(), expected: "4".into() });
        }
    }
    match q.shape[1].div_exact(&k.shape[1]) {
        Some(shared) => Ok(shared),
        None => {
            let (size, by) = (q.shape[1].clone(), k.shape[1].clone());
            fail::<_, E>(name, TypeError::NotDivisible { what: "heads", size, by })
        }
    }
}

/// The scores q·kᵀ·scale + mask of attention before its softmax, `[batch, heads, rows, columns]`, in f32 for short floats.
#[track_caller]
pub fn attention_scores<E: Emit>(
    e: &mut E,
    q: &E::Value,
    k: &E::Value,
    options: &AttentionOptions<E::Value>,
) -> Built<E> {
    const NAME: &str = "attention_scores";
    let shared = shared_heads(e, NAME, q, k)?;
    let (q, k) = (widen(e, q)?.0, widen(e, k)?.0);
    let (q_ty, k_ty) = (e.ty(&q), e.ty(&k));
    let scale = scale_of::<E>(NAME, &q_ty, options)?;
    let k = repeat_interleave(e, &k, 1, shared)?;
    let scores = dot(e, &q, &k, batched(3, 3))?;
    let mut scores = mul_scalar(e, &scores, scale)?;
    let hidden = full(e, Scalar::float(q_ty.dtype, f64::NEG_INFINITY), &[])?;
    if let Some(mask) = &options.mask {
        if e.ty(mask).dtype == DType::Bool {
            scores = select(e, mask, &scores, &hidden)?;
        } else {
            let mask = cast(e, mask, q_ty.dtype)?;
            scores = add(e, &scores, &mask)?;
        }
    }
    if options.causal {
        let (rows, columns) = (&q_ty.shape[2], &k_ty.shape[2]);
        let seen = causal_mask(e, rows, columns, &(columns - rows))?;
        scores = select(e, &seen, &scores, &hidden)?;
    }
    Ok(scores)
}

/// A product batched over the first two axes, summed over these axes.
fn batched(lhs: usize, rhs: usize) -> DotDims {
    DotDims { lhs_batch: vec![0, 1], rhs_batch: vec![0, 1], lhs_contract: vec![lhs], rhs_contract: vec![rhs] }
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
    let scores = attention_scores(e, q, k, options)?;
    logsumexp(e, &scores, &[3], false)
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
    const NAME: &str = "attention_backward";
    let shared = shared_heads(e, NAME, &record.q, &record.k)?;
    let scores = attention_scores(e, &record.q, &record.k, options)?;
    let (q, dtype) = widen(e, &record.q)?;
    let wide = e.ty(&q).dtype;
    let (k, v) = (cast(e, &record.k, wide)?, cast(e, &record.v, wide)?);
    let (gradient, output) = (cast(e, gradient, wide)?, cast(e, &record.output, wide)?);
    let scale = scale_of::<E>(NAME, &e.ty(&q), options)?;
    let k_heads = repeat_interleave(e, &k, 1, shared.clone())?;
    let v_heads = repeat_interleave(e, &v, 1, shared.clone())?;
    // The probabilities; a fully masked row has a sum of 0, whose logarithm would make them NaN.
    let logsumexp = cast(e, &record.logsumexp, wide)?;
    let logsumexp = unsqueeze(e, &logsumexp, 3)?;
    let hidden = compare_scalar(e, CompareOp::Eq, &scores, f64::NEG_INFINITY)?;
    let shifted = sub(e, &scores, &logsumexp)?;
    let powers = exp(e, &shifted)?;
    let zero = full(e, Scalar::float(wide, 0.0), &[])?;
    let weights = select(e, &hidden, &zero, &powers)?;
    let v_gradient = dot(e, &weights, &gradient, batched(2, 2))?;
    let weight_gradient = dot(e, &gradient, &v_heads, batched(3, 3))?;
    let products = mul(e, &gradient, &output)?;
    let mean = sum(e, &products, &[3], true)?;
    let distance = sub(e, &weight_gradient, &mean)?;
    let score_gradient = mul(e, &weights, &distance)?;
    let score_gradient = mul_scalar(e, &score_gradient, scale)?;
    let q_gradient = dot(e, &score_gradient, &k_heads, batched(3, 2))?;
    let k_gradient = dot(e, &score_gradient, &q, batched(2, 2))?;
    let k_gradient = sum_shared(e, &k_gradient, &shared)?;
    let v_gradient = sum_shared(e, &v_gradient, &shared)?;
    Ok([cast(e, &q_gradient, dtype)?, cast(e, &k_gradient, dtype)?, cast(e, &v_gradient, dtype)?])
}

/// Sums over the heads that share a key.
#[track_caller]
fn sum_shared<E: Emit>(e: &mut E, x: &E::Value, shared: &Dim) -> Built<E> {
    let mut shape = e.ty(x).shape;
    if shared.is_one() {
        return Ok(x.clone());
    }
    let Some(groups) = shape[1].div_exact(shared) else {
        let size = shape[1].clone();
        let cause = TypeError::NotDivisible { what: "heads", size, by: shared.clone() };
        return fail::<_, E>("attention_backward", cause);
    };
    shape.splice(1..2, [groups, shared.clone()]);
    let split = reshape(e, x, &shape)?;
    sum(e, &split, &[2], false)
}
