//! Products that are gradients of a convolution's weights: a gradient times the pixels under every tap, summed over images and places,
//! for all groups at once. What [`crate::gemm::Gradient`] computes without unfolding pixels.

use super::direct::{Numbers, WindowParts, Windowed, launched, window_parts};
use super::fused::Tiles;
use super::windows::WindowLoad;
use super::{Convolution, Known, Launch, Side, Sides};
use crate::features::Isa;
use crate::gemm::{Direct, Gradient};
use crate::loops::{Build, LoopKernel};
use kiln_ir::{DType, Dim};
use kiln_kernels::kernel::{Axis, Kernel, MatmulBody};
use kiln_runtime::LaunchError;

/// A gradient in symbolic sizes.
pub(super) struct DirectGradient {
    image: WindowParts,
    gradient: WindowParts,
    groups: Dim,
    outputs: Dim,
    tiles: Tiles,
}

impl DirectGradient {
    /// `None` for every other product.
    pub fn of(
        build: Build<'_>,
        kernel: &Kernel,
        body: &MatmulBody,
        sides: &Sides<'_>,
        right: &Side,
    ) -> Result<Option<DirectGradient>, String> {
        // Plain or packed memory is a product like any other.
        if !matches!(right, Side::Windows { .. }) {
            return Ok(None);
        }
        let found = || {
            if build.isa == Isa::Portable || body.acc != DType::F32 || body.batch.len() > 1 || sides.rows.len() > 1 {
                return None;
            }
            let groups = body.batch.first();
            // Pixels under taps are summed along places: the other way round this is a convolution.
            let image = WindowLoad::of(kernel, body, sides.right, sides.columns, &body.k)?;
            let gradient = WindowLoad::of(kernel, body, sides.left, sides.rows, &body.k)?;
            if !gradient.guards.is_empty() {
                return None;
            }
            let groups_of = |axis: Option<&Axis>| axis.map_or(Dim::from(1), |axis| axis.size.clone());
            let outputs = sides.rows.iter().map(|axis| &axis.size).product();
            Some((window_parts(&image, groups)?, window_parts(&gradient, groups)?, groups_of(groups), outputs))
        };
        let Some((image, gradient, groups, outputs)) = found() else { return Ok(None) };
        // Sizes that are known say now whether it is one.
        let known = Known { symbols: &[], values: &[] };
        if let Ok(windows) = windowed(&image, &known)
            && !windows.is_some_and(|windows| Gradient::is_for(&direct_of(&windows)))
        {
            return Ok(None);
        }
        let rows: Vec<Axis> = body.batch.iter().chain(sides.rows).cloned().collect();
        let whole = MatmulBody { batch: Vec::new(), ..body.clone() };
        let tiles = Tiles::new(build, kernel, &whole, &rows, sides.columns)?;
        Ok(Some(DirectGradient { image, gradient, groups, outputs, tiles }))
    }

    /// The gradient in numbers.
    fn at(&self, launch: &Launch<'_>) -> Result<Option<Gradient>, LaunchError> {
        let &Launch { isa, threads, buffers, known } = launch;
        let number = |dim: &Dim| known.number(dim).map(|n| n as isize);
        let Some(found) = windowed(&self.image, known)? else { return Ok(None) };
        let size = |dtype: DType| (dtype.size_in_bits() / 8) as isize;
        let image = number(&self.image.first.rest)? * size(self.image.dtype);
        let windows = Direct {
            isa,
            threads,
            image: buffers[self.image.buffer].ptr.wrapping_offset(image),
            image_dtype: self.image.dtype,
            group_stride: number(&self.image.first.group)?,
            groups: known.size(&self.groups)?,
            outputs: known.size(&self.outputs)?,
            ..direct_of(&found)
        };
        // The gradient has the places of the image in the same order: images, rows, pixels.
        let mut places = self.gradient.places.iter().map(|(_, stride)| number(stride)).rev();
        let mut place = || places.next().unwrap_or(Ok(0));
        let (pixel_stride, row_stride, image_stride) = (place()?, place()?, place()?);
        let output_stride = match self.gradient.summed.first() {
            Some((_, stride)) => number(stride)?,
            None => 0,
        };
        let first = number(&self.gradient.first.rest)? * size(self.gradient.dtype);
        Ok(Some(Gradient {
            windows,
            gradient: buffers[self.gradient.buffer].ptr.wrapping_offset(first),
            dtype: self.gradient.dtype,
            image_stride,
            group_stride: number(&self.gradient.first.group)?,
            output_stride,
            row_stride,
            pixel_stride,
            image_pixel: found.pixel_stride,
        }))
    }
}

impl Convolution for DirectGradient {
    fn part(&self) -> (&'static str, &LoopKernel) {
        ("finishes gradients of weights", self.tiles.code())
    }

    unsafe fn launch(&self, launch: &Launch<'_>) -> Result<bool, LaunchError> {
        let Some(gradient) = self.at(launch)? else { return Ok(false) };
        // SAFETY: the caller guarantees the buffers, the kernel the strides.
        launched(&self.tiles, launch, |epilogue| unsafe { gradient.run(epilogue) })
    }
}

/// What each axis is: taps and channels are columns of the result, places are summed.
fn windowed(image: &WindowParts, known: &Known<'_>) -> Result<Option<Windowed>, LaunchError> {
    let Numbers { summed, places, guards } = image.numbers(known)?;
    let weight = |f: usize| summed[f + 1..].iter().map(|axis| axis.0 as isize).product::<isize>();
    Ok(Windowed::of(&summed, &places, &guards, 1)
        .or_else(|| Windowed::with_pixels(&summed, &places, &guards, weight, None)))
}

/// The convolution without what it is made of.
fn direct_of(windows: &Windowed) -> Direct {
    Direct {
        isa: Isa::Portable,
        threads: 1,
        image: std::ptr::null(),
        image_dtype: DType::F32,
        images: windows.images.0,
        image_stride: windows.images.1,
        group_stride: 0,
        channels: windows.channels.0,
        channel_stride: windows.channels.1,
        row_stride: windows.row_stride,
        weights: std::ptr::null(),
        weight_dtype: DType::F32,
        weight_group: 0,
        weight_output: 0,
        weight_channel: windows.weight_channel,
        groups: 1,
        outputs: 1,
        y: windows.y,
        x: windows.x,
    }
}
