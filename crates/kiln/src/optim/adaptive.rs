//! Relatives of Adam: with Nesterov's momentum, with a rectified start, and by the largest gradient.

use super::running::{check_all, implement};
use super::{Optimizer, check, count, distinct, moments, moved, rate_and_steps, read, wide, write};
use crate::nn::Module;
use crate::{DType, Result, Tensor, Var};
use kiln_ir::Source;

implement! { NAdam RAdam Adamax }

/// Options of [`NAdam`], [`RAdam`] and [`Adamax`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdaptiveConfig {
    /// The initial learning rate.
    pub learning_rate: f64,
    /// The decay rates of the running means of the gradients and of their squares.
    pub betas: (f64, f64),
    /// Added to the divisor.
    pub epsilon: f64,
    /// The weight decay (L2 penalty).
    pub weight_decay: f64,
    /// How fast the momentum of [`NAdam`] grows.
    pub momentum_decay: f64,
}

#[derive(Debug, Module)]
struct State {
    #[module(buffer)]
    learning_rate: Var,
    #[module(buffer)]
    step: Var,
    #[module(buffer)]
    exp_avg: Vec<Var>,
    #[module(buffer)]
    exp_avg_sq: Vec<Var>,
    /// For each parameter the product of its momenta; of [`NAdam`] alone.
    #[module(buffer)]
    mu_product: Vec<Var>,
}

macro_rules! define {
    ($($(#[$doc:meta])* $name:ident, $products:literal;)*) => { $(
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $name {
            parameters: Vec<Var>,
            config: AdaptiveConfig,
            state: State,
        }

        impl $name {
            /// Returns PyTorch's defaults with this learning rate.
            pub fn config(learning_rate: f64) -> AdaptiveConfig {
                let (betas, epsilon) = ((0.9, 0.999), 1e-8);
                AdaptiveConfig { learning_rate, betas, epsilon, weight_decay: 0.0, momentum_decay: 4e-3 }
            }

            /// Makes an optimizer with PyTorch's defaults and this learning rate.
            #[track_caller]
            pub fn new(parameters: impl IntoIterator<Item = Var>, learning_rate: f64) -> Result<$name> {
                $name::with(parameters, $name::config(learning_rate))
            }

            /// Makes an optimizer with these options.
            #[track_caller]
            pub fn with(parameters: impl IntoIterator<Item = Var>, config: AdaptiveConfig) -> Result<$name> {
                let parameters = distinct(parameters);
                let state = State::new(&parameters, &config, $products, &Source::caller())?;
                Ok($name { parameters, config, state })
            }
        }
    )* };
}

define! {
    /// Adam with Nesterov's momentum.
    NAdam, true;
    /// Adam that leaves out the divisor at the first steps, where the mean of squares is of few gradients.
    RAdam, false;
    /// Adam with the largest size of gradients so far, which decays, as the divisor.
    Adamax, false;
}

impl State {
    #[track_caller]
    fn new(parameters: &[Var], config: &AdaptiveConfig, products: bool, at: &Source) -> Result<State> {
        check_all(
            &[
                ("learning rate", config.learning_rate),
                ("weight decay", config.weight_decay),
                ("epsilon", config.epsilon),
                ("momentum decay", config.momentum_decay),
            ],
            at,
        )?;
        for beta in [config.betas.0, config.betas.1] {
            check("beta", beta, (0.0..1.0).contains(&beta), "it has to be from 0 to below 1", at)?;
        }
        let (learning_rate, step) = rate_and_steps(config.learning_rate, parameters)?;
        let mu_product = match products {
            true => vec![Var::named("mu_product", &step.get().ones_like()?)],
            false => Vec::new(),
        };
        let (exp_avg, exp_avg_sq) = (moments("exp_avg", parameters)?, moments("exp_avg_sq", parameters)?);
        Ok(State { learning_rate, step, exp_avg, exp_avg_sq, mu_product })
    }

    /// βⁿ for each parameter, n being how often it was changed.
    #[track_caller]
    fn power(&self, beta: f64) -> Result<Tensor> {
        match beta == 0.0 {
            true => self.step.get().zeros_like(),
            false => self.step.get().mul(beta.ln())?.exp(),
        }
    }
}

/// The value and the gradient of a parameter to compute with, weight decay added.
#[track_caller]
fn start(parameter: &Var, gradient: &Tensor, decay: f64) -> Result<(DType, Tensor, Tensor)> {
    let dtype = wide(parameter.dtype());
    let (value, mut gradient) = (read(parameter, dtype)?, gradient.to_dtype(dtype)?);
    if decay != 0.0 {
        gradient = gradient.add(value.mul(decay)?)?;
    }
    Ok((dtype, value, gradient))
}

impl NAdam {
    #[track_caller]
    fn change(&self) -> Result<()> {
        let AdaptiveConfig { betas: (beta1, beta2), epsilon, weight_decay, momentum_decay, .. } = self.config;
        let moved = moved(&self.parameters);
        count(&self.state.step, &moved)?;
        // In f64, for each parameter: the momentum of this step and of the next.
        let (rate, steps) = (self.state.learning_rate.get(), self.state.step.get());
        let momentum = |steps: &Tensor| -> Result<Tensor> {
            let decayed = steps.mul(momentum_decay * 0.96f64.ln())?.exp()?;
            decayed.mul(-0.5)?.add(1.0)?.mul(beta1)
        };
        let (now, next) = (momentum(&steps)?, momentum(&steps.add(1.0)?)?);
        let Some(products) = self.state.mu_product.first() else { return Ok(()) };
        // What has no gradient keeps its product.
        let mut counted = vec![false; self.parameters.len()];
        moved.iter().for_each(|&(number, ..)| counted[number] = true);
        let counted = Tensor::from_vec(counted, self.parameters.len(), products.device())?;
        let product = counted.where_(products.get().mul(&now)?, products.get())?;
        products.set(&product)?;
        let of_gradient = rate.mul((1.0 - &now)?)?.div((1.0 - &product)?)?;
        let of_mean = rate.mul(&next)?.div((1.0 - product.mul(&next)?)?)?;
        let roots = (1.0 - self.state.power(beta2)?)?.sqrt()?;
        for (number, parameter, gradient) in moved {
            let (dtype, value, gradient) = start(parameter, &gradient, weight_decay)?;
            let own = |all: &Tensor| all.select(0, number)?.to_dtype(dtype);
            let (mean, square) = (&self.state.exp_avg[number], &self.state.exp_avg_sq[number]);
            let new_mean = read(mean, dtype)?.lerp(&gradient, 1.0 - beta1)?;
            let new_square = read(square, dtype)?.mul(beta2)?.add(gradient.square()?.mul(1.0 - beta2)?)?;
            write(mean, &new_mean)?;
            write(square, &new_square)?;
            let divisor = new_square.sqrt()?.div(own(&roots)?)?.add(epsilon)?;
            let step = gradient.mul(own(&of_gradient)?)?.add(new_mean.mul(own(&of_mean)?)?)?;
            write(parameter, &value.sub(step.div(&divisor)?)?)?;
        }
        Ok(())
    }
}

impl RAdam {
    #[track_caller]
    fn change(&self) -> Result<()> {
        let AdaptiveConfig { betas: (beta1, beta2), epsilon, weight_decay, .. } = self.config;
        let moved = moved(&self.parameters);
        count(&self.state.step, &moved)?;
        let (rate, steps) = (self.state.learning_rate.get(), self.state.step.get());
        let sizes = rate.div((1.0 - self.state.power(beta1)?)?)?;
        let power = self.state.power(beta2)?;
        let rest = (1.0 - &power)?;
        // How many gradients the mean of squares is of, and what that makes of its variance.
        let limit = 2.0 / (1.0 - beta2) - 1.0;
        let length = (limit - steps.mul(2.0)?.mul(&power)?.div(&rest)?)?;
        let is_long = length.gt(5.0)?;
        let safe = is_long.where_(&length, 6.0)?;
        let variance = safe.sub(4.0)?.mul(safe.sub(2.0)?)?.mul(limit)?;
        let variance = variance.div(safe.mul((limit - 4.0) * (limit - 2.0))?)?;
        let factors = sizes.mul(variance.sqrt()?)?.mul(rest.sqrt()?)?;
        for (number, parameter, gradient) in moved {
            let (dtype, value, gradient) = start(parameter, &gradient, weight_decay)?;
            let own = |all: &Tensor| all.select(0, number)?.to_dtype(dtype);
            let (mean, square) = (&self.state.exp_avg[number], &self.state.exp_avg_sq[number]);
            let new_mean = read(mean, dtype)?.lerp(&gradient, 1.0 - beta1)?;
            let new_square = read(square, dtype)?.mul(beta2)?.add(gradient.square()?.mul(1.0 - beta2)?)?;
            write(mean, &new_mean)?;
            write(square, &new_square)?;
            let divided = own(&factors)?.div(new_square.sqrt()?.add(epsilon)?)?;
            let factor = is_long.select(0, number)?.where_(&divided, own(&sizes)?)?;
            write(parameter, &value.sub(new_mean.mul(&factor)?)?)?;
        }
        Ok(())
    }
}

impl Adamax {
    #[track_caller]
    fn change(&self) -> Result<()> {
        let AdaptiveConfig { betas: (beta1, beta2), epsilon, weight_decay, .. } = self.config;
        let moved = moved(&self.parameters);
        count(&self.state.step, &moved)?;
        let sizes = self.state.learning_rate.get().div((1.0 - self.state.power(beta1)?)?)?;
        for (number, parameter, gradient) in moved {
            let (dtype, value, gradient) = start(parameter, &gradient, weight_decay)?;
            let (mean, largest) = (&self.state.exp_avg[number], &self.state.exp_avg_sq[number]);
            let new_mean = read(mean, dtype)?.lerp(&gradient, 1.0 - beta1)?;
            let new_largest = read(largest, dtype)?.mul(beta2)?.maximum(gradient.abs()?.add(epsilon)?)?;
            write(mean, &new_mean)?;
            write(largest, &new_largest)?;
            let size = sizes.select(0, number)?.to_dtype(dtype)?;
            write(parameter, &value.sub(new_mean.div(&new_largest)?.mul(&size)?)?)?;
        }
        Ok(())
    }
}
