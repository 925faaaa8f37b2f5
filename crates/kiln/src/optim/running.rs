//! Optimizers that divide by running sums or means of squares: RMSprop, Adagrad and Adadelta.

use super::{Optimizer, check, count, distinct, moments, moved, rate_and_steps, read, wide, write};
use crate::nn::Module;
use crate::{Result, Var};
use kiln_ir::Source;

/// Implements [`Optimizer`] for a struct of parameters, options and state with a method `change`.
macro_rules! implement {
    ($($name:ident)*) => { $(
        impl Optimizer for $name {
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
    )* };
}
pub(super) use implement;

implement! { RmsProp Adagrad Adadelta }

/// Refuses a rate, a decay or an epsilon below 0.
pub(super) fn check_all(numbers: &[(&'static str, f64)], at: &Source) -> Result<()> {
    numbers.iter().try_for_each(|&(name, value)| check(name, value, value >= 0.0, "it has to be 0 or more", at))
}

/// Options of [`RmsProp`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RmsPropConfig {
    /// The initial learning rate.
    pub learning_rate: f64,
    /// The decay rate of the running mean of squares.
    pub alpha: f64,
    /// Added to the divisor.
    pub epsilon: f64,
    /// The weight decay (L2 penalty).
    pub weight_decay: f64,
    /// The momentum factor.
    pub momentum: f64,
    /// Whether to divide by the deviation instead of the root of the mean of squares.
    pub centered: bool,
}

#[derive(Debug, Module)]
struct RmsPropState {
    #[module(buffer)]
    learning_rate: Var,
    #[module(buffer)]
    step: Var,
    #[module(buffer)]
    square_avg: Vec<Var>,
    #[module(buffer)]
    momentum_buffer: Vec<Var>,
    #[module(buffer)]
    grad_avg: Vec<Var>,
}

/// RMSprop: steps are divided by the root of a running mean of squares.
#[derive(Debug)]
pub struct RmsProp {
    parameters: Vec<Var>,
    config: RmsPropConfig,
    state: RmsPropState,
}

impl RmsProp {
    /// Returns PyTorch's defaults with this learning rate.
    pub fn config(learning_rate: f64) -> RmsPropConfig {
        RmsPropConfig { learning_rate, alpha: 0.99, epsilon: 1e-8, weight_decay: 0.0, momentum: 0.0, centered: false }
    }

    /// Makes an optimizer with PyTorch's defaults and this learning rate.
    #[track_caller]
    pub fn new(parameters: impl IntoIterator<Item = Var>, learning_rate: f64) -> Result<RmsProp> {
        RmsProp::with(parameters, RmsProp::config(learning_rate))
    }

    /// Makes an optimizer with these options.
    #[track_caller]
    pub fn with(parameters: impl IntoIterator<Item = Var>, config: RmsPropConfig) -> Result<RmsProp> {
        let at = Source::caller();
        check_all(
            &[
                ("learning rate", config.learning_rate),
                ("weight decay", config.weight_decay),
                ("epsilon", config.epsilon),
                ("momentum", config.momentum),
                ("alpha", config.alpha),
            ],
            &at,
        )?;
        let parameters = distinct(parameters);
        let (learning_rate, step) = rate_and_steps(config.learning_rate, &parameters)?;
        let optional = |wanted: bool, name: &str| if wanted { moments(name, &parameters) } else { Ok(Vec::new()) };
        let state = RmsPropState {
            learning_rate,
            step,
            square_avg: moments("square_avg", &parameters)?,
            momentum_buffer: optional(config.momentum > 0.0, "momentum_buffer")?,
            grad_avg: optional(config.centered, "grad_avg")?,
        };
        Ok(RmsProp { parameters, config, state })
    }

    #[track_caller]
    fn change(&self) -> Result<()> {
        let RmsPropConfig { alpha, epsilon, weight_decay, momentum, .. } = self.config;
        let moved = moved(&self.parameters);
        count(&self.state.step, &moved)?;
        let rate = self.state.learning_rate.get();
        for (number, parameter, gradient) in moved {
            let dtype = wide(parameter.dtype());
            let (value, mut gradient) = (read(parameter, dtype)?, gradient.to_dtype(dtype)?);
            if weight_decay != 0.0 {
                gradient = gradient.add(value.mul(weight_decay)?)?;
            }
            let squares = &self.state.square_avg[number];
            let new = read(squares, dtype)?.mul(alpha)?.add(gradient.square()?.mul(1.0 - alpha)?)?;
            write(squares, &new)?;
            let spread = match self.state.grad_avg.get(number) {
                Some(means) => {
                    let mean = read(means, dtype)?.lerp(&gradient, 1.0 - alpha)?;
                    write(means, &mean)?;
                    new.sub(mean.square()?)?.sqrt()?
                }
                None => new.sqrt()?,
            };
            let mut direction = gradient.div(spread.add(epsilon)?)?;
            if let Some(buffer) = self.state.momentum_buffer.get(number) {
                direction = read(buffer, dtype)?.mul(momentum)?.add(&direction)?;
                write(buffer, &direction)?;
            }
            write(parameter, &value.sub(direction.mul(rate.to_dtype(dtype)?)?)?)?;
        }
        Ok(())
    }
}

/// Options of [`Adagrad`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdagradConfig {
    /// The initial learning rate.
    pub learning_rate: f64,
    /// How fast the rate falls: it is divided by 1 + decay · steps.
    pub rate_decay: f64,
    /// The weight decay (L2 penalty).
    pub weight_decay: f64,
    /// What the sums of squares begin with.
    pub initial_sum: f64,
    /// Added to the divisor.
    pub epsilon: f64,
}

#[derive(Debug, Module)]
struct AdagradState {
    #[module(buffer)]
    learning_rate: Var,
    #[module(buffer)]
    step: Var,
    #[module(buffer)]
    sum: Vec<Var>,
}

/// Adagrad: steps are divided by the root of the sum of all squares so far.
#[derive(Debug)]
pub struct Adagrad {
    parameters: Vec<Var>,
    config: AdagradConfig,
    state: AdagradState,
}

impl Adagrad {
    /// Returns PyTorch's defaults with this learning rate.
    pub fn config(learning_rate: f64) -> AdagradConfig {
        AdagradConfig { learning_rate, rate_decay: 0.0, weight_decay: 0.0, initial_sum: 0.0, epsilon: 1e-10 }
    }

    /// Makes an optimizer with PyTorch's defaults and this learning rate.
    #[track_caller]
    pub fn new(parameters: impl IntoIterator<Item = Var>, learning_rate: f64) -> Result<Adagrad> {
        Adagrad::with(parameters, Adagrad::config(learning_rate))
    }

    /// Makes an optimizer with these options.
    #[track_caller]
    pub fn with(parameters: impl IntoIterator<Item = Var>, config: AdagradConfig) -> Result<Adagrad> {
        let at = Source::caller();
        check_all(
            &[
                ("learning rate", config.learning_rate),
                ("rate decay", config.rate_decay),
                ("weight decay", config.weight_decay),
                ("initial sum", config.initial_sum),
                ("epsilon", config.epsilon),
            ],
            &at,
        )?;
        let parameters = distinct(parameters);
        let (learning_rate, step) = rate_and_steps(config.learning_rate, &parameters)?;
        let sum = moments("sum", &parameters)?;
        if config.initial_sum != 0.0 {
            sum.iter().try_for_each(|sum| sum.fill(config.initial_sum))?;
        }
        Ok(Adagrad { parameters, config, state: AdagradState { learning_rate, step, sum } })
    }

    #[track_caller]
    fn change(&self) -> Result<()> {
        let AdagradConfig { rate_decay, weight_decay, epsilon, .. } = self.config;
        let moved = moved(&self.parameters);
        let before = self.state.step.get();
        count(&self.state.step, &moved)?;
        let rates = self.state.learning_rate.get().div(before.mul(rate_decay)?.add(1.0)?)?;
        for (number, parameter, gradient) in moved {
            let dtype = wide(parameter.dtype());
            let (value, mut gradient) = (read(parameter, dtype)?, gradient.to_dtype(dtype)?);
            if weight_decay != 0.0 {
                gradient = gradient.add(value.mul(weight_decay)?)?;
            }
            let sum = read(&self.state.sum[number], dtype)?.add(gradient.square()?)?;
            write(&self.state.sum[number], &sum)?;
            let step = gradient.div(sum.sqrt()?.add(epsilon)?)?.mul(rates.select(0, number)?.to_dtype(dtype)?)?;
            write(parameter, &value.sub(step)?)?;
        }
        Ok(())
    }
}

/// Options of [`Adadelta`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdadeltaConfig {
    /// The initial learning rate, a factor of each step.
    pub learning_rate: f64,
    /// The decay rate of the running means.
    pub rho: f64,
    /// Added to both means of squares.
    pub epsilon: f64,
    /// The weight decay (L2 penalty).
    pub weight_decay: f64,
}

#[derive(Debug, Module)]
struct AdadeltaState {
    #[module(buffer)]
    learning_rate: Var,
    #[module(buffer)]
    step: Var,
    #[module(buffer)]
    square_avg: Vec<Var>,
    #[module(buffer)]
    acc_delta: Vec<Var>,
}

/// Adadelta: steps as large as those before were, whatever the unit of the gradient is.
#[derive(Debug)]
pub struct Adadelta {
    parameters: Vec<Var>,
    config: AdadeltaConfig,
    state: AdadeltaState,
}

impl Adadelta {
    /// Returns PyTorch's defaults with this learning rate, which is 1 there.
    pub fn config(learning_rate: f64) -> AdadeltaConfig {
        AdadeltaConfig { learning_rate, rho: 0.9, epsilon: 1e-6, weight_decay: 0.0 }
    }

    /// Makes an optimizer with PyTorch's defaults and this learning rate.
    #[track_caller]
    pub fn new(parameters: impl IntoIterator<Item = Var>, learning_rate: f64) -> Result<Adadelta> {
        Adadelta::with(parameters, Adadelta::config(learning_rate))
    }

    /// Makes an optimizer with these options.
    #[track_caller]
    pub fn with(parameters: impl IntoIterator<Item = Var>, config: AdadeltaConfig) -> Result<Adadelta> {
        let at = Source::caller();
        let numbers = [("learning rate", config.learning_rate), ("weight decay", config.weight_decay)];
        check_all(&numbers, &at)?;
        check_all(&[("epsilon", config.epsilon)], &at)?;
        check("rho", config.rho, (0.0..=1.0).contains(&config.rho), "it has to be between 0 and 1", &at)?;
        let parameters = distinct(parameters);
        let (learning_rate, step) = rate_and_steps(config.learning_rate, &parameters)?;
        let (square_avg, acc_delta) = (moments("square_avg", &parameters)?, moments("acc_delta", &parameters)?);
        Ok(Adadelta { parameters, config, state: AdadeltaState { learning_rate, step, square_avg, acc_delta } })
    }

    #[track_caller]
    fn change(&self) -> Result<()> {
        let AdadeltaConfig { rho, epsilon, weight_decay, .. } = self.config;
        let moved = moved(&self.parameters);
        count(&self.state.step, &moved)?;
        let rate = self.state.learning_rate.get();
        for (number, parameter, gradient) in moved {
            let dtype = wide(parameter.dtype());
            let (value, mut gradient) = (read(parameter, dtype)?, gradient.to_dtype(dtype)?);
            if weight_decay != 0.0 {
                gradient = gradient.add(value.mul(weight_decay)?)?;
            }
            let (squares, steps) = (&self.state.square_avg[number], &self.state.acc_delta[number]);
            let new = read(squares, dtype)?.mul(rho)?.add(gradient.square()?.mul(1.0 - rho)?)?;
            let old = read(steps, dtype)?;
            let delta = old.add(epsilon)?.sqrt()?.div(new.add(epsilon)?.sqrt()?)?.mul(&gradient)?;
            write(squares, &new)?;
            write(steps, &old.mul(rho)?.add(delta.square()?.mul(1.0 - rho)?)?)?;
            write(parameter, &value.sub(delta.mul(rate.to_dtype(dtype)?)?)?)?;
        }
        Ok(())
    }
}
