//! Convolutions.

use super::linear::value;
use super::{Forward, Module, init};
use crate::tensor::ops::product::Conv;
use crate::{Error, Result, Tensor, Var};
use kiln_ir::Source;

/// The first weight and bias of a convolution.
#[track_caller]
fn parameters<const N: usize>(
    input: usize,
    output: usize,
    window: [usize; N],
    options: &Conv<N>,
) -> Result<(Var, Option<Var>)> {
    let groups = options.groups;
    if groups == 0 || !input.is_multiple_of(groups) || !output.is_multiple_of(groups) {
        let (op, name, expected) = ("Conv", "groups", "they have to divide both channels");
        return Err(Error::BadArgument { op, name, value: groups.into(), expected, at: Source::caller() });
    }
    let mut shape = vec![output, input / groups];
    shape.extend(window);
    let bound = init::default_bound(shape[1..].iter().product());
    let weight = init::parameter("weight", &init::uniform(&shape, bound)?);
    let bias = init::parameter("bias", &init::uniform(output, bound)?);
    Ok((weight, Some(bias)))
}

/// Declares a convolution over `$n` spatial axes.
macro_rules! convolutions {
    ($($(#[$doc:meta])* $name:ident<$n:literal> = $method:ident, $parameters:ident, $shape:literal;)*) => { $(
        $(#[$doc])*
        #[derive(Debug, Clone, Module)]
        pub struct $name {
            #[doc = $shape]
            pub weight: Var,
            /// `[out]`.
            pub bias: Option<Var>,
            /// Stride, padding, dilation and groups.
            pub options: Conv<$n>,
        }

        impl $name {
            /// Makes one with a bias; both are uniform within ±1/√(elements of the window).
            #[track_caller]
            pub fn new(input: usize, output: usize, window: [usize; $n], options: Conv<$n>) -> Result<$name> {
                let (weight, bias) = $parameters(input, output, window, &options)?;
                Ok($name { weight, bias, options })
            }

            /// Removes the bias.
            pub fn without_bias(self) -> $name {
                $name { bias: None, ..self }
            }
        }

        impl Forward for $name {
            type Output = Tensor;
            #[track_caller]
            fn forward(&self, x: &Tensor) -> Result<Tensor> {
                let _line = Source::scope();
                x.$method(&self.weight.get(), value(&self.bias).as_ref(), &self.options)
            }
        }
    )* };
}

convolutions! {
    /// A convolution over `[n, channels, depth, height, width]`.
    ///
    /// ```
    /// use kiln::nn::{Conv3d, Forward};
    /// use kiln::{Conv, DType, Device, Tensor};
    /// let layer = Conv3d::new(2, 4, [3, 3, 3], Conv { padding: [1, 1, 1], ..Conv::default() })?;
    /// assert_eq!(layer.forward(&Tensor::ones([1, 2, 4, 5, 6], DType::F32, Device::Cpu)?)?.shape(), [1, 4, 4, 5, 6]);
    /// # Ok::<(), kiln::Error>(())
    /// ```
    Conv3d<3> = conv3d, parameters, "`[out, in / groups, depth, height, width]`.";
    /// A transposed convolution over `[n, channels, length]`.
    ConvTranspose1d<1> = conv_transpose1d, transposed_parameters, "`[in, out / groups, window]`.";
    /// A transposed convolution over `[n, channels, height, width]`.
    ///
    /// ```
    /// use kiln::nn::{ConvTranspose2d, Forward};
    /// use kiln::{Conv, DType, Device, Tensor};
    /// let layer = ConvTranspose2d::new(4, 2, [2, 2], Conv { stride: [2, 2], ..Conv::default() })?;
    /// assert_eq!(layer.weight.shape(), [4, 2, 2, 2]);
    /// assert_eq!(layer.forward(&Tensor::ones([1, 4, 3, 5], DType::F32, Device::Cpu)?)?.shape(), [1, 2, 6, 10]);
    /// # Ok::<(), kiln::Error>(())
    /// ```
    ConvTranspose2d<2> = conv_transpose2d, transposed_parameters, "`[in, out / groups, height, width]`.";
    /// A transposed convolution over `[n, channels, depth, height, width]`.
    ConvTranspose3d<3> = conv_transpose3d, transposed_parameters, "`[in, out / groups, depth, height, width]`.";
}

/// The first weight and bias of a transposed convolution.
#[track_caller]
fn transposed_parameters<const N: usize>(
    input: usize,
    output: usize,
    window: [usize; N],
    options: &Conv<N>,
) -> Result<(Var, Option<Var>)> {
    let (weight, _) = parameters(output, input, window, options)?;
    // PyTorch counts the elements of the weight's second axis and the window.
    let bound = init::default_bound(weight.shape()[1..].iter().product());
    Ok((weight, Some(init::parameter("bias", &init::uniform(output, bound)?))))
}

/// A convolution over `[n, channels, length]`.
///
/// ```
/// use kiln::nn::{Conv1d, Forward};
/// use kiln::{Conv, DType, Device, Tensor};
/// let layer = Conv1d::new(3, 8, 5, Conv { padding: [2], ..Conv::default() })?;
/// assert_eq!(layer.weight.shape(), [8, 3, 5]);
/// assert_eq!(layer.forward(&Tensor::ones([1, 3, 10], DType::F32, Device::Cpu)?)?.shape(), [1, 8, 10]);
/// # Ok::<(), kiln::Error>(())
/// ```
#[derive(Debug, Clone, Module)]
pub struct Conv1d {
    /// `[out, in / groups, window]`.
    pub weight: Var,
    /// `[out]`.
    pub bias: Option<Var>,
    /// Stride, padding, dilation and groups.
    pub options: Conv<1>,
}

impl Conv1d {
    /// Makes a convolution with a bias; both are uniform within ±1/√(elements of the window).
    #[track_caller]
    pub fn new(input: usize, output: usize, window: usize, options: Conv<1>) -> Result<Conv1d> {
        let (weight, bias) = parameters(input, output, [window], &options)?;
        Ok(Conv1d { weight, bias, options })
    }

    /// Removes the bias.
    pub fn without_bias(self) -> Conv1d {
        Conv1d { bias: None, ..self }
    }
}

impl Forward for Conv1d {
    type Output = Tensor;
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let _line = Source::scope();
        x.conv1d(&self.weight.get(), value(&self.bias).as_ref(), &self.options)
    }
}

/// A convolution over `[n, channels, height, width]`.
///
/// ```
/// use kiln::nn::{Conv2d, Forward};
/// use kiln::{Conv, DType, Device, Tensor};
/// let layer = Conv2d::new(3, 8, [3, 3], Conv { stride: [2, 2], ..Conv::default() })?.without_bias();
/// assert_eq!(layer.weight.shape(), [8, 3, 3, 3]);
/// assert_eq!(layer.forward(&Tensor::ones([1, 3, 9, 9], DType::F32, Device::Cpu)?)?.shape(), [1, 8, 4, 4]);
/// # Ok::<(), kiln::Error>(())
/// ```
#[derive(Debug, Clone, Module)]
pub struct Conv2d {
    /// `[out, in / groups, height, width]`.
    pub weight: Var,
    /// `[out]`.
    pub bias: Option<Var>,
    /// Stride, padding, dilation and groups.
    pub options: Conv<2>,
}

impl Conv2d {
    /// Makes a convolution with a bias; both are uniform within ±1/√(elements of the window).
    #[track_caller]
    pub fn new(input: usize, output: usize, window: [usize; 2], options: Conv<2>) -> Result<Conv2d> {
        let (weight, bias) = parameters(input, output, window, &options)?;
        Ok(Conv2d { weight, bias, options })
    }

    /// Removes the bias.
    pub fn without_bias(self) -> Conv2d {
        Conv2d { bias: None, ..self }
    }
}

impl Forward for Conv2d {
    type Output = Tensor;
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let _line = Source::scope();
        x.conv2d(&self.weight.get(), value(&self.bias).as_ref(), &self.options)
    }
}
