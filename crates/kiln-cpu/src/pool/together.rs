//! Jobs that do not depend on each other, in one region of the pool.
//!
//! A job is ordinary code that asks the pool for a region somewhere inside. It is held there while the next job is begun, on top of it, until
//! all of them have asked (or ended without); then the chunks of all are one region, and each job goes on. So nothing but the place where a
//! region begins knows of it.

use super::{Work, run_region};
use std::cell::Cell;
use std::ptr::null;

/// The most jobs that are run together.
pub const MOST_JOBS: usize = 16;

thread_local! {
    /// The jobs of which this thread runs one that has not asked for a region yet.
    static CURRENT: Cell<*const Jobs<'static>> = const { Cell::new(null()) };
}

/// Calls every job once. What each asks of the pool first is done with what the others ask first, in one region.
///
/// ```
/// use kiln_cpu::pool;
/// use std::sync::atomic::{AtomicUsize, Ordering};
/// let sum = AtomicUsize::new(0);
/// let add = |chunks: usize| pool::run(chunks, 4, &|i| { sum.fetch_add(i, Ordering::Relaxed); });
/// pool::together(&[&|| add(10), &|| add(100)]);
/// assert_eq!(sum.into_inner(), 45 + 4950);
/// ```
///
/// # Panics
/// For more than [`MOST_JOBS`] jobs, and where a job panics.
pub fn together(jobs: &[&dyn Fn()]) {
    assert!(jobs.len() <= MOST_JOBS, "{} jobs at once", jobs.len());
    let jobs = Jobs { jobs, begun: Cell::new(0), asked: Default::default(), waiting: Cell::new(0) };
    let outer = Outer(CURRENT.get());
    while let Some(job) = jobs.next() {
        jobs.begin(job);
    }
    drop(outer);
}

/// Sets back what was current before, also after a panic.
struct Outer(*const Jobs<'static>);

impl Drop for Outer {
    fn drop(&mut self) {
        CURRENT.set(self.0);
    }
}

/// The jobs of which this thread runs one; the next region is then none of theirs any more.
pub(super) fn current<'a>() -> Option<&'a Jobs<'a>> {
    let jobs = CURRENT.replace(null());
    // SAFETY: `together` holds them while the pointer is set, and whatever asks is called by it.
    unsafe { jobs.as_ref() }
}

pub(super) struct Jobs<'a> {
    jobs: &'a [&'a dyn Fn()],
    begun: Cell<usize>,
    /// What the jobs that wait have asked for.
    asked: [Cell<Option<Asked>>; MOST_JOBS],
    waiting: Cell<usize>,
}

/// A region that a job waits for.
#[derive(Clone, Copy)]
struct Asked {
    chunks: usize,
    threads: usize,
    work: *const Work,
}

/// A region that a job waits for, as all threads see it.
#[derive(Clone, Copy)]
struct Part<'a> {
    first: usize,
    work: &'a Work,
}

impl Jobs<'_> {
    fn next(&self) -> Option<&dyn Fn()> {
        let job = self.jobs.get(self.begun.get())?;
        self.begun.set(self.begun.get() + 1);
        Some(*job)
    }

    /// Calls a job; false if it asked for a region, in which case all that wait have had theirs.
    fn begin(&self, job: &dyn Fn()) -> bool {
        CURRENT.set(std::ptr::from_ref(self).cast());
        job();
        !CURRENT.replace(null()).is_null()
    }

    /// A job asks for a region.
    pub(super) fn region(&self, chunks: usize, threads: usize, work: &(dyn Fn(usize) + Sync)) {
        // SAFETY: only the lifetime changes: the reference is used before this function returns.
        let work = unsafe { std::mem::transmute::<*const (dyn Fn(usize) + Sync), *const Work>(work) };
        self.asked[self.waiting.get()].set(Some(Asked { chunks, threads, work }));
        self.waiting.set(self.waiting.get() + 1);
        while let Some(job) = self.next() {
            if !self.begin(job) {
                return;
            }
        }
        self.run();
    }

    /// The regions of all that wait, as one.
    fn run(&self) {
        let mut parts = [Part { first: 0, work: &|_| {} }; MOST_JOBS];
        let (mut chunks, mut threads) = (0, 0);
        let waiting = self.waiting.take();
        for (part, asked) in parts.iter_mut().zip(&self.asked[..waiting]) {
            let Some(asked) = asked.take() else { continue };
            // SAFETY: the job waits in `region`, further up this thread's stack.
            *part = Part { first: chunks, work: unsafe { &*asked.work } };
            chunks += asked.chunks;
            threads = threads.max(asked.threads);
        }
        let parts = &parts[..waiting];
        run_region(chunks, threads, &|chunk| {
            let of = parts.partition_point(|part| part.first <= chunk) - 1;
            (parts[of].work)(chunk - parts[of].first);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::{run, set_threads};
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Jobs that count what they do: chunks before and after, and those of one that asks twice or never.
    #[test]
    fn every_chunk_of_every_job_once() {
        set_threads(3);
        for sizes in [[5, 0, 7, 1], [0, 0, 0, 0], [1, 1, 1, 1], [40, 3, 0, 900]] {
            let done: Vec<Vec<AtomicUsize>> =
                sizes.iter().map(|&n| (0..2 * n).map(|_| AtomicUsize::new(0)).collect()).collect();
            let job = |j: usize| {
                let n = sizes[j];
                run(n, 3, &|i| _ = done[j][i].fetch_add(1, Ordering::Relaxed));
                assert!(done[j][..n].iter().all(|count| count.load(Ordering::Relaxed) == 1), "the region is over");
                run(n, 3, &|i| _ = done[j][n + i].fetch_add(1, Ordering::Relaxed));
            };
            let silent = AtomicUsize::new(0);
            together(&[&|| job(0), &|| job(1), &|| _ = silent.fetch_add(1, Ordering::Relaxed), &|| job(2), &|| job(3)]);
            assert!(done.iter().flatten().all(|count| count.load(Ordering::Relaxed) == 1), "{sizes:?}");
            assert_eq!(silent.into_inner(), 1);
        }
    }

    /// The chunks of two jobs are one region: a chunk of the first can wait for one of the second.
    #[test]
    fn chunks_of_all_jobs_run_at_once() {
        set_threads(2);
        let order = Mutex::new(Vec::new());
        let note = |what: &'static str| order.lock().unwrap().push(what);
        let job = |name: &'static str, end: &'static str| {
            run(1, 2, &|_| note(name));
            note(end);
        };
        together(&[&|| job("a", "a ends"), &|| job("b", "b ends")]);
        let order = order.into_inner().unwrap();
        let at = |what| order.iter().position(|other| *other == what).unwrap();
        assert!(at("b") < at("a ends") && at("a") < at("b ends"), "{order:?}");
    }

    #[test]
    fn a_panic_leaves_the_pool_as_it_was() {
        for place in 0..3 {
            let job = |j: usize| {
                assert!(place != 0 || j != 1, "before");
                run(4, 2, &|i| assert!(place != 1 || j != 1 || i != 2, "inside"));
                assert!(place != 2 || j != 1, "after");
            };
            let outcome = catch_unwind(AssertUnwindSafe(|| together(&[&|| job(0), &|| job(1), &|| job(2)])));
            assert!(outcome.is_err());
            assert!(current().is_none());
            let count = AtomicUsize::new(0);
            run(100, 2, &|_| _ = count.fetch_add(1, Ordering::Relaxed));
            assert_eq!(count.into_inner(), 100);
        }
    }
}
