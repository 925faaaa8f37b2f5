//! Where the time of a compile goes: phases clock themselves while somebody on their thread asks.

use std::cell::RefCell;
use std::time::{Duration, Instant};

/// Names and times, in the order the phases ended.
pub type Phases = Vec<(&'static str, Duration)>;

thread_local! {
    static RECORDED: RefCell<Option<Phases>> = const { RefCell::new(None) };
}

/// Does the work of a phase, and notes how long it took if anybody asked.
pub fn timed<T>(name: &'static str, work: impl FnOnce() -> T) -> T {
    if RECORDED.with_borrow(Option::is_none) {
        return work();
    }
    let start = Instant::now();
    let result = work();
    let took = start.elapsed();
    RECORDED.with_borrow_mut(|recorded| {
        if let Some(recorded) = recorded {
            recorded.push((name, took));
        }
    });
    result
}

/// Does work and gives the phases that it went through on this thread.
///
/// ```
/// use kiln_runtime::phase;
/// let (sum, phases) = phase::recorded(|| phase::timed("add", || 1 + 1));
/// assert_eq!((sum, phases[0].0), (2, "add"));
/// ```
pub fn recorded<T>(work: impl FnOnce() -> T) -> (T, Phases) {
    let outer = RECORDED.replace(Some(Phases::new()));
    let result = work();
    (result, RECORDED.replace(outer).unwrap_or_default())
}
