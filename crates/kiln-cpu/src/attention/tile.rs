//! Generated micro-kernels: `C[rows, vectors] = A · B`, or `C = factor · C + A · B`, a register tile over the whole of k.
//!
//! ```text
//!  Along::Rows    A row-major, k contiguous: keys · queriesᵀ, or weights · values of few queries
//!  Along::Panel   A k-major, rows contiguous: weightsᵀ · values
//!                 one 4-byte broadcast per row and k, times vectors of B's row k
//! ```
//!
//! With [`Element::Pairs`] a 4-byte element is two bf16 that are neighbours in k, and one instruction adds both products.

use super::geometry::Segment;
use crate::asm::{Alu, Args, Assembler, Cond, Gpr, Index, Label, Mem, Shift, Size, VReg, Width, ops};
use crate::features::Isa;

/// Operands of one call; strides in bytes.
#[repr(C)]
pub(super) struct TileArgs {
    /// Element (0, 0) of A.
    pub a: *const u8,
    /// From row to row ([`Along::Rows`]) or from k to k ([`Along::Panel`]).
    pub a_stride: isize,
    /// Row 0 of B.
    pub b: *const u8,
    /// From row to row of B, in each segment.
    pub b_stride: isize,
    /// Row 0 of C.
    pub c: *mut f32,
    /// Elements from row to row of C.
    pub c_stride: isize,
    /// The number of steps of the sum: rows of the first segment of B.
    pub k: usize,
    /// The factors of the rows of C; null to overwrite C.
    pub factors: *const f32,
    /// Further segments of B, whose steps follow in A.
    pub more: *const Segment,
    /// The number of those; counted down.
    pub segments: usize,
}

/// A micro-kernel.
pub(super) type TileFn = unsafe extern "C" fn(*mut TileArgs);

/// The axis along which A is contiguous.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Along {
    Rows,
    Panel,
}

/// Elements in memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Element {
    /// f32 in A and B.
    F32,
    /// f32 in A, bf16 in B: one load gives the even and odd elements of two vectors, which are interleaved at the end.
    Bf16,
    /// f32 in A, f16 in B.
    F16,
    /// Pairs of bf16 in A and B.
    Pairs,
}

/// Everything a micro-kernel's code depends on.
#[derive(Clone, Copy)]
pub(super) struct TileShape {
    pub isa: Isa,
    pub along: Along,
    pub element: Element,
    pub rows: usize,
    pub vectors: usize,
}

/// The most rows of a tile of 1, 2, … vectors; longer lists have kernels of few rows for wide rows of B.
pub(super) const fn max_rows(isa: Isa) -> &'static [usize] {
    match isa {
        Isa::Avx512 => &[12, 12, 8, 6, 2, 2, 2, 2],
        Isa::Avx2 => &[12, 6, 3, 2],
        Isa::Portable => &[4, 4],
    }
}

pub(super) const fn width(isa: Isa) -> Width {
    match isa {
        Isa::Avx512 => Width::V512,
        _ => Width::V256,
    }
}

const ARGS: Gpr = Gpr::RDI;
const A: Gpr = Gpr::RSI;
const A_STRIDE: Gpr = Gpr::RDX;
const B: Gpr = Gpr::RCX;
const B_STRIDE: Gpr = Gpr::R8;
const K: Gpr = Gpr::R9;
const B_STRIDE_3: Gpr = Gpr::R10;
const K_LEFT: Gpr = Gpr::RAX;
/// Odd multiples of A's stride: 3, 5, 7, 9, 11.
const MULTIPLES: [Gpr; 5] = [Gpr::R11, Gpr::RBX, Gpr::RBP, Gpr::R12, Gpr::R13];
/// Multiples that are in callee-saved registers.
const SAVED: [Gpr; 4] = [Gpr::RBX, Gpr::RBP, Gpr::R12, Gpr::R13];
/// Unroll factor of the main loop, in steps; the addresses rely on it.
const UNROLL: usize = 4;

struct Generator<'a> {
    shape: TileShape,
    width: Width,
    sets: usize,
    asm: &'a mut Assembler,
}

/// Emits one kernel and returns its entry.
pub(super) fn generate(asm: &mut Assembler, shape: TileShape) -> Label {
    // Small tiles alternate between several sets of accumulators, so that the latency of an addition is hidden.
    let (chains, registers) = if shape.isa == Isa::Avx512 { (8, 16) } else { (8, 12) };
    let tile = shape.rows * shape.vectors;
    let mut sets = 1;
    while sets < UNROLL && tile * sets < chains && tile * sets * 2 <= registers {
        sets *= 2;
    }
    asm.align(64);
    let entry = asm.here();
    Generator { shape, width: width(shape.isa), sets, asm }.emit();
    entry
}

impl Generator<'_> {
    fn acc(&self, set: usize, row: usize, vector: usize) -> VReg {
        VReg(((set * self.shape.rows + row) * self.shape.vectors + vector) as u8)
    }

    fn temp(&self, i: usize) -> VReg {
        VReg((self.sets * self.shape.rows * self.shape.vectors + i) as u8)
    }

    fn emit(&mut self) {
        let saved = if self.shape.along == Along::Rows && self.shape.rows > 5 { &SAVED[..] } else { &[] };
        saved.iter().for_each(|&r| self.asm.push(r));
        for (i, register) in [A, A_STRIDE, B, B_STRIDE].into_iter().enumerate() {
            self.asm.load(register, Mem::base(ARGS).offset(8 * i as i32), Size::Q);
        }
        self.asm.load(K, Mem::base(ARGS).offset(48), Size::Q);
        for i in 0..self.sets * self.shape.rows * self.shape.vectors {
            // Writing the low part of a register clears the rest; from 16 on it takes EVEX in any case.
            let clear = if i < 16 { Width::V128 } else { self.width };
            self.asm.rvm(ops::VPXOR, clear, VReg(i as u8), VReg(i as u8), VReg(i as u8));
        }
        if self.paired() > 0 {
            let high_half = self.asm.constant(&0xffff_0000u32.to_le_bytes());
            self.asm.rm(ops::VPBROADCASTD, self.width, self.high_half(), high_half);
        }
        self.asm.lea(B_STRIDE_3, Mem::indexed(B_STRIDE, B_STRIDE, 2));
        let [m3, m5, m7, m9, m11] = MULTIPLES;
        self.asm.lea(m3, Mem::indexed(A_STRIDE, A_STRIDE, 2));
        if !saved.is_empty() {
            self.asm.lea(m5, Mem::indexed(A_STRIDE, A_STRIDE, 4));
            self.asm.lea(m7, Mem::indexed(m3, A_STRIDE, 4));
            self.asm.lea(m9, Mem::indexed(A_STRIDE, A_STRIDE, 8));
            self.asm.lea(m11, Mem::indexed(m3, A_STRIDE, 8));
        }
        self.sum();
        for set in 1..self.sets {
            for i in 0..(self.shape.rows * self.shape.vectors) as u8 {
                let (to, from) = (VReg(i), VReg(self.acc(set, 0, 0).0 + i));
                self.asm.rvm(ops::VADDPS, self.width, to, to, from);
            }
        }
        self.interleave();
        self.store();
        saved.iter().rev().for_each(|&r| self.asm.pop(r));
        self.asm.vzeroupper();
        self.asm.ret();
    }

    /// The loop over k.
    fn sum(&mut self) {
        let (main, tail, tail_loop, done) = (self.asm.label(), self.asm.label(), self.asm.label(), self.asm.label());
        let segment = self.asm.here();
        self.asm.mov(K_LEFT, K);
        self.asm.shift_imm(Shift::Shr, K_LEFT, UNROLL.trailing_zeros() as u8);
        self.asm.jcc(Cond::Equal, tail);
        self.asm.align(32);
        self.asm.bind(main);
        for u in 0..UNROLL {
            self.step(u, u % self.sets);
        }
        match self.shape.along {
            Along::Rows => self.asm.alu_imm(Alu::Add, A, 4 * UNROLL as i32),
            Along::Panel => self.asm.lea(A, Mem::indexed(A, A_STRIDE, 4)),
        }
        self.asm.lea(B, Mem::indexed(B, B_STRIDE, 4));
        self.asm.dec(K_LEFT);
        self.asm.jcc(Cond::NotEqual, main);
        self.asm.bind(tail);
        self.asm.alu_imm(Alu::And, K, UNROLL as i32 - 1);
        self.asm.jcc(Cond::Equal, done);
        // Each k belongs to one set, whether it is among the last or not: steps of zeros after it change nothing.
        for u in 0..if self.sets == 1 { 1 } else { UNROLL - 1 } {
            if u == 0 {
                self.asm.bind(tail_loop);
            }
            self.step(0, u % self.sets);
            match self.shape.along {
                Along::Rows => self.asm.alu_imm(Alu::Add, A, 4),
                Along::Panel => self.asm.alu(Alu::Add, A, A_STRIDE),
            }
            self.asm.alu(Alu::Add, B, B_STRIDE);
            self.asm.dec(K);
            if self.sets == 1 {
                self.asm.jcc(Cond::NotEqual, tail_loop);
            } else {
                self.asm.jcc(Cond::Equal, done);
            }
        }
        self.asm.bind(done);
        self.next_segment(segment);
    }

    /// Continues with the next segment of B, if there is one.
    fn next_segment(&mut self, begin: Label) {
        let (more, segments) = (Mem::base(ARGS).offset(64), Mem::base(ARGS).offset(72));
        let all = self.asm.label();
        self.asm.load(K_LEFT, segments, Size::Q);
        self.asm.alu_imm(Alu::Sub, K_LEFT, 1);
        self.asm.jcc(Cond::Below, all);
        self.asm.store(segments, K_LEFT, Size::Q);
        self.asm.load(K_LEFT, more, Size::Q);
        self.asm.load(B, Mem::base(K_LEFT), Size::Q);
        self.asm.load(K, Mem::base(K_LEFT).offset(8), Size::Q);
        self.asm.alu_imm(Alu::Add, K_LEFT, size_of::<Segment>() as i32);
        self.asm.store(more, K_LEFT, Size::Q);
        self.asm.jmp(begin);
        self.asm.bind(all);
    }

    /// Element (row, k + u) of A.
    fn a_at(&self, row: usize, u: usize) -> Mem {
        let [m3, m5, m7, m9, m11] = MULTIPLES;
        let indexed = |g, scale| Mem { index: Index::Scaled(g, scale), ..Mem::base(A) };
        let step = |n: usize| match n {
            0 => Mem::base(A),
            1 => indexed(A_STRIDE, 1),
            2 => indexed(A_STRIDE, 2),
            3 => indexed(m3, 1),
            4 => indexed(A_STRIDE, 4),
            5 => indexed(m5, 1),
            6 => indexed(m3, 2),
            7 => indexed(m7, 1),
            8 => indexed(A_STRIDE, 8),
            9 => indexed(m9, 1),
            10 => indexed(m5, 2),
            _ => indexed(m11, 1),
        };
        match self.shape.along {
            Along::Rows => step(row).offset(4 * u as i32),
            Along::Panel => step(u).offset(4 * row as i32),
        }
    }

    /// Vector `v` of row k + u of B.
    fn b_at(&self, v: usize, u: usize) -> Mem {
        let bytes = match self.shape.element {
            Element::F32 | Element::Pairs => self.width.bytes(),
            Element::Bf16 | Element::F16 => self.width.bytes() / 2,
        };
        let row = match u {
            0 => Mem::base(B),
            1 => Mem::indexed(B, B_STRIDE, 1),
            2 => Mem::indexed(B, B_STRIDE, 2),
            _ => Mem::indexed(B, B_STRIDE_3, 1),
        };
        row.offset((v * bytes) as i32)
    }

    /// One k: the whole tile once.
    fn step(&mut self, u: usize, set: usize) {
        let TileShape { isa, rows, vectors, element, .. } = self.shape;
        let plain = matches!(element, Element::F32 | Element::Pairs);
        let add = if element == Element::Pairs { ops::VDPBF16PS } else { ops::VFMADD231PS };
        if rows == 1 && plain {
            let a = self.temp(0);
            self.asm.rm(ops::VBROADCASTSS, self.width, a, self.a_at(0, u));
            for v in 0..vectors {
                self.asm.rvm(add, self.width, self.acc(set, 0, v), a, self.b_at(v, u));
            }
            return;
        }
        for v in (0..self.paired()).step_by(2) {
            let (even, odd) = (self.temp(v), self.temp(v + 1));
            self.asm.rm(ops::VMOVUPS, self.width, odd, self.b_at(v, u));
            self.asm.rmi(ops::VPSLLD_I, self.width, even, odd, 16);
            self.asm.rvm(ops::VPAND, self.width, odd, odd, self.high_half());
        }
        for v in self.paired()..vectors {
            let (to, from) = (self.temp(v), self.b_at(v, u));
            load_as_f32(self.asm, self.width, element, to, from);
        }
        for row in 0..rows {
            let at = self.a_at(row, u);
            if vectors == 1 && isa == Isa::Avx512 {
                let args = Args::rvm(self.acc(set, row, 0), self.temp(0), at).broadcast();
                self.asm.vector(add, self.width, args);
                continue;
            }
            let a = self.temp(vectors);
            self.asm.rm(ops::VBROADCASTSS, self.width, a, at);
            for v in 0..vectors {
                self.asm.rvm(add, self.width, self.acc(set, row, v), a, self.temp(v));
            }
        }
    }

    /// Vectors that are loaded two by two, as even and odd elements.
    fn paired(&self) -> usize {
        if self.shape.element == Element::Bf16 { self.shape.vectors / 2 * 2 } else { 0 }
    }

    /// The mask of odd elements.
    fn high_half(&self) -> VReg {
        self.temp(self.shape.vectors + 1)
    }

    /// Interleaves even and odd columns.
    fn interleave(&mut self) {
        let (w, first, second) = (self.width, self.temp(0), self.temp(1));
        if w == Width::V512 && self.paired() > 0 {
            for (to, start) in [(first, 0u32), (second, 8)] {
                let order: Vec<u8> = (start..start + 8).flat_map(|i| [i, 16 + i]).flat_map(u32::to_le_bytes).collect();
                let order = self.asm.constant(&order);
                self.asm.rm(ops::VMOVUPS, w, to, order);
            }
        }
        for row in 0..self.shape.rows {
            for v in (0..self.paired()).step_by(2) {
                let (even, odd) = (self.acc(0, row, v), self.acc(0, row, v + 1));
                if w == Width::V512 {
                    let copy = self.temp(2);
                    self.asm.rm(ops::VMOVAPS, w, copy, even);
                    self.asm.rvm(ops::VPERMT2PS, w, even, first, odd);
                    self.asm.rvm(ops::VPERMT2PS, w, copy, second, odd);
                    self.asm.rm(ops::VMOVAPS, w, odd, copy);
                } else {
                    self.asm.rvm(ops::VUNPCKLPS, w, first, even, odd);
                    self.asm.rvm(ops::VUNPCKHPS, w, second, even, odd);
                    self.asm.rvmi(ops::VPERM2F128, w, even, first, second, 0x20);
                    self.asm.rvmi(ops::VPERM2F128, w, odd, first, second, 0x31);
                }
            }
        }
    }

    /// Stores the tile to C.
    fn store(&mut self) {
        let TileShape { rows, vectors, .. } = self.shape;
        let (c, c_stride, factors, from) = (A, A_STRIDE, B, B_STRIDE);
        self.asm.load(c, Mem::base(ARGS).offset(32), Size::Q);
        self.asm.load(c_stride, Mem::base(ARGS).offset(40), Size::Q);
        self.asm.load(factors, Mem::base(ARGS).offset(56), Size::Q);
        let store = self.asm.label();
        self.asm.test(factors, factors);
        self.asm.jcc(Cond::Equal, store);
        self.asm.mov(from, c);
        for row in 0..rows {
            let factor = self.temp(0);
            self.asm.rm(ops::VBROADCASTSS, self.width, factor, Mem::base(factors).offset(4 * row as i32));
            for v in 0..vectors {
                let at = Mem::base(from).offset((v * self.width.bytes()) as i32);
                self.asm.rvm(ops::VFMADD231PS, self.width, self.acc(0, row, v), factor, at);
            }
            if row + 1 < rows {
                self.asm.alu(Alu::Add, from, c_stride);
            }
        }
        self.asm.bind(store);
        for row in 0..rows {
            for v in 0..vectors {
                let at = Mem::base(c).offset((v * self.width.bytes()) as i32);
                self.asm.mr(ops::VMOVUPS_ST, self.width, at, self.acc(0, row, v));
            }
            if row + 1 < rows {
                self.asm.alu(Alu::Add, c, c_stride);
            }
        }
    }
}

/// Loads a vector and widens it; pairs are not widened.
pub(super) fn load_as_f32(asm: &mut Assembler, width: Width, element: Element, to: VReg, from: Mem) {
    match element {
        Element::F32 | Element::Pairs => asm.rm(ops::VMOVUPS, width, to, from),
        Element::Bf16 => {
            asm.rm(ops::VPMOVZXWD, width, to, from);
            asm.rmi(ops::VPSLLD_I, width, to, to, 16);
        }
        Element::F16 => asm.rm(ops::VCVTPH2PS, width, to, from),
    }
}
