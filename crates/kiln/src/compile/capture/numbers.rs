//! Numbers that change from capture to capture. A number that a function made of what it read, or of a number among its arguments which changes, is a constant of the graph that
//! follows; where the same graph is captured again with another number in its place, the number is data: an input without axes,
//! so that further numbers need no further code.

use super::segment::{InputSource, SegmentGraph};
use crate::{Device, Tensor};
use kiln_ir::{Graph, Node, Op, Scalar, Source, TensorType};
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Graphs that are remembered; beyond that all are met anew.
const GRAPHS_KEPT: usize = 64;

/// The graphs of a function that were recorded after it had read elements.
#[derive(Default)]
pub(super) struct ChangingNumbers {
    known: Mutex<HashMap<u64, Vec<Known>>>,
    /// The parts of the arguments that are numbers which change: they are treated like what is read.
    parts: Mutex<Vec<usize>>,
}

struct Known {
    graph: Arc<Graph>,
    /// By node: whether it is a number that changes.
    changes: Vec<bool>,
}

/// The number that a node is.
fn number(node: &Node) -> Option<Scalar> {
    match &node.op {
        Op::Full { value, shape } if shape.is_empty() => Some(*value),
        _ => None,
    }
}

/// Whether two nodes are the same, numbers aside.
fn is_alike(a: &Node, b: &Node) -> bool {
    let is_number = number(a).is_some() && number(b).is_some();
    a.ty == b.ty && a.operands == b.operands && (is_number || a.op == b.op)
}

fn key(graph: &Graph) -> u64 {
    let mut hasher = DefaultHasher::new();
    for node in graph.nodes() {
        match number(node) {
            Some(_) => node.ty.hash(&mut hasher),
            None => node.op.hash(&mut hasher),
        }
        node.operands.hash(&mut hasher);
    }
    hasher.finish()
}

impl ChangingNumbers {
    /// The segment with inputs in place of the numbers that changed since it was first seen, if there are any.
    pub(super) fn lifted(&self, recorded: &SegmentGraph, device: Device, at: &Source) -> Option<SegmentGraph> {
        let graph = &recorded.graph;
        if !recorded.is_private || !graph.nodes().iter().any(|node| number(node).is_some()) {
            return None;
        }
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= GRAPHS_KEPT {
            known.clear();
        }
        let list = known.entry(key(graph)).or_default();
        let is_it = |known: &Known| {
            known.graph.nodes().len() == graph.nodes().len()
                && known.graph.nodes().iter().zip(graph.nodes()).all(|(a, b)| is_alike(a, b))
        };
        let Some(found) = list.iter_mut().find(|known| is_it(known)) else {
            list.push(Known { graph: graph.clone(), changes: vec![false; graph.nodes().len()] });
            return None;
        };
        for ((changes, before), now) in found.changes.iter_mut().zip(found.graph.nodes()).zip(graph.nodes()) {
            *changes |= number(before) != number(now);
        }
        found.changes.contains(&true).then(|| lift(recorded, &found.changes, device, at)).flatten()
    }

    /// The parts of the arguments that are numbers which change.
    pub(super) fn parts(&self) -> MutexGuard<'_, Vec<usize>> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn clear(&self) {
        self.parts().clear();
        self.known.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

/// The segment with inputs in place of these nodes, which are numbers.
fn lift(recorded: &SegmentGraph, lifted: &[bool], device: Device, at: &Source) -> Option<SegmentGraph> {
    let old = &recorded.graph;
    let (mut graph, mut from) = (Graph::new(), Vec::with_capacity(recorded.from.len()));
    let mut places = vec![0; recorded.from.len()];
    // Nodes keep their numbers.
    for ((_, node), &is_lifted) in old.iter().zip(lifted) {
        match (&node.op, number(node).filter(|_| is_lifted)) {
            (Op::Input { index }, _) => {
                graph.input(node.ty.clone(), node.source.clone()).ok()?;
                places[*index] = from.len();
                from.push(recorded.from[*index].clone());
            }
            (_, Some(value)) => {
                graph.input(TensorType::fixed(value.dtype(), &[]), node.source.clone()).ok()?;
                from.push(InputSource::Data(Tensor::scalar_at(value, device, at).ok()?));
            }
            (op, None) => {
                graph.add(op.clone(), &node.operands, node.source.clone()).ok()?;
            }
        }
    }
    for output in old.outputs() {
        match output.updates {
            Some(input) => graph.update(output.node, places[input]),
            None => graph.output(output.node),
        }
    }
    let more = from.len() - places.len();
    let source = |&source: &usize| places.get(source).copied().unwrap_or(source + more);
    Some(SegmentGraph {
        graph: Arc::new(graph),
        from,
        kept: recorded.kept.iter().map(|&input| places[input]).collect(),
        updates: recorded.updates.iter().map(|(target, input)| (target.clone(), places[*input])).collect(),
        taped: recorded.taped.iter().map(|reach| reach.iter().map(source).collect()).collect(),
        ..recorded.clone()
    })
}
