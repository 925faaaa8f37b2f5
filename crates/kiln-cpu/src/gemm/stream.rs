//! Few rows with B[K, N] contiguous along n: sweeps over a few rows of B at a time, see [`sweep`](super::sweep).

use super::dot::Weight;
use super::kernel::{self, Format, Shape};
use super::pack::{Lanes, pack};
use super::scratch::Scratch;
use super::small::{Shared, TASK_BYTES, panel_of};
use super::source::{Epilogue, Matrix, Operand, Tile};
use super::sweep::{self, DEPTH};
use super::{Gemm, GemmError, dot, part};
use crate::pool;
use kiln_ir::DType;

/// Fewest columns of one task of the streaming path: B is read in runs this long.
const STREAM_COLUMNS: usize = 128;
/// Accumulators of one task of the streaming path: a part of the second level.
const STREAM_TILE: usize = 32 << 10;

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
    // For each height of a group: the kernels for DEPTH rows of B, for those left over, and for columns left over.
    let kernels = |mr| -> Result<_, GemmError> {
        let sweep = |depth| sweep::get(sweep::Shape { isa: gemm.isa, weight, mr, depth });
        let last = Shape { isa: gemm.isa, format: Format::F32, mr, nv: 1, accumulate: false };
        Ok((sweep(DEPTH)?, sweep(if k % DEPTH > 0 { k % DEPTH } else { DEPTH })?, kernel::get(last)?))
    };
    let kernels = [kernels(tall)?, kernels(short)?];
    let panels = Scratch::take::<f32>(m * k);
    for g in 0..groups {
        let rows = part(m, groups, g);
        // SAFETY: group g's part of the packed A; the operands are the caller's.
        unsafe { panel_of(gemm, a, rows.clone(), panels.ptr::<f32>().add(rows.start * k)) };
    }
    let shared = Shared { a: panels.ptr(), b: b.data };
    let size = weight.size();
    let row_bytes = (b.row_stride * size as isize) as usize;
    let threads = if n * k * size < 2 * TASK_BYTES { 1 } else { gemm.threads.clamp(1, pool::threads()) };
    // Tasks are ranges of whole vectors of columns; the last, if n is no multiple, packs what is left over.
    let (vectors, left) = (n / lanes, n % lanes);
    let wanted = match threads {
        1 => 1,
        _ if n < 2 * threads * STREAM_COLUMNS => threads.min(n.div_ceil(STREAM_COLUMNS)),
        _ => 2 * threads,
    };
    let tasks = (m * n).div_ceil(STREAM_TILE).next_multiple_of(wanted).min(vectors);
    pool::run(tasks + usize::from(left > 0), threads, &|task| {
        let Shared { a, b: data } = shared.get();
        let vectors = if task < tasks { part(vectors, tasks, task) } else { vectors..vectors + 1 };
        let (first, width) = (vectors.start * lanes, vectors.len() * lanes);
        // Rows that lie a multiple of a page apart would compete for the same few lines of the first level.
        let stride = if width.is_multiple_of(256) { width + 48 } else { width };
        let tile = Scratch::take::<f32>(m * stride);
        let groups = (0..groups).map(|g| {
            let rows = part(m, groups, g);
            (rows.start, rows.len(), &kernels[usize::from(rows.len() != tall)])
        });
        // SAFETY: whole vectors of B's rows, of which the tile holds m; the last task's panel holds k of one vector.
        unsafe {
            if task < tasks {
                std::ptr::write_bytes(tile.ptr::<f32>(), 0, m * stride);
                for depth in (0..k).step_by(DEPTH) {
                    let from = data.wrapping_add(depth.wrapping_mul(row_bytes).wrapping_add(first * size));
                    for (row, mr, (whole, last, _)) in groups.clone() {
                        let sweep = if k - depth < DEPTH { last } else { whole };
                        let a = a.add(row * k + depth * mr).cast();
                        let c = tile.ptr::<f32>().add(row * stride).cast();
                        sweep(a, from, c, vectors.len(), row_bytes, stride * 4);
                    }
                }
            } else {
                let packed = Scratch::take::<f32>(k * lanes);
                let from = Lanes { data, dtype: b.dtype, lane_stride: b.column_stride, k_stride: b.row_stride };
                pack::<f32>(gemm.isa, &from, first..n, lanes, 0..k, packed.ptr());
                for (row, _, (_, _, micro)) in groups {
                    let c = tile.ptr::<f32>().add(row * lanes).cast();
                    micro(a.add(row * k).cast(), packed.ptr(), c, k, lanes * 4, lanes * 4);
                }
            }
            epilogue.apply(Tile {
                data: tile.ptr(),
                dtype: DType::F32,
                row_stride: stride,
                row: 0,
                rows: m,
                column: first,
                columns: width.min(n - first),
            });
        }
    });
    Ok(())
}
