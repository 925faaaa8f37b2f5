//! The thread pool of the process: workers spin briefly, then park; work is claimed chunk by chunk.
//!
//! ```text
//!  run(chunks, threads, f)      publish ──▶ claim, claim, …  ──▶ close ──▶ wait for those still inside
//!  worker                       spin/park ──▶ join ──▶ claim, claim, … ──▶ leave
//! ```
//!
//! Every thread has a range of the chunks to itself, the same one in every region of the same size, so that the data of a chunk
//! stays in the cache of the core that reads it next time. A thread that has finished steals chunks from the ranges of others:
//! a descheduled worker costs at most the chunk it holds. One region runs at a time: a nested call, or a call while another
//! thread's region is running, runs serially on its caller. That is always correct and, with the cores already taken, rarely
//! slower. A process made by `fork` starts workers of its own (`fork`).

#[cfg(unix)]
mod fork;
mod together;

use kiln_runtime::environment;
use std::any::Any;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::thread::Thread;
pub use together::{MOST_JOBS, together};

/// The most workers ever started.
const MAX_WORKERS: usize = 255;
/// The most threads of a region, the caller included.
pub const MOST_THREADS: usize = MAX_WORKERS + 1;
/// `pause`s before an idle worker parks: some tens of microseconds, the gap between two kernels of a program.
const SPINS: u32 = 3000;
/// `pause`s of a caller before it yields its core to a worker that still holds a chunk.
const WAIT_SPINS: u32 = 500;
/// Workers woken by one thread: each woken worker wakes as many again, so that waking is a tree.
const FAN_OUT: usize = 2;

type Work = dyn Fn(usize) + Sync;

/// The region being run. Written by the caller before it opens the region, read by those who joined it.
#[derive(Clone, Copy)]
struct Region {
    work: *const Work,
    chunks: usize,
    /// Ranges that the chunks are split into: one for the caller and one for each worker wanted.
    ranges: usize,
    /// The low half of the region's epoch, which marks the ranges it has touched.
    epoch: u32,
}

impl Region {
    fn range(&self, i: usize) -> std::ops::Range<usize> {
        self.chunks * i / self.ranges..self.chunks * (i + 1) / self.ranges
    }
}

/// `epoch << 32 | limit << 24 | joined << 16 | active << 8 | open`, each of the small fields eight bits.
#[derive(Clone, Copy)]
struct State(u64);

impl State {
    const JOIN: u64 = 1 << 16 | 1 << 8;
    const LEAVE: u64 = 1 << 8;

    fn open(epoch: u32, limit: u8) -> State {
        State(u64::from(epoch) << 32 | u64::from(limit) << 24 | 1)
    }
    fn epoch(self) -> u32 {
        (self.0 >> 32) as u32
    }
    fn limit(self) -> u8 {
        (self.0 >> 24) as u8
    }
    fn joined(self) -> u8 {
        (self.0 >> 16) as u8
    }
    fn active(self) -> u8 {
        (self.0 >> 8) as u8
    }
    fn is_open(self) -> bool {
        self.0 & 1 == 1
    }
    /// Whether a worker that last served `epoch` may join.
    fn wants(self, epoch: u32) -> bool {
        self.is_open() && self.epoch() != epoch && self.joined() < self.limit()
    }
}

#[repr(align(128))]
struct Padded<T>(T);

/// How many chunks of one range have been claimed: `epoch << 32 | claimed`. A count of an older epoch means none, so
/// that opening a region need not touch the caches of all workers.
struct Claims(AtomicU64);

impl Claims {
    /// Claims the next of `len` chunks.
    fn next(&self, epoch: u32, len: usize) -> Option<usize> {
        let mut now = self.0.load(Ordering::Relaxed);
        loop {
            let claimed = if (now >> 32) as u32 == epoch { now & 0xffff_ffff } else { 0 };
            if claimed as usize >= len {
                return None;
            }
            let then = u64::from(epoch) << 32 | (claimed + 1);
            match self.0.compare_exchange_weak(now, then, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Some(claimed as usize),
                Err(other) => now = other,
            }
        }
    }
}

/// The state of the pool and the region being run, on one cache line.
struct Front {
    state: AtomicU64,
    region: UnsafeCell<Region>,
}

struct Worker {
    /// Never freed; null before it is started, and again in a process that a fork made.
    thread: AtomicPtr<Thread>,
    parked: AtomicBool,
}

struct Pool {
    /// State and region share a cache line: a worker that reads one has fetched the other.
    front: Padded<Front>,
    /// One for each range of a region's chunks.
    claims: [Padded<Claims>; MAX_WORKERS + 1],
    /// Set by a panic: no more chunks are begun. Not written otherwise, so that all threads may cache it.
    cancelled: Padded<AtomicBool>,
    busy: Padded<AtomicBool>,
    /// The first panic of a worker in this region.
    panic: AtomicPtr<Box<dyn Any + Send>>,
    /// How many threads a region may use, the caller included.
    threads: AtomicUsize,
    /// How many workers are parked or about to be.
    sleepers: AtomicUsize,
    /// Workers that were started.
    ready: AtomicUsize,
    workers: [Worker; MAX_WORKERS],
}

// SAFETY: `region` is written only by the thread that holds `busy`, while the region is closed and no thread is active, and
// read only by threads that joined while it was open; `state` orders the two.
unsafe impl Sync for Pool {}

static POOL: Pool = Pool {
    front: Padded(Front {
        state: AtomicU64::new(0),
        region: UnsafeCell::new(Region { work: &idle, chunks: 0, ranges: 1, epoch: 0 }),
    }),
    claims: [const { Padded(Claims(AtomicU64::new(0))) }; MAX_WORKERS + 1],
    cancelled: Padded(AtomicBool::new(false)),
    busy: Padded(AtomicBool::new(false)),
    panic: AtomicPtr::new(null_mut()),
    threads: AtomicUsize::new(0),
    sleepers: AtomicUsize::new(0),
    ready: AtomicUsize::new(0),
    workers: [const { Worker { thread: AtomicPtr::new(null_mut()), parked: AtomicBool::new(false) } }; MAX_WORKERS],
};

fn idle(_: usize) {}

/// Threads that a region may use, the caller included: what [`set_threads`] said, else `KILN_THREADS`, else the cores
/// this process may run on.
pub fn threads() -> usize {
    match POOL.threads.load(Ordering::Relaxed) {
        0 => {
            let n = default_threads();
            // A concurrent `set_threads` wins.
            match POOL.threads.compare_exchange(0, n, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => n,
                Err(set) => set,
            }
        }
        n => n,
    }
}

/// Sets how many threads a region may use, the caller included; 0 goes back to the default. Regions already running
/// are not changed.
pub fn set_threads(n: usize) {
    let n = if n == 0 { default_threads() } else { n };
    POOL.threads.store(n.min(MOST_THREADS), Ordering::Relaxed);
}

fn default_threads() -> usize {
    let asked = environment::THREADS.get().and_then(|value| value.parse::<usize>().ok());
    let n = asked.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, |n| n.get()));
    n.min(MOST_THREADS)
}

/// Calls `work(0)`, …, `work(chunks - 1)`, each once, on at most `threads` threads (and at most [`threads()`]), and
/// returns when all are done. A panic in a chunk drops the chunks not yet begun and goes on in the caller.
///
/// ```
/// use std::sync::atomic::{AtomicUsize, Ordering};
/// let sum = AtomicUsize::new(0);
/// kiln_cpu::pool::run(100, 4, &|i| { sum.fetch_add(i, Ordering::Relaxed); });
/// assert_eq!(sum.into_inner(), 4950);
/// ```
pub fn run(chunks: usize, threads: usize, work: &(dyn Fn(usize) + Sync)) {
    match together::current() {
        Some(jobs) => jobs.region(chunks, threads, work),
        None => run_region(chunks, threads, work),
    }
}

/// [`run`] as a region of its own.
fn run_region(chunks: usize, threads: usize, work: &(dyn Fn(usize) + Sync)) {
    let helpers = chunks.min(threads).min(self::threads()).saturating_sub(1);
    // Claims count in 32 bits.
    let serial = helpers == 0 || chunks > u32::MAX as usize;
    if serial || POOL.busy.0.swap(true, Ordering::Acquire) {
        for chunk in 0..chunks {
            work(chunk);
        }
        return;
    }
    let outcome = POOL.run(chunks, helpers, work);
    POOL.busy.0.store(false, Ordering::Release);
    if let Err(panic) = outcome {
        resume_unwind(panic);
    }
}

impl Pool {
    /// Runs one region. The caller holds `busy`.
    fn run(
        &'static self,
        chunks: usize,
        helpers: usize,
        work: &(dyn Fn(usize) + Sync),
    ) -> Result<(), Box<dyn Any + Send>> {
        if self.ready.load(Ordering::Relaxed) < helpers {
            self.start_workers(helpers);
        }
        // SAFETY: only the lifetime changes; the reference is not used after this function returns, see `close`.
        let work: &'static Work = unsafe { std::mem::transmute::<&(dyn Fn(usize) + Sync), &'static Work>(work) };
        let epoch = State(self.front.0.state.load(Ordering::Relaxed)).epoch().wrapping_add(1);
        let region = Region { work, chunks, ranges: helpers + 1, epoch };
        // SAFETY: the region is closed and this thread holds `busy`, so no other thread reads it now.
        unsafe { *self.front.0.region.get() = region };
        self.front.0.state.store(State::open(epoch, helpers as u8).0, Ordering::SeqCst);
        self.wake(FAN_OUT.min(helpers));

        let own = catch_unwind(AssertUnwindSafe(|| self.claim_all(work, &region, 0)));
        if own.is_err() {
            self.cancelled.0.store(true, Ordering::Relaxed);
        }
        self.close();
        if !self.cancelled.0.load(Ordering::Relaxed) {
            return own;
        }
        self.cancelled.0.store(false, Ordering::Relaxed);
        own.and(self.take_panic().map_or(Ok(()), Err))
    }

    /// Keeps a worker's panic, if it is the first.
    fn put_panic(&self, panic: Box<dyn Any + Send>) {
        let panic = Box::into_raw(Box::new(panic));
        if self.panic.compare_exchange(null_mut(), panic, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            // SAFETY: it was made above, and nobody else has seen it.
            drop(unsafe { Box::from_raw(panic) });
        }
    }

    fn take_panic(&self) -> Option<Box<dyn Any + Send>> {
        let panic = self.panic.swap(null_mut(), Ordering::AcqRel);
        // SAFETY: a pointer in this place is that of a box that `put_panic` gave up, and is taken once.
        (!panic.is_null()).then(|| *unsafe { Box::from_raw(panic) })
    }

    /// Runs the chunks of range `first`, then those that are left of all others.
    fn claim_all(&self, work: &Work, region: &Region, first: usize) {
        for i in (first..region.ranges).chain(0..first.min(region.ranges)) {
            let range = region.range(i);
            while let Some(chunk) = self.claims[i].0.next(region.epoch, range.len()) {
                if self.cancelled.0.load(Ordering::Relaxed) {
                    return;
                }
                work(range.start + chunk);
            }
        }
    }

    /// Keeps further threads out and waits until all have left.
    fn close(&self) {
        let mut state = State(self.front.0.state.fetch_and(!1, Ordering::AcqRel));
        let mut spins = 0;
        while state.active() > 0 {
            if spins < WAIT_SPINS {
                spins += 1;
                std::hint::spin_loop();
            } else {
                std::thread::yield_now();
            }
            state = State(self.front.0.state.load(Ordering::Acquire));
        }
    }

    /// Unparks up to `count` parked workers.
    fn wake(&self, count: usize) {
        if self.sleepers.load(Ordering::SeqCst) == 0 {
            return;
        }
        let ready = self.ready.load(Ordering::Acquire);
        let parked = self.workers[..ready].iter().filter(|w| w.parked.swap(false, Ordering::AcqRel));
        for worker in parked.take(count) {
            // SAFETY: null, or a box that is never freed.
            if let Some(thread) = unsafe { worker.thread.load(Ordering::Acquire).as_ref() } {
                thread.unpark();
            }
        }
    }

    /// Starts workers until there are `count`. The caller holds `busy`.
    fn start_workers(&'static self, count: usize) {
        #[cfg(unix)]
        fork::watch();
        for started in self.ready.load(Ordering::Relaxed)..count.min(MAX_WORKERS) {
            let worker = &self.workers[started];
            let name = format!("kiln-{started}");
            // The caller's range is the first.
            let range = started + 1;
            // Without a worker the others, or the caller alone, run its chunks.
            let Ok(handle) = std::thread::Builder::new().name(name).spawn(move || self.serve(worker, range)) else {
                return;
            };
            worker.thread.store(Box::into_raw(Box::new(handle.thread().clone())), Ordering::Release);
            self.ready.store(started + 1, Ordering::Release);
        }
    }

    /// The life of a worker, whose own chunks are those of `range`.
    fn serve(&self, worker: &Worker, range: usize) {
        let mut served = State(self.front.0.state.load(Ordering::Acquire)).epoch().wrapping_sub(1);
        loop {
            let state = self.await_region(worker, served);
            served = state.epoch();
            if !self.join(state) {
                continue;
            }
            self.wake(FAN_OUT.min(usize::from(state.limit() - state.joined()).saturating_sub(1)));
            // SAFETY: this thread joined while the region was open, so the caller waits for it to leave.
            let (work, region) = unsafe { (&*(*self.front.0.region.get()).work, *self.front.0.region.get()) };
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| self.claim_all(work, &region, range))) {
                self.cancelled.0.store(true, Ordering::Relaxed);
                self.put_panic(panic);
            }
            self.front.0.state.fetch_sub(State::LEAVE, Ordering::Release);
        }
    }

    /// Enters the region that `state` showed, unless it closed or filled up meanwhile.
    fn join(&self, mut state: State) -> bool {
        let epoch = state.epoch();
        loop {
            if !state.wants(epoch.wrapping_sub(1)) || state.epoch() != epoch {
                return false;
            }
            let joined = state.0 + State::JOIN;
            match self.front.0.state.compare_exchange_weak(state.0, joined, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return true,
                Err(now) => state = State(now),
            }
        }
    }

    /// Spins, then parks, until there is a region that this worker has not served.
    fn await_region(&self, worker: &Worker, served: u32) -> State {
        loop {
            for _ in 0..SPINS {
                let state = State(self.front.0.state.load(Ordering::Acquire));
                if state.wants(served) {
                    return state;
                }
                std::hint::spin_loop();
            }
            // The caller opens a region and then looks for sleepers; this thread goes to sleep and then looks for a region. The
            // one that is second finds the other.
            worker.parked.store(true, Ordering::SeqCst);
            self.sleepers.fetch_add(1, Ordering::SeqCst);
            while !State(self.front.0.state.load(Ordering::SeqCst)).wants(served)
                && worker.parked.load(Ordering::Acquire)
            {
                std::thread::park();
            }
            worker.parked.store(false, Ordering::Relaxed);
            self.sleepers.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;
    use std::time::{Duration, Instant};

    fn counted(chunks: usize, threads: usize) {
        let counts: Vec<AtomicUsize> = (0..chunks).map(|_| AtomicUsize::new(0)).collect();
        run(chunks, threads, &|i| {
            counts[i].fetch_add(1, Ordering::Relaxed);
        });
        assert!(counts.iter().all(|c| c.load(Ordering::Relaxed) == 1));
    }

    #[test]
    fn every_chunk_runs_once() {
        set_threads(4);
        for chunks in [0, 1, 2, 3, 7, 64, 1000] {
            for threads in [0, 1, 2, 3, 4, 100] {
                counted(chunks, threads);
            }
        }
    }

    #[test]
    fn calls_from_many_threads() {
        set_threads(4);
        std::thread::scope(|s| {
            for t in 0..8 {
                s.spawn(move || {
                    for i in 0..3000 {
                        counted((i * 7 + t) % 23, 1 + (i + t) % 5);
                    }
                });
            }
        });
    }

    #[test]
    fn nested_calls() {
        set_threads(3);
        let total = AtomicUsize::new(0);
        for _ in 0..200 {
            run(6, 3, &|_| {
                run(5, 3, &|_| {
                    total.fetch_add(1, Ordering::Relaxed);
                });
            });
        }
        assert_eq!(total.into_inner(), 200 * 30);
    }

    #[test]
    fn panics_reach_the_caller_and_the_pool_lives_on() {
        set_threads(4);
        for round in 0..200 {
            let outcome = catch_unwind(|| {
                run(16, 4, &|i| {
                    if i == round % 16 {
                        std::panic::panic_any(round);
                    }
                });
            });
            assert_eq!(outcome.unwrap_err().downcast_ref::<usize>(), Some(&round));
            counted(33, 4);
        }
    }

    #[test]
    fn several_threads_take_part() {
        set_threads(4);
        let seen = Mutex::new(std::collections::HashSet::new());
        let until = Instant::now() + Duration::from_secs(10);
        // Other tests may hold the pool, in which case a region runs serially: try until it does not.
        while seen.lock().unwrap().len() < 2 && Instant::now() < until {
            run(8, 4, &|_| {
                seen.lock().unwrap().insert(std::thread::current().id());
                std::thread::sleep(Duration::from_millis(1));
            });
        }
        assert!(seen.lock().unwrap().len() >= 2);
    }

    #[test]
    fn parked_workers_wake() {
        set_threads(3);
        for _ in 0..20 {
            std::thread::sleep(Duration::from_millis(2));
            counted(12, 3);
        }
    }
}
