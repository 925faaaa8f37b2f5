//! Laws of `select`, which moves values and computes nothing.

use crate::rewrite::{Found, Rewriter};
use kiln_ir::{Node, Op, Scalar, UnaryOp};

pub(super) fn rule(rw: &mut Rewriter, node: &Node) -> Found {
    let (condition, then, other) = (node.operands[0], node.operands[1], node.operands[2]);
    if then == other {
        return Ok(Some(then));
    }
    if let Some(value) = rw.splat(condition) {
        return Ok(Some(if value == Scalar::bool(true) { then } else { other }));
    }
    match (rw.splat(then), rw.splat(other)) {
        (Some(a), Some(b)) if a == b => return Ok(Some(then)),
        (Some(a), Some(b)) if a == Scalar::bool(true) && b == Scalar::bool(false) => return Ok(Some(condition)),
        (Some(a), Some(b)) if a == Scalar::bool(false) && b == Scalar::bool(true) => {
            return rw.replace(node, Op::Unary(UnaryOp::Not), &[condition]);
        }
        _ => {}
    }
    // Inside a branch the condition is known.
    if rw.op(then) == &Op::Select && rw.operand(then) == condition {
        let then = rw.node(then).operands[1];
        return rw.replace(node, Op::Select, &[condition, then, other]);
    }
    if rw.op(other) == &Op::Select && rw.operand(other) == condition {
        let other = rw.node(other).operands[2];
        return rw.replace(node, Op::Select, &[condition, then, other]);
    }
    Ok(None)
}
