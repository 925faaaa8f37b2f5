//! The number of threads that kernels run on: one setting for the process.

use crate::{Error, Result};
use kiln_cpu::pool;
use kiln_ir::Source;

/// Sets the number of threads that CPU kernels may run on, including the calling thread. It applies to the whole process,
/// to eager code and to programs that are already compiled; running kernels finish with the threads they started with, so
/// it can be called at any time and from any thread. Results do not depend on it, not in a single bit.
///
/// More threads than cores are allowed and rarely useful; values above [`MOST_THREADS`] are reduced to it. The default is
/// `KILN_THREADS`, or the number of cores that the process may run on.
///
/// Measurements of [`crate::Mode::MaxAutotune`] apply to the number of threads they were made with, and whether packing a
/// weight pays depends on it too: set it before the first call.
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

/// Returns the number of threads that CPU kernels may run on, including the calling thread; see [`set_threads`].
///
/// ```
/// assert!(kiln::threads() >= 1);
/// ```
pub fn threads() -> usize {
    pool::threads()
}

/// The largest number of threads that [`set_threads`] accepts.
pub const MOST_THREADS: usize = pool::MOST_THREADS;
