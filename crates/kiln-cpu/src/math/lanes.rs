//! The operations that functions are written in. A function is generic over [`Float`], so it is written once and runs in
//! two ways: on numbers (`f32`, `f64`: tests walk over every input) and on values of the vector IR (code generation).
//!
//! Both give the same bits: each operation is one IEEE operation or one on bits.

use crate::vir::ScalarFn;
use std::ops::{Add, BitAnd, BitOr, BitXor, Div, Mul, Neg, Not, Sub};

/// A float, or a vector of them.
pub trait Float:
    Copy + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> + Div<Output = Self> + Neg<Output = Self>
{
    /// Integers of the same width.
    type Int: Int<Float = Self, Mask = Self::Mask>;
    /// Truth values.
    type Mask: Mask;

    /// A constant, rounded to the type; the receiver only says where it is wanted.
    fn lit(self, value: f64) -> Self;
    /// An integer constant.
    fn int(self, value: i64) -> Self::Int;
    /// `self · b + c`, rounded once.
    fn mul_add(self, b: Self, c: Self) -> Self;
    /// `self · b − c`, rounded once.
    fn mul_sub(self, b: Self, c: Self) -> Self;
    /// `c − self · b`, rounded once.
    fn neg_mul_add(self, b: Self, c: Self) -> Self;
    /// |self|
    fn abs(self) -> Self;
    /// √self
    fn sqrt(self) -> Self;
    /// To the nearest integer, ties to even.
    fn round(self) -> Self;
    /// Towards zero.
    fn trunc(self) -> Self;
    /// `self < other ? self : other`, so `other` where either is NaN.
    fn min(self, other: Self) -> Self;
    /// `self > other ? self : other`, so `other` where either is NaN.
    fn max(self, other: Self) -> Self;
    /// `self · 2ⁿ`, rounded once; n is integral, |n| ≤ 250 (2000 in 64 bits).
    fn scale(self, n: Self) -> Self;
    /// The bits.
    fn bits(self) -> Self::Int;
    /// `self < other`
    fn lt(self, other: Self) -> Self::Mask;
    /// `self > other`
    fn gt(self, other: Self) -> Self::Mask;
    /// `self = other`
    fn eq(self, other: Self) -> Self::Mask;
    /// `self ≠ other`; true if either is NaN.
    fn ne(self, other: Self) -> Self::Mask;
    /// `mask ? yes : no`
    fn select(mask: Self::Mask, yes: Self, no: Self) -> Self;
    /// `self`, but the scalar function of x and y where the mask is true. Where no lane is, it costs a test.
    fn unless(self, mask: Self::Mask, f: ScalarFn, x: Self, y: Self) -> Self;
    /// A scalar function, lane by lane.
    fn call(f: ScalarFn, x: Self, y: Self) -> Self;

    /// The sign bit alone, as a constant.
    fn sign_mask(self) -> Self::Int {
        self.lit(-0.0).bits()
    }
    /// The sign bit of `self`.
    fn sign(self) -> Self::Int {
        self.bits() & self.sign_mask()
    }
    /// `self` with these sign bits flipped.
    fn flip(self, sign: Self::Int) -> Self {
        (self.bits() ^ sign).float()
    }
    /// `self`, which is not negative, with these sign bits.
    fn signed(self, sign: Self::Int) -> Self {
        (self.bits() | sign).float()
    }
    /// `self · self`
    fn square(self) -> Self {
        self * self
    }
}

/// An integer, or a vector of them. Sums wrap.
pub trait Int:
    Copy + Add<Output = Self> + Sub<Output = Self> + BitAnd<Output = Self> + BitOr<Output = Self> + BitXor<Output = Self>
{
    /// Floats of the same width.
    type Float: Float<Int = Self, Mask = Self::Mask>;
    /// Truth values.
    type Mask: Mask;

    /// A constant.
    fn lit(self, value: i64) -> Self;
    /// The float with these bits.
    fn float(self) -> Self::Float;
    /// The float of this value; 64-bit integers must be below 2⁵¹ in size.
    fn to_float(self) -> Self::Float;
    /// Shifted left.
    fn shl(self, bits: u32) -> Self;
    /// Shifted right, zeros come in.
    fn shr(self, bits: u32) -> Self;
    /// Shifted right, copies of the sign come in.
    fn sar(self, bits: u32) -> Self;
    /// `self > other`
    fn gt(self, other: Self) -> Self::Mask;
    /// `self = other`
    fn eq(self, other: Self) -> Self::Mask;
    /// `mask ? yes : no`
    fn select(mask: Self::Mask, yes: Self, no: Self) -> Self;
}

/// A truth value, or a vector of them.
pub trait Mask: Copy + BitAnd<Output = Self> + BitOr<Output = Self> + Not<Output = Self> {}

/// A polynomial by Horner's rule, highest coefficient first.
pub fn polynomial<F: Float>(x: F, coefficients: &[f64]) -> F {
    let (first, rest) = coefficients.split_first().expect("a polynomial has a coefficient");
    rest.iter().fold(x.lit(*first), |p, &c| p.mul_add(x, x.lit(c)))
}
