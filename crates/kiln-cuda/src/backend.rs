//! A GPU as a [`Backend`].

use crate::blas::{BlasCode, BlasLt};
use crate::device::Gpu;
use crate::driver::DriverError;
use crate::executable::Code;
use crate::graph::Graph;
use crate::memory::GpuMemory;
use crate::nvrtc::Nvrtc;
use crate::pool::PoolBytes;
use crate::text::{self, Skinny, Tile, Way};
use kiln_ir::Source;
use kiln_kernels::Target;
use kiln_kernels::kernel::{Kernel, KernelBody};
use kiln_runtime::{Backend, Buffer, Device, Error, Executable, Launch, Recording, Variant};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Bytes that are written before something is timed: more than an L2 cache holds.
const FLUSHED_BYTES: usize = 256 << 20;

/// What the choices of a variant name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Choice {
    /// The own text as it is without a measurement.
    Own,
    /// The own text, with few rows spread this way.
    Skinny(Skinny),
    /// The own text, with this tile on tensor cores.
    Tile(Tile),
    /// The algorithm of cuBLASLt of this number.
    Library(usize),
}

impl Choice {
    /// Every choice of the own text; small tiles only where no library has the product, which has its own.
    fn own(has_library: bool) -> impl Iterator<Item = Choice> {
        let spread = Skinny::all().map(Choice::Skinny);
        let tiles = Tile::all().filter(move |tile| !has_library || tile.is_large()).map(Choice::Tile);
        [Choice::Own].into_iter().chain(spread).chain(tiles)
    }

    fn parse(text: &str) -> Option<Choice> {
        match text.strip_prefix("cublaslt=") {
            Some(number) => number.parse().ok().map(Choice::Library),
            None if text == "own" => Some(Choice::Own),
            None => Skinny::parse(text).map(Choice::Skinny).or_else(|| Tile::parse(text).map(Choice::Tile)),
        }
    }

    /// What the own text of a GPU may count on.
    fn way(self, gpu: &Gpu) -> Way {
        let way = gpu.way();
        match self {
            Choice::Own | Choice::Library(_) => way,
            Choice::Skinny(skinny) => Way { skinny, ..way },
            Choice::Tile(tile) => Way { tile: Some(tile), ..way },
        }
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Choice::Own => f.write_str("own"),
            Choice::Skinny(skinny) => skinny.fmt(f),
            Choice::Tile(tile) => tile.fmt(f),
            Choice::Library(number) => write!(f, "cublaslt={number}"),
        }
    }
}

/// Elements of a row that one block searches as fast as several launches would.
const LONG_ROW: i64 = 1 << 13;

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
        let (major, minor) = Nvrtc::get()?.version;
        if major > gpu.driver / 1000 {
            let (driver_major, driver_minor) = (gpu.driver / 1000, gpu.driver % 1000 / 10);
            return Err(format!(
                "the driver is of CUDA {driver_major}.{driver_minor}, and runs nothing of the compiler's, NVRTC {major}.{minor}: \
                 it takes a newer driver, or an NVRTC of CUDA {driver_major} in a folder of KILN_CUDA_PATH"
            ));
        }
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

    /// The code of a kernel's own text.
    fn compile_own(&self, kernel: &Kernel, choice: Choice) -> Result<Arc<dyn Executable>, Error> {
        let code = Code::compile(self.gpu, kernel, choice.way(self.gpu)).map_err(|reason| self.error(reason))?;
        Ok(Arc::new(code))
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
        match BlasCode::of(self, kernel, None) {
            Some(code) => Ok(Arc::new(code.with_own(None).map_err(|reason| self.error(reason))?)),
            None => self.compile_own(kernel, Choice::Own),
        }
    }

    fn variants(&self, kernel: &Kernel, now: &Variant, sizes: &[i64]) -> Vec<Variant> {
        let has_products = kernel.bodies().iter().all(|body| matches!(body, KernelBody::Matmul(_)));
        if !has_products || !now.packed.is_empty() {
            return Vec::new();
        }
        let by_default = BlasCode::of(self, kernel, None);
        let is_default = by_default.as_ref().is_some_and(|code| code.takes(sizes));
        let by_library = by_default.or_else(|| BlasCode::of(self, kernel, Some(0)));
        let algorithms = by_library.map_or(0, |code| code.algorithms(sizes));
        let now_choice = Choice::parse(&now.choices).unwrap_or(match is_default {
            true => Choice::Library(0),
            false => Choice::Own,
        });
        // A text whose blocks do not fit the multiprocessor is none.
        let source = |choice: Choice| {
            let text = text::generate(kernel, choice.way(self.gpu)).ok()?;
            (text.block_bytes.as_const().is_none_or(|bytes| bytes <= self.gpu.shared)).then_some(text.source)
        };
        // What gives the same text is the same way.
        let mut seen = match now_choice {
            Choice::Library(_) => Vec::new(),
            own => vec![source(own)],
        };
        let mut found = Vec::new();
        for choice in Choice::own(algorithms > 0) {
            let text = source(choice);
            if text.is_some() && !seen.contains(&text) {
                seen.push(text);
                found.push(choice);
            }
        }
        found.extend((0..algorithms).map(Choice::Library).filter(|choice| *choice != now_choice));
        found.into_iter().map(|choice| now.choosing(choice.to_string())).collect()
    }

    fn compile_variant(&self, kernel: &Kernel, variant: &Variant) -> Result<Arc<dyn Executable>, Error> {
        if variant.is_default() {
            return self.compile(kernel);
        }
        let missing = || self.error(format!("there is no variant {variant}"));
        match Choice::parse(&variant.choices).filter(|_| variant.packed.is_empty()).ok_or_else(missing)? {
            own @ (Choice::Own | Choice::Skinny(_) | Choice::Tile(_)) => self.compile_own(kernel, own),
            Choice::Library(number) => Ok(Arc::new(BlasCode::of(self, kernel, Some(number)).ok_or_else(missing)?)),
        }
    }

    fn restore(&self, kernel: &Kernel, saved: &[u8]) -> Option<Arc<dyn Executable>> {
        let own = Code::restore(self.gpu, kernel, saved)?;
        match BlasCode::of(self, kernel, None) {
            Some(code) => Some(Arc::new(code.with_own(Some(own)).ok()?)),
            None => Some(Arc::new(own)),
        }
    }

    fn fingerprint(&self) -> String {
        let version = Nvrtc::get().map(|nvrtc| nvrtc.version).unwrap_or_default();
        let driver = self.gpu.driver;
        // Texts are spread over as many multiprocessors as there are.
        let count = self.gpu.multiprocessors;
        format!("{} x{count} nvrtc {version:?} driver {driver} {}", self.target(), crate::FINGERPRINT)
    }

    fn machine(&self) -> String {
        let library = BlasLt::get().map(|blas| format!(", cuBLASLt {}", blas.version)).unwrap_or_default();
        format!("{}, {} multiprocessors{library}", self.gpu.name, self.gpu.multiprocessors)
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

    fn schedule_target(&self) -> Target {
        Target { few_rows: text::MOST_ROWS, long_row: LONG_ROW, guarded_operands: true, product_order: true }
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

    fn release_memory(&self) -> Result<(), Error> {
        self.gpu.pool.release(self.gpu).map_err(|error| self.driver_error(error))
    }

    fn synchronize(&self) -> Result<(), Error> {
        self.memory.check()?;
        self.gpu.synchronize().map_err(|error| self.driver_error(error))
    }
}
