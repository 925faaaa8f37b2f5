//! Generated kernels that add a few rows of an unpacked B[K, N] to C, sweeping along n: every row of B is read sequentially,
//! which suits the hardware prefetcher, while C's rows stay in the first or second cache level.
//!
//! ```text
//!  for each vector of columns:  c[0..mr] += Σ over `depth` rows of B:  a[row][0..mr] · b[row]
//! ```

use super::dot::Weight;
use super::kernel::{Key, MicroFn, cached};
use crate::asm::{Alu, Args, Assembler, Cond, Gpr, Mem, VReg, Width, ops};
use crate::features::Isa;
use crate::memory::MemoryError;

/// Rows of B in one sweep: as many streams as the hardware prefetcher follows well.
pub(super) const DEPTH: usize = 8;
/// The most rows of A.
pub(super) const fn max_rows(isa: Isa) -> usize {
    match isa {
        Isa::Avx512 => 8,
        _ => 6,
    }
}

/// Everything a sweep's code depends on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Shape {
    pub isa: Isa,
    /// The element type of B.
    pub weight: Weight,
    /// Rows of A and C, at most [`max_rows`].
    pub mr: usize,
    /// Rows of B, at most [`DEPTH`].
    pub depth: usize,
}

/// The kernel of a shape. Its arguments are `(a, b, c, vectors, b_stride, c_stride)`; a is `[depth][mr]`.
pub(super) fn get(shape: Shape) -> Result<MicroFn, MemoryError> {
    let entry = cached(Key::Sweep(shape), || generate(&shape))?;
    // SAFETY: the code follows the C convention with these arguments and is never freed.
    Ok(unsafe { std::mem::transmute::<*const u8, MicroFn>(entry as *const u8) })
}

const A: Gpr = Gpr::RDI;
const B: Gpr = Gpr::RSI;
const C: Gpr = Gpr::RDX;
const VECTORS: Gpr = Gpr::RCX;
const B_STRIDE: Gpr = Gpr::R8;
const C_STRIDE: Gpr = Gpr::R9;
const B_STRIDE_3: Gpr = Gpr::R10;
/// Row 4 of B.
const B_4: Gpr = Gpr::R11;
const C_STRIDE_3: Gpr = Gpr::RAX;
/// Row 4 of C.
const C_4: Gpr = Gpr::RBX;

struct Generator {
    shape: Shape,
    width: Width,
    asm: Assembler,
    /// First of the registers that hold A, where it fits.
    held: Option<u8>,
}

fn generate(shape: &Shape) -> Vec<u8> {
    let avx512 = shape.isa == Isa::Avx512;
    let width = if avx512 { Width::V512 } else { Width::V256 };
    // Accumulators, two registers for B, one for a broadcast; what is left can hold A.
    let used = shape.mr + 3;
    let fits = shape.mr * shape.depth + used <= if avx512 { 32 } else { 16 };
    let mut g = Generator { shape: *shape, width, asm: Assembler::new(), held: fits.then_some(used as u8) };
    g.emit();
    g.asm.finish()
}

impl Generator {
    fn emit(&mut self) {
        let shape = self.shape;
        self.asm.push(C_4);
        self.asm.lea(B_STRIDE_3, Mem::indexed(B_STRIDE, B_STRIDE, 2));
        self.asm.lea(C_STRIDE_3, Mem::indexed(C_STRIDE, C_STRIDE, 2));
        self.asm.lea(B_4, Mem::indexed(B, B_STRIDE, 4));
        self.asm.lea(C_4, Mem::indexed(C, C_STRIDE, 4));
        if let Some(first) = self.held {
            for i in 0..shape.mr * shape.depth {
                let at = Mem::base(A).offset(i as i32 * 4);
                self.asm.rm(ops::VBROADCASTSS, self.width, VReg(first + i as u8), at);
            }
        }
        let done = self.asm.label();
        if self.held.is_none() && shape.isa != Isa::Avx512 {
            // Without broadcast operands, two vectors share one.
            let single = self.asm.label();
            self.asm.alu_imm(Alu::Sub, VECTORS, 2);
            self.asm.jcc(Cond::Less, single);
            let top = self.asm.here();
            self.iteration(2);
            self.asm.alu_imm(Alu::Sub, VECTORS, 2);
            self.asm.jcc(Cond::GreaterEqual, top);
            self.asm.bind(single);
            self.asm.alu_imm(Alu::Add, VECTORS, 2);
        } else {
            self.asm.test(VECTORS, VECTORS);
        }
        self.asm.jcc(Cond::Equal, done);
        self.asm.align(32);
        let top = self.asm.here();
        self.iteration(1);
        self.asm.dec(VECTORS);
        self.asm.jcc(Cond::NotEqual, top);
        self.asm.bind(done);
        self.asm.vzeroupper();
        self.asm.pop(C_4);
        self.asm.ret();
    }

    /// One iteration of the loop: `nv` vectors of columns.
    fn iteration(&mut self, nv: usize) {
        let shape = self.shape;
        let bytes = self.width.bytes();
        let b_bytes = bytes / 4 * shape.weight.size();
        let c_at = |row: usize, v: usize| Self::row(C, C_4, C_STRIDE, C_STRIDE_3, row).offset((v * bytes) as i32);
        let acc = |row: usize, v: usize| VReg((row * nv + v) as u8);
        for row in 0..shape.mr {
            for v in 0..nv {
                self.asm.rm(ops::VMOVUPS, self.width, acc(row, v), c_at(row, v));
            }
        }
        for depth in 0..shape.depth {
            // A single vector alternates between registers.
            let b = |v: usize| VReg((shape.mr * nv + if nv == 1 { depth % 2 } else { v }) as u8);
            for v in 0..nv {
                let at = Self::row(B, B_4, B_STRIDE, B_STRIDE_3, depth).offset((v * b_bytes) as i32);
                match shape.weight {
                    Weight::Bf16 | Weight::Bf16Dot => {
                        self.asm.rm(ops::VPMOVZXWD, self.width, b(v), at);
                        self.asm.rmi(ops::VPSLLD_I, self.width, b(v), b(v), 16);
                    }
                    Weight::F16 => self.asm.rm(ops::VCVTPH2PS, self.width, b(v), at),
                    Weight::F32 => self.asm.rm(ops::VMOVUPS, self.width, b(v), at),
                    Weight::I8 => {
                        self.asm.rm(ops::VPMOVSXBD, self.width, b(v), at);
                        self.asm.rm(ops::VCVTDQ2PS, self.width, b(v), b(v));
                    }
                }
            }
            for row in 0..shape.mr {
                let index = depth * shape.mr + row;
                let at = Mem::base(A).offset(index as i32 * 4);
                match self.held {
                    Some(first) => {
                        self.asm.rvm(ops::VFMADD231PS, self.width, acc(row, 0), b(0), VReg(first + index as u8));
                    }
                    None if shape.isa == Isa::Avx512 => {
                        let args = Args::rvm(acc(row, 0), b(0), at).broadcast();
                        self.asm.vector(ops::VFMADD231PS, self.width, args);
                    }
                    None => {
                        let a = VReg((shape.mr * nv + 2) as u8);
                        self.asm.rm(ops::VBROADCASTSS, self.width, a, at);
                        for v in 0..nv {
                            self.asm.rvm(ops::VFMADD231PS, self.width, acc(row, v), b(v), a);
                        }
                    }
                }
            }
        }
        for row in 0..shape.mr {
            for v in 0..nv {
                self.asm.mr(ops::VMOVUPS_ST, self.width, c_at(row, v), acc(row, v));
            }
        }
        for (pointer, by) in [(B, b_bytes), (C, bytes), (B_4, b_bytes), (C_4, bytes)] {
            self.asm.alu_imm(Alu::Add, pointer, (by * nv) as i32);
        }
    }

    fn row(base: Gpr, base_4: Gpr, stride: Gpr, stride_3: Gpr, row: usize) -> Mem {
        let base = if row < 4 { base } else { base_4 };
        match row % 4 {
            0 => Mem::base(base),
            1 => Mem::indexed(base, stride, 1),
            2 => Mem::indexed(base, stride, 2),
            _ => Mem::indexed(base, stride_3, 1),
        }
    }
}
