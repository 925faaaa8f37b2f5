//! A small x86-64 assembler: general-purpose code, VEX and EVEX vector code, tiles, labels and a constant pool.
//!
//! ```text
//!  Gpr / VReg / KReg / Mem      operands are plain values, so a register allocator can pick them
//!        │
//!  VOp (table in `ops`)         what an instruction is: map, prefix, opcode, W, operand order
//!        │
//!  Assembler                    bytes, label fix-ups, constants after the code
//! ```
//!
//! VEX is chosen whenever it can express the operands (registers below 16, at most 256 bits, no mask, no broadcast), EVEX
//! otherwise. An operand that an instruction cannot take is a bug of the caller and fails an assertion. Every entry of the
//! table is checked against an independent decoder by the tests.
//!
//! ```
//! use kiln_cpu::asm::{Alu, Assembler, Gpr, Mem, VReg, Width, ops};
//!
//! let mut asm = Assembler::new();
//! asm.mov(Gpr::RAX, Gpr::RDI);
//! asm.alu_imm(Alu::Add, Gpr::RAX, 16);
//! asm.rm(ops::VMOVUPS, Width::V256, VReg(1), Mem::base(Gpr::RAX));
//! let one = asm.constant(&1f32.to_le_bytes());
//! asm.rm(ops::VBROADCASTSS, Width::V256, VReg(2), one);
//! asm.rvm(ops::VADDPS, Width::V256, VReg(1), VReg(1), VReg(2));
//! asm.ret();
//! assert!(asm.finish().len() > 20);
//! ```

mod assembler;
mod general;
pub mod ops;
mod registers;
#[cfg(test)]
mod tests;
mod tiles;
mod vector;

pub use assembler::{Assembler, Label};
pub use general::{Alu, Cond, Shift, Size};
pub use registers::{Base, Gpr, Index, KReg, Mem, Reg, Rm, VReg, Width};
pub use tiles::{TReg, TileProduct, tile_configuration};
pub use vector::{Args, MaskSize};
