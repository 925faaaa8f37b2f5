//! Laws of reductions. Float sums and products are never split, joined or reordered: each order rounds in its own way.

use crate::rewrite::{Found, Rewriter};
use kiln_ir::{Dim, Node, Op, ReduceKind, Scalar};

pub(super) fn reduce(rw: &mut Rewriter, node: &Node, kind: ReduceKind, axes: &[usize]) -> Found {
    let x = node.operands[0];
    if let Some(value) = rw.splat(x) {
        let count: Dim = axes.iter().map(|&axis| rw.ty(x).shape[axis].clone()).product();
        return match of_splat(kind, value, &count) {
            Some(value) => rw.replace_by_full(node, value),
            None => Ok(None),
        };
    }
    // Integers wrap and bools have one bit: reducing in two steps is reducing in one.
    if let Op::Reduce { kind: inner, axes: before } = rw.op(x)
        && *inner == kind
        && !node.ty.dtype.is_float()
    {
        let mut axes: Vec<usize> = axes.iter().chain(before).copied().collect();
        axes.sort_unstable();
        axes.dedup();
        let x = rw.operand(x);
        return rw.replace(node, Op::Reduce { kind, axes }, &[x]);
    }
    Ok(None)
}

/// The reduction of `count` equal values, where it is known to the last bit.
fn of_splat(kind: ReduceKind, value: Scalar, count: &Dim) -> Option<Scalar> {
    let count = count.as_const();
    match (kind, value) {
        // An empty sum is +0 as well, so the count does not matter.
        (ReduceKind::Sum, Scalar::Float(_, v)) if v.to_bits() == 0 => Some(value),
        (ReduceKind::Sum, Scalar::Int(dtype, 0)) => Some(Scalar::int(dtype, 0)),
        (ReduceKind::Sum, Scalar::Int(dtype, v)) if dtype.is_int() => Some(Scalar::int(dtype, v.wrapping_mul(count?))),
        // Whole numbers add exactly in f32 up to 2²⁴, in any order.
        (ReduceKind::Sum, Scalar::Float(dtype, v)) => {
            // The sum of no negative numbers is +0, not the product's −0.
            let total = v * count? as f64 + 0.0;
            let exact = v.fract() == 0.0 && v != 0.0 && total.abs() <= 16_777_216.0;
            exact.then(|| Scalar::float(dtype, total))
        }
        // Any power of 1 is 1, the empty product too.
        (ReduceKind::Prod, Scalar::Float(_, 1.0) | Scalar::Int(_, 1)) => Some(value),
        (ReduceKind::Max | ReduceKind::Min, _) => (count? > 0).then_some(value),
        _ => None,
    }
}

/// The only index there is along an axis of size 1 is 0.
pub(super) fn index_of_one(rw: &mut Rewriter, node: &Node, axis: usize) -> Found {
    if rw.ty(node.operands[0]).shape[axis] != 1 {
        return Ok(None);
    }
    rw.replace_by_full(node, Scalar::int(node.ty.dtype, 0))
}
