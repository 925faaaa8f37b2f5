//! Few rows with W[N, K] contiguous along k: dot products of rows of A and of W, see [`dot`](super::dot).

use super::dot::{self, Weight};
use super::kernel::MicroFn;
use super::pack::{Lanes, pack, pack_as};
use super::scratch::Scratch;
use super::small::{self, Shared};
use super::source::{Epilogue, Matrix, Operand, SharedOperand, Tile};
use super::{Gemm, GemmError, part};
use crate::pool;
use kiln_ir::DType;
use std::ops::Range;

/// Most columns of one tile for the epilogue.
const TILE: usize = 64;
/// Rows of W in a tile of several rows of A.
const ROWS: usize = 4;
/// Elements of A from which several threads block it.
const BLOCK_ELEMENTS: usize = 16 << 10;

/// The kernels of one height and width of a tile.
#[derive(Clone, Copy)]
struct Kernels {
    /// Overwrites the tile.
    plain: MicroFn,
    /// The same, and each fetches a part of the next rows of W: all passes over the rows of A share the work, so that
    /// memory is busy throughout.
    fetching: [MicroFn; ROWS],
    /// How many of these there are.
    fetches: usize,
    /// Adds to the tile.
    adding: MicroFn,
}

impl Kernels {
    fn get(gemm: &Gemm, weight: Weight, mr: usize, nr: usize, passes: usize) -> Result<Kernels, GemmError> {
        let get = |accumulate, prefetch| dot::get(dot::Shape { isa: gemm.isa, weight, mr, nr, accumulate, prefetch });
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

/// One product, as its tasks see it.
struct Dots<'a> {
    gemm: &'a Gemm,
    shared: Shared,
    /// Bytes from one row of W to the next (wrapping), and of an element.
    w_stride: usize,
    size: usize,
    /// Elements of K in a step; whole steps, and steps with the padded one, below.
    step: usize,
    /// Words of A in a step of one row.
    words: usize,
    steps: usize,
    padded: usize,
    /// Tiles of rows, and the height of the taller ones.
    tiles: usize,
    tall: usize,
    /// Rows of W in a tile.
    nr: usize,
    /// By height (tall, short), then whole width and what is left over at the end of a tile.
    kernels: [[Kernels; 2]; 2],
}

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
    let both = |mr| -> Result<_, GemmError> {
        Ok([Kernels::get(gemm, weight, mr, nr, tiles)?, Kernels::get(gemm, weight, mr, left, tiles)?])
    };
    let kernels = [both(tall)?, both(short)?];
    let blocks = Scratch::take::<f32>(m * padded * words);
    let to = Blocks(blocks.ptr());
    let blocking = if m * k < BLOCK_ELEMENTS { 1 } else { gemm.threads };
    let source = SharedOperand(*a);
    pool::run(m, blocking, &|row| {
        let t = (0..tiles).find(|t| part(m, tiles, *t).contains(&row)).expect("tiles cover all rows");
        let rows = part(m, tiles, t);
        // SAFETY: this row's part of tile t's blocks; the operand is the caller's.
        unsafe {
            let to = to.get().add(rows.start * padded * words);
            block_row(gemm, &source.get(), row, (row - rows.start, rows.len()), weight, to);
        }
    });
    let size = weight.size();
    let dots = Dots {
        gemm,
        shared: Shared { a: blocks.ptr(), b: b.data },
        w_stride: (b.column_stride * size as isize) as usize,
        size,
        step,
        words,
        steps: k / step,
        padded,
        tiles,
        tall,
        nr,
        kernels,
    };
    let threads = small::threads(gemm, size);
    // The kernels' own groups of columns stay whole, so that sums do not depend on the cut.
    let groups = n.div_ceil(nr);
    let tasks = small::tasks(gemm, size, threads).clamp(1, groups);
    pool::run(tasks, threads, &|task| {
        let tile = Scratch::take::<f32>(m * TILE);
        let groups = part(groups, tasks, task);
        let all = groups.start * nr..n.min(groups.end * nr);
        for first in all.clone().step_by(TILE) {
            let columns = first..all.end.min(first + TILE);
            // SAFETY: the tile is this task's alone; the operands are the caller's.
            unsafe {
                dots.tile(columns.clone(), tile.ptr());
                epilogue.apply(Tile {
                    data: tile.ptr(),
                    dtype: DType::F32,
                    row_stride: TILE,
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
        for first in columns.clone().step_by(self.nr) {
            let width = self.nr.min(columns.end - first);
            let w = self.shared.b.wrapping_add(first.wrapping_mul(self.w_stride));
            for t in 0..self.tiles {
                let rows = part(self.gemm.m, self.tiles, t);
                let kernels = &self.kernels[usize::from(rows.len() != self.tall)][usize::from(width < self.nr)];
                let kernel = kernels.pass(t);
                // SAFETY: the blocks of this tile's rows and `width` rows of W; the tile's rows hold TILE sums.
                unsafe {
                    let a = self.shared.a.add(rows.start * self.padded * self.words);
                    let c = tile.add(rows.start * TILE + first - columns.start);
                    kernel(a.cast(), w, c.cast(), self.steps, self.w_stride, TILE * 4);
                }
            }
        }
        if self.steps < self.padded {
            // SAFETY: as above.
            unsafe { self.tail(columns, tile) };
        }
    }

    /// Adds what is left of K after the whole steps, from copies of W's ends padded with zeros.
    unsafe fn tail(&self, columns: Range<usize>, tile: *mut f32) {
        let mut ends = [0u8; 8 * 64];
        let (done, bytes) = (self.steps * self.step, self.step * self.size);
        for first in columns.clone().step_by(self.nr) {
            let width = self.nr.min(columns.end - first);
            // SAFETY: the ends of `width ≤ 8` rows of W, each shorter than a step of at most 64 bytes.
            unsafe {
                for column in 0..width {
                    let w = self.shared.b.wrapping_add((first + column).wrapping_mul(self.w_stride));
                    let to = ends.as_mut_ptr().add(column * bytes);
                    std::ptr::copy_nonoverlapping(w.add(done * self.size), to, (self.gemm.k - done) * self.size);
                }
                for t in 0..self.tiles {
                    let rows = part(self.gemm.m, self.tiles, t);
                    let kernels = &self.kernels[usize::from(rows.len() != self.tall)][usize::from(width < self.nr)];
                    let a = self.shared.a.add((rows.start * self.padded + self.steps * rows.len()) * self.words);
                    let c = tile.add(rows.start * TILE + first - columns.start);
                    (kernels.adding)(a.cast(), ends.as_ptr(), c.cast(), 1, bytes, TILE * 4);
                }
            }
        }
    }
}

/// The blocks of all rows, of which each task writes its own.
struct Blocks(*mut f32);
// SAFETY: as above.
unsafe impl Sync for Blocks {}
impl Blocks {
    fn get(&self) -> *mut f32 {
        self.0
    }
}

/// Blocks row `r` of A for the dot kernels, as row `i` of the `count` of a tile: `[step][row][lane]`, zeros after the last
/// k. For bf16 weights even and odd elements lie apart, unless A is bf16 itself.
unsafe fn block_row(gemm: &Gemm, a: &Operand<'_>, r: usize, (i, count): (usize, usize), weight: Weight, to: *mut f32) {
    let step = dot::step(gemm.isa, weight);
    let steps = gemm.k.div_ceil(step);
    if weight == Weight::Bf16Dot {
        let Operand::Strided(m) = a else { unreachable!("chosen for a strided A of bf16") };
        let from = Lanes { data: m.data, dtype: m.dtype, lane_stride: m.column_stride, k_stride: m.row_stride };
        let row = Scratch::take::<u16>(steps * step);
        // SAFETY: as below, with elements of 16 bits.
        unsafe {
            let padded = std::slice::from_raw_parts_mut(row.ptr::<u16>(), steps * step);
            padded[gemm.k..].fill(0);
            pack_as::<u16, u16>(&from, 0..gemm.k, gemm.k, r..r + 1, padded.as_mut_ptr());
            for (s, block) in padded.chunks_exact(step).enumerate() {
                let to = to.cast::<u16>().add((s * count + i) * step);
                std::ptr::copy_nonoverlapping(block.as_ptr(), to, step);
            }
        }
        return;
    }
    let row = Scratch::take::<f32>(steps * step);
    // SAFETY: the row buffer holds all padded k; `to` holds `count` rows of them.
    unsafe {
        let padded = std::slice::from_raw_parts_mut(row.ptr::<f32>(), steps * step);
        padded[gemm.k..].fill(0.0);
        match a {
            // Seen with the roles of lanes and k exchanged, a row is one k of many lanes.
            Operand::Strided(m) => {
                let from = Lanes { data: m.data, dtype: m.dtype, lane_stride: m.column_stride, k_stride: m.row_stride };
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
