//! Eager execution: each operation is a small graph, compiled once for each combination of dtypes, shapes and strides, and
//! kept for the process. Views are layouts and launch nothing.
//!
//! ```text
//!  op, operands ──cache──▶ program ──▶ run                        a hit: well under a microsecond
//!                   └─miss─▶ graph ─▶ passes ─▶ kernels ─▶ code    once a shape; after a few shapes once for all (classes)
//! ```
//!
//! A primitive op is a graph of one op. An operation made of several (softmax, layer norm, …) is the graph that
//! [`kiln_ir::build`] writes for it, so that it runs as the fused kernel a compiled program would contain.

mod cache;
mod classes;

pub use cache::cached_programs;
pub(crate) use cache::{end_gradient, sweep};

use crate::Layout;
use crate::pipeline::{CompileOptions, EAGER};
use crate::tensor::compiled_graph::{CompiledGraph, input_layout, out_of_range};
use crate::tensor::tape::{self, Rule};
use crate::tensor::{dim, tracer};
use crate::{DType, Device, Error, Result, Tensor};
use cache::Kept;
use kiln_ir::build::{BuildError, Emit, GraphBuilder};
use kiln_ir::{Graph, NodeId, Op, Source, TensorType, TypeError, infer};
use kiln_kernels::InputLayout;
use kiln_runtime::event::{self, Category, Event};
use std::sync::Arc;

/// What is computed: with the operands' types, the key of a program.
#[derive(Debug, Clone, Copy, Hash)]
pub(crate) enum Operation<'a> {
    /// One primitive op.
    Op(&'a Op),
    /// A composite of this name with these parameters.
    Composite(&'static str, &'a [Param]),
    /// The same, whose one result is the new value of the first operand and is written there.
    Update(&'static str, &'a [Param]),
    /// The gradient of an operation, by its number.
    Gradient(u64),
}

impl Operation<'_> {
    /// The name of what is not one op.
    fn name(self) -> Option<&'static str> {
        match self {
            Operation::Op(_) => None,
            Operation::Composite(name, _) | Operation::Update(name, _) => Some(name),
            Operation::Gradient(_) => Some("backward"),
        }
    }

    /// The source of its nodes, which errors at run time name.
    pub(crate) fn source(self, at: &Source) -> Source {
        self.name().map_or_else(|| at.clone(), |name| at.calling(name))
    }
}

/// A parameter of a composite, compared by its bits.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Param {
    /// An integer, a flag, an axis.
    Int(i64),
    /// A float's bits.
    Float(u64),
    /// A dtype.
    DType(DType),
    /// Sizes or axes.
    List(Vec<usize>),
}

macro_rules! param_from {
    ($($type:ty, $value:ident => $param:expr;)*) => { $(
        impl From<$type> for Param {
            fn from($value: $type) -> Param {
                $param
            }
        }
    )* };
}
param_from! {
    usize, v => Param::Int(v as i64);
    i64, v => Param::Int(v);
    bool, v => Param::Int(v as i64);
    f64, v => Param::Float(v.to_bits());
    DType, v => Param::DType(v);
    &[usize], v => Param::List(v.to_vec());
    &Vec<usize>, v => Param::List(v.clone());
}

/// Writes a graph: gets the nodes of the operands, gives those of the results.
pub(crate) type Write<'a> = &'a dyn Fn(&mut GraphBuilder, &[NodeId]) -> Result<Vec<NodeId>, kiln_ir::Error>;

/// Runs one primitive op that is not a view.
pub(crate) fn primitive(op: &Op, operands: &[&Tensor], at: &Source) -> Result<Tensor> {
    let write = |b: &mut GraphBuilder, inputs: &[NodeId]| Ok(vec![b.emit(op.clone(), inputs)?]);
    let device = operands.first().map_or(Device::default(), |t| t.device());
    only(run(Operation::Op(op), operands, device, &write, at)?)
}

/// Runs a composite with one result.
pub(crate) fn composite(
    name: &'static str,
    params: &[Param],
    operands: &[&Tensor],
    write: impl Fn(&mut GraphBuilder, &[NodeId]) -> Result<NodeId, kiln_ir::Error>,
    at: &Source,
) -> Result<Tensor> {
    let device = operands.first().map_or(Device::default(), |t| t.device());
    let write = |b: &mut GraphBuilder, inputs: &[NodeId]| Ok(vec![write(b, inputs)?]);
    only(run(Operation::Composite(name, params), operands, device, &write, at)?)
}

/// Runs a composite with several results.
pub(crate) fn composites(
    name: &'static str,
    params: &[Param],
    operands: &[&Tensor],
    write: impl Fn(&mut GraphBuilder, &[NodeId]) -> Result<Vec<NodeId>, kiln_ir::Error>,
    at: &Source,
) -> Result<Vec<Tensor>> {
    let device = operands.first().map_or(Device::default(), |t| t.device());
    run(Operation::Composite(name, params), operands, device, &write, at)
}

fn only(mut results: Vec<Tensor>) -> Result<Tensor> {
    Ok(results.swap_remove(0))
}

/// Runs what `write` writes, from the cache if it ran before.
pub(crate) fn run(
    what: Operation<'_>,
    operands: &[&Tensor],
    device: Device,
    write: Write<'_>,
    at: &Source,
) -> Result<Vec<Tensor>> {
    let name = what.name().unwrap_or("eager");
    if let Some(other) = operands.iter().find(|t| t.device() != device) {
        return Err(Error::DeviceMismatch { op: name, lhs: device, rhs: other.device(), at: at.clone() });
    }
    if tracer::is_active() || operands.iter().any(|t| t.is_traced()) {
        let results = tracer::record(what, operands, device, write, at)?;
        if !tape::is_recorded(operands) {
            return Ok(results);
        }
        // The gradient will be recorded from the same rule; what it computes again of the operation is found to be the same.
        return tape::record(recorded_rule(what, operands, &results, write, at)?, operands, results, at);
    }
    let program = program(what, operands, device, write, at)?;
    let results = program.compiled.run_at(name, operands, at).map_err(|error| relocate(what, error, at))?;
    if tape::is_recorded(operands) {
        return tape::record(rule(&program, what, operands, write, at)?, operands, results, at);
    }
    Ok(results)
}

/// The rule for the gradient of an operation that is recorded. Layers that repeat share theirs, but for symbolic sizes, of which
/// an operation's parameters may know more than its operands' types.
#[cold]
fn recorded_rule(
    what: Operation<'_>,
    operands: &[&Tensor],
    results: &[Tensor],
    write: Write<'_>,
    at: &Source,
) -> Result<Arc<Rule>> {
    let types: Vec<TensorType> = operands.iter().map(|t| t.ty()).collect();
    let name = what.name().unwrap_or("operation");
    let make = |types| Ok(Arc::new(Rule::new(graph(what, types, write, at)?, name)));
    let is_symbolic = operands.iter().any(|t| t.is_symbolic()) || results.iter().any(Tensor::is_symbolic);
    if is_symbolic || dim::scope::fixed().is_some() {
        return make(types);
    }
    if let Some(rule) = cache::find_rule(what, &types) {
        return Ok(rule);
    }
    let rule: Arc<Rule> = make(types.clone())?;
    cache::keep_rule(what, types, rule.clone());
    Ok(rule)
}

/// The rule for the gradient of a program's operation.
#[cold]
fn rule(program: &Kept, what: Operation<'_>, operands: &[&Tensor], write: Write<'_>, at: &Source) -> Result<Arc<Rule>> {
    if let Some(rule) = program.rule.get() {
        return Ok(rule.clone());
    }
    let graph = graph(what, operands.iter().map(|t| t.ty()).collect(), write, at)?;
    let name = what.name().unwrap_or("operation");
    Ok(program.rule.get_or_init(|| Arc::new(Rule::new(graph, name))).clone())
}

/// Lets `write` give the new value of part of `target`, and writes it there. A target whose memory has other handles is
/// copied first, which is reported.
pub(crate) fn update(
    name: &'static str,
    params: &[Param],
    target: &mut Tensor,
    part: impl FnOnce(&Layout) -> Layout,
    operands: &[&Tensor],
    write: impl Fn(&mut GraphBuilder, &[NodeId]) -> Result<NodeId, kiln_ir::Error>,
    at: &Source,
) -> Result<()> {
    let device = target.device();
    if let Some(other) = operands.iter().find(|t| t.device() != device) {
        return Err(Error::DeviceMismatch { op: name, lhs: device, rhs: other.device(), at: at.clone() });
    }
    if !target.is_sole_owner() {
        event::emit(Category::Perf, || Event::Slow {
            text: format!("{name}: the variable's {:?} are still in use elsewhere, so they are copied", target.shape()),
            at: at.clone(),
        });
        *target = target.duplicate(at)?;
    }
    let what = Operation::Update(name, params);
    let write = |b: &mut GraphBuilder, inputs: &[NodeId]| Ok(vec![write(b, inputs)?]);
    let place = target.with_layout(part(target.layout()));
    let mut all = vec![&place];
    all.extend(operands);
    let program = program(what, &all, device, &write, at)?;
    // SAFETY: `target` is the only handle of its memory but for `place`, and nobody can get another while it is borrowed.
    unsafe { program.compiled.run_in_place(name, &all, at) }.map_err(|error| relocate(what, error, at))
}

/// The program of an operation, from the cache if it ran before.
fn program(
    what: Operation<'_>,
    operands: &[&Tensor],
    device: Device,
    write: Write<'_>,
    at: &Source,
) -> Result<Arc<Kept>> {
    let hash = cache::hash_of(what, operands, device);
    if let Some(kept) = cache::find(hash, what, operands, device) {
        return Ok(kept);
    }
    let made = make(what, operands, device, write, at)?;
    Ok(cache::keep(hash, what, operands, device, made))
}

/// An error at this line: the program was made at another, by whoever ran it first.
fn relocate(what: Operation<'_>, error: Error, at: &Source) -> Error {
    match error {
        Error::ElementOutOfRange { op, index, size, .. } => {
            let op = what.name().map_or(op, str::to_owned);
            out_of_range(op, index, size, at.clone())
        }
        error => error,
    }
}

/// A program for operands that there is none for yet: one with symbolic sizes if many shapes came by, else one for
/// exactly these.
#[cold]
fn make(
    what: Operation<'_>,
    operands: &[&Tensor],
    device: Device,
    write: Write<'_>,
    at: &Source,
) -> Result<Arc<CompiledGraph>> {
    if let Some(compiled) = classes::symbolic(what, operands, device, write, at) {
        return Ok(compiled);
    }
    let types = operands.iter().map(|t| t.ty()).collect();
    let layouts = operands.iter().map(|t| input_layout(t.layout())).collect();
    compile(what, types, layouts, device, write, at)
}

/// Writes a graph for inputs of these types and compiles it.
fn compile(
    what: Operation<'_>,
    types: Vec<TensorType>,
    layouts: Vec<InputLayout>,
    device: Device,
    write: Write<'_>,
    at: &Source,
) -> Result<Arc<CompiledGraph>> {
    let options =
        CompileOptions { device, name: EAGER.into(), disk_cache: false, eager: true, ..CompileOptions::default() };
    Ok(Arc::new(CompiledGraph::new_at(Arc::new(graph(what, types, write, at)?), &layouts, &options, at)?))
}

/// Writes a graph for inputs of these types.
fn graph(what: Operation<'_>, types: Vec<TensorType>, write: Write<'_>, at: &Source) -> Result<Graph> {
    let mut builder = GraphBuilder::new();
    builder.set_source(Some(what.source(at)));
    builder.set_sizes(dim::scope::fixed());
    let failed = |cause| refused(what, cause, at);
    let mut inputs = Vec::with_capacity(types.len());
    for ty in types {
        inputs.push(builder.input(ty).map_err(failed)?);
    }
    for output in write(&mut builder, &inputs).map_err(failed)? {
        match what {
            Operation::Update(..) => builder.update(output, 0),
            Operation::Op(_) | Operation::Composite(..) | Operation::Gradient(_) => builder.output(output),
        }
    }
    Ok(builder.finish())
}

/// The error of an operation that cannot be written for its operands.
pub(crate) fn refused(what: Operation<'_>, cause: kiln_ir::Error, at: &Source) -> Error {
    match cause {
        kiln_ir::Error::Type { op, cause, .. } => {
            let op = what.name().map_or(op, str::to_owned);
            Error::Type { op, cause, at: at.clone() }
        }
        kiln_ir::Error::Build(BuildError { function, cause, .. }) => {
            let op = what.name().unwrap_or(function);
            Error::Type { op: op.to_owned(), cause, at: at.clone() }
        }
        cause => Error::Graph { cause: Box::new(cause) },
    }
}

/// Whether the first element a layout touches shares a byte with the one before it.
pub(crate) fn starts_inside_a_byte(layout: &Layout, dtype: DType) -> bool {
    let lowest = layout.reach().map_or(0, |(low, _)| layout.offset() as isize + low);
    !(lowest as usize * dtype.size_in_bits()).is_multiple_of(8)
}

/// A copy in row-major order.
pub(crate) fn copy(tensor: &Tensor, at: &Source) -> Result<Tensor> {
    composite("copy", &[], &[tensor], |_, inputs| Ok(inputs[0]), at)
}

/// Any op on tensors: views become layouts, constants become memory, everything else runs.
pub(crate) fn emit(op: &Op, operands: &[&Tensor], device: Device, at: &Source) -> Result<Tensor> {
    let wrong = |cause: TypeError| Error::Type { op: op.kind().name(), cause: Box::new(cause), at: at.clone() };
    let traced = tracer::is_active() || operands.iter().any(|t| t.is_traced());
    if traced || !(op.is_view() || matches!(op, Op::Full { .. } | Op::Constant(_))) {
        return match operands {
            [] => only(run(Operation::Op(op), &[], device, &|b, _| Ok(vec![b.emit(op.clone(), &[])?]), at)?),
            _ => primitive(op, operands, at),
        };
    }
    if let ([x], true) = (operands, tape::is_recorded(operands)) {
        return Ok(tape::record_view(op.clone(), x, emit(op, &[&x.detached()], device, at)?, at));
    }
    let types: Vec<_> = operands.iter().map(|t| t.ty()).collect();
    let ty = infer(op, &types.iter().collect::<Vec<_>>()).map_err(wrong)?;
    let Some(shape) = ty.fixed_shape() else {
        let what = "eager tensors have no symbolic sizes";
        return Err(wrong(TypeError::BadAttribute { what, ty }));
    };
    match (op, operands) {
        (Op::Full { value, .. }, []) => {
            Tensor::scalar_at(*value, device, at)?.broadcast_at("full", &dim::plain(&shape), at)
        }
        (Op::Constant(literal), []) => Tensor::from_bytes_at(&literal.bytes, shape, literal.dtype, device, at),
        (Op::Reshape { .. }, [x]) => x.reshape_to(dim::plain(&shape), at),
        (Op::Permute { order }, [x]) => Ok(x.with_layout(x.layout().permute(order))),
        (Op::Expand { .. }, [x]) => Ok(x.with_layout(x.layout().expand(shape))),
        (Op::Slice { start, step, .. }, [x]) => {
            let start: Option<Vec<usize>> = start.iter().map(|d| d.as_usize()).collect();
            let step: Vec<usize> = step.iter().map(|&n| n.max(1) as usize).collect();
            let start = start.unwrap_or_else(|| vec![0; shape.len()]);
            let layout = x.layout().slice(&start, &shape, &step);
            // Memory is addressed by bytes: what would begin inside one is copied.
            if starts_inside_a_byte(&layout, x.dtype()) {
                primitive(op, operands, at)
            } else {
                Ok(x.with_layout(layout))
            }
        }
        (Op::Flip { axes }, [x]) => Ok(x.with_layout(x.layout().flip(axes))),
        (Op::Unfold { axis, size, stride, dilation }, [x]) => {
            let layout = x.layout().unfold(*axis, *size, *stride, *dilation);
            // Of an axis that runs backwards, the elements that no window has are the first in memory.
            if starts_inside_a_byte(&layout, x.dtype()) {
                primitive(op, operands, at)
            } else {
                Ok(x.with_layout(layout))
            }
        }
        _ => primitive(op, operands, at),
    }
}

/// Carries out ops one at a time on tensors: what [`kiln_ir::build`]'s composites run on when nothing is fused.
///
/// ```
/// use kiln::{DType, Device, Eager, Tensor, ir::build};
/// let x = Tensor::zeros([2, 4], DType::F32, Device::Cpu)?;
/// let y = build::softmax(&mut Eager::new(Device::Cpu), &x, 1)?;
/// assert_eq!(y.to_vec::<f32>()?, [0.25; 8]);
/// # Ok::<(), kiln::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Eager {
    device: Device,
    /// The line that operations are for; by default that of the code that asks for each.
    at: Option<Source>,
}

impl Eager {
    /// Computes on a device.
    pub fn new(device: Device) -> Eager {
        Eager { device, at: None }
    }

    /// Computes on a device, for a line.
    pub(crate) fn at(device: Device, at: &Source) -> Eager {
        Eager { device, at: Some(at.clone()) }
    }
}

impl Emit for Eager {
    type Value = Tensor;
    type Error = Error;

    #[track_caller]
    fn emit(&mut self, op: Op, operands: &[Tensor]) -> Result<Tensor> {
        let at = self.at.clone().unwrap_or_else(Source::caller);
        emit(&op, &operands.iter().collect::<Vec<_>>(), self.device, &at)
    }

    fn ty(&self, value: &Tensor) -> TensorType {
        value.ty()
    }
}

impl From<BuildError> for Error {
    fn from(error: BuildError) -> Error {
        // Of tensors being recorded it may be the symbols that do not fit; the function need not say so.
        dim::scope::refused(&kiln_ir::Error::Build(error.clone()), &error.at);
        Error::Type { op: error.function.to_owned(), cause: error.cause, at: error.at }
    }
}

/// Runs a graph one op at a time, each as eager tensor code would.
///
/// ```
/// use kiln::{Device, Tensor, ir::Graph};
/// let graph = Graph::parse("graph(%0: f32[2]) {\n  %1: f32[2] = exp %0\n  return %1\n}").unwrap();
/// let x = Tensor::from_vec(vec![0f32, 0.], 2, Device::Cpu)?;
/// assert_eq!(kiln::run_eagerly(&graph, &[x])?[0].to_vec::<f32>()?, [1., 1.]);
/// # Ok::<(), kiln::Error>(())
/// ```
#[track_caller]
pub fn run_eagerly(graph: &Graph, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
    let at = Source::caller();
    graph.verify().map_err(|cause| Error::Graph { cause: Box::new(cause) })?;
    if inputs.len() != graph.inputs().len() {
        let (expected, got) = (graph.inputs().len(), inputs.len());
        let cause = Box::new(kiln_runtime::Error::InputCount { expected, got });
        return Err(Error::Runtime { op: "run_eagerly".into(), cause, at });
    }
    let device = inputs.first().map_or(Device::default(), Tensor::device);
    let mut values: Vec<Tensor> = Vec::with_capacity(graph.nodes().len());
    for node in graph.nodes() {
        let line = if node.source.is_unknown() { &at } else { &node.source };
        let operands: Vec<&Tensor> = node.operands.iter().map(|id| &values[id.index()]).collect();
        values.push(match &node.op {
            Op::Input { index } => {
                let given = &inputs[*index];
                if given.ty() != node.ty {
                    let expected = Box::new(node.ty.clone());
                    let (dtype, shape) = (given.dtype(), given.shape().to_vec());
                    let cause = Box::new(kiln_runtime::Error::InputType { input: *index, dtype, shape, expected });
                    return Err(Error::Runtime { op: "run_eagerly".into(), cause, at });
                }
                given.clone()
            }
            op => emit(op, &operands, device, line)?,
        });
    }
    Ok(graph.outputs().iter().map(|o| values[o.node.index()].clone()).collect())
}
