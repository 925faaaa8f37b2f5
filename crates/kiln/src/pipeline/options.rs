//! Options of compiling a graph.

use crate::Device;
use kiln_kernels::ScheduleOptions;
use kiln_passes::SplitOptions;
use kiln_runtime::{Backend, Keep};
use std::borrow::Cow;

/// The name of the programs of eager operations.
pub(crate) const EAGER: &str = "eager";

/// Options of [`crate::CompiledGraph::new`].
#[derive(Debug, Clone)]
pub struct CompileOptions {
    /// The device it runs on.
    pub device: Device,
    /// How it is cut into kernels.
    pub schedule: ScheduleOptions,
    /// Whether to skip the graph passes, for comparison and for finding a wrong pass. Ops without a kernel are still
    /// decomposed.
    pub no_passes: bool,
    /// The name used in dumps and reports.
    pub name: Cow<'static, str>,
    /// Whether to look for the program and its kernels in the disk cache, and store them there.
    pub disk_cache: bool,
    /// Whether it is a single operation: without `disk_cache`, its kernels are still stored by a backend that takes long to compile
    /// them.
    pub eager: bool,
    /// Bytes of temporaries beyond which cheap values are computed again near late uses; see [`kiln_passes::recompute`].
    pub memory_budget: Option<usize>,
}

impl Default for CompileOptions {
    fn default() -> CompileOptions {
        let (device, schedule, name) = Default::default();
        CompileOptions { device, schedule, no_passes: false, name, disk_cache: true, eager: false, memory_budget: None }
    }
}

impl CompileOptions {
    /// How long code of a backend is kept.
    pub(super) fn keep(&self, backend: &dyn Backend) -> Keep {
        let is_stored = self.disk_cache || self.eager && backend.stores_eager_code();
        if is_stored { Keep::Disk } else { Keep::Process }
    }
}

/// Options of [`crate::FrozenGraph::new`].
#[derive(Debug, Clone)]
pub struct FreezeOptions {
    /// How both programs are compiled.
    pub compile: CompileOptions,
    /// Whether products of few rows that do not depend on each other run beside each other in one launch.
    pub join: bool,
    /// Which weights the backend packs.
    pub pack: PackWeights,
    /// How much larger than its weights a prepared value may be; see [`SplitOptions::growth`].
    pub growth: usize,
    /// Whether outputs reuse the memory of earlier outputs that have been dropped; see [`kiln_runtime::Program::replay`].
    pub recycle: bool,
}

/// Which weights a backend packs into a layout of its own. The weights themselves stay where they are, so that packed ones are in memory
/// twice. Programs that read the same variables share their copies, and all copies of the process are bounded
/// ([`kiln_runtime::packed`]): weights beyond the bound are read as they lie, with an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PackWeights {
    /// None.
    Never,
    /// Those whose products it expects to gain more than the memory costs. On the CPU these are the weights of convolutions, and of
    /// products of several rows while all of a program's are 8 MiB at most: from memory, weights are read as fast where they are.
    #[default]
    WherePays,
    /// All it has a layout for.
    Always,
}

impl Default for FreezeOptions {
    fn default() -> FreezeOptions {
        let growth = SplitOptions::default().growth;
        FreezeOptions {
            compile: CompileOptions::default(),
            join: true,
            pack: PackWeights::default(),
            growth,
            recycle: false,
        }
    }
}
