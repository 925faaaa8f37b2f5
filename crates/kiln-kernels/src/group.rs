//! Groups of work that become one kernel each, and their dependencies.

use crate::domain::{Domain, Root};
use crate::materialise::{Memory, is_anchor};
use crate::trace::{FusionRejection, Scope, Trace, Tracer};
use kiln_ir::{Graph, NodeId, Op};

/// The kind of kernel of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Anchor {
    /// A loop kernel.
    Loop,
    /// A product and its epilogue.
    Matmul(NodeId),
    /// Attention, or a routine: one node.
    Alone(NodeId),
}

/// Work that becomes one kernel.
#[derive(Debug, Clone)]
pub(crate) struct Group {
    /// The kind of its kernel.
    pub anchor: Anchor,
    /// Its iteration space.
    pub domain: Domain,
    /// Its work, in the graph's order, with the index of each.
    pub roots: Vec<Root>,
    /// The work's numbers, in the same order.
    pub works: Vec<usize>,
    /// Nodes read from memory that other groups write, or that no group does.
    pub reads: Vec<NodeId>,
    /// The values, for a loop or an epilogue.
    pub trace: Option<Trace>,
}

impl Group {
    /// The group of one piece of work.
    pub fn of_work(scope: Scope<'_>, memory: &Memory, number: usize) -> Group {
        let graph = scope.graph;
        let work = &memory.works[number];
        let node = graph.node(work.node);
        let (anchor, shape, row): (_, _, &[usize]) = match &node.op {
            _ if work.copy => (Anchor::Loop, &node.ty.shape, &[]),
            Op::Dot { .. } => (Anchor::Matmul(work.node), &node.ty.shape, &[]),
            op if is_anchor(op) => (Anchor::Alone(work.node), &node.ty.shape, &[]),
            Op::Reduce { axes, .. } if scope.is_reduction(work.node) => {
                (Anchor::Loop, &graph.ty(node.operands[0]).shape, axes)
            }
            Op::ArgReduce { axis, .. } => (Anchor::Loop, &graph.ty(node.operands[0]).shape, std::slice::from_ref(axis)),
            _ => (Anchor::Loop, &node.ty.shape, &[]),
        };
        let (domain, index) = Domain::of_shape(shape, row);
        let mut reads = Vec::new();
        // A scatter changes memory that another kernel has written.
        if work.copy || matches!(node.op, Op::Scatter { .. }) {
            reads.push(work.node);
        }
        if !work.copy {
            let operands = if let Op::Scatter { .. } = node.op { &node.operands[1..] } else { &node.operands };
            reads_below(graph, memory, operands, &mut reads);
        }
        Group { anchor, domain, roots: vec![Root { node: work.node, index }], works: vec![number], reads, trace: None }
    }

    /// Nodes that this group's work writes.
    pub fn written(&self, memory: &Memory) -> Vec<NodeId> {
        let works = self.works.iter().map(|&w| &memory.works[w]);
        works.flat_map(|w| w.into.iter().flat_map(|d| d.nodes.iter().copied())).collect()
    }
}

/// Adds the nodes in memory that values are computed from.
fn reads_below(graph: &Graph, memory: &Memory, operands: &[NodeId], reads: &mut Vec<NodeId>) {
    let mut open: Vec<NodeId> = operands.to_vec();
    let mut seen: Vec<NodeId> = Vec::new();
    while let Some(id) = open.pop() {
        if seen.contains(&id) {
            continue;
        }
        seen.push(id);
        if memory.storage[id.index()].is_some() {
            reads.push(id);
        } else {
            open.extend(&graph.node(id).operands);
        }
    }
    reads.sort_unstable();
    reads.dedup();
}

/// Traces the roots of a loop or an epilogue over a domain, splitting axes where that makes divisions exact.
pub(crate) fn trace_group(
    scope: Scope<'_>,
    anchor: Anchor,
    domain: &mut Domain,
    roots: &mut Vec<Root>,
    own: &[NodeId],
) -> Result<Trace, FusionRejection> {
    const ROUNDS: usize = 3;
    let mut round = 0;
    loop {
        let mut tracer = Tracer::new(scope, domain);
        if let Anchor::Matmul(dot) = anchor {
            crate::matmul::provide_accumulator(scope, &mut tracer, dot, roots)?;
        }
        let (done, open) = match tracer.run(domain, roots, own) {
            Ok(mut trace) => {
                let open = std::mem::take(&mut trace.open);
                (Ok(trace), open)
            }
            Err((rejection, open)) => (Err(rejection), open),
        };
        round += 1;
        if round == ROUNDS {
            return done;
        }
        let Some((split, axes)) = domain.split(&open, scope.known) else { return done };
        let ranges = split.ranges(scope.known);
        *roots = roots.iter().map(|root| root.rebased(&axes, &ranges)).collect();
        *domain = split;
    }
}
