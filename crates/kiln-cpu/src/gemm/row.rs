//! One row times a small W[N, K] whose K is known at compile time: one call computes the whole product.
//!
//! ```text
//!  a (in registers where it fits) · 8 rows of W ─▶ 8 sums of lanes ─▶ c; then the next 8 rows
//! ```
//!
//! [`dots`](super::dots) does the same for any number of rows and for weights that do not fit a cache; what it prepares for
//! each product costs more than a product of this size.

use super::dot::{Order, PART, Weight, fetch_next_page, lanes, order_of_rows, sum_lanes};
use super::kernel::{Key, cached};
use crate::asm::{Alu, Args, Assembler, Cond, Gpr, KReg, MaskSize, Mem, VReg, Width, ops};
use crate::features::Isa;
use crate::memory::MemoryError;

/// Rows of W per iteration; a product has at least as many.
pub(crate) const ROWS: usize = 8;
/// The longest K: beyond it, the setup of `dots` does not matter.
const MOST_K: usize = 4096;
/// Bytes of a weight up to which it is likely in a near cache, where rows side by side are faster for any length.
const NEAR: usize = 96 << 10;

/// `(a, w, c, iterations, w_stride)`; the stride in bytes.
pub(crate) type RowFn = unsafe extern "C" fn(*const u8, *const u8, *mut u8, usize, usize);

/// Everything the code depends on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Shape {
    isa: Isa,
    weight: Weight,
    k: usize,
    order: Order,
}

/// The code for a type of weights and their N and K; `None` where there is none. `chosen` is whether tuning selects rows one
/// after the other.
pub(crate) fn get(
    isa: Isa,
    weight: kiln_ir::DType,
    (n, k): (usize, usize),
    chosen: Option<bool>,
) -> Result<Option<RowFn>, MemoryError> {
    let Some(weight) = Weight::of(weight) else { return Ok(None) };
    let whole = k.is_multiple_of(lanes(isa));
    if isa == Isa::Portable || k == 0 || k > MOST_K || (weight != Weight::F32 && !whole) {
        return Ok(None);
    }
    let far = chosen.is_some() || n * k * weight.size() > NEAR;
    let order = if far { order_of_rows(k, chosen) } else { Order::Steps };
    code(Shape { isa, weight, k, order }).map(Some)
}

fn code(shape: Shape) -> Result<RowFn, MemoryError> {
    let entry = cached(Key::Row(shape), || generate(&shape))?;
    // SAFETY: the code follows the C convention with these arguments and is never freed.
    Ok(unsafe { std::mem::transmute::<*const u8, RowFn>(entry as *const u8) })
}

const A: Gpr = Gpr::RDI;
const W: Gpr = Gpr::RSI;
const C: Gpr = Gpr::RDX;
const ITERATIONS: Gpr = Gpr::RCX;
const W_STRIDE: Gpr = Gpr::R8;
const W_STRIDE_3: Gpr = Gpr::R10;
/// The fifth row of an iteration.
const W_4: Gpr = Gpr::R11;
const STEPS: Gpr = Gpr::RAX;
const A_AT: Gpr = Gpr::R9;
/// The row of W that is being multiplied, where they come one after the other.
const W_AT: Gpr = Gpr::R11;
const TAIL: KReg = KReg(1);
/// Unroll factor of the loop over a long K, in steps.
const UNROLL: usize = 4;

struct Generator {
    shape: Shape,
    asm: Assembler,
    width: Width,
    /// Whole vectors of K, and elements after them.
    steps: usize,
    left: usize,
    /// The first register of `a`, where all of it is kept; else the one that holds a part.
    a: u8,
    kept: bool,
    temp: VReg,
    /// The mask of the end of K without mask registers.
    mask: VReg,
}

fn generate(shape: &Shape) -> Vec<u8> {
    let (width, registers) = if shape.isa == Isa::Avx512 { (Width::V512, 32) } else { (Width::V256, 16) };
    let (steps, left) = (shape.k / lanes(shape.isa), shape.k % lanes(shape.isa));
    let a = ROWS as u8;
    // Sums, a temporary and a mask beside it.
    let kept = ROWS + steps + usize::from(left > 0) + 2 <= registers;
    let temp = VReg(registers as u8 - 1);
    let asm = Assembler::new();
    let mut g = Generator { shape: *shape, asm, width, steps, left, a, kept, temp, mask: VReg(registers as u8 - 2) };
    g.emit();
    g.asm.finish()
}

impl Generator {
    fn emit(&mut self) {
        let vector = self.width.bytes();
        self.asm.lea(W_STRIDE_3, Mem::indexed(W_STRIDE, W_STRIDE, 2));
        if self.left > 0 {
            if self.width == Width::V512 {
                self.asm.mov_imm(STEPS, (1 << self.left) - 1);
                self.asm.kmov_from(MaskSize::D, TAIL, STEPS);
            } else {
                let lanes = (0..8).flat_map(|i| (if i < self.left { u32::MAX } else { 0 }).to_le_bytes());
                let mask = self.asm.constant(&lanes.collect::<Vec<u8>>());
                self.asm.rm(ops::VMOVUPS, self.width, self.mask, mask);
            }
        }
        if self.kept {
            for step in 0..self.steps {
                let at = Mem::base(A).offset((step * vector) as i32);
                self.asm.rm(ops::VMOVUPS, self.width, VReg(self.a + step as u8), at);
            }
            if self.left > 0 {
                self.load_end(VReg(self.a + self.steps as u8), Mem::base(A).offset((self.steps * vector) as i32));
            }
        }
        let next = self.asm.label();
        self.asm.align(32);
        self.asm.bind(next);
        self.asm.lea(W_4, Mem::indexed(W, W_STRIDE, 4));
        for row in 0..ROWS as u8 {
            self.asm.rvm(ops::VPXOR, Width::V128, VReg(row), VReg(row), VReg(row));
        }
        let moved = match (self.shape.order, self.kept) {
            (Order::Steps, true) => self.multiply_kept(),
            (Order::Rows, true) => self.multiply_rows(),
            (_, false) => self.multiply_long(),
        };
        let (t, u) = (self.temp, VReg(self.a));
        // The register of a long K's part is free by now; a kept `a` is not.
        let spare = if self.kept { self.mask } else { u };
        for first in [0, 4] {
            let rows = [0, 1, 2, 3].map(|i| VReg(first + i));
            sum_lanes(&mut self.asm, self.width, rows, t, spare);
            self.asm.mr(ops::VMOVUPS_ST, Width::V128, Mem::base(C).offset(4 * i32::from(first)), rows[0]);
        }
        if self.kept && self.left > 0 && self.width == Width::V256 {
            let lanes = (0..8).flat_map(|i| (if i < self.left { u32::MAX } else { 0 }).to_le_bytes());
            let mask = self.asm.constant(&lanes.collect::<Vec<u8>>());
            self.asm.rm(ops::VMOVUPS, self.width, self.mask, mask);
        }
        self.asm.alu_imm(Alu::Add, C, 4 * ROWS as i32);
        self.asm.lea(W, Mem::indexed(W, W_STRIDE, 8));
        if moved > 0 {
            self.asm.alu_imm(Alu::Sub, W, moved as i32);
        }
        self.asm.dec(ITERATIONS);
        self.asm.jcc(Cond::NotEqual, next);
        self.asm.vzeroupper();
        self.asm.ret();
    }

    /// All of K, `a` in registers.
    fn multiply_kept(&mut self) -> usize {
        for step in 0..self.steps {
            self.step(VReg(self.a + step as u8), step * self.vector_bytes());
        }
        if self.left > 0 {
            self.end(VReg(self.a + self.steps as u8), self.steps * self.vector_bytes());
        }
        0
    }

    /// All of K in a loop; returns the bytes by which W has advanced.
    fn multiply_long(&mut self) -> usize {
        let (a, bytes, vector) = (VReg(self.a), self.vector_bytes(), self.width.bytes());
        self.asm.mov(A_AT, A);
        let iterations = self.steps / UNROLL;
        if iterations > 0 {
            self.asm.mov_imm(STEPS, iterations as i64);
            let again = self.asm.label();
            self.asm.bind(again);
            for u in 0..UNROLL {
                self.asm.rm(ops::VMOVUPS, self.width, a, Mem::base(A_AT).offset((u * vector) as i32));
                self.step(a, u * bytes);
            }
            self.asm.alu_imm(Alu::Add, A_AT, (UNROLL * vector) as i32);
            for w in [W, W_4] {
                self.asm.alu_imm(Alu::Add, w, (UNROLL * bytes) as i32);
            }
            self.asm.dec(STEPS);
            self.asm.jcc(Cond::NotEqual, again);
        }
        let rest = self.steps % UNROLL;
        for u in 0..rest {
            self.asm.rm(ops::VMOVUPS, self.width, a, Mem::base(A_AT).offset((u * vector) as i32));
            self.step(a, u * bytes);
        }
        if self.left > 0 {
            self.load_end(a, Mem::base(A_AT).offset((rest * vector) as i32));
            self.end(a, rest * bytes);
        }
        iterations * UNROLL * bytes
    }

    /// All of K of one row after the other, `a` in registers.
    fn multiply_rows(&mut self) -> usize {
        let (bytes, mut asked) = (self.vector_bytes(), 0);
        self.asm.mov(W_AT, W);
        for row in 0..ROWS {
            if row > 0 {
                self.asm.alu(Alu::Add, W_AT, W_STRIDE);
            }
            if row * self.shape.k * self.shape.weight.size() >= asked {
                fetch_next_page(&mut self.asm, W_AT, STEPS);
                asked += PART;
            }
            for step in 0..self.steps {
                self.add(row, VReg(self.a + step as u8), Mem::base(W_AT).offset((step * bytes) as i32));
            }
            if self.left > 0 {
                let end = Mem::base(W_AT).offset((self.steps * bytes) as i32);
                self.add_end(row, VReg(self.a + self.steps as u8), end);
            }
        }
        0
    }

    /// Bytes of W per vector of K.
    fn vector_bytes(&self) -> usize {
        lanes(self.shape.isa) * self.shape.weight.size()
    }

    fn row(&self, row: usize, offset: usize) -> Mem {
        let base = if row < 4 { W } else { W_4 };
        let at = match row % 4 {
            0 => Mem::base(base),
            1 => Mem::indexed(base, W_STRIDE, 1),
            2 => Mem::indexed(base, W_STRIDE, 2),
            _ => Mem::indexed(base, W_STRIDE_3, 1),
        };
        at.offset(offset as i32)
    }

    /// Adds the products of one vector of K for each row.
    fn step(&mut self, a: VReg, offset: usize) {
        for row in 0..ROWS {
            self.add(row, a, self.row(row, offset));
        }
    }

    /// The same with the remainder of K.
    fn end(&mut self, a: VReg, offset: usize) {
        for row in 0..ROWS {
            self.add_end(row, a, self.row(row, offset));
        }
    }

    /// Adds the products of one vector of K to a row's sum.
    fn add(&mut self, row: usize, a: VReg, at: Mem) {
        let sum = VReg(row as u8);
        match self.shape.weight {
            Weight::F32 => self.asm.rvm(ops::VFMADD231PS, self.width, sum, a, at),
            Weight::F16 => {
                self.asm.rm(ops::VCVTPH2PS, self.width, self.temp, at);
                self.asm.rvm(ops::VFMADD231PS, self.width, sum, a, self.temp);
            }
            Weight::I8 => {
                self.asm.rm(ops::VPMOVSXBD, self.width, self.temp, at);
                self.asm.rm(ops::VCVTDQ2PS, self.width, self.temp, self.temp);
                self.asm.rvm(ops::VFMADD231PS, self.width, sum, a, self.temp);
            }
            Weight::Bf16 | Weight::Bf16Dot => {
                self.asm.rm(ops::VPMOVZXWD, self.width, self.temp, at);
                self.asm.rmi(ops::VPSLLD_I, self.width, self.temp, self.temp, 16);
                self.asm.rvm(ops::VFMADD231PS, self.width, sum, a, self.temp);
            }
        }
    }

    /// The same with the remainder of K.
    fn add_end(&mut self, row: usize, a: VReg, at: Mem) {
        let sum = VReg(row as u8);
        if self.width == Width::V512 {
            self.asm.vector(ops::VFMADD231PS, self.width, Args::rvm(sum, a, at).mask(TAIL));
        } else {
            self.asm.rvm(ops::VMASKMOVPS, self.width, self.temp, self.mask, at);
            self.asm.rvm(ops::VFMADD231PS, self.width, sum, a, self.temp);
        }
    }

    fn load_end(&mut self, to: VReg, at: Mem) {
        if self.width == Width::V512 {
            self.asm.vector(ops::VMOVUPS, self.width, Args::rm(to, at).mask(TAIL).zero());
        } else {
            self.asm.rvm(ops::VMASKMOVPS, self.width, to, self.mask, at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::{bf16, f16};

    /// The sums of `n` rows of bytes with a row of A, in an order.
    fn sums(isa: Isa, weight: Weight, (n, k): (usize, usize), order: Order, a: &[f32], w: &[u8]) -> Vec<u32> {
        let code = code(Shape { isa, weight, k, order }).unwrap();
        let mut c = vec![0f32; n];
        // SAFETY: `n` is a multiple of the rows of an iteration, and `w` holds as many.
        unsafe { code(a.as_ptr().cast(), w.as_ptr(), c.as_mut_ptr().cast(), n / ROWS, k * weight.size()) };
        c.into_iter().map(f32::to_bits).collect()
    }

    #[test]
    fn both_orders_give_the_sums_of_a_plain_loop() {
        let isas = Isa::available().filter(|isa| *isa != Isa::Portable);
        for (isa, k) in isas.flat_map(|isa| [16, 32, 40, 48, 64, 100, 288, 300, 512].map(|k| (isa, k))) {
            for weight in [Weight::F32, Weight::F16, Weight::Bf16, Weight::I8] {
                if weight != Weight::F32 && k % lanes(isa) > 0 {
                    continue;
                }
                let n = 2 * ROWS;
                let number = |i: usize| ((i * 37 + i / 11) % 33) as f32 / 8.0 - 2.0;
                let value = |i: usize| if weight == Weight::I8 { (8.0 * number(i)).trunc() } else { number(i) };
                let a: Vec<f32> = (0..k).map(|i| number(i * 5 + 3)).collect();
                let w: Vec<u8> = (0..n * k)
                    .flat_map(|i| match weight {
                        Weight::F32 => value(i).to_le_bytes().to_vec(),
                        Weight::F16 => f16::from_f32(value(i)).to_le_bytes().to_vec(),
                        Weight::I8 => vec![value(i) as i8 as u8],
                        _ => bf16::from_f32(value(i)).to_le_bytes().to_vec(),
                    })
                    .collect();
                // Multiples of 1/64 well below 2^18: every order of summing is exact.
                let plain = (0..n).map(|r| (0..k).map(|i| a[i] * value(r * k + i)).sum::<f32>().to_bits());
                let plain: Vec<u32> = plain.collect();
                for order in [Order::Steps, Order::Rows] {
                    assert_eq!(sums(isa, weight, (n, k), order, &a, &w), plain, "{isa:?} {weight:?} {k} {order:?}");
                }
            }
        }
    }
}
