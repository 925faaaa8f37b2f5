//! How much a correct kernel may round: bounds on the error of one op, beyond the reference's own rounding.

use kiln_ir::{BinaryOp, DType, Graph, NodeId, Op, ReduceKind, ScatterKind, UnaryOp};

/// A result may be this many times as far off as the worst perturbed run was.
pub(super) const MARGIN: f64 = 8.0;

/// Whether nothing in a graph rounds, so that all results must be equal to the bit.
pub(crate) fn is_exact(graph: &Graph) -> bool {
    let inexact = |(id, node): (NodeId, &kiln_ir::Node)| {
        if node.op.has_bodies() {
            return !node.op.bodies().into_iter().all(is_exact);
        }
        slack(graph, id, &node.op) > 0.0 || sums(graph, &node.op, id) || zero_sign_is_open(&node.op)
    };
    !graph.iter().any(inexact)
}

/// What is allowed at the least where something rounds, whatever the perturbed runs say.
pub(crate) fn least_tolerance(dtype: DType, want: f64) -> f64 {
    if dtype.is_float() { MARGIN * (want.abs() * epsilon(dtype) + tiny(dtype)) } else { 0.0 }
}

/// The distance from one to the next number.
pub(crate) fn epsilon(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => f64::EPSILON,
        DType::F32 => f32::EPSILON as f64,
        DType::F16 => 1.0 / 1024.0,
        DType::Bf16 => 1.0 / 128.0,
        DType::F8E4M3 => 1.0 / 8.0,
        DType::F8E5M2 => 1.0 / 4.0,
        _ => 0.0,
    }
}

pub(super) fn tiny(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => f64::MIN_POSITIVE,
        DType::F32 | DType::Bf16 => f32::MIN_POSITIVE as f64,
        DType::F16 => 6.2e-5 / 64.0,
        _ => 1e-5,
    }
}

/// The smallest normal number.
pub(crate) fn normal(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => f64::MIN_POSITIVE,
        DType::F16 => 6.2e-5,
        _ => f32::MIN_POSITIVE as f64,
    }
}

pub(super) fn largest(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => f64::MAX,
        DType::F16 => 65504.0,
        DType::F8E4M3 => 448.0,
        DType::F8E5M2 => 57344.0,
        _ => f32::MAX as f64,
    }
}

/// By how many units in the last place a correct kernel may be off in one op. What sums lose is [`sum_error`].
pub(super) fn slack(graph: &Graph, id: NodeId, op: &Op) -> f64 {
    if !graph.ty(id).dtype.is_float() {
        return 0.0;
    }
    let dtype = graph.ty(id).dtype;
    // Inside a fused kernel a short float is not rounded at all.
    let short = if is_short(dtype) { 1.0 } else { 0.0 };
    match op {
        Op::Unary(op) => op.row().ulps,
        Op::Binary(op) => op.row().ulps + op.row().short_ulps * short,
        Op::Reduce { kind, .. } | Op::Scan { kind, .. } | Op::ReduceWindow { kind, .. } => match kind {
            ReduceKind::Sum => short,
            // Half a unit a factor, as in sums.
            ReduceKind::Prod => steps(factors(graph, id)) + short,
            _ => 0.0,
        },
        Op::Scatter { kind: ScatterKind::Mul, .. } => steps(factors(graph, id)),
        Op::Scatter { kind: ScatterKind::Add, .. } | Op::Dot { .. } | Op::Conv(_) => short,
        op if op.is_attention() => 8.0,
        _ => 0.0,
    }
}

/// Rounding errors of `terms` running sums, in units of which [`MARGIN`] are half a unit a term and a few more: the bound of a sum
/// in any order.
fn steps(terms: f64) -> f64 {
    2.0 + terms / (2.0 * MARGIN)
}

/// How far off a sum of so many terms may be, Σ |term| being `magnitude`: what its running value is rounded by at each step. f32 holds
/// the running value of the shorter types; a scatter rounds to memory at each step.
pub(super) fn sum_error(op: &Op, dtype: DType, terms: usize, magnitude: f64) -> f64 {
    let scatters = matches!(op, Op::Scatter { .. });
    let held = if scatters || dtype == DType::F64 { dtype } else { DType::F32 };
    // Products of terms that vanish are whole multiples of the smallest number.
    let smallest = normal(held) * epsilon(held);
    steps(terms as f64) * (magnitude * epsilon(held) + smallest)
}

/// True for ops whose error is proportional to the summands, not to the result.
pub(super) fn sums(graph: &Graph, op: &Op, id: NodeId) -> bool {
    let sum = match op {
        Op::Reduce { kind, .. } | Op::Scan { kind, .. } | Op::ReduceWindow { kind, .. } => *kind == ReduceKind::Sum,
        Op::Scatter { kind, .. } => *kind == ScatterKind::Add,
        Op::Dot { .. } | Op::Conv(_) | Op::Unary(UnaryOp::Lgamma) => true,
        op => op.is_attention(),
    };
    sum && graph.ty(id).dtype.is_float()
}

/// The most elements that one of the result is a product of; plenty where sizes are symbols.
fn factors(graph: &Graph, id: NodeId) -> f64 {
    let node = graph.node(id);
    let size = |operand: usize, axis: usize| graph.ty(node.operands[operand]).shape[axis].as_const();
    let count = match &node.op {
        Op::Reduce { axes, .. } => axes.iter().map(|&axis| size(0, axis)).product(),
        Op::Scan { axis, .. } => size(0, *axis),
        Op::ReduceWindow { dims, .. } => Some(dims.size.iter().product::<usize>() as i64),
        Op::Scatter { axis, .. } => size(1, *axis),
        _ => Some(1),
    };
    count.map_or(4096.0, |count| count as f64)
}

pub(super) fn is_short(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::Bf16)
}

/// Ops for which +0 and −0 are equally good: which of two zeros is larger, and what an empty or cancelling sum gives.
pub(super) fn zero_sign_is_open(op: &Op) -> bool {
    match op {
        Op::Binary(BinaryOp::Max | BinaryOp::Min) => true,
        Op::Reduce { .. } | Op::Scan { .. } | Op::ReduceWindow { .. } => true,
        Op::Scatter { kind, .. } => *kind != ScatterKind::Set,
        Op::Dot { .. } | Op::Conv(_) => true,
        op => op.is_attention(),
    }
}
