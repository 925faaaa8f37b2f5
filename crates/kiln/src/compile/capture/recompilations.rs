//! Why a function has more than one program, and what is said of it when the function is gone.

use kiln_ir::Source;
use kiln_runtime::event::{self, Category, Event, RecompileReason};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Reasons for recompiling that are kept.
const REASONS_KEPT: usize = 64;

/// The recompilations of one function. Dropped with it, they are summed up for `KILN_LOG=recompiles`.
#[derive(Default)]
pub(super) struct Recompilations(Mutex<State>);

#[derive(Default)]
struct State {
    /// What was said at each, the oldest first.
    texts: Vec<String>,
    /// How many there were.
    count: usize,
    /// By line and fix.
    reasons: Vec<RecompileReason>,
}

impl Recompilations {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that the function was compiled again because this guard failed.
    pub(super) fn note(&self, guard: String, fix: String, at: Source) {
        let mut state = self.lock();
        state.count += 1;
        let is_full = state.reasons.len() >= REASONS_KEPT;
        match state.reasons.iter_mut().find(|reason| reason.fix == fix && reason.at == at) {
            Some(reason) => {
                reason.count += 1;
                reason.guard.clone_from(&guard);
            }
            None if !is_full => {
                state.reasons.push(RecompileReason {
                    count: 1,
                    guard: guard.clone(),
                    fix: fix.clone(),
                    at: at.clone(),
                });
            }
            None => {}
        }
        let event = Event::Recompile { guard, fix, at };
        if state.texts.len() >= REASONS_KEPT {
            state.texts.remove(0);
        }
        state.texts.push(event.to_string());
        drop(state);
        event::emit(Category::Recompiles, || event);
    }

    /// What was said at each, the oldest first.
    pub(super) fn texts(&self) -> Vec<String> {
        self.lock().texts.clone()
    }
}

impl Drop for Recompilations {
    fn drop(&mut self) {
        let state = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        if state.count > 0 {
            let (recompiles, mut reasons) = (state.count, std::mem::take(&mut state.reasons));
            reasons.sort_by_key(|reason| std::cmp::Reverse(reason.count));
            event::emit(Category::Recompiles, || Event::RecompileSummary { recompiles, reasons });
        }
    }
}
