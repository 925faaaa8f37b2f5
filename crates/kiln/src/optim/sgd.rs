//! Stochastic gradient descent, with momentum.

use super::{Optimizer, check, count, distinct, moments, moved, rate_and_steps, read, wide, write};
use crate::nn::Module;
use crate::{Result, Var};
use kiln_ir::Source;

/// Options of [`Sgd`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SgdConfig {
    /// The initial learning rate.
    pub learning_rate: f64,
    /// The momentum factor.
    pub momentum: f64,
    /// The share of the gradient that is left out of the momentum.
    pub dampening: f64,
    /// The weight decay (L2 penalty).
    pub weight_decay: f64,
    /// Whether to use Nesterov momentum; needs momentum and no dampening.
    pub nesterov: bool,
}

#[derive(Debug, Module)]
struct State {
    #[module(buffer)]
    learning_rate: Var,
    /// How often each parameter was changed.
    #[module(buffer)]
    step: Var,
    /// None without momentum.
    #[module(buffer)]
    momentum_buffer: Vec<Var>,
}

/// Stochastic gradient descent.
///
/// ```
/// use kiln::optim::{Optimizer, Sgd, SgdConfig};
/// use kiln::{Device, Tensor, Var};
/// let w = Var::new(&Tensor::new([1f32, -1.], Device::Cpu)?).requires_grad(true);
/// let optimizer = Sgd::with([w.clone()], SgdConfig { momentum: 0.9, ..Sgd::config(0.1) })?;
/// w.get().square()?.sum(..)?.backward()?;
/// optimizer.step()?;
/// assert_eq!(w.get().to_vec::<f32>()?, [0.8, -0.8]);
/// # Ok::<(), kiln::Error>(())
/// ```
#[derive(Debug)]
pub struct Sgd {
    parameters: Vec<Var>,
    config: SgdConfig,
    state: State,
}

impl Sgd {
    /// Returns options with this learning rate and nothing else.
    pub fn config(learning_rate: f64) -> SgdConfig {
        SgdConfig { learning_rate, momentum: 0.0, dampening: 0.0, weight_decay: 0.0, nesterov: false }
    }

    /// Makes an optimizer without momentum and weight decay.
    #[track_caller]
    pub fn new(parameters: impl IntoIterator<Item = Var>, learning_rate: f64) -> Result<Sgd> {
        Sgd::with(parameters, Sgd::config(learning_rate))
    }

    /// Makes an optimizer with these options.
    #[track_caller]
    pub fn with(parameters: impl IntoIterator<Item = Var>, config: SgdConfig) -> Result<Sgd> {
        let at = Source::caller();
        let SgdConfig { learning_rate, momentum, dampening, weight_decay, nesterov } = config;
        check("learning rate", learning_rate, learning_rate >= 0.0, "it has to be 0 or more", &at)?;
        check("momentum", momentum, momentum >= 0.0, "it has to be 0 or more", &at)?;
        check("weight decay", weight_decay, weight_decay >= 0.0, "it has to be 0 or more", &at)?;
        check("momentum", momentum, !nesterov || momentum > 0.0, "nesterov needs some", &at)?;
        check("dampening", dampening, !nesterov || dampening == 0.0, "nesterov takes none", &at)?;
        let parameters = distinct(parameters);
        let (learning_rate, step) = rate_and_steps(learning_rate, &parameters)?;
        let momentum_buffer = if momentum == 0.0 { Vec::new() } else { moments("momentum_buffer", &parameters)? };
        Ok(Sgd { parameters, config, state: State { learning_rate, step, momentum_buffer } })
    }

    #[track_caller]
    fn change(&self) -> Result<()> {
        let SgdConfig { momentum, dampening, weight_decay, nesterov, .. } = self.config;
        let moved = moved(&self.parameters);
        let steps = self.state.step.get();
        count(&self.state.step, &moved)?;
        let rate = self.state.learning_rate.get();
        // A first direction is the whole gradient.
        let shares = if dampening == 0.0 { None } else { Some(steps.eq(0.0)?.where_(1.0, 1.0 - dampening)?) };
        for (number, parameter, gradient) in moved {
            let dtype = wide(parameter.dtype());
            let (value, mut direction) = (read(parameter, dtype)?, gradient.to_dtype(dtype)?);
            if weight_decay != 0.0 {
                direction = direction.add(value.mul(weight_decay)?)?;
            }
            if let Some(buffer) = self.state.momentum_buffer.get(number) {
                let mut new = direction.clone();
                if let Some(shares) = &shares {
                    new = new.mul(shares.select(0, number)?.to_dtype(dtype)?)?;
                }
                let new = read(buffer, dtype)?.mul(momentum)?.add(&new)?;
                write(buffer, &new)?;
                direction = if nesterov { direction.add(new.mul(momentum)?)? } else { new };
            }
            write(parameter, &value.sub(direction.mul(rate.to_dtype(dtype)?)?)?)?;
        }
        Ok(())
    }
}

impl Optimizer for Sgd {
    #[track_caller]
    fn step(&self) -> Result<()> {
        self.change()
    }
    fn parameters(&self) -> &[Var] {
        &self.parameters
    }
    fn learning_rate(&self) -> &Var {
        &self.state.learning_rate
    }
    fn state(&self) -> &dyn Module {
        &self.state
    }
}
