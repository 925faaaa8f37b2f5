//! Pixels of 16 bits as the words that kernels read: floats, or bf16 of two channels side by side. A task's rows are brought into this form
//! before all of its panels read them, unless they have it in memory.

use super::super::pack::{Lanes, pack};
use super::super::scratch::Scratch;
use super::super::spans::under;
use super::Dense;
use kiln_ir::DType;
use std::ops::Range;

/// What the elements of an image are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pixels {
    /// Floats, read where they are.
    Floats,
    /// Bf16 or F16, widened to floats.
    Widened(DType),
    /// Words of two channels' bf16, read where they are.
    Pairs,
    /// So many channels of bf16, of which words are made: one channel fewer than twice the words where it is odd.
    Interleaved(usize),
}

impl Pixels {
    /// Bytes of an element.
    pub fn size(self) -> usize {
        match self {
            Pixels::Floats | Pixels::Pairs => 4,
            Pixels::Widened(_) | Pixels::Interleaved(_) => 2,
        }
    }

    /// Whether words are made of it.
    pub(super) fn is_staged(self) -> bool {
        matches!(self, Pixels::Widened(_) | Pixels::Interleaved(_))
    }

    /// Whether words are pairs of bf16.
    pub(super) fn has_pairs(self) -> bool {
        matches!(self, Pixels::Pairs | Pixels::Interleaved(_))
    }
}

/// Words of an image's channels, or of some of its rows: the one of the first pixel, which may be outside, and strides in words.
pub(super) struct View {
    pub first: *const f32,
    pub channel: isize,
    pub row: isize,
    pub pixel: isize,
    _own: Option<Scratch>,
}

impl View {
    pub(super) fn at(&self, row: isize, pixel: isize) -> *const f32 {
        self.first.wrapping_offset(row * self.row + pixel * self.pixel)
    }
}

impl Dense {
    /// The words of a group's channels in an image, for results of these rows and columns.
    ///
    /// # Safety
    /// As [`Dense::run`].
    pub(super) unsafe fn view(
        &self,
        copied: Option<[usize; 2]>,
        image: usize,
        group: usize,
        y: &Range<usize>,
        x: &Range<usize>,
    ) -> View {
        let size = self.pixels.size() as isize;
        let first = image as isize * self.image_stride + group as isize * self.group_stride
            - self.y.start * self.row_stride
            - self.x.start * self.pixel_stride;
        let first = self.image.wrapping_offset(first * size);
        if let Some(strides) = copied {
            // SAFETY: the caller's promise.
            return unsafe { self.copy(first.cast(), strides, under(&self.y, y), under(&self.x, x)) };
        }
        if !self.pixels.is_staged() {
            let (channel, row, pixel) = (self.channel_stride, self.row_stride, self.pixel_stride);
            return View { first: first.cast(), channel, row, pixel, _own: None };
        }
        let (rows, pixels) = (under(&self.y, y), under(&self.x, x));
        let start = rows.start as isize * self.row_stride + pixels.start as isize * self.pixel_stride;
        let first = first.wrapping_offset(start * size);
        // Rows that follow each other are one.
        let together = rows.len() == 1 || self.row_stride == self.pixel_stride * pixels.len() as isize;
        let (calls, count) = if together { (1, rows.len() * pixels.len()) } else { (rows.len(), pixels.len()) };
        let words = Scratch::take::<f32>(calls * self.channels * count);
        for call in 0..calls {
            let from = first.wrapping_offset(call as isize * self.row_stride * size);
            let to = words.ptr::<f32>().wrapping_add(call * self.channels * count);
            // SAFETY: rows inside the image, and room for their words.
            unsafe { self.stage(from, count, to) };
        }
        let row = if together { pixels.len() } else { self.channels * count } as isize;
        let skipped = rows.start as isize * row + pixels.start as isize;
        let first = words.ptr::<f32>().cast_const().wrapping_offset(-skipped);
        View { first, channel: count as isize, row, pixel: 1, _own: Some(words) }
    }

    /// The words of some rows and pixels with these strides; the first one is at row 0 and pixel 0 of the image.
    unsafe fn copy(&self, first: *const f32, strides: [usize; 2], rows: Range<usize>, pixels: Range<usize>) -> View {
        let [pixel, row] = strides;
        let words = Scratch::take::<f32>(rows.len() * row);
        for (r, x) in rows.clone().flat_map(|r| pixels.clone().map(move |x| (r, x))) {
            let from = first.wrapping_offset(r as isize * self.row_stride + x as isize * self.pixel_stride);
            let to = words.ptr::<f32>().wrapping_add((r - rows.start) * row + (x - pixels.start) * pixel);
            // SAFETY: the channels of a pixel inside the image, and their place.
            unsafe { to.copy_from_nonoverlapping(from, self.channels) };
        }
        let skipped = (rows.start * row + pixels.start * pixel) as isize;
        let first = words.ptr::<f32>().cast_const().wrapping_offset(-skipped);
        View { first, channel: 1, row: row as isize, pixel: pixel as isize, _own: Some(words) }
    }

    /// Words of all channels and so many pixels: `[channel][pixel]`.
    unsafe fn stage(&self, from: *const u8, count: usize, to: *mut f32) {
        match self.pixels {
            Pixels::Widened(dtype) => {
                let from = Lanes { data: from, dtype, lane_stride: self.pixel_stride, k_stride: self.channel_stride };
                // SAFETY: the caller's promise.
                unsafe { pack::<f32>(self.isa, &from, 0..count, count, 0..self.channels, to) };
            }
            _ => {
                let all = if let Pixels::Interleaved(all) = self.pixels { all } else { 2 * self.channels };
                for pair in 0..self.channels {
                    let low = from.cast::<u16>().wrapping_offset(2 * pair as isize * self.channel_stride);
                    let high = (2 * pair + 1 < all).then(|| low.wrapping_offset(self.channel_stride));
                    // SAFETY: the caller's promise.
                    unsafe { interleave(low, high, self.pixel_stride, count, to.add(pair * count).cast()) };
                }
            }
        }
    }
}

/// Words of elements that are so far apart, the second ones in the high halves, or zero.
///
/// # Safety
/// The elements must be readable, and as many words writable.
pub unsafe fn interleave(low: *const u16, high: Option<*const u16>, stride: isize, count: usize, to: *mut u32) {
    #[cfg(target_arch = "x86_64")]
    if stride == 1 && is_x86_feature_detected!("avx512bw") && is_x86_feature_detected!("avx512vl") {
        // SAFETY: the features are there; the rest is the caller's promise.
        return unsafe { interleave_512(low, high, count, to) };
    }
    #[cfg(target_arch = "x86_64")]
    if (2..=NEAR).contains(&stride) && has_permutations() && high.is_none_or(|high| high == low.wrapping_add(1)) {
        // SAFETY: the features are there; the rest is the caller's promise.
        return unsafe { interleave_near_512(low, high.is_some(), stride as usize, count, to) };
    }
    if high == Some(low.wrapping_add(1)) {
        // Channels side by side are a word in memory.
        for i in 0..count {
            // SAFETY: the caller's promise.
            unsafe { to.add(i).write(low.offset(i as isize * stride).cast::<u32>().read_unaligned()) };
        }
        return;
    }
    for i in 0..count {
        // SAFETY: the caller's promise.
        unsafe {
            let at = |from: *const u16| u32::from(from.offset(i as isize * stride).read_unaligned());
            to.add(i).write(at(low) | high.map_or(0, at) << 16);
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn interleave_512(low: *const u16, high: Option<*const u16>, count: usize, to: *mut u32) {
    use std::arch::x86_64::*;
    for i in (0..count).step_by(16) {
        let mask: __mmask16 = if count - i >= 16 { !0 } else { (1 << (count - i)) - 1 };
        // SAFETY: lanes below the count alone are touched.
        unsafe {
            let load = |from: *const u16| _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, from.add(i).cast()));
            let words = match high {
                Some(high) => _mm512_or_si512(load(low), _mm512_slli_epi32::<16>(load(high))),
                None => load(low),
            };
            _mm512_mask_storeu_epi32(to.add(i).cast(), mask, words);
        }
    }
}

/// Elements from one to the next up to which two vectors have those of sixteen words.
const NEAR: isize = 4;

/// Words of elements that are near each other, with the elements beside them in the high halves, or zero.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn interleave_near_512(from: *const u16, pairs: bool, stride: usize, count: usize, to: *mut u32) {
    use std::arch::x86_64::*;
    let mut order = [0u16; 32];
    for (word, halves) in order.chunks_exact_mut(2).enumerate() {
        (halves[0], halves[1]) = ((word * stride) as u16, (word * stride + 1) as u16);
    }
    let halves = if pairs { !0 } else { 0x5555_5555 };
    for i in (0..count).step_by(16) {
        let words = (count - i).min(16);
        let elements = (words - 1) * stride + if pairs { 2 } else { 1 };
        let below = |count: usize| if count >= 32 { !0 } else { (1u32 << count) - 1 };
        // SAFETY: elements of these words alone are read, and these words written.
        unsafe {
            let near = _mm512_maskz_loadu_epi16(below(elements), from.wrapping_add(i * stride).cast());
            let far = elements.saturating_sub(32);
            let far = _mm512_maskz_loadu_epi16(below(far), from.wrapping_add(i * stride + 32).cast());
            let order = _mm512_loadu_si512(order.as_ptr().cast());
            let result = _mm512_maskz_permutex2var_epi16(halves, near, order, far);
            _mm512_mask_storeu_epi32(to.add(i).cast(), (below(words) & 0xffff) as __mmask16, result);
        }
    }
}

/// Words of pairs of runs that follow each other, each of so many elements: the elements of the second run of a pair in the high halves.
pub struct Runs {
    run: usize,
    /// For each element of a run that sixteen words may begin with: where their halves are, from the pair's first element.
    orders: Vec<[u16; 32]>,
}

impl Runs {
    /// The longest run of which two vectors hold all elements of sixteen words.
    const LONGEST: usize = 16;

    /// `None` where there is no code for it.
    pub fn new(run: usize) -> Option<Runs> {
        if !(1..=Runs::LONGEST).contains(&run) || !has_permutations() {
            return None;
        }
        let order = |phase: usize| {
            let mut order = [0; 32];
            for (word, halves) in order.chunks_exact_mut(2).enumerate() {
                let low = 2 * run * ((phase + word) / run) + (phase + word) % run;
                (halves[0], halves[1]) = (low as u16, (low + run) as u16);
            }
            order
        };
        Some(Runs { run, orders: (0..run).map(order).collect() })
    }

    /// Writes the words of so many pairs.
    ///
    /// # Safety
    /// The runs of all pairs must be readable, and their words writable.
    pub unsafe fn interleave(&self, from: *const u16, pairs: usize, to: *mut u32) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `new` found the features; the rest is the caller's promise.
        unsafe {
            runs_512(self, from, pairs, to);
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = (from, pairs, to, self.run, &self.orders);
    }
}

#[cfg(target_arch = "x86_64")]
fn has_permutations() -> bool {
    is_x86_feature_detected!("avx512bw")
}

#[cfg(not(target_arch = "x86_64"))]
fn has_permutations() -> bool {
    false
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn runs_512(runs: &Runs, from: *const u16, pairs: usize, to: *mut u32) {
    use std::arch::x86_64::*;
    let (words, all) = (pairs * runs.run, 2 * pairs * runs.run);
    for word in (0..words).step_by(16) {
        let first = 2 * runs.run * (word / runs.run);
        let below = |count: usize| if count >= 32 { !0 } else { (1u32 << count) - 1 };
        let (near, far) = (below(all - first), below(all.saturating_sub(first + 32)));
        let stored: __mmask16 = if words - word >= 16 { !0 } else { (1 << (words - word)) - 1 };
        // SAFETY: elements and words of the pairs alone are touched.
        unsafe {
            let order = _mm512_loadu_si512(runs.orders[word % runs.run].as_ptr().cast());
            let low = _mm512_maskz_loadu_epi16(near, from.wrapping_add(first).cast());
            let high = _mm512_maskz_loadu_epi16(far, from.wrapping_add(first + 32).cast());
            let words = _mm512_permutex2var_epi16(low, order, high);
            _mm512_mask_storeu_epi32(to.add(word).cast(), stored, words);
        }
    }
}
