//! Pointwise work on repeated elements is done once, before they are repeated: `exp(expand x)` is `expand(exp x)`.

use crate::rewrite::{Found, Rewriter};
use kiln_ir::{Dim, Error, Node, NodeId, Op};

pub(super) fn rule(rw: &mut Rewriter, node: &Node) -> Found {
    // What is generated costs nothing to repeat; something stored must be repeated for the move to pay.
    if !node.operands.iter().any(|&x| matches!(rw.op(x), Op::Expand { .. })) {
        return Ok(None);
    }
    let mut shape = node.ty.shape.clone();
    for (axis, size) in shape.iter_mut().enumerate() {
        if node.operands.iter().all(|&x| repeats(rw, x, axis)) {
            *size = Dim::from(1);
        }
    }
    if shape == node.ty.shape {
        return Ok(None);
    }
    let mut operands = Vec::with_capacity(node.operands.len());
    for &x in &node.operands {
        operands.push(small(rw, node, x, &shape)?);
    }
    let once = rw.emit(node, node.op.clone(), &operands)?;
    rw.replace(node, Op::Expand { shape: node.ty.shape.clone() }, &[once])
}

/// True when all elements along the axis are known to be the same.
fn repeats(rw: &Rewriter, id: NodeId, axis: usize) -> bool {
    match rw.op(id) {
        Op::Full { .. } => true,
        Op::Iota { axis: along, .. } => *along != axis,
        Op::Expand { .. } => rw.ty(rw.operand(id)).shape[axis] == 1,
        _ => false,
    }
}

/// The operand without the repetition along the axes that `shape` leaves at 1.
fn small(rw: &mut Rewriter, node: &Node, id: NodeId, shape: &[Dim]) -> Result<NodeId, Error> {
    let shape = shape.to_vec();
    match rw.op(id).clone() {
        Op::Full { value, .. } => rw.emit(node, Op::Full { value, shape }, &[]),
        Op::Iota { dtype, axis, .. } => rw.emit(node, Op::Iota { dtype, shape, axis }, &[]),
        _ => {
            let inner = rw.operand(id);
            rw.emit(node, Op::Expand { shape }, &[inner])
        }
    }
}
