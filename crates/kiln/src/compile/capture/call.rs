//! Calls of a compiled function: down the tree of its program, and where that ends the function is captured on from there.

use super::broken::Finished;
use super::compiled::{Compiled, tensors_of};
use super::driver::{Driver, Ran};
use super::entry::Entry;
use super::limits::Reason;
use super::make::{Found, Made};
use super::never_slower::{Effects, race};
use super::segment_compiler::Arguments;
use super::stance::Stance;
use super::tree::{BranchGuard, BranchOutcome, Execution, Node, Reached, Returned, STOPS_KEPT, TraceStep};
use crate::tensor::autocast;
use crate::tensor::bundle::{Bundle, Leaf, leaves_of};
use crate::{Error, Result, Tensor};
use kiln_ir::Source;
use kiln_runtime::event::{self, Category, Event};
use kiln_runtime::phase;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Instant;

/// An outcome that has no branch.
struct Unknown<R> {
    branch: Arc<Node<R>>,
    guard: BranchGuard,
    outcome: BranchOutcome,
    /// What a branch for it counts for; none is kept without.
    reason: Option<Reason>,
}

/// What is left to run of a call, and what it did so far.
pub(super) struct Rest<R> {
    pub(super) node: Arc<Node<R>>,
    pub(super) ran: Ran,
}

/// How calls end.
pub(super) struct Ends<G, H> {
    /// Runs the function itself.
    pub(super) eager: G,
    /// Makes the result of what a call left.
    pub(super) finish: H,
}

impl<F, A: Bundle, R: Bundle, E: From<Error>> Compiled<F, A, R, E> {
    /// Calls the function, with the lengths that [`Options::buckets`] asks for.
    pub(super) fn call_with(&self, arguments: &A, lengths: &[Tensor], stance: Stance, at: &Source) -> Result<R, E> {
        let ends = Ends {
            eager: || (self.apply)(&self.f, arguments),
            finish: |execution: &Execution<'_>, returned: &Arc<Returned<R>>, _: &[Leaf<'_>]| {
                Ok(execution.fill(returned))
            },
        };
        self.call_ending(arguments, lengths, stance, &ends, at)
    }

    /// The same, with ends of its own.
    pub(super) fn call_ending<G, H>(
        &self,
        arguments: &A,
        lengths: &[Tensor],
        stance: Stance,
        ends: &Ends<G, H>,
        at: &Source,
    ) -> Result<R, E>
    where
        G: Fn() -> Result<R, E>,
        H: Fn(&Execution<'_>, &Arc<Returned<R>>, &[Leaf<'_>]) -> Result<R, E>,
    {
        let mut leaves = leaves_of(arguments);
        leaves.extend(lengths.iter().map(Leaf::Tensor));
        leaves.extend(autocast::leaf());
        let mut execution = Execution::new(tensors_of(&leaves));
        let (rest, entry) = match self.find(&leaves) {
            Found::Program(entry, sizes) => {
                execution.sizes = sizes;
                if entry.limit_record.is_eager() {
                    return self.run_limited(&ends.eager);
                }
                if entry.limit_record.wants_measure() {
                    let start = Instant::now();
                    let result = self.fall_back(&ends.eager);
                    entry.limit_record.note_eager(start.elapsed());
                    return result;
                }
                self.hits.fetch_add(1, Ordering::Relaxed);
                if self.options().never_slower {
                    if self.is_slower(&entry, arguments, &leaves, at)? {
                        return self.fall_back(&ends.eager);
                    }
                    self.limits.save(entry.gain.load(Ordering::Relaxed));
                }
                (execution.may_grow, execution.functions) = (entry.may_grow(), entry.functions);
                execution.numbers = entry.numbers_of(&leaves);
                (None, Some(entry))
            }
            Found::Unchecked(unchecked) => {
                if unchecked.is_empty() && stance == Stance::EagerOnRecompile {
                    return self.fall_back(&ends.eager);
                }
                if unchecked.is_empty() && stance == Stance::FailOnRecompile {
                    return Err(Error::Recompile { guard: self.failed_guard(&leaves), at: at.clone() }.into());
                }
                self.check_declared(&leaves, at)?;
                if let Some(reason) = self.reason(&leaves).filter(|reason| self.is_over(reason)) {
                    self.reach(&reason, || self.failed_guard(&leaves), at);
                    return self.run_limited(&ends.eager);
                }
                match phase::timed("capture", || self.make(arguments, &leaves, at))? {
                    Made::Entry(entry) => {
                        if self.options().never_slower && self.is_slower(&entry, arguments, &leaves, at)? {
                            return self.fall_back(&ends.eager);
                        }
                        (execution.may_grow, execution.functions) = (entry.may_grow(), entry.functions);
                        execution.sizes = entry.sizes_of(&leaves);
                        execution.numbers = entry.numbers_of(&leaves);
                        (None, Some(entry))
                    }
                    Made::Rest(Rest { node, ran }) => {
                        execution.take(ran);
                        (Some(node), None)
                    }
                }
            }
        };
        let node = rest.as_ref().or(entry.as_ref().map(|entry| &entry.root));
        let node = node.ok_or_else(|| Error::Escaped { at: at.clone() })?;
        self.run(node, entry.as_deref(), execution, arguments, &leaves, ends, at)
    }

    /// Runs the function itself, because it was captured as often as it may be.
    fn run_limited(&self, eager: &impl Fn() -> Result<R, E>) -> Result<R, E> {
        self.limited.fetch_add(1, Ordering::Relaxed);
        self.fall_back(eager)
    }

    /// Runs the function itself from its beginning, after a program met a new outcome beyond its limit.
    fn run_after_miss(
        &self,
        entry: Option<&Entry<R>>,
        start: Option<Instant>,
        eager: &impl Fn() -> Result<R, E>,
    ) -> Result<R, E> {
        let Some(entry) = entry else { return self.run_limited(eager) };
        entry.limit_record.miss(start.map(|start| start.elapsed()));
        let start = Instant::now();
        let result = self.run_limited(eager);
        entry.limit_record.note_own(start.elapsed());
        result
    }

    #[cold]
    pub(super) fn fall_back(&self, eager: &impl Fn() -> Result<R, E>) -> Result<R, E> {
        self.fallbacks.fetch_add(1, Ordering::Relaxed);
        eager()
    }

    /// Whether the function itself is faster than a program: measured once, when the program is there.
    fn is_slower(&self, entry: &Entry<R>, arguments: &A, leaves: &[Leaf<'_>], at: &Source) -> Result<bool, E> {
        if let Some(slower) = entry.is_slower.get() {
            return Ok(*slower);
        }
        let mut pending = false;
        entry.root.visit(&mut |node| {
            if let Node::Step { step: TraceStep::Segment(segment), .. } = node {
                pending |= segment.code.is_pending();
            }
        });
        if pending {
            return Ok(false);
        }
        let Some(effects) = Effects::of(&entry.root) else { return Ok(false) };
        // Where the function has not been captured so far, it is not known what it changes: another call measures.
        let compiled = || -> Result<bool, E> {
            let mut execution = Execution::new(tensors_of(leaves));
            execution.sizes = entry.sizes_of(leaves);
            execution.numbers = entry.numbers_of(leaves);
            let result = execution.go(&entry.root, at);
            effects.undo(at)?;
            Ok(matches!(result?, Reached::Returned(_)))
        };
        let eager = || -> Result<bool, E> {
            let result = (self.apply)(&self.f, arguments);
            effects.undo(at)?;
            result.map(|_| true)
        };
        // A call that fails says so when it is made.
        let Ok(Some((compiled, eager))) = race(compiled, eager) else { return Ok(false) };
        let slower = *entry.is_slower.get_or_init(|| eager < compiled);
        entry.gain.store(eager.saturating_sub(compiled).as_nanos() as u64, Ordering::Relaxed);
        event::emit(Category::Perf, || Event::Remark {
            text: format!(
                "never_slower: compiled {compiled:.1?}, eager {eager:.1?}; {} is kept",
                if slower { "eager" } else { "compiled" }
            ),
            at: at.clone(),
        });
        Ok(slower)
    }

    /// Goes down the tree from a node; where it ends, the function is captured on from there.
    #[allow(clippy::too_many_arguments)]
    fn run<G, H>(
        &self,
        from: &Arc<Node<R>>,
        entry: Option<&Entry<R>>,
        mut execution: Execution<'_>,
        arguments: &A,
        leaves: &[Leaf<'_>],
        ends: &Ends<G, H>,
        at: &Source,
    ) -> Result<R, E>
    where
        G: Fn() -> Result<R, E>,
        H: Fn(&Execution<'_>, &Arc<Returned<R>>, &[Leaf<'_>]) -> Result<R, E>,
    {
        let mut rest;
        let mut node = from;
        let start = entry.filter(|entry| entry.limit_record.wants_time()).map(|_| Instant::now());
        let mut is_fresh = false;
        loop {
            node = match execution.go(node, at)? {
                Reached::Returned(returned) => {
                    if let Some(entry) = entry {
                        let took = start.map(|start| start.elapsed());
                        match is_fresh {
                            true => entry.limit_record.note_fresh(took),
                            false => entry.limit_record.hit(took),
                        }
                    }
                    return (ends.finish)(&execution, &returned, leaves);
                }
                Reached::Unknown { at: branch, guard, outcome } => {
                    let reason = Reason::of(&guard, &execution.trail);
                    let is_over = self.is_over(&reason) && branch.branch(&outcome, &execution.sizes).is_none();
                    if is_over {
                        self.reach(&reason, || guard.news(), at);
                        if execution.may_start_again() {
                            return self.run_after_miss(entry, start, &ends.eager);
                        }
                        // What it changed so far cannot be done twice: this call is captured to its end, the next begins eagerly.
                        if let Some(entry) = entry {
                            entry.limit_record.give_up();
                        }
                    }
                    let ask = Unknown { branch, guard, outcome, reason: (!is_over).then_some(reason) };
                    let compiled = self.segment_compiler.compiled();
                    rest = phase::timed("capture", || self.branch(&mut execution, entry, ask, arguments, leaves, at))?;
                    is_fresh = self.segment_compiler.compiled() == compiled;
                    &rest
                }
            }
        }
    }

    /// Captures how the function goes on after an outcome that has no branch yet.
    #[cold]
    fn branch(
        &self,
        execution: &mut Execution<'_>,
        entry: Option<&Entry<R>>,
        unknown: Unknown<R>,
        arguments: &A,
        leaves: &[Leaf<'_>],
        at: &Source,
    ) -> Result<Arc<Node<R>>, E> {
        let _alone = self.compiling.lock().unwrap_or_else(PoisonError::into_inner);
        let Unknown { branch, guard, outcome, reason } = unknown;
        execution.trail.push(TraceStep::BranchGuard(guard, outcome));
        if let Some(next) = branch.branch(&outcome, &execution.sizes) {
            return Ok(next);
        }
        let (start, compiled) = (Instant::now(), self.segment_compiler.compiled());
        self.branches.fetch_add(1, Ordering::Relaxed);
        let done = execution.trail.len();
        let mut plan = entry.and_then(|entry| entry.plan.clone());
        let exactly = plan.as_mut().map_or_else(Vec::new, |plan| plan.set_now(&execution.sizes));
        let mut driver = Driver::after(self.segment_compiler.clone(), execution, Arguments::of(leaves));
        if let Some(plan) = &plan {
            driver = driver.with_symbols(plan.homes(), plan.slot_sizes());
        }
        let (captured, symbols) = self.capture(arguments, leaves, plan, driver, at)?;
        let (done, has_left_program) = captured.driver.as_ref().map_or((done, false), Driver::of_program);
        let Finished { rest, ran, checks, mut later, is_kept: may_keep, .. } =
            self.finish(*captured, None, symbols, done, arguments, leaves, at)?;
        let checks = checks.unwrap_or(exactly);
        let took = self.took(start);
        // What needs no new code costs no more than recording it, and is kept as long as there are few.
        let is_new = self.segment_compiler.compiled() > compiled;
        let is_kept = is_new || branch.branch_count() < self.options().recompile_limit;
        if let Some(reason) = reason.as_ref().filter(|_| !may_keep) {
            self.limits.count(reason.clone(), took);
        }
        if let Some(reason) = reason.filter(|_| execution.may_grow && is_kept && may_keep && !has_left_program) {
            if is_new {
                self.limits.count(reason.clone(), took);
            }
            let next = Node::join(ran.path[done..].to_vec(), &mut later, rest.clone());
            let is_kept = ran.path.len() < STOPS_KEPT && {
                branch.grow(&outcome, checks, next.clone());
                entry.is_none_or(|entry| self.make_room(entry))
            };
            if !is_kept {
                branch.cut(&next);
                self.limits.exhaust(reason);
            }
        }
        execution.take(ran);
        Ok(rest)
    }
}
