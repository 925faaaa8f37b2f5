//! Planes: the pixels that direct convolution reads, as f32, with zeros where padding is, one plane a phase of the strides.

use crate::features::Isa;
use half::{bf16, f16};
use kiln_ir::DType;

/// Pixels that one vector of a plane's row has: where its first pixel is in a row of the image, and which of its lanes are inside.
#[derive(Clone, Copy, Debug)]
struct Part {
    offset: isize,
    lanes: u32,
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

    /// Copies one row, or zeros where it is `None`. Lanes beyond the row's width are written too.
    ///
    /// # Safety
    /// The row's pixels inside its length are readable; `to` has room for the width and a vector more.
    pub unsafe fn copy(&self, row: Option<*const u8>, to: *mut f32) {
        let Some(row) = row else {
            // SAFETY: the caller's promise.
            unsafe { std::slice::from_raw_parts_mut(to, self.parts.len() * self.lanes).fill(0.0) };
            return;
        };
        // SAFETY: the caller's promise; the target features are those of `isa`.
        unsafe {
            match (self.isa, self.dtype, self.stride) {
                #[cfg(target_arch = "x86_64")]
                (Isa::Avx512, DType::F32, 1) => x86::copy(self, row.cast(), to),
                #[cfg(target_arch = "x86_64")]
                (Isa::Avx512, DType::F32, 2) => x86::copy_even(self, row.cast(), to),
                #[cfg(target_arch = "x86_64")]
                (Isa::Avx512, DType::Bf16, 1) => x86::copy_bf16(self, row.cast(), to),
                #[cfg(target_arch = "x86_64")]
                (Isa::Avx512, DType::Bf16, 2) => x86::copy_even_bf16(self, row.cast(), to),
                #[cfg(target_arch = "x86_64")]
                (Isa::Avx512, DType::F16, 1) => x86::copy_f16(self, row.cast(), to),
                (_, DType::Bf16, _) => self.copy_lanes(row.cast::<bf16>(), to, bf16::to_f32),
                (_, DType::F16, _) => self.copy_lanes(row.cast::<f16>(), to, f16::to_f32),
                _ => self.copy_lanes(row.cast::<f32>(), to, |x| x),
            }
        }
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
    use super::RowCopy;
    use std::arch::x86_64::*;

    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    pub(super) unsafe fn copy(rows: &RowCopy, row: *const f32, to: *mut f32) {
        for (i, part) in rows.parts.iter().enumerate() {
            // SAFETY: lanes of the mask are readable, a row has room for whole vectors.
            unsafe {
                let v = _mm512_maskz_loadu_ps(part.lanes as __mmask16, row.wrapping_offset(part.offset));
                _mm512_storeu_ps(to.add(16 * i), v);
            }
        }
    }

    /// A bit for each second element.
    fn spread(mut lanes: u32) -> u32 {
        for (shift, keep) in [(8, 0x00ff_00ff), (4, 0x0f0f_0f0f), (2, 0x3333_3333), (1, 0x5555_5555)] {
            lanes = (lanes | lanes << shift) & keep;
        }
        lanes
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    pub(super) unsafe fn copy_even(rows: &RowCopy, row: *const f32, to: *mut f32) {
        let even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
        for (i, part) in rows.parts.iter().enumerate() {
            let lanes = spread(part.lanes);
            // SAFETY: as above.
            unsafe {
                let from = row.wrapping_offset(part.offset);
                let low = _mm512_maskz_loadu_ps(lanes as __mmask16, from);
                let high = _mm512_maskz_loadu_ps((lanes >> 16) as __mmask16, from.wrapping_add(16));
                _mm512_storeu_ps(to.add(16 * i), _mm512_permutex2var_ps(low, even, high));
            }
        }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    pub(super) unsafe fn copy_bf16(rows: &RowCopy, row: *const i16, to: *mut f32) {
        for (i, part) in rows.parts.iter().enumerate() {
            // SAFETY: as above.
            unsafe {
                let v = _mm256_maskz_loadu_epi16(part.lanes as __mmask16, row.wrapping_offset(part.offset));
                let v = _mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(v));
                _mm512_storeu_ps(to.add(16 * i), _mm512_castsi512_ps(v));
            }
        }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    pub(super) unsafe fn copy_even_bf16(rows: &RowCopy, row: *const i16, to: *mut f32) {
        for (i, part) in rows.parts.iter().enumerate() {
            // SAFETY: as above.
            unsafe {
                let v = _mm512_maskz_loadu_epi16(spread(part.lanes), row.wrapping_offset(part.offset));
                _mm512_storeu_ps(to.add(16 * i), _mm512_castsi512_ps(_mm512_slli_epi32::<16>(v)));
            }
        }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    pub(super) unsafe fn copy_f16(rows: &RowCopy, row: *const i16, to: *mut f32) {
        for (i, part) in rows.parts.iter().enumerate() {
            // SAFETY: as above.
            unsafe {
                let v = _mm256_maskz_loadu_epi16(part.lanes as __mmask16, row.wrapping_offset(part.offset));
                _mm512_storeu_ps(to.add(16 * i), _mm512_cvtph_ps(v));
            }
        }
    }
}
