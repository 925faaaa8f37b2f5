//! Timing one side of a comparison.

use super::peer::Timing;
use std::time::Instant;

/// Calls `f` for about `seconds` and gives the fastest and the middle sample, in seconds a call. Several calls make one
/// sample when a call is too short for the clock.
pub fn time(seconds: f64, mut f: impl FnMut()) -> Timing {
    let begin = Instant::now();
    f();
    let once = begin.elapsed().as_secs_f64().max(1e-8);
    let calls = ((20e-6 / once) as usize).max(1);
    let mut samples = Vec::new();
    let begin = Instant::now();
    while begin.elapsed().as_secs_f64() < seconds || samples.len() < 3 {
        let start = Instant::now();
        for _ in 0..calls {
            f();
        }
        samples.push(start.elapsed().as_secs_f64() / calls as f64);
    }
    samples.sort_by(f64::total_cmp);
    Timing { min: samples[0], median: samples[samples.len() / 2] }
}

/// The fastest of several turns.
pub fn best(timings: &[Timing]) -> Timing {
    let min = timings.iter().map(|t| t.min).fold(f64::INFINITY, f64::min);
    let mut medians: Vec<f64> = timings.iter().map(|t| t.median).collect();
    medians.sort_by(f64::total_cmp);
    Timing { min, median: medians.get(medians.len() / 2).copied().unwrap_or(f64::NAN) }
}

/// The bar for memory-bound work: seconds to copy `bytes / 2` bytes (read and write them once) with `threads` threads.
pub struct Copier {
    from: Vec<u64>,
    to: Vec<u64>,
}

impl Copier {
    /// Buffers for a copy that moves `bytes` in all.
    pub fn new(bytes: usize) -> Copier {
        let words = (bytes / 16).max(1);
        Copier { from: vec![1; words], to: vec![0; words] }
    }

    /// One copy, cut over the process's pool.
    pub fn copy(&mut self, threads: usize) {
        let words = self.from.len();
        let (from, to) = (self.from.as_ptr() as usize, self.to.as_mut_ptr() as usize);
        let chunks = if words < 4096 { 1 } else { threads * 2 };
        kiln_cpu::pool::run(chunks, threads, &|chunk| {
            let (begin, end) = (words * chunk / chunks, words * (chunk + 1) / chunks);
            // SAFETY: both vectors outlive the call, hold `words` words, and chunks are disjoint.
            unsafe {
                std::ptr::copy_nonoverlapping(
                    (from as *const u64).add(begin),
                    (to as *mut u64).add(begin),
                    end - begin,
                );
            }
        });
    }
}
