//! Sources of operands and destinations of results: strided memory, or callbacks that a compiler plugs fused code into.

use kiln_ir::DType;
use std::ops::Range;

/// Elements in memory at `data + row · row_stride + column · column_stride`.
#[derive(Clone, Copy, Debug)]
pub struct Matrix {
    /// Element (0, 0).
    pub data: *const u8,
    /// Element type.
    pub dtype: DType,
    /// Elements from one row to the next.
    pub row_stride: isize,
    /// Elements from one column to the next.
    pub column_stride: isize,
}

// SAFETY: a description of memory; the caller that runs a product guarantees that it is valid.
unsafe impl Send for Matrix {}
// SAFETY: as above.
unsafe impl Sync for Matrix {}

/// Produces an operand row by row, for example with a fused prologue.
pub trait RowSource: Sync {
    /// Writes the elements `columns` of `row`, as accumulators, one after another to `to`.
    ///
    /// # Safety
    /// `to` has room for `columns.len()` accumulators.
    unsafe fn fill(&self, row: usize, columns: Range<usize>, to: *mut u8);

    /// Elements of a row that are produced together: ranges that begin and end at multiples of it are cheapest.
    fn grain(&self) -> usize {
        1
    }

    /// Writes the elements `columns` of some rows as panels of `width` columns, one after another: `to[panel][row][column]`, zeros after
    /// the last column. False, and nothing written, where filling rows is all that there is.
    ///
    /// # Safety
    /// `to` has room for `rows.len()` times as many accumulators as there are columns, rounded up to whole panels, and for a vector more.
    unsafe fn fill_panels(&self, _rows: Range<usize>, _columns: Range<usize>, _width: usize, _to: *mut u8) -> bool {
        false
    }

    /// Whether all of its elements are bf16, in accumulators that are f32.
    fn is_bf16(&self) -> bool {
        false
    }

    /// Whether its elements are bf16 that [`RowSource::fill_pairs`] packs.
    fn has_pairs(&self) -> bool {
        false
    }

    /// Writes panels as [`RowSource::fill_panels`] does, of words that hold the bf16 of two consecutive rows each, the first in the low half
    /// and zero for a row after the last. `rows` begins at an even one.
    ///
    /// # Safety
    /// The source has pairs, and `to` has room for as many words and for a vector more.
    unsafe fn fill_pairs(&self, _rows: Range<usize>, _columns: Range<usize>, _width: usize, _to: *mut u32) {}

    /// Writes the elements `columns` of some rows, `width` of them or fewer, transposed: `to[column][row]`, `width`
    /// accumulators for each column, with unspecified values for missing rows. False, and nothing written, where that is no
    /// cheaper than transposing filled rows.
    ///
    /// # Safety
    /// `to` has room for `columns.len() * width` accumulators.
    unsafe fn fill_panel(&self, _rows: Range<usize>, _columns: Range<usize>, _width: usize, _to: *mut u8) -> bool {
        false
    }
}

/// An operand of a product.
#[derive(Clone, Copy)]
pub enum Operand<'a> {
    /// Strided memory.
    Strided(Matrix),
    /// Rows made on demand: rows of A, or rows (k) of B.
    Rows(&'a dyn RowSource),
    /// Columns made on demand: `fill(n, ks, …)` gives the elements `ks` of B's column `n`. Only for B.
    Columns(&'a dyn RowSource),
    /// Packed beforehand. Only for B.
    Packed(&'a super::PackedB),
    /// Rows of quantised blocks, each a column. Only for B, in f32.
    Blocks(super::BlockMatrix),
}

/// An operand that packing threads share.
pub(super) struct SharedOperand<'a>(pub Operand<'a>);
// SAFETY: strided memory is only read, and row sources are `Sync`.
unsafe impl Sync for SharedOperand<'_> {}
impl<'a> SharedOperand<'a> {
    pub(super) fn get(&self) -> Operand<'a> {
        self.0
    }
}

/// A finished part of the result, in accumulators.
#[derive(Clone, Copy, Debug)]
pub struct Tile {
    /// The first accumulator. The tile may be overwritten.
    pub data: *mut u8,
    /// The accumulators' type.
    pub dtype: DType,
    /// Accumulators from one row to the next.
    pub row_stride: usize,
    /// First row of the result.
    pub row: usize,
    /// Rows.
    pub rows: usize,
    /// First column of the result.
    pub column: usize,
    /// Columns.
    pub columns: usize,
}

/// Takes finished tiles while they are in cache. Tiles come in any order and from several threads, and together cover
/// the result once.
pub trait Epilogue: Sync {
    /// Processes one tile.
    ///
    /// # Safety
    /// The tile's memory is valid and not shared during the call.
    unsafe fn apply(&self, tile: Tile);
}

impl<F: Fn(Tile) + Sync> Epilogue for F {
    unsafe fn apply(&self, tile: Tile) {
        self(tile);
    }
}
