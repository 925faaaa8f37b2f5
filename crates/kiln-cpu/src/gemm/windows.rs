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

use super::source::RowSource;
use crate::features::{Extension, Isa};
use half::{bf16, f16};
use kiln_ir::DType;
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

/// Lanes of a panel that one vector covers, inside a run of the last axis.
#[derive(Clone, Copy, Debug)]
struct Piece {
    lane: usize,
    lanes: usize,
    offset: isize,
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

/// A point of some axes.
struct Odometer<'a> {
    axes: &'a [Extent],
    point: crate::small_vec::SmallVec<i64>,
}

impl<'a> Odometer<'a> {
    fn new(axes: &'a [Extent], position: usize) -> Odometer<'a> {
        let mut point: crate::small_vec::SmallVec<i64> = axes.iter().map(|_| 0).collect();
        let mut rest = position;
        for (at, axis) in point.iter_mut().zip(axes).rev() {
            *at = (rest % axis.size.max(1)) as i64;
            rest /= axis.size.max(1);
        }
        Odometer { axes, point }
    }

    /// A linear expression at the point.
    fn at(&self, coefficients: &[isize]) -> isize {
        self.point.iter().zip(coefficients).map(|(&x, c)| x as isize * c).sum()
    }

    /// Steps to the end of the last axis.
    fn left(&self) -> usize {
        match (self.axes.last(), self.point.last()) {
            (Some(axis), Some(&at)) => axis.size - at as usize,
            _ => 1,
        }
    }

    fn advance(&mut self) {
        self.skip(1);
    }

    /// Goes on by no more than what is left of the last axis.
    fn skip(&mut self, steps: usize) {
        let mut steps = steps as i64;
        for (at, axis) in self.point.iter_mut().zip(self.axes).rev() {
            *at += steps;
            if *at < axis.size as i64 {
                return;
            }
            *at = 0;
            steps = 1;
        }
    }
}

/// The rows of one panel.
struct PanelPart<'a> {
    data: *const u8,
    dtype: DType,
    /// Elements from one lane to the next.
    stride: isize,
    offsets: &'a [isize],
    taps: &'a [u32],
    /// The lanes of each tap that are in memory.
    masks: &'a [u32],
    pieces: &'a [Piece],
    width: usize,
}

impl PanelPart<'_> {
    /// Each row's address, lanes in memory and destination.
    #[inline(always)]
    fn each<T>(&self, to: *mut f32, mut f: impl FnMut(*const T, u32, *mut f32)) {
        for (row, (&offset, &tap)) in self.offsets.iter().zip(self.taps).enumerate() {
            let mask = self.masks[tap as usize];
            f(self.data.cast::<T>().wrapping_offset(offset), mask, to.wrapping_add(row * self.width));
        }
    }

    /// Each pair of rows: addresses, lanes in memory and destination. The partner of a last row is the row itself, without lanes.
    #[inline(always)]
    fn each_pair(&self, to: *mut u32, mut f: impl FnMut([*const i16; 2], [u32; 2], *mut u32)) {
        let row =
            |i: usize| (self.data.cast::<i16>().wrapping_offset(self.offsets[i]), self.masks[self.taps[i] as usize]);
        for pair in 0..self.offsets.len().div_ceil(2) {
            let first = row(2 * pair);
            let second = if 2 * pair + 1 < self.offsets.len() { row(2 * pair + 1) } else { (first.0, 0) };
            f([first.0, second.0], [first.1, second.1], to.wrapping_add(pair * self.width));
        }
    }

    /// Packs pairs of rows of bf16, the first in the low half of a word.
    unsafe fn copy_pairs(&self, to: *mut u32) {
        // SAFETY: the caller's promise; pairs are for AVX-512 alone.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            if self.stride == 1 { x86::pairs_512(self, to) } else { x86::pairs_even_512(self, to) }
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = to;
    }

    unsafe fn copy(&self, isa: Isa, to: *mut f32) {
        let near = self.stride.unsigned_abs() < 1 << 24;
        // SAFETY: the caller's promise; the target features are those of `isa`.
        unsafe {
            match isa {
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512 if self.dtype == DType::Bf16 && self.stride == 1 => x86::copy_bf16_512(self, to),
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512 if self.dtype == DType::F16 && self.stride == 1 => x86::copy_f16_512(self, to),
                _ if self.dtype == DType::Bf16 => self.copy_lanes(to, bf16::to_f32),
                _ if self.dtype == DType::F16 => self.copy_lanes(to, f16::to_f32),
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512 if self.stride == 1 => x86::copy_512(self, to),
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512 if self.stride == 2 => x86::copy_even_512(self, to),
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512 if near => x86::gather_512(self, to),
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2 if self.stride == 1 => x86::copy_256(self, to),
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2 if near => x86::gather_256(self, to),
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

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::PanelPart;
    use std::arch::x86_64::*;

    /// The lanes of a piece that are in memory.
    #[inline(always)]
    fn lanes_of(mask: u32, piece: &super::Piece) -> u32 {
        // A piece without lanes may begin at 32 at the most.
        ((u64::from(mask) >> piece.lane) as u32) & ((1u32 << piece.lanes) - 1)
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    pub(super) unsafe fn copy_512(part: &PanelPart<'_>, to: *mut f32) {
        part.each(to, |from: *const f32, mask, to| {
            for piece in part.pieces {
                let lanes = lanes_of(mask, piece) as __mmask16;
                // SAFETY: lanes of the mask are readable; a panel's end has room for a vector.
                unsafe {
                    let v = _mm512_maskz_loadu_ps(lanes, from.wrapping_offset(piece.offset));
                    _mm512_storeu_ps(to.add(piece.lane), v);
                }
            }
        });
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    pub(super) unsafe fn copy_bf16_512(part: &PanelPart<'_>, to: *mut f32) {
        part.each(to, |from: *const i16, mask, to| {
            for piece in part.pieces {
                // SAFETY: lanes of the mask are readable; a panel's end has room for a vector.
                unsafe {
                    let v = _mm512_slli_epi32::<16>(words(from, lanes_of(mask, piece), piece));
                    _mm512_storeu_ps(to.add(piece.lane), _mm512_castsi512_ps(v));
                }
            }
        });
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    pub(super) unsafe fn copy_f16_512(part: &PanelPart<'_>, to: *mut f32) {
        part.each(to, |from: *const i16, mask, to| {
            for piece in part.pieces {
                // SAFETY: lanes of the mask are readable; a panel's end has room for a vector.
                unsafe {
                    let lanes = lanes_of(mask, piece) as __mmask16;
                    let v = _mm256_maskz_loadu_epi16(lanes, from.wrapping_offset(piece.offset));
                    _mm512_storeu_ps(to.add(piece.lane), _mm512_cvtph_ps(v));
                }
            }
        });
    }

    /// 16 neighbouring elements of 16 bits, each in a word.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn words(from: *const i16, lanes: u32, piece: &super::Piece) -> __m512i {
        // SAFETY: lanes of the mask are readable.
        unsafe {
            _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes as __mmask16, from.wrapping_offset(piece.offset)))
        }
    }

    /// 16 elements of 16 bits, every second one, each in the low half of a word.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn even_words(from: *const i16, lanes: u32, piece: &super::Piece) -> __m512i {
        // SAFETY: lanes of the mask are readable.
        unsafe { _mm512_maskz_loadu_epi16(spread(lanes), from.wrapping_offset(piece.offset)) }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    pub(super) unsafe fn pairs_512(part: &PanelPart<'_>, to: *mut u32) {
        part.each_pair(to, |[a, b], [first, second], to| {
            for piece in part.pieces {
                // SAFETY: lanes of the masks are readable; a panel's end has room for a vector.
                unsafe {
                    let low = words(a, lanes_of(first, piece), piece);
                    let high = words(b, lanes_of(second, piece), piece);
                    let both = _mm512_or_si512(low, _mm512_slli_epi32::<16>(high));
                    _mm512_storeu_si512(to.add(piece.lane).cast(), both);
                }
            }
        });
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    pub(super) unsafe fn pairs_even_512(part: &PanelPart<'_>, to: *mut u32) {
        part.each_pair(to, |[a, b], [first, second], to| {
            for piece in part.pieces {
                // SAFETY: lanes of the masks are readable; a panel's end has room for a vector.
                unsafe {
                    let low = even_words(a, lanes_of(first, piece), piece);
                    let high = even_words(b, lanes_of(second, piece), piece);
                    let both = _mm512_or_si512(low, _mm512_slli_epi32::<16>(high));
                    _mm512_storeu_si512(to.add(piece.lane).cast(), both);
                }
            }
        });
    }

    /// A bit for each second element.
    #[inline(always)]
    fn spread(mut lanes: u32) -> u32 {
        for (shift, keep) in [(8, 0x00ff_00ff), (4, 0x0f0f_0f0f), (2, 0x3333_3333), (1, 0x5555_5555)] {
            lanes = (lanes | lanes << shift) & keep;
        }
        lanes
    }

    /// Every second element.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    pub(super) unsafe fn copy_even_512(part: &PanelPart<'_>, to: *mut f32) {
        let even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
        part.each(to, |from: *const f32, mask, to| {
            for piece in part.pieces {
                let lanes = spread(lanes_of(mask, piece));
                // SAFETY: lanes of the mask are readable; a panel's end has room for a vector.
                unsafe {
                    let from = from.wrapping_offset(piece.offset);
                    let low = _mm512_maskz_loadu_ps(lanes as __mmask16, from);
                    let high = _mm512_maskz_loadu_ps((lanes >> 16) as __mmask16, from.wrapping_add(16));
                    _mm512_storeu_ps(to.add(piece.lane), _mm512_permutex2var_ps(low, even, high));
                }
            }
        });
    }

    /// Elements at any equal distance.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    pub(super) unsafe fn gather_512(part: &PanelPart<'_>, to: *mut f32) {
        let lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        let index = _mm512_mullo_epi32(lane, _mm512_set1_epi32(part.stride as i32));
        part.each(to, |from: *const f32, mask, to| {
            for piece in part.pieces {
                let lanes = lanes_of(mask, piece) as __mmask16;
                // SAFETY: lanes of the mask are readable; a panel's end has room for a vector.
                unsafe {
                    let from = from.wrapping_offset(piece.offset);
                    let v = _mm512_mask_i32gather_ps::<4>(_mm512_setzero_ps(), lanes, index, from);
                    _mm512_storeu_ps(to.add(piece.lane), v);
                }
            }
        });
    }

    /// Bits as lanes.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn lanes_256(bits: u32) -> __m256i {
        let each = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
        _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(bits as i32), each), each)
    }

    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn copy_256(part: &PanelPart<'_>, to: *mut f32) {
        part.each(to, |from: *const f32, mask, to| {
            for piece in part.pieces {
                let lanes = lanes_of(mask, piece);
                // SAFETY: lanes of the mask are readable; a panel's end has room for a vector.
                unsafe {
                    let from = from.wrapping_offset(piece.offset);
                    let v =
                        if lanes == 0xff { _mm256_loadu_ps(from) } else { _mm256_maskload_ps(from, lanes_256(lanes)) };
                    _mm256_storeu_ps(to.add(piece.lane), v);
                }
            }
        });
    }

    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn gather_256(part: &PanelPart<'_>, to: *mut f32) {
        let lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        let index = _mm256_mullo_epi32(lane, _mm256_set1_epi32(part.stride as i32));
        part.each(to, |from: *const f32, mask, to| {
            for piece in part.pieces {
                let lanes = lanes_256(lanes_of(mask, piece));
                // SAFETY: lanes of the mask are readable; a panel's end has room for a vector.
                unsafe {
                    let from = from.wrapping_offset(piece.offset);
                    let zero = _mm256_setzero_ps();
                    let v = _mm256_mask_i32gather_ps::<4>(zero, from, index, _mm256_castsi256_ps(lanes));
                    _mm256_storeu_ps(to.add(piece.lane), v);
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers that look random, the same in every run.
    struct Random(u64);

    impl Random {
        fn below(&mut self, n: usize) -> usize {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((self.0 >> 33) as usize) % n
        }
    }

    /// A picture of `height × width` under windows: fixed axes (channel, ky, kx), running axes (image, y, x).
    struct Picture {
        memory: Vec<u8>,
        windows: Windows,
        wanted: Vec<Vec<f32>>,
    }

    /// Elements in memory as a type has them.
    fn stored(numbers: &[f32], dtype: DType) -> Vec<u8> {
        let bytes = |&x: &f32| match dtype {
            DType::Bf16 => bf16::from_f32(x).to_le_bytes().to_vec(),
            DType::F16 => f16::from_f32(x).to_le_bytes().to_vec(),
            _ => x.to_le_bytes().to_vec(),
        };
        numbers.iter().flat_map(bytes).collect()
    }

    fn picture(random: &mut Random, isa: Isa, dtype: DType) -> Picture {
        let [images, channels] = [1 + random.below(3), 1 + random.below(3)];
        let size = [1 + random.below(12), 1 + random.below(40)];
        let taps = [1 + random.below(4), 1 + random.below(4)];
        let stride = [1 + random.below(3), 1 + random.below(4)];
        let dilation = [1 + random.below(2), 1 + random.below(2)];
        let padding = [random.below(4) as isize, random.below(4) as isize];
        let places = [0, 1].map(|i| {
            let room = size[i] as isize + 2 * padding[i] - ((taps[i] - 1) * dilation[i]) as isize - 1;
            if room < 0 { 0 } else { room as usize / stride[i] + 1 }
        });
        let memory: Vec<f32> = (0..images * channels * size[0] * size[1]).map(|i| (i % 251) as f32 + 1.0).collect();
        let (row, area) = (size[1] as isize, (size[0] * size[1]) as isize);
        let extent = |size: usize, stride: isize| Extent { size, stride };
        let fixed = vec![
            extent(channels, area),
            extent(taps[0], dilation[0] as isize * row),
            extent(taps[1], dilation[1] as isize),
        ];
        let running = vec![
            extent(images, channels as isize * area),
            extent(places[0], stride[0] as isize * row),
            extent(places[1], stride[1] as isize),
        ];
        let guard = |i: usize| {
            let (mut fixed, mut running) = (vec![0; 3], vec![0; 3]);
            (fixed[i + 1], running[i + 1]) = (dilation[i] as isize, stride[i] as isize);
            Guard { fixed, running, start: -padding[i], length: size[i] as isize }
        };
        let guards = vec![guard(0), guard(1)];
        let at = |f: usize, r: usize| {
            let (c, ky, kx) = (f / (taps[0] * taps[1]), f / taps[1] % taps[0], f % taps[1]);
            let (n, y, x) = (r / (places[0] * places[1]), r / places[1] % places[0], r % places[1]);
            let y = (y * stride[0] + ky * dilation[0]) as isize - padding[0];
            let x = (x * stride[1] + kx * dilation[1]) as isize - padding[1];
            let inside = (0..size[0] as isize).contains(&y) && (0..size[1] as isize).contains(&x);
            let place = ((n * channels + c) as isize * size[0] as isize + y) * row + x;
            if inside { memory[place as usize] } else { 0.0 }
        };
        let columns = images * places[0] * places[1];
        let wanted = (0..channels * taps[0] * taps[1]).map(|f| (0..columns).map(|r| at(f, r)).collect()).collect();
        let memory = stored(&memory, dtype);
        let first = (-padding[0] * row - padding[1]) * (dtype.size_in_bits() / 8) as isize;
        let first = memory.as_ptr().wrapping_offset(first);
        Picture { windows: Windows::new(isa, dtype, first, fixed, running, guards), wanted, memory }
    }

    #[test]
    fn rows_and_panels_have_the_elements_under_the_windows() {
        let mut random = Random(7);
        for (isa, dtype) in Isa::available().flat_map(|isa| [DType::F32, DType::Bf16, DType::F16].map(|d| (isa, d))) {
            for _ in 0..200 {
                let Picture { windows, wanted, memory } = picture(&mut random, isa, dtype);
                let columns = wanted[0].len();
                if columns == 0 {
                    continue;
                }
                let range = random.below(columns)..columns;
                for (row, wanted) in wanted.iter().enumerate() {
                    let mut got = vec![f32::NAN; range.len()];
                    // SAFETY: the picture is in memory, and the row has room.
                    unsafe { windows.fill(row, range.clone(), got.as_mut_ptr().cast()) };
                    assert_eq!(got, wanted[range.clone()], "{windows:?}");
                }
                let rows = random.below(wanted.len())..wanted.len();
                let rows = rows.start..rows.end.min(rows.start + LANES);
                let mut got = vec![f32::NAN; range.len() * LANES];
                // SAFETY: as above, with room for as many lanes.
                if unsafe { windows.fill_panel(rows.clone(), range.clone(), LANES, got.as_mut_ptr().cast()) } {
                    for (i, column) in range.clone().enumerate() {
                        for (lane, row) in rows.clone().enumerate() {
                            assert_eq!(got[i * LANES + lane], wanted[row][column], "lane {lane} of {windows:?}");
                        }
                    }
                }
                let windows = windows.with_rows();
                let rows = random.below(wanted.len())..wanted.len();
                let width = if isa == Isa::Avx512 { 32 } else { 16 };
                let panels = range.len().div_ceil(width);
                let mut got = vec![f32::NAN; panels * rows.len() * width + SLACK];
                // SAFETY: as above, with room for whole panels and the slack.
                assert!(unsafe { windows.fill_panels(rows.clone(), range.clone(), width, got.as_mut_ptr().cast()) });
                for panel in 0..panels {
                    for (i, row) in rows.clone().enumerate() {
                        for lane in 0..width {
                            let column = range.start + panel * width + lane;
                            let wanted = if column < range.end { wanted[row][column] } else { 0.0 };
                            let got = got[(panel * rows.len() + i) * width + lane];
                            assert_eq!(got, wanted, "{isa:?} panel {panel}, row {row}, lane {lane} of {windows:?}");
                        }
                    }
                }
                if windows.has_pairs() {
                    let mut words = vec![u32::MAX; panels * rows.len().div_ceil(2) * width + SLACK];
                    // SAFETY: as above, a word a pair.
                    unsafe { windows.fill_pairs(rows.clone(), range.clone(), width, words.as_mut_ptr()) };
                    for (at, word) in words[..words.len() - SLACK].iter().enumerate() {
                        let (panel, lane) = (at / width / rows.len().div_ceil(2), at % width);
                        let column = range.start + panel * width + lane;
                        for (half, bits) in [*word as u16, (*word >> 16) as u16].into_iter().enumerate() {
                            let row = rows.start + at / width % rows.len().div_ceil(2) * 2 + half;
                            let inside = column < range.end && row < rows.end;
                            let wanted = if inside { wanted[row][column] } else { 0.0 };
                            assert_eq!(bf16::from_bits(bits).to_f32(), wanted, "pair {at}, half {half} of {windows:?}");
                        }
                    }
                }
                drop(memory);
            }
        }
    }

    #[test]
    fn guards_hold_where_they_say() {
        for step in -4..=4isize {
            for start in -20..=20isize {
                for length in [0, 1, 5, 9] {
                    let wanted: Vec<usize> =
                        (0..12).filter(|&x| (0..length).contains(&(start + x as isize * step))).collect();
                    let got: Vec<usize> = holds(start, step, length, 12).collect();
                    assert_eq!(got, wanted, "{start} + x·{step} below {length}");
                }
            }
        }
    }
}
