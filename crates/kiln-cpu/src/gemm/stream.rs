//! Few rows with B[K, N] contiguous along n: sweeps over a few rows of B at a time, see [`sweep`](super::sweep).

use super::dot::Weight;
use super::kernel::{self, Format, Shape};
use super::pack::{Lanes, pack};
use super::scratch::Scratch;
use super::shares::Shares;
use super::small::{self, Shared};
use super::source::{Epilogue, Matrix, Operand, Tile};
use super::sweep::{self, DEPTH};
use super::{Gemm, GemmError, dot, part};
use crate::pool;
use kiln_ir::DType;
use std::ops::Range;

/// Columns of one task, the widest first that leaves enough tasks: B is read in runs this long.
const COLUMNS: [usize; 3] = [128, 64, 32];
/// Accumulators of one task: a part of the second level.
const TILE: usize = 32 << 10;
/// Tasks that K is split for, their columns, and the fewest rows of B in a part of K. The parts depend on the product
/// alone, so that sums do not depend on threads.
const TASKS: usize = 48;
const PART_COLUMNS: usize = 256;
const PART_ROWS: usize = 192;
/// Rows of A up to which K is split as far as that: the parts' tiles have to be added up. With more rows a part has more rows of B, and
/// columns go first.
const SPLIT_ROWS: usize = 3;
const MANY_PART_COLUMNS: usize = 64;
const MANY_PART_ROWS: usize = 384;

/// The number of parts that K is split into.
fn k_parts(gemm: &Gemm) -> usize {
    if gemm.m > SPLIT_ROWS {
        return (TASKS / gemm.n.div_ceil(MANY_PART_COLUMNS)).clamp(1, (gemm.k / MANY_PART_ROWS).max(1));
    }
    (TASKS / gemm.n.div_ceil(PART_COLUMNS)).clamp(1, (gemm.k / PART_ROWS).max(1))
}

/// The number of ranges that the columns are split into. They are as long as possible: memory is read best in long runs.
fn column_chunks(n: usize, k_parts: usize, threads: usize) -> usize {
    if threads == 1 {
        return 1;
    }
    if k_parts > 1 {
        return (3 * threads).div_ceil(k_parts).clamp(1, n.div_ceil(COLUMNS[1]));
    }
    let enough = COLUMNS.into_iter().find(|width| n / width >= 2 * threads);
    let most = (n / enough.unwrap_or(COLUMNS[2])).clamp(1, 2 * threads);
    // As many for each thread.
    if most > threads { most / threads * threads } else { most }
}

/// Runs a product.
///
/// # Safety
/// As for [`Gemm::run`]; B is of the type that `weight` names, with a column stride of one.
pub(super) unsafe fn run(
    gemm: &Gemm,
    a: &Operand<'_>,
    b: &Matrix,
    weight: Weight,
    epilogue: &dyn Epilogue,
) -> Result<(), GemmError> {
    let (m, n, k) = (gemm.m, gemm.n, gemm.k);
    let lanes = dot::lanes(gemm.isa);
    let groups = m.div_ceil(sweep::max_rows(gemm.isa));
    let (tall, short) = (m.div_ceil(groups), m / groups);
    // For each height of a group: the kernels for DEPTH rows of B, for the remaining ones, and for the remaining columns.
    let kernels = |mr| -> Result<_, GemmError> {
        let sweep = |depth| sweep::get(sweep::Shape { isa: gemm.isa, weight, mr, depth });
        let last = Shape { isa: gemm.isa, format: Format::F32, mr, nv: 1, accumulate: false };
        Ok((sweep(DEPTH)?, sweep(if k % DEPTH > 0 { k % DEPTH } else { DEPTH })?, kernel::get(last)?))
    };
    let kernels = [kernels(tall)?, kernels(short)?];
    // SAFETY: the operands are the caller's.
    let panels = unsafe { small::panels(gemm, a, groups) };
    let shared = Shared { a: panels.ptr(), b: b.data };
    let size = weight.size();
    let row_bytes = (b.row_stride * size as isize) as usize;
    let threads = small::threads(gemm, size);
    let parts = k_parts(gemm);
    // Tasks are ranges of whole vectors of columns; the last, if n is no multiple, packs the remainder.
    let (vectors, left) = (n / lanes, n % lanes);
    // With several threads, the parts of K are tasks too.
    let split = if threads > 1 { parts } else { 1 };
    let chunks = (m * n).div_ceil(TILE).max(column_chunks(n, parts, threads)).min(vectors);
    // Chunks of columns as equal as possible, and next to each other the parts of one.
    let tile_elements = if chunks > 0 { m * (part(vectors, chunks, 0).len() * lanes + PADDING) } else { 0 };
    let shares = (split > 1).then(|| Shares::<f32>::new(chunks, parts, tile_elements));
    pool::run(chunks * split + usize::from(left > 0), threads, &|task| {
        let Shared { a, b: data } = shared.get();
        let groups = (0..groups).map(|g| {
            let rows = part(m, groups, g);
            (rows.start, rows.len(), &kernels[usize::from(rows.len() != tall)])
        });
        let finish = |tile: *mut f32, stride: usize, first: usize, width: usize| {
            // SAFETY: the tile is this task's alone, and finished.
            unsafe {
                epilogue.apply(Tile {
                    data: tile.cast(),
                    dtype: DType::F32,
                    row_stride: stride,
                    row: 0,
                    rows: m,
                    column: first,
                    columns: width.min(n - first),
                });
            }
        };
        if task == chunks * split {
            let first = vectors * lanes;
            let (tile, packed) = (Scratch::take::<f32>(m * lanes), Scratch::take::<f32>(k * lanes));
            let from = Lanes { data, dtype: b.dtype, lane_stride: b.column_stride, k_stride: b.row_stride };
            // SAFETY: the panel holds k of one vector, the tile m rows of one.
            unsafe {
                pack::<f32>(gemm.isa, &from, first..n, lanes, 0..k, packed.ptr());
                for (row, _, (_, _, micro)) in groups {
                    let c = tile.ptr::<f32>().add(row * lanes).cast();
                    micro(a.add(row * k).cast(), packed.ptr(), c, k, lanes * 4, lanes * 4);
                }
            }
            return finish(tile.ptr(), lanes, first, lanes);
        }
        let vectors = part(vectors, chunks, task / split);
        let (first, width) = (vectors.start * lanes, vectors.len() * lanes);
        let stride = padded(width);
        let len = m * stride;
        // One part of K into a tile.
        let sum = |tile: *mut f32, p: usize| {
            let ks = rows_of(k, parts, p);
            // SAFETY: whole vectors of B's rows, of which the tile holds m.
            unsafe {
                std::ptr::write_bytes(tile, 0, len);
                for depth in ks.clone().step_by(DEPTH) {
                    let from = data.wrapping_add(depth.wrapping_mul(row_bytes).wrapping_add(first * size));
                    for (row, mr, (whole, last, _)) in groups.clone() {
                        let sweep = if ks.end - depth < DEPTH { last } else { whole };
                        let a = a.add(row * k + depth * mr).cast();
                        sweep(a, from, tile.add(row * stride).cast(), vectors.len(), row_bytes, stride * 4);
                    }
                }
            }
        };
        let Some(shares) = &shares else {
            let tile = Scratch::take::<f32>(len);
            let other = (parts > 1).then(|| Scratch::take::<f32>(len));
            sum(tile.ptr(), 0);
            for (p, other) in (1..parts).zip(other.iter().cycle()) {
                sum(other.ptr(), p);
                // SAFETY: both are this task's alone.
                unsafe { add(tile.ptr(), other.ptr(), len) };
            }
            return finish(tile.ptr(), stride, first, width);
        };
        let tiles = shares.tiles(task / split);
        // SAFETY: each part has a tile of its own; the last task to finish has exclusive access to all of them.
        unsafe {
            sum(tiles.add(task % split * tile_elements), task % split);
            if shares.is_last(task / split) {
                (1..parts).for_each(|p| add(tiles, tiles.add(p * tile_elements), len));
                finish(tiles, stride, first, width);
            }
        }
    });
    Ok(())
}

/// Part `p` of K, in whole sweeps but for the last.
fn rows_of(k: usize, parts: usize, p: usize) -> Range<usize> {
    let sweeps = part(k.div_ceil(DEPTH), parts, p);
    sweeps.start * DEPTH..k.min(sweeps.end * DEPTH)
}

/// The most accumulators that rows of a tile are padded by.
const PADDING: usize = 48;

/// The stride of rows of a tile: rows at a multiple of a page would compete for the same few lines of the first level.
fn padded(width: usize) -> usize {
    if width.is_multiple_of(256) { width + PADDING } else { width }
}

/// Adds `len` floats to others.
///
/// # Safety
/// Both are valid and not shared.
unsafe fn add(to: *mut f32, from: *const f32, len: usize) {
    // SAFETY: the caller's promise.
    let (to, from) = unsafe { (std::slice::from_raw_parts_mut(to, len), std::slice::from_raw_parts(from, len)) };
    for (to, from) in to.iter_mut().zip(from) {
        *to += from;
    }
}
