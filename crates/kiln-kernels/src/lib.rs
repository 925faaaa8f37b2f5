//! kiln-kernels.
