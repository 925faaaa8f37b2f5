//! Assumptions of a graph with symbolic sizes: [`kiln_ir::infer()`] rejects what is surely wrong, so whatever it accepts
//! without proof has to be guarded.

use super::{Predicate, Relation};
use kiln_ir::{Dim, Graph, Node, Op, Ranges, Source};

/// What has to hold for a graph to be valid, beyond what the symbols' ranges and the guards so far say.
pub(super) fn of(graph: &Graph, ranges: &Ranges, guards: &mut Vec<Predicate>) {
    for node in graph.nodes() {
        if !node.op.has_bodies()
            && node.ty.shape.iter().all(|size| size.as_const().is_some())
            && node.operands.iter().all(|&id| graph.ty(id).shape.iter().all(|size| size.as_const().is_some()))
        {
            continue;
        }
        for body in node.op.bodies() {
            of(body, ranges, guards);
        }
        let mut obliged = |small: Dim, large: &Dim| oblige(small, large, &node.source, ranges, guards);
        for size in &node.ty.shape {
            obliged(Dim::from(0), size);
        }
        of_op(graph, node, &mut obliged);
    }
}

fn of_op(graph: &Graph, node: &Node, obliged: &mut dyn FnMut(Dim, &Dim)) {
    let shape = |operand: usize| &graph.ty(node.operands[operand]).shape;
    match &node.op {
        Op::Slice { start, size, step } => {
            for (axis, length) in shape(0).iter().enumerate() {
                obliged(Dim::from(0), &start[axis]);
                obliged(&start[axis] + (&size[axis] - 1) * step[axis] + 1, length);
            }
        }
        Op::Pad { low, high, .. } => low.iter().chain(high).for_each(|amount| obliged(Dim::from(0), amount)),
        Op::SortIndices { axis, count, .. } => obliged(count.clone(), &shape(0)[*axis]),
        Op::ArgReduce { axis, .. } => obliged(Dim::from(1), &shape(0)[*axis]),
        Op::Unfold { axis, size, dilation, .. } => obliged(window(&Dim::from(*size), *dilation), &shape(0)[*axis]),
        Op::ReduceWindow { dims, .. } => {
            for (axis, length) in shape(0).iter().enumerate() {
                let (low, high) = dims.padding[axis];
                let padded = length + Dim::from(low) + Dim::from(high);
                obliged(window(&Dim::from(dims.size[axis]), dims.dilation[axis]), &padded);
            }
        }
        Op::Conv(dims) => {
            for i in 0..dims.stride.len() {
                let (low, high) = dims.padding[i];
                let between = Dim::max_of([window(&shape(0)[i + 2], dims.input_dilation[i]), Dim::from(0)]);
                let padded = between + Dim::from(low) + Dim::from(high);
                obliged(window(&shape(1)[i + 2], dims.dilation[i]), &padded);
            }
        }
        _ => {}
    }
}

/// Elements from the first to the last tap of a window.
fn window(taps: &Dim, dilation: usize) -> Dim {
    (taps - 1) * Dim::from(dilation) + 1
}

fn oblige(small: Dim, large: &Dim, at: &Source, ranges: &Ranges, guards: &mut Vec<Predicate>) {
    let predicate = Predicate::decided(small, Relation::AtMost, large.clone(), true, at);
    if !predicate.is_proved(ranges, guards) {
        guards.push(predicate);
    }
}
