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
pub(super) struct Rows {
    pub data: *const u8,
    /// Bytes from row to row.
    pub stride: isize,
}

/// The number of visible keys of each row of a tile of queries; lanes without a query have all.
#[derive(Clone, Copy)]
pub(super) struct Visible(pub [i32; MOST_ROWS + LINE]);

/// Keys of which some are visible to some row of a tile of queries.
pub(super) struct KeyTile<'a> {
    pub keys: Range<usize>,
    /// The ends of the rows' visible keys in this tile.
    pub visible: &'a Visible,
    /// Those by the causal mask alone.
    causal: &'a Visible,
    /// The mask, where it hides or changes something.
    mask: Option<&'a View>,
}

/// A matrix of results, its rows whole vectors.
#[derive(Clone, Copy)]
pub(super) struct Sums {
    pub data: *mut f32,
    /// Elements of a row.
    pub width: usize,
    /// The factors of what the rows hold already; null to overwrite it.
    pub factors: *const f32,
}

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
    pub(super) fn score_stride(&self, vectors: usize) -> usize {
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
        let mut first = true;
        // SAFETY: the caller's promise, for this and all that follows.
        unsafe {
            self.pack_queries(task, vectors, scratch);
            self.each_tile(task, MOST_KEYS, |tile| {
                let k = self.keys(task, &tile.keys, scratch);
                let factor = self.masked_scores(task, k, tile, vectors, scratch);
                (self.code.softmax_columns)(&SoftmaxArgs {
                    scores: scratch.scores,
                    stride: self.score_stride(vectors) * 4,
                    keys: tile.keys.len(),
                    vectors,
                    tops: scratch.tops,
                    sums: scratch.sums,
                    factors: scratch.factors,
                    scale: factor,
                });
                if self.padded_values > 0 {
                    let v = self.values(task, &tile.keys, scratch);
                    let factors = if first { std::ptr::null() } else { scratch.factors.cast_const() };
                    let results = Sums { data: scratch.results, width: self.padded_values, factors };
                    self.over_keys(scratch.scores, v, rows, tile, results);
                }
                first = false;
            });
        }
    }

    /// Calls `each` with the tiles of keys of a task that have visible keys, in order.
    ///
    /// # Safety
    /// The mask is readable.
    pub(super) unsafe fn each_tile(&self, task: &Task, most_keys: usize, mut each: impl FnMut(&KeyTile<'_>)) {
        let rows = task.rows.len();
        let mut visible = Visible([i32::MAX; MOST_ROWS + LINE]);
        for (i, row) in task.rows.clone().enumerate() {
            visible.0[i] = self.g.visible(self.g.place(task.kv_head, row).1) as i32;
        }
        let causal = visible;
        let mut extents = [const { 0..0 }; MOST_ROWS];
        if let Some(mask) = &self.g.mask {
            for (extent, row) in extents.iter_mut().zip(task.rows.clone()) {
                let (head, query) = self.g.place(task.kv_head, row);
                *extent = match self.extents.get(task.batch * self.g.queries + query) {
                    Some(known) => known.clone(),
                    // SAFETY: the caller's promise.
                    None => unsafe { visible::extent(self.g, mask, [task.batch, head, query]) },
                };
            }
        }
        let seen = extents[..rows].iter().filter(|extent| !extent.is_empty());
        let seen = (seen.clone().map(|e| e.start).min().unwrap_or(0), seen.map(|e| e.end).max().unwrap_or(0));
        let tiles = task.keys.len().div_ceil(most_keys);
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
                // SAFETY: the caller's promise.
                let visible_keys = unsafe {
                    visible::of_rows(self.g, view, place, rows, &keys, extent, |row, end| {
                        visible.0[row] = causal.0[row].min(end as i32);
                    })
                };
                if visible_keys.keys.is_empty() {
                    continue;
                }
                keys = visible_keys.keys;
                shown = (!visible_keys.plain).then_some(view);
            }
            each(&KeyTile { keys, visible: &visible, causal: &causal, mask: shown });
        }
    }

    /// The scores of a tile, −∞ where a key is hidden; returns the factor that they lack.
    ///
    /// # Safety
    /// The queries are packed; the scratch is as [`Job::columns_sizes`] says.
    pub(super) unsafe fn masked_scores(
        &self,
        task: &Task,
        k: Rows,
        tile: &KeyTile<'_>,
        vectors: usize,
        scratch: &Scratch,
    ) -> f32 {
        let mut factor = self.scale.on_scores;
        // SAFETY: the caller's promise.
        unsafe {
            self.by_queries(k, scratch.queries, self.depth(), tile, vectors, scratch.scores);
            if let Some(view) = tile.mask {
                self.add_mask(view, task, &tile.keys, vectors, scratch);
                factor = 1.0;
            }
            if self.g.causal {
                let stride = self.score_stride(vectors);
                mask::causal_columns(self.isa, scratch.scores, &tile.causal.0[..stride], &tile.keys);
            }
        }
        factor
    }

    /// The rows of a task as a matrix, if they are all of one head and so have a constant stride.
    pub(super) fn as_matrix(&self, view: &View, task: &Task) -> Option<Matrix> {
        let (head, query) = self.g.place(task.kv_head, task.rows.start);
        let data = view.row([task.batch, head, query]);
        let one_head = self.g.place(task.kv_head, task.rows.end - 1).0 == head;
        one_head.then_some(Matrix { data, dtype: view.dtype, row_stride: view.strides[2], column_stride: view.step() })
    }

    /// Packs queries to [width][query], 4 bytes per element, zero in lanes without a query.
    pub(super) unsafe fn pack_queries(&self, task: &Task, vectors: usize, scratch: &Scratch) {
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
    pub(super) fn rows_in_place(&self, view: &View, task: &Task, keys: &Range<usize>) -> Option<Rows> {
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

    /// to[key][query] = rows of keys · queries packed to [depth][query]; nothing is written where a register tile's keys are hidden from all
    /// of its queries.
    ///
    /// # Safety
    /// `rows` begins at the tile's first key; the memory holds what the sizes say.
    pub(super) unsafe fn by_queries(
        &self,
        rows: Rows,
        packed: *const f32,
        depth: usize,
        tile: &KeyTile<'_>,
        vectors: usize,
        to: *mut f32,
    ) {
        let (tiles, keys) = (&self.code.score, &tile.keys);
        let stride = self.score_stride(vectors);
        let vector_parts = vectors.div_ceil(self.widest());
        let most = tiles.max_rows(vectors.div_ceil(vector_parts));
        let key_parts = keys.len().div_ceil(most);
        for i in 0..key_parts {
            let block = part(keys.len(), key_parts, i);
            for j in 0..vector_parts {
                let across = part(vectors, vector_parts, j);
                let lanes = across.start * self.lanes..across.end * self.lanes;
                if tile.visible.0[lanes.clone()].iter().all(|&end| end as usize <= keys.start + block.start) {
                    continue;
                }
                let mut args = TileArgs {
                    a: rows.data.wrapping_offset(block.start as isize * rows.stride),
                    a_stride: rows.stride,
                    b: packed.wrapping_add(lanes.start).cast(),
                    b_stride: (vectors * self.lanes * 4) as isize,
                    c: to.wrapping_add(block.start * stride + lanes.start),
                    c_stride: (stride * 4) as isize,
                    k: depth,
                    factors: std::ptr::null(),
                    more: std::ptr::null(),
                    segments: 0,
                };
                // SAFETY: the tile is inside rows, packed queries and results.
                unsafe { tiles.get(block.len(), across.len())(&mut args) };
            }
        }
    }

    /// The most vectors of a register tile of many rows.
    pub(super) fn widest(&self) -> usize {
        if self.isa == Isa::Avx512 { 4 } else { 2 }
    }

    /// sums[query] = factors · sums + Σ weights[key][query] · values[key]
    ///
    /// # Safety
    /// `values` begins at the tile's first key and its rows are as wide as those of `sums`.
    pub(super) unsafe fn over_keys(
        &self,
        weights: *const f32,
        values: Rows,
        rows: usize,
        tile: &KeyTile<'_>,
        sums: Sums,
    ) {
        let (tiles, keys) = (&self.code.value, &tile.keys);
        let stride = self.score_stride(rows.div_ceil(self.lanes));
        let across = sums.width / self.lanes;
        let vector_parts = across.div_ceil(self.widest());
        for j in 0..vector_parts {
            let columns = part(across, vector_parts, j);
            let row_parts = rows.div_ceil(tiles.max_rows(columns.len()));
            for i in 0..row_parts {
                let block = part(rows, row_parts, i);
                // Later keys have weight 0 in all of these rows.
                let end = tile.visible.0[block.clone()].iter().max().map_or(0, |&end| end as usize);
                let count = keys.len().min(end.saturating_sub(keys.start));
                let mut args = TileArgs {
                    a: weights.wrapping_add(block.start).cast(),
                    a_stride: (stride * 4) as isize,
                    b: values.data.wrapping_add(columns.start * self.lanes * 4),
                    b_stride: values.stride,
                    c: sums.data.wrapping_add(block.start * sums.width + columns.start * self.lanes),
                    c_stride: (sums.width * 4) as isize,
                    k: if self.code.pairs { count.div_ceil(2) } else { count },
                    factors: if sums.factors.is_null() { sums.factors } else { sums.factors.wrapping_add(block.start) },
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
