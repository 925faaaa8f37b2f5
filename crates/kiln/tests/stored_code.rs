//! A backend that takes long to compile: the code of programs, of variants and of eager operations is on disk, and a device that has
//! compiled nothing finds it there. Two devices of one target stand for two processes, since neither has the other's code.

use kiln::runtime::disk::{self, Kind, Store};
use kiln::runtime::{Backend, Buffer, Error, Executable, Keep, QueuedBackend, Variant, kernel_cache};
use kiln::{Device, Tensor};
use kiln_cpu::CpuBackend;
use kiln_kernels::Kernel;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// The CPU's code, every variant of which is stored.
struct Slow {
    cpu: CpuBackend,
    compiled: AtomicUsize,
}

impl Backend for Slow {
    fn device(&self) -> Device {
        Device::Cpu
    }
    fn target(&self) -> String {
        "slow".into()
    }
    fn allocate(&self, bytes: usize) -> Result<Buffer, Error> {
        self.cpu.allocate(bytes)
    }
    fn compile(&self, kernel: &Kernel) -> Result<Arc<dyn Executable>, Error> {
        self.compile_variant(kernel, &Variant::default(), Keep::Process)
    }
    fn compile_variant(&self, kernel: &Kernel, _: &Variant, _: Keep) -> Result<Arc<dyn Executable>, Error> {
        self.compiled.fetch_add(1, Ordering::Relaxed);
        self.cpu.compile(kernel)
    }
    fn restore(&self, kernel: &Kernel, _: &Variant, saved: &[u8]) -> Option<Arc<dyn Executable>> {
        self.cpu.restore(kernel, &Variant::default(), saved)
    }
    fn is_stored(&self, _: &Kernel, _: &Variant) -> bool {
        true
    }
    fn stores_eager_code(&self) -> bool {
        true
    }
}

/// A device with a backend of its own.
fn device(number: u32) -> (Device, Arc<Slow>) {
    let (device, slow) =
        (Device::Cuda(number), Arc::new(Slow { cpu: CpuBackend::new(), compiled: AtomicUsize::new(0) }));
    assert!(kiln::backend::install(Arc::new(QueuedBackend::new(slow.clone(), device, Duration::ZERO))));
    (device, slow)
}

/// The kernels that were compiled since the last time.
fn compiled(slow: &Slow) -> usize {
    slow.compiled.swap(0, Ordering::Relaxed)
}

struct Folder(PathBuf);

impl Folder {
    fn files(&self, kind: Kind) -> usize {
        std::fs::read_dir(self.0.join(kind.folder())).map_or(0, |folder| folder.count())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        disk::set_store(None);
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn what_one_process_compiled_another_finds() -> kiln::Result<()> {
    let folder = Folder(std::env::temp_dir().join(format!("kiln-stored-code-{}", std::process::id())));
    disk::set_store(Some(Store::open(&folder.0, disk::DEFAULT_MOST_BYTES).unwrap()));
    let ((first, cold), (second, warm)) = (device(60), device(61));

    // An eager operation: no program, but its kernel.
    let eager = |device| Tensor::new([1f32, 4., 9.], device)?.sqrt()?.to_vec::<f32>();
    assert_eq!((eager(first)?, compiled(&cold)), (vec![1., 2., 3.], 1));
    assert_eq!((folder.files(Kind::Kernel), folder.files(Kind::Program)), (1, 0));
    assert_eq!((eager(second)?, compiled(&warm)), (vec![1., 2., 3.], 0));

    // A whole program, whose file has the code of all of its kernels.
    let function = |x: &Tensor| x.exp()?.sum(..)?.add(1.0);
    let call = |device| kiln::compile(function).call(&Tensor::new([0f32, 0.], device)?)?.item::<f32>();
    assert_eq!(call(first)?, 3.0);
    assert!(compiled(&cold) > 0 && folder.files(Kind::Program) == 1);
    let hits = disk::stats().hits;
    assert_eq!((call(second)?, compiled(&warm), disk::stats().hits - hits), (3.0, 0, 1));

    // A variant, unless it is to stay in the process.
    let graph = kiln::ir::Graph::parse("graph(%0: f32[5]) {\n  %1: f32[5] = neg %0\n  return %1\n}").unwrap();
    let kernel = kiln::compile_graph(&graph, &[])?.program().schedule().steps[0].kernel.clone();
    let variant = |choices: &str, device, keep| {
        let variant = Variant::default().choosing(choices);
        kernel_cache::get_variant(&*kiln::backend(device), &kernel, &variant, "neg", keep).unwrap().1
    };
    for (choices, keep, is_found) in [("wide", Keep::Disk, true), ("narrow", Keep::Process, false)] {
        assert!(variant(choices, first, keep));
        assert_eq!(variant(choices, second, Keep::Disk), !is_found, "{choices}");
    }
    Ok(())
}
