//! The CPU backend of Kiln.

pub mod asm;
pub mod attention;
pub mod features;
pub mod gemm;
pub mod memory;
pub mod pool;
pub mod routine;
