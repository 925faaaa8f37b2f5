//! Functions with graph breaks, for many sizes. While such a function is captured, its segments run at the sizes of the call, an
//! operation at a time. Then it is recorded again with symbols: nothing runs, and what it reads is what it read. If both
//! recordings are wired alike, the segments with symbols are what is compiled.
//!
//! ```text
//!  call ─▶ segment ─▶ read ─▶ segment        runs, at sizes
//!             ∥        ∥         ∥
//!          segment ─▶ read ─▶ segment        with symbols: compiled, kept
//! ```

use super::call::Rest;
use super::check::Check;
use super::code::Code;
use super::compiled::{Compiled, exact_guards, tensors_of};
use super::driver::{Driver, Ran};
use super::dynamic::{PlacedChecks, Plan, ROUNDS, Verdict, bind};
use super::entry::Entry;
use super::guard::Guard;
use super::segment::{Segment, SegmentGraph};
use super::segment_compiler::Arguments;
use super::sizes::Sizes;
use super::tree::{BranchGuard, Node, Returned, STOPS_KEPT, TraceStep};
use super::{Captured, Outcome, capture};
use crate::tensor::bundle::{Bundle, Leaf};
use crate::tensor::dim::{Predicate, Scope};
use crate::{Error, Result};
use kiln_ir::{Graph, Ranges, Source};
use std::sync::Arc;

/// The end of a capture that ran something on its way.
pub(super) struct Finished<R> {
    /// What is left to run.
    pub(super) rest: Arc<Node<R>>,
    pub(super) ran: Ran,
    /// What sizes have to pass for what was captured, beyond the guards of the program; nothing where it is for the sizes of the call.
    pub(super) checks: Option<Vec<Check>>,
    /// The same for sizes that are known on the way, by the numbers of steps.
    pub(super) later: Vec<(usize, Check)>,
    /// The plan of the program and the guards of the arguments, where it is for many sizes.
    wide: Option<(Plan, Vec<Guard>)>,
    /// Whether other calls may go the same way: not where only this one is known to.
    pub(super) is_kept: bool,
}

/// What became of the symbols that a function was captured with.
pub(super) enum CapturedSymbols {
    /// There were none, or none is left.
    None,
    /// They are good, if the graphs say so.
    These(Plan, Scope),
    /// There is a better plan.
    Again(Plan),
}

/// A function with symbols.
struct Symbolic {
    plan: Plan,
    path: Vec<TraceStep>,
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
        symbols: CapturedSymbols,
        arguments: &A,
        leaves: &[Leaf<'_>],
        at: &Source,
    ) -> Result<Rest<R>> {
        let Finished { rest, ran, checks, mut later, wide, is_kept } =
            self.finish(captured, plan, symbols, 0, arguments, leaves, at)?;
        let (mut guards, sizes, plan) = match (wide, checks) {
            (Some((plan, guards)), Some(checks)) => {
                (guards, Sizes::Symbolic { count: plan.count(), checks }, Some(plan.of_arguments()))
            }
            _ => (exact_guards(leaves), Sizes::Fixed, None),
        };
        // What the tree decides by is no guard.
        for step in &ran.path {
            if let TraceStep::BranchGuard(BranchGuard::Number { part }, _) = step {
                guards[*part] = Guard::any_number(&leaves[*part]);
            }
        }
        if !ran.functions.is_kept() || !is_kept {
            // The next call has a program, or is captured again.
        } else if ran.path.len() < STOPS_KEPT {
            let root = Node::join(ran.path.clone(), &mut later, rest.clone());
            let mut entry = Entry::new(guards, leaves, root, None, sizes);
            (entry.plan, entry.functions) = (plan, ran.functions);
            self.keep(entry, at);
        } else {
            self.limits.note_length();
        }
        Ok(Rest { node: rest, ran })
    }

    /// Compiles what was captured after the first `done` steps, which are of a program: with the symbols of `plan`, else with those that it
    /// was captured with, else for the sizes of this call.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn finish(
        &self,
        captured: Captured<R>,
        plan: Option<Plan>,
        symbols: CapturedSymbols,
        done: usize,
        arguments: &A,
        leaves: &[Leaf<'_>],
        at: &Source,
    ) -> Result<Finished<R>> {
        let Captured { driver, last, returned, .. } = captured;
        let mut ran = driver.map(Driver::into_ran).unwrap_or_default();
        let returned = Arc::new(returned);
        let has_symbols = last.is_symbolic() || ran.path[done..].iter().any(TraceStep::is_symbolic);
        let again =
            |plan: Plan, kept: usize| self.record_again(plan, &ran, kept, &last, &returned, arguments, leaves, at);
        let all = ran.path.len();
        let build = |mut symbolic: Symbolic| {
            let (rest, path) = self.build_symbolic(&symbolic, done, &returned, leaves, at).ok()?;
            let (guards, checks) = match done {
                0 => symbolic.plan.finish(&symbolic.predicates)?,
                _ => (Vec::new(), symbolic.plan.checks_of(&symbolic.predicates)?),
            };
            Some((rest, path, guards, checks, symbolic.plan))
        };
        let wide = plan.and_then(|plan| build(again(plan, done)?)).or_else(|| {
            let (mut plan, scope) = match symbols {
                CapturedSymbols::None => return None,
                CapturedSymbols::Again(plan) => return build(again(plan, all)?),
                CapturedSymbols::These(plan, scope) => (plan, scope),
            };
            let symbolic = match plan.judge(&scope, Some(&graphs(&ran.path[done..], &last)), at) {
                Verdict::No => None,
                Verdict::Again => again(plan, all),
                Verdict::Good(ranges, predicates) => {
                    let mut last = last.clone();
                    bind(&mut last, &ran.homes)?;
                    Some(Symbolic { plan, path: ran.path.clone(), last, ranges, predicates })
                }
            };
            build(symbolic?)
        });
        if let Some((rest, path, guards, checks, plan)) = wide {
            // Steps of the program stay as they are.
            ran.path.truncate(done);
            ran.path.extend(path.into_iter().skip(done));
            let (checks, later) = placed(checks, done);
            return Ok(Finished { rest, ran, checks: Some(checks), later, wide: Some((plan, guards)), is_kept: true });
        }
        let fixed = match has_symbols {
            false => Some((None, last.clone())),
            true => {
                let fixed = self.record_fixed(&ran, done, &last, &returned, arguments, leaves, at);
                fixed.map(|(path, last)| (Some(path), last))
            }
        };
        let is_kept = fixed.is_some();
        let rest = match fixed {
            Some((path, last)) => {
                if let Some(path) = path {
                    ran.path.truncate(done);
                    ran.path.extend(path.into_iter().skip(done));
                }
                self.build_fixed(&mut ran, done, last, &returned, leaves, at)?
            }
            // At these sizes the function is wired otherwise than with symbols (a view may be all of what it is a view of), and with symbols it
            // is not for others: what is left runs as it was recorded, an op at a time.
            None => {
                let mut last = last;
                bind(&mut last, &ran.homes).ok_or_else(|| Error::NotAFunction { at: at.clone() })?;
                rest(Arc::new(Segment::new(Arc::new(last), Code::Nothing)), &returned)
            }
        };
        Ok(Finished { rest, ran, checks: None, later: Vec::new(), wide: None, is_kept })
    }

    /// Records a function again, with symbols, that ran.
    #[allow(clippy::too_many_arguments)]
    fn record_again(
        &self,
        mut plan: Plan,
        ran: &Ran,
        done: usize,
        last: &SegmentGraph,
        returned: &Returned<R>,
        arguments: &A,
        leaves: &[Leaf<'_>],
        at: &Source,
    ) -> Option<Symbolic> {
        let f = |arguments: &A| (self.apply)(&self.f, arguments);
        for _ in 0..ROUNDS {
            let types = plan.types();
            let driver = self.replaying(ran, done, leaves).with_symbols(plan.homes(), plan.slot_sizes());
            let sizes = driver.slot_sizes();
            plan.scope().enter();
            let outcome = capture(&f, arguments, Some(&types), Some(driver), at);
            let scope = Scope::leave()?;
            plan.adopt(sizes.take());
            let replayed = match outcome {
                Ok(Outcome::Whole(captured)) => {
                    let Captured { driver, last, returned, .. } = *captured;
                    driver.and_then(Driver::into_replayed).map(|replayed| (replayed, last, returned))
                }
                _ => None,
            };
            let graphs = replayed.as_ref().map(|((path, _), last, _)| graphs(path, last));
            match plan.judge(&scope, graphs.as_deref(), at) {
                Verdict::Again => {}
                Verdict::No => return None,
                Verdict::Good(ranges, predicates) => {
                    let ((path, homes), mut own, returns) = replayed?;
                    if !own.is_wired_like(last) || !returns.is_like(returned) {
                        return None;
                    }
                    bind(&mut own, &homes)?;
                    return Some(Symbolic { plan, path, last: own, ranges, predicates });
                }
            }
        }
        None
    }

    /// Records a function again, at the sizes of the call, that ran with symbols.
    #[allow(clippy::too_many_arguments)]
    fn record_fixed(
        &self,
        ran: &Ran,
        done: usize,
        last: &SegmentGraph,
        returned: &Returned<R>,
        arguments: &A,
        leaves: &[Leaf<'_>],
        at: &Source,
    ) -> Option<(Vec<TraceStep>, SegmentGraph)> {
        let f = |arguments: &A| (self.apply)(&self.f, arguments);
        let outcome = capture(&f, arguments, None, Some(self.replaying(ran, done, leaves)), at);
        let Ok(Outcome::Whole(captured)) = outcome else { return None };
        let Captured { driver, last: own, returned: returns, .. } = *captured;
        let (path, _) = driver?.into_replayed()?;
        (own.is_wired_like(last) && returns.is_like(returned)).then_some((path, own))
    }

    pub(super) fn replaying(&self, ran: &Ran, done: usize, leaves: &[Leaf<'_>]) -> Driver {
        Driver::replaying(self.segment_compiler.clone(), &tensors_of(leaves), Arguments::of(leaves), ran, done)
    }

    /// Compiles segments with symbols; those of the first `done` steps are there already. Gives what is left to run, and the path.
    fn build_symbolic(
        &self,
        symbolic: &Symbolic,
        done: usize,
        returned: &Arc<Returned<R>>,
        leaves: &[Leaf<'_>],
        at: &Source,
    ) -> Result<(Arc<Node<R>>, Vec<TraceStep>)> {
        let mut described = Arguments::of(leaves);
        described.layouts = symbolic.plan.layouts(leaves);
        let build = |recorded: Arc<SegmentGraph>| {
            self.segment_compiler.build_for(recorded, &described, &symbolic.ranges, at).map(Arc::new)
        };
        let mut path = symbolic.path.clone();
        for step in path.iter_mut().skip(done) {
            if let TraceStep::Segment(segment) = step {
                // As the function said it: one that had code already may have inputs in place of numbers that changed, which no later
                // recording has.
                *segment = build(segment.raw.clone())?;
            }
        }
        Ok((rest(build(Arc::new(symbolic.last.clone()))?, returned), path))
    }

    /// Compiles the segments after the first `done` steps that ran without code; gives what is left to run.
    fn build_fixed(
        &self,
        ran: &mut Ran,
        done: usize,
        last: SegmentGraph,
        returned: &Arc<Returned<R>>,
        leaves: &[Leaf<'_>],
        at: &Source,
    ) -> Result<Arc<Node<R>>> {
        let described = Arguments::of(leaves);
        for step in ran.path.iter_mut().skip(done) {
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

/// The graphs of steps, and of the last segment.
pub(super) fn graphs<'a>(path: &'a [TraceStep], last: &'a SegmentGraph) -> Vec<&'a Graph> {
    let graph = |step: &'a TraceStep| match step {
        TraceStep::Segment(segment) => Some(&*segment.recorded.graph),
        _ => None,
    };
    path.iter().filter_map(graph).chain([&*last.graph]).collect()
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

/// The last segment, and what the function returns.
fn rest<R>(last: Arc<Segment>, returned: &Arc<Returned<R>>) -> Arc<Node<R>> {
    let step = (!last.recorded.is_empty()).then_some(TraceStep::Segment(last));
    Node::chain(step.into_iter().collect(), Node::Return(returned.clone()))
}
