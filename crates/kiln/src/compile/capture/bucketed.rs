//! Calls whose arguments are padded to [`Buckets`], and whose results are cut to what is valid.

use super::compiled::{Compiled, exact_guards, tensors_of};
use super::dynamic::{Plan, ROUNDS, SizeRequest, Verdict};
use super::guard::{self, Guard};
use super::recording::ResultLocation;
use super::stance::Stance;
use super::{Captured, Outcome, capture};
use crate::compile::buckets::{Buckets, Context, length};
use crate::tensor::bundle::{Bundle, Leaf, leaves_of};
use crate::tensor::dim::Scope;
use crate::{Error, Result, Tensor};
use kiln_ir::{Source, Symbol, TensorType};
use kiln_runtime::event::{self, Category, Event};
use std::sync::{Arc, PoisonError};

/// For each tensor of the results its axes that are cut, and the buckets they were padded by.
pub(super) type Cuts = Vec<Vec<(usize, usize)>>;

/// Cuts that are known, for arguments that pass guards.
pub(super) type KnownCuts = Vec<(Vec<Guard>, Arc<Cuts>)>;

/// Known cuts kept; beyond that all are found anew.
const CUTS_KEPT: usize = 256;

/// Padded arguments.
struct Padded<A> {
    arguments: A,
    /// By buckets.
    sizes: Vec<usize>,
    lengths: Vec<Tensor>,
}

impl<F, A: Bundle, R: Bundle, E: From<Error>> Compiled<F, A, R, E> {
    /// Calls the function with padded arguments.
    pub(super) fn call_padded(&self, arguments: &A, stance: Stance, at: &Source) -> Result<R, E> {
        let padded = self.pad(arguments, at)?;
        let _inside = self.context(&padded).enter();
        let cuts = self.cuts(&padded.arguments, &leaves_of(&padded.arguments), at)?;
        let result = self.call_with(&padded.arguments, &padded.lengths, stance, at)?;
        let (mut number, mut failure) = (0, None);
        let cut = result.map_tensors(&mut |tensor| {
            let mut tensor = tensor.clone();
            for &(axis, buckets) in cuts.get(number).map_or(&[][..], Vec::as_slice) {
                match tensor.narrow(axis, 0, padded.sizes[buckets]) {
                    Ok(cut) => tensor = cut,
                    Err(error) => failure = Some(error),
                }
            }
            number += 1;
            tensor
        });
        failure.map_or(Ok(cut), |error| Err(error.into()))
    }

    /// Makes the program for padded arguments without running it.
    pub(super) fn prepare_padded(&self, arguments: &A, at: &Source) -> Result<(), E> {
        let padded = self.pad(arguments, at)?;
        let _inside = self.context(&padded).enter();
        self.cuts(&padded.arguments, &leaves_of(&padded.arguments), at)?;
        self.prepare(&padded.arguments, &padded.lengths, at)
    }

    fn context(&self, padded: &Padded<A>) -> Context {
        Context {
            arguments: tensors_of(&leaves_of(&padded.arguments)).into_iter().cloned().collect(),
            buckets: self.options().buckets.clone(),
            lengths: padded.lengths.clone(),
        }
    }

    fn pad(&self, arguments: &A, at: &Source) -> Result<Padded<A>> {
        let leaves = leaves_of(arguments);
        let tensors = tensors_of(&leaves);
        let (mut sizes, mut lengths) = (Vec::new(), Vec::new());
        for buckets in &self.options().buckets {
            let size = size_of(buckets, &tensors, at)?;
            if buckets.size_for(size).is_none() {
                let text = format!("a size of {size} is beyond the buckets {:?} and is not padded", buckets.sizes());
                event::emit(Category::Perf, || Event::Slow { text, at: at.clone() });
            }
            let device = tensors.first().map_or(Default::default(), |tensor| tensor.device());
            lengths.push(length(size, device, at)?);
            sizes.push(size);
        }
        let (mut number, mut failure) = (0, None);
        let arguments = arguments.map_tensors(&mut |tensor| {
            number += 1;
            self.pad_one(tensor, number - 1, &sizes).unwrap_or_else(|error| {
                failure = Some(error);
                tensor.clone()
            })
        });
        match failure {
            Some(error) => Err(error),
            None => Ok(Padded { arguments, sizes, lengths }),
        }
    }

    fn pad_one(&self, tensor: &Tensor, number: usize, sizes: &[usize]) -> Result<Tensor> {
        let mut amounts = vec![(0i64, 0i64); tensor.rank()];
        let mut is_bucketed = false;
        for (buckets, &size) in self.options().buckets.iter().zip(sizes) {
            let axes = (0..tensor.rank()).filter(|&axis| buckets.is_at(number, axis, tensor.rank()));
            for axis in axes {
                let more = buckets.size_for(size).map_or(0, |bucket| bucket - size);
                amounts[tensor.rank() - 1 - axis].1 = i64::try_from(more).unwrap_or(i64::MAX);
                is_bucketed = true;
            }
        }
        match amounts.iter().any(|&(_, more)| more > 0) {
            true => tensor.pad(&amounts, 0.0),
            false if is_bucketed => tensor.contiguous(),
            false => Ok(tensor.clone()),
        }
    }

    /// Which axes of the results follow the padded ones: found by recording with symbols in their place.
    fn cuts(&self, arguments: &A, leaves: &[Leaf<'_>], at: &Source) -> Result<Arc<Cuts>, E> {
        let mut known = self.cuts.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = |guards: &[Guard]| guard::check(guards, leaves, &mut []).is_ok();
        if let Some((_, cuts)) = known.iter().find(|(guards, _)| fits(guards)) {
            return Ok(cuts.clone());
        }
        let cuts = Arc::new(self.find_cuts(arguments, leaves, at)?);
        if known.len() >= CUTS_KEPT {
            known.clear();
        }
        known.push((exact_guards(leaves), cuts.clone()));
        Ok(cuts)
    }

    fn find_cuts(&self, arguments: &A, leaves: &[Leaf<'_>], at: &Source) -> Result<Cuts, E> {
        let buckets = &self.options().buckets;
        let tensors = tensors_of(leaves);
        let wish = |tensor: usize, axis: usize, _: usize| {
            let place = buckets.iter().position(|buckets| buckets.is_at(tensor, axis, tensors[tensor].rank()))?;
            let name = Symbol::new(&format!("padded{place}"));
            Some(SizeRequest { key: (place, usize::MAX), name, least: 0, most: None })
        };
        let unknown = |why: &'static str| Error::Buckets { why: why.to_owned(), at: at.clone() };
        let Some(mut plan) = Plan::new(leaves, &wish).filter(Plan::has_symbols) else {
            return Err(unknown("no argument has buckets").into());
        };
        let f = |arguments: &A| (self.apply)(&self.f, arguments);
        for _ in 0..ROUNDS {
            let types = plan.types();
            plan.scope().enter();
            let outcome = capture(&f, arguments, Some(&types), None, at);
            let scope = Scope::leave().ok_or_else(|| Error::Escaped { at: at.clone() })?;
            let captured = match outcome {
                Ok(Outcome::Whole(captured)) => Some(captured),
                Ok(Outcome::Broken(broken, _)) if scope.outcome().is_none() => {
                    let why =
                        format!("the function {}, so which results follow padded sizes is not known", broken.what);
                    return Err(Error::Buckets { why, at: broken.at }.into());
                }
                Ok(Outcome::Broken(..)) => None,
                Err(error) if scope.outcome().is_none() => return Err(error),
                Err(_) => None,
            };
            match plan.judge(
                &scope,
                captured.as_ref().map(|captured| [&*captured.last.graph]).as_ref().map(|graphs| &graphs[..]),
                at,
            ) {
                Verdict::Again => {}
                Verdict::Good(..) => {
                    let captured = captured.ok_or_else(|| Error::Escaped { at: at.clone() })?;
                    return Ok(cuts_of(&captured, &plan, buckets.len(), &types, at)?);
                }
                Verdict::No => {
                    let at = scope.outcome().map_or(at, |outcome| outcome.at()).clone();
                    let why = "the function asks for a padded size as a number (`size` gives one to compute with), \
                               so which results follow it is not known";
                    return Err(Error::Buckets { why: why.to_owned(), at }.into());
                }
            }
        }
        Err(unknown("padded sizes depend on one another").into())
    }
}

fn cuts_of<R>(captured: &Captured<R>, plan: &Plan, buckets: usize, types: &[TensorType], at: &Source) -> Result<Cuts> {
    let graph = &captured.last.graph;
    let mut cuts = Vec::with_capacity(captured.returned.places.len());
    for (number, place) in captured.returned.places.iter().enumerate() {
        let ty = match place {
            ResultLocation::Argument(argument) => types.get(*argument),
            ResultLocation::Slot(slot) if *slot < captured.last.outputs => {
                graph.outputs().get(*slot).map(|output| graph.ty(output.node))
            }
            ResultLocation::Slot(slot) => {
                let kept = captured.last.kept.get(slot - captured.last.outputs);
                kept.and_then(|&input| graph.inputs().get(input)).map(|&node| graph.ty(node))
            }
            ResultLocation::Itself => None,
        };
        let mut cut = Vec::new();
        for (axis, size) in ty.iter().flat_map(|ty| ty.shape.iter().enumerate()) {
            if let Some(place) = (0..buckets).find(|&place| plan.dim(place) == Some(size)) {
                cut.push((axis, place));
            } else if size.as_const().is_none() {
                let why = format!(
                    "axis {axis} of result {number} has {size} places, of which padding cannot be cut off: \
                     results have padded axes as they are"
                );
                return Err(Error::Buckets { why, at: at.clone() });
            }
        }
        cuts.push(cut);
    }
    Ok(cuts)
}

/// The size that is to be padded.
fn size_of(buckets: &Buckets, tensors: &[&Tensor], at: &Source) -> Result<usize> {
    let wrong = |why: String| Error::Buckets { why, at: at.clone() };
    let mut found = None;
    for (tensor, axis) in buckets.places(tensors) {
        let Some(axis) = axis else {
            return Err(wrong(format!("the arguments have no tensor {tensor} with the axis that has buckets")));
        };
        let size = tensors[tensor].shape()[axis];
        match found {
            Some(other) if other != size => {
                return Err(wrong(format!("axis {axis} of tensor {tensor} is {size}, but {other} elsewhere")));
            }
            _ => found = Some(size),
        }
    }
    found.ok_or_else(|| wrong("it is not said of what they are (`Buckets::at`)".to_owned()))
}
