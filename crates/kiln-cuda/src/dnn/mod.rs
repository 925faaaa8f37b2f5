//! Convolutions, products with an epilogue and attention by cuDNN, where it is installed.
//!
//! ```text
//!  Kernel ──form──▶ Problem: tensors and operations ──plan──▶ engines ──code──▶ launches, graph nodes
//!           ├─ convolution, epilogue                              └─ library: the functions of libcudnn
//!           └─ attention
//! ```
//!
//! A kernel that is such a problem keeps its own text beside the library: addresses that are not aligned and problems without an engine
//! run that. Only kernels whose sizes are known are: the library compiles for every size anew.

mod attention;
mod code;
mod convolution;
mod descriptor;
mod engine;
mod epilogue;
mod form;
mod library;
mod linear;
mod plan;
mod problem;
#[cfg(test)]
mod tests;

pub(crate) use code::DnnCode;
pub(crate) use library::{Dnn, DnnLibrary, NAMES};

use kiln_runtime::environment::CUDNN;

/// When cuDNN is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Policy {
    /// Never, unless it is asked for.
    Off,
    /// Where it was measured to be faster.
    Auto,
    /// For everything that it can compute.
    Always,
}

impl Policy {
    /// The policy that `KILN_CUDNN` names.
    pub(crate) fn of_environment() -> Policy {
        match CUDNN.get().as_deref() {
            Some("auto") => Policy::Auto,
            Some("always") => Policy::Always,
            _ => Policy::Off,
        }
    }
}
