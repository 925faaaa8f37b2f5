//! Pooling, and flattening after it.

use super::{Forward, Module};
use crate::tensor::ops::product::Pool;
use crate::{Result, Tensor};
use kiln_ir::Source;

/// The largest element of each window over the last two axes.
///
/// ```
/// use kiln::nn::{Forward, MaxPool2d};
/// use kiln::{DType, Device, Pool, Tensor};
/// let x = Tensor::arange(16, DType::F32, Device::Cpu)?.reshape([1, 1, 4, 4])?;
/// assert_eq!(MaxPool2d(Pool::new([2, 2])).forward(&x)?.to_vec::<f32>()?, [5., 7., 13., 15.]);
/// # Ok::<(), kiln::Error>(())
/// ```
#[derive(Debug, Clone, Module)]
pub struct MaxPool2d(pub Pool<2>);

impl Forward for MaxPool2d {
    type Output = Tensor;
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let _line = Source::scope();
        x.max_pool2d(&self.0)
    }
}

/// The mean of each window over the last two axes.
///
/// ```
/// use kiln::nn::{AvgPool2d, Forward};
/// use kiln::{DType, Device, Pool, Tensor};
/// let x = Tensor::arange(16, DType::F32, Device::Cpu)?.reshape([1, 1, 4, 4])?;
/// assert_eq!(AvgPool2d(Pool::new([2, 2])).forward(&x)?.to_vec::<f32>()?, [2.5, 4.5, 10.5, 12.5]);
/// # Ok::<(), kiln::Error>(())
/// ```
#[derive(Debug, Clone, Module)]
pub struct AvgPool2d(pub Pool<2>);

impl Forward for AvgPool2d {
    type Output = Tensor;
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let _line = Source::scope();
        x.avg_pool2d(&self.0)
    }
}

/// Means over windows that divide the last two axes into the given numbers of parts.
#[derive(Debug, Clone, Module)]
pub struct AdaptiveAvgPool2d(pub [usize; 2]);

impl Forward for AdaptiveAvgPool2d {
    type Output = Tensor;
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let _line = Source::scope();
        x.adaptive_avg_pool2d(self.0)
    }
}

/// Flattens several axes into one; by default all but the first.
///
/// ```
/// use kiln::nn::{Flatten, Forward};
/// use kiln::{DType, Device, Tensor};
/// let x = Tensor::ones([2, 3, 4, 5], DType::F32, Device::Cpu)?;
/// assert_eq!(Flatten::default().forward(&x)?.shape(), [2, 60]);
/// # Ok::<(), kiln::Error>(())
/// ```
#[derive(Debug, Clone, Copy, Module)]
pub struct Flatten {
    /// The first axis.
    pub start: i64,
    /// The last axis.
    pub end: i64,
}

impl Default for Flatten {
    fn default() -> Flatten {
        Flatten { start: 1, end: -1 }
    }
}

impl Forward for Flatten {
    type Output = Tensor;
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let _line = Source::scope();
        x.flatten(self.start, self.end)
    }
}
