//! Timing one side of a comparison.

use super::stats::Samples;
use std::time::Instant;

/// How long one side is measured before the next one is.
#[derive(Debug, Clone, Copy)]
pub struct Turn {
    /// Seconds at the least.
    pub seconds: f64,
    /// Samples at the least.
    pub repeats: usize,
    /// Seconds after which fewer samples will do.
    pub limit: f64,
}

impl Turn {
    /// For a part of the time.
    pub fn part(self, part: f64) -> Turn {
        Turn { seconds: self.seconds * part, ..self }
    }
}

/// What the turns of one side gave.
#[derive(Debug, Clone)]
pub struct Timing {
    /// Seconds of the fastest sample.
    pub min: f64,
    /// Seconds of the middle sample.
    pub median: f64,
    /// All of them, in milliseconds.
    pub samples: Samples,
}

/// Seconds of something with everything that it launches. What was launched before is not counted.
pub fn seconds<T, E: From<kiln::Error>>(work: impl FnOnce() -> Result<T, E>) -> Result<(T, f64), E> {
    kiln::synchronize()?;
    let begin = Instant::now();
    let result = work()?;
    kiln::synchronize()?;
    Ok((result, begin.elapsed().as_secs_f64()))
}

/// Calls `f` for a turn and gives the seconds a call in the order they were taken. Several calls make one sample when a call is
/// too short for the clock; the very first call warms up. A sample ends when the device is done.
pub fn time<E: From<kiln::Error>>(turn: Turn, mut f: impl FnMut() -> Result<(), E>) -> Result<Vec<f64>, E> {
    let ((), once) = seconds(&mut f)?;
    let once = once.max(1e-8);
    let calls = ((20e-6 / once) as usize).max(1);
    let mut samples = Vec::new();
    let begin = Instant::now();
    loop {
        let elapsed = begin.elapsed().as_secs_f64();
        let enough = samples.len() >= turn.repeats || elapsed >= turn.limit;
        if samples.len() >= 3 && elapsed >= turn.seconds && enough {
            break;
        }
        let ((), sample) = seconds(|| (0..calls).try_for_each(|_| f()))?;
        samples.push(sample / calls as f64);
    }
    Ok(samples)
}

/// All turns of one side together.
pub fn together(turns: &[Vec<f64>]) -> Timing {
    let mut samples = Samples::default();
    samples.extend(turns.iter().flatten().map(|seconds| seconds * 1e3));
    let (min, median) = samples.statistics().map_or((f64::NAN, f64::NAN), |s| (s.min / 1e3, s.median / 1e3));
    Timing { min, median, samples }
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

#[cfg(test)]
mod tests {
    use super::*;
    use kiln::runtime::QueuedBackend;
    use kiln::{DType, Device, Tensor};
    use std::sync::Arc;
    use std::time::Duration;

    /// A launch that takes a while, on a device where it returns at once.
    #[test]
    fn a_sample_is_no_enqueue() {
        const DELAY: Duration = Duration::from_millis(2);
        let device = Device::Cuda(100);
        let backend = QueuedBackend::new(kiln::backend(Device::Cpu), device, DELAY);
        assert!(kiln::backend::install(Arc::new(backend)));
        let x = Tensor::ones(8, DType::F32, device).expect("memory");
        let turn = Turn { seconds: 0.0, repeats: 3, limit: 1.0 };
        let samples = time::<kiln::Error>(turn, || x.exp().map(drop)).expect("an op");
        assert!(samples.iter().all(|sample| *sample >= DELAY.as_secs_f64()), "{samples:?}");
        // And not the launches of whoever came before.
        (0..20).for_each(|_| drop(x.exp()));
        let (_, sample) = seconds(|| x.exp()).expect("an op");
        assert!(sample >= DELAY.as_secs_f64() && sample < 10.0 * DELAY.as_secs_f64(), "{sample}");
    }
}
