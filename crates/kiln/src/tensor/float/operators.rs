//! Arithmetic and comparison of numbers that are read with each other and with plain ones.

use super::Float;
use crate::tensor::dim::Relation;
use kiln_ir::{BinaryOp, Source, UnaryOp};
use std::cmp::Ordering;
use std::ops::{Add, AddAssign, Div, DivAssign, Mul, MulAssign, Neg, Sub, SubAssign};

macro_rules! operator {
    ($trait:ident, $method:ident, $assign_trait:ident, $assign:ident) => {
        operator! { @of $trait, $method, Float, &Float }
        operator! { @number $trait, $method, Float, &Float }
        impl<T: Into<Float>> $assign_trait<T> for Float {
            fn $assign(&mut self, other: T) {
                *self = self.binary(BinaryOp::$trait, &other.into());
            }
        }
    };
    (@of $trait:ident, $method:ident, $($left:ty),*) => { $(
        impl<T: Into<Float>> $trait<T> for $left {
            type Output = Float;
            fn $method(self, other: T) -> Float {
                self.binary(BinaryOp::$trait, &other.into())
            }
        }
    )* };
    (@number $trait:ident, $method:ident, $($right:ty),*) => { $(
        impl $trait<$right> for f64 {
            type Output = Float;
            fn $method(self, other: $right) -> Float {
                Float::from(self).binary(BinaryOp::$trait, &other)
            }
        }
    )* };
}

operator! { Add, add, AddAssign, add_assign }
operator! { Sub, sub, SubAssign, sub_assign }
operator! { Mul, mul, MulAssign, mul_assign }
operator! { Div, div, DivAssign, div_assign }

impl Neg for Float {
    type Output = Float;
    fn neg(self) -> Float {
        self.unary(UnaryOp::Neg)
    }
}

impl Neg for &Float {
    type Output = Float;
    fn neg(self) -> Float {
        self.unary(UnaryOp::Neg)
    }
}

macro_rules! from_numbers {
    ($($type:ty)*) => { $(
        impl From<$type> for Float {
            fn from(value: $type) -> Float {
                Float::plain(value.into())
            }
        }
    )* };
}
from_numbers! { f64 f32 i32 u32 }

impl From<&Float> for Float {
    fn from(number: &Float) -> Float {
        number.clone()
    }
}

/// Each comparison is one decision. As for f64, NaN is neither below, above nor equal to anything.
macro_rules! compared {
    ($($left:ty, $right:ty;)*) => { $(
        impl PartialEq<$right> for $left {
            #[track_caller]
            fn eq(&self, other: &$right) -> bool {
                Float::from(self.clone()).holds(Relation::Equal, &Float::from(other.clone()), &Source::caller())
            }
        }

        impl PartialOrd<$right> for $left {
            #[track_caller]
            fn partial_cmp(&self, other: &$right) -> Option<Ordering> {
                let (left, right, at) = (Float::from(self.clone()), Float::from(other.clone()), Source::caller());
                if left.holds(Relation::Below, &right, &at) {
                    Some(Ordering::Less)
                } else if right.holds(Relation::Below, &left, &at) {
                    Some(Ordering::Greater)
                } else {
                    left.holds(Relation::Equal, &right, &at).then_some(Ordering::Equal)
                }
            }

            #[track_caller]
            fn lt(&self, other: &$right) -> bool {
                Float::from(self.clone()).holds(Relation::Below, &Float::from(other.clone()), &Source::caller())
            }

            #[track_caller]
            fn le(&self, other: &$right) -> bool {
                Float::from(self.clone()).holds(Relation::AtMost, &Float::from(other.clone()), &Source::caller())
            }

            #[track_caller]
            fn gt(&self, other: &$right) -> bool {
                Float::from(other.clone()).holds(Relation::Below, &Float::from(self.clone()), &Source::caller())
            }

            #[track_caller]
            fn ge(&self, other: &$right) -> bool {
                Float::from(other.clone()).holds(Relation::AtMost, &Float::from(self.clone()), &Source::caller())
            }
        }
    )* };
}
compared! {
    Float, Float;
    Float, &Float;
    Float, f64;
    f64, Float;
}
