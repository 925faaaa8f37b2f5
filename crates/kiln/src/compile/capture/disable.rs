//! Parts of functions that are never captured.

use super::breaks::{BreakText, Cause, text_of_loop};
use super::compiled::tensors_of;
use super::{part, with_session};
use crate::tensor::bundle::{Bundle, Leaf, leaves_of};
use crate::tensor::tape::{self, Edges};
use crate::tensor::tracer::is_active;
use crate::{Error, Result, Tensor};
use kiln_ir::Source;
use std::marker::PhantomData;
use std::sync::Arc;

/// A function that always runs eagerly, also inside of compiled ones. See [`disable`].
pub struct Disabled<F, A, R> {
    f: Arc<F>,
    types: PhantomData<fn(&A) -> R>,
}

/// Excludes a function from compilation: inside of a compiled function there is a graph break before it, it is called at
/// every call, with tensors that have memory, and the graph continues with its results. It may print, count and read
/// elements.
///
/// ```
/// use kiln::{DType, Device, Tensor};
/// use std::sync::{Arc, atomic::{AtomicUsize, Ordering}};
/// let count = Arc::new(AtomicUsize::new(0));
/// let seen = count.clone();
/// let log = kiln::disable(move |x: &Tensor| {
///     seen.fetch_add(x.shape()[0], Ordering::Relaxed);
///     x.add(1.0)
/// });
/// let fast = kiln::compile(move |x: &Tensor| log.call(&x.mul(2.0)?)?.neg());
/// let x = Tensor::ones(3, DType::F32, Device::Cpu)?;
/// for _ in 0..4 {
///     assert_eq!(fast.call(&x)?.to_vec::<f32>()?, [-3.0; 3]);
/// }
/// assert_eq!(count.load(Ordering::Relaxed), 12);
/// # Ok::<(), kiln::Error>(())
/// ```
pub fn disable<F, A, R>(f: F) -> Disabled<F, A, R>
where
    F: Fn(&A) -> Result<R> + Send + Sync + 'static,
    A: Bundle + Send + Sync + 'static,
    R: Bundle + 'static,
{
    Disabled { f: Arc::new(f), types: PhantomData }
}

impl<F, A, R> Disabled<F, A, R>
where
    F: Fn(&A) -> Result<R> + Send + Sync + 'static,
    A: Bundle + Send + Sync + 'static,
    R: Bundle + 'static,
{
    /// Calls the function.
    #[track_caller]
    pub fn call(&self, arguments: &A) -> Result<R> {
        if !is_active() {
            return (self.f)(arguments);
        }
        let at = Source::caller();
        call_outside(self.f.clone(), arguments, BreakText::of(Cause::Disabled, &at), &at)
    }

    /// Calls what a loop is where it is no op of the graph, in the function being captured.
    pub(super) fn call_turns(&self, arguments: &A, at: &Source) -> Result<R> {
        call_outside(self.f.clone(), arguments, text_of_loop(at)?, at)
    }
}

/// Calls a function that is no part of the graph being captured, for the reason given: see [`disable`].
pub(super) fn outside<F, A, R>(f: F, arguments: &A, why: BreakText, at: &Source) -> Result<R>
where
    F: Fn(&A) -> Result<R> + Send + Sync + 'static,
    A: Bundle + Send + Sync + 'static,
    R: Bundle + 'static,
{
    call_outside(Arc::new(f), arguments, why, at)
}

fn call_outside<F, A, R>(f: Arc<F>, arguments: &A, why: BreakText, at: &Source) -> Result<R>
where
    F: Fn(&A) -> Result<R> + Send + Sync + 'static,
    A: Bundle + Send + Sync + 'static,
    R: Bundle + 'static,
{
    let at = at.clone();
    let template = arguments.map_tensors(&mut |tensor| tensor.clone());
    let leaves = leaves_of(arguments);
    let given = tensors_of(&leaves);
    let (tapes, taped) = part::tapes_of(&given);
    let (switch, line) = (tape::switch(), at.clone());
    let has_locals = with_session(&at, |session| Ok(session.recording.has_trainable_locals()))?;
    let run = move |tensors: &[Tensor]| {
        switch.within(|| {
            let entered = part::entering(tensors, &taped);
            // A backward pass lets go of the tapes that lead there.
            let slots = match has_locals {
                true => tape::local_slots(entered.iter().filter_map(Tensor::tape)),
                false => Vec::new(),
            };
            let mut tensors = entered.iter();
            let arguments = template.map_tensors(&mut |tensor| tensors.next().unwrap_or(tensor).clone());
            let value = f(&arguments)?;
            let rest = plain_bytes(&value);
            let tensors: Vec<Tensor> = tensors_of(&leaves_of(&value)).into_iter().cloned().collect();
            let locals = part::collected(&slots, &line)?;
            part::produce(value, &tensors.iter().collect::<Vec<_>>(), (&entered, &taped), &[], locals, rest, &line)
        })
    };
    let starts = tapes.len();
    let (whole, slot, traced, recording, gradients) = with_session(&at, |session| {
        let from = session.leave(&given, &why.because, &at)?;
        let (whole, slot) = session.outside(Arc::new(run), from, why, &at)?;
        let Ok(whole) = whole.downcast::<part::Whole<R>>() else {
            return Err(Error::NotAFunction { at: at.clone() });
        };
        // Numbers that it gave may be what it read.
        session.recording.has_read |= leaves_of(&whole.value).iter().any(Leaf::is_number);
        let traced = session.entered(&tensors_of(&leaves_of(&whole.value)), slot, &at)?;
        let collected: Vec<&Tensor> = whole.locals.iter().map(|(_, gradient)| gradient).collect();
        let collected = session.entered(&collected, slot + traced.len() + starts, &at)?;
        let var = |(number, _): &(u32, Tensor)| session.recording.local_var(*number);
        let gradients: Vec<_> = whole.locals.iter().map(var).zip(collected).collect();
        Ok((whole, slot, traced, session.recording.id, gradients))
    })?;
    for (var, gradient) in gradients {
        // What the function has dropped has no gradient that anybody asks for.
        if let Some(var) = var {
            var.add_grad(&gradient, &at)?;
        }
    }
    let edges: Edges = tapes.into_iter().map(Some).collect();
    let mut results = part::on_tape(&whole, traced, slot, Vec::new(), edges, recording).into_iter();
    Ok(whole.value.map_tensors(&mut |tensor| results.next().unwrap_or_else(|| tensor.clone())))
}

/// All of a result but the elements and sizes of its tensors, as bytes.
fn plain_bytes<R: Bundle>(value: &R) -> Vec<u8> {
    let mut rest = Vec::new();
    for leaf in leaves_of(value) {
        match leaf {
            Leaf::Tensor(tensor) => {
                rest.extend(tensor.dtype().to_string().bytes());
                rest.extend(tensor.rank().to_le_bytes());
            }
            Leaf::Bool(v) => rest.push(v as u8),
            Leaf::Int(v) => rest.extend(v.to_le_bytes()),
            Leaf::Float(v) => rest.extend(v.to_bits().to_le_bytes()),
            Leaf::Text(v) => rest.extend(v.bytes()),
            Leaf::Parts(n) => rest.extend(n.to_le_bytes()),
        }
        // No part runs into the next.
        rest.extend(rest.len().to_le_bytes());
    }
    rest
}
