//! The linear layer.

use super::{Forward, Module, init};
use crate::{Result, Tensor, Var};
use kiln_ir::Source;

/// x·weightᵀ + bias over the last axis.
///
/// ```
/// use kiln::nn::{Forward, Linear};
/// use kiln::{DType, Device, Tensor};
/// let layer = Linear::new(3, 2)?;
/// assert_eq!(layer.weight.shape(), [2, 3]);
/// assert_eq!(layer.forward(&Tensor::ones([4, 3], DType::F32, Device::Cpu)?)?.shape(), [4, 2]);
/// # Ok::<(), kiln::Error>(())
/// ```
#[derive(Debug, Clone, Module)]
pub struct Linear {
    /// `[out, in]`.
    pub weight: Var,
    /// `[out]`.
    pub bias: Option<Var>,
}

impl Linear {
    /// Makes a linear layer with a bias; both are uniform within ±1/√in.
    #[track_caller]
    pub fn new(input: usize, output: usize) -> Result<Linear> {
        let bound = init::default_bound(input);
        let weight = init::parameter("weight", &init::uniform([output, input], bound)?);
        let bias = init::parameter("bias", &init::uniform(output, bound)?);
        Ok(Linear { weight, bias: Some(bias) })
    }

    /// Removes the bias.
    pub fn without_bias(self) -> Linear {
        Linear { bias: None, ..self }
    }
}

impl Forward for Linear {
    type Output = Tensor;
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let _line = Source::scope();
        x.linear(&self.weight.get(), value(&self.bias).as_ref())
    }
}

/// The value of a variable that may not be there.
#[track_caller]
pub(super) fn value(var: &Option<Var>) -> Option<Tensor> {
    Some(var.as_ref()?.get())
}
