//! Times: of each launch, of a whole run, and of copying memory, which is what most kernels are held against.

use kiln_runtime::{Error, Inspection};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Runs of kernels are repeated for about this long, and at most so often; calls likewise.
const BUDGET: Duration = Duration::from_millis(150);
const MOST: usize = 300;
const CALL_BUDGET: Duration = Duration::from_millis(100);
const MOST_CALLS: usize = 200;
/// Both are repeated so often at the least.
const LEAST: usize = 3;

/// What a machine can do, measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Machine {
    /// Threads that kernels use.
    pub threads: usize,
    /// Bytes read and written a second by a copy that no cache holds, in GB/s.
    pub copy: f64,
}

/// The machine, measured once a process with as many threads as kernels use; takes a tenth of a second or so.
///
/// ```
/// let machine = kiln_inspect::explain::machine(1);
/// assert!(machine.copy > 0.1 && machine.threads >= 1);
/// ```
pub fn machine(threads: usize) -> Machine {
    static MACHINE: OnceLock<Machine> = OnceLock::new();
    *MACHINE.get_or_init(|| {
        let threads = threads.max(1);
        Machine { threads, copy: copy_bandwidth(threads) }
    })
}

/// The best of several copies of memory larger than caches are.
fn copy_bandwidth(threads: usize) -> f64 {
    const BYTES: usize = 64 << 20;
    let from = vec![1u8; BYTES];
    let mut to = vec![0u8; BYTES];
    let chunk = BYTES.div_ceil(threads);
    let mut best = Duration::MAX;
    for _ in 0..6 {
        let start = Instant::now();
        std::thread::scope(|scope| {
            for (to, from) in to.chunks_mut(chunk).zip(from.chunks(chunk)) {
                scope.spawn(move || to.copy_from_slice(from));
            }
        });
        best = best.min(start.elapsed());
    }
    std::hint::black_box(&to);
    2.0 * BYTES as f64 / best.as_nanos().max(1) as f64
}

/// The times of each launch of a program, all of them run in order again and again, and of a whole round.
pub(super) fn kernels(stopped: &mut Inspection<'_>) -> Result<(Vec<Measured>, Measured), Error> {
    let count = stopped.program().steps().len();
    let mut times: Vec<Vec<Duration>> = vec![Vec::new(); count];
    let mut rounds = Vec::new();
    let start = Instant::now();
    // The first round warms caches up.
    for round in 0..=MOST {
        let begin = Instant::now();
        for (number, times) in times.iter_mut().enumerate() {
            let took = stopped.launch(number)?;
            if round > 0 {
                times.push(took);
            }
        }
        if round > 0 {
            rounds.push(begin.elapsed());
        }
        if round >= LEAST && start.elapsed() > BUDGET {
            break;
        }
    }
    Ok((times.into_iter().map(Measured::of).collect(), Measured::of(rounds)))
}

/// What came of timing something several times.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Measured {
    /// The middle one.
    pub median: Duration,
    /// The shortest: what is left on a machine that is busy with something else.
    pub fastest: Duration,
}

impl Measured {
    /// Repeats something for a tenth of a second or so, three times at the least.
    pub fn repeated<E>(mut work: impl FnMut() -> Result<(), E>) -> Result<Measured, E> {
        let (mut times, begin) = (Vec::new(), Instant::now());
        while times.len() < MOST_CALLS && (times.len() < LEAST || begin.elapsed() < CALL_BUDGET) {
            let start = Instant::now();
            work()?;
            times.push(start.elapsed());
        }
        Ok(Measured::of(times))
    }

    fn of(mut times: Vec<Duration>) -> Measured {
        times.sort_unstable();
        let at = |number: usize| times.get(number).copied().unwrap_or_default();
        Measured { median: at(times.len() / 2), fastest: at(0) }
    }
}
