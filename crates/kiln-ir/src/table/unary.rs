//! Functions of one operand.

use super::gradient::{one_minus_square, widened};
use super::{DTypeClass, Derivative, named_ops};
use crate::build::{Built, Emit, add_scalar, cos, digamma, div, exp, mul, mul_scalar, neg, rsqrt, sign, sin};
use crate::interpret::special;
use crate::{DType, Op, Scalar};
use std::f64::consts::{FRAC_2_SQRT_PI, FRAC_PI_2, LN_2, PI};

/// What the compiler knows of a function of one operand. Its derivative is in the same row: [`UnaryOp::cotangent`].
#[derive(Debug, Clone, Copy)]
pub struct UnaryRow {
    /// The dtypes of the operand.
    pub accepts: DTypeClass,
    /// Whether the result is `Bool`; else it has the operand's dtype.
    pub gives_bool: bool,
    /// The meaning on floats. A bool result is 0 or 1.
    pub float: Option<fn(f64) -> f64>,
    /// The meaning on integers and bools, before the result wraps to the dtype.
    pub int: Option<fn(DType, i64) -> i64>,
    /// What an element costs, in vector additions.
    pub cost: u32,
    /// How many vector instructions a CPU takes, roughly.
    pub instructions: u32,
    /// By how many units in the last place a correct kernel may be off, beyond the rounding of the result.
    pub ulps: f64,
    /// The point nearest to a value at which the function jumps, has a pole or ends; not finite where there is none near. The
    /// second argument is the largest number of the dtype.
    pub jump: Option<fn(f64, f64) -> f64>,
    /// Whether an operand that was not rounded to a short float can give another result altogether.
    pub magnifies: bool,
    /// Whether every result on elements of a dtype is such an element, so that nothing has to be rounded or wrapped.
    pub fits: fn(DType) -> bool,
    /// The values that examples are made of, where not every number will do.
    pub domain: Option<(f64, f64)>,
}

/// A function of floats as most are: a dozen multiplications, a few units in the last place.
const fn float(meaning: fn(f64) -> f64) -> UnaryRow {
    UnaryRow {
        accepts: DTypeClass::Float,
        gives_bool: false,
        float: Some(meaning),
        int: None,
        cost: 12,
        instructions: 25,
        ulps: 4.0,
        jump: None,
        magnifies: false,
        fits: |_| false,
        domain: None,
    }
}

/// A function that is one exact instruction.
const fn exact(meaning: fn(f64) -> f64) -> UnaryRow {
    UnaryRow { cost: 1, instructions: 1, ulps: 0.0, ..float(meaning) }
}

/// A function that is exact on floats and on integers.
const fn number(meaning: fn(f64) -> f64, int: fn(DType, i64) -> i64) -> UnaryRow {
    UnaryRow { accepts: DTypeClass::Number, int: Some(int), fits: DType::is_float, ..exact(meaning) }
}

/// A function that gives whole numbers and jumps from one to the next at the points of `jump`.
const fn rounding(meaning: fn(f64) -> f64, jump: fn(f64, f64) -> f64) -> UnaryRow {
    UnaryRow { jump: Some(jump), magnifies: true, fits: |_| true, ..exact(meaning) }
}

/// Declares the functions of one operand: `Variant name: row, derivative`. The derivative is `none`, `zero`, or the cotangent of
/// the operand: `own(|e, x, y, g| …)` in the operand's dtype, or, with the operand or the result in the dtype to compute in,
/// `of_operand(|e, x, g| …)` and `of_result(|e, y, g| …)`.
macro_rules! unary_ops {
    ($($(#[$doc:meta])* $variant:ident $name:ident: $row:expr, $kind:ident $(($rule:expr))?;)*) => {
        named_ops! {
            /// Pointwise functions of one operand. The result has the operand's dtype, but for `IsNan`, which gives `Bool`.
            UnaryOp { $($(#[$doc])* $variant = stringify!($name),)* }
        }

        static ROWS: [UnaryRow; UnaryOp::ALL.len()] = [$($row,)*];

        impl UnaryOp {
            /// What the derivative is.
            pub const fn derivative(self) -> Derivative {
                match self { $(UnaryOp::$variant => derivative!($kind),)* }
            }

            /// The cotangent of x for y = op(x), g being that of y; nothing where the derivative is zero or there is none.
            pub fn cotangent<E: Emit>(
                self,
                e: &mut E,
                x: &E::Value,
                y: &E::Value,
                g: &E::Value,
            ) -> Result<Option<E::Value>, E::Error> {
                match self { $(UnaryOp::$variant => cotangent!($kind $(($rule))?, e, x, y, g),)* }
            }
        }

        /// A builder for each.
        pub mod functions {
            use super::{Built, Emit, Op, UnaryOp};
            $(
                $(#[$doc])*
                #[track_caller]
                pub fn $name<E: Emit>(e: &mut E, x: &E::Value) -> Built<E> {
                    e.emit(Op::Unary(UnaryOp::$variant), std::slice::from_ref(x))
                }
            )*
        }
    };
}

macro_rules! derivative {
    (none) => {
        Derivative::None
    };
    (zero) => {
        Derivative::Zero
    };
    ($rule:ident) => {
        Derivative::Rule
    };
}

macro_rules! cotangent {
    (none, $($_:ident),*) => {
        Ok(None)
    };
    (zero, $($_:ident),*) => {
        Ok(None)
    };
    (own($rule:expr), $e:ident, $x:ident, $y:ident, $g:ident) => {
        own($e, $x, $y, $g, $rule).map(Some)
    };
    (of_operand($rule:expr), $e:ident, $x:ident, $y:ident, $g:ident) => {
        widened($e, $x, $g, $rule).map(Some)
    };
    (of_result($rule:expr), $e:ident, $x:ident, $y:ident, $g:ident) => {
        widened($e, $y, $g, $rule).map(Some)
    };
}

/// A rule in the operand's own dtype, for derivatives that round once.
fn own<E: Emit>(
    e: &mut E,
    x: &E::Value,
    y: &E::Value,
    g: &E::Value,
    rule: impl FnOnce(&mut E, &E::Value, &E::Value, &E::Value) -> Built<E>,
) -> Built<E> {
    rule(e, x, y, g)
}

unary_ops! {
    /// −x (integers wrap).
    Neg neg: number(|x| -x, |_, x| x.wrapping_neg()), own(|e, _, _, g| neg(e, g));
    /// |x| (integers wrap).
    Abs abs: number(f64::abs, |_, x| x.wrapping_abs()), own(|e, x, _, g| {
        let direction = sign(e, x)?;
        mul(e, g, &direction)
    });
    /// −1, 0 or 1; NaN and ±0 stay.
    Sign sign: UnaryRow {
        instructions: 25, jump: Some(|_, _| 0.0), fits: |_| true,
        ..number(|x| if x.is_nan() || x == 0.0 { x } else { x.signum() }, |_, x| x.signum())
    }, zero;
    /// Towards −∞ (floats).
    Floor floor: rounding(f64::floor, |x, _| x.round()), zero;
    /// Towards +∞ (floats).
    Ceil ceil: rounding(f64::ceil, |x, _| x.round()), zero;
    /// To the nearest integer, ties to even (floats).
    Round round: rounding(f64::round_ties_even, |x, _| (x - 0.5).round() + 0.5), zero;
    /// Towards zero (floats).
    Trunc trunc: rounding(f64::trunc, |x, _| x.round()), zero;
    /// √x.
    Sqrt sqrt: UnaryRow {
        cost: 4, instructions: 5, ulps: 1.0, jump: Some(|_, _| 0.0), domain: Some((0.125, 4.0)), ..float(f64::sqrt)
    }, of_result(|e, y, g| {
        let twice = mul_scalar(e, y, 2.0)?;
        div(e, g, &twice)
    });
    /// 1/√x.
    Rsqrt rsqrt: UnaryRow {
        cost: 4, instructions: 5, jump: Some(|_, _| 0.0), domain: Some((0.125, 4.0)), ..float(|x| 1.0 / x.sqrt())
    }, of_result(|e, y, g| {
        let square = mul(e, y, y)?;
        let cube = mul(e, &square, y)?;
        let product = mul(e, g, &cube)?;
        mul_scalar(e, &product, -0.5)
    });
    /// 1/x.
    Recip recip: UnaryRow {
        cost: 4, instructions: 5, ulps: 1.0, jump: Some(|_, _| 0.0), domain: Some((0.25, 4.0)), ..float(f64::recip)
    }, of_result(|e, y, g| {
        let square = mul(e, y, y)?;
        let product = mul(e, g, &square)?;
        neg(e, &product)
    });
    /// eˣ.
    Exp exp: UnaryRow {
        instructions: 14, jump: Some(|_, largest| largest.ln()), ..float(f64::exp)
    }, own(|e, _, y, g| mul(e, g, y));
    /// 2ˣ.
    Exp2 exp2: UnaryRow {
        instructions: 14, jump: Some(|_, largest| largest.log2()), ..float(f64::exp2)
    }, of_result(|e, y, g| {
        let product = mul(e, g, y)?;
        mul_scalar(e, &product, LN_2)
    });
    /// eˣ − 1 without loss near 0.
    Expm1 expm1: UnaryRow { jump: Some(|_, largest| largest.ln()), ..float(f64::exp_m1) }, of_result(|e, y, g| {
        let power = add_scalar(e, y, 1.0)?;
        mul(e, g, &power)
    });
    /// Natural logarithm.
    Log log: UnaryRow {
        instructions: 14, jump: Some(|_, _| 0.0), domain: Some((0.125, 4.0)), ..float(f64::ln)
    }, own(|e, x, _, g| div(e, g, x));
    /// Logarithm to base 2.
    Log2 log2: UnaryRow {
        instructions: 14, jump: Some(|_, _| 0.0), domain: Some((0.125, 4.0)), ..float(f64::log2)
    }, of_operand(|e, x, g| {
        let scaled = mul_scalar(e, x, LN_2)?;
        div(e, g, &scaled)
    });
    /// ln(1 + x) without loss near 0.
    Log1p log1p: UnaryRow {
        jump: Some(|_, _| -1.0), domain: Some((-0.875, 4.0)), ..float(f64::ln_1p)
    }, of_operand(|e, x, g| {
        let raised = add_scalar(e, x, 1.0)?;
        div(e, g, &raised)
    });
    /// Sine.
    Sin sin: UnaryRow { magnifies: true, ..float(f64::sin) }, of_operand(|e, x, g| {
        let slope = cos(e, x)?;
        mul(e, g, &slope)
    });
    /// Cosine.
    Cos cos: UnaryRow { magnifies: true, ..float(f64::cos) }, of_operand(|e, x, g| {
        let slope = sin(e, x)?;
        let product = mul(e, g, &slope)?;
        neg(e, &product)
    });
    /// Tangent.
    Tan tan: UnaryRow {
        cost: 24, jump: Some(|x, _| ((x - FRAC_PI_2) / PI).round() * PI + FRAC_PI_2), magnifies: true, ..float(f64::tan)
    }, of_result(|e, y, g| {
        let square = mul(e, y, y)?;
        let slope = add_scalar(e, &square, 1.0)?;
        mul(e, g, &slope)
    });
    /// Arc sine.
    Asin asin: UnaryRow {
        jump: Some(|x, _| x.signum()), domain: Some((-0.875, 0.875)), ..float(f64::asin)
    }, of_operand(|e, x, g| {
        let rest = one_minus_square(e, x)?;
        let slope = rsqrt(e, &rest)?;
        mul(e, g, &slope)
    });
    /// Arc cosine.
    Acos acos: UnaryRow {
        jump: Some(|x, _| x.signum()), domain: Some((-0.875, 0.875)), ..float(f64::acos)
    }, of_operand(|e, x, g| {
        let rest = one_minus_square(e, x)?;
        let slope = rsqrt(e, &rest)?;
        let product = mul(e, g, &slope)?;
        neg(e, &product)
    });
    /// Arc tangent.
    Atan atan: float(f64::atan), of_operand(|e, x, g| {
        let square = mul(e, x, x)?;
        let raised = add_scalar(e, &square, 1.0)?;
        div(e, g, &raised)
    });
    /// Hyperbolic tangent.
    Tanh tanh: float(f64::tanh), of_result(|e, y, g| {
        let slope = one_minus_square(e, y)?;
        mul(e, g, &slope)
    });
    /// Error function.
    Erf erf: float(special::erf), of_operand(|e, x, g| {
        let square = mul(e, x, x)?;
        let exponent = neg(e, &square)?;
        let bell = exp(e, &exponent)?;
        let slope = mul_scalar(e, &bell, FRAC_2_SQRT_PI)?;
        mul(e, g, &slope)
    });
    /// Inverse error function.
    ErfInv erf_inv: UnaryRow {
        cost: 24, ulps: 16.0, jump: Some(|x, _| x.signum()), domain: Some((-0.875, 0.875)), ..float(special::erf_inv)
    }, of_result(|e, y, g| {
        let square = mul(e, y, y)?;
        let growth = exp(e, &square)?;
        let slope = mul_scalar(e, &growth, 1.0 / FRAC_2_SQRT_PI)?;
        mul(e, g, &slope)
    });
    /// ln|Γ(x)|.
    Lgamma lgamma: UnaryRow {
        cost: 24, ulps: 16.0, jump: Some(|x, _| if x.round() <= 0.0 { x.round() } else { f64::NAN }), magnifies: true,
        domain: Some((0.125, 4.0)), ..float(special::lgamma)
    }, of_operand(|e, x, g| {
        let slope = digamma(e, x)?;
        mul(e, g, &slope)
    });
    /// Bitwise not of integers, logical not of bools.
    Not not: UnaryRow {
        accepts: DTypeClass::Bits, float: None, fits: |dtype| !matches!(dtype, DType::U8),
        ..number(|x| x, |dtype, x| if dtype == DType::Bool { i64::from(x == 0) } else { !x })
    }, none;
    /// True where x is NaN.
    IsNan is_nan: UnaryRow {
        gives_bool: true, instructions: 25, fits: |_| true, ..exact(|x| f64::from(x.is_nan()))
    }, none;
}

impl UnaryOp {
    /// The op's row of the table.
    pub const fn row(self) -> &'static UnaryRow {
        &ROWS[self as usize]
    }

    /// The dtype of the result for an operand of that dtype.
    pub const fn result(self, operand: DType) -> DType {
        if self.row().gives_bool { DType::Bool } else { operand }
    }

    /// The result for one number; `None` for a dtype that the op does not accept.
    ///
    /// ```
    /// use kiln_ir::{DType, Scalar, UnaryOp};
    /// assert_eq!(UnaryOp::Neg.eval(Scalar::int(DType::I8, -128)), Some(Scalar::int(DType::I8, -128)));
    /// assert_eq!(UnaryOp::Exp.eval(Scalar::int(DType::I8, 1)), None);
    /// ```
    pub fn eval(self, x: Scalar) -> Option<Scalar> {
        let dtype = self.result(x.dtype());
        Some(match x {
            Scalar::Float(_, x) => Scalar::float(dtype, (self.row().float?)(x)),
            Scalar::Int(operand, x) => Scalar::int(dtype, (self.row().int?)(operand, x)),
        })
    }
}
