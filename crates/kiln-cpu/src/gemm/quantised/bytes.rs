//! Several rows of A times quantised blocks in bytes.
//!
//! Rows of A become integers for each group of elements that shares a scale of the blocks: of 22 bits, the precision of a sum
//! in f32, or of 16 and 8 where a lower precision allows it. Sums of a group have no rounding.
//!
//! ```text
//!  for each block of rows: limbs of A, shared                                 (`limbs`)
//!     for each few panels of columns                    (tasks of the pool)
//!        for each block of K, each panel: unpack it into the nearest cache     (`panels`)
//!           for each tile of rows: a register tile, added to the sums          (`tile`)
//!        the sums go to the epilogue
//! ```

use super::limbs::Limbs;
use super::panels::{self, COLUMNS, Panel};
use super::{BlockMatrix, exact, fixed, tile};
use crate::features::Isa;
use crate::gemm::scratch::Scratch;
use crate::gemm::source::{Epilogue, Matrix, Operand, RowSource, Tile};
use crate::gemm::{Gemm, GemmError, part};
use crate::pool;
use kiln_ir::DType;
use std::ops::Range;

/// Elements of a column that are unpacked at once: with their scales a half of the first cache.
const DEPTH: usize = 512;
/// Rows of a block: their sums with the columns of a task are a part of the second cache.
const MOST_ROWS: usize = 512;
/// The fewest rows of a block, for any K: blocks are unpacked again for each.
const SHORT_BLOCK: usize = 96;
/// Bytes of a block's limbs: a part of the last-level cache.
const LIMB_BYTES: usize = 16 << 20;
/// The most panels of a task.
const MOST_PANELS: usize = 4;
/// Tasks per thread, so that one on a descheduled thread is not waited for.
const TASKS_A_THREAD: usize = 4;

/// The fewest rows for which unpacking blocks to bytes pays.
const LEAST_ROWS: usize = 2;

/// Limbs per element of A for a product; `None` where it is not computed in bytes.
pub(in crate::gemm) fn limbs(gemm: &Gemm) -> Option<usize> {
    let able = gemm.isa == Isa::Avx512 && exact::available();
    (able && gemm.m >= LEAST_ROWS && gemm.k > 0 && gemm.tuning.stream != Some(false))
        .then(|| fixed::limbs(gemm.precision))
}

/// Runs a product of so many limbs. Blocks of rows with elements that have no such limbs are passed to `other`.
///
/// # Safety
/// As for [`Gemm::run`], on a machine that [`limbs`] found able.
pub(in crate::gemm) unsafe fn run(
    gemm: &Gemm,
    a: &Operand<'_>,
    b: &BlockMatrix,
    epilogue: &dyn Epilogue,
    limbs: usize,
    other: unsafe fn(&Gemm, &Operand<'_>, &BlockMatrix, &dyn Epilogue) -> Result<(), GemmError>,
) -> Result<(), GemmError> {
    let kind = panels::kind(b.format);
    let row_blocks = gemm.m.div_ceil((LIMB_BYTES / (gemm.k * limbs)).clamp(SHORT_BLOCK, MOST_ROWS));
    for i in 0..row_blocks {
        let rows = part(gemm.m, row_blocks, i);
        // SAFETY: the caller's promise; K is made of whole blocks.
        unsafe {
            match Limbs::new(gemm, a, rows.clone(), kind, limbs) {
                Some(a) => Block { gemm, a, b, epilogue, rows: rows.start, limbs }.multiply(),
                None => {
                    let from = RemainingRows { a, epilogue, row: rows.start };
                    let part = Gemm { m: rows.len(), ..*gemm };
                    match a {
                        Operand::Strided(a) => {
                            let size = (a.dtype.size_in_bits() / 8) as isize;
                            let data = a.data.wrapping_offset(rows.start as isize * a.row_stride * size);
                            other(&part, &Operand::Strided(Matrix { data, ..*a }), b, &from)?;
                        }
                        _ => other(&part, &Operand::Rows(&from), b, &from)?,
                    }
                }
            }
        }
    }
    Ok(())
}

/// A product from some row on.
struct RemainingRows<'a> {
    a: &'a Operand<'a>,
    epilogue: &'a dyn Epilogue,
    row: usize,
}

// SAFETY: operands of rows are sources, which are `Sync`.
unsafe impl Sync for RemainingRows<'_> {}

impl RowSource for RemainingRows<'_> {
    unsafe fn fill(&self, row: usize, columns: Range<usize>, to: *mut u8) {
        if let Operand::Rows(source) = self.a {
            // SAFETY: the caller's promise.
            unsafe { source.fill(self.row + row, columns, to) };
        }
    }
}

impl Epilogue for RemainingRows<'_> {
    unsafe fn apply(&self, tile: Tile) {
        // SAFETY: the caller's promise.
        unsafe { self.epilogue.apply(Tile { row: self.row + tile.row, ..tile }) };
    }
}

/// One block of rows.
struct Block<'a> {
    gemm: &'a Gemm,
    a: Limbs,
    b: &'a BlockMatrix,
    epilogue: &'a dyn Epilogue,
    /// The first row.
    rows: usize,
    limbs: usize,
}

impl Block<'_> {
    unsafe fn multiply(&self) {
        let threads = self.gemm.threads.clamp(1, pool::threads());
        let column_panels = self.gemm.n.div_ceil(COLUMNS);
        let each = self.gemm.tuning.tasks.unwrap_or(TASKS_A_THREAD).max(1);
        let wanted = if threads == 1 { 1 } else { threads * each };
        let column_tasks = column_panels.div_ceil(column_panels.div_ceil(wanted).min(MOST_PANELS));
        let few = threads > 1 && column_tasks < 2 * threads;
        let row_tasks = if few { (2 * threads).div_ceil(column_tasks).min(self.a.tiles()) } else { 1 };
        pool::run(column_tasks * row_tasks, threads, &|task| {
            let panels = part(column_panels, column_tasks, task / row_tasks);
            let tiles = part(self.a.tiles(), row_tasks, task % row_tasks);
            // SAFETY: tasks cover disjoint parts of the result.
            unsafe { self.task(panels, tiles) };
        });
    }

    /// The product of some tiles of rows and some panels of columns.
    unsafe fn task(&self, column_panels: Range<usize>, tiles: Range<usize>) {
        let (k, n, elements) = (self.gemm.k, self.gemm.n, self.b.format.elements());
        let kind = panels::kind(self.b.format);
        let rows = self.a.tile(tiles.start).start..self.a.tile(tiles.end - 1).end;
        let stride = column_panels.len() * COLUMNS;
        let sums = Scratch::take::<f32>(rows.len() * stride);
        let groups = DEPTH / kind.group;
        let (bytes, shared) = (Scratch::take::<u8>(DEPTH * COLUMNS), Scratch::take::<f32>(2 * groups * COLUMNS));
        let scales = shared.ptr::<f32>();
        let panel = Panel { bytes: bytes.ptr(), scales, addends: scales.wrapping_add(groups * COLUMNS) };
        let tall = self.a.tile(tiles.start).len();
        let kernels = [tall, tall - 1].map(|rows| tile::kernel(kind, self.limbs, rows));
        let columns = |panel: usize| panel * COLUMNS..n.min((panel + 1) * COLUMNS);
        let blocks = |start: usize| start / elements..k.min(start + DEPTH) / elements;
        for start in (0..k).step_by(DEPTH) {
            for column_panel in column_panels.clone() {
                // SAFETY: blocks that exist, and room for them.
                unsafe { panels::unpack(self.b, columns(column_panel), blocks(start), panel) };
                // The columns unpacked next are in pieces that are too short for the hardware prefetcher.
                let (next, next_start) = match column_panel + 1 {
                    next if next < column_panels.end => (columns(next), start),
                    _ => (columns(column_panels.start), start + DEPTH),
                };
                for t in tiles.clone() {
                    if next_start < k {
                        let some = part(next.len(), tiles.len(), t - tiles.start);
                        panels::fetch(self.b, next.start + some.start..next.start + some.end, blocks(next_start));
                    }
                    let of_tile = self.a.tile(t);
                    let first = (column_panel - column_panels.start) * COLUMNS;
                    // SAFETY: a tile's limbs, the panel, and their sums.
                    unsafe {
                        kernels[usize::from(of_tile.len() != tall)](tile::Call {
                            a: self.a.cursor(t, start),
                            panel,
                            groups: (k.min(start + DEPTH) - start) / kind.group,
                            c: sums.ptr::<f32>().add((of_tile.start - rows.start) * stride + first),
                            c_stride: stride,
                            add: start > 0,
                        });
                    }
                }
            }
        }
        let columns = column_panels.start * COLUMNS..n.min(column_panels.end * COLUMNS);
        // SAFETY: the sums are this task's alone, and finished.
        unsafe {
            self.epilogue.apply(Tile {
                data: sums.ptr(),
                dtype: DType::F32,
                row_stride: stride,
                row: self.rows + rows.start,
                rows: rows.len(),
                column: columns.start,
                columns: columns.len(),
            });
        }
    }
}
