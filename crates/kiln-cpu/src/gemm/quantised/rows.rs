//! Few rows of A times rows of quantised blocks: the blocks are read once, in the order of memory.

use super::BlockMatrix;
#[cfg(target_arch = "x86_64")]
use super::exact;
#[cfg(target_arch = "x86_64")]
use super::fixed::limbs;
#[cfg(target_arch = "x86_64")]
use super::x86::{self, Call};
use crate::features::Isa;
use crate::gemm::pack::fill_rows;
use crate::gemm::scratch::Scratch;
use crate::gemm::source::{Epilogue, Operand, Tile};
use crate::gemm::{Gemm, GemmError, part, small};
use crate::pool;
use kiln_ir::DType;

/// The most rows of A for which blocks are unpacked again for each few of them rather than into panels.
pub(in crate::gemm) const FEW_ROWS: usize = 16;
/// Columns of one tile for the epilogue.
const TILE: usize = 64;
const LONG_TILE: usize = 512;
const ONE_ROW: usize = 2;
/// Rows of blocks that all rows of A are multiplied with before the next ones are read.
const AT_ONCE: usize = 4;

/// Rows of A as contiguous floats.
struct Rows {
    data: *const f32,
    stride: isize,
    _own: Option<Scratch>,
}

// SAFETY: only read.
unsafe impl Sync for Rows {}

impl Rows {
    unsafe fn of(gemm: &Gemm, a: &Operand<'_>) -> Rows {
        let (m, k) = (gemm.m, gemm.k);
        if let Operand::Strided(a) = a
            && a.dtype == DType::F32
            && a.column_stride == 1
        {
            return Rows { data: a.data.cast(), stride: a.row_stride, _own: None };
        }
        let own = Scratch::take::<f32>(m * k);
        let to = own.ptr::<f32>();
        // SAFETY: the scratch holds all rows; the operand is the caller's.
        unsafe {
            match a {
                Operand::Rows(source) => fill_rows::<f32>(*source, 0..m, 0..k, to),
                Operand::Strided(a) => crate::gemm::pack::copy_rows(gemm.isa, a, m, k, to),
                _ => unreachable!("refused by `Gemm::check`"),
            }
        }
        Rows { data: to, stride: k as isize, _own: Some(own) }
    }
}

/// Runs a product with few rows of A, on a target with code for it.
///
/// # Safety
/// As for [`Gemm::run`].
#[cfg(target_arch = "x86_64")]
pub(in crate::gemm) unsafe fn run(
    gemm: &Gemm,
    a: &Operand<'_>,
    b: &BlockMatrix,
    epilogue: &dyn Epilogue,
) -> Result<(), GemmError> {
    let (m, n, k) = (gemm.m, gemm.n, gemm.k);
    debug_assert!(gemm.isa != Isa::Portable && k.is_multiple_of(b.format.elements()));
    let blocks = k / b.format.elements();
    let bytes = n * blocks * b.format.bytes();
    let threads = small::threads_for(gemm, bytes);
    // SAFETY: the operands are the caller's.
    let rows = unsafe { Rows::of(gemm, a) };
    let tiles = m.div_ceil(x86::ROWS);
    let (tall, short) = (m.div_ceil(tiles), m / tiles);
    let kernels = [tall, short].map(|rows| x86::kernel(gemm.isa, b.format, rows));
    let (exact, arrange) = exact::kernel(b.format, limbs(gemm.precision));
    let fixed = if m == 1 && gemm.isa == Isa::Avx512 && exact::available() {
        // SAFETY: the row has K elements, and the target is this machine's.
        unsafe { arrange(rows.data, k) }
    } else {
        None
    };
    let stride = if m <= ONE_ROW { LONG_TILE } else { TILE };
    let grain = if fixed.is_some() { exact::SIDE_BY_SIDE } else { 1 };
    let tasks = small::tasks_for(gemm, bytes, threads).clamp(1, n.div_ceil(grain));
    pool::run(tasks, threads, &|task| {
        let (rows, b) = (&rows, b);
        let tile = Scratch::take::<f32>(m * stride);
        let all = part(n.div_ceil(grain), tasks, task);
        let all = all.start * grain..n.min(all.end * grain);
        for first in all.clone().step_by(stride) {
            let columns = first..all.end.min(first + stride);
            let whole = if fixed.is_some() { 0..0 } else { columns.clone() };
            if let Some(row) = &fixed {
                // SAFETY: rows of blocks that exist, a row of A for their format, and sums in this task's tile.
                unsafe {
                    exact(exact::Call {
                        w: b.data.wrapping_offset(first as isize * b.stride),
                        w_stride: b.stride,
                        rows: columns.len(),
                        blocks,
                        a: row,
                        c: tile.ptr(),
                    });
                }
            }
            // One row of A takes all rows of blocks in one call; for several tiles of rows the blocks stay in the nearest cache.
            let step = if tiles == 1 { columns.len() } else { AT_ONCE };
            for at in whole.step_by(step) {
                for t in 0..tiles {
                    let part = part(m, tiles, t);
                    let kernel = kernels[usize::from(part.len() != tall)];
                    // SAFETY: rows of blocks and of A that exist, and their sums in this task's tile.
                    unsafe {
                        kernel(Call {
                            w: b.data.wrapping_offset(at as isize * b.stride),
                            w_stride: b.stride,
                            rows: step.min(columns.end - at),
                            blocks,
                            a: rows.data.wrapping_offset(part.start as isize * rows.stride),
                            a_stride: rows.stride,
                            c: tile.ptr::<f32>().add(part.start * stride + at - columns.start),
                            c_stride: stride,
                        });
                    }
                }
            }
            // SAFETY: the tile is this task's alone, and finished.
            unsafe {
                epilogue.apply(Tile {
                    data: tile.ptr(),
                    dtype: DType::F32,
                    row_stride: stride,
                    row: 0,
                    rows: m,
                    column: columns.start,
                    columns: columns.len(),
                });
            }
        }
    });
    Ok(())
}

/// Runs a product with few rows of A, on a target with code for it: there is none here.
///
/// # Safety
/// As for [`Gemm::run`].
#[cfg(not(target_arch = "x86_64"))]
pub(in crate::gemm) unsafe fn run(
    _gemm: &Gemm,
    _a: &Operand<'_>,
    _b: &BlockMatrix,
    _epilogue: &dyn Epilogue,
) -> Result<(), GemmError> {
    unreachable!("only targets of x86-64 have few rows")
}
