//! Panels of quantised columns: the integers of 32 columns as bytes, four consecutive k of a column adjacent, and the columns'
//! scales and addends of each group as vectors of columns.
//!
//! ```text
//!  blocks of 16 columns, 16 bytes of each   ──▶   a transpose of words: 4 k of 16 columns per vector   ──▶   low and high bits separated
//! ```
//!
//! Words are transposed before they are unpacked: then no moved bit is wasted, and the rest needs no shuffles.

use super::BlockMatrix;
use kiln_ir::BlockFormat;
use std::arch::x86_64::*;
use std::ops::Range;

/// Columns of a panel, as two vectors.
pub(super) const COLUMNS: usize = 32;
/// Bytes of four k of all columns.
pub(super) const STEP_BYTES: usize = 4 * COLUMNS;
/// Columns of a vector.
const LANES: usize = 16;

/// The addresses of a panel.
#[derive(Clone, Copy)]
pub(super) struct Panel {
    /// `[k / 4][column][k % 4]`.
    pub bytes: *mut u8,
    /// `[group][column]`.
    pub scales: *mut f32,
    /// `[group][column]`: the addends of all elements, for formats that have them.
    pub addends: *mut f32,
}

/// The contents of panels of a format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kind {
    /// Elements that share a scale.
    pub group: usize,
    /// The excess of the bytes.
    pub excess: i32,
    /// The largest absolute value of an integer, without the excess.
    pub most: i32,
    /// Whether groups have addends.
    pub addends: bool,
}

/// The contents of panels of a format.
pub(super) const fn kind(format: BlockFormat) -> Kind {
    match format {
        BlockFormat::Q4_0 => Q40::KIND,
        BlockFormat::Q4_1 => Q41::KIND,
        BlockFormat::Q5_0 => Q50::KIND,
        BlockFormat::Q8_0 => Q80::KIND,
        BlockFormat::Q4_K => Q4K::KIND,
        BlockFormat::Q6_K => Q6K::KIND,
    }
}

/// Unpacks some columns, at most [`COLUMNS`], and some blocks of each. Missing columns repeat the last one.
///
/// # Safety
/// The blocks exist, the panel has room for them, and the machine has AVX-512 of bytes.
pub(super) unsafe fn unpack(from: &BlockMatrix, columns: Range<usize>, blocks: Range<usize>, to: Panel) {
    // SAFETY: the caller's promise.
    unsafe {
        match from.format {
            BlockFormat::Q4_0 => unpack_as::<Q40>(from, columns, blocks, to),
            BlockFormat::Q4_1 => unpack_as::<Q41>(from, columns, blocks, to),
            BlockFormat::Q5_0 => unpack_as::<Q50>(from, columns, blocks, to),
            BlockFormat::Q8_0 => unpack_as::<Q80>(from, columns, blocks, to),
            BlockFormat::Q4_K => unpack_as::<Q4K>(from, columns, blocks, to),
            BlockFormat::Q6_K => unpack_as::<Q6K>(from, columns, blocks, to),
        }
    }
}

/// Prefetches some blocks of some columns.
pub(super) fn fetch(from: &BlockMatrix, columns: Range<usize>, blocks: Range<usize>) {
    let bytes = from.format.bytes();
    for column in columns {
        let first = from.data.wrapping_offset(column as isize * from.stride).wrapping_add(blocks.start * bytes);
        for line in 0..(blocks.len() * bytes).div_ceil(64) {
            // SAFETY: a prefetch is valid at any address.
            unsafe { _mm_prefetch::<_MM_HINT_T1>(first.wrapping_add(64 * line).cast()) };
        }
    }
}

/// The elements of a panel as floats, `[k][column]`.
///
/// # Safety
/// The panel holds `k` elements of a format of this kind, `to` has room for them, and the machine has AVX-512 of bytes.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) unsafe fn floats(panel: Panel, kind: Kind, k: usize, to: *mut f32) {
    let low = _mm512_set1_epi32(0xff);
    let excess = _mm512_set1_ps(-kind.excess as f32);
    for group in 0..k / kind.group {
        for first in (0..COLUMNS).step_by(LANES) {
            // SAFETY: a group of the panel, and its elements.
            unsafe {
                let at = group * COLUMNS + first;
                let scale = _mm512_loadu_ps(panel.scales.add(at));
                // The scale times a power of two is exact, so that the sum is rounded once.
                let addend =
                    if kind.addends { _mm512_loadu_ps(panel.addends.add(at)) } else { _mm512_mul_ps(scale, excess) };
                for step in group * kind.group / 4..(group + 1) * kind.group / 4 {
                    let words = _mm512_loadu_si512(panel.bytes.add(step * STEP_BYTES + 4 * first).cast());
                    let parts = [
                        _mm512_and_si512(words, low),
                        _mm512_and_si512(_mm512_srli_epi32::<8>(words), low),
                        _mm512_and_si512(_mm512_srli_epi32::<16>(words), low),
                        _mm512_srli_epi32::<24>(words),
                    ];
                    for (i, part) in parts.into_iter().enumerate() {
                        let element = _mm512_fmadd_ps(_mm512_cvtepi32_ps(part), scale, addend);
                        _mm512_storeu_ps(to.add((4 * step + i) * COLUMNS + first), element);
                    }
                }
            }
        }
    }
}

/// The addresses of a block of 16 columns.
type Blocks = [*const u8; LANES];

/// Unpacks the blocks of a format into a part of a panel.
trait UnpackPanel {
    const FORMAT: BlockFormat;
    const KIND: Kind;
    /// Unpacks one block of 16 columns.
    unsafe fn block(from: &Blocks, to: Panel);
}

macro_rules! fn_512 {
    ($(#[$meta:meta])* fn $name:ident$(<$type:ident: $bound:ident>)?($($arg:ident: $ty:ty),*) $(-> $out:ty)? $body:block) => {
        $(#[$meta])*
        #[inline]
        #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
        unsafe fn $name$(<$type: $bound>)?($($arg: $ty),*) $(-> $out)? {
            // SAFETY: the caller's blocks and panel, on a machine with these instructions.
            unsafe { $body }
        }
    };
}

#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn unpack_as<L: UnpackPanel>(from: &BlockMatrix, columns: Range<usize>, blocks: Range<usize>, to: Panel) {
    let (bytes, elements) = (L::FORMAT.bytes(), L::FORMAT.elements());
    for first in (0..COLUMNS).step_by(LANES) {
        let rows: Blocks = std::array::from_fn(|i| {
            let column = (columns.start + first + i).min(columns.end - 1);
            from.data.wrapping_offset(column as isize * from.stride)
        });
        for (i, block) in blocks.clone().enumerate() {
            let rows = rows.map(|row| row.wrapping_add(block * bytes));
            // SAFETY: blocks that exist, and their part of the panel.
            unsafe {
                let group = i * (elements / L::KIND.group) * COLUMNS + first;
                let to = Panel {
                    bytes: to.bytes.add(i * elements * COLUMNS + 4 * first),
                    scales: to.scales.add(group),
                    addends: to.addends.wrapping_add(group),
                };
                L::block(&rows, to);
            }
        }
    }
}

fn_512! {
    /// Sixteen bytes of every block: vector i holds the words i of all.
    fn words(from: &Blocks, at: usize) -> [__m512i; 4] {
        // Lane l of part i is column 4 l + i.
        let part = |i: usize| {
            let load = |column: usize| _mm_loadu_si128(from[column].add(at).cast());
            let part = _mm512_castsi128_si512(load(i));
            let part = _mm512_inserti32x4::<1>(part, load(4 + i));
            let part = _mm512_inserti32x4::<2>(part, load(8 + i));
            _mm512_inserti32x4::<3>(part, load(12 + i))
        };
        let parts = [part(0), part(1), part(2), part(3)];
        let [a, b] = [0, 2].map(|i| _mm512_unpacklo_epi32(parts[i], parts[i + 1]));
        let [c, d] = [0, 2].map(|i| _mm512_unpackhi_epi32(parts[i], parts[i + 1]));
        [
            _mm512_unpacklo_epi64(a, b),
            _mm512_unpackhi_epi64(a, b),
            _mm512_unpacklo_epi64(c, d),
            _mm512_unpackhi_epi64(c, d),
        ]
    }
}

fn_512! {
    /// A word of every block.
    fn word(from: &Blocks, at: usize) -> __m512i {
        let words = from.map(|block| block.add(at).cast::<i32>().read_unaligned());
        _mm512_loadu_si512(words.as_ptr().cast())
    }
}

fn_512! {
    /// A half of every block, as floats.
    fn halves(from: &Blocks, at: usize) -> __m512 {
        let half = |i: usize| from[i].add(at).cast::<i16>().read_unaligned();
        _mm512_cvtph_ps(_mm256_setr_epi16(
            half(0), half(1), half(2), half(3), half(4), half(5), half(6), half(7),
            half(8), half(9), half(10), half(11), half(12), half(13), half(14), half(15),
        ))
    }
}

/// The halves in the lower parts of words, as floats.
#[inline]
#[target_feature(enable = "avx512f")]
fn low_halves(words: __m512i) -> __m512 {
    _mm512_cvtph_ps(_mm512_cvtepi32_epi16(words))
}

/// The low four bits of all bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn low(words: __m512i) -> __m512i {
    _mm512_and_si512(words, _mm512_set1_epi8(15))
}

/// The high four bits of all bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn high(words: __m512i) -> __m512i {
    low(_mm512_srli_epi16::<4>(words))
}

impl Panel {
    /// Writes four k of 16 columns.
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn store(self, step: usize, words: __m512i) {
        // SAFETY: a step of the panel.
        unsafe { _mm512_storeu_si512(self.bytes.add(step * STEP_BYTES).cast(), words) };
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn scale(self, group: usize, scales: __m512) {
        // SAFETY: a group of the panel.
        unsafe { _mm512_storeu_ps(self.scales.add(group * COLUMNS), scales) };
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn addend(self, group: usize, addends: __m512) {
        // SAFETY: a group of the panel.
        unsafe { _mm512_storeu_ps(self.addends.add(group * COLUMNS), addends) };
    }
}

struct Q40;

impl UnpackPanel for Q40 {
    const FORMAT: BlockFormat = BlockFormat::Q4_0;
    const KIND: Kind = Kind { group: 32, excess: 8, most: 8, addends: false };
    fn_512! { fn block(from: &Blocks, to: Panel) {
        to.scale(0, halves(from, 0));
        for (i, words) in words(from, 2).into_iter().enumerate() {
            to.store(i, low(words));
            to.store(4 + i, high(words));
        }
    } }
}

struct Q41;

impl UnpackPanel for Q41 {
    const FORMAT: BlockFormat = BlockFormat::Q4_1;
    const KIND: Kind = Kind { group: 32, excess: 0, most: 15, addends: true };
    fn_512! { fn block(from: &Blocks, to: Panel) {
        let head = word(from, 0);
        to.scale(0, low_halves(head));
        to.addend(0, low_halves(_mm512_srli_epi32::<16>(head)));
        for (i, words) in words(from, 4).into_iter().enumerate() {
            to.store(i, low(words));
            to.store(4 + i, high(words));
        }
    } }
}

/// Bit i of an index at bit 4 of byte i.
static FIFTH_BITS: [u32; 16] = {
    let mut table = [0; 16];
    let mut i = 0;
    while i < 16 {
        table[i as usize] = ((i & 1) | (i & 2) << 7 | (i & 4) << 14 | (i & 8) << 21) << 4;
        i += 1;
    }
    table
};

struct Q50;

impl UnpackPanel for Q50 {
    const FORMAT: BlockFormat = BlockFormat::Q5_0;
    const KIND: Kind = Kind { group: 32, excess: 16, most: 16, addends: false };
    fn_512! { fn block(from: &Blocks, to: Panel) {
        to.scale(0, halves(from, 0));
        let (tops, table) = (word(from, 2), _mm512_loadu_si512(FIFTH_BITS.as_ptr().cast()));
        for (i, words) in words(from, 6).into_iter().enumerate() {
            for (step, words) in [(i, low(words)), (4 + i, high(words))] {
                // The permutation uses the lowest four bits alone.
                let tops = _mm512_srlv_epi32(tops, _mm512_set1_epi32(4 * step as i32));
                to.store(step, _mm512_or_si512(words, _mm512_permutexvar_epi32(tops, table)));
            }
        }
    } }
}

struct Q80;

impl UnpackPanel for Q80 {
    const FORMAT: BlockFormat = BlockFormat::Q8_0;
    const KIND: Kind = Kind { group: 32, excess: 128, most: 128, addends: false };
    fn_512! { fn block(from: &Blocks, to: Panel) {
        to.scale(0, halves(from, 0));
        for part in 0..2 {
            for (i, words) in words(from, 2 + 16 * part).into_iter().enumerate() {
                to.store(4 * part + i, _mm512_xor_si512(words, _mm512_set1_epi8(i8::MIN)));
            }
        }
    } }
}

struct Q4K;

impl UnpackPanel for Q4K {
    const FORMAT: BlockFormat = BlockFormat::Q4_K;
    const KIND: Kind = Kind { group: 32, excess: 0, most: 15, addends: true };
    fn_512! { fn block(from: &Blocks, to: Panel) {
        let [head, a, b, c] = words(from, 0);
        let six = |words: __m512i| _mm512_and_si512(words, _mm512_set1_epi8(0x3f));
        // The upper two bits of four six-bit numbers, and the lower four of as many others.
        let joined = |top: __m512i, bottom: __m512i| {
            let top = _mm512_and_si512(_mm512_srli_epi32::<2>(top), _mm512_set1_epi8(0x30));
            _mm512_or_si512(top, low(bottom))
        };
        let scale = low_halves(head);
        let least = _mm512_sub_ps(_mm512_setzero_ps(), low_halves(_mm512_srli_epi32::<16>(head)));
        let scales = [six(a), joined(a, c)];
        let minima = [six(b), joined(b, _mm512_srli_epi32::<4>(c))];
        for group in 0..8 {
            let number = |words: __m512i| {
                let shifted = _mm512_srlv_epi32(words, _mm512_set1_epi32(8 * (group as i32 % 4)));
                _mm512_cvtepi32_ps(_mm512_and_si512(shifted, _mm512_set1_epi32(0xff)))
            };
            to.scale(group, _mm512_mul_ps(number(scales[group / 4]), scale));
            to.addend(group, _mm512_mul_ps(number(minima[group / 4]), least));
        }
        for part in 0..8 {
            // 32 bytes are two groups, the lower bits of all and the upper ones.
            let first = part / 2 * 16 + part % 2 * 4;
            for (i, words) in words(from, 16 + 16 * part).into_iter().enumerate() {
                to.store(first + i, low(words));
                to.store(first + 8 + i, high(words));
            }
        }
    } }
}

struct Q6K;

impl UnpackPanel for Q6K {
    const FORMAT: BlockFormat = BlockFormat::Q6_K;
    const KIND: Kind = Kind { group: 16, excess: 32, most: 32, addends: false };
    fn_512! { fn block(from: &Blocks, to: Panel) {
        let scale = halves(from, 208);
        for (i, words) in words(from, 192).into_iter().enumerate() {
            for (j, shift) in [24, 16, 8, 0].into_iter().enumerate() {
                let number = _mm512_srai_epi32::<24>(_mm512_sllv_epi32(words, _mm512_set1_epi32(shift)));
                to.scale(4 * i + j, _mm512_mul_ps(_mm512_cvtepi32_ps(number), scale));
            }
        }
        let top = |words: __m512i| _mm512_and_si512(words, _mm512_set1_epi8(0x30));
        for part in 0..4 {
            // Halves of 128 elements: each 16 bytes here hold the quarters of one, at a distance of 32 elements.
            let (half, inside) = (part / 2, part % 2);
            let [near, far] = [0, 32].map(|more| words(from, 64 * half + more + 16 * inside));
            let tops = words(from, 128 + 32 * half + 16 * inside);
            for (i, tops) in tops.into_iter().enumerate() {
                let step = 32 * half + 4 * inside + i;
                to.store(step, _mm512_or_si512(low(near[i]), top(_mm512_slli_epi16::<4>(tops))));
                to.store(step + 8, _mm512_or_si512(low(far[i]), top(_mm512_slli_epi16::<2>(tops))));
                to.store(step + 16, _mm512_or_si512(high(near[i]), top(tops)));
                to.store(step + 24, _mm512_or_si512(high(far[i]), top(_mm512_srli_epi16::<2>(tops))));
            }
        }
    } }
}
