//! Schedules of learning rates as PyTorch has them: a rate as a function of the rate that a group began with and of the step.
//!
//! A rate is a variable, so that none of this makes a compiled training step anew.

use super::Optimizer;
use crate::{Error, Result, Var};
use kiln_ir::Source;
use std::f64::consts::PI;

/// A rate for each step, from the rate that a group of parameters began with. Steps count from 0.
pub trait RateSchedule {
    /// The rate at a step.
    fn rate(&self, first: f64, step: u64) -> f64;
}

/// Any function of the step is a factor: PyTorch's `LambdaLR`.
impl<F: Fn(u64) -> f64> RateSchedule for F {
    fn rate(&self, first: f64, step: u64) -> f64 {
        first * self(step)
    }
}

fn power(base: f64, exponent: u64) -> f64 {
    base.powi(exponent.min(i32::MAX as u64) as i32)
}

/// Times a factor every so many steps: `StepLR`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepRate {
    /// Steps between two changes.
    pub every: u64,
    /// The factor.
    pub gamma: f64,
}

impl RateSchedule for StepRate {
    fn rate(&self, first: f64, step: u64) -> f64 {
        first * power(self.gamma, step / self.every.max(1))
    }
}

/// Times a factor at each of some steps: `MultiStepLR`.
#[derive(Debug, Clone, PartialEq)]
pub struct MultiStepRate {
    /// The steps.
    pub milestones: Vec<u64>,
    /// The factor.
    pub gamma: f64,
}

impl RateSchedule for MultiStepRate {
    fn rate(&self, first: f64, step: u64) -> f64 {
        first * power(self.gamma, self.milestones.iter().filter(|&&milestone| milestone <= step).count() as u64)
    }
}

/// Times a factor at every step: `ExponentialLR`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ExponentialRate {
    /// The factor.
    pub gamma: f64,
}

impl RateSchedule for ExponentialRate {
    fn rate(&self, first: f64, step: u64) -> f64 {
        first * power(self.gamma, step)
    }
}

/// From one share of the rate to another in a straight line, where it stays: `LinearLR`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LinearRate {
    /// The share at step 0.
    pub start: f64,
    /// The share at the end.
    pub end: f64,
    /// Steps until the end.
    pub steps: u64,
}

impl RateSchedule for LinearRate {
    fn rate(&self, first: f64, step: u64) -> f64 {
        let way = step.min(self.steps) as f64 / self.steps.max(1) as f64;
        first * (self.start + (self.end - self.start) * way)
    }
}

/// A share of the rate for some steps, then the whole of it: `ConstantLR`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ConstantRate {
    /// The share.
    pub factor: f64,
    /// Steps with it.
    pub steps: u64,
}

impl RateSchedule for ConstantRate {
    fn rate(&self, first: f64, step: u64) -> f64 {
        if step < self.steps { first * self.factor } else { first }
    }
}

/// Down to 0 by a power of what is left: `PolynomialLR`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PolynomialRate {
    /// Steps until 0.
    pub steps: u64,
    /// The power.
    pub power: f64,
}

impl RateSchedule for PolynomialRate {
    fn rate(&self, first: f64, step: u64) -> f64 {
        first * (1.0 - step.min(self.steps) as f64 / self.steps.max(1) as f64).powf(self.power)
    }
}

fn cosine(high: f64, low: f64, way: f64) -> f64 {
    low + (high - low) * (1.0 + (PI * way).cos()) / 2.0
}

/// Down to a floor by half a cosine, and up again: `CosineAnnealingLR`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CosineRate {
    /// Steps until the floor.
    pub steps: u64,
    /// The smallest rate.
    pub floor: f64,
}

impl RateSchedule for CosineRate {
    fn rate(&self, first: f64, step: u64) -> f64 {
        cosine(first, self.floor, step as f64 / self.steps.max(1) as f64)
    }
}

/// Down to a floor by half a cosine, then from the top again, each time for longer: `CosineAnnealingWarmRestarts`.
///
/// ```
/// use kiln::optim::{CosineRestarts, RateSchedule};
/// let schedule = CosineRestarts { first: 2, factor: 2, floor: 0.0 };
/// let top: Vec<u64> = (0..14).filter(|&step| schedule.rate(1.0, step) == 1.0).collect();
/// assert_eq!(top, [0, 2, 6]);
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CosineRestarts {
    /// Steps until the first restart.
    pub first: u64,
    /// How many times as long each period is as the one before.
    pub factor: u64,
    /// The smallest rate.
    pub floor: f64,
}

impl RateSchedule for CosineRestarts {
    fn rate(&self, first: f64, step: u64) -> f64 {
        let (mut length, mut step) = (self.first.max(1), step);
        while step >= length && self.factor > 1 {
            step -= length;
            length = length.saturating_mul(self.factor);
        }
        cosine(first, self.floor, (step % length) as f64 / length as f64)
    }
}

/// Up to a peak, then far below where it began, by half cosines: `OneCycleLR`. The rate that a group began with does not count.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OneCycle {
    /// The largest rate.
    pub peak: f64,
    /// All steps.
    pub steps: u64,
    /// The share of the steps that go up.
    pub rising: f64,
    /// What the peak is divided by at step 0.
    pub start_divisor: f64,
    /// What the rate of step 0 is divided by at the end.
    pub end_divisor: f64,
}

impl OneCycle {
    /// PyTorch's defaults: up for 0.3 of the steps, from 1/25 of the peak, down to 1/10⁴ of that.
    pub fn new(peak: f64, steps: u64) -> OneCycle {
        OneCycle { peak, steps, rising: 0.3, start_divisor: 25.0, end_divisor: 1e4 }
    }
}

impl RateSchedule for OneCycle {
    fn rate(&self, _: f64, step: u64) -> f64 {
        let start = self.peak / self.start_divisor;
        let top = self.rising * self.steps as f64 - 1.0;
        let last = self.steps as f64 - 1.0;
        let step = (step as f64).min(last);
        if step <= top {
            return cosine(start, self.peak, if top > 0.0 { step / top } else { 1.0 });
        }
        cosine(self.peak, start / self.end_divisor, (step - top) / (last - top))
    }
}

/// Sets the rates of an optimizer's groups, step by step.
///
/// ```
/// use kiln::nn::{Linear, Module};
/// use kiln::optim::{ExponentialRate, Optimizer, Scheduler, Sgd};
/// let optimizer = Sgd::new(Linear::new(2, 2)?.parameters(), 0.1)?;
/// let mut scheduler = Scheduler::new(&optimizer, ExponentialRate { gamma: 0.5 })?;
/// for _ in 0..3 {
///     optimizer.step()?;
///     scheduler.step()?;
/// }
/// assert_eq!(scheduler.rates()?, [0.0125]);
/// # Ok::<(), kiln::Error>(())
/// ```
#[derive(Debug)]
pub struct Scheduler<S> {
    schedule: S,
    rates: Vec<(Var, f64)>,
    step: u64,
}

impl<S: RateSchedule> Scheduler<S> {
    /// Takes the present rates for those that groups begin with, and sets the rates of step 0.
    #[track_caller]
    pub fn new(optimizer: &dyn Optimizer, schedule: S) -> Result<Scheduler<S>> {
        let mut rates = Vec::new();
        for rate in optimizer.learning_rates() {
            rates.push((rate.clone(), rate.get().item::<f64>()?));
        }
        let scheduler = Scheduler { schedule, rates, step: 0 };
        scheduler.set()?;
        Ok(scheduler)
    }

    #[track_caller]
    fn set(&self) -> Result<()> {
        for (rate, first) in &self.rates {
            rate.fill(self.schedule.rate(*first, self.step))?;
        }
        Ok(())
    }

    /// Goes on to the next step.
    #[track_caller]
    pub fn step(&mut self) -> Result<()> {
        self.go_to(self.step + 1)
    }

    /// Goes to a step, for instance that of a checkpoint.
    #[track_caller]
    pub fn go_to(&mut self, step: u64) -> Result<()> {
        self.step = step;
        self.set()
    }

    /// The step it is at.
    pub fn at(&self) -> u64 {
        self.step
    }

    /// The present rate of each group.
    #[track_caller]
    pub fn rates(&self) -> Result<Vec<f64>> {
        self.rates.iter().map(|(rate, _)| rate.get().item::<f64>()).collect()
    }
}

/// Multiplies rates by a factor when a number has not become better for a while: `ReduceLROnPlateau`.
///
/// ```
/// use kiln::nn::{Linear, Module};
/// use kiln::optim::{Optimizer, ReduceOnPlateau, Sgd};
/// let optimizer = Sgd::new(Linear::new(2, 2)?.parameters(), 1.0)?;
/// let mut plateau = ReduceOnPlateau::new(&optimizer);
/// plateau.patience = 1;
/// for loss in [1.0, 1.0, 1.0, 1.0] {
///     plateau.step(loss)?;
/// }
/// assert_eq!(optimizer.learning_rate().get().item::<f64>()?, 0.1);
/// # Ok::<(), kiln::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct ReduceOnPlateau {
    /// The factor, 0.1 by default.
    pub factor: f64,
    /// How many numbers that are no better are borne, 10 by default.
    pub patience: u64,
    /// By which share a number has to be better, 1e-4 by default.
    pub threshold: f64,
    /// How many numbers after a change are not counted, none by default.
    pub cooldown: u64,
    /// The smallest rate, 0 by default.
    pub floor: f64,
    /// Whether larger numbers are better.
    pub maximize: bool,
    rates: Vec<Var>,
    best: Option<f64>,
    bad: u64,
    cooling: u64,
}

impl ReduceOnPlateau {
    /// PyTorch's defaults, for an optimizer's rates.
    pub fn new(optimizer: &dyn Optimizer) -> ReduceOnPlateau {
        ReduceOnPlateau {
            factor: 0.1,
            patience: 10,
            threshold: 1e-4,
            cooldown: 0,
            floor: 0.0,
            maximize: false,
            rates: optimizer.learning_rates().into_iter().cloned().collect(),
            best: None,
            bad: 0,
            cooling: 0,
        }
    }

    /// Takes the next number, for instance a validation loss. Returns whether rates were changed.
    #[track_caller]
    pub fn step(&mut self, number: f64) -> Result<bool> {
        if !(0.0..1.0).contains(&self.factor) {
            let (op, name, expected, at) = ("optimizer", "factor", "it has to be below 1", Source::caller());
            return Err(Error::BadArgument { op, name, value: self.factor.into(), expected, at });
        }
        let better = match (self.best, self.maximize) {
            (None, _) => !number.is_nan(),
            (Some(best), false) => number < best * (1.0 - self.threshold),
            (Some(best), true) => number > best * (1.0 + self.threshold),
        };
        if better {
            (self.best, self.bad) = (Some(number), 0);
        } else {
            self.bad += 1;
        }
        if self.cooling > 0 {
            self.cooling -= 1;
            self.bad = 0;
        }
        if self.bad <= self.patience {
            return Ok(false);
        }
        for rate in &self.rates {
            let old = rate.get().item::<f64>()?;
            let new = (old * self.factor).max(self.floor);
            // A change that is too small to matter is none, as in PyTorch.
            if old - new > 1e-8 {
                rate.fill(new)?;
            }
        }
        (self.cooling, self.bad) = (self.cooldown, 0);
        Ok(true)
    }
}
