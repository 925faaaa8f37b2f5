//! Few queries: scores [query][key], keys and values pass by once, unpacked where their layout allows.

use super::convert::{scale, widen_row};
use super::dot::DotArgs;
use super::geometry::View;
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
        let packed = |unpacked: bool, width: usize| if unpacked { 0 } else { keys * width };
        Sizes {
            queries: rows * width,
            scores: rows * MOST_KEYS,
            keys: packed(self.is_unpacked(&self.g.k, self.g.width), width),
            values: packed(self.is_unpacked(&self.g.v, self.g.value_width), self.padded_values),
            results: rows * self.padded_values,
            mask: MOST_KEYS,
            rows: rows.next_multiple_of(self.lanes),
        }
    }

    /// Whether kernels read an operand where it lies.
    fn is_unpacked(&self, view: &View, width: usize) -> bool {
        let element = match view.dtype {
            DType::Bf16 if self.isa != Isa::Portable => Element::Bf16,
            DType::F16 if self.isa != Isa::Portable => Element::F16,
            _ => Element::F32,
        };
        self.in_place(view, element, self.lanes, width)
    }

    /// Results, maxima and sums of one task.
    ///
    /// # Safety
    /// The scratch is as [`Job::rows_sizes`] says; the operands are readable.
    pub(super) unsafe fn rows(&self, task: &Task, scratch: &Scratch) {
        let rows = task.rows.len();
        let padded = self.g.width.next_multiple_of(self.lanes);
        let query = |row: usize| self.g.place(task.kv_head, task.rows.start + row);
        // SAFETY: the caller's promise, for this and all that follows.
        unsafe {
            for row in 0..rows {
                let (head, query) = query(row);
                let from = self.g.q.row([task.batch, head, query]);
                let to = scratch.queries.add(row * padded);
                widen_row(self.isa, self.g.q.dtype, from, self.g.q.step(), self.g.width, to, padded);
                scale(self.isa, to, self.scale.on_queries, self.g.width);
            }
            let tiles = task.keys.len().div_ceil(MOST_KEYS);
            for tile in 0..tiles {
                let keys = part(task.keys.len(), tiles, tile);
                let keys = task.keys.start + keys.start..task.keys.start + keys.end;
                self.row_scores(task, &keys, rows, scratch);
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
    unsafe fn row_scores(&self, task: &Task, keys: &Range<usize>, rows: usize, scratch: &Scratch) {
        let (view, padded) = (&self.g.k, self.g.width.next_multiple_of(self.lanes));
        // SAFETY: the kernels read rows of queries and keys and write scores.
        unsafe {
            let unpacked = self.is_unpacked(view, self.g.width);
            let (k, k_stride, dots) = if unpacked {
                (view.row([task.batch, task.kv_head, keys.start]), view.row_bytes(), &self.code.dots)
            } else {
                self.widen(view, task, keys, self.g.width, scratch.keys, padded);
                (scratch.keys.cast(), (padded * 4) as isize, &self.code.dots_f32)
            };
            let parts = rows.div_ceil(dots.len());
            for i in 0..parts {
                let block = part(rows, parts, i);
                dots[block.len() - 1](&DotArgs {
                    q: scratch.queries.add(block.start * padded),
                    q_stride: padded * 4,
                    k,
                    k_stride,
                    vectors: padded / self.lanes,
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
            let unpacked = self.is_unpacked(view, self.g.value_width);
            let (v, stride, tiles, size) = if unpacked {
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

    /// Packs rows of an operand as f32.
    unsafe fn widen(&self, view: &View, task: &Task, keys: &Range<usize>, width: usize, to: *mut f32, padded: usize) {
        for (i, key) in keys.clone().enumerate() {
            let from = view.row([task.batch, task.kv_head, key]);
            // SAFETY: the scratch holds a tile of rows.
            unsafe { widen_row(self.isa, view.dtype, from, view.step(), width, to.add(i * padded), padded) };
        }
    }
}
