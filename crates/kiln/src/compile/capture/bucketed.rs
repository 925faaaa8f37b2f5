//! Calls whose arguments are padded to [`Buckets`], and whose results are cut to what is valid.

use super::broken::graphs;
use super::call::Ends;
use super::compiled::{Compiled, exact_guards, tensors_of};
use super::driver::{Driver, Ran};
use super::dynamic::{Plan, ROUNDS, SizeHome, SizeRequest, Verdict};
use super::guard::{self, Guard};
use super::recording::ResultLocation;
use super::segment::{InputSource, SegmentGraph};
use super::stance::Stance;
use super::tree::{Execution, Returned, TraceStep};
use super::{Captured, Outcome, capture};
use crate::compile::buckets::{Buckets, Context, length};
use crate::tensor::bundle::{Bundle, Leaf, leaves_of};
use crate::tensor::dim::{self, Scope};
use crate::{Error, Result, Tensor};
use kiln_ir::{Dim, NodeId, Source, Symbol, TensorType};
use kiln_runtime::event::{self, Category, Event};
use std::sync::{Arc, PoisonError};

/// For each tensor of the results its axes that are cut, and the buckets they were padded by.
pub(super) type Cuts = Vec<Vec<(usize, usize)>>;

/// Cuts that are known, for arguments that pass guards. There are none where elements or settings decide how the function goes on: then they
/// are those of each way through it, found when it was gone.
pub(super) type KnownCuts = Vec<(Vec<Guard>, Option<Arc<Cuts>>)>;

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
        let _inside = self.context(&padded.arguments, &padded.lengths).enter();
        if let Some(cuts) = self.cuts(&padded.arguments, &leaves_of(&padded.arguments), at)? {
            let result = self.call_with(&padded.arguments, &padded.lengths, stance, at)?;
            return Ok(cut(&result, &cuts, &padded.sizes)?);
        }
        let ends = Ends {
            // Of a result that was not recorded nobody knows what was padded.
            eager: || {
                let _inside = self.context(arguments, &padded.lengths).enter();
                (self.apply)(&self.f, arguments)
            },
            finish: |execution: &Execution<'_>, returned: &Arc<Returned<R>>, leaves: &[Leaf<'_>]| {
                let cuts = match returned.cuts.get() {
                    Some(cuts) => cuts.clone(),
                    None => {
                        let found = self.cuts_of_way(&execution.ran(), returned, &padded.arguments, leaves, at)?;
                        returned.cuts.get_or_init(|| Arc::new(found)).clone()
                    }
                };
                Ok(cut(&execution.fill(returned), &cuts, &padded.sizes)?)
            },
        };
        self.call_ending(&padded.arguments, &padded.lengths, stance, &ends, at)
    }

    /// Makes the program for padded arguments without running it.
    pub(super) fn prepare_padded(&self, arguments: &A, at: &Source) -> Result<(), E> {
        let padded = self.pad(arguments, at)?;
        let _inside = self.context(&padded.arguments, &padded.lengths).enter();
        self.cuts(&padded.arguments, &leaves_of(&padded.arguments), at)?;
        self.prepare(&padded.arguments, &padded.lengths, at)
    }

    fn context(&self, arguments: &A, lengths: &[Tensor]) -> Context {
        Context {
            arguments: tensors_of(&leaves_of(arguments)).into_iter().cloned().collect(),
            buckets: self.options().buckets.clone(),
            lengths: lengths.to_vec(),
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

    /// Which axes of the results follow the padded ones: found by recording with symbols in their place. None where elements or settings
    /// decide.
    fn cuts(&self, arguments: &A, leaves: &[Leaf<'_>], at: &Source) -> Result<Option<Arc<Cuts>>, E> {
        let mut known = self.cuts.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = |guards: &[Guard]| guard::check(guards, leaves, &mut []).is_ok();
        if let Some((_, cuts)) = known.iter().find(|(guards, _)| fits(guards)) {
            return Ok(cuts.clone());
        }
        let cuts = self.find_cuts(arguments, leaves, at)?.map(Arc::new);
        if known.len() >= CUTS_KEPT {
            known.clear();
        }
        known.push((exact_guards(leaves), cuts.clone()));
        Ok(cuts)
    }

    /// The plan in which padded sizes are symbols.
    fn padded_plan(&self, leaves: &[Leaf<'_>], at: &Source) -> Result<Plan> {
        let buckets = &self.options().buckets;
        let tensors = tensors_of(leaves);
        let wish = |tensor: usize, axis: usize, _: usize| {
            let place = buckets.iter().position(|buckets| buckets.is_at(tensor, axis, tensors[tensor].rank()))?;
            Some(SizeRequest { key: (place, usize::MAX), name: symbol_of(place), least: 0, most: None })
        };
        let plan = Plan::new(leaves, &[], &wish).filter(Plan::has_symbols);
        plan.ok_or_else(|| Error::Buckets { why: "no argument has buckets".to_owned(), at: at.clone() })
    }

    fn find_cuts(&self, arguments: &A, leaves: &[Leaf<'_>], at: &Source) -> Result<Option<Cuts>, E> {
        let mut plan = self.padded_plan(leaves, at)?;
        let f = |arguments: &A| (self.apply)(&self.f, arguments);
        for _ in 0..ROUNDS {
            let types = plan.types();
            plan.scope().enter();
            let outcome = capture(&f, arguments, Some(&types), None, at);
            let scope = Scope::leave().ok_or_else(|| Error::Escaped { at: at.clone() })?;
            let captured = match outcome {
                Ok(Outcome::Whole(captured)) => Some(captured),
                Ok(Outcome::Broken(broken, _)) if scope.outcome().is_none() => {
                    if self.options().fullgraph {
                        return Err(Error::GraphBreak { what: broken.what, at: broken.at }.into());
                    }
                    return Ok(None);
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
                    if captured.has_asked {
                        return Ok(None);
                    }
                    let recorded = Recorded { segments: vec![&captured.last], homes: &[], plan: &plan, types: &types };
                    return Ok(Some(recorded.cuts(&captured.returned.places, self.options().buckets.len(), at)?));
                }
                Verdict::No => return Err(read_as_number(&scope, at).into()),
            }
        }
        Err(dependent(at).into())
    }

    /// The cuts of the results of a call that went this way through the function: it is recorded again with symbols for padded sizes,
    /// and nothing runs.
    fn cuts_of_way(
        &self,
        ran: &Ran,
        returned: &Returned<R>,
        arguments: &A,
        leaves: &[Leaf<'_>],
        at: &Source,
    ) -> Result<Cuts, E> {
        let mut plan = self.padded_plan(leaves, at)?;
        let f = |arguments: &A| (self.apply)(&self.f, arguments);
        for _ in 0..ROUNDS {
            let types = plan.types();
            let driver = self.replaying(ran, 0, leaves).with_symbols(plan.homes(), plan.own_slot_sizes());
            let sizes = driver.slot_sizes();
            plan.scope().enter();
            let outcome = capture(&f, arguments, Some(&types), Some(driver), at);
            let scope = Scope::leave().ok_or_else(|| Error::Escaped { at: at.clone() })?;
            plan.adopt(sizes.take());
            let replayed = match outcome {
                Ok(Outcome::Whole(captured)) => {
                    let Captured { driver, last, returned, .. } = *captured;
                    driver.and_then(Driver::into_replayed).map(|(path, homes)| (path, homes, last, returned))
                }
                _ => None,
            };
            let graphs = replayed.as_ref().map(|(path, _, last, _)| graphs(path, last));
            match plan.judge(&scope, graphs.as_deref(), at) {
                Verdict::Again => {}
                Verdict::Good(..) => {
                    let (path, homes, last, own) = replayed.ok_or_else(|| Error::NotAFunction { at: at.clone() })?;
                    if !own.is_like(returned) {
                        return Err(Error::NotAFunction { at: at.clone() }.into());
                    }
                    let of_step = |step: &'_ TraceStep| match step {
                        TraceStep::Segment(segment) => Some(segment.recorded.clone()),
                        _ => None,
                    };
                    let earlier: Vec<_> = path.iter().filter_map(of_step).collect();
                    let segments = earlier.iter().map(|segment| &**segment).chain([&last]).collect();
                    let recorded = Recorded { segments, homes: &homes, plan: &plan, types: &types };
                    return Ok(recorded.cuts(&returned.places, self.options().buckets.len(), at)?);
                }
                Verdict::No if scope.outcome().is_none() => return Err(Error::NotAFunction { at: at.clone() }.into()),
                Verdict::No => return Err(read_as_number(&scope, at).into()),
            }
        }
        Err(dependent(at).into())
    }
}

/// The symbol of a padded size, by the number of its buckets.
fn symbol_of(place: usize) -> Option<Symbol> {
    Symbol::new(&format!("padded{place}"))
}

fn read_as_number(scope: &Scope, at: &Source) -> Error {
    let at = scope.outcome().map_or(at, |outcome| outcome.at()).clone();
    if let Some(dim::Outcome::Refused { op, .. }) = scope.outcome() {
        let why = format!("{op} cannot be recorded for a padded size, so which results follow it is not known");
        return Error::Buckets { why, at };
    }
    let why = "the function asks for a padded size as a number (`size` gives one to compute with), \
               so which results follow it is not known";
    Error::Buckets { why: why.to_owned(), at }
}

fn dependent(at: &Source) -> Error {
    Error::Buckets { why: "padded sizes depend on one another".to_owned(), at: at.clone() }
}

/// Cuts padding off the tensors of a result.
fn cut<R: Bundle>(result: &R, cuts: &Cuts, sizes: &[usize]) -> Result<R> {
    let (mut number, mut failure) = (0, None);
    let cut = result.map_tensors(&mut |tensor| {
        let mut tensor = tensor.clone();
        for &(axis, buckets) in cuts.get(number).map_or(&[][..], Vec::as_slice) {
            match tensor.narrow(axis, 0, sizes[buckets]) {
                Ok(cut) => tensor = cut,
                Err(error) => failure = Some(error),
            }
        }
        number += 1;
        tensor
    });
    failure.map_or(Ok(cut), Err)
}

/// A function that was recorded with symbols for padded sizes.
struct Recorded<'a> {
    segments: Vec<&'a SegmentGraph>,
    /// The types of what is in slots that no segment wrote.
    homes: &'a [SizeHome],
    plan: &'a Plan,
    /// Of the arguments.
    types: &'a [TensorType],
}

impl Recorded<'_> {
    /// The type of what is in a slot.
    fn slot(&self, slot: usize) -> Option<&TensorType> {
        let of_segment = |segment: &&'_ SegmentGraph| -> Option<NodeId> {
            let place = slot.checked_sub(segment.base)?;
            match place.checked_sub(segment.outputs) {
                None => segment.graph.outputs().get(place).map(|output| output.node),
                Some(kept) => segment.graph.inputs().get(*segment.kept.get(kept)?).copied(),
            }
        };
        let found = self.segments.iter().find_map(|segment| Some(segment.graph.ty(of_segment(segment)?)));
        let is_it = |from: &InputSource| matches!(from, InputSource::Slot(own) if *own == slot);
        found.or_else(|| self.homes.iter().find(|(from, _)| is_it(from)).map(|(_, ty)| ty))
    }

    /// For each result its axes that are padded.
    fn cuts(&self, places: &[ResultLocation], buckets: usize, at: &Source) -> Result<Cuts> {
        let padded: Vec<Option<&Dim>> =
            (0..buckets).map(|place| symbol_of(place).and_then(|name| self.plan.dim(name))).collect();
        let mut cuts = Vec::with_capacity(places.len());
        for (number, place) in places.iter().enumerate() {
            let ty = match place {
                ResultLocation::Argument(argument) => self.types.get(*argument),
                ResultLocation::Slot(slot) => self.slot(*slot),
                ResultLocation::Itself => None,
            };
            let mut cut = Vec::new();
            for (axis, size) in ty.iter().flat_map(|ty| ty.shape.iter().enumerate()) {
                if let Some(place) = padded.iter().position(|padded| *padded == Some(size)) {
                    cut.push((axis, place));
                } else if size.as_const().is_none() && !self.plan.is_of_data(size) {
                    let why = format!(
                        "axis {axis} of result {number} has {size} places, of which padding cannot be cut off: \
                         results have padded axes as they are, and what a disabled part gives has to be combined with \
                         a padded argument"
                    );
                    return Err(Error::Buckets { why, at: at.clone() });
                }
            }
            cuts.push(cut);
        }
        Ok(cuts)
    }
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
