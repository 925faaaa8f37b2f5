//! The disk cache, the kernels of the process, and the events of the runtime.

use kiln_runtime::disk::{self, Store};
use kiln_runtime::event::{self, Category, Listening};
use kiln_runtime::{idle, kernel_cache};
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

/// The folder of the disk cache; none where it is off.
#[pyfunction]
pub(crate) fn cache_folder() -> Option<PathBuf> {
    disk::store().map(|store| store.folder().to_owned())
}

/// Uses another folder from now on, or none.
#[pyfunction]
#[pyo3(signature = (folder=None))]
pub(crate) fn set_cache_folder(folder: Option<PathBuf>) -> PyResult<()> {
    let open = |folder: PathBuf| Store::open(&folder, disk::most_bytes_from_environment());
    let store = folder.map(open).transpose().map_err(|error| PyOSError::new_err(error.to_string()))?;
    disk::set_store(store);
    Ok(())
}

/// Entries and bytes in the folder, by kind.
#[pyfunction]
pub(crate) fn cache_entries() -> PyResult<BTreeMap<&'static str, (usize, u64)>> {
    let mut counts = BTreeMap::new();
    let Some(store) = disk::store() else { return Ok(counts) };
    for listed in store.list().map_err(|error| PyOSError::new_err(error.to_string()))? {
        let count: &mut (usize, u64) = counts.entry(listed.kind.folder()).or_default();
        *count = (count.0 + 1, count.1 + listed.bytes);
    }
    Ok(counts)
}

/// Removes all entries; their number and bytes.
#[pyfunction]
pub(crate) fn clear_cache() -> PyResult<(usize, u64)> {
    match disk::store() {
        Some(store) => store.clear().map_err(|error| PyOSError::new_err(error.to_string())),
        None => Ok((0, 0)),
    }
}

/// Counters since the process began.
#[pyfunction]
pub(crate) fn cache_stats() -> BTreeMap<&'static str, u64> {
    let (disk, kernels) = (disk::stats(), kernel_cache::stats());
    BTreeMap::from([
        ("hits", disk.hits),
        ("misses", disk.misses),
        ("stored", disk.stored),
        ("failed", disk.failed),
        ("damaged", disk.damaged),
        ("evicted", disk.evicted),
        ("kernels_compiled", kernels.misses),
        ("kernels_reused", kernels.hits),
        ("kernel_bytes", kernels.bytes as u64),
        ("compile_nanoseconds", kernels.compile_nanos),
        ("idle_bytes", idle::bytes() as u64),
    ])
}

/// Gives the memory that programs keep for their next runs back to the system.
#[pyfunction]
pub(crate) fn release_memory() -> PyResult<()> {
    idle::clear();
    kiln::release_memory(kiln::Device::Cpu).map_err(|error| PyOSError::new_err(error.to_string()))
}

/// The same, and drops the kernels that no program holds.
#[pyfunction]
pub(crate) fn forget() -> PyResult<()> {
    kernel_cache::clear();
    release_memory()
}

/// What happened in the runtime since somebody began to listen: categories and texts.
static HEARD: Mutex<Vec<(&'static str, String)>> = Mutex::new(Vec::new());
static LISTENING: Mutex<Option<Listening>> = Mutex::new(None);
/// The most that is kept until somebody takes it.
const MOST_HEARD: usize = 10_000;

/// Begins or ends to listen to the runtime.
#[pyfunction]
pub(crate) fn listen(on: bool) {
    let categories = [Category::Kernels, Category::Cache, Category::Fusion, Category::Perf];
    let listening = on.then(|| {
        event::listen(&categories, |event| {
            let mut heard = HEARD.lock().unwrap_or_else(PoisonError::into_inner);
            if heard.len() < MOST_HEARD {
                heard.push((event.category().name(), event.to_string()));
            }
        })
    });
    *LISTENING.lock().unwrap_or_else(PoisonError::into_inner) = listening;
}

/// Takes what was heard: categories and texts.
#[pyfunction]
pub(crate) fn heard() -> Vec<(&'static str, String)> {
    std::mem::take(&mut *HEARD.lock().unwrap_or_else(PoisonError::into_inner))
}
