//! Loops: the body of [`kiln_ir::Op::Loop`] is scheduled by itself, and its launches are one launch of the graph around it.
//!
//! ```text
//!  turn 0   first ─▶ body ─▶ other      what is carried goes back and forth between two buffers, so that the last turn
//!  turn 1   other ─▶ body ─▶ last       leaves it where the loop's result is
//! ```
//!
//! A row of what is looped over, or of a stacked result, is a place in its buffer that moves from turn to turn. Temporaries of the body
//! are temporaries of the schedule around it: their memory is planned with all others.

use crate::assemble::{Needed, argument, step};
use crate::driver::schedule;
use crate::kernel::{
    Access, Axis, BufferArg, Domain, Inst, InstKind, Kernel, KernelBody, LoopBody, Place, Stage, Strided, ValueId,
};
use crate::materialise::{Destination, Memory, Work, is_row_major};
use crate::routine::strided;
use crate::schedule::{BufferDecl, BufferId, Error, InputLayout, Role, Schedule, ScheduleOptions, Step};
use crate::trace::{FusionRejection, Scope};
use kiln_ir::{DType, Dim, Graph, NodeId, Op, Region, Symbol};
use std::collections::HashMap;

/// Launches that run turn after turn. See [`kiln_ir::Op::Loop`].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RepeatBody {
    /// The number of turns.
    pub turns: Dim,
    /// There is a turn for as long as the last of what is carried, a bool, is true; `turns` says nothing then.
    pub is_conditional: bool,
    /// The last row comes first.
    pub reverse: bool,
    /// The memory that launches of a turn refer to.
    pub buffers: Vec<TurnBuffer>,
    /// What is carried from turn to turn.
    pub carried: Vec<CarriedBuffer>,
    /// The launches of a turn, in order.
    pub launches: Vec<TurnLaunch>,
}

/// A launch of a turn.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TurnLaunch {
    /// The kernel.
    pub kernel: Kernel,
    /// Its arguments, by their numbers in [`RepeatBody::buffers`].
    pub args: Vec<usize>,
    /// The values of the kernel's size symbols, over those of the loop.
    pub sizes: Vec<Dim>,
}

/// Memory that launches of a turn refer to. Offsets and strides are in elements.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum TurnBuffer {
    /// An argument of the loop, the same at every turn.
    Whole {
        /// The argument.
        buffer: usize,
        /// The first element.
        offset: Dim,
    },
    /// The row of an argument that belongs to the turn.
    Row {
        /// The argument.
        buffer: usize,
        /// The first element of the first row.
        offset: Dim,
        /// Elements from row to row.
        stride: Dim,
    },
    /// What is carried, as the turn finds it.
    Carried(usize),
    /// What is carried, as the turn leaves it.
    Next(usize),
}

/// A value that is carried from turn to turn, in row-major order.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CarriedBuffer {
    /// The argument with the value before the first turn.
    pub first: usize,
    /// Its first element there.
    pub offset: Dim,
    /// The argument that gets the value after the last turn, and has that after every second turn.
    pub last: usize,
    /// Scratch memory for that after the turns between them.
    pub other: usize,
    /// Copies the value, in case there is no turn.
    pub copy: Kernel,
    /// The values of the copy's size symbols.
    pub sizes: Vec<Dim>,
}

impl TurnBuffer {
    /// The argument of the loop that it is in, if that is one.
    pub(crate) fn argument_mut(&mut self) -> Option<&mut usize> {
        match self {
            TurnBuffer::Whole { buffer, .. } | TurnBuffer::Row { buffer, .. } => Some(buffer),
            TurnBuffer::Carried(_) | TurnBuffer::Next(_) => None,
        }
    }
}

impl RepeatBody {
    /// The arguments of the loop that it refers to, some of them more than once.
    pub(crate) fn arguments_mut(&mut self) -> Vec<&mut usize> {
        let carried = self.carried.iter_mut().flat_map(|c| [&mut c.first, &mut c.last, &mut c.other]);
        self.buffers.iter_mut().filter_map(TurnBuffer::argument_mut).chain(carried).collect()
    }

    /// Calls `visit` with every size, offset and stride.
    pub(crate) fn visit_dims(&self, visit: &mut dyn FnMut(&Dim)) {
        visit(&self.turns);
        for buffer in &self.buffers {
            match buffer {
                TurnBuffer::Whole { offset, .. } => visit(offset),
                TurnBuffer::Row { offset, stride, .. } => [offset, stride].into_iter().for_each(&mut *visit),
                TurnBuffer::Carried(_) | TurnBuffer::Next(_) => {}
            }
        }
        let carried = self.carried.iter().flat_map(|carried| carried.sizes.iter().chain([&carried.offset]));
        carried.chain(self.launches.iter().flat_map(|launch| &launch.sizes)).for_each(visit);
    }
}

/// The loops of a graph, by the work of each.
#[derive(Default)]
pub(crate) struct Loops(HashMap<NodeId, Lowered>);

/// A loop whose body is scheduled.
struct Lowered {
    schedule: Schedule,
    /// The stacked results that are used, by number.
    stacked: Vec<usize>,
    /// For each value that is carried: scratch memory, and memory for the result should nobody want it.
    carried: Vec<(BufferId, BufferId)>,
    /// Memory for stacked results that nobody wants.
    unwanted: Vec<BufferId>,
    /// By buffer of the schedule: memory for temporaries and constants.
    own: Vec<Option<BufferId>>,
}

/// The nodes that are results of the same loop, in the graph's order.
pub(crate) fn results_of(graph: &Graph, id: NodeId) -> Vec<NodeId> {
    let node = graph.node(id);
    let Op::Loop { region, .. } = &node.op else { return vec![id] };
    let is_it = |(_, other): &(NodeId, &kiln_ir::Node)| match &other.op {
        Op::Loop { region: own, .. } => {
            (std::sync::Arc::ptr_eq(own, region) || own == region) && other.operands == node.operands
        }
        _ => false,
    };
    graph.iter().filter(is_it).map(|(id, _)| id).collect()
}

/// Which result of its loop a node is.
fn result_number(graph: &Graph, id: NodeId) -> usize {
    match graph.node(id).op {
        Op::Loop { result, .. } => result,
        _ => usize::MAX,
    }
}

/// Makes one work of the results of each loop, at the place of the first.
pub(crate) fn join_results(graph: &Graph, works: &mut Vec<Work>) {
    let mut at = 0;
    while at < works.len() {
        let (id, copy) = (works[at].node, works[at].copy);
        if !copy && matches!(graph.node(id).op, Op::Loop { .. }) {
            let others = results_of(graph, id);
            let mut later = works.split_off(at + 1);
            // The same result once more is another loop.
            let mut taken = vec![result_number(graph, id)];
            let joined = later.extract_if(.., |work| {
                let number = result_number(graph, work.node);
                let joins = !work.copy && others.contains(&work.node) && !taken.contains(&number);
                taken.extend(joins.then_some(number));
                joins
            });
            works[at].into.extend(joined.flat_map(|work| work.into));
            works.append(&mut later);
        }
        at += 1;
    }
}

/// The result of a loop that is written to a destination.
pub(crate) fn node_of(graph: &Graph, memory: &Memory, id: NodeId, destination: &Destination) -> NodeId {
    let is_it = |node: &NodeId| {
        memory.storage[node.index()].as_ref().is_some_and(|storage| storage.buffer == destination.storage.buffer)
    };
    results_of(graph, id).into_iter().find(is_it).unwrap_or(id)
}

/// Schedules the bodies of loops, and declares their memory.
pub(crate) fn plan_loops(graph: &Graph, memory: &mut Memory, options: &ScheduleOptions) -> Result<Loops, Error> {
    let mut loops = Loops::default();
    for work in memory.works.iter().filter(|work| !work.copy) {
        let Op::Loop { region, .. } = &graph.node(work.node).op else { continue };
        let mut stacked: Vec<usize> =
            results_of(graph, work.node).into_iter().map(|id| result_number(graph, id)).collect();
        stacked.retain(|&result| result >= region.carried());
        stacked.sort_unstable();
        stacked.dedup();
        let body = with_results(region, &stacked)?;
        let layouts: Vec<InputLayout> =
            body.inputs().iter().map(|&input| InputLayout::contiguous(body.ty(input))).collect();
        let schedule = schedule(&body, &layouts, options)?;
        let buffers = &mut memory.buffers;
        let mut declare = |dtype: DType, elements: Dim, role: Role| {
            buffers.push(BufferDecl { dtype, elements, role });
            BufferId(buffers.len() as u32 - 1)
        };
        let ty = |result: usize| body.ty(body.outputs()[result].node);
        let mut scratch = |result: usize| declare(ty(result).dtype, ty(result).elements(), Role::Temp);
        let carried = (0..region.carried()).map(|at| (scratch(at), scratch(at))).collect();
        let all = |at: usize| (ty(region.carried() + at).dtype, ty(region.carried() + at).elements() * region.turns());
        let unwanted = (0..stacked.len()).map(all).map(|(dtype, elements)| declare(dtype, elements, Role::Temp));
        let unwanted = unwanted.collect();
        let own = schedule.buffers.iter().map(|decl| match &decl.role {
            Role::Temp | Role::Constant(_) => Some(declare(decl.dtype, decl.elements.clone(), decl.role.clone())),
            Role::Input(_) | Role::Output(_) => None,
        });
        let own = own.collect();
        loops.0.insert(work.node, Lowered { schedule, stacked, carried, unwanted, own });
    }
    Ok(loops)
}

/// The body of a loop with what it carries on and these results alone.
fn with_results(region: &Region, stacked: &[usize]) -> Result<Graph, kiln_ir::Error> {
    let body = region.body();
    let kept: Vec<NodeId> =
        (0..region.carried()).chain(stacked.iter().copied()).map(|at| body.outputs()[at].node).collect();
    let mut needed = vec![false; body.nodes().len()];
    kept.iter().for_each(|id| needed[id.index()] = true);
    for (id, node) in body.iter().rev() {
        if needed[id.index()] {
            node.operands.iter().for_each(|operand| needed[operand.index()] = true);
        }
    }
    let mut graph = Graph::with_capacity(body.nodes().len());
    let mut new: Vec<NodeId> = Vec::with_capacity(body.nodes().len());
    for (id, node) in body.iter() {
        let mut node = node.clone();
        if !needed[id.index()] && !matches!(node.op, Op::Input { .. }) {
            new.push(NodeId(0));
            continue;
        }
        node.operands.iter_mut().for_each(|operand| *operand = new[operand.index()]);
        new.push(graph.keep(node)?);
    }
    kept.iter().for_each(|id| graph.output(new[id.index()]));
    Ok(graph)
}

/// The view of a loop's operand, which has to be in row-major order.
pub(crate) fn operand(
    scope: Scope<'_>,
    node: NodeId,
    args: &mut Vec<(BufferId, DType)>,
) -> Result<Strided, FusionRejection> {
    let view = strided(scope, node, args)?;
    let shape = &scope.graph.ty(node).shape;
    if is_row_major(&view.strides, shape) { Ok(view) } else { Err(FusionRejection { node }) }
}

/// The launch of a loop.
pub(crate) fn repeat_step(
    scope: Scope<'_>,
    memory: &Memory,
    id: NodeId,
    needed: &Needed<'_>,
    loops: &Loops,
) -> Result<Step, FusionRejection> {
    let node = scope.graph.node(id);
    let (Op::Loop { region, .. }, Some(lowered)) = (&node.op, loops.0.get(&id)) else {
        return Err(FusionRejection { node: id });
    };
    let mut args: Vec<(BufferId, DType)> = Vec::new();
    let views: Vec<Strided> =
        node.operands.iter().map(|&node| operand(scope, node, &mut args)).collect::<Result<_, _>>()?;
    let reads = args.len();
    // Where each result goes that somebody wants.
    let mut wanted: Vec<Option<BufferId>> = vec![None; region.results()];
    let mut nodes = Vec::new();
    for (_, destination) in &needed.list {
        let node = node_of(scope.graph, memory, id, destination);
        wanted[result_number(scope.graph, node)] = Some(destination.storage.buffer);
        nodes.push(node);
    }
    let mut arg = |buffer: BufferId| argument(&mut args, buffer, memory.buffers[buffer.index()].dtype);
    let body = region.body();
    let ty = |input: usize| body.ty(body.inputs()[input]);
    let carried = (0..region.carried()).map(|at| {
        let (other, unwanted) = lowered.carried[at];
        let elements = ty(at).elements();
        let copy = copy_kernel(ty(at).dtype, &elements);
        let sizes = copy.sizes.iter().map(|&symbol| Dim::from(symbol)).collect();
        let (last, other) = (arg(wanted[at].unwrap_or(unwanted)), arg(other));
        CarriedBuffer { first: views[at].buffer, offset: views[at].offset.clone(), last, other, copy, sizes }
    });
    let carried: Vec<CarriedBuffer> = carried.collect();
    let place_of = |result: usize, arg: &mut dyn FnMut(BufferId) -> usize| match result.checked_sub(region.carried()) {
        None => TurnBuffer::Next(result),
        Some(at) => {
            let number = lowered.stacked[at];
            let stride = body.ty(body.outputs()[number].node).elements();
            let buffer = arg(wanted[number].unwrap_or(lowered.unwanted[at]));
            TurnBuffer::Row { buffer, offset: Dim::default(), stride }
        }
    };
    let inner = &lowered.schedule;
    let mut buffers = Vec::with_capacity(inner.buffers.len());
    for (at, decl) in inner.buffers.iter().enumerate() {
        buffers.push(match &decl.role {
            Role::Input(input) if *input < region.carried() => TurnBuffer::Carried(*input),
            Role::Input(input) => {
                let Strided { buffer, offset, .. } = views[*input].clone();
                match region.is_scanned(*input) {
                    true => TurnBuffer::Row { buffer, offset, stride: ty(*input).elements() },
                    false => TurnBuffer::Whole { buffer, offset },
                }
            }
            Role::Output(result) => place_of(*result, &mut arg),
            Role::Temp | Role::Constant(_) => {
                let own = lowered.own[at].ok_or(FusionRejection { node: id })?;
                TurnBuffer::Whole { buffer: arg(own), offset: Dim::default() }
            }
        });
    }
    let mut launches: Vec<TurnLaunch> = inner.steps.iter().map(TurnLaunch::of).collect();
    // A result that is in the memory of another value.
    for (result, &buffer) in inner.outputs.iter().enumerate() {
        if inner.buffers[buffer.index()].role != Role::Output(result) {
            buffers.push(place_of(result, &mut arg));
            let decl = &inner.buffers[buffer.index()];
            let kernel = copy_kernel(decl.dtype, &decl.elements);
            let sizes = kernel.sizes.iter().map(|&symbol| Dim::from(symbol)).collect();
            launches.push(TurnLaunch { kernel, args: vec![buffer.index(), buffers.len() - 1], sizes });
        }
    }
    let (turns, is_conditional) = (region.turns().clone(), region.is_conditional());
    let repeat = RepeatBody { turns, is_conditional, reverse: region.reverse(), buffers, carried, launches };
    let is_constant = |buffer: BufferId| matches!(memory.buffers[buffer.index()].role, Role::Constant(_));
    let declared = args.iter().enumerate().map(|(at, &(buffer, dtype))| {
        let access = if at < reads || is_constant(buffer) { Access::Read } else { Access::Write };
        BufferArg { dtype, access }
    });
    let mut symbols: Vec<Symbol> = Vec::new();
    repeat.visit_dims(&mut |dim| dim.visit_symbols(&mut |symbol| symbols.push(symbol)));
    symbols.sort_unstable();
    symbols.dedup();
    let kernel = Kernel { buffers: declared.collect(), sizes: symbols, body: KernelBody::Repeat(Box::new(repeat)) };
    let buffers = args.iter().map(|&(buffer, _)| buffer).collect();
    Ok(step(scope, kernel, buffers, nodes))
}

impl TurnLaunch {
    fn of(step: &Step) -> TurnLaunch {
        let args = step.args.iter().map(|arg| arg.index()).collect();
        TurnLaunch { kernel: (*step.kernel).clone(), args, sizes: step.sizes.clone() }
    }
}

/// Copies elements that are one after the other.
fn copy_kernel(dtype: DType, elements: &Dim) -> Kernel {
    let grid = if elements.is_one() { vec![] } else { vec![Axis { var: Symbol::axis(0), size: elements.clone() }] };
    let offset = if elements.is_one() { Dim::default() } else { Dim::from(Symbol::axis(0)) };
    let place = |buffer| Place { buffer, offset: offset.clone(), indirect: Vec::new() };
    let compute = dtype.compute_type();
    let load = Inst { id: ValueId(0), dtype: compute, kind: InstKind::Load { place: place(0), guard: None } };
    let store = InstKind::Store { place: place(1), value: ValueId(0), guard: None };
    let insts = vec![load, Inst { id: ValueId(1), dtype: compute, kind: store }];
    let stage = Stage { domain: Domain::Point, insts, reductions: Vec::new() };
    let body = LoopBody { grid, row: Vec::new(), stages: vec![stage], temps: Vec::new() };
    let buffers = [Access::Read, Access::Write].into_iter().map(|access| BufferArg { dtype, access }).collect();
    let mut sizes = elements.symbols();
    sizes.sort_unstable();
    sizes.dedup();
    Kernel { buffers, sizes, body: KernelBody::Loop(body) }
}
