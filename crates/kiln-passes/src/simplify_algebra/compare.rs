//! Laws of comparisons.

use crate::rewrite::{Found, Rewriter};
use kiln_ir::{CompareOp, DType, Node, Op, Scalar, UnaryOp};

pub(super) fn rule(rw: &mut Rewriter, node: &Node, op: CompareOp) -> Found {
    let (x, y) = (node.operands[0], node.operands[1]);
    if x == y {
        return with_itself(rw, node, op);
    }
    match rw.splat(y) {
        Some(Scalar::Int(DType::Bool, c)) => with_bool(rw, node, op, c != 0),
        Some(Scalar::Int(dtype, c)) => with_int(rw, node, op, dtype, c),
        // Every comparison with NaN is false but ≠.
        Some(Scalar::Float(_, c)) if c.is_nan() => rw.replace_by_full(node, Scalar::bool(op == CompareOp::Ne)),
        _ => Ok(None),
    }
}

fn with_itself(rw: &mut Rewriter, node: &Node, op: CompareOp) -> Found {
    let x = node.operands[0];
    let reflexive = matches!(op, CompareOp::Eq | CompareOp::Le | CompareOp::Ge);
    match op {
        // Nothing is below itself, NaN neither.
        CompareOp::Lt | CompareOp::Gt => rw.replace_by_full(node, Scalar::bool(false)),
        _ if !rw.ty(x).dtype.is_float() => rw.replace_by_full(node, Scalar::bool(reflexive)),
        // Only NaN differs from itself.
        CompareOp::Ne => rw.replace(node, Op::Unary(UnaryOp::IsNan), &[x]),
        _ => {
            let nan = rw.emit(node, Op::Unary(UnaryOp::IsNan), &[x])?;
            rw.replace(node, Op::Unary(UnaryOp::Not), &[nan])
        }
    }
}

fn with_bool(rw: &mut Rewriter, node: &Node, op: CompareOp, c: bool) -> Found {
    let x = node.operands[0];
    match (op, c) {
        (CompareOp::Eq | CompareOp::Ge, true) | (CompareOp::Ne | CompareOp::Gt, false) => Ok(Some(x)),
        (CompareOp::Ne | CompareOp::Lt, true) | (CompareOp::Eq | CompareOp::Le, false) => {
            rw.replace(node, Op::Unary(UnaryOp::Not), &[x])
        }
        (CompareOp::Le, true) | (CompareOp::Ge, false) => rw.replace_by_full(node, Scalar::bool(true)),
        (CompareOp::Gt, true) | (CompareOp::Lt, false) => rw.replace_by_full(node, Scalar::bool(false)),
    }
}

/// Comparisons that the range of the dtype decides.
fn with_int(rw: &mut Rewriter, node: &Node, op: CompareOp, dtype: DType, c: i64) -> Found {
    let (lowest, highest) = dtype.int_range();
    match op {
        CompareOp::Ge if c == lowest => rw.replace_by_full(node, Scalar::bool(true)),
        CompareOp::Le if c == highest => rw.replace_by_full(node, Scalar::bool(true)),
        CompareOp::Lt if c == lowest => rw.replace_by_full(node, Scalar::bool(false)),
        CompareOp::Gt if c == highest => rw.replace_by_full(node, Scalar::bool(false)),
        _ => Ok(None),
    }
}
