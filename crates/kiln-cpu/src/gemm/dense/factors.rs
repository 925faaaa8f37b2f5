//! Images whose channels are multiplied by factors of each image (squeeze-excite): a task multiplies its panels of weights instead of all
//! its pixels, which are more.

use super::super::scratch::Scratch;
use super::Dense;
use super::stage::Pixels;
use crate::features::Isa;
use std::ops::Range;

/// Factors of the channels of each image.
#[derive(Clone, Copy, Debug)]
pub struct ChannelFactors {
    /// That of the first channel of the first image.
    pub first: *const f32,
    /// Elements from one channel's to the next one's.
    pub channel: isize,
    /// Elements from one image's to the next one's.
    pub image: isize,
}

// SAFETY: a description of memory; the caller that runs a convolution guarantees that it is valid.
unsafe impl Send for ChannelFactors {}
// SAFETY: as above.
unsafe impl Sync for ChannelFactors {}

impl Dense {
    /// Whether channels may be multiplied by factors.
    pub(super) fn may_have_factors(&self) -> bool {
        let one_tap = self.y.taps * self.x.taps == 1;
        one_tap && self.groups == 1 && self.several == 0 && self.pixels == Pixels::Floats
    }

    /// Panels of an image's task, multiplied by the factors of its channels.
    ///
    /// # Safety
    /// As [`Dense::run`], with the factors of all channels of the image.
    pub(super) unsafe fn scaled(&self, factors: &ChannelFactors, image: usize, panels: Range<usize>) -> Scratch {
        let (words, width) = (self.panel_words(), self.width());
        let to = Scratch::take::<f32>(panels.len() * words);
        let first = factors.first.wrapping_offset(image as isize * factors.image);
        for panel in panels.clone() {
            let from = self.weights.wrapping_add(panel * words);
            let to = to.ptr::<f32>().wrapping_add((panel - panels.start) * words);
            // SAFETY: the factors of the image, and the weights of its channels in a panel.
            unsafe { multiply(self.isa, (first, factors.channel), (from, to), self.channels, width) };
        }
        to
    }
}

/// So many rows of whole vectors, each multiplied by its factor.
#[cfg(target_arch = "x86_64")]
unsafe fn multiply(isa: Isa, factors: (*const f32, isize), rows: (*const f32, *mut f32), count: usize, width: usize) {
    // SAFETY: the target has its features; the rest is the caller's promise.
    unsafe {
        match isa {
            Isa::Avx512 => multiply_512(factors, rows, count, width),
            _ => multiply_256(factors, rows, count, width),
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn multiply_512(
    (factors, step): (*const f32, isize),
    (from, to): (*const f32, *mut f32),
    count: usize,
    width: usize,
) {
    use std::arch::x86_64::*;
    for row in 0..count {
        // SAFETY: the caller's promise.
        let factor = _mm512_set1_ps(unsafe { *factors.offset(row as isize * step) });
        for at in (row * width..(row + 1) * width).step_by(16) {
            // SAFETY: rows are whole vectors.
            unsafe { _mm512_storeu_ps(to.add(at), _mm512_mul_ps(factor, _mm512_loadu_ps(from.add(at)))) };
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx")]
unsafe fn multiply_256(
    (factors, step): (*const f32, isize),
    (from, to): (*const f32, *mut f32),
    count: usize,
    width: usize,
) {
    use std::arch::x86_64::*;
    for row in 0..count {
        // SAFETY: the caller's promise.
        let factor = _mm256_set1_ps(unsafe { *factors.offset(row as isize * step) });
        for at in (row * width..(row + 1) * width).step_by(8) {
            // SAFETY: rows are whole vectors.
            unsafe { _mm256_storeu_ps(to.add(at), _mm256_mul_ps(factor, _mm256_loadu_ps(from.add(at)))) };
        }
    }
}

/// Elsewhere there are no dense convolutions.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn multiply(_: Isa, _: (*const f32, isize), _: (*const f32, *mut f32), _: usize, _: usize) {}
