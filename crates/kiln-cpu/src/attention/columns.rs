//! Many queries: scores [key][query], a lane is a query.

use super::convert::{copy_halves, pair_rows, scale, single_rows, widen_row};
use super::geometry::{Segment, View};
use super::mask;
use super::run::{Job, MOST_ROWS, Task, part};
use super::scratch::{Scratch, Sizes};
use super::softmax::SoftmaxArgs;
use super::tile::{Element, TileArgs};
use super::visible;
use crate::features::Isa;
use crate::gemm::{Matrix, pack_rows};
use kiln_ir::DType;
use std::ops::Range;

/// The most keys of a tile.
const MOST_KEYS: usize = 256;

/// Elements of a cache line.
const LINE: usize = 16;

/// Rows of an operand, as passed to the kernels.
#[derive(Clone, Copy)]
struct Rows {
    data: *const u8,
    /// Bytes from row to row.
    stride: isize,
}

/// The number of visible keys of each row of a tile of queries; lanes without a query have all.
struct Visible([i32; MOST_ROWS + LINE]);

impl Job<'_> {
    /// Memory of a task of up to `rows` queries, padded to whole vectors.
    pub(super) fn columns_sizes(&self, rows: usize) -> Sizes {
        let width = self.g.width + self.g.width % 2;
        let keys = MOST_KEYS.min(self.g.keys);
        let stride = self.score_stride(rows / self.lanes);
        Sizes {
            // Packed, and before that row by row.
            queries: 2 * rows * width,
            scores: (keys + 1) * stride,
            keys: keys * width,
            values: (keys + 1) * self.padded_values,
            results: rows * self.padded_values,
            mask: if self.g.mask.is_some() { 2 * keys * stride } else { 0 },
            rows,
            segments: 0,
        }
    }

    /// Elements from key to key of the scores: an odd number of cache lines, so that a column of them does not crowd into
    /// few sets of the cache.
    fn score_stride(&self, vectors: usize) -> usize {
        ((vectors * self.lanes).div_ceil(LINE) | 1) * LINE
    }

    /// Steps of a dot product of q and k.
    fn depth(&self) -> usize {
        if self.code.pairs { self.g.width.div_ceil(2) } else { self.g.width }
    }

    /// Results, maxima and sums of one task.
    ///
    /// # Safety
    /// The scratch is as [`Job::columns_sizes`] says; the operands are readable.
    pub(super) unsafe fn columns(&self, task: &Task, scratch: &Scratch) {
        let rows = task.rows.len();
        let vectors = rows.div_ceil(self.lanes);
        let mut visible = Visible([i32::MAX; MOST_ROWS + LINE]);
        for (i, row) in task.rows.clone().enumerate() {
            visible.0[i] = self.g.visible(self.g.place(task.kv_head, row).1) as i32;
        }
        // SAFETY: the caller's promise, for this and all that follows.
        unsafe {
            self.pack_queries(task, vectors, scratch);
            let tiles = task.keys.len().div_ceil(MOST_KEYS);
            let causal = visible.0;
            let mut first = true;
            let mut extents = [const { 0..0 }; MOST_ROWS];
            if let Some(mask) = &self.g.mask {
                for (extent, row) in extents.iter_mut().zip(task.rows.clone()) {
                    let (head, query) = self.g.place(task.kv_head, row);
                    *extent = match self.extents.get(task.batch * self.g.queries + query) {
                        Some(known) => known.clone(),
                        None => visible::extent(self.g, mask, [task.batch, head, query]),
                    };
                }
            }
            let seen = extents[..rows].iter().filter(|extent| !extent.is_empty());
            let seen = (seen.clone().map(|e| e.start).min().unwrap_or(0), seen.map(|e| e.end).max().unwrap_or(0));
            for tile in 0..tiles {
                let keys = part(task.keys.len(), tiles, tile);
                let mut keys = task.keys.start + keys.start..task.keys.start + keys.end;
                let mut shown = None;
                if let Some(view) = &self.g.mask {
                    if keys.end <= seen.0 || seen.1 <= keys.start {
                        continue;
                    }
                    let place = [task.batch, task.kv_head];
                    let (rows, extent) = (task.rows.clone(), |row: usize| extents[row].clone());
                    let visible_keys = visible::of_rows(self.g, view, place, rows, &keys, extent, |row, end| {
                        visible.0[row] = causal[row].min(end as i32);
                    });
                    if visible_keys.keys.is_empty() {
                        continue;
                    }
                    keys = visible_keys.keys;
                    shown = (!visible_keys.plain).then_some(view);
                }
                let k = self.keys(task, &keys, scratch);
                self.scores(k, &keys, vectors, &visible, scratch);
                let mut factor = self.scale.on_scores;
                if let Some(view) = shown {
                    self.add_mask(view, task, &keys, vectors, scratch);
                    factor = 1.0;
                }
                if self.g.causal {
                    let stride = self.score_stride(vectors);
                    mask::causal_columns(self.isa, scratch.scores, &causal[..stride], &keys);
                }
                (self.code.softmax_columns)(&SoftmaxArgs {
                    scores: scratch.scores,
                    stride: self.score_stride(vectors) * 4,
                    keys: keys.len(),
                    vectors,
                    tops: scratch.tops,
                    sums: scratch.sums,
                    factors: scratch.factors,
                    scale: factor,
                });
                let v = self.values(task, &keys, scratch);
                self.results(v, &keys, rows, vectors, &visible, first, scratch);
                first = false;
            }
        }
    }

    /// The rows of a task as a matrix, if they are all of one head and so have a constant stride.
    fn as_matrix(&self, view: &View, task: &Task) -> Option<Matrix> {
        let (head, query) = self.g.place(task.kv_head, task.rows.start);
        let data = view.row([task.batch, head, query]);
        let one_head = self.g.place(task.kv_head, task.rows.end - 1).0 == head;
        one_head.then_some(Matrix { data, dtype: view.dtype, row_stride: view.strides[2], column_stride: view.step() })
    }

    /// Packs queries to [width][query], 4 bytes per element, zero in lanes without a query.
    unsafe fn pack_queries(&self, task: &Task, vectors: usize, scratch: &Scratch) {
        let (queries, depth, view) = (vectors * self.lanes, self.depth(), &self.g.q);
        let in_place = self.as_matrix(view, task).and_then(|m| match self.code.pairs {
            false => (self.scale.on_queries == 1.0).then_some(m),
            true => {
                let even = m.column_stride == 1 && m.row_stride % 2 == 0 && self.g.width.is_multiple_of(2);
                even.then_some(Matrix { dtype: DType::F32, row_stride: m.row_stride / 2, ..m })
            }
        });
        // SAFETY: the scratch holds the packed queries and then the rows.
        unsafe {
            let matrix = in_place.unwrap_or_else(|| {
                let staged = scratch.queries.add(queries * depth);
                self.stage_queries(task, staged);
                Matrix { data: staged.cast(), dtype: DType::F32, row_stride: depth as isize, column_stride: 1 }
            });
            pack_rows(self.isa, &matrix, task.rows.len(), depth, queries, scratch.queries);
        }
    }

    /// Queries row by row, as f32 or pairs.
    unsafe fn stage_queries(&self, task: &Task, staged: *mut f32) {
        let (view, width, depth) = (&self.g.q, self.g.width, self.depth());
        for (i, row) in task.rows.clone().enumerate() {
            let (head, query) = self.g.place(task.kv_head, row);
            let from = view.row([task.batch, head, query]);
            // SAFETY: the caller's scratch holds a row of `depth` for each query.
            unsafe {
                let to = staged.add(i * depth);
                if self.code.pairs {
                    copy_halves(from, view.step(), width, to.cast());
                } else {
                    widen_row(self.isa, view.dtype, from, view.step(), width, to, depth);
                    scale(self.isa, to, self.scale.on_queries, width);
                }
            }
        }
    }

    /// Rows in place, if they have a constant stride.
    fn rows_in_place(&self, view: &View, task: &Task, keys: &Range<usize>) -> Option<Rows> {
        let Segment { data, rows } = view.segments([task.batch, task.kv_head], keys.clone()).next()?;
        (rows == keys.len()).then_some(Rows { data, stride: view.row_bytes() })
    }

    /// Rows of keys, in place or packed.
    unsafe fn keys(&self, task: &Task, keys: &Range<usize>, scratch: &Scratch) -> Rows {
        let (view, width, depth) = (&self.g.k, self.g.width, self.depth());
        let (element, multiple) = if self.code.pairs { (Element::Pairs, 2) } else { (Element::F32, 1) };
        let row = |key: usize| view.row([task.batch, task.kv_head, key]);
        if let Some(rows) =
            self.rows_in_place(view, task, keys).filter(|_| self.in_place(view, element, multiple, width))
        {
            return rows;
        }
        // SAFETY: the scratch holds a tile of keys.
        unsafe {
            if self.code.pairs {
                for (i, key) in keys.clone().enumerate() {
                    copy_halves(row(key), view.step(), width, scratch.keys.add(i * depth).cast());
                }
            } else {
                self.widen(view, task, keys, width, scratch.keys, depth);
            }
        }
        Rows { data: scratch.keys.cast(), stride: (depth * 4) as isize }
    }

    /// Rows of values, in place or packed.
    unsafe fn values(&self, task: &Task, keys: &Range<usize>, scratch: &Scratch) -> Rows {
        let (view, width, padded) = (&self.g.v, self.g.value_width, self.padded_values);
        let row = |key: usize| view.row([task.batch, task.kv_head, key]);
        let in_place = !self.code.pairs && self.in_place(view, Element::F32, self.lanes, width);
        if let Some(rows) = self.rows_in_place(view, task, keys).filter(|_| in_place) {
            return rows;
        }
        let to = scratch.values;
        // SAFETY: the scratch holds a tile of values.
        unsafe {
            if self.code.pairs {
                pair_values(self.isa, view, keys, &row, width, to.cast(), padded);
            } else {
                self.widen(view, task, keys, width, to, padded);
            }
        }
        Rows { data: to.cast(), stride: (padded * 4) as isize }
    }

    /// scores[key][query] = k · q
    unsafe fn scores(&self, k: Rows, keys: &Range<usize>, vectors: usize, visible: &Visible, scratch: &Scratch) {
        let tiles = &self.code.score;
        let stride = self.score_stride(vectors);
        let vector_parts = vectors.div_ceil(self.widest());
        let most = tiles.max_rows(vectors.div_ceil(vector_parts));
        let key_parts = keys.len().div_ceil(most);
        for i in 0..key_parts {
            let block = part(keys.len(), key_parts, i);
            for j in 0..vector_parts {
                let across = part(vectors, vector_parts, j);
                let lanes = across.start * self.lanes..across.end * self.lanes;
                if visible.0[lanes.clone()].iter().all(|&end| end as usize <= keys.start + block.start) {
                    // Masked as a whole, later.
                    continue;
                }
                let mut args = TileArgs {
                    a: k.data.wrapping_offset(block.start as isize * k.stride),
                    a_stride: k.stride,
                    b: scratch.queries.wrapping_add(lanes.start).cast(),
                    b_stride: (vectors * self.lanes * 4) as isize,
                    c: scratch.scores.wrapping_add(block.start * stride + lanes.start),
                    c_stride: (stride * 4) as isize,
                    k: self.depth(),
                    factors: std::ptr::null(),
                    more: std::ptr::null(),
                    segments: 0,
                };
                // SAFETY: the tile is inside keys, packed queries and scores.
                unsafe { tiles.get(block.len(), across.len())(&mut args) };
            }
        }
    }

    /// The most vectors of a register tile of many rows.
    fn widest(&self) -> usize {
        if self.isa == Isa::Avx512 { 4 } else { 2 }
    }

    /// results = factors · results + weights · v
    #[allow(clippy::too_many_arguments, reason = "the state of one step, named nowhere else")]
    unsafe fn results(
        &self,
        v: Rows,
        keys: &Range<usize>,
        rows: usize,
        vectors: usize,
        visible: &Visible,
        first: bool,
        scratch: &Scratch,
    ) {
        let tiles = &self.code.value;
        let stride = self.score_stride(vectors);
        let across = self.padded_values / self.lanes;
        let vector_parts = across.div_ceil(self.widest());
        for j in 0..vector_parts {
            let columns = part(across, vector_parts, j);
            let row_parts = rows.div_ceil(tiles.max_rows(columns.len()));
            for i in 0..row_parts {
                let block = part(rows, row_parts, i);
                // Later keys have weight 0 in all of these rows.
                let end = visible.0[block.clone()].iter().max().map_or(0, |&end| end as usize);
                let count = keys.len().min(end.saturating_sub(keys.start));
                let mut args = TileArgs {
                    a: scratch.scores.wrapping_add(block.start).cast(),
                    a_stride: (stride * 4) as isize,
                    b: v.data.wrapping_add(columns.start * self.lanes * 4),
                    b_stride: v.stride,
                    c: scratch.results.wrapping_add(block.start * self.padded_values + columns.start * self.lanes),
                    c_stride: (self.padded_values * 4) as isize,
                    k: if self.code.pairs { count.div_ceil(2) } else { count },
                    factors: if first { std::ptr::null() } else { scratch.factors.wrapping_add(block.start) },
                    more: std::ptr::null(),
                    segments: 0,
                };
                // SAFETY: the tile is inside weights, values and results.
                unsafe { tiles.get(block.len(), columns.len())(&mut args) };
            }
        }
    }

    /// scores = scale · scores + mask
    unsafe fn add_mask(&self, view: &View, task: &Task, keys: &Range<usize>, vectors: usize, scratch: &Scratch) {
        let queries = self.score_stride(vectors);
        let in_place = if view.dtype == DType::Bool { None } else { self.as_matrix(view, task) };
        // SAFETY: the scratch holds a tile of the mask, and then another row by row.
        unsafe {
            let matrix = match in_place {
                Some(m) => Matrix { data: m.data.offset(keys.start as isize * m.column_stride * view.size), ..m },
                None => {
                    let staged = scratch.mask.add(keys.len() * queries);
                    for (i, row) in task.rows.clone().enumerate() {
                        let (head, query) = self.g.place(task.kv_head, row);
                        let from = view.row([task.batch, head, query]);
                        mask::copy(self.isa, view, from, keys, staged.add(i * keys.len()));
                    }
                    let row_stride = keys.len() as isize;
                    Matrix { data: staged.cast(), dtype: DType::F32, row_stride, column_stride: 1 }
                }
            };
            pack_rows(self.isa, &matrix, task.rows.len(), keys.len(), queries, scratch.mask);
            mask::add(self.isa, scratch.scores, self.scale.on_scores, scratch.mask, keys.len() * queries);
        }
    }
}

/// Rows of bf16 values two by two as pairs; after an odd number of rows comes one of zeros.
unsafe fn pair_values(
    isa: Isa,
    view: &View,
    keys: &Range<usize>,
    row: &dyn Fn(usize) -> *mut u8,
    width: usize,
    to: *mut u32,
    padded: usize,
) {
    debug_assert_eq!(view.dtype, DType::Bf16);
    for (i, key) in keys.clone().step_by(2).enumerate() {
        // SAFETY: the scratch holds a tile of pairs; both rows are of the values.
        unsafe {
            let to = to.add(i * padded);
            let first = row(key).cast::<u16>();
            let second = (key + 1 < keys.end).then(|| row(key + 1).cast::<u16>());
            match second {
                Some(second) if view.step() == 1 => pair_rows(isa, first, second, to, width),
                None if view.step() == 1 => single_rows(isa, first, to, width),
                _ => {
                    for c in 0..width {
                        let at = c as isize * view.step();
                        let high = second.map_or(0, |second| u32::from(*second.offset(at)));
                        *to.add(c) = u32::from(*first.offset(at)) | high << 16;
                    }
                }
            }
            std::slice::from_raw_parts_mut(to.add(width), padded - width).fill(0);
        }
    }
}
