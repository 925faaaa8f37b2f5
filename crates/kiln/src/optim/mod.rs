//! Optimizers: PyTorch's formulas, on variables.
//!
//! ```text
//!  parameters with gradients ─┐
//!  learning rate, steps ──────┼──step()──▶ parameters and moments, updated
//!  moments ───────────────────┘
//! ```
//!
//! ```
//! use kiln::nn::{Forward, Linear, Module};
//! use kiln::optim::{AdamW, Optimizer};
//! use kiln::{DType, Device, Tensor};
//! let model = Linear::new(4, 1)?;
//! let optimizer = AdamW::new(model.parameters(), 0.1)?;
//! let x = Tensor::randn([16, 4], DType::F32, Device::Cpu)?;
//! let mut losses = Vec::new();
//! for _ in 0..20 {
//!     let loss = model.forward(&x)?.square()?.mean(..)?;
//!     optimizer.zero_grad();
//!     loss.backward()?;
//!     optimizer.step()?;
//!     losses.push(loss.item::<f32>()?);
//! }
//! assert!(losses[19] < losses[0] / 2.0);
//! # Ok::<(), kiln::Error>(())
//! ```
//!
//! Invariants: everything that changes from step to step (learning rate, counts, moments) is a variable, so that a compiled
//! training step stays one program; a parameter without a gradient is left unchanged, as are its moments and its count.

mod adam;
mod adaptive;
mod clip;
mod groups;
mod running;
mod scaler;
mod schedule;
mod scheduler;
mod sgd;

pub use adam::{Adam, AdamConfig, AdamW};
pub use adaptive::{Adamax, AdaptiveConfig, NAdam, RAdam};
pub use clip::clip_grad_norm;
pub use groups::ParameterGroups;
pub use running::{Adadelta, AdadeltaConfig, Adagrad, AdagradConfig, RmsProp, RmsPropConfig};
pub use scaler::GradScaler;
pub use schedule::{Cosine, Schedule, StepDecay};
pub use scheduler::{
    ConstantRate, CosineRate, CosineRestarts, ExponentialRate, LinearRate, MultiStepRate, OneCycle, PolynomialRate,
    RateSchedule, ReduceOnPlateau, Scheduler, StepRate,
};
pub use sgd::{Sgd, SgdConfig};

use crate::nn::{Loaded, Module};
use crate::{DType, Device, Error, Result, Tensor, Var};
use kiln_ir::Source;
use std::collections::{BTreeMap, HashSet};

/// Updates parameters by their gradients.
pub trait Optimizer {
    /// Updates every parameter that has a gradient.
    fn step(&self) -> Result<()>;

    /// Returns the parameters.
    fn parameters(&self) -> &[Var];

    /// Returns the learning rate: a variable of one f64.
    fn learning_rate(&self) -> &Var;

    /// Returns the learning rates of all groups of parameters.
    fn learning_rates(&self) -> Vec<&Var> {
        vec![self.learning_rate()]
    }

    /// Returns the variables of the optimizer itself.
    fn state(&self) -> &dyn Module;

    /// Clears the gradients of the parameters.
    fn zero_grad(&self) {
        self.parameters().iter().for_each(Var::zero_grad);
    }

    /// Sets the learning rate. A compiled step uses it without being compiled again.
    ///
    /// ```
    /// use kiln::nn::{Linear, Module};
    /// use kiln::optim::{Cosine, Optimizer, Schedule, Sgd};
    /// let optimizer = Sgd::new(Linear::new(2, 2)?.parameters(), 0.1)?;
    /// let schedule = Cosine { peak: 0.1, floor: 0.0, warm_up: 10, total: 100 };
    /// optimizer.set_learning_rate(schedule.at(55))?;
    /// assert_eq!(optimizer.learning_rate().get().item::<f64>()?, 0.05);
    /// # Ok::<(), kiln::Error>(())
    /// ```
    #[track_caller]
    fn set_learning_rate(&self, rate: f64) -> Result<()> {
        check("learning rate", rate, rate >= 0.0, "it has to be 0 or more", &Source::caller())?;
        self.learning_rate().fill(rate)
    }

    /// Returns snapshots of the optimizer's variables by name: `learning_rate`, `step`, and each kind of moment by the
    /// parameter's number.
    fn state_dict(&self) -> BTreeMap<String, Tensor> {
        self.state().state_dict()
    }

    /// Restores the state dict of an optimizer for the same parameters.
    #[track_caller]
    fn load_state_dict(&self, tensors: &BTreeMap<String, Tensor>) -> Result<Loaded> {
        self.state().load_state_dict(tensors, true)
    }
}

/// Each parameter once.
fn distinct(parameters: impl IntoIterator<Item = Var>) -> Vec<Var> {
    let mut known = HashSet::new();
    parameters.into_iter().filter(|parameter| known.insert(parameter.id())).collect()
}

/// A variable of one f64, and one for each parameter, on the device of the parameters.
#[track_caller]
fn rate_and_steps(rate: f64, parameters: &[Var]) -> Result<(Var, Var)> {
    let device = parameters.first().map_or(Device::default(), Var::device);
    let rate = Var::named("learning_rate", &Tensor::scalar(rate, DType::F64, device)?);
    Ok((rate, Var::named("step", &Tensor::zeros(parameters.len(), DType::F64, device)?)))
}

/// Zeros for each parameter.
#[track_caller]
fn moments(name: &str, parameters: &[Var]) -> Result<Vec<Var>> {
    let mut moments = Vec::with_capacity(parameters.len());
    for parameter in parameters {
        let zeros = Tensor::zeros(parameter.shape(), parameter.dtype(), parameter.device())?;
        moments.push(Var::named(name, &zeros));
    }
    Ok(moments)
}

/// The parameters that have a gradient, by number.
fn moved(parameters: &[Var]) -> Vec<(usize, &Var, Tensor)> {
    let with_gradient = |(number, parameter): (usize, &'_ Var)| Some((number, parameter.grad()?));
    let numbered = parameters.iter().enumerate().filter_map(with_gradient);
    numbered.map(|(number, gradient)| (number, &parameters[number], gradient)).collect()
}

/// Counts a step of the parameters that have a gradient.
#[track_caller]
fn count(steps: &Var, moved: &[(usize, &Var, Tensor)]) -> Result<()> {
    if moved.len() == steps.elements() {
        return steps.add_assign(1.0);
    }
    let mut ones = vec![0.0; steps.elements()];
    moved.iter().for_each(|&(number, ..)| ones[number] = 1.0);
    steps.add_assign(&Tensor::from_vec(ones, steps.elements(), steps.device())?)
}

/// The dtype to compute the update of a parameter in: short floats are rounded once, at the end.
fn wide(dtype: DType) -> DType {
    if dtype == DType::F64 { DType::F64 } else { DType::F32 }
}

/// The value of a variable, to compute with in a dtype.
#[track_caller]
fn read(var: &Var, dtype: DType) -> Result<Tensor> {
    var.get().detach().to_dtype(dtype)
}

/// Gives a variable a value that was computed in another dtype.
#[track_caller]
fn write(var: &Var, value: &Tensor) -> Result<()> {
    var.set(&value.to_dtype(var.dtype())?)
}

/// Refuses a number that makes no sense.
fn check(name: &'static str, value: f64, good: bool, expected: &'static str, at: &Source) -> Result<()> {
    if good {
        return Ok(());
    }
    Err(Error::BadArgument { op: "optimizer", name, value: value.into(), expected, at: at.clone() })
}
