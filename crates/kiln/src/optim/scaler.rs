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
        let ok = match self.unscale(optimizer)? {
            Some(finite) => finite.item::<bool>()?,
            None => true,
        };
        if ok {
            optimizer.step()?;
        }
        self.follow(&Tensor::scalar(ok, DType::Bool, self.scale.get().device())?)?;
        Ok(ok)
    }

    /// [`GradScaler::step`] without reading back: the optimizer takes its step, and parameters and its own variables keep their values where a gradient overflowed.
    /// Returns whether none did, as one bool. A compiled training step is one graph with it.
    #[track_caller]
    pub fn step_or_skip(&self, optimizer: &dyn Optimizer) -> Result<Tensor> {
        let Some(finite) = self.unscale(optimizer)? else {
            optimizer.step()?;
            let ok = Tensor::scalar(true, DType::Bool, self.scale.get().device())?;
            self.follow(&ok)?;
            return Ok(ok);
        };
        let rate = optimizer.learning_rate().id();
        let own = optimizer.state();
        let own = own.named_buffers().into_iter().chain(own.named_parameters()).map(|(_, var)| var);
        let own = own.filter(|var| var.id() != rate);
        let changing: Vec<Var> = optimizer.parameters().iter().cloned().chain(own).collect();
        let before: Vec<Tensor> = changing.iter().map(|var| var.get().detach()).collect();
        optimizer.step()?;
        for (var, before) in changing.iter().zip(&before) {
            var.set(&finite.where_(var.get().detach(), before)?)?;
        }
        self.follow(&finite)?;
        Ok(finite)
    }

    /// Divides the gradients by the factor, and says whether all of them are finite; nothing if there are none.
    fn unscale(&self, optimizer: &dyn Optimizer) -> Result<Option<Tensor>> {
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
        Ok(finite)
    }

    /// Changes the factor after a step that was taken or left out.
    fn follow(&self, ok: &Tensor) -> Result<()> {
        let (scale, steps) = (self.scale.get(), self.steps.get().add(1.0)?);
        let grows = ok.logical_and(&steps.ge(self.interval as f64)?)?;
        let grown = grows.where_(&scale.mul(self.growth)?, &scale)?;
        self.scale.set(&ok.where_(&grown, &scale.mul(self.backoff)?)?)?;
        let counts = ok.logical_and(&grows.logical_not()?)?;
        self.steps.set(&counts.where_(&steps, &steps.mul(0.0)?)?)
    }
}
