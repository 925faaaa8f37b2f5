//! Micro-kernels of the first row panel, which pack the panel of B that they multiply with: shuffles and stores take turns with products, so
//! that packing costs next to nothing where there are few row panels.
//!
//! ```text
//!  rows of B (n contiguous)      one, two or four rows are interleaved to a unit of the panel
//!  columns of B (k contiguous)   a line of each column is copied, words of 32 columns × 4 units are transposed
//!          └──▶ panel[unit][32 columns] ──▶ acc[mr][2] += a · b      the other row panels read the same panel
//! ```

use super::kernel::{Format, Generator, Key, Shape, UNROLL, cached};
use super::words::Words;
use crate::asm::{Alu, Args, Cond, Gpr, KReg, MaskSize, Mem, Shift, Size, VReg, Width, ops};
use crate::memory::MemoryError;

/// The direction in which B is contiguous.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Along {
    /// Elements of a row, n.
    Rows,
    /// Elements of a column, k.
    Columns,
}

/// Everything a kernel's code depends on; the shape has two vectors of AVX-512 and a format with 32 bits a unit.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct PackingShape {
    pub shape: Shape,
    pub along: Along,
}

/// `(a, panel, c, units, b, b_stride, c_stride)`: units come [`units`] at a time; strides are in bytes, B's from row to row or from column to
/// column.
pub(super) type PackingFn = unsafe extern "C" fn(*const u8, *mut u8, *mut u8, usize, *const u8, isize, usize);

/// Units of one iteration.
pub(super) const fn units(along: Along) -> usize {
    match along {
        Along::Rows => UNROLL,
        Along::Columns => LINE / size_of::<u32>(),
    }
}

/// Bytes of a cache line.
const LINE: usize = 64;
/// Columns of a panel.
const COLUMNS: usize = 32;

/// The most rows of a tile that leave enough registers for packing.
pub(super) fn max_rows(along: Along) -> usize {
    match along {
        Along::Rows => 14,
        Along::Columns => 13,
    }
}

/// The kernel of a shape, generated on first use and kept for the life of the process.
pub(super) fn get(shape: PackingShape) -> Result<PackingFn, MemoryError> {
    let entry = cached(Key::Packing(shape), || generate(&shape))?;
    // SAFETY: the code follows the C convention with these arguments and is never freed.
    Ok(unsafe { std::mem::transmute::<*const u8, PackingFn>(entry as *const u8) })
}

const A: Gpr = Gpr::RDI;
const PANEL: Gpr = Gpr::RSI;
const K: Gpr = Gpr::RCX;
const PANEL_STRIDE: Gpr = Gpr::R8;
const C_STRIDE: Gpr = Gpr::R9;
const PANEL_STRIDE_3: Gpr = Gpr::R10;
/// Present column, or bytes from a row to the one that is fetched.
const AT: Gpr = Gpr::R11;
const FETCHED: Gpr = Gpr::RAX;
const FROM: Gpr = Gpr::RBX;
const STRIDE: Gpr = Gpr::RBP;
const STRIDE_3: Gpr = Gpr::R12;
/// The stack as it was, or bytes from a row to the nearer one that is fetched.
const FRAME: Gpr = Gpr::R13;
const SAVED: [Gpr; 4] = [FROM, STRIDE, STRIDE_3, FRAME];
/// Bytes of a unit of the panel.
const UNIT_BYTES: usize = 2 * 64;
/// Rows between the one that is packed and those that are fetched into the first level and into the second: rows a power of two apart
/// share a set of the first level, which has no room for more.
const NEAR: i32 = 8;
const AHEAD: i32 = 32;
/// Bytes between the line of a column that is packed and the one that is fetched.
const AHEAD_BYTES: i32 = 2 * LINE as i32;
/// Quarters of a vector after the first.
const QUARTERS: [(KReg, i64); 3] = [(KReg(1), 0x00f0), (KReg(2), 0x0f00), (KReg(3), 0xf000)];

fn generate(shape: &PackingShape) -> Vec<u8> {
    let mut g = Generator::new(&shape.shape);
    let units = units(shape.along);
    for saved in SAVED {
        g.asm.push(saved);
    }
    g.asm.mov(FROM, Gpr::R8);
    g.asm.mov(STRIDE, Gpr::R9);
    g.asm.load(C_STRIDE, Mem::base(Gpr::RSP).offset(8 + 8 * SAVED.len() as i32), Size::Q);
    g.asm.mov_imm(PANEL_STRIDE, UNIT_BYTES as i64);
    g.asm.mov_imm(PANEL_STRIDE_3, 3 * UNIT_BYTES as i64);
    g.asm.lea(STRIDE_3, Mem::indexed(STRIDE, STRIDE, 2));
    match shape.along {
        Along::Rows => {
            g.asm.imul_imm(AT, STRIDE, AHEAD);
            g.asm.imul_imm(FRAME, STRIDE, NEAR);
        }
        Along::Columns => {
            for (quarter, lanes) in QUARTERS {
                g.asm.mov_imm(Gpr::RAX, lanes);
                g.asm.kmov_from(MaskSize::D, quarter, Gpr::RAX);
            }
            // Lines of all columns, on the stack.
            g.asm.mov(FRAME, Gpr::RSP);
            g.asm.alu_imm(Alu::Sub, Gpr::RSP, (COLUMNS * LINE) as i32);
            g.asm.alu_imm(Alu::And, Gpr::RSP, -(LINE as i32));
        }
    }
    g.clear();
    let (main, done) = (g.asm.label(), g.asm.label());
    g.asm.shift_imm(Shift::Shr, K, units.trailing_zeros() as u8);
    g.asm.jcc(Cond::Equal, done);
    g.asm.align(32);
    g.asm.bind(main);
    match shape.along {
        Along::Rows => {
            for unit in 0..units {
                interleave(&mut g, unit);
                g.multiply(unit);
            }
            g.asm.alu_imm(Alu::Add, PANEL, (units * UNIT_BYTES) as i32);
            g.asm.alu_imm(Alu::Add, A, (shape.shape.mr * units * size_of::<u32>()) as i32);
        }
        Along::Columns => {
            copy_lines(&mut g);
            for part in 0..units / UNROLL {
                transpose(&mut g, part);
                for unit in 0..UNROLL {
                    g.step(unit);
                }
                g.asm.alu_imm(Alu::Add, PANEL, (UNROLL * UNIT_BYTES) as i32);
                g.asm.alu_imm(Alu::Add, A, (shape.shape.mr * UNROLL * size_of::<u32>()) as i32);
            }
        }
    }
    g.asm.dec(K);
    g.asm.jcc(Cond::NotEqual, main);
    g.asm.bind(done);
    g.store();
    if shape.along == Along::Columns {
        g.asm.mov(Gpr::RSP, FRAME);
    }
    for saved in SAVED.into_iter().rev() {
        g.asm.pop(saved);
    }
    g.asm.vzeroupper();
    g.asm.ret();
    g.asm.finish()
}

/// A unit of the rows at `FROM` in the registers of B and in the panel; goes on to the next rows.
fn interleave(g: &mut Generator, unit: usize) {
    let (b, first, second) = (g.b(), VReg(g.temps + 2), VReg(g.temps + 3));
    let row = |from: Gpr, n: usize| match n {
        0 => Mem::base(from),
        1 => Mem::indexed(from, STRIDE, 1),
        2 => Mem::indexed(from, STRIDE, 2),
        _ => Mem::indexed(from, STRIDE_3, 1),
    };
    let depth = g.shape.format.depth();
    for (distance, near) in [(AT, false), (FRAME, true)] {
        g.asm.lea(FETCHED, Mem::indexed(FROM, distance, 1));
        for at in (0..depth).map(|n| row(FETCHED, n)) {
            match near {
                true => g.asm.prefetch_t0(at),
                false => g.asm.prefetch_t1(at),
            }
        }
    }
    let row = |n: usize| row(FROM, n);
    match g.shape.format.words() {
        None => {
            for (v, &b) in b.iter().enumerate() {
                g.asm.rm(ops::VMOVUPS, Width::V512, b, Mem::base(FROM).offset(64 * v as i32));
            }
        }
        Some(Words::Pairs) => {
            g.asm.rm(ops::VMOVDQU, Width::V512, first, row(0));
            for (v, &b) in b.iter().enumerate() {
                let order: Vec<u8> = (0..16u16)
                    .flat_map(|lane| [16 * v as u16 + lane, 16 * v as u16 + lane + 32])
                    .flat_map(u16::to_le_bytes)
                    .collect();
                let order = g.asm.constant(&order);
                g.asm.rm(ops::VMOVUPS, Width::V512, b, order);
                g.asm.rvm(ops::VPERMI2W, Width::V512, b, first, row(1));
            }
        }
        Some(Words::Quads) => {
            for (to, n) in [(first, 0), (second, 2)] {
                g.asm.rm(ops::VMOVDQU, Width::V256, to, row(n));
                g.asm.rvmi(ops::VINSERTI64X4, Width::V512, to, to, row(n + 1), 1);
            }
            for (v, &b) in b.iter().enumerate() {
                let order: Vec<u8> =
                    (0..16u8).flat_map(|lane| [0, 32, 64, 96].map(|from| from + 16 * v as u8 + lane)).collect();
                let order = g.asm.constant(&order);
                g.asm.rm(ops::VMOVUPS, Width::V512, b, order);
                g.asm.rvm(ops::VPERMI2B, Width::V512, b, first, second);
            }
        }
    }
    for (v, &b) in b.iter().enumerate() {
        let at = Mem::base(PANEL).offset((unit * UNIT_BYTES + 64 * v) as i32);
        g.asm.mr(ops::VMOVUPS_ST, Width::V512, at, b);
    }
    match depth {
        1 => g.asm.alu(Alu::Add, FROM, STRIDE),
        depth => g.asm.lea(FROM, Mem::indexed(FROM, STRIDE, depth as u8)),
    }
}

/// Copies a line of every column: columns a power of two apart share a set of the first level, and lines would be evicted before all of
/// their words are read.
fn copy_lines(g: &mut Generator) {
    g.asm.mov(AT, FROM);
    for column in 0..COLUMNS {
        let (at, line) = (column % 4, VReg(g.temps + (column % 4) as u8));
        let from = match at {
            0 => Mem::base(AT),
            1 => Mem::indexed(AT, STRIDE, 1),
            2 => Mem::indexed(AT, STRIDE, 2),
            _ => Mem::indexed(AT, STRIDE_3, 1),
        };
        g.asm.prefetch_t1(from.offset(AHEAD_BYTES));
        g.asm.rm(ops::VMOVUPS, Width::V512, line, from);
        g.asm.mr(ops::VMOVUPS_ST, Width::V512, Mem::base(Gpr::RSP).offset((column * LINE) as i32), line);
        if at == 3 {
            g.asm.lea(AT, Mem::indexed(AT, STRIDE, 4));
        }
    }
    g.asm.alu_imm(Alu::Add, FROM, LINE as i32);
}

/// A quarter of the words of all lines, transposed into the panel.
fn transpose(g: &mut Generator, part: usize) {
    let t = |n: usize| VReg(g.temps + n as u8);
    let (lanes, low, high) = ([t(0), t(1), t(2), t(3)], t(4), t(5));
    for vector in 0..2 {
        // Lane 4 · q + i of the vector in quarter q of register i.
        for quarter in 0..4 {
            for (i, &to) in lanes.iter().enumerate() {
                let at = (16 * vector + 4 * quarter + i) * LINE + part * UNROLL * size_of::<u32>();
                let args = Args::rm(to, Mem::base(Gpr::RSP).offset(at as i32));
                let args = if quarter == 0 { args } else { args.mask(QUARTERS[quarter - 1].0) };
                g.asm.vector(ops::VBROADCASTF128, Width::V512, args);
            }
        }
        let [a, b, c, d] = lanes;
        g.asm.rvm(ops::VUNPCKLPS, Width::V512, low, a, b);
        g.asm.rvm(ops::VUNPCKHPS, Width::V512, high, a, b);
        g.asm.rvm(ops::VUNPCKLPS, Width::V512, a, c, d);
        g.asm.rvm(ops::VUNPCKHPS, Width::V512, b, c, d);
        g.asm.rvm(ops::VUNPCKLPD, Width::V512, c, low, a);
        g.asm.rvm(ops::VUNPCKHPD, Width::V512, d, low, a);
        g.asm.rvm(ops::VUNPCKLPD, Width::V512, low, high, b);
        g.asm.rvm(ops::VUNPCKHPD, Width::V512, high, high, b);
        for (unit, from) in [c, d, low, high].into_iter().enumerate() {
            let at = Mem::base(PANEL).offset((unit * UNIT_BYTES + LINE * vector) as i32);
            g.asm.mr(ops::VMOVUPS_ST, Width::V512, at, from);
        }
    }
}

/// Whether all of K is whole iterations.
pub(super) fn is_whole(format: Format, along: Along, k: usize) -> bool {
    k > 0 && k.is_multiple_of(units(along) * format.depth())
}

/// Units of K that blocks are multiples of: whole iterations of every kernel that there may be, so that all add up the same sums.
pub(super) fn grain(all: usize) -> usize {
    let whole = |along: &Along| all.is_multiple_of(units(*along));
    [Along::Columns, Along::Rows].iter().find(|along| whole(along)).map_or(1, |along| units(*along))
}

/// Whether there is code that packs panels of a format.
pub(super) fn is_possible(format: Format, along: Along) -> bool {
    match format {
        Format::F32 | Format::Bf16Dot => true,
        Format::I8Dot => along == Along::Columns || permutes_bytes(),
        _ => false,
    }
}

#[cfg(target_arch = "x86_64")]
fn permutes_bytes() -> bool {
    is_x86_feature_detected!("avx512vbmi")
}

#[cfg(not(target_arch = "x86_64"))]
fn permutes_bytes() -> bool {
    false
}
