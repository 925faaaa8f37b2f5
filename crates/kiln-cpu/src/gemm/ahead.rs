//! Fetching the part of B that is packed next while the present one is multiplied: memory would be idle then, and packing waits for it.

use super::source::{Matrix, Operand};
use kiln_ir::DType;
use std::ops::Range;

/// Bytes of a cache line.
const LINE: usize = 64;
/// The most lines that are fetched before one micro-kernel.
const MOST: usize = 96;

/// Lines of memory that are fetched a few at a time into the second level.
pub(super) struct Ahead {
    /// The first byte of the present run, and the distance of runs.
    run: *const u8,
    stride: isize,
    /// Runs that are left, lines of each, and those of the present one that were fetched.
    runs: usize,
    lines: usize,
    line: usize,
    /// Lines at a time.
    each: usize,
}

impl Ahead {
    /// Columns and k of a B that is contiguous along one of them, fetched in as many turns as there are.
    pub(super) fn new(b: &Operand<'_>, columns: Range<usize>, ks: Range<usize>, turns: usize) -> Option<Ahead> {
        let Operand::Strided(Matrix { data, dtype, row_stride, column_stride }) = b else { return None };
        if columns.is_empty() || ks.is_empty() || turns == 0 || matches!(dtype, DType::I4) {
            return None;
        }
        let (count, run, stride) = match (row_stride, column_stride) {
            (1, stride) => (columns.len(), ks.len(), stride),
            (stride, 1) => (ks.len(), columns.len(), stride),
            _ => return None,
        };
        let size = dtype.size_in_bits() / 8;
        let at = ks.start as isize * row_stride + columns.start as isize * column_stride;
        let lines = (run * size).div_ceil(LINE);
        let each = (count * lines).div_ceil(turns).min(MOST);
        let run = data.wrapping_offset(at * size as isize);
        Some(Ahead { run, stride: stride * size as isize, runs: count, lines, line: 0, each })
    }

    /// Fetches the lines of a turn.
    pub(super) fn fetch(&mut self) {
        let mut left = self.each;
        while left > 0 && self.runs > 0 {
            let some = left.min(self.lines - self.line);
            for line in self.line..self.line + some {
                prefetch(self.run.wrapping_add(line * LINE));
            }
            (left, self.line) = (left - some, self.line + some);
            if self.line == self.lines {
                (self.line, self.runs) = (0, self.runs - 1);
                self.run = self.run.wrapping_offset(self.stride);
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn prefetch(at: *const u8) {
    use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
    // SAFETY: a hint, of any address.
    unsafe { _mm_prefetch::<_MM_HINT_T1>(at.cast()) };
}

#[cfg(not(target_arch = "x86_64"))]
fn prefetch(_at: *const u8) {}
