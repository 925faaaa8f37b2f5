//! The backend of each device.

pub mod threads;

use crate::Device;
use kiln_cpu::CpuBackend;
use kiln_runtime::{Backend, ReferenceBackend, environment};
use std::sync::{Arc, LazyLock};

/// The backend of a device; made at the first use and kept. With `KILN_BACKEND=reference` in the environment kernels are not
/// compiled but interpreted one element at a time, which tells a wrong kernel from wrong code.
///
/// ```
/// use kiln::Device;
/// assert_eq!(kiln::backend(Device::Cpu).device(), Device::Cpu);
/// ```
pub fn backend(device: Device) -> Arc<dyn Backend> {
    static CPU: LazyLock<Arc<dyn Backend>> = LazyLock::new(|| match environment::BACKEND.get().as_deref() {
        Some("reference") => Arc::new(ReferenceBackend),
        _ => Arc::new(CpuBackend::new()),
    });
    match device {
        Device::Cpu => CPU.clone(),
        // `Device` grows a variant together with its backend.
        _ => CPU.clone(),
    }
}
