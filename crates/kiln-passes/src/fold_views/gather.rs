//! Gathers whose indices are known are slices. Only those that are provably in range: the others are errors at run time
//! and must stay so.

use crate::dims::at_least;
use crate::rewrite::{Found, Rewriter};
use kiln_ir::{BinaryOp, Dim, Node, NodeId, Op};

pub(super) fn rule(rw: &mut Rewriter, node: &Node, axis: usize) -> Found {
    let (x, index) = (node.operands[0], node.operands[1]);
    let length = rw.ty(x).shape[axis].clone();
    let count = node.ty.shape[axis].clone();
    if let Some(at) = rw.splat(index) {
        let at = Dim::from(at.as_i64());
        if !at_least(&at, &Dim::from(0)) || !at_least(&length, &(&at + 1)) {
            return Ok(None);
        }
        let taken = slice(rw, node, axis, at, Dim::from(1))?;
        return rw.replace(node, Op::Expand { shape: node.ty.shape.clone() }, &[taken]);
    }
    let Some(first) = counts_from(rw, index, axis) else { return Ok(None) };
    let first = Dim::from(first);
    if !at_least(&first, &Dim::from(0)) || !at_least(&length, &(&first + &count)) {
        return Ok(None);
    }
    slice(rw, node, axis, first, count).map(Some)
}

/// The first index, if the indices count up from it along the axis.
fn counts_from(rw: &Rewriter, index: NodeId, axis: usize) -> Option<i64> {
    match rw.op(index) {
        Op::Iota { axis: along, .. } => (*along == axis).then_some(0),
        Op::Expand { .. } => counts_from(rw, rw.operand(index), axis),
        Op::Binary(BinaryOp::Add) => {
            let operands = &rw.node(index).operands;
            let first = rw.splat(operands[1])?.as_i64();
            matches!(rw.op(operands[0]), Op::Iota { axis: along, .. } if *along == axis).then_some(first)
        }
        _ => None,
    }
}

fn slice(rw: &mut Rewriter, node: &Node, axis: usize, at: Dim, count: Dim) -> Result<NodeId, kiln_ir::Error> {
    let x = node.operands[0];
    let rank = node.ty.rank();
    let (mut start, mut size) = (vec![Dim::from(0); rank], rw.ty(x).shape.clone());
    (start[axis], size[axis]) = (at, count);
    rw.emit(node, Op::Slice { start, size, step: vec![1; rank] }, &[x])
}
