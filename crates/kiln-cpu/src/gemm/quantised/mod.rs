//! Right operands of quantised blocks, W[N, K] as rows of blocks: unpacked in registers, never in memory as a whole.
//!
//! ```text
//!  one row of A    ──▶ rows      in fixed point, times the bytes of the blocks: integers without rounding    (`fixed`, `exact`)
//!  few rows of A   ──▶ rows      a few rows of W at a time: unpack 16 or 8 elements, multiply by every row of A   (`x86`)
//!  else, portable  ──▶ blocked   columns are unpacked into the panels of one task, then the usual kernels
//! ```

#[cfg(target_arch = "x86_64")]
mod exact;
#[cfg(target_arch = "x86_64")]
mod fixed;
mod rows;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod unpack;
#[cfg(target_arch = "x86_64")]
mod x86;

pub(super) use rows::{FEW_ROWS, run};

use super::source::RowSource;
use crate::features::Isa;
use kiln_ir::BlockFormat;
use std::ops::Range;

/// Rows of quantised blocks, each a column of B.
#[derive(Clone, Copy, Debug)]
pub struct BlockMatrix {
    /// The first block of column 0.
    pub data: *const u8,
    /// How blocks lie in bytes.
    pub format: BlockFormat,
    /// Bytes from one column to the next.
    pub stride: isize,
}

// SAFETY: a description of memory; whoever runs a product vouches for what it points to.
unsafe impl Send for BlockMatrix {}
// SAFETY: as above.
unsafe impl Sync for BlockMatrix {}

/// Columns of blocks, unpacked as they are asked for.
pub(super) struct Columns {
    pub isa: Isa,
    pub blocks: BlockMatrix,
}

/// Most elements of a block.
const BLOCK: usize = 256;

impl Columns {
    /// Unpacks whole blocks from `first` on, `count` of them.
    unsafe fn unpack(&self, row: *const u8, first: usize, count: usize, to: *mut f32) {
        let format = self.blocks.format;
        // SAFETY: blocks of the row, and room for their elements.
        unsafe {
            let from = row.add(first * format.bytes());
            #[cfg(target_arch = "x86_64")]
            if x86::unpack(self.isa, format, from, count, to) {
                return;
            }
            let bytes = std::slice::from_raw_parts(from, count * format.bytes());
            let mut elements = Vec::with_capacity(count * format.elements());
            format.dequantise(bytes, &mut elements);
            std::ptr::copy_nonoverlapping(elements.as_ptr(), to, elements.len());
        }
    }
}

impl RowSource for Columns {
    fn grain(&self) -> usize {
        self.blocks.format.elements()
    }

    unsafe fn fill(&self, row: usize, columns: Range<usize>, to: *mut u8) {
        let size = self.blocks.format.elements();
        let from = self.blocks.data.wrapping_offset(row as isize * self.blocks.stride);
        let to: *mut f32 = to.cast();
        let mut part = [0f32; BLOCK];
        let mut at = columns.start;
        while at < columns.end {
            let (block, inside) = (at / size, at % size);
            let whole = (columns.end - at) / size;
            // SAFETY: blocks of the row; `to` has room for the columns, the scratch for one block.
            unsafe {
                let place = to.add(at - columns.start);
                if inside == 0 && whole > 0 {
                    self.unpack(from, block, whole, place);
                    at += whole * size;
                } else {
                    let count = (size - inside).min(columns.end - at);
                    self.unpack(from, block, 1, part.as_mut_ptr());
                    std::ptr::copy_nonoverlapping(part.as_ptr().add(inside), place, count);
                    at += count;
                }
            }
        }
    }
}
