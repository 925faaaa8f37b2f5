//! Faults that kernels report: an index out of range is written to a record in device memory, the first one wins, and the host looks at
//! it when it next reads or waits.

use crate::device::Gpu;
use crate::driver::{DevicePtr, Result, driver};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// What a kernel writes; `Fault` in the text.
pub(crate) const BYTES: usize = 24;

/// The record of one GPU.
#[derive(Default)]
pub(crate) struct Faults {
    record: OnceLock<DevicePtr>,
    /// Kernels that may report something, as many as were queued so far.
    queued: AtomicU64,
    /// The same when the record was last looked at.
    seen: AtomicU64,
    /// Page-locked memory of the host with the last copy of the record.
    copy: OnceLock<&'static [AtomicU32; BYTES / 4]>,
}

/// What a kernel reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reported {
    /// The launch, as it was numbered.
    pub(crate) site: u32,
    pub(crate) index: i64,
    pub(crate) size: i64,
}

impl Faults {
    /// Where kernels report to.
    pub(crate) fn record(&self, gpu: &Gpu) -> Result<DevicePtr> {
        if let Some(&record) = self.record.get() {
            return Ok(record);
        }
        let record = gpu.pool.take(gpu, BYTES)?;
        // SAFETY: a block of that size.
        unsafe { gpu.write(&[0; BYTES], record) }?;
        Ok(*self.record.get_or_init(|| record))
    }

    /// A kernel that may report something is queued.
    pub(crate) fn expect(&self) {
        self.queued.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether a kernel may have reported something since the record was last looked at.
    pub(crate) fn is_expected(&self) -> bool {
        self.queued() != self.seen.load(Ordering::Relaxed)
    }

    /// How many kernels that may report something were queued so far.
    pub(crate) fn queued(&self) -> u64 {
        self.queued.load(Ordering::Relaxed)
    }

    /// Queues a copy of the record to the host, behind what is queued on this thread's stream; see [`Faults::has_arrived`].
    pub(crate) fn send(&self, gpu: &Gpu) -> Result<()> {
        let copy = match self.copy.get() {
            Some(copy) => copy,
            None => {
                let mut place = std::ptr::null_mut();
                // SAFETY: a place to write to.
                unsafe { driver()?.allocate_pinned(&mut place, BYTES) }?;
                // SAFETY: a block of that size that is kept for the rest of the process; zeros are numbers.
                let copy = unsafe {
                    place.write_bytes(0, BYTES);
                    &*place.cast::<[AtomicU32; BYTES / 4]>()
                };
                self.copy.get_or_init(|| copy)
            }
        };
        // SAFETY: blocks of that size; the host reads whole words of the copy, each of which is old or new.
        unsafe { gpu.read_later(self.record(gpu)?, copy.as_ptr().cast_mut().cast(), BYTES) }
    }

    /// Whether a copy that has arrived has a report. Waits for nothing.
    pub(crate) fn has_arrived(&self) -> bool {
        self.copy.get().is_some_and(|copy| copy[0].load(Ordering::Relaxed) != 0)
    }

    /// What was reported since the last time; waits for everything queued if there may be something.
    pub(crate) fn take(&self, gpu: &Gpu) -> Result<Option<Reported>> {
        let queued = self.queued();
        if self.seen.swap(queued, Ordering::Relaxed) == queued {
            return Ok(None);
        }
        let record = self.record(gpu)?;
        let mut bytes = [0; BYTES];
        // SAFETY: a block of that size.
        unsafe { gpu.read(record, &mut bytes) }?;
        if !is_raised(&bytes) {
            return Ok(None);
        }
        let (words, _) = bytes.as_chunks::<4>();
        let site = u32::from_le_bytes(words[1]);
        // SAFETY: as above.
        unsafe { gpu.write(&[0; BYTES], record) }?;
        // Copies that were queued before the record was read have arrived.
        self.copy.get().into_iter().flat_map(|copy| copy.iter()).for_each(|word| word.store(0, Ordering::Relaxed));
        let (longs, _) = bytes[8..].as_chunks::<8>();
        Ok(Some(Reported { site, index: i64::from_le_bytes(longs[0]), size: i64::from_le_bytes(longs[1]) }))
    }
}

/// Whether a record has a report.
pub(crate) fn is_raised(record: &[u8]) -> bool {
    record.iter().take(4).any(|byte| *byte != 0)
}
