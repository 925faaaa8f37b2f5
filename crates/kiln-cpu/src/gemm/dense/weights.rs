//! Weights of a dense convolution in panels, where the elements of a sum are not at equal distances: those of data gradients and of
//! transposed convolutions, whose taps are in reverse and whose channels are the results of another one, and those whose channels are last
//! where panels have them first, or the other way round.

use super::super::pack::{Lanes, pack};
use super::super::packed::Panels;
use super::super::scratch::Scratch;
use crate::pool;
use kiln_ir::DType;

/// Size and stride.
pub type Axis = (usize, isize);

/// Weights of a group in memory.
#[derive(Clone, Copy, Debug)]
pub struct TapWeights {
    /// The first one.
    pub from: *const f32,
    /// Elements from the weights of one result to those of the next.
    pub outputs: isize,
    /// Channels.
    pub channels: Axis,
    /// Rows of taps.
    pub y: Axis,
    /// Taps of a row.
    pub x: Axis,
    /// Whether panels are `[tap][channel][result]`.
    pub taps_first: bool,
}

// SAFETY: a description of memory; the caller that packs it guarantees that it is valid.
unsafe impl Sync for TapWeights {}

impl TapWeights {
    /// Packs them: `to[panel][channel][tap][result]`, or `to[panel][tap][channel][result]`.
    ///
    /// # Safety
    /// Every weight must be readable, and `to` writable for the panels.
    pub unsafe fn pack(&self, panels: &Panels, to: *mut f32) {
        let (width, count, to) = (panels.width(), panels.shape().1, to as usize);
        pool::run(count.div_ceil(width), pool::threads(), &|panel| {
            let lanes = count.min((panel + 1) * width) - panel * width;
            let to = (to as *mut f32).wrapping_add(panel * panels.shape().0 * width);
            let first = self.from.wrapping_offset((panel * width) as isize * self.outputs);
            // SAFETY: the weights of a panel, and its memory.
            unsafe {
                if self.channels.1 == 1 && self.channels.0 > 1 {
                    self.by_tap(panels, first, lanes, to);
                } else {
                    self.by_channel(panels, first, lanes, to);
                }
            }
        });
    }

    fn taps(&self) -> usize {
        self.y.0 * self.x.0
    }

    /// Elements from the first weight of a channel to that of a tap.
    fn tap(&self, tap: usize) -> isize {
        (tap / self.x.0) as isize * self.y.1 + (tap % self.x.0) as isize * self.x.1
    }

    /// The row of a panel that has a weight of each result.
    fn row(&self, channel: usize, tap: usize) -> usize {
        if self.taps_first { tap * self.channels.0 + channel } else { channel * self.taps() + tap }
    }

    fn lanes(&self, first: *const f32) -> Lanes {
        Lanes { data: first.cast(), dtype: DType::F32, lane_stride: self.outputs, k_stride: 1 }
    }

    /// Channels that follow each other are transposed by vectors, a tap at a time.
    unsafe fn by_tap(&self, panels: &Panels, first: *const f32, lanes: usize, to: *mut f32) {
        let (width, channels) = (panels.width(), self.channels.0);
        let rows = Scratch::take::<f32>(if self.taps_first { 0 } else { channels * width });
        for tap in 0..self.taps() {
            let from = self.lanes(first.wrapping_offset(self.tap(tap)));
            // SAFETY: the weights of a tap, and their rows of the panel.
            unsafe {
                let to_rows = if self.taps_first { to.add(self.row(0, tap) * width) } else { rows.ptr() };
                pack::<f32>(panels.isa(), &from, 0..lanes, width, 0..channels, to_rows);
                for channel in (0..channels).filter(|_| !self.taps_first) {
                    let row = rows.ptr::<f32>().add(channel * width);
                    to.add(self.row(channel, tap) * width).copy_from_nonoverlapping(row, width);
                }
            }
        }
    }

    /// Taps that follow each other, forwards or backwards, are transposed by vectors, a channel at a time.
    unsafe fn by_channel(&self, panels: &Panels, first: *const f32, lanes: usize, to: *mut f32) {
        let (width, taps) = (panels.width(), self.taps());
        let step = if self.x.0 > 1 { self.x.1 } else { self.y.1 };
        let even = (self.y.0 == 1 || self.x.0 == 1 || self.y.1 == step * self.x.0 as isize) && step.abs() == 1;
        // Rows that the panel has in this order.
        let in_place = !(self.taps_first || even && step < 0);
        let rows = Scratch::take::<f32>(if in_place { 0 } else { taps * width });
        for channel in 0..self.channels.0 {
            let first = first.wrapping_offset(channel as isize * self.channels.1);
            let to_rows = if in_place { to.wrapping_add(self.row(channel, 0) * width) } else { rows.ptr() };
            // SAFETY: the weights of a channel, and their rows of the panel.
            unsafe {
                if even {
                    let from = self.lanes(if step < 0 { first.wrapping_sub(taps - 1) } else { first });
                    pack::<f32>(panels.isa(), &from, 0..lanes, width, 0..taps, to_rows);
                } else {
                    self.one_by_one(first, lanes, width, to_rows);
                }
                for tap in (0..taps).filter(|_| !in_place) {
                    let row = if even && step < 0 { taps - 1 - tap } else { tap };
                    let row = rows.ptr::<f32>().add(row * width);
                    to.add(self.row(channel, tap) * width).copy_from_nonoverlapping(row, width);
                }
            }
        }
    }

    /// The weights of a channel, a row each tap.
    unsafe fn one_by_one(&self, first: *const f32, lanes: usize, width: usize, to: *mut f32) {
        for tap in 0..self.taps() {
            let (at, mut row) = (self.tap(tap), [0f32; 64]);
            for (lane, slot) in row[..lanes].iter_mut().enumerate() {
                // SAFETY: a weight.
                *slot = unsafe { first.wrapping_offset(at + lane as isize * self.outputs).read() };
            }
            // SAFETY: a row of the panel.
            unsafe { to.add(tap * width).copy_from_nonoverlapping(row.as_ptr(), width) };
        }
    }
}
