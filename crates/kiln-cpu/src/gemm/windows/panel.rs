//! Panels packed straight from memory, a piece of a row at a time.

use crate::features::Isa;
use half::{bf16, f16};
use kiln_ir::DType;

/// Lanes of a panel that one vector covers, inside a run of the last axis.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    pub lane: usize,
    pub lanes: usize,
    pub offset: isize,
}

/// The rows of one panel.
pub(super) struct PanelPart<'a> {
    pub data: *const u8,
    pub dtype: DType,
    /// Elements from one lane to the next.
    pub stride: isize,
    pub offsets: &'a [isize],
    pub taps: &'a [u32],
    /// The lanes of each tap that are in memory.
    pub masks: &'a [u32],
    pub pieces: &'a [Piece],
    pub width: usize,
}

impl PanelPart<'_> {
    /// Each row's address, lanes in memory and destination.
    #[inline(always)]
    pub fn each<T>(&self, to: *mut f32, mut f: impl FnMut(*const T, u32, *mut f32)) {
        for (row, (&offset, &tap)) in self.offsets.iter().zip(self.taps).enumerate() {
            let mask = self.masks[tap as usize];
            f(self.data.cast::<T>().wrapping_offset(offset), mask, to.wrapping_add(row * self.width));
        }
    }

    /// Each pair of rows: addresses, lanes in memory and destination. The partner of a last row is the row itself, without lanes.
    #[inline(always)]
    pub fn each_pair(&self, to: *mut u32, mut f: impl FnMut([*const i16; 2], [u32; 2], *mut u32)) {
        let row =
            |i: usize| (self.data.cast::<i16>().wrapping_offset(self.offsets[i]), self.masks[self.taps[i] as usize]);
        for pair in 0..self.offsets.len().div_ceil(2) {
            let first = row(2 * pair);
            let second = if 2 * pair + 1 < self.offsets.len() { row(2 * pair + 1) } else { (first.0, 0) };
            f([first.0, second.0], [first.1, second.1], to.wrapping_add(pair * self.width));
        }
    }

    /// Packs pairs of rows of bf16, the first in the low half of a word.
    pub unsafe fn copy_pairs(&self, to: *mut u32) {
        // SAFETY: the caller's promise; pairs are for AVX-512 alone.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            if self.stride == 1 { super::x86::pairs_512(self, to) } else { super::x86::pairs_even_512(self, to) }
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = to;
    }

    pub unsafe fn copy(&self, isa: Isa, to: *mut f32) {
        let near = self.stride.unsigned_abs() < 1 << 24;
        // SAFETY: the caller's promise; the target features are those of `isa`.
        unsafe {
            match isa {
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512 if self.dtype == DType::Bf16 && self.stride == 1 => super::x86::copy_bf16_512(self, to),
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512 if self.dtype == DType::F16 && self.stride == 1 => super::x86::copy_f16_512(self, to),
                _ if self.dtype == DType::Bf16 => self.copy_lanes(to, bf16::to_f32),
                _ if self.dtype == DType::F16 => self.copy_lanes(to, f16::to_f32),
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512 if self.stride == 1 => super::x86::copy_512(self, to),
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512 if self.stride == 2 => super::x86::copy_even_512(self, to),
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512 if near => super::x86::gather_512(self, to),
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2 if self.stride == 1 => super::x86::copy_256(self, to),
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2 if near => super::x86::gather_256(self, to),
                _ => {
                    let _ = near;
                    self.copy_lanes(to, |x: f32| x)
                }
            }
        }
    }

    /// Lane by lane, on any machine.
    unsafe fn copy_lanes<T: Copy>(&self, to: *mut f32, convert: impl Fn(T) -> f32) {
        self.each(to, |from: *const T, mask, to| {
            // SAFETY: lanes of the mask are readable, all lanes of the panel writable.
            unsafe {
                std::slice::from_raw_parts_mut(to, self.width).fill(0.0);
                for piece in self.pieces {
                    for lane in 0..piece.lanes {
                        if mask >> (piece.lane + lane) & 1 != 0 {
                            let at = piece.offset + lane as isize * self.stride;
                            to.add(piece.lane + lane).write(convert(from.wrapping_offset(at).read_unaligned()));
                        }
                    }
                }
            }
        });
    }
}
