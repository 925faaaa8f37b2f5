//! The launches that may fail after they were queued, by number: a kernel on an asynchronous device reports the number of its launch,
//! and the error names the op and the user's line.

use crate::{Error, LaunchError};
use kiln_ir::Source;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

/// Converts the report of a launch into an error.
pub(crate) type Describe = dyn Fn(LaunchError) -> Error + Send + Sync;

/// Numbers kept; the oldest are dropped first.
const KEPT: u32 = 1 << 16;

static NEXT: AtomicU32 = AtomicU32::new(1);
static SITES: LazyLock<Mutex<HashMap<u32, Arc<Describe>>>> = LazyLock::new(Mutex::default);

/// A number for a launch.
pub(crate) fn register(describe: Arc<Describe>) -> u32 {
    let number = NEXT.fetch_add(1, Ordering::Relaxed) % KEPT;
    SITES.lock().unwrap_or_else(PoisonError::into_inner).insert(number, describe);
    number
}

/// The error of a launch that met an index out of range.
pub fn out_of_range(site: u32, index: i64, size: i64) -> Error {
    let cause = LaunchError::IndexOutOfRange { index, size };
    let describe = SITES.lock().unwrap_or_else(PoisonError::into_inner).get(&site).cloned();
    match describe {
        Some(describe) => describe(cause),
        None => Error::Launch { op: "a kernel".to_owned(), cause, at: Source::default() },
    }
}
