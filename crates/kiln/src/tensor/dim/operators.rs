//! Arithmetic and comparison of sizes with sizes and numbers.

use super::{Dim, scope};
use kiln_ir::Source;
use std::cmp::Ordering;
use std::ops::{Add, AddAssign, Div, Mul, MulAssign, Rem, Sub, SubAssign};

/// Of numbers beyond 64 bits, and of a division by zero, there is none: this one is accepted by no shape.
const NO_SIZE: i64 = i64::MAX;

fn floor_div(a: i64, b: i64) -> Option<i64> {
    let quotient = a.checked_div(b)?;
    Some(if a % b != 0 && (a < 0) != (b < 0) { quotient - 1 } else { quotient })
}

fn modulo(a: i64, b: i64) -> Option<i64> {
    let rest = a.checked_rem(b)?;
    Some(if rest != 0 && (rest < 0) != (b < 0) { rest + b } else { rest })
}

/// Both by number where both are numbers, else by number and by expression.
#[inline]
fn combine(
    a: Dim,
    b: Dim,
    number: fn(i64, i64) -> Option<i64>,
    expression: fn(&kiln_ir::Dim, &kiln_ir::Dim) -> kiln_ir::Dim,
) -> Dim {
    let value = number(a.value, b.value).unwrap_or(NO_SIZE);
    if a.is_plain() && b.is_plain() { Dim::plain(value) } else { scope::derived(a, b, value, expression) }
}

macro_rules! operator {
    ($trait:ident, $method:ident, $number:expr, $expression:expr) => {
        impl<T: Into<Dim>> $trait<T> for Dim {
            type Output = Dim;
            #[inline]
            fn $method(self, other: T) -> Dim {
                combine(self, other.into(), $number, $expression)
            }
        }
        operator! { @numbers $trait, $method, usize u32 i32 i64 }
    };
    (@numbers $trait:ident, $method:ident, $($type:ty)*) => { $(
        impl $trait<Dim> for $type {
            type Output = Dim;
            #[inline]
            fn $method(self, other: Dim) -> Dim {
                Dim::from(self).$method(other)
            }
        }
    )* };
}

operator! { Add, add, i64::checked_add, |a, b| a + b }
operator! { Sub, sub, i64::checked_sub, |a, b| a - b }
operator! { Mul, mul, i64::checked_mul, |a, b| a * b }
operator! { Div, div, floor_div, kiln_ir::Dim::floor_div }
operator! { Rem, rem, modulo, kiln_ir::Dim::modulo }

macro_rules! assigning {
    ($($trait:ident, $method:ident, $operator:ident;)*) => { $(
        impl<T: Into<Dim>> $trait<T> for Dim {
            #[inline]
            fn $method(&mut self, other: T) {
                *self = Dim::$operator(*self, other);
            }
        }
    )* };
}
assigning! {
    AddAssign, add_assign, add;
    SubAssign, sub_assign, sub;
    MulAssign, mul_assign, mul;
}

impl Dim {
    /// Returns the smaller of both, without a guard.
    pub fn min(self, other: impl Into<Dim>) -> Dim {
        combine(self, other.into(), |a, b| Some(a.min(b)), |a, b| kiln_ir::Dim::min_of([a.clone(), b.clone()]))
    }

    /// Returns the larger of both, without a guard.
    pub fn max(self, other: impl Into<Dim>) -> Dim {
        combine(self, other.into(), |a, b| Some(a.max(b)), |a, b| kiln_ir::Dim::max_of([a.clone(), b.clone()]))
    }

    /// Returns the quotient rounded up, without a guard.
    ///
    /// ```
    /// use kiln::Dim;
    /// assert!(Dim::from(65).div_ceil(64) == 2 && Dim::from(64) / 64 == 1);
    /// ```
    pub fn div_ceil(self, divisor: impl Into<Dim>) -> Dim {
        let divisor = divisor.into();
        Dim::plain(0) - (Dim::plain(0) - self) / divisor
    }
}

impl<T: Into<Dim> + Copy> PartialEq<T> for Dim {
    #[track_caller]
    fn eq(&self, other: &T) -> bool {
        self.equals((*other).into(), &Source::caller())
    }
}

impl<T: Into<Dim> + Copy> PartialOrd<T> for Dim {
    #[track_caller]
    fn partial_cmp(&self, other: &T) -> Option<Ordering> {
        let (other, at) = ((*other).into(), Source::caller());
        Some(if self.equals(other, &at) {
            Ordering::Equal
        } else if self.less(other, &at) {
            Ordering::Less
        } else {
            Ordering::Greater
        })
    }

    #[track_caller]
    fn lt(&self, other: &T) -> bool {
        self.less((*other).into(), &Source::caller())
    }

    #[track_caller]
    fn le(&self, other: &T) -> bool {
        self.at_most((*other).into(), &Source::caller())
    }

    #[track_caller]
    fn gt(&self, other: &T) -> bool {
        (*other).into().less(*self, &Source::caller())
    }

    #[track_caller]
    fn ge(&self, other: &T) -> bool {
        (*other).into().at_most(*self, &Source::caller())
    }
}

macro_rules! compared_from_the_left {
    ($($type:ty)*) => { $(
        impl PartialEq<Dim> for $type {
            #[track_caller]
            fn eq(&self, other: &Dim) -> bool {
                other.equals((*self).into(), &Source::caller())
            }
        }
        impl PartialOrd<Dim> for $type {
            #[track_caller]
            fn partial_cmp(&self, other: &Dim) -> Option<Ordering> {
                Dim::from(*self).partial_cmp(other)
            }
        }
    )* };
}
compared_from_the_left! { usize i32 i64 }
