//! Choices that need not be made: where the predicate is known, the side that it chooses takes their place; where both sides are a few
//! operations on each of a moderate number of elements, both are computed and selected. That fuses with what is around it, and nobody has to look at the predicate.

use crate::rewrite::{Found, Rewriter, rewrite};
use crate::{Options, Rewritten};
use kiln_ir::{Dim, Error, Graph, Node, NodeId, Op, TensorType};

/// Operations on each element, of both sides together, that take less time than to look at a predicate and launch one side by itself.
const FEW: usize = 12;
/// Elements of each of them, at the most: beyond it, and where the number is not known, one side is less work than two.
const MOST_ELEMENTS: usize = 65_536;

/// The pass.
pub(crate) fn run(graph: Graph, _: &Options) -> Result<Rewritten, Error> {
    match graph.nodes().iter().any(|node| matches!(node.op, Op::Cond { .. })) {
        true => rewrite(graph, rule),
        false => Ok(Rewritten { graph, changed: false }),
    }
}

fn rule(rw: &mut Rewriter, node: &Node) -> Found {
    let Op::Cond { branches, result } = &node.op else { return Ok(None) };
    let (then, otherwise) = (branches.then(), branches.otherwise());
    if let Some(value) = rw.splat(node.operands[0]) {
        let side = if value.as_f64() != 0.0 { then } else { otherwise };
        return inline(rw, node, side, *result).map(Some);
    }
    let (Some(left), Some(right)) = (pointwise_ops(then), pointwise_ops(otherwise)) else { return Ok(None) };
    if left + right > FEW || !is_small(&node.ty) {
        return Ok(None);
    }
    let (left, right) = (inline(rw, node, then, *result)?, inline(rw, node, otherwise, *result)?);
    let mut predicate = node.operands[0];
    if node.ty.rank() > 0 {
        let shape = vec![Dim::from(1); node.ty.rank()];
        predicate = rw.emit(node, Op::Reshape { shape }, &[predicate])?;
        predicate = rw.emit(node, Op::Expand { shape: node.ty.shape.clone() }, &[predicate])?;
    }
    rw.replace(node, Op::Select, &[predicate, left, right])
}

fn is_small(ty: &TensorType) -> bool {
    ty.elements().as_usize().is_some_and(|elements| elements <= MOST_ELEMENTS)
}

/// The number of operations on elements; nothing if there are others, or too many elements.
fn pointwise_ops(side: &Graph) -> Option<usize> {
    let mut count = 0;
    for node in side.nodes() {
        match &node.op {
            Op::Input { .. } | Op::Full { .. } | Op::Iota { .. } => {}
            op if op.is_view() => {}
            op if op.is_pointwise() && is_small(&node.ty) => count += 1,
            _ => return None,
        }
    }
    Some(count)
}

/// A result of a side, in place of the choice.
fn inline(rw: &mut Rewriter, at: &Node, side: &Graph, result: usize) -> Result<NodeId, Error> {
    let mut new: Vec<NodeId> = Vec::with_capacity(side.nodes().len());
    for node in side.nodes() {
        new.push(match &node.op {
            Op::Input { index } => at.operands[index + 1],
            op => {
                let operands: Vec<NodeId> = node.operands.iter().map(|operand| new[operand.index()]).collect();
                rw.emit(at, op.clone(), &operands)?
            }
        });
    }
    Ok(new[side.outputs()[result].node.index()])
}
