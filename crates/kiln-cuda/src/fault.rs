//! Faults that kernels report: an index out of range is written to a record in device memory, the first one wins, and the host looks at
//! it when it next reads or waits.

use crate::device::Gpu;
use crate::driver::{DevicePtr, Result};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// What a kernel writes; `Fault` in the text.
pub(crate) const BYTES: usize = 24;

/// The record of one GPU.
#[derive(Default)]
pub(crate) struct Faults {
    record: OnceLock<DevicePtr>,
    /// Whether a kernel that may report something was queued since the record was last looked at.
    pending: AtomicBool,
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
        self.pending.store(true, Ordering::Relaxed);
    }

    /// Whether a kernel may have reported something since the record was last looked at.
    pub(crate) fn is_expected(&self) -> bool {
        self.pending.load(Ordering::Relaxed)
    }

    /// What was reported since the last time; waits for everything queued if there may be something.
    pub(crate) fn take(&self, gpu: &Gpu) -> Result<Option<Reported>> {
        if !self.pending.swap(false, Ordering::Relaxed) {
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
        let (longs, _) = bytes[8..].as_chunks::<8>();
        Ok(Some(Reported { site, index: i64::from_le_bytes(longs[0]), size: i64::from_le_bytes(longs[1]) }))
    }
}

/// Whether a record has a report.
pub(crate) fn is_raised(record: &[u8]) -> bool {
    record.iter().take(4).any(|byte| *byte != 0)
}
