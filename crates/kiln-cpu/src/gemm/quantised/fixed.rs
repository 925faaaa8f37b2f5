//! One row of A in fixed point, for products that are exact in integers.
//!
//! ```text
//!  16 or 32 elements that share a scale of the blocks  ──▶  integers of 22 bits and a power of two
//!  an integer  ──▶  three limbs of a byte, −128 … 127     a chunk: the first limbs of 64 elements, the second, the third
//!                                                          behind chunks that are added up: corrections for each 4 of them
//! ```
//!
//! Bytes of blocks times bytes of limbs are added up in integers without rounding; the error is that of rounding an element to
//! 2⁻²² of the largest one in its group, about that of a sum in f32. Two limbs are integers of 15 bits and one of 7, of which
//! the largest element of a group is the largest there is.

use crate::gemm::scratch::Scratch;
use kiln_kernels::Precision;
use std::arch::x86_64::*;

/// Elements of a chunk, and bytes of one of its limbs.
pub(super) const CHUNK: usize = 64;
/// The most limbs of an element.
pub(super) const LIMBS: usize = 3;
/// Limbs of an element of A at a precision.
pub(super) fn limbs(precision: Precision) -> usize {
    match precision {
        Precision::Highest => LIMBS,
        Precision::High => 2,
        Precision::Medium => 1,
    }
}

/// Elements of a vector.
const VECTOR: usize = 16;

/// The layout of the row for a format.
#[derive(Clone, Copy)]
pub(super) struct Arrangement {
    /// Elements that share a scale.
    pub group: usize,
    /// Elements of a kernel's step; the row is padded with zeros to whole steps.
    pub step: usize,
    /// Integers of three limbs are below two to the power of this.
    pub bits: u32,
    /// The excess of the blocks' bytes: corrections are the sums of 4 elements times it.
    pub excess: u8,
    /// Chunks whose sums are added up before they are scaled; behind them are the corrections of all.
    pub together: usize,
    /// Neighbours that stay together: 4, 8 or 16.
    pub piece: usize,
    /// Chunk of the step and position in it, for each piece of the step.
    pub place: fn(usize) -> (usize, usize),
}

impl Arrangement {
    /// Bytes of the chunks whose sums are added up, with so many limbs, and of their corrections.
    #[inline(always)]
    pub(super) const fn bytes_together(&self, limbs: usize) -> usize {
        (self.together * limbs + (self.excess != 0) as usize) * CHUNK
    }
}

/// A layout of rows that is known at compile time.
pub(super) trait Arranged {
    const ARRANGEMENT: Arrangement;
}

/// A row in fixed point.
pub(super) struct FixedRow {
    limbs: Scratch,
    /// Scales of groups, then their sums.
    floats: Scratch,
    groups: usize,
}

// SAFETY: only read once it is made.
unsafe impl Sync for FixedRow {}

/// Exponents of the largest element of a group that fixed point is made for, as f32 has them: beyond, scales or products of scales
/// could leave f32's range.
pub(super) const EXPONENTS: std::ops::RangeInclusive<u32> = 64..=190;

impl FixedRow {
    /// The row's elements in `D` limbs; `None` where one is not finite or a group's largest is tiny or huge.
    ///
    /// # Safety
    /// `k` elements, a multiple of the group, on a machine with AVX-512 and its byte products.
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    pub(super) unsafe fn new<A: Arranged, const D: usize>(row: *const f32, k: usize) -> Option<FixedRow> {
        let how = const { &A::ARRANGEMENT };
        let padded = k.next_multiple_of(how.step);
        let groups = padded / how.group;
        let limbs = Scratch::take::<u8>(padded / CHUNK / how.together * how.bytes_together(D));
        let floats = Scratch::take::<f32>(2 * groups);
        let fixed = FixedRow { limbs, floats, groups };
        let vectors = how.group / VECTOR;
        for g in 0..groups {
            let mut parts = [_mm512_setzero_ps(); 2];
            for (i, part) in parts.iter_mut().enumerate().take(vectors) {
                if g * how.group < k {
                    // SAFETY: elements of the row, which is made of whole groups.
                    *part = unsafe { _mm512_loadu_ps(row.add(g * how.group + i * VECTOR)) };
                }
            }
            // The bits of absolute values are ordered as the numbers are, those that are not finite last.
            let bits = parts.map(|part| _mm512_and_si512(_mm512_castps_si512(part), _mm512_set1_epi32(i32::MAX)));
            let largest = _mm512_reduce_max_epi32(_mm512_max_epi32(bits[0], bits[1])) as u32;
            let exponent = if largest == 0 { 127 } else { largest >> 23 };
            if !EXPONENTS.contains(&exponent) {
                return None;
            }
            let most = most::<D>(how);
            let (scale, inverse) = match D {
                // Elements are below 2^(exponent − 126).
                LIMBS => {
                    (f32::from_bits((exponent + 1 - how.bits) << 23), f32::from_bits((253 + how.bits - exponent) << 23))
                }
                _ if largest == 0 => (1.0, 1.0),
                _ => (f32::from_bits(largest) / most as f32, most as f32 / f32::from_bits(largest)),
            };
            let mut sum = _mm512_setzero_si512();
            for (i, &part) in parts.iter().enumerate().take(vectors) {
                let integers = _mm512_cvtps_epi32(_mm512_mul_ps(part, _mm512_set1_ps(inverse)));
                let integers = _mm512_min_epi32(integers, _mm512_set1_epi32(most));
                let integers = _mm512_max_epi32(integers, _mm512_set1_epi32(-most));
                sum = _mm512_add_epi32(sum, integers);
                // SAFETY: the position of the vector's elements.
                unsafe { fixed.store::<A, D>(g * how.group + i * VECTOR, integers) };
            }
            let sum = _mm512_reduce_add_epi32(sum) as f32 * scale;
            // SAFETY: a scale and a sum for each group.
            unsafe {
                fixed.floats.ptr::<f32>().add(g).write(scale);
                fixed.floats.ptr::<f32>().add(groups + g).write(sum);
            }
        }
        if how.excess != 0 {
            // SAFETY: the limbs are there.
            unsafe { fixed.correct::<A, D>(padded / CHUNK / how.together) };
        }
        Some(fixed)
    }

    /// Stores the limbs of 16 elements, the highest ones first.
    ///
    /// # Safety
    /// Elements of the row from `first` on.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    unsafe fn store<A: Arranged, const D: usize>(&self, first: usize, integers: __m512i) {
        let how = const { &A::ARRANGEMENT };
        // Limbs −128 … 127: those of a number 0x808080 larger, less 128 each.
        let half = _mm512_set1_epi32(0x0080_8080);
        let shifted = _mm512_xor_si512(_mm512_add_epi32(integers, half), half);
        let all = [
            _mm512_cvtepi32_epi8(_mm512_srli_epi32::<16>(shifted)),
            _mm512_cvtepi32_epi8(_mm512_srli_epi32::<8>(shifted)),
            _mm512_cvtepi32_epi8(shifted),
        ];
        let (step, inside) = (first / how.step, first % how.step);
        for i in 0..VECTOR / how.piece {
            let (chunk, at) = (how.place)(inside / how.piece + i);
            let together = step * (how.step / CHUNK / how.together) + chunk / how.together;
            let at = together * how.bytes_together(D) + chunk % how.together * D * CHUNK + at;
            for (d, limbs) in all[LIMBS - D..].iter().enumerate() {
                // SAFETY: a chunk of the limbs.
                unsafe {
                    let to = self.limbs.ptr::<u8>().add(at + d * CHUNK);
                    match (how.piece, i) {
                        (16, _) => _mm_storeu_si128(to.cast(), *limbs),
                        (8, 0) => _mm_storel_epi64(to.cast(), *limbs),
                        (8, _) => to.cast::<i64>().write_unaligned(_mm_extract_epi64::<1>(*limbs)),
                        (_, 0) => to.cast::<i32>().write_unaligned(_mm_extract_epi32::<0>(*limbs)),
                        (_, 1) => to.cast::<i32>().write_unaligned(_mm_extract_epi32::<1>(*limbs)),
                        (_, 2) => to.cast::<i32>().write_unaligned(_mm_extract_epi32::<2>(*limbs)),
                        _ => to.cast::<i32>().write_unaligned(_mm_extract_epi32::<3>(*limbs)),
                    }
                }
            }
        }
    }

    /// Stores the corrections of so many chunks together: the sums of 4 elements times the excess.
    ///
    /// # Safety
    /// Their limbs are there.
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    unsafe fn correct<A: Arranged, const D: usize>(&self, count: usize) {
        let how = const { &A::ARRANGEMENT };
        let excess = _mm512_set1_epi8(how.excess as i8);
        for first in 0..count {
            // SAFETY: chunks of the row.
            unsafe {
                let start = self.limbs.ptr::<u8>().add(first * how.bytes_together(D));
                let mut sum = _mm512_setzero_si512();
                for d in 0..D {
                    sum = _mm512_slli_epi32::<8>(sum);
                    for chunk in 0..how.together {
                        let limbs = _mm512_loadu_si512(start.add((chunk * D + d) * CHUNK).cast());
                        sum = _mm512_dpbusd_epi32(sum, excess, limbs);
                    }
                }
                let less = _mm512_sub_epi32(_mm512_setzero_si512(), sum);
                _mm512_storeu_si512(start.add(how.together * D * CHUNK).cast(), less);
            }
        }
    }

    /// Limbs, scales and sums from the beginning.
    pub(super) fn start(&self) -> RowCursor {
        let scales = self.floats.ptr::<f32>();
        RowCursor { limbs: self.limbs.ptr(), scales, sums: scales.wrapping_add(self.groups) }
    }
}

/// The largest integer. Sums of three limbs are just below 2³¹ then.
const fn most<const D: usize>(how: &Arrangement) -> i32 {
    match D {
        1 => 0x7f,
        2 => 0x7f7f,
        _ => (1 << how.bits) - 1,
    }
}

/// A position in a row.
#[derive(Clone, Copy)]
pub(super) struct RowCursor {
    pub limbs: *const u8,
    pub scales: *const f32,
    pub sums: *const f32,
}

impl RowCursor {
    /// The next step of a row of `D` limbs.
    #[inline(always)]
    pub(super) fn next<const D: usize>(self, how: &Arrangement) -> RowCursor {
        RowCursor {
            limbs: self.limbs.wrapping_add(how.step / CHUNK / how.together * how.bytes_together(D)),
            scales: self.scales.wrapping_add(how.step / how.group),
            sums: self.sums.wrapping_add(how.step / how.group),
        }
    }
}
