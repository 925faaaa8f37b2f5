//! Gradients through disabled parts of a function being captured.
//!
//! ```text
//!  captured:  h ──▶ ┌ part ┐ ──▶ y ──▶ loss ──▶ cotangent of y ──▶ ┌ its gradient ┐ ──▶ cotangents of h and of variables inside
//!  each call:       └ eager┘ tape of y, from h on                  └ walks the tape┘
//! ```
//!
//! A part runs eagerly at every call, and so does its gradient: it is another part, which walks the tape that the part left, from
//! its results to its arguments and to the variables it read. The function being captured sees one operation on its own tape, so
//! that gradients go on before the part as after any other. The gradient of the gradient is again a part of the same kind.

use super::breaks::{BreakText, Cause, Refusal};
use super::driver::Driver;
use super::segment::InputSource;
use super::tree::{BranchGuard, Outside, Produced, TraceStep};
use super::{Session, segment, with_session};
use crate::autograd::backward::{Targets, propagate};
use crate::tensor::autocast;
use crate::tensor::tape::{self, CustomGradient, Edges, Tape};
use crate::tensor::var::Slot;
use crate::{Error, Result, Tensor, Var, no_grad};
use kiln_ir::{BinaryOp, Source, TensorType};
use std::any::Any;
use std::rc::Rc;
use std::sync::Arc;

/// A disabled part, as the tape of the function being captured knows it. Its node has an edge for each of `cuts`, and then one
/// for each of `variables`.
struct Part {
    recording: u32,
    /// The slots of its results.
    results: Vec<usize>,
    /// The slots of its arguments as it saw them: its tape is walked so far.
    cuts: Vec<usize>,
    /// The variables that it read, as far as its results depend on them.
    variables: Vec<Var>,
}

/// What a part gave, apart from the elements.
pub(super) struct Whole<R> {
    pub(super) value: R,
    /// For each tensor of it which tape it is on.
    tapes: Vec<Option<On>>,
    /// For each tape of its arguments whether it let go of it.
    released: Vec<bool>,
    variables: Vec<Var>,
    /// What it added to gradients of variables that the captured function made, by their numbers. These tensors follow those of
    /// the arguments' tapes.
    pub(super) locals: Vec<(u32, Tensor)>,
}

/// The tape that a result of a part is on.
#[derive(Debug, Clone, Copy, PartialEq)]
enum On {
    /// That of the part itself, as this result: the first of those that are the same.
    Own(usize),
    /// That of the argument of this number, which it is.
    Argument(usize),
    /// That of this variable, whose value it is.
    Variable(usize),
}

/// The arguments of a part, as it gets them. `taped` says of each which tape of the function being captured it is on, by number:
/// one that is on none here, because only the captured function knows of it, starts one.
pub(super) fn entering(given: &[Tensor], taped: &[Option<usize>]) -> Vec<Tensor> {
    let mut starts: Vec<(usize, Tape)> = Vec::new();
    let mut enter = |(tensor, taped): (&Tensor, &Option<usize>)| {
        let Some(number) = *taped else { return tensor.detached() };
        if tensor.has_tape() || !tape::is_enabled() {
            return tensor.clone();
        }
        let known = starts.iter().find(|(known, _)| *known == number).map(|(_, tape)| tape.clone());
        let tape = known.unwrap_or_else(|| {
            starts.push((number, Tape::start()));
            starts[starts.len() - 1].1.clone()
        });
        tensor.with_tape(Some(tape))
    };
    given.iter().zip(taped).map(&mut enter).collect()
}

/// The tapes of the function being captured that tensors are on, each once, and for each tensor the number of its own.
pub(super) fn tapes_of(tensors: &[&Tensor]) -> (Vec<Tape>, Vec<Option<usize>>) {
    let mut tapes: Vec<Tape> = Vec::new();
    let number = |tensor: &&Tensor| {
        let tape = tensor.tape()?;
        Some(tapes.iter().position(|known| known.same(tape)).unwrap_or_else(|| {
            tapes.push(tape.clone());
            tapes.len() - 1
        }))
    };
    let numbers = tensors.iter().map(number).collect();
    (tapes, numbers)
}

/// What a part gave: its tensors and then an argument for each tape that arguments are on, which go to slots, and as bytes
/// whatever else the function after it may depend on. `rest` are those of the value itself; `before` are tapes that it went on
/// from, `locals` is what it added to gradients of variables that the captured function made.
pub(super) fn produce<R: 'static>(
    value: R,
    tensors: &[&Tensor],
    (entered, taped): (&[Tensor], &[Option<usize>]),
    before: &[Tensor],
    locals: Vec<(u32, Tensor)>,
    mut rest: Vec<u8>,
    at: &Source,
) -> Result<Produced> {
    let is_first = |place: usize| taped[place].is_some() && !taped[..place].contains(&taped[place]);
    let starts: Vec<&Tensor> =
        (0..entered.len()).filter(|&place| is_first(place)).map(|place| &entered[place]).collect();
    let cuts: Vec<Option<&Tape>> = before.iter().chain(starts.iter().copied()).map(Tensor::tape).collect();
    let released: Vec<bool> = cuts.iter().map(|cut| cut.is_some_and(Tape::is_released)).collect();
    let mut kept = Vec::with_capacity(tensors.len() + starts.len());
    for tensor in tensors {
        // The same elements in row-major order are on the same tape.
        kept.push(no_grad(|| tensor.contiguous_at(at))?.with_tape(tensor.tape().cloned()));
    }
    let variables = tape::variables(tensors.iter().filter_map(|tensor| tensor.tape()), cuts.iter().flatten());
    let on = |tensor: &&Tensor| {
        let tape = tensor.tape()?;
        let is = |other: &Tape| other.same(tape);
        let own = || tensors.iter().position(|other| other.tape().is_some_and(is)).map(On::Own);
        let variable = || variables.iter().position(|var| is(&var.leaf())).map(On::Variable);
        cuts.iter().position(|cut| cut.is_some_and(is)).map(On::Argument).or_else(variable).or_else(own)
    };
    let tapes: Vec<Option<On>> = tensors.iter().map(on).collect();
    rest.extend(format!("{tapes:?} {released:?}").bytes());
    rest.extend(variables.iter().flat_map(|var| var.id().to_le_bytes()));
    kept.extend(starts.into_iter().cloned());
    rest.extend(locals.iter().flat_map(|(number, _)| number.to_le_bytes()));
    kept.extend(locals.iter().map(|(_, gradient)| gradient.clone()));
    Ok(Produced { tensors: kept, rest, whole: Rc::new(Whole { value, tapes, released, variables, locals }) })
}

/// What was collected in these slots, a tensor a variable: it is taken out of them.
pub(super) fn collected(slots: &[Arc<Slot>], at: &Source) -> Result<Vec<(u32, Tensor)>> {
    let mut found: Vec<(u32, Tensor)> = slots.iter().filter_map(|slot| slot.take_local()).collect();
    found.sort_by_key(|(number, _)| *number);
    let mut sums: Vec<(u32, Tensor)> = Vec::with_capacity(found.len());
    for (number, gradient) in found {
        let gradient = no_grad(|| gradient.contiguous_at(at))?.detached();
        match sums.last_mut().filter(|(known, _)| *known == number) {
            Some((_, sum)) => *sum = sum.binary("add", BinaryOp::Add, (&gradient).into(), false, at)?,
            None => sums.push((number, gradient)),
        }
    }
    Ok(sums)
}

impl Session {
    /// Makes sure that tensors have memory and that everything recorded so far has run, variables included: what follows runs
    /// outside of any graph. Says where the tensors are.
    pub(super) fn leave(&mut self, tensors: &[&Tensor], why: &Refusal, at: &Source) -> Result<Vec<InputSource>> {
        for tensor in tensors {
            self.recording.value_of(tensor, at)?;
        }
        self.may_break(why.cause, &why.at)?;
        let recorded = self.recording.end_segment(at)?;
        self.may_break(why.cause, &why.at)?.segment(recorded, at)?;
        tensors.iter().map(|tensor| self.settle(tensor, why.cause, at)).collect()
    }

    /// The driver, if the function may leave the graph here.
    pub(super) fn may_break(&mut self, cause: Cause, at: &Source) -> Result<&mut Driver> {
        self.recording.must_not_be_in_body(cause, at)?;
        self.recording.must_not_have_failed()?;
        let what = cause.what();
        self.driver.as_mut().filter(|driver| driver.may_break()).ok_or_else(|| {
            let broken = super::Break { what, at: at.clone() };
            self.recording.broken.get_or_insert(broken);
            Error::GraphBreak { what, at: at.clone() }
        })
    }

    /// Runs something outside of any graph. Says what it gave, and the slot of its first tensor.
    pub(super) fn outside(
        &mut self,
        run: Outside,
        from: Vec<InputSource>,
        why: BreakText,
        at: &Source,
    ) -> Result<(Rc<dyn Any>, usize)> {
        let Session { recording, driver: Some(driver) } = self else { return Err(Error::Escaped { at: at.clone() }) };
        // At later calls nobody enters the region that it is called in.
        let region = autocast::current();
        let run: Outside = Arc::new(move |tensors: &[Tensor]| autocast::within(region, || run(tensors)));
        let (whole, count) =
            driver.outside(TraceStep::Outside { run, from, is_pure: false, why: Arc::new(why), at: at.clone() }, at)?;
        driver.ask(BranchGuard::Outside, at)?;
        // It may have changed any of them.
        recording.settings.clear();
        recording.note_change();
        Ok((whole, recording.take_slots(count)))
    }

    /// Traced tensors for what a part gave, from this slot on: each with its number, without tapes.
    pub(super) fn entered(&mut self, tensors: &[&Tensor], slot: usize, at: &Source) -> Result<Vec<Tensor>> {
        self.entered_of_data(tensors, slot, None, at)
    }

    fn entered_of_data(
        &mut self,
        tensors: &[&Tensor],
        slot: usize,
        most: Option<Option<usize>>,
        at: &Source,
    ) -> Result<Vec<Tensor>> {
        let Session { recording, driver: Some(driver) } = self else { return Err(Error::Escaped { at: at.clone() }) };
        let types = driver.slot_types(tensors, slot, most, at)?;
        let enter = |((number, tensor), ty): ((usize, &&Tensor), TensorType)| {
            let from = segment::InputSource::Slot(slot + number);
            recording.outside(from, ty, tensor.device(), None, at)
        };
        tensors.iter().enumerate().zip(types).map(enter).collect()
    }

    /// What `compute` gives for a tensor: the size of its first axis depends on elements, and is `most` at the most.
    pub(super) fn sized_by_data(
        &mut self,
        operand: &Tensor,
        compute: fn(&Tensor, &Source) -> Result<Tensor>,
        most: Option<usize>,
        at: &Source,
    ) -> Result<Tensor> {
        let from = vec![self.settle(operand, Cause::SizeOfData, at)?];
        let line = at.clone();
        let run = move |tensors: &[Tensor]| {
            let made = no_grad(|| compute(&tensors[0], &line))?;
            Ok(Produced { tensors: vec![made.clone()], rest: Vec::new(), whole: Rc::new(made) })
        };
        let Session { recording, driver: Some(driver) } = self else { return Err(Error::Escaped { at: at.clone() }) };
        let why = Arc::new(BreakText::of(Cause::SizeOfData, at));
        let step = TraceStep::Outside { run: Arc::new(run), from, is_pure: true, why, at: at.clone() };
        let (whole, count) = driver.outside(step, at)?;
        let slot = recording.take_slots(count);
        let Ok(made) = whole.downcast::<Tensor>() else { return Err(Error::NotAFunction { at: at.clone() }) };
        Ok(self.entered_of_data(&[&made], slot, Some(most), at)?.swap_remove(0))
    }
}

/// Puts what a part gave on the tape of the function being captured. The first `results` slots are those of `tensors`, the next
/// those of its arguments on the tape, whose tapes in the function are `edges`; `cuts` were there before.
pub(super) fn on_tape<R>(
    whole: &Whole<R>,
    tensors: Vec<Tensor>,
    slot: usize,
    mut cuts: Vec<usize>,
    mut edges: Edges,
    recording: u32,
) -> Vec<Tensor> {
    let first = slot + tensors.len();
    cuts.extend(first..first + edges.len() - cuts.len());
    let arguments = edges.clone();
    for (edge, _) in arguments.iter().zip(&whole.released).filter(|(_, released)| **released) {
        edge.iter().for_each(Tape::release);
    }
    edges.extend(whole.variables.iter().map(|var| Some(var.leaf())));
    let results = (slot..first).collect();
    let tape = Tape::of_custom(Box::new(Part { recording, results, cuts, variables: whole.variables.clone() }), edges);
    let put = |(number, tensor): (usize, Tensor)| match whole.tapes[number] {
        Some(On::Own(result)) => tensor.with_tape(Some(tape(result))),
        Some(On::Argument(argument)) => tensor.with_tape(arguments[argument].clone()),
        Some(On::Variable(variable)) => tensor.with_tape(Some(whole.variables[variable].leaf())),
        None => tensor,
    };
    tensors.into_iter().enumerate().map(put).collect()
}

impl CustomGradient for Part {
    fn gradient(
        &self,
        _: &Arc<tape::Node>,
        edges: &Edges,
        cotangents: &[Option<Tensor>],
        at: &Source,
    ) -> Result<Vec<Option<Tensor>>> {
        gradient_of_part(self, edges, cotangents, at)
    }
}

/// The cotangents of what a part depends on, an edge each, given those of its results.
#[cold]
fn gradient_of_part(
    part: &Part,
    edges: &Edges,
    cotangents: &[Option<Tensor>],
    at: &Source,
) -> Result<Vec<Option<Tensor>>> {
    let why = BreakText::of(Cause::GradientOfPart, at);
    let given: Vec<&Tensor> = cotangents.iter().flatten().collect();
    let (tapes, taped) = tapes_of(&given);
    let records = tape::is_enabled();
    let (results, cuts, variables) = (given.len(), part.cuts.len(), part.variables.clone());
    let line = at.clone();
    let run = move |tensors: &[Tensor]| {
        let (ends, rest) = tensors.split_at(results);
        let (cuts, cotangents) = rest.split_at(cuts);
        // As the walk is recorded, and not as the caller is: gradients of gradients are within `no_grad`, too.
        let seeds = tape::with_enabled(records, || entering(cotangents, &taped));
        // One that is on no tape here is reached by nothing.
        let place = |cut: &Tensor| cut.tape().cloned().unwrap_or_else(Tape::start);
        let mut places: Vec<Tape> = cuts.iter().map(place).collect();
        let count = places.len();
        places.extend(variables.iter().map(Var::leaf));
        let start = |(end, seed): (&Tensor, &Tensor)| Some((end.tape()?.clone(), seed.clone()));
        let device = ends.first().map_or(Default::default(), Tensor::device);
        let found = tape::with_enabled(records, || {
            let ends = ends.iter().zip(&seeds).filter_map(start).collect();
            propagate(ends, &Targets::Cut(&places, count), device, &line)
        })?;
        let rest = found.iter().map(|found| found.is_some() as u8).collect();
        let tensors: Vec<Tensor> = found.iter().flatten().cloned().collect();
        produce(found, &tensors.iter().collect::<Vec<_>>(), (&seeds, &taped), cuts, Vec::new(), rest, &line)
    };
    let (whole, slot, traced) = with_session(at, |session| {
        if session.recording.id != part.recording {
            return Err(Error::Escaped { at: at.clone() });
        }
        let settled = session.leave(&given, &why.because, at)?;
        let present = part.results.iter().zip(cotangents).filter(|(_, cotangent)| cotangent.is_some());
        let mut from: Vec<InputSource> = present.map(|(&slot, _)| InputSource::Slot(slot)).collect();
        from.extend(part.cuts.iter().map(|&slot| InputSource::Slot(slot)));
        from.extend(settled);
        let (whole, slot) = session.outside(Arc::new(run), from, why, at)?;
        let Ok(whole) = whole.downcast::<Whole<Vec<Option<Tensor>>>>() else {
            return Err(Error::NotAFunction { at: at.clone() });
        };
        let tensors: Vec<&Tensor> = whole.value.iter().flatten().collect();
        let traced = session.entered(&tensors, slot, at)?;
        Ok((whole, slot, traced))
    })?;
    let mut before: Edges = edges[..cuts].to_vec();
    before.extend(tapes.into_iter().map(Some));
    let mut traced = on_tape(&whole, traced, slot, part.cuts.clone(), before, part.recording).into_iter();
    Ok(whole.value.iter().map(|found| found.as_ref().and_then(|_| traced.next())).collect())
}

/// Gives a cotangent of an argument of the function being captured to the tape that the argument is on.
#[cold]
pub(super) fn backward_of_argument(argument: usize, cotangent: &Tensor, at: &Source) -> Result<()> {
    let why = BreakText::of(Cause::GradientOutside, at);
    let line = at.clone();
    let run = move |tensors: &[Tensor]| {
        if let [argument, cotangent] = tensors
            && let Some(tape) = argument.tape()
        {
            let ends = vec![(tape.clone(), cotangent.detached())];
            tape::with_enabled(false, || propagate(ends, &Targets::Variables, argument.device(), &line))?;
        }
        produce((), &[], (&[], &[]), &[], Vec::new(), Vec::new(), &line)
    };
    with_session(at, |session| {
        let mut from = vec![InputSource::Argument(argument)];
        from.extend(session.leave(&[cotangent], &why.because, at)?);
        session.outside(Arc::new(run), from, why, at).map(drop)
    })
}
