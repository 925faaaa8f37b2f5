//! Few rows with W[N, K] contiguous along k: dot products of rows of A and of W, see [`dot`](super::dot).

use super::blocks::Blocks;
use super::dot::{self, Order, Weight};
use super::kernel::MicroFn;
use super::scratch::Scratch;
use super::small;
use super::source::{Epilogue, Matrix, Operand, Tile};
use super::{Gemm, GemmError, part};
use crate::pool;
use kiln_ir::DType;
use std::ops::Range;

/// The most columns of one tile for the epilogue, and of one with so few rows that a call of the epilogue would matter.
const TILE: usize = 64;
const LONG_TILE: usize = 512;
const FEW_ROWS: usize = 2;
/// Rows of W in a tile of several rows of A.
const ROWS: usize = 4;
/// The most bytes of A that are read for every few rows of W: half of a second level. A longer K is taken in parts.
const A_BYTES: usize = 512 << 10;

/// The kernels of one height and width of a tile.
#[derive(Clone, Copy)]
struct Kernels {
    /// Overwrites the tile.
    plain: MicroFn,
    /// The same, and each prefetches a part of the next rows of W: all passes over the rows of A share the work, so that memory
    /// is busy throughout.
    fetching: [MicroFn; ROWS],
    /// The number of these.
    fetches: usize,
    /// Adds to the tile.
    adding: MicroFn,
}

impl Kernels {
    fn get(gemm: &Gemm, weight: Weight, mr: usize, nr: usize, passes: usize) -> Result<Kernels, GemmError> {
        let order = if gemm.m == 1 { dot::order_of_rows(gemm.k, gemm.tuning.row_by_row) } else { Order::Steps };
        let get =
            |accumulate, prefetch| dot::get(dot::Shape { isa: gemm.isa, weight, mr, nr, order, accumulate, prefetch });
        let plain = get(false, (0, 0))?;
        let fetches = if nr == ROWS { passes.min(ROWS) } else { 0 };
        let mut fetching = [plain; ROWS];
        for (i, kernel) in fetching[..fetches].iter_mut().enumerate() {
            let rows = part(ROWS, fetches, i);
            *kernel = get(false, (rows.start, rows.len()))?;
        }
        Ok(Kernels { plain, fetching, fetches, adding: get(true, (0, 0))? })
    }

    /// The kernel of one of the passes over the rows of A.
    fn pass(&self, pass: usize) -> MicroFn {
        if pass < self.fetches { self.fetching[pass] } else { self.plain }
    }
}

/// One product, shared by its tasks.
struct Dots<'a> {
    gemm: &'a Gemm,
    blocks: Blocks<'a>,
    w: *const u8,
    /// Bytes from one row of W to the next (wrapping), and of an element.
    w_stride: usize,
    size: usize,
    /// Elements of K in a step; whole steps, and steps with the padded one, below.
    step: usize,
    /// Words of A in a step of one row.
    words: usize,
    steps: usize,
    padded: usize,
    /// Parts of K.
    parts: usize,
    /// Tiles of rows, and the height of the taller ones.
    tiles: usize,
    tall: usize,
    /// Rows of W in a tile.
    nr: usize,
    /// Accumulators from one row of the result to the next.
    stride: usize,
    /// By height (tall, short), then whole width and remainder at the end of a tile.
    kernels: [[Kernels; 2]; 2],
}

// SAFETY: the weights are only read, and blocks are `Sync`.
unsafe impl Sync for Dots<'_> {}

/// Runs a product.
///
/// # Safety
/// As for [`Gemm::run`]; B is of the type that `weight` names, with a row stride of one.
pub(super) unsafe fn run(
    gemm: &Gemm,
    a: &Operand<'_>,
    b: &Matrix,
    weight: Weight,
    epilogue: &dyn Epilogue,
) -> Result<(), GemmError> {
    let (m, n, k) = (gemm.m, gemm.n, gemm.k);
    let step = dot::step(gemm.isa, weight);
    let words = dot::a_words(gemm.isa, weight);
    let padded = k.div_ceil(step);
    let tiles = m.div_ceil(dot::max_rows(gemm.isa, weight));
    let (tall, short) = (m.div_ceil(tiles), m / tiles);
    let nr = if m == 1 { 8 } else { ROWS };
    let left = match n % nr {
        0 => nr,
        left => left,
    };
    // Looking kernels up takes as long as a thousand multiply-adds.
    let both = |mr| -> Result<_, GemmError> {
        let whole = Kernels::get(gemm, weight, mr, nr, tiles)?;
        Ok([whole, if left == nr { whole } else { Kernels::get(gemm, weight, mr, left, tiles)? }])
    };
    let taller = both(tall)?;
    let kernels = [taller, if short == tall { taller } else { both(short)? }];
    let size = weight.size();
    let threads = small::threads(gemm, size);
    // SAFETY: the operands are the caller's.
    let blocks = unsafe { Blocks::new(gemm, a, weight, tiles, threads) };
    let dots = Dots {
        gemm,
        blocks,
        w: b.data,
        w_stride: (b.column_stride * size as isize) as usize,
        size,
        step,
        words,
        steps: k / step,
        padded,
        parts: (m * padded * words * 4).div_ceil(A_BYTES).clamp(1, padded),
        tiles,
        tall,
        nr,
        stride: if m <= FEW_ROWS { LONG_TILE } else { TILE },
        kernels,
    };
    // The kernels' own groups of columns stay whole, so that sums do not depend on the split.
    let groups = n.div_ceil(nr);
    let tasks = small::tasks(gemm, size, threads).clamp(1, groups);
    pool::run(tasks, threads, &|task| {
        let tile = Scratch::take::<f32>(m * dots.stride);
        let groups = part(groups, tasks, task);
        let all = groups.start * nr..n.min(groups.end * nr);
        for first in all.clone().step_by(dots.stride) {
            let columns = first..all.end.min(first + dots.stride);
            // SAFETY: the tile is this task's alone; the operands are the caller's.
            unsafe {
                dots.tile(columns.clone(), tile.ptr());
                epilogue.apply(Tile {
                    data: tile.ptr(),
                    dtype: DType::F32,
                    row_stride: dots.stride,
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

impl Dots<'_> {
    /// All rows of A times some columns of B, into `tile`.
    unsafe fn tile(&self, columns: Range<usize>, tile: *mut f32) {
        let blocks = self.blocks.get();
        for p in 0..self.parts {
            let steps = part(self.steps, self.parts, p);
            for first in columns.clone().step_by(self.nr) {
                let width = self.nr.min(columns.end - first);
                let skipped = first.wrapping_mul(self.w_stride).wrapping_add(steps.start * self.step * self.size);
                let w = self.w.wrapping_add(skipped);
                for t in 0..self.tiles {
                    let rows = part(self.gemm.m, self.tiles, t);
                    let kernels = &self.kernels[usize::from(rows.len() != self.tall)][usize::from(width < self.nr)];
                    let kernel = if p == 0 { kernels.pass(t) } else { kernels.adding };
                    // SAFETY: the blocks of this tile's rows and `width` rows of W; the tile's rows hold `stride` sums.
                    unsafe {
                        let a = blocks.add((rows.start * self.padded + steps.start * rows.len()) * self.words);
                        let c = tile.add(rows.start * self.stride + first - columns.start);
                        kernel(a.cast(), w, c.cast(), steps.len(), self.w_stride, self.stride * 4);
                    }
                }
            }
        }
        if self.steps < self.padded {
            // SAFETY: as above.
            unsafe { self.tail(columns, blocks, tile) };
        }
    }

    /// Adds the remainder of K after the whole steps, from copies of W's ends padded with zeros.
    unsafe fn tail(&self, columns: Range<usize>, blocks: *const f32, tile: *mut f32) {
        let mut ends = [0u8; 8 * 64];
        let (done, bytes) = (self.steps * self.step, self.step * self.size);
        for first in columns.clone().step_by(self.nr) {
            let width = self.nr.min(columns.end - first);
            // SAFETY: the ends of `width ≤ 8` rows of W, each shorter than a step of at most 64 bytes.
            unsafe {
                for column in 0..width {
                    let w = self.w.wrapping_add((first + column).wrapping_mul(self.w_stride));
                    let to = ends.as_mut_ptr().add(column * bytes);
                    std::ptr::copy_nonoverlapping(w.add(done * self.size), to, (self.gemm.k - done) * self.size);
                }
                for t in 0..self.tiles {
                    let rows = part(self.gemm.m, self.tiles, t);
                    let kernels = &self.kernels[usize::from(rows.len() != self.tall)][usize::from(width < self.nr)];
                    let a = blocks.add((rows.start * self.padded + self.steps * rows.len()) * self.words);
                    let c = tile.add(rows.start * self.stride + first - columns.start);
                    (kernels.adding)(a.cast(), ends.as_ptr(), c.cast(), 1, bytes, self.stride * 4);
                }
            }
        }
    }
}
