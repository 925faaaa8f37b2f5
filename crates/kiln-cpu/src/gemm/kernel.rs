//! Generated micro-kernels: an MR × NR tile of accumulators kept in registers over the whole of a K block.
//!
//! ```text
//!  A panel [k][mr]   one broadcast a row          B [k][nv vectors], rows `b_stride` bytes apart
//!          └──────────────┬──────────────────────────┘
//!                 acc[mr][nv] += a · b            then C tile = acc, or C tile += acc
//! ```
//!
//! The same code serves packed panels (the stride is the panel's width) and rows of an unpacked B. Kernels are made once
//! for the process, on first use.

use crate::asm::{Alu, Args, Assembler, Cond, Gpr, Mem, Shift, VReg, Width, ops};
use crate::features::Isa;
use crate::memory::{Code, CodeArena, MemoryError};
use std::collections::HashMap;
use std::sync::{Mutex, OnceLock, PoisonError, RwLock};

/// How B's elements lie in memory and what the tile accumulates in.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Format {
    /// f32, accumulated in f32.
    F32,
    /// bf16 in column order, accumulated in f32.
    Bf16,
    /// bf16 with column `c` and column `c + NR/2` side by side: one load, a shift and a mask give two vectors.
    Bf16Paired,
    /// f16 in column order, accumulated in f32.
    F16,
    /// f64, accumulated in f64.
    F64,
    /// i32, accumulated in i32, wrapping.
    I32,
}

impl Format {
    /// Bytes of an element of B.
    pub(super) const fn size(self) -> usize {
        match self {
            Format::F32 | Format::I32 => 4,
            Format::Bf16 | Format::Bf16Paired | Format::F16 => 2,
            Format::F64 => 8,
        }
    }

    /// Bytes of an accumulator, and of an element of A.
    pub(super) const fn acc_size(self) -> usize {
        match self {
            Format::F64 => 8,
            _ => 4,
        }
    }
}

/// `(a, b, c, k, b_stride, c_stride)`; strides in bytes.
pub(super) type MicroFn = unsafe extern "C" fn(*const u8, *const u8, *mut u8, usize, usize, usize);

/// Everything a micro-kernel's code depends on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Shape {
    pub isa: Isa,
    pub format: Format,
    /// Rows of the tile.
    pub mr: usize,
    /// Vectors in a row of the tile.
    pub nv: usize,
    /// Add to the C tile instead of overwriting it.
    pub accumulate: bool,
    /// Fetch B this many rows ahead; 0 leaves it to the hardware.
    pub ahead: usize,
}

impl Shape {
    /// The width of vectors.
    fn width(&self) -> Width {
        if self.isa == Isa::Avx512 { Width::V512 } else { Width::V256 }
    }

    /// Sets of accumulators that consecutive k take in turn, so that a small tile still hides the latency of an FMA.
    fn sets(&self) -> usize {
        let (chains, registers) = if self.isa == Isa::Avx512 { (6, 24) } else { (8, 12) };
        let tile = self.mr * self.nv;
        let mut sets = 1;
        while sets < UNROLL && tile * sets < chains && tile * sets * 2 <= registers {
            sets *= 2;
        }
        sets
    }
}

/// The largest number of rows of a tile of `nv` vectors.
pub(super) fn max_rows(isa: Isa, nv: usize) -> usize {
    match (isa, nv) {
        (Isa::Avx512, 1) => 16,
        (Isa::Avx512, 2) => 14,
        (Isa::Avx512, 3) => 9,
        (Isa::Avx512, 4) => 6,
        (Isa::Avx512, 5 | 6) => 4,
        (Isa::Avx512, 7 | 8) => 3,
        (Isa::Avx512, 9..=12) => 2,
        (_, 1) => 8,
        (_, 2) => 6,
        (_, 3) => 4,
        (_, 4) => 2,
        _ => 1,
    }
}

/// The kernel of a shape, generated on first use and kept for the life of the process.
pub(super) fn get(shape: Shape) -> Result<MicroFn, MemoryError> {
    let entry = cached(Key::Micro(shape), || generate(&shape))?;
    // SAFETY: the code follows the C convention with these arguments and is never freed.
    Ok(unsafe { std::mem::transmute::<*const u8, MicroFn>(entry as *const u8) })
}

/// What generated gemm code is looked up by.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Key {
    Micro(Shape),
    Dot(super::dot::Shape),
    Sweep(super::sweep::Shape),
}

/// The entry of a piece of code that is generated once and never freed.
pub(super) fn cached(key: Key, generate: impl FnOnce() -> Vec<u8>) -> Result<usize, MemoryError> {
    static KERNELS: OnceLock<RwLock<HashMap<Key, usize>>> = OnceLock::new();
    static KEPT: Mutex<Vec<Code>> = Mutex::new(Vec::new());
    let kernels = KERNELS.get_or_init(RwLock::default);
    if let Some(entry) = kernels.read().unwrap_or_else(PoisonError::into_inner).get(&key) {
        return Ok(*entry);
    }
    let mut kernels = kernels.write().unwrap_or_else(PoisonError::into_inner);
    if let Some(entry) = kernels.get(&key) {
        return Ok(*entry);
    }
    let code = CodeArena::global().install(&generate())?;
    let entry = code.as_ptr() as usize;
    KEPT.lock().unwrap_or_else(PoisonError::into_inner).push(code);
    kernels.insert(key, entry);
    Ok(entry)
}

const A: Gpr = Gpr::RDI;
const B: Gpr = Gpr::RSI;
const C: Gpr = Gpr::RDX;
const K: Gpr = Gpr::RCX;
const B_STRIDE: Gpr = Gpr::R8;
const C_STRIDE: Gpr = Gpr::R9;
const B_STRIDE_3: Gpr = Gpr::R10;
const AHEAD: Gpr = Gpr::R11;
const K_LEFT: Gpr = Gpr::RAX;

/// k steps in one turn of the main loop; the addresses below rely on it.
const UNROLL: usize = 4;

/// Register numbers and the assembler while one kernel is generated.
struct Generator {
    shape: Shape,
    width: Width,
    sets: usize,
    asm: Assembler,
    /// First registers after the accumulators.
    temps: u8,
    /// The upper-half mask of the paired bf16 format.
    high_half: VReg,
}

fn generate(shape: &Shape) -> Vec<u8> {
    let sets = shape.sets();
    let mut g = Generator {
        shape: *shape,
        width: shape.width(),
        sets,
        asm: Assembler::new(),
        temps: (shape.mr * shape.nv * sets) as u8,
        high_half: VReg(if shape.isa == Isa::Avx512 { 31 } else { 15 }),
    };
    g.emit();
    g.asm.finish()
}

impl Generator {
    fn acc(&self, set: usize, row: usize, vector: usize) -> VReg {
        VReg(((set * self.shape.mr + row) * self.shape.nv + vector) as u8)
    }

    fn emit(&mut self) {
        let (mr, nv) = (self.shape.mr, self.shape.nv);
        for r in 0..self.temps {
            // An xmm write clears the whole register.
            let zero = if r < 16 { Width::V128 } else { self.width };
            self.asm.rvm(ops::VPXOR, zero, VReg(r), VReg(r), VReg(r));
        }
        if self.shape.format == Format::Bf16Paired {
            let mask = self.asm.constant(&0xffff_0000u32.to_le_bytes());
            self.asm.rm(ops::VPBROADCASTD, self.width, self.high_half, mask);
        }
        self.asm.lea(B_STRIDE_3, Mem::indexed(B_STRIDE, B_STRIDE, 2));
        if self.shape.ahead > 0 {
            self.asm.imul_imm(AHEAD, B_STRIDE, self.shape.ahead as i32);
            self.asm.alu(Alu::Add, AHEAD, B);
        }
        let (main, tail, tail_loop, done) = (self.asm.label(), self.asm.label(), self.asm.label(), self.asm.label());
        self.asm.mov(K_LEFT, K);
        self.asm.shift_imm(Shift::Shr, K_LEFT, UNROLL.trailing_zeros() as u8);
        self.asm.jcc(Cond::Equal, tail);
        self.asm.align(32);
        self.asm.bind(main);
        for u in 0..UNROLL {
            self.step(u, u % self.sets);
        }
        let a_bytes = (mr * self.shape.format.acc_size()) as i32;
        self.asm.alu_imm(Alu::Add, A, a_bytes * UNROLL as i32);
        self.asm.lea(B, Mem::indexed(B, B_STRIDE, 4));
        if self.shape.ahead > 0 {
            self.asm.lea(AHEAD, Mem::indexed(AHEAD, B_STRIDE, 4));
        }
        self.asm.dec(K_LEFT);
        self.asm.jcc(Cond::NotEqual, main);
        self.asm.bind(tail);
        self.asm.alu_imm(Alu::And, K, UNROLL as i32 - 1);
        self.asm.jcc(Cond::Equal, done);
        self.asm.bind(tail_loop);
        let ahead = std::mem::take(&mut self.shape.ahead);
        self.step(0, 0);
        self.shape.ahead = ahead;
        self.asm.alu_imm(Alu::Add, A, a_bytes);
        self.asm.alu(Alu::Add, B, B_STRIDE);
        self.asm.dec(K);
        self.asm.jcc(Cond::NotEqual, tail_loop);
        self.asm.bind(done);
        for set in 1..self.sets {
            for i in 0..mr * nv {
                let (to, from) = (self.acc(0, 0, 0).0 + i as u8, self.acc(set, 0, 0).0 + i as u8);
                self.asm.rvm(self.add(), self.width, VReg(to), VReg(to), VReg(from));
            }
        }
        for row in 0..mr {
            for v in 0..nv {
                let at = Mem::base(C).offset((v * self.width.bytes()) as i32);
                let acc = self.acc(0, row, v);
                if self.shape.accumulate {
                    self.asm.rvm(self.add(), self.width, acc, acc, at);
                }
                self.asm.mr(ops::VMOVUPS_ST, self.width, at, acc);
            }
            if row + 1 < mr {
                self.asm.alu(Alu::Add, C, C_STRIDE);
            }
        }
        self.asm.vzeroupper();
        self.asm.ret();
    }

    fn add(&self) -> ops::VOp {
        match self.shape.format {
            Format::F64 => ops::VADDPD,
            Format::I32 => ops::VPADDD,
            _ => ops::VADDPS,
        }
    }

    /// One k: the whole tile once.
    fn step(&mut self, u: usize, set: usize) {
        let (mr, nv) = (self.shape.mr, self.shape.nv);
        // The smaller side waits in registers, the other passes by.
        if nv <= mr || nv <= 2 || self.shape.format == Format::Bf16Paired {
            let b: Vec<VReg> = (0..nv).map(|v| VReg(self.temps + v as u8)).collect();
            let a = VReg(self.temps + nv as u8);
            self.prefetch_b(u);
            self.load_b(u, 0, &b);
            for row in 0..mr {
                self.broadcast_a(u, row, a);
                for (v, b) in b.iter().enumerate() {
                    self.multiply_add(self.acc(set, row, v), a, *b);
                }
            }
        } else {
            let a: Vec<VReg> = (0..mr).map(|r| VReg(self.temps + r as u8)).collect();
            for (row, a) in a.iter().enumerate() {
                self.broadcast_a(u, row, *a);
            }
            self.prefetch_b(u);
            for v in 0..nv {
                let b = VReg(self.temps + (mr + v % 2) as u8);
                self.load_b(u, v, &[b]);
                for (row, a) in a.iter().enumerate() {
                    self.multiply_add(self.acc(set, row, v), *a, b);
                }
            }
        }
    }

    /// `[pointer + u rows of B]`
    fn row_of(&self, pointer: Gpr, u: usize) -> Mem {
        match u {
            0 => Mem::base(pointer),
            1 => Mem::indexed(pointer, B_STRIDE, 1),
            2 => Mem::indexed(pointer, B_STRIDE, 2),
            _ => Mem::indexed(pointer, B_STRIDE_3, 1),
        }
    }

    fn prefetch_b(&mut self, u: usize) {
        if self.shape.ahead == 0 {
            return;
        }
        let bytes = self.shape.nv * self.width.lanes(self.shape.format.acc_size()) * self.shape.format.size();
        for line in (0..bytes).step_by(64) {
            self.asm.prefetch_t0(self.row_of(AHEAD, u).offset(line as i32));
        }
    }

    /// Loads vectors `first..` of row `u` of B.
    fn load_b(&mut self, u: usize, first: usize, to: &[VReg]) {
        let lanes = self.width.lanes(self.shape.format.acc_size());
        let row = self.row_of(B, u);
        let at = |v: usize| row.offset((v * lanes * self.shape.format.size()) as i32);
        let width = self.width;
        match self.shape.format {
            Format::Bf16Paired => {
                // Both halves of a pair of vectors in one load.
                for v in (0..to.len()).step_by(2) {
                    let (low, high) = (to[v], to[v + 1]);
                    self.asm.rm(ops::VMOVDQU, width, high, at(first + v));
                    self.asm.rmi(ops::VPSLLD_I, width, low, high, 16);
                    self.asm.rvm(ops::VPAND, width, high, high, self.high_half);
                }
            }
            _ => {
                for (v, to) in to.iter().enumerate() {
                    let at = at(first + v);
                    match self.shape.format {
                        Format::Bf16 => {
                            self.asm.rm(ops::VPMOVZXWD, width, *to, at);
                            self.asm.rmi(ops::VPSLLD_I, width, *to, *to, 16);
                        }
                        Format::F16 => self.asm.rm(ops::VCVTPH2PS, width, *to, at),
                        _ => self.asm.rm(ops::VMOVUPS, width, *to, at),
                    }
                }
            }
        }
    }

    fn broadcast_a(&mut self, u: usize, row: usize, to: VReg) {
        let size = self.shape.format.acc_size();
        let at = Mem::base(A).offset(((u * self.shape.mr + row) * size) as i32);
        let op = if size == 8 { ops::VBROADCASTSD } else { ops::VBROADCASTSS };
        self.asm.rm(op, self.width, to, at);
    }

    fn multiply_add(&mut self, acc: VReg, a: VReg, b: VReg) {
        match self.shape.format {
            Format::F64 => self.asm.rvm(ops::VFMADD231PD, self.width, acc, a, b),
            Format::I32 => {
                // The register of the paired format's mask is free here.
                self.asm.vector(ops::VPMULLD, self.width, Args::rvm(self.high_half, a, b));
                self.asm.rvm(ops::VPADDD, self.width, acc, acc, self.high_half);
            }
            _ => self.asm.rvm(ops::VFMADD231PS, self.width, acc, a, b),
        }
    }
}
