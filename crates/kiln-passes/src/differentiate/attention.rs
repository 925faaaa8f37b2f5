//! The rule of attention: the weights are computed again from queries and keys instead of being kept.
//!
//! ```text
//!  p  = softmax(q·kᵀ·scale + mask)      dv = pᵀ·g
//!  ds = p ∘ (g·vᵀ − Σ g∘y)              dq = scale·ds·k      dk = scale·dsᵀ·q      dmask = ds
//! ```

use super::{Gradients, when};
use kiln_ir::build::{Built, Emit, cast, div, mul, mul_scalar, reshape, sub, sum};
use kiln_ir::decompose::{attention_powers, share_keys};
use kiln_ir::{Dim, DotDims, Op, Scalar};

/// The cotangents of queries, keys, values and, if there is one, the mask. Products take short floats without widening, as
/// those of the forward direction do; everything between them is f32.
#[allow(clippy::too_many_arguments)]
pub(super) fn attention<E: Emit>(
    e: &mut E,
    causal: bool,
    scale: Scalar,
    [q, k, v]: [&E::Value; 3],
    mask: Option<&E::Value>,
    y: &E::Value,
    g: &E::Value,
    wanted: &[bool],
) -> Gradients<E> {
    let (q_ty, k_ty) = (e.ty(q), e.ty(k));
    let (dtype, wide) = (q_ty.dtype, q_ty.dtype.compute_type());
    let groups = &k_ty.shape[1];
    let (powers, total) = attention_powers(e, causal, scale, q, k, mask)?;
    let weights = div(e, &powers, &total)?;
    let shared_g = share_keys(e, g, groups)?;
    let dv = when::<E>(wanted[2], || {
        let weights = cast(e, &weights, dtype)?;
        let weights = share_keys(e, &weights, groups)?;
        over_rows(e, &weights, &shared_g)
    })?;
    let masked = mask.is_some() && wanted.get(3).copied().unwrap_or(false);
    if !(wanted[0] || wanted[1] || masked) {
        return Ok([vec![None, None, dv], vec![None; mask.iter().count()]].concat());
    }
    let products = along_last(e, &shared_g, v, 3, wide)?;
    let shape = [&q_ty.shape[0], &q_ty.shape[1], &q_ty.shape[2], &k_ty.shape[2]].map(Dim::clone);
    let products = reshape(e, &products, &shape)?;
    let (wide_y, wide_g) = (cast(e, y, wide)?, cast(e, g, wide)?);
    let both = mul(e, &wide_g, &wide_y)?;
    let mean = sum(e, &both, &[3], true)?;
    let distance = sub(e, &products, &mean)?;
    let scores = mul(e, &weights, &distance)?;
    let mut gradients = vec![None, None, dv];
    if wanted[0] || wanted[1] {
        let scaled = mul_scalar(e, &scores, scale.as_f64())?;
        let scaled = cast(e, &scaled, dtype)?;
        let scaled = share_keys(e, &scaled, groups)?;
        gradients[0] = when::<E>(wanted[0], || {
            let d = along_last(e, &scaled, k, 2, dtype)?;
            reshape(e, &d, &q_ty.shape)
        })?;
        gradients[1] = when::<E>(wanted[1], || {
            let q = share_keys(e, q, groups)?;
            over_rows(e, &scaled, &q)
        })?;
    }
    if let Some(mask) = mask {
        let mask_dtype = e.ty(mask).dtype;
        gradients.push(when::<E>(masked, || cast(e, &scores, mask_dtype))?);
    }
    Ok(gradients)
}

/// Σ over the last axis of x and an axis of a value per group of heads.
fn along_last<E: Emit>(e: &mut E, x: &E::Value, per_group: &E::Value, axis: usize, out: kiln_ir::DType) -> Built<E> {
    let last = e.ty(x).rank() - 1;
    let dims =
        DotDims { lhs_batch: vec![0, 1], rhs_batch: vec![0, 1], lhs_contract: vec![last], rhs_contract: vec![axis] };
    e.emit(Op::Dot { dims: dims.into(), out }, &[x.clone(), per_group.clone()])
}

/// Σ over rows, and over the heads that share keys.
fn over_rows<E: Emit>(e: &mut E, x: &E::Value, y: &E::Value) -> Built<E> {
    let ty = e.ty(x);
    let summed: Vec<usize> = (2..ty.rank() - 1).collect();
    let dims =
        DotDims { lhs_batch: vec![0, 1], rhs_batch: vec![0, 1], lhs_contract: summed.clone(), rhs_contract: summed };
    e.emit(Op::Dot { dims: dims.into(), out: ty.dtype }, &[x.clone(), y.clone()])
}
