//! Generated micro-kernels: an MR × NR tile of accumulators kept in registers over the whole of a K block.
//!
//! ```text
//!  A panel [k][mr]   one broadcast per row        B panel [k][nv vectors]
//!          └──────────────┬──────────────────────────┘
//!                 acc[mr][nv] += a · b            then C tile = acc, or C tile += acc
//! ```
//!
//! 16-bit pairs of consecutive k are adjacent in a panel, see [`Format::Bf16`] and [`Format::Bf16Dot`]; a *unit* is one such
//! pair there, one k otherwise. Kernels are generated once per process, on first use.

use super::tiles;
use super::words::Words;
use crate::asm::{Alu, Assembler, Cond, Gpr, Mem, Shift, VReg, Width, ops};
use crate::features::Isa;
use crate::memory::{Code, CodeArena, MemoryError};
use std::collections::HashMap;
use std::sync::{Mutex, OnceLock, PoisonError, RwLock};

/// The layout of B's elements and the type the tile accumulates in.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Format {
    /// f32, accumulated in f32.
    F32,
    /// bf16, the elements of k and k + 1 side by side; A is f32. A shift and a mask give the two rows.
    Bf16,
    /// bf16 as above, and so is A: one instruction multiplies and adds a pair. Needs AVX512_BF16.
    Bf16Dot,
    /// f16, accumulated in f32.
    F16,
    /// f64, accumulated in f64.
    F64,
    /// i32, accumulated in i32, wrapping.
    I32,
    /// Four signed bytes of consecutive k in a word, accumulated in i32; A's bytes are unsigned, 128 more than they stand for, so that
    /// every row has the sum of its column times 128 too much. Needs AVX512_VNNI.
    I8Dot,
    /// bf16 in tiles, see [`super::tiles`].
    Bf16Tile,
    /// Bytes in tiles.
    I8Tile,
}

impl Format {
    /// Bytes of one unit of a column of B.
    pub(super) const fn size(self) -> usize {
        match self {
            Format::F32 | Format::I32 | Format::Bf16 | Format::Bf16Dot | Format::I8Dot => 4,
            Format::F16 => 2,
            Format::F64 => 8,
            Format::Bf16Tile | Format::I8Tile => 4 * tiles::TILE,
        }
    }

    /// k in a unit.
    pub(super) const fn depth(self) -> usize {
        match self {
            Format::Bf16 | Format::Bf16Dot => 2,
            Format::I8Dot => 4,
            Format::Bf16Tile => 2 * tiles::TILE,
            Format::I8Tile => 4 * tiles::TILE,
            _ => 1,
        }
    }

    /// Words of an accumulator's size in one unit of a row of A.
    pub(super) const fn a_words(self) -> usize {
        match self {
            Format::Bf16 => 2,
            Format::Bf16Tile | Format::I8Tile => tiles::TILE,
            _ => 1,
        }
    }

    /// The short elements that A and B share words of, where they do.
    pub(super) const fn words(self) -> Option<Words> {
        match self {
            Format::Bf16Dot | Format::Bf16Tile => Some(Words::Pairs),
            Format::I8Dot | Format::I8Tile => Some(Words::Quads),
            _ => None,
        }
    }

    /// Whether tiles multiply it.
    pub(super) const fn in_tiles(self) -> bool {
        matches!(self, Format::Bf16Tile | Format::I8Tile)
    }

    /// Bytes of an accumulator, and of a word of A.
    pub(super) const fn acc_size(self) -> usize {
        match self {
            Format::F64 => 8,
            _ => 4,
        }
    }
}

/// `(a, b, c, units, b_stride, c_stride)`; strides in bytes.
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
}

impl Shape {
    /// The width of vectors.
    fn width(&self) -> Width {
        if self.isa == Isa::Avx512 { Width::V512 } else { Width::V256 }
    }

    /// Sets of accumulators that consecutive k alternate between, so that a small tile still hides the latency of an FMA.
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

/// The largest number of rows of a tile of two vectors.
pub(super) fn max_rows(isa: Isa, format: Format) -> usize {
    match (isa, format) {
        (_, Format::Bf16Tile | Format::I8Tile) => tiles::ROWS,
        (Isa::Avx512, _) => 14,
        _ => 6,
    }
}

/// The kernel of a shape, generated on first use and kept for the life of the process.
pub(super) fn get(shape: Shape) -> Result<MicroFn, MemoryError> {
    let entry = cached(Key::Micro(shape), || generate(&shape))?;
    // SAFETY: the code follows the C convention with these arguments and is never freed.
    Ok(unsafe { std::mem::transmute::<*const u8, MicroFn>(entry as *const u8) })
}

/// The key of generated gemm code.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Key {
    Micro(Shape),
    Direct(super::direct::Shape),
    Dense(super::dense::Shape),
    Depthwise(super::depthwise::Shape),
    Gradient(super::direct::GradientShape),
    Dot(super::dot::Shape),
    Row(super::row::Shape),
    Sweep(super::sweep::Shape),
    Tiles(super::tiles::Piece),
    Packing(super::packing_kernel::PackingShape),
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
const K_LEFT: Gpr = Gpr::RAX;

/// Four bytes of 128, which turn signed bytes into unsigned ones.
pub(super) const OFFSET: u32 = 0x8080_8080;

/// Unroll factor of the main loop, in units; the addresses below rely on it.
pub(super) const UNROLL: usize = 4;

/// Register numbers and the assembler while one kernel is generated.
pub(super) struct Generator {
    pub shape: Shape,
    width: Width,
    sets: usize,
    pub asm: Assembler,
    /// First registers after the accumulators.
    pub temps: u8,
    /// The upper-half mask of bf16 pairs, or a product of integers.
    high_half: VReg,
}

fn generate(shape: &Shape) -> Vec<u8> {
    let mut g = Generator::new(shape);
    g.emit();
    g.asm.finish()
}

impl Generator {
    pub(super) fn new(shape: &Shape) -> Generator {
        let sets = shape.sets();
        Generator {
            shape: *shape,
            width: shape.width(),
            sets,
            asm: Assembler::new(),
            temps: (shape.mr * shape.nv * sets) as u8,
            high_half: VReg(if shape.isa == Isa::Avx512 { 31 } else { 15 }),
        }
    }

    fn acc(&self, set: usize, row: usize, vector: usize) -> VReg {
        VReg(((set * self.shape.mr + row) * self.shape.nv + vector) as u8)
    }

    /// Sets the accumulators to zero.
    pub(super) fn clear(&mut self) {
        for r in 0..self.temps {
            // An xmm write clears the whole register.
            let zero = if r < 16 { Width::V128 } else { self.width };
            self.asm.rvm(ops::VPXOR, zero, VReg(r), VReg(r), VReg(r));
        }
    }

    fn emit(&mut self) {
        let mr = self.shape.mr;
        self.clear();
        if self.shape.format == Format::Bf16 {
            let mask = self.asm.constant(&0xffff_0000u32.to_le_bytes());
            self.asm.rm(ops::VPBROADCASTD, self.width, self.high_half, mask);
        }
        self.asm.lea(B_STRIDE_3, Mem::indexed(B_STRIDE, B_STRIDE, 2));
        let (main, tail, tail_loop, done) = (self.asm.label(), self.asm.label(), self.asm.label(), self.asm.label());
        self.asm.mov(K_LEFT, K);
        self.asm.shift_imm(Shift::Shr, K_LEFT, UNROLL.trailing_zeros() as u8);
        self.asm.jcc(Cond::Equal, tail);
        self.asm.align(32);
        self.asm.bind(main);
        for u in 0..UNROLL {
            self.step(u);
        }
        let a_bytes = (mr * self.shape.format.a_words() * self.shape.format.acc_size()) as i32;
        self.asm.alu_imm(Alu::Add, A, a_bytes * UNROLL as i32);
        self.asm.lea(B, Mem::indexed(B, B_STRIDE, 4));
        self.asm.dec(K_LEFT);
        self.asm.jcc(Cond::NotEqual, main);
        self.asm.bind(tail);
        self.asm.alu_imm(Alu::And, K, UNROLL as i32 - 1);
        self.asm.jcc(Cond::Equal, done);
        self.asm.bind(tail_loop);
        self.step(0);
        self.asm.alu_imm(Alu::Add, A, a_bytes);
        self.asm.alu(Alu::Add, B, B_STRIDE);
        self.asm.dec(K);
        self.asm.jcc(Cond::NotEqual, tail_loop);
        self.asm.bind(done);
        self.store();
        self.asm.vzeroupper();
        self.asm.ret();
    }

    /// Stores the accumulators to the C tile, or adds them to it.
    pub(super) fn store(&mut self) {
        let (mr, nv) = (self.shape.mr, self.shape.nv);
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
    }

    /// The registers of B.
    pub(super) fn b(&self) -> Vec<VReg> {
        (0..self.shape.nv).map(|v| VReg(self.temps + v as u8)).collect()
    }

    fn add(&self) -> ops::VOp {
        match self.shape.format {
            Format::F64 => ops::VADDPD,
            Format::I32 | Format::I8Dot => ops::VPADDD,
            _ => ops::VADDPS,
        }
    }

    /// One unit: the whole tile once for each word of A.
    pub(super) fn step(&mut self, u: usize) {
        let words = self.shape.format.a_words();
        for word in 0..words {
            for (v, b) in self.b().into_iter().enumerate() {
                self.load_b(u, word, v, b);
            }
            self.multiply(u * words + word);
        }
    }

    /// The whole tile once, for a word of A and what the registers of B hold.
    pub(super) fn multiply(&mut self, word: usize) {
        let (b, a) = (self.b(), VReg(self.temps + self.shape.nv as u8));
        for row in 0..self.shape.mr {
            self.broadcast_a(word, row, a);
            for (v, b) in b.iter().enumerate() {
                self.multiply_add(self.acc(word % self.sets, row, v), a, *b);
            }
        }
    }

    /// Loads vector `v` of unit `u` of B.
    fn load_b(&mut self, u: usize, word: usize, v: usize, to: VReg) {
        let row = match u {
            0 => Mem::base(B),
            1 => Mem::indexed(B, B_STRIDE, 1),
            2 => Mem::indexed(B, B_STRIDE, 2),
            _ => Mem::indexed(B, B_STRIDE_3, 1),
        };
        let lanes = self.width.lanes(self.shape.format.acc_size());
        let at = row.offset((v * lanes * self.shape.format.size()) as i32);
        match (self.shape.format, word) {
            (Format::Bf16, 0) => {
                self.asm.rm(ops::VMOVDQU, self.width, to, at);
                self.asm.rmi(ops::VPSLLD_I, self.width, to, to, 16);
            }
            (Format::Bf16, _) => self.asm.rvm(ops::VPAND, self.width, to, self.high_half, at),
            (Format::F16, _) => self.asm.rm(ops::VCVTPH2PS, self.width, to, at),
            _ => self.asm.rm(ops::VMOVUPS, self.width, to, at),
        }
    }

    fn broadcast_a(&mut self, word: usize, row: usize, to: VReg) {
        let size = self.shape.format.acc_size();
        let at = Mem::base(A).offset(((word * self.shape.mr + row) * size) as i32);
        let op = if size == 8 { ops::VBROADCASTSD } else { ops::VBROADCASTSS };
        self.asm.rm(op, self.width, to, at);
    }

    fn multiply_add(&mut self, acc: VReg, a: VReg, b: VReg) {
        match self.shape.format {
            Format::F64 => self.asm.rvm(ops::VFMADD231PD, self.width, acc, a, b),
            Format::Bf16Dot => self.asm.rvm(ops::VDPBF16PS, self.width, acc, a, b),
            Format::I8Dot => self.asm.rvm(ops::VPDPBUSD, self.width, acc, a, b),
            Format::I32 => {
                self.asm.rvm(ops::VPMULLD, self.width, self.high_half, a, b);
                self.asm.rvm(ops::VPADDD, self.width, acc, acc, self.high_half);
            }
            _ => self.asm.rvm(ops::VFMADD231PS, self.width, acc, a, b),
        }
    }
}
