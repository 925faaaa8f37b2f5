//! Recompile limits. Each reason for capturing a function again (a guard on a part of the arguments, or a line that reads
//! elements) has a limit ([`super::Options::recompile_limit`]); beyond it, calls that no program is for run the function
//! eagerly. Reaching a limit is an event that names the line, the guard and a remedy.
//!
//! ```text
//!  no program fits ─▶ reason ─┬─ below its limit ─▶ capture, compile
//!                             └─ at its limit ────▶ run the function itself
//! ```

use super::compiled::Compiled;
use super::entry::Entry;
use super::guard::{self, Failed};
use super::options::Dynamic;
use super::sizes::Accepted;
use super::tree::{BranchGuard, TraceStep};
use crate::tensor::bundle::Leaf;
use kiln_ir::Source;
use kiln_runtime::event::{self, Event};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Why a function has to be captured again.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Reason {
    /// A part of the arguments fails a guard.
    Part { part: usize, failed: Failed },
    /// The arguments have more or fewer parts.
    Parts,
    /// The function decides otherwise by sizes, at this line.
    Check(Source),
    /// The function is another graph at these sizes.
    Graph,
    /// What this line reads, or a disabled part gives, is new.
    Outcome(Source),
    /// A setting, or whether a variable has a gradient, is new.
    State,
    /// What the function does is too long to be kept.
    Length,
}

impl Reason {
    /// Why a guard leads nowhere; `trail` is what came before it.
    pub(super) fn of(guard: &BranchGuard, trail: &[TraceStep]) -> Reason {
        match guard {
            BranchGuard::Elements { at, .. } => Reason::Outcome(at.clone()),
            BranchGuard::Decision(decision) => Reason::Outcome(decision.at.clone()),
            BranchGuard::Number { part } => Reason::Part { part: *part, failed: Failed::Value },
            BranchGuard::Outside | BranchGuard::Sizes { .. } => {
                let line = trail.iter().rev().find_map(|step| match step {
                    TraceStep::Outside { at, .. } => Some(at.clone()),
                    _ => None,
                });
                line.map_or(Reason::State, Reason::Outcome)
            }
            _ => Reason::State,
        }
    }

    /// The line that decides, where that is not the call.
    fn line(&self) -> Option<&Source> {
        match self {
            Reason::Check(at) | Reason::Outcome(at) => Some(at),
            _ => None,
        }
    }
}

/// How often a function was captured, by reason.
#[derive(Default)]
pub(super) struct Limits {
    tallies: Mutex<HashMap<Reason, Tally>>,
    /// Whether a call was too long to be kept.
    is_too_long: AtomicBool,
    /// Nanoseconds spent on capturing again, and those that calls of programs were faster than the function itself.
    spent: AtomicU64,
    saved: AtomicU64,
    /// Limits that were reached.
    reached: AtomicU64,
}

#[derive(Default, Clone, Copy)]
struct Tally {
    captures: usize,
    is_reached: bool,
}

/// Captures for one reason that do not have to pay: a size that changes needs a second program, which is then for all sizes.
const UNPAID: usize = 2;

impl Limits {
    fn lock(&self) -> MutexGuard<'_, HashMap<Reason, Tally>> {
        self.tallies.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that the function was captured again, which took so long.
    pub(super) fn count(&self, reason: Reason, took: Duration) {
        self.lock().entry(reason).or_default().captures += 1;
        self.spent.fetch_add(took.as_nanos() as u64, Ordering::Relaxed);
    }

    /// Notes that a program was so much faster than the function itself.
    pub(super) fn save(&self, nanos: u64) {
        self.saved.fetch_add(nanos, Ordering::Relaxed);
    }

    /// Notes that nothing more is kept for a reason, whatever its limit.
    pub(super) fn exhaust(&self, reason: Reason) {
        self.lock().entry(reason).or_default().captures = usize::MAX / 2;
    }

    /// Whether there are as many programs for a reason as there may be, the first included. Where captures have to pay, those beyond
    /// the first few also have to be earned by what earlier ones saved.
    pub(super) fn is_over(&self, reason: &Reason, limit: usize, must_pay: bool) -> bool {
        let captures = self.lock().get(reason).map_or(0, |tally| tally.captures);
        let is_unpaid = || self.spent.load(Ordering::Relaxed) > self.saved.load(Ordering::Relaxed);
        captures.saturating_add(1) >= limit.max(1) || (must_pay && captures >= UNPAID && is_unpaid())
    }

    /// Whether a limit is reached for the first time; gives the number of programs there are for it.
    fn reach(&self, reason: &Reason) -> Option<usize> {
        let mut tallies = self.lock();
        let tally = tallies.entry(reason.clone()).or_default();
        if std::mem::replace(&mut tally.is_reached, true) {
            return None;
        }
        self.reached.fetch_add(1, Ordering::Relaxed);
        Some(tally.captures.saturating_add(1))
    }

    /// A call was too long to be kept.
    pub(super) fn note_length(&self) {
        self.is_too_long.store(true, Ordering::Relaxed);
        self.exhaust(Reason::Length);
    }

    /// How many limits were reached.
    pub(super) fn reached(&self) -> u64 {
        self.reached.load(Ordering::Relaxed)
    }

    /// Begins anew.
    pub(super) fn clear(&self) {
        self.lock().clear();
        self.is_too_long.store(false, Ordering::Relaxed);
        self.spent.store(0, Ordering::Relaxed);
        self.saved.store(0, Ordering::Relaxed);
    }
}

impl<F, A, R, E> Compiled<F, A, R, E> {
    /// The program that comes nearest to these parts, the part of it that fails, and the sizes of its symbols.
    #[allow(clippy::type_complexity)]
    fn nearest(&self, leaves: &[Leaf<'_>]) -> Option<(Arc<Entry<R>>, Result<(), Option<usize>>, Vec<usize>)> {
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        let checked = entries.iter().map(|entry| {
            let mut sizes = vec![guard::UNKNOWN; entry.sizes.count()];
            let outcome = guard::check(&entry.guards, leaves, &mut sizes);
            (entry, outcome, sizes)
        });
        let passed = |outcome: &Result<(), Option<usize>>| match outcome {
            Ok(()) => usize::MAX,
            Err(part) => part.unwrap_or(0),
        };
        let nearest = checked.max_by_key(|(entry, outcome, _)| (passed(outcome), entry.used.load(Ordering::Relaxed)));
        nearest.map(|(entry, outcome, sizes)| (entry.clone(), outcome, sizes))
    }

    /// Why none of the programs is for these parts; nothing where there is none yet.
    pub(super) fn reason(&self, leaves: &[Leaf<'_>]) -> Option<Reason> {
        let Some((entry, outcome, sizes)) = self.nearest(leaves) else {
            return self.limits.is_too_long.load(Ordering::Relaxed).then_some(Reason::Length);
        };
        Some(match outcome {
            Err(None) => Reason::Parts,
            Err(Some(part)) => match (entry.guards.get(part), leaves.get(part)) {
                (Some(guard), Some(leaf)) => Reason::Part { part, failed: guard.failed(leaf) },
                _ => Reason::Parts,
            },
            Ok(()) => match entry.sizes.accept(&sizes) {
                Accepted::No(check) => Reason::Check(check.at().clone()),
                _ => Reason::Graph,
            },
        })
    }

    /// Describes the guard of the nearest program that failed.
    pub(super) fn failed_guard(&self, leaves: &[Leaf<'_>]) -> String {
        match self.nearest(leaves) {
            None => "there is no program yet".to_owned(),
            Some((entry, Err(failed), _)) => guard::explain(&entry.guards, leaves, failed),
            Some((entry, Ok(()), sizes)) => match entry.sizes.accept(&sizes) {
                Accepted::No(check) => format!("not {check}"),
                _ => "the function is another graph at these sizes".to_owned(),
            },
        }
    }

    /// How many programs a reason may have.
    fn limit(&self, reason: &Reason) -> usize {
        let limit = self.options().recompile_limit;
        match reason {
            // Buckets are listed explicitly: each has its program.
            Reason::Part { failed: Failed::Size, .. } => {
                let buckets = self.options().buckets.iter().map(|buckets| buckets.sizes().len() + 1).product::<usize>();
                limit.saturating_add(if self.options().buckets.is_empty() { 0 } else { buckets })
            }
            _ => limit,
        }
    }

    /// Whether the function is captured no more for this reason.
    pub(super) fn is_over(&self, reason: &Reason) -> bool {
        self.limits.is_over(reason, self.limit(reason), self.options().never_slower)
    }

    /// Says, once for each reason, that the function is captured no more for it.
    pub(super) fn reach(&self, reason: &Reason, guard: impl FnOnce() -> String, at: &Source) {
        let Some(programs) = self.limits.reach(reason) else { return };
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        let has_break = entries.iter().any(|entry| entry.whole.is_none() && entry.plan.is_none());
        drop(entries);
        let fix = way_out(reason, &self.options().dynamic, has_break);
        let at = reason.line().unwrap_or(at).clone();
        event::warn(&Event::RecompileLimit { programs: programs.min(self.limit(reason)), guard: guard(), fix, at });
    }

    /// What the user can do about a guard that fails.
    pub(super) fn advice(&self, leaves: &[Leaf<'_>]) -> String {
        let is_static = self.options().dynamic == Dynamic::Static;
        let text = match self.reason(leaves) {
            Some(Reason::Part { failed: Failed::Size, .. }) if is_static => {
                "with Dynamic::Automatic a size that changes becomes a symbol"
            }
            Some(Reason::Part { failed: Failed::Type, .. }) => {
                "one program is enough if it is made alike before the call (`to_dtype`, `contiguous`)"
            }
            Some(Reason::Part { part, failed: Failed::Value })
                if matches!(leaves.get(part), Some(Leaf::Int(_) | Leaf::Float(_))) =>
            {
                "a number that changes often is better a tensor"
            }
            _ => "",
        };
        text.to_owned()
    }
}

/// The way out of a limit.
fn way_out(reason: &Reason, dynamic: &Dynamic, has_break: bool) -> String {
    let way = match reason {
        Reason::Part { failed: Failed::Type, .. } => "make it alike before the call (`to_dtype`, `reshape`, `detach`)",
        Reason::Part { failed: Failed::Size, .. } if *dynamic == Dynamic::Static => {
            "with Dynamic::Automatic a size that changes becomes a symbol, and Options::buckets pads it to few sizes"
        }
        Reason::Part { failed: Failed::Size, .. } if has_break => {
            "where a function reads elements, sizes that it reads as numbers (`shape`, `to_vec` of a whole tensor) are those of one program: \
             take them by `size`, or pad to few sizes with Options::buckets"
        }
        Reason::Part { failed: Failed::Size, .. } | Reason::Graph => {
            "take sizes by `size` and not as numbers, declare them (Dynamic::range), or pad to few sizes with Options::buckets; a \
             loop over a size is another graph at each, where `kiln::scan` is one for all"
        }
        Reason::Part { failed: Failed::Strides, .. } => {
            "strides are a program's where no sizes say what they are (columns of matrices of any width, axes that turn round): call \
             `contiguous` before the call"
        }
        Reason::Part { failed: Failed::Value, .. } => {
            "a plain value is part of the program: pass one that changes as a tensor, or keep it in a Var"
        }
        Reason::Parts => "stack tensors whose number changes into one tensor, and pad it with Options::buckets",
        Reason::Check(_) => "compare tensors there and not sizes, or declare the range of the size (Dynamic::range)",
        Reason::Outcome(_) => {
            "compare before you read (`gt(0.0)?.item::<bool>()` has two outcomes), read what becomes a size by `item_size`, keep to tensors \
             (`where_`, `kiln::cond`), or call the part that reads through `kiln::disable`"
        }
        Reason::State => "keep what takes many values in a Var instead of a Setting",
        Reason::Length => "do more between two reads of elements, or compile the body of the loop instead",
    };
    format!("{way}; Options::recompile_limit is the limit")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_counts_the_first_program() {
        let limits = Limits::default();
        let (one, other) = (Reason::Parts, Reason::Graph);
        assert!(limits.is_over(&one, 1, false) && limits.is_over(&one, 0, false) && !limits.is_over(&one, 2, false));
        for _ in 0..15 {
            assert!(!limits.is_over(&one, 16, false));
            limits.count(one.clone(), Duration::ZERO);
        }
        assert!(limits.is_over(&one, 16, false) && !limits.is_over(&other, 16, false));
        assert_eq!((limits.reach(&one), limits.reach(&one), limits.reached()), (Some(16), None, 1));
        limits.clear();
        assert!(!limits.is_over(&one, 16, false));
    }

    #[test]
    fn captures_have_to_be_earned_where_they_must_pay() {
        let limits = Limits::default();
        let reason = Reason::Graph;
        for _ in 0..UNPAID {
            assert!(!limits.is_over(&reason, 16, true));
            limits.count(reason.clone(), Duration::from_micros(10));
        }
        assert!(limits.is_over(&reason, 16, true) && !limits.is_over(&reason, 16, false));
        limits.save(30_000);
        assert!(!limits.is_over(&reason, 16, true));
    }
}
