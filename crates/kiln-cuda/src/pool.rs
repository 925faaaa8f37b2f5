//! Device memory that is kept and given out again. Everything runs on one stream, so memory that is given back may be used by whatever
//! is queued next.

use crate::device::Gpu;
use crate::driver::{DevicePtr, DriverError, Result, driver};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// Sizes are rounded up to a multiple of this, and above `LARGE` of that.
const SMALL: usize = 512;
const LARGE: usize = 2 << 20;

/// The memory of one GPU.
#[derive(Default)]
pub(crate) struct Pool(Mutex<State>);

#[derive(Default)]
struct State {
    /// Free blocks by size.
    free: BTreeMap<usize, Vec<DevicePtr>>,
    /// Bytes that are given out, and bytes that are free.
    used: usize,
    kept: usize,
    most_used: usize,
}

/// What a pool holds, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolBytes {
    /// Given out.
    pub used: usize,
    /// Free, and kept for what comes next.
    pub kept: usize,
    /// The most that was ever given out at once.
    pub most_used: usize,
}

fn rounded(bytes: usize) -> usize {
    let unit = if bytes > LARGE { LARGE } else { SMALL };
    bytes.max(1).next_multiple_of(unit)
}

impl Pool {
    /// A block of at least `bytes` bytes.
    pub(crate) fn take(&self, gpu: &Gpu, bytes: usize) -> Result<DevicePtr> {
        let size = rounded(bytes);
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = state.free.get_mut(&size).and_then(Vec::pop);
        let address = match found {
            Some(address) => {
                state.kept -= size;
                address
            }
            None => match allocate(gpu, size) {
                Err(error) if error.is_out_of_memory() => {
                    state.release_free(gpu)?;
                    allocate(gpu, size).map_err(|error| state.explain(gpu, bytes, error))?
                }
                other => other?,
            },
        };
        state.used += size;
        state.most_used = state.most_used.max(state.used);
        Ok(address)
    }

    /// Takes a block of `bytes` bytes back.
    pub(crate) fn give(&self, address: DevicePtr, bytes: usize) {
        let size = rounded(bytes);
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.free.entry(size).or_default().push(address);
        state.used -= size;
        state.kept += size;
    }

    /// Gives free blocks back to the driver.
    pub(crate) fn release(&self, gpu: &Gpu) -> Result<()> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).release_free(gpu)
    }

    pub(crate) fn bytes(&self) -> PoolBytes {
        let state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        PoolBytes { used: state.used, kept: state.kept, most_used: state.most_used }
    }
}

fn allocate(gpu: &Gpu, size: usize) -> Result<DevicePtr> {
    gpu.enter()?;
    let mut address = 0;
    // SAFETY: a place to write to.
    unsafe { driver()?.allocate(&mut address, size) }?;
    Ok(address)
}

impl State {
    fn release_free(&mut self, gpu: &Gpu) -> Result<()> {
        gpu.synchronize()?;
        for (size, blocks) in std::mem::take(&mut self.free) {
            for address in blocks {
                // SAFETY: a block of `allocate` that nobody uses: everything queued is done.
                unsafe { driver()?.free(address) }?;
                self.kept -= size;
            }
        }
        Ok(())
    }

    /// Says what is held beside what the driver says.
    fn explain(&self, gpu: &Gpu, bytes: usize, error: DriverError) -> DriverError {
        let free = gpu.memory_info().map_or(0, |(free, _)| free);
        let (asked, used, free) = (mib(bytes), mib(self.used), mib(free));
        let message = format!("{asked} MiB were requested, {used} MiB are in use by this process, {free} MiB are free");
        DriverError { message, ..error }
    }
}

fn mib(bytes: usize) -> usize {
    bytes.div_ceil(1 << 20)
}
