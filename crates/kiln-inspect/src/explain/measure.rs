//! Times: of each launch, of a whole run, and of copying memory on the same device, which is what most kernels are held against.

use kiln_runtime::{Backend, Device, Error, Inspection};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Runs of kernels are repeated for about this long, and at most so often; calls likewise.
const BUDGET: Duration = Duration::from_millis(150);
const MOST: usize = 300;
const CALL_BUDGET: Duration = Duration::from_millis(100);
const MOST_CALLS: usize = 200;
/// Both are repeated so often at the least.
const LEAST: usize = 3;

/// What a device can do, measured.
#[derive(Debug, Clone, PartialEq)]
pub struct Machine {
    /// What it is, where it is not the processor of this machine.
    pub device: Option<String>,
    /// Threads of the host that kernels use.
    pub threads: usize,
    /// Bytes read and written a second by a copy that no cache holds, in GB/s.
    pub copy: f64,
}

/// The device of a backend, measured once a process: the host's memory with as many threads as kernels use, other memory by the
/// device's own copies and its own clock. Takes a tenth of a second or so.
///
/// ```
/// let machine = kiln_inspect::explain::machine(&kiln_runtime::ReferenceBackend)?;
/// assert!(machine.copy > 0.1 && machine.threads >= 1);
/// # Ok::<(), kiln_runtime::Error>(())
/// ```
pub fn machine(backend: &dyn Backend) -> Result<Machine, Error> {
    static MEASURED: Mutex<Vec<(Device, Machine)>> = Mutex::new(Vec::new());
    let device = backend.device();
    let mut measured = MEASURED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, machine)) = measured.iter().find(|(known, _)| *known == device) {
        return Ok(machine.clone());
    }
    let threads = backend.threads().max(1);
    let machine = match device {
        Device::Cpu => Machine { device: None, threads, copy: host_bandwidth(threads) },
        device => {
            let description = backend.machine();
            let name = if description.is_empty() { device.to_string() } else { format!("{device}, {description}") };
            Machine { device: Some(name), threads, copy: device_bandwidth(backend)? }
        }
    };
    measured.push((device, machine.clone()));
    Ok(machine)
}

/// Copies of each measurement of a bandwidth, of which the fastest counts.
const COPIES: usize = 6;
/// Bytes of a copy: more than a processor's caches hold, and as many as a GPU takes long enough for.
const HOST_BYTES: usize = 64 << 20;
const MOST_BYTES: usize = 1 << 30;
/// How long a copy has to take for events around it to be exact.
const LONG_ENOUGH: Duration = Duration::from_micros(200);

fn bandwidth(bytes: usize, fastest: Duration) -> f64 {
    2.0 * bytes as f64 / fastest.as_nanos().max(1) as f64
}

fn host_bandwidth(threads: usize) -> f64 {
    let from = vec![1u8; HOST_BYTES];
    let mut to = vec![0u8; HOST_BYTES];
    let chunk = HOST_BYTES.div_ceil(threads);
    let mut best = Duration::MAX;
    for _ in 0..COPIES {
        let start = Instant::now();
        std::thread::scope(|scope| {
            for (to, from) in to.chunks_mut(chunk).zip(from.chunks(chunk)) {
                scope.spawn(move || to.copy_from_slice(from));
            }
        });
        best = best.min(start.elapsed());
    }
    std::hint::black_box(&to);
    bandwidth(HOST_BYTES, best)
}

/// Doubles the copy until it takes long enough, or as much memory as there is.
fn device_bandwidth(backend: &dyn Backend) -> Result<f64, Error> {
    let (mut bytes, mut found) = (HOST_BYTES, 0.0);
    loop {
        let both = backend.allocate(bytes).and_then(|from| Ok((from, backend.allocate(bytes)?)));
        let (from, to) = match both {
            Ok(both) => both,
            Err(_) if found > 0.0 => return Ok(found),
            Err(error) => return Err(error),
        };
        let mut best = Duration::MAX;
        for _ in 0..COPIES {
            best = best.min(backend.time(&mut || from.copy_to(0, &to, bytes))?);
        }
        found = bandwidth(bytes, best);
        if best >= LONG_ENOUGH || bytes >= MOST_BYTES {
            return Ok(found);
        }
        bytes *= 2;
    }
}

/// The times of each launch of a program, all of them run in order again and again, and of a whole round. On an asynchronous
/// device each launch is timed by the device, and so is a round of its own, in which nothing waits between launches.
pub(super) fn kernels(stopped: &mut Inspection<'_>) -> Result<(Vec<Measured>, Measured), Error> {
    let count = stopped.program().steps().len();
    let is_asynchronous = stopped.program().backend().is_asynchronous();
    let mut times: Vec<Vec<Duration>> = vec![Vec::new(); count];
    let mut rounds = Vec::new();
    let start = Instant::now();
    // The first round warms caches up.
    for round in 0..=MOST {
        stopped.reset()?;
        let begin = Instant::now();
        for (number, times) in times.iter_mut().enumerate() {
            let took = stopped.launch(number)?;
            if round > 0 {
                times.push(took);
            }
        }
        if round > 0 {
            rounds.push(match is_asynchronous {
                true => {
                    stopped.reset()?;
                    stopped.launch_all()?
                }
                false => begin.elapsed(),
            });
        }
        if round >= LEAST && start.elapsed() > BUDGET {
            break;
        }
    }
    Ok((times.into_iter().map(Measured::of).collect(), Measured::of(rounds)))
}

fn timed<E>(work: &mut impl FnMut() -> Result<(), E>) -> Result<Duration, E> {
    let start = Instant::now();
    work()?;
    Ok(start.elapsed())
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
    /// Repeats something for a tenth of a second or so, three times at the least. It has to wait for what it launches.
    pub fn repeated<E>(mut work: impl FnMut() -> Result<(), E>) -> Result<Measured, E> {
        let (mut times, begin) = (Vec::new(), Instant::now());
        while times.len() < MOST_CALLS && (times.len() < LEAST || begin.elapsed() < CALL_BUDGET) {
            times.push(timed(&mut work)?);
        }
        Ok(Measured::of(times))
    }

    /// Does something so many times. It has to wait for what it launches.
    pub fn times<E>(count: usize, mut work: impl FnMut() -> Result<(), E>) -> Result<Measured, E> {
        Ok(Measured::of((0..count).map(|_| timed(&mut work)).collect::<Result<_, E>>()?))
    }

    fn of(mut times: Vec<Duration>) -> Measured {
        times.sort_unstable();
        let at = |number: usize| times.get(number).copied().unwrap_or_default();
        Measured { median: at(times.len() / 2), fastest: at(0) }
    }
}
