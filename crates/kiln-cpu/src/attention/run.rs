//! One launch: split into tasks, run on the pool, merged where keys were split.

use super::convert::{narrow_row, widen_row};
use super::geometry::{Geometry, Segment, View};
use super::scratch::{self, Scratch, Sizes};
use super::tile::{self, Element};
use super::visible;
use super::{Code, Scale, portable};
use crate::choices::Choices;
use crate::features::Isa;
use crate::gemm::{self, Matrix, pack_rows};
use crate::pool;
use kiln_ir::DType;
use std::ops::Range;

/// The most rows of queries in a task.
pub(super) const MOST_ROWS: usize = 64;
/// Tasks that a launch should have at least, as far as its shape allows.
const TASKS: usize = 32;
/// The fewest keys that are worth a task of their own.
const SPLIT_KEYS: usize = 256;
/// Multiplications below which one thread is as fast as several.
const SERIAL: usize = 128 << 10;

/// The state that all tasks of a launch share.
pub(super) struct Job<'a> {
    pub isa: Isa,
    pub code: &'a Code,
    pub scale: Scale,
    pub g: &'a Geometry,
    /// Elements of a vector.
    pub lanes: usize,
    /// Value width, padded to whole vectors.
    pub padded_values: usize,
    /// Tiles of query rows of a group.
    tiles: usize,
    /// Ranges of keys of a tile that are tasks of their own.
    splits: usize,
    /// Results of each task before the merge: rows, then maxima, then sums.
    parts: *mut f32,
    /// Whether rows read keys in place.
    pub unpacked_keys: bool,
    /// Whether rows read values in place.
    pub unpacked_values: bool,
    /// From the first to the last visible key of each query, [b, t], where all heads share a mask; else empty.
    pub extents: Vec<Range<usize>>,
}

// SAFETY: tasks read the operands and write disjoint rows of the result and disjoint parts.
unsafe impl Sync for Job<'_> {}

/// A unit of work.
pub(super) struct Task {
    pub batch: usize,
    pub kv_head: usize,
    /// Rows of the group.
    pub rows: Range<usize>,
    pub keys: Range<usize>,
}

/// Part `i` of `total` split into `parts`, as equal as possible.
pub(super) fn part(total: usize, parts: usize, i: usize) -> Range<usize> {
    // The most frequent case, without a division.
    if parts == 1 {
        return 0..total;
    }
    total * i / parts..total * (i + 1) / parts
}

/// Elements of a vector.
pub(super) fn lanes_of(isa: Isa) -> usize {
    if isa == Isa::Portable { portable::LANES } else { tile::width(isa).lanes(4) }
}

/// Runs a launch whose result has elements.
///
/// # Safety
/// The views reach only inside their buffers; nothing overlaps the result.
pub(super) unsafe fn run(isa: Isa, code: &Code, scale: Scale, g: &Geometry, choices: Choices) {
    let lanes = lanes_of(isa);
    let rows = g.group_rows();
    let groups = g.batch * g.kv_heads;
    // Columns pay for whole vectors of queries and, for short floats, for a widened copy of keys and values.
    let widens = !code.pairs && (g.k.size != 4 || g.v.size != 4);
    let by_rows = rows <= if widens { lanes.max(8) } else { lanes / 2 };
    let mut job = Job::new(isa, code, scale, g);
    if by_rows {
        (job.isa, job.lanes) = (code.rows_isa, lanes_of(code.rows_isa));
        job.padded_values = g.value_width.next_multiple_of(job.lanes);
        (job.unpacked_keys, job.unpacked_values) = (job.has_unpacked_keys(), job.has_unpacked_values());
        // SAFETY: passed on from the caller.
        return unsafe { job.run_rows(choices) };
    }
    // SAFETY: the mask is readable.
    unsafe { job.find_extents() };
    let split_keys = choices.keys.unwrap_or(SPLIT_KEYS).max(1);
    let mut most_rows = MOST_ROWS;
    // Long rows of keys are split instead: a smaller tile would read them more often.
    while most_rows > lanes && groups * rows.div_ceil(most_rows) * (g.keys / split_keys).max(1) < TASKS / 4 {
        most_rows /= 2;
    }
    let most_rows = choices.rows.map_or(most_rows, |rows| rows.clamp(1, MOST_ROWS));
    let tiles = rows.div_ceil(most_rows);
    let splits = (TASKS / (groups * tiles)).min(g.keys / split_keys).max(1);
    (job.tiles, job.splits) = (tiles, splits);
    let tasks = groups * tiles * splits;
    let count = if splits > 1 { tasks * job.part_size() } else { 0 };
    let parts = gemm::Scratch::take::<f32>(count);
    if splits > 1 {
        // SAFETY: the scratch has room for this many.
        unsafe { std::ptr::write_bytes(parts.ptr::<f32>(), 0, count) };
        job.parts = parts.ptr();
    }
    let work = [g.heads, g.queries, g.keys, g.width + g.value_width].into_iter().fold(g.batch, usize::saturating_mul);
    let all = choices.threads_of(pool::threads());
    let threads = if work < SERIAL { 1 } else { all };
    pool::run(tasks, threads, &|task| {
        // SAFETY: passed on from the caller; tasks write disjoint rows or parts.
        unsafe { job.run(task) }
    });
    if splits > 1 {
        let threads = if groups * rows * job.padded_values * splits < SERIAL { 1 } else { all };
        pool::run(groups * tiles, threads, &|tile| {
            // SAFETY: all parts are written; tiles write disjoint rows.
            unsafe { job.merge(tile) }
        });
    }
}

/// Adds up the results of parts, each with its maximum and its sum, and returns the maximum and the sum of all.
pub(super) fn add_up<'a>(parts: impl Iterator<Item = (&'a [f32], f32, f32)> + Clone, total: &mut [f32]) -> (f32, f32) {
    // Parts without visible keys hold no results; a NaN sum counts as a result.
    let parts = parts.filter(|&(_, _, sum)| sum != 0.0);
    let top = parts.clone().map(|(_, top, _)| top).fold(f32::NEG_INFINITY, f32::max);
    let mut all = 0.0;
    total.fill(0.0);
    for (result, own, sum) in parts {
        let factor = (own - top).exp();
        all += sum * factor;
        for (total, result) in total.iter_mut().zip(result) {
            *total += result * factor;
        }
    }
    (top, all)
}

impl<'a> Job<'a> {
    /// A launch in one task.
    pub(super) fn new(isa: Isa, code: &'a Code, scale: Scale, g: &'a Geometry) -> Job<'a> {
        let lanes = lanes_of(isa);
        Job {
            isa,
            code,
            scale,
            g,
            lanes,
            padded_values: g.value_width.next_multiple_of(lanes),
            tiles: 1,
            splits: 1,
            parts: std::ptr::null_mut(),
            unpacked_keys: false,
            unpacked_values: false,
            extents: Vec::new(),
        }
    }
}

impl Job<'_> {
    /// Looks at a mask that all heads share.
    ///
    /// # Safety
    /// The mask is readable.
    pub(super) unsafe fn find_extents(&mut self) {
        if let Some(mask) = self.g.mask.as_ref().filter(|mask| mask.strides[1] == 0) {
            // SAFETY: the caller's promise.
            self.extents = unsafe { visible::extents(self.g, mask) };
        }
    }

    /// Rows of the largest tile, padded to whole vectors.
    fn most_rows(&self) -> usize {
        self.g.group_rows().div_ceil(self.tiles).next_multiple_of(self.lanes)
    }

    fn part_size(&self) -> usize {
        self.most_rows() * (self.padded_values + 2)
    }

    fn tile(&self, index: usize) -> (usize, usize, Range<usize>) {
        let (group, tile) = (index / self.tiles, index % self.tiles);
        // Under a causal mask the last rows have the most visible keys: they come first, so that the short tasks even out the
        // end.
        let tile = self.tiles - 1 - tile;
        (group / self.g.kv_heads, group % self.g.kv_heads, part(self.g.group_rows(), self.tiles, tile))
    }

    unsafe fn run(&self, index: usize) {
        let (batch, kv_head, rows) = self.tile(index / self.splits);
        let visible = rows.clone().map(|row| self.g.visible(self.g.place(kv_head, row).1)).max().unwrap_or(0);
        let task = Task { batch, kv_head, rows, keys: part(visible, self.splits, index % self.splits) };
        scratch::with(self.columns_sizes(self.most_rows()), |scratch| {
            let count = self.most_rows();
            // SAFETY: the scratch has room for this many rows; the rest is passed on from the caller.
            unsafe {
                std::slice::from_raw_parts_mut(scratch.tops, count).fill(f32::NEG_INFINITY);
                std::slice::from_raw_parts_mut(scratch.sums, count).fill(0.0);
                // Without visible keys the sums stay 0.
                if !task.keys.is_empty() {
                    self.columns(&task, &scratch);
                }
                if self.splits == 1 {
                    for row in 0..task.rows.len() {
                        let result = scratch.results.add(row * self.padded_values);
                        self.finish(&task, row, result, *scratch.tops.add(row), *scratch.sums.add(row));
                    }
                } else {
                    self.keep(index, task.rows.len(), &scratch);
                }
            }
        });
    }

    /// Writes a row of the result, and the logarithm of its sum where that is asked for.
    pub(super) unsafe fn finish(&self, task: &Task, row: usize, result: *mut f32, top: f32, sum: f32) {
        let (head, query) = self.g.place(task.kv_head, task.rows.start + row);
        let to = self.g.out.row([task.batch, head, query]);
        // SAFETY: the row is this task's; `result` holds a row of values.
        unsafe {
            let factor = if sum == 0.0 {
                std::slice::from_raw_parts_mut(result, self.g.value_width).fill(0.0);
                1.0
            } else {
                1.0 / sum
            };
            narrow_row(self.isa, result, factor, self.g.value_width, &self.g.out, to);
            if let Some(view) = &self.g.logsumexp {
                let mut logarithm = if sum == 0.0 { f32::NEG_INFINITY } else { top + sum.ln() };
                narrow_row(self.isa, &mut logarithm, 1.0, 1, view, view.row([task.batch, head, query]));
            }
        }
    }

    /// Stores a task's results for the merge.
    unsafe fn keep(&self, index: usize, rows: usize, scratch: &Scratch) {
        // SAFETY: the part belongs to this task alone and has room for all rows.
        unsafe {
            let part = self.parts.add(index * self.part_size());
            std::ptr::copy_nonoverlapping(scratch.results, part, rows * self.padded_values);
            let tops = part.add(self.most_rows() * self.padded_values);
            std::ptr::copy_nonoverlapping(scratch.tops, tops, rows);
            std::ptr::copy_nonoverlapping(scratch.sums, tops.add(self.most_rows()), rows);
        }
    }

    /// Merges the parts of a tile and writes its rows.
    unsafe fn merge(&self, tile: usize) {
        let (batch, kv_head, rows) = self.tile(tile);
        let task = Task { batch, kv_head, rows, keys: 0..0 };
        let sizes = Sizes { results: self.padded_values, ..Sizes::default() };
        scratch::with(sizes, |scratch| {
            // SAFETY: all parts of the tile are written and no thread writes them any more.
            unsafe {
                let total = std::slice::from_raw_parts_mut(scratch.results, self.padded_values);
                for row in 0..task.rows.len() {
                    let parts = (0..self.splits).map(|split| {
                        let part = self.parts.add((tile * self.splits + split) * self.part_size());
                        let tops = part.add(self.most_rows() * self.padded_values);
                        let result = std::slice::from_raw_parts(part.add(row * self.padded_values), self.padded_values);
                        (result, *tops.add(row), *tops.add(self.most_rows() + row))
                    });
                    let (top, sum) = add_up(parts, total);
                    self.finish(&task, row, total.as_mut_ptr(), top, sum);
                }
            }
        });
    }

    /// Whether rows of keys or values can be read in place: contiguous and of the kernels' type.
    pub(super) fn in_place(&self, view: &View, element: Element, multiple: usize, width: usize) -> bool {
        let size = if element == Element::F32 { 4 } else { 2 };
        (view.step() == 1 || width == 1) && view.size == size && width.is_multiple_of(multiple)
    }

    /// Packs rows of keys or values as f32, padded with zeros to `padded`.
    ///
    /// # Safety
    /// The view is readable; `to` has room for `padded` elements per key.
    pub(super) unsafe fn widen(
        &self,
        view: &View,
        task: &Task,
        keys: &Range<usize>,
        width: usize,
        to: *mut f32,
        padded: usize,
    ) {
        let mut to = to;
        for Segment { data, rows } in view.segments([task.batch, task.kv_head], keys.clone()) {
            // With rows and columns swapped, contiguous elements stay contiguous.
            let data = data.cast_mut();
            let from = Matrix { data, dtype: view.dtype, row_stride: view.step(), column_stride: view.strides[2] };
            // SAFETY: the caller's promise.
            unsafe {
                if view.dtype == DType::Bf16 && view.step() == 1 {
                    for i in 0..rows {
                        let row = data.offset(i as isize * view.row_bytes());
                        widen_row(self.isa, view.dtype, row, 1, width, to.add(i * padded), padded);
                    }
                } else {
                    pack_rows(self.isa, &from, width, rows, padded, to);
                }
                to = to.add(rows * padded);
            }
        }
    }
}
