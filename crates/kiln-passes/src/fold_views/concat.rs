//! Concatenation of what was one piece before.

use crate::rewrite::{Found, Rewriter};
use kiln_ir::{Dim, Node, NodeId, Op};

pub(super) fn rule(rw: &mut Rewriter, node: &Node, axis: usize) -> Found {
    let splat = |rw: &Rewriter, id: &NodeId| rw.splat(*id);
    if let Some(value) = splat(rw, &node.operands[0])
        && node.operands.iter().all(|part| splat(rw, part) == Some(value))
    {
        return rw.replace_by_full(node, value);
    }
    let mut parts: Vec<NodeId> = Vec::with_capacity(node.operands.len());
    for &part in &node.operands {
        match parts.last().and_then(|&last| joined(rw, axis, last, part)) {
            Some((op, source)) => {
                parts.pop();
                let whole = rw.emit(node, op, &[source])?;
                parts.push(whole);
            }
            None => parts.push(part),
        }
    }
    match parts.as_slice() {
        _ if parts.len() == node.operands.len() => Ok(None),
        [only] => Ok(Some(*only)),
        _ => rw.replace(node, Op::Concat { axis }, &parts),
    }
}

/// The slice that two neighbouring slices of one node make, and that node.
fn joined(rw: &Rewriter, axis: usize, a: NodeId, b: NodeId) -> Option<(Op, NodeId)> {
    let (Op::Slice { start, size, step }, Op::Slice { start: start_b, size: size_b, step: step_b }) =
        (rw.op(a), rw.op(b))
    else {
        return None;
    };
    let elsewhere = |n: usize| n == axis || (start[n] == start_b[n] && step[n] == step_b[n]);
    let next = &start[axis] + &size[axis];
    let adjacent = rw.operand(a) == rw.operand(b)
        && (0..start.len()).all(elsewhere)
        && (step[axis], step_b[axis]) == (1, 1)
        && next == start_b[axis];
    if !adjacent {
        return None;
    }
    let mut size: Vec<Dim> = size.clone();
    size[axis] += &size_b[axis];
    Some((Op::Slice { start: start.clone(), size, step: step.clone() }, rw.operand(a)))
}
