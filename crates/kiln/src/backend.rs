//! The backend of each device.

use crate::Device;
use kiln_cpu::CpuBackend;
use kiln_kernels::Kernel;
use kiln_runtime::event::{self, Category, Event};
use kiln_runtime::{Backend, Buffer, Error, Executable, ReferenceBackend};
use std::sync::{Arc, LazyLock};

/// The backend of a device; made at the first use and kept.
///
/// A kernel that the device's code generator refuses is run by the reference executor, far slower, and reported as an
/// event (`KILN_LOG=slow`). With `KILN_BACKEND=reference` in the environment every kernel is, which tells a wrong kernel
/// from wrong code; with `KILN_BACKEND=strict` none is, and a refused kernel is an error.
///
/// ```
/// use kiln::Device;
/// assert_eq!(kiln::backend(Device::Cpu).device(), Device::Cpu);
/// ```
pub fn backend(device: Device) -> Arc<dyn Backend> {
    static CPU: LazyLock<Arc<dyn Backend>> = LazyLock::new(|| match std::env::var("KILN_BACKEND").as_deref() {
        Ok("reference") => Arc::new(ReferenceBackend),
        Ok("strict") => Arc::new(CpuBackend::new()),
        _ => Arc::new(WithFallback { main: CpuBackend::new() }),
    });
    match device {
        Device::Cpu => CPU.clone(),
        // `Device` grows a variant together with its backend.
        _ => CPU.clone(),
    }
}

/// A backend of host memory that leaves what it cannot compile to the reference executor.
struct WithFallback {
    main: CpuBackend,
}

impl Backend for WithFallback {
    fn device(&self) -> Device {
        self.main.device()
    }

    fn target(&self) -> String {
        self.main.target()
    }

    fn allocate(&self, bytes: usize) -> Result<Buffer, Error> {
        self.main.allocate(bytes)
    }

    fn compile(&self, kernel: &Kernel) -> Result<Arc<dyn Executable>, Error> {
        match self.main.compile(kernel) {
            Err(Error::Compile { target, reason }) => {
                event::emit(Category::Slow, || Event::Slow {
                    text: format!("{target} cannot compile a kernel ({reason}): it is interpreted"),
                    at: Default::default(),
                });
                ReferenceBackend.compile(kernel)
            }
            outcome => outcome,
        }
    }

    fn synchronize(&self) -> Result<(), Error> {
        self.main.synchronize()
    }
}
