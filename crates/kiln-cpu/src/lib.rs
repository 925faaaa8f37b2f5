//! The CPU backend.
//!
//! ```text
//!  Kernel ──lower──▶ vector IR ──regalloc──▶ registers ──emit──▶ machine code (AVX2, AVX-512)
//!                        └──────────────────────portable──────▶ runs anywhere
//! ```
//!
//! Where [`kiln_ir::verify::verifiers_run`], [`vir::verify`] checks the vector IR and [`regalloc::check`] the registers.
//!
//! Invariants: generated code touches no byte outside the buffers it is given; the portable executor runs the same vector
//! IR and gives the same results up to the lane count's effect on the order of sums.

pub mod asm;
pub mod attention;
pub mod backend;
mod beside;
pub mod choices;
pub mod disassembly;
pub mod element;
pub mod emit;
pub mod features;
pub mod gemm;
mod half_bytes;
pub mod loops;
pub mod lower;
pub mod math;
pub mod matmul;
pub mod memory;
pub mod pool;
pub mod portable;
pub mod regalloc;
pub mod routine;
pub mod saved;
mod small_vec;
mod variants;
pub mod vir;

pub use backend::CpuBackend;

/// The version of this crate and a digest of its sources: part of every key of the disk cache.
pub const FINGERPRINT: &str = env!("KILN_FINGERPRINT");
