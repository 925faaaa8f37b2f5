//! Gradient scaling for training in f16.

use super::Optimizer;
use crate::nn::Module;
use crate::{DType, Device, Result, Tensor, Var};

/// Scales losses up so that small gradients of f16 do not become zero, and leaves out steps whose gradients overflowed.
///
/// ```
/// use kiln::nn::{Forward, Linear, Module};
/// use kiln::optim::{GradScaler, Optimizer, Sgd};
/// use kiln::{DType, Device, Tensor};
/// let (model, x) = (Linear::new(2, 1)?, Tensor::ones([3, 2], DType::F32, Device::Cpu)?);
/// let (optimizer, scaler) = (Sgd::new(model.parameters(), 0.1)?, GradScaler::new(Device::Cpu)?);
/// let loss = model.forward(&x)?.square()?.mean(..)?;
/// scaler.scale(&loss)?.backward()?;
/// assert!(scaler.step(&optimizer)?);
/// # Ok::<(), kiln::Error>(())
/// ```
#[derive(Debug, Clone, Module)]
pub struct GradScaler {
    /// The factor, one f32.
    #[module(buffer)]
    pub scale: Var,
    /// Steps since it last changed, one f32.
    #[module(buffer)]
    pub steps: Var,
    /// What the factor is multiplied by after `interval` steps without an overflow.
    pub growth: f64,
    /// What it is multiplied by after an overflow.
    pub backoff: f64,
    /// Steps without an overflow until it grows.
    pub interval: usize,
}

impl GradScaler {
    /// Starts at 2¹⁶, doubles after 2000 steps, halves at an overflow.
    #[track_caller]
    pub fn new(device: Device) -> Result<GradScaler> {
        let number = |value: f64| -> Result<Var> { Ok(Var::new(&Tensor::scalar(value, DType::F32, device)?)) };
        Ok(GradScaler { scale: number(65536.0)?, steps: number(0.0)?, growth: 2.0, backoff: 0.5, interval: 2000 })
    }

    /// The loss times the factor.
    #[track_caller]
    pub fn scale(&self, loss: &Tensor) -> Result<Tensor> {
        loss.mul(&self.scale.get().to_dtype(loss.dtype())?)
    }

    /// Divides the gradients by the factor; then, unless one of their elements is infinite or not a number, takes a step of the optimizer.
    /// Returns whether it did, and changes the factor accordingly. This reads one value back to the host.
    #[track_caller]
    pub fn step(&self, optimizer: &dyn Optimizer) -> Result<bool> {
        let inverse = self.scale.get().recip()?;
        let mut finite: Option<Tensor> = None;
        for parameter in optimizer.parameters() {
            let Some(gradient) = parameter.grad() else { continue };
            let gradient = gradient.mul(&inverse.to_dtype(gradient.dtype())?)?;
            let whole = gradient.is_finite()?.all(..)?;
            finite = Some(match finite {
                Some(others) => others.logical_and(&whole)?,
                None => whole,
            });
            parameter.set_grad(Some(gradient))?;
        }
        let ok = match finite {
            Some(finite) => finite.item::<bool>()?,
            None => true,
        };
        if ok {
            optimizer.step()?;
        }
        let (scale, steps) = (self.scale.get(), self.steps.get().add(1.0)?);
        if !ok {
            self.scale.set(&scale.mul(self.backoff)?)?;
            self.steps.set(&steps.mul(0.0)?)?;
            return Ok(false);
        }
        // Chosen without reading back.
        let grows = steps.ge(self.interval as f64)?;
        self.scale.set(&grows.where_(&scale.mul(self.growth)?, &scale)?)?;
        self.steps.set(&grows.where_(&steps.mul(0.0)?, &steps)?)?;
        Ok(true)
    }
}
