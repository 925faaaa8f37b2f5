//! The gradient of an operation: its small graph, differentiated, cut down to what the gradient needs.

use super::dependence::{self, Operands};
use crate::{Error, Result};
use kiln_ir::build::{Emit, GraphBuilder};
use kiln_ir::{Graph, NodeId, Op, Source};
use kiln_passes::{DifferentiateOptions, Seeds, differentiate, is_differentiable};
use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// An operation as the tape knows it.
pub(crate) struct Rule {
    graph: Graph,
    /// Nodes that gradients do not go past.
    stops: Vec<NodeId>,
    /// For each result the operands that gradients of it reach; empty where they reach all.
    reach: Vec<Vec<usize>>,
    /// Those of its operations that are more than one node.
    operations: Vec<Operands>,
    name: &'static str,
    gradients: Mutex<HashMap<Question, Result<Arc<Gradient>>>>,
    /// What the gradients of a whole program are on the tapes of.
    sources: Mutex<HashMap<Question, Arc<Vec<BTreeSet<usize>>>>>,
}

/// Which operands' gradients are wanted, and which results have a cotangent.
type Question = (Vec<bool>, Vec<bool>);

/// A graph from operands and cotangents to cotangents of operands.
pub(crate) struct Gradient {
    /// The key of its programs: no other has it.
    pub(crate) id: u64,
    graph: Graph,
    /// The operands that it takes, before the cotangents.
    pub(crate) operands: Vec<usize>,
}

impl Rule {
    /// The rule of what a graph computes.
    pub(crate) fn new(graph: Graph, name: &'static str) -> Rule {
        let (stops, reach, operations) = (Vec::new(), Vec::new(), Vec::new());
        Rule { graph, stops, reach, operations, name, gradients: Mutex::default(), sources: Mutex::default() }
    }

    /// The rule of what a whole program computes: gradients are kept from some nodes, and each result has its own operands.
    pub(crate) fn of_program(
        graph: Graph,
        stops: Vec<NodeId>,
        reach: Vec<Vec<usize>>,
        operations: Vec<Operands>,
    ) -> Rule {
        let (gradients, sources) = (Mutex::default(), Mutex::default());
        Rule { graph, stops, reach, operations, name: "call", gradients, sources }
    }

    /// Whether the gradient of a wanted operand is on a tape, given which of its operands, and of the cotangents, are on one. That of an
    /// operation is; that of a whole program is where it would be in eager code.
    pub(crate) fn is_on_tape(
        &self,
        operand: usize,
        wanted: &[bool],
        present: &[bool],
        is_taped: &dyn Fn(usize) -> bool,
    ) -> bool {
        if self.reach.is_empty() {
            return true;
        }
        let mut known = self.sources.lock().unwrap_or_else(PoisonError::into_inner);
        let sources = known.entry((wanted.to_vec(), present.to_vec())).or_insert_with(|| {
            let all: Vec<bool> = (0..self.graph.outputs().len()).map(|n| present.get(n) == Some(&true)).collect();
            Arc::new(dependence::of_gradients(&self.graph, &self.stops, &self.operations, wanted, &all))
        });
        sources.get(operand).is_some_and(|sources| sources.iter().any(|&source| is_taped(source)))
    }

    /// Whether gradients of the results that are present reach an operand. One that they do not reach has no gradient at all,
    /// which is not the same as zeros.
    pub(crate) fn reaches(&self, operand: usize, present: &[bool]) -> bool {
        let reaches = |(reach, &present): (&Vec<usize>, &bool)| present && reach.contains(&operand);
        self.reach.is_empty() || self.reach.iter().zip(present).any(reaches)
    }

    /// The graph of the gradients of the operands that are wanted, given cotangents of the results that are present.
    pub(crate) fn gradient(&self, wanted: &[bool], present: &[bool]) -> Result<Arc<Gradient>> {
        let mut gradients = self.gradients.lock().unwrap_or_else(PoisonError::into_inner);
        let question = (wanted.to_vec(), present.to_vec());
        gradients.entry(question).or_insert_with(|| self.derive(wanted, present)).clone()
    }

    /// For each operand whether a gradient by those that are wanted reads it, given cotangents of these results.
    pub(crate) fn reads(&self, wanted: &[bool], results: &[bool]) -> Result<Vec<bool>> {
        let carries = |node: NodeId| is_differentiable(self.graph.ty(node).dtype);
        let inputs = self.graph.inputs().iter().zip(wanted);
        let wanted: Vec<bool> = inputs.map(|(&input, &wanted)| wanted && carries(input)).collect();
        let outputs = self.graph.outputs().iter().zip(results);
        let present: Vec<bool> = outputs.map(|(output, &taped)| taped && carries(output.node)).collect();
        let gradient = self.gradient(&wanted, &present)?;
        Ok((0..wanted.len()).map(|operand| gradient.reads(operand)).collect())
    }

    fn derive(&self, wanted: &[bool], present: &[bool]) -> Result<Arc<Gradient>> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let numbers = |flags: &[bool]| -> Vec<usize> { (0..flags.len()).filter(|&i| flags[i]).collect() };
        let options = DifferentiateOptions { seeds: Seeds::Inputs, stops: self.stops.clone() };
        let joint = differentiate(&self.graph, &numbers(present), &numbers(wanted), &options);
        let joint = joint.map_err(|cause| {
            let at = self.graph.nodes().last().map_or(Source::default(), |node| node.source.clone());
            Error::NoGradient { op: self.name, cause: Box::new(cause), at }
        })?;
        let gradients: Vec<NodeId> = joint.outputs()[self.graph.outputs().len()..].iter().map(|o| o.node).collect();
        let mut live = vec![false; joint.nodes().len()];
        gradients.iter().for_each(|id| live[id.index()] = true);
        for (id, node) in joint.iter().rev() {
            if live[id.index()] {
                node.operands.iter().for_each(|operand| live[operand.index()] = true);
            }
        }
        let forward = self.graph.inputs().len();
        let operands: Vec<usize> = (0..forward).filter(|&i| live[joint.inputs()[i].index()]).collect();
        // Every cotangent stays an input, so that all gradients take the same.
        joint.inputs()[forward..].iter().for_each(|id| live[id.index()] = true);
        let graph = cut_down(&joint, &live, &gradients).map_err(|cause| Error::Graph { cause: Box::new(cause) })?;
        Ok(Arc::new(Gradient { id: NEXT.fetch_add(1, Ordering::Relaxed), graph, operands }))
    }
}

impl Drop for Gradient {
    fn drop(&mut self) {
        crate::tensor::eager::end_gradient(self.id);
    }
}

/// The live nodes of a graph; its inputs are those that are alive.
fn cut_down(graph: &Graph, live: &[bool], outputs: &[NodeId]) -> Result<Graph, kiln_ir::Error> {
    let mut b = GraphBuilder::new();
    let mut map: Vec<Option<NodeId>> = vec![None; live.len()];
    for &id in graph.inputs().iter().filter(|id| live[id.index()]) {
        b.set_source(Some(graph.node(id).source.clone()));
        map[id.index()] = Some(b.input(graph.ty(id).clone())?);
    }
    for (id, node) in graph.iter().filter(|(id, node)| live[id.index()] && !matches!(node.op, Op::Input { .. })) {
        let operands: Vec<NodeId> = node.operands.iter().filter_map(|operand| map[operand.index()]).collect();
        b.set_source(Some(node.source.clone()));
        map[id.index()] = Some(b.emit(node.op.clone(), &operands)?);
    }
    outputs.iter().filter_map(|id| map[id.index()]).for_each(|id| b.output(id));
    Ok(b.finish())
}

impl Gradient {
    /// Whether it takes an operand.
    pub(crate) fn reads(&self, operand: usize) -> bool {
        self.operands.contains(&operand)
    }

    /// Writes it into another graph, for these inputs.
    pub(crate) fn write(&self, b: &mut GraphBuilder, inputs: &[NodeId]) -> Result<Vec<NodeId>, kiln_ir::Error> {
        let mut map: Vec<NodeId> = Vec::with_capacity(self.graph.nodes().len());
        for node in self.graph.nodes() {
            map.push(match &node.op {
                Op::Input { index } => inputs[*index],
                op => {
                    let operands: Vec<NodeId> = node.operands.iter().map(|operand| map[operand.index()]).collect();
                    b.emit(op.clone(), &operands)?
                }
            });
        }
        Ok(self.graph.outputs().iter().map(|output| map[output.node.index()]).collect())
    }
}
