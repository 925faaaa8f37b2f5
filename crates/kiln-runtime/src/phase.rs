//! Measures where the time of a call goes: phases are timed while a recording is active on their thread, and where somebody listens
//! to [`Category::Kernels`] (`KILN_LOG=compile`) each is an event when it ends.
//!
//! ```text
//!  capture ──▶ passes, schedule, code, plan (or key, read) ──▶ capture ──▶ run
//!  └── the time of a phase is its own: what a phase inside of it takes is not counted twice ──┘
//! ```
//!
//! Those of a GPU: `context` (the driver and the GPU's context), `nvrtc library`, `cublaslt` and `cudnn` (loading them), `nvrtc` (compiling),
//! `module` (code to the GPU), `graph` (launches as one CUDA graph).

use crate::event::{self, Category, Event};
use std::cell::RefCell;
use std::time::{Duration, Instant};

/// Names and times, in the order the phases ended.
pub type Phases = Vec<(&'static str, Duration)>;

/// The phase in which kernels run. Every other phase is part of making a program.
pub const RUN: &str = "run";

/// What a thread has recorded since the recording began.
struct Recording {
    phases: Phases,
    /// Time of the phases that ended inside of the one under way.
    inner: Duration,
    /// Whether somebody asked for the list, and not only for events.
    is_wanted: bool,
}

impl Default for Recording {
    fn default() -> Recording {
        Recording { phases: Phases::new(), inner: Duration::ZERO, is_wanted: true }
    }
}

thread_local! {
    static RECORDED: RefCell<Option<Recording>> = const { RefCell::new(None) };
}

/// Runs a phase and records its time if a recording is active. The time of nested phases is theirs alone.
pub fn timed<T>(name: &'static str, work: impl FnOnce() -> T) -> T {
    let is_told = name != RUN && event::is_enabled(Category::Kernels);
    let outer = RECORDED.with_borrow_mut(|recorded| {
        let is_outermost = recorded.is_none();
        if is_outermost && is_told {
            *recorded = Some(Recording { is_wanted: false, ..Recording::default() });
        }
        recorded.as_mut().map(|recording| (std::mem::take(&mut recording.inner), is_outermost))
    });
    let Some((outer, is_outermost)) = outer else { return work() };
    let start = Instant::now();
    let result = work();
    let took = start.elapsed();
    let own = RECORDED.with_borrow_mut(|recorded| {
        let recording = recorded.as_mut()?;
        let own = took.saturating_sub(recording.inner);
        recording.inner = outer + took;
        if recording.is_wanted {
            recording.phases.push((name, own));
        }
        if is_outermost {
            *recorded = None;
        }
        Some(own)
    });
    if let Some(took) = own.filter(|_| is_told) {
        event::emit(Category::Kernels, || Event::Phase { name, took });
    }
    result
}

/// Runs `work` and returns the phases that it went through on this thread.
///
/// ```
/// use kiln_runtime::phase;
/// let (sum, phases) = phase::recorded(|| phase::timed("add", || 1 + 1));
/// assert_eq!((sum, phases[0].0), (2, "add"));
/// ```
pub fn recorded<T>(work: impl FnOnce() -> T) -> (T, Phases) {
    let outer = RECORDED.replace(Some(Recording::default()));
    let result = work();
    (result, RECORDED.replace(outer).unwrap_or_default().phases)
}

/// The time of the phases that made programs.
pub fn compiling(phases: &[(&'static str, Duration)]) -> Duration {
    phases.iter().filter(|(name, _)| *name != RUN).map(|(_, took)| *took).sum()
}

/// The time that this thread has spent on making programs since the innermost [`recorded`] began; zero outside of one.
///
/// ```
/// use kiln_runtime::phase;
/// use std::time::Duration;
/// let ((before, after), _) = phase::recorded(|| {
///     let before = phase::compiling_so_far();
///     phase::timed("code", || std::thread::sleep(Duration::from_millis(2)));
///     phase::timed(phase::RUN, || std::thread::sleep(Duration::from_millis(2)));
///     (before, phase::compiling_so_far())
/// });
/// assert!(before.is_zero() && after >= Duration::from_millis(2));
/// ```
pub fn compiling_so_far() -> Duration {
    RECORDED.with_borrow(|recorded| recorded.as_ref().map_or(Duration::ZERO, |recording| compiling(&recording.phases)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread::sleep;

    const LONG: Duration = Duration::from_millis(20);

    /// A phase inside of another is counted once: the sum of all is never more than the time that passed.
    #[test]
    fn the_time_of_a_phase_is_its_own() {
        let start = Instant::now();
        let ((), phases) = recorded(|| {
            timed("capture", || {
                timed("code", || sleep(LONG));
                timed(RUN, || timed("freeze", || sleep(LONG)));
            });
        });
        let whole = start.elapsed();
        let names: Vec<&str> = phases.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, ["code", "freeze", RUN, "capture"]);
        assert!(phases[0].1 >= LONG && phases[1].1 >= LONG, "{phases:?}");
        assert!(phases.iter().map(|(_, took)| *took).sum::<Duration>() <= whole, "{phases:?} in {whole:?}");
        assert_eq!(compiling(&phases), phases[0].1 + phases[1].1 + phases[3].1);
    }

    #[test]
    fn phases_are_events_for_listeners() {
        let told = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
        let own = told.clone();
        let _guard = event::listen(&[Category::Kernels], move |event| {
            if let Event::Phase { name, took } = event {
                own.lock().unwrap().push((*name, *took));
            }
        });
        timed("listened outside", || {
            timed("listened inside", || sleep(LONG));
            timed(RUN, || ());
        });
        let told: Vec<_> =
            told.lock().unwrap().iter().filter(|(name, _)| name.starts_with("listened")).copied().collect();
        assert_eq!([told[0].0, told[1].0], ["listened inside", "listened outside"]);
        assert!(told[0].1 >= LONG && told[1].1 < LONG, "{told:?}");
    }

    #[test]
    fn nothing_is_noted_where_nobody_asks() {
        timed("code", || ());
        assert_eq!(compiling_so_far(), Duration::ZERO);
        let ((), inner) = recorded(|| {
            timed("code", || ());
        });
        assert_eq!(inner.len(), 1);
    }
}
