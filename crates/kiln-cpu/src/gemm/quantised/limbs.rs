//! Rows of A as small integers, for products in bytes: 16 or 32 elements that share a scale of the blocks share one here too.
//!
//! ```text
//!  element ──▶ an integer of 8, 16 or 22 bits times the group's scale ──▶ one to three limbs of a byte, −128 … 127, the highest first
//!  rows    ──▶ tiles of a few:  limbs [group][limb][k / 4][row][k % 4],  scales and sums [group][row]
//! ```
//!
//! The sums correct for the excess or the addends of the blocks' bytes. They are sums of the integers, so that rounding errors
//! of A are multiplied by the elements of W themselves and no more.

use super::fixed::EXPONENTS;
use super::left_row;
use super::panels::Kind;
use crate::gemm::scratch::Scratch;
use crate::gemm::source::{Operand, SharedOperand};
use crate::gemm::{Gemm, part};
use crate::pool;
use std::arch::x86_64::*;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

/// The most rows of a tile.
pub(super) const ROWS: usize = 6;
/// Elements of a vector.
const VECTOR: usize = 16;

/// The largest integer of so many limbs: those of a larger one could not be signed bytes, or the sum of a group would not fit into
/// 32 bits. Scaling an element in f32 may make it two larger.
pub(super) const fn largest(kind: Kind, count: usize) -> i32 {
    let of_limbs = [127, 127 << 8 | 127, (127 << 16 | 127 << 8 | 127) - 2][count - 1];
    let of_sums = i32::MAX / (kind.most * kind.group as i32) - 2;
    if of_limbs < of_sums || is_split(kind, count) { of_limbs } else { of_sums }
}

/// Whether the last limbs are accumulated separately from the others, since sums of all would leave elements too few bits.
pub(super) const fn is_split(kind: Kind, count: usize) -> bool {
    count == 3 && i32::MAX / (kind.most * kind.group as i32) < (1 << 22) - 4
}

/// Some rows of A as limbs.
pub(super) struct Limbs {
    kind: Kind,
    /// Limbs per element.
    count: usize,
    rows: usize,
    tiles: usize,
    k: usize,
    limbs: Scratch,
    /// Scales of groups, then their sums, then those of the last limbs.
    shared: Scratch,
}

// SAFETY: only read once it is made; while it is made, tasks write disjoint tiles.
unsafe impl Sync for Limbs {}

/// A position in a tile of rows: from some k on.
#[derive(Clone, Copy)]
pub(super) struct TileCursor {
    pub limbs: *const u8,
    /// `[group][row]`.
    pub scales: *const f32,
    /// `[group][row]`: integers that products begin with where the format has an excess, floats where it has addends.
    pub sums: *const f32,
    /// `[group][row]`: integers that products of last limbs begin with where they are split off; the sums are of the others there.
    pub last: *const i32,
}

impl Limbs {
    /// The rows of an operand, `count` limbs per element; `None` where one is not finite or a group's largest is tiny or huge.
    ///
    /// # Safety
    /// As for [`Gemm::run`], for K a multiple of the group, on a machine with AVX-512 of bytes.
    pub(super) unsafe fn new(
        gemm: &Gemm,
        a: &Operand<'_>,
        rows: Range<usize>,
        kind: Kind,
        count: usize,
    ) -> Option<Limbs> {
        let (tiles, k) = (rows.len().div_ceil(ROWS), gemm.k);
        let limbs = Limbs {
            kind,
            count,
            rows: rows.len(),
            tiles,
            k,
            limbs: Scratch::take::<u8>(rows.len() * k * count),
            shared: Scratch::take::<f32>(3 * rows.len() * (k / kind.group)),
        };
        // A few microseconds are not worth a second thread.
        let threads = if rows.len() * k < 32 << 10 { 1 } else { gemm.threads };
        let (usual, a) = (AtomicBool::new(true), SharedOperand(*a));
        pool::run(tiles, threads, &|tile| {
            let own = Scratch::take::<f32>(k);
            let of_tile = limbs.tile(tile);
            for (i, row) in of_tile.clone().enumerate() {
                if !usual.load(Ordering::Relaxed) {
                    return;
                }
                // SAFETY: the operand's row, and its own part of a tile that is this task's.
                unsafe {
                    let from = left_row(gemm, &a.get(), rows.start + row, &own);
                    if !limbs.row(from, tile, i) {
                        usual.store(false, Ordering::Relaxed);
                    }
                }
            }
        });
        usual.into_inner().then_some(limbs)
    }

    /// The number of tiles.
    pub(super) fn tiles(&self) -> usize {
        self.tiles
    }

    /// The rows of a tile.
    pub(super) fn tile(&self, tile: usize) -> Range<usize> {
        part(self.rows, self.tiles, tile)
    }

    /// A tile from a k on that begins a group.
    pub(super) fn cursor(&self, tile: usize, k: usize) -> TileCursor {
        let (rows, groups) = (self.tile(tile), self.k / self.kind.group);
        let scales = self.shared.ptr::<f32>().wrapping_add(rows.start * groups + k / self.kind.group * rows.len());
        let sums = scales.wrapping_add(self.rows * groups);
        TileCursor {
            limbs: self.limbs.ptr::<u8>().wrapping_add((rows.start * self.k + k * rows.len()) * self.count),
            scales,
            sums,
            last: sums.wrapping_add(self.rows * groups).cast(),
        }
    }

    /// Makes row `i` of a tile.
    unsafe fn row(&self, from: *const f32, tile: usize, i: usize) -> bool {
        // SAFETY: the caller's promise.
        unsafe {
            match (self.kind.group, self.count) {
                (16, 1) => self.row_of::<16, 1>(from, tile, i),
                (16, 2) => self.row_of::<16, 2>(from, tile, i),
                (16, _) => self.row_of::<16, 3>(from, tile, i),
                (_, 1) => self.row_of::<32, 1>(from, tile, i),
                (_, 2) => self.row_of::<32, 2>(from, tile, i),
                (_, _) => self.row_of::<32, 3>(from, tile, i),
            }
        }
    }

    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
    unsafe fn row_of<const GROUP: usize, const COUNT: usize>(&self, from: *const f32, tile: usize, i: usize) -> bool {
        let rows = self.tile(tile).len();
        let cursor = self.cursor(tile, 0);
        let largest_integer = largest(self.kind, COUNT) as f32;
        let split = is_split(self.kind, COUNT);
        for group in 0..self.k / GROUP {
            let mut parts = [_mm512_setzero_ps(); 2];
            for (v, part) in parts.iter_mut().enumerate().take(GROUP / VECTOR) {
                // SAFETY: elements of the row.
                *part = unsafe { _mm512_loadu_ps(from.add(group * GROUP + v * VECTOR)) };
            }
            // The bits of absolute values are ordered as the numbers are, those that are not finite last.
            let bits = parts.map(|part| _mm512_and_si512(_mm512_castps_si512(part), _mm512_set1_epi32(i32::MAX)));
            let largest = _mm512_reduce_max_epi32(_mm512_max_epi32(bits[0], bits[1])) as u32;
            if largest != 0 && !EXPONENTS.contains(&(largest >> 23)) {
                return false;
            }
            let largest = if largest == 0 { 1.0 } else { f32::from_bits(largest) };
            let (scale, inverse) = (largest / largest_integer, largest_integer / largest);
            let (mut sum, mut last) = (_mm512_setzero_si512(), _mm512_setzero_si512());
            for (v, &part) in parts.iter().enumerate().take(GROUP / VECTOR) {
                let integers = _mm512_cvtps_epi32(_mm512_mul_ps(part, _mm512_set1_ps(inverse)));
                sum = _mm512_add_epi32(sum, integers);
                // Limbs −128 … 127: those of a number 0x808080 larger, less 128 each.
                let half = _mm512_set1_epi32(0x0080_8080);
                let shifted = _mm512_xor_si512(_mm512_add_epi32(integers, half), half);
                if split {
                    last = _mm512_add_epi32(last, _mm512_cvtepi8_epi32(_mm512_cvtepi32_epi8(shifted)));
                }
                for limb in 0..COUNT {
                    let shifts = _mm512_set1_epi32(8 * (COUNT - 1 - limb) as i32);
                    let bytes = _mm512_cvtepi32_epi8(_mm512_srlv_epi32(shifted, shifts));
                    let first = ((group * COUNT + limb) * GROUP + v * VECTOR) * rows + 4 * i;
                    let words = [
                        _mm_extract_epi32::<0>(bytes),
                        _mm_extract_epi32::<1>(bytes),
                        _mm_extract_epi32::<2>(bytes),
                        _mm_extract_epi32::<3>(bytes),
                    ];
                    for (step, word) in words.into_iter().enumerate() {
                        // SAFETY: four k of the row in its tile.
                        unsafe {
                            let to = cursor.limbs.add(first + step * 4 * rows);
                            to.cast_mut().cast::<i32>().write_unaligned(word);
                        }
                    }
                }
            }
            let sum = _mm512_reduce_add_epi32(sum);
            // SAFETY: the group's part of the tile.
            unsafe {
                cursor.scales.add(group * rows + i).cast_mut().write(scale);
                let to = cursor.sums.add(group * rows + i).cast_mut();
                if self.kind.addends {
                    to.write(sum as f32 * scale);
                } else if split {
                    let last = _mm512_reduce_add_epi32(last);
                    to.cast::<i32>().write(-self.kind.excess * ((sum - last) >> 8));
                    cursor.last.add(group * rows + i).cast_mut().write(-self.kind.excess * last);
                } else {
                    to.cast::<i32>().write(-self.kind.excess * sum);
                }
            }
        }
        true
    }
}
