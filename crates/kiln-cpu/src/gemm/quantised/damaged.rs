//! Blocks whose scale or minimum is infinite or NaN, as a damaged checkpoint has them.
//!
//! The kernels scale sums of integers, or add an offset times the scale: ∞ · (1 + 0) is ∞ there, where ∞ · 1 + ∞ · 0 is NaN. In
//! either case a sum with such a block is not finite. So results that are not finite are checked before they reach the
//! epilogue: in columns with such blocks they become the sums of the dequantised elements.

use super::{BlockMatrix, left_row};
use crate::gemm::Gemm;
use crate::gemm::scratch::Scratch;
use crate::gemm::source::{Epilogue, Operand, SharedOperand, Tile};

/// An epilogue that corrects the results of damaged blocks and passes them on.
pub(in crate::gemm) struct Corrected<'a> {
    gemm: &'a Gemm,
    a: SharedOperand<'a>,
    b: &'a BlockMatrix,
    epilogue: &'a dyn Epilogue,
}

impl<'a> Corrected<'a> {
    pub(in crate::gemm) fn new(
        gemm: &'a Gemm,
        a: &Operand<'a>,
        b: &'a BlockMatrix,
        epilogue: &'a dyn Epilogue,
    ) -> Corrected<'a> {
        Corrected { gemm, a: SharedOperand(*a), b, epilogue }
    }

    /// The bytes of a column's blocks.
    ///
    /// # Safety
    /// The column exists.
    unsafe fn column(&self, column: usize) -> &[u8] {
        let bytes = self.gemm.k / self.b.format.elements() * self.b.format.bytes();
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts(self.b.data.offset(column as isize * self.b.stride), bytes) }
    }

    /// Corrects a tile with results that are not finite.
    ///
    /// # Safety
    /// As for [`Epilogue::apply`].
    #[cold]
    unsafe fn correct(&self, tile: &Tile) {
        let own = Scratch::take::<f32>(self.gemm.k);
        let mut weights = Vec::new();
        for j in 0..tile.columns {
            // SAFETY: elements of the tile.
            let result = |i: usize| unsafe { tile.data.cast::<f32>().add(i * tile.row_stride + j) };
            // SAFETY: as above.
            let wrong = |i: &usize| unsafe { !result(*i).read().is_finite() };
            if !(0..tile.rows).any(|i| wrong(&i)) {
                continue;
            }
            // SAFETY: a column of the product.
            let blocks = unsafe { self.column(tile.column + j) };
            if !self.b.format.is_damaged(blocks) {
                continue;
            }
            weights.clear();
            self.b.format.dequantise(blocks, &mut weights);
            for i in (0..tile.rows).filter(wrong) {
                // SAFETY: a row of the product, which has K elements.
                unsafe {
                    let row = left_row(self.gemm, &self.a.get(), tile.row + i, &own);
                    let row = std::slice::from_raw_parts(row, self.gemm.k);
                    let sum: f64 = row.iter().zip(&weights).map(|(&a, &w)| f64::from(a) * f64::from(w)).sum();
                    result(i).write(sum as f32);
                }
            }
        }
    }
}

impl Epilogue for Corrected<'_> {
    unsafe fn apply(&self, tile: Tile) {
        // SAFETY: the tile's rows, and the caller's promise.
        unsafe {
            let row =
                |i: usize| std::slice::from_raw_parts(tile.data.cast::<f32>().add(i * tile.row_stride), tile.columns);
            if !(0..tile.rows).all(|i| all_finite(row(i))) {
                self.correct(&tile);
            }
            self.epilogue.apply(tile);
        }
    }
}

/// Whether all are finite: only then is the product with zero zero.
fn all_finite(values: &[f32]) -> bool {
    let mut lanes = [0f32; 16];
    let chunks = values.chunks_exact(lanes.len());
    let rest = chunks.remainder();
    for chunk in chunks {
        lanes.iter_mut().zip(chunk).for_each(|(lane, value)| *lane += value * 0.0);
    }
    lanes.iter_mut().zip(rest).for_each(|(lane, value)| *lane += value * 0.0);
    lanes.iter().all(|lane| *lane == 0.0)
}
