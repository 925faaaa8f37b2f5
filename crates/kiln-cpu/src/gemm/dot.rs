//! Generated dot-product kernels for weights stored as W[N, K], the layout of a linear layer: rows of W stream past in
//! their own order, nothing of W is packed.
//!
//! ```text
//!  A blocked [step][mr][lanes]      W rows of stride `w_stride` bytes
//!          └──────────┬────────────────────┘
//!      acc[mr][nr] += a · w, lane by lane; at the end each accumulator's lanes are added up
//! ```
//!
//! bf16 rows are read as pairs: the even elements come out by a shift, the odd ones by a mask, so A's blocks separate even and
//! odd elements. Where A is bf16 too and the machine multiplies pairs, neither is separated.
//!
//! Several rows of W side by side are several streams from memory: the best way on some processors, and on others too many for
//! the hardware prefetcher. There one row of A takes the rows of W [one after the other](Order::Rows): one long stream. The
//! hardware prefetcher stops at the end of a page, so the kernel itself prefetches the beginning of the next one.

use super::kernel::{Key, MicroFn, cached};
use crate::asm::{Alu, Assembler, Cond, Gpr, Mem, VReg, Width, ops};
use crate::features::{Isa, detect};
use crate::memory::MemoryError;
use kiln_ir::DType;

/// The element types of the weights (B) and of A.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Weight {
    F32,
    Bf16,
    F16,
    /// bf16, and A is bf16 as well. Needs AVX512_BF16.
    Bf16Dot,
    I8,
}

impl Weight {
    /// `None` for elements that no kernel reads as they are.
    pub(super) const fn of(dtype: DType) -> Option<Weight> {
        match dtype {
            DType::F32 => Some(Weight::F32),
            DType::Bf16 => Some(Weight::Bf16),
            DType::F16 => Some(Weight::F16),
            DType::I8 => Some(Weight::I8),
            _ => None,
        }
    }

    /// Bytes of an element.
    pub(super) const fn size(self) -> usize {
        match self {
            Weight::F32 => 4,
            Weight::Bf16 | Weight::F16 | Weight::Bf16Dot => 2,
            Weight::I8 => 1,
        }
    }
}

/// The order in which a tile reads its rows of W. The sums are the same.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Order {
    /// A step of each row, then the next step.
    Steps,
    /// All of a row, then the next row.
    Rows,
}

/// The longest K whose rows are taken one after the other: all of A has to stay in the first level beside the stream.
const MOST_K_BY_ROWS: usize = 3072;

/// The order in which one row of A takes rows of W from memory or the last-level cache, unless tuning has `chosen`.
pub(super) fn order_of_rows(k: usize, chosen: Option<bool>) -> Order {
    if k <= MOST_K_BY_ROWS && chosen.unwrap_or(detect().one_stream) { Order::Rows } else { Order::Steps }
}

/// Everything a dot kernel's code depends on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Shape {
    pub isa: Isa,
    pub weight: Weight,
    /// Rows of A.
    pub mr: usize,
    /// Rows of W, at most 8.
    pub nr: usize,
    pub order: Order,
    /// Add to the C tile instead of overwriting it.
    pub accumulate: bool,
    /// First and number of rows to prefetch of the four of W after these; none unless `nr` is 4.
    pub prefetch: (usize, usize),
}

impl Shape {
    fn width(&self) -> Width {
        if self.isa == Isa::Avx512 { Width::V512 } else { Width::V256 }
    }

    fn fetches(&self) -> bool {
        self.prefetch.1 > 0
    }

    fn sets(&self) -> usize {
        let (registers, temps) = if self.isa == Isa::Avx512 { (32, 3) } else { (16, 3) };
        if self.mr * self.nr < 8 && self.mr * self.nr * 2 + self.mr + temps <= registers { 2 } else { 1 }
    }
}

/// Elements of K that one step of a kernel takes; A is padded to a multiple.
pub(super) const fn step(isa: Isa, weight: Weight) -> usize {
    let lanes = lanes(isa);
    match weight {
        Weight::Bf16 | Weight::Bf16Dot => 2 * lanes,
        _ => lanes,
    }
}

/// Words of four bytes that one step of one row of A takes.
pub(super) const fn a_words(isa: Isa, weight: Weight) -> usize {
    match weight {
        Weight::Bf16 => 2 * lanes(isa),
        _ => lanes(isa),
    }
}

/// f32 lanes of a vector.
pub(super) const fn lanes(isa: Isa) -> usize {
    match isa {
        Isa::Avx512 => 16,
        _ => 8,
    }
}

/// The largest number of rows of A in a tile with four rows of W.
pub(super) const fn max_rows(isa: Isa, weight: Weight) -> usize {
    match (isa, weight) {
        (Isa::Avx512, _) => 6,
        // The mask that splits pairs takes a register.
        (_, Weight::Bf16) => 2,
        _ => 3,
    }
}

/// The kernel of a shape. Its arguments are `(a, w, c, steps, w_stride, c_stride)`. It writes whole groups of four
/// columns of C, so C's rows are padded to a multiple of four.
pub(super) fn get(shape: Shape) -> Result<MicroFn, MemoryError> {
    let entry = cached(Key::Dot(shape), || generate(&shape))?;
    // SAFETY: the code follows the C convention with these arguments and is never freed.
    Ok(unsafe { std::mem::transmute::<*const u8, MicroFn>(entry as *const u8) })
}

const A: Gpr = Gpr::RDI;
const W: Gpr = Gpr::RSI;
const C: Gpr = Gpr::RDX;
const STEPS: Gpr = Gpr::RCX;
const W_STRIDE: Gpr = Gpr::R8;
const C_STRIDE: Gpr = Gpr::R9;
const W_STRIDE_3: Gpr = Gpr::R10;
/// Row 4 of W: the fifth row of a tile, or the one after a tile of four.
const W_4: Gpr = Gpr::R11;
const LEFT: Gpr = Gpr::RAX;
/// The position in a row of [`Order::Rows`].
const A_AT: Gpr = Gpr::R10;
const W_AT: Gpr = Gpr::R11;
/// Steps that are left of a part of it. One row of A leaves this free.
const OF_PART: Gpr = Gpr::R9;
/// Bytes of a row of W after which the next page is prefetched once more.
pub(super) const PART: usize = 2048;
/// The smallest page size, and the number of lines that are prefetched at the beginning of a page.
const PAGE: i32 = 4096;
const LINES: i32 = 4;

struct Generator {
    shape: Shape,
    width: Width,
    sets: usize,
    asm: Assembler,
    a: u8,
    w: VReg,
    high_half: VReg,
}

fn generate(shape: &Shape) -> Vec<u8> {
    let sets = shape.sets();
    let a = (shape.mr * shape.nr * sets) as u8;
    let mut g = Generator {
        shape: *shape,
        width: shape.width(),
        sets,
        asm: Assembler::new(),
        a,
        w: VReg(a + shape.mr as u8),
        high_half: VReg(a + shape.mr as u8 + 1),
    };
    g.emit();
    g.asm.finish()
}

impl Generator {
    fn acc(&self, set: usize, row: usize, column: usize) -> VReg {
        VReg(((set * self.shape.mr + row) * self.shape.nr + column) as u8)
    }

    /// Passes over a step: the even and the odd elements of bf16 pairs, else one.
    fn passes(&self) -> usize {
        if self.shape.weight == Weight::Bf16 { 2 } else { 1 }
    }

    fn emit(&mut self) {
        let shape = self.shape;
        for r in 0..self.a {
            let zero = if r < 16 { Width::V128 } else { self.width };
            self.asm.rvm(ops::VPXOR, zero, VReg(r), VReg(r), VReg(r));
        }
        if shape.weight == Weight::Bf16 {
            let mask = self.asm.constant(&0xffff_0000u32.to_le_bytes());
            self.asm.rm(ops::VPBROADCASTD, self.width, self.high_half, mask);
        }
        match shape.order {
            Order::Steps => self.side_by_side(),
            Order::Rows => self.row_by_row(),
        }
        for i in 0..if self.sets > 1 { shape.mr * shape.nr } else { 0 } {
            let other = VReg((shape.mr * shape.nr + i) as u8);
            self.asm.rvm(ops::VADDPS, self.width, VReg(i as u8), VReg(i as u8), other);
        }
        for row in 0..shape.mr {
            for first in (0..shape.nr).step_by(4) {
                self.reduce(row, first);
            }
            if row + 1 < shape.mr {
                self.asm.alu(Alu::Add, C, C_STRIDE);
            }
        }
        self.asm.vzeroupper();
        self.asm.ret();
    }

    /// All rows of W at once.
    fn side_by_side(&mut self) {
        self.asm.lea(W_STRIDE_3, Mem::indexed(W_STRIDE, W_STRIDE, 2));
        let far = self.shape.nr > 4 || self.shape.fetches();
        if far {
            self.asm.lea(W_4, Mem::indexed(W, W_STRIDE, 4));
        }
        let (main, tail, done) = (self.asm.label(), self.asm.label(), self.asm.label());
        self.asm.mov(LEFT, STEPS);
        self.asm.shift_imm(crate::asm::Shift::Shr, LEFT, 1);
        self.asm.jcc(Cond::Equal, tail);
        self.asm.align(32);
        self.asm.bind(main);
        self.step(0);
        self.step(1);
        let moving = [A, W, W_4];
        self.advance(&moving[..if far { 3 } else { 2 }], 2);
        self.asm.dec(LEFT);
        self.asm.jcc(Cond::NotEqual, main);
        self.asm.bind(tail);
        self.asm.alu_imm(Alu::And, STEPS, 1);
        self.asm.jcc(Cond::Equal, done);
        self.step(0);
        self.asm.bind(done);
    }

    /// One row of W after the other, each in parts.
    fn row_by_row(&mut self) {
        const UNROLL: usize = 4;
        let most = (PART / self.step_bytes().1) as i32;
        for column in 0..self.shape.nr {
            let [part, short, main, tail, rest, next] = std::array::from_fn(|_| self.asm.label());
            if column > 0 {
                self.asm.alu(Alu::Add, W, W_STRIDE);
            }
            self.asm.mov(A_AT, A);
            self.asm.mov(W_AT, W);
            self.asm.mov(LEFT, STEPS);
            self.asm.bind(part);
            fetch_next_page(&mut self.asm, W_AT, OF_PART);
            self.asm.mov(OF_PART, LEFT);
            self.asm.alu_imm(Alu::Cmp, LEFT, most);
            self.asm.jcc(Cond::LessEqual, short);
            self.asm.mov_imm(OF_PART, i64::from(most));
            self.asm.bind(short);
            self.asm.alu(Alu::Sub, LEFT, OF_PART);
            self.asm.alu_imm(Alu::Sub, OF_PART, UNROLL as i32);
            self.asm.jcc(Cond::Less, tail);
            self.asm.align(32);
            self.asm.bind(main);
            for u in 0..UNROLL {
                self.step_of_row(column, u);
            }
            self.advance(&[A_AT, W_AT], UNROLL);
            self.asm.alu_imm(Alu::Sub, OF_PART, UNROLL as i32);
            self.asm.jcc(Cond::GreaterEqual, main);
            self.asm.bind(tail);
            self.asm.alu_imm(Alu::Add, OF_PART, UNROLL as i32);
            self.asm.jcc(Cond::Equal, next);
            self.asm.bind(rest);
            self.step_of_row(column, 0);
            self.advance(&[A_AT, W_AT], 1);
            self.asm.dec(OF_PART);
            self.asm.jcc(Cond::NotEqual, rest);
            self.asm.bind(next);
            self.asm.test(LEFT, LEFT);
            self.asm.jcc(Cond::NotEqual, part);
        }
    }

    fn step_bytes(&self) -> (usize, usize) {
        let vector = self.width.bytes();
        let w = match self.shape.weight {
            Weight::F32 | Weight::Bf16 | Weight::Bf16Dot => vector,
            Weight::F16 => vector / 2,
            Weight::I8 => vector / 4,
        };
        (self.shape.mr * vector * self.passes(), w)
    }

    fn advance(&mut self, moving: &[Gpr], steps: usize) {
        let (a, w) = self.step_bytes();
        for (i, place) in moving.iter().enumerate() {
            self.asm.alu_imm(Alu::Add, *place, (if i == 0 { a } else { w } * steps) as i32);
        }
    }

    fn row_of_w(&self, column: usize) -> Mem {
        let base = if column < 4 { W } else { W_4 };
        match column % 4 {
            0 => Mem::base(base),
            1 => Mem::indexed(base, W_STRIDE, 1),
            2 => Mem::indexed(base, W_STRIDE, 2),
            _ => Mem::indexed(base, W_STRIDE_3, 1),
        }
    }

    fn step(&mut self, u: usize) {
        let (a_bytes, w_bytes) = self.step_bytes();
        let vector = self.width.bytes();
        let passes = self.passes();
        for pass in 0..passes {
            let set = (u * passes + pass) % self.sets;
            for row in 0..self.shape.mr {
                let at = u * a_bytes + (row * passes + pass) * vector;
                self.asm.rm(ops::VMOVUPS, self.width, VReg(self.a + row as u8), Mem::base(A).offset(at as i32));
            }
            for column in 0..self.shape.nr {
                let at = self.row_of_w(column).offset((u * w_bytes) as i32);
                let (first, rows) = self.shape.prefetch;
                if pass == 0 && (first..first + rows).contains(&column) {
                    self.asm.prefetch_t1(self.row_of_w(column + 4).offset((u * w_bytes) as i32));
                }
                let (w, width) = (self.w, self.width);
                self.load(pass, at);
                let op = self.multiply_add();
                for row in 0..self.shape.mr {
                    self.asm.rvm(op, width, self.acc(set, row, column), VReg(self.a + row as u8), w);
                }
            }
        }
    }

    /// One step of one row of W, with one row of A.
    fn step_of_row(&mut self, column: usize, u: usize) {
        let (a_bytes, w_bytes) = self.step_bytes();
        let (width, vector) = (self.width, self.width.bytes());
        let a = VReg(self.a);
        for pass in 0..self.passes() {
            let (from, at) = (Mem::base(A_AT), Mem::base(W_AT).offset((u * w_bytes) as i32));
            self.load(pass, at);
            self.asm.rm(ops::VMOVUPS, width, a, from.offset((u * a_bytes + pass * vector) as i32));
            self.asm.rvm(self.multiply_add(), width, self.acc(0, 0, column), a, self.w);
        }
    }

    fn multiply_add(&self) -> ops::VOp {
        if self.shape.weight == Weight::Bf16Dot { ops::VDPBF16PS } else { ops::VFMADD231PS }
    }

    /// Loads the weights of a pass over a step.
    fn load(&mut self, pass: usize, at: Mem) {
        let (w, width) = (self.w, self.width);
        match (self.shape.weight, pass) {
            (Weight::F32 | Weight::Bf16Dot, _) => self.asm.rm(ops::VMOVUPS, width, w, at),
            (Weight::F16, _) => self.asm.rm(ops::VCVTPH2PS, width, w, at),
            (Weight::I8, _) => {
                self.asm.rm(ops::VPMOVSXBD, width, w, at);
                self.asm.rm(ops::VCVTDQ2PS, width, w, w);
            }
            (Weight::Bf16, 0) => {
                self.asm.rm(ops::VMOVDQU, width, w, at);
                self.asm.rmi(ops::VPSLLD_I, width, w, w, 16);
            }
            (Weight::Bf16, _) => self.asm.rvm(ops::VPAND, width, w, self.high_half, at),
        }
    }

    /// Adds up the lanes of four neighbouring accumulators at once and stores the four sums.
    fn reduce(&mut self, row: usize, first: usize) {
        // Beyond the last column any register may be summed: its sum goes to the padding.
        let four = [0, 1, 2, 3].map(|i| self.acc(0, row, (first + i).min(self.shape.nr - 1)));
        sum_lanes(&mut self.asm, self.width, four, self.w, VReg(self.a));
        let at = Mem::base(C).offset((first * 4) as i32);
        if self.shape.accumulate {
            self.asm.rvm(ops::VADDPS, Width::V128, four[0], four[0], at);
        }
        self.asm.mr(ops::VMOVUPS_ST, Width::V128, at, four[0]);
    }
}

/// Prefetches the first lines of the page after the one that `at` points to; `free` is overwritten.
pub(super) fn fetch_next_page(asm: &mut Assembler, at: Gpr, free: Gpr) {
    asm.lea(free, Mem::base(at).offset(PAGE));
    asm.alu_imm(Alu::And, free, -PAGE);
    for line in 0..LINES {
        asm.prefetch_t0(Mem::base(free).offset(64 * line));
    }
}

/// Adds up the lanes of four registers: the sums are then the four lanes of the first one. `t` and `u` are scratch.
pub(super) fn sum_lanes(asm: &mut Assembler, width: Width, [a, b, c, d]: [VReg; 4], t: VReg, u: VReg) {
    asm.rvm(ops::VUNPCKLPS, width, t, a, b);
    asm.rvm(ops::VUNPCKHPS, width, u, a, b);
    asm.rvm(ops::VADDPS, width, a, t, u);
    asm.rvm(ops::VUNPCKLPS, width, t, c, d);
    asm.rvm(ops::VUNPCKHPS, width, u, c, d);
    asm.rvm(ops::VADDPS, width, t, t, u);
    asm.rvmi(ops::VSHUFPS, width, u, a, t, 0x44);
    asm.rvmi(ops::VSHUFPS, width, a, a, t, 0xee);
    asm.rvm(ops::VADDPS, width, a, a, u);
    if width == Width::V512 {
        asm.vector(ops::VEXTRACTF64X4, width, crate::asm::Args::mr(t, a).imm(1));
        asm.rvm(ops::VADDPS, Width::V256, a, a, t);
    }
    asm.vector(ops::VEXTRACTF128, Width::V256, crate::asm::Args::mr(t, a).imm(1));
    asm.rvm(ops::VADDPS, Width::V128, a, a, t);
}
