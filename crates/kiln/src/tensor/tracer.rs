//! Tracing: while a function is captured on a thread, its operations are recorded there instead of being run.
//!
//! Tensors, variables and generators know a capture only as a [`Tracer`], which `compile` implements. Where nothing is traced, an
//! operation pays for one load of a thread-local flag.

use crate::tensor::dim::Relation;
use crate::tensor::eager::{Operation, Write};
use crate::tensor::float::expression::Expression;
use crate::tensor::setting::Setting;
use crate::tensor::tape::{self, Tape};
use crate::tensor::var::WeakVar;
use crate::{DType, Device, Error, Generator, Result, Tensor, Var};
use kiln_ir::build::{Emit, GraphBuilder};
use kiln_ir::{NodeId, Op, Source};
use std::cell::Cell;
use std::sync::Arc;

/// The value that a traced tensor, which has no memory, stands for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Traced {
    /// The number of the recording it belongs to.
    pub(crate) recording: u32,
    /// Its number there.
    pub(crate) value: u32,
    /// Where its memory will be.
    pub(crate) device: Device,
}

/// What is computed on tensors with memory, and cannot be part of a graph.
pub(crate) type HostFunction = Arc<dyn Fn(&[Tensor]) -> Result<Vec<Tensor>> + Send + Sync>;

/// Why something is computed outside of the graph.
#[derive(Debug, Clone, Copy)]
pub(crate) enum HostWork {
    /// An algorithm of this name for matrices.
    Factorisation(&'static str),
    /// A function with a gradient of its own, where a graph cannot have it.
    Function,
    /// A hook on a gradient.
    Hook,
}

/// Records operations in place of running them. Outside of its capture, every method returns [`Error::Escaped`].
pub(crate) trait Tracer {
    /// Records what `write` writes.
    fn record(
        &self,
        what: Operation<'_>,
        operands: &[&Tensor],
        device: Device,
        write: Write<'_>,
        at: &Source,
    ) -> Result<Vec<Tensor>>;

    /// A tensor of elements that the function made after it had read some: data of this call and no constant of its graph, so
    /// that other data does not take another program. `None` where nothing was read.
    fn data(&self, bytes: &[u8], shape: &[usize], dtype: DType, device: Device, at: &Source) -> Result<Option<Tensor>>;

    /// A traced tensor with memory: what was recorded so far runs. `what` says why it is needed.
    fn concrete(&self, tensor: &Tensor, what: &'static str, at: &Source) -> Result<Tensor>;

    /// What `compute` makes of a traced tensor with memory: the size of its first axis depends on elements, and is at most `most`.
    fn sized_by_data(
        &self,
        tensor: &Tensor,
        compute: fn(&Tensor, &Source) -> Result<Tensor>,
        most: Option<usize>,
        at: &Source,
    ) -> Result<Tensor>;

    /// Whether a comparison of numbers holds at this call: its outcome is a guard of what follows. One that cannot be made fails the
    /// capture, and has any outcome.
    fn decide(&self, left: &Expression<Tensor>, relation: Relation, right: &Expression<Tensor>, at: &Source) -> bool;

    /// What numbers are computed to outside of the graph, as a tensor without axes on a device. Where it cannot be, the capture
    /// fails.
    fn number(&self, expression: &Expression<Tensor>, device: Device, at: &Source) -> Result<Tensor>;

    /// What `compute` gives for traced tensors with memory, outside of the graph at every call; tapes go through it.
    fn outside(&self, what: HostWork, tensors: &[&Tensor], compute: HostFunction, at: &Source) -> Result<Vec<Tensor>>;

    /// Whether a function with a gradient of its own, called at this line, is recorded as part of the graph.
    fn records_function(&self, at: &Source) -> Result<bool>;

    /// Such a function, called at this line, begins to compute results or gradients, which are recorded.
    fn begin_function(&self, at: &Source) -> Result<()>;

    /// It has ended.
    fn end_function(&self, at: &Source) -> Result<()>;

    /// The results of such a function as values of their own, which gradients of what the captured function returns do not go past.
    fn function_results(&self, operands: &[Tensor], results: Vec<Tensor>, at: &Source) -> Result<Vec<Tensor>>;

    /// Another tensor for the same value, with another tape.
    fn alias(&self, tensor: &Tensor, tape: Option<Tape>, at: &Source) -> Result<Tensor>;

    /// A tensor with the same elements that is the start of a tape, also of the tapes that the function's results are on.
    fn start(&self, tensor: &Tensor, at: &Source) -> Result<Tensor>;

    /// Whether gradients are recorded where the function is called.
    fn is_recorded(&self, at: &Source) -> Result<bool>;

    /// Adds the cotangent of an argument, by number, to the tape that the argument is on outside of the function.
    fn backward_of_argument(&self, argument: usize, cotangent: &Tensor, at: &Source) -> Result<()>;

    /// Notes a graph break: the function does what can be neither recorded nor run on the way.
    fn break_at(&self, what: &'static str, at: &Source) -> Result<()>;

    /// The function makes a variable with this value.
    fn make_var(&self, var: WeakVar, value: &Tensor, at: &Source) -> Result<()>;

    /// The value of a variable at this point of the function.
    fn read_var(&self, var: &Var, at: &Source) -> Result<Tensor>;

    /// Gives a variable another value.
    fn write_var(&self, var: &Var, tensor: &Tensor, at: &Source) -> Result<()>;

    /// The gradient of a variable at this point of the function.
    fn read_gradient(&self, var: &Var, at: &Source) -> Result<Option<Tensor>>;

    /// Gives a variable another gradient, or none.
    fn write_gradient(&self, var: &Var, tensor: Option<&Tensor>, at: &Source) -> Result<()>;

    /// A new random key, another at each call.
    fn random_key(&self, generator: &Generator, device: Device, at: &Source) -> Result<Tensor>;

    /// Notes that the function depends on a setting, and returns its value at this point.
    fn read_setting(&self, setting: &Setting, value: u64) -> Result<u64>;
}

thread_local! {
    static ACTIVE: Cell<bool> = const { Cell::new(false) };
    static TRACER: Cell<Option<&'static dyn Tracer>> = const { Cell::new(None) };
}

/// Whether operations on this thread are recorded.
#[inline]
pub(crate) fn is_active() -> bool {
    ACTIVE.get()
}

/// Runs `f`, whose operations `tracer` records.
pub(crate) fn traced_by<T>(tracer: &'static dyn Tracer, f: impl FnOnce() -> T) -> T {
    struct Restore(Option<&'static dyn Tracer>);
    impl Drop for Restore {
        fn drop(&mut self) {
            TRACER.set(self.0);
        }
    }
    let _restore = Restore(TRACER.replace(Some(tracer)));
    with_active(true, f)
}

/// Computes on tensors with memory while a function is captured.
pub(crate) fn paused<T>(compute: impl FnOnce() -> T) -> T {
    with_active(false, compute)
}

fn with_active<T>(active: bool, f: impl FnOnce() -> T) -> T {
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            ACTIVE.set(self.0);
        }
    }
    let _restore = Restore(ACTIVE.replace(active));
    f()
}

/// Asks the tracer of this thread; a traced tensor that is used where there is none has escaped its capture.
fn ask<T>(at: &Source, question: impl FnOnce(&dyn Tracer) -> Result<T>) -> Result<T> {
    TRACER.get().map_or_else(|| Err(Error::Escaped { at: at.clone() }), question)
}

/// See [`Tracer::record`].
#[cold]
pub(crate) fn record(
    what: Operation<'_>,
    operands: &[&Tensor],
    device: Device,
    write: Write<'_>,
    at: &Source,
) -> Result<Vec<Tensor>> {
    ask(at, |tracer| tracer.record(what, operands, device, write, at))
}

/// Records an op without operands.
#[cold]
pub(crate) fn constant(op: Op, device: Device, at: &Source) -> Result<Tensor> {
    let write = |b: &mut GraphBuilder, _: &[NodeId]| Ok(vec![b.emit(op.clone(), &[])?]);
    Ok(record(Operation::Op(&op), &[], device, &write, at)?.swap_remove(0))
}

/// A traced tensor with the same elements that gradients do not go past.
#[cold]
pub(crate) fn cut(tensor: &Tensor, at: &Source) -> Tensor {
    let same = Op::Reshape { shape: tensor.ty().shape };
    let write = |b: &mut GraphBuilder, inputs: &[NodeId]| Ok(vec![b.emit(same.clone(), inputs)?]);
    let made = tape::with_enabled(false, || record(Operation::Op(&same), &[tensor], tensor.device(), &write, at));
    // What cannot be recorded says so when it is used.
    made.map_or_else(|_| tensor.clone(), |mut made| made.swap_remove(0))
}

/// See [`Tracer::data`].
#[cold]
pub(crate) fn data(bytes: &[u8], shape: &[usize], dtype: DType, device: Device, at: &Source) -> Result<Option<Tensor>> {
    ask(at, |tracer| tracer.data(bytes, shape, dtype, device, at))
}

/// See [`Tracer::concrete`].
#[cold]
pub(crate) fn concrete(tensor: &Tensor, what: &'static str, at: &Source) -> Result<Tensor> {
    ask(at, |tracer| tracer.concrete(tensor, what, at))
}

/// See [`Tracer::sized_by_data`].
#[cold]
pub(crate) fn sized_by_data(
    tensor: &Tensor,
    compute: fn(&Tensor, &Source) -> Result<Tensor>,
    most: Option<usize>,
    at: &Source,
) -> Result<Tensor> {
    ask(at, |tracer| tracer.sized_by_data(tensor, compute, most, at))
}

/// See [`Tracer::decide`].
#[cold]
pub(crate) fn decide(left: &Expression<Tensor>, relation: Relation, right: &Expression<Tensor>, at: &Source) -> bool {
    ask(at, |tracer| Ok(tracer.decide(left, relation, right, at))).unwrap_or(false)
}

/// See [`Tracer::number`].
#[cold]
pub(crate) fn number(expression: &Expression<Tensor>, device: Device, at: &Source) -> Result<Tensor> {
    ask(at, |tracer| tracer.number(expression, device, at))
}

/// See [`Tracer::outside`].
#[cold]
pub(crate) fn outside(what: HostWork, tensors: &[&Tensor], compute: HostFunction, at: &Source) -> Result<Vec<Tensor>> {
    ask(at, |tracer| tracer.outside(what, tensors, compute, at))
}

/// See [`Tracer::records_function`].
#[cold]
pub(crate) fn records_function(at: &Source) -> Result<bool> {
    ask(at, |tracer| tracer.records_function(at))
}

/// Runs `f`, which is part of a function with a gradient of its own that was called at this line, and is recorded.
#[cold]
pub(crate) fn in_function<T>(at: &Source, f: impl FnOnce() -> Result<T>) -> Result<T> {
    ask(at, |tracer| tracer.begin_function(at))?;
    let done = f();
    ask(at, |tracer| tracer.end_function(at))?;
    done
}

/// See [`Tracer::function_results`].
#[cold]
pub(crate) fn function_results(operands: &[Tensor], results: Vec<Tensor>, at: &Source) -> Result<Vec<Tensor>> {
    ask(at, |tracer| tracer.function_results(operands, results, at))
}

/// See [`Tracer::alias`]; `None` outside of the capture.
#[cold]
pub(crate) fn alias(tensor: &Tensor, tape: Option<Tape>) -> Option<Tensor> {
    let at = Source::default();
    ask(&at, |tracer| tracer.alias(tensor, tape, &at)).ok()
}

/// See [`Tracer::start`].
#[cold]
pub(crate) fn start(tensor: &Tensor) -> Tensor {
    let at = Source::default();
    // What cannot be recorded says so when it is used.
    ask(&at, |tracer| tracer.start(tensor, &at)).unwrap_or_else(|_| tensor.clone())
}

/// See [`Tracer::is_recorded`].
#[cold]
pub(crate) fn is_recorded(at: &Source) -> Result<bool> {
    ask(at, |tracer| tracer.is_recorded(at))
}

/// See [`Tracer::backward_of_argument`].
#[cold]
pub(crate) fn backward_of_argument(argument: usize, cotangent: &Tensor, at: &Source) -> Result<()> {
    ask(at, |tracer| tracer.backward_of_argument(argument, cotangent, at))
}

/// Notes a graph break and returns the error for it. See [`Tracer::break_at`].
#[cold]
pub(crate) fn break_at(what: &'static str, at: &Source) -> Error {
    match ask(at, |tracer| tracer.break_at(what, at)) {
        Ok(()) => Error::GraphBreak { what, at: at.clone() },
        Err(_) => Error::Escaped { at: at.clone() },
    }
}

/// See [`Tracer::make_var`].
#[cold]
pub(crate) fn make_var(var: WeakVar, value: &Tensor, at: &Source) -> Result<()> {
    ask(at, |tracer| tracer.make_var(var, value, at))
}

/// See [`Tracer::read_var`].
#[cold]
pub(crate) fn read_var(var: &Var, at: &Source) -> Result<Tensor> {
    ask(at, |tracer| tracer.read_var(var, at))
}

/// See [`Tracer::write_var`].
#[cold]
pub(crate) fn write_var(var: &Var, tensor: &Tensor, at: &Source) -> Result<()> {
    ask(at, |tracer| tracer.write_var(var, tensor, at))
}

/// See [`Tracer::read_gradient`].
#[cold]
pub(crate) fn read_gradient(var: &Var, at: &Source) -> Result<Option<Tensor>> {
    ask(at, |tracer| tracer.read_gradient(var, at))
}

/// See [`Tracer::write_gradient`].
#[cold]
pub(crate) fn write_gradient(var: &Var, tensor: Option<&Tensor>, at: &Source) -> Result<()> {
    ask(at, |tracer| tracer.write_gradient(var, tensor, at))
}

/// See [`Tracer::random_key`].
#[cold]
pub(crate) fn random_key(generator: &Generator, device: Device, at: &Source) -> Result<Tensor> {
    ask(at, |tracer| tracer.random_key(generator, device, at))
}

/// See [`Tracer::read_setting`]; outside of a capture the value is what it is.
#[cold]
pub(crate) fn read_setting(setting: &Setting, value: u64) -> u64 {
    ask(&Source::default(), |tracer| tracer.read_setting(setting, value)).unwrap_or(value)
}
