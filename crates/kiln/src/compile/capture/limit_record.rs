//! Whether a program that has reached a limit at a line it reads is tried at a call, or the function itself runs: by what trying brought
//! and cost at earlier calls.
//!
//! ```text
//!  call ─┬─ try ──┬─ a known outcome ─▶ the program's result            brings: time of the function itself less that of the program
//!        │        └─ a new one ───────▶ the function from its beginning costs:  time of the program so far
//!        └─ do not try ───────────────▶ the function
//! ```

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// How the calls of one program fare that has reached a limit at a line it reads.
#[derive(Default)]
pub(super) struct LimitRecord {
    /// The function has to run from its beginning at every call.
    has_given_up: AtomicBool,
    /// Calls that were tried since the limit was reached; 0 before.
    tried: AtomicU32,
    /// Nanoseconds that trying brought less those that it cost, earlier calls counting less.
    balance: AtomicI64,
    /// Nanoseconds that a call of the function itself takes, after a new outcome.
    own: AtomicI64,
    /// The last call that was tried found its way.
    found: AtomicBool,
    /// Calls since that were not tried.
    skipped: AtomicU32,
    /// Nanoseconds that the last call took which was tried and found no way, the function itself aside.
    wasted: AtomicI64,
    /// Calls in a row with a new outcome that needed no new code, and the least nanoseconds that such a call and one of the function itself took.
    fresh: AtomicU32,
    measured: AtomicU32,
    captured: AtomicU64,
    eager: AtomicU64,
    /// The function itself is faster than calls with new outcomes.
    is_fresh_slower: AtomicBool,
}

/// Calls with a new outcome but no new code after which the function itself is measured beside them, and how many times.
const FRESH: u32 = 8;
const MEASURED: u32 = 5;
/// Tried calls after which their balance counts.
const TRIED: u32 = 4;
/// One call in so many is tried where trying costs more than it brings, and one in so many times as many where it costs as many times as much
/// as the function itself; but not fewer than one in so many of these.
const TRIED_EVERY: u32 = 32;
const RAREST: i64 = 128;
/// An earlier call counts so many sixteenths of the one after it.
const FADES: i64 = 15;
/// A second. No call counts for more, so that sums stay numbers.
const MOST: i64 = 1_000_000_000;

impl LimitRecord {
    /// Whether the function itself is to run, without trying the program.
    #[inline]
    pub(super) fn is_eager(&self) -> bool {
        // Before any limit is reached nothing else is looked at.
        if self.tried.load(Ordering::Relaxed) == 0 && !self.is_fresh_slower.load(Ordering::Relaxed) {
            return false;
        }
        self.has_given_up.load(Ordering::Relaxed) || self.prefers_eager() && !self.is_next_tried()
    }

    fn prefers_eager(&self) -> bool {
        let loses = self.tried.load(Ordering::Relaxed) >= TRIED && self.balance.load(Ordering::Relaxed) < 0;
        loses || self.is_fresh_slower.load(Ordering::Relaxed)
    }

    /// Calls are tried as long as they find their way, and one now and then.
    fn is_next_tried(&self) -> bool {
        if self.found.load(Ordering::Relaxed) {
            return true;
        }
        let (wasted, own) = (self.wasted.load(Ordering::Relaxed), self.own_nanos());
        let rarer = wasted.checked_div(own).unwrap_or(1).clamp(1, RAREST) as u32;
        let is_next = self.skipped.fetch_add(1, Ordering::Relaxed) + 1 >= TRIED_EVERY * rarer;
        if is_next {
            self.skipped.store(0, Ordering::Relaxed);
        }
        is_next
    }

    /// What a call of the function itself takes, as far as is known.
    fn own_nanos(&self) -> i64 {
        let (own, eager) = (self.own.load(Ordering::Relaxed), self.eager.load(Ordering::Relaxed));
        if own > 0 { own } else { i64::try_from(eager).unwrap_or(MOST) }
    }

    /// A call that was tried found no way, after so long.
    fn waste(&self, took: Duration) {
        self.found.store(false, Ordering::Relaxed);
        self.wasted.store(nanos(took), Ordering::Relaxed);
    }

    /// Whether the time of the next call that is tried is wanted.
    #[inline]
    pub(super) fn wants_time(&self) -> bool {
        self.is_fresh() || self.tried.load(Ordering::Relaxed) > 0
    }

    /// Whether calls meet new outcomes that need no new code.
    #[inline]
    fn is_fresh(&self) -> bool {
        self.fresh.load(Ordering::Relaxed) > 0
    }

    /// Whether the function itself is to be measured at this call.
    #[inline]
    pub(super) fn wants_measure(&self) -> bool {
        self.fresh.load(Ordering::Relaxed) >= FRESH && self.measured.load(Ordering::Relaxed) < MEASURED
    }

    /// A call with a new outcome took so long, without new code.
    pub(super) fn note_fresh(&self, took: Option<Duration>) {
        self.fresh.fetch_add(1, Ordering::Relaxed);
        if let Some(took) = took {
            keep_least(&self.captured, took);
            self.waste(took);
        }
        self.decide();
    }

    /// The function itself took so long, at a call that measures it.
    pub(super) fn note_eager(&self, took: Duration) {
        self.measured.fetch_add(1, Ordering::Relaxed);
        keep_least(&self.eager, took);
        self.decide();
    }

    /// Where the function itself is faster than being captured again, it runs.
    fn decide(&self) {
        let (captured, eager) = (self.captured.load(Ordering::Relaxed), self.eager.load(Ordering::Relaxed));
        let is_usual = self.fresh.load(Ordering::Relaxed) >= FRESH;
        if is_usual && self.measured.load(Ordering::Relaxed) >= MEASURED && eager < captured {
            self.is_fresh_slower.store(true, Ordering::Relaxed);
        }
    }

    /// A call met a new outcome beyond a limit, after so long.
    pub(super) fn miss(&self, after: Option<Duration>) {
        // The first one was not timed.
        let after = after.unwrap_or(Duration::from_nanos(1));
        self.waste(after);
        self.note(-nanos(after));
    }

    /// The function itself took so long after that.
    pub(super) fn note_own(&self, took: Duration) {
        let (before, took) = (self.own.load(Ordering::Relaxed), nanos(took).max(1));
        self.own.store(if before == 0 { took } else { (before * FADES + took) / (FADES + 1) }, Ordering::Relaxed);
    }

    /// A call did, and what it had changed by then cannot be done twice: from now on the function runs from its beginning.
    pub(super) fn give_up(&self) {
        self.has_given_up.store(true, Ordering::Relaxed);
        self.tried.fetch_max(1, Ordering::Relaxed);
    }

    /// A call found its way; in so long, if that was wanted.
    #[inline]
    pub(super) fn hit(&self, took: Option<Duration>) {
        if let Some(took) = took {
            self.hit_beyond_limit(took);
        }
    }

    #[cold]
    fn hit_beyond_limit(&self, took: Duration) {
        self.fresh.store(0, Ordering::Relaxed);
        self.is_fresh_slower.store(false, Ordering::Relaxed);
        self.found.store(true, Ordering::Relaxed);
        if self.tried.load(Ordering::Relaxed) > 0 {
            self.note(self.own.load(Ordering::Relaxed) - nanos(took));
        }
    }

    fn note(&self, gain: i64) {
        let tried = self.tried.load(Ordering::Relaxed);
        self.tried.store(tried.saturating_add(1), Ordering::Relaxed);
        let balance = self.balance.load(Ordering::Relaxed) * FADES / (FADES + 1);
        self.balance.store(balance + gain, Ordering::Relaxed);
    }
}

fn nanos(took: Duration) -> i64 {
    i64::try_from(took.as_nanos()).unwrap_or(MOST).min(MOST)
}

/// Keeps the least of durations; zero stands for none.
fn keep_least(least: &AtomicU64, took: Duration) {
    let took = (took.as_nanos() as u64).max(1);
    let before = least.load(Ordering::Relaxed);
    if before == 0 || took < before {
        least.store(took, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOW: Duration = Duration::from_micros(20);
    const FAST: Duration = Duration::from_micros(10);

    #[test]
    fn new_outcomes_run_the_faster_way() {
        for (captured, eager) in [(SLOW, FAST), (FAST, SLOW)] {
            let record = LimitRecord::default();
            record.note_fresh(None);
            (1..FRESH).for_each(|_| record.note_fresh(Some(captured)));
            for _ in 0..MEASURED {
                assert!(record.wants_measure() && !record.is_eager());
                record.note_eager(eager);
            }
            assert!(!record.wants_measure());
            assert_eq!(record.is_eager(), eager < captured);
            // Now and then a new one among outcomes that are known is no reason.
            record.hit(Some(captured));
            record.note_fresh(Some(captured));
            assert!(!record.is_eager());
        }
    }

    #[test]
    fn a_program_that_is_never_hit_is_tried_now_and_then() {
        let record = LimitRecord::default();
        record.miss(None);
        (1..TRIED).for_each(|_| record.miss(Some(FAST)));
        let tried = (0..320).filter(|_| !record.is_eager()).count();
        assert_eq!(tried, 10);
        // One that costs ten times as much as the function itself is tried a tenth as often.
        record.miss(Some(FAST * 10));
        record.note_own(FAST);
        let tried = (0..3200).filter(|_| !record.is_eager()).count();
        assert_eq!(tried, 10);
        // As long as it is hit, it is tried.
        record.hit(Some(FAST));
        assert!((0..10).all(|_| !record.is_eager()));
        record.miss(Some(FAST));
        assert!((0..10).all(|_| record.is_eager()));
        record.give_up();
        record.hit(Some(FAST));
        assert!((0..100).all(|_| record.is_eager()));
    }

    /// One call of `known` finds its way, in half of the function's own time; the others find a new outcome after as long.
    #[test]
    fn a_program_that_is_hit_at_times_is_tried_where_that_pays() {
        for (known, pays) in [(4, false), (3, false), (1, true)] {
            let record = LimitRecord::default();
            let mut tried = 0;
            for call in 0..3200 {
                if record.is_eager() {
                    continue;
                }
                tried += 1;
                if call % known == 0 && call > 0 {
                    record.hit(Some(FAST));
                } else {
                    record.miss(Some(FAST));
                    record.note_own(SLOW);
                }
            }
            assert_eq!(tried > 1600, pays, "one of {known}: {tried} calls were tried");
        }
    }
}
