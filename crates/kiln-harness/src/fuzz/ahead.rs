//! The kernels of random graphs before the graphs run. A compiler that takes long to begin (NVRTC) gets those of many graphs at once:
//! the graphs are rehearsed, each as it will run, on a device that computes nothing.

use kiln::runtime::QueuedBackend;
use kiln::{Device, backend};
use kiln_ir::{Graph, generate};
use kiln_oracle::{Candidate, Config, ask};
use kiln_runtime::{Backend, Rehearsal, kernel_cache};
use std::sync::Arc;
use std::time::Duration;

/// Graphs whose kernels are compiled together.
pub(super) const GRAPHS: u64 = 32;
/// The number of the device that rehearses.
const REHEARSING: u32 = 4096;

/// Compiles what graphs will need on a device. On the CPU, which compiles a kernel in no time, it does nothing.
pub(super) struct Ahead {
    device: Device,
    rehearsal: Option<Arc<Rehearsal>>,
}

impl Ahead {
    pub(super) fn new(device: Device) -> Ahead {
        let rehearsal = (device != Device::Cpu).then(|| Arc::new(Rehearsal::new(&*backend(device))));
        let rehearsal = rehearsal.filter(|rehearsal| {
            let shared: Arc<dyn Backend> = rehearsal.clone();
            let queued = QueuedBackend::new(shared, Device::Cuda(REHEARSING), Duration::ZERO);
            backend::install(Arc::new(queued))
        });
        Ahead { device, rehearsal }
    }

    /// Compiles the kernels of graphs, each with its seed and how it will be compared. What is not foreseen is compiled when it is
    /// needed.
    pub(super) fn compile(&self, graphs: impl Iterator<Item = (u64, (Graph, Config))>) {
        let Some(rehearsal) = &self.rehearsal else { return };
        for (seed, (graph, mut config)) in graphs {
            config.options.device = Device::Cuda(REHEARSING);
            let inputs = generate::inputs(&graph, seed);
            let eager = (!config.skip_eager).then_some(Candidate::Eager);
            for candidate in eager.into_iter().chain([Candidate::Compiled]) {
                // A graph that fails does so again when it is compared.
                let _ = ask(candidate, &graph, &inputs, &config);
            }
        }
        kernel_cache::compile_ahead(&*backend(self.device), &rehearsal.take());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kiln_kernels::Target;
    use kiln_kernels::kernel::Kernel;
    use kiln_runtime::{Buffer, Error, Executable, ReferenceBackend, Variant};
    use std::sync::atomic::{AtomicUsize, Ordering};

    static ALONE: AtomicUsize = AtomicUsize::new(0);
    static TOGETHER: AtomicUsize = AtomicUsize::new(0);

    /// Runs kernels by the reference, and counts how they were compiled.
    struct Counting;

    impl Backend for Counting {
        fn device(&self) -> Device {
            Device::Cpu
        }

        fn target(&self) -> String {
            "counting".to_owned()
        }

        fn allocate(&self, bytes: usize) -> Result<Buffer, Error> {
            ReferenceBackend.allocate(bytes)
        }

        fn compile(&self, kernel: &Kernel) -> Result<Arc<dyn Executable>, Error> {
            ALONE.fetch_add(1, Ordering::Relaxed);
            ReferenceBackend.compile(kernel)
        }

        fn compile_together(&self, kernels: &[&Kernel]) -> Vec<Option<(Variant, Arc<dyn Executable>)>> {
            TOGETHER.fetch_add(kernels.len(), Ordering::Relaxed);
            let code = |kernel: &&Kernel| Some((Variant::default(), ReferenceBackend.compile(kernel).ok()?));
            kernels.iter().map(code).collect()
        }

        fn schedule_target(&self) -> Target {
            Target { few_rows: 16, row_alignment: 16, ..Target::default() }
        }
    }

    /// Nearly every kernel is known before its graph runs, and the graphs agree with the interpreter as they do without.
    #[test]
    fn kernels_are_compiled_before_their_graphs_run() {
        let device = Device::Cuda(REHEARSING + 1);
        assert!(backend::install(Arc::new(QueuedBackend::new(Arc::new(Counting), device, Duration::ZERO))));
        let ahead = Ahead::new(device);
        let graph = |seed: u64| {
            let (graph, mut config, _) = super::super::config(seed, 12, 1, false);
            config.options.device = device;
            (graph, config)
        };
        for first in [700, 740] {
            ahead.compile((first..first + 40).map(|seed| (seed, graph(seed))));
            for seed in first..first + 40 {
                let (graph, config) = graph(seed);
                kiln_oracle::compare(&graph, &generate::inputs(&graph, seed), &config).unwrap();
            }
        }
        let (alone, together) = (ALONE.load(Ordering::Relaxed), TOGETHER.load(Ordering::Relaxed));
        assert!(together > 300 && alone * 20 < together, "{alone} alone, {together} together");
    }
}
