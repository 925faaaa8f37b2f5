//! One row of A in fixed point, for products that are exact in integers.
//!
//! ```text
//!  16 or 32 elements that share a scale of the blocks  ──▶  integers of 22 bits and a power of two
//!  an integer  ──▶  three digits of a byte, −128 … 127     a chunk: the first digits of 64 elements, the second, the third,
//!                                                          and corrections for each 4 of them
//! ```
//!
//! Bytes of blocks times bytes of digits are added up in integers without rounding; what is lost is what an element loses below
//! 2⁻²² of the largest one beside it, about as much as a sum in f32 loses anyway.

use crate::gemm::scratch::Scratch;
use std::arch::x86_64::*;

/// Elements of a chunk, and bytes of its three digits and its corrections.
pub(super) const CHUNK: usize = 64;
pub(super) const CHUNK_BYTES: usize = 4 * CHUNK;
/// Elements of a vector, and those that are placed together.
const VECTOR: usize = 16;
pub(super) const PIECE: usize = 8;

/// How a format wants its row.
#[derive(Clone, Copy)]
pub(super) struct Arrangement {
    /// Elements that share a scale.
    pub group: usize,
    /// Elements of a kernel's step; the row is filled up with zeros to whole steps.
    pub step: usize,
    /// Integers are below two to the power of this.
    pub bits: u32,
    /// What the bytes of blocks are too large by: corrections are what 4 elements times it add up to.
    pub excess: u8,
    /// Chunks whose sums are added up before they are scaled: the first one has the corrections of all.
    pub together: usize,
    /// Chunk of the step and place in it, for each 8 elements of the step.
    pub place: fn(usize) -> (usize, usize),
}

/// A row in fixed point.
pub(super) struct FixedRow {
    digits: Scratch,
    /// Scales of groups, then their sums.
    floats: Scratch,
    groups: usize,
}

// SAFETY: only read once it is made.
unsafe impl Sync for FixedRow {}

/// Exponents of the largest element of a group that fixed point is made for, as f32 has them: beyond, scales or products of scales
/// could leave f32's range.
const EXPONENTS: std::ops::RangeInclusive<u32> = 64..=190;

impl FixedRow {
    /// The row's elements; `None` where one is not finite or a group's largest is tiny or huge.
    ///
    /// # Safety
    /// `k` elements, a multiple of the group, on a machine with AVX-512 and its byte products.
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    pub(super) unsafe fn new(row: *const f32, k: usize, how: &Arrangement) -> Option<FixedRow> {
        let padded = k.next_multiple_of(how.step);
        let groups = padded / how.group;
        let digits = Scratch::take::<u8>(padded / CHUNK * CHUNK_BYTES);
        let floats = Scratch::take::<f32>(2 * groups);
        let fixed = FixedRow { digits, floats, groups };
        let vectors = how.group / VECTOR;
        for g in 0..groups {
            let mut parts = [_mm512_setzero_ps(); 2];
            for (i, part) in parts.iter_mut().enumerate().take(vectors) {
                if g * how.group < k {
                    // SAFETY: elements of the row, which is made of whole groups.
                    *part = unsafe { _mm512_loadu_ps(row.add(g * how.group + i * VECTOR)) };
                }
            }
            // Of absolute values the bits are ordered as the numbers are, those that are not finite last.
            let bits = parts.map(|part| _mm512_and_si512(_mm512_castps_si512(part), _mm512_set1_epi32(i32::MAX)));
            let largest = _mm512_reduce_max_epi32(_mm512_max_epi32(bits[0], bits[1])) as u32;
            let exponent = if largest == 0 { 127 } else { largest >> 23 };
            if !EXPONENTS.contains(&exponent) {
                return None;
            }
            // Elements are below 2^(exponent − 126).
            let scale = f32::from_bits((exponent + 1 - how.bits) << 23);
            let inverse = f32::from_bits((253 + how.bits - exponent) << 23);
            let mut sum = _mm512_setzero_si512();
            for (i, &part) in parts.iter().enumerate().take(vectors) {
                let integers = _mm512_cvtps_epi32(_mm512_mul_ps(part, _mm512_set1_ps(inverse)));
                sum = _mm512_add_epi32(sum, integers);
                // Digits −128 … 127: those of a number 0x808080 larger, less 128 each.
                let half = _mm512_set1_epi32(0x0080_8080);
                let shifted = _mm512_xor_si512(_mm512_add_epi32(integers, half), half);
                let digits = [
                    _mm512_cvtepi32_epi8(_mm512_srli_epi32::<16>(shifted)),
                    _mm512_cvtepi32_epi8(_mm512_srli_epi32::<8>(shifted)),
                    _mm512_cvtepi32_epi8(shifted),
                ];
                let (step, inside) = (g * how.group / how.step, g * how.group % how.step + i * VECTOR);
                let [first, second] = [0, PIECE].map(|more| {
                    let (chunk, at) = (how.place)((inside + more) / PIECE);
                    (step * (how.step / CHUNK) + chunk) * CHUNK_BYTES + at
                });
                for (d, digits) in digits.into_iter().enumerate() {
                    // SAFETY: a chunk of the digits, first the highest ones.
                    unsafe {
                        let to = fixed.digits.ptr::<u8>().add(d * CHUNK);
                        _mm_storel_epi64(to.add(first).cast(), digits);
                        _mm_storel_epi64(to.add(second).cast(), _mm_unpackhi_epi64(digits, digits));
                    }
                }
            }
            let sum = _mm512_reduce_add_epi32(sum) as f32 * scale;
            // SAFETY: a scale and a sum for each group.
            unsafe {
                fixed.floats.ptr::<f32>().add(g).write(scale);
                fixed.floats.ptr::<f32>().add(groups + g).write(sum);
            }
        }
        if how.excess != 0 {
            let excess = _mm512_set1_epi8(how.excess as i8);
            for first in (0..padded / CHUNK).step_by(how.together) {
                // SAFETY: chunks whose digits are there.
                unsafe {
                    let chunk = |i: usize| fixed.digits.ptr::<u8>().add((first + i) * CHUNK_BYTES);
                    let mut less = _mm512_setzero_si512();
                    for i in 0..how.together {
                        less = _mm512_sub_epi32(less, products::<false>(excess, chunk(i)));
                    }
                    _mm512_storeu_si512(chunk(0).add(3 * CHUNK).cast(), less);
                }
            }
        }
        Some(fixed)
    }

    /// Digits, scales and sums from the beginning.
    pub(super) fn start(&self) -> Place {
        let scales = self.floats.ptr::<f32>();
        Place { digits: self.digits.ptr(), scales, sums: scales.wrapping_add(self.groups) }
    }
}

/// The sums of four neighbouring products each, of bytes with a chunk: exact, and where asked for with the corrections.
///
/// # Safety
/// The chunk exists, on a machine with these instructions.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(super) unsafe fn products<const CORRECTED: bool>(bytes: __m512i, chunk: *const u8) -> __m512i {
    // SAFETY: the caller's chunk.
    let part = |i: usize| unsafe { _mm512_loadu_si512(chunk.add(CHUNK * i).cast()) };
    let corrections = if CORRECTED { part(3) } else { _mm512_setzero_si512() };
    let [first, second] = [0, 1].map(|i| _mm512_dpbusd_epi32(_mm512_setzero_si512(), bytes, part(i)));
    joined(first, second, _mm512_dpbusd_epi32(corrections, bytes, part(2)))
}

/// What sums with each of three digits make together. The sums are taken apart from each other rather than one upon the other,
/// which would be as many instructions but one long chain of them.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn joined(first: __m512i, second: __m512i, third: __m512i) -> __m512i {
    _mm512_add_epi32(_mm512_slli_epi32::<16>(first), _mm512_add_epi32(_mm512_slli_epi32::<8>(second), third))
}

/// A place in a row.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub digits: *const u8,
    pub scales: *const f32,
    pub sums: *const f32,
}

impl Place {
    /// So many elements further.
    #[inline(always)]
    pub(super) fn after(self, elements: usize, group: usize) -> Place {
        Place {
            digits: self.digits.wrapping_add(elements / CHUNK * CHUNK_BYTES),
            scales: self.scales.wrapping_add(elements / group),
            sums: self.sums.wrapping_add(elements / group),
        }
    }
}
