//! kiln-cpu.

pub mod asm;
pub mod features;
pub mod memory;
pub mod pool;
