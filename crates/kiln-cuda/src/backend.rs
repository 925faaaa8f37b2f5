//! A GPU as a [`Backend`].

use crate::blas::{self, BlasCode, BlasLt};
use crate::device::Gpu;
use crate::dnn::{self, DnnCode, DnnLibrary};
use crate::driver::DriverError;
use crate::executable::{Code, Stored};
use crate::graph::Graph;
use crate::memory::GpuMemory;
use crate::nvrtc::Nvrtc;
use crate::pool::PoolBytes;
use crate::text::{self, Skinny, Tile, Way};
use kiln_ir::Source;
use kiln_ir::codec::from_bytes;
use kiln_kernels::Target;
use kiln_kernels::kernel::{Kernel, KernelBody};
use kiln_runtime::{Backend, Buffer, Device, Error, Executable, Keep, Launch, Memory, Recording, Variant, phase};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Bytes that are written before something is timed: more than an L2 cache holds.
const FLUSHED_BYTES: usize = 256 << 20;

/// The choice of [`Choice::Own`].
pub(crate) const OWN: &str = "own";
/// The choice of [`Choice::Plain`].
pub(crate) const PLAIN: &str = "plain";

/// What the choices of a variant name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Choice {
    /// The own text as it is without a measurement.
    Own,
    /// The own text, with few rows spread this way.
    Skinny(Skinny),
    /// The own text, with this tile on tensor cores.
    Tile(Tile),
    /// The own text for buffers that begin anywhere.
    Plain,
    /// The algorithm of cuBLASLt of this number.
    Library(usize),
    /// The engine of cuDNN of this number.
    Dnn(usize),
}

impl Choice {
    /// Every choice of the own text; small tiles only where no library has the product, which has its own.
    fn own(has_library: bool) -> impl Iterator<Item = Choice> {
        let spread = Skinny::all().map(Choice::Skinny);
        let tiles = Tile::all().filter(move |tile| !has_library || tile.is_large()).map(Choice::Tile);
        [Choice::Own].into_iter().chain(spread).chain(tiles)
    }

    /// The choice of a variant, which the default leaves open; `None` if there is no such variant.
    #[allow(clippy::option_option, reason = "an open choice is not a wrong one")]
    fn of(variant: &Variant) -> Option<Option<Choice>> {
        match (variant.is_default(), variant.packed.is_empty()) {
            (true, _) => Some(None),
            (false, true) => Choice::parse(&variant.choices).map(Some),
            (false, false) => None,
        }
    }

    fn parse(text: &str) -> Option<Choice> {
        if let Some(number) = text.strip_prefix("cudnn=") {
            return number.parse().ok().map(Choice::Dnn);
        }
        match text.strip_prefix("cublaslt=") {
            Some(number) => number.parse().ok().map(Choice::Library),
            None if text == OWN => Some(Choice::Own),
            None if text == PLAIN => Some(Choice::Plain),
            None => Skinny::parse(text).map(Choice::Skinny).or_else(|| Tile::parse(text).map(Choice::Tile)),
        }
    }

    /// What the own text of a GPU may count on.
    fn way(self, gpu: &Gpu) -> Way {
        let way = gpu.way();
        match self {
            Choice::Own | Choice::Library(_) | Choice::Dnn(_) => way,
            Choice::Plain => Way::plain(),
            Choice::Skinny(skinny) => Way { skinny, ..way },
            Choice::Tile(tile) => Way { tile: Some(tile), ..way },
        }
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Choice::Own => f.write_str(OWN),
            Choice::Plain => f.write_str(PLAIN),
            Choice::Skinny(skinny) => skinny.fmt(f),
            Choice::Tile(tile) => tile.fmt(f),
            Choice::Library(number) => write!(f, "cublaslt={number}"),
            Choice::Dnn(number) => write!(f, "cudnn={number}"),
        }
    }
}

/// What schedules for a GPU are made for.
pub const TARGET: Target = Target {
    few_rows: text::MOST_ROWS,
    long_row: LONG_ROW,
    guarded_operands: true,
    scaled_operands: 0,
    split_phases: true,
    depthwise_products: false,
    stored_windows: true,
    unrolled_windows: false,
    separate_windows: false,
    product_order: true,
    attention_gradients: true,
    joined_gradients: false,
    visible_keys: true,
    short_operands: true,
    many_columns: MANY_COLUMNS,
    busy_results: BUSY_RESULTS,
    recomputed: RECOMPUTED,
    direct_gradients: true,
    row_alignment: 16,
};

/// Elements of a row that one block searches as fast as several launches would.
const LONG_ROW: i64 = 1 << 13;
/// Sums of columns that keep a GPU busy.
const MANY_COLUMNS: i64 = 1 << 16;
/// Results of a product that keep a GPU busy: a tile of 64 × 64 a multiprocessor.
const BUSY_RESULTS: i64 = 1 << 19;
/// What four bytes from memory and four to it cost in arithmetic, in units of one addition.
const RECOMPUTED: u32 = 64;

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
        let nvrtc = Nvrtc::installed()?;
        if nvrtc.major > gpu.driver / 1000 {
            let (driver_major, driver_minor) = (gpu.driver / 1000, gpu.driver % 1000 / 10);
            return Err(format!(
                "the driver is of CUDA {driver_major}.{driver_minor}, and runs nothing of the compiler's, NVRTC {}: \
                 it takes a newer driver, or an NVRTC of CUDA {driver_major} in a folder of KILN_CUDA_PATH",
                nvrtc.version
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
    fn compile_own(&self, kernel: &Kernel, choice: Choice, keep: Keep) -> Result<Arc<dyn Executable>, Error> {
        let code = Code::compile(*self, kernel, choice.way(self.gpu), keep).map_err(|reason| self.error(reason))?;
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

    fn readable_memory(&self) -> Option<&'static dyn Memory> {
        Some(self.memory)
    }

    fn compile(&self, kernel: &Kernel) -> Result<Arc<dyn Executable>, Error> {
        self.compile_variant(kernel, &Variant::default(), Keep::Process)
    }

    fn variants(&self, kernel: &Kernel, now: &Variant, sizes: &[i64]) -> Vec<Variant> {
        let has_products = kernel.bodies().iter().all(|body| matches!(body, KernelBody::Matmul(_)));
        let has_variants = has_products || matches!(kernel.body, KernelBody::Attention(_));
        if !has_variants || !now.packed.is_empty() {
            return Vec::new();
        }
        let engines = DnnCode::of(*self, kernel, Some(0), Keep::Process).map_or(0, |code| code.engines());
        let is_dnn = dnn::Policy::of_environment() == dnn::Policy::Always && engines > 0;
        let by_default = BlasCode::of(*self, kernel, None, Keep::Process);
        let is_default = by_default.as_ref().is_some_and(|code| code.takes(sizes));
        let by_library = by_default.or_else(|| BlasCode::of(*self, kernel, Some(0), Keep::Process));
        let algorithms = by_library.map_or(0, |code| code.algorithms(sizes));
        let now_choice = Choice::parse(&now.choices).unwrap_or(match (is_dnn, is_default) {
            (true, _) => Choice::Dnn(0),
            (false, true) => Choice::Library(0),
            (false, false) => Choice::Own,
        });
        // A text whose blocks do not fit the multiprocessor is none.
        let source = |choice: Choice| {
            let text = text::generate(kernel, choice.way(self.gpu)).ok()?;
            (text.block_bytes.as_const().is_none_or(|bytes| bytes <= self.gpu.shared)).then_some(text.source)
        };
        // What gives the same text is the same way.
        let mut seen = match now_choice {
            Choice::Library(_) | Choice::Dnn(_) => Vec::new(),
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
        let by_libraries = (0..algorithms).map(Choice::Library).chain((0..engines).map(Choice::Dnn));
        found.extend(by_libraries.filter(|choice| *choice != now_choice));
        found.into_iter().map(|choice| now.choosing(choice.to_string())).collect()
    }

    fn compile_variant(&self, kernel: &Kernel, variant: &Variant, keep: Keep) -> Result<Arc<dyn Executable>, Error> {
        let missing = || self.error(format!("there is no variant {variant}"));
        let choice = Choice::of(variant).ok_or_else(missing)?;
        let by_dnn = match choice {
            None => DnnCode::of(*self, kernel, None, keep),
            Some(Choice::Dnn(number)) => Some(DnnCode::of(*self, kernel, Some(number), keep).ok_or_else(missing)?),
            Some(_) => None,
        };
        if let Some(code) = by_dnn.filter(|code| code.make().is_ok()) {
            return Ok(Arc::new(code));
        }
        let by_library = match choice {
            None => BlasCode::of(*self, kernel, None, keep),
            Some(Choice::Library(number)) => Some(BlasCode::of(*self, kernel, Some(number), keep).ok_or_else(missing)?),
            Some(_) => None,
        };
        match by_library.filter(|code| code.make().is_ok()) {
            Some(code) => Ok(Arc::new(code)),
            None => self.compile_own(kernel, choice.unwrap_or(Choice::Own), keep),
        }
    }

    fn compile_together(&self, kernels: &[&Kernel]) -> Vec<Option<(Variant, Arc<dyn Executable>)>> {
        let variant = |kernel: &&Kernel| match BlasCode::of(*self, kernel, None, Keep::Process) {
            Some(_) => Variant::default().choosing(OWN),
            None => Variant::default(),
        };
        match Code::compile_together(*self, kernels, self.gpu.way()) {
            Ok(codes) => {
                let code = |(kernel, code)| Some((variant(kernel), Arc::new(code) as Arc<dyn Executable>));
                kernels.iter().zip(codes).map(code).collect()
            }
            // Who asks for one of them is told what is wrong with it.
            Err(_) => vec![None; kernels.len()],
        }
    }

    fn restore(&self, kernel: &Kernel, variant: &Variant, saved: &[u8]) -> Option<Arc<dyn Executable>> {
        let choice = Choice::of(variant)?;
        Some(match (from_bytes(saved).ok()?, choice) {
            (Stored::Library(stored), None) => match DnnCode::restore(*self, kernel, None, &stored) {
                Some(code) => Arc::new(code),
                None => Arc::new(BlasCode::restore(*self, kernel, None, &stored)?),
            },
            (Stored::Library(stored), Some(Choice::Dnn(number))) => {
                Arc::new(DnnCode::restore(*self, kernel, Some(number), &stored)?)
            }
            (Stored::Library(stored), Some(Choice::Library(number))) => {
                Arc::new(BlasCode::restore(*self, kernel, Some(number), &stored)?)
            }
            (Stored::Own(stored), choice) => {
                Arc::new(Code::restore(*self, kernel, choice.unwrap_or(Choice::Own).way(self.gpu), stored)?)
            }
            (Stored::Library(_), Some(_)) => return None,
        })
    }

    fn is_stored(&self, _: &Kernel, _: &Variant) -> bool {
        true
    }

    fn stores_eager_code(&self) -> bool {
        true
    }

    fn fingerprint(&self) -> String {
        let version = Nvrtc::installed().map_or("", |nvrtc| nvrtc.version.as_str());
        let (driver, blas, dnn) = (self.gpu.driver, blas::Policy::of_environment(), dnn::Policy::of_environment());
        // Texts are spread over as many multiprocessors as there are.
        let count = self.gpu.multiprocessors;
        let crates = [kiln_ir::FINGERPRINT, kiln_kernels::FINGERPRINT, kiln_runtime::FINGERPRINT, crate::FINGERPRINT];
        let crates = crates.join(" ");
        format!("{} x{count} nvrtc {version} driver {driver} cublaslt {blas:?} cudnn {dnn:?} {crates}", self.target())
    }

    fn machine(&self) -> String {
        let named = |name: &str, version: Option<String>| version.map(|version| format!(", {name} {version}"));
        let blas = named("cuBLASLt", BlasLt::installed()).unwrap_or_default();
        let dnn = named("cuDNN", DnnLibrary::installed()).unwrap_or_default();
        format!("{}, {} multiprocessors{blas}{dnn}", self.gpu.name, self.gpu.multiprocessors)
    }

    fn compile_threads(&self) -> usize {
        std::thread::available_parallelism().map_or(1, usize::from)
    }

    fn record(&self, launches: &[Launch<'_>]) -> Result<Option<Box<dyn Recording>>, Error> {
        let failed = |cause| Error::Launch { op: "a recorded program".into(), cause, at: Source::default() };
        let graph = phase::timed("graph", || Graph::record(self.gpu, launches)).map_err(failed)?;
        Ok(graph.map(|graph| Box::new(graph) as Box<dyn Recording>))
    }

    fn is_asynchronous(&self) -> bool {
        true
    }

    unsafe fn on_stream(&self, stream: usize, run: &mut dyn FnMut() -> Result<(), Error>) -> Result<(), Error> {
        let faults = &self.gpu.faults;
        if faults.has_arrived() {
            self.memory.check()?;
        }
        let run = || {
            let before = faults.queued();
            run()?;
            // Whoever has a stream of his own does not wait here: what his kernels report is looked at in his next call.
            match faults.queued() == before || self.gpu.is_captured() {
                true => Ok(()),
                false => faults.send(self.gpu).map_err(|error| self.driver_error(error)),
            }
        };
        // A handle, which only the driver looks at.
        self.gpu.on_stream(std::ptr::without_provenance_mut(stream), run).map_err(|error| self.driver_error(error))?
    }

    fn is_captured(&self) -> bool {
        self.gpu.is_captured()
    }

    fn schedule_target(&self) -> Target {
        TARGET
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_is_read_as_it_is_written() {
        let libraries = [Choice::Library(3), Choice::Dnn(0), Choice::Dnn(11), Choice::Plain];
        for choice in Choice::own(false).chain(libraries) {
            assert_eq!(Choice::parse(&choice.to_string()), Some(choice));
        }
        for text in ["cudnn", "cudnn=", "cudnn=x", "cublaslt=-1", "nothing"] {
            assert_eq!(Choice::parse(text), None, "{text}");
        }
    }
}
