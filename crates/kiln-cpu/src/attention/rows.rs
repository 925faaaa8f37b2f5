//! Few queries: scores [query][key], keys and values pass by once, unpacked where their layout allows.

use super::convert::{copy_halves, scale, widen_row};
use super::dot::{self, DotArgs};
use super::mask;
use super::run::{Job, Task, part};
use super::scratch::{Scratch, Sizes};
use super::softmax::SoftmaxArgs;
use super::tile::{Element, TileArgs};
use crate::features::Isa;
use kiln_ir::DType;
use std::ops::Range;

/// The most keys of a tile, a multiple of every vector's lanes.
const MOST_KEYS: usize = 512;

impl Job<'_> {
    /// Memory of a task.
    pub(super) fn rows_sizes(&self) -> Sizes {
        let rows = self.g.group_rows();
        let keys = MOST_KEYS.min(self.g.keys.next_multiple_of(self.lanes));
        let width = self.g.width.next_multiple_of(self.lanes);
        Sizes {
            queries: rows * width,
            scores: rows * MOST_KEYS,
            keys: if self.has_unpacked_keys() { 0 } else { keys * width },
            values: if self.has_unpacked_values() { 0 } else { keys * self.padded_values },
            results: rows * self.padded_values,
            mask: MOST_KEYS.max(width),
            rows: rows.next_multiple_of(self.lanes),
        }
    }

    /// Whether kernels read keys where they lie.
    fn has_unpacked_keys(&self) -> bool {
        let element = self.code.dot_element;
        self.in_place(&self.g.k, element, dot::step(element, self.lanes), self.g.width)
    }

    /// Whether kernels read values where they lie.
    fn has_unpacked_values(&self) -> bool {
        // Portable kernels read f32 only.
        let short = self.g.v.dtype != DType::F32 && self.isa != Isa::Portable;
        let element = if short { Element::Bf16 } else { Element::F32 };
        self.in_place(&self.g.v, element, self.lanes, self.g.value_width)
    }

    /// Queries row by row, as the kernels of dot products take them; gives the elements of 4 bytes in a row.
    unsafe fn row_queries(&self, task: &Task, scratch: &Scratch) -> usize {
        let (view, width) = (&self.g.q, self.g.width);
        let element = if self.has_unpacked_keys() { self.code.dot_element } else { Element::F32 };
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

    /// Results, maxima and sums of one task.
    ///
    /// # Safety
    /// The scratch is as [`Job::rows_sizes`] says; the operands are readable.
    pub(super) unsafe fn rows(&self, task: &Task, scratch: &Scratch) {
        let rows = task.rows.len();
        let query = |row: usize| self.g.place(task.kv_head, task.rows.start + row);
        // SAFETY: the caller's promise, for this and all that follows.
        unsafe {
            let q_stride = self.row_queries(task, scratch);
            let tiles = task.keys.len().div_ceil(MOST_KEYS);
            for tile in 0..tiles {
                let keys = part(task.keys.len(), tiles, tile);
                let keys = task.keys.start + keys.start..task.keys.start + keys.end;
                self.row_scores(task, &keys, q_stride, scratch);
                let mut factor = self.scale.on_scores;
                let filled = keys.len().next_multiple_of(self.lanes);
                for row in 0..rows {
                    let scores = scratch.scores.add(row * MOST_KEYS);
                    let (head, query) = query(row);
                    if let Some(view) = &self.g.mask {
                        let from = view.row([task.batch, head, query]);
                        mask::copy(self.isa, view, from, &keys, scratch.mask);
                        mask::add(self.isa, scores, self.scale.on_scores, scratch.mask, keys.len());
                        factor = 1.0;
                    }
                    let end = self.g.visible(query).clamp(keys.start, keys.end) - keys.start;
                    std::slice::from_raw_parts_mut(scores.add(end), filled - end).fill(f32::NEG_INFINITY);
                    (self.code.softmax_row)(&SoftmaxArgs {
                        scores,
                        stride: 0,
                        keys: filled / self.lanes,
                        vectors: 1,
                        tops: scratch.tops.add(row),
                        sums: scratch.sums.add(row),
                        factors: scratch.factors.add(row),
                        scale: factor,
                    });
                }
                self.row_results(task, &keys, rows, tile == 0, scratch);
            }
        }
    }

    /// scores[query][key] = q · k
    unsafe fn row_scores(&self, task: &Task, keys: &Range<usize>, q_stride: usize, scratch: &Scratch) {
        let (view, rows, padded) = (&self.g.k, task.rows.len(), self.g.width.next_multiple_of(self.lanes));
        // SAFETY: the kernels read rows of queries and keys and write scores.
        unsafe {
            let (k, k_stride, dots, element) = if self.has_unpacked_keys() {
                let data = view.row([task.batch, task.kv_head, keys.start]);
                (data, view.row_bytes(), &self.code.dots, self.code.dot_element)
            } else {
                self.widen(view, task, keys, self.g.width, scratch.keys, padded);
                (scratch.keys.cast(), (padded * 4) as isize, &self.code.dots_f32, Element::F32)
            };
            let parts = rows.div_ceil(dots.len());
            for i in 0..parts {
                let block = part(rows, parts, i);
                dots[block.len() - 1](&DotArgs {
                    q: scratch.queries.add(block.start * q_stride),
                    q_stride: q_stride * 4,
                    k,
                    k_stride,
                    steps: padded / dot::step(element, self.lanes),
                    keys: keys.len(),
                    scores: scratch.scores.add(block.start * MOST_KEYS),
                    score_stride: MOST_KEYS * 4,
                });
            }
        }
    }

    /// results = factors · results + weights · v
    unsafe fn row_results(&self, task: &Task, keys: &Range<usize>, rows: usize, first: bool, scratch: &Scratch) {
        let view = &self.g.v;
        // SAFETY: the tiles lie inside weights, values and results.
        unsafe {
            let (v, stride, tiles, size) = if self.has_unpacked_values() {
                let data = view.row([task.batch, task.kv_head, keys.start]);
                (data, view.row_bytes(), &self.code.rows, view.size as usize)
            } else {
                self.widen(view, task, keys, self.g.value_width, scratch.values, self.padded_values);
                (scratch.values.cast(), (self.padded_values * 4) as isize, &self.code.rows_f32, 4)
            };
            let across = self.padded_values / self.lanes;
            let vector_parts = across.div_ceil(tiles.max_vectors(rows));
            for j in 0..vector_parts {
                let columns = part(across, vector_parts, j);
                let row_parts = rows.div_ceil(tiles.max_rows(columns.len()));
                for i in 0..row_parts {
                    let block = part(rows, row_parts, i);
                    tiles.get(block.len(), columns.len())(&TileArgs {
                        a: scratch.scores.add(block.start * MOST_KEYS).cast(),
                        a_stride: (MOST_KEYS * 4) as isize,
                        b: v.add(columns.start * self.lanes * size),
                        b_stride: stride,
                        c: scratch.results.add(block.start * self.padded_values + columns.start * self.lanes),
                        c_stride: (self.padded_values * 4) as isize,
                        k: keys.len(),
                        factors: if first { std::ptr::null() } else { scratch.factors.add(block.start) },
                    });
                }
            }
        }
    }
}
