//! Laws of one operand.

use crate::facts;
use crate::rewrite::{Found, Rewriter};
use kiln_ir::{BinaryOp, CompareOp, DType, Node, Op, Scalar, UnaryOp};

pub(super) fn rule(rw: &mut Rewriter, node: &Node, op: UnaryOp) -> Found {
    let x = node.operands[0];
    match op {
        UnaryOp::Neg => match rw.op(x) {
            // Negation flips a bit; integers wrap, and the lowest is its own negative.
            Op::Unary(UnaryOp::Neg) => Ok(Some(rw.operand(x))),
            // Integers only: for floats x = y gives −(+0) on one side and +0 on the other.
            Op::Binary(BinaryOp::Sub) if !node.ty.dtype.is_float() => {
                let operands = [rw.node(x).operands[1], rw.node(x).operands[0]];
                rw.replace(node, Op::Binary(BinaryOp::Sub), &operands)
            }
            _ => Ok(None),
        },
        // |x| clears the sign bit, so a clear one stays.
        UnaryOp::Abs if facts::never_signed(rw.graph(), x) => Ok(Some(x)),
        // The sign bit that negation flips is the one that |x| clears. Integers: |−x| = |x|, the lowest wraps on both sides.
        UnaryOp::Abs if matches!(rw.op(x), Op::Unary(UnaryOp::Neg)) => {
            let inner = rw.operand(x);
            rw.replace(node, Op::Unary(UnaryOp::Abs), &[inner])
        }
        // −1, ±0, 1 and NaN are fixed points.
        UnaryOp::Sign if matches!(rw.op(x), Op::Unary(UnaryOp::Sign)) => Ok(Some(x)),
        // Whole numbers, infinities, −0 and NaN are fixed points of all four roundings.
        UnaryOp::Floor | UnaryOp::Ceil | UnaryOp::Round | UnaryOp::Trunc if facts::always_whole(rw.graph(), x) => {
            Ok(Some(x))
        }
        UnaryOp::Not => not(rw, node),
        UnaryOp::IsNan => match rw.op(x) {
            _ if facts::never_nan(rw.graph(), x) => rw.replace_by_full(node, Scalar::bool(false)),
            // These give NaN for NaN and for nothing else.
            Op::Unary(
                UnaryOp::Neg | UnaryOp::Abs | UnaryOp::Floor | UnaryOp::Ceil | UnaryOp::Round | UnaryOp::Trunc,
            ) => {
                let inner = rw.operand(x);
                rw.replace(node, Op::Unary(UnaryOp::IsNan), &[inner])
            }
            _ => Ok(None),
        },
        _ => Ok(None),
    }
}

fn not(rw: &mut Rewriter, node: &Node) -> Found {
    let x = node.operands[0];
    match rw.op(x) {
        // An involution on bits and on bools.
        Op::Unary(UnaryOp::Not) => Ok(Some(rw.operand(x))),
        Op::Compare(op) => {
            let operands = [rw.node(x).operands[0], rw.node(x).operands[1]];
            // Exactly one of = and ≠ holds, for NaN too; with NaN both < and ≥ are false.
            if !matches!(op, CompareOp::Eq | CompareOp::Ne) && rw.ty(operands[0]).dtype.is_float() {
                return Ok(None);
            }
            let opposite = op.negated();
            debug_assert_eq!(node.ty.dtype, DType::Bool);
            rw.replace(node, Op::Compare(opposite), &operands)
        }
        _ => Ok(None),
    }
}
