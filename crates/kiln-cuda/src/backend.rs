//! A GPU as a [`Backend`].

use crate::device::Gpu;
use crate::driver::DriverError;
use crate::executable::Code;
use crate::memory::GpuMemory;
use crate::nvrtc::Nvrtc;
use crate::pool::PoolBytes;
use kiln_kernels::kernel::Kernel;
use kiln_runtime::{Backend, Buffer, Device, Error, Executable};
use std::sync::Arc;
use std::time::Duration;

/// A GPU with a compiler for it.
#[derive(Clone, Copy)]
pub struct CudaBackend {
    gpu: &'static Gpu,
    memory: &'static GpuMemory,
}

impl CudaBackend {
    /// The backend of a GPU; the reason where there is no driver, no such GPU or no compiler.
    pub fn new(ordinal: u32) -> Result<CudaBackend, String> {
        let gpu = Gpu::get(ordinal).map_err(|error| error.to_string())?;
        Nvrtc::get()?;
        if gpu.capability < (8, 0) {
            let (major, minor) = gpu.capability;
            return Err(format!("{} has compute capability {major}.{minor}; 8.0 is the least", gpu.name));
        }
        Ok(CudaBackend { gpu, memory: Box::leak(Box::new(GpuMemory(gpu))) })
    }

    /// The GPU.
    pub fn gpu(&self) -> &'static Gpu {
        self.gpu
    }

    /// Runs `work` and says how long the GPU took for what it queued.
    pub fn timed<T>(&self, work: impl FnOnce() -> T) -> Result<(T, Duration), Error> {
        let failed = |error| self.driver_error(error);
        let start = self.gpu.record().map_err(failed)?;
        let value = work();
        let end = self.gpu.record().map_err(failed)?;
        let milliseconds = end.since(&start).map_err(failed)?;
        Ok((value, Duration::from_secs_f64(f64::from(milliseconds) / 1e3)))
    }

    /// What its memory pool holds.
    pub fn memory(&self) -> PoolBytes {
        self.gpu.pool.bytes()
    }

    /// Gives memory that nobody uses back to the driver.
    pub fn release(&self) -> Result<(), Error> {
        self.gpu.pool.release(self.gpu).map_err(|error| self.driver_error(error))
    }

    fn error(&self, reason: String) -> Error {
        Error::Compile { target: self.target(), reason }
    }

    fn driver_error(&self, error: DriverError) -> Error {
        self.memory.error(error)
    }
}

impl Backend for CudaBackend {
    fn device(&self) -> Device {
        Device::Cuda(self.gpu.ordinal)
    }

    fn target(&self) -> String {
        format!("cuda-{}", self.gpu.arch())
    }

    fn allocate(&self, bytes: usize) -> Result<Buffer, Error> {
        self.memory.allocate(bytes)
    }

    fn compile(&self, kernel: &Kernel) -> Result<Arc<dyn Executable>, Error> {
        Ok(Arc::new(Code::compile(self.gpu, kernel).map_err(|reason| self.error(reason))?))
    }

    fn restore(&self, kernel: &Kernel, saved: &[u8]) -> Option<Arc<dyn Executable>> {
        Some(Arc::new(Code::restore(self.gpu, kernel, saved)?))
    }

    fn fingerprint(&self) -> String {
        let version = Nvrtc::get().map(|nvrtc| nvrtc.version).unwrap_or_default();
        let driver = self.gpu.driver;
        format!("{} nvrtc {version:?} driver {driver} {}", self.target(), crate::FINGERPRINT)
    }

    fn machine(&self) -> String {
        format!("{}, {} multiprocessors", self.gpu.name, self.gpu.multiprocessors)
    }

    fn compile_threads(&self) -> usize {
        std::thread::available_parallelism().map_or(1, usize::from)
    }

    fn stored_instructions(&self) -> usize {
        0
    }

    fn is_asynchronous(&self) -> bool {
        true
    }

    fn synchronize(&self) -> Result<(), Error> {
        self.memory.check()?;
        self.gpu.synchronize().map_err(|error| self.driver_error(error))
    }
}
