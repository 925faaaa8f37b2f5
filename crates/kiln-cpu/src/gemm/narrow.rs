//! Few rows and few columns with B[K, N] contiguous along n, such as the first half of a low-rank update: the tile stays
//! in registers along K, and K is split to occupy the threads.

use super::dot::{self, Weight};
use super::kernel::{self, Format, MicroFn, Shape};
use super::pack::{Lanes, pack};
use super::scratch::Scratch;
use super::small::{self, Shared};
use super::source::{Epilogue, Matrix, Operand, Tile};
use super::{Gemm, GemmError, part};
use crate::pool;
use kiln_ir::DType;

/// The most columns.
pub(super) const COLUMNS: usize = 128;
/// Bytes of B in one part of K. The parts depend on the product alone, so that sums do not depend on threads.
const PART_BYTES: usize = 256 << 10;

/// Runs a product.
///
/// # Safety
/// As for [`Gemm::run`]; B is f32 or f16, as `weight` says, with a column stride of one.
pub(super) unsafe fn run(
    gemm: &Gemm,
    a: &Operand<'_>,
    b: &Matrix,
    weight: Weight,
    epilogue: &dyn Epilogue,
) -> Result<(), GemmError> {
    let (m, n, k, isa) = (gemm.m, gemm.n, gemm.k, gemm.isa);
    let lanes = dot::lanes(isa);
    let format = if weight == Weight::F16 { Format::F16 } else { Format::F32 };
    let groups = m.div_ceil(kernel::max_rows(isa, Format::F32));
    let (tall, short) = (m.div_ceil(groups), m / groups);
    // By height: two vectors of columns, one, and one packed as f32 for the remaining columns.
    let kernels = |mr| -> Result<[MicroFn; 3], GemmError> {
        let get = |format, nv| kernel::get(Shape { isa, format, mr, nv, accumulate: false });
        Ok([get(format, 2)?, get(format, 1)?, get(Format::F32, 1)?])
    };
    let kernels = [kernels(tall)?, kernels(short)?];
    // SAFETY: the operands are the caller's.
    let panels = unsafe { small::panels(gemm, a, groups) };
    let size = weight.size();
    let row_bytes = (b.row_stride * size as isize) as usize;
    let parts = (n * k * size).div_ceil(PART_BYTES).min(64);
    let stride = n.next_multiple_of(lanes);
    let sums = Scratch::take::<f32>(parts * m * stride);
    let shared = Shared { a: panels.ptr(), b: b.data };
    let tiles = Tiles(sums.ptr());
    pool::run(parts, gemm.threads, &|p| {
        let ks = part(k, parts, p);
        let Shared { a, b: data } = shared.get();
        let whole = n / lanes * lanes;
        let rest = (whole < n).then(|| Scratch::take::<f32>(ks.len() * lanes));
        // SAFETY: every part has a tile of its own; B is read inside its shape.
        unsafe {
            let tile = tiles.get().add(p * m * stride);
            if let Some(rest) = &rest {
                let from = Lanes { data, dtype: b.dtype, lane_stride: b.column_stride, k_stride: b.row_stride };
                pack::<f32>(isa, &from, whole..n, lanes, ks.clone(), rest.ptr());
            }
            for g in 0..groups {
                let rows = part(m, groups, g);
                let [two, one, left] = kernels[usize::from(rows.len() != tall)];
                let a = a.add(rows.start * k + ks.start * rows.len()).cast();
                let mut column = 0;
                while column < n {
                    let c = tile.add(rows.start * stride + column).cast();
                    if column == whole {
                        let rest = rest.as_ref().map_or(std::ptr::null(), |rest| rest.ptr::<u8>().cast_const());
                        left(a, rest, c, ks.len(), lanes * 4, stride * 4);
                        break;
                    }
                    let from = data.wrapping_add(ks.start.wrapping_mul(row_bytes).wrapping_add(column * size));
                    let vectors = if whole - column >= 2 * lanes { 2 } else { 1 };
                    let micro = if vectors == 2 { two } else { one };
                    micro(a, from, c, ks.len(), row_bytes, stride * 4);
                    column += vectors * lanes;
                }
            }
        }
    });
    // SAFETY: all parts are written, and no other thread uses them any more.
    unsafe {
        let (first, others) =
            std::slice::from_raw_parts_mut(sums.ptr::<f32>(), parts * m * stride).split_at_mut(m * stride);
        for other in others.chunks_exact(m * stride) {
            for (sum, other) in first.iter_mut().zip(other) {
                *sum += other;
            }
        }
        epilogue.apply(Tile {
            data: sums.ptr(),
            dtype: DType::F32,
            row_stride: stride,
            row: 0,
            rows: m,
            column: 0,
            columns: n,
        });
    }
    Ok(())
}

/// The tiles of all parts, of which each task writes its own.
struct Tiles(*mut f32);
// SAFETY: as above.
unsafe impl Sync for Tiles {}
impl Tiles {
    fn get(&self) -> *mut f32 {
        self.0
    }
}
