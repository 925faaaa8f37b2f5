//! Packing: any layout and dtype of an operand into the panels that micro-kernels read.
//!
//! A panel holds `width` lanes (rows of A, columns of B) for a range of k, k outermost: `panel[k][lane]`, missing lanes zero.
//! In this form A and B are the same, a [`Lanes`] view with a stride along lanes and one along k.

use super::source::{Matrix, RowSource};
use super::transpose;
use crate::features::Isa;
use half::{bf16, f16};
use kiln_ir::DType;
use std::ops::Range;

/// Element types that tiles accumulate in.
pub(super) trait Accumulator: Copy + Default + Send + Sync + 'static {
    const DTYPE: DType;
    fn multiply_add(self, a: Self, b: Self) -> Self;
    fn sum(self, other: Self) -> Self;
    fn less(self, other: Self) -> Self;
}

macro_rules! accumulators {
    ($($t:ty, $dtype:ident, $a:ident $b:ident $c:ident => $fma:expr, $sum:expr, $less:expr;)*) => {$(
        impl Accumulator for $t {
            const DTYPE: DType = DType::$dtype;
            #[inline(always)]
            fn multiply_add(self, $a: Self, $b: Self) -> Self { let $c = self; $fma }
            #[inline(always)]
            fn sum(self, $b: Self) -> Self { let $c = self; $sum }
            #[inline(always)]
            fn less(self, $b: Self) -> Self { let $c = self; $less }
        }
    )*};
}
accumulators! {
    f32, F32, a b c => c + a * b, c + b, c - b;
    f64, F64, a b c => c + a * b, c + b, c - b;
    i32, I32, a b c => c.wrapping_add(a.wrapping_mul(b)), c.wrapping_add(b), c.wrapping_sub(b);
    i64, I64, a b c => c.wrapping_add(a.wrapping_mul(b)), c.wrapping_add(b), c.wrapping_sub(b);
}

/// Conversion of a stored element to an accumulator (or, for packed weights, to itself).
pub(super) trait Convert<T>: Copy {
    fn convert(self) -> T;
}

macro_rules! convert {
    ($($s:ty => $($t:ty),*;)*) => {$($(
        impl Convert<$t> for $s {
            #[inline(always)]
            fn convert(self) -> $t { self as $t }
        }
    )*)*};
}
convert! {
    f32 => f32, f64, i32, i64;
    f64 => f32, f64, i32, i64;
    i8 => f32, f64, i32, i64;
    i16 => f32, f64, i32, i64;
    i32 => f32, f64, i32, i64;
    i64 => f32, f64, i32, i64;
    u8 => f32, f64, i32, i64;
    u16 => u16;
}

macro_rules! convert_half {
    ($($s:ty),*) => {$(
        impl Convert<f32> for $s { #[inline(always)] fn convert(self) -> f32 { self.to_f32() } }
        impl Convert<f64> for $s { #[inline(always)] fn convert(self) -> f64 { self.to_f64() } }
        impl Convert<i32> for $s { #[inline(always)] fn convert(self) -> i32 { self.to_f32() as i32 } }
        impl Convert<i64> for $s { #[inline(always)] fn convert(self) -> i64 { self.to_f32() as i64 } }
    )*};
}
convert_half!(f16, bf16);

/// Whether products can read elements of this type.
pub(super) fn readable(dtype: DType) -> bool {
    use DType::{Bf16, Bool, F16, F32, F64, I8, I16, I32, I64, U8};
    matches!(dtype, F32 | F64 | F16 | Bf16 | I8 | I16 | I32 | I64 | U8 | Bool)
}

/// An operand as lanes × k.
#[derive(Clone, Copy)]
pub(super) struct Lanes {
    pub data: *const u8,
    pub dtype: DType,
    /// Elements between neighbouring lanes.
    pub lane_stride: isize,
    /// Elements between neighbouring k.
    pub k_stride: isize,
}

/// Packs `lanes` (at most `width` of them) and `ks` into `panel`, which holds `ks.len() * width` accumulators.
///
/// # Safety
/// Every element of the ranges must be readable, and the panel writable.
pub(super) unsafe fn pack<T: Accumulator>(
    isa: Isa,
    from: &Lanes,
    lanes: Range<usize>,
    width: usize,
    ks: Range<usize>,
    panel: *mut T,
) where
    f32: Convert<T>,
    f64: Convert<T>,
    f16: Convert<T>,
    bf16: Convert<T>,
    i8: Convert<T>,
    i16: Convert<T>,
    i32: Convert<T>,
    i64: Convert<T>,
    u8: Convert<T>,
{
    if width == 1 && lanes.len() == 1 && from.k_stride == 1 && ks.len() > 1 {
        // One lane has the same layout in the panel as in memory: as many lanes of one k.
        let transposed = Lanes { lane_stride: from.k_stride, k_stride: from.lane_stride, ..*from };
        // SAFETY: the same elements.
        return unsafe { pack(isa, &transposed, ks.clone(), ks.len(), lanes, panel) };
    }
    if T::DTYPE == DType::F32 && transpose::can(isa, from) {
        // SAFETY: T is f32; the rest is the caller's promise.
        return unsafe { transpose::pack(isa, from, lanes, width, ks, panel.cast::<f32>()) };
    }
    // SAFETY: the caller's promise, with the pointer read as the type that `dtype` names.
    unsafe {
        match from.dtype {
            DType::F32 => pack_as::<f32, T>(from, lanes, width, ks, panel),
            DType::F64 => pack_as::<f64, T>(from, lanes, width, ks, panel),
            DType::F16 => pack_as::<f16, T>(from, lanes, width, ks, panel),
            DType::Bf16 => pack_as::<bf16, T>(from, lanes, width, ks, panel),
            DType::I8 => pack_as::<i8, T>(from, lanes, width, ks, panel),
            DType::I16 => pack_as::<i16, T>(from, lanes, width, ks, panel),
            DType::I32 => pack_as::<i32, T>(from, lanes, width, ks, panel),
            DType::I64 => pack_as::<i64, T>(from, lanes, width, ks, panel),
            DType::U8 | DType::Bool => pack_as::<u8, T>(from, lanes, width, ks, panel),
            other => unreachable!("{other:?} was refused when the plan was made"),
        }
    }
}

/// Packs without a change of type beyond `Convert`.
///
/// # Safety
/// As for [`pack`], with elements of type `S`.
pub(super) unsafe fn pack_as<S: Convert<T>, T: Copy + Default>(
    from: &Lanes,
    lanes: Range<usize>,
    width: usize,
    ks: Range<usize>,
    panel: *mut T,
) {
    let (count, depth) = (lanes.len(), ks.len());
    // SAFETY: offsets stay inside the ranges that the caller guarantees.
    unsafe {
        let first =
            from.data.cast::<S>().offset(lanes.start as isize * from.lane_stride + ks.start as isize * from.k_stride);
        if from.k_stride.unsigned_abs() < from.lane_stride.unsigned_abs() {
            for lane in 0..count {
                let row = first.offset(lane as isize * from.lane_stride);
                for k in 0..depth {
                    panel
                        .add(k * width + lane)
                        .write(row.offset(k as isize * from.k_stride).read_unaligned().convert());
                }
            }
        } else {
            for k in 0..depth {
                let column = first.offset(k as isize * from.k_stride);
                for lane in 0..count {
                    let at = column.offset(lane as isize * from.lane_stride);
                    panel.add(k * width + lane).write(at.read_unaligned().convert());
                }
            }
        }
        if count < width {
            for k in 0..depth {
                for lane in count..width {
                    panel.add(k * width + lane).write(T::default());
                }
            }
        }
    }
}

/// Packs bf16 in pairs of consecutive k: `panel[pair][lane]`, the element of even k in the low half. `pairs` counts pairs;
/// a last element without partner is paired with zero.
///
/// # Safety
/// As for [`pack`], for elements of 16 bits up to `k` in all, and a panel of `pairs.len() * width` words.
pub(super) unsafe fn pack_pairs(
    isa: Isa,
    from: &Lanes,
    lanes: Range<usize>,
    width: usize,
    pairs: Range<usize>,
    k: usize,
    panel: *mut u32,
) {
    let whole = pairs.start..pairs.end.min(k / 2);
    // SAFETY: whole pairs are elements below k; the last one is read only where it exists.
    unsafe {
        if isa != Isa::Portable && from.k_stride == 1 && from.lane_stride % 2 == 0 {
            // Contiguous pairs are words, and words are transposed like f32.
            let words = Lanes { dtype: DType::F32, lane_stride: from.lane_stride / 2, ..*from };
            transpose::pack(isa, &words, lanes.clone(), width, whole.clone(), panel.cast());
        } else if isa != Isa::Portable && from.lane_stride == 1 {
            transpose::pack_pairs(isa, from, lanes.clone(), width, whole.clone(), panel);
        } else {
            let at = |lane: usize, k: usize| {
                let offset = lane as isize * from.lane_stride + k as isize * from.k_stride;
                u32::from(from.data.cast::<u16>().offset(offset).read_unaligned())
            };
            for (i, pair) in whole.clone().enumerate() {
                for lane in 0..width {
                    let lane_of = lanes.start + lane;
                    let word =
                        if lane_of < lanes.end { at(lane_of, 2 * pair) | at(lane_of, 2 * pair + 1) << 16 } else { 0 };
                    panel.add(i * width + lane).write(word);
                }
            }
        }
        if pairs.end > whole.end {
            let last = panel.add(whole.len() * width);
            pack_as::<Half, u32>(from, lanes, width, k - 1..k, last);
        }
    }
}

/// 16 bits as the low half of a word.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct Half(u16);

impl Convert<u32> for Half {
    #[inline(always)]
    fn convert(self) -> u32 {
        u32::from(self.0)
    }
}

/// Rows that a callback fills, `count` of them and `len` long, into `to` one after another.
///
/// # Safety
/// `to` holds `rows.len() * columns.len()` accumulators of the type that the source fills.
pub(super) unsafe fn fill_rows<T>(source: &dyn RowSource, rows: Range<usize>, columns: Range<usize>, to: *mut T) {
    for (i, row) in rows.enumerate() {
        // SAFETY: row i of the scratch is inside the memory that the caller guarantees.
        unsafe { source.fill(row, columns.clone(), to.add(i * columns.len()).cast()) };
    }
}

/// Rows of a matrix as floats, one row after another.
///
/// # Safety
/// The matrix holds `rows` × `columns` readable elements of a type that products read, `to` has room for them.
pub(super) unsafe fn copy_rows(isa: Isa, from: &Matrix, rows: usize, columns: usize, to: *mut f32) {
    let Matrix { data, dtype, row_stride, column_stride } = *from;
    // Transposed, a row is a panel of its columns.
    let from = Lanes { data, dtype, lane_stride: column_stride, k_stride: row_stride };
    // SAFETY: the caller's promise.
    unsafe { pack::<f32>(isa, &from, 0..columns, columns, 0..rows, to) };
}

/// Rows of a matrix as one panel of f32, `panel[column][row]`, zero from `rows` to `width`. The bits of f32 elements are copied
/// unchanged, NaNs included.
///
/// # Safety
/// The matrix holds `rows` × `columns` readable elements of a float type, the panel `columns * width` elements.
pub(crate) unsafe fn pack_rows(isa: Isa, from: &Matrix, rows: usize, columns: usize, width: usize, panel: *mut f32) {
    let Matrix { data, dtype, row_stride, column_stride } = *from;
    let from = Lanes { data, dtype, lane_stride: row_stride, k_stride: column_stride };
    // SAFETY: the caller's promise.
    unsafe { pack::<f32>(isa, &from, 0..rows, width, 0..columns, panel) };
}

/// Subtracts what a row of sums has too much.
pub(super) fn subtract<T: Accumulator>(sums: &mut [T], excess: &[T]) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx512f") {
        // SAFETY: the feature is there.
        return unsafe { subtract_512(sums, excess) };
    }
    sums.iter_mut().zip(excess).for_each(|(sum, excess)| *sum = sum.less(*excess));
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn subtract_512<T: Accumulator>(sums: &mut [T], excess: &[T]) {
    for (sum, excess) in sums.iter_mut().zip(excess) {
        *sum = sum.less(*excess);
    }
}
