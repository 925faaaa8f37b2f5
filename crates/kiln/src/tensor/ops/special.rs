//! Functions of numbers beyond the primitives, each one graph and one kernel: special functions, shrinkage, what pairs of numbers have in
//! common. Operands broadcast and are promoted as those of [`Tensor::add`] are.

use super::functional::Write;
use crate::tensor::eager::{self, Param};
use crate::tensor::promotion::{promote, to_float};
use crate::tensor::shape;
use crate::{Argument, DType, Error, Result, Tensor};
use kiln_ir::build::{self, Emit, GraphBuilder};
use kiln_ir::{BinaryOp, NodeId, Op, Source, UnaryOp};

impl Tensor {
    /// A function of two operands in their common dtype, a float if `float`.
    fn joint(
        &self,
        name: &'static str,
        other: impl Into<Argument>,
        float: bool,
        write: impl Fn(&mut GraphBuilder, &NodeId, &NodeId) -> Result<NodeId, kiln_ir::Error>,
        at: &Source,
    ) -> Result<Tensor> {
        let other = other.into();
        let dtype = promote(&[self.into(), other.operand()]);
        let dtype = if float { to_float(dtype) } else { dtype };
        let other = other.tensor(dtype, self, at)?;
        shape::broadcast(name, &self.sizes(), &other.sizes(), at)?;
        let write = |b: &mut GraphBuilder, inputs: &[NodeId]| {
            let (x, y) = (build::cast(b, &inputs[0], dtype)?, build::cast(b, &inputs[1], dtype)?);
            write(b, &x, &y)
        };
        eager::composite(name, &[dtype.into()], &[self, &other], write, at)
    }

    fn of_integers(
        &self,
        name: &'static str,
        other: impl Into<Argument>,
        write: fn(&mut GraphBuilder, &NodeId, &NodeId) -> Result<NodeId, kiln_ir::Error>,
        at: &Source,
    ) -> Result<Tensor> {
        let other = other.into();
        match promote(&[self.into(), other.operand()]) {
            got if !got.is_int() || got == DType::Bool => {
                Err(Error::WrongDType { op: name, got, expected: "integers", at: at.clone() })
            }
            _ => self.joint(name, other, false, write, at),
        }
    }

    /// The greatest common divisor of each pair of integers, never negative.
    ///
    /// ```
    /// use kiln::{Device, Tensor};
    /// let x = Tensor::new([12i64, -18, 0], Device::Cpu)?;
    /// assert_eq!(x.gcd(8)?.to_vec::<i64>()?, [4, 2, 8]);
    /// assert_eq!(x.lcm(8)?.to_vec::<i64>()?, [24, 72, 0]);
    /// # Ok::<(), kiln::Error>(())
    /// ```
    #[track_caller]
    pub fn gcd(&self, other: impl Into<Argument>) -> Result<Tensor> {
        self.of_integers("gcd", other, build::gcd, &Source::caller())
    }

    /// The least common multiple of each pair of integers, never negative.
    #[track_caller]
    pub fn lcm(&self, other: impl Into<Argument>) -> Result<Tensor> {
        self.of_integers("lcm", other, build::lcm, &Source::caller())
    }

    /// √(x² + y²), where neither square overflows.
    #[track_caller]
    pub fn hypot(&self, other: impl Into<Argument>) -> Result<Tensor> {
        self.joint("hypot", other, true, build::hypot, &Source::caller())
    }

    /// The size of this with the sign of the other, also that of −0.
    #[track_caller]
    pub fn copysign(&self, other: impl Into<Argument>) -> Result<Tensor> {
        self.joint("copysign", other, true, build::copysign, &Source::caller())
    }

    /// x · 2ʸ.
    #[track_caller]
    pub fn ldexp(&self, exponent: impl Into<Argument>) -> Result<Tensor> {
        let write = |b: &mut GraphBuilder, x: &NodeId, y: &NodeId| {
            let factor = b.emit(Op::Unary(UnaryOp::Exp2), &[*y])?;
            build::mul(b, x, &factor)
        };
        self.joint("ldexp", exponent, true, write, &Source::caller())
    }

    /// The larger of each pair; where one of them is NaN, the other. [`Tensor::maximum`] is NaN there.
    #[track_caller]
    pub fn fmax(&self, other: impl Into<Argument>) -> Result<Tensor> {
        let write = |b: &mut GraphBuilder, x: &NodeId, y: &NodeId| build::extreme_number(b, BinaryOp::Max, x, y);
        self.joint("fmax", other, false, write, &Source::caller())
    }

    /// The smaller of each pair; where one of them is NaN, the other.
    #[track_caller]
    pub fn fmin(&self, other: impl Into<Argument>) -> Result<Tensor> {
        let write = |b: &mut GraphBuilder, x: &NodeId, y: &NodeId| build::extreme_number(b, BinaryOp::Min, x, y);
        self.joint("fmin", other, false, write, &Source::caller())
    }

    /// ln(eˣ + eʸ), without overflow.
    #[track_caller]
    pub fn logaddexp(&self, other: impl Into<Argument>) -> Result<Tensor> {
        self.joint("logaddexp", other, true, build::logaddexp, &Source::caller())
    }

    /// x · ln y, and 0 where x is 0.
    #[track_caller]
    pub fn xlogy(&self, other: impl Into<Argument>) -> Result<Tensor> {
        self.joint("xlogy", other, true, build::xlogy, &Source::caller())
    }

    /// The other less this: `other − self`.
    #[track_caller]
    pub fn rsub(&self, other: impl Into<Argument>) -> Result<Tensor> {
        self.joint("rsub", other, false, |b, x, y| build::sub(b, y, x), &Source::caller())
    }

    /// 0 below 0, 1 above, and `values` at 0.
    #[track_caller]
    pub fn heaviside(&self, values: impl Into<Argument>) -> Result<Tensor> {
        let write = |b: &mut GraphBuilder, x: &NodeId, y: &NodeId| {
            let dtype = b.ty(x).dtype;
            let above = build::compare_scalar(b, kiln_ir::CompareOp::Gt, x, 0.0)?;
            let above = build::cast(b, &above, dtype)?;
            let zero = build::compare_scalar(b, kiln_ir::CompareOp::Eq, x, 0.0)?;
            build::select(b, &zero, y, &above)
        };
        self.joint("heaviside", values, false, write, &Source::caller())
    }

    /// Whether the bit of the sign is set: of negative numbers, −0 and negative NaN.
    #[track_caller]
    pub fn signbit(&self) -> Result<Tensor> {
        let write = |b: &mut GraphBuilder, inputs: &[NodeId]| build::sign_bit(b, &inputs[0]);
        eager::composite("signbit", &[], &[self], write, &Source::caller())
    }

    /// Rounds to so many decimals, or with a negative number to tens, hundreds and so on, ties to even.
    #[track_caller]
    pub fn round_decimals(&self, decimals: i32) -> Result<Tensor> {
        let write = |b: &mut GraphBuilder, x: &NodeId| build::round_decimals(b, x, decimals);
        self.activation("round_decimals", &[i64::from(decimals).into()], write, &Source::caller())
    }

    /// Replaces NaN and the infinities by numbers; `None` is 0 for NaN and the largest number of the dtype for infinities.
    #[track_caller]
    pub fn nan_to_num(&self, nan: Option<f64>, positive: Option<f64>, negative: Option<f64>) -> Result<Tensor> {
        let at = Source::caller();
        if !self.dtype().is_float() {
            return Ok(self.clone());
        }
        let largest = match self.dtype() {
            DType::F64 => f64::MAX,
            DType::F16 => 65504.0,
            DType::Bf16 => half::bf16::MAX.to_f64(),
            _ => f64::from(f32::MAX),
        };
        let (nan, positive, negative) = (nan.unwrap_or(0.0), positive.unwrap_or(largest), negative.unwrap_or(-largest));
        let write = |b: &mut GraphBuilder, x: &NodeId| build::nan_to_num(b, x, nan, positive, negative);
        self.activation("nan_to_num", &[nan.into(), positive.into(), negative.into()], write, &at)
    }

    /// `self + value · x · y`, in one kernel.
    #[track_caller]
    pub fn addcmul(&self, x: &Tensor, y: &Tensor, value: f64) -> Result<Tensor> {
        self.added("addcmul", [x, y], value, build::mul, &Source::caller())
    }

    /// `self + value · x / y`, in one kernel.
    #[track_caller]
    pub fn addcdiv(&self, x: &Tensor, y: &Tensor, value: f64) -> Result<Tensor> {
        self.added("addcdiv", [x, y], value, build::div, &Source::caller())
    }

    fn added(
        &self,
        name: &'static str,
        [x, y]: [&Tensor; 2],
        value: f64,
        combine: fn(&mut GraphBuilder, &NodeId, &NodeId) -> Result<NodeId, kiln_ir::Error>,
        at: &Source,
    ) -> Result<Tensor> {
        // A quotient is a float; sums of products of integers are integers.
        let common = promote(&[self.into(), x.into(), y.into()]);
        let whole = name == "addcmul" && common.is_int() && common != DType::Bool;
        if whole && value.fract() != 0.0 {
            let (name, expected, at) = ("value", "of integers it has to be whole", at.clone());
            return Err(Error::BadArgument { op: "addcmul", name, value: value.into(), expected, at });
        }
        let dtype = if whole { common } else { to_float(common) };
        let write = |b: &mut GraphBuilder, inputs: &[NodeId]| {
            let wide = if whole { dtype } else { dtype.compute_type() };
            let mut cast = Vec::with_capacity(3);
            for input in inputs {
                cast.push(build::cast(b, input, wide)?);
            }
            let both = combine(b, &cast[1], &cast[2])?;
            let scaled = build::mul_scalar(b, &both, value)?;
            let sum = build::add(b, &cast[0], &scaled)?;
            build::cast(b, &sum, dtype)
        };
        eager::composite(name, &[dtype.into(), value.into()], &[self, x, y], write, at)
    }

    /// x where x > 0, slope · x elsewhere, with one learned slope, or one for each position of axis 1.
    #[track_caller]
    pub fn prelu(&self, slope: &Tensor) -> Result<Tensor> {
        let at = Source::caller();
        let (this, slope) = (&self.autocast("prelu", &at)?, &slope.autocast("prelu", &at)?);
        this.same_dtype("prelu", slope, &at)?;
        let slope = match (slope.elements(), self.rank()) {
            (1, _) | (_, 0 | 1) => slope.reshape_to(vec![], &at)?,
            (_, rank) => slope
                .reshape_to([slope.extent(0)].into_iter().chain(vec![crate::Dim::plain(1); rank - 2]).collect(), &at)?,
        };
        let write = |b: &mut GraphBuilder, x: &NodeId, slope: &NodeId| {
            let above = build::compare_scalar(b, kiln_ir::CompareOp::Gt, x, 0.0)?;
            let scaled = build::mul(b, x, slope)?;
            build::select(b, &above, x, &scaled)
        };
        this.joint("prelu", &slope, true, write, &at)
    }

    fn with_numbers(
        &self,
        name: &'static str,
        numbers: &[f64],
        write: impl Fn(&mut GraphBuilder, &NodeId) -> Result<NodeId, kiln_ir::Error>,
        at: &Source,
    ) -> Result<Tensor> {
        let params: Vec<Param> = numbers.iter().map(|&n| n.into()).collect();
        self.activation(name, &params, write, at)
    }

    /// max(0, x) + min(0, α·(e^(x/α) − 1)).
    #[track_caller]
    pub fn celu(&self, alpha: f64) -> Result<Tensor> {
        self.with_numbers("celu", &[alpha], |b, x| build::celu(b, x, alpha), &Source::caller())
    }

    /// x between `low` and `high`.
    #[track_caller]
    pub fn hardtanh(&self, low: f64, high: f64) -> Result<Tensor> {
        let write = |b: &mut GraphBuilder, x: &NodeId| build::clamp(b, x, Some(low), Some(high));
        self.with_numbers("hardtanh", &[low, high], write, &Source::caller())
    }

    /// x where x > `limit` or is NaN, `value` elsewhere.
    #[track_caller]
    pub fn threshold(&self, limit: f64, value: f64) -> Result<Tensor> {
        let write = |b: &mut GraphBuilder, x: &NodeId| build::threshold(b, x, limit, value);
        self.with_numbers("threshold", &[limit, value], write, &Source::caller())
    }

    /// x where |x| > λ, 0 elsewhere.
    #[track_caller]
    pub fn hardshrink(&self, lambda: f64) -> Result<Tensor> {
        self.with_numbers("hardshrink", &[lambda], |b, x| build::hardshrink(b, x, lambda), &Source::caller())
    }

    /// x moved by λ towards 0, where it stays.
    #[track_caller]
    pub fn softshrink(&self, lambda: f64) -> Result<Tensor> {
        self.with_numbers("softshrink", &[lambda], |b, x| build::softshrink(b, x, lambda), &Source::caller())
    }

    /// ln(x / (1 − x)), x first moved into ε…1 − ε if there is one.
    #[track_caller]
    pub fn logit(&self, epsilon: Option<f64>) -> Result<Tensor> {
        let key = [epsilon.is_some() as u8 as f64, epsilon.unwrap_or(0.0)];
        self.with_numbers("logit", &key, |b, x| build::logit(b, x, epsilon), &Source::caller())
    }

    /// ln(1 + e^(βx)) / β, linear where βx is above a threshold.
    #[track_caller]
    pub fn softplus_with(&self, beta: f64, threshold: f64) -> Result<Tensor> {
        let write = |b: &mut GraphBuilder, x: &NodeId| build::softplus(b, x, beta, threshold);
        self.with_numbers("softplus", &[beta, threshold], write, &Source::caller())
    }
}

macro_rules! activations {
    ($($(#[$doc:meta])* $name:ident = $build:expr;)*) => {
        impl Tensor { $(
            $(#[$doc])*
            #[track_caller]
            pub fn $name(&self) -> Result<Tensor> {
                self.activation(stringify!($name), &[], $build as Write, &Source::caller())
            }
        )* }
    };
}

activations! {
    /// Logarithm to base 10.
    log10 = build::log10;
    /// 1 − erf(x), without loss for large x.
    erfc = build::erfc;
    /// The derivative of ln Γ(x).
    digamma = build::digamma_with_poles;
    /// sin(πx) / (πx), 1 at 0.
    sinc = build::sinc;
    /// x · sigmoid(1.702·x), an approximation of gelu.
    quick_gelu = build::quick_gelu;
    /// x − tanh(x).
    tanhshrink = tanhshrink;
    /// The part after the decimal point, with the sign of x.
    frac = frac;
    /// Degrees as radians.
    deg2rad = |b, x| build::mul_scalar(b, x, std::f64::consts::PI / 180.0);
    /// Radians as degrees.
    rad2deg = |b, x| build::mul_scalar(b, x, 180.0 / std::f64::consts::PI);
}

fn tanhshrink(b: &mut GraphBuilder, x: &NodeId) -> Result<NodeId, kiln_ir::Error> {
    let y = build::tanh(b, x)?;
    build::sub(b, x, &y)
}

fn frac(b: &mut GraphBuilder, x: &NodeId) -> Result<NodeId, kiln_ir::Error> {
    let whole = build::trunc(b, x)?;
    build::sub(b, x, &whole)
}
