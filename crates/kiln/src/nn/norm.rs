//! Norms over the elements of one sample.

use super::linear::value;
use super::{Forward, Module, init};
use crate::{Error, Result, Shape, Tensor, Var};
use kiln_ir::Source;

/// x / √(mean of x² + epsilon) · weight, over the last axes.
///
/// ```
/// use kiln::nn::{Forward, RmsNorm};
/// use kiln::{Device, Tensor};
/// let norm = RmsNorm::new(2, 1e-6)?;
/// let y = norm.forward(&Tensor::new([[3f32, 4.]], Device::Cpu)?)?;
/// assert!(y.allclose(&Tensor::new([[0.848528f32, 1.131371]], Device::Cpu)?, 1e-5, 0.0)?);
/// # Ok::<(), kiln::Error>(())
/// ```
#[derive(Debug, Clone, Module)]
pub struct RmsNorm {
    /// The weight, in the shape of the normalised axes.
    pub weight: Var,
    /// Added to the mean of squares, so that the divisor is not 0.
    pub epsilon: f64,
}

impl RmsNorm {
    /// Makes a norm over the last axes, which have this shape.
    #[track_caller]
    pub fn new(shape: impl Shape, epsilon: f64) -> Result<RmsNorm> {
        Ok(RmsNorm { weight: init::parameter("weight", &init::ones(shape)?), epsilon })
    }
}

impl Forward for RmsNorm {
    type Output = Tensor;
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let _line = Source::scope();
        x.rms_norm(self.weight.shape().len(), Some(&self.weight.get()), self.epsilon)
    }
}

/// (x − mean) / √(variance + epsilon) · weight + bias, over the last axes.
///
/// ```
/// use kiln::nn::{Forward, LayerNorm};
/// use kiln::{DType, Device, Tensor};
/// let norm = LayerNorm::new(4, 1e-5)?;
/// let x = Tensor::arange(8, DType::F32, Device::Cpu)?.reshape([2, 4])?;
/// assert!(norm.forward(&x)?.mean(-1)?.allclose(&Tensor::zeros(2, DType::F32, Device::Cpu)?, 0.0, 1e-6)?);
/// # Ok::<(), kiln::Error>(())
/// ```
#[derive(Debug, Clone, Module)]
pub struct LayerNorm {
    /// In the shape of the axes that the norm is over.
    pub weight: Option<Var>,
    /// In the same shape.
    pub bias: Option<Var>,
    /// How many of the last axes the norm is over.
    pub axes: usize,
    /// Keeps the divisor from 0.
    pub epsilon: f64,
}

impl LayerNorm {
    /// Over the last axes, which have this shape, with a weight of ones and a bias of zeros.
    #[track_caller]
    pub fn new(shape: impl Shape, epsilon: f64) -> Result<LayerNorm> {
        let shape = shape.sizes();
        let weight = init::parameter("weight", &init::ones(&shape)?);
        let bias = init::parameter("bias", &init::zeros(&shape)?);
        Ok(LayerNorm { weight: Some(weight), bias: Some(bias), axes: shape.len(), epsilon })
    }

    /// Removes the bias.
    pub fn without_bias(self) -> LayerNorm {
        LayerNorm { bias: None, ..self }
    }

    /// Removes weight and bias.
    pub fn without_affine(self) -> LayerNorm {
        LayerNorm { weight: None, bias: None, ..self }
    }
}

impl Forward for LayerNorm {
    type Output = Tensor;
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let _line = Source::scope();
        x.layer_norm(self.axes, value(&self.weight).as_ref(), value(&self.bias).as_ref(), self.epsilon)
    }
}

/// Group norm of `[n, channels, …]`: statistics over each group of channels.
///
/// ```
/// use kiln::nn::{Forward, GroupNorm};
/// use kiln::{DType, Device, Tensor};
/// let norm = GroupNorm::new(2, 6, 1e-5)?;
/// assert_eq!(norm.forward(&Tensor::ones([1, 6, 5, 5], DType::F32, Device::Cpu)?)?.shape(), [1, 6, 5, 5]);
/// # Ok::<(), kiln::Error>(())
/// ```
#[derive(Debug, Clone, Module)]
pub struct GroupNorm {
    /// `[channels]`.
    pub weight: Option<Var>,
    /// `[channels]`.
    pub bias: Option<Var>,
    /// The number of groups.
    pub groups: usize,
    /// Added to the variance, so that the divisor is not 0.
    pub epsilon: f64,
}

impl GroupNorm {
    /// Makes a norm with a weight of ones and a bias of zeros. `groups` must divide `channels`.
    #[track_caller]
    pub fn new(groups: usize, channels: usize, epsilon: f64) -> Result<GroupNorm> {
        if groups == 0 || !channels.is_multiple_of(groups) {
            let (op, name, expected) = ("GroupNorm", "groups", "they have to divide the channels");
            return Err(Error::BadArgument { op, name, value: groups.into(), expected, at: Source::caller() });
        }
        let weight = init::parameter("weight", &init::ones(channels)?);
        let bias = init::parameter("bias", &init::zeros(channels)?);
        Ok(GroupNorm { weight: Some(weight), bias: Some(bias), groups, epsilon })
    }

    /// Removes weight and bias.
    pub fn without_affine(self) -> GroupNorm {
        GroupNorm { weight: None, bias: None, ..self }
    }
}

impl Forward for GroupNorm {
    type Output = Tensor;
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let _line = Source::scope();
        x.group_norm(self.groups, value(&self.weight).as_ref(), value(&self.bias).as_ref(), self.epsilon)
    }
}
