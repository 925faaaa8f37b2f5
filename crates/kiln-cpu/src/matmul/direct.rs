//! Products that are convolutions with few results a group: weights times pixels under windows, for all groups at once. What
//! [`crate::gemm::Direct`] computes without unfolding pixels.

use super::fused::{FusedEpilogue, Tiles};
use super::plain::PlainLoad;
use super::windows::WindowLoad;
use super::{Convolution, Known, Launch, Side, Sides};
use crate::features::{Extension, Isa};
use crate::gemm::{Direct, Epilogue, GemmError, WindowAxis};
use crate::loops::{Build, LoopKernel};
use kiln_ir::{DType, Dim};
use kiln_kernels::kernel::{Axis, Kernel, MatmulBody};
use kiln_runtime::LaunchError;

/// The largest stride along x: beyond it, neighbouring pixels are not neighbours in memory.
const MOST_STRIDE: isize = 8;

/// Results of a group that fill a vector of pairs.
pub(super) const FEWEST_LANES: usize = 16;

/// A linear expression with its coefficient along the groups.
pub(super) struct Grouped {
    pub group: Dim,
    pub rest: Dim,
}

impl Grouped {
    fn of(expr: &Dim, groups: Option<&Axis>) -> Option<Grouped> {
        let (group, rest) = match groups {
            Some(axis) => expr.linear_in(axis.var)?,
            None => (Dim::default(), expr.clone()),
        };
        Some(Grouped { group, rest })
    }
}

/// A convolution in symbolic sizes.
pub(super) struct DirectConvolution {
    image: WindowParts,
    weights: WeightParts,
    groups: Dim,
    outputs: Dim,
    tiles: Tiles,
}

/// Pixels under windows.
pub(super) struct WindowParts {
    pub buffer: usize,
    pub dtype: DType,
    pub first: Grouped,
    /// Size and stride of each summed axis, and of each axis of results.
    pub summed: Vec<(Dim, Dim)>,
    pub places: Vec<(Dim, Dim)>,
    pub guards: Vec<GuardParts>,
}

pub(super) struct GuardParts {
    pub summed: Vec<Dim>,
    pub places: Vec<Dim>,
    pub start: Dim,
    pub low: Dim,
    pub high: Dim,
}

/// Weights in memory.
struct WeightParts {
    buffer: usize,
    dtype: DType,
    first: Grouped,
    output: Dim,
    /// From one element of the sum to the next.
    element: Dim,
}

impl DirectConvolution {
    /// `None` for every other product.
    pub fn of(
        build: Build<'_>,
        kernel: &Kernel,
        body: &MatmulBody,
        sides: &Sides<'_>,
        left: &Side,
        right: &Side,
    ) -> Result<Option<DirectConvolution>, String> {
        let found = || {
            let (Side::Plain(weights), Side::Windows { load, by_row: true }) = (left, right) else { return None };
            if build.isa == Isa::Portable || body.acc != DType::F32 || body.batch.len() > 1 {
                return None;
            }
            let groups = body.batch.first();
            let outputs: Dim = sides.rows.iter().map(|axis| &axis.size).product();
            let summed: Dim = body.k.iter().map(|axis| &axis.size).product();
            let known = |dim: &Dim| dim.as_const().and_then(|n| usize::try_from(n).ok());
            let few = known(&outputs).is_some_and(|n| {
                // Windows have axes of their own in a sum over channels.
                let summed = if body.k.len() > 1 { known(&summed) } else { None };
                Direct::is_for(n, summed.unwrap_or(usize::MAX))
            });
            let floats = matches!(weights.dtype, DType::F32 | DType::Bf16 | DType::F16);
            // Lanes are results where those fill a vector of pairs, or of floats whose sums are long.
            let pairs = Extension::multiplies_pairs(build.isa) && [weights.dtype, load.dtype] == [DType::Bf16; 2];
            let long = build.isa == Isa::Avx512 && !known(&summed).is_some_and(Direct::is_short);
            let dense = (pairs || long)
                && body.k.len() > 1
                && known(&outputs).is_some_and(|n| (FEWEST_LANES..=Direct::FEW_OUTPUTS).contains(&n));
            if !few || !floats || dense || outputs.is_zero() {
                return None;
            }
            let groups_of = |axis: Option<&Axis>| axis.map_or(Dim::from(1), |axis| axis.size.clone());
            Some((window_parts(load, groups)?, weight_parts(weights, groups)?, groups_of(groups), outputs))
        };
        let Some((image, weights, groups, outputs)) = found() else { return Ok(None) };
        // Sizes that are known say now whether it is one.
        let known = Known { symbols: &[], values: &[] };
        if let Ok(None) = windowed(&image, &weights, &outputs, &known) {
            return Ok(None);
        }
        // Groups are rows of the result like any other.
        let rows: Vec<Axis> = body.batch.iter().chain(sides.rows).cloned().collect();
        let whole = MatmulBody { batch: Vec::new(), ..body.clone() };
        let tiles = Tiles::new(build, kernel, &whole, &rows, sides.columns)?;
        Ok(Some(DirectConvolution { image, weights, groups, outputs, tiles }))
    }

    /// The convolution in numbers.
    fn at(&self, launch: &Launch<'_>) -> Result<Option<Direct>, LaunchError> {
        let &Launch { isa, threads, buffers, known } = launch;
        let number = |dim: &Dim| known.number(dim).map(|n| n as isize);
        let Some(windows) = windowed(&self.image, &self.weights, &self.outputs, known)? else { return Ok(None) };
        let size = |dtype: DType| (dtype.size_in_bits() / 8) as isize;
        let image = number(&self.image.first.rest)? * size(self.image.dtype);
        let weights = number(&self.weights.first.rest)? * size(self.weights.dtype);
        Ok(Some(Direct {
            isa,
            threads,
            image: buffers[self.image.buffer].ptr.wrapping_offset(image),
            image_dtype: self.image.dtype,
            images: windows.images.0,
            image_stride: windows.images.1,
            group_stride: number(&self.image.first.group)?,
            channels: windows.channels.0,
            channel_stride: windows.channels.1,
            row_stride: windows.row_stride,
            weights: buffers[self.weights.buffer].ptr.wrapping_offset(weights),
            weight_dtype: self.weights.dtype,
            weight_group: number(&self.weights.first.group)?,
            weight_output: number(&self.weights.output)?,
            weight_channel: windows.weight_channel,
            groups: known.size(&self.groups)?,
            outputs: known.size(&self.outputs)?,
            y: windows.y,
            x: windows.x,
        }))
    }
}

impl Convolution for DirectConvolution {
    fn part(&self) -> (&'static str, &LoopKernel) {
        ("finishes results of several groups", self.tiles.code())
    }

    unsafe fn launch(&self, launch: &Launch<'_>) -> Result<bool, LaunchError> {
        let Some(direct) = self.at(launch)? else { return Ok(false) };
        // SAFETY: the caller guarantees the buffers, the kernel the strides.
        launched(&self.tiles, launch, |epilogue| unsafe { direct.run(epilogue) })
    }
}

pub(super) fn window_parts(load: &WindowLoad, groups: Option<&Axis>) -> Option<WindowParts> {
    let pair = |sizes: &[Dim], strides: &[Dim]| sizes.iter().cloned().zip(strides.iter().cloned()).collect();
    let guard = |range: &super::windows::Range| {
        let moves = |dim: &Dim| groups.is_some_and(|axis| dim.contains(axis.var));
        let fixed = ![&range.expr.rest, &range.low, &range.high].into_iter().any(moves);
        fixed.then(|| GuardParts {
            summed: range.expr.fixed.clone(),
            places: range.expr.running.clone(),
            start: range.expr.rest.clone(),
            low: range.low.clone(),
            high: range.high.clone(),
        })
    };
    Some(WindowParts {
        buffer: load.buffer,
        dtype: load.dtype,
        first: Grouped::of(&load.place.rest, groups)?,
        summed: pair(&load.fixed, &load.place.fixed),
        places: pair(&load.running, &load.place.running),
        guards: load.guards.iter().map(guard).collect::<Option<_>>()?,
    })
}

fn weight_parts(load: &PlainLoad, groups: Option<&Axis>) -> Option<WeightParts> {
    Some(WeightParts {
        buffer: load.buffer,
        dtype: load.dtype,
        first: Grouped::of(&load.offset, groups)?,
        output: load.row.clone(),
        element: load.column.clone(),
    })
}

/// What each axis is, where this is a convolution that is computed directly.
fn windowed(
    image: &WindowParts,
    weights: &WeightParts,
    outputs: &Dim,
    known: &Known<'_>,
) -> Result<Option<Windowed>, LaunchError> {
    let Numbers { summed, places, guards } = image.numbers(known)?;
    let element = known.number(&weights.element)? as isize;
    let few = known.size(outputs)? <= Direct::FEW_OUTPUTS;
    // Pixels further apart are not copied by vectors, and take longer than they save where there are many results.
    let near = |windows: &Windowed| windows.x.stride <= 2 || few;
    Ok(Windowed::of(&summed, &places, &guards, element).filter(near))
}

/// Runs a convolution with the epilogue of its tiles; false where it did nothing.
pub(super) fn launched(
    tiles: &Tiles,
    launch: &Launch<'_>,
    run: impl FnOnce(&dyn Epilogue) -> Result<bool, GemmError>,
) -> Result<bool, LaunchError> {
    let epilogue = FusedEpilogue::new(tiles, launch.buffers, launch.known.values)?;
    let ran = run(&epilogue).map_err(|error| LaunchError::Device { code: 0, message: error.to_string() })?;
    epilogue.outcome().map(|()| ran)
}

/// Pixels under windows, in numbers: size and stride of each summed axis and of each axis of results.
pub(super) struct Numbers {
    pub summed: Vec<(usize, isize)>,
    pub places: Vec<(usize, isize)>,
    pub guards: Vec<Guarded>,
}

impl WindowParts {
    /// With the sizes of a launch.
    pub fn numbers(&self, known: &Known<'_>) -> Result<Numbers, LaunchError> {
        let number = |dim: &Dim| known.number(dim).map(|n| n as isize);
        let numbers = |list: &[Dim]| list.iter().map(number).collect::<Result<Vec<_>, _>>();
        let pairs = |list: &[(Dim, Dim)]| -> Result<Vec<(usize, isize)>, LaunchError> {
            list.iter().map(|(size, stride)| Ok((known.size(size)?, number(stride)?))).collect()
        };
        let guard = |guard: &GuardParts| -> Result<Guarded, LaunchError> {
            let low = number(&guard.low)?;
            Ok(Guarded {
                summed: numbers(&guard.summed)?,
                places: numbers(&guard.places)?,
                start: number(&guard.start)? - low,
                length: number(&guard.high)? - low,
            })
        };
        let guards = self.guards.iter().map(guard).collect::<Result<_, _>>()?;
        Ok(Numbers { summed: pairs(&self.summed)?, places: pairs(&self.places)?, guards })
    }
}

/// A guard in numbers.
pub(super) struct Guarded {
    pub summed: Vec<isize>,
    pub places: Vec<isize>,
    pub start: isize,
    pub length: isize,
}

/// What each axis of a product is for a convolution.
pub(super) struct Windowed {
    /// Number and stride.
    pub images: (usize, isize),
    pub channels: (usize, isize),
    pub weight_channel: isize,
    pub row_stride: isize,
    pub pixel_stride: isize,
    pub y: WindowAxis,
    pub x: WindowAxis,
}

impl Windowed {
    /// A convolution of images whose pixels are side by side. `None` unless results are `[images,] [rows,] pixels`, and each axis of the sum is the taps of one of the last two or channels.
    pub fn of(
        summed: &[(usize, isize)],
        places: &[(usize, isize)],
        guards: &[Guarded],
        element: isize,
    ) -> Option<Windowed> {
        Windowed::with_pixels(
            summed,
            places,
            guards,
            |f| element * summed[f + 1..].iter().map(|axis| axis.0 as isize).product::<isize>(),
            Some(1),
        )
    }

    /// The same with pixels so far from each other, or as far as the axes say; `weight` is the stride of the weights along each axis of the
    /// sum.
    pub fn with_pixels(
        summed: &[(usize, isize)],
        places: &[(usize, isize)],
        guards: &[Guarded],
        weight: impl Fn(usize) -> isize,
        pixel_stride: Option<isize>,
    ) -> Option<Windowed> {
        let ([.., last], true) = (places, places.len() <= 3) else { return None };
        let (x, y) = (places.len() - 1, places.len().checked_sub(2));
        let mut left: Vec<usize> = (0..summed.len()).filter(|&f| summed[f].0 > 1).collect();
        let (x_tap, x_guard) = taps_of(x, &mut left, summed, places, guards)?;
        let (y_tap, y_guard) = match y {
            Some(y) => taps_of(y, &mut left, summed, places, guards)?,
            None => (None, None),
        };
        if guards.len() != usize::from(x_guard.is_some()) + usize::from(y_guard.is_some()) || left.len() > 1 {
            return None;
        }
        let weight = |f: Option<usize>| f.map_or(0, &weight);
        let step = |f: Option<usize>| f.map(|f| summed[f].1);
        let count = |f: Option<usize>| f.map_or(1, |f| summed[f].0);
        let pixel_stride = match pixel_stride {
            Some(stride) => stride,
            None => unit(x_guard, x, *last, step(x_tap))?,
        };
        let x_guard = x_guard.map(|g| (g, x, x_tap));
        let x_axis = axis(last.0, last.1, count(x_tap), step(x_tap), x_guard, pixel_stride, weight(x_tap))?;
        let row = y.map_or((1, 1), |y| places[y]);
        let row_stride = unit(y_guard, y.unwrap_or(0), row, step(y_tap))?;
        let y_guard = y_guard.zip(y).map(|(g, y)| (g, y, y_tap));
        let y_axis = axis(row.0, row.1, count(y_tap), step(y_tap), y_guard, row_stride, weight(y_tap))?;
        if x_axis.stride as isize > MOST_STRIDE || y_axis.stride as isize > MOST_STRIDE {
            return None;
        }
        let channel = left.first().copied();
        Some(Windowed {
            images: if places.len() == 3 { places[0] } else { (1, 0) },
            channels: channel.map_or((1, 0), |f| summed[f]),
            weight_channel: weight(channel),
            row_stride,
            pixel_stride,
            y: y_axis,
            x: x_axis,
        })
    }
}

/// Elements from one line of the image to the next along an axis of results.
fn unit(guard: Option<&Guarded>, r: usize, (_, stride): (usize, isize), step: Option<isize>) -> Option<isize> {
    match (guard, step) {
        (Some(guard), _) => (guard.places[r] > 0 && stride % guard.places[r] == 0).then(|| stride / guard.places[r]),
        (None, Some(step)) => Some(common_divisor(stride, step)),
        (None, None) => Some(stride),
    }
}

type Found<'a> = (Option<usize>, Option<&'a Guarded>);

/// The taps that belong to an axis of results, taken out of `left`, and its guard; `None` where a guard is over anything else.
fn taps_of<'a>(
    r: usize,
    left: &mut Vec<usize>,
    summed: &[(usize, isize)],
    places: &[(usize, isize)],
    guards: &'a [Guarded],
) -> Option<Found<'a>> {
    let mut guard = None;
    for found in guards.iter().filter(|guard| guard.places[r] != 0) {
        if guard.replace(found).is_some() || found.places.iter().enumerate().any(|(i, &c)| i != r && c != 0) {
            return None;
        }
    }
    let guarded = |f: usize| guards.iter().any(|guard| guard.summed[f] != 0);
    let tied: Vec<usize> = match guard {
        Some(guard) => left.iter().copied().filter(|&f| guard.summed[f] != 0).collect(),
        None => {
            // A step of a tap is a few steps of a result.
            let (size, stride) = places[r];
            let near = |f: &usize| (1..=MOST_STRIDE * stride.max(1)).contains(&summed[*f].1);
            let inside = |f: &usize| summed[*f].1 < size as isize * stride;
            let near = left.iter().copied().filter(|f| !guarded(*f) && near(f) && inside(f));
            near.min_by_key(|&f| summed[f].1).into_iter().collect()
        }
    };
    match tied[..] {
        [] => Some((None, guard)),
        [f] => {
            left.retain(|&other| other != f);
            Some((Some(f), guard))
        }
        _ => None,
    }
}

pub(super) fn axis(
    places: usize,
    stride: isize,
    taps: usize,
    tap_stride: Option<isize>,
    guard: Option<(&Guarded, usize, Option<usize>)>,
    unit: isize,
    weight_stride: isize,
) -> Option<WindowAxis> {
    let in_units = |n: isize| (unit > 0 && n > 0 && n % unit == 0).then(|| n / unit);
    let stride = if places > 1 { in_units(stride)? } else { 1 };
    let dilation = tap_stride.map_or(Some(1), in_units)?;
    let (start, length) = match guard {
        None => (0, (taps as isize - 1) * dilation + (places as isize - 1) * stride + 1),
        Some((guard, r, f)) => {
            let agrees = (places == 1 || guard.places[r] == stride) && f.is_none_or(|f| guard.summed[f] == dilation);
            if !agrees {
                return None;
            }
            (guard.start, guard.length)
        }
    };
    let (stride, dilation) = (usize::try_from(stride).ok()?, usize::try_from(dilation).ok()?);
    Some(WindowAxis { taps, stride, dilation, start, length, places, weight_stride })
}

pub(super) fn common_divisor(a: isize, b: isize) -> isize {
    if b == 0 { a } else { common_divisor(b, a % b) }
}
