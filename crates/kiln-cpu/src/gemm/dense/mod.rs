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

mod kernel;
mod stage;
#[cfg(test)]
mod tests;
mod weights;

use super::direct::WindowAxis;
use super::pack::{Lanes, pack};
use super::scratch::Scratch;
use super::source::{Epilogue, Tile};
use super::spans::{MOST_PLACES, fit, tiles};
use super::{GemmError, part};
use crate::features::Isa;
use crate::pool;
pub(in crate::gemm) use kernel::Shape;
use kernel::{DenseFn, Layout, most_pixels};
use kiln_ir::DType;
pub use stage::{Pixels, Runs, interleave};
use std::ops::Range;
pub use weights::pack_taps;

/// Bytes of results that go to the epilogue at once.
const BLOCK_BYTES: usize = 32 << 10;
/// Bytes of an image's rows that a task goes over once a panel.
const IMAGE_BYTES: usize = 384 << 10;
/// Bytes of a panel's weights that every tile reads.
const WEIGHT_BYTES: usize = 512 << 10;
/// Multiply-adds that are not worth a second thread.
const SERIAL_WORK: usize = 1 << 16;
/// Taps of a window whose code fits the first level.
const MOST_TAPS: usize = 49;
/// Vectors of a panel.
const VECTORS: usize = 2;

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
    /// Panels of weights, `[group][panel][channel][tap][result]`, padded with anything: floats, or bf16 of two
    /// channels where the image has pairs; see [`Dense::panel_width`].
    pub weights: *const f32,
    /// Elements from one group's panels to the next group's.
    pub weight_group: usize,
    /// Groups, or vectors of them.
    pub groups: usize,
    /// Zero, or the results and the channels of each of the groups that a vector's lanes are: floats side by side.
    pub several: usize,
    /// Results of a group.
    pub outputs: usize,
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
    /// Different spans of columns.
    spans: usize,
    /// Whether blocks and tasks are parts of one long row, and not rows.
    is_one_row: bool,
    /// Rows of tiles of a block and of a task, or columns of them.
    block_lines: usize,
    task_lines: usize,
    /// Parts of the channels.
    parts: usize,
}

impl Dense {
    /// Results of a panel.
    pub fn panel_width(isa: Isa) -> usize {
        VECTORS * if isa == Isa::Avx512 { 16 } else { 8 }
    }

    fn vector(&self) -> usize {
        Dense::vector_of(self.isa)
    }

    /// Results of a vector.
    pub fn vector_of(isa: Isa) -> usize {
        Dense::panel_width(isa) / VECTORS
    }

    /// Whether there is code for it.
    pub fn is_possible(&self) -> bool {
        let taps = self.y.taps * self.x.taps;
        let reach = self.x.taps * self.x.dilation + MOST_PLACES * self.x.stride;
        let pixel = self.pixel_stride.unsigned_abs().saturating_mul(size_of::<f32>());
        let small = fit(&self.y) && fit(&self.x);
        self.isa != Isa::Portable && small && taps <= MOST_TAPS && pixel.saturating_mul(reach) < 1 << 30
    }

    /// The plan of a convolution of these sizes and strides, wherever its memory is; `None` where there is no code for it.
    pub fn plan(&self) -> Result<Option<Plan>, GemmError> {
        if self.outputs == 0 || self.channels == 0 || self.y.places * self.x.places == 0 || !self.is_possible() {
            return Ok(None);
        }
        let taps = self.y.taps * self.x.taps;
        let width = Dense::panel_width(self.isa);
        let pixel = if self.pixels.is_staged() { 1 } else { self.pixel_stride };
        let several = self.several as u8;
        let (pixel, pairs) = ((pixel * size_of::<f32>() as isize) as i32, self.pixels.has_pairs());
        let most = most_pixels(self.isa, VECTORS);
        let columns = self.x.places.div_ceil(self.x.places.div_ceil(most.min(MOST_PLACES)));
        let rows = (most / columns).clamp(1, self.y.places.min(MOST_PLACES));
        let (rows, row_spans) = tiles(&self.y, rows);
        let (columns, column_spans) = tiles(&self.x, columns);
        let mut codes = [Vec::new(), Vec::new()];
        let last = self.outputs % width;
        let needed = [(1..=self.vector()).contains(&last), self.outputs >= width || last > self.vector()];
        for (vectors, codes) in codes.iter_mut().enumerate().filter(|&(vectors, _)| needed[vectors]) {
            for (&y, &x) in row_spans.iter().flat_map(|y| column_spans.iter().map(move |x| (y, x))) {
                let (vectors, panel) = (vectors as u8 + 1, VECTORS as u8);
                codes.push(kernel::get(Shape { isa: self.isa, vectors, panel, y, x, pixel, pairs, several })?);
            }
        }
        let is_one_row = self.y.places == 1;
        let lines = if is_one_row { columns.len() } else { rows.len() };
        let line_places = (self.y.places * self.x.places).div_ceil(lines);
        let block_lines = (BLOCK_BYTES / (line_places * width * size_of::<f32>())).max(1);
        let line_bytes = self.channels * line_places * self.x.stride * self.y.stride * size_of::<f32>();
        let task_lines = (IMAGE_BYTES / line_bytes.max(1)).max(block_lines).min(lines);
        let parts = (self.channels * taps * width * size_of::<f32>()).div_ceil(WEIGHT_BYTES);
        Ok(Some(Plan {
            rows,
            columns,
            codes,
            spans: column_spans.len(),
            is_one_row,
            block_lines,
            task_lines,
            parts: parts.clamp(1, self.channels),
        }))
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
        let panels = self.outputs.div_ceil(Dense::panel_width(self.isa));
        let lines = if plan.is_one_row { plan.columns.len() } else { plan.rows.len() };
        // As many tasks as threads want: of fewer lines, then of fewer panels.
        let wanted = if threads == 1 { 1 } else { (4 * threads).div_ceil((self.images * self.groups * panels).max(1)) };
        let line_tasks = lines.div_ceil(plan.task_lines).max(wanted.min(lines));
        let tasks = self.images * self.groups * line_tasks;
        let panel_tasks = if threads == 1 || tasks == 0 { 1 } else { (4 * threads).div_ceil(tasks).min(panels) };
        pool::run(tasks * panel_tasks, threads, &|task| {
            let (outer, panel_task) = (task / panel_tasks, task % panel_tasks);
            let (outer, line_task) = (outer / line_tasks, outer % line_tasks);
            let (image, group) = (outer / self.groups, outer % self.groups);
            let lines = part(lines, line_tasks, line_task);
            let panels = part(panels, panel_tasks, panel_task);
            // SAFETY: tasks cover disjoint results; the rest is the caller's promise.
            unsafe { self.task(plan, image, group, lines, panels, epilogue) };
        });
    }

    /// Some lines of tiles of an image, and some panels of a group.
    unsafe fn task(
        &self,
        plan: &Plan,
        image: usize,
        group: usize,
        lines: Range<usize>,
        panels: Range<usize>,
        epilogue: &dyn Epilogue,
    ) {
        let (width, taps) = (Dense::panel_width(self.isa), self.y.taps * self.x.taps);
        let of_task = match plan.is_one_row {
            true => (spanned(&plan.rows), spanned(&plan.columns[lines.clone()])),
            false => (spanned(&plan.rows[lines.clone()]), spanned(&plan.columns)),
        };
        let (Some(y), Some(x)) = of_task else { return };
        // SAFETY: the caller's promise.
        let view = unsafe { self.view(image, group, &y, &x) };
        let blocks = lines.len().div_ceil(plan.block_lines);
        for panel in panels {
            let outputs = panel * width..self.outputs.min((panel + 1) * width);
            let panel = group * self.weight_group + panel * width * taps * self.channels;
            for block in 0..blocks {
                let block = part(lines.len(), blocks, block);
                let block = lines.start + block.start..lines.start + block.end;
                let (rows, columns) = match plan.is_one_row {
                    true => (&plan.rows[..], &plan.columns[block]),
                    false => (&plan.rows[block], &plan.columns[..]),
                };
                let (Some(y), Some(x)) = (spanned(rows), spanned(columns)) else { continue };
                let pixels = y.len() * x.len();
                let results = Scratch::take::<f32>(pixels * width);
                for channels in (0..plan.parts).map(|at| part(self.channels, plan.parts, at)) {
                    let layout = Layout {
                        channel: view.channel * size_of::<f32>() as isize,
                        row: view.row * size_of::<f32>() as isize,
                        channels: channels.len(),
                        out_row: x.len() * width * size_of::<f32>(),
                        adds: usize::from(channels.start > 0),
                    };
                    let skipped = channels.start as isize * view.channel;
                    let weights = self.weights.wrapping_add(panel + channels.start * taps * width);
                    for ((row, row_span), (column, column_span)) in
                        rows.iter().flat_map(|row| columns.iter().map(move |column| (row, column)))
                    {
                        let code = plan.codes[(outputs.len() - 1) / self.vector()][row_span * plan.spans + column_span];
                        let at = view.at(
                            self.y.start + (row.start * self.y.stride) as isize,
                            self.x.start + (column.start * self.x.stride) as isize,
                        );
                        let to = ((row.start - y.start) * x.len() + column.start - x.start) * width;
                        // SAFETY: the code reads pixels inside the image and whole panels, and writes pixels of the block.
                        unsafe { code(at.wrapping_offset(skipped), weights, results.ptr::<f32>().add(to), &layout) };
                    }
                }
                // The block's places follow each other: whole rows, or a part of one.
                let column = (image * self.y.places + y.start) * self.x.places + x.start;
                let row = group * self.outputs + outputs.start;
                // SAFETY: the block was written above; the epilogue gets each result once.
                unsafe { self.finish(results.ptr(), row, outputs.len(), column, pixels, epilogue) };
            }
        }
    }

    /// Hands a block of pixels × results to the epilogue.
    unsafe fn finish(
        &self,
        results: *mut f32,
        output: usize,
        outputs: usize,
        place: usize,
        pixels: usize,
        epilogue: &dyn Epilogue,
    ) {
        let width = Dense::panel_width(self.isa);
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
