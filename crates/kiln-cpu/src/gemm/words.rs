//! Packing of short elements: several consecutive k in a word, as the instructions take them that multiply and add them at once.
//!
//! ```text
//!  vectors   panel[word][lane]            A (rows) and B (columns) alike
//!  tiles     A [unit][row][16 words]      B as above, whole units of 16 words
//! ```
//!
//! Operands of another type (f32 that may be rounded, rows that fused code makes) are converted on the way. Words after the last k
//! are zero.

use super::Gemm;
use super::kernel::Format;
use super::pack::{Lanes, fill_rows, pack, pack_pairs};
use super::scratch::Scratch;
use super::source::{Operand, RowSource};
use super::tiles::{ROW_BYTES, TILE};
use super::transpose;
use crate::features::{Extension, Isa};
use kiln_ir::DType;
use kiln_kernels::Precision;
use std::ops::Range;

/// How consecutive k share a word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Words {
    /// Two bf16.
    Pairs,
    /// Four bytes.
    Quads,
}

impl Words {
    /// k in a word.
    pub(super) const fn depth(self) -> usize {
        match self {
            Words::Pairs => 2,
            Words::Quads => 4,
        }
    }

    /// The elements.
    pub(super) const fn dtype(self) -> DType {
        match self {
            Words::Pairs => DType::Bf16,
            Words::Quads => DType::I8,
        }
    }
}

/// The format in which both operands share words of short elements, where they are short enough and the machine multiplies such.
pub(super) fn format(gemm: &Gemm, a: &Operand<'_>, b: &Operand<'_>) -> Option<Format> {
    let tiles = gemm.extension >= Extension::Amx;
    if gemm.isa != Isa::Avx512 {
        return None;
    }
    match gemm.acc {
        DType::F32 if gemm.extension >= Extension::Bf16 && is_bf16(gemm, a) && is_bf16(gemm, b) => {
            Some(if tiles { Format::Bf16Tile } else { Format::Bf16Dot })
        }
        DType::I32 if is_bytes(a) && is_bytes(b) => match tiles {
            true => Some(Format::I8Tile),
            false => multiplies_bytes().then_some(Format::I8Dot),
        },
        _ => None,
    }
}

/// Whether an operand's elements are bf16, or may be rounded to it.
fn is_bf16(gemm: &Gemm, operand: &Operand<'_>) -> bool {
    let rounds = gemm.precision == Precision::Medium;
    match operand {
        Operand::Strided(m) => m.dtype == DType::Bf16 || rounds && m.dtype == DType::F32,
        Operand::Rows(source) | Operand::Columns(source) => rounds || source.is_bf16() || source.has_pairs(),
        Operand::Packed(packed) => packed.format() == Some(Format::Bf16),
        Operand::Blocks(_) => false,
    }
}

fn is_bytes(operand: &Operand<'_>) -> bool {
    matches!(operand, Operand::Strided(m) if m.dtype == DType::I8)
}

#[cfg(target_arch = "x86_64")]
fn multiplies_bytes() -> bool {
    is_x86_feature_detected!("avx512vnni")
}

#[cfg(not(target_arch = "x86_64"))]
fn multiplies_bytes() -> bool {
    false
}

/// Packs `lanes` (at most `width` of them) and some words of K: `panel[word][lane]`, zeros for missing lanes and after the last k.
///
/// # Safety
/// The elements of the lanes up to `k` must be readable and of the type of these words, the panel writable for `words.len() * width`.
pub(super) unsafe fn pack_words(
    isa: Isa,
    kind: Words,
    from: &Lanes,
    (lanes, width): (Range<usize>, usize),
    words: Range<usize>,
    k: usize,
    panel: *mut u32,
) {
    let depth = kind.depth();
    let there = words.start.min(k.div_ceil(depth))..words.end.min(k.div_ceil(depth));
    // SAFETY: words that hold an element below k are packed, all others are zero.
    unsafe {
        match kind {
            Words::Pairs => pack_pairs(isa, from, lanes, width, there.clone(), k, panel),
            Words::Quads => pack_quads(isa, from, lanes, width, there.clone(), k, panel),
        }
        std::ptr::write_bytes(panel.add(there.len() * width), 0, (words.len() - there.len()) * width);
    }
}

unsafe fn pack_quads(
    isa: Isa,
    from: &Lanes,
    lanes: Range<usize>,
    width: usize,
    words: Range<usize>,
    k: usize,
    panel: *mut u32,
) {
    let whole = words.start..words.end.min(k / 4).max(words.start);
    // SAFETY: the elements of whole words, then those of the last word below k.
    unsafe {
        let mut rest = words.clone();
        if isa != Isa::Portable && from.k_stride == 1 && from.lane_stride % 4 == 0 {
            // Four contiguous bytes are a word, and words are transposed like f32.
            let as_words = Lanes { dtype: DType::F32, lane_stride: from.lane_stride / 4, ..*from };
            transpose::pack(isa, &as_words, lanes.clone(), width, whole.clone(), panel.cast());
            rest.start = whole.end;
        } else if isa == Isa::Avx512 && from.lane_stride == 1 {
            transpose::pack_quads(from, lanes.clone(), width, whole.clone(), panel);
            rest.start = whole.end;
        }
        for word in rest {
            let to = panel.add((word - words.start) * width);
            for lane in 0..width {
                let mut bytes = [0u8; 4];
                for (i, byte) in bytes.iter_mut().enumerate().take(k - 4 * word) {
                    if lane < lanes.len() {
                        let offset =
                            (lanes.start + lane) as isize * from.lane_stride + (4 * word + i) as isize * from.k_stride;
                        *byte = from.data.offset(offset).read();
                    }
                }
                to.add(lane).write(u32::from_le_bytes(bytes));
            }
        }
    }
}

/// Packs rows of A for tiles: `[unit][row][64 bytes]`, zeros after the last k.
///
/// # Safety
/// As for [`pack_words`], with `units.len() * lanes.len() * 64` writable bytes.
pub(super) unsafe fn pack_tiles(
    isa: Isa,
    kind: Words,
    from: &Lanes,
    lanes: Range<usize>,
    units: Range<usize>,
    k: usize,
    panel: *mut u8,
) {
    let (rows, size) = (lanes.len(), 4 / kind.depth());
    // SAFETY: the caller's promise; elements below k alone are read.
    unsafe {
        if from.k_stride == 1 {
            for (row, lane) in lanes.enumerate() {
                let line = from.data.offset(lane as isize * from.lane_stride * size as isize);
                for (i, unit) in units.clone().enumerate() {
                    let (at, to) = (unit * ROW_BYTES, panel.add((i * rows + row) * ROW_BYTES));
                    let there = (k * size).saturating_sub(at);
                    if there >= ROW_BYTES {
                        to.cast::<[u8; ROW_BYTES]>()
                            .write_unaligned(line.add(at).cast::<[u8; ROW_BYTES]>().read_unaligned());
                    } else {
                        std::ptr::copy_nonoverlapping(line.add(at.min(k * size)), to, there);
                        std::ptr::write_bytes(to.add(there), 0, ROW_BYTES - there);
                    }
                }
            }
            return;
        }
        // Words of all rows, then transposed.
        let words = Scratch::take::<u32>(units.len() * TILE * rows);
        pack_words(isa, kind, from, (lanes, rows), units.start * TILE..units.end * TILE, k, words.ptr());
        let by_word = Lanes { data: words.ptr(), dtype: DType::F32, lane_stride: rows as isize, k_stride: 1 };
        for unit in 0..units.len() {
            let to = panel.add(unit * rows * ROW_BYTES).cast::<f32>();
            pack::<f32>(isa, &by_word, unit * TILE..(unit + 1) * TILE, TILE, 0..rows, to);
        }
    }
}

/// Short elements of an operand in memory.
pub(super) struct Short {
    pub lanes: Lanes,
    /// Lane and k of the first element of `lanes`.
    pub first: (usize, usize),
    /// Where they were converted to.
    _own: Option<Scratch>,
}

impl Short {
    /// Elements `lanes` and `ks` of A, or of B with `of_b`.
    ///
    /// # Safety
    /// The operand is readable there; it is strided or made, and its elements are floats, for pairs, or bytes in memory.
    pub(super) unsafe fn of(
        isa: Isa,
        kind: Words,
        operand: &Operand<'_>,
        of_b: bool,
        lanes: Range<usize>,
        ks: Range<usize>,
    ) -> Short {
        // SAFETY: the caller's promise; scratch has room for all of these elements.
        unsafe {
            let (floats, by_lane) = match operand {
                Operand::Strided(m) => {
                    let (lane_stride, k_stride) =
                        if of_b { (m.column_stride, m.row_stride) } else { (m.row_stride, m.column_stride) };
                    let from = Lanes { data: m.data, dtype: m.dtype, lane_stride, k_stride };
                    if m.dtype == kind.dtype() {
                        return Short { lanes: from, first: (0, 0), _own: None };
                    }
                    let by_lane = k_stride.unsigned_abs() <= lane_stride.unsigned_abs();
                    let floats = Scratch::take::<f32>(lanes.len() * ks.len());
                    // A panel of as many lanes as there are has the layout of rows, whichever the rows are.
                    match by_lane {
                        true => {
                            let swapped = Lanes { lane_stride: k_stride, k_stride: lane_stride, ..from };
                            pack::<f32>(isa, &swapped, ks.clone(), ks.len(), lanes.clone(), floats.ptr());
                        }
                        false => pack::<f32>(isa, &from, lanes.clone(), lanes.len(), ks.clone(), floats.ptr()),
                    }
                    (floats, by_lane)
                }
                Operand::Rows(source) if of_b => (Short::made(*source, ks.clone(), lanes.clone()), false),
                Operand::Rows(source) | Operand::Columns(source) => {
                    (Short::made(*source, lanes.clone(), ks.clone()), true)
                }
                Operand::Packed(_) | Operand::Blocks(_) => unreachable!("neither is packed as it is"),
            };
            let own = Scratch::take::<u16>(lanes.len() * ks.len());
            narrow(floats.ptr(), own.ptr(), lanes.len() * ks.len());
            let (lane_stride, k_stride) = if by_lane { (ks.len() as isize, 1) } else { (1, lanes.len() as isize) };
            let found = Lanes { data: own.ptr(), dtype: DType::Bf16, lane_stride, k_stride };
            Short { lanes: found, first: (lanes.start, ks.start), _own: Some(own) }
        }
    }

    unsafe fn made(source: &dyn RowSource, rows: Range<usize>, columns: Range<usize>) -> Scratch {
        let floats = Scratch::take::<f32>(rows.len() * columns.len());
        // SAFETY: room for all of them; the source is the caller's.
        unsafe { fill_rows::<f32>(source, rows, columns, floats.ptr()) };
        floats
    }
}

/// Rounds floats to bf16, to nearest even.
unsafe fn narrow(from: *const f32, to: *mut u16, count: usize) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx512bf16") && is_x86_feature_detected!("avx512bw") {
        // SAFETY: the features are there; the rest is the caller's promise.
        return unsafe { narrow_512(from, to, count) };
    }
    for i in 0..count {
        // SAFETY: the caller's promise.
        unsafe { to.add(i).write(half::bf16::from_f32(from.add(i).read()).to_bits()) };
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
unsafe fn narrow_512(from: *const f32, to: *mut u16, count: usize) {
    use std::arch::x86_64::*;
    for i in (0..count).step_by(16) {
        let mask: __mmask16 = if count - i >= 16 { !0 } else { (1 << (count - i)) - 1 };
        // SAFETY: lanes below the count alone are touched.
        unsafe {
            let short = _mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(mask, from.add(i)));
            _mm256_mask_storeu_epi16(to.add(i).cast(), mask, std::mem::transmute::<__m256bh, __m256i>(short));
        }
    }
}
