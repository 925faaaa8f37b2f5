//! The backend of each device.

pub mod threads;

use crate::Device;
use kiln_cpu::CpuBackend;
use kiln_cuda::CudaBackend;
use kiln_runtime::{Backend, MissingBackend, ReferenceBackend, environment};
use std::collections::HashMap;
use std::sync::{Arc, LazyLock, PoisonError, RwLock};

/// Returns the backend of a device, created at the first use and kept. If the device cannot be used, every request returns
/// an error that says why. With `KILN_BACKEND=reference` in the environment, kernels for the CPU are interpreted one
/// element at a time instead of compiled, which tells a wrong kernel from wrong machine code.
///
/// ```
/// use kiln::Device;
/// assert_eq!(kiln::backend(Device::Cpu).device(), Device::Cpu);
/// assert!(kiln::backend(Device::Cuda(1000)).allocate(4).is_err());
/// ```
pub fn backend(device: Device) -> Arc<dyn Backend> {
    static CPU: LazyLock<Arc<dyn Backend>> = LazyLock::new(|| match environment::BACKEND.get().as_deref() {
        Some("reference") => Arc::new(ReferenceBackend),
        _ => Arc::new(CpuBackend::new()),
    });
    static OTHERS: LazyLock<RwLock<HashMap<Device, Arc<dyn Backend>>>> = LazyLock::new(RwLock::default);
    if device == Device::Cpu {
        return CPU.clone();
    }
    if let Some(backend) = OTHERS.read().unwrap_or_else(PoisonError::into_inner).get(&device) {
        return backend.clone();
    }
    let mut others = OTHERS.write().unwrap_or_else(PoisonError::into_inner);
    others.entry(device).or_insert_with(|| open(device)).clone()
}

fn open(device: Device) -> Arc<dyn Backend> {
    let opened = match device {
        Device::Cuda(number) => CudaBackend::new(number),
        other => Err(format!("nothing is known of {other}")),
    };
    match opened {
        Ok(backend) => Arc::new(backend),
        Err(reason) => Arc::new(MissingBackend { device, reason }),
    }
}
