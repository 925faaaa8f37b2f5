//! Adam, and AdamW with decoupled weight decay.

use super::{Optimizer, check, count, distinct, moments, moved, rate_and_steps, read, wide, write};
use crate::nn::Module;
use crate::{Result, Tensor, Var};
use kiln_ir::Source;

/// Options of [`Adam`] and [`AdamW`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamConfig {
    /// The initial learning rate.
    pub learning_rate: f64,
    /// The decay rates of the running means of the gradients and of their squares.
    pub betas: (f64, f64),
    /// Added to the divisor, so that it is not 0.
    pub epsilon: f64,
    /// The weight decay.
    pub weight_decay: f64,
    /// Whether to divide by the largest running mean of squares so far (AMSGrad).
    pub amsgrad: bool,
}

impl AdamConfig {
    fn check(&self, at: &Source) -> Result<()> {
        let (rate, decay) = (self.learning_rate, self.weight_decay);
        check("learning rate", rate, rate >= 0.0, "it has to be 0 or more", at)?;
        check("weight decay", decay, decay >= 0.0, "it has to be 0 or more", at)?;
        check("epsilon", self.epsilon, self.epsilon >= 0.0, "it has to be 0 or more", at)?;
        for beta in [self.betas.0, self.betas.1] {
            check("beta", beta, (0.0..1.0).contains(&beta), "it has to be from 0 to below 1", at)?;
        }
        Ok(())
    }
}

/// What both remember.
#[derive(Debug, Module)]
struct State {
    #[module(buffer)]
    learning_rate: Var,
    /// How often each parameter was changed.
    #[module(buffer)]
    step: Var,
    #[module(buffer)]
    exp_avg: Vec<Var>,
    #[module(buffer)]
    exp_avg_sq: Vec<Var>,
    /// None without amsgrad.
    #[module(buffer)]
    max_exp_avg_sq: Vec<Var>,
}

/// Both, which differ in what weight decay means.
#[derive(Debug)]
struct Moments {
    parameters: Vec<Var>,
    config: AdamConfig,
    state: State,
}

impl Moments {
    fn new(parameters: impl IntoIterator<Item = Var>, config: AdamConfig, at: &Source) -> Result<Moments> {
        config.check(at)?;
        let parameters = distinct(parameters);
        let (learning_rate, step) = rate_and_steps(config.learning_rate, &parameters)?;
        let state = State {
            learning_rate,
            step,
            exp_avg: moments("exp_avg", &parameters)?,
            exp_avg_sq: moments("exp_avg_sq", &parameters)?,
            max_exp_avg_sq: if config.amsgrad { moments("max_exp_avg_sq", &parameters)? } else { Vec::new() },
        };
        Ok(Moments { parameters, config, state })
    }

    #[track_caller]
    fn step(&self, decoupled: bool) -> Result<()> {
        let moved = moved(&self.parameters);
        count(&self.state.step, &moved)?;
        let rate = self.state.learning_rate.get();
        let (beta1, beta2) = self.config.betas;
        // In f64: at the first steps these are small differences of numbers close to 1.
        let sizes = rate.div(self.correction(beta1)?)?;
        let roots = self.correction(beta2)?.sqrt()?;
        let AdamConfig { epsilon, weight_decay, .. } = self.config;
        let kept = (1.0 - rate.mul(weight_decay)?)?;
        for (number, parameter, gradient) in moved {
            let dtype = wide(parameter.dtype());
            let size = sizes.select(0, number)?.to_dtype(dtype)?;
            let root = roots.select(0, number)?.to_dtype(dtype)?;
            let (mean, square) = (&self.state.exp_avg[number], &self.state.exp_avg_sq[number]);
            let (mut value, mut gradient) = (read(parameter, dtype)?, gradient.to_dtype(dtype)?);
            if weight_decay != 0.0 && decoupled {
                value = value.mul(kept.to_dtype(dtype)?)?;
            } else if weight_decay != 0.0 {
                gradient = gradient.add(value.mul(weight_decay)?)?;
            }
            let new_mean = read(mean, dtype)?.lerp(&gradient, 1.0 - beta1)?;
            let mut new_square = read(square, dtype)?.mul(beta2)?.add(gradient.square()?.mul(1.0 - beta2)?)?;
            write(mean, &new_mean)?;
            write(square, &new_square)?;
            if let Some(largest) = self.state.max_exp_avg_sq.get(number) {
                new_square = read(largest, dtype)?.maximum(&new_square)?;
                write(largest, &new_square)?;
            }
            let divisor = new_square.sqrt()?.div(&root)?.add(epsilon)?;
            write(parameter, &value.sub(new_mean.div(&divisor)?.mul(&size)?)?)?;
        }
        Ok(())
    }

    /// 1 − βⁿ for each parameter, n being how often it was changed: what is missing in a mean that started at 0.
    #[track_caller]
    fn correction(&self, beta: f64) -> Result<Tensor> {
        if beta == 0.0 {
            return self.state.step.get().ones_like();
        }
        1.0 - self.state.step.get().mul(beta.ln())?.exp()?
    }
}

macro_rules! adams {
    ($($(#[$doc:meta])* $name:ident, $decay:literal, $decoupled:literal;)*) => { $(
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $name(Moments);

        impl $name {
            /// Returns PyTorch's defaults with this learning rate.
            pub fn config(learning_rate: f64) -> AdamConfig {
                AdamConfig { learning_rate, betas: (0.9, 0.999), epsilon: 1e-8, weight_decay: $decay, amsgrad: false }
            }

            /// Makes an optimizer with PyTorch's defaults and this learning rate.
            #[track_caller]
            pub fn new(parameters: impl IntoIterator<Item = Var>, learning_rate: f64) -> Result<$name> {
                $name::with(parameters, $name::config(learning_rate))
            }

            /// Makes an optimizer with these options.
            #[track_caller]
            pub fn with(parameters: impl IntoIterator<Item = Var>, config: AdamConfig) -> Result<$name> {
                Ok($name(Moments::new(parameters, config, &Source::caller())?))
            }
        }

        impl Optimizer for $name {
            #[track_caller]
            fn step(&self) -> Result<()> {
                self.0.step($decoupled)
            }
            fn parameters(&self) -> &[Var] {
                &self.0.parameters
            }
            fn learning_rate(&self) -> &Var {
                &self.0.state.learning_rate
            }
            fn state(&self) -> &dyn Module {
                &self.0.state
            }
        }
    )* };
}

adams! {
    /// Adam; weight decay is added to the gradient.
    ///
    /// ```
    /// use kiln::optim::{Adam, Optimizer};
    /// use kiln::{Device, Tensor, Var};
    /// let w = Var::new(&Tensor::new([1f32, -1.], Device::Cpu)?).requires_grad(true);
    /// let optimizer = Adam::new([w.clone()], 0.1)?;
    /// w.get().square()?.sum(..)?.backward()?;
    /// optimizer.step()?;
    /// assert!(w.get().allclose(&Tensor::new([0.9f32, -0.9], Device::Cpu)?, 1e-6, 0.0)?);
    /// # Ok::<(), kiln::Error>(())
    /// ```
    Adam, 0.0, false;
    /// Adam with decoupled weight decay, 0.01 by default.
    ///
    /// ```
    /// use kiln::optim::{AdamConfig, AdamW, Optimizer};
    /// use kiln::{Device, Tensor, Var};
    /// let w = Var::new(&Tensor::new([1f32, -1.], Device::Cpu)?).requires_grad(true);
    /// let config = AdamConfig { weight_decay: 0.1, betas: (0.9, 0.95), ..AdamW::config(1e-3) };
    /// let optimizer = AdamW::with([w.clone()], config)?;
    /// w.get().square()?.sum(..)?.backward()?;
    /// optimizer.step()?;
    /// assert!(w.get().allclose(&Tensor::new([0.9989f32, -0.9989], Device::Cpu)?, 1e-6, 0.0)?);
    /// # Ok::<(), kiln::Error>(())
    /// ```
    AdamW, 0.01, true;
}
