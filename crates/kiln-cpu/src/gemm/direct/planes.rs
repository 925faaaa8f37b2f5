//! Planes: the pixels that direct convolution reads, as f32, with zeros where padding is, one plane a phase of the strides.

use crate::features::Isa;
use half::{bf16, f16};
use kiln_ir::DType;
use std::ops::Range;

/// Pixels that one vector of a plane's row has: where its first pixel is in a row of the image, and which of its lanes are inside.
#[derive(Clone, Copy, Debug)]
struct Part {
    offset: isize,
    lanes: u32,
}

/// Rows of an image that become rows of a plane.
#[derive(Clone, Debug)]
pub(super) struct Rows {
    /// The first row, which may be outside the image.
    pub first: *const u8,
    /// Bytes from one row to the next.
    pub step: isize,
    /// The rows that are inside the image.
    pub inside: Range<usize>,
    /// All of them.
    pub count: usize,
    /// Elements from one row of the plane to the next.
    pub pitch: usize,
}

impl Rows {
    /// Every row inside, with its place in the plane.
    #[inline(always)]
    fn each<T>(&self, to: *mut f32, mut copy: impl FnMut(*const T, *mut f32)) {
        for row in self.inside.clone() {
            let from = self.first.wrapping_offset(row as isize * self.step);
            copy(from.cast(), to.wrapping_add(row * self.pitch));
        }
    }
}

/// How rows of an image become rows of planes.
#[derive(Debug)]
pub(super) struct RowCopy {
    isa: Isa,
    dtype: DType,
    stride: usize,
    lanes: usize,
    parts: Vec<Part>,
}

impl RowCopy {
    /// Rows of `width` elements: pixels `start + i·stride` of a row of `length`, zero outside it.
    pub fn new(isa: Isa, dtype: DType, start: isize, stride: usize, length: isize, width: usize) -> RowCopy {
        let lanes = super::kernel::lanes(isa);
        let part = |first: usize| {
            let at = |lane: usize| start + ((first + lane) * stride) as isize;
            let inside = (0..lanes).filter(|&lane| (0..length).contains(&at(lane)));
            Part { offset: at(0), lanes: inside.fold(0, |mask, lane| mask | 1 << lane) }
        };
        RowCopy { isa, dtype, stride, lanes, parts: (0..width).step_by(lanes).map(part).collect() }
    }

    /// Copies one row. Lanes beyond the row's width are written too.
    ///
    /// # Safety
    /// The row's pixels inside its length are readable; `to` has room for the width and a vector more.
    pub unsafe fn copy(&self, row: *const u8, to: *mut f32) {
        // SAFETY: the caller's promise.
        unsafe { self.copy_rows(Rows { first: row, step: 0, inside: 0..1, count: 1, pitch: 0 }, to) }
    }

    /// Copies rows one after the other, zeros for those outside the image. Lanes beyond a row's width are written too, before the next row.
    ///
    /// # Safety
    /// The pixels of rows inside are readable within their length; `to` has room for all rows and a vector more.
    pub unsafe fn copy_rows(&self, rows: Rows, to: *mut f32) {
        let zeros = |range: Range<usize>| {
            for row in range {
                // SAFETY: the caller's promise.
                unsafe {
                    std::slice::from_raw_parts_mut(to.add(row * rows.pitch), self.parts.len() * self.lanes).fill(0.0)
                };
            }
        };
        zeros(0..rows.inside.start);
        // SAFETY: the caller's promise; the target features are those of `isa`.
        unsafe {
            match (self.isa, self.dtype, self.stride) {
                #[cfg(target_arch = "x86_64")]
                (Isa::Avx512, DType::F32, 1) => x86::copy(self, &rows, to),
                #[cfg(target_arch = "x86_64")]
                (Isa::Avx512, DType::F32, 2) => x86::copy_even(self, &rows, to),
                #[cfg(target_arch = "x86_64")]
                (Isa::Avx512, DType::Bf16, 1) => x86::copy_bf16(self, &rows, to),
                #[cfg(target_arch = "x86_64")]
                (Isa::Avx512, DType::Bf16, 2) => x86::copy_even_bf16(self, &rows, to),
                #[cfg(target_arch = "x86_64")]
                (Isa::Avx512, DType::F16, 1) => x86::copy_f16(self, &rows, to),
                (_, DType::Bf16, _) => rows.each(to, |row, to| self.copy_lanes(row, to, bf16::to_f32)),
                (_, DType::F16, _) => rows.each(to, |row, to| self.copy_lanes(row, to, f16::to_f32)),
                _ => rows.each(to, |row, to| self.copy_lanes::<f32>(row, to, |x| x)),
            }
        }
        zeros(rows.inside.end..rows.count);
    }

    unsafe fn copy_lanes<T: Copy>(&self, row: *const T, to: *mut f32, convert: impl Fn(T) -> f32) {
        for (i, part) in self.parts.iter().enumerate() {
            let whole = part.lanes == u32::MAX >> (32 - self.lanes);
            for lane in 0..self.lanes {
                // SAFETY: lanes of the mask are readable, all lanes of the row writable.
                unsafe {
                    let at = part.offset + (lane * self.stride) as isize;
                    let inside = whole || part.lanes >> lane & 1 != 0;
                    let x = if inside { convert(row.wrapping_offset(at).read_unaligned()) } else { 0.0 };
                    to.add(i * self.lanes + lane).write(x);
                }
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{RowCopy, Rows};
    use std::arch::x86_64::*;

    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    pub(super) unsafe fn copy(copy: &RowCopy, rows: &Rows, to: *mut f32) {
        rows.each(to, |row: *const f32, to| {
            for (i, part) in copy.parts.iter().enumerate() {
                // SAFETY: lanes of the mask are readable, a row has room for whole vectors.
                unsafe {
                    let v = _mm512_maskz_loadu_ps(part.lanes as __mmask16, row.wrapping_offset(part.offset));
                    _mm512_storeu_ps(to.add(16 * i), v);
                }
            }
        });
    }

    /// A bit for each second element.
    fn spread(mut lanes: u32) -> u32 {
        for (shift, keep) in [(8, 0x00ff_00ff), (4, 0x0f0f_0f0f), (2, 0x3333_3333), (1, 0x5555_5555)] {
            lanes = (lanes | lanes << shift) & keep;
        }
        lanes
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    pub(super) unsafe fn copy_even(copy: &RowCopy, rows: &Rows, to: *mut f32) {
        let even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
        rows.each(to, |row: *const f32, to| {
            for (i, part) in copy.parts.iter().enumerate() {
                let lanes = spread(part.lanes);
                // SAFETY: as above.
                unsafe {
                    let from = row.wrapping_offset(part.offset);
                    let low = _mm512_maskz_loadu_ps(lanes as __mmask16, from);
                    let high = _mm512_maskz_loadu_ps((lanes >> 16) as __mmask16, from.wrapping_add(16));
                    _mm512_storeu_ps(to.add(16 * i), _mm512_permutex2var_ps(low, even, high));
                }
            }
        });
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    pub(super) unsafe fn copy_bf16(copy: &RowCopy, rows: &Rows, to: *mut f32) {
        rows.each(to, |row: *const i16, to| {
            for (i, part) in copy.parts.iter().enumerate() {
                // SAFETY: as above.
                unsafe {
                    let v = _mm256_maskz_loadu_epi16(part.lanes as __mmask16, row.wrapping_offset(part.offset));
                    let v = _mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(v));
                    _mm512_storeu_ps(to.add(16 * i), _mm512_castsi512_ps(v));
                }
            }
        });
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    pub(super) unsafe fn copy_even_bf16(copy: &RowCopy, rows: &Rows, to: *mut f32) {
        rows.each(to, |row: *const i16, to| {
            for (i, part) in copy.parts.iter().enumerate() {
                // SAFETY: as above.
                unsafe {
                    let v = _mm512_maskz_loadu_epi16(spread(part.lanes), row.wrapping_offset(part.offset));
                    _mm512_storeu_ps(to.add(16 * i), _mm512_castsi512_ps(_mm512_slli_epi32::<16>(v)));
                }
            }
        });
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    pub(super) unsafe fn copy_f16(copy: &RowCopy, rows: &Rows, to: *mut f32) {
        rows.each(to, |row: *const i16, to| {
            for (i, part) in copy.parts.iter().enumerate() {
                // SAFETY: as above.
                unsafe {
                    let v = _mm256_maskz_loadu_epi16(part.lanes as __mmask16, row.wrapping_offset(part.offset));
                    _mm512_storeu_ps(to.add(16 * i), _mm512_cvtph_ps(v));
                }
            }
        });
    }
}
