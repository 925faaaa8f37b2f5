//! Sizes as user code computes with them: numbers that remember, while a function is captured, how they follow from the sizes
//! of its arguments.
//!
//! ```text
//!  x.size(0)? ──▶ Dim ── + − × / % min max ──▶ Dim ──▶ reshape, narrow, arange, zeros, …     no guard
//!                  └── == < …, value() ──▶ bool, usize                                       a guard, with its line
//! ```
//!
//! Outside of a capture, and where the size is not a symbol, a [`Dim`] is just its number. `scope` holds the expressions
//! and the guards that the function's decisions need.

mod obligations;
mod operators;
mod predicate;
pub(crate) mod scope;

pub(crate) use predicate::{Predicate, Relation};
pub(crate) use scope::{Outcome, Scope};

use crate::tensor::eager::{self, Param};
use crate::{DType, Device, Number, Result, Tensor};
use kiln_ir::build::{self, GraphBuilder};
use kiln_ir::{NodeId, Source};
use std::fmt;
use std::num::NonZeroU32;

/// A size in user code: a number that, while a function is captured, also carries its symbolic expression. Not to be
/// confused with [`crate::ir::Dim`], the size of an axis in a graph's types.
///
/// It can be used wherever a size is expected, alone or mixed with numbers, and supports arithmetic; division rounds down.
/// Comparing it with a number or another size, or reading its number with [`Dim::value`] or `usize::from`, adds a guard to
/// the function being captured, which names the line.
///
/// ```
/// use kiln::{DType, Device, Tensor};
/// let x = Tensor::zeros([6, 8], DType::F32, Device::Cpu)?;
/// let (rows, columns) = (x.size(0)?, x.size(1)?);
/// let y = x.reshape((rows / 2, 2, columns))?.narrow(0, 1, rows / 2 - 1)?;
/// assert_eq!(y.shape(), [2, 2, 8]);
/// assert!(rows < columns && rows.is_at_most(512));
/// assert_eq!((rows * columns).value(), 48);
/// # Ok::<(), kiln::Error>(())
/// ```
#[derive(Clone, Copy)]
pub struct Dim {
    value: i64,
    expression: Option<Expression>,
}

/// An expression of the scope that is being captured.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Expression {
    scope: NonZeroU32,
    place: u32,
}

impl Dim {
    /// A number, whatever it came from.
    #[inline]
    pub(crate) const fn plain(value: i64) -> Dim {
        Dim { value, expression: None }
    }

    /// The number at this call, without a guard: for decisions that are guarded otherwise and for messages.
    #[inline]
    pub(crate) const fn hint(self) -> i64 {
        self.value
    }

    /// Whether it is just a number.
    #[inline]
    pub(crate) const fn is_plain(self) -> bool {
        self.expression.is_none()
    }

    /// Returns the number. In a function being captured this specialises the program to exactly this size.
    #[track_caller]
    pub fn value(self) -> usize {
        usize::try_from(self.number(&Source::caller())).unwrap_or(0)
    }

    /// Returns the number, for a guard that names this line.
    pub(crate) fn number(self, at: &Source) -> i64 {
        self.equals(Dim::plain(self.value), at);
        self.value
    }

    /// The expression, as a graph writes it.
    pub(crate) fn expression(self) -> kiln_ir::Dim {
        match self.expression {
            None => kiln_ir::Dim::from(self.value),
            Some(expression) => scope::expression(expression).unwrap_or(kiln_ir::Dim::from(self.value)),
        }
    }

    /// The size as data: a tensor of no axes, without a guard.
    pub(crate) fn tensor(self, dtype: DType, device: Device, at: &Source) -> Result<Tensor> {
        if self.is_plain() {
            return Tensor::scalar_at(Number::Int(self.value).to_scalar(dtype), device, at);
        }
        let size = self.expression();
        let write = |b: &mut GraphBuilder, _: &[NodeId]| Ok(vec![build::size_value(b, &size, dtype)?]);
        let key = [Param::from(self.value), dtype.into()];
        let mut made = eager::run(eager::Operation::Composite("size", &key), &[], device, &write, at)?;
        Ok(made.swap_remove(0))
    }

    /// Returns whether both are equal. Like `==`, but the guard names the line.
    #[track_caller]
    pub fn is(self, other: impl Into<Dim>) -> bool {
        self.equals(other.into(), &Source::caller())
    }

    /// Returns `self < other`. Like the operator, but the guard names the line.
    #[track_caller]
    pub fn is_below(self, other: impl Into<Dim>) -> bool {
        self.less(other.into(), &Source::caller())
    }

    /// Returns `self ≤ other`. Like the operator, but the guard names the line.
    #[track_caller]
    pub fn is_at_most(self, other: impl Into<Dim>) -> bool {
        self.at_most(other.into(), &Source::caller())
    }

    /// Returns `self > other`. Like the operator, but the guard names the line.
    #[track_caller]
    pub fn is_above(self, other: impl Into<Dim>) -> bool {
        other.into().less(self, &Source::caller())
    }

    /// Returns `self ≥ other`. Like the operator, but the guard names the line.
    #[track_caller]
    pub fn is_at_least(self, other: impl Into<Dim>) -> bool {
        other.into().at_most(self, &Source::caller())
    }

    /// Returns whether `divisor` divides it.
    #[track_caller]
    pub fn is_multiple_of(self, divisor: impl Into<Dim>) -> bool {
        let divisor = divisor.into();
        let at = Source::caller();
        if divisor.equals(Dim::plain(0), &at) {
            return self.equals(Dim::plain(0), &at);
        }
        (self % divisor).equals(Dim::plain(0), &at)
    }

    pub(crate) fn equals(self, other: Dim, at: &Source) -> bool {
        scope::holds(self, Relation::Equal, other, at)
    }

    pub(crate) fn less(self, other: Dim, at: &Source) -> bool {
        scope::holds(self, Relation::Below, other, at)
    }

    pub(crate) fn at_most(self, other: Dim, at: &Source) -> bool {
        scope::holds(self, Relation::AtMost, other, at)
    }
}

/// The product of sizes.
pub(crate) fn product(sizes: &[Dim]) -> Dim {
    sizes.iter().fold(Dim::plain(1), |product, &size| product * size)
}

/// Sizes as a graph writes them.
pub(crate) fn expressions(sizes: &[Dim]) -> Vec<kiln_ir::Dim> {
    sizes.iter().map(|size| size.expression()).collect()
}

/// The numbers of plain sizes.
pub(crate) fn plain(sizes: &[usize]) -> Vec<Dim> {
    sizes.iter().map(|&size| size.into()).collect()
}

/// The numbers at this call; a negative one counts as 0.
pub(crate) fn hints(sizes: &[Dim]) -> Vec<usize> {
    sizes.iter().map(|size| usize::try_from(size.value).unwrap_or(0)).collect()
}

/// As [`Dim::value`].
impl From<Dim> for usize {
    #[track_caller]
    fn from(size: Dim) -> usize {
        size.value()
    }
}

macro_rules! from_numbers {
    ($($type:ty)*) => { $(
        impl From<$type> for Dim {
            /// A number beyond 64 bits saturates, which no shape accepts.
            #[inline]
            fn from(value: $type) -> Dim {
                Dim::plain(i64::try_from(value).unwrap_or(i64::MAX))
            }
        }
    )* };
}
from_numbers! { usize u32 u64 i32 i64 isize }

/// The number, or the expression and its number at this call.
impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.expression.and_then(scope::expression) {
            None => write!(f, "{}", self.value),
            Some(expression) => write!(f, "{expression} (now {})", self.value),
        }
    }
}

impl fmt::Debug for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
