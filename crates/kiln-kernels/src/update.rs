//! Outputs that are the new value of an input. The kernel that computes one writes straight into the input's memory if
//! all readers of the old value run before it, or read it in the same iteration; else the result is copied there at the end.

use crate::axes;
use crate::domain::Domain;
use crate::index::contiguous_strides;
use crate::kernel::{
    Access, BufferArg, Domain as StageDomain, Inst, InstKind, Kernel, KernelBody, LoopBody, Place, Stage, ValueId,
};
use crate::schedule::{BufferId, InputLayout, ReadFrom, Schedule, Step, Written};
use crate::trace::Storage;
use kiln_ir::{Dim, Graph, NodeId};
use std::sync::Arc;

/// Makes every update reach its input.
pub(crate) fn write_updates(graph: &Graph, layouts: &[InputLayout], schedule: &mut Schedule) {
    let mut copies = Vec::new();
    for (number, output) in graph.outputs().iter().enumerate() {
        let Some(input) = output.updates else { continue };
        let shape = &graph.ty(output.node).shape;
        let from = schedule.outputs[number];
        // Inputs are declared first, in order.
        let to = BufferId(input as u32);
        let layout = &layouts[input];
        let strides = contiguous_strides(shape);
        let row_major = layout.offset.is_zero() && layout.strides == strides;
        schedule.outputs[number] = to;
        if shape.iter().any(Dim::is_zero) || (row_major && in_place(schedule, from, to)) {
            continue;
        }
        let source = Storage { buffer: from, offset: Dim::default(), strides };
        let target = Storage { buffer: to, offset: layout.offset.clone(), strides: layout.strides.clone() };
        copies.push(copy_step(graph, output.node, &source, &target));
    }
    // An update that another one is computed from in place must be written after it: copies come last.
    schedule.steps.extend(copies);
}

fn reads(step: &Step, buffer: BufferId) -> bool {
    has_access(step, buffer, |access| access != Access::Write)
}

fn writes(step: &Step, buffer: BufferId) -> bool {
    has_access(step, buffer, |access| access != Access::Read)
}

fn has_access(step: &Step, buffer: BufferId, wanted: fn(Access) -> bool) -> bool {
    step.args.iter().zip(&step.kernel.buffers).any(|(arg, decl)| *arg == buffer && wanted(decl.access))
}

/// True if `later` must stay behind `earlier`.
pub(crate) fn depends(later: &Step, earlier: &Step) -> bool {
    let shared = |a: &Step, b: &Step| {
        let written = a.args.iter().zip(&a.kernel.buffers).filter(|(_, decl)| decl.access != Access::Read);
        written.into_iter().any(|(arg, _)| b.args.contains(arg))
    };
    shared(later, earlier) || shared(earlier, later)
}

/// True if one of two steps reads what the other writes. Two that only write a buffer write different elements of it: every element
/// is written once.
pub(crate) fn exchanges(one: &Step, other: &Step) -> bool {
    let read = |a: &Step, b: &Step| {
        let written = a.args.iter().zip(&a.kernel.buffers).filter(|(_, decl)| decl.access != Access::Read);
        written.into_iter().any(|(arg, decl)| {
            let used = b.args.iter().zip(&b.kernel.buffers).filter(|(own, _)| *own == arg);
            used.into_iter().any(|(_, own)| own.access != Access::Write || decl.access != Access::Write)
        })
    };
    read(one, other) || read(other, one)
}

/// True if step `moved`, the one at `from` or the one at `to`, may run at the other place: no step between depends on it.
pub(crate) fn can_move(steps: &[Step], from: usize, to: usize, moved: usize) -> bool {
    steps[from.min(to) + 1..from.max(to)].iter().all(|between| !depends(between, &steps[moved]))
}

/// Makes a step one that is no longer needed: without arguments.
pub(crate) fn retire(step: &mut Step) {
    step.args.clear();
    step.reads.clear();
    step.writes.clear();
}

/// Lets the kernels that write `from` write `to` instead, if the old value of `to` has no readers left.
fn in_place(schedule: &mut Schedule, from: BufferId, to: BufferId) -> bool {
    let steps = &mut schedule.steps;
    if steps.iter().any(|step| writes(step, to)) {
        return false;
    }
    // The last writer completes the value; only writers may still read the old one, each at its own places.
    let mut order: Vec<usize> = (0..steps.len()).collect();
    loop {
        let Some(first) = order.iter().position(|&s| writes(&steps[s], from)) else { return false };
        let late = order[first..].iter().position(|&s| reads(&steps[s], to) && !writes(&steps[s], from));
        let Some(late) = late.map(|at| first + at) else { break };
        if !move_before(steps, &mut order, first, late) {
            return false;
        }
    }
    if !steps.iter().all(|step| !(reads(step, to) && writes(step, from)) || same_places(step, from, to)) {
        return false;
    }
    let mut old: Vec<Option<Step>> = std::mem::take(steps).into_iter().map(Some).collect();
    steps.extend(order.into_iter().filter_map(|s| old[s].take()));
    steps.iter_mut().for_each(|step| rebind(step, from, to));
    for idle in steps.extract_if(.., |step| is_idle(step)) {
        schedule.unchanged.extend(idle.writes);
    }
    true
}

/// Moves the step at position `late`, with the steps it depends on, before position `first`.
fn move_before(steps: &[Step], order: &mut Vec<usize>, first: usize, late: usize) -> bool {
    let mut moved = vec![late];
    for at in (first..late).rev() {
        if moved.iter().any(|&m| depends(&steps[order[m]], &steps[order[at]])) {
            moved.push(at);
        }
    }
    if moved.last() == Some(&first) {
        return false;
    }
    let picked: Vec<usize> = moved.iter().rev().map(|&at| order[at]).collect();
    order.retain(|s| !picked.contains(s));
    order.splice(first..first, picked);
    true
}

/// True if a kernel that writes `from` reads `to` only at the places it writes, and not after it wrote them.
fn same_places(step: &Step, from: BufferId, to: BufferId) -> bool {
    // A buffer that is read as two dtypes is two arguments.
    let number = |id: BufferId| {
        let mut numbers = (0..step.args.len()).filter(|&at| step.args[at] == id);
        numbers.next().filter(|_| numbers.next().is_none())
    };
    let (Some(from), Some(to)) = (number(from), number(to)) else { return false };
    if step.kernel.buffers[from].dtype != step.kernel.buffers[to].dtype {
        return false;
    }
    let stores: Vec<&Place> = step.kernel.insts().filter_map(|inst| stored(inst, from)).collect();
    let settled = |inst: &Inst| match &inst.kind {
        InstKind::Load { place, .. } if place.buffer == to => {
            let same = |s: &&&Place| s.offset == place.offset && s.indirect == place.indirect;
            stores.iter().find(same).is_some()
        }
        _ => true,
    };
    match &step.kernel.body {
        KernelBody::Loop(body) => {
            let stores_in = |stage: &Stage| stage.insts.iter().any(|inst| stored(inst, from).is_some());
            let first = body.stages.iter().position(stores_in).unwrap_or(body.stages.len());
            let loads_in = |stage: &Stage| stage.insts.iter().any(|inst| loaded(inst, to));
            let after = body.stages.iter().skip(first + 1).any(loads_in);
            !after && body.stages.iter().flat_map(|s| &s.insts).all(settled)
        }
        KernelBody::Matmul(body) => {
            let before = body.before.iter().flat_map(|before| &before.stages).flat_map(|stage| &stage.insts);
            let right = body.rhs.iter().flat_map(|rhs| &rhs.insts);
            !before.chain(&body.lhs.insts).chain(right).any(|inst| loaded(inst, to))
                && body.epilogue.iter().all(settled)
        }
        KernelBody::Attention(_) | KernelBody::AttentionBackward(_) => false,
        KernelBody::Routine(_) | KernelBody::Repeat(_) | KernelBody::Parallel(_) => false,
    }
}

fn stored(inst: &Inst, buffer: usize) -> Option<&Place> {
    match &inst.kind {
        InstKind::Store { place, .. } if place.buffer == buffer => Some(place),
        _ => None,
    }
}

fn loaded(inst: &Inst, buffer: usize) -> bool {
    let (InstKind::Load { place, .. } | InstKind::LoadBlock { place, .. }) = &inst.kind else { return false };
    place.buffer == buffer
}

/// Replaces a buffer of a launch, which has one argument for each dtype that it takes the buffer as; an argument that is then listed
/// twice becomes one.
fn rebind(step: &mut Step, from: BufferId, to: BufferId) {
    step.reads.iter_mut().filter(|r| r.buffer == from).for_each(|r| r.buffer = to);
    step.writes.iter_mut().filter(|w| w.buffer == from).for_each(|w| w.buffer = to);
    while let Some(old) = step.args.iter().position(|arg| *arg == from) {
        let buffers = &step.kernel.buffers;
        let is_same = |at: &usize| step.args[*at] == to && buffers[*at].dtype == buffers[old].dtype;
        match (0..step.args.len()).find(is_same) {
            Some(same) => merge_arguments(step, old, same),
            None => step.args[old] = to,
        }
    }
}

/// Drops an argument of a launch; its kernel uses another one, of the same dtype, for it.
fn merge_arguments(step: &mut Step, old: usize, same: usize) {
    let kernel = Arc::make_mut(&mut step.kernel);
    let map: Vec<usize> = (0..step.args.len())
        .map(|at| {
            let at = if at == old { same } else { at };
            at - usize::from(at > old)
        })
        .collect();
    if kernel.buffers[same].access != kernel.buffers[old].access {
        kernel.buffers[same].access = Access::ReadWrite;
    }
    kernel.buffers.remove(old);
    step.args.remove(old);
    kernel.each_inst_mut(&mut |inst| {
        if let Some(place) = inst.kind.place_mut() {
            place.buffer = map[place.buffer];
        }
    });
}

/// True for a copy of memory to itself.
fn is_idle(step: &Step) -> bool {
    let KernelBody::Loop(body) = &step.kernel.body else { return false };
    let [Stage { insts, .. }] = body.stages.as_slice() else { return false };
    let [
        Inst { id, kind: InstKind::Load { place: from, .. }, .. },
        Inst { kind: InstKind::Store { place: to, value, .. }, .. },
    ] = insts.as_slice()
    else {
        return false;
    };
    value == id && from == to
}

/// A launch that copies a node from one place to another.
fn copy_step(graph: &Graph, node: NodeId, from: &Storage, to: &Storage) -> Step {
    let ty = graph.ty(node);
    let (domain, index) = Domain::of_shape(&ty.shape, &[]);
    let dtype = ty.dtype.compute_type();
    let place = |buffer: usize, storage: &Storage| Place { buffer, offset: storage.position(&index), indirect: vec![] };
    let load = InstKind::Load { place: place(0, from), guard: None };
    let store = InstKind::Store { place: place(1, to), value: ValueId(0), guard: None };
    let mut insts = vec![Inst { id: ValueId(0), dtype, kind: load }, Inst { id: ValueId(1), dtype, kind: store }];
    let renamed = axes::merge(&domain, &[domain.axes(false).collect()], axes::moving_dims(insts.iter()));
    renamed.apply(&mut insts);
    let grid = renamed.lists.into_iter().next().unwrap_or_default();
    let sizes = axes::size_symbols(grid.iter(), insts.iter());
    let stages = vec![Stage { domain: StageDomain::Point, insts, reductions: Vec::new() }];
    let buffers =
        [Access::Read, Access::Write].into_iter().map(|access| BufferArg { dtype: ty.dtype, access }).collect();
    let values = sizes.iter().map(|&s| Dim::from(s)).collect();
    let body = KernelBody::Loop(LoopBody { grid, row: Vec::new(), stages, temps: Vec::new() });
    Step {
        kernel: Arc::new(Kernel { buffers, sizes, body }),
        args: vec![from.buffer, to.buffer],
        sizes: values,
        nodes: vec![node],
        label: "copy".into(),
        reads: vec![ReadFrom { node, buffer: from.buffer, initial: false }],
        writes: vec![Written {
            node,
            buffer: to.buffer,
            offset: to.offset.clone(),
            strides: to.strides.clone(),
            parts_of: Vec::new(),
        }],
    }
}
