//! Reads that are queued: the bytes go to page-locked memory of the host in the stream's order, and an event says when they are there.

use crate::device::{Event, Gpu};
use crate::driver::{Result, driver};
use crate::fault;
use crate::memory::GpuMemory;
use kiln_runtime::{Error, PendingRead};
use std::sync::{Mutex, PoisonError};

/// The smallest block, fault record included.
const SMALLEST: usize = 512;
/// Blocks that are kept for reads to come, and the largest of them.
const KEPT: usize = 64;
const LARGEST_KEPT: usize = 1 << 20;

/// Page-locked blocks that nobody uses.
#[derive(Default)]
pub(crate) struct PinnedPool(Mutex<Vec<PinnedBlock>>);

/// Page-locked memory with the event that says when it is filled.
struct PinnedBlock {
    place: *mut u8,
    bytes: usize,
    event: Event,
}

// SAFETY: memory and an event that belong to no thread; the block is their only owner.
unsafe impl Send for PinnedBlock {}

impl PinnedBlock {
    fn new(gpu: &Gpu, bytes: usize) -> Result<PinnedBlock> {
        let event = gpu.untimed_event()?;
        let mut place = std::ptr::null_mut();
        // SAFETY: a place to write to.
        unsafe { driver()?.allocate_pinned(&mut place, bytes) }?;
        Ok(PinnedBlock { place: place.cast(), bytes, event })
    }
}

impl Drop for PinnedBlock {
    fn drop(&mut self) {
        // A copy may be on its way; one that cannot be waited for keeps its memory.
        if self.event.wait().is_ok()
            && let Ok(driver) = driver()
        {
            // SAFETY: a block of `allocate_pinned` that nothing writes any more.
            let _ = unsafe { driver.free_pinned(self.place.cast()) };
        }
    }
}

impl PinnedPool {
    fn take(&self, gpu: &Gpu, bytes: usize) -> Result<PinnedBlock> {
        let size = bytes.max(SMALLEST).next_power_of_two();
        let mut blocks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match blocks.iter().position(|block| block.bytes == size) {
            Some(at) => Ok(blocks.swap_remove(at)),
            None => PinnedBlock::new(gpu, size),
        }
    }

    fn give(&self, block: PinnedBlock) {
        let mut blocks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if block.bytes <= LARGEST_KEPT && blocks.len() < KEPT {
            blocks.push(block);
        }
    }
}

/// A read that is queued. One that is not waited for gives its block back all the same: the next copy to it is queued behind
/// this one.
pub(crate) struct QueuedRead {
    memory: &'static GpuMemory,
    block: Option<PinnedBlock>,
    bytes: usize,
    /// Whether the fault record follows the bytes.
    has_record: bool,
}

impl QueuedRead {
    /// Queues a copy of device bytes, and of the fault record if a launch may have written it.
    ///
    /// # Safety
    /// `from` is valid for reading `bytes` bytes.
    pub(crate) unsafe fn begin(memory: &'static GpuMemory, from: u64, bytes: usize) -> Result<QueuedRead> {
        let gpu = memory.0;
        let has_record = gpu.faults.is_expected();
        let block = gpu.pinned.take(gpu, record_offset(bytes) + fault::BYTES)?;
        // SAFETY: the block has that many bytes, and nobody reads it before the event; the rest is the caller's promise.
        unsafe {
            if bytes > 0 {
                gpu.read_later(from, block.place, bytes)?;
            }
            if has_record {
                gpu.read_later(gpu.faults.record(gpu)?, block.place.add(record_offset(bytes)), fault::BYTES)?;
            }
        }
        gpu.record_again(&block.event)?;
        Ok(QueuedRead { memory, block: Some(block), bytes, has_record })
    }

    fn finish(&self, block: &PinnedBlock) -> std::result::Result<Vec<u8>, Error> {
        block.event.wait().map_err(|error| self.memory.error(error))?;
        if self.has_record {
            // SAFETY: the copies are done, and the record is within the block.
            let record =
                unsafe { std::slice::from_raw_parts(block.place.add(record_offset(self.bytes)), fault::BYTES) };
            if fault::is_raised(record) {
                self.memory.check()?;
            }
        }
        // SAFETY: as above.
        Ok(unsafe { std::slice::from_raw_parts(block.place, self.bytes) }.to_vec())
    }
}

/// Where the fault record is behind so many bytes.
fn record_offset(bytes: usize) -> usize {
    bytes.next_multiple_of(8)
}

impl PendingRead for QueuedRead {
    fn wait(mut self: Box<Self>) -> std::result::Result<Vec<u8>, Error> {
        let Some(block) = self.block.take() else { return Ok(Vec::new()) };
        let bytes = self.finish(&block);
        self.memory.0.pinned.give(block);
        bytes
    }
}

impl Drop for QueuedRead {
    fn drop(&mut self) {
        if let Some(block) = self.block.take() {
            self.memory.0.pinned.give(block);
        }
    }
}
