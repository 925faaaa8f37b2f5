//! Programs on disk: found by the captured graph, before any pass has run on it.
//!
//! ```text
//!  graph, layouts, options, compiler ──▶ key ──hit──▶ Program::restore
//!                                         └───miss──▶ passes ▶ schedule ▶ code ──▶ Program::save
//! ```
//!
//! Source lines are no part of the key: a program that was made from another place that computes the same has the lines of
//! this one.

use crate::compile::CompileOptions;
use crate::{Error, Result};
use kiln_ir::{Graph, NodeId, Source, TensorType};
use kiln_kernels::InputLayout;
use kiln_runtime::disk::{self, Key, Kind, Store};
use kiln_runtime::event::{self, Category};
use kiln_runtime::{Backend, Program, phase};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The list of passes is this crate's choice, so what was built by another list is another program.
const FINGERPRINT: &str = env!("KILN_FINGERPRINT");

/// The program of a graph, and how long the passes took: from disk if it is there, else built and kept there.
pub(crate) fn build(
    graph: &Graph,
    layouts: &[InputLayout],
    backend: Arc<dyn Backend>,
    options: &CompileOptions,
    at: &Source,
) -> Result<(Program, Duration)> {
    let failed = |cause| Error::Runtime { op: "compile".into(), cause: Box::new(cause), at: at.clone() };
    let Some(store) = disk::store().filter(|_| options.disk_cache) else {
        let start = Instant::now();
        let optimised = phase::timed("passes", || options.optimise(graph.clone(), at, &mut |_, _| {}))?;
        let passes = start.elapsed();
        let built = Program::build_kept(&optimised, layouts, backend, &options.schedule, options.keep());
        return Ok((built.map_err(failed)?, passes));
    };
    let key = phase::timed("key", || key(graph, "as captured", layouts, &*backend, options));
    if let Some(program) = find(&store, &key, graph, layouts, &backend) {
        if event::is_enabled(Category::Fusion) {
            program.report_fusion(&options.optimise(graph.clone(), at, &mut |_, _| {})?);
        }
        return Ok((program, Duration::ZERO));
    }
    let start = Instant::now();
    let (optimised, origin) = match phase::timed("passes", || options.optimise(tagged(graph), at, &mut |_, _| {})) {
        Ok(optimised) => untagged(optimised, graph),
        // Once more, for an error with the user's lines.
        Err(_) => (options.optimise(graph.clone(), at, &mut |_, _| {})?, Vec::new()),
    };
    let passes = start.elapsed();
    let program = Program::build(&optimised, layouts, backend, &options.schedule).map_err(failed)?;
    phase::timed("store", || {
        store.put(Kind::Program, &described(key, graph, &program), &program.save(&optimised, &origin));
    });
    Ok((program, passes))
}

/// The program of a graph that has been through its passes: from disk if it is there, else built and kept there.
pub(crate) fn build_optimised(
    graph: &Graph,
    layouts: &[InputLayout],
    backend: Arc<dyn Backend>,
    options: &CompileOptions,
) -> Result<Program, kiln_runtime::Error> {
    let Some(store) = disk::store().filter(|_| options.disk_cache) else {
        return Program::build_kept(graph, layouts, backend, &options.schedule, options.keep());
    };
    let key = phase::timed("key", || key(graph, "after the passes", layouts, &*backend, options));
    if let Some(program) = find(&store, &key, graph, layouts, &backend) {
        program.report_fusion(graph);
        return Ok(program);
    }
    let program = Program::build(graph, layouts, backend, &options.schedule)?;
    let origin: Vec<Option<NodeId>> = graph.iter().map(|(id, _)| Some(id)).collect();
    phase::timed("store", || {
        store.put(Kind::Program, &described(key, graph, &program), &program.save(graph, &origin));
    });
    Ok(program)
}

/// The program that is on disk. One that cannot be restored is removed.
fn find(
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
fn key(graph: &Graph, stage: &str, layouts: &[InputLayout], backend: &dyn Backend, options: &CompileOptions) -> Key {
    let CompileOptions { device, schedule, no_passes, name, disk_cache: _ } = options;
    let types: Vec<String> = graph.inputs().iter().map(|&id| graph.ty(id).to_string()).collect();
    let nodes: Vec<_> = graph.nodes().iter().map(|node| (&node.op, &node.operands, &node.ty)).collect();
    let outputs: Vec<_> = graph.outputs().iter().map(|output| (output.node, output.updates)).collect();
    let label = if name.is_empty() { "graph" } else { name };
    Key::build()
        .part("target", &backend.target())
        .part("compiler", &format!("{} {} {FINGERPRINT}", backend.fingerprint(), kiln_passes::FINGERPRINT))
        .part("device", &device.to_string())
        .part("options", &format!("{schedule:?} no_passes={no_passes}"))
        .part("stage", stage)
        .hashed("graph", &(nodes, outputs))
        .part("inputs", &brief(&types))
        .hashed("layouts", &layouts)
        .note("label", &format!("{label} of {} nodes", graph.nodes().len()))
        .finish()
}

/// The key with what people want to know of the entry and nobody looks for.
fn described(key: Key, graph: &Graph, program: &Program) -> Key {
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
fn tagged(graph: &Graph) -> Graph {
    let mut number = 0;
    graph.clone().map_sources(&mut |_| {
        number += 1;
        Source::new(TAG, number)
    })
}

/// A graph that was made of a tagged one, with the lines of the captured graph and for each node where it is from.
fn untagged(graph: Graph, captured: &Graph) -> (Graph, Vec<Option<NodeId>>) {
    let mut origin = Vec::with_capacity(graph.nodes().len());
    let graph = graph.map_sources(&mut |source| {
        let id = (source.file == TAG && source.line > 0).then(|| NodeId(source.line - 1));
        let id = id.filter(|id| id.index() < captured.nodes().len());
        origin.push(id);
        id.map_or_else(Source::default, |id| captured.node(id).source.clone())
    });
    (graph, origin)
}
