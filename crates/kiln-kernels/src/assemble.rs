//! A group to a launch: stores, stages, final axes, buffer arguments.

use crate::axes::{self, Renamed};
use crate::cost;
use crate::domain::{Domain, Root};
use crate::group::{Anchor, Group, trace_group};
use crate::index::product;
use crate::kernel::{self, Access, Axis, BufferArg, Inst, InstKind, Kernel, KernelBody, LoopBody, Place};
use crate::materialise::{Destination, Memory};
use crate::reciprocal::multiply_by_reciprocals;
use crate::schedule::{BufferId, Numerics, Step};
use crate::stages::{StoreAt, stage};
use crate::trace::{FusionRejection, Scope, Trace, kept_index};
use kiln_ir::{DType, Dim, NodeId, Op, Symbol};
use std::sync::Arc;

/// The writes of a group whose results are used, each with the position of its root.
pub(crate) struct Needed<'a> {
    /// Position among the group's roots, and where to.
    pub list: Vec<(usize, &'a Destination)>,
}

/// The stores of a group's roots.
pub(crate) fn stores(
    scope: Scope<'_>,
    memory: &Memory,
    domain: &Domain,
    roots: &[Root],
    trace: &mut Trace,
    needed: &Needed<'_>,
) -> Vec<StoreAt> {
    let ranges = domain.ranges(scope.known);
    let mut stores = Vec::with_capacity(needed.list.len());
    for (at, destination) in &needed.list {
        let storage = &destination.storage;
        let dtype = memory.buffers[storage.buffer.index()].dtype;
        let offset = storage.position(&kept_index(scope, &roots[*at])).simplify(&ranges);
        let buffer = argument(&mut trace.args, storage.buffer, dtype);
        let value = trace.dag.unrounded(trace.values[*at], dtype);
        stores.push(StoreAt { place: Place { buffer, offset, indirect: Vec::new() }, value });
    }
    stores
}

/// The number of a buffer argument, added if it is new.
pub(crate) fn argument(args: &mut Vec<(BufferId, DType)>, buffer: BufferId, dtype: DType) -> usize {
    args.iter().position(|a| *a == (buffer, dtype)).unwrap_or_else(|| {
        args.push((buffer, dtype));
        args.len() - 1
    })
}

/// The launch of a loop group.
pub(crate) fn loop_step(
    scope: Scope<'_>,
    memory: &Memory,
    group: &mut Group,
    needed: &Needed<'_>,
) -> Result<Step, FusionRejection> {
    let own = group.written(memory);
    let mut trace = match group.trace.take() {
        Some(trace) => trace,
        None => trace_group(scope, Anchor::Loop, &mut group.domain, &mut group.roots, &own)?,
    };
    let mut stores = stores(scope, memory, &group.domain, &group.roots, &mut trace, needed);
    let mut domain = group.domain.clone();
    if !domain.has_row() {
        hoist_uniform(scope, &trace, &mut domain);
    }
    let row: Vec<Symbol> = domain.axes(true).map(Symbol::axis).collect();
    if scope.numerics == Numerics::Fast
        && !row.is_empty()
        && let Some(dag) = multiply_by_reciprocals(&trace.dag, &row, &mut stores)
    {
        trace.dag = dag;
    }
    let length = cost::guess(&product(&domain.sizes(true)), scope.known);
    let mut staged = stage(&trace.dag, &row, length, &stores);
    let dims = axes::moving_dims(staged.stages.iter().flat_map(|s| &s.insts));
    let mut lists: [Vec<usize>; 2] = [domain.axes(false).collect(), domain.axes(true).collect()];
    if memory.by_neighbours {
        by_neighbours(&mut lists[0], staged.stages.iter().flat_map(|stage| &stage.insts));
    }
    let renamed = axes::merge(&domain, &lists, dims);
    staged.stages.iter_mut().for_each(|s| renamed.apply(&mut s.insts));
    let Renamed { lists, .. } = renamed;
    let [grid, row] = <[Vec<Axis>; 2]>::try_from(lists).unwrap_or_default();
    // A row that nothing runs over: all there was to combine was nothing.
    let has_row = staged.stages.iter().any(|stage| stage.domain == kernel::Domain::Row);
    let row = if has_row { row } else { Vec::new() };
    let body = LoopBody { grid, row, stages: staged.stages, temps: staged.temps };
    let insts = || body.stages.iter().flat_map(|s| &s.insts);
    let sizes = axes::size_symbols(body.grid.iter().chain(&body.row), insts());
    let (buffers, args, map) = arguments(&trace.args, insts());
    let mut body = body;
    body.stages.iter_mut().for_each(|s| renumber(&mut s.insts, &map));
    Ok(step(scope, Kernel { buffers, sizes, body: KernelBody::Loop(body) }, args, trace.nodes))
}

/// Sorts axes of a grid so that neighbours along the last are neighbours in most of what is read and written for each point.
fn by_neighbours<'a>(axes: &mut [usize], insts: impl Iterator<Item = &'a Inst>) {
    // Writes that are not of neighbours take longer than reads, which a cache may serve.
    let place = |inst: &'a Inst| match &inst.kind {
        InstKind::Store { place, .. } => Some((place, 3)),
        InstKind::Load { place, .. } => Some((place, 2)),
        _ => None,
    };
    let step = |place: &Place, axis: usize| {
        place.offset.linear_in(Symbol::axis(axis)).and_then(|(step, _)| step.as_const()).filter(|&step| step > 0)
    };
    let is_whole = |(place, _): &(&Place, u32)| axes.iter().all(|&axis| step(place, axis).is_some());
    let mut places: Vec<(&Place, u32)> = insts.filter_map(place).filter(is_whole).collect();
    places.sort_by_key(|(_, weight)| std::cmp::Reverse(*weight));
    let near = |axis: usize| -> u32 {
        places.iter().filter(|(place, _)| step(place, axis) == Some(1)).map(|(_, weight)| weight).sum()
    };
    let Some(&best) = axes.iter().max_by_key(|&&axis| near(axis)) else { return };
    if axes.last().is_none_or(|&last| near(best) <= near(last)) {
        return;
    }
    if let Some((place, _)) = places.iter().find(|(place, _)| step(place, best) == Some(1)) {
        axes.sort_by_key(|&axis| std::cmp::Reverse(step(place, axis)));
    }
}

/// Makes the innermost axes the row of a pointwise kernel if something costly or data-dependent does not move along them.
fn hoist_uniform(scope: Scope<'_>, trace: &Trace, domain: &mut Domain) {
    const ENOUGH: i64 = 16;
    let rank = domain.shape.len();
    let count = trace.dag.values().len();
    // For each value: one past the last axis it moves along.
    let mut reach = vec![0usize; count];
    let mut start = rank;
    for (at, value) in trace.dag.values().iter().enumerate() {
        let crate::dag::Def::Inst(kind) = &value.def else { continue };
        let mut own = 0;
        crate::dag::visit_dims(kind, &mut |dim| {
            own = (own..rank).rev().find(|&d| dim.contains(Symbol::axis(d))).map_or(own, |d| d + 1).max(own);
        });
        crate::dag::visit_operands(kind, &mut |x| own = own.max(reach[x.0 as usize]));
        reach[at] = own;
        let costly = matches!(kind, InstKind::CheckIndex { .. }) || cost::of_inst(kind) >= cost::EXPENSIVE;
        if costly && own < rank {
            start = start.min(own);
        }
    }
    // The grid must keep every core busy.
    while start < rank && cost::guess(&product(&domain.shape[..start]), scope.known) < ENOUGH {
        start += 1;
    }
    (start..rank).for_each(|d| domain.row[d] = true);
}

/// The buffers that instructions use, in order of first use, with their access; and the new number of each old one.
pub(crate) fn arguments<'a>(
    args: &[(BufferId, DType)],
    insts: impl Iterator<Item = &'a Inst>,
) -> (Vec<BufferArg>, Vec<BufferId>, Vec<usize>) {
    let mut map = vec![usize::MAX; args.len()];
    let (mut buffers, mut ids): (Vec<BufferArg>, Vec<BufferId>) = (Vec::new(), Vec::new());
    for inst in insts {
        let (buffer, access) = match &inst.kind {
            InstKind::Load { place, .. } | InstKind::LoadBlock { place, .. } => (place.buffer, Access::Read),
            InstKind::Store { place, .. } => (place.buffer, Access::Write),
            _ => continue,
        };
        if map[buffer] == usize::MAX {
            map[buffer] = buffers.len();
            let (id, dtype) = args[buffer];
            buffers.push(BufferArg { dtype, access });
            ids.push(id);
        } else if buffers[map[buffer]].access != access {
            buffers[map[buffer]].access = Access::ReadWrite;
        }
    }
    (buffers, ids, map)
}

/// Renumbers the buffers of instructions.
pub(crate) fn renumber(insts: &mut [Inst], map: &[usize]) {
    for inst in insts {
        if let Some(place) = inst.kind.place_mut() {
            place.buffer = map[place.buffer];
        }
    }
}

/// A launch with its sizes and a name made of its ops.
pub(crate) fn step(scope: Scope<'_>, kernel: Kernel, args: Vec<BufferId>, mut nodes: Vec<NodeId>) -> Step {
    nodes.sort_unstable();
    nodes.dedup();
    let sizes = kernel.sizes.iter().map(|&s| Dim::from(s)).collect();
    let label = label(scope, &nodes);
    Step { kernel: Arc::new(kernel), args, sizes, nodes, label, reads: Vec::new(), writes: Vec::new() }
}

fn label(scope: Scope<'_>, nodes: &[NodeId]) -> String {
    const WORDS: usize = 4;
    let mut words: Vec<String> = Vec::new();
    for &id in nodes {
        let op = &scope.graph.node(id).op;
        let word = op.kind().name();
        let silent = op.is_view() || matches!(op, Op::Full { .. } | Op::Constant(_) | Op::Input { .. });
        if !silent && !words.contains(&word) {
            words.push(word);
        }
    }
    if words.is_empty() {
        return "copy".into();
    }
    if words.len() > WORDS {
        let last = words.len() - (WORDS - 1);
        words.drain(1..last);
    }
    words.join("_")
}
