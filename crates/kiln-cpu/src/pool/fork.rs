//! Forks: a child process has a copy of the pool and of none of its threads, so that its pool begins anew. Nothing is locked in the
//! pool, and what the threads of the parent were doing at that moment does not matter.

use super::POOL;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};

/// The part of the pool's state that outlives regions.
const EPOCH: u64 = 0xffff_ffff_0000_0000;

/// Has the pool begin anew in processes that are forked from now on.
pub(super) fn watch() {
    static IS_WATCHED: AtomicBool = AtomicBool::new(false);
    if !IS_WATCHED.swap(true, Ordering::Relaxed) {
        // SAFETY: the function may run after a fork: it stores to atomics and calls nothing. Without memory for it a child's calls
        // would wait for workers that it has not.
        unsafe { libc::pthread_atfork(None, None, Some(begin_anew)) };
    }
}

/// Forgets the parent's workers and region. Runs in the child, whose only thread is the one that forked: it is in no region.
unsafe extern "C" fn begin_anew() {
    POOL.ready.store(0, Ordering::Relaxed);
    POOL.sleepers.store(0, Ordering::Relaxed);
    POOL.cancelled.0.store(false, Ordering::Relaxed);
    POOL.panic.store(null_mut(), Ordering::Relaxed);
    for worker in &POOL.workers {
        worker.thread.store(null_mut(), Ordering::Relaxed);
        worker.parked.store(false, Ordering::Relaxed);
    }
    POOL.front.0.state.fetch_and(EPOCH, Ordering::Relaxed);
    POOL.busy.0.store(false, Ordering::Release);
}

#[cfg(test)]
mod tests {
    use super::super::{POOL, run, set_threads};
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::{Duration, Instant};

    /// Runs regions in a child; whether it ended well within half a minute.
    fn in_a_child(regions: usize) -> bool {
        // SAFETY: the child calls the pool, which is what is tested, and leaves without running anything of the parent's.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let sum = AtomicUsize::new(0);
            for _ in 0..regions {
                run(8, 3, &|i| {
                    sum.fetch_add(i, Ordering::Relaxed);
                });
            }
            let workers = POOL.ready.load(Ordering::Relaxed);
            let is_right = sum.load(Ordering::Relaxed) == 28 * regions && workers == 2;
            // SAFETY: ends the process.
            unsafe { libc::_exit(i32::from(!is_right)) };
        }
        assert!(child > 0);
        let until = Instant::now() + Duration::from_secs(30);
        let mut status = 1;
        // SAFETY: the child of this process, which is waited for once.
        while unsafe { libc::waitpid(child, &mut status, libc::WNOHANG) } == 0 {
            if Instant::now() > until {
                // SAFETY: as above.
                unsafe {
                    libc::kill(child, libc::SIGKILL);
                    libc::waitpid(child, &mut status, 0);
                }
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        status == 0
    }

    #[test]
    fn a_forked_process_has_workers_of_its_own() {
        set_threads(4);
        for _ in 0..10 {
            run(8, 3, &|_| std::thread::sleep(Duration::from_micros(50)));
            assert!(in_a_child(20));
        }
    }

    #[test]
    fn a_fork_during_a_region_of_another_thread() {
        set_threads(4);
        let stop = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while stop.load(Ordering::Relaxed) == 0 {
                    run(64, 4, &|_| std::hint::spin_loop());
                }
            });
            let all = (0..10).all(|_| in_a_child(5));
            stop.store(1, Ordering::Relaxed);
            assert!(all);
        });
    }
}
