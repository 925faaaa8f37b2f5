//! Vector packing into f32 panels: contiguous lanes are copied, contiguous k are transposed in registers.

use super::pack::Lanes;
use crate::features::Isa;
use kiln_ir::DType;
use std::ops::Range;

/// Whether [`pack`] takes this view.
pub(super) fn can(isa: Isa, from: &Lanes) -> bool {
    cfg!(target_arch = "x86_64")
        && isa != Isa::Portable
        && matches!(from.dtype, DType::F32 | DType::Bf16 | DType::F16 | DType::I8)
        && (from.k_stride == 1 || from.lane_stride == 1)
}

/// As [`super::pack::pack`], for views that [`can`] be packed by vectors on an `isa` that the machine has.
///
/// # Safety
/// As for [`super::pack::pack`].
pub(super) unsafe fn pack(
    isa: Isa,
    from: &Lanes,
    lanes: Range<usize>,
    width: usize,
    ks: Range<usize>,
    panel: *mut f32,
) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller's promise; the target features are those of `isa`.
    unsafe {
        use x86::{Bf16, F16, F32, I8};
        let part = x86::Part { from, lanes, width, ks, panel };
        match (isa, from.dtype) {
            (Isa::Avx512, DType::F32) => x86::pack_512::<F32>(&part),
            (Isa::Avx512, DType::Bf16) => x86::pack_512::<Bf16>(&part),
            (Isa::Avx512, DType::I8) => x86::pack_512::<I8>(&part),
            (Isa::Avx512, _) => x86::pack_512::<F16>(&part),
            (_, DType::F32) => x86::pack_256::<F32>(&part),
            (_, DType::Bf16) => x86::pack_256::<Bf16>(&part),
            (_, DType::I8) => x86::pack_256::<I8>(&part),
            (_, _) => x86::pack_256::<F16>(&part),
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = (isa, from, lanes, width, ks, panel);
        unreachable!("`can` is false on this machine");
    }
}

/// Pairs of consecutive k as words, for lanes that are contiguous; see [`super::pack::pack_pairs`].
///
/// # Safety
/// As for [`super::pack::pack_pairs`], with whole pairs and an `isa` that the machine has.
pub(super) unsafe fn pack_pairs(
    isa: Isa,
    from: &Lanes,
    lanes: Range<usize>,
    width: usize,
    pairs: Range<usize>,
    panel: *mut u32,
) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller's promise; the target features are those of `isa`.
    unsafe {
        let part = x86::Part { from, lanes, width, ks: pairs, panel: panel.cast() };
        match isa {
            Isa::Avx512 => x86::pairs_512(&part),
            _ => x86::pairs_256(&part),
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = (isa, from, lanes, width, pairs, panel);
        unreachable!("there is only the portable target on this machine");
    }
}

/// Four bytes of consecutive k as words, for lanes that are contiguous, with AVX-512.
///
/// # Safety
/// As for [`super::words::pack_words`], with whole words, on a machine that has AVX-512.
pub(super) unsafe fn pack_quads(from: &Lanes, lanes: Range<usize>, width: usize, words: Range<usize>, panel: *mut u32) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller's promise.
    unsafe {
        x86::quads_512(&x86::Part { from, lanes, width, ks: words, panel: panel.cast() });
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = (from, lanes, width, words, panel);
        unreachable!("there is only the portable target on this machine");
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Lanes, Range};
    use std::arch::x86_64::*;

    pub(super) struct Part<'a> {
        pub from: &'a Lanes,
        pub lanes: Range<usize>,
        pub width: usize,
        pub ks: Range<usize>,
        pub panel: *mut f32,
    }

    /// An element type that vectors of f32 are loaded from.
    pub(super) trait Load: Copy {
        const SIZE: usize;
        /// The first 16 (all of `mask`) elements at `at`.
        unsafe fn load_512(at: *const u8, mask: __mmask16) -> __m512;
        /// Eight elements at `at`.
        unsafe fn load_256(at: *const u8) -> __m256;
    }

    #[derive(Clone, Copy)]
    pub(super) struct F32;
    #[derive(Clone, Copy)]
    pub(super) struct Bf16;
    #[derive(Clone, Copy)]
    pub(super) struct F16;
    #[derive(Clone, Copy)]
    pub(super) struct I8;

    impl Load for F32 {
        const SIZE: usize = 4;
        #[inline]
        #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
        unsafe fn load_512(at: *const u8, mask: __mmask16) -> __m512 {
            // SAFETY: masked lanes are not read; the others are the caller's.
            unsafe { _mm512_maskz_loadu_ps(mask, at.cast()) }
        }
        #[inline]
        #[target_feature(enable = "avx2,f16c")]
        unsafe fn load_256(at: *const u8) -> __m256 {
            // SAFETY: the caller's.
            unsafe { _mm256_loadu_ps(at.cast()) }
        }
    }

    impl Load for Bf16 {
        const SIZE: usize = 2;
        #[inline]
        #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
        unsafe fn load_512(at: *const u8, mask: __mmask16) -> __m512 {
            // SAFETY: masked lanes are not read; the others are the caller's.
            let raw = unsafe { _mm256_maskz_loadu_epi16(mask, at.cast()) };
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(raw)))
        }
        #[inline]
        #[target_feature(enable = "avx2,f16c")]
        unsafe fn load_256(at: *const u8) -> __m256 {
            // SAFETY: the caller's.
            let raw = unsafe { _mm_loadu_si128(at.cast()) };
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(raw)))
        }
    }

    impl Load for F16 {
        const SIZE: usize = 2;
        #[inline]
        #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
        unsafe fn load_512(at: *const u8, mask: __mmask16) -> __m512 {
            // SAFETY: masked lanes are not read; the others are the caller's.
            _mm512_cvtph_ps(unsafe { _mm256_maskz_loadu_epi16(mask, at.cast()) })
        }
        #[inline]
        #[target_feature(enable = "avx2,f16c")]
        unsafe fn load_256(at: *const u8) -> __m256 {
            // SAFETY: the caller's.
            _mm256_cvtph_ps(unsafe { _mm_loadu_si128(at.cast()) })
        }
    }

    impl Load for I8 {
        const SIZE: usize = 1;
        #[inline]
        #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
        unsafe fn load_512(at: *const u8, mask: __mmask16) -> __m512 {
            // SAFETY: masked lanes are not read; the others are the caller's.
            _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(unsafe { _mm_maskz_loadu_epi8(mask, at.cast()) }))
        }
        #[inline]
        #[target_feature(enable = "avx2,f16c")]
        unsafe fn load_256(at: *const u8) -> __m256 {
            // SAFETY: the caller's.
            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(unsafe { _mm_loadl_epi64(at.cast()) }))
        }
    }

    impl Part<'_> {
        /// The element at (lane, k) of the part.
        unsafe fn at<L: Load>(&self, lane: usize, k: usize) -> *const u8 {
            let lane = (self.lanes.start + lane) as isize * self.from.lane_stride;
            let k = (self.ks.start + k) as isize * self.from.k_stride;
            // SAFETY: an element of the view.
            unsafe { self.from.data.offset((lane + k) * L::SIZE as isize) }
        }
    }

    fn low_bits(n: usize) -> __mmask16 {
        ((1u32 << n.min(16)) - 1) as __mmask16
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    pub(super) unsafe fn pack_512<L: Load>(part: &Part<'_>) {
        let (count, depth, width) = (part.lanes.len(), part.ks.len(), part.width);
        for first in (0..width).step_by(16) {
            let valid = count.saturating_sub(first).min(16);
            let stored = low_bits(width - first);
            // One lane is not worth a transposition.
            if part.from.lane_stride == 1 || valid == 1 {
                let mask = low_bits(valid);
                for k in 0..depth {
                    // SAFETY: only the valid lanes are read and only lanes of the panel are written.
                    unsafe {
                        let row = L::load_512(part.at::<L>(first, k), mask);
                        store(part.panel.add(k * width + first), stored, row);
                    }
                }
                continue;
            }
            for k in (0..depth).step_by(16) {
                let steps = (depth - k).min(16);
                if L::SIZE == 4 && valid == 16 && steps == 16 && width - first >= 16 {
                    let stride = part.from.lane_stride * 4;
                    // SAFETY: sixteen words of sixteen lanes.
                    unsafe { words_512(part.at::<L>(first, k), stride, part.panel.add(k * width + first), width) };
                    continue;
                }
                if L::SIZE == 4 && steps <= FEW_STEPS && width - first >= 16 {
                    for step in 0..steps {
                        let mut row = [0f32; 16];
                        for (lane, element) in row.iter_mut().enumerate().take(valid) {
                            // SAFETY: only elements of the part are read.
                            *element = unsafe { part.at::<L>(first + lane, k + step).cast::<f32>().read_unaligned() };
                        }
                        // SAFETY: only lanes of the panel are written.
                        unsafe { part.panel.add((k + step) * width + first).cast::<[f32; 16]>().write_unaligned(row) };
                    }
                    continue;
                }
                let mask = low_bits(steps);
                let mut rows = [_mm512_setzero_ps(); 16];
                for (lane, row) in rows.iter_mut().enumerate().take(valid) {
                    // SAFETY: only elements of the part are read.
                    *row = unsafe { L::load_512(part.at::<L>(first + lane, k), mask) };
                }
                transpose_512(&mut rows);
                for (step, row) in rows.iter().enumerate().take(steps) {
                    // SAFETY: only lanes of the panel are written.
                    unsafe { store(part.panel.add((k + step) * width + first), stored, *row) };
                }
            }
        }
    }

    /// The most words of a lane that are moved one by one: the last ones of 49 and 81 pixels.
    const FEW_STEPS: usize = 1;

    /// Rows between the one that is packed and the one that is fetched.
    const AHEAD: isize = 16;

    /// Transposes sixteen words of sixteen lanes, `stride` bytes apart, to rows of `width` words. Quarters of vectors are put together by
    /// loads, so that half of the shuffles are left.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn words_512(from: *const u8, stride: isize, to: *mut f32, width: usize) {
        for quarter in 0..4 {
            // SAFETY: the caller's promise.
            unsafe {
                // Lane 4 · q + i in quarter q.
                let lanes = |i: isize| {
                    let at = |q: isize| from.offset((4 * q + i) * stride).cast::<f32>().add(4 * quarter);
                    let v = _mm512_broadcast_f32x4(_mm_loadu_ps(at(0)));
                    let v = _mm512_mask_broadcast_f32x4(v, 0x00f0, _mm_loadu_ps(at(1)));
                    let v = _mm512_mask_broadcast_f32x4(v, 0x0f00, _mm_loadu_ps(at(2)));
                    _mm512_mask_broadcast_f32x4(v, 0xf000, _mm_loadu_ps(at(3)))
                };
                let rows = [lanes(0), lanes(1), lanes(2), lanes(3)];
                let low = [_mm512_unpacklo_ps(rows[0], rows[1]), _mm512_unpacklo_ps(rows[2], rows[3])];
                let high = [_mm512_unpackhi_ps(rows[0], rows[1]), _mm512_unpackhi_ps(rows[2], rows[3])];
                for (i, pair) in [low, high].into_iter().enumerate() {
                    let [a, b] = pair.map(|v| _mm512_castps_pd(v));
                    let to = to.add((4 * quarter + 2 * i) * width);
                    _mm512_storeu_pd(to.cast(), _mm512_unpacklo_pd(a, b));
                    _mm512_storeu_pd(to.add(width).cast(), _mm512_unpackhi_pd(a, b));
                }
            }
        }
    }

    /// Halves of words from two vectors of 32 elements of 16 bits: the first sixteen words, and the others.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    fn interleave(low: __m512i, high: __m512i) -> [__m512i; 2] {
        const fn order(first: u32) -> [u32; 16] {
            let mut words = [0; 16];
            let mut i = 0;
            while i < 16 {
                words[i] = (first + i as u32) | (first + i as u32 + 32) << 16;
                i += 1;
            }
            words
        }
        const ORDERS: [[u32; 16]; 2] = [order(0), order(16)];
        ORDERS.map(|order| {
            // SAFETY: an array of the vector's size.
            let order = unsafe { _mm512_loadu_si512(order.as_ptr().cast()) };
            _mm512_permutex2var_epi16(low, order, high)
        })
    }

    /// Stores the lanes of a mask.
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn store(at: *mut f32, mask: __mmask16, v: __m512) {
        // SAFETY: the lanes of the mask are writable at `at`.
        unsafe {
            if mask == !0 {
                _mm512_storeu_ps(at, v);
            } else {
                _mm512_mask_storeu_ps(at, mask, v);
            }
        }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    pub(super) unsafe fn pairs_512(part: &Part<'_>) {
        let (count, width) = (part.lanes.len(), part.width);
        for (i, pair) in part.ks.clone().enumerate() {
            let whole = count.min(width) / 32 * 32;
            for first in (0..whole).step_by(32) {
                // SAFETY: 32 lanes of two rows.
                unsafe {
                    let row = |k: usize| {
                        let lane = (part.lanes.start + first) as isize;
                        let at = part.from.data.cast::<i16>().offset(lane + k as isize * part.from.k_stride);
                        // Rows are read a few at a time: those of the next turn.
                        _mm_prefetch::<_MM_HINT_T0>(at.wrapping_offset(AHEAD * part.from.k_stride).cast());
                        _mm512_loadu_si512(at.cast())
                    };
                    let to = part.panel.cast::<i32>().add(i * width + first);
                    for (half, words) in interleave(row(2 * pair), row(2 * pair + 1)).into_iter().enumerate() {
                        _mm512_storeu_si512(to.add(16 * half).cast(), words);
                    }
                }
            }
            for first in (whole..width).step_by(16) {
                let valid = low_bits(count.saturating_sub(first));
                // SAFETY: only the valid lanes of two rows are read and only lanes of the panel are written.
                unsafe {
                    let row = |k: usize| {
                        let lane = (part.lanes.start + first) as isize;
                        let at = part.from.data.cast::<i16>().offset(lane + k as isize * part.from.k_stride);
                        _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(valid, at))
                    };
                    let words = _mm512_or_si512(row(2 * pair), _mm512_slli_epi32::<16>(row(2 * pair + 1)));
                    let to = part.panel.cast::<i32>().add(i * width + first);
                    _mm512_mask_storeu_epi32(to, low_bits(width - first), words);
                }
            }
        }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    pub(super) unsafe fn quads_512(part: &Part<'_>) {
        let (count, width) = (part.lanes.len(), part.width);
        for (i, word) in part.ks.clone().enumerate() {
            let whole = count.min(width) / 32 * 32;
            for first in (0..whole).step_by(32) {
                // SAFETY: 32 lanes of four rows.
                unsafe {
                    let row = |k: usize| {
                        let lane = (part.lanes.start + first) as isize;
                        let at = part.from.data.cast::<i8>().offset(lane + k as isize * part.from.k_stride);
                        _mm512_cvtepu8_epi16(_mm256_loadu_si256(at.cast()))
                    };
                    let pair = |k: usize| _mm512_or_si512(row(k), _mm512_slli_epi16::<8>(row(k + 1)));
                    let to = part.panel.cast::<i32>().add(i * width + first);
                    for (half, words) in interleave(pair(4 * word), pair(4 * word + 2)).into_iter().enumerate() {
                        _mm512_storeu_si512(to.add(16 * half).cast(), words);
                    }
                }
            }
            for first in (whole..width).step_by(16) {
                let valid = low_bits(count.saturating_sub(first));
                // SAFETY: only the valid lanes of four rows are read and only lanes of the panel are written.
                unsafe {
                    let row = |k: usize| {
                        let lane = (part.lanes.start + first) as isize;
                        let at = part.from.data.cast::<i8>().offset(lane + k as isize * part.from.k_stride);
                        _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(valid, at))
                    };
                    let low = _mm512_or_si512(row(4 * word), _mm512_slli_epi32::<8>(row(4 * word + 1)));
                    let high = _mm512_or_si512(row(4 * word + 2), _mm512_slli_epi32::<8>(row(4 * word + 3)));
                    let words = _mm512_or_si512(low, _mm512_slli_epi32::<16>(high));
                    let to = part.panel.cast::<i32>().add(i * width + first);
                    _mm512_mask_storeu_epi32(to, low_bits(width - first), words);
                }
            }
        }
    }

    #[target_feature(enable = "avx2,f16c")]
    pub(super) unsafe fn pairs_256(part: &Part<'_>) {
        let (count, width) = (part.lanes.len(), part.width);
        for (i, pair) in part.ks.clone().enumerate() {
            for first in (0..width).step_by(8) {
                let valid = count.saturating_sub(first).min(8);
                // SAFETY: only the valid lanes of two rows are read and only lanes of the panel are written.
                unsafe {
                    let row = |k: usize| {
                        let lane = (part.lanes.start + first) as isize;
                        let at = part.from.data.cast::<u16>().offset(lane + k as isize * part.from.k_stride);
                        let mut some = [0u16; 8];
                        std::ptr::copy_nonoverlapping(at, some.as_mut_ptr(), valid);
                        _mm256_cvtepu16_epi32(_mm_loadu_si128(some.as_ptr().cast()))
                    };
                    let words = _mm256_or_si256(row(2 * pair), _mm256_slli_epi32::<16>(row(2 * pair + 1)));
                    store_some(part.panel.add(i * width + first), (width - first).min(8), _mm256_castsi256_ps(words));
                }
            }
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    fn transpose_512(r: &mut [__m512; 16]) {
        let mut t = [_mm512_setzero_ps(); 16];
        for i in 0..8 {
            t[2 * i] = _mm512_unpacklo_ps(r[2 * i], r[2 * i + 1]);
            t[2 * i + 1] = _mm512_unpackhi_ps(r[2 * i], r[2 * i + 1]);
        }
        let pd = |v: __m512| _mm512_castps_pd(v);
        // After this r[4 i + j] holds, in each 128-bit lane q, column 4 q + j of rows 4 i ..= 4 i + 3.
        for i in 0..4 {
            let [a, b, c, d] = [t[4 * i], t[4 * i + 1], t[4 * i + 2], t[4 * i + 3]];
            r[4 * i] = _mm512_castpd_ps(_mm512_unpacklo_pd(pd(a), pd(c)));
            r[4 * i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(pd(a), pd(c)));
            r[4 * i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(pd(b), pd(d)));
            r[4 * i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(pd(b), pd(d)));
        }
        for j in 0..4 {
            let [a, b, c, d] = [r[j], r[4 + j], r[8 + j], r[12 + j]];
            let (ab_low, ab_high) = (_mm512_shuffle_f32x4::<0x44>(a, b), _mm512_shuffle_f32x4::<0xee>(a, b));
            let (cd_low, cd_high) = (_mm512_shuffle_f32x4::<0x44>(c, d), _mm512_shuffle_f32x4::<0xee>(c, d));
            t[j] = _mm512_shuffle_f32x4::<0x88>(ab_low, cd_low);
            t[4 + j] = _mm512_shuffle_f32x4::<0xdd>(ab_low, cd_low);
            t[8 + j] = _mm512_shuffle_f32x4::<0x88>(ab_high, cd_high);
            t[12 + j] = _mm512_shuffle_f32x4::<0xdd>(ab_high, cd_high);
        }
        *r = t;
    }

    #[target_feature(enable = "avx2,f16c")]
    pub(super) unsafe fn pack_256<L: Load>(part: &Part<'_>) {
        let (count, depth, width) = (part.lanes.len(), part.ks.len(), part.width);
        for first in (0..width).step_by(8) {
            let valid = count.saturating_sub(first).min(8);
            let stored = (width - first).min(8);
            if part.from.lane_stride == 1 {
                for k in 0..depth {
                    // SAFETY: only the valid lanes are read and only lanes of the panel are written.
                    unsafe {
                        let row = if valid == 8 {
                            L::load_256(part.at::<L>(first, k))
                        } else {
                            load_some::<L>(part.at::<L>(first, k), valid)
                        };
                        store_some(part.panel.add(k * width + first), stored, row);
                    }
                }
                continue;
            }
            for k in (0..depth).step_by(8) {
                let steps = (depth - k).min(8);
                let mut rows = [_mm256_setzero_ps(); 8];
                for (lane, row) in rows.iter_mut().enumerate().take(valid) {
                    // SAFETY: only elements of the part are read.
                    *row = unsafe {
                        let at = part.at::<L>(first + lane, k);
                        if steps == 8 { L::load_256(at) } else { load_some::<L>(at, steps) }
                    };
                }
                transpose_256(&mut rows);
                for (step, row) in rows.iter().enumerate().take(steps) {
                    // SAFETY: only lanes of the panel are written.
                    unsafe { store_some(part.panel.add((k + step) * width + first), stored, *row) };
                }
            }
        }
    }

    /// The first `n < 8` elements, the rest zero.
    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn load_some<L: Load>(at: *const u8, n: usize) -> __m256 {
        let mut padded = [0u8; 32];
        // SAFETY: n elements are readable at `at` and fit the buffer.
        unsafe {
            std::ptr::copy_nonoverlapping(at, padded.as_mut_ptr(), n * L::SIZE);
            L::load_256(padded.as_ptr())
        }
    }

    /// Stores the first `n ≤ 8` elements.
    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn store_some(at: *mut f32, n: usize, v: __m256) {
        // SAFETY: n elements are writable at `at`.
        unsafe {
            if n == 8 {
                _mm256_storeu_ps(at, v);
            } else {
                let lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
                let mask = _mm256_cmpgt_epi32(_mm256_set1_epi32(n as i32), lane);
                _mm256_maskstore_ps(at, mask, v);
            }
        }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn transpose_256(r: &mut [__m256; 8]) {
        let mut t = [_mm256_setzero_ps(); 8];
        for i in 0..4 {
            t[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
            t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
        }
        for i in 0..2 {
            let [a, b, c, d] = [t[4 * i], t[4 * i + 1], t[4 * i + 2], t[4 * i + 3]];
            r[4 * i] = _mm256_shuffle_ps::<0x44>(a, c);
            r[4 * i + 1] = _mm256_shuffle_ps::<0xee>(a, c);
            r[4 * i + 2] = _mm256_shuffle_ps::<0x44>(b, d);
            r[4 * i + 3] = _mm256_shuffle_ps::<0xee>(b, d);
        }
        for j in 0..4 {
            t[j] = _mm256_permute2f128_ps::<0x20>(r[j], r[4 + j]);
            t[4 + j] = _mm256_permute2f128_ps::<0x31>(r[j], r[4 + j]);
        }
        *r = t;
    }
}
