//! Few queries: scores [query][key], keys and values are read once, unpacked where their layout allows.

use super::convert::{copy_halves, scale, widen_row};
use super::dot::{self, DotArgs};
use super::geometry::{Segment, View};
use super::mask;
use super::plan::Plan;
use super::run::{Job, Task, add_up, part};
use super::scratch::{self, Scratch, Sizes};
use super::softmax::SoftmaxArgs;
use super::tile::{Element, TileArgs};
use crate::choices::Choices;
use crate::features::Isa;
use crate::{gemm, pool};
use kiln_ir::DType;
use std::ops::Range;

/// The most keys of a tile, a multiple of every vector's lanes.
const MOST_KEYS: usize = 512;
/// The fewest keys of a tile, of which tiles are multiples.
const LEAST_KEYS: usize = 128;
/// Bytes of the keys of a tile.
const TILE_BYTES: usize = 32 << 10;
/// Multiplications below which one thread is as fast as several.
const SERIAL: usize = 384 << 10;
/// The most chunks that the units of a launch are split into.
const CHUNKS: usize = 64;
/// Elements of a cache line.
const LINE: usize = 16;

/// Queries of a group, as passed to the dot-product kernels.
#[derive(Clone, Copy)]
struct Queries {
    data: *const f32,
    /// Elements of 4 bytes from row to row.
    stride: usize,
}

/// The units of one launch, with memory for their results.
struct Units<'a> {
    job: &'a Job<'a>,
    plan: &'a Plan,
    /// Results, maxima and sums of each unit; nothing where every group has one unit.
    parts: *mut f32,
}

// SAFETY: units write disjoint parts, and a group's rows are written by the last of its units to finish.
unsafe impl Sync for Units<'_> {}

impl Units<'_> {
    /// Runs some units, and finishes the groups whose last one is among them.
    ///
    /// # Safety
    /// The scratch is as [`Job::rows_sizes`] says; the operands are readable; no unit runs twice.
    unsafe fn run(&self, units: Range<usize>, scratch: &Scratch) {
        let job = self.job;
        let mut packed = None;
        let in_place = job.queries_in_place();
        for at in units {
            let unit = &self.plan.units[at];
            let group = &self.plan.groups[unit.group];
            let (batch, kv_head) = (unit.group / job.g.kv_heads, unit.group % job.g.kv_heads);
            let mut task = Task { batch, kv_head, rows: 0..job.g.group_rows(), keys: unit.visible_keys.keys.clone() };
            // SAFETY: the caller's promise; what the other units wrote is visible to the last of a group.
            unsafe {
                let queries = match packed {
                    Some((of, queries)) if of == unit.group => queries,
                    _ => match in_place {
                        Some(stride) => Queries { data: job.first_query(&task), stride },
                        None => Queries { data: scratch.queries, stride: job.row_queries(&task, scratch) },
                    },
                };
                packed = Some((unit.group, queries));
                job.rows(&task, unit.visible_keys.plain, queries, scratch);
                if group.count == 1 {
                    for row in task.rows.clone() {
                        let result = scratch.results.add(row * job.padded_values);
                        job.finish(&task, row, result, *scratch.tops.add(row), *scratch.sums.add(row));
                    }
                    continue;
                }
                let (rows, width) = (task.rows.len(), job.padded_values);
                let part = self.parts.add(at * job.rows_part());
                std::ptr::copy_nonoverlapping(scratch.results, part, rows * width);
                std::ptr::copy_nonoverlapping(scratch.tops, part.add(rows * width), rows);
                std::ptr::copy_nonoverlapping(scratch.sums, part.add(rows * (width + 1)), rows);
                if group.is_last() {
                    task.keys = 0..0;
                    self.merge(&task, group.first..group.first + group.count, scratch);
                }
            }
        }
    }

    /// Merges the parts of a group and writes its rows.
    unsafe fn merge(&self, task: &Task, units: Range<usize>, scratch: &Scratch) {
        let (job, rows, width) = (self.job, task.rows.len(), self.job.padded_values);
        // SAFETY: all parts of the group are written, and no thread writes them any more.
        unsafe {
            let total = std::slice::from_raw_parts_mut(scratch.results, width);
            for row in 0..rows {
                let parts = units.clone().map(|unit| {
                    let part = self.parts.add(unit * job.rows_part());
                    let result = std::slice::from_raw_parts(part.add(row * width), width);
                    let tops = part.add(rows * width);
                    (result, *tops.add(row), *tops.add(rows + row))
                });
                let (top, sum) = add_up(parts, total);
                job.finish(task, row, total.as_mut_ptr(), top, sum);
            }
        }
    }
}

impl Job<'_> {
    /// Memory of a task.
    pub(super) fn rows_sizes(&self) -> Sizes {
        let rows = self.g.group_rows();
        let keys = MOST_KEYS.min(self.g.keys.next_multiple_of(self.lanes));
        let width = self.g.width.next_multiple_of(self.lanes);
        Sizes {
            queries: rows * width,
            scores: rows * MOST_KEYS,
            keys: if self.unpacked_keys { 0 } else { keys * width },
            values: if self.unpacked_values { 0 } else { keys * self.padded_values },
            results: rows * self.padded_values,
            mask: MOST_KEYS.max(width),
            rows: rows.next_multiple_of(self.lanes),
            segments: self.g.k.most_segments(MOST_KEYS).max(self.g.v.most_segments(MOST_KEYS)),
        }
    }

    /// Whether kernels read keys in place.
    pub(super) fn has_unpacked_keys(&self) -> bool {
        let element = self.code.dot_element;
        self.in_place(&self.g.k, element, dot::step(element, self.lanes), self.g.width)
    }

    /// Whether kernels read values in place.
    pub(super) fn has_unpacked_values(&self) -> bool {
        // Portable kernels read f32 only.
        let short = self.g.v.dtype != DType::F32 && self.isa != Isa::Portable;
        let element = if short { Element::Bf16 } else { Element::F32 };
        self.in_place(&self.g.v, element, self.lanes, self.g.value_width)
    }

    /// Elements from row to row of a group's queries, where kernels can read them in place.
    fn queries_in_place(&self) -> Option<usize> {
        let (view, g) = (&self.g.q, self.g);
        let element = if self.unpacked_keys { self.code.dot_element } else { Element::F32 };
        let floats = view.dtype == DType::F32 && element == Element::F32 && self.scale.on_queries == 1.0;
        let whole = view.step() == 1 && g.width.is_multiple_of(self.lanes);
        let [_, head, query, _] = view.strides;
        let stride = match (g.queries, g.group) {
            (1, _) => head,
            (_, 1) => query,
            (queries, _) if head == query * queries as isize => query,
            _ => return None,
        };
        usize::try_from(stride).ok().filter(|_| floats && whole)
    }

    /// The first query of a group.
    fn first_query(&self, task: &Task) -> *const f32 {
        let (head, query) = self.g.place(task.kv_head, task.rows.start);
        self.g.q.row([task.batch, head, query]).cast::<f32>().cast_const()
    }

    /// Queries row by row, as passed to the dot-product kernels; returns the elements of 4 bytes in a row.
    unsafe fn row_queries(&self, task: &Task, scratch: &Scratch) -> usize {
        let (view, width) = (&self.g.q, self.g.width);
        let element = if self.unpacked_keys { self.code.dot_element } else { Element::F32 };
        let padded = if element == Element::Pairs { width / 2 } else { width.next_multiple_of(self.lanes) };
        for (i, row) in task.rows.clone().enumerate() {
            let (head, query) = self.g.place(task.kv_head, row);
            let from = view.row([task.batch, head, query]);
            // SAFETY: the scratch holds the rows and, in the place of the mask, one more.
            unsafe {
                let to = scratch.queries.add(i * padded);
                if element == Element::Pairs {
                    copy_halves(from, view.step(), width, to.cast());
                    continue;
                }
                widen_row(self.isa, view.dtype, from, view.step(), width, to, padded);
                scale(self.isa, to, self.scale.on_queries, width);
                if element == Element::Bf16 {
                    std::ptr::copy_nonoverlapping(to, scratch.mask, width);
                    for block in (0..width).step_by(2 * self.lanes) {
                        for lane in 0..self.lanes {
                            let from = scratch.mask.add(block + 2 * lane);
                            *to.add(block + lane) = *from;
                            *to.add(block + self.lanes + lane) = *from.add(1);
                        }
                    }
                }
            }
        }
        padded
    }

    /// Keys of a tile: as many as fill a good part of a core's own cache, so that tiles are worth a task and even out.
    fn tile_keys(&self, choices: Choices) -> usize {
        let bytes = (self.g.width * self.g.k.size as usize).max(1);
        let keys = choices.keys.unwrap_or((TILE_BYTES / bytes).next_power_of_two());
        keys.clamp(LEAST_KEYS, MOST_KEYS).next_multiple_of(LEAST_KEYS)
    }

    /// Runs a launch.
    ///
    /// # Safety
    /// The views reach only inside their buffers; nothing overlaps the result.
    pub(super) unsafe fn run_rows(&self, choices: Choices) {
        let rows = self.g.group_rows();
        // SAFETY: the mask is readable.
        let plan = unsafe { Plan::new(self, self.tile_keys(choices)) };
        let units = plan.units.len();
        // One more than groups: some group has several.
        let count = if units > plan.groups.len() { units * self.rows_part() } else { 0 };
        let parts = gemm::Scratch::take::<f32>(count);
        let all = Units { job: self, plan: &plan, parts: parts.ptr() };
        let work = (rows * (self.g.width + self.g.value_width)).saturating_mul(plan.keys);
        let threads = if work < SERIAL { 1 } else { choices.threads_of(pool::threads()) };
        let chunks = if threads == 1 { 1 } else { units.min(CHUNKS) };
        pool::run(chunks, threads, &|chunk| {
            // SAFETY: passed on from the caller; units write parts of their own, groups rows of their own.
            scratch::with(self.rows_sizes(), |scratch| unsafe { all.run(part(units, chunks, chunk), &scratch) });
        });
        plan.keep();
    }

    /// Elements of a unit's results, maxima and sums.
    fn rows_part(&self) -> usize {
        (self.g.group_rows() * (self.padded_values + 2)).next_multiple_of(LINE)
    }

    /// Results, maxima and sums of one tile of keys.
    ///
    /// # Safety
    /// The scratch is as [`Job::rows_sizes`] says; the operands are readable.
    unsafe fn rows(&self, task: &Task, plain: bool, queries: Queries, scratch: &Scratch) {
        let rows = task.rows.len();
        let keys = &task.keys;
        // SAFETY: the caller's promise, for this and all that follows.
        unsafe {
            std::slice::from_raw_parts_mut(scratch.tops, rows).fill(f32::NEG_INFINITY);
            std::slice::from_raw_parts_mut(scratch.sums, rows).fill(0.0);
            if keys.is_empty() {
                return;
            }
            self.row_scores(task, keys, queries, scratch);
            let mut factor = self.scale.on_scores;
            let vectors = keys.len().div_ceil(self.code.softmax_lanes);
            let filled = vectors * self.code.softmax_lanes;
            for row in 0..rows {
                let scores = scratch.scores.add(row * MOST_KEYS);
                let (head, query) = self.g.place(task.kv_head, task.rows.start + row);
                if let Some(view) = self.g.mask.as_ref().filter(|_| !plain) {
                    let from = view.row([task.batch, head, query]);
                    mask::copy(self.isa, view, from, keys, scratch.mask);
                    mask::add(self.isa, scores, self.scale.on_scores, scratch.mask, keys.len());
                    factor = 1.0;
                }
                let end = self.g.visible(query).clamp(keys.start, keys.end) - keys.start;
                std::slice::from_raw_parts_mut(scores.add(end), filled - end).fill(f32::NEG_INFINITY);
                (self.code.softmax_row)(&SoftmaxArgs {
                    scores,
                    stride: 0,
                    keys: vectors,
                    vectors: 1,
                    tops: scratch.tops.add(row),
                    sums: scratch.sums.add(row),
                    factors: scratch.factors.add(row),
                    scale: factor,
                });
            }
            self.row_results(task, keys, rows, scratch);
        }
    }

    /// scores[query][key] = q · k
    unsafe fn row_scores(&self, task: &Task, keys: &Range<usize>, queries: Queries, scratch: &Scratch) {
        let (view, rows, padded) = (&self.g.k, task.rows.len(), self.g.width.next_multiple_of(self.lanes));
        // SAFETY: the kernels read rows of queries and keys and write scores.
        unsafe {
            let (k, segments, k_stride, dots, element) = if self.unpacked_keys {
                let (first, more) = segments(view, task, keys, scratch);
                (first, more, view.row_bytes(), &self.code.dots, self.code.dot_element)
            } else {
                self.widen(view, task, keys, self.g.width, scratch.keys, padded);
                let first = Segment { data: scratch.keys.cast(), rows: keys.len() };
                (first, 0, (padded * 4) as isize, &self.code.dots_f32, Element::F32)
            };
            let parts = if rows <= dots.len() { 1 } else { rows.div_ceil(dots.len()) };
            for i in 0..parts {
                let block = part(rows, parts, i);
                dots[block.len() - 1](&mut DotArgs {
                    q: queries.data.add(block.start * queries.stride),
                    q_stride: queries.stride * 4,
                    k: k.data,
                    k_stride,
                    steps: padded / dot::step(element, self.lanes),
                    keys: k.rows,
                    scores: scratch.scores.add(block.start * MOST_KEYS),
                    score_stride: MOST_KEYS * 4,
                    more: scratch.segments,
                    segments,
                });
            }
        }
    }

    /// results = weights · v
    unsafe fn row_results(&self, task: &Task, keys: &Range<usize>, rows: usize, scratch: &Scratch) {
        let view = &self.g.v;
        if self.padded_values == 0 {
            return;
        }
        // SAFETY: the tiles are inside weights, values and results.
        unsafe {
            let (v, segments, stride, tiles, size) = if self.unpacked_values {
                let (first, more) = segments(view, task, keys, scratch);
                (first, more, view.row_bytes(), &self.code.rows, view.size as usize)
            } else {
                self.widen(view, task, keys, self.g.value_width, scratch.values, self.padded_values);
                let first = Segment { data: scratch.values.cast(), rows: keys.len() };
                (first, 0, (self.padded_values * 4) as isize, &self.code.rows_f32, 4)
            };
            let across = self.padded_values / self.lanes;
            let vector_parts = across.div_ceil(tiles.max_vectors(rows));
            for j in 0..vector_parts {
                let columns = part(across, vector_parts, j);
                if j > 0 {
                    // The kernel reads the segments at its columns.
                    let step = (columns.start - part(across, vector_parts, j - 1).start) * self.lanes * size;
                    for segment in std::slice::from_raw_parts_mut(scratch.segments, segments) {
                        segment.data = segment.data.add(step);
                    }
                }
                let row_parts = rows.div_ceil(tiles.max_rows(columns.len()));
                for i in 0..row_parts {
                    let block = part(rows, row_parts, i);
                    tiles.get(block.len(), columns.len())(&mut TileArgs {
                        a: scratch.scores.add(block.start * MOST_KEYS).cast(),
                        a_stride: (MOST_KEYS * 4) as isize,
                        b: v.data.add(columns.start * self.lanes * size),
                        b_stride: stride,
                        c: scratch.results.add(block.start * self.padded_values + columns.start * self.lanes),
                        c_stride: (self.padded_values * 4) as isize,
                        k: v.rows,
                        factors: std::ptr::null(),
                        more: scratch.segments,
                        segments,
                    });
                }
            }
        }
    }
}

/// The first segment of some rows; further ones go to the scratch, and their number comes with it.
unsafe fn segments(view: &View, task: &Task, keys: &Range<usize>, scratch: &Scratch) -> (Segment, usize) {
    let mut all = view.segments([task.batch, task.kv_head], keys.clone());
    let first = all.next().unwrap_or(Segment { data: std::ptr::null(), rows: 0 });
    let mut more = 0;
    for segment in all {
        // SAFETY: the scratch has room for the segments of a tile.
        unsafe { scratch.segments.add(more).write(segment) };
        more += 1;
    }
    (first, more)
}
