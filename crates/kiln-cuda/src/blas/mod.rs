//! Large products by cuBLASLt, where it is installed.
//!
//! ```text
//!  Kernel ──product──▶ Product: strided matrices ──plan──▶ descriptors and algorithms at given sizes ──code──▶ launches, graph nodes
//!                                                                     └─ library: the functions of libcublasLt
//! ```
//!
//! A kernel that is such a product keeps its own text beside the library: sizes that are too small, addresses that are not aligned and
//! products without an algorithm run that.

mod code;
mod library;
mod plan;
mod product;
#[cfg(test)]
mod tests;

pub(crate) use code::BlasCode;
pub(crate) use library::{Blas, BlasLt, NAMES};

use kiln_runtime::environment::CUBLASLT;

/// When cuBLASLt is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Policy {
    /// For large products, and where it was measured to be faster.
    Auto,
    /// Never.
    Off,
    /// For every product that it can compute.
    Always,
}

impl Policy {
    /// The policy that `KILN_CUBLASLT` names.
    pub(crate) fn of_environment() -> Policy {
        match CUBLASLT.get().as_deref() {
            Some("off") => Policy::Off,
            Some("always") => Policy::Always,
            _ => Policy::Auto,
        }
    }
}
