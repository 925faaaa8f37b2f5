//! Loops until a condition fails: [`while_loop`].

use super::breaks::Cause;
use super::compiled::{compile, tensors_of};
use super::cond::cond;
use super::disable::disable;
use super::loops::{
    Body, CompiledBody, Part, carries_gradients, has_bounds, has_conditional_loops, is_alike, mapped, record_body,
    refused, with_bounds,
};
use crate::tensor::bundle::{Bundle, Leaf, leaves_of};
use crate::tensor::eager::{self, Operation};
use crate::tensor::tape;
use crate::tensor::tracer::is_active;
use crate::{DType, Device, Error, Result, Tensor};
use kiln_ir::build::{Emit, GraphBuilder};
use kiln_ir::{Dim, NodeId, Op, Region, Source, TensorType};
use std::sync::Arc;

/// A loop until a condition fails. See [`while_loop`].
pub struct WhileLoop<C> {
    turns: Arc<Turns<C>>,
    /// The loop by itself, for calls outside of compiled functions.
    whole: CompiledBody<C, C>,
}

/// A loop, and what it is made of where it is no op of a graph.
struct Turns<C> {
    part: Arc<Part<C, C>>,
    first: Arc<CompiledBody<C, Tensor>>,
    body: Arc<CompiledBody<C, (C, Tensor)>>,
    /// The most turns that gradients go through as an op.
    bound: Option<usize>,
}

/// Makes a loop: `body` turns what is carried into what is carried on, as long as `condition`, a bool tensor of one element, is true.
/// It is an op of the graph, with gradients if the number of its turns is [bounded](WhileLoop::bounded); where it cannot be one, body and condition
/// are compiled once, together, and run turn by turn.
///
/// ```
/// use kiln::{Device, Tensor};
/// let halve = kiln::while_loop(|x: &Tensor| x.amax(..)?.gt(1.0), |x: &Tensor| x.mul(0.5));
/// let fast = kiln::compile(move |x: &Tensor| halve.call(x.abs()?)?.neg());
/// assert_eq!(fast.call(&Tensor::new([-8f32, 3.0], Device::Cpu)?)?.to_vec::<f32>()?, [-1.0, -0.375]);
/// assert_eq!(fast.call(&Tensor::new([0.5f32, 0.25], Device::Cpu)?)?.to_vec::<f32>()?, [-0.5, -0.25]);
/// assert_eq!((fast.stats().compiles, fast.stats().breaks), (1, 0));
/// # Ok::<(), kiln::Error>(())
/// ```
pub fn while_loop<C, F, G>(condition: F, body: G) -> WhileLoop<C>
where
    F: Fn(&C) -> Result<Tensor> + Send + Sync + 'static,
    G: Fn(&C) -> Result<C> + Send + Sync + 'static,
    C: Bundle + Send + Sync + 'static,
{
    let condition = Arc::new(condition);
    let first: Body<C, Tensor> = Box::new({
        let condition = condition.clone();
        move |carried| condition(carried)
    });
    let first = Arc::new(compile(first));
    let turn: Body<C, (C, Tensor)> = Box::new(move |carried| {
        let next = body(carried)?;
        let goes_on = condition(&next)?;
        Ok((next, goes_on))
    });
    let body = Arc::new(compile(turn));
    let (begin, own) = (first.clone(), body.clone());
    let part: Body<C, C> = Box::new(move |carried| {
        let mut now = carried.map_tensors(&mut |tensor| tensor.clone());
        let mut goes_on = begin.call(&now)?;
        while goes_on.item::<bool>()? {
            (now, goes_on) = own.call(&now)?;
        }
        Ok(now)
    });
    WhileLoop::of(Turns { part: Arc::new(disable(part)), first, body, bound: None })
}

impl<C: Bundle + Send + Sync + 'static> WhileLoop<C> {
    fn of(turns: Turns<C>) -> WhileLoop<C> {
        let turns = Arc::new(turns);
        let own = turns.clone();
        let whole: Body<C, C> = Box::new(move |carried| own.run(carried, &Source::caller()));
        WhileLoop { turns, whole: compile(whole) }
    }

    /// The same loop as an op of the graph where gradients go through it, too, of at most so many turns. Turns run as long as the condition holds,
    /// in a few chunks that grow; memory for what each turn of the longest chunk finds is there at every call. Where gradients go through it
    /// and it has not ended after so many turns, its floats are NaN, and what is no float is that of the last turn within the bound. Without
    /// gradients the bound says nothing.
    ///
    /// ```
    /// use kiln::{Device, Tensor, Var};
    /// let halve = kiln::while_loop(|x: &Tensor| x.amax(..)?.gt(1.0), |x: &Tensor| x.mul(0.5)).bounded(16);
    /// let x = Var::new(&Tensor::new([8f32, 3.0], Device::Cpu)?).requires_grad(true);
    /// let own = x.clone();
    /// let step = kiln::compile(move |scale: &Tensor| halve.call(own.get().mul(scale)?)?.sum(..)?.backward());
    /// step.call(&Tensor::new(1f32, Device::Cpu)?)?;
    /// assert_eq!(x.grad().expect("a gradient").to_vec::<f32>()?, [0.125, 0.125]);
    /// assert_eq!((step.stats().compiles, step.stats().breaks), (1, 0));
    /// # Ok::<(), kiln::Error>(())
    /// ```
    #[must_use]
    pub fn bounded(self, turns: usize) -> WhileLoop<C> {
        let Turns { part, first, body, .. } = &*self.turns;
        let (part, first, body) = (part.clone(), first.clone(), body.clone());
        WhileLoop::of(Turns { part, first, body, bound: Some(turns) })
    }

    /// Runs the loop; gives what the last turn carried on.
    #[track_caller]
    pub fn call(&self, carried: C) -> Result<C> {
        let at = Source::caller();
        if is_active() {
            return self.turns.run(&carried, &at);
        }
        // Gradients go turn by turn where it is known that it will not be an op.
        match self.turns.bound.is_none() && tape::is_recorded(&tensors_of(&leaves_of(&carried))) {
            true => self.turns.part.call(&carried),
            false => self.whole.call_at(&carried, at),
        }
    }

    /// Returns the counters of the body where it runs turn by turn.
    pub fn stats(&self) -> super::Stats {
        self.turns.body.stats()
    }
}

impl<C: Bundle + Send + Sync + 'static> Turns<C> {
    fn run(&self, carried: &C, at: &Source) -> Result<C> {
        match self.record(carried, at)? {
            Some(last) => Ok(last),
            None => self.part.call_turns(carried, at),
        }
    }

    /// Records the loop as an op, if it can be one.
    fn record(&self, carried: &C, at: &Source) -> Result<Option<C>> {
        let own = leaves_of(carried);
        let given = tensors_of(&own);
        let Some(device) = given.first().map(|tensor| tensor.device()) else { return refused(Cause::Lengths, at) };
        let is_plain = |tensor: &&Tensor| tensor.device() == device && tensor.dtype() != DType::I4;
        if !given.iter().all(is_plain) {
            return refused(Cause::Places, at);
        }
        // No tape is seen from within a body: whoever records that says whether gradients go through it.
        if carries_gradients(&given, at)? || self.bound.is_some() && tape::is_enabled() && has_bounds(at)? {
            return self.record_bounded(carried, device, at);
        }
        let Some(goes_on) = flag((self.first.inner())(carried)?)? else { return refused(Cause::Condition, at) };
        let mut types: Vec<TensorType> = given.iter().map(|tensor| tensor.ty()).collect();
        types.push(goes_on.ty());
        let mut body = |tensors: &[Tensor]| {
            let mut tensors = tensors.iter();
            let (next, goes_on) =
                (self.body.inner())(&carried.map_tensors(&mut |tensor| tensors.next().unwrap_or(tensor).clone()))?;
            let after = leaves_of(&next);
            let alike = |(a, b): (&Leaf<'_>, &Leaf<'_>)| is_alike(a, b);
            let is_same = after.len() == own.len() && own.iter().zip(&after).all(alike);
            let Some(goes_on) = flag(goes_on)?.filter(|_| is_same) else { return Ok(None) };
            Ok(Some(tensors_of(&after).into_iter().cloned().chain([goes_on]).collect()))
        };
        let count = types.len();
        let Some((graph, captured)) = record_body(types, count, &given, device, &mut body, at)? else {
            return Ok(None);
        };
        let operands: Vec<&Tensor> = given.iter().copied().chain([&goes_on]).chain(&captured).collect();
        let is_here = operands.iter().all(|tensor| tensor.device() == device);
        if !is_here {
            return refused(Cause::Places, at);
        }
        if graph.outputs().len() != count {
            return refused(Cause::Unlike, at);
        }
        if carries_gradients(&operands, at)? {
            return self.record_bounded(carried, device, at);
        }
        let region = Arc::new(Region::conditional(graph));
        let write = |b: &mut GraphBuilder, operands: &[NodeId]| {
            let result = |result: usize| b.emit(Op::Loop { region: region.clone(), result }, operands);
            (0..count - 1).map(result).collect::<Result<Vec<NodeId>, kiln_ir::Error>>()
        };
        let op = Op::Loop { region: region.clone(), result: 0 };
        let mut results = eager::run(Operation::Op(&op), &operands, device, &write, at)?.into_iter();
        Ok(Some(carried.map_tensors(&mut |tensor| results.next().unwrap_or_else(|| tensor.clone()))))
    }

    /// Records the loop as one of as many turns as there may be, each of which does nothing once the condition has failed.
    fn record_bounded(&self, carried: &C, device: Device, at: &Source) -> Result<Option<C>> {
        let Some(bound) = self.bound else { return refused(Cause::Unbounded, at) };
        let own = leaves_of(carried);
        let given = tensors_of(&own);
        let Some(goes_on) = flag((self.first.inner())(carried)?)? else { return refused(Cause::Condition, at) };
        let mut types: Vec<TensorType> = given.iter().map(|tensor| tensor.ty()).collect();
        types.push(goes_on.ty());
        let count = types.len();
        let mut body = |tensors: &[Tensor]| {
            let Some((now, state)) = tensors.split_last() else { return Ok(None) };
            let mut state = state.iter();
            let state = carried.map_tensors(&mut |tensor| state.next().unwrap_or(tensor).clone());
            let turn = || {
                let (next, goes_on) = (self.body.inner())(&state)?;
                Ok((next, goes_on.reshape(())?))
            };
            let same = || Ok((state.map_tensors(&mut |tensor| tensor.clone()), now.clone()));
            let (next, goes_on) = match cond(now, turn, same) {
                // The states of turns differ in more than elements.
                Err(Error::Cond { .. }) => return Ok(None),
                chosen => chosen?,
            };
            Ok(Some(tensors_of(&leaves_of(&next)).into_iter().cloned().chain([goes_on]).collect()))
        };
        let recorded = with_bounds(at, || record_body(types, count, &given, device, &mut body, at))?;
        let Some((graph, captured)) = recorded else { return Ok(None) };
        let operands: Vec<&Tensor> = given.iter().copied().chain([&goes_on]).chain(&captured).collect();
        if !operands.iter().all(|tensor| tensor.device() == device) {
            return refused(Cause::Places, at);
        }
        if has_conditional_loops(&graph) {
            return refused(Cause::Unbounded, at);
        }
        let chunk = |turns: usize, state: &[Tensor]| {
            let region = Region::new(graph.clone(), Dim::from(turns), count, 0, false);
            let region = kiln_passes::with_states(&Arc::new(region));
            let write = |b: &mut GraphBuilder, operands: &[NodeId]| {
                let result = |result: usize| b.emit(Op::Loop { region: region.clone(), result }, operands);
                (0..count).map(result).collect::<Result<Vec<NodeId>, kiln_ir::Error>>()
            };
            let op = Op::Loop { region: region.clone(), result: 0 };
            let operands: Vec<&Tensor> = state.iter().chain(&captured).collect();
            eager::run(Operation::Op(&op), &operands, device, &write, at)
        };
        let mut results: Vec<Tensor> = given.iter().copied().chain([&goes_on]).cloned().collect();
        for (number, turns) in chunks(bound).into_iter().enumerate() {
            let Some(goes_on) = results.last().filter(|_| number > 0) else {
                results = chunk(turns, &results)?;
                continue;
            };
            results = match cond(goes_on, || chunk(turns, &results), || Ok(results.clone())) {
                Err(Error::Cond { .. }) => return refused(Cause::Unlike, at),
                chosen => chosen?,
            };
        }
        let Some(is_unfinished) = results.pop() else { return refused(Cause::Unlike, at) };
        let mut results = results.into_iter();
        let last = carried.map_tensors(&mut |tensor| results.next().unwrap_or_else(|| tensor.clone()));
        mapped(&last, |tensor| match tensor.dtype().is_float() {
            true => is_unfinished.where_(Tensor::full((), f64::NAN, tensor.dtype(), device)?, tensor),
            false => Ok(tensor.clone()),
        })
        .map(Some)
    }
}

/// Turns of the first chunk of a bounded loop, and how many times as long each is as the one before.
const FIRST_TURNS: usize = 8;
const GROWTH: usize = 8;

/// The chunks of a bounded loop, of so many turns each. Once the condition has failed, turns of its chunk do nothing but look at it, and
/// later chunks are passed over as a whole, forward and backward.
fn chunks(bound: usize) -> Vec<usize> {
    let (mut left, mut next, mut chunks) = (bound, FIRST_TURNS, Vec::new());
    while left > 0 {
        // What is left over would be a short chunk after long ones.
        let turns = if left <= next.saturating_mul(2) { left } else { next };
        chunks.push(turns);
        (left, next) = (left - turns, next.saturating_mul(GROWTH));
    }
    chunks
}

/// The condition of a loop, if it is a bool of one element.
fn flag(goes_on: Tensor) -> Result<Option<Tensor>> {
    match (goes_on.dtype(), goes_on.elements()) {
        (DType::Bool, 1) => goes_on.reshape(()).map(Some),
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::chunks;

    #[test]
    fn chunks_grow_and_cover_the_bound() {
        assert_eq!((chunks(0), chunks(5), chunks(16)), (vec![], vec![5], vec![16]));
        assert_eq!((chunks(17), chunks(150)), (vec![8, 9], vec![8, 64, 78]));
        assert_eq!(chunks(5000), [8, 64, 512, 4416]);
        assert!((1..4000).all(|bound| chunks(bound).iter().sum::<usize>() == bound));
    }
}
