//! Pooling, and flattening after it.

use super::{Forward, Module};
use crate::tensor::ops::product::Pool;
use crate::{Result, Tensor};
use kiln_ir::Source;

/// Declares poolings by their options.
macro_rules! pools {
    ($($(#[$doc:meta])* $name:ident($options:ty) = $method:ident $(, $borrow:tt)?;)*) => { $(
        $(#[$doc])*
        #[derive(Debug, Clone, Module)]
        pub struct $name(pub $options);

        impl Forward for $name {
            type Output = Tensor;
            #[track_caller]
            fn forward(&self, x: &Tensor) -> Result<Tensor> {
                let _line = Source::scope();
                x.$method($($borrow)? self.0)
            }
        }
    )* };
}

pools! {
    /// The largest element of each window over the last axis.
    MaxPool1d(Pool<1>) = max_pool1d, &;
    /// The largest element of each window over the last two axes.
    ///
    /// ```
    /// use kiln::nn::{Forward, MaxPool2d};
    /// use kiln::{DType, Device, Pool, Tensor};
    /// let x = Tensor::arange(16, DType::F32, Device::Cpu)?.reshape([1, 1, 4, 4])?;
    /// assert_eq!(MaxPool2d(Pool::new([2, 2])).forward(&x)?.to_vec::<f32>()?, [5., 7., 13., 15.]);
    /// # Ok::<(), kiln::Error>(())
    /// ```
    MaxPool2d(Pool<2>) = max_pool2d, &;
    /// The largest element of each window over the last three axes.
    MaxPool3d(Pool<3>) = max_pool3d, &;
    /// The mean of each window over the last axis.
    AvgPool1d(Pool<1>) = avg_pool1d, &;
    /// The mean of each window over the last two axes.
    ///
    /// ```
    /// use kiln::nn::{AvgPool2d, Forward};
    /// use kiln::{DType, Device, Pool, Tensor};
    /// let x = Tensor::arange(16, DType::F32, Device::Cpu)?.reshape([1, 1, 4, 4])?;
    /// assert_eq!(AvgPool2d(Pool::new([2, 2])).forward(&x)?.to_vec::<f32>()?, [2.5, 4.5, 10.5, 12.5]);
    /// # Ok::<(), kiln::Error>(())
    /// ```
    AvgPool2d(Pool<2>) = avg_pool2d, &;
    /// The mean of each window over the last three axes.
    AvgPool3d(Pool<3>) = avg_pool3d, &;
    /// Means over windows that divide the last axis into the given number of parts.
    AdaptiveAvgPool1d(usize) = adaptive_avg_pool1d;
    /// Means over windows that divide the last two axes into the given numbers of parts.
    AdaptiveAvgPool2d([usize; 2]) = adaptive_avg_pool2d;
    /// Means over windows that divide the last three axes into the given numbers of parts.
    AdaptiveAvgPool3d([usize; 3]) = adaptive_avg_pool3d;
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
