//! Gives equal computations one form, so that later passes and kernels meet few: constants last, operands in node order,
//! no op that does nothing, products with their batch axes first and their summed axes inside.

use crate::facts;
use crate::rewrite::{Found, Rewriter, rewrite};
use crate::{Options, Rewritten};
use kiln_ir::{BinaryOp, CompareOp, DType, DotDims, Error, Graph, Node, NodeId, Op, ReduceKind, Scalar, UnaryOp};

/// The pass.
pub(crate) fn run(graph: Graph, _: &Options) -> Result<Rewritten, Error> {
    rewrite(graph, rule)
}

fn rule(rw: &mut Rewriter, node: &Node) -> Found {
    match &node.op {
        Op::Binary(op) => binary(rw, node, *op),
        Op::Compare(op) => compare(rw, node, *op),
        Op::Select => select(rw, node),
        Op::Cast(_) | Op::Bitcast(_) if rw.ty(node.operands[0]).dtype == node.ty.dtype => Ok(Some(node.operands[0])),
        Op::Reduce { kind, axes } => reduce(rw, node, *kind, axes),
        Op::Scan { kind, axis, .. } if rw.ty(node.operands[0]).shape[*axis] == 1 => {
            Ok(combines_one(rw, node.operands[0], *kind).then_some(node.operands[0]))
        }
        Op::Slice { start, size, step } => slice(rw, node, start, size, step),
        Op::Flip { axes } => flip(rw, node, axes),
        Op::Concat { axis } => concat(rw, node, *axis),
        Op::Dot { dims, out } => dot(rw, node, dims, *out),
        _ => Ok(None),
    }
}

/// True when the order of the operands does not matter to the last bit. Not so for the float maximum and minimum: which of
/// −0 and +0 they give may depend on it.
fn commutes(op: BinaryOp, dtype: DType) -> bool {
    match op {
        BinaryOp::Add | BinaryOp::Mul | BinaryOp::And | BinaryOp::Or | BinaryOp::Xor => true,
        BinaryOp::Max | BinaryOp::Min => !dtype.is_float(),
        _ => false,
    }
}

/// Constants come after everything else, other nodes in the order of the graph.
fn place(rw: &Rewriter, id: NodeId) -> (u8, NodeId) {
    let class = match rw.op(id) {
        Op::Full { .. } => 2,
        Op::Constant(_) => 1,
        _ => 0,
    };
    (class, id)
}

fn binary(rw: &mut Rewriter, node: &Node, op: BinaryOp) -> Found {
    let (x, y) = (node.operands[0], node.operands[1]);
    let dtype = node.ty.dtype;
    if dtype == DType::Bool {
        // On bools the sum is *or* and the product *and* by definition; so are the larger and the smaller.
        let logical = match op {
            BinaryOp::Add | BinaryOp::Max => Some(BinaryOp::Or),
            BinaryOp::Mul | BinaryOp::Min => Some(BinaryOp::And),
            _ => None,
        };
        if let Some(op) = logical {
            return rw.replace(node, Op::Binary(op), &[x, y]);
        }
    }
    if commutes(op, dtype) && place(rw, x) > place(rw, y) {
        return rw.replace(node, Op::Binary(op), &[y, x]);
    }
    if op == BinaryOp::Sub
        && let Some(value) = rw.splat(y)
        && let Some(negated) = negated(value)
    {
        // IEEE defines x − c as x + (−c); integers wrap alike.
        let y = rw.full_like(node, negated, y)?;
        return rw.replace(node, Op::Binary(BinaryOp::Add), &[x, y]);
    }
    Ok(None)
}

/// −value, where the dtype has it.
pub(crate) fn negated(value: Scalar) -> Option<Scalar> {
    match value {
        Scalar::Float(dtype, v) => Some(Scalar::Float(dtype, -v)),
        Scalar::Int(DType::Bool, _) => None,
        Scalar::Int(dtype, v) => Some(Scalar::int(dtype, v.wrapping_neg())),
    }
}

fn compare(rw: &mut Rewriter, node: &Node, op: CompareOp) -> Found {
    let (x, y) = (node.operands[0], node.operands[1]);
    if place(rw, x) > place(rw, y) {
        return rw.replace(node, Op::Compare(op.mirrored()), &[y, x]);
    }
    Ok(None)
}

fn select(rw: &mut Rewriter, node: &Node) -> Found {
    let (condition, then, other) = (node.operands[0], node.operands[1], node.operands[2]);
    if let Op::Unary(UnaryOp::Not) = rw.op(condition) {
        let condition = rw.operand(condition);
        return rw.replace(node, Op::Select, &[condition, other, then]);
    }
    Ok(None)
}

/// True when combining one element alone gives that element. A sum may begin with +0, which turns −0 into +0.
fn combines_one(rw: &Rewriter, x: NodeId, kind: ReduceKind) -> bool {
    kind != ReduceKind::Sum || facts::never_negative_zero(rw.graph(), x)
}

fn reduce(rw: &mut Rewriter, node: &Node, kind: ReduceKind, axes: &[usize]) -> Found {
    let x = node.operands[0];
    let shape = &rw.ty(x).shape;
    let long: Vec<usize> = axes.iter().copied().filter(|&axis| shape[axis] != 1).collect();
    if long.is_empty() {
        return Ok(combines_one(rw, x, kind).then_some(x));
    }
    if long.len() < axes.len() {
        return rw.replace(node, Op::Reduce { kind, axes: long }, &[x]);
    }
    Ok(None)
}

/// A step is meaningless where at most one element is taken.
fn slice(rw: &mut Rewriter, node: &Node, start: &[kiln_ir::Dim], size: &[kiln_ir::Dim], step: &[i64]) -> Found {
    let idle = |axis: usize| step[axis] != 1 && size[axis].as_const().is_some_and(|n| n <= 1);
    if !(0..step.len()).any(idle) {
        return Ok(None);
    }
    let step = (0..step.len()).map(|axis| if idle(axis) { 1 } else { step[axis] }).collect();
    rw.replace(node, Op::Slice { start: start.to_vec(), size: size.to_vec(), step }, &[node.operands[0]])
}

fn flip(rw: &mut Rewriter, node: &Node, axes: &[usize]) -> Found {
    let x = node.operands[0];
    let long: Vec<usize> = axes.iter().copied().filter(|&axis| rw.ty(x).shape[axis] != 1).collect();
    if long.is_empty() {
        return Ok(Some(x));
    }
    if long.len() < axes.len() {
        return rw.replace(node, Op::Flip { axes: long }, &[x]);
    }
    Ok(None)
}

fn concat(rw: &mut Rewriter, node: &Node, axis: usize) -> Found {
    let mut parts = Vec::with_capacity(node.operands.len());
    for &part in &node.operands {
        match rw.op(part) {
            _ if rw.ty(part).shape[axis] == 0 => {}
            Op::Concat { axis: inner } if *inner == axis => parts.extend_from_slice(&rw.node(part).operands),
            _ => parts.push(part),
        }
    }
    match parts.as_slice() {
        [] => Ok(Some(node.operands[0])),
        [only] => Ok(Some(*only)),
        _ if parts == node.operands => Ok(None),
        _ => rw.replace(node, Op::Concat { axis }, &parts),
    }
}

/// The left side as batch, free, summed and the right side as batch, summed, free, by permuting the operands; the result
/// and the order of the additions stay the same.
fn dot(rw: &mut Rewriter, node: &Node, dims: &DotDims, out: DType) -> Found {
    let (lhs, rhs) = (node.operands[0], node.operands[1]);
    let (lhs_rank, rhs_rank) = (rw.ty(lhs).rank(), rw.ty(rhs).rank());
    let free = |rank: usize, batch: &[usize], contract: &[usize]| -> Vec<usize> {
        (0..rank).filter(|axis| !batch.contains(axis) && !contract.contains(axis)).collect()
    };
    let lhs_free = free(lhs_rank, &dims.lhs_batch, &dims.lhs_contract);
    let rhs_free = free(rhs_rank, &dims.rhs_batch, &dims.rhs_contract);
    let lhs_order = [dims.lhs_batch.as_slice(), &lhs_free, &dims.lhs_contract].concat();
    let rhs_order = [dims.rhs_batch.as_slice(), &dims.rhs_contract, &rhs_free].concat();
    if lhs_order.is_sorted() && rhs_order.is_sorted() {
        return Ok(None);
    }
    let lhs = ordered(rw, node, lhs, lhs_order)?;
    let rhs = ordered(rw, node, rhs, rhs_order)?;
    let (batch, summed) = (dims.lhs_batch.len(), dims.lhs_contract.len());
    let dims = DotDims {
        lhs_batch: (0..batch).collect(),
        rhs_batch: (0..batch).collect(),
        lhs_contract: (lhs_rank - summed..lhs_rank).collect(),
        rhs_contract: (batch..batch + summed).collect(),
    };
    rw.replace(node, Op::Dot { dims: dims.into(), out }, &[lhs, rhs])
}

fn ordered(rw: &mut Rewriter, node: &Node, x: NodeId, order: Vec<usize>) -> Result<NodeId, Error> {
    if order.is_sorted() { Ok(x) } else { rw.emit(node, Op::Permute { order }, &[x]) }
}
