//! A stored program: the schedule, the machine code of its kernels, and the node of the captured graph that each launch is
//! attributed to. What follows from the graph it was made of, source lines included, is taken from there when it is loaded: two
//! call sites that compute the same share a program and keep their own lines.

use super::{BuildTimes, CompiledStep, Indexed, Origin, Program, called, indexed_nodes, indexed_size, source_node};
use crate::{Backend, Error, Keep, Variant, kernel_cache, phase};
use kiln_ir::codec::{DecodeError, from_bytes, to_bytes};
use kiln_ir::{Graph, NodeId, Source, codec_struct};
use kiln_kernels::InputLayout;
use kiln_kernels::kernel::Kernel;
use kiln_kernels::schedule::{Role, Schedule};
use std::sync::Arc;
use std::time::Instant;

/// Why a saved program did not come back.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum RestoreError {
    /// The bytes are no program.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// A program of another graph.
    #[error("it does not fit the graph: {what}")]
    OtherGraph {
        /// The part that does not match.
        what: &'static str,
    },
    /// Its kernels or constants could not be made ready.
    #[error(transparent)]
    Runtime(#[from] Error),
}

struct Saved {
    schedule: Schedule,
    /// By kernel, in the order of their first launches.
    code: Vec<Option<Arc<[u8]>>>,
    /// By launch.
    lines: Vec<Lines>,
}

/// Nodes of the captured graph whose lines a launch has.
struct Lines {
    source: Option<NodeId>,
    /// Those whose indices are checked.
    indexed: Vec<IndexedLine>,
}

/// A node whose indices a launch checks.
struct IndexedLine {
    /// The op, for a line that does not say what it calls.
    op: String,
    node: Option<NodeId>,
    size: Option<i64>,
}

codec_struct! {
    Saved { schedule, code, lines }
    Lines { source, indexed }
    IndexedLine { op, node, size }
}

/// The kernels of a schedule, each once, in the order of their first launches.
fn kernels(schedule: &Schedule) -> Vec<&Arc<Kernel>> {
    let mut kernels: Vec<&Arc<Kernel>> = Vec::new();
    let mut known = std::collections::HashSet::new();
    for step in &schedule.steps {
        if known.insert(Arc::as_ptr(&step.kernel)) {
            kernels.push(&step.kernel);
        }
    }
    kernels
}

impl Program {
    /// The program for another process, given the graph after the passes that it was built of, and for each of its nodes
    /// the one of the captured graph whose line it has.
    pub fn save(&self, graph: &Graph, origin: &[Option<NodeId>]) -> Vec<u8> {
        let from = |id: Option<NodeId>| id.and_then(|id| origin.get(id.index()).copied().flatten());
        let code = |kernel: &Arc<Kernel>| {
            let step = self.steps.iter().find(|step| Arc::ptr_eq(&step.kernel, kernel));
            step.and_then(|step| step.code.save()).map(Arc::from)
        };
        let indexed_line = |id: NodeId| {
            let op = graph.node(id).op.kind().name();
            IndexedLine { op, node: from(Some(id)), size: indexed_size(graph, id) }
        };
        let lines = self.schedule.steps.iter().map(|step| Lines {
            source: from(source_node(graph, step)),
            indexed: indexed_nodes(graph, step).map(indexed_line).collect(),
        });
        let (schedule, lines) = (self.schedule.clone(), lines.collect());
        let code = kernels(&schedule).into_iter().map(code).collect();
        to_bytes(&Saved { schedule, code, lines })
    }

    /// The program that was saved, for an equal graph (as captured, before the passes) with equal layouts and a backend of
    /// the same fingerprint.
    pub fn restore(
        saved: &[u8],
        graph: &Graph,
        layouts: &[InputLayout],
        backend: Arc<dyn Backend>,
    ) -> Result<Program, RestoreError> {
        let start = Instant::now();
        let Saved { schedule, code, lines } = phase::timed("read", || from_bytes(saved))?;
        check(&schedule, &lines, graph, layouts)?;
        let unique = kernels(&schedule);
        if unique.len() != code.len() {
            return Err(RestoreError::OtherGraph { what: "kernels without code" });
        }
        let (mut compiled, default) = (0, Variant::default());
        let mut ready = std::collections::HashMap::new();
        for (kernel, saved) in unique.into_iter().zip(&code) {
            let step = schedule.steps.iter().find(|step| Arc::ptr_eq(&step.kernel, kernel));
            let label = step.map_or("", |step| &step.label);
            let (code, fresh) =
                phase::timed("code", || kernel_cache::get_saved(&*backend, kernel, &default, label, saved.as_deref()))?;
            compiled += usize::from(fresh);
            ready.insert(Arc::as_ptr(kernel), code);
        }
        let line = |id: Option<NodeId>| id.map_or_else(Source::default, |id| graph.node(id).source.clone());
        let indexed = |IndexedLine { op, node, size }: IndexedLine| {
            let at = line(node);
            Indexed { op: called(&at, op), at, size }
        };
        let mut steps = Vec::with_capacity(schedule.steps.len());
        for (step, lines) in schedule.steps.iter().zip(lines) {
            let code = ready.get(&Arc::as_ptr(&step.kernel)).cloned();
            let code = code.ok_or(RestoreError::OtherGraph { what: "kernels without code" })?;
            let indexed = lines.indexed.into_iter().map(indexed).collect();
            let origin = Origin { label: step.label.clone(), source: line(lines.source), indexed };
            steps.push(CompiledStep::from_origin(step, code, origin, &*backend));
        }
        let mut program = Program::assemble(graph, layouts, backend, schedule, steps, Keep::Disk)?;
        program.times = BuildTimes { read: start.elapsed(), compiled, ..BuildTimes::default() };
        Ok(program)
    }
}

/// Whether a schedule refers only to what the graph has.
fn check(schedule: &Schedule, lines: &[Lines], graph: &Graph, layouts: &[InputLayout]) -> Result<(), RestoreError> {
    let other = |what| Err(RestoreError::OtherGraph { what });
    let (inputs, outputs, nodes) = (graph.inputs().len(), graph.outputs().len(), graph.nodes().len());
    let known = |decl: &kiln_kernels::schedule::BufferDecl| match &decl.role {
        Role::Input(input) => *input < inputs,
        Role::Output(output) => *output < outputs,
        Role::Temp | Role::Constant(_) => true,
    };
    let is_node = |id: &NodeId| id.index() < nodes;
    let has_nodes = |lines: &Lines| {
        let indexed = lines.indexed.iter().filter_map(|indexed| indexed.node.as_ref());
        lines.source.iter().chain(indexed).all(is_node)
    };
    if inputs != layouts.len() || schedule.outputs.len() != outputs {
        return other("the number of inputs or outputs");
    }
    if !schedule.buffers.iter().all(known) {
        return other("a buffer of an input or output that is not there");
    }
    if lines.len() != schedule.steps.len() || !lines.iter().all(has_nodes) {
        return other("a launch of a node that is not there");
    }
    Ok(())
}
