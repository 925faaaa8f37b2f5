//! Programs on disk: their keys, and the lines of the captured graph in a program that was made elsewhere.
//!
//! Source lines are no part of the key: a program that was made from another place that computes the same has the lines of
//! this one.

use super::{CompileOptions, Level};
use kiln_ir::{Graph, NodeId, Source, TensorType};
use kiln_kernels::InputLayout;
use kiln_runtime::disk::{Key, Kind, Store};
use kiln_runtime::{Backend, Program, phase};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The list of passes is this crate's choice, so what was built by another list is another program.
const FINGERPRINT: &str = env!("KILN_FINGERPRINT");

/// The program that is on disk. One that cannot be restored is removed.
pub(super) fn find(
    store: &Store,
    key: &Key,
    graph: &Graph,
    layouts: &[InputLayout],
    backend: &Arc<dyn Backend>,
) -> Option<Program> {
    let saved = phase::timed("read", || store.get(Kind::Program, key))?;
    match Program::restore(&saved, graph, layouts, backend.clone()) {
        Ok(program) => Some(program),
        Err(error) => {
            store.reject(Kind::Program, key, &error.to_string());
            None
        }
    }
}

/// The key of a graph's program. Everything that the program depends on is in it; a choice that is added to
/// [`CompileOptions`] does not compile until somebody has decided whether it belongs here.
pub(super) fn key(
    graph: &Graph,
    level: Level,
    layouts: &[InputLayout],
    backend: &dyn Backend,
    options: &CompileOptions,
) -> Key {
    // The target says what kind of device it is; which of them does not matter.
    let CompileOptions { device: _, schedule, no_passes, name, disk_cache: _, eager: _, memory_budget } = options;
    let types: Vec<String> = graph.inputs().iter().map(|&id| graph.ty(id).to_string()).collect();
    let nodes: Vec<_> = graph.nodes().iter().map(|node| (&node.op, &node.operands, &node.ty)).collect();
    let outputs: Vec<_> = graph.outputs().iter().map(|output| (output.node, output.updates)).collect();
    let label = if name.is_empty() { "graph" } else { name };
    Key::build()
        .part("target", &backend.target())
        .part("compiler", &format!("{} {} {FINGERPRINT}", backend.fingerprint(), kiln_passes::FINGERPRINT))
        .part("options", &format!("{schedule:?} no_passes={no_passes} memory_budget={memory_budget:?}"))
        .part("level", level.name())
        .hashed("graph", &(nodes, outputs))
        .part("inputs", &brief(&types))
        .hashed("layouts", &layouts)
        .note("label", &format!("{label} of {} nodes", graph.nodes().len()))
        .finish()
}

/// The key with what people want to know of the entry and nobody looks for.
pub(super) fn described(key: Key, graph: &Graph, program: &Program) -> Key {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for node in graph.nodes() {
        *counts.entry(node.op.kind().name()).or_default() += 1;
    }
    counts.remove("input");
    let ops: Vec<String> = counts.iter().map(|(op, count)| format!("{op}×{count}")).collect();
    let outputs: Vec<String> = program.output_types().iter().map(TensorType::to_string).collect();
    key.note("ops", &ops.join(" "))
        .note("outputs", &brief(&outputs))
        .note("launches", &program.steps().len().to_string())
}

/// A list in which neighbours that are equal are counted.
fn brief(list: &[String]) -> String {
    let runs = list.chunk_by(|a, b| a == b);
    let text = |run: &[String]| if run.len() > 1 { format!("{}×{}", run[0], run.len()) } else { run[0].clone() };
    runs.map(text).collect::<Vec<_>>().join(", ")
}

/// A file that no user has: its lines are the numbers of nodes, from 1.
const TAG: &str = "%";

/// The graph with its nodes' numbers for lines, so that it can be told afterwards where the passes took each node from.
pub(super) fn tagged(graph: &Graph) -> Graph {
    let mut number = 0;
    graph.clone().map_sources(&mut |_| {
        number += 1;
        Source::new(TAG, number)
    })
}

/// A graph that was made of a tagged one, with the lines of the captured graph and for each node where it is from.
pub(super) fn untagged(graph: Graph, captured: &Graph) -> (Graph, Vec<Option<NodeId>>) {
    let mut origin = Vec::with_capacity(graph.nodes().len());
    let graph = graph.map_sources(&mut |source| {
        let id = (source.file == TAG && source.line > 0).then(|| NodeId(source.line - 1));
        let id = id.filter(|id| id.index() < captured.nodes().len());
        origin.push(id);
        id.map_or_else(Source::default, |id| captured.node(id).source.clone())
    });
    (graph, origin)
}
