//! Operands that are unfolded as they are read: several strided axes a direction, with zeros where a guard fails. Images under the
//! windows of a convolution are read in place, without a padded copy.
//!
//! ```text
//!  element (f, r) = data[Σ fᵢ·strideᵢ + Σ rⱼ·strideⱼ]   if 0 ≤ start + Σ fᵢ·aᵢ + Σ rⱼ·bⱼ < length for every guard, else 0
//! ```
//!
//! `r` runs along the memory of a row, `f` is the number of the row. Where the rows are those of B, panels are packed straight from
//! memory: a panel's lanes are cut into *pieces* of one vector or less inside a run of the last axis, a piece of one row is a masked load
//! and a store that the next piece overlaps.

mod odometer;
mod panel;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod x86;

use super::source::RowSource;
use crate::features::{Extension, Isa};
use half::{bf16, f16};
use kiln_ir::DType;
use odometer::Odometer;
use panel::{PanelPart, Piece};
use std::ops::Range;

/// Elements beyond the last panel that packing may overwrite.
pub(super) const SLACK: usize = 16;
/// The most lanes of a panel: one bit each.
const LANES: usize = 32;

/// Elements of a run from which on it is copied by vectors and transposed.
const SHORT_RUN: usize = 16;

/// One axis of a direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Number of steps.
    pub size: usize,
    /// Elements from one step to the next.
    pub stride: isize,
}

/// A range of a linear expression outside which elements are zero.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guard {
    /// The expression's coefficients along the fixed axes.
    pub fixed: Vec<isize>,
    /// The expression's coefficients along the running axes.
    pub running: Vec<isize>,
    /// The expression at the first element, counted from the lower bound.
    pub start: isize,
    /// Length of the range.
    pub length: isize,
}

/// An unfolded operand of f32, bf16 or f16; see the module.
#[derive(Debug)]
pub struct Windows {
    isa: Isa,
    dtype: DType,
    data: *const u8,
    fixed: Vec<Extent>,
    running: Vec<Extent>,
    guards: Vec<Guard>,
    rows: Rows,
}

// SAFETY: a description of memory that is only read; the caller that runs a product guarantees that it is valid.
unsafe impl Send for Windows {}
// SAFETY: as above.
unsafe impl Sync for Windows {}

/// What packing knows of every row.
#[derive(Debug, Default)]
struct Rows {
    /// Where each row begins.
    offsets: Vec<isize>,
    /// The *tap* of each row: rows of one tap have the same guards.
    taps: Vec<u32>,
    /// For each guard the different values of its fixed part.
    values: Vec<Vec<isize>>,
    /// For each tap and guard the number of its value.
    numbers: Vec<u32>,
}

impl Windows {
    /// An operand of `dtype` (f32, bf16 or f16) whose first element is at `data`, which its guards may exclude.
    pub fn new(
        isa: Isa,
        dtype: DType,
        data: *const u8,
        fixed: Vec<Extent>,
        running: Vec<Extent>,
        guards: Vec<Guard>,
    ) -> Windows {
        let mut windows = Windows { isa, dtype, data, fixed, running, guards, rows: Rows::default() };
        windows.drop_guards();
        windows.merge();
        windows
    }

    /// With what packing rows needs to know of them.
    pub fn with_rows(mut self) -> Windows {
        self.rows = self.rows();
        self
    }

    /// Drops guards that hold everywhere.
    fn drop_guards(&mut self) {
        let (fixed, running) = (&self.fixed, &self.running);
        self.guards.retain(|guard| {
            let (mut low, mut high) = (guard.start, guard.start);
            let parts = guard.fixed.iter().zip(fixed).chain(guard.running.iter().zip(running));
            for (&coefficient, axis) in parts {
                let reach = coefficient * axis.size.saturating_sub(1) as isize;
                low += reach.min(0);
                high += reach.max(0);
            }
            low < 0 || high >= guard.length
        });
    }

    /// Merges neighbouring axes of a direction that are one in memory and in all guards.
    fn merge(&mut self) {
        for at in (1..self.running.len()).rev() {
            let (outer, inner) = (self.running[at - 1], self.running[at]);
            let size = inner.size as isize;
            let composes = |g: &Guard| g.running[at - 1] == g.running[at] * size;
            if outer.stride == inner.stride * size && self.guards.iter().all(composes) {
                self.running[at - 1] = Extent { size: outer.size * inner.size, stride: inner.stride };
                self.running.remove(at);
                for guard in &mut self.guards {
                    guard.running.remove(at - 1);
                }
            }
        }
    }

    fn rows(&self) -> Rows {
        let count: usize = self.fixed.iter().map(|axis| axis.size).product();
        let guarded = |at: usize| self.guards.iter().any(|guard| guard.fixed[at] != 0);
        let strides: Vec<isize> = self.fixed.iter().map(|axis| axis.stride).collect();
        // A tap is a point of the axes that guards depend on.
        let mut radices = vec![0isize; self.fixed.len()];
        let mut taps = 1;
        for at in (0..self.fixed.len()).rev().filter(|&at| guarded(at)) {
            radices[at] = taps as isize;
            taps *= self.fixed[at].size;
        }
        let mut rows = Rows {
            offsets: Vec::with_capacity(count),
            taps: Vec::with_capacity(count),
            values: vec![Vec::new(); self.guards.len()],
            numbers: vec![0; taps * self.guards.len()],
        };
        let mut odometer = Odometer::new(&self.fixed, 0);
        let mut seen = vec![false; taps];
        for _ in 0..count {
            let tap = odometer.at(&radices) as usize;
            if !std::mem::replace(&mut seen[tap], true) {
                for (g, guard) in self.guards.iter().enumerate() {
                    let value = odometer.at(&guard.fixed);
                    let known = rows.values[g].iter().position(|&v| v == value);
                    rows.numbers[tap * self.guards.len() + g] = known.unwrap_or(rows.values[g].len()) as u32;
                    if known.is_none() {
                        rows.values[g].push(value);
                    }
                }
            }
            rows.offsets.push(odometer.at(&strides));
            rows.taps.push(tap as u32);
            odometer.advance();
        }
        rows
    }

    /// Runs of a range of running positions along the last axis: the coordinates of the first element of each, and its length.
    fn runs(&self, range: Range<usize>, mut f: impl FnMut(&Odometer<'_>, usize, usize)) {
        let mut odometer = Odometer::new(&self.running, range.start);
        let mut at = range.start;
        while at < range.end {
            let length = odometer.left().min(range.end - at);
            f(&odometer, at - range.start, length);
            odometer.skip(length);
            at += length;
        }
    }

    /// Elements of short runs, all rows of a column after each other: `to[column][row]`.
    unsafe fn fill_lanes<T: Copy>(
        &self,
        rows: Range<usize>,
        columns: Range<usize>,
        width: usize,
        to: *mut f32,
        convert: impl Fn(T) -> f32,
    ) {
        let strides: Vec<isize> = self.fixed.iter().map(|axis| axis.stride).collect();
        let mut odometer = Odometer::new(&self.fixed, rows.start);
        let mut lanes = [0isize; LANES];
        let count = rows.len().min(LANES);
        for lane in &mut lanes[..count] {
            *lane = odometer.at(&strides);
            odometer.advance();
        }
        let lanes = &lanes[..count];
        let even = lanes.windows(2).all(|pair| pair[1] - pair[0] == lanes[1] - lanes[0]);
        let step = if count > 1 { lanes[1] - lanes[0] } else { 0 };
        let running: Vec<isize> = self.running.iter().map(|axis| axis.stride).collect();
        let stride = self.last_stride();
        let data = self.data.cast::<T>();
        self.runs(columns, |at, first, length| {
            let offset = at.at(&running);
            for i in 0..length {
                let from = data.wrapping_offset(offset + stride * i as isize);
                // SAFETY: there are no guards, so that every element is readable; `to` has room for whole columns.
                unsafe {
                    let to = to.add((first + i) * width);
                    if even {
                        let mut from = from.wrapping_offset(lanes.first().copied().unwrap_or(0));
                        for lane in 0..count {
                            to.add(lane).write(convert(from.read_unaligned()));
                            from = from.wrapping_offset(step);
                        }
                    } else {
                        for (lane, &offset) in lanes.iter().enumerate() {
                            to.add(lane).write(convert(from.wrapping_offset(offset).read_unaligned()));
                        }
                    }
                }
            }
        });
    }

    fn last_stride(&self) -> isize {
        self.running.last().map_or(0, |axis| axis.stride)
    }

    /// Bytes of an element.
    fn size(&self) -> usize {
        self.dtype.size_in_bits() / 8
    }

    /// Packs panels of `width` lanes: `to[panel][row][lane]`, or `to[panel][pair of rows][lane]`.
    unsafe fn pack(&self, rows: Range<usize>, lanes: Range<usize>, width: usize, to: *mut f32, pairs: bool) {
        let vector = match self.isa {
            Isa::Avx512 => 16,
            _ => 8,
        };
        let guards = self.guards.len();
        let strides: Vec<isize> = self.running.iter().map(|axis| axis.stride).collect();
        let taps = &self.rows.taps[rows.clone()];
        let offsets = &self.rows.offsets[rows.clone()];
        let (mut pieces, mut starts) = (Vec::new(), Vec::new());
        let mut by_value: Vec<Vec<u32>> = self.rows.values.iter().map(|values| vec![0; values.len()]).collect();
        let mut masks = vec![0u32; self.rows.numbers.len().checked_div(guards).unwrap_or(1)];
        for (panel, start) in lanes.clone().step_by(width).enumerate() {
            let end = lanes.end.min(start + width);
            pieces.clear();
            starts.clear();
            self.runs(start..end, |odometer, lane, length| {
                let (mut offset, mut lane, mut left) = (odometer.at(&strides), lane, length);
                let mut parts: [isize; LANES] = [0; LANES];
                for (part, guard) in parts.iter_mut().zip(&self.guards) {
                    *part = guard.start + odometer.at(&guard.running);
                }
                while left > 0 {
                    let lanes = left.min(vector);
                    pieces.push(Piece { lane, lanes, offset });
                    for (part, guard) in parts.iter_mut().zip(&self.guards) {
                        starts.push(*part);
                        *part += guard.running.last().copied().unwrap_or(0) * lanes as isize;
                    }
                    offset += self.last_stride() * lanes as isize;
                    lane += lanes;
                    left -= lanes;
                }
            });
            for (g, guard) in self.guards.iter().enumerate() {
                let step = guard.running.last().copied().unwrap_or(0);
                for (mask, value) in by_value[g].iter_mut().zip(&self.rows.values[g]) {
                    *mask = 0;
                    for (piece, starts) in pieces.iter().zip(starts.chunks_exact(guards)) {
                        let inside = holds(starts[g] + value, step, guard.length, piece.lanes);
                        *mask |= bits(inside) << piece.lane;
                    }
                }
            }
            let all = bits(0..end - start);
            if guards == 0 {
                masks[0] = all;
            } else {
                for (mask, numbers) in masks.iter_mut().zip(self.rows.numbers.chunks_exact(guards)) {
                    *mask = numbers.iter().zip(&by_value).fold(all, |mask, (&n, by_value)| mask & by_value[n as usize]);
                }
            }
            // The lanes that the last piece's vector does not reach.
            let mut reached = pieces.last().map_or(0, |piece: &Piece| piece.lane + vector);
            while reached < width {
                pieces.push(Piece { lane: reached, lanes: 0, offset: 0 });
                reached += vector;
            }
            let part = PanelPart {
                data: self.data,
                dtype: self.dtype,
                stride: self.last_stride(),
                offsets,
                taps,
                masks: &masks,
                pieces: &pieces,
                width,
            };
            // SAFETY: panel by panel in order, so that what a store leaves beyond its lanes is overwritten or slack; elements whose
            // guards hold are readable.
            unsafe {
                match pairs {
                    true => part.copy_pairs(to.add(panel * rows.len().div_ceil(2) * width).cast()),
                    false => part.copy(self.isa, to.add(panel * rows.len() * width)),
                }
            }
        }
    }
}

/// The positions `x < count` for which `0 ≤ start + x·step < length`.
fn holds(start: isize, step: isize, length: isize, count: usize) -> Range<usize> {
    let count = count as isize;
    let (low, high) = match step {
        0 if (0..length).contains(&start) => (0, count),
        0 => (0, 0),
        1 => (-start, length - start),
        _ if step > 0 => (up(-start, step), up(length - start, step)),
        _ => ((start - length).div_euclid(-step) + 1, start.div_euclid(-step) + 1),
    };
    let low = low.clamp(0, count);
    low as usize..high.clamp(low, count) as usize
}

/// The quotient, rounded up.
fn up(a: isize, by: isize) -> isize {
    -(-a).div_euclid(by)
}

/// Bits of a range.
fn bits(range: Range<usize>) -> u32 {
    let below = |n: usize| if n >= 32 { u32::MAX } else { (1 << n) - 1 };
    below(range.end) & !below(range.start)
}

impl RowSource for Windows {
    unsafe fn fill(&self, row: usize, columns: Range<usize>, to: *mut u8) {
        let row = Odometer::new(&self.fixed, row);
        let offset = row.at(&self.fixed.iter().map(|axis| axis.stride).collect::<Vec<_>>());
        let starts: Vec<isize> = self.guards.iter().map(|guard| guard.start + row.at(&guard.fixed)).collect();
        let strides: Vec<isize> = self.running.iter().map(|axis| axis.stride).collect();
        let stride = self.last_stride();
        self.runs(columns, |at, first, length| {
            let mut inside = 0..length;
            for (start, guard) in starts.iter().zip(&self.guards) {
                let step = guard.running.last().copied().unwrap_or(0);
                let holds = holds(start + at.at(&guard.running), step, guard.length, length);
                inside = inside.start.max(holds.start)..inside.end.min(holds.end);
            }
            let inside = if inside.is_empty() { 0..0 } else { inside };
            // SAFETY: the run is inside the row that the caller has room for; elements whose guards hold are readable.
            unsafe {
                let to = std::slice::from_raw_parts_mut(to.cast::<std::mem::MaybeUninit<f32>>().add(first), length);
                let from = self.data.wrapping_offset((offset + at.at(&strides)) * self.size() as isize);
                to[..inside.start].fill(std::mem::MaybeUninit::new(0.0));
                to[inside.end..].fill(std::mem::MaybeUninit::new(0.0));
                match self.dtype {
                    DType::Bf16 => fill_run(from.cast::<bf16>(), stride, inside, to, bf16::to_f32),
                    DType::F16 => fill_run(from.cast::<f16>(), stride, inside, to, f16::to_f32),
                    _ if stride == 1 => {
                        let to = to.as_mut_ptr().cast::<f32>().add(inside.start);
                        std::ptr::copy_nonoverlapping(from.cast::<f32>().wrapping_add(inside.start), to, inside.len());
                    }
                    _ => fill_run(from.cast::<f32>(), stride, inside, to, |x| x),
                }
            }
        });
    }

    unsafe fn fill_panels(&self, rows: Range<usize>, columns: Range<usize>, width: usize, to: *mut u8) -> bool {
        if width > LANES || self.guards.len() > LANES || self.rows.offsets.is_empty() {
            return false;
        }
        // SAFETY: the caller's promise.
        unsafe { self.pack(rows, columns, width, to.cast(), false) };
        true
    }

    fn is_bf16(&self) -> bool {
        self.dtype == DType::Bf16
    }

    unsafe fn fill_panel(&self, rows: Range<usize>, columns: Range<usize>, width: usize, to: *mut u8) -> bool {
        // Long runs are filled and transposed by vectors.
        let short = self.last_stride() != 1 || self.running.last().is_some_and(|axis| axis.size < SHORT_RUN);
        if !self.guards.is_empty() || !short || rows.len() > LANES {
            return false;
        }
        let to = to.cast();
        // SAFETY: the caller's promise.
        unsafe {
            match self.dtype {
                DType::Bf16 => self.fill_lanes::<bf16>(rows, columns, width, to, bf16::to_f32),
                DType::F16 => self.fill_lanes::<f16>(rows, columns, width, to, f16::to_f32),
                _ => self.fill_lanes::<f32>(rows, columns, width, to, |x| x),
            }
        }
        true
    }

    fn has_pairs(&self) -> bool {
        self.dtype == DType::Bf16
            && self.isa == Isa::Avx512
            && Extension::get() >= Extension::Bf16
            && matches!(self.last_stride(), 1 | 2)
            && self.guards.len() <= LANES
            && !self.rows.offsets.is_empty()
    }

    unsafe fn fill_pairs(&self, rows: Range<usize>, columns: Range<usize>, width: usize, to: *mut u32) {
        // SAFETY: the caller's promise.
        unsafe { self.pack(rows, columns, width, to.cast(), true) };
    }
}

/// Converts the elements of a run, `stride` apart.
unsafe fn fill_run<T: Copy>(
    from: *const T,
    stride: isize,
    inside: Range<usize>,
    to: &mut [std::mem::MaybeUninit<f32>],
    convert: impl Fn(T) -> f32,
) {
    for i in inside {
        // SAFETY: elements inside are readable.
        to[i].write(convert(unsafe { from.wrapping_offset(i as isize * stride).read_unaligned() }));
    }
}
