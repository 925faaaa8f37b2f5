//! One row of A in fixed point times rows of quantised blocks, with the byte products of AVX-512 VNNI.
//!
//! A step's bytes are multiplied by each of the row's three digits in turn, the sum so far shifted by a digit in between; what an
//! integer lane then holds is exact. It is scaled once, by what the blocks and the row share there. Bytes are unsigned, so that those
//! of formats with signed integers are some excess too large: the row's corrections take it off again.

use super::fixed::{Arrangement, CHUNK, CHUNK_BYTES, FixedRow, PIECE, Place, joined, products};
use super::unpack::half;
use kiln_ir::BlockFormat;
use std::arch::x86_64::*;

/// Where one call of a kernel reads and writes.
#[derive(Clone, Copy)]
pub(super) struct Call<'a> {
    /// The first row of blocks, bytes from one to the next, how many rows there are, and blocks of a row.
    pub w: *const u8,
    pub w_stride: isize,
    pub rows: usize,
    pub blocks: usize,
    /// The row of A, arranged for the format.
    pub a: &'a FixedRow,
    /// The first sum; those of rows of blocks lie side by side.
    pub c: *mut f32,
}

/// A kernel for as many rows of blocks as a call says.
pub(super) type Kernel = unsafe fn(Call<'_>);

/// The kernel of a format, and the arrangement of rows that it reads.
pub(super) fn kernel(format: BlockFormat) -> (Kernel, Arrangement) {
    fn of<B: Bytes>() -> (Kernel, Arrangement) {
        (dot::<B>, B::ARRANGEMENT)
    }
    match format {
        BlockFormat::Q4_0 => of::<Q40>(),
        BlockFormat::Q4_1 => of::<Q41>(),
        BlockFormat::Q5_0 => of::<Q50>(),
        BlockFormat::Q8_0 => of::<Q80>(),
        BlockFormat::Q4_K => of::<Q4K>(),
        BlockFormat::Q6_K => of::<Q6K>(),
    }
}

/// True if the machine has the instructions.
pub(super) fn available() -> bool {
    is_x86_feature_detected!("avx512vnni")
}

/// Sums of a row of blocks.
#[derive(Clone, Copy)]
struct Sums {
    /// Of products.
    total: __m512,
    /// Of what blocks add to all of their elements.
    rest: __m512,
}

/// A format's step.
trait Bytes {
    const FORMAT: BlockFormat;
    const ARRANGEMENT: Arrangement;
    /// Bytes ahead of a row that are fetched. Where a step takes little time for its bytes the machine does better by itself.
    const AHEAD: Option<isize> = None;
    /// Whether the next page is asked for with every row. Long rows of blocks of 256 gain by it, short ones of 32 would ask for
    /// the same page over and over.
    const NEXT_PAGE: bool = false;
    /// Adds a step's products; `block` is where its blocks begin.
    unsafe fn step(block: impl Fn(usize) -> *const u8, a: Place, sums: &mut Sums);
}

macro_rules! fn_vnni {
    ($(#[$meta:meta])* fn $name:ident$(<const $const:ident: bool>)?($($arg:ident: $ty:ty),*) $(-> $out:ty)? $body:block) => {
        $(#[$meta])*
        #[inline]
        #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
        unsafe fn $name$(<const $const: bool>)?($($arg: $ty),*) $(-> $out)? {
            // SAFETY: the caller's blocks and row, on a machine with these instructions.
            unsafe { $body }
        }
    };
}

/// Elements of a row of A whose digits stay in the nearest cache while rows of blocks pass by.
const SEGMENT: usize = 2048;
/// The least size of a page.
const PAGE: usize = 4096;
/// Rows of blocks that pass by a segment before the next one does.
const BATCH: usize = 16;

/// # Safety
/// The rows and sums of the call exist, the row of A is arranged for the format, and the machine has these instructions.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn dot<B: Bytes>(call: Call<'_>) {
    let elements = B::FORMAT.elements();
    let segments = (call.blocks * elements).div_ceil(SEGMENT + SEGMENT / 2).max(1);
    // Whole steps, all but the last as long.
    let length = (call.blocks * elements).div_ceil(segments).next_multiple_of(B::ARRANGEMENT.step);
    let batch = if segments == 1 { call.rows } else { BATCH };
    // The same part of the next row, where a row is not read in one go.
    let ahead = if segments == 1 { B::AHEAD } else { Some(call.w_stride) };
    for first in (0..call.rows).step_by(batch.max(1)) {
        for start in (0..call.blocks * elements).step_by(length) {
            let blocks = start / elements..call.blocks.min((start + length) / elements);
            let a = call.a.start().after(start, B::ARRANGEMENT.group);
            for row in first..call.rows.min(first + batch) {
                // SAFETY: blocks of a row of the call, and its sum.
                unsafe {
                    let w = call.w.offset(row as isize * call.w_stride).add(blocks.start * B::FORMAT.bytes());
                    let sum = segment::<B>(w, blocks.len(), a, ahead);
                    let c = call.c.add(row);
                    c.write(if start == 0 { sum } else { *c + sum });
                }
            }
        }
    }
}

/// Asks for the first lines of the page after each that some bytes lie in: the machine's own fetching stops at the end of one.
#[inline]
fn fetch_pages(from: *const u8, bytes: usize) {
    let first = from.wrapping_sub(from as usize % PAGE);
    for page in (PAGE..=from as usize % PAGE + bytes + PAGE - 1).step_by(PAGE) {
        for line in 0..4 {
            // SAFETY: fetching is harmless anywhere.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(first.wrapping_add(page + 64 * line).cast()) };
        }
    }
}

/// The product of some blocks with as many elements.
///
/// # Safety
/// The blocks and the elements exist, and the machine has these instructions.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn segment<B: Bytes>(mut w: *const u8, blocks: usize, mut a: Place, ahead: Option<isize>) -> f32 {
    let (bytes, how) = (B::FORMAT.bytes(), B::ARRANGEMENT);
    let step = how.step / B::FORMAT.elements();
    let mut sums = Sums { total: _mm512_setzero_ps(), rest: _mm512_setzero_ps() };
    if B::NEXT_PAGE {
        fetch_pages(w, blocks * bytes);
    }
    // SAFETY: the caller's promise.
    unsafe {
        for _ in 0..blocks / step {
            if let Some(ahead) = ahead {
                for line in 0..(step * bytes).div_ceil(64) {
                    _mm_prefetch::<_MM_HINT_T0>(w.wrapping_offset(ahead + 64 * line as isize).cast());
                }
            }
            B::step(|i| w.add(i * bytes), a, &mut sums);
            (w, a) = (w.add(step * bytes), a.after(how.step, how.group));
        }
        let left = blocks % step;
        if left > 0 {
            // Where there is no block the row has zeros, so that any will do.
            B::step(|i| w.add(i.min(left - 1) * bytes), a, &mut sums);
        }
    }
    _mm512_reduce_add_ps(_mm512_add_ps(sums.total, sums.rest))
}

fn_vnni! {
    /// [`products`] of two chunks, added up.
    fn both<const CORRECTED: bool>(w: [__m512i; 2], digits: *const u8) -> __m512i {
        let part = |i: usize| _mm512_loadu_si512(digits.add(CHUNK * i).cast());
        let with = |sum: __m512i, i: usize| {
            _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(sum, w[0], part(i)), w[1], part(i + 4))
        };
        let corrections = if CORRECTED { part(3) } else { _mm512_setzero_si512() };
        let [first, second] = [0, 1].map(|i| with(_mm512_setzero_si512(), i));
        joined(first, second, with(corrections, 2))
    }
}

/// Adds scaled integers.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn add(sums: &mut Sums, integers: __m512i, scales: __m512) {
    sums.total = _mm512_fmadd_ps(_mm512_cvtepi32_ps(integers), scales, sums.total);
}

fn_vnni! {
    /// Nibbles of the 16 bytes at `at` in each of four blocks: the low ones, the high ones.
    fn nibbles(blocks: [*const u8; 4], at: usize) -> [__m512i; 2] {
        let part = |i: usize| _mm_loadu_si128(blocks[i].add(at).cast());
        let bytes = _mm512_castsi128_si512(part(0));
        let bytes = _mm512_inserti32x4::<1>(bytes, part(1));
        let bytes = _mm512_inserti32x4::<2>(bytes, part(2));
        let bytes = _mm512_inserti32x4::<3>(bytes, part(3));
        split(bytes)
    }
}

/// The low nibbles of bytes, and the high ones.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn split(bytes: __m512i) -> [__m512i; 2] {
    let mask = _mm512_set1_epi8(15);
    [_mm512_and_si512(bytes, mask), _mm512_and_si512(_mm512_srli_epi16::<4>(bytes), mask)]
}

fn_vnni! {
    /// The halves at the beginning of four blocks.
    fn halves(blocks: [*const u8; 4]) -> __m128 {
        let half = |i: usize| u64::from(blocks[i].cast::<u16>().read_unaligned()) << (16 * i);
        let all = half(0) | half(1) | half(2) | half(3);
        _mm_cvtph_ps(_mm_cvtsi64_si128(all as i64))
    }
}

/// Each of eight lanes twice.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn spread(floats: __m512, lanes: [i32; 8]) -> __m512 {
    let [a, b, c, d, e, f, g, h] = lanes;
    _mm512_permutexvar_ps(_mm512_setr_epi32(a, a, b, b, c, c, d, d, e, e, f, f, g, g, h, h), floats)
}

/// Four blocks of two chunks: the low nibbles of all, then the high ones.
const fn by_nibbles(piece: usize) -> (usize, usize) {
    (piece / 2 % 2, piece / 4 * 16 + piece % 2 * PIECE)
}

/// Chunks as the elements lie.
const fn in_order(piece: usize) -> (usize, usize) {
    (piece * PIECE / CHUNK, piece * PIECE % CHUNK)
}

struct Q40;

impl Bytes for Q40 {
    const FORMAT: BlockFormat = BlockFormat::Q4_0;
    const ARRANGEMENT: Arrangement =
        Arrangement { group: 32, step: 128, bits: 22, excess: 8, together: 2, place: by_nibbles };
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    unsafe fn step(block: impl Fn(usize) -> *const u8, a: Place, sums: &mut Sums) {
        // SAFETY: the caller's blocks and row.
        unsafe {
            let blocks = [block(0), block(1), block(2), block(3)];
            let integers = both::<true>(nibbles(blocks, 2), a.digits);
            let scales = _mm_mul_ps(halves(blocks), _mm_loadu_ps(a.scales));
            add(sums, integers, spread(_mm512_castps128_ps512(scales), [0, 0, 1, 1, 2, 2, 3, 3]));
        }
    }
}

struct Q41;

impl Bytes for Q41 {
    const FORMAT: BlockFormat = BlockFormat::Q4_1;
    const ARRANGEMENT: Arrangement =
        Arrangement { group: 32, step: 128, bits: 22, excess: 0, together: 2, place: by_nibbles };
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    unsafe fn step(block: impl Fn(usize) -> *const u8, a: Place, sums: &mut Sums) {
        // SAFETY: the caller's blocks and row.
        unsafe {
            let blocks = [block(0), block(1), block(2), block(3)];
            let integers = both::<false>(nibbles(blocks, 4), a.digits);
            let scales = _mm_mul_ps(halves(blocks), _mm_loadu_ps(a.scales));
            let rest = _mm_mul_ps(halves(blocks.map(|block| block.add(2))), _mm_loadu_ps(a.sums));
            add(sums, integers, spread(_mm512_castps128_ps512(scales), [0, 0, 1, 1, 2, 2, 3, 3]));
            sums.rest = _mm512_add_ps(sums.rest, _mm512_zextps128_ps512(rest));
        }
    }
}

struct Q50;

impl Bytes for Q50 {
    const FORMAT: BlockFormat = BlockFormat::Q5_0;
    const ARRANGEMENT: Arrangement =
        Arrangement { group: 32, step: 128, bits: 22, excess: 16, together: 2, place: by_nibbles };
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    unsafe fn step(block: impl Fn(usize) -> *const u8, a: Place, sums: &mut Sums) {
        // SAFETY: the caller's blocks and row.
        unsafe {
            let blocks = [block(0), block(1), block(2), block(3)];
            let [low, high] = nibbles(blocks, 6);
            let tops = |i: usize, at: usize| u64::from(blocks[i].add(at).cast::<u16>().read_unaligned()) << (16 * i);
            let all = |at: usize| tops(0, at) | tops(1, at) | tops(2, at) | tops(3, at);
            let top = _mm512_set1_epi8(16);
            let low = _mm512_mask_add_epi8(low, all(2), low, top);
            let high = _mm512_mask_add_epi8(high, all(4), high, top);
            let scales = _mm_mul_ps(halves(blocks), _mm_loadu_ps(a.scales));
            let integers = both::<true>([low, high], a.digits);
            add(sums, integers, spread(_mm512_castps128_ps512(scales), [0, 0, 1, 1, 2, 2, 3, 3]));
        }
    }
}

struct Q80;

impl Bytes for Q80 {
    const FORMAT: BlockFormat = BlockFormat::Q8_0;
    const ARRANGEMENT: Arrangement =
        Arrangement { group: 32, step: 128, bits: 21, excess: 128, together: 1, place: in_order };
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    unsafe fn step(block: impl Fn(usize) -> *const u8, a: Place, sums: &mut Sums) {
        // SAFETY: the caller's blocks and row.
        unsafe {
            let blocks = [block(0), block(1), block(2), block(3)];
            let scales = _mm512_castps128_ps512(_mm_mul_ps(halves(blocks), _mm_loadu_ps(a.scales)));
            for (i, lanes) in [[0, 0, 0, 0, 1, 1, 1, 1], [2, 2, 2, 2, 3, 3, 3, 3]].into_iter().enumerate() {
                let part = |i: usize| _mm256_loadu_si256(blocks[i].add(2).cast());
                let bytes = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(part(2 * i)), part(2 * i + 1));
                let bytes = _mm512_xor_si512(bytes, _mm512_set1_epi8(i8::MIN));
                add(sums, products::<true>(bytes, a.digits.add(i * CHUNK_BYTES)), spread(scales, lanes));
            }
        }
    }
}

struct Q4K;

impl Q4K {
    /// The first 16 elements of every other 32, those beside them, then both of the 32s between: low nibbles, high ones.
    const fn place(piece: usize) -> (usize, usize) {
        let (eighth, inside) = (piece / 4, piece % 4);
        (eighth % 2 * 2 + inside / 2, eighth / 2 * 16 + inside % 2 * PIECE)
    }
}

impl Bytes for Q4K {
    const FORMAT: BlockFormat = BlockFormat::Q4_K;
    const NEXT_PAGE: bool = true;
    const ARRANGEMENT: Arrangement =
        Arrangement { group: 32, step: 256, bits: 22, excess: 0, together: 2, place: Q4K::place };
    const AHEAD: Option<isize> = Some(2048);
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    unsafe fn step(block: impl Fn(usize) -> *const u8, a: Place, sums: &mut Sums) {
        // SAFETY: the caller's block and row.
        unsafe {
            let block = block(0);
            let word = |at: usize| block.add(at).cast::<u32>().read_unaligned();
            let (x, y, z) = (word(4), word(8), word(12));
            let (low, top) = (0x0f0f_0f0f, 0x0303_0303);
            let scales = u64::from(x & 0x3f3f_3f3f) | u64::from((z & low) | (x >> 6 & top) << 4) << 32;
            let minima = u64::from(y & 0x3f3f_3f3f) | u64::from((z >> 4 & low) | (y >> 6 & top) << 4) << 32;
            let floats = |bytes: u64| _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(bytes as i64)));
            let scales = _mm256_mul_ps(floats(scales), _mm256_set1_ps(half(block)));
            let scales = _mm256_mul_ps(scales, _mm256_loadu_ps(a.scales));
            let minima = _mm256_mul_ps(floats(minima), _mm256_set1_ps(half(block.add(2))));
            let rest = _mm256_mul_ps(minima, _mm256_loadu_ps(a.sums));
            sums.rest = _mm512_sub_ps(sums.rest, _mm512_zextps256_ps512(rest));
            let scales = _mm512_castps256_ps512(scales);
            // Halves of what shares a scale lie where the other halves do, so that both are scaled at once.
            let [low, high] = [0, 64].map(|at| _mm512_loadu_si512(block.add(16 + at).cast()));
            let [a0, b0] = split(_mm512_shuffle_i64x2::<0b10_00_10_00>(low, high));
            let [a1, b1] = split(_mm512_shuffle_i64x2::<0b11_01_11_01>(low, high));
            let second = a.digits.add(2 * CHUNK_BYTES);
            add(sums, both::<false>([a0, a1], a.digits), spread(scales, [0, 0, 2, 2, 4, 4, 6, 6]));
            add(sums, both::<false>([b0, b1], second), spread(scales, [1, 1, 3, 3, 5, 5, 7, 7]));
        }
    }
}

struct Q6K;

impl Q6K {
    /// Of 128 elements the first 8 of each 16, then the others: those of the first and of the second 64 in turn.
    const fn place(piece: usize) -> (usize, usize) {
        let (half, sixteen, inside) = (piece / 16, piece % 16 / 2, piece % 2);
        (2 * half + inside, sixteen % 4 * 16 + sixteen / 4 * PIECE)
    }
}

impl Bytes for Q6K {
    const FORMAT: BlockFormat = BlockFormat::Q6_K;
    const NEXT_PAGE: bool = true;
    const ARRANGEMENT: Arrangement =
        Arrangement { group: 16, step: 256, bits: 22, excess: 32, together: 2, place: Q6K::place };
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    unsafe fn step(block: impl Fn(usize) -> *const u8, a: Place, sums: &mut Sums) {
        // SAFETY: the caller's block and row.
        unsafe {
            let block = block(0);
            let scale = _mm512_set1_ps(half(block.add(208)));
            let scales = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(block.add(192).cast())));
            let scales = _mm512_mul_ps(_mm512_mul_ps(scales, scale), _mm512_loadu_ps(a.scales));
            let (nibble, top) = (_mm512_set1_epi8(15), _mm512_set1_epi8(0x30));
            for (i, lanes) in [[0, 4, 1, 5, 2, 6, 3, 7], [8, 12, 9, 13, 10, 14, 11, 15]].into_iter().enumerate() {
                let low = _mm512_loadu_si512(block.add(64 * i).cast());
                let high = _mm256_loadu_si256(block.add(128 + 32 * i).cast());
                // The first and the third quarter take their upper bits from here, the second and the fourth from two bits further on.
                let high = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(high), _mm256_srli_epi16::<2>(high));
                // Bits of the first operand where the mask has ones, of the second elsewhere.
                let merged = |low: __m512i, high: __m512i| {
                    _mm512_ternarylogic_epi32::<0xca>(nibble, low, _mm512_and_si512(high, top))
                };
                let first = merged(low, _mm512_slli_epi16::<4>(high));
                let second = merged(_mm512_srli_epi16::<4>(low), high);
                let bytes = [_mm512_unpacklo_epi64(first, second), _mm512_unpackhi_epi64(first, second)];
                add(sums, both::<true>(bytes, a.digits.add(2 * i * CHUNK_BYTES)), spread(scales, lanes));
            }
        }
    }
}
