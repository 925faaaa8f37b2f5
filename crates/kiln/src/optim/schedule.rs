//! Learning rate schedules.

use std::f64::consts::PI;

/// A learning rate for each step, to be set with [`super::Optimizer::set_learning_rate`].
pub trait Schedule {
    /// The rate at a step, counted from 0.
    fn at(&self, step: u64) -> f64;
}

/// Linear warm-up to a peak, then a half cosine down to a floor, where it stays.
///
/// ```
/// use kiln::optim::{Cosine, Schedule};
/// let schedule = Cosine { peak: 1.0, floor: 0.1, warm_up: 4, total: 104 };
/// assert_eq!([0, 1, 3, 4].map(|step| schedule.at(step)), [0.25, 0.5, 1.0, 1.0]);
/// assert!((schedule.at(54) - 0.55).abs() < 1e-12);
/// assert_eq!((schedule.at(104), schedule.at(1000)), (0.1, 0.1));
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cosine {
    /// The largest rate.
    pub peak: f64,
    /// The final rate.
    pub floor: f64,
    /// Steps until the peak.
    pub warm_up: u64,
    /// Steps until the floor, including the warm-up.
    pub total: u64,
}

impl Schedule for Cosine {
    fn at(&self, step: u64) -> f64 {
        if step < self.warm_up {
            return self.peak * (step + 1) as f64 / self.warm_up as f64;
        }
        let way = (step - self.warm_up) as f64 / self.total.saturating_sub(self.warm_up).max(1) as f64;
        self.floor + (self.peak - self.floor) * 0.5 * (1.0 + (PI * way.min(1.0)).cos())
    }
}

/// A rate that is multiplied by a factor every so many steps.
///
/// ```
/// use kiln::optim::{Schedule, StepDecay};
/// let schedule = StepDecay { first: 1.0, factor: 0.5, every: 10 };
/// assert_eq!([0, 9, 10, 25].map(|step| schedule.at(step)), [1.0, 1.0, 0.5, 0.25]);
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepDecay {
    /// The initial rate.
    pub first: f64,
    /// The factor.
    pub factor: f64,
    /// The number of steps between two changes.
    pub every: u64,
}

impl Schedule for StepDecay {
    fn at(&self, step: u64) -> f64 {
        let times = step / self.every.max(1);
        self.first * self.factor.powi(times.try_into().unwrap_or(i32::MAX))
    }
}
