//! Gradients of attention: scores are computed again tile by tile, so that nothing of their size is in memory.
//!
//! ```text
//!  rows of queries that share a key head, some at a time; for each tile of keys with visible keys (`visible`):
//!     s  = k·qᵀ                p  = exp(scale·s + mask − logsumexp)                    all of these [key][query]
//!     dp = v·gᵀ                ds = scale · p ∘ (dp − delta)
//!     dv += p·g      dk += ds·q      dq += dsᵀ·k
//! ```
//!
//! The gradients of keys and values are sums over all rows of queries. Where one key head's rows are split between tasks, each
//! task has sums of its own, which are then added up in the order of the tasks: the number of threads changes no bit.

use super::columns::{KeyTile, Rows, Sums};
use super::convert::{narrow_row, widen_row};
use super::differences::{differences, weights};
use super::geometry::{Geometry, Numbers, View};
use super::run::{Job, MOST_ROWS, Task, part};
use super::scratch::{self, Scratch, Sizes};
use super::tile::TileArgs;
use super::{Code, Scale, double};
use crate::features::Isa;
use crate::gemm::{self, Matrix, pack_rows};
use crate::pool;
use kiln_ir::{DType, Symbol};
use kiln_kernels::kernel::{AttentionBackwardBody, AttentionGradients, BufferArg, Kernel, Strided};
use kiln_runtime::{Error, LaunchError, RawBuffer};
use std::ops::Range;

/// The most keys of a tile: weights and their gradients stay in a core's own cache.
const MOST_KEYS: usize = 128;
/// Tasks that a launch should have at least, as far as its shape allows.
const TASKS: usize = 32;
/// The most elements of all tasks' own sums.
const MOST_PARTS: usize = 16 << 20;
/// Multiplications below which one thread is as fast as several.
const SERIAL: usize = 128 << 10;
/// A factor for each row of a tile that adds to what is there.
static ONES: [f32; MOST_ROWS + MOST_KEYS] = [1.0; MOST_ROWS + MOST_KEYS];

/// A kernel of gradients of attention, ready to launch.
pub struct AttentionGradient {
    isa: Isa,
    body: AttentionBackwardBody,
    of: AttentionGradients,
    buffers: Vec<BufferArg>,
    sizes: Vec<Symbol>,
    /// None where some operand is f64.
    code: Option<Code>,
}

/// The views that only gradients have.
#[derive(Clone, Copy)]
pub(super) struct Gradients {
    /// [b, h, t, 1].
    pub delta: View,
    /// [b, h, t, d].
    pub queries: Option<View>,
    /// [b, g, s, d].
    pub keys: Option<View>,
    /// [b, g, s, e].
    pub values: Option<View>,
}

impl Gradients {
    fn new(of: &AttentionGradients, numbers: &Numbers<'_>, buffers: &[RawBuffer]) -> Result<Gradients, LaunchError> {
        let bound = |strided: &Strided| {
            let mut view = numbers.view(strided)?;
            view.bind(buffers);
            Ok(view)
        };
        let result = |view: &Option<Strided>| view.as_ref().map(bound).transpose();
        let (queries, keys, values) = (result(&of.queries)?, result(&of.keys)?, result(&of.values)?);
        Ok(Gradients { delta: bound(&of.delta)?, queries, keys, values })
    }
}

impl AttentionGradient {
    /// Compiles a kernel of gradients; `target` names the backend in an error.
    pub fn new(
        isa: Isa,
        kernel: &Kernel,
        body: &AttentionBackwardBody,
        of: &AttentionGradients,
        target: &str,
    ) -> Result<AttentionGradient, Error> {
        let refuse = |reason: String| Err(Error::Compile { target: target.to_owned(), reason });
        let results = [&of.queries, &of.keys, &of.values].into_iter().flatten();
        let floats = [&body.q, &body.k, &of.v, &of.gradient, &of.logsumexp, &of.delta].into_iter().chain(results);
        let mut f64_path = false;
        for view in floats.chain(&body.mask) {
            let is_mask = body.mask.as_ref().is_some_and(|mask| std::ptr::eq(mask, view));
            match kernel.buffers.get(view.buffer).map(|buffer| buffer.dtype) {
                _ if view.strides.len() != 4 => return refuse(format!("a view of {} axes", view.strides.len())),
                Some(DType::F32 | DType::Bf16 | DType::F16) => {}
                Some(DType::F64) => f64_path = true,
                Some(DType::Bool) if is_mask => {}
                Some(other) => return refuse(format!("gradients of attention do not work on {other}: cast first")),
                None => return refuse(format!("a view of buffer {}", view.buffer)),
            }
        }
        let scale = Scale::new(body.scale.as_f64());
        // Short floats are widened as they are read.
        let code = (!f64_path).then(|| Code::new(isa, [DType::F32; 3], [None; 2], scale)).transpose();
        let (body, of, buffers, sizes) = (body.clone(), of.clone(), kernel.buffers.clone(), kernel.sizes.clone());
        match code {
            Ok(code) => Ok(AttentionGradient { isa, body, of, buffers, sizes, code }),
            Err(error) => refuse(error.to_string()),
        }
    }

    /// Runs the kernel.
    ///
    /// # Safety
    /// The buffers hold what the kernel's views reach at these sizes, and no result overlaps any other of them.
    pub unsafe fn launch(&self, buffers: &[RawBuffer], sizes: &[i64]) -> Result<(), LaunchError> {
        if buffers.len() != self.buffers.len() {
            let (expected, got) = (self.buffers.len(), buffers.len());
            return Err(LaunchError::WrongArguments { what: "buffers", expected, got });
        }
        let numbers = Numbers { args: &self.buffers, symbols: &self.sizes, sizes };
        let g = Geometry::of_gradients(&self.body, &self.of, &numbers)?.bound(buffers)?;
        let gradients = Gradients::new(&self.of, &numbers, buffers)?;
        if [g.batch, g.kv_heads].contains(&0) {
            return Ok(());
        }
        let scale = self.body.scale.as_f64();
        // SAFETY: passed on from the caller.
        unsafe {
            match &self.code {
                Some(code) => run(self.isa, code, scale, &g, &gradients),
                None => double::gradients(scale, &g, &gradients),
            }
        }
        Ok(())
    }
}

/// Elements of the parts of a task's memory.
struct Layout {
    /// Sums of keys and values, where they are not a part of the launch's.
    sums: usize,
    /// A tile's rows of queries and of the gradient, and the sums of the queries.
    rows: [usize; 3],
    /// The gradient packed to [width][query].
    packed: usize,
    /// A tile of rows of keys and values.
    keys: [usize; 2],
    /// The gradient of the scores.
    products: usize,
}

/// The state that all tasks of a launch share.
struct Launch<'a> {
    job: Job<'a>,
    gradients: &'a Gradients,
    scale: f32,
    /// Of queries and keys.
    width: Width,
    /// Of values and of the gradient.
    value_width: Width,
    /// Tiles of query rows of a group.
    tiles: usize,
    /// Tasks that share the tiles of a group.
    splits: usize,
    /// Sums of keys and values of each task, where there are several a group.
    parts: *mut f32,
}

// SAFETY: tasks read the operands and write rows and parts of their own.
unsafe impl Sync for Launch<'_> {}

/// Runs a launch.
///
/// # Safety
/// The views reach only inside their buffers; nothing overlaps the results.
unsafe fn run(isa: Isa, code: &Code, scale: f64, g: &Geometry, gradients: &Gradients) {
    let mut job = Job::new(isa, code, Scale::new(scale), g);
    // SAFETY: the mask is readable.
    unsafe { job.find_extents() };
    let [width, value_width] =
        [g.width, g.value_width].map(|own| Width { own, padded: own.next_multiple_of(job.lanes) });
    let groups = g.batch * g.kv_heads;
    let tiles = g.group_rows().div_ceil(MOST_ROWS);
    let parts = std::ptr::null_mut();
    let mut launch = Launch { job, gradients, scale: scale as f32, width, value_width, tiles, splits: 1, parts };
    let part = launch.sums();
    launch.splits = (TASKS / groups).min(tiles).min(MOST_PARTS / (groups * part).max(1)).max(1);
    let tasks = groups * launch.splits;
    let memory = gemm::Scratch::take::<f32>(if launch.splits > 1 { tasks * part } else { 0 });
    launch.parts = memory.ptr();
    let work = [g.group_rows(), g.keys, g.width + g.value_width].into_iter().fold(groups, usize::saturating_mul);
    let threads = if work < SERIAL { 1 } else { pool::threads() };
    // SAFETY: passed on from the caller; tasks write disjoint rows or parts.
    pool::run(tasks, threads, &|task| unsafe { launch.run(task) });
    if launch.splits > 1 && part > 0 {
        // SAFETY: all parts are written; groups write disjoint rows.
        pool::run(groups, threads, &|group| unsafe { launch.merge(group) });
    }
}

impl Launch<'_> {
    /// Elements of the sums of all keys and values of a group.
    fn sums(&self) -> usize {
        let keys = if self.gradients.keys.is_some() { self.width.padded } else { 0 };
        let values = if self.gradients.values.is_some() { self.value_width.padded } else { 0 };
        self.job.g.keys * (keys + values)
    }

    /// Where the sums of keys and those of values begin.
    fn split_sums(&self, sums: *mut f32) -> [*mut f32; 2] {
        let keys = if self.gradients.keys.is_some() { self.job.g.keys * self.width.padded } else { 0 };
        [sums, sums.wrapping_add(keys)]
    }

    fn layout(&self) -> Layout {
        let (width, values) = (self.width.padded, self.value_width.padded);
        let keys = MOST_KEYS.min(self.job.g.keys);
        Layout {
            sums: if self.splits > 1 { 0 } else { self.sums() },
            rows: [MOST_ROWS * width, MOST_ROWS * values, MOST_ROWS * width],
            packed: MOST_ROWS * self.job.g.value_width,
            keys: [keys * width, keys * values],
            products: keys * self.job.score_stride(MOST_ROWS / self.job.lanes),
        }
    }

    /// Runs one task: every `splits`th tile of rows of a group.
    unsafe fn run(&self, index: usize) {
        let (job, g) = (&self.job, self.job.g);
        let (group, split) = (index / self.splits, index % self.splits);
        let Layout { sums, rows: [queries, gradient, results], packed, keys: [keys, values], products } = self.layout();
        let sizes = [sums, queries, gradient, results, packed, keys, values, products];
        // A line between parts keeps them off each other's cache sets.
        let sizes = sizes.map(|size| size.next_multiple_of(16) + 16);
        let memory = gemm::Scratch::take::<f32>(sizes.iter().sum());
        let mut next = memory.ptr::<f32>();
        let [own, queries, gradient, results, packed, keys, values, products] = sizes.map(|size| {
            let at = next;
            next = next.wrapping_add(size);
            at
        });
        let count = self.sums();
        let sums = if self.splits > 1 { self.parts.wrapping_add(index * count) } else { own };
        let area = Area { sums: self.split_sums(sums), queries, gradient, results, packed, keys, values, products };
        let most_keys = MOST_KEYS.min(g.keys);
        let stride = job.score_stride(MOST_ROWS / job.lanes);
        let sizes = Sizes {
            queries: 2 * MOST_ROWS * g.width,
            scores: most_keys * stride,
            mask: if g.mask.is_some() { 2 * most_keys * stride } else { 0 },
            ..Sizes::default()
        };
        let (batch, kv_head) = (group / g.kv_heads, group % g.kv_heads);
        scratch::with(sizes, |scratch| {
            // SAFETY: the memory is as the sizes say; the rest is passed on from the caller.
            unsafe {
                std::slice::from_raw_parts_mut(sums, count).fill(0.0);
                for tile in (split..self.tiles).step_by(self.splits) {
                    let rows = part(g.group_rows(), self.tiles, tile);
                    let visible = rows.clone().map(|row| g.visible(g.place(kv_head, row).1)).max().unwrap_or(0);
                    self.tile(&Task { batch, kv_head, rows, keys: 0..visible }, &area, &scratch);
                }
                if self.splits == 1 {
                    self.write(group, area.sums);
                }
            }
        });
    }

    /// Adds what a tile of query rows gives to the sums, and writes its rows of the queries' gradient.
    unsafe fn tile(&self, task: &Task, area: &Area, scratch: &Scratch) {
        let (job, g, wanted) = (&self.job, self.job.g, self.gradients);
        let rows = task.rows.len();
        let vectors = rows.div_ceil(job.lanes);
        let stride = job.score_stride(vectors);
        let mut first = true;
        // SAFETY: the caller's promise, for this and all that follows.
        unsafe {
            let logsumexp = self.of_rows(task, g.logsumexp.as_ref());
            let delta = self.of_rows(task, Some(&wanted.delta));
            let (logsumexp, delta) = (&logsumexp[..vectors * job.lanes], &delta[..vectors * job.lanes]);
            job.pack_queries(task, vectors, scratch);
            let queries = self.query_rows(task, &g.q, self.width, area.queries);
            let gradient = self.query_rows(task, &g.out, self.value_width, area.gradient);
            let matrix = Matrix {
                data: gradient.data.cast_mut(),
                dtype: DType::F32,
                row_stride: gradient.stride / 4,
                column_stride: 1,
            };
            pack_rows(job.isa, &matrix, rows, g.value_width, vectors * job.lanes, area.packed);
            job.each_tile(task, MOST_KEYS, |tile| {
                let (start, count) = (tile.keys.start, tile.keys.len());
                let k = self.key_rows(task, &g.k, &tile.keys, self.width, area.keys);
                let factor = job.masked_scores(task, k, tile, vectors, scratch);
                weights(job.isa, scratch.scores, factor, logsumexp, count, stride);
                let [key_sums, value_sums] = area.sums;
                if wanted.values.is_some() {
                    let to = value_sums.add(start * self.value_width.padded);
                    self.over_queries(scratch.scores, gradient, rows, tile, to, self.value_width.padded);
                }
                if wanted.queries.is_none() && wanted.keys.is_none() {
                    return;
                }
                let v = self.key_rows(task, &g.v, &tile.keys, self.value_width, area.values);
                job.by_queries(v, area.packed, g.value_width, tile, vectors, area.products);
                differences(job.isa, area.products, scratch.scores, self.scale, delta, count, stride);
                if wanted.keys.is_some() {
                    let to = key_sums.add(start * self.width.padded);
                    self.over_queries(area.products, queries, rows, tile, to, self.width.padded);
                }
                if wanted.queries.is_some() {
                    let factors = if first { std::ptr::null() } else { ONES.as_ptr() };
                    let sums = Sums { data: area.results, width: self.width.padded, factors };
                    job.over_keys(area.products, k, rows, tile, sums);
                    first = false;
                }
            });
            let Some(view) = &wanted.queries else { return };
            if first {
                std::slice::from_raw_parts_mut(area.results, rows * self.width.padded).fill(0.0);
            }
            for (i, row) in task.rows.clone().enumerate() {
                let (head, query) = g.place(task.kv_head, row);
                let to = view.row([task.batch, head, query]);
                narrow_row(job.isa, area.results.add(i * self.width.padded), 1.0, g.width, view, to);
            }
        }
    }

    /// A number of each row of a tile; 0 in lanes without a row.
    unsafe fn of_rows(&self, task: &Task, view: Option<&View>) -> [f32; 2 * MOST_ROWS] {
        let mut numbers = [0.0; 2 * MOST_ROWS];
        for (i, row) in task.rows.clone().enumerate() {
            let (head, query) = self.job.g.place(task.kv_head, row);
            if let Some(view) = view {
                // SAFETY: the view has a number for each row.
                numbers[i] = unsafe { super::convert::element(view.dtype, view.row([task.batch, head, query])) };
            }
        }
        numbers
    }

    /// Rows of queries as f32, padded to whole vectors: in place, or copied to `to`.
    unsafe fn query_rows(&self, task: &Task, view: &View, width: Width, to: *mut f32) -> Rows {
        let (job, Width { own, padded }) = (&self.job, width);
        if let Some(matrix) = job.as_matrix(view, task).filter(|_| width.is_whole(view)) {
            return Rows { data: matrix.data, stride: view.row_bytes() };
        }
        for (i, row) in task.rows.clone().enumerate() {
            let (head, query) = job.g.place(task.kv_head, row);
            let from = view.row([task.batch, head, query]);
            // SAFETY: the memory holds a tile of rows.
            unsafe { widen_row(job.isa, view.dtype, from, view.step(), own, to.add(i * padded), padded) };
        }
        Rows { data: to.cast(), stride: (padded * 4) as isize }
    }

    /// Rows of keys or values as f32, padded to whole vectors: in place, or copied to `to`.
    unsafe fn key_rows(&self, task: &Task, view: &View, keys: &Range<usize>, width: Width, to: *mut f32) -> Rows {
        if width.is_whole(view) {
            return Rows { data: view.row([task.batch, task.kv_head, keys.start]), stride: view.row_bytes() };
        }
        // SAFETY: the memory holds a tile of rows.
        unsafe { self.job.widen(view, task, keys, width.own, to, width.padded) };
        Rows { data: to.cast(), stride: (width.padded * 4) as isize }
    }

    /// sums[key] += Σ weights[key][query] · rows[query]
    unsafe fn over_queries(
        &self,
        weights: *const f32,
        values: Rows,
        rows: usize,
        tile: &KeyTile<'_>,
        sums: *mut f32,
        width: usize,
    ) {
        let (job, tiles, keys) = (&self.job, &self.job.code.score, &tile.keys);
        let stride = job.score_stride(rows.div_ceil(job.lanes));
        let across = width / job.lanes;
        let vector_parts = across.div_ceil(job.widest());
        for j in 0..vector_parts {
            let columns = part(across, vector_parts, j);
            let key_parts = keys.len().div_ceil(tiles.max_rows(columns.len()));
            for i in 0..key_parts {
                let block = part(keys.len(), key_parts, i);
                // Earlier rows have weight 0 for all of these keys.
                let visible = |end: &i32| *end as usize > keys.start + block.start;
                let Some(first) = tile.visible.0[..rows].iter().position(visible) else { continue };
                let mut args = TileArgs {
                    a: weights.wrapping_add(block.start * stride + first).cast(),
                    a_stride: (stride * 4) as isize,
                    b: values
                        .data
                        .wrapping_offset(first as isize * values.stride)
                        .wrapping_add(columns.start * job.lanes * 4),
                    b_stride: values.stride,
                    c: sums.wrapping_add(block.start * width + columns.start * job.lanes),
                    c_stride: (width * 4) as isize,
                    k: rows - first,
                    factors: ONES.as_ptr(),
                    more: std::ptr::null(),
                    segments: 0,
                };
                // SAFETY: the tile is inside weights, rows and sums.
                unsafe { tiles.get(block.len(), columns.len())(&mut args) };
            }
        }
    }

    /// Adds up the sums of a group's tasks, and writes them.
    unsafe fn merge(&self, group: usize) {
        let count = self.sums();
        // SAFETY: all parts of the group are written, and no thread writes them any more.
        unsafe {
            let first = self.parts.add(group * self.splits * count);
            let total = std::slice::from_raw_parts_mut(first, count);
            for split in 1..self.splits {
                let part = std::slice::from_raw_parts(first.add(split * count), count);
                total.iter_mut().zip(part).for_each(|(total, part)| *total += part);
            }
            self.write(group, self.split_sums(first));
        }
    }

    /// Writes the gradients of a group's keys and values.
    unsafe fn write(&self, group: usize, sums: [*mut f32; 2]) {
        let g = self.job.g;
        let (batch, kv_head) = (group / g.kv_heads, group % g.kv_heads);
        let results = [(&self.gradients.keys, self.width), (&self.gradients.values, self.value_width)];
        for (sums, (view, width)) in sums.into_iter().zip(results) {
            let Some(view) = view else { continue };
            for key in 0..g.keys {
                let to = view.row([batch, kv_head, key]);
                // SAFETY: there is a row of sums for each key; the rows of the result are this group's.
                unsafe { narrow_row(self.job.isa, sums.add(key * width.padded), 1.0, width.own, view, to) };
            }
        }
    }
}

/// Addresses of the parts of a task's memory, see [`Layout`].
struct Area {
    sums: [*mut f32; 2],
    queries: *mut f32,
    gradient: *mut f32,
    results: *mut f32,
    packed: *mut f32,
    keys: *mut f32,
    values: *mut f32,
    products: *mut f32,
}

/// Elements of a row.
#[derive(Clone, Copy)]
struct Width {
    own: usize,
    /// Padded to whole vectors.
    padded: usize,
}

impl Width {
    /// Whether kernels can read rows in place: whole vectors of f32 beside each other.
    fn is_whole(&self, view: &View) -> bool {
        view.dtype == DType::F32 && view.step() == 1 && self.own == self.padded
    }
}
