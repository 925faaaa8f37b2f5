//! The kernel floor of Kiln: a graph is cut into kernels.
pub mod kernel;
