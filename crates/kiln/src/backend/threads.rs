//! How many threads kernels run on: one number for the process.

use crate::{Error, Result};
use kiln_cpu::pool;
use kiln_ir::Source;

/// Sets how many threads of the CPU kernels may run on from now on, the calling thread included. It holds for the whole process, for
/// eager code and for programs that are compiled already; kernels that are running end with the threads they began with, so that it
/// is safe at any time and on any thread. Results do not depend on it, not in a single bit.
///
/// More threads than the machine has cores are allowed and rarely of use; beyond [`MOST_THREADS`] that many are taken. Without a call
/// it is what `KILN_THREADS` says, or the number of cores that the process may run on.
///
/// What [`crate::Mode::MaxAutotune`] measured belongs to the number of threads it was measured with, and whether packing a weight pays
/// depends on it too: set it before the first call.
///
/// ```
/// let before = kiln::threads();
/// kiln::set_threads(2)?;
/// assert_eq!(kiln::threads(), 2);
/// assert!(kiln::set_threads(0).is_err());
/// kiln::set_threads(before)?;
/// # Ok::<(), kiln::Error>(())
/// ```
#[track_caller]
pub fn set_threads(threads: usize) -> Result<()> {
    if threads == 0 {
        return Err(Error::NoThreads { at: Source::caller() });
    }
    pool::set_threads(threads);
    Ok(())
}

/// How many threads of the CPU kernels may run on, the calling thread included; see [`set_threads`].
///
/// ```
/// assert!(kiln::threads() >= 1);
/// ```
pub fn threads() -> usize {
    pool::threads()
}

/// The most threads that [`set_threads`] takes.
pub const MOST_THREADS: usize = pool::MOST_THREADS;
