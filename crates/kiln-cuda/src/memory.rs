//! A GPU's memory as [`Memory`].

use crate::device::Gpu;
use crate::driver::DriverError;
use crate::pinned::QueuedRead;
use kiln_runtime::{Buffer, Device, Error, Memory, PendingRead, sites};
use std::ptr::NonNull;

/// The memory of one GPU.
pub(crate) struct GpuMemory(pub(crate) &'static Gpu);

impl GpuMemory {
    pub(crate) fn allocate(&'static self, bytes: usize) -> Result<Buffer, Error> {
        let address = self.0.pool.take(self.0, bytes).map_err(|error| match error.is_out_of_memory() {
            true => Error::DeviceMemory { bytes, device: self.device(), reason: error.message },
            false => self.error(error),
        })?;
        let pointer = NonNull::new(address as *mut u8).ok_or(Error::OutOfMemory { bytes, device: self.device() })?;
        // SAFETY: a block of that size, which `release` gives back.
        Ok(unsafe { Buffer::from_allocation(self, pointer, bytes) })
    }

    pub(crate) fn error(&self, error: DriverError) -> Error {
        Error::Device { device: self.device(), code: error.code, message: error.message }
    }

    /// The error of a launch that reported an index out of range since the last time.
    pub(crate) fn check(&self) -> Result<(), Error> {
        match self.0.faults.take(self.0).map_err(|error| self.error(error))? {
            Some(fault) => Err(sites::out_of_range(fault.site, fault.index, fault.size)),
            None => Ok(()),
        }
    }
}

impl Memory for GpuMemory {
    fn device(&self) -> Device {
        Device::Cuda(self.0.ordinal)
    }

    unsafe fn release(&self, ptr: NonNull<u8>, bytes: usize) {
        self.0.pool.give(ptr.as_ptr() as u64, bytes);
    }

    unsafe fn copy_to_host(&self, source: *const u8, target: &mut [u8]) -> Result<(), Error> {
        self.check()?;
        if target.is_empty() {
            return Ok(());
        }
        // SAFETY: the caller's promise.
        unsafe { self.0.read(source as u64, target) }.map_err(|error| self.error(error))
    }

    unsafe fn read_later(&'static self, source: *const u8, bytes: usize) -> Result<Box<dyn PendingRead>, Error> {
        // SAFETY: the caller's promise.
        let read = unsafe { QueuedRead::begin(self, source as u64, bytes) };
        Ok(Box::new(read.map_err(|error| self.error(error))?))
    }

    unsafe fn copy_on_device(&self, source: *const u8, target: *mut u8, bytes: usize) -> Result<(), Error> {
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: the caller's promise.
        unsafe { self.0.copy(source as u64, target as u64, bytes) }.map_err(|error| self.error(error))
    }

    unsafe fn copy_from_host(&self, source: &[u8], target: *mut u8) -> Result<(), Error> {
        if source.is_empty() {
            return Ok(());
        }
        // SAFETY: the caller's promise.
        unsafe { self.0.write(source, target as u64) }.map_err(|error| self.error(error))
    }
}
