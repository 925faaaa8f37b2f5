//! Weights of a dense convolution in panels, where the elements of a sum are not at equal distances: those of data gradients and of
//! transposed convolutions, whose taps are in reverse and whose channels are the results of another one.

use super::super::pack::{Lanes, pack};
use super::super::packed::Panels;
use super::super::scratch::Scratch;
use crate::pool;
use kiln_ir::DType;

/// Sizes and strides.
type Axis = (usize, isize);

/// Packs the weights of a group, of which the first is at `from` and those of the next result `outputs` elements further:
/// `to[panel][channel][tap][result]`.
///
/// # Safety
/// Every weight must be readable, and `to` writable for the panels.
pub unsafe fn pack_taps(
    panels: &Panels,
    from: *const f32,
    outputs: isize,
    channels: Axis,
    y: Axis,
    x: Axis,
    to: *mut f32,
) {
    let (width, count, taps) = (panels.width(), panels.shape().1, y.0 * x.0);
    let (from, to) = (from as usize, to as usize);
    // Taps that follow each other in memory, forwards or backwards, are transposed by vectors.
    let step = if x.0 > 1 { x.1 } else { y.1 };
    let even = (y.0 == 1 || x.0 == 1 || y.1 == step * x.0 as isize) && step.abs() == 1;
    pool::run(count.div_ceil(width), pool::threads(), &|panel| {
        let lanes = panel * width..count.min((panel + 1) * width);
        let to = (to as *mut f32).wrapping_add(panel * channels.0 * taps * width);
        let first = (from as *const f32).wrapping_offset(lanes.start as isize * outputs);
        let mut row = [0f32; 64];
        if channels.1 == 1 && channels.0 > 1 {
            // Channels that follow each other are transposed by vectors, a tap at a time.
            let rows = Scratch::take::<f32>(channels.0 * width);
            for tap in 0..taps {
                let at = (tap / x.0) as isize * y.1 + (tap % x.0) as isize * x.1;
                let data = first.wrapping_offset(at).cast();
                let from = Lanes { data, dtype: DType::F32, lane_stride: outputs, k_stride: 1 };
                // SAFETY: the weights of a tap, and their rows of the panel.
                unsafe {
                    pack::<f32>(panels.isa(), &from, 0..lanes.len(), width, 0..channels.0, rows.ptr());
                    for channel in 0..channels.0 {
                        let row = rows.ptr::<f32>().add(channel * width);
                        to.add((channel * taps + tap) * width).copy_from_nonoverlapping(row, width);
                    }
                }
            }
            return;
        }
        let backwards = Scratch::take::<f32>(if step < 0 { taps * width } else { 0 });
        for channel in 0..channels.0 {
            let to = to.wrapping_add(channel * taps * width);
            let first = first.wrapping_offset(channel as isize * channels.1);
            if even {
                let lowest = if step < 0 { first.wrapping_sub(taps - 1) } else { first };
                let from = Lanes { data: lowest.cast(), dtype: DType::F32, lane_stride: outputs, k_stride: 1 };
                let rows = if step < 0 { backwards.ptr() } else { to };
                // SAFETY: the weights of a channel, and their rows of the panel.
                unsafe {
                    pack::<f32>(panels.isa(), &from, 0..lanes.len(), width, 0..taps, rows);
                    for tap in (0..taps).filter(|_| step < 0) {
                        to.add((taps - 1 - tap) * width).copy_from_nonoverlapping(rows.add(tap * width), width);
                    }
                }
                continue;
            }
            for tap in 0..taps {
                let at = (tap / x.0) as isize * y.1 + (tap % x.0) as isize * x.1;
                for (lane, slot) in row[..width].iter_mut().enumerate() {
                    let at = first.wrapping_offset(at + lane as isize * outputs);
                    // SAFETY: a weight.
                    *slot = if lane < lanes.len() { unsafe { at.read() } } else { 0.0 };
                }
                // SAFETY: a row of the panel.
                unsafe { to.add(tap * width).copy_from_nonoverlapping(row.as_ptr(), width) };
            }
        }
    });
}
