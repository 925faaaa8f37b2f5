//! Pieces of rows by vectors.

use super::panel::{PanelPart, Piece};
use std::arch::x86_64::*;

/// The lanes of a piece that are in memory.
#[inline(always)]
fn lanes_of(mask: u32, piece: &Piece) -> u32 {
    // A piece without lanes may begin at 32 at the most.
    ((u64::from(mask) >> piece.lane) as u32) & ((1u32 << piece.lanes) - 1)
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(super) unsafe fn copy_512(part: &PanelPart<'_>, to: *mut f32) {
    part.each(to, |from: *const f32, mask, to| {
        for piece in part.pieces {
            let lanes = lanes_of(mask, piece) as __mmask16;
            // SAFETY: lanes of the mask are readable; a panel's end has room for a vector.
            unsafe {
                let v = _mm512_maskz_loadu_ps(lanes, from.wrapping_offset(piece.offset));
                _mm512_storeu_ps(to.add(piece.lane), v);
            }
        }
    });
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(super) unsafe fn copy_bf16_512(part: &PanelPart<'_>, to: *mut f32) {
    part.each(to, |from: *const i16, mask, to| {
        for piece in part.pieces {
            // SAFETY: lanes of the mask are readable; a panel's end has room for a vector.
            unsafe {
                let v = _mm512_slli_epi32::<16>(words(from, lanes_of(mask, piece), piece));
                _mm512_storeu_ps(to.add(piece.lane), _mm512_castsi512_ps(v));
            }
        }
    });
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(super) unsafe fn copy_f16_512(part: &PanelPart<'_>, to: *mut f32) {
    part.each(to, |from: *const i16, mask, to| {
        for piece in part.pieces {
            // SAFETY: lanes of the mask are readable; a panel's end has room for a vector.
            unsafe {
                let lanes = lanes_of(mask, piece) as __mmask16;
                let v = _mm256_maskz_loadu_epi16(lanes, from.wrapping_offset(piece.offset));
                _mm512_storeu_ps(to.add(piece.lane), _mm512_cvtph_ps(v));
            }
        }
    });
}

/// 16 neighbouring elements of 16 bits, each in a word.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn words(from: *const i16, lanes: u32, piece: &Piece) -> __m512i {
    // SAFETY: lanes of the mask are readable.
    unsafe { _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes as __mmask16, from.wrapping_offset(piece.offset))) }
}

/// 16 elements of 16 bits, every second one, each in the low half of a word.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn even_words(from: *const i16, lanes: u32, piece: &Piece) -> __m512i {
    // SAFETY: lanes of the mask are readable.
    unsafe { _mm512_maskz_loadu_epi16(spread(lanes), from.wrapping_offset(piece.offset)) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(super) unsafe fn pairs_512(part: &PanelPart<'_>, to: *mut u32) {
    part.each_pair(to, |[a, b], [first, second], to| {
        for piece in part.pieces {
            // SAFETY: lanes of the masks are readable; a panel's end has room for a vector.
            unsafe {
                let low = words(a, lanes_of(first, piece), piece);
                let high = words(b, lanes_of(second, piece), piece);
                let both = _mm512_or_si512(low, _mm512_slli_epi32::<16>(high));
                _mm512_storeu_si512(to.add(piece.lane).cast(), both);
            }
        }
    });
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(super) unsafe fn pairs_even_512(part: &PanelPart<'_>, to: *mut u32) {
    part.each_pair(to, |[a, b], [first, second], to| {
        for piece in part.pieces {
            // SAFETY: lanes of the masks are readable; a panel's end has room for a vector.
            unsafe {
                let low = even_words(a, lanes_of(first, piece), piece);
                let high = even_words(b, lanes_of(second, piece), piece);
                let both = _mm512_or_si512(low, _mm512_slli_epi32::<16>(high));
                _mm512_storeu_si512(to.add(piece.lane).cast(), both);
            }
        }
    });
}

/// A bit for each second element.
#[inline(always)]
fn spread(mut lanes: u32) -> u32 {
    for (shift, keep) in [(8, 0x00ff_00ff), (4, 0x0f0f_0f0f), (2, 0x3333_3333), (1, 0x5555_5555)] {
        lanes = (lanes | lanes << shift) & keep;
    }
    lanes
}

/// Every second element.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(super) unsafe fn copy_even_512(part: &PanelPart<'_>, to: *mut f32) {
    let even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    part.each(to, |from: *const f32, mask, to| {
        for piece in part.pieces {
            let lanes = spread(lanes_of(mask, piece));
            // SAFETY: lanes of the mask are readable; a panel's end has room for a vector.
            unsafe {
                let from = from.wrapping_offset(piece.offset);
                let low = _mm512_maskz_loadu_ps(lanes as __mmask16, from);
                let high = _mm512_maskz_loadu_ps((lanes >> 16) as __mmask16, from.wrapping_add(16));
                _mm512_storeu_ps(to.add(piece.lane), _mm512_permutex2var_ps(low, even, high));
            }
        }
    });
}

/// Elements at any equal distance.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(super) unsafe fn gather_512(part: &PanelPart<'_>, to: *mut f32) {
    let lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    let index = _mm512_mullo_epi32(lane, _mm512_set1_epi32(part.stride as i32));
    part.each(to, |from: *const f32, mask, to| {
        for piece in part.pieces {
            let lanes = lanes_of(mask, piece) as __mmask16;
            // SAFETY: lanes of the mask are readable; a panel's end has room for a vector.
            unsafe {
                let from = from.wrapping_offset(piece.offset);
                let v = _mm512_mask_i32gather_ps::<4>(_mm512_setzero_ps(), lanes, index, from);
                _mm512_storeu_ps(to.add(piece.lane), v);
            }
        }
    });
}

/// Bits as lanes.
#[inline]
#[target_feature(enable = "avx2")]
fn lanes_256(bits: u32) -> __m256i {
    let each = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(bits as i32), each), each)
}

#[target_feature(enable = "avx2")]
pub(super) unsafe fn copy_256(part: &PanelPart<'_>, to: *mut f32) {
    part.each(to, |from: *const f32, mask, to| {
        for piece in part.pieces {
            let lanes = lanes_of(mask, piece);
            // SAFETY: lanes of the mask are readable; a panel's end has room for a vector.
            unsafe {
                let from = from.wrapping_offset(piece.offset);
                let v = if lanes == 0xff { _mm256_loadu_ps(from) } else { _mm256_maskload_ps(from, lanes_256(lanes)) };
                _mm256_storeu_ps(to.add(piece.lane), v);
            }
        }
    });
}

#[target_feature(enable = "avx2")]
pub(super) unsafe fn gather_256(part: &PanelPart<'_>, to: *mut f32) {
    let lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    let index = _mm256_mullo_epi32(lane, _mm256_set1_epi32(part.stride as i32));
    part.each(to, |from: *const f32, mask, to| {
        for piece in part.pieces {
            let lanes = lanes_256(lanes_of(mask, piece));
            // SAFETY: lanes of the mask are readable; a panel's end has room for a vector.
            unsafe {
                let from = from.wrapping_offset(piece.offset);
                let zero = _mm256_setzero_ps();
                let v = _mm256_mask_i32gather_ps::<4>(zero, from, index, _mm256_castsi256_ps(lanes));
                _mm256_storeu_ps(to.add(piece.lane), v);
            }
        }
    });
}
