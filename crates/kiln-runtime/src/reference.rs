//! A backend without a code generator: every kernel is run by [`kiln_kernels::reference`], element by element, on copies of its
//! buffers. Hundreds of times slower than any other; it distinguishes a wrong kernel from wrong code.

use crate::{Backend, Buffer, Device, Error, Executable, HostMemory, LaunchError, Memory, RawBuffer};
use kiln_ir::HostTensor;
use kiln_kernels::Target;
use kiln_kernels::kernel::{Access, Kernel};
use kiln_kernels::reference::{self, Fault};
use std::sync::Arc;

/// Runs kernels on the host's memory without compiling them.
#[derive(Debug, Clone, Copy, Default)]
pub struct ReferenceBackend;

impl Backend for ReferenceBackend {
    fn device(&self) -> Device {
        Device::Cpu
    }

    fn target(&self) -> String {
        "reference".to_owned()
    }

    fn allocate(&self, bytes: usize) -> Result<Buffer, Error> {
        HostMemory::allocate(bytes)
    }

    fn readable_memory(&self) -> Option<&'static dyn Memory> {
        Some(HostMemory::get())
    }

    fn compile(&self, kernel: &Kernel) -> Result<Arc<dyn Executable>, Error> {
        Ok(Arc::new(Interpreted { kernel: kernel.clone() }))
    }
}

/// The same with the schedules of another backend: its kernels, without its code and without its device.
#[derive(Debug, Clone, Copy)]
pub struct ReferenceSchedules {
    /// What the schedules are made for.
    pub target: Target,
}

impl Backend for ReferenceSchedules {
    fn device(&self) -> Device {
        Device::Cpu
    }

    fn target(&self) -> String {
        format!("reference {:?}", self.target)
    }

    fn allocate(&self, bytes: usize) -> Result<Buffer, Error> {
        ReferenceBackend.allocate(bytes)
    }

    fn readable_memory(&self) -> Option<&'static dyn Memory> {
        Some(HostMemory::get())
    }

    fn compile(&self, kernel: &Kernel) -> Result<Arc<dyn Executable>, Error> {
        ReferenceBackend.compile(kernel)
    }

    fn schedule_target(&self) -> Target {
        self.target
    }
}

/// A kernel to be run as it is.
struct Interpreted {
    kernel: Kernel,
}

impl Executable for Interpreted {
    unsafe fn launch(&self, buffers: &[RawBuffer], sizes: &[i64]) -> Result<(), LaunchError> {
        let (expected, got) = (self.kernel.buffers.len(), buffers.len());
        if expected != got {
            return Err(LaunchError::WrongArguments { what: "buffers", expected, got });
        }
        let mut copies = Vec::with_capacity(buffers.len());
        for (buffer, arg) in buffers.iter().zip(&self.kernel.buffers) {
            let elements = buffer.bytes * 8 / arg.dtype.size_in_bits();
            let length = arg.dtype.bytes_for(elements).unwrap_or(0);
            // SAFETY: the launch's contract: the buffer is valid for its size.
            let bytes = unsafe { std::slice::from_raw_parts(buffer.ptr, length) };
            let copy = HostTensor::from_bytes(arg.dtype, &[elements], bytes.to_vec());
            copies.push(copy.map_err(|_| LaunchError::OutOfMemory { bytes: length })?);
        }
        reference::run_kernel(&self.kernel, &mut copies, sizes).map_err(|fault| match fault {
            Fault::IndexOutOfRange { index, size } => LaunchError::IndexOutOfRange { index, size },
            other => LaunchError::Device { code: 0, message: other.to_string() },
        })?;
        for ((buffer, arg), copy) in buffers.iter().zip(&self.kernel.buffers).zip(&copies) {
            if arg.access != Access::Read {
                // SAFETY: the launch's contract: the buffer may be written and is not shared.
                unsafe { std::ptr::copy_nonoverlapping(copy.bytes().as_ptr(), buffer.ptr, copy.bytes().len()) }
            }
        }
        Ok(())
    }
}
