//! Reverse-mode differentiation: takes a graph and returns one that also computes its gradients.
//!
//! ```text
//!  inputs ──▶ forward nodes ──▶ outputs ─┐            rule: (op, operands, result, cotangent) ─▶ a cotangent per operand
//!                │ operands, results     ▼ seed       a node used twice: the sum of what its users give
//!  gradients ◀── backward nodes ◀── cotangents        no path: nothing is emitted; zeros only for a requested input
//! ```
//!
//! The rules of the pointwise functions are in their rows of the table of ops ([`kiln_ir::table`]), those of the other ops in
//! the files of this module. The rules are generic over [`Emit`], so that a tape of eager tensors ([`gradient`],
//! [`accumulate`]) and the graph pass ([`differentiate`]) share them. They follow PyTorch where a derivative is a matter of
//! convention:
//!
//! - `abs` and `sign` at 0 give 0; `sqrt` at 0 gives ∞; the rounding functions give 0 everywhere.
//! - `max(x, y)` and `min(x, y)` split a tie in halves. Where only one gradient is requested, the other is a bound, and at the
//!   bound the gradient is 0: that is what relu, relu6 and hardtanh do.
//! - A largest or smallest element over axes shares its gradient evenly among equals; over windows (pooling) the first in
//!   each window takes all; in a running extreme the last so far takes all. A gather at an `argmax` gives it to the first.
//! - A scatter that sets gives its gradient to the write that stays, one that keeps extremes shares among equals.
//! - The exponent of a power gets nothing from a negative base, whose logarithm does not exist, nor from 0 to a power ≥ 0.
//!
//! Short floats are widened where a rule takes several steps, so that each gradient is rounded once; sums over many
//! contributions are carried out in f32. Only floats that can be computed with carry gradients: integers, bools and storage
//! types cut the path.

mod attention;
mod graph;
mod indexing;
mod loops;
mod products;
mod reduce;
mod shift;
mod views;
mod windows;

pub use graph::{DifferentiateError, DifferentiateOptions, Seeds, differentiate};
pub use kiln_ir::table::{Derivative, Gradients};
pub use loops::{body_gradients, with_states};

use kiln_ir::build::{self, Built, Emit, add, cast, full};
use kiln_ir::table::when;
use kiln_ir::{DType, Dim, Op, OpKind, Scalar, TensorType};

/// What the derivative of a kind of op is; every kind is declared here.
pub fn derivative(kind: OpKind) -> Derivative {
    match kind {
        OpKind::Input | OpKind::Full | OpKind::Constant | OpKind::Iota | OpKind::RandomBits => Derivative::None,
        OpKind::Compare(_) | OpKind::Bitcast | OpKind::ArgReduce(_) | OpKind::SortIndices => Derivative::None,
        OpKind::Dequantize => Derivative::None,
        OpKind::Unary(op) => op.derivative(),
        OpKind::Binary(op) => op.derivative(),
        OpKind::Select
        | OpKind::Cast
        | OpKind::Reduce(_)
        | OpKind::Scan(_)
        | OpKind::Reshape
        | OpKind::Permute
        | OpKind::Expand
        | OpKind::Slice
        | OpKind::Pad
        | OpKind::Flip
        | OpKind::Unfold
        | OpKind::Concat
        | OpKind::Gather
        | OpKind::Scatter(_)
        | OpKind::Dot
        | OpKind::Conv
        | OpKind::ReduceWindow(_)
        | OpKind::Attention
        | OpKind::AttentionLogsumexp
        | OpKind::AttentionGradient(_)
        | OpKind::Loop
        | OpKind::Cond => Derivative::Rule,
    }
}

/// True for the types that carry gradients: floats that can be computed with.
pub fn is_differentiable(dtype: DType) -> bool {
    dtype.is_float() && !dtype.is_storage_only()
}

/// The cotangents of an op's operands, given its result and the result's cotangent (which has the result's type). Only those
/// that are `wanted` are computed; `None` is a cotangent of 0. Each has its operand's type.
///
/// ```
/// use kiln_ir::build::{Emit, GraphBuilder, exp};
/// use kiln_ir::{DType, Op, TensorType, UnaryOp};
/// let mut b = GraphBuilder::new();
/// let ty = TensorType::fixed(DType::F32, &[4]);
/// let (x, g) = (b.input(ty.clone()).unwrap(), b.input(ty).unwrap());
/// let y = exp(&mut b, &x).unwrap();
/// let gradients = kiln_passes::gradient(&mut b, &Op::Unary(UnaryOp::Exp), &[x], &y, &g, &[true]).unwrap();
/// assert_eq!(b.graph().node(gradients[0].unwrap()).operands, [g, y]);
/// ```
pub fn gradient<E: Emit>(
    e: &mut E,
    op: &Op,
    operands: &[E::Value],
    result: &E::Value,
    cotangent: &E::Value,
    wanted: &[bool],
) -> Gradients<E> {
    let asked = |i: usize| wanted.get(i).copied().unwrap_or(false);
    let float = |e: &E, x: &E::Value| is_differentiable(e.ty(x).dtype);
    let wanted: Vec<bool> = operands.iter().enumerate().map(|(i, x)| asked(i) && float(e, x)).collect();
    if derivative(op.kind()) != Derivative::Rule || !wanted.contains(&true) || !float(e, result) {
        return Ok(vec![None; operands.len()]);
    }
    // Windows over nothing have gradients of no places: zeros.
    let is_empty = |e: &E, x: &E::Value| e.ty(x).shape.iter().any(Dim::is_zero);
    let is_windowed = matches!(op, Op::Conv(_) | Op::ReduceWindow { .. });
    if !is_windowed || !(is_empty(e, result) || operands.iter().any(|x| is_empty(e, x))) {
        return rule(e, op, operands, result, cotangent, &wanted);
    }
    let zeros = |(x, wanted): (&E::Value, &bool)| wanted.then(|| build::full_like(e, x, 0.0)).transpose();
    operands.iter().zip(&wanted).map(zeros).collect()
}

/// The gradients of an op that has some.
fn rule<E: Emit>(
    e: &mut E,
    op: &Op,
    operands: &[E::Value],
    result: &E::Value,
    cotangent: &E::Value,
    wanted: &[bool],
) -> Gradients<E> {
    let nothing = vec![None; operands.len()];
    let (y, g) = (result, cotangent);
    let one = match (op, operands) {
        (Op::Binary(op), [a, b]) => return op.cotangents(e, [a, b], y, g, [wanted[0], wanted[1]]),
        (Op::Select, [condition, ..]) => return select(e, condition, g, wanted),
        (Op::Concat { axis }, parts) => return views::concat(e, *axis, parts, g, wanted),
        (Op::Gather { axis }, [x, index]) => {
            return Ok(vec![Some(indexing::gather(e, *axis, x, index, g)?), None]);
        }
        (Op::Scatter { axis, kind }, [x, index, updates]) => {
            return indexing::scatter(e, *axis, *kind, [x, index, updates], y, g, wanted);
        }
        (Op::Dot { dims, .. }, [a, b]) => return products::dot(e, dims, [a, b], g, wanted),
        (Op::Conv(dims), [x, w]) => return products::conv(e, dims, [x, w], g, wanted),
        (Op::Attention { causal, scale, .. }, [q, k, v, mask @ ..]) => {
            return attention::attention(e, *causal, *scale, [q, k, v], mask.first(), y, g, wanted);
        }
        (Op::AttentionLogsumexp { .. } | Op::AttentionGradient { .. }, operands) => {
            return attention::by_parts(e, op, operands, g, wanted);
        }
        (Op::Loop { .. } | Op::Cond { .. }, operands) => return loops::result(e, op, operands, g, wanted),
        (Op::Unary(op), [x]) => return Ok(vec![op.cotangent(e, x, y, g)?]),
        (Op::Cast(_), [x]) => {
            let dtype = e.ty(x).dtype;
            cast(e, g, dtype)?
        }
        (Op::Reduce { kind, axes }, [x]) => reduce::reduce(e, *kind, axes, x, y, g)?,
        (Op::Scan { kind, axis, reverse }, [x]) => reduce::scan(e, *kind, *axis, *reverse, x, y, g)?,
        (Op::ReduceWindow { kind, dims }, [x]) => windows::reduce_window(e, *kind, dims, x, g)?,
        (_, [x]) => {
            let ty = e.ty(x);
            views::view(e, op, &ty, g)?
        }
        _ => return Ok(nothing),
    };
    Ok(vec![Some(one)])
}

/// The sum of cotangents of one type; nothing of none. More than two short floats are added up in f32.
pub fn accumulate<E: Emit>(e: &mut E, cotangents: &[E::Value]) -> Result<Option<E::Value>, E::Error> {
    let Some((first, rest)) = cotangents.split_first() else { return Ok(None) };
    let dtype = e.ty(first).dtype;
    // Two terms round once in any case.
    let wide = if rest.len() > 1 { dtype.compute_type() } else { dtype };
    let mut total = cast(e, first, wide)?;
    for other in rest {
        let other = cast(e, other, wide)?;
        total = add(e, &total, &other)?;
    }
    cast(e, &total, dtype).map(Some)
}

/// Zeros of a type.
fn zeros<E: Emit>(e: &mut E, ty: &TensorType) -> Built<E> {
    full(e, Scalar::float(ty.dtype, 0.0), &ty.shape)
}

/// The cotangent goes to the side that was chosen, place by place.
fn select<E: Emit>(e: &mut E, condition: &E::Value, g: &E::Value, wanted: &[bool]) -> Gradients<E> {
    let ty = e.ty(g);
    let zero = zeros(e, &ty)?;
    let then = when::<E>(wanted[1], || build::select(e, condition, g, &zero))?;
    let otherwise = when::<E>(wanted[2], || build::select(e, condition, &zero, g))?;
    Ok(vec![None, then, otherwise])
}
