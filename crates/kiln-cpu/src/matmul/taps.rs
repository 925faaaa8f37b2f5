//! Weights of a dense convolution in memory, and how they become panels.

use crate::gemm::{Matrix, Panels, Pixels, Runs, Scratch, TapWeights, interleave};
use crate::pool;
use half::{bf16, f16};
use kiln_ir::DType;

/// Results whose weights are brought into words by one task.
const TASK_OUTPUTS: usize = 16;

/// Sizes and strides of weights along the axes of the sum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Taps {
    /// What the elements are.
    pub elements: Pixels,
    /// Channels, or pairs of them.
    pub channels: usize,
    pub channel: isize,
    /// Size and stride.
    pub y: (usize, isize),
    pub x: (usize, isize),
    /// Whether panels are `[tap][channel][result]`, and not `[channel][tap][result]`.
    pub taps_first: bool,
}

impl Taps {
    pub fn count(&self) -> usize {
        self.y.0 * self.x.0
    }

    /// The step of a sum whose elements are at equal distances in the order of the panels.
    fn step(&self) -> Option<isize> {
        let channels = (self.channels, self.channel);
        let axes = if self.taps_first { [self.y, self.x, channels] } else { [channels, self.y, self.x] };
        let mut steps = None;
        for (size, stride) in axes.into_iter().rev().filter(|axis| axis.0 > 1) {
            let (step, count) = steps.unwrap_or((stride, 1));
            if stride != step * count {
                return None;
            }
            steps = Some((step, count * size as isize));
        }
        Some(steps.map_or(1, |(step, _)| step))
    }

    /// Packs the weights of a group, whose first is at `from`, into panels.
    ///
    /// # Safety
    /// Every weight must be readable, and the panels writable.
    pub unsafe fn pack(&self, panels: &Panels, from: *const u8, outputs: isize, to: *mut f32) {
        let dtype = match self.elements {
            Pixels::Floats | Pixels::Pairs => DType::F32,
            Pixels::Widened(dtype) => dtype,
            Pixels::Interleaved(_) => DType::Bf16,
        };
        // SAFETY: the caller's promise.
        unsafe {
            match (self.elements, self.step()) {
                (Pixels::Floats | Pixels::Pairs | Pixels::Widened(_), Some(step)) => {
                    panels.pack(&Matrix { data: from, dtype, row_stride: step, column_stride: outputs }, to.cast());
                }
                (Pixels::Floats | Pixels::Pairs, None) => {
                    let (channels, taps_first) = ((self.channels, self.channel), self.taps_first);
                    let weights = TapWeights { from: from.cast(), outputs, channels, y: self.y, x: self.x, taps_first };
                    weights.pack(panels, to);
                }
                (Pixels::Interleaved(_), _) | (Pixels::Widened(_), None) => {
                    let words = self.words(panels.shape().1, from, outputs);
                    let taps = self.count() as isize;
                    let in_words = Taps {
                        elements: Pixels::Floats,
                        channel: taps,
                        y: (self.y.0, self.x.0 as isize),
                        x: (self.x.0, 1),
                        ..*self
                    };
                    in_words.pack(panels, words.ptr::<u8>(), self.channels as isize * taps, to);
                }
            }
        }
    }

    /// Words of so many results: `[result][channel][tap]`.
    unsafe fn words(&self, results: usize, from: *const u8, outputs: isize) -> Scratch {
        let (sum, taps) = (self.channels * self.count(), self.count());
        let words = Scratch::take::<u32>(results * sum);
        let (source, target) = (from as usize, words.ptr::<u32>() as usize);
        let even = self.elements == Pixels::Interleaved(2 * self.channels)
            && (Taps { taps_first: false, ..*self }).step() == Some(1)
            && self.channel == taps as isize;
        let runs = even.then(|| Runs::new(taps)).flatten();
        pool::run(results.div_ceil(TASK_OUTPUTS), pool::threads(), &|task| {
            for result in task * TASK_OUTPUTS..results.min((task + 1) * TASK_OUTPUTS) {
                let first = (source as *const u16).wrapping_offset(result as isize * outputs);
                if let Some(runs) = &runs {
                    // SAFETY: the weights of a result follow each other; there is room for all words.
                    unsafe { runs.interleave(first, self.channels, (target as *mut u32).wrapping_add(result * sum)) };
                    continue;
                }
                for channel in 0..self.channels {
                    let to = (target as *mut u32).wrapping_add(result * sum + channel * taps);
                    // SAFETY: the caller's promise; there is room for all words.
                    unsafe { self.words_of(first, channel, to) };
                }
            }
        });
        words
    }

    /// Words of one result's channel, or pair of channels.
    unsafe fn words_of(&self, first: *const u16, channel: usize, to: *mut u32) {
        // Taps that follow each other are one run.
        let (rows, run) = match self.y.0 == 1 || self.x.0 > 1 && self.y.1 == self.x.1 * self.x.0 as isize {
            true => (1, self.count()),
            false => (self.y.0, self.x.0),
        };
        for row in 0..rows {
            let to = to.wrapping_add(row * run);
            let at = |channel: usize| first.wrapping_offset(channel as isize * self.channel + row as isize * self.y.1);
            match self.elements {
                Pixels::Interleaved(all) => {
                    let high = (2 * channel + 1 < all).then(|| at(2 * channel + 1));
                    // SAFETY: the caller's promise.
                    unsafe { interleave(at(2 * channel), high, self.x.1, run, to) };
                }
                elements => {
                    for i in 0..run {
                        // SAFETY: the caller's promise.
                        unsafe {
                            let bits = at(channel).offset(i as isize * self.x.1).read_unaligned();
                            let value = match elements {
                                Pixels::Widened(DType::F16) => f16::from_bits(bits).to_f32(),
                                _ => bf16::from_bits(bits).to_f32(),
                            };
                            to.add(i).write(value.to_bits());
                        }
                    }
                }
            }
        }
    }
}
