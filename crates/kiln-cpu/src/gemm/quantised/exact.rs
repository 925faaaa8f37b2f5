//! One row of A in fixed point times rows of quantised blocks, with the byte products of AVX-512 VNNI.
//!
//! A step's bytes are multiplied by each of the row's limbs, and the products are recombined: an integer lane is exact. It is
//! scaled once, by the scales of the blocks and the row. Bytes are unsigned, so that those of formats with signed integers have
//! an excess: the row's corrections subtract it again.
//!
//! ```text
//!  rows of blocks in memory   ▓▓▓▓▓▓▓▓▓▓▓▓░░░░░░░░░░░░░░▒▒▒▒▒▒▒▒▒▒▒▒▒·             ·
//!                             four side by side          │           │             └ TLB warm-up of a page
//!                             being multiplied           └───────────┴ lines that are prefetched meanwhile, in the order of memory
//! ```
//!
//! Four rows side by side read the limbs once for all of them, so that these may be more than the nearest cache holds. The
//! order in which blocks are read is then not that of memory, so the hardware prefetcher does not help and the kernel
//! prefetches. The TLB is warmed up for a page before its lines are prefetched, once and with one line alone: every prefetch to
//! a page that misses the TLB costs as much as the first.

use super::fixed::{Arranged, Arrangement, CHUNK, FixedRow, LIMBS, RowCursor};
use super::unpack::half;
use kiln_ir::BlockFormat;
use std::arch::x86_64::*;

/// The operands of one call of a kernel.
#[derive(Clone, Copy)]
pub(super) struct Call<'a> {
    /// The first row of blocks, bytes from one to the next, the number of rows, and blocks of a row.
    pub w: *const u8,
    pub w_stride: isize,
    pub rows: usize,
    pub blocks: usize,
    /// The row of A, arranged for the format.
    pub a: &'a FixedRow,
    /// The first sum; those of rows of blocks are contiguous.
    pub c: *mut f32,
}

/// A kernel for any number of rows of blocks.
pub(super) type Kernel = unsafe fn(Call<'_>);

/// Makes a row of A of the given number of elements for a kernel: [`FixedRow::new`].
pub(super) type Arrange = unsafe fn(*const f32, usize) -> Option<FixedRow>;

/// The kernel of a format for rows of so many limbs, and the function that makes such rows.
pub(super) fn kernel(format: BlockFormat, limbs: usize) -> (Kernel, Arrange) {
    fn of<B: Bytes>(limbs: usize) -> (Kernel, Arrange) {
        match limbs {
            1 => (dot::<B, 1>, FixedRow::new::<B, 1>),
            2 => (dot::<B, 2>, FixedRow::new::<B, 2>),
            _ => (dot::<B, LIMBS>, FixedRow::new::<B, LIMBS>),
        }
    }
    match format {
        BlockFormat::Q4_0 => of::<Q40>(limbs),
        BlockFormat::Q4_1 => of::<Q41>(limbs),
        BlockFormat::Q5_0 => of::<Q50>(limbs),
        BlockFormat::Q8_0 => of::<Q80>(limbs),
        BlockFormat::Q4_K => of::<Q4K>(limbs),
        BlockFormat::Q6_K => of::<Q6K>(limbs),
    }
}

/// True if the machine has the instructions.
pub(super) fn available() -> bool {
    is_x86_feature_detected!("avx512vnni")
}

/// A format's step.
trait Bytes: Arranged {
    const FORMAT: BlockFormat;
    /// Adds a step's products of `R` rows with a row of `D` limbs; `block` is where the blocks of a row begin.
    unsafe fn step<const R: usize, const D: usize>(
        block: impl Fn(usize, usize) -> *const u8,
        a: RowCursor,
        sums: &mut [__m512; R],
    );
}

macro_rules! fn_vnni {
    ($(#[$meta:meta])* fn $name:ident($($arg:ident: $ty:ty),*) $(-> $out:ty)? $body:block) => {
        $(#[$meta])*
        #[inline]
        #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
        unsafe fn $name($($arg: $ty),*) $(-> $out)? {
            // SAFETY: the caller's blocks and row, on a machine with these instructions.
            unsafe { $body }
        }
    };
}

/// Rows of blocks side by side.
pub(super) const SIDE_BY_SIDE: usize = 4;
/// The distance in bytes from the rows side by side at which lines are prefetched, and the further distance of the TLB warm-up.
const LINES_AHEAD: usize = 4096;
const PAGES_AHEAD: usize = 8192;
/// Bytes of a line, and of the smallest pages.
const LINE: usize = 64;
const PAGE: usize = 4096;

/// # Safety
/// The rows and sums of the call exist, the row of A has `D` limbs and is arranged for the format, and the machine has these
/// instructions.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn dot<B: Bytes, const D: usize>(call: Call<'_>) {
    let whole = call.rows - call.rows % SIDE_BY_SIDE;
    // SAFETY: the caller's promise.
    unsafe {
        for first in (0..whole).step_by(SIDE_BY_SIDE) {
            rows::<B, SIDE_BY_SIDE, D>(&call, first);
        }
        for first in whole..call.rows {
            rows::<B, 1, D>(&call, first);
        }
    }
}

/// The products of `R` rows from `first` on.
///
/// # Safety
/// As for [`dot`].
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn rows<B: Bytes, const R: usize, const D: usize>(call: &Call<'_>, first: usize) {
    let (bytes, how) = (B::FORMAT.bytes(), B::ARRANGEMENT);
    let step = how.step / B::FORMAT.elements();
    let mut w: [_; R] = std::array::from_fn(|r| call.w.wrapping_offset((first + r) as isize * call.w_stride));
    let all = R * call.w_stride.unsigned_abs();
    let mut ahead = w[0].wrapping_add(all + LINES_AHEAD);
    look_up_pages(ahead.wrapping_add(PAGES_AHEAD), all);
    let mut a = call.a.start();
    let mut sums = [_mm512_setzero_ps(); R];
    // SAFETY: the caller's promise.
    unsafe {
        for _ in 0..call.blocks / step {
            fetch_lines(ahead, R * step * bytes);
            B::step::<R, D>(|r, i| w[r].add(i * bytes), a, &mut sums);
            w = w.map(|w| w.add(step * bytes));
            (ahead, a) = (ahead.wrapping_add(R * step * bytes), a.next::<D>(&how));
        }
        let left = call.blocks % step;
        if left > 0 {
            fetch_lines(ahead, R * left * bytes);
            // Where there is no block the row has zeros, so that any block may be read.
            B::step::<R, D>(|r, i| w[r].add(i.min(left - 1) * bytes), a, &mut sums);
        }
        for (r, sum) in sums.into_iter().enumerate() {
            call.c.add(first + r).write(_mm512_reduce_add_ps(sum));
        }
    }
}

/// Prefetches the lines of some bytes.
#[inline]
fn fetch_lines(from: *const u8, bytes: usize) {
    for line in (0..bytes).step_by(LINE) {
        // SAFETY: a prefetch is valid at any address.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(from.wrapping_add(line).cast()) };
    }
}

/// Warms up the TLB: prefetches one line of each page that begins among some bytes.
#[inline]
fn look_up_pages(from: *const u8, bytes: usize) {
    let first = (from as usize).next_multiple_of(PAGE) - from as usize;
    for page in (first..bytes).step_by(PAGE) {
        // SAFETY: a prefetch is valid at any address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(page).cast()) };
    }
}

/// The limbs of `C` chunks whose products are added up, and their corrections.
struct Limbs<const C: usize, const D: usize> {
    chunks: [[__m512i; D]; C],
    corrections: __m512i,
}

impl<const C: usize, const D: usize> Limbs<C, D> {
    /// Those of a step from some chunk on.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    unsafe fn of(a: RowCursor, how: &Arrangement, first: usize) -> Limbs<C, D> {
        let mut limbs = Limbs { chunks: [[_mm512_setzero_si512(); D]; C], corrections: _mm512_setzero_si512() };
        // SAFETY: the caller's row.
        unsafe {
            let at = a.limbs.add(first / C * how.bytes_together(D));
            for (c, chunk) in limbs.chunks.iter_mut().enumerate() {
                for (d, limb) in chunk.iter_mut().enumerate() {
                    *limb = _mm512_loadu_si512(at.add((c * D + d) * CHUNK).cast());
                }
            }
            if how.excess != 0 {
                limbs.corrections = _mm512_loadu_si512(at.add(C * D * CHUNK).cast());
            }
        }
        limbs
    }

    /// The sums of their products with bytes. Those of each limb have an accumulator of their own, since a common one would be
    /// one long chain of instructions.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    fn times(&self, bytes: [__m512i; C]) -> __m512i {
        let mut sums = [_mm512_setzero_si512(); D];
        sums[D - 1] = self.corrections;
        for (bytes, chunk) in bytes.into_iter().zip(&self.chunks) {
            for (sum, limb) in sums.iter_mut().zip(chunk) {
                *sum = _mm512_dpbusd_epi32(*sum, bytes, *limb);
            }
        }
        let mut all = sums[0];
        for sum in &sums[1..] {
            all = _mm512_add_epi32(_mm512_slli_epi32::<8>(all), *sum);
        }
        all
    }
}

/// Adds scaled integers.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn add(sum: &mut __m512, integers: __m512i, scales: __m512) {
    *sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(integers), scales, *sum);
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

/// Eight bytes as floats.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn floats(bytes: u64) -> __m256 {
    _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(bytes as i64)))
}

/// Each of eight lanes twice.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn spread(floats: __m512, lanes: [i32; 8]) -> __m512 {
    let [a, b, c, d, e, f, g, h] = lanes;
    _mm512_permutexvar_ps(_mm512_setr_epi32(a, a, b, b, c, c, d, d, e, e, f, f, g, g, h, h), floats)
}

/// Four blocks of two chunks: the low nibbles of all, then the high ones.
const fn by_nibbles(sixteen: usize) -> (usize, usize) {
    (sixteen % 2, sixteen / 2 * 16)
}

/// Chunks in the order of the elements.
const fn in_order(sixteen: usize) -> (usize, usize) {
    (sixteen * 16 / CHUNK, sixteen * 16 % CHUNK)
}

struct Q40;

impl Arranged for Q40 {
    const ARRANGEMENT: Arrangement =
        Arrangement { group: 32, step: 128, bits: 22, excess: 8, together: 2, piece: 16, place: by_nibbles };
}

impl Bytes for Q40 {
    const FORMAT: BlockFormat = BlockFormat::Q4_0;
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    unsafe fn step<const R: usize, const D: usize>(
        block: impl Fn(usize, usize) -> *const u8,
        a: RowCursor,
        sums: &mut [__m512; R],
    ) {
        // SAFETY: the caller's blocks and row.
        unsafe {
            let (limbs, of_a) = (Limbs::<2, D>::of(a, &Self::ARRANGEMENT, 0), _mm_loadu_ps(a.scales));
            for (r, sum) in sums.iter_mut().enumerate() {
                let blocks = [block(r, 0), block(r, 1), block(r, 2), block(r, 3)];
                let scales = _mm512_castps128_ps512(_mm_mul_ps(halves(blocks), of_a));
                add(sum, limbs.times(nibbles(blocks, 2)), spread(scales, [0, 0, 1, 1, 2, 2, 3, 3]));
            }
        }
    }
}

struct Q41;

impl Arranged for Q41 {
    const ARRANGEMENT: Arrangement =
        Arrangement { group: 32, step: 128, bits: 22, excess: 0, together: 2, piece: 16, place: by_nibbles };
}

impl Bytes for Q41 {
    const FORMAT: BlockFormat = BlockFormat::Q4_1;
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    unsafe fn step<const R: usize, const D: usize>(
        block: impl Fn(usize, usize) -> *const u8,
        a: RowCursor,
        sums: &mut [__m512; R],
    ) {
        // SAFETY: the caller's blocks and row.
        unsafe {
            let (limbs, of_a) = (Limbs::<2, D>::of(a, &Self::ARRANGEMENT, 0), _mm_loadu_ps(a.scales));
            let sums_of_a = _mm512_zextps128_ps512(_mm_loadu_ps(a.sums));
            for (r, sum) in sums.iter_mut().enumerate() {
                let blocks = [block(r, 0), block(r, 1), block(r, 2), block(r, 3)];
                let scales = _mm512_castps128_ps512(_mm_mul_ps(halves(blocks), of_a));
                let addends = _mm512_zextps128_ps512(halves(blocks.map(|block| block.add(2))));
                *sum = _mm512_fmadd_ps(addends, sums_of_a, *sum);
                add(sum, limbs.times(nibbles(blocks, 4)), spread(scales, [0, 0, 1, 1, 2, 2, 3, 3]));
            }
        }
    }
}

struct Q50;

impl Arranged for Q50 {
    const ARRANGEMENT: Arrangement =
        Arrangement { group: 32, step: 128, bits: 22, excess: 16, together: 2, piece: 16, place: by_nibbles };
}

impl Bytes for Q50 {
    const FORMAT: BlockFormat = BlockFormat::Q5_0;
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    unsafe fn step<const R: usize, const D: usize>(
        block: impl Fn(usize, usize) -> *const u8,
        a: RowCursor,
        sums: &mut [__m512; R],
    ) {
        // SAFETY: the caller's blocks and row.
        unsafe {
            let (limbs, of_a) = (Limbs::<2, D>::of(a, &Self::ARRANGEMENT, 0), _mm_loadu_ps(a.scales));
            for (r, sum) in sums.iter_mut().enumerate() {
                let blocks = [block(r, 0), block(r, 1), block(r, 2), block(r, 3)];
                let [low, high] = nibbles(blocks, 6);
                let tops =
                    |i: usize, at: usize| u64::from(blocks[i].add(at).cast::<u16>().read_unaligned()) << (16 * i);
                let all = |at: usize| tops(0, at) | tops(1, at) | tops(2, at) | tops(3, at);
                let top = _mm512_set1_epi8(16);
                let low = _mm512_mask_add_epi8(low, all(2), low, top);
                let high = _mm512_mask_add_epi8(high, all(4), high, top);
                let scales = _mm512_castps128_ps512(_mm_mul_ps(halves(blocks), of_a));
                add(sum, limbs.times([low, high]), spread(scales, [0, 0, 1, 1, 2, 2, 3, 3]));
            }
        }
    }
}

struct Q80;

impl Arranged for Q80 {
    const ARRANGEMENT: Arrangement =
        Arrangement { group: 32, step: 128, bits: 21, excess: 128, together: 1, piece: 16, place: in_order };
}

impl Bytes for Q80 {
    const FORMAT: BlockFormat = BlockFormat::Q8_0;
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    unsafe fn step<const R: usize, const D: usize>(
        block: impl Fn(usize, usize) -> *const u8,
        a: RowCursor,
        sums: &mut [__m512; R],
    ) {
        // SAFETY: the caller's blocks and row.
        unsafe {
            let limbs = [Limbs::<1, D>::of(a, &Self::ARRANGEMENT, 0), Limbs::<1, D>::of(a, &Self::ARRANGEMENT, 1)];
            let of_a = _mm_loadu_ps(a.scales);
            for (r, sum) in sums.iter_mut().enumerate() {
                let blocks = [block(r, 0), block(r, 1), block(r, 2), block(r, 3)];
                let scales = _mm512_castps128_ps512(_mm_mul_ps(halves(blocks), of_a));
                for (i, lanes) in [[0, 0, 0, 0, 1, 1, 1, 1], [2, 2, 2, 2, 3, 3, 3, 3]].into_iter().enumerate() {
                    let part = |i: usize| _mm256_loadu_si256(blocks[i].add(2).cast());
                    let bytes = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(part(2 * i)), part(2 * i + 1));
                    let bytes = _mm512_xor_si512(bytes, _mm512_set1_epi8(i8::MIN));
                    add(sum, limbs[i].times([bytes]), spread(scales, lanes));
                }
            }
        }
    }
}

struct Q4K;

impl Q4K {
    /// Eight bytes of each chunk for each 32 elements.
    const fn place(eight: usize) -> (usize, usize) {
        (eight % 4, eight / 4 * 8)
    }
}

impl Arranged for Q4K {
    const ARRANGEMENT: Arrangement =
        Arrangement { group: 32, step: 256, bits: 22, excess: 0, together: 4, piece: 8, place: Q4K::place };
}

impl Bytes for Q4K {
    const FORMAT: BlockFormat = BlockFormat::Q4_K;
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    unsafe fn step<const R: usize, const D: usize>(
        block: impl Fn(usize, usize) -> *const u8,
        a: RowCursor,
        sums: &mut [__m512; R],
    ) {
        // SAFETY: the caller's block and row.
        unsafe {
            let limbs = Limbs::<4, D>::of(a, &Self::ARRANGEMENT, 0);
            let (of_a, sums_of_a) = (_mm256_loadu_ps(a.scales), _mm512_zextps256_ps512(_mm256_loadu_ps(a.sums)));
            for (r, sum) in sums.iter_mut().enumerate() {
                let block = block(r, 0);
                let word = |at: usize| block.add(at).cast::<u32>().read_unaligned();
                let (x, y, z) = (word(4), word(8), word(12));
                let (low, top) = (0x0f0f_0f0f, 0x0303_0303);
                let scales = u64::from(x & 0x3f3f_3f3f) | u64::from((z & low) | (x >> 6 & top) << 4) << 32;
                let minima = u64::from(y & 0x3f3f_3f3f) | u64::from((z >> 4 & low) | (y >> 6 & top) << 4) << 32;
                let scales = _mm256_mul_ps(floats(scales), _mm256_set1_ps(half(block)));
                let scales = _mm512_castps256_ps512(_mm256_mul_ps(scales, of_a));
                let minima = _mm256_mul_ps(floats(minima), _mm256_set1_ps(half(block.add(2))));
                *sum = _mm512_fnmadd_ps(_mm512_zextps256_ps512(minima), sums_of_a, *sum);
                // The first 16 bytes of each 32 and the second: low nibbles are elements of one group, high ones of the next.
                let (low, high) = (_mm512_loadu_si512(block.add(16).cast()), _mm512_loadu_si512(block.add(80).cast()));
                let [a0, b0] = split(_mm512_shuffle_i64x2::<0b10_00_10_00>(low, high));
                let [a1, b1] = split(_mm512_shuffle_i64x2::<0b11_01_11_01>(low, high));
                let [c0, c1] = [_mm512_unpacklo_epi64(a0, b0), _mm512_unpackhi_epi64(a0, b0)];
                let [c2, c3] = [_mm512_unpacklo_epi64(a1, b1), _mm512_unpackhi_epi64(a1, b1)];
                add(sum, limbs.times([c0, c1, c2, c3]), spread(scales, [0, 1, 2, 3, 4, 5, 6, 7]));
            }
        }
    }
}

struct Q6K;

impl Q6K {
    /// Four bytes of each chunk for each 16 elements: those of the first, the fifth, the ninth and so on.
    const fn place(four: usize) -> (usize, usize) {
        let group = four / 4;
        (four % 4, group % 4 * 16 + group / 4 * 4)
    }

    fn_vnni! {
        /// The bytes of the first 128 elements or of the others.
        fn half(block: *const u8, number: usize) -> [__m512i; 2] {
            let (nibble, top) = (_mm512_set1_epi8(15), _mm512_set1_epi8(0x30));
            let low = _mm512_loadu_si512(block.add(64 * number).cast());
            // The first and the third quarter take their upper bits from here, the second and the fourth from two bits further on.
            let high = _mm512_broadcast_i64x4(_mm256_loadu_si256(block.add(128 + 32 * number).cast()));
            let high = _mm512_srlv_epi64(high, _mm512_setr_epi64(0, 0, 0, 0, 2, 2, 2, 2));
            let tops = [_mm512_and_si512(_mm512_slli_epi16::<4>(high), top), _mm512_and_si512(high, top)];
            // Bits of the first operand where the mask has ones, of the second elsewhere.
            [
                _mm512_ternarylogic_epi32::<0xca>(nibble, low, tops[0]),
                _mm512_ternarylogic_epi32::<0xca>(nibble, _mm512_srli_epi16::<4>(low), tops[1]),
            ]
        }
    }
}

impl Arranged for Q6K {
    const ARRANGEMENT: Arrangement =
        Arrangement { group: 16, step: 256, bits: 22, excess: 32, together: 4, piece: 4, place: Q6K::place };
}

impl Bytes for Q6K {
    const FORMAT: BlockFormat = BlockFormat::Q6_K;
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    unsafe fn step<const R: usize, const D: usize>(
        block: impl Fn(usize, usize) -> *const u8,
        a: RowCursor,
        sums: &mut [__m512; R],
    ) {
        // SAFETY: the caller's block and row.
        unsafe {
            let (limbs, of_a) = (Limbs::<4, D>::of(a, &Self::ARRANGEMENT, 0), _mm512_loadu_ps(a.scales));
            let lanes = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
            for (r, sum) in sums.iter_mut().enumerate() {
                let block = block(r, 0);
                let scale = _mm512_set1_ps(half(block.add(208)));
                let scales = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(block.add(192).cast())));
                let scales = _mm512_mul_ps(_mm512_mul_ps(scales, scale), of_a);
                // Sixteen bytes of a group each: 0 … 3, 4 … 7, 8 … 11 and 12 … 15.
                let ([a0, a1], [a2, a3]) = (Q6K::half(block, 0), Q6K::half(block, 1));
                let [b0, b1] = [_mm512_unpacklo_epi32(a0, a1), _mm512_unpackhi_epi32(a0, a1)];
                let [b2, b3] = [_mm512_unpacklo_epi32(a2, a3), _mm512_unpackhi_epi32(a2, a3)];
                let [c0, c1] = [_mm512_unpacklo_epi64(b0, b2), _mm512_unpackhi_epi64(b0, b2)];
                let [c2, c3] = [_mm512_unpacklo_epi64(b1, b3), _mm512_unpackhi_epi64(b1, b3)];
                add(sum, limbs.times([c0, c1, c2, c3]), _mm512_permutexvar_ps(lanes, scales));
            }
        }
    }
}
