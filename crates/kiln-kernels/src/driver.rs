//! The scheduler's page: every stage from a graph to a schedule, in order.
//!
//! ```text
//!  prepare ▶ materialise ▶ fuse ▶ schedule ▶ write_updates ▶ join_writes ▶ join_products ▶ join_attention ▶ …
//!  └─ Graph ──────────────┘       └─ Schedule, verified after each stage ───────────────────────────────────────┘
//! ```
//!
//! A kernel that cannot compute an operand on the way makes the scheduler start again with that operand materialised.

use crate::assemble::{Needed, loop_step};
use crate::early::free_early;
use crate::fuse::Fusion;
use crate::group::{Anchor, Group};
use crate::kernel::Kernel;
use crate::materialise::{Memory, Work, choose, inline_reductions, is_anchor, lay_out};
use crate::matmul::matmul_step;
use crate::prepare::{Prepared, prepare};
use crate::repeat::{self, Loops, plan_loops, repeat_step};
use crate::routine::routine_step;
use crate::schedule::{Error, InputLayout, ReadFrom, Reason, Role, Schedule, ScheduleOptions, Step, Written};
use crate::segments::split_choices;
use crate::trace::{FusionRejection, Scope, Storage};
use crate::{attention, matmul, products, routine, update, verify, writes};
use kiln_ir::verify::verifiers_run;
use kiln_ir::{Dim, Graph, NodeId, Op};
use std::collections::HashMap;
use std::sync::Arc;

/// Cuts a graph into kernels.
///
/// ```
/// use kiln_ir::{BinaryOp, DType, Graph, Op, Source, TensorType};
/// use kiln_kernels::{InputLayout, ScheduleOptions, schedule};
/// let mut graph = Graph::new();
/// let ty = TensorType::fixed(DType::F32, &[8, 64]);
/// let x = graph.input(ty.clone(), Source::default())?;
/// let y = graph.add(Op::Binary(BinaryOp::Mul), &[x, x], Source::default())?;
/// let z = graph.add(Op::Binary(BinaryOp::Add), &[y, x], Source::default())?;
/// graph.output(z);
/// let schedule = schedule(&graph, &[InputLayout::contiguous(&ty)], &ScheduleOptions::default()).unwrap();
/// assert_eq!(schedule.steps.len(), 1);
/// # Ok::<(), kiln_ir::Error>(())
/// ```
pub fn schedule(graph: &Graph, layouts: &[InputLayout], options: &ScheduleOptions) -> Result<Schedule, Error> {
    schedule_with(graph, layouts, options, &mut |_, _| {})
}

/// What a stage of the scheduler made.
#[derive(Debug, Clone, Copy)]
pub enum Form<'a> {
    /// A graph with the kernels' own nodes.
    Graph(&'a Graph),
    /// A schedule; its nodes are those of the graph that `prepare` made.
    Schedule(&'a Schedule),
}

/// Called with the name and the result of each stage.
pub type Observe<'o> = &'o mut dyn FnMut(&'static str, Form<'_>);

/// Cuts a graph into kernels and passes what each stage made to `observe`.
pub fn schedule_with(
    graph: &Graph,
    layouts: &[InputLayout],
    options: &ScheduleOptions,
    observe: Observe<'_>,
) -> Result<Schedule, Error> {
    check_inputs(graph, layouts)?;
    // Quantised blocks that no product can read in their own layout.
    let mut dequantised: Vec<NodeId> = Vec::new();
    let (prepared, mut schedule) = loop {
        let prepared = prepare(graph, layouts, &dequantised, options.target)?;
        let inner = prepared.as_ref().map_or(graph, |prepared| &prepared.graph);
        match settle(inner, layouts, options, observe)? {
            Ok(schedule) => break (prepared, schedule),
            Err(blocks) => {
                let original = |node: NodeId| prepared.as_ref().map_or(node, |p| p.origin[node.index()]);
                dequantised.extend(blocks.into_iter().map(original));
            }
        }
    };
    if let Some(Prepared { origin, results, .. }) = &prepared {
        let original = |id: &mut NodeId| *id = origin[id.index()];
        let is_own = |id: NodeId| results[origin[id.index()].index()] == id;
        for step in &mut schedule.steps {
            step.nodes.iter_mut().for_each(original);
            step.nodes.dedup();
            step.reads.retain(|r| is_own(r.node));
            step.reads.iter_mut().for_each(|r| original(&mut r.node));
        }
        let steps = schedule.steps.iter_mut().map(|step| &mut step.writes);
        for writes in steps.chain([&mut schedule.unchanged]) {
            writes.retain(|w| is_own(w.node));
            for written in writes {
                original(&mut written.node);
                written.parts_of.retain(|&id| is_own(id));
                written.parts_of.iter_mut().for_each(original);
            }
        }
        for note in &mut schedule.notes {
            original(&mut note.producer);
            original(&mut note.consumer);
        }
        schedule.notes.retain(|note| note.producer != note.consumer);
    }
    Ok(schedule)
}

/// A schedule in which every kernel finds its operands, or the blocks that some product cannot read.
fn settle(
    graph: &Graph,
    layouts: &[InputLayout],
    options: &ScheduleOptions,
    observe: Observe<'_>,
) -> Result<Result<Schedule, Vec<NodeId>>, Error> {
    let mut required: Vec<NodeId> = Vec::new();
    loop {
        let rejections = match attempt(graph, layouts, options, &required, observe)? {
            Ok(schedule) => return Ok(Ok(schedule)),
            Err(rejections) => rejections,
        };
        let is_block = |rejection: &&FusionRejection| matches!(graph.node(rejection.node).op, Op::Dequantize { .. });
        let blocks: Vec<NodeId> = rejections.iter().filter(is_block).map(|rejection| rejection.node).collect();
        if !blocks.is_empty() {
            return Ok(Err(blocks));
        }
        // What a kernel cannot compute on the way it reads from memory instead.
        let known = required.len();
        for FusionRejection { node } in rejections {
            if required[..known].contains(&node) {
                return Err(unsupported(graph, node));
            }
            required.push(node);
        }
    }
}

fn unsupported(graph: &Graph, node: NodeId) -> Error {
    let at = graph.node(node);
    Error::Unsupported { node, op: at.op.kind().name().to_string(), at: at.source.clone() }
}

fn check_inputs(graph: &Graph, layouts: &[InputLayout]) -> Result<(), Error> {
    if graph.inputs().len() != layouts.len() {
        return Err(Error::LayoutCount { inputs: graph.inputs().len(), layouts: layouts.len() });
    }
    for (input, (&id, layout)) in graph.inputs().iter().zip(layouts).enumerate() {
        let (rank, strides) = (graph.ty(id).rank(), layout.strides.len());
        if rank != strides {
            return Err(Error::LayoutRank { input, rank, strides });
        }
    }
    for symbol in graph.nodes().iter().flat_map(|n| &n.ty.shape).flat_map(Dim::symbols) {
        // Kernels name their loop variables i0, i1, … and data-dependent indices at0, at1, …
        let number = symbol.as_str().strip_prefix('i').or_else(|| symbol.as_str().strip_prefix("at"));
        if number.is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit())) {
            return Err(Error::ReservedSymbol { symbol });
        }
    }
    let missing = graph.iter().find(|(_, node)| matches!(node.op, Op::Conv(_) | Op::ReduceWindow { .. }));
    missing.map_or(Ok(()), |(id, _)| Err(unsupported(graph, id)))
}

fn attempt(
    graph: &Graph,
    layouts: &[InputLayout],
    options: &ScheduleOptions,
    required: &[NodeId],
    observe: Observe<'_>,
) -> Result<Result<Schedule, Vec<FusionRejection>>, Error> {
    let inline = inline_reductions(graph, options.target);
    let materialised = choose(graph, &inline, required, layouts, options);
    let mut memory = lay_out(graph, &materialised, layouts, options.target);
    let loops = plan_loops(graph, &mut memory, options)?;
    let scope = Scope {
        graph,
        storage: &memory.storage,
        inline: &inline,
        numerics: options.numerics,
        precision: options.precision,
        target: options.target,
        known: &options.ranges,
    };
    let check = |work: &Work| match &graph.node(work.node).op {
        Op::Dot { .. } => matmul::check_operands(scope, work.node),
        op if is_anchor(op) => routine::check_operands(scope, work.node),
        _ => Ok(()),
    };
    // All at once: repeated blocks have as many rejections as there are blocks.
    let rejections: Vec<FusionRejection> =
        memory.works.iter().filter(|w| !w.copy).filter_map(|w| check(w).err()).collect();
    if !rejections.is_empty() {
        return Ok(Err(rejections));
    }
    let mut fusion = Fusion::new(scope, &memory)?;
    if options.no_fusion {
        fusion.note_all(Reason::Off);
    } else {
        fusion.run();
    }
    for group in fusion.groups.iter_mut().flatten() {
        split_choices(scope, &memory, group);
    }
    let order = fusion.order()?;
    let steps = match assemble(scope, &memory, &mut fusion, order, &loops) {
        Ok(steps) => steps,
        Err(rejection) => return Ok(Err(vec![rejection])),
    };
    let notes = fusion.notes;
    let mut schedule =
        Schedule { buffers: memory.buffers, steps, outputs: memory.outputs, unchanged: Vec::new(), notes };
    observe("prepare", Form::Graph(graph));
    let unit = Unit { graph, layouts, options };
    verified("schedule", &unit, &schedule)?;
    observe("schedule", Form::Schedule(&schedule));
    for (name, stage) in STAGES {
        stage(&unit, &mut schedule);
        verified(name, &unit, &schedule)?;
        observe(name, Form::Schedule(&schedule));
    }
    Ok(Ok(schedule))
}

/// What is being scheduled.
struct Unit<'a> {
    /// The graph that `prepare` made.
    graph: &'a Graph,
    layouts: &'a [InputLayout],
    options: &'a ScheduleOptions,
}

/// A stage that changes a schedule.
type Stage = fn(&Unit<'_>, &mut Schedule);

/// Schedule → Schedule, in this order; the verifier runs after each.
const STAGES: &[(&str, Stage)] = &[
    ("write_updates", |unit, schedule| update::write_updates(unit.graph, unit.layouts, schedule)),
    ("join_writes", |unit, schedule| {
        if !unit.options.no_fusion {
            writes::join_writes(schedule);
        }
    }),
    ("join_products", |unit, schedule| {
        if !unit.options.no_fusion {
            products::join_products(schedule, unit.options.target.few_rows, unit.options.rows_beside);
        }
    }),
    ("join_attention", |unit, schedule| {
        if !unit.options.no_fusion {
            attention::join_attention(schedule, unit.options.target.joined_gradients);
        }
    }),
    ("free_early", |unit, schedule| free_early(schedule, &unit.options.ranges)),
    ("drop_unused", |_, schedule| drop_unused(schedule)),
    ("share_kernels", |_, schedule| share_kernels(schedule)),
];

fn verified(stage: &'static str, unit: &Unit<'_>, schedule: &Schedule) -> Result<(), Error> {
    if !verifiers_run() {
        return Ok(());
    }
    let broken = |violation| Error::Invalid { stage, violation: Box::new(violation) };
    verify::kernels(schedule, &unit.options.ranges).map_err(broken)?;
    verify::order(unit.graph, schedule).map_err(broken)
}

/// The launches of all groups, producers first.
fn assemble(
    scope: Scope<'_>,
    memory: &Memory,
    fusion: &mut Fusion<'_>,
    order: Vec<usize>,
    loops: &Loops,
) -> Result<Vec<Step>, FusionRejection> {
    let mut read = vec![false; scope.graph.nodes().len()];
    for group in fusion.groups.iter().flatten() {
        group.reads.iter().for_each(|r| read[r.index()] = true);
    }
    let mut steps = Vec::new();
    for at in order {
        let Some(group) = &mut fusion.groups[at] else { continue };
        let mut list = Vec::new();
        for (position, &work) in group.works.iter().enumerate() {
            let wanted =
                memory.works[work].into.iter().filter(|d| d.required || d.nodes.iter().any(|n| read[n.index()]));
            list.extend(wanted.map(|d| (position, d)));
        }
        if list.is_empty() {
            continue;
        }
        let needed = Needed { list };
        let reads = read_from(scope.graph, memory, group);
        let mut step = match group.anchor {
            Anchor::Loop => loop_step(scope, memory, group, &needed)?,
            Anchor::Matmul(dot) => matmul_step(scope, memory, group, dot, &needed)?,
            Anchor::Alone(node) if scope.graph.node(node).op.has_bodies() => {
                repeat_step(scope, memory, node, &needed, loops)?
            }
            Anchor::Alone(node) => routine_step(scope, memory, node, &needed.list[0].1.storage)?,
        };
        // Arguments that the kernel does not use are dropped.
        step.reads = reads.into_iter().filter(|read| step.args.contains(&read.buffer)).collect();
        step.writes = written(scope.graph, memory, group, &needed);
        steps.push(step);
    }
    Ok(steps)
}

/// What a group's launch needs in memory.
fn read_from(graph: &Graph, memory: &Memory, group: &Group) -> Vec<ReadFrom> {
    let traced = group.trace.iter().flat_map(|trace| &trace.reads);
    let mut nodes: Vec<NodeId> = group.reads.iter().chain(traced).copied().collect();
    nodes.sort_unstable();
    nodes.dedup();
    let place = |node: NodeId| {
        let buffer = memory.storage[node.index()].as_ref()?.buffer;
        Some(ReadFrom { node, buffer, initial: matches!(graph.node(node).op, Op::Input { .. }) })
    };
    nodes.into_iter().filter_map(place).collect()
}

/// What a group's launch puts into memory.
fn written(graph: &Graph, memory: &Memory, group: &Group, needed: &Needed<'_>) -> Vec<Written> {
    let mut writes: Vec<Written> = Vec::with_capacity(needed.list.len());
    for (position, destination) in &needed.list {
        let node = repeat::node_of(graph, memory, memory.works[group.works[*position]].node, destination);
        let Storage { buffer, offset, strides } = destination.storage.clone();
        let write = Written { node, buffer, offset, strides, parts_of: destination.nodes.clone() };
        if !writes.contains(&write) {
            writes.push(write);
        }
    }
    writes
}

/// Drops buffers that no launch and no output uses, but for inputs.
fn drop_unused(schedule: &mut Schedule) {
    let mut used: Vec<bool> = schedule.buffers.iter().map(|b| matches!(b.role, Role::Input(_))).collect();
    let args = schedule.steps.iter().flat_map(|s| &s.args);
    args.chain(&schedule.outputs).for_each(|b| used[b.index()] = true);
    schedule.retain_buffers(&used);
}

/// Equal kernels become one.
fn share_kernels(schedule: &mut Schedule) {
    let mut known: HashMap<Arc<Kernel>, Arc<Kernel>> = HashMap::new();
    for step in &mut schedule.steps {
        step.kernel = known.entry(step.kernel.clone()).or_insert_with(|| step.kernel.clone()).clone();
    }
}
