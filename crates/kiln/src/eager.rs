//! Eager execution: each operation is a small graph, compiled once for each combination of dtypes, shapes and strides, and
//! kept for the process. Views are layouts and launch nothing.
//!
//! A primitive op is a graph of one op. An operation made of several (softmax, layer norm, …) is the graph that
//! [`kiln_ir::build`] writes for it, so that it runs as the fused kernel a compiled program would contain.

use crate::Layout;
use crate::compile::{CompileOptions, CompiledGraph, input_layout};
use crate::{DType, Device, Error, Result, Tensor};
use kiln_ir::build::{BuildError, Emit, GraphBuilder};
use kiln_ir::{NodeId, Op, Source, TensorType, TypeError, infer};
use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, PoisonError, RwLock};

/// What is computed: with the operands' types, the key of a program.
#[derive(Debug, Clone, Copy, Hash)]
pub(crate) enum What<'a> {
    /// One primitive op.
    Op(&'a Op),
    /// A composite of this name with these parameters.
    Composite(&'static str, &'a [Param]),
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

/// A program, with what it is for.
struct Entry {
    what: OwnedWhat,
    operands: Vec<Operand>,
    device: Device,
    compiled: Arc<CompiledGraph>,
    used: AtomicU64,
}

enum OwnedWhat {
    Op(Op),
    Composite(&'static str, Vec<Param>),
}

struct Operand {
    dtype: DType,
    shape: Vec<usize>,
    strides: Vec<isize>,
}

/// Programs by the hash of what they are for; equal hashes share a list.
static PROGRAMS: LazyLock<RwLock<HashMap<u64, Vec<Entry>, Hashed>>> = LazyLock::new(RwLock::default);
/// Counts lookups, so that programs have an age.
static CLOCK: AtomicU64 = AtomicU64::new(0);
/// Programs kept. Beyond that, the half unused for longest goes.
const PROGRAMS_KEPT: usize = 4096;

/// Programs in the cache of eager operations.
pub fn cached_programs() -> usize {
    PROGRAMS.read().unwrap_or_else(PoisonError::into_inner).values().map(Vec::len).sum()
}

/// Runs one primitive op that is not a view.
pub(crate) fn primitive(op: &Op, operands: &[&Tensor], at: &Source) -> Result<Tensor> {
    let write = |b: &mut GraphBuilder, inputs: &[NodeId]| Ok(vec![b.emit(op.clone(), inputs)?]);
    let device = operands.first().map_or(Device::default(), |t| t.device());
    only(run(What::Op(op), operands, device, &write, at)?)
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
    only(run(What::Composite(name, params), operands, device, &write, at)?)
}

fn only(mut results: Vec<Tensor>) -> Result<Tensor> {
    Ok(results.swap_remove(0))
}

/// Runs what `write` writes, from the cache if it ran before.
pub(crate) fn run(
    what: What<'_>,
    operands: &[&Tensor],
    device: Device,
    write: Write<'_>,
    at: &Source,
) -> Result<Vec<Tensor>> {
    let name = match what {
        What::Op(_) => "eager",
        What::Composite(name, _) => name,
    };
    if let Some(other) = operands.iter().find(|t| t.device() != device) {
        return Err(Error::DeviceMismatch { op: name, lhs: device, rhs: other.device(), at: at.clone() });
    }
    let hash = hash_of(what, operands, device);
    let compiled = match find(hash, what, operands, device) {
        Some(compiled) => compiled,
        None => build(hash, what, operands, device, write, at)?,
    };
    compiled.run_at(name, operands, at).map_err(|error| match error {
        // The program was made at another line, by whoever ran this first.
        Error::ElementOutOfRange { op, index, size, .. } => {
            let op = if let What::Composite(name, _) = what { name.to_owned() } else { op };
            Error::ElementOutOfRange { op, index, size, at: at.clone() }
        }
        error => error,
    })
}

fn find(hash: u64, what: What<'_>, operands: &[&Tensor], device: Device) -> Option<Arc<CompiledGraph>> {
    let programs = PROGRAMS.read().unwrap_or_else(PoisonError::into_inner);
    let entry = programs.get(&hash)?.iter().find(|entry| entry.is_for(what, operands, device))?;
    entry.used.store(CLOCK.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
    Some(entry.compiled.clone())
}

#[cold]
fn build(
    hash: u64,
    what: What<'_>,
    operands: &[&Tensor],
    device: Device,
    write: Write<'_>,
    at: &Source,
) -> Result<Arc<CompiledGraph>> {
    let mut builder = GraphBuilder::new();
    builder.set_source(Some(at.clone()));
    let failed = |cause: kiln_ir::Error| match cause {
        kiln_ir::Error::Type { op, cause, .. } => {
            let op = if let What::Composite(name, _) = what { name.to_owned() } else { op };
            Error::Type { op, cause, at: at.clone() }
        }
        kiln_ir::Error::Build(BuildError { function, cause, .. }) => {
            let op = if let What::Composite(name, _) = what { name } else { function };
            Error::Type { op: op.to_owned(), cause, at: at.clone() }
        }
        cause => Error::Graph { cause: Box::new(cause) },
    };
    let mut inputs = Vec::with_capacity(operands.len());
    for operand in operands {
        inputs.push(builder.input(operand.ty()).map_err(failed)?);
    }
    for output in write(&mut builder, &inputs).map_err(failed)? {
        builder.output(output);
    }
    let layouts: Vec<_> = operands.iter().map(|t| input_layout(t.layout())).collect();
    let options = CompileOptions { device, ..CompileOptions::default() };
    let compiled = Arc::new(CompiledGraph::new_at(builder.finish(), &layouts, &options, at)?);

    let mut programs = PROGRAMS.write().unwrap_or_else(PoisonError::into_inner);
    if programs.len() >= PROGRAMS_KEPT {
        forget_half(&mut programs);
    }
    let list = programs.entry(hash).or_default();
    if let Some(other) = list.iter().find(|entry| entry.is_for(what, operands, device)) {
        // Another thread was faster; one program is enough.
        return Ok(other.compiled.clone());
    }
    list.push(Entry {
        what: match what {
            What::Op(op) => OwnedWhat::Op(op.clone()),
            What::Composite(name, params) => OwnedWhat::Composite(name, params.to_vec()),
        },
        operands: operands.iter().map(|t| Operand::of(t)).collect(),
        device,
        compiled: compiled.clone(),
        used: AtomicU64::new(CLOCK.fetch_add(1, Ordering::Relaxed)),
    });
    Ok(compiled)
}

/// Drops the half of the programs that was not used for longest.
fn forget_half(programs: &mut HashMap<u64, Vec<Entry>, Hashed>) {
    let mut ages: Vec<u64> = programs.values().flatten().map(|e| e.used.load(Ordering::Relaxed)).collect();
    let middle = ages.len() / 2;
    let (_, &mut oldest, _) = ages.select_nth_unstable(middle);
    programs.retain(|_, list| {
        list.retain(|e| e.used.load(Ordering::Relaxed) >= oldest);
        !list.is_empty()
    });
}

impl Operand {
    fn of(tensor: &Tensor) -> Operand {
        Operand { dtype: tensor.dtype(), shape: tensor.shape().to_vec(), strides: tensor.strides().to_vec() }
    }
}

impl Entry {
    fn is_for(&self, what: What<'_>, operands: &[&Tensor], device: Device) -> bool {
        let same_what = match (&self.what, what) {
            (OwnedWhat::Op(a), What::Op(b)) => a == b,
            (OwnedWhat::Composite(a, p), What::Composite(b, q)) => a == &b && p == q,
            _ => false,
        };
        let same_operand = |(own, tensor): (&Operand, &&Tensor)| {
            own.dtype == tensor.dtype()
                && own.shape == tensor.shape()
                && own.strides.iter().zip(tensor.strides()).zip(&own.shape).all(|((a, b), &n)| a == b || n < 2)
        };
        same_what
            && device == self.device
            && self.operands.len() == operands.len()
            && self.operands.iter().zip(operands).all(same_operand)
    }
}

fn hash_of(what: What<'_>, operands: &[&Tensor], device: Device) -> u64 {
    let mut hasher = Mix(0);
    what.hash(&mut hasher);
    device.hash(&mut hasher);
    for tensor in operands {
        tensor.dtype().hash(&mut hasher);
        for (&size, &stride) in tensor.shape().iter().zip(tensor.strides()) {
            hasher.write_usize(size);
            if size > 1 {
                hasher.write_isize(stride);
            }
        }
    }
    hasher.finish()
}

/// A multiply-and-fold hash: keys are short and come from the program itself, so speed is all that is asked of it.
#[derive(Default, Clone, Copy)]
struct Mix(u64);

impl Hasher for Mix {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }
    fn write_u8(&mut self, v: u8) {
        self.write_u64(v.into());
    }
    fn write_u32(&mut self, v: u32) {
        self.write_u64(v.into());
    }
    fn write_usize(&mut self, v: usize) {
        self.write_u64(v as u64);
    }
    fn write_u64(&mut self, v: u64) {
        let word = self.0.rotate_left(23) ^ v ^ 0x9e37_79b9_7f4a_7c15;
        let product = u128::from(word) * 0xe703_7ed1_a0b4_28db;
        self.0 = (product >> 64) as u64 ^ product as u64;
    }
    fn finish(&self) -> u64 {
        self.0
    }
}

/// For keys that are hashes already.
type Hashed = std::hash::BuildHasherDefault<Same>;

#[derive(Default, Clone, Copy)]
struct Same(u64);

impl Hasher for Same {
    fn write(&mut self, _: &[u8]) {}
    fn write_u64(&mut self, v: u64) {
        self.0 = v;
    }
    fn finish(&self) -> u64 {
        self.0
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
    if !(op.is_view() || matches!(op, Op::Full { .. } | Op::Constant(_))) {
        return match operands {
            [] => only(run(What::Op(op), &[], device, &|b, _| Ok(vec![b.emit(op.clone(), &[])?]), at)?),
            _ => primitive(op, operands, at),
        };
    }
    let types: Vec<_> = operands.iter().map(|t| t.ty()).collect();
    let ty = infer(op, &types.iter().collect::<Vec<_>>()).map_err(wrong)?;
    let Some(shape) = ty.fixed_shape() else {
        let what = "eager tensors have no symbolic sizes";
        return Err(wrong(TypeError::BadAttribute { what, ty }));
    };
    match (op, operands) {
        (Op::Full { value, .. }, []) => Tensor::scalar_at(*value, device, at)?.broadcast_at("full", &shape, at),
        (Op::Constant(literal), []) => Tensor::from_bytes_at(&literal.bytes, shape, literal.dtype, device, at),
        (Op::Reshape { .. }, [x]) => x.reshape_to(shape, at),
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
            Ok(x.with_layout(x.layout().unfold(*axis, *size, *stride, *dilation)))
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
}

impl Eager {
    /// Computes on a device.
    pub fn new(device: Device) -> Eager {
        Eager { device }
    }
}

impl Emit for Eager {
    type Value = Tensor;
    type Error = Error;

    #[track_caller]
    fn emit(&mut self, op: Op, operands: &[Tensor]) -> Result<Tensor> {
        emit(&op, &operands.iter().collect::<Vec<_>>(), self.device, &Source::caller())
    }

    fn ty(&self, value: &Tensor) -> TensorType {
        value.ty()
    }
}

impl From<BuildError> for Error {
    fn from(error: BuildError) -> Error {
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
pub fn run_eagerly(graph: &kiln_ir::Graph, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
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
