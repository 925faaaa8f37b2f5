//! Larger images: resized, or put together from channels.

use super::{Forward, Module};
use crate::{Error, Filter, ResampleOptions, Result, Tensor};
use kiln_ir::Source;

/// How [`Upsample`] finds elements between elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Module)]
pub enum Interpolation {
    /// The nearest element, as PyTorch's `nearest`: positions are rounded down.
    Nearest,
    /// The element whose middle is nearest: PyTorch's `nearest-exact`.
    NearestExact,
    /// Linear along each axis: bilinear of images.
    Linear {
        /// The outermost elements keep their positions.
        align_corners: bool,
    },
    /// A cubic curve through four elements along each axis of images, `[n, c, h, w]`: bicubic.
    Cubic {
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

    /// By a cubic curve, for images `[n, c, h, w]`.
    ///
    /// ```
    /// use kiln::nn::{Forward, Upsample};
    /// use kiln::{DType, Device, Tensor};
    /// let x = Tensor::ones([1, 1, 3, 4], DType::F32, Device::Cpu)?;
    /// assert_eq!(Upsample::cubic(2, false).forward(&x)?.shape(), [1, 1, 6, 8]);
    /// assert!(Upsample::cubic(2, false).forward(&x.reshape([1, 3, 4])?).is_err());
    /// # Ok::<(), kiln::Error>(())
    /// ```
    pub fn cubic(scale: usize, align_corners: bool) -> Upsample {
        Upsample { scale, mode: Interpolation::Cubic { align_corners } }
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
            Interpolation::NearestExact => x.interpolate_nearest_exact(&sizes),
            Interpolation::Linear { align_corners } => x.interpolate_linear(&sizes, align_corners),
            Interpolation::Cubic { .. } if x.rank() != 4 => {
                let (op, shape, expected) = ("bicubic interpolation", x.hint().to_vec(), "four axes");
                Err(Error::WrongRank { op, shape, expected, at: Source::caller() })
            }
            Interpolation::Cubic { align_corners } => {
                let options = ResampleOptions { filter: Filter::Cubic, align_corners, antialias: false, scales: None };
                x.resample(&sizes, &options)
            }
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
