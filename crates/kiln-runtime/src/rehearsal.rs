//! A backend that runs nothing and writes down what it was to run: so that the kernels of a program are known before it runs.

use crate::{Backend, Buffer, Device, Error, Executable, HostMemory, LaunchError, Memory, RawBuffer};
use kiln_kernels::Target;
use kiln_kernels::kernel::{Access, Kernel};
use std::sync::{Arc, Mutex, PoisonError};

/// Collects the kernels that another backend would compile. All that they compute is zeros, on the host.
///
/// ```
/// use kiln_runtime::{Backend, ReferenceBackend, Rehearsal};
/// let rehearsal = Rehearsal::new(&ReferenceBackend);
/// assert!(rehearsal.take().is_empty());
/// ```
pub struct Rehearsal {
    target: String,
    schedules: Target,
    kernels: Mutex<Vec<Arc<Kernel>>>,
}

impl Rehearsal {
    /// A rehearsal for this backend.
    pub fn new(of: &dyn Backend) -> Rehearsal {
        let target = format!("rehearsal-{}", of.target());
        Rehearsal { target, schedules: of.schedule_target(), kernels: Mutex::default() }
    }

    /// The kernels that were asked for since the last time.
    pub fn take(&self) -> Vec<Arc<Kernel>> {
        std::mem::take(&mut self.kernels.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Backend for Rehearsal {
    fn device(&self) -> Device {
        Device::Cpu
    }

    fn target(&self) -> String {
        self.target.clone()
    }

    fn allocate(&self, bytes: usize) -> Result<Buffer, Error> {
        HostMemory::allocate(bytes)
    }

    fn readable_memory(&self) -> Option<&'static dyn Memory> {
        Some(HostMemory::get())
    }

    fn compile(&self, kernel: &Kernel) -> Result<Arc<dyn Executable>, Error> {
        self.kernels.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::new(kernel.clone()));
        Ok(Arc::new(Zeros { written: kernel.buffers.iter().map(|buffer| buffer.access != Access::Read).collect() }))
    }

    fn schedule_target(&self) -> Target {
        self.schedules
    }
}

/// Code that writes zeros.
struct Zeros {
    /// By buffer, whether the kernel writes it.
    written: Vec<bool>,
}

impl Executable for Zeros {
    unsafe fn launch(&self, buffers: &[RawBuffer], _: &[i64]) -> Result<(), LaunchError> {
        for (buffer, _) in buffers.iter().zip(&self.written).filter(|(_, written)| **written) {
            // SAFETY: the launch's contract: the buffer is valid for its size, and may be written.
            unsafe { std::ptr::write_bytes(buffer.ptr, 0, buffer.bytes) };
        }
        Ok(())
    }
}
