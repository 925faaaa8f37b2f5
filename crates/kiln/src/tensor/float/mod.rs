//! Numbers as user code computes and decides with them: while a function is captured they remember which elements they are made
//! of, so that a decision is guarded by its outcome and not by their values.
//!
//! ```text
//!  x.item_float()? ──▶ Float ── + − × ÷ sqrt exp … ──▶ Float ──▶ x.div(&n), where_, clamp, …     data: no guard
//!                        └── < <= > >= == ──▶ bool                                               a guard, with its line
//!                        └── value() ──▶ f64                                                     the number itself
//! ```

pub(crate) mod expression;
mod operators;

use crate::tensor::bundle::{Bundle, Leaf};
use crate::tensor::dim::{self, Dim, Relation};
use crate::tensor::tracer::{self, Traced};
use crate::{DType, Device, Error, Number, Result, Tensor};
use expression::Expression;
use kiln_ir::{BinaryOp, Source, UnaryOp};
use std::fmt;
use std::sync::{Arc, OnceLock};

/// A number in user code, read by [`Tensor::item_float`] or given as an argument of a compiled function. Outside of a capture it
/// is just an f64.
///
/// While a function is captured, it is what it is computed of. Comparing it adds a guard on the *outcome*: calls with other numbers
/// and the same outcomes run the same program. As an operand of tensors it is data. What depends on the number itself reads it with
/// [`Float::value`], which is another program for each number, as [`Tensor::item`] is.
///
/// ```
/// use kiln::{DType, Device, Float, Tensor};
/// // Halves until small: a way on for each count of turns, one or two here, whatever the numbers are.
/// let fast = kiln::compile(|(x, most): &(Tensor, Float)| {
///     let mut x = x.clone();
///     while x.amax(..)?.item_float()? > most {
///         x = x.mul(0.5)?;
///     }
///     x.div(most)
/// });
/// for i in 0..20 {
///     let x = Tensor::full(4, 1.0 + 0.1 * i as f32, DType::F32, Device::Cpu)?;
///     fast.call(&(x, Float::from(0.8 + 0.005 * i as f64)))?;
/// }
/// assert_eq!((fast.stats().programs, fast.stats().branches), (1, 1));
/// # Ok::<(), kiln::Error>(())
/// ```
#[derive(Clone)]
pub struct Float(Kind);

#[derive(Clone)]
enum Kind {
    /// A number, and the tensor that it is among arguments, once it was one.
    Plain(f64, OnceLock<Tensor>),
    /// Computed of elements, and the tensor with the result, once that was asked for.
    Of(Arc<Expression<Tensor>>, OnceLock<Tensor>),
}

/// Nodes that an expression may have; beyond that its value so far is an element.
const MOST_NODES: usize = 32;

impl Float {
    fn plain(value: f64) -> Float {
        Float(Kind::Plain(value, OnceLock::new()))
    }

    /// The element of a tensor without axes.
    fn element(tensor: Tensor) -> Float {
        Float(Kind::Of(Arc::new(Expression::Element(tensor)), OnceLock::new()))
    }

    /// Returns the number. In a function being captured this is a graph break, and each number a program of its own; a comparison is
    /// guarded by its outcome alone.
    #[track_caller]
    pub fn value(&self) -> Result<f64> {
        self.value_at(&Source::caller())
    }

    fn value_at(&self, at: &Source) -> Result<f64> {
        match &self.0 {
            Kind::Plain(value, _) => Ok(*value),
            Kind::Of(expression, _) => expression.evaluate(&|tensor| tensor.item_at(at)),
        }
    }

    /// The number, where it is known without a guard.
    pub(crate) fn known(&self) -> Option<f64> {
        match &self.0 {
            Kind::Plain(value, _) => Some(*value),
            Kind::Of(expression, _) => {
                let mut is_known = true;
                expression.visit(&mut |tensor| is_known &= !tensor.is_traced());
                is_known.then(|| self.value_at(&Source::default()).ok()).flatten()
            }
        }
    }

    fn expression(&self) -> Arc<Expression<Tensor>> {
        match &self.0 {
            Kind::Plain(value, _) => Arc::new(Expression::Number(*value)),
            Kind::Of(expression, _) => expression.clone(),
        }
    }

    /// Computed from others. One that grows large goes on as an element.
    fn made(expression: Expression<Tensor>) -> Float {
        let is_large = expression.size() > MOST_NODES;
        let made = Float(Kind::Of(Arc::new(expression), OnceLock::new()));
        if is_large { Float::element(made.leaf().clone()) } else { made }
    }

    fn unary(&self, op: UnaryOp) -> Float {
        match self.known() {
            Some(value) => Float::plain(expression::unary(op, value)),
            None => Float::made(Expression::Unary(op, self.expression())),
        }
    }

    pub(crate) fn binary(&self, op: BinaryOp, other: &Float) -> Float {
        match (self.known(), other.known()) {
            (Some(x), Some(y)) => Float::plain(expression::binary(op, x, y)),
            _ => Float::made(Expression::Binary(op, self.expression(), other.expression())),
        }
    }

    fn holds(&self, relation: Relation, other: &Float, at: &Source) -> bool {
        match (self.known(), other.known()) {
            (Some(x), Some(y)) => relation.holds(x, y),
            _ => tracer::decide(&self.expression(), relation, &other.expression(), at),
        }
    }

    /// The number as a tensor without axes: data, of which no constant is made.
    pub(crate) fn tensor(&self, dtype: DType, device: Device, at: &Source) -> Result<Tensor> {
        let wide = match &self.0 {
            Kind::Plain(value, _) => {
                return Tensor::scalar_at(Number::Float(*value).to_scalar(dtype), device, at);
            }
            Kind::Of(expression, made) => match (&**expression, made.get()) {
                (Expression::Element(tensor), _) | (_, Some(tensor)) if tensor.device() == device => tensor.clone(),
                _ => tracer::number(expression, device, at)?,
            },
        };
        wide.to_dtype_at(DType::F64, at)?.to_dtype_at(dtype, at)
    }

    /// The tensor that it is among arguments and results.
    fn leaf(&self) -> &Tensor {
        match &self.0 {
            Kind::Plain(value, tensor) => tensor.get_or_init(|| plain_tensor(*value)),
            Kind::Of(expression, tensor) => match &**expression {
                Expression::Element(element) => element,
                _ => tensor.get_or_init(|| {
                    let made = tracer::number(expression, Device::Cpu, &Source::default());
                    made.unwrap_or_else(|_| escaped())
                }),
            },
        }
    }
}

/// A tensor with memory of one number.
fn plain_tensor(value: f64) -> Tensor {
    let scalar = Number::Float(value).to_scalar(DType::F64);
    let made = tracer::paused(|| Tensor::scalar_at(scalar, Device::Cpu, &Source::default()));
    made.unwrap_or_else(|_| escaped())
}

/// A tensor that there is none of, which whoever uses it is told.
fn escaped() -> Tensor {
    let traced = Traced { recording: u32::MAX, value: 0, device: Device::Cpu };
    Tensor::from_traced(traced, Vec::new(), DType::F64, None)
}

impl Float {
    /// Returns the absolute value.
    pub fn abs(&self) -> Float {
        self.unary(UnaryOp::Abs)
    }

    /// Returns the square root; NaN of a negative number.
    pub fn sqrt(&self) -> Float {
        self.unary(UnaryOp::Sqrt)
    }

    /// Returns e to the power of the number.
    pub fn exp(&self) -> Float {
        self.unary(UnaryOp::Exp)
    }

    /// Returns the natural logarithm.
    pub fn ln(&self) -> Float {
        self.unary(UnaryOp::Log)
    }

    /// Returns the smaller of both, without a guard; NaN if either is, as [`Tensor::minimum`] does.
    pub fn min(&self, other: impl Into<Float>) -> Float {
        self.binary(BinaryOp::Min, &other.into())
    }

    /// Returns the larger of both, without a guard; NaN if either is, as [`Tensor::maximum`] does.
    pub fn max(&self, other: impl Into<Float>) -> Float {
        self.binary(BinaryOp::Max, &other.into())
    }
}

impl Tensor {
    /// Returns the one element as a number to compute and decide with. [`Tensor::item`] gives a plain number, and a compiled function
    /// has a program for each outcome of it; of a [`Float`] only the outcomes of comparisons count, and used with tensors it
    /// is data.
    ///
    /// ```
    /// use kiln::{Device, Result, Tensor};
    /// // Newton's method for square roots, until the step is small.
    /// let root = |a: &Tensor| -> Result<Tensor> {
    ///     let mut x = a.clone();
    ///     loop {
    ///         let next = ((&x + a.div(&x)?)? * 0.5)?;
    ///         let step = next.sub(&x)?.abs()?.amax(..)?.item_float()?;
    ///         x = next;
    ///         if step < 1e-4 {
    ///             return Ok(x);
    ///         }
    ///     }
    /// };
    /// let fast = kiln::compile(root);
    /// for i in 0..50 {
    ///     let a = Tensor::new([2.0 + 0.01 * i as f32, 3.0], Device::Cpu)?;
    ///     assert_eq!(fast.call(&a)?.to_vec::<f32>()?, root(&a)?.to_vec::<f32>()?);
    /// }
    /// assert!(fast.stats().branches < 5 && fast.stats().fallbacks == 0);
    /// # Ok::<(), kiln::Error>(())
    /// ```
    #[track_caller]
    pub fn item_float(&self) -> Result<Float> {
        let at = Source::caller();
        if !self.is_traced() {
            return self.item_at(&at).map(Float::plain);
        }
        if !dim::product(&self.sizes()).equals(Dim::plain(1), &at) {
            return Err(Error::NotOneElement { shape: self.hint().to_vec(), at });
        }
        // What is read has no gradient.
        tracer::cut(self, &at).reshape_to(Vec::new(), &at).map(Float::element)
    }
}

/// As an argument or a result it is a tensor without axes: its value is not guarded.
impl Bundle for Float {
    fn leaves<'a>(&'a self, each: &mut dyn FnMut(Leaf<'a>)) {
        each(Leaf::Tensor(self.leaf()));
    }

    fn map_tensors(&self, map: &mut dyn FnMut(&Tensor) -> Tensor) -> Float {
        let tensor = map(self.leaf());
        let is_here = !tensor.is_traced() && tensor.rank() == 0 && tensor.device() == Device::Cpu;
        match is_here.then(|| tensor.item_at::<f64>(&Source::default())) {
            Some(Ok(value)) => Float(Kind::Plain(
                value,
                if tensor.dtype() == DType::F64 { OnceLock::from(tensor) } else { OnceLock::new() },
            )),
            _ => Float::element(tensor),
        }
    }
}

/// The number, or what it is computed of.
impl fmt::Display for Float {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.known() {
            Some(value) => fmt::Display::fmt(&value, f),
            None => {
                let named = self.expression().map(&mut |_| Ok("number"));
                named.map_or(Err(fmt::Error), |named| named.fmt(f))
            }
        }
    }
}

impl fmt::Debug for Float {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
