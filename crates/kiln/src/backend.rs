//! The backend of each device.

use crate::Device;
use kiln_runtime::{Backend, ReferenceBackend};
use std::sync::{Arc, LazyLock};

/// The backend of a device; made at the first use and kept.
///
/// ```
/// use kiln::Device;
/// assert_eq!(kiln::backend(Device::Cpu).device(), Device::Cpu);
/// ```
pub fn backend(device: Device) -> Arc<dyn Backend> {
    static CPU: LazyLock<Arc<dyn Backend>> = LazyLock::new(|| Arc::new(ReferenceBackend));
    match device {
        Device::Cpu => CPU.clone(),
        // `Device` grows a variant together with its backend.
        _ => CPU.clone(),
    }
}
