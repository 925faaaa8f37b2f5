//! Padding: nested, absent, or of nothing.

use crate::rewrite::{Found, Rewriter};
use kiln_ir::{Dim, Node, Op, Scalar};

pub(super) fn rule(rw: &mut Rewriter, node: &Node, low: &[Dim], high: &[Dim], value: Scalar) -> Found {
    let x = node.operands[0];
    if low.iter().chain(high).all(Dim::is_zero) {
        return Ok(Some(x));
    }
    // Around nothing, or around more of the same, there is only the value.
    if rw.ty(x).shape.iter().any(Dim::is_zero) || rw.splat(x) == Some(value) {
        return rw.replace_by_full(node, value);
    }
    match rw.op(x) {
        Op::Pad { low: low0, high: high0, value: inner_value } if *inner_value == value => {
            let low = low.iter().zip(low0).map(|(outer, inner)| outer + inner).collect();
            let high = high.iter().zip(high0).map(|(outer, inner)| outer + inner).collect();
            let inner = rw.operand(x);
            rw.replace(node, Op::Pad { low, high, value }, &[inner])
        }
        _ => Ok(None),
    }
}
