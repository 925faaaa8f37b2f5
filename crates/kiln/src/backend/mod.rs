//! The backend of each device.

pub mod threads;

use crate::{Device, Error, Result};
use kiln_cpu::CpuBackend;
use kiln_cuda::CudaBackend;
use kiln_ir::Source;
use kiln_runtime::{Backend, HostMemory, MissingBackend, ReferenceBackend, ReferenceSchedules, environment};
use std::collections::HashMap;
use std::sync::{Arc, LazyLock, PoisonError, RwLock};

/// Returns the backend of a device, created at the first use and kept. If the device cannot be used, every request returns
/// an error that says why. With `KILN_BACKEND=reference` in the environment, kernels for the CPU are interpreted one
/// element at a time instead of compiled, which tells a wrong kernel from wrong machine code; `reference-cuda` does so with the
/// schedules of a GPU.
///
/// ```
/// use kiln::Device;
/// assert_eq!(kiln::backend(Device::Cpu).device(), Device::Cpu);
/// assert!(kiln::backend(Device::Cuda(1000)).allocate(4).is_err());
/// ```
pub fn backend(device: Device) -> Arc<dyn Backend> {
    static CPU: LazyLock<Arc<dyn Backend>> = LazyLock::new(|| match environment::BACKEND.get().as_deref() {
        Some("reference") => Arc::new(ReferenceBackend),
        Some("reference-cuda") => Arc::new(ReferenceSchedules { target: kiln_cuda::TARGET }),
        _ => Arc::new(CpuBackend::new()),
    });
    if device == Device::Cpu {
        return CPU.clone();
    }
    if let Some(backend) = OTHERS.read().unwrap_or_else(PoisonError::into_inner).get(&device) {
        return backend.clone();
    }
    let mut others = OTHERS.write().unwrap_or_else(PoisonError::into_inner);
    others.entry(device).or_insert_with(|| open(device)).clone()
}

/// The backends of devices other than the CPU that were asked for so far.
static OTHERS: LazyLock<RwLock<HashMap<Device, Arc<dyn Backend>>>> = LazyLock::new(RwLock::default);

/// Makes a backend that of its device, in place of Kiln's own. Returns whether it is: the CPU has its backend, and a device
/// keeps the one that it was first used with.
///
/// ```
/// use kiln::runtime::QueuedBackend;
/// use kiln::{Device, Tensor};
/// let device = Device::Cuda(77);
/// let queued = QueuedBackend::new(kiln::backend(Device::Cpu), device, std::time::Duration::ZERO);
/// assert!(kiln::backend::install(std::sync::Arc::new(queued)));
/// assert_eq!(Tensor::new([1f32, 2.], device)?.exp2()?.to_vec::<f32>()?, [2., 4.]);
/// # Ok::<(), kiln::Error>(())
/// ```
pub fn install(backend: Arc<dyn Backend>) -> bool {
    let device = backend.device();
    let mut others = OTHERS.write().unwrap_or_else(PoisonError::into_inner);
    device != Device::Cpu && Arc::ptr_eq(others.entry(device).or_insert_with(|| backend.clone()), &backend)
}

/// Waits until every launch so far is done, on every device; what they reported is an error. Whoever stops a clock calls it
/// first: a launch on an asynchronous device returns before it is done.
///
/// ```
/// # use kiln::{DType, Device, Tensor};
/// let start = std::time::Instant::now();
/// Tensor::randn([64, 64], DType::F32, Device::Cpu)?.exp()?;
/// kiln::synchronize()?;
/// println!("{:?}", start.elapsed());
/// # Ok::<(), kiln::Error>(())
/// ```
#[track_caller]
pub fn synchronize() -> Result<()> {
    let at = Source::caller();
    for backend in asynchronous() {
        let op = "synchronize".to_owned();
        backend.synchronize().map_err(|cause| Error::Runtime { op, cause: Box::new(cause), at: at.clone() })?;
    }
    Ok(())
}

/// Gives memory of a device that Kiln keeps for later tensors back to the system: to other processes, or to another library in
/// this one. What tensors and programs hold stays.
///
/// ```
/// kiln::release_memory(kiln::Device::Cpu)?;
/// # Ok::<(), kiln::Error>(())
/// ```
#[track_caller]
pub fn release_memory(device: Device) -> Result<()> {
    if device == Device::Cpu {
        HostMemory::trim();
    }
    let (op, at) = ("release_memory".to_owned(), Source::caller());
    backend(device).release_memory().map_err(|cause| Error::Runtime { op, cause: Box::new(cause), at })
}

/// The files of NVIDIA's libraries that a GPU would be used with, found without loading them: the driver, NVRTC, cuBLASLt, cuDNN.
///
/// ```
/// assert!(kiln::backend::cuda_libraries().iter().any(|(name, _)| *name == "nvrtc"));
/// ```
pub fn cuda_libraries() -> [(&'static str, Option<std::path::PathBuf>); 4] {
    kiln_cuda::library_files()
}

/// The asynchronous devices that are in use.
fn asynchronous() -> Vec<Arc<dyn Backend>> {
    let others = OTHERS.read().unwrap_or_else(PoisonError::into_inner);
    others.values().filter(|backend| backend.is_asynchronous()).cloned().collect()
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
