//! Few columns: a product is the transpose of one with few rows, `Cᵀ = Bᵀ · Aᵀ`, in which A takes the role of the weights and
//! is not packed either.

use super::pack::Lanes;
use super::scratch::Scratch;
use super::small::{self, Path};
use super::source::{Epilogue, Matrix, Operand, Tile};
use super::{Gemm, GemmError, pack};
use crate::features::Isa;

/// The most columns for which the columns of a product are dot products.
const DOT_COLUMNS: usize = 16;

/// The transposed product, if it has a path for few rows.
pub(super) struct Swapped<'a> {
    gemm: Gemm,
    left: Operand<'a>,
    path: Path,
}

impl<'a> Swapped<'a> {
    /// Swaps the operands of a product in f32 with few columns.
    pub(super) fn choose(gemm: &Gemm, a: &Operand<'a>, b: &Operand<'a>) -> Option<Swapped<'a>> {
        if gemm.n * 2 > gemm.m {
            return None;
        }
        let transposed = |m: &Matrix| Matrix { row_stride: m.column_stride, column_stride: m.row_stride, ..*m };
        let left = match b {
            Operand::Strided(b) => Operand::Strided(transposed(b)),
            Operand::Columns(source) => Operand::Rows(*source),
            _ => return None,
        };
        let Operand::Strided(a) = a else { return None };
        let gemm = Gemm { m: gemm.n, n: gemm.m, ..*gemm };
        let path = small::choose(&gemm, &left, &Operand::Strided(transposed(a)))?;
        // Transposing tiles back costs what dot products gain where there are many of them.
        if matches!(path, Path::Dot(..)) && gemm.m > DOT_COLUMNS {
            return None;
        }
        Some(Swapped { gemm, left, path })
    }

    /// Runs the product.
    ///
    /// # Safety
    /// As for [`Gemm::run`].
    pub(super) unsafe fn run(&self, epilogue: &dyn Epilogue) -> Result<(), GemmError> {
        let transposed = TransposedEpilogue { isa: self.gemm.isa, epilogue };
        // SAFETY: the caller's promise.
        unsafe { small::run(&self.gemm, self.path, &self.left, &transposed) }
    }
}

/// Transposes the tiles of a transposed product back.
struct TransposedEpilogue<'a> {
    isa: Isa,
    epilogue: &'a dyn Epilogue,
}

impl Epilogue for TransposedEpilogue<'_> {
    unsafe fn apply(&self, tile: Tile) {
        let transposed = Tile {
            row: tile.column,
            rows: tile.columns,
            column: tile.row,
            columns: tile.rows,
            row_stride: tile.rows,
            ..tile
        };
        // One row has the layout of one column.
        if tile.rows == 1 {
            // SAFETY: the tile is ours.
            return unsafe { self.epilogue.apply(transposed) };
        }
        let scratch = Scratch::take::<f32>(tile.rows * tile.columns);
        let from = Lanes { data: tile.data, dtype: tile.dtype, lane_stride: tile.row_stride as isize, k_stride: 1 };
        // SAFETY: the scratch holds the tile, which is ours.
        unsafe {
            pack::pack::<f32>(self.isa, &from, 0..tile.rows, tile.rows, 0..tile.columns, scratch.ptr());
            self.epilogue.apply(Tile { data: scratch.ptr(), ..transposed });
        }
    }
}
