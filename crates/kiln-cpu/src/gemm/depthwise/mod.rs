//! Depthwise convolution with channels in lanes: as many channels as a vector has lanes are transposed, convolved and transposed back.
//!
//! ```text
//!  for each image, vector of channels and block of rows           (tasks of the pool)
//!     the block's pixels become `[pixel][channel]`, unless they lie so in memory
//!     for each chunk of lines of results, and tile of places of a line: micro-kernel      (`kernel`)
//!        the chunk, pixels × channels or transposed, goes to the epilogue
//! ```
//!
//! Of images with their channels last a task has some vectors side by side, so that the epilogue's rows are long.
//!
//! Against planes with pixels in lanes (`direct`) no lane is idle however short rows are, padding costs nothing, and what a plane costs by
//! itself is paid once for all channels of a vector. Both transpositions together take as long as some twenty multiplications a pixel.

mod kernel;
#[cfg(test)]
mod tests;

use super::direct::WindowAxis;
use super::pack::{Lanes, pack};
use super::scratch::Scratch;
use super::source::{Epilogue, Tile};
use super::spans::{MOST_PLACES, Span, fit, taps_inside, tiles, under};
use super::{GemmError, part};
use crate::features::Isa;
use crate::pool;
pub(in crate::gemm) use kernel::Shape;
use kernel::{DepthwiseFn, Layout, Line, most_places};
use kiln_ir::DType;
use std::ops::Range;

/// Bytes of a block's pixels, a part of the second level.
const BLOCK_BYTES: usize = 128 << 10;
/// Bytes of results that go to the epilogue at once.
const CHUNK_BYTES: usize = 24 << 10;
/// The same of several vectors of channels, a part of the second level, and the lines that they have at the least.
const WIDE_CHUNK_BYTES: usize = 96 << 10;
const FEWEST_LINES: usize = 2;
/// Multiply-adds that are not worth a second thread.
const SERIAL_WORK: usize = 1 << 16;
/// Taps of a row whose code fits the first level.
const MOST_TAPS: usize = 32;

/// A convolution of each channel with a window of its own.
#[derive(Clone, Debug)]
pub struct Depthwise {
    /// Target; not [`Isa::Portable`].
    pub isa: Isa,
    /// The most threads to use.
    pub threads: usize,
    /// The pixel under the first tap of the first result, which may be outside the image.
    pub image: *const u8,
    /// F32, Bf16 or F16.
    pub image_dtype: DType,
    /// Number of images.
    pub images: usize,
    /// Elements from one image to the next.
    pub image_stride: isize,
    /// Channels.
    pub channels: usize,
    /// Elements from one channel to the next.
    pub channel_stride: isize,
    /// Elements from one row of pixels to the next.
    pub row_stride: isize,
    /// Elements from one pixel of a row to the next.
    pub pixel_stride: isize,
    /// Weights; the axes have the strides along taps.
    pub weights: *const u8,
    /// F32, Bf16 or F16.
    pub weight_dtype: DType,
    /// Elements from one channel's weights to the next channel's.
    pub weight_channel: isize,
    /// Rows.
    pub y: WindowAxis,
    /// Pixels of a row.
    pub x: WindowAxis,
    /// Whether rows of the tiles that the epilogue gets are pixels and columns channels, and not the other way round.
    pub pixels_first: bool,
}

// SAFETY: a description of memory; the caller that runs a convolution guarantees that it is valid.
unsafe impl Send for Depthwise {}
// SAFETY: as above.
unsafe impl Sync for Depthwise {}

/// How a convolution is cut.
struct Plan {
    /// The pixels of a row that are read.
    pixels: Range<usize>,
    /// Blocks of rows.
    blocks: usize,
    /// Lines of results of a chunk.
    chunk: usize,
    /// Vectors of channels of a task: several where all of their results are one chunk, or side by side in one.
    vectors: usize,
    /// Whether the results of a task's vectors are side by side.
    side_by_side: bool,
    /// For pixels where they are in memory, and for transposed ones: of all vectors of channels, or of a last one that is not whole.
    in_place: Option<Code>,
    transposed: Option<Code>,
}

/// The code for pixels that are so far from each other.
struct Code {
    /// Places of each tile of a line.
    tiles: Vec<(Range<usize>, DepthwiseFn)>,
    /// All lines of results.
    lines: Vec<Line>,
    /// Bytes from one pixel to the next, and from one row to the next.
    pixel: isize,
    row: isize,
    /// Elements from the results of one place to those of the next.
    out: usize,
}

impl Depthwise {
    fn vector(&self) -> usize {
        if self.isa == Isa::Avx512 { 16 } else { 8 }
    }

    /// Whether there is code for it.
    pub fn is_possible(&self) -> bool {
        let floats = |dtype| matches!(dtype, DType::F32 | DType::Bf16 | DType::F16);
        let reach = self.x.taps * self.x.dilation + MOST_PLACES * self.x.stride;
        let pixel = self.pixel_stride.unsigned_abs().max(self.vector()).saturating_mul(size_of::<f32>());
        self.isa != Isa::Portable
            && floats(self.image_dtype)
            && floats(self.weight_dtype)
            && fit(&self.y)
            && fit(&self.x)
            && self.x.taps <= MOST_TAPS
            && pixel.saturating_mul(reach) < 1 << 30
    }

    fn plan(&self) -> Result<Plan, GemmError> {
        let vector = self.vector();
        let pixels = under(&self.x, &(0..self.x.places));
        let stays = self.channel_stride == 1;
        let in_place = stays && self.channels >= vector;
        let transposed = !stays || !self.channels.is_multiple_of(vector);
        let row_bytes = pixels.len().max(1) * self.y.stride * vector * size_of::<f32>();
        let blocks = self.y.places.div_ceil((BLOCK_BYTES / row_bytes).max(self.y.taps * self.y.dilation));
        let line_bytes = self.x.places * vector * size_of::<f32>();
        let side_by_side = self.pixels_first && stays;
        // All channels of some lines are read as they follow each other, and lines beyond a chunk once more.
        let most = (WIDE_CHUNK_BYTES / (FEWEST_LINES * line_bytes)).clamp(1, self.channels.div_ceil(vector));
        let chunk = match side_by_side {
            true => WIDE_CHUNK_BYTES / (line_bytes * most),
            false => CHUNK_BYTES / line_bytes,
        };
        let chunk = chunk.max(1);
        let vectors = match chunk < self.y.places || blocks > 1 {
            _ if side_by_side => most,
            true => 1,
            false => CHUNK_BYTES / (line_bytes * self.y.places),
        };
        let out = vector * if side_by_side { vectors } else { 1 };
        let own = || self.code(self.image_dtype, self.pixel_stride, self.row_stride, out);
        let packed = || self.code(DType::F32, vector as isize, (vector * pixels.len()) as isize, out);
        Ok(Plan {
            side_by_side,
            in_place: in_place.then(own).transpose()?,
            transposed: transposed.then(packed).transpose()?,
            pixels,
            blocks,
            chunk,
            vectors,
        })
    }

    fn code(&self, dtype: DType, pixel: isize, row: isize, out: usize) -> Result<Code, GemmError> {
        let size = (dtype.size_in_bits() / 8) as isize;
        let (pixel, row) = (pixel * size, row * size);
        let most = most_places(self.isa, self.x.taps).min(MOST_PLACES);
        let (places, spans) = tiles(&self.x, self.x.places.div_ceil(self.x.places.div_ceil(most)));
        let (pixel_bytes, out_bytes) = (pixel as i32, (out * size_of::<f32>()) as i32);
        let code = |&x: &Span| kernel::get(Shape { isa: self.isa, x, pixel: pixel_bytes, dtype, out: out_bytes });
        let codes = spans.iter().map(code).collect::<Result<Vec<_>, _>>()?;
        let line = |line: usize| {
            let taps = taps_inside(&self.y, line);
            let at = self.y.start + (line * self.y.stride + taps.start * self.y.dilation) as isize;
            let weights = taps.start * self.x.taps * self.vector() * size_of::<f32>();
            Line { image: at * row, weights, taps: taps.len() }
        };
        Ok(Code {
            tiles: places.into_iter().map(|(places, span)| (places, codes[span])).collect(),
            lines: (0..self.y.places).map(line).collect(),
            pixel,
            row,
            out,
        })
    }

    /// Runs it; false, and nothing done, where there is no code for it. Rows of the tiles that the epilogue gets are channels and columns
    /// pixels of all images, or the other way round.
    ///
    /// # Safety
    /// Every pixel inside the images and every weight must be readable, and nothing that the epilogue writes may overlap them.
    pub unsafe fn run(&self, epilogue: &dyn Epilogue) -> Result<bool, GemmError> {
        if self.images == 0 || self.channels == 0 || self.y.places * self.x.places == 0 {
            return Ok(true);
        }
        if !self.is_possible() {
            return Ok(false);
        }
        let plan = self.plan()?;
        let (vector, taps) = (self.vector(), self.y.taps * self.x.taps);
        let work = self.images * self.channels * self.y.places * self.x.places * taps;
        let threads = if work < SERIAL_WORK { 1 } else { self.threads };
        let vectors = self.channels.div_ceil(vector);
        // As many tasks as threads want.
        let wanted = if threads == 1 { 1 } else { (4 * threads).div_ceil(self.images * plan.blocks) };
        let vector_tasks = vectors.div_ceil(plan.vectors).max(wanted.min(vectors));
        // Weights are transposed once where images share them, and by the task elsewhere.
        let shared = self.images * plan.blocks > 1;
        let packed = Scratch::take::<f32>(if shared { vectors * taps * vector } else { 0 });
        let all = Shared(packed.ptr());
        if shared {
            for number in 0..vectors {
                // SAFETY: room for the weights of all vectors.
                unsafe { self.pack_weights(number, all.get().add(number * taps * vector)) };
            }
        }
        pool::run(self.images * vector_tasks * plan.blocks, threads, &|task| {
            let (outer, block) = (task / plan.blocks, task % plan.blocks);
            let (image, numbers) = (outer / vector_tasks, part(vectors, vector_tasks, outer % vector_tasks));
            let own = Scratch::take::<f32>(if shared { 0 } else { numbers.len() * taps * vector });
            let lines = part(self.y.places, plan.blocks, block);
            // SAFETY: tasks cover disjoint results; weights are those of the vectors; the rest is the caller's promise.
            unsafe {
                let weights = match shared {
                    true => all.get().add(numbers.start * taps * vector),
                    false => {
                        for (i, number) in numbers.clone().enumerate() {
                            self.pack_weights(number, own.ptr::<f32>().add(i * taps * vector));
                        }
                        own.ptr()
                    }
                };
                match plan.side_by_side {
                    true => self.task_side_by_side(&plan, weights, image, numbers, lines, epilogue),
                    false => self.task(&plan, weights, image, numbers, lines, epilogue),
                }
            }
        });
        Ok(true)
    }

    /// The channels of a vector.
    fn channels_of(&self, number: usize) -> Range<usize> {
        number * self.vector()..self.channels.min((number + 1) * self.vector())
    }

    /// Weights of a vector of channels: `[tap][channel]`.
    unsafe fn pack_weights(&self, number: usize, to: *mut f32) {
        let channels = self.channels_of(number);
        let size = (self.weight_dtype.size_in_bits() / 8) as isize;
        let (y, x) = (&self.y, &self.x);
        let even = y.taps == 1 || y.weight_stride == x.weight_stride * x.taps as isize;
        let (calls, taps) = if even { (1, y.taps * x.taps) } else { (y.taps, x.taps) };
        for call in 0..calls {
            let first = channels.start as isize * self.weight_channel + call as isize * y.weight_stride;
            let from = Lanes {
                data: self.weights.wrapping_offset(first * size),
                dtype: self.weight_dtype,
                lane_stride: self.weight_channel,
                k_stride: if x.taps == 1 { y.weight_stride } else { x.weight_stride },
            };
            let to = to.wrapping_add(call * taps * self.vector());
            // SAFETY: the weights of the vector's channels, and their place.
            unsafe { pack::<f32>(self.isa, &from, 0..channels.len(), self.vector(), 0..taps, to) };
        }
    }

    /// Some lines of results of some vectors of channels.
    unsafe fn task(
        &self,
        plan: &Plan,
        weights: *const f32,
        image: usize,
        numbers: Range<usize>,
        lines: Range<usize>,
        epilogue: &dyn Epilogue,
    ) {
        let (vector, taps) = (self.vector(), self.y.taps * self.x.taps);
        let rows = under(&self.y, &lines);
        let most = plan.chunk.min(lines.len()) * self.x.places;
        let results = Scratch::take::<f32>(most * vector);
        let pitch = most.next_multiple_of(vector);
        let turned = Scratch::take::<f32>(if self.pixels_first { 0 } else { numbers.len() * vector * pitch });
        let room = if plan.transposed.is_some() { rows.len() * plan.pixels.len() * vector } else { 0 };
        let block = Scratch::take::<f32>(room);
        // Where there are several vectors there is one chunk.
        for (i, number) in numbers.clone().enumerate() {
            let channels = self.channels_of(number);
            let turned = turned.ptr::<f32>().wrapping_add(i * vector * pitch);
            // SAFETY: the caller's promise, and room for the rows.
            let Some((code, first)) = (unsafe { self.pixels(plan, image, &channels, &rows, block.ptr()) }) else {
                return;
            };
            let weights = weights.wrapping_add(i * taps * vector);
            for start in lines.clone().step_by(plan.chunk) {
                let chunk = start..lines.end.min(start + plan.chunk);
                let (place, pixels) = ((image * self.y.places + start) * self.x.places, chunk.len() * self.x.places);
                let tile = Tile {
                    data: results.ptr(),
                    dtype: DType::F32,
                    row_stride: vector,
                    row: place,
                    rows: pixels,
                    column: channels.start,
                    columns: channels.len(),
                };
                // SAFETY: there is room for the lines and their transposition; the epilogue gets each result once.
                unsafe {
                    self.lines(plan, code, first, weights, chunk, results.ptr());
                    if self.pixels_first {
                        epilogue.apply(tile);
                        continue;
                    }
                    let from = Lanes { data: tile.data, dtype: DType::F32, lane_stride: vector as isize, k_stride: 1 };
                    pack::<f32>(self.isa, &from, 0..pixels, pitch, 0..channels.len(), turned);
                    if numbers.len() == 1 {
                        epilogue.apply(turned_tile(turned, pitch, channels.clone(), place, pixels));
                    }
                }
            }
        }
        if numbers.len() > 1 && !self.pixels_first {
            let channels = self.channels_of(numbers.start).start..self.channels_of(numbers.end - 1).end;
            let place = (image * self.y.places + lines.start) * self.x.places;
            // SAFETY: the results of all channels were transposed above.
            unsafe { epilogue.apply(turned_tile(turned.ptr(), pitch, channels, place, lines.len() * self.x.places)) };
        }
    }

    /// Some lines of results of some vectors of channels, beside each other as the epilogue takes them.
    unsafe fn task_side_by_side(
        &self,
        plan: &Plan,
        weights: *const f32,
        image: usize,
        numbers: Range<usize>,
        lines: Range<usize>,
        epilogue: &dyn Epilogue,
    ) {
        let (vector, taps) = (self.vector(), self.y.taps * self.x.taps);
        let row_stride = plan.vectors * vector;
        let rows = under(&self.y, &lines);
        let channels = self.channels_of(numbers.start).start..self.channels_of(numbers.end - 1).end;
        // The last vector of all channels may be the only one that is not whole.
        let room = if plan.transposed.is_some() { rows.len() * plan.pixels.len() * vector } else { 0 };
        let block = Scratch::take::<f32>(room);
        // SAFETY: the caller's promise, and room for the rows.
        let sources = numbers
            .clone()
            .map(|number| unsafe { self.pixels(plan, image, &self.channels_of(number), &rows, block.ptr()) });
        let Some(sources) = sources.collect::<Option<Vec<_>>>() else { return };
        let results = Scratch::take::<f32>(plan.chunk.min(lines.len()) * self.x.places * row_stride);
        for start in lines.clone().step_by(plan.chunk) {
            let chunk = start..lines.end.min(start + plan.chunk);
            for (i, &(code, first)) in sources.iter().enumerate() {
                let weights = weights.wrapping_add(i * taps * vector);
                // SAFETY: room for the lines of all vectors.
                unsafe { self.lines(plan, code, first, weights, chunk.clone(), results.ptr::<f32>().add(i * vector)) };
            }
            // SAFETY: the results were written above; the epilogue gets each once.
            unsafe {
                epilogue.apply(Tile {
                    data: results.ptr(),
                    dtype: DType::F32,
                    row_stride,
                    row: (image * self.y.places + start) * self.x.places,
                    rows: chunk.len() * self.x.places,
                    column: channels.start,
                    columns: channels.len(),
                });
            }
        }
    }

    /// The code for a vector of channels, and the first of its pixels in row 0 of the image: in memory, or transposed in the block.
    unsafe fn pixels<'a>(
        &self,
        plan: &'a Plan,
        image: usize,
        channels: &Range<usize>,
        rows: &Range<usize>,
        block: *mut f32,
    ) -> Option<(&'a Code, *const u8)> {
        let size = (self.image_dtype.size_in_bits() / 8) as isize;
        let first = image as isize * self.image_stride
            + channels.start as isize * self.channel_stride
            + (rows.start as isize - self.y.start) * self.row_stride
            + (plan.pixels.start as isize - self.x.start) * self.pixel_stride;
        let first = self.image.wrapping_offset(first * size);
        let (code, first) = match (&plan.in_place, &plan.transposed) {
            (Some(code), _) if channels.len() == self.vector() => (code, first),
            (_, Some(code)) => {
                // SAFETY: the rows are inside the image, the block has room for them.
                unsafe { self.fill(first, rows.len(), plan.pixels.len(), channels.len(), block) };
                (code, block.cast_const().cast())
            }
            _ => return None,
        };
        // Lines know their places in the whole image.
        Some((code, first.wrapping_offset(-(rows.start as isize) * code.row)))
    }

    /// Computes lines of results.
    unsafe fn lines(
        &self,
        plan: &Plan,
        code: &Code,
        first: *const u8,
        weights: *const f32,
        lines: Range<usize>,
        to: *mut f32,
    ) {
        let layout = Layout {
            tap_row: code.row * self.y.dilation as isize,
            lines: lines.len(),
            out_row: self.x.places * code.out * size_of::<f32>(),
        };
        for (places, run) in &code.tiles {
            let at = self.x.start + (places.start * self.x.stride) as isize - plan.pixels.start as isize;
            // SAFETY: the code reads pixels inside the image and the vector's weights, and writes the lines.
            unsafe {
                let to = to.add(places.start * code.out);
                run(first.wrapping_offset(at * code.pixel), weights, to, &code.lines[lines.start], &layout);
            }
        }
    }

    /// Transposes rows of pixels.
    unsafe fn fill(&self, from: *const u8, rows: usize, pixels: usize, channels: usize, to: *mut f32) {
        let size = (self.image_dtype.size_in_bits() / 8) as isize;
        // Rows that follow each other are one.
        let (calls, count) = match self.row_stride == self.pixel_stride * pixels as isize {
            true => (1, rows * pixels),
            false => (rows, pixels),
        };
        for call in 0..calls {
            let from = Lanes {
                data: from.wrapping_offset(call as isize * self.row_stride * size),
                dtype: self.image_dtype,
                lane_stride: self.channel_stride,
                k_stride: self.pixel_stride,
            };
            let to = to.wrapping_add(call * pixels * self.vector());
            // SAFETY: the caller's promise.
            unsafe { pack::<f32>(self.isa, &from, 0..channels, self.vector(), 0..count, to) };
        }
    }
}

/// Results of channels × pixels.
fn turned_tile(data: *mut f32, row_stride: usize, channels: Range<usize>, column: usize, columns: usize) -> Tile {
    let (row, rows) = (channels.start, channels.len());
    Tile { data: data.cast(), dtype: DType::F32, row_stride, row, rows, column, columns }
}

/// Packed weights that tasks share.
struct Shared(*mut f32);
// SAFETY: written before tasks begin, and only read by them.
unsafe impl Sync for Shared {}
impl Shared {
    fn get(&self) -> *mut f32 {
        self.0
    }
}
