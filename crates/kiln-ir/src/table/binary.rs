//! Functions of two operands.

use super::gradient::{Binary, angle, difference, larger, power, product, quotient, remainder, smaller, sum};
use super::{DTypeClass, Derivative, Gradients, named_ops};
use crate::build::{Built, Emit};
use crate::{DType, Scalar};

/// An element of one operand, and what is beside it.
#[derive(Debug, Clone, Copy)]
pub struct Operand {
    /// The operand's index.
    pub position: usize,
    /// Its value.
    pub value: f64,
    /// The other operand's value.
    pub other: f64,
    /// How far off the other operand may be.
    pub other_reach: f64,
}

/// What the compiler knows of a function of two operands of one dtype, which the result has too. Its derivative is in the same
/// row: [`BinaryOp::cotangents`].
#[derive(Debug, Clone, Copy)]
pub struct BinaryRow {
    /// The dtypes of the operands.
    pub accepts: DTypeClass,
    /// The meaning on floats.
    pub float: Option<fn(f64, f64) -> f64>,
    /// The meaning on integers and bools, before the result wraps to the dtype.
    pub int: Option<fn(DType, i64, i64) -> i64>,
    /// What an element costs, in vector additions.
    pub cost: u32,
    /// How many vector instructions a CPU takes, roughly.
    pub instructions: u32,
    /// By how many units in the last place a correct kernel may be off, beyond the rounding of the result.
    pub ulps: f64,
    /// By how many more where the result is a short float, which a fused kernel does not round.
    pub short_ulps: f64,
    /// The points at which the function jumps, has a pole or ends, nearest to an operand's value; not finite where there is none.
    pub jumps: Option<fn(Operand) -> [f64; 2]>,
    /// Whether an operand that was not rounded to a short float can give another result altogether.
    pub magnifies: bool,
    /// Whether every result on elements of a dtype is such an element, so that nothing has to be rounded or wrapped.
    pub fits: fn(DType) -> bool,
    /// An operand and the values that examples give it, where not every number will do.
    pub domain: Option<(usize, f64, f64)>,
}

const fn is_no_float(dtype: DType) -> bool {
    !dtype.is_float()
}

/// Arithmetic in one instruction, rounded once.
const fn arithmetic(float: fn(f64, f64) -> f64, int: fn(DType, i64, i64) -> i64) -> BinaryRow {
    BinaryRow {
        accepts: DTypeClass::Computable,
        float: Some(float),
        int: Some(int),
        cost: 1,
        instructions: 1,
        ulps: 0.0,
        short_ulps: 1.0,
        jumps: None,
        magnifies: false,
        fits: |_| false,
        domain: None,
    }
}

/// One of the operands.
const fn choice(float: fn(f64, f64) -> f64, int: fn(DType, i64, i64) -> i64) -> BinaryRow {
    BinaryRow { short_ulps: 0.0, fits: |_| true, ..arithmetic(float, int) }
}

/// A function of bits.
const fn bits(accepts: DTypeClass, int: fn(DType, i64, i64) -> i64) -> BinaryRow {
    BinaryRow { accepts, float: None, fits: is_no_float, ..choice(|x, _| x, int) }
}

/// A function of floats that takes a dozen multiplications or two.
const fn float(meaning: fn(f64, f64) -> f64) -> BinaryRow {
    BinaryRow {
        accepts: DTypeClass::Float,
        int: None,
        cost: 24,
        instructions: 40,
        ulps: 16.0,
        short_ulps: 0.0,
        ..arithmetic(meaning, |_, x, _| x)
    }
}

/// A shift's amount, if it is one.
fn amount(dtype: DType, y: i64) -> Option<i64> {
    (0..dtype.size_in_bits() as i64).contains(&y).then_some(y)
}

/// Stein's algorithm, which divides by two alone.
fn greatest_common_divisor(x: i64, y: i64) -> i64 {
    let (mut a, mut b) = (x.unsigned_abs(), y.unsigned_abs());
    if a == 0 || b == 0 {
        return (a | b) as i64;
    }
    let twos = (a | b).trailing_zeros();
    a >>= a.trailing_zeros();
    b >>= b.trailing_zeros();
    // Both are odd, their difference is not.
    while a != b {
        let rest = a.abs_diff(b);
        b = a.min(b);
        a = rest >> rest.trailing_zeros();
    }
    (a << twos) as i64
}

/// xʸ; the powers that one rounding gives are given so, which the library's are not always.
fn pow(x: f64, y: f64) -> f64 {
    if y == 2.0 {
        x * x
    } else if y == -1.0 {
        1.0 / x
    } else {
        x.powf(y)
    }
}

/// Declares the functions of two operands: `Variant builder = name: row, derivative`. The derivative is a function that gives the
/// cotangents of both operands, if there is one.
macro_rules! binary_ops {
    ($($(#[$doc:meta])* $variant:ident $builder:ident = $name:literal: $row:expr, $rule:expr;)*) => {
        named_ops! {
            /// Pointwise functions of two operands of one dtype and shape; the result has the operands' dtype.
            BinaryOp { $($(#[$doc])* $variant = $name,)* }
        }

        static ROWS: [BinaryRow; BinaryOp::ALL.len()] = [$($row,)*];

        impl BinaryOp {
            /// The requested cotangents of a and b for y = op(a, b), g being that of y; nothing where there is no derivative.
            pub fn cotangents<E: Emit>(
                self,
                e: &mut E,
                operands: [&E::Value; 2],
                y: &E::Value,
                g: &E::Value,
                wanted: [bool; 2],
            ) -> Gradients<E> {
                let rule: Option<Rule<E>> = match self { $(BinaryOp::$variant => $rule,)* };
                rule.map_or(Ok(vec![None, None]), |rule| rule(e, &Binary { operands, y, g, wanted }))
            }
        }

        /// A builder for each.
        pub mod functions {
            use super::{BinaryOp, Built, Emit};
            use crate::build::binary;
            $(
                $(#[$doc])*
                #[track_caller]
                pub fn $builder<E: Emit>(e: &mut E, x: &E::Value, y: &E::Value) -> Built<E> {
                    binary(e, BinaryOp::$variant, x, y)
                }
            )*
        }
    };
}

/// The cotangents of both operands.
type Rule<E> = fn(&mut E, &Binary<E>) -> Gradients<E>;

binary_ops! {
    /// x + y (integers wrap; or on bools).
    Add add = "add": arithmetic(|x, y| x + y, |_, x, y| x.wrapping_add(y)), Some(sum);
    /// x − y.
    Sub sub = "sub": BinaryRow {
        accepts: DTypeClass::Number, ..arithmetic(|x, y| x - y, |_, x, y| x.wrapping_sub(y))
    }, Some(difference);
    /// x · y (and on bools).
    Mul mul = "mul": BinaryRow {
        jumps: Some(|at| [if at.other.is_finite() { f64::NAN } else { 0.0 }, f64::NAN]),
        ..arithmetic(|x, y| x * y, |_, x, y| x.wrapping_mul(y))
    }, Some(product);
    /// x / y; integers truncate towards zero, a zero divisor gives 0.
    Div div = "div": BinaryRow {
        accepts: DTypeClass::Number, cost: 4, instructions: 5, ulps: 0.5,
        jumps: Some(|at| [if at.position == 1 { 0.0 } else { f64::NAN }, f64::NAN]), domain: Some((1, 1.0, 4.0)),
        ..arithmetic(|x, y| x / y, |_, x, y| if y == 0 { 0 } else { x.wrapping_div(y) })
    }, Some(quotient);
    /// Remainder with the sign of x, as C's `fmod` and `%`; an integer zero divisor gives 0.
    Rem rem = "rem": BinaryRow {
        accepts: DTypeClass::Number, cost: 8, instructions: 40, ulps: 0.5,
        jumps: Some(|Operand { position, value, other, .. }| match position {
            0 => [(value / other).round() * other, f64::NAN],
            _ => [0.0, other / (other / value).round()],
        }),
        magnifies: true, fits: is_no_float, domain: Some((1, 1.0, 4.0)),
        ..arithmetic(|x, y| x % y, |_, x, y| if y == 0 { 0 } else { x.wrapping_rem(y) })
    }, Some(remainder);
    /// xʸ (floats).
    Pow pow = "pow": BinaryRow {
        jumps: Some(|Operand { position, value, other, other_reach }| match position {
            0 => [0.0, f64::NAN],
            _ => [if other <= other_reach { value.round() } else { f64::NAN }, f64::NAN],
        }),
        magnifies: true, domain: Some((0, 0.25, 3.0)), ..float(pow)
    }, Some(power);
    /// The angle of (y: first operand, x: second operand).
    Atan2 atan2 = "atan2": BinaryRow { jumps: Some(|_| [0.0, f64::NAN]), ..float(f64::atan2) }, Some(angle);
    /// The larger; NaN if either is NaN.
    Max maximum = "max": choice(
        |x, y| if x.is_nan() || y.is_nan() { f64::NAN } else { x.max(y) }, |_, x, y| x.max(y)
    ), Some(larger);
    /// The smaller; NaN if either is NaN.
    Min minimum = "min": choice(
        |x, y| if x.is_nan() || y.is_nan() { f64::NAN } else { x.min(y) }, |_, x, y| x.min(y)
    ), Some(smaller);
    /// Bitwise and of integers, logical and of bools.
    And and = "and": bits(DTypeClass::Bits, |_, x, y| x & y), None;
    /// Bitwise or of integers, logical or of bools.
    Or or = "or": bits(DTypeClass::Bits, |_, x, y| x | y), None;
    /// Bitwise exclusive or of integers, logical exclusive or of bools.
    Xor xor = "xor": bits(DTypeClass::Bits, |_, x, y| x ^ y), None;
    /// x shifted left by y bits; 0 when y is not in 0..width (integers).
    Shl shl = "shl": BinaryRow {
        fits: |_| false, domain: Some((1, 0.0, 7.0)),
        ..bits(DTypeClass::Integer, |dtype, x, y| amount(dtype, y).map_or(0, |y| x << y))
    }, None;
    /// x shifted right by y bits, arithmetically for signed types; y is clamped to width − 1, a negative y counts as width − 1.
    Shr shr = "shr": BinaryRow {
        domain: Some((1, 0.0, 7.0)),
        ..bits(DTypeClass::Integer, |dtype, x, y| x >> amount(dtype, y).unwrap_or(dtype.size_in_bits() as i64 - 1))
    }, None;
    /// The greatest common divisor, not negative but where it is the size of the smallest integer; that of 0 and x is |x|.
    Gcd gcd = "gcd": BinaryRow {
        cost: 40, instructions: 64, fits: |dtype| dtype == DType::U8,
        ..bits(DTypeClass::Integer, |_, x, y| greatest_common_divisor(x, y))
    }, None;
}

impl BinaryOp {
    /// The op's row of the table.
    pub const fn row(self) -> &'static BinaryRow {
        &ROWS[self as usize]
    }

    /// What the derivative is.
    pub const fn derivative(self) -> Derivative {
        if self.row().float.is_some() { Derivative::Rule } else { Derivative::None }
    }

    /// The result for two numbers; `None` for dtypes that differ or that the op does not accept.
    ///
    /// ```
    /// use kiln_ir::{BinaryOp, DType, Scalar};
    /// let (x, y) = (Scalar::int(DType::U8, 250), Scalar::int(DType::U8, 10));
    /// assert_eq!(BinaryOp::Add.eval(x, y), Some(Scalar::int(DType::U8, 4)));
    /// assert_eq!(BinaryOp::Pow.eval(x, y), None);
    /// ```
    pub fn eval(self, x: Scalar, y: Scalar) -> Option<Scalar> {
        match (x, y) {
            _ if x.dtype() != y.dtype() => None,
            (Scalar::Float(dtype, x), Scalar::Float(_, y)) => Some(Scalar::float(dtype, (self.row().float?)(x, y))),
            _ => Some(Scalar::int(x.dtype(), (self.row().int?)(x.dtype(), x.as_i64(), y.as_i64()))),
        }
    }
}
