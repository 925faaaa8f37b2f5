//! Unpacks the elements of each format into vectors of floats. A block's head is what all of its elements share; a group is as
//! many elements as are cheapest together.
//!
//! Four bits are an index into a table of sixteen floats, which a register of AVX-512 holds: the table is scaled once per
//! block, and an element costs a permutation. The permutation uses four bits only, so that the low ones need no mask.

use kiln_ir::BlockFormat;
use std::arch::x86_64::*;

/// A format's code for vectors of 16 and of 8 lanes.
pub(super) trait Unpack {
    const FORMAT: BlockFormat;
    /// Vectors of 16 elements in a group; twice as many of 8.
    const VECTORS: usize;
    type Head512: Copy;
    type Group512: AsRef<[__m512]>;
    type Head256: Copy;
    type Group256: AsRef<[__m256]>;

    /// What the elements of a block share.
    unsafe fn head_512(block: *const u8) -> Self::Head512;
    /// The elements of one group.
    unsafe fn group_512(head: &Self::Head512, block: *const u8, group: usize) -> Self::Group512;
    /// As `head_512`.
    unsafe fn head_256(block: *const u8) -> Self::Head256;
    /// As `group_512`.
    unsafe fn group_256(head: &Self::Head256, block: *const u8, group: usize) -> Self::Group256;
}

macro_rules! fn_512 {
    ($(#[$meta:meta])* fn $name:ident($($arg:ident: $ty:ty),*) -> $out:ty $body:block) => {
        $(#[$meta])*
        #[inline]
        #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
        unsafe fn $name($($arg: $ty),*) -> $out {
            // SAFETY: the caller's block, on a machine with these instructions.
            unsafe { $body }
        }
    };
}
macro_rules! fn_256 {
    ($(#[$meta:meta])* fn $name:ident($($arg:ident: $ty:ty),*) -> $out:ty $body:block) => {
        $(#[$meta])*
        #[inline]
        #[target_feature(enable = "avx2,fma,f16c")]
        unsafe fn $name($($arg: $ty),*) -> $out {
            // SAFETY: the caller's block, on a machine with these instructions.
            unsafe { $body }
        }
    };
}

/// Every half as a float. Looking up a scale takes loads alone, and unpacking is bound by everything but loads.
static HALVES: [f32; 1 << 16] = halves();

const fn halves() -> [f32; 1 << 16] {
    let mut table = [0.0; 1 << 16];
    let mut bits = 0;
    while bits < 1 << 16 {
        let (sign, exponent, fraction) = ((bits & 0x8000) << 16, bits >> 10 & 31, bits & 1023);
        table[bits as usize] = match exponent {
            // 2⁻²⁴ times the fraction.
            0 => f32::from_bits(sign | (fraction as f32 * f32::from_bits(103 << 23)).to_bits()),
            31 => f32::from_bits(sign | 0x7f80_0000 | fraction << 13),
            _ => f32::from_bits(sign | (exponent + 112) << 23 | fraction << 13),
        };
        bits += 1;
    }
    table
}

/// A half.
#[inline(always)]
pub(super) unsafe fn half(at: *const u8) -> f32 {
    // SAFETY: two bytes of the caller's block.
    HALVES[usize::from(unsafe { at.cast::<u16>().read_unaligned() })]
}

fn_512! {
    /// A half in every lane.
    fn half_512(at: *const u8) -> __m512 { _mm512_set1_ps(half(at)) }
}

fn_256! {
    /// A half in every lane.
    fn half_256(at: *const u8) -> __m256 { _mm256_set1_ps(half(at)) }
}

/// 0, 1, … 15.
#[inline]
#[target_feature(enable = "avx512f")]
fn iota_512() -> __m512 {
    _mm512_setr_ps(0., 1., 2., 3., 4., 5., 6., 7., 8., 9., 10., 11., 12., 13., 14., 15.)
}

fn_512! {
    /// The elements of 16 bytes of two nibbles each: those of the low ones, those of the high ones.
    fn nibbles_512(low: __m512, high: __m512, at: *const u8) -> [__m512; 2] {
        let bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(at.cast()));
        [_mm512_permutexvar_ps(bytes, low), _mm512_permutexvar_ps(_mm512_srli_epi32::<4>(bytes), high)]
    }
}

fn_256! {
    /// The low and the high nibbles of 8 bytes, as floats.
    fn nibbles_256(at: *const u8) -> [__m256; 2] {
        let bytes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(at.cast()));
        let low = _mm256_and_si256(bytes, _mm256_set1_epi32(15));
        [_mm256_cvtepi32_ps(low), _mm256_cvtepi32_ps(_mm256_srli_epi32::<4>(bytes))]
    }
}

fn_512! {
    /// 16 signed bytes as floats.
    fn bytes_512(at: *const u8) -> __m512 {
        _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(at.cast())))
    }
}

fn_256! {
    /// 8 signed bytes as floats.
    fn bytes_256(at: *const u8) -> __m256 {
        _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(at.cast())))
    }
}

/// Two tables or pairs of scale and addend per block make four vectors of 8 out of 16 bytes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn scaled_256(scale: __m256, addend: __m256, at: *const u8) -> [__m256; 4] {
    // SAFETY: the caller's 16 bytes.
    let ([a, c], [b, d]) = unsafe { (nibbles_256(at), nibbles_256(at.add(8))) };
    [
        _mm256_fmadd_ps(a, scale, addend),
        _mm256_fmadd_ps(b, scale, addend),
        _mm256_fmadd_ps(c, scale, addend),
        _mm256_fmadd_ps(d, scale, addend),
    ]
}

/// [`BlockFormat::Q4_0`].
pub(super) struct Q40;

impl Unpack for Q40 {
    const FORMAT: BlockFormat = BlockFormat::Q4_0;
    const VECTORS: usize = 2;
    type Head512 = __m512;
    type Group512 = [__m512; 2];
    type Head256 = [__m256; 2];
    type Group256 = [__m256; 4];
    fn_512! { fn head_512(block: *const u8) -> __m512 {
        _mm512_mul_ps(_mm512_sub_ps(iota_512(), _mm512_set1_ps(8.0)), half_512(block))
    } }
    fn_512! { fn group_512(table: &__m512, block: *const u8, _group: usize) -> [__m512; 2] {
        nibbles_512(*table, *table, block.add(2))
    } }
    fn_256! { fn head_256(block: *const u8) -> [__m256; 2] {
        let scale = half_256(block);
        [scale, _mm256_mul_ps(scale, _mm256_set1_ps(-8.0))]
    } }
    fn_256! { fn group_256(head: &[__m256; 2], block: *const u8, _group: usize) -> [__m256; 4] {
        scaled_256(head[0], head[1], block.add(2))
    } }
}

/// [`BlockFormat::Q4_1`].
pub(super) struct Q41;

impl Unpack for Q41 {
    const FORMAT: BlockFormat = BlockFormat::Q4_1;
    const VECTORS: usize = 2;
    type Head512 = __m512;
    type Group512 = [__m512; 2];
    type Head256 = [__m256; 2];
    type Group256 = [__m256; 4];
    fn_512! { fn head_512(block: *const u8) -> __m512 {
        _mm512_fmadd_ps(iota_512(), half_512(block), half_512(block.add(2)))
    } }
    fn_512! { fn group_512(table: &__m512, block: *const u8, _group: usize) -> [__m512; 2] {
        nibbles_512(*table, *table, block.add(4))
    } }
    fn_256! { fn head_256(block: *const u8) -> [__m256; 2] {
        [half_256(block), half_256(block.add(2))]
    } }
    fn_256! { fn group_256(head: &[__m256; 2], block: *const u8, _group: usize) -> [__m256; 4] {
        scaled_256(head[0], head[1], block.add(4))
    } }
}

/// [`BlockFormat::Q8_0`].
pub(super) struct Q80;

impl Unpack for Q80 {
    const FORMAT: BlockFormat = BlockFormat::Q8_0;
    const VECTORS: usize = 2;
    type Head512 = __m512;
    type Group512 = [__m512; 2];
    type Head256 = __m256;
    type Group256 = [__m256; 4];
    fn_512! { fn head_512(block: *const u8) -> __m512 { half_512(block) } }
    fn_512! { fn group_512(scale: &__m512, block: *const u8, _group: usize) -> [__m512; 2] {
        [_mm512_mul_ps(bytes_512(block.add(2)), *scale), _mm512_mul_ps(bytes_512(block.add(18)), *scale)]
    } }
    fn_256! { fn head_256(block: *const u8) -> __m256 { half_256(block) } }
    fn_256! { fn group_256(scale: &__m256, block: *const u8, _group: usize) -> [__m256; 4] {
        [
            _mm256_mul_ps(bytes_256(block.add(2)), *scale),
            _mm256_mul_ps(bytes_256(block.add(10)), *scale),
            _mm256_mul_ps(bytes_256(block.add(18)), *scale),
            _mm256_mul_ps(bytes_256(block.add(26)), *scale),
        ]
    } }
}

/// [`BlockFormat::Q5_0`]: the fifth bits are those of four bytes, and choose between the two halves of a table.
pub(super) struct Q50;

impl Unpack for Q50 {
    const FORMAT: BlockFormat = BlockFormat::Q5_0;
    const VECTORS: usize = 2;
    type Head512 = [__m512; 2];
    type Group512 = [__m512; 2];
    type Head256 = [__m256; 2];
    type Group256 = [__m256; 4];
    fn_512! { fn head_512(block: *const u8) -> [__m512; 2] {
        let scale = half_512(block);
        [_mm512_mul_ps(_mm512_sub_ps(iota_512(), _mm512_set1_ps(16.0)), scale), _mm512_mul_ps(iota_512(), scale)]
    } }
    fn_512! { fn group_512(tables: &[__m512; 2], block: *const u8, _group: usize) -> [__m512; 2] {
        let tops = block.add(2).cast::<u32>().read_unaligned();
        let ([low, high], [low_top, high_top]) =
            (nibbles_512(tables[0], tables[0], block.add(6)), nibbles_512(tables[1], tables[1], block.add(6)));
        [
            _mm512_mask_blend_ps(tops as u16, low, low_top),
            _mm512_mask_blend_ps((tops >> 16) as u16, high, high_top),
        ]
    } }
    fn_256! { fn head_256(block: *const u8) -> [__m256; 2] {
        let scale = half_256(block);
        [scale, _mm256_mul_ps(scale, _mm256_set1_ps(-16.0))]
    } }
    fn_256! { fn group_256(head: &[__m256; 2], block: *const u8, _group: usize) -> [__m256; 4] {
        let tops = _mm256_set1_epi32(block.add(2).cast::<i32>().read_unaligned());
        let mut out = scaled_256(head[0], head[1], block.add(6));
        for (i, out) in out.iter_mut().enumerate() {
            // Lane j's bit becomes the sign, which selects between sixteen scales and none.
            let shift = _mm256_sub_epi32(
                _mm256_set1_epi32(31 - 8 * i as i32),
                _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7),
            );
            let signs = _mm256_castsi256_ps(_mm256_sllv_epi32(tops, shift));
            let more = _mm256_mul_ps(head[0], _mm256_set1_ps(16.0));
            *out = _mm256_add_ps(*out, _mm256_blendv_ps(_mm256_setzero_ps(), more, signs));
        }
        out
    } }
}

/// [`BlockFormat::Q4_K`]: a group is 32 bytes, whose low nibbles are 32 elements and whose high ones the next 32.
pub(super) struct Q4K;

/// The scales of eight times 32 elements, and what is subtracted from them.
#[derive(Clone, Copy)]
pub(super) struct Eight {
    scales: [f32; 8],
    minima: [f32; 8],
}

fn_256! {
    /// Unpacks the six-bit numbers of a head and scales them.
    fn eight(block: *const u8) -> Eight {
        let word = |at: usize| block.add(at).cast::<u32>().read_unaligned();
        let (a, b, c) = (word(4), word(8), word(12));
        let (low, top) = (0x0f0f_0f0f, 0x0303_0303);
        let scales = u64::from(a & 0x3f3f_3f3f) | u64::from((c & low) | (a >> 6 & top) << 4) << 32;
        let minima = u64::from(b & 0x3f3f_3f3f) | u64::from((c >> 4 & low) | (b >> 6 & top) << 4) << 32;
        let mut eight = Eight { scales: [0.0; 8], minima: [0.0; 8] };
        let floats = |bytes: u64| _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(bytes as i64)));
        _mm256_storeu_ps(eight.scales.as_mut_ptr(), _mm256_mul_ps(floats(scales), half_256(block)));
        _mm256_storeu_ps(eight.minima.as_mut_ptr(), _mm256_mul_ps(floats(minima), half_256(block.add(2))));
        // A load broadcasts a scale from memory; from a register that would take a shuffle.
        std::hint::black_box(&mut eight);
        eight
    }
}

impl Unpack for Q4K {
    const FORMAT: BlockFormat = BlockFormat::Q4_K;
    const VECTORS: usize = 4;
    type Head512 = Eight;
    type Group512 = [__m512; 4];
    type Head256 = Eight;
    type Group256 = [__m256; 8];
    fn_512! { fn head_512(block: *const u8) -> Eight { eight(block) } }
    fn_512! { fn group_512(head: &Eight, block: *const u8, group: usize) -> [__m512; 4] {
        let (i, j, at) = (2 * group, 2 * group + 1, block.add(16 + 32 * group));
        let low = _mm512_fmsub_ps(iota_512(), _mm512_set1_ps(head.scales[i]), _mm512_set1_ps(head.minima[i]));
        let high = _mm512_fmsub_ps(iota_512(), _mm512_set1_ps(head.scales[j]), _mm512_set1_ps(head.minima[j]));
        let ([a, c], [b, d]) = (nibbles_512(low, high, at), nibbles_512(low, high, at.add(16)));
        [a, b, c, d]
    } }
    fn_256! { fn head_256(block: *const u8) -> Eight { eight(block) } }
    fn_256! { fn group_256(head: &Eight, block: *const u8, group: usize) -> [__m256; 8] {
        let mut out = [_mm256_setzero_ps(); 8];
        for quarter in 0..4 {
            let [low, high] = nibbles_256(block.add(16 + 32 * group + 8 * quarter));
            for (half, q) in [low, high].into_iter().enumerate() {
                let i = 2 * group + half;
                let (scale, least) = (_mm256_set1_ps(head.scales[i]), _mm256_set1_ps(head.minima[i]));
                out[4 * half + quarter] = _mm256_fmsub_ps(q, scale, least);
            }
        }
        out
    } }
}

/// [`BlockFormat::Q6_K`]: a group is a half of the block, 64 bytes of low parts and 32 of high ones.
pub(super) struct Q6K;

fn_256! {
    /// The scales of sixteen times 16 elements.
    fn sixteen(block: *const u8) -> [f32; 16] {
        let mut scales = [0.0; 16];
        let scale = half_256(block.add(208));
        for i in 0..2 {
            let eight = _mm256_mul_ps(bytes_256(block.add(192 + 8 * i)), scale);
            _mm256_storeu_ps(scales.as_mut_ptr().add(8 * i), eight);
        }
        // As above.
        std::hint::black_box(&mut scales);
        scales
    }
}

impl Unpack for Q6K {
    const FORMAT: BlockFormat = BlockFormat::Q6_K;
    const VECTORS: usize = 8;
    type Head512 = [f32; 16];
    type Group512 = [__m512; 8];
    type Head256 = [f32; 16];
    type Group256 = [__m256; 16];
    fn_512! { fn head_512(block: *const u8) -> [f32; 16] { sixteen(block) } }
    fn_512! { fn group_512(scales: &[f32; 16], block: *const u8, group: usize) -> [__m512; 8] {
        let low = _mm512_loadu_si512(block.add(64 * group).cast());
        let high = _mm256_loadu_si256(block.add(128 + 32 * group).cast());
        // The first and the third quarter take their upper bits from here, the second and the fourth from two bits further on.
        let high = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(high), _mm256_srli_epi16::<2>(high));
        let (nibble, top, middle) = (_mm512_set1_epi8(15), _mm512_set1_epi8(0x30), _mm512_set1_epi8(32));
        let first = _mm512_or_si512(
            _mm512_and_si512(low, nibble),
            _mm512_and_si512(_mm512_slli_epi16::<4>(high), top),
        );
        let second = _mm512_or_si512(
            _mm512_and_si512(_mm512_srli_epi16::<4>(low), nibble),
            _mm512_and_si512(high, top),
        );
        let (first, second) = (_mm512_sub_epi8(first, middle), _mm512_sub_epi8(second, middle));
        let scale = |i: usize| _mm512_set1_ps(scales[8 * group + i]);
        let float = |bytes: __m128i, i: usize| {
            _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)), scale(i))
        };
        [
            float(_mm512_castsi512_si128(first), 0),
            float(_mm512_extracti32x4_epi32::<1>(first), 1),
            float(_mm512_extracti32x4_epi32::<2>(first), 2),
            float(_mm512_extracti32x4_epi32::<3>(first), 3),
            float(_mm512_castsi512_si128(second), 4),
            float(_mm512_extracti32x4_epi32::<1>(second), 5),
            float(_mm512_extracti32x4_epi32::<2>(second), 6),
            float(_mm512_extracti32x4_epi32::<3>(second), 7),
        ]
    } }
    fn_256! { fn head_256(block: *const u8) -> [f32; 16] { sixteen(block) } }
    fn_256! { fn group_256(scales: &[f32; 16], block: *const u8, group: usize) -> [__m256; 16] {
        let low = [0, 32].map(|at| _mm256_loadu_si256(block.add(64 * group + at).cast()));
        let high = _mm256_loadu_si256(block.add(128 + 32 * group).cast());
        let (nibble, top, middle) = (_mm256_set1_epi8(15), _mm256_set1_epi8(0x30), _mm256_set1_epi8(32));
        let quarters = [
            (low[0], _mm256_slli_epi16::<4>(high)),
            (low[1], _mm256_slli_epi16::<2>(high)),
            (_mm256_srli_epi16::<4>(low[0]), high),
            (_mm256_srli_epi16::<4>(low[1]), _mm256_srli_epi16::<2>(high)),
        ];
        let mut out = [_mm256_setzero_ps(); 16];
        for (i, (low, high)) in quarters.into_iter().enumerate() {
            let q = _mm256_or_si256(_mm256_and_si256(low, nibble), _mm256_and_si256(high, top));
            let q = _mm256_sub_epi8(q, middle);
            for (half, bytes) in [_mm256_castsi256_si128(q), _mm256_extracti128_si256::<1>(q)].into_iter().enumerate() {
                let scale = _mm256_set1_ps(scales[8 * group + 2 * i + half]);
                let at = 4 * i + 2 * half;
                out[at] = _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)), scale);
                let rest = _mm_srli_si128::<8>(bytes);
                out[at + 1] = _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(rest)), scale);
            }
        }
        out
    } }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_half_is_in_the_table() {
        for bits in 0..=u16::MAX {
            let (got, want) = (HALVES[usize::from(bits)], half::f16::from_bits(bits).to_f32());
            assert!(got.to_bits() == want.to_bits() || (got.is_nan() && want.is_nan()), "{bits:#x}: {got}, not {want}");
        }
    }
}
