//! Larger images: resized, or put together from channels.

use super::{Forward, Module};
use crate::{Result, Tensor};
use kiln_ir::Source;

/// How [`Upsample`] finds elements between elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Module)]
pub enum Interpolation {
    /// The nearest element.
    Nearest,
    /// Linear along each axis: bilinear of images.
    Linear {
        /// The outermost elements keep their positions.
        align_corners: bool,
    },
}

/// Resizes all axes after the first two by a factor.
///
/// ```
/// use kiln::nn::{Forward, Upsample};
/// use kiln::{Device, Tensor};
/// let x = Tensor::new([[[1f32, 2.]]], Device::Cpu)?;
/// assert_eq!(Upsample::nearest(2).forward(&x)?.to_vec::<f32>()?, [1., 1., 2., 2.]);
/// # Ok::<(), kiln::Error>(())
/// ```
#[derive(Debug, Clone, Module)]
pub struct Upsample {
    /// The factor.
    pub scale: usize,
    /// How elements are found.
    pub mode: Interpolation,
}

impl Upsample {
    /// By the nearest element.
    pub fn nearest(scale: usize) -> Upsample {
        Upsample { scale, mode: Interpolation::Nearest }
    }

    /// By linear interpolation.
    pub fn linear(scale: usize, align_corners: bool) -> Upsample {
        Upsample { scale, mode: Interpolation::Linear { align_corners } }
    }
}

impl Forward for Upsample {
    type Output = Tensor;
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let _line = Source::scope();
        let sizes: Vec<usize> = x.shape().iter().skip(2).map(|n| n * self.scale).collect();
        match self.mode {
            Interpolation::Nearest => x.interpolate_nearest(&sizes),
            Interpolation::Linear { align_corners } => x.interpolate_linear(&sizes, align_corners),
        }
    }
}

/// `[n, c·r², h, w]` as `[n, c, h·r, w·r]`.
///
/// ```
/// use kiln::nn::{Forward, PixelShuffle};
/// use kiln::{DType, Device, Tensor};
/// let x = Tensor::arange(4, DType::F32, Device::Cpu)?.reshape([1, 4, 1, 1])?;
/// assert_eq!(PixelShuffle(2).forward(&x)?.shape(), [1, 1, 2, 2]);
/// # Ok::<(), kiln::Error>(())
/// ```
#[derive(Debug, Clone, Module)]
pub struct PixelShuffle(pub usize);

impl Forward for PixelShuffle {
    type Output = Tensor;
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let _line = Source::scope();
        x.pixel_shuffle(self.0)
    }
}

/// `[n, c, h·r, w·r]` as `[n, c·r², h, w]`.
#[derive(Debug, Clone, Module)]
pub struct PixelUnshuffle(pub usize);

impl Forward for PixelUnshuffle {
    type Output = Tensor;
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let _line = Source::scope();
        x.pixel_unshuffle(self.0)
    }
}
