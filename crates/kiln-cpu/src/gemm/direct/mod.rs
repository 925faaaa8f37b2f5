//! Direct convolution: few results a group, whose pixels are not worth packing a tap at a time.
//!
//! ```text
//!  for each image, group (or some of them) and block of rows      (tasks of the pool)
//!     copy the group's channels into planes, padding included      (`planes`)
//!     for each tile of results and pixels: micro-kernel into the tile         (`kernel`)
//!     the block's results go to the epilogue
//! ```
//!
//! A tile has several rows where a group has few results (depthwise convolutions): rows read the same pixels. Otherwise its lanes run
//! over the ends of rows, through the few elements between them that are no results, and these are left out afterwards.

mod gradient;
mod gradient_kernel;
mod kernel;
mod planes;

use super::depthwise::Depthwise;
use super::pack::Convert;
use super::scratch::Scratch;
use super::source::{Epilogue, Tile};
use super::{GemmError, part};
use crate::features::Isa;
use crate::pool;
pub use gradient::Gradient;
pub(in crate::gemm) use gradient_kernel::GradientShape;
use half::{bf16, f16};
pub(in crate::gemm) use kernel::Shape;
use kernel::{DirectFn, Layout, Taps, lanes, registers};
use kiln_ir::DType;
use planes::{RowCopy, Rows};
use std::ops::Range;

/// Results a group from which on lanes run over the ends of rows.
const FLAT_OUTPUTS: usize = 4;
/// The most results of a tile.
const MOST_OUTPUTS: usize = 8;
/// The most rows of a tile, and of one that keeps the weights of a column of taps.
const MOST_ROWS: usize = 8;
const MOST_COLUMN_ROWS: usize = 24;
/// Bytes of a block's planes: of one channel, in the first level, and of several, in the second.
const CHANNEL_BYTES: usize = 20 << 10;
const PLANE_BYTES: usize = 160 << 10;
/// Bytes of results that go to the epilogue at once.
const TILE_BYTES: usize = 24 << 10;
/// Multiply-adds that are not worth a second thread.
const SERIAL_WORK: usize = 1 << 16;
/// Taps of a window up to which depthwise convolutions have pixels in lanes where rows are long.
const SMALL_WINDOW: usize = 9;

/// One spatial axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowAxis {
    /// Taps.
    pub taps: usize,
    /// Pixels from one result to the next.
    pub stride: usize,
    /// Pixels from one tap to the next.
    pub dilation: usize,
    /// The pixel under the first tap of the first result; negative in padding.
    pub start: isize,
    /// Pixels of the image; others are zero.
    pub length: isize,
    /// Results.
    pub places: usize,
    /// Elements of the weights from one tap to the next.
    pub weight_stride: isize,
}

impl WindowAxis {
    fn taps(&self) -> Option<Taps> {
        let short = |n: usize| u16::try_from(n).ok().filter(|&n| n > 0);
        Some(Taps { count: short(self.taps)?, stride: short(self.stride)?, dilation: short(self.dilation)? })
    }
}

/// A convolution of images whose pixels are contiguous along x.
#[derive(Clone, Debug)]
pub struct Direct {
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
    /// Elements from one group's channels to the next group's.
    pub group_stride: isize,
    /// Channels of a group.
    pub channels: usize,
    /// Elements from one channel to the next.
    pub channel_stride: isize,
    /// Elements from one row of pixels to the next.
    pub row_stride: isize,
    /// Weights; the axes have the strides along taps.
    pub weights: *const u8,
    /// F32, Bf16 or F16.
    pub weight_dtype: DType,
    /// Elements from one group's weights to the next group's.
    pub weight_group: isize,
    /// Elements from the weights of one result to those of the next.
    pub weight_output: isize,
    /// Elements from one channel's weights to the next channel's.
    pub weight_channel: isize,
    /// Groups.
    pub groups: usize,
    /// Results of a group.
    pub outputs: usize,
    /// Rows.
    pub y: WindowAxis,
    /// Pixels of a row.
    pub x: WindowAxis,
}

// SAFETY: a description of memory; the caller that runs a convolution guarantees that it is valid.
unsafe impl Send for Direct {}
// SAFETY: as above.
unsafe impl Sync for Direct {}

/// How a convolution is cut.
struct Plan {
    /// Results of the tiles of a group, and their code.
    tiles: Vec<(Range<usize>, DirectFn)>,
    /// Rows of a tile; 1 where its lanes run over the ends of rows.
    rows: usize,
    flat: bool,
    /// Lanes of a tile.
    width: usize,
    /// Blocks of rows.
    blocks: usize,
    /// Groups of a task.
    groups: usize,
    /// Elements of a row of a plane.
    pitch: usize,
    /// Elements from one row of results to the next before they are put together.
    tile_pitch: usize,
    /// Rows of a plane of the largest block.
    plane_rows: usize,
    phases: (Vec<usize>, Vec<usize>),
    copies: Vec<RowCopy>,
}

impl Direct {
    /// The most results of a group for which planes are better than panels of unfolded pixels, however long the sums are.
    pub const FEW_OUTPUTS: usize = 16;

    /// Whether groups of so many results, each the sum of so many products, are better computed directly.
    pub fn is_for(outputs: usize, summed: usize) -> bool {
        outputs <= Direct::FEW_OUTPUTS || Direct::is_short(summed) && outputs <= MOST_STEM_OUTPUTS
    }

    /// Whether a sum of so many products is that of a network's first convolution.
    pub fn is_short(summed: usize) -> bool {
        summed <= FEW_SUMMED
    }

    fn plan(&self) -> Result<Option<Plan>, GemmError> {
        let (Some(y), Some(x)) = (self.y.taps(), self.x.taps()) else { return Ok(None) };
        let phases = (y.phases(), x.phases());
        let vector = lanes(self.isa);
        let flat = self.outputs >= FLAT_OUTPUTS;
        let pitch = self.x.places + x.reach();
        let row_bytes = self.channels * phases.0.len() * phases.1.len() * pitch * size_of::<f32>();
        let most = if self.channels == 1 { CHANNEL_BYTES } else { PLANE_BYTES };
        let most_rows = (most / row_bytes).saturating_sub(y.reach()).max(MOST_ROWS.min(self.y.places));
        let most_rows = match self.outputs > Direct::FEW_OUTPUTS {
            true => most_rows.min((RESULT_BYTES / (self.outputs * pitch * size_of::<f32>())).max(1)),
            false => most_rows,
        };
        let blocks = self.y.places.div_ceil(most_rows);
        let (largest, smallest) = (self.y.places.div_ceil(blocks), self.y.places / blocks);
        let most_outputs = if self.isa == Isa::Avx512 { MOST_OUTPUTS } else { MOST_OUTPUTS / 2 };
        let tiles = self.outputs.div_ceil(most_outputs);
        let tall = self.outputs.div_ceil(tiles);
        let all = registers(self.isa);
        let shape = |outputs: usize, rows: usize, vectors: usize| Shape { isa: self.isa, y, x, outputs, rows, vectors };
        let (rows, vectors, tile_pitch, width) = if flat {
            let vectors = (largest * pitch - x.reach()).div_ceil(vector);
            let most = (all - 1) / (tall + 1);
            let each = vectors.div_ceil(vectors.div_ceil(most));
            (1, each, pitch, each * vector)
        } else {
            let vectors = self.x.places.div_ceil(vector);
            let each = vectors.div_ceil(vectors.div_ceil(if self.isa == Isa::Avx512 { 4 } else { 2 }));
            let per_row = each * tall;
            let kept = all.saturating_sub(each + self.y.taps * self.x.taps * tall) / per_row;
            // Weights of one column of taps at a time, or one weight.
            let column = all.saturating_sub(each + self.y.taps * tall) / per_row;
            let (most, limit) = match () {
                () if kept >= 4 => (kept, MOST_ROWS),
                () if column >= 4 => (column, MOST_COLUMN_ROWS),
                () => ((all - each - 1) / per_row, MOST_ROWS),
            };
            let most = most.clamp(1, limit).min(smallest);
            let rows = smallest.div_ceil(smallest.div_ceil(most));
            // Where a tile has whole rows, each overwrites what the one before it left beyond its end.
            let pitch = if vectors == each { self.x.places } else { vectors.div_ceil(each) * each * vector };
            (rows, each, pitch, each * vector)
        };
        if !shape(tall, rows, vectors).fits() {
            return Ok(None);
        }
        let mut found = Vec::with_capacity(tiles);
        for tile in 0..tiles {
            let outputs = part(self.outputs, tiles, tile);
            found.push((outputs.clone(), kernel::get(shape(outputs.len(), rows, vectors))?));
        }
        let results = self.outputs * self.y.places * self.x.places * size_of::<f32>();
        let groups = if blocks > 1 { 1 } else { (TILE_BYTES / results.max(1)).clamp(1, self.groups) };
        let copy = |&phase: &usize| {
            let start = self.x.start + phase as isize;
            RowCopy::new(self.isa, self.image_dtype, start, self.x.stride, self.x.length, pitch)
        };
        Ok(Some(Plan {
            tiles: found,
            rows,
            flat,
            width,
            blocks,
            groups,
            pitch,
            tile_pitch,
            plane_rows: largest + y.reach(),
            copies: phases.1.iter().map(copy).collect(),
            phases,
        }))
    }

    /// Runs it; false, and nothing done, where there is no code for it. Rows of the tiles that the epilogue gets are results of all
    /// groups, columns are pixels of all images.
    ///
    /// # Safety
    /// Every pixel inside the images and every weight must be readable, and nothing that the epilogue writes may overlap them.
    pub unsafe fn run(&self, epilogue: &dyn Epilogue) -> Result<bool, GemmError> {
        if self.images == 0 || self.groups * self.outputs == 0 || self.y.places * self.x.places == 0 {
            return Ok(true);
        }
        if self.channels == 0 || self.isa == Isa::Portable {
            return Ok(false);
        }
        if let Some(depthwise) = self.depthwise()
            // SAFETY: the same images, weights and results.
            && unsafe { depthwise.run(epilogue)? }
        {
            return Ok(true);
        }
        let Some(plan) = self.plan()? else { return Ok(false) };
        let taps = self.y.taps * self.x.taps;
        let work = self.images * self.groups * self.outputs * self.y.places * self.x.places * taps * self.channels;
        let threads = if work < SERIAL_WORK { 1 } else { self.threads };
        let in_place = self.outputs == 1
            && self.weight_dtype == DType::F32
            && self.has_contiguous_weights()
            && (self.groups == 1 || self.weight_group == (self.channels * taps) as isize)
            && self.weights.cast::<f32>().is_aligned();
        let packed = Scratch::take::<f32>(if in_place { 0 } else { self.groups * self.outputs * self.channels * taps });
        let weights = match in_place {
            true => Shared(self.weights.cast()),
            false => {
                // SAFETY: the scratch has room for all weights.
                unsafe { self.pack_weights(&plan, packed.ptr()) };
                Shared(packed.ptr())
            }
        };
        let group_tasks = self.groups.div_ceil(plan.groups);
        pool::run(self.images * group_tasks * plan.blocks, threads, &|task| {
            let (image, rest) = (task / (group_tasks * plan.blocks), task % (group_tasks * plan.blocks));
            let (groups, block) = (part(self.groups, group_tasks, rest / plan.blocks), rest % plan.blocks);
            let rows = part(self.y.places, plan.blocks, block);
            // SAFETY: tasks cover disjoint results; the rest is the caller's promise.
            unsafe { self.task(&plan, weights.get(), image, groups, rows, epilogue) };
        });
        Ok(true)
    }

    /// The same with channels in lanes, where that is faster.
    fn depthwise(&self) -> Option<Depthwise> {
        let vector = lanes(self.isa);
        // Small windows over long rows are computed in the time that transposing pixels takes.
        let pays = self.y.taps * self.x.taps > SMALL_WINDOW || self.x.stride > 1 || self.x.places <= vector;
        if self.channels != 1 || self.outputs != 1 || self.groups < vector || !pays {
            return None;
        }
        Some(Depthwise {
            isa: self.isa,
            threads: self.threads,
            image: self.image,
            image_dtype: self.image_dtype,
            images: self.images,
            image_stride: self.image_stride,
            channels: self.groups,
            channel_stride: self.group_stride,
            row_stride: self.row_stride,
            pixel_stride: 1,
            weights: self.weights,
            weight_dtype: self.weight_dtype,
            weight_channel: self.weight_group,
            y: self.y,
            x: self.x,
            pixels_first: false,
        })
    }

    /// Whether the weights of one result lie in the order `[channel][tap]`, one after the other.
    fn has_contiguous_weights(&self) -> bool {
        let taps = self.y.taps * self.x.taps;
        (self.x.taps == 1 || self.x.weight_stride == 1)
            && (self.y.taps == 1 || self.y.weight_stride == self.x.taps as isize)
            && (self.channels == 1 || self.weight_channel == taps as isize)
    }

    /// Weights as the tiles read them: `[group][tile][channel][tap][output]`.
    unsafe fn pack_weights(&self, plan: &Plan, to: *mut f32) {
        // SAFETY: the caller's promise, with the pointer read as the type that the dtype names.
        unsafe {
            match self.weight_dtype {
                DType::Bf16 => self.pack_weights_of::<bf16>(plan, to),
                DType::F16 => self.pack_weights_of::<f16>(plan, to),
                _ => self.pack_weights_of::<f32>(plan, to),
            }
        }
    }

    unsafe fn pack_weights_of<T: Convert<f32>>(&self, plan: &Plan, mut to: *mut f32) {
        let taps = self.y.taps * self.x.taps;
        let contiguous = self.has_contiguous_weights();
        for group in 0..self.groups {
            for (outputs, _) in &plan.tiles {
                let count = outputs.len();
                for (lane, output) in outputs.clone().enumerate() {
                    let offset = group as isize * self.weight_group + output as isize * self.weight_output;
                    let from = self.weights.cast::<T>().wrapping_offset(offset);
                    // SAFETY: every weight is readable, and has a place.
                    unsafe {
                        if contiguous {
                            for k in 0..self.channels * taps {
                                to.add(k * count + lane).write(from.add(k).read_unaligned().convert());
                            }
                            continue;
                        }
                        for channel in 0..self.channels {
                            for tap in 0..taps {
                                let at = channel as isize * self.weight_channel
                                    + (tap / self.x.taps) as isize * self.y.weight_stride
                                    + (tap % self.x.taps) as isize * self.x.weight_stride;
                                let weight = from.wrapping_offset(at).read_unaligned().convert();
                                to.add((channel * taps + tap) * count + lane).write(weight);
                            }
                        }
                    }
                }
                // SAFETY: as many weights were written.
                to = unsafe { to.add(count * self.channels * taps) };
            }
        }
    }

    /// Some groups of an image, in a block of rows.
    unsafe fn task(
        &self,
        plan: &Plan,
        weights: *const f32,
        image: usize,
        groups: Range<usize>,
        rows: Range<usize>,
        epilogue: &dyn Epilogue,
    ) {
        let weights_each = self.outputs * self.channels * self.y.taps * self.x.taps;
        let plane = plan.plane_rows * plan.pitch;
        let channel = plane * plan.phases.0.len() * plan.phases.1.len();
        let slack = plan.width + plan.tile_pitch + 2 * lanes(self.isa);
        let planes = Scratch::take::<f32>(self.channels * channel + slack);
        // SAFETY: the slack after the last plane.
        unsafe { std::slice::from_raw_parts_mut(planes.ptr::<f32>().add(self.channels * channel), slack).fill(0.0) };
        // Rows of results, and what the last tile writes beyond them.
        let stride = (rows.len() * plan.tile_pitch + plan.width).next_multiple_of(lanes(self.isa));
        let tile = Scratch::take::<f32>(groups.len() * self.outputs * stride);
        let layout = Layout {
            channel: channel * size_of::<f32>(),
            plane: plane * size_of::<f32>(),
            row: plan.pitch * size_of::<f32>(),
            channels: self.channels,
            out: stride * size_of::<f32>(),
            out_row: plan.tile_pitch * size_of::<f32>(),
        };
        for (i, group) in groups.clone().enumerate() {
            // SAFETY: planes and tile were sized above; weights are packed for every group.
            unsafe {
                self.fill(plan, image, group, &rows, planes.ptr(), plane);
                let mut weights = weights.add(group * weights_each);
                let out = tile.ptr::<f32>().add(i * self.outputs * stride);
                for (outputs, code) in &plan.tiles {
                    let out = out.add(outputs.start * stride);
                    if plan.flat {
                        let wanted = rows.len() * plan.pitch - (plan.pitch - self.x.places);
                        for at in (0..wanted).step_by(plan.width) {
                            code(planes.ptr::<f32>().add(at), weights, out.add(at), &layout);
                        }
                    } else {
                        for y in (0..rows.len()).step_by(plan.rows) {
                            // The last tile may compute some rows again.
                            let y = y.min(rows.len() - plan.rows);
                            for x in (0..self.x.places).step_by(plan.width) {
                                let from = planes.ptr::<f32>().add(y * plan.pitch + x);
                                code(from, weights, out.add(y * plan.tile_pitch + x), &layout);
                            }
                        }
                    }
                    weights = weights.add(outputs.len() * self.channels * self.y.taps * self.x.taps);
                }
            }
        }
        let count = groups.len() * self.outputs;
        // SAFETY: the tile's rows, in place; the epilogue gets each result once.
        unsafe {
            if plan.tile_pitch != self.x.places {
                for row in 0..count {
                    close_up(self.isa, tile.ptr::<f32>().add(row * stride), rows.len(), plan.tile_pitch, self.x.places);
                }
            }
            epilogue.apply(Tile {
                data: tile.ptr(),
                dtype: DType::F32,
                row_stride: stride,
                row: groups.start * self.outputs,
                rows: count,
                column: (image * self.y.places + rows.start) * self.x.places,
                columns: rows.len() * self.x.places,
            });
        }
    }

    /// Fills the planes of a group, for a block of rows.
    unsafe fn fill(&self, plan: &Plan, image: usize, group: usize, rows: &Range<usize>, to: *mut f32, plane: usize) {
        let first = image as isize * self.image_stride + group as isize * self.group_stride - self.x.start;
        let count = rows.len() + plan.plane_rows - self.y.places.div_ceil(plan.blocks);
        for channel in 0..self.channels {
            // SAFETY: the caller's promise; planes of one channel after those of the other.
            unsafe {
                let offset = first + channel as isize * self.channel_stride;
                let at = to.add(channel * plan.phases.0.len() * plan.phases.1.len() * plane);
                self.fill_channel(offset, &plan.phases.0, &plan.copies, plan.pitch, rows.start, count, at, plane);
            }
        }
    }

    /// Fills the planes of a channel that begins `offset` elements from the image's first: `count` rows from the window of row `first` of the
    /// results on, `pitch` elements apart, planes `plane` elements apart.
    #[allow(clippy::too_many_arguments)]
    unsafe fn fill_channel(
        &self,
        offset: isize,
        phases: &[usize],
        copies: &[RowCopy],
        pitch: usize,
        first: usize,
        count: usize,
        mut to: *mut f32,
        plane: usize,
    ) {
        let size = (self.image_dtype.size_in_bits() / 8) as isize;
        for &phase in phases {
            for copy in copies {
                // Row `i` of the plane is row `start + i·stride` of the image.
                let y = (phase + first * self.y.stride) as isize;
                let start = self.y.start + y;
                let rows_below = |limit: isize| {
                    let rows = (limit - start + self.y.stride as isize - 1).div_euclid(self.y.stride as isize);
                    rows.clamp(0, count as isize) as usize
                };
                let inside = rows_below(0)..rows_below(self.y.length).max(rows_below(0));
                let rows = Rows {
                    first: self.image.wrapping_offset((offset + y * self.row_stride) * size),
                    step: self.y.stride as isize * self.row_stride * size,
                    inside,
                    count,
                    pitch,
                };
                // SAFETY: rows inside the image are readable. Rows are filled in the order of memory, so that lanes beyond one are
                // overwritten or slack.
                unsafe { copy.copy_rows(rows, to) };
                // SAFETY: one plane further.
                to = unsafe { to.add(plane) };
            }
        }
    }
}

/// The most results of a group where sums are so short that packing pixels takes longer than multiplying them: the first convolution of a network.
const MOST_STEM_OUTPUTS: usize = 96;
const FEW_SUMMED: usize = 192;
/// Bytes of a block's results, where there are many.
const RESULT_BYTES: usize = 256 << 10;

/// Moves rows of `width` elements, `pitch` apart, together.
unsafe fn close_up(isa: Isa, data: *mut f32, rows: usize, pitch: usize, width: usize) {
    #[cfg(target_arch = "x86_64")]
    if isa == Isa::Avx512 {
        // SAFETY: the caller's promise; the target has these features.
        return unsafe { close_up_512(data, rows, pitch, width) };
    }
    let _ = isa;
    for row in 1..rows {
        // SAFETY: both are rows of the tile.
        unsafe { std::ptr::copy(data.add(row * pitch), data.add(row * width), width) };
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn close_up_512(data: *mut f32, rows: usize, pitch: usize, width: usize) {
    use std::arch::x86_64::{_mm512_loadu_ps, _mm512_mask_storeu_ps, _mm512_storeu_ps};
    let (whole, last) = (width / 16, ((1u32 << (width % 16)) - 1) as u16);
    for row in 1..rows {
        // SAFETY: rows of the tile, read before they are overwritten, since they move towards its beginning.
        unsafe {
            let (from, to) = (data.add(row * pitch), data.add(row * width));
            for i in 0..whole {
                _mm512_storeu_ps(to.add(16 * i), _mm512_loadu_ps(from.add(16 * i)));
            }
            if last != 0 {
                _mm512_mask_storeu_ps(to.add(16 * whole), last, _mm512_loadu_ps(from.add(16 * whole)));
            }
        }
    }
}

/// Packed weights that tasks share.
struct Shared(*const f32);
// SAFETY: only read.
unsafe impl Sync for Shared {}
impl Shared {
    fn get(&self) -> *const f32 {
        self.0
    }
}
