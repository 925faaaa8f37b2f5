//! What is known of a node's values without computing them.

use kiln_ir::{BinaryOp, DType, Graph, NodeId, Op, Scalar, UnaryOp};

/// How far back a question is followed.
const MAX_DEPTH: u32 = 8;

/// True when no element can be the float −0.
pub(crate) fn never_negative_zero(graph: &Graph, id: NodeId) -> bool {
    !graph.ty(id).dtype.is_float() || not_negative_zero(graph, id, MAX_DEPTH)
}

fn not_negative_zero(graph: &Graph, id: NodeId, depth: u32) -> bool {
    let Some(depth) = depth.checked_sub(1) else { return false };
    let node = graph.node(id);
    let operand = |n: usize| not_negative_zero(graph, node.operands[n], depth);
    match &node.op {
        Op::Full { value: Scalar::Float(_, v), .. } => !(*v == 0.0 && v.is_sign_negative()),
        Op::Iota { .. } => true,
        Op::Unary(UnaryOp::Abs | UnaryOp::Exp | UnaryOp::Exp2) => true,
        // √−0 is −0 and nothing else gives it.
        Op::Unary(UnaryOp::Sqrt) => operand(0),
        // Rounded to nearest, a sum is −0 only when both sides are; a tiny sum is exact, so it never rounds to zero.
        Op::Binary(BinaryOp::Add) => operand(0) || operand(1),
        // A square has a clear sign bit after any rounding.
        Op::Binary(BinaryOp::Mul) => node.operands[0] == node.operands[1],
        // Either may be chosen between −0 and +0, but nothing new appears.
        Op::Binary(BinaryOp::Max | BinaryOp::Min) => operand(0) && operand(1),
        Op::Select => operand(1) && operand(2),
        // Integers have one zero, which becomes +0. From a wider float a small negative number may round to −0.
        Op::Cast(to) => {
            let from = graph.ty(node.operands[0]).dtype;
            !from.is_float() || (lossless(from, *to) && operand(0))
        }
        op if op.is_view() => operand(0),
        Op::Gather { .. } => operand(0),
        Op::Concat { .. } => (0..node.operands.len()).all(operand),
        _ => false,
    }
}

/// True when no element can be NaN.
pub(crate) fn never_nan(graph: &Graph, id: NodeId) -> bool {
    match &graph.node(id).op {
        _ if !graph.ty(id).dtype.is_float() => true,
        Op::Full { value, .. } => !value.as_f64().is_nan(),
        Op::Iota { .. } => true,
        Op::Cast(_) => !graph.ty(graph.node(id).operands[0]).dtype.is_float(),
        _ => false,
    }
}

/// True when every value is a whole number, an infinity or NaN.
pub(crate) fn always_whole(graph: &Graph, id: NodeId) -> bool {
    match &graph.node(id).op {
        _ if !graph.ty(id).dtype.is_float() => true,
        Op::Unary(UnaryOp::Floor | UnaryOp::Ceil | UnaryOp::Round | UnaryOp::Trunc | UnaryOp::Sign) => true,
        Op::Iota { .. } => true,
        // Rounding a whole number to a float gives a whole number or an infinity.
        Op::Cast(_) => !graph.ty(graph.node(id).operands[0]).dtype.is_float(),
        _ => false,
    }
}

/// True when every element has a clear sign bit or is NaN.
pub(crate) fn never_signed(graph: &Graph, id: NodeId) -> bool {
    let node = graph.node(id);
    match &node.op {
        // The integer |lowest| wraps to itself, which taking |x| again does not change either.
        Op::Unary(UnaryOp::Abs) => true,
        _ if !node.ty.dtype.is_float() => node.ty.dtype == DType::U8,
        Op::Unary(UnaryOp::Exp | UnaryOp::Exp2) => true,
        Op::Binary(BinaryOp::Mul) => node.operands[0] == node.operands[1],
        Op::Iota { .. } => true,
        _ => false,
    }
}

/// True when a cast from one dtype to the other keeps every value, so that it could be undone.
pub(crate) fn lossless(from: DType, to: DType) -> bool {
    use DType::*;
    if from == to {
        return true;
    }
    match from {
        Bool => true,
        I4 => matches!(to, I8 | I16 | I32 | I64 | F16 | Bf16 | F32 | F64),
        I8 => matches!(to, I16 | I32 | I64 | F16 | Bf16 | F32 | F64),
        U8 => matches!(to, I16 | I32 | I64 | F16 | Bf16 | F32 | F64),
        I16 => matches!(to, I32 | I64 | F32 | F64),
        I32 => matches!(to, I64 | F64),
        F8E4M3 | F8E5M2 => matches!(to, F16 | Bf16 | F32 | F64),
        F16 | Bf16 => matches!(to, F32 | F64),
        F32 => to == F64,
        I64 | F64 => false,
    }
}
