//! Products that are convolutions with many results a group: pixels under windows times weights, for all groups at once. What
//! [`crate::gemm::Dense`] computes from images as they are, whatever the order of their axes and of those of the results.

use super::direct::{
    FEWEST_LANES, GuardParts, Guarded, Numbers, WindowParts, axis, common_divisor, launched, window_parts,
};
use super::fused::Tiles;
use super::packing::is_used_by_epilogue;
use super::taps::Taps;
use super::windows::{FactorLoad, WindowLoad};
use super::{Convolution, Known, Launch, Sides};
use crate::features::{Extension, Isa};
use crate::gemm::{ChannelFactors, Dense, DensePlan, Direct, GemmError, Panels, Pixels, Scratch, WindowAxis};
use crate::loops::{Build, LoopKernel};
use kiln_ir::{DType, Dim, Symbol};
use kiln_kernels::Precision;
use kiln_kernels::kernel::{Axis, Kernel, MatmulBody};
use kiln_runtime::LaunchError;

/// Results of a group from which on most lanes of a panel have one.
const FEWEST_OUTPUTS: usize = 24;
/// The same where results have their channels last, for which there are no planes.
const FEWEST_LAST_OUTPUTS: usize = 2;
/// Results of a pixel up to which its channels are not worth packing, and pixels up to which weights are not.
const MOST_LAST_OUTPUTS: i64 = 256;
const FEW_LAST_PIXELS: i64 = 128;
/// Products of a sum from which on a tile is worth its transposition.
const FEWEST_SUMMED: usize = 24;

/// Results from which on a convolution with one tap multiplies channels by factors; 0 for never.
pub(crate) fn fewest_scaled(isa: Isa) -> i64 {
    match isa {
        Isa::Portable => 0,
        // As many as fill a vector are dense, too.
        Isa::Avx512 => FEWEST_LANES as i64,
        _ => FEWEST_OUTPUTS as i64,
    }
}

/// Pixels of a row of single ones.
const LONGEST_ROW: usize = 256;
/// Places that are worth packing weights for, and reading them again for every image.
const FEWEST_PLACES: usize = 28;
/// Bytes of weights that stay in a cache from image to image.
const CACHED_WEIGHT_BYTES: usize = 1 << 20;
/// Bytes of packed weights for which memory is kept from launch to launch.
const MOST_WEIGHT_BYTES: usize = 64 << 20;
const SHORTEST_ROW: usize = 4;

/// A convolution in symbolic sizes.
pub(super) struct DenseConvolution {
    image: WindowParts,
    factors: Option<FactorParts>,
    weights: WindowParts,
    groups: Dim,
    outputs: Dim,
    fewest: usize,
    tiles: Tiles,
    pixels_first: bool,
    /// Whether the weights were packed beforehand.
    packed: bool,
    /// Where all sizes are known.
    prepared: Option<Prepared>,
}

/// A convolution of known sizes.
struct Prepared {
    found: Found,
    panels: Panels,
    plan: DensePlan,
}

/// The two sides of a convolution, where a product may be one.
struct Parts {
    image: WindowParts,
    factors: Option<FactorParts>,
    weights: WindowParts,
    groups: Dim,
    outputs: Dim,
    /// With fewer results a group it is computed in another way.
    fewest: usize,
}

/// What the channels of each image are multiplied by.
struct FactorParts {
    buffer: usize,
    first: Dim,
    channel: Dim,
    image: Dim,
}

impl FactorParts {
    /// `None` unless factors are those of images and channels, without groups.
    fn of(load: &FactorLoad, body: &MatmulBody) -> Option<FactorParts> {
        let ([channel], [image, rest @ ..]) = (&load.place.fixed[..], &load.place.running[..]) else { return None };
        let alone = body.batch.is_empty() && rest.iter().all(Dim::is_zero);
        alone.then(|| FactorParts {
            buffer: load.buffer,
            first: load.place.rest.clone(),
            channel: channel.clone(),
            image: image.clone(),
        })
    }
}

impl Parts {
    fn of(isa: Isa, kernel: &Kernel, body: &MatmulBody) -> Option<Parts> {
        let swapped = !std::ptr::eq(Sides::of(body)?.left, &body.lhs);
        let fewest = if swapped { FEWEST_OUTPUTS } else { FEWEST_LAST_OUTPUTS };
        let [weights] = &body.rhs[..] else { return None };
        // Less precise products have instructions of their own.
        let exact = body.acc == DType::F32 && body.precision != Precision::Medium && body.before.is_none();
        if isa == Isa::Portable
            || !exact
            || body.batch.len() > 1
            || body.n.len() != 1
            || !(1..=3).contains(&body.k.len())
        {
            return None;
        }
        let groups = body.batch.first();
        let (image, factors) = WindowLoad::with_factors(kernel, body, &body.lhs, &body.k, &body.m)?;
        let factors = match factors {
            Some(_) if !swapped || image.dtype != DType::F32 => return None,
            Some(load) => Some(FactorParts::of(&load, body)?),
            None => None,
        };
        let weights = WindowLoad::of(kernel, body, weights, &body.k, &body.n)?;
        if !weights.guards.is_empty() {
            return None;
        }
        let pairs = Extension::multiplies_pairs(isa) && [image.dtype, weights.dtype] == [DType::Bf16; 2];
        let outputs = body.n[0].size.clone();
        let fills_vector = isa == Isa::Avx512 && outputs.as_const() == Some(FEWEST_LANES as i64);
        let fewest = if swapped && (pairs || fills_vector) { FEWEST_LANES } else { fewest };
        if outputs.as_const().is_some_and(|n| n < fewest as i64)
            || body.k.len() == 1 && !is_for_one_tap(isa, &image, &weights, body, swapped)
        {
            return None;
        }
        let groups_of = |axis: Option<&Axis>| axis.map_or(Dim::from(1), |axis| axis.size.clone());
        Some(Parts {
            image: window_parts(&image, groups)?,
            factors,
            weights: window_parts(&weights, groups)?,
            groups: groups_of(groups),
            outputs,
            fewest,
        })
    }
}

/// Whether a convolution with one tap is computed so: of floats side by side, whose results are, too, or of a few results of pixels whose
/// channels are side by side, which would be packed for little. Everything else is a product like any other.
fn is_for_one_tap(isa: Isa, image: &WindowLoad, weights: &WindowLoad, body: &MatmulBody, swapped: bool) -> bool {
    let floats = image.dtype == DType::F32 && weights.dtype == DType::F32;
    let last = |strides: &[Dim]| strides.last().and_then(Dim::as_const);
    if swapped {
        return floats && last(&image.place.running).is_some_and(|n| (1..=2).contains(&n));
    }
    // Where there are tiles, those of products are faster.
    let pairs = [image.dtype, weights.dtype] == [DType::Bf16; 2]
        && Extension::multiplies_pairs(isa)
        && Extension::get() < Extension::Amx;
    let few = body.n[0].size.as_const().is_some_and(|n| (FEWEST_LANES as i64..=MOST_LAST_OUTPUTS).contains(&n));
    let size = |axis: &Axis| axis.size.as_const();
    let pixels = body.m.iter().try_fold(1i64, |pixels, axis| pixels.checked_mul(size(axis)?));
    let (channels, many) = (size(&body.k[0]), pixels.is_some_and(|pixels| pixels > FEW_LAST_PIXELS));
    let in_place = last(&image.place.fixed) == Some(1) && channels.is_some_and(|n| floats || pairs && n % 2 == 0);
    in_place && few && many && body.batch.is_empty()
}

/// Weights of a convolution that can be packed beforehand: all sizes but the number of images are known, and there is one group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Weights {
    pub panels: Panels,
    first: isize,
    outputs: isize,
    taps: Taps,
}

impl Weights {
    /// The weights of a convolution, if they are `buffer`.
    pub fn of(isa: Isa, kernel: &Kernel, body: &MatmulBody, buffer: usize) -> Option<Weights> {
        let parts = Parts::of(isa, kernel, body)?;
        // What any product may be has the panels of products: programs of other numbers of rows share them.
        if body.k.len() == 1 && std::ptr::eq(Sides::of(body)?.left, &body.lhs) {
            return None;
        }
        let reads = parts.image.buffer == buffer || parts.factors.as_ref().is_some_and(|f| f.buffer == buffer);
        let elsewhere = reads || is_used_by_epilogue(body, buffer);
        let only = parts.weights.buffer == buffer && !elsewhere && body.batch.is_empty();
        if !only || !parts.are_known_but_images(&kernel.sizes) {
            return None;
        }
        // One image and several are cut in different ways.
        let at = |images: i64| {
            let values = vec![images; kernel.sizes.len()];
            let known = Known { symbols: &kernel.sizes, values: &values };
            let numbers = parts.numbers(isa, &known).ok()??;
            let dense = Dense { isa, outputs: known.size(&parts.outputs).ok()?, ..numbers.dense };
            let k = dense.channels * numbers.taps.count();
            // A stem is computed from planes, but for windows of one pixel.
            let few = body.k.len() > 1 && Direct::is_for(dense.outputs, k);
            let stem = few && dense.pixel_stride == 1 && dense.x.stride <= 2;
            if stem || !is_for(&dense, parts.fewest) {
                return None;
            }
            let panels = dense.panels(k).ok()?;
            let first = known.number(&parts.weights.first.rest).ok()? as isize;
            // Words may begin at any element.
            let first =
                if numbers.taps.elements == Pixels::Pairs { (first % 2 == 0).then_some(first / 2)? } else { first };
            Some(Weights { panels, first, outputs: numbers.weight_output, taps: numbers.taps })
        };
        at(1).filter(|one| kernel.sizes.is_empty() || at(2).as_ref() == Some(one))
    }

    /// Packs them.
    ///
    /// # Safety
    /// `from` is the weights' buffer, and `to` has room for the panels.
    pub unsafe fn pack(&self, from: *const u8, to: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe {
            let from = from.offset(self.first * self.taps.elements.size() as isize);
            self.taps.pack(&self.panels, from, self.outputs, to.cast());
        }
    }
}

/// What a convolution's axes are, in numbers, but for where its memory is.
struct Found {
    dense: Dense,
    taps: Taps,
    weight_output: isize,
    /// Elements from one group's weights to the next group's.
    weight_group: isize,
}

impl Parts {
    /// Whether nothing but the number of images depends on the sizes of a launch.
    fn are_known_but_images(&self, sizes: &[Symbol]) -> bool {
        let is_known = |dim: &Dim| !sizes.iter().any(|&size| dim.contains(size));
        let pair = |(size, stride): &(Dim, Dim)| is_known(size) && is_known(stride);
        let places = |parts: &WindowParts| match &parts.places[..] {
            [images, rest @ ..] => is_known(&images.1) && rest.iter().all(pair),
            [] => true,
        };
        let guard = |guard: &GuardParts| {
            let mut dims = guard.summed.iter().chain(&guard.places).chain([&guard.start, &guard.low, &guard.high]);
            dims.all(is_known)
        };
        let (image, weights) = (&self.image, &self.weights);
        image.summed.iter().chain(&weights.summed).chain(&weights.places).all(pair)
            && places(image)
            && image.guards.iter().all(guard)
            && self.factors.iter().all(|f| [&f.first, &f.channel, &f.image].into_iter().all(is_known))
            && [&weights.first.rest, &self.groups, &self.outputs].into_iter().all(is_known)
    }

    /// `None` where an axis is not what it is for a convolution.
    fn numbers(&self, isa: Isa, known: &Known<'_>) -> Result<Option<Found>, LaunchError> {
        found(isa, &self.image, self.factors.as_ref(), &self.weights, known)
    }
}

fn found(
    isa: Isa,
    image: &WindowParts,
    factors: Option<&FactorParts>,
    weights: &WindowParts,
    known: &Known<'_>,
) -> Result<Option<Found>, LaunchError> {
    let Numbers { summed, places, guards } = image.numbers(known)?;
    let Numbers { summed: steps, places: outputs, .. } = weights.numbers(known)?;
    let steps: Vec<isize> = steps.iter().map(|axis| axis.1).collect();
    let number = |dim: &Dim| known.number(dim).map(|n| n as isize);
    let factors = match factors {
        Some(parts) => {
            let (channel, image) = (number(&parts.channel)?, number(&parts.image)?);
            Some(ChannelFactors { first: std::ptr::null(), channel, image })
        }
        None => None,
    };
    let of_images = factors.is_some_and(|factors| factors.image != 0);
    let windows = windows(&summed, &places, &guards, of_images);
    let (Some(&[(_, weight_output)]), Some(windows)) = (Some(&outputs[..]), windows) else { return Ok(None) };
    let along = |from: usize, to: usize| match summed.len() > from {
        true => (summed[to].0, steps[to]),
        false => (1, 0),
    };
    let last = summed.len() - 1;
    let (channels, channel_stride) = summed[0];
    let (elements, y_taps, x_taps) = (Pixels::Floats, along(2, 1), along(1, last));
    let taps = Taps { elements, channels, channel: steps[0], y: y_taps, x: x_taps, taps_first: false };
    let [y, x] = windows.axes;
    let group = |parts: &WindowParts| number(&parts.first.group);
    let dense = Dense {
        isa,
        threads: 1,
        image: std::ptr::null(),
        pixels: Pixels::Floats,
        images: windows.images.0,
        image_stride: windows.images.1,
        group_stride: group(image)?,
        channels,
        channel_stride,
        row_stride: windows.row_stride,
        pixel_stride: windows.pixel_stride,
        factors,
        weights: std::ptr::null(),
        taps_first: false,
        weight_group: 0,
        groups: 1,
        several: 0,
        outputs: 0,
        last_outputs: 0,
        y,
        x,
        pixels_first: false,
    };
    let short = summed.iter().map(|axis| axis.0).product::<usize>() < FEWEST_SUMMED;
    let found = Found { dense, taps, weight_output, weight_group: group(weights)? };
    Ok((!short).then(|| found.of_elements(image.dtype, weights.dtype).in_order_of_image()))
}

impl Found {
    /// The same for elements of other types than F32.
    fn of_elements(self, image: DType, weights: DType) -> Found {
        let Found { dense, taps, weight_output, weight_group } = self;
        let pairs = Extension::multiplies_pairs(dense.isa) && [image, weights] == [DType::Bf16; 2];
        if !pairs {
            let of = |dtype| if dtype == DType::F32 { Pixels::Floats } else { Pixels::Widened(dtype) };
            let (dense, taps) = (Dense { pixels: of(image), ..dense }, Taps { elements: of(weights), ..taps });
            return Found { dense, taps, weight_output, weight_group };
        }
        let all = dense.channels;
        let even = |strides: &[isize]| all % 2 == 0 && strides.iter().all(|stride| stride % 2 == 0);
        let channels = all.div_ceil(2);
        let in_place = dense.channel_stride == 1
            && even(&[dense.image_stride, dense.group_stride, dense.row_stride, dense.pixel_stride]);
        let dense = match in_place {
            true => Dense {
                pixels: Pixels::Pairs,
                image_stride: dense.image_stride / 2,
                group_stride: dense.group_stride / 2,
                row_stride: dense.row_stride / 2,
                pixel_stride: dense.pixel_stride / 2,
                ..dense
            },
            false => Dense { pixels: Pixels::Interleaved(all), ..dense },
        };
        let dense = Dense { channels, ..dense };
        if taps.channel == 1 && even(&[taps.y.1, taps.x.1, weight_output, weight_group]) {
            let half = |(size, stride): (usize, isize)| (size, stride / 2);
            let taps = Taps { elements: Pixels::Pairs, channels, y: half(taps.y), x: half(taps.x), ..taps };
            return Found { dense, taps, weight_output: weight_output / 2, weight_group: weight_group / 2 };
        }
        let taps = Taps { elements: Pixels::Interleaved(all), channels, ..taps };
        Found { dense, taps, weight_output, weight_group }
    }

    /// The same with taps first in panels, where images have their channels last.
    fn in_order_of_image(mut self) -> Found {
        self.dense.taps_first = self.taps.count() > 1 && self.dense.has_channels_last();
        self.taps.taps_first = self.dense.taps_first;
        self
    }

    /// The same with the results of several groups in a vector, where a group has fewer and as many channels, all side by side.
    fn with_several_groups(mut self) -> Found {
        let lanes = Dense::vector_of(self.dense.isa);
        let dense = &mut self.dense;
        // Channels of a word.
        let each = if dense.pixels == Pixels::Pairs { 2 } else { 1 };
        let (outputs, channels) = (dense.outputs, dense.channels);
        let side_by_side = dense.channel_stride == 1
            && dense.group_stride == channels as isize
            && self.weight_group == outputs as isize * self.weight_output;
        let fits = outputs == channels * each && outputs < lanes && lanes.is_multiple_of(outputs.max(1));
        let in_place = matches!(dense.pixels, Pixels::Floats | Pixels::Pairs);
        let all = dense.groups * outputs;
        // Without masks a pixel is read beyond its channels.
        let whole = all.is_multiple_of(lanes) || dense.isa == Isa::Avx512;
        if dense.groups < 2 || !in_place || !side_by_side || !fits || !whole {
            return self;
        }
        (dense.several, dense.taps_first, self.taps.taps_first) = (outputs, false, false);
        dense.groups = all.div_ceil(lanes);
        (dense.outputs, dense.last_outputs) = (lanes, all - (all.div_ceil(lanes) - 1) * lanes);
        dense.channel_stride = 0;
        dense.group_stride = (lanes / each) as isize;
        self.weight_group = lanes as isize * self.weight_output;
        self
    }
}

/// What each axis of places is.
struct Windows {
    images: (usize, isize),
    row_stride: isize,
    pixel_stride: isize,
    /// Rows, then pixels of a row.
    axes: [WindowAxis; 2],
}

/// `None` unless results are `[images,] [rows,] pixels`, sums `channels, [taps of rows,] taps of pixels`, and every guard is over one of the
/// last two axes. `of_images` says that the first axis of results has to be that of images.
fn windows(
    summed: &[(usize, isize)],
    places: &[(usize, isize)],
    guards: &[Guarded],
    of_images: bool,
) -> Option<Windows> {
    if summed.len() == 1 {
        return points(places, guards, of_images);
    }
    let rank = if summed.len() == 3 { 2 } else { 1 };
    if !(rank..=rank + 1).contains(&places.len()) {
        return None;
    }
    let first = places.len() - rank;
    let mut used = 0;
    let mut window = |r: usize, f: usize| -> Option<(isize, WindowAxis)> {
        let mut own = guards.iter().filter(|guard| guard.places[r] != 0 || guard.summed[f] != 0);
        let guard = own.next();
        let others = |guard: &&Guarded| {
            let of = |list: &[isize], at: usize| list.iter().enumerate().all(|(i, &c)| i == at || c == 0);
            of(&guard.places, r) && of(&guard.summed, f)
        };
        if own.next().is_some() || !guard.iter().all(others) {
            return None;
        }
        used += usize::from(guard.is_some());
        let ((count, stride), (taps, step)) = (places[r], summed[f]);
        let unit = match guard {
            Some(guard) if count > 1 => stride.checked_div(guard.places[r])?,
            Some(guard) if taps > 1 => step.checked_div(guard.summed[f])?,
            Some(_) => 1,
            None if count > 1 && taps > 1 => common_divisor(stride, step),
            None if count > 1 => stride,
            None => step,
        };
        let step = (taps > 1).then_some(step);
        Some((unit, axis(count, stride, taps, step, guard.map(|guard| (guard, r, Some(f))), unit.max(1), 0)?))
    };
    let (pixel_stride, x) = window(places.len() - 1, summed.len() - 1)?;
    let one = WindowAxis { taps: 1, stride: 1, dilation: 1, start: 0, length: 1, places: 1, weight_stride: 0 };
    let (row_stride, y) = if rank == 2 { window(first, 1)? } else { (0, one) };
    let images = if first == 1 { places[0] } else { (1, 0) };
    (used == guards.len()).then_some(Windows { images, row_stride, pixel_stride, axes: [y, x] })
}

/// The same for windows of one pixel: rows are those of the images, or parts of them where pixels are one long row.
fn points(places: &[(usize, isize)], guards: &[Guarded], of_images: bool) -> Option<Windows> {
    let one = |places: usize| WindowAxis {
        taps: 1,
        stride: 1,
        dilation: 1,
        start: 0,
        length: places as isize,
        places,
        weight_stride: 0,
    };
    let (images, rows, (pixels, pixel_stride)) = match *places {
        _ if !guards.is_empty() => return None,
        [x] if !of_images => ((1, 0), (1, 0), x),
        // Images and rows of pixels are told apart by nothing but their number.
        [y, x] if !of_images && (SHORTEST_ROW..=LONGEST_ROW).contains(&x.0) => ((1, 0), y, x),
        [n, x] => (n, (1, 0), x),
        [n, y, x] => (n, y, x),
        _ => return None,
    };
    let (rows, pixels) = match rows.0 {
        1 => {
            let part = (1..=LONGEST_ROW.min(pixels)).rev().find(|part| pixels % part == 0)?;
            ((pixels / part, pixel_stride * part as isize), part)
        }
        _ => (rows, pixels),
    };
    if pixels < SHORTEST_ROW && rows.0 > 1 || pixels > LONGEST_ROW {
        return None;
    }
    Some(Windows { images, row_stride: rows.1, pixel_stride, axes: [one(rows.0), one(pixels)] })
}

impl DenseConvolution {
    /// `None` for every other product, and for a convolution that is computed directly. `packed` is the buffer of weights that were packed
    /// beforehand.
    pub fn of(
        build: Build<'_>,
        kernel: &Kernel,
        body: &MatmulBody,
        sides: &Sides<'_>,
        packed: Option<usize>,
    ) -> Result<Option<DenseConvolution>, String> {
        let Some(parts) = Parts::of(build.isa, kernel, body) else { return Ok(None) };
        // Sizes that are known say now whether it is one.
        if let Ok(None) = parts.numbers(build.isa, &Known { symbols: &[], values: &[] }) {
            return Ok(None);
        }
        let pixels_first = std::ptr::eq(sides.left, &body.lhs);
        // Groups are results like any other.
        let outputs: Vec<Axis> = body.batch.iter().chain(&body.n).cloned().collect();
        let (rows, columns) = if pixels_first { (&body.m, &outputs) } else { (&outputs, &body.m) };
        let whole = MatmulBody { batch: Vec::new(), ..body.clone() };
        let tiles = Tiles::new(build, kernel, &whole, rows, columns)?;
        let Parts { image, factors, weights, groups, outputs, fewest } = parts;
        let packed = packed.is_some_and(|buffer| buffer == weights.buffer);
        let known = Known { symbols: &[], values: &[] };
        let operands = (&image, factors.as_ref(), &weights);
        let prepared = match prepared(build.isa, operands, [&groups, &outputs], (fewest, pixels_first), &known) {
            Ok(None) => return Ok(None),
            Ok(prepared) => prepared,
            // Sizes that are not known yet.
            Err(_) => None,
        };
        Ok(Some(DenseConvolution {
            image,
            factors,
            weights,
            groups,
            outputs,
            fewest,
            tiles,
            pixels_first,
            packed,
            prepared,
        }))
    }

    /// Whether every launch is computed by this code.
    pub fn is_certain(&self) -> bool {
        self.prepared.is_some()
    }
}

impl Convolution for DenseConvolution {
    fn part(&self) -> (&'static str, &LoopKernel) {
        ("finishes results of a convolution", self.tiles.code())
    }

    unsafe fn launch(&self, launch: &Launch<'_>) -> Result<bool, LaunchError> {
        let &Launch { isa, threads, buffers, known } = launch;
        let made;
        let how = (self.fewest, self.pixels_first);
        let operands = (&self.image, self.factors.as_ref(), &self.weights);
        let prepared = match &self.prepared {
            Some(prepared) => prepared,
            None => match prepared(isa, operands, [&self.groups, &self.outputs], how, known)? {
                Some(prepared) => {
                    made = prepared;
                    &made
                }
                None if self.packed => {
                    let message = "weights that were packed for another kernel".into();
                    return Err(LaunchError::Device { code: 0, message });
                }
                None => return Ok(false),
            },
        };
        let number = |dim: &Dim| known.number(dim).map(|n| n as isize);
        let at = |parts: &WindowParts| -> Result<*const u8, LaunchError> {
            let bytes = number(&parts.first.rest)? * (parts.dtype.size_in_bits() / 8) as isize;
            Ok(buffers[parts.buffer].ptr.wrapping_offset(bytes).cast_const())
        };
        let Prepared { found, panels, plan } = prepared;
        let each = panels.bytes() / size_of::<f32>();
        let groups = found.dense.groups;
        let scratch = Scratch::take::<f32>(if self.packed { 0 } else { groups * each });
        let weights = match self.packed {
            true => buffers[self.weights.buffer].ptr.cast::<f32>().cast_const(),
            false => {
                let from = at(&self.weights)?;
                let group_bytes = found.weight_group * found.taps.elements.size() as isize;
                for group in 0..groups {
                    let from = from.wrapping_offset(group as isize * group_bytes);
                    let to = scratch.ptr::<f32>().wrapping_add(group * each);
                    let last = panels.of_columns(found.dense.last_outputs);
                    let panels = if group + 1 == groups { &last } else { panels };
                    // SAFETY: the caller guarantees the buffers; the scratch has room for all groups.
                    unsafe { found.taps.pack(panels, from, found.weight_output, to) };
                }
                scratch.ptr::<f32>().cast_const()
            }
        };
        let factors = match (&self.factors, found.dense.factors) {
            (Some(parts), Some(factors)) => {
                let first = buffers[parts.buffer].ptr.cast::<f32>().cast_const().wrapping_offset(number(&parts.first)?);
                Some(ChannelFactors { first, ..factors })
            }
            _ => None,
        };
        let image = at(&self.image)?;
        let dense = Dense { threads, image, factors, weights, weight_group: each, ..found.dense.clone() };
        launched(&self.tiles, launch, |epilogue| {
            // SAFETY: the caller guarantees the buffers, the kernel the strides.
            unsafe { dense.run_planned(plan, epilogue) };
            Ok(true)
        })
    }
}

/// Whether a convolution is computed so, and not as a product of unfolded pixels.
fn is_for(dense: &Dense, fewest: usize) -> bool {
    let (places, taps) = (dense.y.places * dense.x.places, dense.y.taps * dense.x.taps);
    let weights = dense.groups * dense.outputs * dense.channels * taps * size_of::<f32>();
    // A window larger than its results is the gradient of weights.
    let is_gradient = taps > places;
    // Weights are packed, and read once an image.
    let packs_for_little = dense.images * places < FEWEST_PLACES || weights > MOST_WEIGHT_BYTES;
    let reads_again = dense.images > 1 && places < FEWEST_PLACES && weights > CACHED_WEIGHT_BYTES;
    dense.outputs >= fewest && dense.is_possible() && !(is_gradient || packs_for_little || reads_again)
}

/// A convolution in the sizes of a launch; `None` where there is no code for it.
fn prepared(
    isa: Isa,
    (image, factors, weights): (&WindowParts, Option<&FactorParts>, &WindowParts),
    [groups, outputs]: [&Dim; 2],
    (fewest, pixels_first): (usize, bool),
    known: &Known<'_>,
) -> Result<Option<Prepared>, LaunchError> {
    let Some(mut found) = found(isa, image, factors, weights, known)? else { return Ok(None) };
    let (groups, outputs) = (known.size(groups)?, known.size(outputs)?);
    found.dense = Dense { isa, groups, outputs, last_outputs: outputs, pixels_first, ..found.dense };
    if !is_for(&found.dense, fewest) {
        return Ok(None);
    }
    let found = found.with_several_groups();
    let failed = |error: GemmError| LaunchError::Device { code: 0, message: error.to_string() };
    let panels = found.dense.panels(found.dense.channels * found.taps.count()).map_err(failed)?;
    Ok(found.dense.plan().map_err(failed)?.map(|plan| Prepared { found, panels, plan }))
}
