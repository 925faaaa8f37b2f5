//! Right operands of quantised blocks, W[N, K] as rows of blocks: unpacked in registers, never in memory as a whole.
//!
//! ```text
//!  one row of A    ──▶ rows      in fixed point, times the bytes of the blocks: integers without rounding    (`fixed`, `exact`)
//!  several         ──▶ bytes     the same in register tiles: rows of limbs times unpacked panels            (`limbs`, `panels`, `tile`)
//!  without the byte products of AVX-512, or where a row has elements that are no such limbs:
//!  few rows of A   ──▶ rows      a few rows of W at a time: unpack 16 or 8 elements, multiply by every row of A   (`x86`)
//!  else, portable  ──▶ blocked   columns are unpacked into the panels of one task, then the usual kernels    (`panels`, `unpack`)
//! ```
//!
//! # Fixed point
//!
//! On a machine with AVX-512 VNNI rows of A are put into fixed point, 22 bits relative to the largest of the 16 or 32 elements
//! that share a scale of the blocks (21 for one row of Q8_0), in three limbs of a byte: products of bytes are then exact in
//! integers, and the error is at most 2⁻²² (2⁻²¹) of that largest element times the sizes of its group's weights. That is the
//! error of a sum in f32 with terms of that size (about 5 · 10⁻⁶ of the largest logit after 30 layers), and more than that
//! where the largest elements meet weights that are zero; the error bound of `kiln_inspect::bounds` includes it. A lower
//! precision takes two limbs or one. Rows that are not finite, tiny or huge, and other machines, multiply in f32 what
//! dequantising first would give: few rows unpack a vector of weights in registers (four bits are an index into a table of 16
//! scaled floats, one permutation), many unpack the panels of one task.
//!
//! # Order of memory
//!
//! With one row of A, four rows of blocks are read side by side, so that the limbs are read once for four; lines are prefetched
//! in the order of memory, after a TLB warm-up of their pages. With several, 32 columns at a time are unpacked to bytes in the
//! nearest cache, words of four k transposed first, for register tiles of 6 rows × 32 columns.
//!
//! # Scales that are not finite
//!
//! A scale or minimum that is infinite or NaN gives what the dequantised elements give, on every path: results are corrected
//! on the way to the epilogue (`damaged`). Freezing never unpacks blocks.

#[cfg(target_arch = "x86_64")]
pub(super) mod bytes;
mod damaged;
#[cfg(target_arch = "x86_64")]
mod exact;
#[cfg(target_arch = "x86_64")]
mod fixed;
#[cfg(target_arch = "x86_64")]
mod limbs;
#[cfg(target_arch = "x86_64")]
mod panels;
mod rows;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod tile;
#[cfg(target_arch = "x86_64")]
mod unpack;
#[cfg(target_arch = "x86_64")]
mod x86;

pub(super) use damaged::Corrected;
pub(super) use rows::{FEW_ROWS, run};

use super::Gemm;
use super::pack::copy_rows;
use super::scratch::Scratch;
use super::source::{Matrix, Operand, RowSource};
use crate::features::Isa;
use kiln_ir::{BlockFormat, DType};
use std::ops::Range;

/// Rows of quantised blocks, each a column of B.
#[derive(Clone, Copy, Debug)]
pub struct BlockMatrix {
    /// The first block of column 0.
    pub data: *const u8,
    /// The layout of a block.
    pub format: BlockFormat,
    /// Bytes from one column to the next.
    pub stride: isize,
}

// SAFETY: a description of memory; the caller that runs a product guarantees that it is valid.
unsafe impl Send for BlockMatrix {}
// SAFETY: as above.
unsafe impl Sync for BlockMatrix {}

/// Columns of blocks, unpacked on request.
pub(super) struct Columns {
    pub isa: Isa,
    pub blocks: BlockMatrix,
}

/// Elements of a column that are converted to floats at once.
#[cfg(target_arch = "x86_64")]
const FLOATS_AT_ONCE: usize = 256;
/// The most elements of a block.
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

    #[cfg(target_arch = "x86_64")]
    unsafe fn fill_panel(&self, rows: Range<usize>, columns: Range<usize>, width: usize, to: *mut u8) -> bool {
        let size = self.blocks.format.elements();
        let whole = columns.start.is_multiple_of(size) && columns.end.is_multiple_of(size);
        if self.isa != Isa::Avx512 || width != panels::COLUMNS || !whole {
            return false;
        }
        let kind = panels::kind(self.blocks.format);
        // A few blocks at a time, which the nearest cache keeps as bytes.
        let most = (FLOATS_AT_ONCE / size).max(1);
        let bytes = Scratch::take::<u8>(most * size * width);
        let shared = Scratch::take::<f32>(2 * most * size / kind.group * width);
        let scales = shared.ptr::<f32>();
        let addends = scales.wrapping_add(most * size / kind.group * width);
        let panel = panels::Panel { bytes: bytes.ptr(), scales, addends };
        let blocks = columns.start / size..columns.end / size;
        for first in blocks.clone().step_by(most) {
            let some = first..blocks.end.min(first + most);
            // SAFETY: the caller's blocks; the panel and `to` have room for their elements; the target is this machine's.
            unsafe {
                panels::unpack(&self.blocks, rows.clone(), some.clone(), panel);
                let to = to.cast::<f32>().add((first - blocks.start) * size * width);
                panels::floats(panel, kind, some.len() * size, to);
            }
        }
        // The same columns further on come next, in pieces too short for the hardware prefetcher.
        panels::fetch(&self.blocks, rows, blocks.end..blocks.end + blocks.len());
        true
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

/// A row of an operand as contiguous floats, copied to the scratch where it is not.
unsafe fn left_row(gemm: &Gemm, a: &Operand<'_>, row: usize, own: &Scratch) -> *const f32 {
    let to = own.ptr::<f32>();
    // SAFETY: a row of the caller's operand, and room for it.
    unsafe {
        match a {
            Operand::Strided(a) => {
                let size = (a.dtype.size_in_bits() / 8) as isize;
                let first = a.data.wrapping_offset(row as isize * a.row_stride * size);
                if a.dtype == DType::F32 && a.column_stride == 1 {
                    return first.cast();
                }
                copy_rows(gemm.isa, &Matrix { data: first, ..*a }, 1, gemm.k, to);
            }
            Operand::Rows(source) => source.fill(row, 0..gemm.k, to.cast()),
            _ => unreachable!("refused by `Gemm::check`"),
        }
    }
    to
}
