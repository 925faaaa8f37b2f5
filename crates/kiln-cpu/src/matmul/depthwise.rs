//! Products that are convolutions of single channels whose pixels are not side by side: channels last, in memory or in the results. What
//! [`crate::gemm::Depthwise`] computes with channels in lanes. Pixels side by side are [`super::direct`]'s.

use super::direct::{Numbers, WindowParts, Windowed, launched, window_parts};
use super::fused::Tiles;
use super::plain::is_contiguous_along;
use super::windows::WindowLoad;
use super::{Convolution, Known, Launch, Sides};
use crate::features::Isa;
use crate::gemm::Depthwise;
use crate::loops::{Build, LoopKernel};
use kiln_ir::{DType, Dim};
use kiln_kernels::kernel::{Axis, Kernel, MatmulBody};
use kiln_runtime::LaunchError;

/// Channels that fill the lanes of a vector well enough.
const FEWEST_CHANNELS: usize = 8;

/// A convolution in symbolic sizes.
pub(super) struct DepthwiseConvolution {
    image: WindowParts,
    weights: WindowParts,
    channels: Dim,
    tiles: Tiles,
    pixels_first: bool,
}

impl DepthwiseConvolution {
    /// `None` for every other product.
    pub fn of(build: Build<'_>, kernel: &Kernel, body: &MatmulBody) -> Result<Option<DepthwiseConvolution>, String> {
        let found = || {
            let ([channels], [weights]) = (&body.batch[..], &body.rhs[..]) else { return None };
            let outputs: Dim = body.n.iter().map(|axis| &axis.size).product();
            let is_float = body.acc == DType::F32 && build.isa != Isa::Portable;
            if !is_float || !outputs.is_one() || Sides::of(body).is_none() {
                return None;
            }
            let image = WindowLoad::of(kernel, body, &body.lhs, &body.k, &body.m)?;
            let weights = WindowLoad::of(kernel, body, weights, &body.k, &body.n)?;
            if !weights.guards.is_empty() {
                return None;
            }
            let (image, weights) = (window_parts(&image, Some(channels))?, window_parts(&weights, Some(channels))?);
            Some((image, weights, channels.size.clone()))
        };
        let Some((image, weights, channels)) = found() else { return Ok(None) };
        // Sizes that are known say now whether it is one.
        let known = Known { symbols: &[], values: &[] };
        if let Ok(None) = windowed(&image, &weights, &channels, &known) {
            return Ok(None);
        }
        let pixels_first = is_contiguous_along(body, &body.batch);
        let lanes: Vec<Axis> = body.batch.iter().chain(&body.n).cloned().collect();
        let (rows, columns) = if pixels_first { (&body.m, &lanes) } else { (&lanes, &body.m) };
        let whole = MatmulBody { batch: Vec::new(), ..body.clone() };
        let tiles = Tiles::new(build, kernel, &whole, rows, columns)?;
        Ok(Some(DepthwiseConvolution { image, weights, channels, tiles, pixels_first }))
    }
}

impl Convolution for DepthwiseConvolution {
    fn part(&self) -> (&'static str, &LoopKernel) {
        ("finishes results of single channels", self.tiles.code())
    }

    unsafe fn launch(&self, launch: &Launch<'_>) -> Result<bool, LaunchError> {
        let &Launch { isa, threads, buffers, known } = launch;
        let number = |dim: &Dim| known.number(dim).map(|n| n as isize);
        let at = |parts: &WindowParts| -> Result<*const u8, LaunchError> {
            let bytes = number(&parts.first.rest)? * (parts.dtype.size_in_bits() / 8) as isize;
            Ok(buffers[parts.buffer].ptr.wrapping_offset(bytes).cast_const())
        };
        let Some(windows) = windowed(&self.image, &self.weights, &self.channels, known)? else { return Ok(false) };
        let depthwise = Depthwise {
            isa,
            threads,
            image: at(&self.image)?,
            image_dtype: self.image.dtype,
            images: windows.images.0,
            image_stride: windows.images.1,
            channels: known.size(&self.channels)?,
            channel_stride: number(&self.image.first.group)?,
            row_stride: windows.row_stride,
            pixel_stride: windows.pixel_stride,
            weights: at(&self.weights)?,
            weight_dtype: self.weights.dtype,
            weight_channel: number(&self.weights.first.group)?,
            y: windows.y,
            x: windows.x,
            pixels_first: self.pixels_first,
        };
        // SAFETY: the caller guarantees the buffers, the kernel the strides.
        launched(&self.tiles, launch, |epilogue| unsafe { depthwise.run(epilogue) })
    }
}

/// What each axis is, where this is a convolution of enough single channels.
fn windowed(
    image: &WindowParts,
    weights: &WindowParts,
    channels: &Dim,
    known: &Known<'_>,
) -> Result<Option<Windowed>, LaunchError> {
    let Numbers { summed, places, guards } = image.numbers(known)?;
    let steps: Vec<isize> = weights.numbers(known)?.summed.iter().map(|axis| axis.1).collect();
    let many = known.size(channels)? >= FEWEST_CHANNELS;
    // A window larger than its results is the gradient of weights.
    let (taps, results): (usize, usize) =
        (summed.iter().map(|axis| axis.0).product(), places.iter().map(|axis| axis.0).product());
    let single = |windows: &Windowed| windows.channels.0 == 1 && many && taps <= results;
    Ok(Windowed::with_pixels(&summed, &places, &guards, |f| steps[f], None).filter(single))
}
