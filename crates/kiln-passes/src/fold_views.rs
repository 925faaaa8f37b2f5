//! Merges chains of views into one and removes those that change nothing. Views only say where an element comes from, so every
//! rule is a statement about indices, and values are never changed. Slices move towards the source, expansions away from it, so
//! that the nodes between work on the fewest elements.

mod concat;
mod gather;
mod generated;
mod pad;
mod pointwise;
mod slice;

use crate::rewrite::{Found, Rewriter, rewrite};
use crate::{Options, Rewritten};
use kiln_ir::{Dim, Error, Graph, Node, Op};

/// The pass.
pub(crate) fn run(graph: Graph, _: &Options) -> Result<Rewritten, Error> {
    rewrite(graph, rule)
}

fn rule(rw: &mut Rewriter, node: &Node) -> Found {
    if node.op.is_view()
        && let Some(found) = generated::view(rw, node)?
    {
        return Ok(Some(found));
    }
    match &node.op {
        Op::Reshape { shape } => reshape(rw, node, shape),
        Op::Permute { order } => permute(rw, node, order),
        Op::Expand { shape } => expand(rw, node, shape),
        Op::Slice { start, size, step } => slice::rule(rw, node, start, size, step),
        Op::Flip { axes } => flip(rw, node, axes),
        Op::Unfold { axis, size: 1, stride, .. } => unfold_one(rw, node, *axis, *stride),
        Op::Pad { low, high, value } => pad::rule(rw, node, low, high, *value),
        Op::Concat { axis } => concat::rule(rw, node, *axis),
        Op::Gather { axis } => gather::rule(rw, node, *axis),
        op if op.is_pointwise() => pointwise::rule(rw, node),
        _ => Ok(None),
    }
}

fn reshape(rw: &mut Rewriter, node: &Node, shape: &[Dim]) -> Found {
    let x = node.operands[0];
    if rw.ty(x).shape == shape {
        return Ok(Some(x));
    }
    match rw.op(x) {
        Op::Reshape { .. } => {
            let inner = rw.operand(x);
            rw.replace(node, Op::Reshape { shape: shape.to_vec() }, &[inner])
        }
        _ => Ok(None),
    }
}

fn permute(rw: &mut Rewriter, node: &Node, order: &[usize]) -> Found {
    let x = node.operands[0];
    if order.is_sorted() {
        return Ok(Some(x));
    }
    // Axes of size 1 may stand anywhere: if the others keep their order, so do the elements.
    let long = order.iter().filter(|&&axis| rw.ty(x).shape[axis] != 1);
    if long.is_sorted() {
        return rw.replace(node, Op::Reshape { shape: node.ty.shape.clone() }, &[x]);
    }
    match rw.op(x) {
        Op::Permute { order: before } => {
            let order = order.iter().map(|&axis| before[axis]).collect();
            let inner = rw.operand(x);
            rw.replace(node, Op::Permute { order }, &[inner])
        }
        Op::Expand { .. } => {
            let inner = rw.operand(x);
            let permuted = rw.emit(node, Op::Permute { order: order.to_vec() }, &[inner])?;
            rw.replace(node, Op::Expand { shape: node.ty.shape.clone() }, &[permuted])
        }
        _ => Ok(None),
    }
}

fn expand(rw: &mut Rewriter, node: &Node, shape: &[Dim]) -> Found {
    let x = node.operands[0];
    if rw.ty(x).shape == shape {
        return Ok(Some(x));
    }
    match rw.op(x) {
        Op::Expand { .. } => {
            let inner = rw.operand(x);
            rw.replace(node, Op::Expand { shape: shape.to_vec() }, &[inner])
        }
        _ => Ok(None),
    }
}

fn flip(rw: &mut Rewriter, node: &Node, axes: &[usize]) -> Found {
    let x = node.operands[0];
    match rw.op(x) {
        // An axis reversed twice is as it was.
        Op::Flip { axes: before } => {
            let once = |axis: &usize| axes.contains(axis) != before.contains(axis);
            let axes: Vec<usize> = (0..node.ty.rank()).filter(once).collect();
            let inner = rw.operand(x);
            if axes.is_empty() { Ok(Some(inner)) } else { rw.replace(node, Op::Flip { axes }, &[inner]) }
        }
        // Copies of one element look the same from behind.
        Op::Expand { .. } => {
            let inner = rw.operand(x);
            let axes: Vec<usize> = axes.iter().copied().filter(|&axis| rw.ty(inner).shape[axis] != 1).collect();
            if axes.is_empty() {
                return Ok(Some(x));
            }
            let flipped = rw.emit(node, Op::Flip { axes }, &[inner])?;
            rw.replace(node, Op::Expand { shape: node.ty.shape.clone() }, &[flipped])
        }
        _ => Ok(None),
    }
}

/// Windows of one element are every `stride`-th element.
fn unfold_one(rw: &mut Rewriter, node: &Node, axis: usize, stride: usize) -> Found {
    let x = node.operands[0];
    let Ok(stride) = i64::try_from(stride) else { return Ok(None) };
    let rank = rw.ty(x).rank();
    let mut size = rw.ty(x).shape.clone();
    size[axis] = node.ty.shape[axis].clone();
    let mut step = vec![1; rank];
    step[axis] = stride;
    let taken = rw.emit(node, Op::Slice { start: vec![Dim::from(0); rank], size, step }, &[x])?;
    rw.replace(node, Op::Reshape { shape: node.ty.shape.clone() }, &[taken])
}
