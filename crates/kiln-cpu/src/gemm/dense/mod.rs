//! Dense convolution: many results a group, computed from images as they are in memory, whatever the order of their axes.
//!
//! ```text
//!  for each image, group and block of rows           (tasks of the pool)
//!     for each panel of results                       (its weights stay in the second level)
//!        for each part of the channels, row and column of tiles: micro-kernel into the block      (`kernel`)
//!        the block, pixels × results or transposed, goes to the epilogue
//! ```
//!
//! Against a product of unfolded pixels nothing is packed but the weights, no lane is left idle by images of odd sizes, and what is outside
//! the image is not multiplied.

mod factors;
mod kernel;
mod stage;
#[cfg(test)]
mod tests;
mod weights;

use super::direct::WindowAxis;
use super::pack::{Lanes, pack};
use super::packed::Panels;
use super::scratch::Scratch;
use super::source::{Epilogue, Tile};
use super::spans::{MOST_PLACES, Span, fit, tiles, under};
use super::{GemmError, part};
use crate::features::Isa;
use crate::pool;
pub use factors::ChannelFactors;
pub(in crate::gemm) use kernel::Shape;
use kernel::{DenseFn, Layout, most_pixels};
use kiln_ir::DType;
use stage::View;
pub use stage::{Pixels, Runs, interleave};
use std::ops::Range;
pub use weights::TapWeights;

/// Bytes of results that go to the epilogue at once.
const BLOCK_BYTES: usize = 32 << 10;
/// Bytes of an image's rows that a task goes over once a panel.
const IMAGE_BYTES: usize = 384 << 10;
/// Bytes of a panel's weights that every tile reads.
const WEIGHT_BYTES: usize = 512 << 10;
/// Bytes of the weights of panels whose results are side by side, and how many there are at the most.
const WIDE_BYTES: usize = 256 << 10;
const MOST_SIDE_BY_SIDE: usize = 4;
/// Multiply-adds that are not worth a second thread.
const SERIAL_WORK: usize = 1 << 16;
/// Taps of a window whose code fits the first level.
const MOST_TAPS: usize = 49;
/// Vectors of a panel, but for few results.
const VECTORS: usize = 2;
/// Words of a cache line; sets of the first level, and as many of its ways as pixels may take.
const LINE_WORDS: usize = 16;
const FIRST_LEVEL_SETS: usize = 64;
const FIRST_LEVEL_WAYS: usize = 8;
/// Channels from which on a loop over them is worth its beginning.
const FEWEST_CHANNELS: usize = 8;

/// A convolution with sums in f32.
#[derive(Clone, Debug)]
pub struct Dense {
    /// Target; not [`Isa::Portable`].
    pub isa: Isa,
    /// The most threads to use.
    pub threads: usize,
    /// The pixel under the first tap of the first result, which may be outside the image.
    pub image: *const u8,
    /// What its elements are.
    pub pixels: Pixels,
    /// Number of images.
    pub images: usize,
    /// Elements from one image to the next.
    pub image_stride: isize,
    /// Elements from one group's channels to the next group's.
    pub group_stride: isize,
    /// Channels of a group, or pairs of them.
    pub channels: usize,
    /// Elements from one channel to the next.
    pub channel_stride: isize,
    /// Elements from one row of pixels to the next.
    pub row_stride: isize,
    /// Elements from one pixel of a row to the next.
    pub pixel_stride: isize,
    /// What the channels of each image are multiplied by: only of floats, in windows of one pixel, without groups.
    pub factors: Option<ChannelFactors>,
    /// Panels of weights, `[group][panel][channel][tap][result]`, padded with anything: floats, or bf16 of two
    /// channels where the image has pairs; see [`Dense::panels`].
    pub weights: *const f32,
    /// Whether panels are `[tap][channel][result]` and not the other way round, for images that [`Dense::has_channels_last`].
    pub taps_first: bool,
    /// Elements from one group's panels to the next group's.
    pub weight_group: usize,
    /// Groups, or vectors of them.
    pub groups: usize,
    /// Zero, or the results and the channels of each of the groups that a vector's lanes are: floats side by side.
    pub several: usize,
    /// Results of a group.
    pub outputs: usize,
    /// Results of the last group: fewer where groups are vectors of several that do not fill the last one.
    pub last_outputs: usize,
    /// Rows.
    pub y: WindowAxis,
    /// Pixels of a row.
    pub x: WindowAxis,
    /// Whether rows of the tiles that the epilogue gets are pixels and columns results, and not the other way round.
    pub pixels_first: bool,
}

// SAFETY: a description of memory; the caller that runs a convolution guarantees that it is valid.
unsafe impl Send for Dense {}
// SAFETY: as above.
unsafe impl Sync for Dense {}

/// How a convolution is cut, and its code.
#[derive(Debug)]
pub struct Plan {
    /// Places of each row and each column of tiles, and which of the codes' spans they have.
    rows: Vec<(Range<usize>, usize)>,
    columns: Vec<(Range<usize>, usize)>,
    /// Codes of whole panels and of one that has no second vector, by the spans of row and column.
    codes: [Vec<DenseFn>; VECTORS],
    /// Codes of the last group, where it has fewer results than the others.
    last: Vec<DenseFn>,
    /// Different spans of columns.
    spans: usize,
    /// Whether blocks and tasks are parts of one long row, and not rows.
    is_one_row: bool,
    /// Rows of tiles of a block and of a task, or columns of them.
    block_lines: usize,
    task_lines: usize,
    /// Parts of the channels.
    parts: usize,
    /// Words from one pixel to the next and from one row to the next, where pixels are copied closer to each other.
    copied: Option<[usize; 2]>,
    /// Panels whose results are side by side in a block.
    side_by_side: usize,
}

impl Dense {
    /// Panels of weights for sums of so many elements. With no more results than a vector has lanes a panel is one.
    pub fn panels(&self, sum: usize) -> Result<Panels, GemmError> {
        Ok(Panels::new(self.isa, sum, self.outputs, DType::F32, DType::F32)?.of_width(self.width()))
    }

    /// Vectors of a panel.
    fn vectors(&self) -> usize {
        if self.outputs <= self.vector() { 1 } else { VECTORS }
    }

    /// Results of a panel.
    fn width(&self) -> usize {
        self.vectors() * self.vector()
    }

    fn vector(&self) -> usize {
        Dense::vector_of(self.isa)
    }

    /// Results of a vector.
    pub fn vector_of(isa: Isa) -> usize {
        if isa == Isa::Avx512 { 16 } else { 8 }
    }

    fn outputs_of(&self, group: usize) -> usize {
        if group + 1 == self.groups { self.last_outputs } else { self.outputs }
    }

    /// Whether there is code for it.
    pub fn is_possible(&self) -> bool {
        let taps = self.y.taps * self.x.taps;
        let reach = self.x.taps * self.x.dilation + MOST_PLACES * self.x.stride;
        let pixel = self.pixel_stride.unsigned_abs().saturating_mul(size_of::<f32>());
        let small = fit(&self.y) && fit(&self.x);
        self.isa != Isa::Portable && small && taps <= MOST_TAPS && pixel.saturating_mul(reach) < 1 << 30
    }

    /// Whether its channels follow each other in memory, as many as are worth a loop, so that panels with taps first are read faster.
    pub fn has_channels_last(&self) -> bool {
        let reach = self.y.taps * self.y.dilation + MOST_PLACES * self.y.stride;
        let row = self.row_stride.unsigned_abs().saturating_mul(size_of::<f32>());
        self.channel_stride == 1
            && !self.pixels.is_staged()
            && self.channels >= FEWEST_CHANNELS
            && self.is_possible()
            && row.saturating_mul(reach) < 1 << 30
    }

    /// The plan of a convolution of these sizes and strides, wherever its memory is; `None` where there is no code for it.
    pub fn plan(&self) -> Result<Option<Plan>, GemmError> {
        if self.outputs == 0 || self.channels == 0 || self.y.places * self.x.places == 0 || !self.is_possible() {
            return Ok(None);
        }
        if self.taps_first && !self.has_channels_last() || self.factors.is_some() && !self.may_have_factors() {
            return Ok(None);
        }
        let (taps, width) = (self.y.taps * self.x.taps, self.width());
        let most = most_pixels(self.isa, self.vectors());
        let columns = self.x.places.div_ceil(self.x.places.div_ceil(most.min(MOST_PLACES)));
        let rows = (most / columns).clamp(1, self.y.places.min(MOST_PLACES));
        let (rows, row_spans) = tiles(&self.y, rows);
        let (columns, column_spans) = tiles(&self.x, columns);
        let (copied, side_by_side) = (self.copied(rows[0].0.len() * columns[0].0.len()), self.side_by_side());
        let codes = |vectors: usize, results: usize| -> Result<Vec<DenseFn>, GemmError> {
            let spans = row_spans.iter().flat_map(|y| column_spans.iter().map(move |x| (y, x)));
            spans.map(|(&y, &x)| Ok(kernel::get(self.shape([vectors, results, side_by_side], y, x, copied))?)).collect()
        };
        let last = self.outputs % width;
        let needed = [(1..=self.vector()).contains(&last), self.outputs >= width || last > self.vector()];
        let with = |vectors: usize| {
            let is_needed = self.vectors() == 1 && vectors == 1 || self.vectors() > 1 && needed[vectors - 1];
            if is_needed { codes(vectors, self.outputs) } else { Ok(Vec::new()) }
        };
        let fewer = self.last_outputs < self.outputs;
        let is_one_row = self.y.places == 1;
        let lines = if is_one_row { columns.len() } else { rows.len() };
        let line_places = (self.y.places * self.x.places).div_ceil(lines);
        let block_lines = (BLOCK_BYTES / (line_places * width * side_by_side * size_of::<f32>())).max(1);
        let line_bytes = self.channels * line_places * self.x.stride * self.y.stride * size_of::<f32>();
        let task_lines = (IMAGE_BYTES / line_bytes.max(1)).max(block_lines).min(lines);
        let parts = (self.channels * taps * width * size_of::<f32>()).div_ceil(WEIGHT_BYTES);
        Ok(Some(Plan {
            codes: [with(1)?, with(2)?],
            last: if fewer { codes(1, self.last_outputs)? } else { Vec::new() },
            rows,
            columns,
            spans: column_spans.len(),
            is_one_row,
            block_lines,
            task_lines,
            parts: parts.clamp(1, self.channels),
            copied,
            side_by_side,
        }))
    }

    /// Panels whose results the epilogue gets as one, so that its rows are longer: where the weights of all of them stay in the second level.
    fn side_by_side(&self) -> usize {
        let panels = self.outputs.div_ceil(self.width());
        let panel_bytes = self.channels * self.y.taps * self.x.taps * self.width() * size_of::<f32>();
        let all = match (self.pixels_first, panels) {
            (false, _) => 1,
            // Results of groups follow each other where panels are full.
            (true, 1) if self.outputs < self.width() => 1,
            (true, 1) => self.groups,
            (true, panels) => panels,
        };
        (WIDE_BYTES / panel_bytes.max(1)).clamp(1, MOST_SIDE_BY_SIDE).min(all)
    }

    /// Words from pixel to pixel and from row to row of a copy, where those of a tile of so many lie in a few sets of the first level, which
    /// cannot hold them over the channels of a line.
    fn copied(&self, tile: usize) -> Option<[usize; 2]> {
        let lines = self.pixel_stride.unsigned_abs() / LINE_WORDS;
        let whole = self.pixel_stride.unsigned_abs().is_multiple_of(LINE_WORDS);
        // Powers of two in the stride are sets that no pixel is in.
        let sets = FIRST_LEVEL_SETS >> lines.trailing_zeros().min(FIRST_LEVEL_SETS.trailing_zeros());
        let is_one_row = self.y.places == 1 && self.y.taps > 1;
        if !self.taps_first || !whole || is_one_row || tile <= sets * FIRST_LEVEL_WAYS {
            return None;
        }
        let pixel = (self.channels.div_ceil(LINE_WORDS) | 1) * LINE_WORDS;
        let row = under(&self.x, &(0..self.x.places)).len() * pixel;
        let reach = self.y.taps * self.y.dilation + MOST_PLACES * self.y.stride;
        (row.saturating_mul(reach) < 1 << 28).then_some([pixel, row])
    }

    /// The code for so many vectors of a panel, of a group with so many results, and so many panels side by side.
    fn shape(&self, numbers: [usize; 3], y: Span, x: Span, copied: Option<[usize; 2]>) -> Shape {
        let [vectors, results, side_by_side] = numbers;
        let bytes = |stride: isize| (stride * size_of::<f32>() as isize) as i32;
        let [pixel, row] = match copied {
            Some(copied) => copied.map(|words| words as isize),
            None => [if self.pixels.is_staged() { 1 } else { self.pixel_stride }, self.row_stride],
        };
        let pairs = self.pixels.has_pairs();
        // Channels of all groups of the vector, in words.
        let read = if self.several == 0 { 0 } else { results.div_ceil(if pairs { 2 } else { 1 }) };
        Shape {
            isa: self.isa,
            vectors: vectors as u8,
            panel: self.vectors() as u8,
            y,
            x,
            pixel: bytes(pixel),
            pairs,
            several: self.several as u8,
            read: read as u8,
            row: self.taps_first.then(|| bytes(row)),
            out: (side_by_side * self.width() * size_of::<f32>()) as i32,
        }
    }

    /// Runs it; false, and nothing done, where there is no code for it. Rows of the tiles that the epilogue gets are results of all groups
    /// and columns pixels of all images, or the other way round.
    ///
    /// # Safety
    /// Every pixel inside the images and every panel must be readable, and nothing that the epilogue writes may overlap them.
    pub unsafe fn run(&self, epilogue: &dyn Epilogue) -> Result<bool, GemmError> {
        if self.images == 0 || self.groups * self.outputs == 0 || self.y.places * self.x.places == 0 {
            return Ok(true);
        }
        let Some(plan) = self.plan()? else { return Ok(false) };
        // SAFETY: the caller's promise.
        unsafe { self.run_planned(&plan, epilogue) };
        Ok(true)
    }

    /// Runs it with its plan.
    ///
    /// # Safety
    /// As [`Dense::run`], with the plan of these sizes and strides.
    pub unsafe fn run_planned(&self, plan: &Plan, epilogue: &dyn Epilogue) {
        let taps = self.y.taps * self.x.taps;
        let work = self.images * self.groups * self.outputs * self.y.places * self.x.places * taps * self.channels;
        let threads = if work < SERIAL_WORK { 1 } else { self.threads };
        let panels = self.outputs.div_ceil(self.width());
        let lines = if plan.is_one_row { plan.columns.len() } else { plan.rows.len() };
        // Panels of different groups are side by side where a group has one.
        let bundles = if panels == 1 { self.groups.div_ceil(plan.side_by_side) } else { self.groups };
        // As many tasks as threads want: of fewer lines, then of fewer panels.
        let wanted = if threads == 1 { 1 } else { (4 * threads).div_ceil((self.images * bundles * panels).max(1)) };
        let line_tasks = lines.div_ceil(plan.task_lines).max(wanted.min(lines));
        let tasks = self.images * bundles * line_tasks;
        let panel_tasks = if threads == 1 || tasks == 0 { 1 } else { (4 * threads).div_ceil(tasks).min(panels) };
        pool::run(tasks * panel_tasks, threads, &|task| {
            let (outer, panel_task) = (task / panel_tasks, task % panel_tasks);
            let (outer, line_task) = (outer / line_tasks, outer % line_tasks);
            let (image, bundle) = (outer / bundles, outer % bundles);
            let lines = part(lines, line_tasks, line_task);
            let panels = match panels {
                1 => part(self.groups, bundles, bundle),
                _ => {
                    let panel = part(panels, panel_tasks, panel_task);
                    bundle * panels + panel.start..bundle * panels + panel.end
                }
            };
            // SAFETY: tasks cover disjoint results; the rest is the caller's promise.
            unsafe { self.task(plan, image, lines, panels, epilogue) };
        });
    }

    /// Some lines of tiles of an image, and some panels, counted over all groups.
    unsafe fn task(
        &self,
        plan: &Plan,
        image: usize,
        lines: Range<usize>,
        panels: Range<usize>,
        epilogue: &dyn Epilogue,
    ) {
        let of_group = self.outputs.div_ceil(self.width());
        let of_task = match plan.is_one_row {
            true => (spanned(&plan.rows), spanned(&plan.columns[lines.clone()])),
            false => (spanned(&plan.rows[lines.clone()]), spanned(&plan.columns)),
        };
        let (Some(y), Some(x)) = of_task else { return };
        let groups = panels.start / of_group..(panels.end - 1) / of_group + 1;
        // SAFETY: the caller's promise.
        let view = |group: usize| unsafe { self.view(plan.copied, image, group, &y, &x) };
        let mut views: [Option<View>; MOST_SIDE_BY_SIDE] = Default::default();
        views.iter_mut().zip(groups.clone()).for_each(|(slot, group)| *slot = Some(view(group)));
        // SAFETY: the caller's promise.
        let scaled = self.factors.map(|factors| unsafe { self.scaled(&factors, image, panels.clone()) });
        let weights = match &scaled {
            Some(scaled) => scaled.ptr::<f32>().cast_const().wrapping_sub(panels.start * self.panel_words()),
            None => self.weights,
        };
        let blocks = lines.len().div_ceil(plan.block_lines);
        for first in panels.clone().step_by(plan.side_by_side) {
            let panels = first..panels.end.min(first + plan.side_by_side);
            for block in 0..blocks {
                let block = part(lines.len(), blocks, block);
                let block = lines.start + block.start..lines.start + block.end;
                let (rows, columns) = match plan.is_one_row {
                    true => (&plan.rows[..], &plan.columns[block]),
                    false => (&plan.rows[block], &plan.columns[..]),
                };
                let (Some(y), Some(x)) = (spanned(rows), spanned(columns)) else { continue };
                let pixels = y.len() * x.len();
                let results = Scratch::take::<f32>(pixels * self.width() * plan.side_by_side);
                for panel in panels.clone() {
                    let to = results.ptr::<f32>().wrapping_add((panel - panels.start) * self.width());
                    let Some(view) = &views[panel / of_group - groups.start] else { continue };
                    // SAFETY: pixels inside the image, and room for the panel's results.
                    unsafe { self.panel(plan, (view, weights), panel, rows, columns, to) };
                }
                // The block's places follow each other: whole rows, or a part of one.
                let place = (image * self.y.places + y.start) * self.x.places + x.start;
                let outputs = self.outputs_of_panel(panels.start).start..self.outputs_of_panel(panels.end - 1).end;
                // SAFETY: the block was written above; the epilogue gets each result once.
                unsafe { self.finish(plan, results.ptr(), outputs, place, pixels, epilogue) };
            }
        }
    }

    /// The results of a panel, counted over all groups.
    fn outputs_of_panel(&self, panel: usize) -> Range<usize> {
        let of_group = self.outputs.div_ceil(self.width());
        let (group, first) = (panel / of_group, panel % of_group * self.width());
        let start = group * self.outputs;
        start + first..start + self.outputs_of(group).min(first + self.width())
    }

    /// Words of a panel.
    fn panel_words(&self) -> usize {
        self.width() * self.y.taps * self.x.taps * self.channels
    }

    /// Computes a panel's results of a block of tiles from pixels and all panels.
    unsafe fn panel(
        &self,
        plan: &Plan,
        (view, weights): (&View, *const f32),
        panel: usize,
        rows: &[(Range<usize>, usize)],
        columns: &[(Range<usize>, usize)],
        to: *mut f32,
    ) {
        let (width, taps) = (self.width(), self.y.taps * self.x.taps);
        let (of_group, outputs) = (self.outputs.div_ceil(width), self.outputs_of_panel(panel).len());
        let group = panel / of_group;
        let codes = match self.outputs_of(group) < self.outputs {
            true => &plan.last,
            false => &plan.codes[(outputs - 1) / self.vector()],
        };
        let panel = group * self.weight_group + panel % of_group * self.panel_words();
        let (Some(y), Some(x)) = (spanned(rows), spanned(columns)) else { return };
        let pitch = width * plan.side_by_side;
        for channels in (0..plan.parts).map(|at| part(self.channels, plan.parts, at)) {
            let layout = Layout {
                channel: view.channel * size_of::<f32>() as isize,
                row: view.row * size_of::<f32>() as isize,
                channels: channels.len(),
                out_row: x.len() * pitch * size_of::<f32>(),
                adds: usize::from(channels.start > 0),
                tap_bytes: self.channels * width * size_of::<f32>(),
                tap_rest: (self.channels - channels.len()) * width * size_of::<f32>(),
            };
            let skipped = channels.start as isize * view.channel;
            let before = channels.start * if self.taps_first { 1 } else { taps };
            let weights = weights.wrapping_add(panel + before * width);
            for ((row, row_span), (column, column_span)) in
                rows.iter().flat_map(|row| columns.iter().map(move |column| (row, column)))
            {
                let code = codes[row_span * plan.spans + column_span];
                let at = view.at(
                    self.y.start + (row.start * self.y.stride) as isize,
                    self.x.start + (column.start * self.x.stride) as isize,
                );
                let to = to.wrapping_add(((row.start - y.start) * x.len() + column.start - x.start) * pitch);
                // SAFETY: the code reads pixels inside the image and whole panels, and writes pixels of the block.
                unsafe { code(at.wrapping_offset(skipped), weights, to, &layout) };
            }
        }
    }

    /// Hands a block of pixels × results to the epilogue.
    unsafe fn finish(
        &self,
        plan: &Plan,
        results: *mut f32,
        outputs: Range<usize>,
        place: usize,
        pixels: usize,
        epilogue: &dyn Epilogue,
    ) {
        let width = self.width() * plan.side_by_side;
        let (output, outputs) = (outputs.start, outputs.len());
        let tile = Tile {
            data: results.cast(),
            dtype: DType::F32,
            row_stride: width,
            row: place,
            rows: pixels,
            column: output,
            columns: outputs,
        };
        if self.pixels_first {
            // SAFETY: the caller's promise.
            return unsafe { epilogue.apply(tile) };
        }
        let pitch = pixels.next_multiple_of(self.vector());
        let turned = Scratch::take::<f32>(outputs * pitch);
        let from = Lanes { data: results.cast(), dtype: DType::F32, lane_stride: width as isize, k_stride: 1 };
        // SAFETY: the block has as many pixels and results, and its transposition room.
        unsafe {
            pack::<f32>(self.isa, &from, 0..pixels, pitch, 0..outputs, turned.ptr());
            epilogue.apply(Tile {
                data: turned.ptr(),
                row_stride: pitch,
                row: output,
                rows: outputs,
                column: place,
                columns: pixels,
                ..tile
            });
        }
    }
}

/// The places of consecutive tiles.
fn spanned(tiles: &[(Range<usize>, usize)]) -> Option<Range<usize>> {
    Some(tiles.first()?.0.start..tiles.last()?.0.end)
}
