//! A data-dependent choice that stays in the graph.
//!
//! Each side is recorded as a graph of its own, and both are the sides of an [`Op::Cond`], of which a call runs one. Where a side does what
//! is not part of a graph (it reads elements, changes variables, stops gradients that go through it), there is a graph break: the predicate
//! is read, and the function goes on with one side, as it does in eager code.

use super::compiled::tensors_of;
use super::loops::{carries_gradients, has_bounds, has_conditional_loops, record_body, with_bounds};
use super::with_session;
use crate::tensor::bundle::{Bundle, Leaf, leaves_of};
use crate::tensor::dim::scope::has_refused;
use crate::tensor::eager::{self, Operation};
use crate::tensor::tracer::{self, is_active};
use crate::{DType, Error, Result, Tensor};
use kiln_ir::build::{Emit, GraphBuilder};
use kiln_ir::{Branches, Graph, NodeId, Op, Source};
use kiln_runtime::event::{self, Category, Event};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

/// Selects by a bool tensor of one element. One of the two functions runs, in eager code and in a compiled function, where both are
/// captured as graphs inside of the graph around them: there is no graph break, and gradients go through the side that ran. Both are computed,
/// and selected from as [`Tensor::where_`] does, where that takes less time than to look at the predicate: at most
/// 12 operations on each of at most 65,536 elements, of sizes that are known. Each function may be called more than once while it is captured.
///
/// Where a side is no graph (it reads elements, changes variables, draws random numbers, has hooks on gradients, calls disabled parts, or stops
/// gradients that go through it) or both sides do not return tensors of the same dtypes and shapes and the same plain values, there is a graph break:
/// the predicate is read, and each outcome has its own way on. With [`Options::fullgraph`](crate::Options::fullgraph) a side that stops gradients has
/// both sides computed and selected from, which an event of the category `perf` says, and everything else is an error.
///
/// ```
/// use kiln::{Device, Options, Tensor, cond};
/// let f = |x: &Tensor| cond(&x.sum(..)?.gt(0.0)?, || x.exp(), || x.neg());
/// let whole = kiln::compile_with(f, Options { fullgraph: true, ..Options::default() });
/// assert_eq!(whole.call(&Tensor::new([0f32, -1.], Device::Cpu)?)?.to_vec::<f32>()?, [0.0, 1.0]);
/// assert_eq!(whole.call(&Tensor::new([0f32, 0.5], Device::Cpu)?)?.to_vec::<f32>()?[0], 1.0);
/// # Ok::<(), kiln::Error>(())
/// ```
#[track_caller]
pub fn cond<R: Bundle>(
    predicate: &Tensor,
    then: impl Fn() -> Result<R>,
    otherwise: impl Fn() -> Result<R>,
) -> Result<R> {
    let at = Source::caller();
    if predicate.elements() != 1 {
        return Err(Error::NotOneElement { shape: predicate.shape().to_vec(), at });
    }
    if !is_active() {
        return if predicate.item::<bool>()? { then() } else { otherwise() };
    }
    let why = match record(predicate, &then, &otherwise, &at)? {
        Ok(results) => return Ok(results),
        Err(why) => why,
    };
    if let NoOp::NoGraph | NoOp::Unlike | NoOp::Loop = why
        && may_break(&at)?
    {
        let what = why.break_text();
        let predicate = if predicate.is_traced() { tracer::concrete(predicate, what, &at)? } else { predicate.clone() };
        return if predicate.item::<bool>()? { then() } else { otherwise() };
    }
    if let NoOp::Unlike = why {
        return Err(wrong("they differ in dtypes, shapes or plain values", &at));
    }
    event::emit(Category::Perf, || Event::Slow {
        text: format!("both sides of cond are computed and selected from: {}", why.text()),
        at: at.clone(),
    });
    select(predicate, &then, &otherwise, &at)
}

/// Why a choice is no op of the graph.
#[derive(Debug, Clone, Copy)]
enum NoOp {
    /// A side does what no graph does.
    NoGraph,
    /// The sides give what differs in more than elements.
    Unlike,
    /// Gradients go through a loop without a bound.
    Loop,
    /// Both sides are graphs, but not of one op.
    Graphs(&'static str),
}

impl NoOp {
    fn text(self) -> &'static str {
        match self {
            NoOp::NoGraph => "a side does what is not part of a graph, such as to stop gradients",
            NoOp::Unlike => "the sides differ in dtypes, shapes or plain values",
            NoOp::Loop => "gradients go through a loop without a bound",
            NoOp::Graphs(why) => why,
        }
    }

    /// Says what the function does, for a graph break.
    fn break_text(self) -> &'static str {
        match self {
            NoOp::Unlike => "chooses between sides of `cond` that differ in dtypes, shapes or plain values",
            NoOp::Loop => "has gradients through a loop without a bound in a side of `cond`",
            NoOp::NoGraph | NoOp::Graphs(_) => "does in a side of `cond` what is not part of a graph",
        }
    }
}

/// Whether the predicate may be read: always, but where no break is allowed. A body that it is read in is no graph.
fn may_break(at: &Source) -> Result<bool> {
    with_session(at, |session| Ok(session.driver.as_ref().is_some_and(|driver| !driver.is_fullgraph())))
}

fn wrong(what: &'static str, at: &Source) -> Error {
    Error::Cond { what, at: at.clone() }
}

/// Whether two sides give the same but for elements.
fn are_alike<R: Bundle>(then: &R, otherwise: &R) -> bool {
    let (left, right) = (leaves_of(then), leaves_of(otherwise));
    let alike = |(a, b): (&Leaf<'_>, &Leaf<'_>)| match (a, b) {
        // Whoever looks at a shape decides by it: the same expressions need no look.
        (Leaf::Tensor(a), Leaf::Tensor(b)) => a.ty() == b.ty() || a.dtype() == b.dtype() && a.shape() == b.shape(),
        (a, b) => a.is_value(b),
    };
    left.len() == right.len() && left.iter().zip(&right).all(alike)
}

/// Records the choice as an op; says why it cannot be one.
fn record<R: Bundle>(
    predicate: &Tensor,
    then: &dyn Fn() -> Result<R>,
    otherwise: &dyn Fn() -> Result<R>,
    at: &Source,
) -> Result<Result<R, NoOp>> {
    if predicate.dtype() != DType::Bool {
        return Ok(Err(NoOp::Graphs("the predicate is no bool")));
    }
    let device = predicate.device();
    let Some((left, first)) = record_side(then, device, at)? else { return Ok(Err(NoOp::NoGraph)) };
    let Some((right, second)) = record_side(otherwise, device, at)? else { return Ok(Err(NoOp::NoGraph)) };
    if !are_alike(&left, &right) {
        return Ok(Err(NoOp::Unlike));
    }
    let is_plain = |tensor: &&Tensor| tensor.device() == device && tensor.dtype() != DType::I4;
    let results = tensors_of(&leaves_of(&left)).into_iter().all(|tensor| is_plain(&tensor));
    // What is around both sides comes in once.
    let mut given: Vec<Tensor> = first.1.clone();
    let mut places = Vec::with_capacity(second.1.len());
    for tensor in &second.1 {
        let known = given.iter().position(|known| is_same(known, tensor));
        places.push(known.unwrap_or(given.len()));
        if known.is_none() {
            given.push(tensor.clone());
        }
    }
    if !results || !given.iter().all(|tensor| is_plain(&tensor)) {
        return Ok(Err(NoOp::Graphs("a side uses another device or i4")));
    }
    if types(&first.0) != types(&second.0) {
        return Ok(Err(NoOp::Graphs("the sizes of both sides are different expressions")));
    }
    let in_order: Vec<usize> = (0..first.1.len()).collect();
    let graph = |cause| Error::Graph { cause: Box::new(cause) };
    let sides = (with_inputs(&first.0, &in_order, &given), with_inputs(&second.0, &places, &given));
    let branches = Arc::new(Branches::new(sides.0.map_err(graph)?, sides.1.map_err(graph)?));
    let count = branches.results();
    let write = |b: &mut GraphBuilder, operands: &[NodeId]| {
        let result = |result: usize| b.emit(Op::Cond { branches: branches.clone(), result }, operands);
        (0..count).map(result).collect::<Result<Vec<NodeId>, kiln_ir::Error>>()
    };
    if count == 0 {
        return Ok(Ok(left));
    }
    let has_loops = [branches.then(), branches.otherwise()].into_iter().any(has_conditional_loops);
    if has_loops && carries_gradients(&given.iter().collect::<Vec<_>>(), at)? {
        return match has_bounds(at)? {
            true => Ok(Err(NoOp::Loop)),
            false => with_bounds(at, || record(predicate, then, otherwise, at)),
        };
    }
    let flag = predicate.reshape(())?;
    let operands: Vec<&Tensor> = [&flag].into_iter().chain(&given).collect();
    let op = Op::Cond { branches: branches.clone(), result: 0 };
    let mut results = eager::run(Operation::Op(&op), &operands, device, &write, at)?.into_iter();
    Ok(Ok(left.map_tensors(&mut |tensor| results.next().unwrap_or_else(|| tensor.clone()))))
}

/// The types of what a graph gives.
fn types(graph: &Graph) -> Vec<kiln_ir::TensorType> {
    graph.outputs().iter().map(|output| graph.ty(output.node).clone()).collect()
}

/// What a side gave, its graph, and what came in from around it.
type Side<R> = (R, (Graph, Vec<Tensor>));

fn record_side<R: Bundle>(side: &dyn Fn() -> Result<R>, device: crate::Device, at: &Source) -> Result<Option<Side<R>>> {
    let mut given = None;
    let mut body = |_: &[Tensor]| {
        let result = side()?;
        let tensors: Vec<Tensor> = tensors_of(&leaves_of(&result)).into_iter().cloned().collect();
        given = Some(result.map_tensors(&mut |tensor| tensor.detached()));
        Ok(Some(tensors))
    };
    let recorded = catch_unwind(AssertUnwindSafe(|| record_body(Vec::new(), 0, &[], device, &mut body, at)));
    // A side that fails need not be the one that is taken; whatever failed for want of sizes is recorded again.
    match recorded {
        Ok(Err(error)) if has_refused() || !may_break(at)? => Err(error),
        Err(panic) if !may_break(at)? => resume_unwind(panic),
        Ok(Err(_)) | Err(_) => Ok(None),
        Ok(Ok(recorded)) => Ok(given.zip(recorded)),
    }
}

/// Whether two tensors stand for the same value.
fn is_same(a: &Tensor, b: &Tensor) -> bool {
    match (a.traced(), b.traced()) {
        (Some(a), Some(b)) => (a.recording, a.value) == (b.recording, b.value),
        (None, None) => super::same_elements(a, b),
        _ => false,
    }
}

/// The same graph with inputs for all of these tensors; its own are those of the numbers.
fn with_inputs(graph: &Graph, places: &[usize], given: &[Tensor]) -> Result<Graph, kiln_ir::Error> {
    let mut made = Graph::with_capacity(graph.nodes().len() + given.len());
    let mut inputs = Vec::with_capacity(given.len());
    for tensor in given {
        inputs.push(made.input(tensor.ty(), Source::default())?);
    }
    let mut new: Vec<NodeId> = Vec::with_capacity(graph.nodes().len());
    for (_, node) in graph.iter() {
        new.push(match &node.op {
            Op::Input { index } => inputs[places[*index]],
            _ => {
                let mut node = node.clone();
                node.operands.iter_mut().for_each(|operand| *operand = new[operand.index()]);
                made.keep(node)?
            }
        });
    }
    graph.outputs().iter().for_each(|output| made.output(new[output.node.index()]));
    Ok(made)
}

/// Computes both sides and selects.
fn select<R: Bundle>(
    predicate: &Tensor,
    then: &dyn Fn() -> Result<R>,
    otherwise: &dyn Fn() -> Result<R>,
    at: &Source,
) -> Result<R> {
    let changes = || with_session(at, |session| Ok(session.recording.changes()));
    let before = changes()?;
    let (then, otherwise) = (then()?, otherwise()?);
    if changes()? != before {
        return Err(wrong("one of them changes a variable, draws random numbers or calls a disabled part", at));
    }
    if !are_alike(&then, &otherwise) {
        return Err(wrong("they differ in dtypes, shapes or plain values", at));
    }
    let right = leaves_of(&otherwise);
    let mut others = tensors_of(&right).into_iter();
    let mut failure = None;
    let predicate = predicate.reshape(())?;
    let chosen = then.map_tensors(&mut |tensor| {
        let chosen = match others.next() {
            Some(other) => predicate.where_(tensor, other),
            None => Ok(tensor.clone()),
        };
        chosen.unwrap_or_else(|error| {
            failure = Some(error);
            tensor.clone()
        })
    });
    failure.map_or(Ok(chosen), Err)
}
