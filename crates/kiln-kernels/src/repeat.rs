//! Loops: the body of [`kiln_ir::Op::Loop`] is scheduled by itself, and its launches are one launch of the graph around it. So are the sides of
//! [`kiln_ir::Op::Cond`]: a loop of one turn, with other launches where the predicate is false.
//!
//! ```text
//!  turn 0   first ─▶ body ─▶ other      what is carried goes back and forth between two buffers, so that the last turn
//!  turn 1   other ─▶ body ─▶ last       leaves it where the loop's result is
//! ```
//!
//! What a turn changes in few places (a scatter into what it found) is not written whole at each turn: it is copied once before the first, and then
//! every turn finds it and leaves it in the memory of the result.
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
use kiln_ir::{DType, Dim, Graph, NodeId, Op, Region, Symbol, TensorType};
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
    /// Where a predicate chooses between these launches and others. There is one turn then, and nothing is carried.
    pub choice: Option<ChoiceBody>,
}

/// A choice between launches. See [`kiln_ir::Op::Cond`].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ChoiceBody {
    /// The argument that the predicate is in.
    pub predicate: usize,
    /// Where it is there, in elements.
    pub offset: Dim,
    /// The launches if it is false.
    pub otherwise: Vec<TurnLaunch>,
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
    /// Scratch memory for that after the turns between them; `last` where turns change it in place.
    pub other: usize,
    /// Copies the value, in case there is no turn.
    pub copy: Kernel,
    /// The values of the copy's size symbols.
    pub sizes: Vec<Dim>,
}

impl CarriedBuffer {
    /// Whether turns find and leave it in one place, where it is copied before the first.
    pub fn is_in_place(&self) -> bool {
        self.last == self.other
    }
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
        let predicate = self.choice.iter_mut().map(|choice| &mut choice.predicate);
        self.buffers.iter_mut().filter_map(TurnBuffer::argument_mut).chain(carried).chain(predicate).collect()
    }

    /// The launches of turns and of both sides of a choice.
    pub fn all_launches(&self) -> impl Iterator<Item = &TurnLaunch> {
        self.launches.iter().chain(self.choice.iter().flat_map(|choice| &choice.otherwise))
    }

    /// Calls `visit` with every size, offset and stride.
    pub(crate) fn visit_dims(&self, visit: &mut dyn FnMut(&Dim)) {
        visit(&self.turns);
        self.choice.iter().for_each(|choice| visit(&choice.offset));
        for buffer in &self.buffers {
            match buffer {
                TurnBuffer::Whole { offset, .. } => visit(offset),
                TurnBuffer::Row { offset, stride, .. } => [offset, stride].into_iter().for_each(&mut *visit),
                TurnBuffer::Carried(_) | TurnBuffer::Next(_) => {}
            }
        }
        let carried = self.carried.iter().flat_map(|carried| carried.sizes.iter().chain([&carried.offset]));
        carried.chain(self.all_launches().flat_map(|launch| &launch.sizes)).for_each(visit);
    }
}

/// The loops of a graph, by the work of each.
#[derive(Default)]
pub(crate) struct Loops(HashMap<NodeId, Lowered>);

/// A loop whose body is scheduled, or a choice whose sides are.
struct Lowered {
    /// The body, or both sides.
    schedules: Vec<Schedule>,
    /// The results that are not carried and are used, by number.
    stacked: Vec<usize>,
    /// For each value that is carried: scratch memory, unless turns change it in place, and memory for the result should nobody want it.
    carried: Vec<(Option<BufferId>, BufferId)>,
    /// Memory for results that are not carried and that nobody wants.
    unwanted: Vec<BufferId>,
    /// By schedule and buffer of it: memory for temporaries and constants.
    own: Vec<Vec<Option<BufferId>>>,
}

/// What a loop and a choice have in common for the one who lowers them.
struct Shape<'a> {
    bodies: Vec<&'a Graph>,
    carried: usize,
    /// Operands before those that bodies take.
    skipped: usize,
    region: Option<&'a Region>,
}

impl Shape<'_> {
    fn of(op: &Op) -> Option<Shape<'_>> {
        let bodies = op.bodies();
        match op {
            Op::Loop { region, .. } => {
                Some(Shape { bodies, carried: region.carried(), skipped: 0, region: Some(region) })
            }
            Op::Cond { .. } => Some(Shape { bodies, carried: 0, skipped: 1, region: None }),
            _ => None,
        }
    }

    fn result(&self, number: usize) -> &TensorType {
        self.bodies[0].ty(self.bodies[0].outputs()[number].node)
    }

    /// Elements of a result that is not carried, of all turns.
    fn elements(&self, number: usize) -> Dim {
        let elements = self.result(number).elements();
        self.region.map_or(elements.clone(), |region| elements * region.turns())
    }
}

/// Which result of its loop a node is.
fn result_number(graph: &Graph, id: NodeId) -> usize {
    graph.node(id).op.result_number().unwrap_or(usize::MAX)
}

/// Makes one work of the results of each loop, at the place of the first.
pub(crate) fn join_results(graph: &Graph, works: &mut Vec<Work>) {
    let mut at = 0;
    while at < works.len() {
        let (id, copy) = (works[at].node, works[at].copy);
        if !copy && graph.node(id).op.has_bodies() {
            let others = graph.results_of(id);
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
    graph.results_of(id).into_iter().find(is_it).unwrap_or(id)
}

/// Schedules the bodies of loops and the sides of choices, and declares their memory.
pub(crate) fn plan_loops(graph: &Graph, memory: &mut Memory, options: &ScheduleOptions) -> Result<Loops, Error> {
    let mut loops = Loops::default();
    for work in memory.works.iter().filter(|work| !work.copy) {
        let Some(shape) = Shape::of(&graph.node(work.node).op) else { continue };
        let mut stacked: Vec<usize> =
            graph.results_of(work.node).into_iter().map(|id| result_number(graph, id)).collect();
        stacked.retain(|&result| result >= shape.carried);
        stacked.sort_unstable();
        stacked.dedup();
        let mut schedules = Vec::with_capacity(shape.bodies.len());
        let mut in_place = vec![false; shape.carried];
        for body in &shape.bodies {
            let own = with_results(body, shape.carried, &stacked, &in_place)?;
            let layouts: Vec<InputLayout> =
                own.inputs().iter().map(|&input| InputLayout::contiguous(own.ty(input))).collect();
            let mut made = schedule(&own, &layouts, options)?;
            let changed = changed_in_place(&own, shape.carried);
            if changed.contains(&true) {
                // Without the launches that copy what is not changed there are fewer.
                let own = with_results(body, shape.carried, &stacked, &changed)?;
                let other = schedule(&own, &layouts, options)?;
                if other.steps.len() < made.steps.len() {
                    (made, in_place) = (other, changed);
                }
            }
            schedules.push(made);
        }
        let buffers = &mut memory.buffers;
        let mut declare = |dtype: DType, elements: Dim, role: Role| {
            buffers.push(BufferDecl { dtype, elements, role });
            BufferId(buffers.len() as u32 - 1)
        };
        let mut scratch = |result: usize| {
            let ty = shape.result(result);
            declare(ty.dtype, ty.elements(), Role::Temp)
        };
        let carried = (0..shape.carried).map(|at| ((!in_place[at]).then(|| scratch(at)), scratch(at))).collect();
        let all = |&result: &usize| declare(shape.result(result).dtype, shape.elements(result), Role::Temp);
        let unwanted = stacked.iter().map(all).collect();
        let mut own = Vec::with_capacity(schedules.len());
        for schedule in &schedules {
            let place = |decl: &BufferDecl| match &decl.role {
                Role::Temp | Role::Constant(_) => Some(declare(decl.dtype, decl.elements.clone(), decl.role.clone())),
                Role::Input(_) | Role::Output(_) => None,
            };
            own.push(schedule.buffers.iter().map(place).collect());
        }
        loops.0.insert(work.node, Lowered { schedules, stacked, carried, unwanted, own });
    }
    Ok(loops)
}

/// Which of the values that a body carries it changes in places that are scattered to, and gives in no other way.
fn changed_in_place(body: &Graph, carried: usize) -> Vec<bool> {
    let is_changed = |at: usize| {
        let input = body.inputs()[at];
        let mut node = body.outputs()[at].node;
        while let Op::Scatter { .. } = body.node(node).op {
            node = body.node(node).operands[0];
        }
        // What leaves a turn as it was found, or in part, is read after the turn has changed it.
        let keeps = |node: &kiln_ir::Node| node.op.is_view() && node.operands.contains(&input);
        node == input
            && body.outputs()[at].node != input
            && body.outputs().iter().all(|output| output.node != input)
            && !body.nodes().iter().any(keeps)
    };
    (0..carried).map(is_changed).collect()
}

/// A body with what it carries on and these results alone; some of what is carried becomes new values of the inputs.
fn with_results(body: &Graph, carried: usize, stacked: &[usize], in_place: &[bool]) -> Result<Graph, kiln_ir::Error> {
    let kept: Vec<NodeId> = (0..carried).chain(stacked.iter().copied()).map(|at| body.outputs()[at].node).collect();
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
    for (at, id) in kept.iter().enumerate() {
        match in_place.get(at) {
            Some(true) => graph.update(new[id.index()], at),
            _ => graph.output(new[id.index()]),
        }
    }
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
    // Launches of a body get addresses of bytes, and two i4 share one.
    let is_whole = scope.graph.ty(node).dtype != DType::I4 || view.offset.is_zero();
    if is_whole && is_row_major(&view.strides, shape) { Ok(view) } else { Err(FusionRejection { node }) }
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
    let (Some(shape), Some(lowered)) = (Shape::of(&node.op), loops.0.get(&id)) else {
        return Err(FusionRejection { node: id });
    };
    let mut args: Vec<(BufferId, DType)> = Vec::new();
    let views: Vec<Strided> =
        node.operands.iter().map(|&node| operand(scope, node, &mut args)).collect::<Result<_, _>>()?;
    let (given, views) = views.split_at(shape.skipped);
    let reads = args.len();
    // Where each result goes that somebody wants.
    let mut wanted: Vec<Option<BufferId>> = vec![None; shape.bodies[0].outputs().len()];
    let mut nodes = Vec::new();
    for (_, destination) in &needed.list {
        let node = node_of(scope.graph, memory, id, destination);
        wanted[result_number(scope.graph, node)] = Some(destination.storage.buffer);
        nodes.push(node);
    }
    let mut arg = |buffer: BufferId| argument(&mut args, buffer, memory.buffers[buffer.index()].dtype);
    let body = shape.bodies[0];
    let ty = |input: usize| body.ty(body.inputs()[input]);
    let carried = (0..shape.carried).map(|at| {
        let (other, unwanted) = lowered.carried[at];
        let elements = ty(at).elements();
        let copy = copy_kernel(ty(at).dtype, &elements);
        let sizes = copy.sizes.iter().map(|&symbol| Dim::from(symbol)).collect();
        let last = arg(wanted[at].unwrap_or(unwanted));
        let other = other.map_or(last, &mut arg);
        CarriedBuffer { first: views[at].buffer, offset: views[at].offset.clone(), last, other, copy, sizes }
    });
    let carried: Vec<CarriedBuffer> = carried.collect();
    let place_of = |result: usize, arg: &mut dyn FnMut(BufferId) -> usize| match result.checked_sub(shape.carried) {
        None => TurnBuffer::Next(result),
        Some(at) => {
            let number = lowered.stacked[at];
            let buffer = arg(wanted[number].unwrap_or(lowered.unwanted[at]));
            match shape.region {
                Some(_) => TurnBuffer::Row { buffer, offset: Dim::default(), stride: shape.result(number).elements() },
                None => TurnBuffer::Whole { buffer, offset: Dim::default() },
            }
        }
    };
    let mut buffers = Vec::new();
    let mut sides: Vec<Vec<TurnLaunch>> = Vec::with_capacity(lowered.schedules.len());
    for (inner, own) in lowered.schedules.iter().zip(&lowered.own) {
        let first = buffers.len();
        for (decl, own) in inner.buffers.iter().zip(own) {
            buffers.push(match &decl.role {
                Role::Input(input) if *input < shape.carried => match lowered.carried[*input].0 {
                    Some(_) => TurnBuffer::Carried(*input),
                    None => TurnBuffer::Next(*input),
                },
                Role::Input(input) => {
                    let Strided { buffer, offset, .. } = views[*input].clone();
                    match shape.region.is_some_and(|region| region.is_scanned(*input)) {
                        true => TurnBuffer::Row { buffer, offset, stride: ty(*input).elements() },
                        false => TurnBuffer::Whole { buffer, offset },
                    }
                }
                Role::Output(result) => place_of(*result, &mut arg),
                Role::Temp | Role::Constant(_) => {
                    let own = own.ok_or(FusionRejection { node: id })?;
                    TurnBuffer::Whole { buffer: arg(own), offset: Dim::default() }
                }
            });
        }
        let mut launches: Vec<TurnLaunch> = inner.steps.iter().map(|step| TurnLaunch::of(step, first)).collect();
        // A result that is in the memory of another value.
        for (result, &buffer) in inner.outputs.iter().enumerate() {
            let is_in_place = inner.buffers[buffer.index()].role == Role::Input(result)
                && lowered.carried.get(result).is_some_and(|(other, _)| other.is_none());
            if inner.buffers[buffer.index()].role != Role::Output(result) && !is_in_place {
                buffers.push(place_of(result, &mut arg));
                let decl = &inner.buffers[buffer.index()];
                let kernel = copy_kernel(decl.dtype, &decl.elements);
                let sizes = kernel.sizes.iter().map(|&symbol| Dim::from(symbol)).collect();
                launches.push(TurnLaunch { kernel, args: vec![first + buffer.index(), buffers.len() - 1], sizes });
            }
        }
        sides.push(launches);
    }
    let choice = given.first().zip(sides.get(1)).map(|(predicate, otherwise)| ChoiceBody {
        predicate: predicate.buffer,
        offset: predicate.offset.clone(),
        otherwise: otherwise.clone(),
    });
    let (turns, is_conditional, reverse) = match shape.region {
        Some(region) => (region.turns().clone(), region.is_conditional(), region.reverse()),
        None => (Dim::from(1), false, false),
    };
    let launches = std::mem::take(&mut sides[0]);
    let repeat = RepeatBody { turns, is_conditional, reverse, buffers, carried, launches, choice };
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
    /// A launch of a schedule whose first buffer has this number among those of a turn.
    fn of(step: &Step, first: usize) -> TurnLaunch {
        let args = step.args.iter().map(|arg| first + arg.index()).collect();
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
