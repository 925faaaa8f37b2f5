//! Loops whose body is captured once, whatever the number of turns: [`scan`] over the first axis of tensors. Loops until a condition fails are
//! in `while_loop`.
//!
//! ```text
//!  op          … ─▶ loop { body } ─▶ …                             an op of the graph: one program, whatever the number of turns
//!  otherwise   segment ─▶ ┌ body · body · body … ┐ ─▶ segment      each turn runs the body's own program
//! ```
//!
//! The body of a loop is recorded once, as the region of an [`Op::Loop`]: what it uses from around it comes in as operands. Where a body does
//! what is not part of a graph (it reads elements, changes variables, draws random numbers, stops gradients, uses two devices), and where
//! gradients go through a loop until a condition fails, the graph ends before the loop and goes on after it. The number of turns is
//! then no part of any program, the sizes of what a loop gives are symbols of what follows, and gradients go through it as through a disabled
//! part.

use super::breaks::{self, Cause};
use super::compiled::{Compiled, compile, tensors_of};
use super::disable::{Disabled, disable};
use super::{Outcome, capture, checkpointed, with_session};
use crate::tensor::bundle::{Bundle, Leaf, leaves_of};
use crate::tensor::eager::{self, Operation};
use crate::tensor::tape::{self, Switch};
use crate::tensor::tracer::{self, is_active};
use crate::{DType, Device, Error, Result, Tensor};
use kiln_ir::build::{Emit, GraphBuilder};
use kiln_ir::{Dim, Graph, NodeId, Op, Region, Source, TensorType};
use kiln_passes::Vectorized;
use kiln_runtime::event::{self, Category, Event};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

pub(super) type Body<A, R> = Box<dyn Fn(&A) -> Result<R> + Send + Sync>;
pub(super) type CompiledBody<A, R> = Compiled<Body<A, R>, A, R>;
pub(super) type Part<A, R> = Disabled<Body<A, R>, A, R>;
/// A turn of a loop, of tensors alone; gives nothing where it cannot be one of a graph.
pub(crate) type Turn<'a> = &'a mut dyn FnMut(&[Tensor]) -> Result<Option<Vec<Tensor>>>;

/// A loop over the first axis of tensors. See [`scan`].
pub struct Scan<C, X, Y> {
    turns: Arc<Turns<C, X, Y>>,
    /// The loop by itself, for calls outside of compiled functions.
    whole: CompiledBody<(C, X), (C, Y)>,
}

/// A loop, and what it is made of where it is no op of a graph.
struct Turns<C, X, Y> {
    body: Arc<CompiledBody<(C, X), (C, Y)>>,
    part: Arc<Part<(C, X), (C, Y)>>,
    form: Form,
    /// How many turns lie between two states that are kept for gradients, if not all are.
    every: Option<usize>,
}

/// Makes a loop over the first axis of tensors: `body` gets what is carried from turn to turn and the next place of each tensor, and
/// gives what is carried on and the results of the turn, which are stacked. The loop is an op of the graph: inside of a compiled function it is part of
/// its program, which is one for all lengths.
///
/// ```
/// use kiln::{Device, Tensor};
/// let running = kiln::scan(|(sum, x): &(Tensor, Tensor)| {
///     let sum = sum.add(x)?;
///     Ok((sum.clone(), sum))
/// });
/// let f = |x: &Tensor| Ok::<Tensor, kiln::Error>(running.call(Tensor::new(0f32, Device::Cpu)?, x.mul(2.0)?)?.1);
/// let fast = kiln::compile(f);
/// for length in [3, 5, 8] {
///     let sums = fast.call(&Tensor::arange(length, kiln::DType::F32, Device::Cpu)?)?;
///     assert_eq!(sums.to_vec::<f32>()?[..3], [0.0, 2.0, 6.0]);
/// }
/// // One for the first length, and one for all others.
/// assert_eq!((fast.stats().compiles, fast.stats().breaks), (2, 0));
/// # Ok::<(), kiln::Error>(())
/// ```
pub fn scan<F, C, X, Y>(body: F) -> Scan<C, X, Y>
where
    F: Fn(&(C, X)) -> Result<(C, Y)> + Send + Sync + 'static,
    C: Bundle + Send + Sync + 'static,
    X: Bundle + Send + Sync + 'static,
    Y: Bundle + Send + Sync + 'static,
{
    scan_as(body, Form::Loop)
}

/// How places along an axis are gone through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// One after another.
    Loop,
    /// All at once, if nothing is carried from one to the next.
    Vectorized,
}

pub(super) fn scan_as<F, C, X, Y>(body: F, form: Form) -> Scan<C, X, Y>
where
    F: Fn(&(C, X)) -> Result<(C, Y)> + Send + Sync + 'static,
    C: Bundle + Send + Sync + 'static,
    X: Bundle + Send + Sync + 'static,
    Y: Bundle + Send + Sync + 'static,
{
    let body: Body<(C, X), (C, Y)> = Box::new(body);
    let body = Arc::new(compile(body));
    let own = body.clone();
    let part: Body<(C, X), (C, Y)> = Box::new(move |arguments| turns(&own, arguments));
    Scan::of(Turns { body, part: Arc::new(disable(part)), form, every: None })
}

impl<C, X, Y> Turns<C, X, Y>
where
    C: Bundle + Send + Sync + 'static,
    X: Bundle + Send + Sync + 'static,
    Y: Bundle + Send + Sync + 'static,
{
    fn run(&self, arguments: &(C, X), at: &Source) -> Result<(C, Y)> {
        if !is_active() {
            return turns(&self.body, arguments);
        }
        match self.record(arguments, at)? {
            Some(results) => Ok(results),
            None => self.part.call_turns(arguments, at),
        }
    }

    /// Records the loop as an op, if it can be one.
    fn record(&self, (carried, over): &(C, X), at: &Source) -> Result<Option<(C, Y)>> {
        let (own, rows) = (leaves_of(carried), leaves_of(over));
        let mut last = None;
        let mut body = |tensors: &[Tensor]| {
            let mut tensors = tensors.iter();
            let mut next = |tensor: &Tensor| tensors.next().unwrap_or(tensor).clone();
            let (now, result) = (self.body.inner())(&(carried.map_tensors(&mut next), over.map_tensors(&mut next)))?;
            let after = leaves_of(&now);
            let alike = |(a, b): (&Leaf<'_>, &Leaf<'_>)| is_alike(a, b);
            if after.len() != own.len() || !own.iter().zip(&after).all(alike) {
                return Ok(None);
            }
            let mut results: Vec<Tensor> = tensors_of(&after).into_iter().cloned().collect();
            results.extend(tensors_of(&leaves_of(&result)).into_iter().cloned());
            last = Some((
                now.map_tensors(&mut |tensor| tensor.detached()),
                result.map_tensors(&mut |tensor| tensor.detached()),
            ));
            Ok(Some(results))
        };
        let (own, rows) = (tensors_of(&own), tensors_of(&rows));
        let mut results = None;
        if self.form == Form::Vectorized && own.is_empty() {
            match record_vectorized(&rows, &mut body, at)? {
                Ok(all) => results = Some(all),
                Err(why) => event::emit(Category::Perf, || Event::Slow {
                    text: format!("vmap runs one example after another: {why}"),
                    at: at.clone(),
                }),
            }
        }
        if results.is_none() {
            results = match self.every {
                Some(every) if tape::is_enabled() => checkpointed::record(&own, &rows, every, &mut body, at)?,
                _ => record_loop(&own, &rows, false, &mut body, at)?,
            };
        }
        let Some(results) = results else { return Ok(None) };
        let mut results = results.into_iter();
        let mut put = |tensor: &Tensor| results.next().unwrap_or_else(|| tensor.clone());
        Ok(last.map(|(now, result)| (now.map_tensors(&mut put), result.map_tensors(&mut put))))
    }
}

/// Records one turn of a loop as a graph: `body` gets tensors of these types, and gives as many results as are carried, of the same types, and
/// further ones. Says what it uses from around it. Nothing where it is no graph, or where gradients stop in it and others, of these operands or
/// of what it uses, go through it: within a graph that an op runs gradients go everywhere.
pub(super) fn record_body(
    types: Vec<TensorType>,
    carried: usize,
    operands: &[&Tensor],
    device: Device,
    body: Turn<'_>,
    at: &Source,
) -> Result<Option<(Graph, Vec<Tensor>)>> {
    let inputs = with_session(at, |session| {
        session.recording.begin_body();
        types.iter().map(|ty| session.recording.body_input(ty.clone(), device, at)).collect::<Result<Vec<Tensor>>>()
    });
    let outcome = catch_unwind(AssertUnwindSafe(|| inputs.and_then(|inputs| body(&inputs))));
    let recorded = with_session(at, |session| {
        let recording = &mut session.recording;
        let nodes = match &outcome {
            Ok(Ok(Some(results))) => {
                results.iter().map(|tensor| recording.node_of(tensor, at)).collect::<Result<Vec<NodeId>>>().ok()
            }
            _ => None,
        };
        let is_same = |(number, node): (usize, &NodeId)| *recording.builder().graph().ty(*node) == types[number];
        let nodes = nodes.filter(|nodes| nodes.len() >= carried && nodes[..carried].iter().enumerate().all(is_same));
        Ok((recording.is_refused(), recording.end_body(nodes.as_deref()), recording.is_in_body()))
    });
    let results = outcome.unwrap_or_else(|panic| resume_unwind(panic));
    let (is_refused, recorded, is_inner) = recorded?;
    let recorded = match results {
        Err(_) if is_refused => None,
        results => results?.and(recorded),
    };
    let Some((graph, captured, has_stops)) = recorded else { return Ok(None) };
    // No tape is seen from within a body: whoever records the outermost knows whether gradients go through it.
    if has_stops && !is_inner {
        let all: Vec<&Tensor> = operands.iter().copied().chain(&captured).collect();
        if carries_gradients(&all, at)? {
            return refused(Cause::StopsGradients, at);
        }
    }
    Ok(Some((graph, captured)))
}

/// Records a loop over the first axis of `over` as an op of the graph. `body` gets what is carried and the rows of a turn, and gives what is
/// carried on and the results of the turn; so does the loop, stacked. Nothing where it cannot be one.
pub(crate) fn record_loop(
    carried: &[&Tensor],
    over: &[&Tensor],
    reverse: bool,
    body: Turn<'_>,
    at: &Source,
) -> Result<Option<Vec<Tensor>>> {
    let types: Vec<TensorType> = carried.iter().chain(over).map(|tensor| tensor.ty()).collect();
    let lengths: Option<Vec<&Dim>> = types[carried.len()..].iter().map(|ty| ty.shape.first()).collect();
    let Some((&turns, others)) = lengths.as_ref().and_then(|lengths| lengths.split_first()) else {
        return refused(Cause::Lengths, at);
    };
    let is_half = types.iter().any(|ty| ty.dtype == DType::I4);
    let device = over[0].device();
    let is_here = |tensor: &&Tensor| tensor.device() == device;
    if !is_active() {
        return Ok(None);
    }
    if !carried.iter().chain(over).all(is_here) || is_half {
        return refused(Cause::Places, at);
    }
    if others.iter().any(|other| *other != turns) {
        return refused(Cause::Lengths, at);
    }
    let count = carried.len();
    let row = |(number, ty): (usize, &TensorType)| match number < count {
        true => ty.clone(),
        false => TensorType::new(ty.dtype, &ty.shape[1..]),
    };
    let inputs = types.iter().enumerate().map(row).collect();
    let given: Vec<&Tensor> = carried.iter().chain(over).copied().collect();
    let Some((graph, captured)) = record_body(inputs, count, &given, device, body, at)? else { return Ok(None) };
    let number = graph.outputs().len();
    let operands: Vec<&Tensor> = carried.iter().chain(over).copied().chain(&captured).collect();
    if !operands.iter().all(is_here) {
        return refused(Cause::Places, at);
    }
    if has_conditional_loops(&graph) && carries_gradients(&operands, at)? {
        return match has_bounds(at)? {
            true => refused(Cause::Unbounded, at),
            false => with_bounds(at, || record_loop(carried, over, reverse, body, at)),
        };
    }
    let region = kiln_passes::with_states(&Arc::new(Region::new(graph, turns.clone(), count, over.len(), reverse)));
    let write = |b: &mut GraphBuilder, operands: &[NodeId]| {
        let result = |result: usize| b.emit(Op::Loop { region: region.clone(), result }, operands);
        (0..number).map(result).collect::<Result<Vec<NodeId>, kiln_ir::Error>>()
    };
    let op = Op::Loop { region: region.clone(), result: 0 };
    eager::run(Operation::Op(&op), &operands, device, &write, at).map(Some)
}

/// Nothing, for a loop that cannot be an op, with the reason.
pub(super) fn refused<T>(cause: Cause, at: &Source) -> Result<Option<T>> {
    breaks::refuse(cause, at).map(|()| None)
}

/// Whether gradients go through an operation on these operands, here or, where that is what the caller decides, outside.
pub(super) fn carries_gradients(operands: &[&Tensor], at: &Source) -> Result<bool> {
    if !tape::is_recorded(operands) {
        return Ok(false);
    }
    if tape::switch() == Switch::AsCaller { tracer::is_recorded(at) } else { Ok(true) }
}

/// Records bodies through which gradients go: each loop until a condition fails is one of as many turns as its bound says. Whether they do
/// is known once a body is recorded, from what it uses, so it is recorded without bounds first.
pub(super) fn with_bounds<T>(at: &Source, record: impl FnOnce() -> Result<T>) -> Result<T> {
    let set = |on| with_session(at, |session| Ok(std::mem::replace(&mut session.recording.has_bounds, on)));
    let before = set(true)?;
    let result = catch_unwind(AssertUnwindSafe(record));
    let restored = set(before);
    let result = result.unwrap_or_else(|panic| resume_unwind(panic))?;
    restored.map(|_| result)
}

/// Whether bodies are being recorded [with bounds](with_bounds).
pub(super) fn has_bounds(at: &Source) -> Result<bool> {
    with_session(at, |session| Ok(session.recording.has_bounds))
}

/// Records a function of one place along the first axis of `over` for all places at once. Says why not where it is no graph, or one that has
/// no form for many.
fn record_vectorized(over: &[&Tensor], body: Turn<'_>, at: &Source) -> Result<Result<Vec<Tensor>, String>> {
    let in_turns = |why: &str| Ok(Err(why.to_string()));
    let types: Vec<TensorType> = over.iter().map(|tensor| tensor.ty()).collect();
    let lengths: Option<Vec<&Dim>> = types.iter().map(|ty| ty.shape.first()).collect();
    let Some((&size, others)) = lengths.as_ref().and_then(|lengths| lengths.split_first()) else {
        return in_turns("there is no axis of examples");
    };
    if !is_active() || others.iter().any(|other| *other != size) {
        return in_turns("tensors differ in the number of examples");
    }
    if types.iter().any(|ty| ty.dtype == DType::I4) {
        return in_turns("examples of i4 share bytes");
    }
    let device = over[0].device();
    let inputs: Vec<TensorType> = types.iter().map(|ty| TensorType::new(ty.dtype, &ty.shape[1..])).collect();
    let mut recorded = record_body(inputs.clone(), 0, over, device, body, at)?;
    if recorded.is_none() && !tape::is_recorded(over) {
        // A function that computes gradients itself is a graph where none go through it.
        recorded = tape::with_enabled(false, || record_body(inputs, 0, over, device, body, at))?;
        recorded = recorded.filter(|(_, captured)| !tape::is_recorded(&captured.iter().collect::<Vec<_>>()));
        with_session(at, |session| {
            session.recording.note_inner_stops();
            Ok(())
        })?;
    }
    let Some((graph, captured)) = recorded else { return in_turns("the function is no graph") };
    let operands: Vec<&Tensor> = over.iter().copied().chain(&captured).collect();
    if !operands.iter().all(|tensor| tensor.device() == device) {
        return in_turns("the function uses two devices");
    }
    // Many examples compute both sides and select: the gradient of the side not taken may be NaN, and zero times that is, too.
    if tape::is_recorded(&operands) && (has_choices(&graph) || has_conditional_loops(&graph)) {
        return in_turns("gradients go through a choice or a loop until a condition fails");
    }
    let write = |b: &mut GraphBuilder, operands: &[NodeId]| {
        let batched = |(number, &node): (usize, &NodeId)| Vectorized { node, is_batched: number < over.len() };
        let inputs: Vec<Vectorized> = operands.iter().enumerate().map(batched).collect();
        kiln_passes::vectorize(b, &graph, size, &inputs)
    };
    // Whether all of its ops have a form for many is known from a first try.
    let mut trial = GraphBuilder::new();
    let nodes: Result<Vec<NodeId>, kiln_ir::Error> = operands.iter().map(|tensor| trial.input(tensor.ty())).collect();
    if let Err(error) = nodes.and_then(|nodes| write(&mut trial, &nodes)) {
        return Ok(Err(error.to_string()));
    }
    // A loop that carries nothing may as well go backwards: the key is that of no other operation.
    let region = Region::new(graph.clone(), size.clone(), 0, over.len(), true);
    let op = Op::Loop { region: Arc::new(region), result: 0 };
    eager::run(Operation::Op(&op), &operands, device, &write, at).map(Ok)
}

impl<C, X, Y> Scan<C, X, Y>
where
    C: Bundle + Send + Sync + 'static,
    X: Bundle + Send + Sync + 'static,
    Y: Bundle + Send + Sync + 'static,
{
    fn of(turns: Turns<C, X, Y>) -> Scan<C, X, Y> {
        let turns = Arc::new(turns);
        let own = turns.clone();
        let whole: Body<(C, X), (C, Y)> = Box::new(move |arguments| own.run(arguments, &Source::caller()));
        Scan { turns, whole: compile(whole) }
    }

    /// The same loop with fewer states kept for its gradient: of what is carried only what every k-th turn finds, and the turns between two of
    /// these are run again when the gradient comes to them. A loop of n turns keeps n/k + k states in place of n, the fewest where k is
    /// the root of n, and runs each turn twice more in place of once. Results and gradients are the same. Where no gradients go through the
    /// loop, and where it runs turn by turn, this changes nothing.
    ///
    /// ```
    /// use kiln::{DType, Device, Tensor};
    /// let body = |(h, x): &(Tensor, Tensor)| {
    ///     let h = h.mul(0.9)?.add(x)?.tanh()?;
    ///     Ok((h.clone(), h))
    /// };
    /// let (all, few) = (kiln::scan(body), kiln::scan(body).checkpointed(16));
    /// let x = Tensor::ones([250, 8], DType::F32, Device::Cpu)?.requires_grad();
    /// let slope = |scan: &kiln::Scan<_, _, Tensor>| -> kiln::Result<Vec<f32>> {
    ///     let last: Tensor = scan.call(x.select(0, 0)?, x.clone())?.0;
    ///     last.sum(..)?.gradients(&[&x])?.get(&x).expect("a gradient").to_vec()
    /// };
    /// for (a, b) in slope(&all)?.iter().zip(slope(&few)?) {
    ///     assert!((a - b).abs() < 1e-6);
    /// }
    /// # Ok::<(), kiln::Error>(())
    /// ```
    #[must_use]
    pub fn checkpointed(self, every: usize) -> Scan<C, X, Y> {
        let Turns { body, part, form, .. } = &*self.turns;
        Scan::of(Turns { body: body.clone(), part: part.clone(), form: *form, every: Some(every.max(1)) })
    }

    /// Runs the loop; gives what the last turn carried on, and the results of all turns.
    #[track_caller]
    pub fn call(&self, carried: C, over: X) -> Result<(C, Y)> {
        let (arguments, at) = ((carried, over), Source::caller());
        if is_active() { self.turns.run(&arguments, &at) } else { self.whole.call_at(&arguments, at) }
    }

    /// Returns the counters of the loop by itself: inside of a compiled function it is a part of that one's programs.
    pub fn stats(&self) -> super::Stats {
        self.whole.stats()
    }
}

/// A function of one row for many. See [`map`].
pub struct Map<X, Y> {
    rows: Scan<Vec<Tensor>, X, Y>,
}

/// Applies a function to each place along the first axis of tensors, and stacks what it gives: a [`scan`] that carries nothing.
///
/// ```
/// use kiln::{Device, Tensor};
/// let spread = kiln::map(|row: &Tensor| row.sub(row.mean(..)?)?.abs()?.amax(..));
/// let fast = kiln::compile(move |x: &Tensor| spread.call(x.mul(2.0)?));
/// let x = Tensor::new([[1f32, 2.0, 3.0], [4.0, 4.0, 7.0]], Device::Cpu)?;
/// assert_eq!(fast.call(&x)?.to_vec::<f32>()?, [2.0, 4.0]);
/// # Ok::<(), kiln::Error>(())
/// ```
pub fn map<F, X, Y>(f: F) -> Map<X, Y>
where
    F: Fn(&X) -> Result<Y> + Send + Sync + 'static,
    X: Bundle + Send + Sync + 'static,
    Y: Bundle + Send + Sync + 'static,
{
    Map { rows: scan(move |(nothing, row): &(Vec<Tensor>, X)| Ok((nothing.clone(), f(row)?))) }
}

impl<X, Y> Map<X, Y>
where
    X: Bundle + Send + Sync + 'static,
    Y: Bundle + Send + Sync + 'static,
{
    /// Applies the function to all places.
    #[track_caller]
    pub fn call(&self, over: X) -> Result<Y> {
        Ok(self.rows.call(Vec::new(), over)?.1)
    }
}

/// The places of tensors that are looped over.
fn turns<C: Bundle, X: Bundle, Y: Bundle>(
    body: &CompiledBody<(C, X), (C, Y)>,
    (carried, over): &(C, X),
) -> Result<(C, Y)> {
    let at = Source::default();
    let wrong = |what| Error::Loop { what, at: at.clone() };
    let leaves = leaves_of(over);
    let tensors = tensors_of(&leaves);
    let mut lengths = tensors.iter().map(|tensor| tensor.shape().first().copied());
    let length = lengths.next().flatten().ok_or_else(|| wrong("there is no axis to loop over"))?;
    if lengths.any(|other| other != Some(length)) {
        return Err(wrong("the tensors that are looped over differ in their first axis"));
    }
    let mut carried = carried.map_tensors(&mut |tensor| tensor.clone());
    let mut results: Vec<Y> = Vec::with_capacity(length);
    for turn in 0..length {
        let next = mapped(over, |tensor| tensor.select(0, turn))?;
        let (now, result) = body.call(&(carried, next))?;
        carried = now;
        results.push(result);
    }
    let Some(first) = results.first() else {
        let next = mapped(over, |tensor| Tensor::zeros(&tensor.shape()[1..], tensor.dtype(), tensor.device()))?;
        let given = results_of(body, &(carried.map_tensors(&mut |tensor| tensor.clone()), next), &at)?;
        let empty = mapped(&given, |tensor| {
            let shape: Vec<usize> = [0].iter().chain(tensor.shape()).copied().collect();
            Tensor::zeros(shape, tensor.dtype(), tensor.device())
        })?;
        return Ok((carried, empty));
    };
    let rows: Vec<Vec<Tensor>> =
        results.iter().map(|result| tensors_of(&leaves_of(result)).into_iter().cloned().collect()).collect();
    let mut number = 0;
    let stacked = mapped(first, |_| {
        number += 1;
        let rows: Option<Vec<&Tensor>> = rows.iter().map(|row| row.get(number - 1)).collect();
        stack(&rows.ok_or_else(|| wrong("turns give more or fewer results"))?, &at)
    })?;
    Ok((carried, stacked))
}

/// What a turn gives, as far as that is known without one: the body is captured, and nothing of it runs.
fn results_of<C: Bundle, X: Bundle, Y: Bundle>(
    body: &CompiledBody<(C, X), (C, Y)>,
    arguments: &(C, X),
    at: &Source,
) -> Result<Y> {
    let what =
        "there is no turn, and what one gives is not known without one: it reads elements, or calls a disabled part";
    match capture(&|arguments: &(C, X)| (body.inner())(arguments), arguments, None, None, at)? {
        Outcome::Whole(captured) => Ok(captured.returned.output.1),
        Outcome::Broken(..) => Err(Error::Loop { what, at: at.clone() }),
    }
}

/// A bundle with other tensors.
pub(super) fn mapped<B: Bundle>(bundle: &B, mut f: impl FnMut(&Tensor) -> Result<Tensor>) -> Result<B> {
    let mut failure = None;
    let made = bundle.map_tensors(&mut |tensor| {
        f(tensor).unwrap_or_else(|error| {
            failure = Some(error);
            tensor.clone()
        })
    });
    failure.map_or(Ok(made), Err)
}

/// Tensors of one shape along a new first axis. Without a tape on the host that is a copy of their bytes; a kernel for each number of
/// tensors would cost more than the loop.
fn stack(rows: &[&Tensor], at: &Source) -> Result<Tensor> {
    let Some(first) = rows.first() else { return Err(Error::NoTensors { op: "scan", at: at.clone() }) };
    let alike = |row: &&Tensor| row.shape() == first.shape() && row.dtype() == first.dtype();
    let is_copied = first.device() == Device::Cpu
        && first.dtype() != DType::I4
        && rows.iter().all(alike)
        && !tape::is_recorded(rows);
    if !is_copied {
        return Tensor::stack(&rows.iter().map(|&row| row.clone()).collect::<Vec<_>>(), 0);
    }
    let mut bytes = Vec::with_capacity(rows.len() * first.elements() * first.dtype().size_in_bits() / 8);
    for row in rows {
        row.with_bytes(at, |row| bytes.extend_from_slice(row))?;
    }
    let shape: Vec<usize> = [rows.len()].iter().chain(first.shape()).copied().collect();
    Tensor::from_bytes_at(&bytes, shape, first.dtype(), first.device(), at)
}

/// Whether there is a loop until a condition fails in a graph: gradients do not go through it.
pub(super) fn has_conditional_loops(graph: &Graph) -> bool {
    graph.nodes().iter().any(|node| {
        let is_one = matches!(&node.op, Op::Loop { region, .. } if region.is_conditional());
        is_one || node.op.bodies().into_iter().any(has_conditional_loops)
    })
}

/// Whether there is a choice between two sides in a graph.
fn has_choices(graph: &Graph) -> bool {
    graph.nodes().iter().any(|node| matches!(node.op, Op::Cond { .. }) || node.op.bodies().into_iter().any(has_choices))
}

/// Whether two parts of a bundle differ in a tensor's elements at the most.
pub(super) fn is_alike(a: &Leaf<'_>, b: &Leaf<'_>) -> bool {
    matches!((a, b), (Leaf::Tensor(_), Leaf::Tensor(_))) || a.is_value(b)
}
