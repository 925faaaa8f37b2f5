//! Functions with graph breaks, for many sizes. While such a function is captured, its segments run at the sizes of the call, an
//! operation at a time. Then it is recorded again with symbols: nothing runs, and what it reads is what it read. If both
//! recordings are wired alike, the segments with symbols are what is compiled.
//!
//! ```text
//!  call ─▶ segment ─▶ read ─▶ segment        runs, at sizes
//!             ∥        ∥         ∥
//!          segment ─▶ read ─▶ segment        with symbols: compiled, kept
//! ```

use super::check::Check;
use super::code::Code;
use super::compiled::{Compiled, Entry, Rest, exact_guards, tensors_of};
use super::driver::{Driver, Ran};
use super::dynamic::{PlacedChecks, Plan, ROUNDS, Verdict, bind};
use super::options::Dynamic;
use super::segment::{Segment, SegmentGraph};
use super::segment_compiler::Arguments;
use super::sizes::Sizes;
use super::tree::{Node, Returned, STOPS_KEPT, TraceStep};
use super::{Captured, Outcome, capture};
use crate::tensor::bundle::{Bundle, Leaf};
use crate::tensor::dim::{Predicate, Scope};
use crate::{Error, Result};
use kiln_ir::{Ranges, Source};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

/// The end of a capture that ran something on its way.
pub(super) struct Finished<R> {
    /// What is left to run.
    pub(super) rest: Arc<Node<R>>,
    pub(super) ran: Ran,
    /// What sizes have to pass for what was captured, beyond the guards of the program.
    pub(super) checks: Vec<Check>,
    /// The same for sizes that are known on the way, by the numbers of steps.
    pub(super) later: Vec<(usize, Check)>,
}

/// The segments of a function with symbols.
struct Symbolic {
    path: Vec<TraceStep>,
    segments: Vec<SegmentGraph>,
    last: SegmentGraph,
    ranges: Ranges,
    predicates: Vec<Predicate>,
}

impl<F, A: Bundle, R: Bundle, E: From<Error>> Compiled<F, A, R, E> {
    /// Keeps a program for a function that ran something while it was captured; gives what is left to run.
    pub(super) fn make_broken(
        &self,
        captured: Captured<R>,
        plan: Option<Plan>,
        arguments: &A,
        leaves: &[Leaf<'_>],
        at: &Source,
    ) -> Result<Rest<R>> {
        let Captured { driver, last, returned } = captured;
        let mut ran = driver.map(Driver::into_ran).unwrap_or_default();
        let returned = Arc::new(returned);
        let record = |mut plan: Plan| {
            let symbolic = self.record_again(&mut plan, &ran, &last, &returned, arguments, leaves, at)?;
            let (rest, path) = self.build_symbolic(&symbolic, &plan, 0, &returned, leaves, at).ok()?;
            let (guards, checks) = plan.finish(&symbolic.predicates)?;
            let (own, later) = placed(checks, 0);
            let sizes = Sizes::Symbolic { count: plan.count(), checks: own };
            Some((rest, path, guards, sizes, later, plan.of_arguments()))
        };
        let wide = plan.and_then(record).or_else(|| {
            // Sizes that depend on data are symbols also where those of arguments are not.
            let is_wanted = self.options().dynamic != Dynamic::Static && ran.has_sizes_of_data();
            record(Plan::new(leaves, &|_, _, _| None).filter(|_| is_wanted)?)
        });
        let (rest, guards, sizes, mut later, plan) = match wide {
            Some((rest, path, guards, sizes, later, plan)) => {
                ran.path = path;
                (rest, guards, sizes, later, Some(plan))
            }
            None => {
                let rest = self.build_fixed(&mut ran, last, &returned, leaves, at)?;
                (rest, exact_guards(leaves), Sizes::Fixed, Vec::new(), None)
            }
        };
        if ran.path.len() < STOPS_KEPT {
            let root = Node::join(ran.path.clone(), &mut later, rest.clone());
            let mut entry = Entry::new(guards, leaves, root, None, sizes);
            entry.plan = plan;
            self.keep(entry, at);
        } else {
            self.limits.note_length();
        }
        Ok((rest, ran.slots, ran.path))
    }

    /// What follows an outcome: for all sizes that the program is for, where it has a plan, else for those of this call. The first
    /// `done` steps are of the program.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn finish(
        &self,
        captured: Captured<R>,
        plan: Option<Plan>,
        done: usize,
        sizes: &[usize],
        arguments: &A,
        leaves: &[Leaf<'_>],
        at: &Source,
    ) -> Result<Finished<R>> {
        let Captured { driver, last, returned } = captured;
        let mut ran = driver.map(Driver::into_ran).unwrap_or_default();
        let returned = Arc::new(returned);
        let exactly = plan.as_ref().map_or_else(Vec::new, |plan| plan.exactly(sizes));
        let wide = plan.and_then(|mut plan| {
            plan.set_now(sizes)?;
            let symbolic = self.record_again(&mut plan, &ran, &last, &returned, arguments, leaves, at)?;
            let (rest, path) = self.build_symbolic(&symbolic, &plan, done, &returned, leaves, at).ok()?;
            Some((rest, path, plan.checks_of(&symbolic.predicates)?))
        });
        if let Some((rest, path, checks)) = wide {
            // Steps of the program stay as they are.
            ran.path.truncate(done);
            ran.path.extend(path.into_iter().skip(done));
            let (checks, later) = placed(checks, done);
            return Ok(Finished { rest, ran, checks, later });
        }
        let rest = self.build_fixed(&mut ran, last, &returned, leaves, at)?;
        Ok(Finished { rest, ran, checks: exactly, later: Vec::new() })
    }

    /// Records a function again, with symbols, that ran.
    #[allow(clippy::too_many_arguments)]
    fn record_again(
        &self,
        plan: &mut Plan,
        ran: &Ran,
        last: &SegmentGraph,
        returned: &Returned<R>,
        arguments: &A,
        leaves: &[Leaf<'_>],
        at: &Source,
    ) -> Option<Symbolic> {
        let f = |arguments: &A| (self.apply)(&self.f, arguments);
        for _ in 0..ROUNDS {
            let (types, homes) = (plan.types(), plan.homes());
            let compiler = self.segment_compiler.clone();
            let described = Arguments::of(leaves);
            let sizes = Rc::new(RefCell::new(plan.slot_sizes()));
            let driver = Driver::replaying(compiler, &tensors_of(leaves), described, ran, homes, sizes.clone());
            plan.scope().enter();
            let outcome = capture(&f, arguments, Some(&types), Some(driver), at);
            let scope = Scope::leave()?;
            plan.adopt(sizes.replace(plan.slot_sizes()));
            let replayed = match outcome {
                Ok(Outcome::Whole(captured)) => {
                    let Captured { driver, last, returned } = *captured;
                    driver.and_then(Driver::into_replayed).map(|replayed| (replayed, last, returned))
                }
                _ => None,
            };
            let graphs = replayed.as_ref().map(|((_, segments, _), last, _)| {
                segments.iter().chain([last]).map(|recorded| &*recorded.graph).collect::<Vec<_>>()
            });
            match plan.judge(&scope, graphs.as_deref(), at) {
                Verdict::Again => {}
                Verdict::No => return None,
                Verdict::Good(ranges, predicates) => {
                    let ((path, segments, homes), mut own, returns) = replayed?;
                    if !own.is_wired_like(last) || !returns.is_like(returned) {
                        return None;
                    }
                    bind(&mut own, &homes)?;
                    return Some(Symbolic { path, segments, last: own, ranges, predicates });
                }
            }
        }
        None
    }

    /// Compiles segments with symbols; those of the first `done` steps are there already. Gives what is left to run, and the path.
    #[allow(clippy::too_many_arguments)]
    fn build_symbolic(
        &self,
        symbolic: &Symbolic,
        plan: &Plan,
        done: usize,
        returned: &Arc<Returned<R>>,
        leaves: &[Leaf<'_>],
        at: &Source,
    ) -> Result<(Arc<Node<R>>, Vec<TraceStep>)> {
        let mut described = Arguments::of(leaves);
        described.layouts = plan.layouts(leaves);
        let build = |recorded: &SegmentGraph| {
            let recorded = Arc::new(recorded.clone());
            self.segment_compiler.build_for(recorded, &described, &symbolic.ranges, at).map(Arc::new)
        };
        let mut segments = symbolic.segments.iter();
        let mut path = Vec::with_capacity(symbolic.path.len());
        for (number, step) in symbolic.path.iter().enumerate() {
            let recorded = if matches!(step, TraceStep::Segment(_)) { segments.next() } else { None };
            path.push(match recorded.filter(|_| number >= done) {
                Some(recorded) => TraceStep::Segment(build(recorded)?),
                None => step.clone(),
            });
        }
        Ok((rest(build(&symbolic.last)?, returned), path))
    }

    /// Compiles the segments that ran without code; gives what is left to run.
    fn build_fixed(
        &self,
        ran: &mut Ran,
        last: SegmentGraph,
        returned: &Arc<Returned<R>>,
        leaves: &[Leaf<'_>],
        at: &Source,
    ) -> Result<Arc<Node<R>>> {
        let described = Arguments::of(leaves);
        for step in &mut ran.path {
            if let TraceStep::Segment(segment) = step
                && segment.recorded.computes()
                && matches!(segment.code, Code::Nothing)
            {
                *segment = Arc::new(self.segment_compiler.build(segment.recorded.clone(), &described, at)?);
            }
        }
        let last = self.segment_compiler.build(Arc::new(last), &described, at)?;
        Ok(rest(Arc::new(last), returned))
    }
}

/// The checks that are made before the first `done` steps are over, and those of the steps after these.
fn placed(checks: PlacedChecks, done: usize) -> (Vec<Check>, Vec<(usize, Check)>) {
    let (mut own, mut later) = (Vec::new(), Vec::new());
    for (step, check) in checks {
        match step.and_then(|step| step.checked_sub(done)) {
            Some(step) => later.push((step, check)),
            None => own.push(check),
        }
    }
    (own, later)
}

impl Ran {
    /// Whether sizes depend on data.
    fn has_sizes_of_data(&self) -> bool {
        self.path.iter().any(|step| matches!(step, TraceStep::Outside { is_pure: true, .. }))
    }
}

/// The last segment, and what the function returns.
fn rest<R>(last: Arc<Segment>, returned: &Arc<Returned<R>>) -> Arc<Node<R>> {
    let step = (!last.recorded.is_empty()).then_some(TraceStep::Segment(last));
    Node::chain(step.into_iter().collect(), Node::Return(returned.clone()))
}
