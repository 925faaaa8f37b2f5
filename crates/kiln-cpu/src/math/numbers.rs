//! Functions on numbers: the operations of [`Float`] on `f32` and `f64`, for tests over every input.

use super::lanes::*;
use crate::vir::ScalarFn;
use std::num::Wrapping;

impl Mask for bool {}

/// Exact in 64 bits, then rounded.
#[inline(always)]
fn scale_single(x: f32, n: f32) -> f32 {
    (f64::from(x) * f64::from_bits(((1023 + n as i64) as u64) << 52)) as f32
}

/// Two factors, neither of which leaves the range of exponents; only the second product can round.
#[inline(always)]
fn scale_double(x: f64, n: f64) -> f64 {
    let n = n as i64;
    let half = n >> 1;
    let power = |n: i64| f64::from_bits(((1023 + n) as u64) << 52);
    x * power(half) * power(n - half)
}

macro_rules! scalar {
    ($float:ty, $int:ty, $unsigned:ty, $scale:expr) => {
        impl Float for $float {
            type Int = Wrapping<$int>;
            type Mask = bool;
            #[inline(always)]
            fn lit(self, value: f64) -> Self {
                value as $float
            }
            #[inline(always)]
            fn int(self, value: i64) -> Wrapping<$int> {
                Wrapping(value as $int)
            }
            #[inline(always)]
            fn mul_add(self, b: Self, c: Self) -> Self {
                <$float>::mul_add(self, b, c)
            }
            #[inline(always)]
            fn mul_sub(self, b: Self, c: Self) -> Self {
                <$float>::mul_add(self, b, -c)
            }
            #[inline(always)]
            fn neg_mul_add(self, b: Self, c: Self) -> Self {
                <$float>::mul_add(-self, b, c)
            }
            #[inline(always)]
            fn abs(self) -> Self {
                <$float>::abs(self)
            }
            #[inline(always)]
            fn sqrt(self) -> Self {
                <$float>::sqrt(self)
            }
            #[inline(always)]
            fn round(self) -> Self {
                self.round_ties_even()
            }
            #[inline(always)]
            fn trunc(self) -> Self {
                <$float>::trunc(self)
            }
            #[inline(always)]
            fn min(self, other: Self) -> Self {
                if self < other { self } else { other }
            }
            #[inline(always)]
            fn max(self, other: Self) -> Self {
                if self > other { self } else { other }
            }
            #[inline(always)]
            fn scale(self, n: Self) -> Self {
                $scale(self, n)
            }
            #[inline(always)]
            fn bits(self) -> Wrapping<$int> {
                Wrapping(self.to_bits() as $int)
            }
            #[inline(always)]
            fn lt(self, other: Self) -> bool {
                self < other
            }
            #[inline(always)]
            fn gt(self, other: Self) -> bool {
                self > other
            }
            #[inline(always)]
            fn eq(self, other: Self) -> bool {
                self == other
            }
            #[inline(always)]
            fn ne(self, other: Self) -> bool {
                self != other
            }
            #[inline(always)]
            fn select(mask: bool, yes: Self, no: Self) -> Self {
                if mask { yes } else { no }
            }
            #[inline(always)]
            fn unless(self, mask: bool, f: ScalarFn, x: Self, y: Self) -> Self {
                if mask { Self::call(f, x, y) } else { self }
            }
            fn call(f: ScalarFn, x: Self, y: Self) -> Self {
                f.float(x.into(), y.into()) as $float
            }
        }

        impl Int for Wrapping<$int> {
            type Float = $float;
            type Mask = bool;
            #[inline(always)]
            fn lit(self, value: i64) -> Self {
                Wrapping(value as $int)
            }
            #[inline(always)]
            fn float(self) -> $float {
                <$float>::from_bits(self.0 as $unsigned)
            }
            #[inline(always)]
            fn to_float(self) -> $float {
                self.0 as $float
            }
            #[inline(always)]
            fn shl(self, bits: u32) -> Self {
                Wrapping(self.0 << bits)
            }
            #[inline(always)]
            fn shr(self, bits: u32) -> Self {
                Wrapping((self.0 as $unsigned >> bits) as $int)
            }
            #[inline(always)]
            fn sar(self, bits: u32) -> Self {
                Wrapping(self.0 >> bits)
            }
            #[inline(always)]
            fn gt(self, other: Self) -> bool {
                self > other
            }
            #[inline(always)]
            fn eq(self, other: Self) -> bool {
                self == other
            }
            #[inline(always)]
            fn select(mask: bool, yes: Self, no: Self) -> Self {
                if mask { yes } else { no }
            }
        }
    };
}
scalar!(f32, i32, u32, scale_single);
scalar!(f64, i64, u64, scale_double);
