//! Capture: [`compile`] turns a function of tensors into programs by running it once on tensors that record instead of
//! computing.
//!
//! ```text
//!  call ─▶ guards of each program ─hit─▶ program ─▶ tensors
//!              └─miss─▶ run f on traced tensors ─▶ graph ─▶ passes, kernels, code ─▶ kept with its guards
//! ```
//!
//! While a function is captured on a thread, every operation there goes into the graph, with the line that asked for it. Tensors
//! with memory that it meets (weights) become inputs, found again by identity. Sizes are plain numbers in user code, so
//! a graph is always of one set of sizes; `symbolic` makes one for all sizes out of two of them, and a size that is
//! met for the first time is checked by recording the function again, which costs no compile.
//!
//! Invariants: a graph is recorded by one thread; what a graph cannot say is a *break*, noted in the recording even if
//! the function hides the error it gets.

mod bundle;
mod compiled;
mod guard;
mod symbolic;

pub use bundle::{Bundle, Leaf};
pub use compiled::{Compiled, Dynamic, Options, ProgramSummary, Stats, compile, compile_with};

use crate::eager::{self, What, Write};
use crate::{Device, Error, Result, Tensor};
use kiln_ir::build::{Emit, GraphBuilder};
use kiln_ir::{Graph, NodeId, Op, Source};
use kiln_runtime::{Buffer, HostMemory};
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// What a tensor without memory stands for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Traced {
    recording: u32,
    node: NodeId,
    /// Where its memory will be.
    pub(crate) device: Device,
}

/// A function being captured.
struct Recording {
    id: u32,
    builder: GraphBuilder,
    /// Tensors met on the way, and their inputs.
    met: Vec<(Tensor, NodeId)>,
    broken: Option<Break>,
}

/// What a function did that a graph cannot say.
#[derive(Debug, Clone)]
struct Break {
    what: &'static str,
    at: Source,
}

/// A captured function: a graph whose inputs are the arguments' tensors, then the tensors met.
struct Trace<R> {
    graph: Graph,
    met: Vec<Tensor>,
    /// What the function returned, of tensors that stand for nodes.
    output: R,
    /// The nodes of the graph's outputs, in order.
    nodes: Vec<NodeId>,
}

/// What came of capturing.
enum Captured<R> {
    Whole(Trace<R>),
    Broken(Break),
}

thread_local! {
    static ACTIVE: Cell<bool> = const { Cell::new(false) };
    static RECORDING: RefCell<Option<Recording>> = const { RefCell::new(None) };
}

/// Whether operations on this thread are recorded.
#[inline]
pub(crate) fn is_active() -> bool {
    ACTIVE.get()
}

/// The buffer of tensors without memory.
#[cold]
pub(crate) fn no_memory() -> &'static Buffer {
    static EMPTY: LazyLock<Buffer> = LazyLock::new(|| HostMemory::allocate(0).expect("no bytes are always there"));
    &EMPTY
}

/// Computes on tensors with memory while a function is captured.
pub(crate) fn paused<T>(compute: impl FnOnce() -> T) -> T {
    let was = ACTIVE.replace(false);
    let result = compute();
    ACTIVE.set(was);
    result
}

/// Notes that the function being captured does what a graph cannot say.
#[cold]
pub(crate) fn break_at(what: &'static str, at: &Source) -> Error {
    let noted = RECORDING.with_borrow_mut(|recording| match recording {
        Some(recording) => {
            recording.broken.get_or_insert(Break { what, at: at.clone() });
            true
        }
        None => false,
    });
    if noted { Error::GraphBreak { what, at: at.clone() } } else { Error::Escaped { at: at.clone() } }
}

/// Records an op without operands.
#[cold]
pub(crate) fn constant(op: Op, device: Device, at: &Source) -> Result<Tensor> {
    let write = |b: &mut GraphBuilder, _: &[NodeId]| Ok(vec![b.emit(op.clone(), &[])?]);
    Ok(record(What::Op(&op), &[], device, &write, at)?.swap_remove(0))
}

/// Records what `write` writes instead of running it.
#[cold]
pub(crate) fn record(
    what: What<'_>,
    operands: &[&Tensor],
    device: Device,
    write: Write<'_>,
    at: &Source,
) -> Result<Vec<Tensor>> {
    RECORDING.with_borrow_mut(|slot| {
        let Some(recording) = slot else { return Err(Error::Escaped { at: at.clone() }) };
        recording.builder.set_source(Some(at.clone()));
        let failed = |cause| eager::refused(what, cause, at);
        let mut nodes = Vec::with_capacity(operands.len());
        for operand in operands {
            nodes.push(recording.node_of(operand, at)?);
        }
        let results = write(&mut recording.builder, &nodes).map_err(failed)?;
        results.into_iter().map(|node| recording.tensor(node, device, at)).collect()
    })
}

impl Recording {
    /// The node of a tensor; one with memory becomes an input.
    fn node_of(&mut self, tensor: &Tensor, at: &Source) -> Result<NodeId> {
        match tensor.traced() {
            Some(traced) if traced.recording == self.id => Ok(traced.node),
            Some(_) => Err(Error::Escaped { at: at.clone() }),
            None => {
                if let Some((_, node)) = self.met.iter().find(|(known, _)| same_elements(known, tensor)) {
                    return Ok(*node);
                }
                let node = self.input(tensor, tensor.shape())?;
                self.met.push((tensor.clone(), node));
                Ok(node)
            }
        }
    }

    fn input(&mut self, tensor: &Tensor, shape: &[usize]) -> Result<NodeId> {
        let ty = kiln_ir::TensorType::fixed(tensor.dtype(), shape);
        self.builder.input(ty).map_err(|cause| Error::Graph { cause: Box::new(cause) })
    }

    fn tensor(&self, node: NodeId, device: Device, at: &Source) -> Result<Tensor> {
        let ty = self.builder.graph().ty(node);
        let Some(shape) = ty.fixed_shape() else { return Err(Error::Escaped { at: at.clone() }) };
        Ok(Tensor::from_traced(Traced { recording: self.id, node, device }, shape, ty.dtype))
    }
}

/// Whether two tensors with memory are the same view of the same elements.
fn same_elements(a: &Tensor, b: &Tensor) -> bool {
    a.same(b) || (a.dtype() == b.dtype() && a.buffer().same(b.buffer()) && a.layout() == b.layout())
}

/// Runs `f` on tensors that record, in place of the tensors of `arguments`. `shapes` may say other shapes for them, by number.
fn capture<A: Bundle, R: Bundle>(
    f: &dyn Fn(&A) -> Result<R>,
    arguments: &A,
    shapes: Option<&[Vec<usize>]>,
    at: &Source,
) -> Result<Captured<R>> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let id = NEXT.fetch_add(1, Ordering::Relaxed);
    let mut recording = Recording { id, builder: GraphBuilder::new(), met: Vec::new(), broken: None };
    recording.builder.set_source(Some(at.clone()));
    let (mut number, mut failure) = (0, None);
    let traced = arguments.map_tensors(&mut |tensor| {
        let shape = shapes.and_then(|shapes| shapes.get(number)).map_or(tensor.shape(), Vec::as_slice);
        number += 1;
        let made = recording.input(tensor, shape).and_then(|node| recording.tensor(node, tensor.device(), at));
        made.unwrap_or_else(|error| {
            failure = Some(error);
            tensor.clone()
        })
    });
    if let Some(error) = failure {
        return Err(error);
    }
    RECORDING.set(Some(recording));
    ACTIVE.set(true);
    let returned = catch_unwind(AssertUnwindSafe(|| f(&traced)));
    ACTIVE.set(false);
    let Some(mut recording) = RECORDING.take() else { return Err(Error::Escaped { at: at.clone() }) };
    // A function may hide the error of a break or panic because of it.
    if let Some(broken) = recording.broken.take() {
        return Ok(Captured::Broken(broken));
    }
    let output = returned.unwrap_or_else(|panic| resume_unwind(panic))?;
    let mut nodes: Vec<NodeId> = Vec::new();
    let mut foreign = false;
    output.leaves(&mut |leaf| {
        let Leaf::Tensor(tensor) = leaf else { return };
        let Some(traced) = tensor.traced() else { return };
        foreign |= traced.recording != id;
        if !nodes.contains(&traced.node) {
            nodes.push(traced.node);
        }
    });
    if foreign {
        return Err(Error::Escaped { at: at.clone() });
    }
    for &node in &nodes {
        recording.builder.output(node);
    }
    let met = recording.met.into_iter().map(|(tensor, _)| tensor).collect();
    Ok(Captured::Whole(Trace { graph: recording.builder.finish(), met, output, nodes }))
}

impl<R: Bundle> Trace<R> {
    /// What the function returns, given the graph's outputs.
    fn fill(&self, outputs: &[Tensor]) -> R {
        self.output.map_tensors(&mut |tensor| {
            let place = tensor.traced().and_then(|traced| self.nodes.iter().position(|&node| node == traced.node));
            place.and_then(|place| outputs.get(place)).unwrap_or(tensor).clone()
        })
    }

    /// Whether two captures met the same tensors and return the same but for the tensors' elements.
    fn returns_like(&self, other: &Trace<R>) -> bool {
        let node = |tensor: &Tensor| tensor.traced().map(|traced| traced.node);
        let same = |pair: (&Leaf<'_>, &Leaf<'_>)| match pair {
            (Leaf::Tensor(a), Leaf::Tensor(b)) if a.is_traced() || b.is_traced() => node(a) == node(b),
            (Leaf::Tensor(a), Leaf::Tensor(b)) => same_elements(a, b),
            (a, b) => a.is_value(b),
        };
        let (own, others) = (bundle::leaves_of(&self.output), bundle::leaves_of(&other.output));
        own.len() == others.len()
            && own.iter().zip(&others).all(same)
            && self.met.len() == other.met.len()
            && self.met.iter().zip(&other.met).all(|(a, b)| same_elements(a, b))
    }
}
