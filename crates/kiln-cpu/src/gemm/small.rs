//! Few rows: B is read once, in its own order, and never packed.
//!
//! With B[K, N] contiguous along n a block of columns stays in registers while rows stream past. With W[N, K] contiguous
//! along k each column is a dot product. Both run at the speed of memory for one row and keep that up for a few.

use super::dot::{self, Weight};
use super::kernel::{self, Format, Shape};
use super::pack::{Lanes, fill_rows, pack};
use super::scratch::Scratch;
use super::source::{Epilogue, Matrix, Operand, Tile};
use super::{Gemm, GemmError, part};
use crate::features::Isa;
use crate::pool;
use kiln_ir::DType;
use std::ops::Range;

/// Rows of A up to which streaming B beats packing it.
const STREAM_ROWS: usize = 6;
/// Rows of A up to which dot products beat packing W.
const DOT_ROWS: usize = 12;
/// The shortest K for dot products: adding up lanes must not dominate.
const DOT_K: usize = 64;
/// Bytes of B in one task: some ten microseconds of reading.
const TASK_BYTES: usize = 128 << 10;

/// How to run a product with few rows.
#[derive(Clone, Copy)]
pub(super) enum Path {
    /// Rows of B.
    Stream(Matrix),
    /// Dot products with the columns of B.
    Dot(Matrix, Weight),
}

/// The path for a product in f32, if it has few rows and a fitting B.
pub(super) fn choose(gemm: &Gemm, b: &Operand<'_>) -> Option<Path> {
    let Operand::Strided(b) = b else { return None };
    let weight = match b.dtype {
        DType::F32 => Weight::F32,
        DType::Bf16 => Weight::Bf16,
        DType::F16 => Weight::F16,
        _ => return None,
    };
    if gemm.isa == Isa::Portable || gemm.k == 0 {
        None
    } else if b.row_stride == 1 && gemm.k >= DOT_K && gemm.m <= DOT_ROWS {
        Some(Path::Dot(*b, weight))
    } else if b.column_stride == 1 && gemm.m <= STREAM_ROWS {
        Some(Path::Stream(*b))
    } else {
        None
    }
}

/// Runs a product with few rows.
///
/// # Safety
/// As for [`Gemm::run`].
pub(super) unsafe fn run(gemm: &Gemm, path: Path, a: &Operand<'_>, epilogue: &dyn Epilogue) -> Result<(), GemmError> {
    // SAFETY: the caller's promise.
    unsafe {
        match path {
            Path::Stream(b) => stream(gemm, a, &b, epilogue),
            Path::Dot(b, weight) => dots(gemm, a, &b, weight, epilogue),
        }
    }
}

/// Packs all of A as one panel: `[k][width]`.
unsafe fn panel_of(gemm: &Gemm, a: &Operand<'_>, rows: Range<usize>, to: *mut f32) {
    let (width, k) = (rows.len(), gemm.k);
    // SAFETY: `to` holds the panel; the operand is the caller's.
    unsafe {
        match a {
            Operand::Strided(m) => {
                let from = Lanes { data: m.data, dtype: m.dtype, lane_stride: m.row_stride, k_stride: m.column_stride };
                pack::<f32>(gemm.isa, &from, rows, width, 0..k, to);
            }
            Operand::Rows(source) => {
                let scratch = Scratch::take::<f32>(width * k);
                fill_rows::<f32>(*source, rows, 0..k, scratch.ptr());
                let from = Lanes { data: scratch.ptr(), dtype: DType::F32, lane_stride: k as isize, k_stride: 1 };
                pack::<f32>(gemm.isa, &from, 0..width, width, 0..k, to);
            }
            Operand::Columns(_) | Operand::Packed(_) => unreachable!("turned down by `Gemm::check`"),
        }
    }
}

/// Addresses that tasks share.
#[derive(Clone, Copy)]
struct Shared {
    a: *const f32,
    b: *const u8,
}
// SAFETY: only read.
unsafe impl Sync for Shared {}
impl Shared {
    fn get(&self) -> Shared {
        *self
    }
}

/// Vectors in a row of the tile for `m` rows.
fn stream_vectors(isa: Isa, m: usize) -> usize {
    (1..=16).rev().find(|nv| kernel::max_rows(isa, *nv) >= m && (isa == Isa::Avx512 || *nv <= 12)).unwrap_or(1)
}

unsafe fn stream(gemm: &Gemm, a: &Operand<'_>, b: &Matrix, epilogue: &dyn Epilogue) -> Result<(), GemmError> {
    let (m, n, k) = (gemm.m, gemm.n, gemm.k);
    let lanes = dot::lanes(gemm.isa);
    let format = match b.dtype {
        DType::Bf16 => Format::Bf16,
        DType::F16 => Format::F16,
        _ => Format::F32,
    };
    let most = stream_vectors(gemm.isa, m);
    let whole = n / lanes;
    let mut kernels = Vec::with_capacity(most);
    for nv in 1..=most.min(whole.max(1)) {
        kernels.push(kernel::get(Shape { isa: gemm.isa, format, mr: m, nv, accumulate: false, ahead: 8 })?);
    }
    let tail = kernel::get(Shape { isa: gemm.isa, format: Format::F32, mr: m, nv: 1, accumulate: false, ahead: 0 })?;
    let panel = Scratch::take::<f32>(m * k);
    // SAFETY: the panel holds A; the operands are the caller's.
    unsafe { panel_of(gemm, a, 0..m, panel.ptr()) };
    let shared = Shared { a: panel.ptr(), b: b.data };
    // Tasks are blocks of columns; the last, if n is no multiple of a vector, packs what is left over.
    let blocks = whole.div_ceil(most);
    let left = n % lanes;
    let row_bytes = b.row_stride * b.dtype.size_in_bits() as isize / 8;
    let size = format.size();
    let threads = if n * k * size < 2 * TASK_BYTES { 1 } else { gemm.threads };
    pool::run(blocks + usize::from(left > 0), threads, &|task| {
        let Shared { a, b: data } = shared.get();
        let tile = Scratch::take::<f32>(m * most * lanes);
        let (first, columns) = if task < blocks {
            let vectors = part(whole, blocks, task);
            let stride = vectors.len() * lanes * 4;
            // SAFETY: whole vectors of B's rows; the tile holds m rows of `most` vectors.
            unsafe {
                let at = data.add(vectors.start * lanes * size);
                kernels[vectors.len() - 1](a.cast(), at, tile.ptr(), k, row_bytes as usize, stride);
            }
            (vectors.start * lanes, vectors.len() * lanes)
        } else {
            let packed = Scratch::take::<f32>(k * lanes);
            let from = Lanes { data, dtype: b.dtype, lane_stride: b.column_stride, k_stride: b.row_stride };
            // SAFETY: the panel holds k rows of one vector.
            unsafe {
                pack::<f32>(gemm.isa, &from, n - left..n, lanes, 0..k, packed.ptr());
                tail(a.cast(), packed.ptr(), tile.ptr(), k, lanes * 4, lanes * 4);
            }
            (n - left, left)
        };
        let row_stride = if task < blocks { columns } else { lanes };
        let tile = Tile { data: tile.ptr(), dtype: DType::F32, row_stride, row: 0, rows: m, column: first, columns };
        // SAFETY: the tile is this task's alone.
        unsafe { epilogue.apply(tile) };
    });
    Ok(())
}

/// Columns of one epilogue tile of the dot path.
const DOT_TILE: usize = 64;

unsafe fn dots(
    gemm: &Gemm,
    a: &Operand<'_>,
    b: &Matrix,
    weight: Weight,
    epilogue: &dyn Epilogue,
) -> Result<(), GemmError> {
    let (m, n, k, isa) = (gemm.m, gemm.n, gemm.k, gemm.isa);
    let step = dot::step(isa, weight);
    let steps = k / step;
    let padded_steps = k.div_ceil(step);
    let tiles = m.div_ceil(dot::max_rows(isa));
    let nr = if m == 1 { 8 } else { 4 };
    let kernel = |mr, nr, accumulate| dot::get(dot::Shape { isa, weight, mr, nr, accumulate });
    // Per height of a row tile (the taller and the shorter), per width: the kernel, and the one for K's tail.
    let (tall, short) = (m.div_ceil(tiles), m / tiles);
    let mut kernels = Vec::with_capacity(2 * nr);
    for mr in [tall, short] {
        for width in 1..=nr {
            kernels.push((kernel(mr, width, false)?, kernel(mr, width, true)?));
        }
    }
    let blocked = Scratch::take::<f32>(m * padded_steps * step);
    for t in 0..tiles {
        let rows = part(m, tiles, t);
        // SAFETY: tile t's part of the blocked A; the operand is the caller's.
        unsafe { block_a(gemm, a, rows.clone(), weight, blocked.ptr::<f32>().add(rows.start * padded_steps * step)) };
    }
    let size = b.dtype.size_in_bits() / 8;
    let column_bytes = (b.column_stride * size as isize) as usize;
    let groups = n.div_ceil(DOT_TILE);
    let shared = Shared { a: blocked.ptr(), b: b.data };
    let threads = if n * k * size < 2 * TASK_BYTES { 1 } else { gemm.threads };
    let a_step = |rows: &Range<usize>| rows.len() * step;
    let tasks = groups.min(((n * k * size) / TASK_BYTES).max(4 * threads));
    pool::run(tasks, threads, &|task| {
        let Shared { a, b: data } = shared.get();
        let tile = Scratch::take::<f32>(m * DOT_TILE);
        for group in part(groups, tasks, task) {
            let columns = group * DOT_TILE..n.min((group + 1) * DOT_TILE);
            for first in columns.clone().step_by(nr) {
                let width = nr.min(columns.end - first);
                // SAFETY: rows `first..first + width` of W; the tile's rows hold DOT_TILE sums.
                unsafe {
                    let w = data.wrapping_add(first.wrapping_mul(column_bytes));
                    let mut padding = [0u8; 8 * 128];
                    if steps < padded_steps {
                        for row in 0..width {
                            let from = w.wrapping_add(row.wrapping_mul(column_bytes)).add(steps * step * size);
                            let to = padding.as_mut_ptr().add(row * step * size);
                            std::ptr::copy_nonoverlapping(from, to, (k - steps * step) * size);
                        }
                    }
                    for t in 0..tiles {
                        let rows = part(m, tiles, t);
                        let height = usize::from(rows.len() != tall);
                        let (main, tail) = kernels[height * nr + width - 1];
                        let a = a.add(rows.start * padded_steps * step);
                        let c = tile.ptr::<f32>().add(rows.start * DOT_TILE + first - columns.start).cast::<u8>();
                        main(a.cast(), w, c, steps, column_bytes, DOT_TILE * 4);
                        if steps < padded_steps {
                            let a = a.add(steps * a_step(&rows));
                            tail(a.cast(), padding.as_ptr(), c, 1, step * size, DOT_TILE * 4);
                        }
                    }
                }
            }
            let tile = Tile {
                data: tile.ptr(),
                dtype: DType::F32,
                row_stride: DOT_TILE,
                row: 0,
                rows: m,
                column: columns.start,
                columns: columns.len(),
            };
            // SAFETY: the tile is this task's alone.
            unsafe { epilogue.apply(tile) };
        }
    });
    Ok(())
}

/// Blocks rows of A for the dot kernels: `[step][row][lane]`, bf16 weights with even and odd elements apart, zeros after
/// the last k.
unsafe fn block_a(gemm: &Gemm, a: &Operand<'_>, rows: Range<usize>, weight: Weight, to: *mut f32) {
    let step = dot::step(gemm.isa, weight);
    let steps = gemm.k.div_ceil(step);
    let row = Scratch::take::<f32>(steps * step);
    let count = rows.len();
    for (i, r) in rows.enumerate() {
        // SAFETY: the row buffer holds all padded k; `to` holds `count` rows of them.
        unsafe {
            let padded = std::slice::from_raw_parts_mut(row.ptr::<f32>(), steps * step);
            padded[gemm.k..].fill(0.0);
            match a {
                Operand::Strided(m) if m.dtype == DType::F32 && m.column_stride == 1 => {
                    let from = m.data.cast::<f32>().offset(r as isize * m.row_stride);
                    std::ptr::copy_nonoverlapping(from, padded.as_mut_ptr(), gemm.k);
                }
                // Seen with the roles of lanes and k exchanged, a row is one k of contiguous lanes.
                Operand::Strided(m) => {
                    let from =
                        Lanes { data: m.data, dtype: m.dtype, lane_stride: m.column_stride, k_stride: m.row_stride };
                    pack::<f32>(gemm.isa, &from, 0..gemm.k, gemm.k, r..r + 1, padded.as_mut_ptr());
                }
                Operand::Rows(source) => source.fill(r, 0..gemm.k, padded.as_mut_ptr().cast()),
                Operand::Columns(_) | Operand::Packed(_) => unreachable!("turned down by `Gemm::check`"),
            }
            for (s, block) in padded.chunks_exact(step).enumerate() {
                let to = std::slice::from_raw_parts_mut(to.add((s * count + i) * step), step);
                if weight == Weight::Bf16 {
                    let (even, odd) = to.split_at_mut(step / 2);
                    for (pair, (even, odd)) in block.chunks_exact(2).zip(even.iter_mut().zip(odd)) {
                        (*even, *odd) = (pair[0], pair[1]);
                    }
                } else {
                    to.copy_from_slice(block);
                }
            }
        }
    }
}
