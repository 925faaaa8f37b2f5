//! A GPU as a [`Backend`].

use crate::device::Gpu;
use crate::driver::DriverError;
use crate::executable::Code;
use crate::graph::Graph;
use crate::memory::GpuMemory;
use crate::nvrtc::Nvrtc;
use crate::pool::PoolBytes;
use crate::text::{self, Skinny, Way};
use kiln_ir::Source;
use kiln_kernels::kernel::{Kernel, KernelBody};
use kiln_runtime::{Backend, Buffer, Device, Error, Executable, Launch, Recording, Variant};
use std::sync::Arc;
use std::time::Duration;

/// Bytes that are written before something is timed: more than an L2 cache holds.
const FLUSHED_BYTES: usize = 256 << 20;

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

    /// What its memory pool holds.
    pub fn memory(&self) -> PoolBytes {
        self.gpu.pool.bytes()
    }

    /// Gives memory that nobody uses back to the driver.
    pub fn release(&self) -> Result<(), Error> {
        self.gpu.pool.release(self.gpu).map_err(|error| self.driver_error(error))
    }

    fn way(&self, skinny: Skinny) -> Way {
        Way { skinny, ..Way::of(&self.gpu.arch()) }
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
        Ok(Arc::new(Code::compile(self.gpu, kernel, self.way(Skinny::default())).map_err(|reason| self.error(reason))?))
    }

    fn variants(&self, kernel: &Kernel, now: &Variant, _: &[i64]) -> Vec<Variant> {
        let (KernelBody::Matmul(_), true) = (&kernel.body, now.packed.is_empty()) else { return Vec::new() };
        let now_skinny = Skinny::parse(&now.choices).unwrap_or_default();
        let source =
            |skinny: Skinny| text::generate(kernel, self.way(skinny)).map(|text| text.source).unwrap_or_default();
        // What gives the same text is the same way.
        let mut seen = vec![source(now_skinny)];
        let mut found = Vec::new();
        for skinny in Skinny::all() {
            let text = source(skinny);
            if !seen.contains(&text) {
                seen.push(text);
                found.push(now.choosing(skinny.to_string()));
            }
        }
        found
    }

    fn compile_variant(&self, kernel: &Kernel, variant: &Variant) -> Result<Arc<dyn Executable>, Error> {
        if variant.is_default() {
            return self.compile(kernel);
        }
        let skinny = Skinny::parse(&variant.choices).filter(|_| variant.packed.is_empty());
        let skinny = skinny.ok_or_else(|| self.error(format!("there is no variant {variant}")))?;
        let code = Code::compile(self.gpu, kernel, self.way(skinny)).map_err(|reason| self.error(reason))?;
        Ok(Arc::new(code))
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

    fn record(&self, launches: &[Launch<'_>]) -> Result<Option<Box<dyn Recording>>, Error> {
        let failed = |cause| Error::Launch { op: "a recorded program".into(), cause, at: Source::default() };
        let graph = Graph::record(self.gpu, launches).map_err(failed)?;
        Ok(graph.map(|graph| Box::new(graph) as Box<dyn Recording>))
    }

    fn is_asynchronous(&self) -> bool {
        true
    }

    fn time(&self, launch: &mut dyn FnMut() -> Result<(), Error>) -> Result<Duration, Error> {
        let failed = |error| self.driver_error(error);
        // While the GPU writes this, the launches arrive; and none of what they read is left in the L2 cache.
        let scratch = self.memory.allocate(FLUSHED_BYTES)?;
        // SAFETY: the buffer has that many bytes.
        unsafe { self.gpu.fill(scratch.ptr() as u64, FLUSHED_BYTES) }.map_err(failed)?;
        let start = self.gpu.record().map_err(failed)?;
        launch()?;
        let end = self.gpu.record().map_err(failed)?;
        let milliseconds = end.since(&start).map_err(failed)?;
        self.memory.check()?;
        Ok(Duration::from_secs_f64(f64::from(milliseconds) / 1e3))
    }

    fn synchronize(&self) -> Result<(), Error> {
        self.memory.check()?;
        self.gpu.synchronize().map_err(|error| self.driver_error(error))
    }
}
