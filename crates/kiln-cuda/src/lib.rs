//! The CUDA backend: a [`Kernel`](kiln_kernels::kernel::Kernel) becomes CUDA C++ text, NVRTC makes a cubin of it, the driver runs it.
//!
//! ```text
//!  Kernel ──text──▶ CUDA C++ ──nvrtc──▶ cubin ──driver──▶ launches, in one order
//!                                        │
//!                                        └─ kept on disk
//!  large products ──blas──▶ cuBLASLt, where it is installed
//!  convolutions, products with an epilogue, attention ──dnn──▶ cuDNN, likewise
//! ```
//!
//! Nothing of CUDA is needed to build this crate: libcuda, NVRTC, cuBLASLt and cuDNN are loaded when they are first used, and what
//! is missing is an error that says so; without the last two all kernels are texts. Texts can be generated and compiled without a GPU.

pub mod nvrtc;
pub mod text;

mod backend;
mod blas;
mod capture;
mod device;
mod dnn;
mod driver;
mod executable;
mod fault;
mod graph;
mod library;
mod memory;
mod pinned;
mod pool;
mod turn;

pub use backend::{CudaBackend, TARGET};
pub use device::Gpu;
pub use driver::DriverError;
pub use library::library_files;
pub use pool::PoolBytes;

/// The version of this crate and a digest of its sources: part of every key of the disk cache.
pub const FINGERPRINT: &str = env!("KILN_FINGERPRINT");
