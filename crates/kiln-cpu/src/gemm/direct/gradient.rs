//! Gradients of a convolution's weights without unfolding pixels: the product of a gradient with the pixels under every tap, summed over
//! images and places.
//!
//! ```text
//!  few outputs a group       for each group and channel, image and block of rows:  planes, then a call a tile of outputs and taps
//!  pixels with gaps          every image transposed to planes of f32 first (channels that lie innermost)
//!  many outputs a group      for each image:  the gradient transposed, pixels × outputs      (shared)
//!                               for each block of rows and channel: planes, then a call a tile of outputs and taps
//! ```
//!
//! Sums are kept in memory between calls, whose order is that of images and rows whatever the number of threads is.

use super::super::pack::{Lanes, pack};
use super::super::scratch::Scratch;
use super::super::source::{Epilogue, Tile};
use super::super::{GemmError, part};
use super::gradient_kernel::{self, Call, GradientFn, GradientShape, MOST_OUTPUTS, MOST_VECTORS, Over};
use super::kernel::{Taps, lanes};
use super::planes::RowCopy;
use super::{Direct, Shared};
use crate::features::Isa;
use crate::pool;
use kiln_ir::DType;
use std::ops::Range;

/// Outputs of a group from which on lanes are outputs.
const MANY_OUTPUTS: usize = 12;
/// Bytes of a block's transposed gradient, a part of the second level, and of a channel's planes, of the first.
const GRADIENT_BYTES: usize = 256 << 10;
const PLANE_BYTES: usize = 20 << 10;
/// The most taps: more are no window of a convolution.
const MOST_TAPS: usize = 256;
/// Tasks a thread.
const TASKS: usize = 4;

/// The gradient of a convolution's weights.
#[derive(Clone, Debug)]
pub struct Gradient {
    /// The convolution. Its weights are not read, but the axes say which column of the result each tap is.
    pub windows: Direct,
    /// The gradient of the first result.
    pub gradient: *const u8,
    /// F32, Bf16 or F16.
    pub dtype: DType,
    /// Elements from one image to the next.
    pub image_stride: isize,
    /// Elements from one group's outputs to the next group's.
    pub group_stride: isize,
    /// Elements from one output to the next.
    pub output_stride: isize,
    /// Elements from one row of pixels to the next.
    pub row_stride: isize,
    /// Elements from one pixel to the next.
    pub pixel_stride: isize,
    /// Elements from one pixel of a row of the image to the next.
    pub image_pixel: isize,
}

// SAFETY: a description of memory; the caller that runs a product guarantees that it is valid.
unsafe impl Send for Gradient {}
// SAFETY: as above.
unsafe impl Sync for Gradient {}

/// The planes of a channel.
struct Channel {
    phases: (Vec<usize>, Vec<usize>),
    copies: Vec<RowCopy>,
    pitch: usize,
    /// Blocks of rows, and rows of a plane of the largest.
    blocks: usize,
    plane_rows: usize,
}

/// Taps of one call.
struct TapTile {
    shape: GradientShape,
    code: GradientFn,
    /// Where each line is in the planes, in elements.
    lines: Vec<usize>,
}

impl Gradient {
    /// Whether the sizes are those of a window that moves over an image, with as many outputs as there is code for.
    pub fn is_for(windows: &Direct) -> bool {
        let (y, x) = (&windows.y, &windows.x);
        let taps = y.taps * x.taps;
        let ordered = (x.taps == 1 || x.weight_stride == 1)
            && (y.taps == 1 || y.weight_stride == x.taps as isize)
            && (windows.channels == 1 || windows.weight_channel == taps as isize);
        (2..=MOST_TAPS).contains(&taps) && taps <= y.places * x.places && ordered
    }

    fn channel(&self, y: Taps, x: Taps, block_bytes: usize, row_bytes: usize) -> Channel {
        let windows = &self.windows;
        let phases = (y.phases(), x.phases());
        let pitch = windows.x.places + x.reach();
        let plane = phases.0.len() * phases.1.len() * pitch * size_of::<f32>();
        let most = (block_bytes / row_bytes).min((PLANE_BYTES / plane).saturating_sub(y.reach()));
        let blocks = windows.y.places.div_ceil(most.max(4.min(windows.y.places)));
        let copy = |&phase: &usize| {
            let start = windows.x.start + phase as isize;
            RowCopy::new(windows.isa, windows.image_dtype, start, windows.x.stride, windows.x.length, pitch)
        };
        Channel {
            copies: phases.1.iter().map(copy).collect(),
            phases,
            pitch,
            blocks,
            plane_rows: windows.y.places.div_ceil(blocks) + y.reach(),
        }
    }

    /// Runs it; false, and nothing done, where there is no code for it. Rows of the tiles that the epilogue gets are outputs of all
    /// groups, columns are `[channel][tap]`.
    ///
    /// # Safety
    /// Every pixel inside the images and every element of the gradient must be readable, and nothing that the epilogue writes may
    /// overlap them.
    pub unsafe fn run(&self, epilogue: &dyn Epilogue) -> Result<bool, GemmError> {
        let windows = &self.windows;
        if windows.images == 0
            || windows.groups * windows.outputs * windows.channels == 0
            || windows.isa == Isa::Portable
            || !Gradient::is_for(windows)
        {
            return Ok(false);
        }
        let (Some(y), Some(x)) = (windows.y.taps(), windows.x.taps()) else { return Ok(false) };
        // SAFETY: the caller's promise.
        unsafe {
            if self.image_pixel != 1 {
                self.of_transposed(epilogue)
            } else if windows.outputs >= MANY_OUTPUTS {
                self.over_outputs(y, x, epilogue)
            } else {
                self.over_pixels(y, x, epilogue)
            }
        }
    }

    /// The same after the images are transposed, so that their pixels are side by side; false where rows have gaps.
    unsafe fn of_transposed(&self, epilogue: &dyn Epilogue) -> Result<bool, GemmError> {
        let windows = &self.windows;
        let (height, width) = (windows.y.length, windows.x.length);
        if height <= 0 || width <= 0 || (height > 1 && windows.row_stride != width * self.image_pixel) {
            return Ok(false);
        }
        let pixels = (height * width) as usize;
        let (group, size) = (windows.channels * pixels, (windows.image_dtype.size_in_bits() / 8) as isize);
        let before = windows.y.start * windows.row_stride + windows.x.start * self.image_pixel;
        let planes = Scratch::take::<f32>(windows.images * windows.groups * group);
        let to = Shared(planes.ptr());
        pool::run(windows.images * windows.groups, windows.threads, &|task| {
            let (image, number) = ((task / windows.groups) as isize, (task % windows.groups) as isize);
            let offset = image * windows.image_stride + number * windows.group_stride - before;
            let from = Lanes {
                data: windows.image.wrapping_offset(offset * size),
                dtype: windows.image_dtype,
                lane_stride: self.image_pixel,
                k_stride: windows.channel_stride,
            };
            // SAFETY: every pixel inside the images is readable; a task has its own planes.
            unsafe {
                let to = to.get().cast_mut().add(task * group);
                pack::<f32>(windows.isa, &from, 0..pixels, pixels, 0..windows.channels, to);
            }
        });
        let windows = Direct {
            image: planes.ptr::<f32>().wrapping_offset(windows.y.start * width + windows.x.start).cast::<u8>(),
            image_dtype: DType::F32,
            image_stride: (windows.groups * group) as isize,
            group_stride: group as isize,
            channel_stride: pixels as isize,
            row_stride: width,
            ..windows.clone()
        };
        // SAFETY: the planes have every pixel inside the images.
        unsafe { Gradient { windows, image_pixel: 1, ..self.clone() }.run(epilogue) }
    }

    /// Code and places of the tiles of taps; empty where there is none.
    fn tap_tiles(&self, y: Taps, x: Taps, over: Over, channel: &Channel) -> Result<Vec<TapTile>, GemmError> {
        let plane = channel.plane_rows * channel.pitch;
        let tile = |shape: GradientShape| -> Result<TapTile, GemmError> {
            let lines = shape.taps().0.iter().map(|line| line.plane * plane + line.row * channel.pitch).collect();
            Ok(TapTile { shape, code: gradient_kernel::get(shape)?, lines })
        };
        GradientShape::tiles(self.windows.isa, y, x, over).into_iter().map(tile).collect()
    }

    /// Elements of the planes of a channel, with what the last vectors read beyond them.
    fn plane_elements(&self, channel: &Channel) -> usize {
        let planes = channel.phases.0.len() * channel.phases.1.len();
        planes * channel.plane_rows * channel.pitch + 2 * lanes(self.windows.isa)
    }

    /// Fills the planes of one channel, for a block of rows.
    unsafe fn fill(&self, channel: &Channel, image: usize, number: usize, rows: &Range<usize>, to: *mut f32) {
        let windows = &self.windows;
        let (group, inside) = (number / windows.channels, number % windows.channels);
        let offset = image as isize * windows.image_stride
            + group as isize * windows.group_stride
            + inside as isize * windows.channel_stride
            - windows.x.start;
        let reach = channel.plane_rows - windows.y.places.div_ceil(channel.blocks);
        // SAFETY: the planes have room for the largest block.
        unsafe {
            let (count, plane) = (rows.len() + reach, channel.plane_rows * channel.pitch);
            windows.fill_channel(
                offset,
                &channel.phases.0,
                &channel.copies,
                channel.pitch,
                rows.start,
                count,
                to,
                plane,
            );
        }
    }

    /// Lanes are pixels: the partial sums of a lane are added up at the end.
    unsafe fn over_pixels(&self, y: Taps, x: Taps, epilogue: &dyn Epilogue) -> Result<bool, GemmError> {
        let windows = &self.windows;
        let vector = lanes(windows.isa);
        let (places_y, places_x) = (windows.y.places, windows.x.places);
        let taps = windows.y.taps * windows.x.taps;
        let channel = self.channel(y, x, PLANE_BYTES, places_x * size_of::<f32>());
        let parts = windows.outputs.div_ceil(MOST_OUTPUTS);
        let mut tiles: Vec<(Range<usize>, Vec<TapTile>)> = Vec::with_capacity(parts);
        for i in 0..parts {
            let outputs = part(windows.outputs, parts, i);
            tiles.push((outputs.clone(), self.tap_tiles(y, x, Over::Pixels(outputs.len()), &channel)?));
        }
        if tiles.iter().any(|(_, tiles)| tiles.is_empty()) || self.pixel_stride != 1 {
            return Ok(false);
        }
        let copies = self.dtype != DType::F32;
        let copy = RowCopy::new(windows.isa, self.dtype, 0, 1, places_x as isize, places_x);
        let size = (self.dtype.size_in_bits() / 8) as isize;
        let tail = places_x % vector;
        let numbers = windows.groups * windows.channels;
        let tasks = numbers.min(windows.threads * TASKS * 4);
        pool::run(tasks, windows.threads, &|task| {
            let planes = Scratch::take::<f32>(self.plane_elements(&channel));
            let sums = Scratch::take::<f32>(windows.outputs * taps * vector);
            let results = Scratch::take::<f32>(windows.outputs * taps);
            let rows_of = Scratch::take::<f32>(if copies { MOST_OUTPUTS * places_y * places_x + vector } else { 0 });
            let mut call = Call::new();
            call.tail = (1 << tail) - 1;
            call.tail_lanes = std::array::from_fn(|lane| if lane < tail { u32::MAX } else { 0 });
            call.steps = places_x / vector;
            call.plane_gap = (channel.pitch - call.steps * vector) * size_of::<f32>();
            for number in part(numbers, tasks, task) {
                let (group, inside) = (number / windows.channels, number % windows.channels);
                // SAFETY: scratch was sized above; every element that is read is inside the caller's.
                unsafe {
                    let sums_of = std::slice::from_raw_parts_mut(sums.ptr::<f32>(), windows.outputs * taps * vector);
                    sums_of.fill(0.0);
                    for (image, block) in
                        (0..windows.images).flat_map(|image| (0..channel.blocks).map(move |block| (image, block)))
                    {
                        let rows = part(places_y, channel.blocks, block);
                        let base = image as isize * self.image_stride
                            + group as isize * self.group_stride
                            + rows.start as isize * self.row_stride;
                        call.rows = rows.len();
                        self.fill(&channel, image, number, &rows, planes.ptr());
                        for (outputs, tiles) in &tiles {
                            let first = base + outputs.start as isize * self.output_stride;
                            let from = self.gradient.wrapping_offset(first * size);
                            if copies {
                                let each = rows.len() * places_x;
                                for at in 0..outputs.len() * rows.len() {
                                    let (o, row) = ((at / rows.len()) as isize, at % rows.len());
                                    let offset = o * self.output_stride + row as isize * self.row_stride;
                                    let to = rows_of.ptr::<f32>().add(at * places_x);
                                    copy.copy(from.wrapping_offset(offset * size), to);
                                }
                                call.gradient = rows_of.ptr();
                                call.gradient_output = each * size_of::<f32>();
                                call.gradient_gap = tail * size_of::<f32>();
                            } else {
                                call.gradient = from.cast();
                                call.gradient_output = (self.output_stride * size) as usize;
                                let row = self.row_stride - (call.steps * vector) as isize;
                                call.gradient_gap = (row * size) as usize;
                            }
                            for tile in tiles {
                                self.point(&mut call, tile, planes.ptr());
                                // `[output][tap]`, but all outputs of a tile's taps beside each other.
                                let at = outputs.start * taps + tile.shape.first * outputs.len();
                                call.sums = sums_of.as_mut_ptr().add(at * vector);
                                (tile.code)(&call);
                            }
                        }
                    }
                    for (outputs, tile) in
                        tiles.iter().flat_map(|(outputs, tiles)| tiles.iter().map(move |tile| (outputs, tile)))
                    {
                        let at = outputs.start * taps + tile.shape.first * outputs.len();
                        for o in 0..outputs.len() {
                            for tap in 0..tile.shape.count {
                                let from = (at + o * tile.shape.count + tap) * vector;
                                let sum = sum_of_lanes(&sums_of[from..from + vector]);
                                let column = tile.shape.first + tap;
                                results.ptr::<f32>().add((outputs.start + o) * taps + column).write(sum);
                            }
                        }
                    }
                    epilogue.apply(Tile {
                        data: results.ptr(),
                        dtype: DType::F32,
                        row_stride: taps,
                        row: group * windows.outputs,
                        rows: windows.outputs,
                        column: inside * taps,
                        columns: taps,
                    });
                }
            }
        });
        Ok(true)
    }

    /// Lanes are outputs, of a gradient that is transposed first.
    unsafe fn over_outputs(&self, y: Taps, x: Taps, epilogue: &dyn Epilogue) -> Result<bool, GemmError> {
        let windows = &self.windows;
        let vector = lanes(windows.isa);
        let vectors = windows.outputs.div_ceil(vector).min(MOST_VECTORS);
        let (width, taps) = (vectors * vector, windows.y.taps * windows.x.taps);
        let tiles_each = windows.outputs.div_ceil(width);
        let (places_y, places_x) = (windows.y.places, windows.x.places);
        let row_bytes = places_x * tiles_each * width * size_of::<f32>();
        let channel = self.channel(y, x, GRADIENT_BYTES, row_bytes);
        let tap_tiles = self.tap_tiles(y, x, Over::Outputs(vectors), &channel)?;
        if tap_tiles.is_empty() {
            return Ok(false);
        }
        let channels = windows.groups * windows.channels;
        // `[group][tile of outputs][row][pixel][output]` of one image, and `[group][tile of outputs][channel][tap][output]`.
        let turned = Scratch::take::<f32>(windows.groups * tiles_each * places_y * places_x * width);
        let sums = Scratch::take::<f32>(channels * tiles_each * taps * width);
        let (turned, sums) = (Shared(turned.ptr()), Shared(sums.ptr()));
        // Few channels share their outputs out.
        let channel_tasks = channels.min(windows.threads * TASKS);
        let tile_tasks = if channel_tasks < 2 * windows.threads { tiles_each } else { 1 };
        for image in 0..windows.images {
            pool::run(windows.groups * tiles_each * channel.blocks, windows.threads, &|task| {
                let (tile, block) = (task / channel.blocks, task % channel.blocks);
                // SAFETY: blocks of rows of tiles are disjoint.
                unsafe {
                    self.turn(image, tile, part(places_y, channel.blocks, block), width, turned.get().cast_mut())
                };
            });
            pool::run(channel_tasks * tile_tasks, windows.threads, &|task| {
                let own = part(channels, channel_tasks, task / tile_tasks);
                let tiles = part(tiles_each, tile_tasks, task % tile_tasks);
                let planes = Scratch::take::<f32>(self.plane_elements(&channel));
                let mut call = Call::new();
                call.steps = places_x;
                call.plane_gap = (channel.pitch - places_x) * size_of::<f32>();
                for block in 0..channel.blocks {
                    let rows = part(places_y, channel.blocks, block);
                    call.rows = rows.len();
                    for number in own.clone() {
                        let group = number / windows.channels;
                        // SAFETY: a task has its own channels or its own tiles; scratch was sized above.
                        unsafe {
                            self.fill(&channel, image, number, &rows, planes.ptr());
                            for tile in tiles.clone() {
                                let rows_before = (group * tiles_each + tile) * places_y + rows.start;
                                call.gradient = turned.get().add(rows_before * places_x * width);
                                for taps_of in &tap_tiles {
                                    self.point(&mut call, taps_of, planes.ptr());
                                    let sums_before =
                                        (group * tiles_each + tile) * windows.channels + number % windows.channels;
                                    let at = sums_before * taps + taps_of.shape.first;
                                    call.sums = sums.get().cast_mut().add(at * width);
                                    if image == 0 && block == 0 {
                                        std::slice::from_raw_parts_mut(call.sums, taps_of.shape.count * width)
                                            .fill(0.0);
                                    }
                                    (taps_of.code)(&call);
                                }
                            }
                        }
                    }
                }
            });
        }
        let columns = windows.channels * taps;
        pool::run(windows.groups * tiles_each, windows.threads, &|task| {
            let (group, tile) = (task / tiles_each, task % tiles_each);
            let outputs = tile * width..windows.outputs.min((tile + 1) * width);
            let results = Scratch::take::<f32>(outputs.len() * columns);
            // SAFETY: the results have room for all columns of the tile's outputs; sums are complete.
            unsafe {
                let from = Lanes {
                    data: sums.get().add(task * columns * width).cast(),
                    dtype: DType::F32,
                    lane_stride: width as isize,
                    k_stride: 1,
                };
                pack::<f32>(windows.isa, &from, 0..columns, columns, 0..outputs.len(), results.ptr());
                epilogue.apply(Tile {
                    data: results.ptr(),
                    dtype: DType::F32,
                    row_stride: columns,
                    row: group * windows.outputs + outputs.start,
                    rows: outputs.len(),
                    column: 0,
                    columns,
                });
            }
        });
        Ok(true)
    }

    /// Transposes some rows of an image's gradient, of one tile of outputs.
    unsafe fn turn(&self, image: usize, number: usize, rows: Range<usize>, width: usize, to: *mut f32) {
        let windows = &self.windows;
        let tiles_each = windows.outputs.div_ceil(width);
        let (group, tile) = (number / tiles_each, number % tiles_each);
        let outputs = tile * width..windows.outputs.min((tile + 1) * width);
        let (places_y, places_x) = (windows.y.places, windows.x.places);
        let size = (self.dtype.size_in_bits() / 8) as isize;
        for row in rows {
            let offset = image as isize * self.image_stride
                + group as isize * self.group_stride
                + row as isize * self.row_stride;
            let from = Lanes {
                data: self.gradient.wrapping_offset(offset * size),
                dtype: self.dtype,
                lane_stride: self.output_stride,
                k_stride: self.pixel_stride,
            };
            // SAFETY: the caller's promise; a row of the tile has room for `places_x · width` elements.
            unsafe {
                let to = to.add((number * places_y + row) * places_x * width);
                pack::<f32>(windows.isa, &from, outputs.clone(), width, 0..places_x, to);
            }
        }
    }

    /// Points a call at a tile of taps.
    fn point(&self, call: &mut Call, tile: &TapTile, planes: *const f32) {
        for (line, &at) in call.lines.iter_mut().zip(&tile.lines) {
            *line = planes.wrapping_add(at);
        }
    }
}

/// The sum of a vector's lanes, in halves.
fn sum_of_lanes(lanes: &[f32]) -> f32 {
    match lanes {
        [x] => *x,
        lanes => {
            let (low, high) = lanes.split_at(lanes.len() / 2);
            sum_of_lanes(low) + sum_of_lanes(high)
        }
    }
}
