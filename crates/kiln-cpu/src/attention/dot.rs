//! Generated dot products of few queries with many keys, both row-major: `scores[query][key] = Σ q · k`.
//!
//! A block of keys is read once for all queries of the kernel; lanes run along the width and are reduced at the end of each
//! block, four keys at a time. The layout of queries depends on the keys' element:
//!
//! ```text
//!  F32, F16   f32, in order
//!  Bf16       f32, of two vectors first the even and then the odd elements, as one load of keys gives them
//!  Pairs      bf16, in order
//! ```

use super::geometry::Segment;
use super::tile::{Element, load_as_f32, width};
use crate::asm::{Alu, Args, Assembler, Cond, Gpr, Index, Label, Mem, Size, VReg, Width, ops};
use crate::features::Isa;

/// Operands of one call; strides in bytes.
#[repr(C)]
pub(super) struct DotArgs {
    /// Row 0 of the queries.
    pub q: *const f32,
    /// Elements from one query to the next.
    pub q_stride: usize,
    /// Row 0 of the keys.
    pub k: *const u8,
    /// From key to key, in each segment, in bytes.
    pub k_stride: isize,
    /// Steps along a row, [`step`] elements each.
    pub steps: usize,
    /// The number of keys: rows of the first segment.
    pub keys: usize,
    /// Score (0, 0).
    pub scores: *mut f32,
    /// From query to query of the scores.
    pub score_stride: usize,
    /// Further segments of keys.
    pub more: *const Segment,
    /// The number of those; counted down.
    pub segments: usize,
}

/// A dot-product kernel.
pub(super) type DotFn = unsafe extern "C" fn(*mut DotArgs);

/// Elements of a row that a step takes, for vectors of `lanes`: rows are whole steps.
pub(super) const fn step(element: Element, lanes: usize) -> usize {
    match element {
        Element::F32 | Element::F16 => lanes,
        Element::Bf16 | Element::Pairs => 2 * lanes,
    }
}

/// The most queries of one kernel.
pub(super) const fn max_queries(isa: Isa) -> usize {
    match isa {
        Isa::Avx512 => 4,
        Isa::Avx2 => 2,
        Isa::Portable => 4,
    }
}

const ARGS: Gpr = Gpr::RDI;
const Q: Gpr = Gpr::RSI;
const Q_STRIDE: Gpr = Gpr::RDX;
const K: Gpr = Gpr::RCX;
const K_STRIDE: Gpr = Gpr::R8;
const KEYS: Gpr = Gpr::R9;
const SCORES: Gpr = Gpr::R10;
const SCORE_STRIDE: Gpr = Gpr::R11;
const LEFT: Gpr = Gpr::RAX;
/// Offset along the width: of keys and of queries (4 bytes per element).
const AT: Gpr = Gpr::RBX;
const Q_AT: Gpr = Gpr::RBP;
/// Keys 0 … 3 and 4 … 7 of a block: K_NEXT is key 4.
const K_NEXT: Gpr = Gpr::R12;
const K_STRIDE_3: Gpr = Gpr::R13;
const Q_STRIDE_3: Gpr = Gpr::R14;
const STEPS: Gpr = Gpr::R15;
const SAVED: [Gpr; 6] = [AT, Q_AT, K_NEXT, K_STRIDE_3, Q_STRIDE_3, STEPS];

struct Generator<'a> {
    asm: &'a mut Assembler,
    width: Width,
    element: Element,
    queries: usize,
}

/// Emits the kernel for `queries` rows of q and keys of `element`, and returns its entry.
pub(super) fn generate(asm: &mut Assembler, isa: Isa, element: Element, queries: usize) -> Label {
    asm.align(64);
    let entry = asm.here();
    // One query alone takes eight keys at once, to have enough sums in flight.
    let block = if queries == 1 { 8 } else { 4 };
    let mut g = Generator { asm, width: width(isa), element, queries };
    SAVED.iter().for_each(|&r| g.asm.push(r));
    let arguments = [Q, Q_STRIDE, K, K_STRIDE, STEPS, KEYS, SCORES, SCORE_STRIDE];
    for (i, register) in arguments.into_iter().enumerate() {
        g.asm.load(register, Mem::base(ARGS).offset(8 * i as i32), Size::Q);
    }
    if element == Element::Bf16 {
        let high_half = g.asm.constant(&0xffff_0000u32.to_le_bytes());
        g.asm.rm(ops::VPBROADCASTD, g.width, g.high_half(), high_half);
    }
    g.asm.lea(K_STRIDE_3, Mem::indexed(K_STRIDE, K_STRIDE, 2));
    g.asm.lea(Q_STRIDE_3, Mem::indexed(Q_STRIDE, Q_STRIDE, 2));
    let (blocks, ones, one, done) = (g.asm.label(), g.asm.label(), g.asm.label(), g.asm.label());
    let segment = g.asm.here();
    g.asm.alu_imm(Alu::Sub, KEYS, block as i32);
    g.asm.jcc(Cond::Below, ones);
    g.asm.bind(blocks);
    g.block(block);
    g.asm.alu_imm(Alu::Sub, KEYS, block as i32);
    g.asm.jcc(Cond::AboveEqual, blocks);
    g.asm.bind(ones);
    g.asm.alu_imm(Alu::Add, KEYS, block as i32);
    g.asm.jcc(Cond::Equal, done);
    g.asm.bind(one);
    g.block(1);
    g.asm.dec(KEYS);
    g.asm.jcc(Cond::NotEqual, one);
    g.asm.bind(done);
    let (more, segments, all) = (Mem::base(ARGS).offset(64), Mem::base(ARGS).offset(72), g.asm.label());
    g.asm.load(LEFT, segments, Size::Q);
    g.asm.alu_imm(Alu::Sub, LEFT, 1);
    g.asm.jcc(Cond::Below, all);
    g.asm.store(segments, LEFT, Size::Q);
    g.asm.load(LEFT, more, Size::Q);
    g.asm.load(K, Mem::base(LEFT), Size::Q);
    g.asm.load(KEYS, Mem::base(LEFT).offset(8), Size::Q);
    g.asm.alu_imm(Alu::Add, LEFT, size_of::<Segment>() as i32);
    g.asm.store(more, LEFT, Size::Q);
    g.asm.jmp(segment);
    g.asm.bind(all);
    SAVED.iter().rev().for_each(|&r| g.asm.pop(r));
    g.asm.vzeroupper();
    g.asm.ret();
    entry
}

impl Generator<'_> {
    /// Vectors of queries in a step.
    fn query_vectors(&self) -> usize {
        if self.element == Element::Bf16 { 2 } else { 1 }
    }

    /// The mask of odd elements of bf16; the last register of either target that no block takes.
    fn high_half(&self) -> VReg {
        VReg(15 + 16 * u8::from(self.width == Width::V512))
    }

    /// Scores of `keys` keys; advances K and SCORES.
    fn block(&mut self, keys: usize) {
        let (width, queries) = (self.width, self.queries);
        let acc = |query: usize, key: usize| VReg((query * keys + key) as u8);
        let temp = VReg((queries * keys) as u8);
        for i in 0..(queries * keys) as u8 {
            let clear = if i < 16 { Width::V128 } else { width };
            self.asm.rvm(ops::VPXOR, clear, VReg(i), VReg(i), VReg(i));
        }
        if keys == 8 {
            self.asm.lea(K_NEXT, Mem::indexed(K, K_STRIDE, 4));
        }
        self.asm.mov(AT, K);
        self.asm.mov(Q_AT, Q);
        self.asm.mov(LEFT, STEPS);
        let (along, done) = (self.asm.label(), self.asm.label());
        self.asm.test(LEFT, LEFT);
        self.asm.jcc(Cond::Equal, done);
        self.asm.bind(along);
        self.step(keys);
        let bytes = width.bytes() as i32;
        let key_bytes = if self.element == Element::F16 { bytes / 2 } else { bytes };
        self.asm.alu_imm(Alu::Add, AT, key_bytes);
        if keys == 8 {
            self.asm.alu_imm(Alu::Add, K_NEXT, key_bytes);
        }
        self.asm.alu_imm(Alu::Add, Q_AT, bytes * self.query_vectors() as i32);
        self.asm.dec(LEFT);
        self.asm.jcc(Cond::NotEqual, along);
        self.asm.bind(done);
        self.asm.mov(AT, SCORES);
        for query in 0..queries {
            for key in (0..keys).step_by(4) {
                let at = Mem::base(AT).offset(4 * key as i32);
                if keys == 1 {
                    let sum = acc(query, 0);
                    self.fold_four([sum; 4], temp);
                    self.asm.mr(ops::VMOVSS_ST, Width::V128, at, sum);
                } else {
                    let four = [0, 1, 2, 3].map(|i| acc(query, key + i));
                    self.fold_four(four, temp);
                    self.asm.mr(ops::VMOVUPS_ST, Width::V128, at, four[0]);
                }
            }
            if query + 1 < queries {
                self.asm.alu(Alu::Add, AT, SCORE_STRIDE);
            }
        }
        self.asm.alu_imm(Alu::Add, SCORES, 4 * keys as i32);
        match keys {
            1 => self.asm.alu(Alu::Add, K, K_STRIDE),
            4 => self.asm.lea(K, Mem::indexed(K, K_STRIDE, 4)),
            _ => self.asm.lea(K, Mem::indexed(K, K_STRIDE, 8)),
        }
    }

    /// One step along the width, for all queries and keys of a block.
    fn step(&mut self, keys: usize) {
        let (width, queries, element) = (self.width, self.queries, self.element);
        let acc = |query: usize, key: usize| VReg((query * keys + key) as u8);
        let (key_temp, q_temps) = (VReg((queries * keys) as u8), (queries * keys) as u8 + 2);
        let indexed = |base, g, scale| Mem { index: Index::Scaled(g, scale), ..Mem::base(base) };
        let rows = |base, stride, stride_3, row: usize| match row {
            0 => Mem::base(base),
            1 => indexed(base, stride, 1),
            2 => indexed(base, stride, 2),
            _ => indexed(base, stride_3, 1),
        };
        for query in 0..queries {
            for v in 0..self.query_vectors() {
                let from = rows(Q_AT, Q_STRIDE, Q_STRIDE_3, query).offset((v * width.bytes()) as i32);
                self.asm.rm(ops::VMOVUPS, width, VReg(q_temps + (v * queries + query) as u8), from);
            }
        }
        let add = if element == Element::Pairs { ops::VDPBF16PS } else { ops::VFMADD231PS };
        for key in 0..keys {
            let base = if key < 4 { AT } else { K_NEXT };
            let from = rows(base, K_STRIDE, K_STRIDE_3, key % 4);
            match element {
                Element::F32 | Element::Pairs if queries == 1 => {
                    self.asm.rvm(add, width, acc(0, key), VReg(q_temps), from);
                    continue;
                }
                Element::Bf16 => {
                    let odd = VReg(key_temp.0 + 1);
                    self.asm.rm(ops::VMOVUPS, width, odd, from);
                    self.asm.rmi(ops::VPSLLD_I, width, key_temp, odd, 16);
                    self.asm.rvm(ops::VPAND, width, odd, odd, self.high_half());
                }
                _ => load_as_f32(self.asm, width, element, key_temp, from),
            }
            for v in 0..self.query_vectors() {
                for query in 0..queries {
                    let q = VReg(q_temps + (v * queries + query) as u8);
                    self.asm.rvm(add, width, acc(query, key), VReg(key_temp.0 + v as u8), q);
                }
            }
        }
    }

    /// The sums of four registers' lanes, to the four first lanes of the first.
    fn fold_four(&mut self, [a, b, c, d]: [VReg; 4], temp: VReg) {
        let w = self.width;
        let asm = &mut *self.asm;
        asm.rvm(ops::VUNPCKLPS, w, temp, a, b);
        asm.rvm(ops::VUNPCKHPS, w, a, a, b);
        asm.rvm(ops::VADDPS, w, a, a, temp);
        if c != a {
            asm.rvm(ops::VUNPCKLPS, w, temp, c, d);
            asm.rvm(ops::VUNPCKHPS, w, c, c, d);
            asm.rvm(ops::VADDPS, w, c, c, temp);
        }
        asm.rvm(ops::VUNPCKLPD, w, temp, a, c);
        asm.rvm(ops::VUNPCKHPD, w, a, a, c);
        asm.rvm(ops::VADDPS, w, a, a, temp);
        if w == Width::V512 {
            asm.vector(ops::VEXTRACTF64X4, Width::V512, Args::mr(temp, a).imm(1));
            asm.rvm(ops::VADDPS, Width::V256, a, a, temp);
        }
        asm.vector(ops::VEXTRACTF128, Width::V256, Args::mr(temp, a).imm(1));
        asm.rvm(ops::VADDPS, Width::V128, a, a, temp);
    }
}
