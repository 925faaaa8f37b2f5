//! Makes programs: the function is captured, for the sizes of a call or for many, and kept behind its guards.

use super::breaks;
use super::broken::CapturedSymbols;
use super::call::Rest;
use super::code::Kind;
use super::compiled::{Compiled, tensors_of};
use super::driver::Driver;
use super::dynamic::{Plan, ROUNDS, Verdict};
use super::entry::{Entry, Whole};
use super::guard;
use super::limits::Reason;
use super::segment_compiler::Arguments;
use super::sizes::{Accepted, earlier};
use super::tree::{Node, TraceStep};
use super::{Captured, Outcome, capture};
use crate::pipeline::dump;
use crate::tensor::autocast;
use crate::tensor::bundle::{Bundle, Leaf, leaves_of};
use crate::tensor::dim::Scope;
use crate::tensor::scratch::Scratch;
use crate::{Error, Result, Tensor};
use kiln_ir::Source;
use kiln_runtime::event::{self, Category, Event};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

/// The result of a program lookup.
pub(super) enum Found<R> {
    Program(Arc<Entry<R>>, Scratch<usize>),
    /// Programs whose guards pass, but which have not been checked at these sizes.
    Unchecked(Vec<(Arc<Entry<R>>, Vec<usize>)>),
}

/// The result of a call that found no program.
pub(super) enum Made<R> {
    /// A program was made.
    Entry(Arc<Entry<R>>),
    /// The call ran this far while it was captured; the rest remains to be run.
    Rest(Rest<R>),
}

/// Why a function is captured once more.
struct News {
    guard: String,
    fix: String,
    /// Nodes of the last program for arguments like these.
    nodes: Option<usize>,
}

/// The way out where a function is a longer graph at one size than at another.
const LOOP_FIX: &str =
    "the function is another graph at this size, as a `for` over a size makes it: `kiln::scan` is one for all sizes";

impl<F, A: Bundle, R: Bundle, E: From<Error>> Compiled<F, A, R, E> {
    /// Notes the time since `start` as spent on capturing.
    pub(super) fn took(&self, start: Instant) -> Duration {
        let took = start.elapsed();
        self.capturing.fetch_add(took.as_nanos() as u64, Ordering::Relaxed);
        took
    }

    /// Captures the function; a break that cannot be is an error. What follows a size that depends on data is recorded with
    /// symbols, and so is all of it if there is a plan; where that cannot be, it goes on without.
    pub(super) fn capture(
        &self,
        arguments: &A,
        leaves: &[Leaf<'_>],
        mut plan: Option<Plan>,
        mut driver: Driver,
        at: &Source,
    ) -> Result<(Box<Captured<R>>, CapturedSymbols), E> {
        let f = |arguments: &A| (self.apply)(&self.f, arguments);
        let (mut round, mut is_first, mut again) = (0, true, None);
        while round < ROUNDS {
            let types = plan.as_ref().map(Plan::types);
            match &plan {
                Some(plan) => {
                    driver = driver.with_symbols(plan.homes(), plan.slot_sizes());
                    plan.scope().enter();
                }
                None => drop(Scope::leave()),
            }
            let sizes = driver.slot_sizes();
            let outcome = capture(&f, arguments, types.as_deref(), Some(driver), at);
            let scope = Scope::leave();
            let (broken, ran) = match outcome? {
                Outcome::Whole(captured) => {
                    let Some(scope) = scope else {
                        return Ok((captured, again.map_or(CapturedSymbols::None, CapturedSymbols::Again)));
                    };
                    let mut plan = plan.unwrap_or_else(|| Plan::without_symbols(leaves));
                    plan.adopt(sizes.take());
                    let symbols = match scope.outcome() {
                        None if is_first => CapturedSymbols::These(plan, scope),
                        // What ran in earlier rounds has symbols that are gone.
                        None => CapturedSymbols::Again(plan),
                        // What it recorded is right for these sizes, and for others if it is once more.
                        Some(_) => match plan.judge(&scope, None, at) {
                            Verdict::Again => CapturedSymbols::Again(plan),
                            _ => CapturedSymbols::None,
                        },
                    };
                    return Ok((captured, symbols));
                }
                Outcome::Broken(broken, ran) => (broken, ran),
            };
            let error = || Error::GraphBreak { what: broken.what, at: broken.at.clone() };
            is_first = false;
            let Some(ran) = ran else { return Err(error().into()) };
            if broken.is_refusal() {
                // Once more, with the functions as parts of their own; no line is refused twice, so that this is no round. Programs that
                // have them inside are for other callers than this one.
                let taped = ran.taped();
                let goes = |entry: &Entry<R>| broken.is_of_all_calls() || entry.taped() == taped;
                self.entries.write().unwrap_or_else(PoisonError::into_inner).retain(|entry| !goes(entry));
                driver = ran.with_functions_outside(&broken);
                plan = None;
                continue;
            }
            round += 1;
            let Some(scope) = scope.filter(|scope| scope.outcome().is_some()) else { return Err(error().into()) };
            let mut own = plan.unwrap_or_else(|| Plan::without_symbols(leaves));
            own.adopt(sizes.take());
            let mut next = own.clone();
            if let Verdict::Again = next.judge(&scope, None, at) {
                if ran.is_in_symbols() {
                    (plan, driver) = (Some(next), ran.going_on());
                    continue;
                }
                again = Some(next);
            }
            // What ran stays as it was recorded, symbols included: without these it may be wired otherwise, since a view may be all of what it
            // is a view of.
            (plan, driver) = match ran.going_on_fixed() {
                (driver, true) => (Some(own), driver),
                (driver, false) => (None, driver.without_symbols()),
            };
        }
        Err(Error::NotAFunction { at: at.clone() }.into())
    }

    /// The program for these parts. Read-locked only for the look.
    pub(super) fn find(&self, leaves: &[Leaf<'_>]) -> Found<R> {
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        let mut unchecked = Vec::new();
        let shared_tapes = guard::shared_tapes(leaves);
        for entry in entries.iter() {
            let mut sizes = Scratch::filled(guard::UNKNOWN, entry.sizes.count());
            // Empty lists are compared here: `memcmp` of none reads a page that is not there, which takes a microcode assist.
            let same_tapes = match (&*entry.shared_tapes, &*shared_tapes) {
                ([], []) => true,
                (known, now) => known == now,
            };
            let is_for = guard::check(&entry.guards, leaves, &mut sizes).is_ok() && same_tapes;
            if !is_for || !entry.is_on_its_way() {
                continue;
            }
            match entry.sizes.accept(&sizes) {
                Accepted::Yes => {
                    self.touch(entry);
                    return Found::Program(entry.clone(), sizes);
                }
                Accepted::No(_) => {}
                Accepted::Unchecked => unchecked.push((entry.clone(), sizes.to_vec())),
            }
        }
        Found::Unchecked(unchecked)
    }

    pub(super) fn touch(&self, entry: &Entry<R>) {
        entry.used.store(self.clock.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Captures the function for arguments that there is no program for yet.
    #[cold]
    pub(super) fn make(&self, arguments: &A, leaves: &[Leaf<'_>], at: &Source) -> Result<Made<R>, E> {
        let _alone = self.compiling.lock().unwrap_or_else(PoisonError::into_inner);
        let unchecked = match self.find(leaves) {
            Found::Program(entry, _) => return Ok(Made::Entry(entry)),
            Found::Unchecked(entries) => entries,
        };
        let start = Instant::now();
        let reason = self.reason(leaves);
        self.note_changing_numbers(leaves);
        let plan = self.plan(leaves);
        let driver = Driver::new(self.segment_compiler.clone(), &tensors_of(leaves), Arguments::of(leaves));
        let (captured, symbols) = self.capture(arguments, leaves, None, driver.deferred(plan.is_some()), at)?;
        let news = self.news(leaves);
        if !captured.driver.as_ref().is_none_or(Driver::is_at_start) {
            self.compiles.fetch_add(1, Ordering::Relaxed);
            let rest = self.make_broken(*captured, plan, symbols, arguments, leaves, at);
            self.report(news, leaves, at);
            let rest = rest?;
            self.count(reason, start);
            return Ok(Made::Rest(rest));
        }
        let Captured { driver, last: recorded, returned, .. } = *captured;
        let path = driver.map(Driver::into_ran).unwrap_or_default().path;
        let whole = Whole { path, recorded: Arc::new(recorded), returned: Arc::new(returned) };
        for (entry, sizes) in unchecked {
            if entry.accepts(&whole, sizes) {
                self.touch(&entry);
                self.took(start);
                return Ok(Made::Entry(entry));
            }
        }
        self.compiles.fetch_add(1, Ordering::Relaxed);
        let entry = self.make_whole(whole, arguments, leaves, plan, at);
        self.report(news, leaves, at);
        let entry = entry?;
        self.count(reason, start);
        Ok(Made::Entry(entry))
    }

    /// Notes numbers among the arguments that have a third value by now: the function is taken to decide by them as by what it reads, and a
    /// graph that comes back with another number in it has this as data.
    fn note_changing_numbers(&self, leaves: &[Leaf<'_>]) {
        if self.options().fullgraph {
            return;
        }
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        let mut parts = self.segment_compiler.numbers().parts();
        for (part, leaf) in leaves.iter().enumerate().filter(|(_, leaf)| leaf.number_bytes().is_some()) {
            let known = || entries.iter().filter_map(|entry| entry.guards.get(part));
            let first = known().next();
            let has_two = known().any(|guard| Some(guard).zip(first).is_some_and(|(a, b)| !a.is_same_number(b)));
            if has_two && !parts.contains(&part) && !known().any(|guard| guard.is_alike(leaf)) {
                parts.push(part);
            }
        }
    }

    /// Counts one more program; the first has no reason.
    fn count(&self, reason: Option<Reason>, start: Instant) {
        let took = self.took(start);
        if let Some(reason) = reason {
            self.limits.count(reason, took);
        }
    }

    /// Why one more program is to be made; nothing for the first.
    fn news(&self, leaves: &[Leaf<'_>]) -> Option<News> {
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        let is_first = entries.is_empty();
        let nodes = earlier(&entries, leaves).map(|entry| entry.nodes());
        drop(entries);
        (!is_first).then(|| News { guard: self.failed_guard(leaves), fix: self.advice(leaves), nodes })
    }

    /// Says why there is one more program. Where a size is the reason and the graph has become longer or shorter, a loop over it is.
    fn report(&self, news: Option<News>, leaves: &[Leaf<'_>], at: &Source) {
        let Some(News { guard, mut fix, nodes }) = news else { return };
        if fix.is_empty() {
            let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
            let now = earlier(&entries, leaves).filter(|entry| entry.sizes.is_fixed() && entry.plan.is_none());
            if now.map(|entry| entry.nodes()).zip(nodes).is_some_and(|(now, before)| now != before) {
                fix = LOOP_FIX.to_owned();
            }
        }
        self.recompiles.note(guard, fix, at.clone());
    }

    /// Says what a new program is for.
    fn announce(&self, entry: &Entry<R>, at: &Source) {
        let guards = || entry.guard_texts();
        event::emit(Category::Guards, || Event::Guarded { guards: guards(), at: at.clone() });
        entry.root.visit(&mut |node| {
            if let Node::Step { step: TraceStep::Segment(segment), .. } = node
                && let Some(folder) = segment.code.kind().and_then(Kind::dumped)
            {
                dump::add(folder, "guards.txt", "what arguments have to be", &(guards().join("\n") + "\n"));
            }
        });
    }

    pub(super) fn keep(&self, mut entry: Entry<R>, at: &Source) -> Arc<Entry<R>> {
        if entry.whole.is_some() {
            entry.functions = self.segment_compiler.functions(&entry.taped());
        }
        self.announce(&entry, at);
        let entry = Arc::new(entry);
        self.touch(&entry);
        let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
        while entries.len() >= self.options().cache_limit.max(1) {
            let oldest = entries.iter().enumerate().min_by_key(|(_, entry)| entry.used.load(Ordering::Relaxed));
            let Some((oldest, _)) = oldest else { break };
            entries.remove(oldest);
        }
        entries.push(entry.clone());
        drop(entries);
        if !self.make_room(&entry) {
            // Larger than all programs together may be: the call that made it is its last.
            self.entries.write().unwrap_or_else(PoisonError::into_inner).retain(|known| !Arc::ptr_eq(known, &entry));
            self.limits.note_length();
        }
        entry
    }

    /// Makes a program without running it, with the lengths that [`Options::buckets`] asks for.
    pub(super) fn prepare(&self, arguments: &A, lengths: &[Tensor], at: &Source) -> Result<(), E> {
        let mut leaves = leaves_of(arguments);
        leaves.extend(lengths.iter().map(Leaf::Tensor));
        leaves.extend(autocast::leaf());
        let _alone = self.compiling.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(self.find(&leaves), Found::Program(..)) {
            return Ok(());
        }
        let f = |arguments: &A| (self.apply)(&self.f, arguments);
        let driver = Driver::asking_only(self.segment_compiler.clone(), &tensors_of(&leaves), Arguments::of(&leaves));
        match capture(&f, arguments, None, Some(driver), at)? {
            Outcome::Whole(captured) => {
                let Captured { driver, last: recorded, returned, .. } = *captured;
                let path = driver.map(Driver::into_ran).unwrap_or_default().path;
                let whole = Whole { path, recorded: Arc::new(recorded), returned: Arc::new(returned) };
                self.compiles.fetch_add(1, Ordering::Relaxed);
                self.make_whole(whole, arguments, &leaves, self.plan(&leaves), at)?;
            }
            Outcome::Broken(broken, _) if self.options().fullgraph => {
                return Err(Error::GraphBreak { what: broken.what, at: broken.at }.into());
            }
            Outcome::Broken(broken, _) => breaks::emit(broken.what, breaks::fix_of(broken.what), &broken.at),
        }
        Ok(())
    }
}
