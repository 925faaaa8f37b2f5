//! Choices of how a graph is compiled.

use crate::Device;
use kiln_kernels::ScheduleOptions;
use kiln_passes::SplitOptions;
use kiln_runtime::Keep;
use std::borrow::Cow;

/// The name of the programs of eager operations.
pub(crate) const EAGER: &str = "eager";

/// Choices beyond the defaults for [`crate::CompiledGraph::new`].
#[derive(Debug, Clone)]
pub struct CompileOptions {
    /// Where it runs.
    pub device: Device,
    /// How it is cut into kernels.
    pub schedule: ScheduleOptions,
    /// Skip the graph passes, for comparison and for finding a wrong pass. Ops without a kernel are still decomposed.
    pub no_passes: bool,
    /// What it is called in dumps and reports.
    pub name: Cow<'static, str>,
    /// Look for the program and its kernels in the disk cache, and keep them there.
    pub disk_cache: bool,
}

impl Default for CompileOptions {
    fn default() -> CompileOptions {
        let (device, schedule, name) = Default::default();
        CompileOptions { device, schedule, no_passes: false, name, disk_cache: true }
    }
}

impl CompileOptions {
    /// How long code is kept.
    pub(super) fn keep(&self) -> Keep {
        if self.disk_cache { Keep::Disk } else { Keep::Process }
    }
}

/// Choices beyond the defaults for [`crate::FrozenGraph::new`].
#[derive(Debug, Clone)]
pub struct FreezeOptions {
    /// How both halves are compiled.
    pub compile: CompileOptions,
    /// Make one product of those that share their left operand.
    pub merge: bool,
    /// Which weights the backend packs.
    pub pack: PackWeights,
    /// How much larger than the weights a value made of them may be; see [`SplitOptions::growth`].
    pub growth: usize,
    /// Let outputs take the memory of earlier ones that nobody holds any more; see [`kiln_runtime::Program::replay`].
    pub recycle: bool,
}

/// Which weights a backend packs into a layout of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PackWeights {
    /// None.
    Never,
    /// Those whose products it expects to be faster by more than the memory is worth.
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
            merge: true,
            pack: PackWeights::default(),
            growth,
            recycle: false,
        }
    }
}
