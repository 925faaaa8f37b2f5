//! Gradients: of eager code by a tape, of captured code by graph nodes, with the same rules.
//!
//! ```text
//!  w, x ──op──▶ y ──op──▶ loss            a tensor computed from one that wants gradients knows how it came about
//!  │            │         │ backward()
//!  w.grad() ◀── gradient ◀┘               of each operation: its small graph, differentiated, compiled and kept
//! ```
//!
//! ```
//! use kiln::{DType, Device, Tensor, Var};
//! let w = Var::new(&Tensor::new([1f32, 2.], Device::Cpu)?).requires_grad(true);
//! let loss = w.get().square()?.sum(..)?;
//! loss.backward()?;
//! assert_eq!(w.grad().unwrap().to_vec::<f32>()?, [2., 4.]);
//! # Ok::<(), kiln::Error>(())
//! ```
//!
//! Invariants: a tape holds values, which later updates of variables do not change; a tape lives as long as the tensors at
//! its end; where nothing requires gradients, recording costs one branch.

pub(crate) mod backward;
mod checkpoint;
mod function;
mod functions;
pub(crate) mod linalg;

pub use checkpoint::checkpoint;
pub use function::{Forward, Function, apply};
pub use functions::{grad, jvp, value_and_grad};
pub use linalg::MatrixNorm;

use crate::tensor::tape::{self, Tape};
use crate::tensor::tracer;
use crate::{Error, Result, Tensor};
use backward::{Targets, propagate};
use kiln_ir::Source;
use kiln_passes::is_differentiable;

/// Runs `f` without recording a tape: its results do not require gradients.
///
/// ```
/// use kiln::{Device, Tensor};
/// let x = Tensor::new([1f32, 2.], Device::Cpu)?.requires_grad();
/// let y = kiln::no_grad(|| x.exp())?;
/// assert!(x.exp()?.has_tape() && !y.has_tape());
/// # Ok::<(), kiln::Error>(())
/// ```
pub fn no_grad<T>(f: impl FnOnce() -> T) -> T {
    tape::with_enabled(false, f)
}

/// The gradients computed by [`Tensor::gradients`].
#[derive(Clone)]
pub struct Gradients {
    of: Vec<(Tape, Option<Tensor>)>,
}

impl Gradients {
    /// Returns the gradient by one of the requested tensors, or `None` if the result does not depend on it.
    pub fn get(&self, tensor: &Tensor) -> Option<&Tensor> {
        let place = tensor.tape()?;
        self.of.iter().find(|(known, _)| known.same(place)).and_then(|(_, gradient)| gradient.as_ref())
    }
}

impl Tensor {
    /// Returns the same elements as a leaf of a tape, so that gradients by it can be computed ([`Tensor::gradients`]). A
    /// tensor that already has a tape, or that is not float, is returned unchanged.
    ///
    /// ```
    /// use kiln::{Device, Tensor};
    /// let x = Tensor::new([1f32, 2., 3.], Device::Cpu)?.requires_grad();
    /// let y = (&x * &x)?.sum(..)?;
    /// let gradients = y.gradients(&[&x])?;
    /// assert_eq!(gradients.get(&x).unwrap().to_vec::<f32>()?, [2., 4., 6.]);
    /// # Ok::<(), kiln::Error>(())
    /// ```
    pub fn requires_grad(&self) -> Tensor {
        // Inside of `no_grad` nothing but starts of tapes is on one; a captured function has others, to be the same there.
        let is_on = |tape: &Tape| {
            let is_recorded = || functions::is_inside() || tracer::is_recorded(&Source::default()).unwrap_or(true);
            !self.is_traced() || tape.is_start() || is_recorded()
        };
        if self.tape().is_some_and(is_on) || !is_differentiable(self.dtype()) {
            return self.clone();
        }
        // A function being captured starts another tape at each call, also of a tensor that it holds.
        match self.is_traced() || tracer::is_active() {
            true => tracer::start(self),
            false => self.with_tape(Some(Tape::start())),
        }
    }

    /// Computes the gradients of this tensor, which must have one element, and adds them to the gradient of every variable
    /// it was computed from ([`crate::Var::grad`]). The tape is released.
    #[track_caller]
    pub fn backward(&self) -> Result<()> {
        let at = Source::caller();
        let seed = self.one("backward", &at)?;
        self.backward_at(seed, &at)
    }

    /// Like [`Tensor::backward`], for a tensor of any shape: `seed` is the gradient of each element.
    #[track_caller]
    pub fn backward_with(&self, seed: &Tensor) -> Result<()> {
        let at = Source::caller();
        self.check_seed("backward_with", seed, &at)?;
        self.backward_at(seed.detached(), &at)
    }

    fn backward_at(&self, seed: Tensor, at: &Source) -> Result<()> {
        let tape = self.walked("backward", at)?;
        let ends = vec![(tape.clone(), seed)];
        tape::with_enabled(false, || propagate(ends, &Targets::Variables, self.device(), at))?;
        tape.node.release();
        Ok(())
    }

    /// Returns the gradients of this tensor, which must have one element, by tensors that it was computed from: values of
    /// variables, tensors that require gradients ([`Tensor::requires_grad`]), or intermediate results. The tape is kept.
    #[track_caller]
    pub fn gradients(&self, by: &[&Tensor]) -> Result<Gradients> {
        let at = Source::caller();
        let seed = self.one("gradients", &at)?;
        tape::with_enabled(false, || self.gradients_at(seed, by, &at))
    }

    /// Like [`Tensor::gradients`], but the gradients are on the tape too, so that they can be differentiated again.
    ///
    /// ```
    /// use kiln::{Device, Tensor};
    /// let x = Tensor::new(2f32, Device::Cpu)?.requires_grad();
    /// let cube = ((&x * &x)? * &x)?;
    /// let slope = cube.gradients_on_tape(&[&x])?.get(&x).unwrap().clone();
    /// let curvature = slope.gradients(&[&x])?.get(&x).unwrap().item::<f32>()?;
    /// assert_eq!((slope.item::<f32>()?, curvature), (12.0, 12.0));
    /// # Ok::<(), kiln::Error>(())
    /// ```
    #[track_caller]
    pub fn gradients_on_tape(&self, by: &[&Tensor]) -> Result<Gradients> {
        let at = Source::caller();
        let seed = self.one("gradients_on_tape", &at)?;
        tape::with_enabled(true, || self.gradients_at(seed, by, &at))
    }

    fn gradients_at(&self, seed: Tensor, by: &[&Tensor], at: &Source) -> Result<Gradients> {
        let missing = || Error::NoTape { op: "gradients", at: at.clone() };
        let tape = self.walked("gradients", at)?;
        let places: Vec<Tape> = by.iter().map(|t| t.tape().cloned().ok_or_else(missing)).collect::<Result<_>>()?;
        let found = propagate(vec![(tape.clone(), seed)], &Targets::Places(&places), self.device(), at)?;
        Ok(Gradients { of: places.into_iter().zip(found).collect() })
    }

    /// The tape that gradients of this tensor are asked along.
    fn walked(&self, op: &'static str, at: &Source) -> Result<&Tape> {
        let missing = || Error::NoTape { op, at: at.clone() };
        // A captured function has tapes also where it is called inside of `no_grad`, so that it is the same there.
        if tracer::is_active() && !functions::is_inside() && !tracer::is_recorded(at)? {
            return Err(missing());
        }
        self.tape().ok_or_else(missing)
    }

    /// The cotangent 1 of a tensor of one float.
    fn one(&self, op: &'static str, at: &Source) -> Result<Tensor> {
        if self.elements() != 1 || !is_differentiable(self.dtype()) {
            let (dtype, shape) = (self.dtype(), self.shape().to_vec());
            return Err(Error::NotALoss { op, dtype, shape, at: at.clone() });
        }
        let one = Tensor::scalar_at(kiln_ir::Scalar::float(self.dtype(), 1.0), self.device(), at)?;
        one.reshape_to(self.sizes(), at)
    }

    fn check_seed(&self, op: &'static str, seed: &Tensor, at: &Source) -> Result<()> {
        if seed.dtype() != self.dtype() {
            return Err(Error::DTypeMismatch { op, lhs: self.dtype(), rhs: seed.dtype(), at: at.clone() });
        }
        // Whoever looks at a shape decides by it: the same expressions need no look.
        if seed.ty() != self.ty() && seed.shape() != self.shape() {
            let (lhs, rhs) = (self.shape().to_vec(), seed.shape().to_vec());
            return Err(Error::ShapeMismatch { op, lhs, rhs, sizes: None, at: at.clone() });
        }
        Ok(())
    }
}
