//! Pointwise operations: arithmetic, comparisons, functions, casts. Operands broadcast by NumPy's rule and are promoted by
//! [`crate::promotion`]'s.

use crate::tensor::autocast;
use crate::tensor::eager::{self, Param};
use crate::tensor::promotion::{Operand, promote, to_float};
use crate::tensor::shape;
use crate::{DType, Dim, Error, Float, Number, Result, Tensor};
use kiln_ir::build::{self, Emit, GraphBuilder};
use kiln_ir::{BinaryOp, CompareOp, NodeId, Op, Source, UnaryOp};

/// The second operand of a binary operation: a tensor or a plain number.
#[derive(Debug, Clone)]
pub enum Argument {
    /// A tensor.
    Tensor(Tensor),
    /// A number.
    Number(Number),
    /// A size, as an integer.
    Size(Dim),
    /// A number that was read, as a float.
    Float(Float),
}

impl From<Dim> for Argument {
    fn from(size: Dim) -> Argument {
        Argument::Size(size)
    }
}

impl From<Float> for Argument {
    fn from(number: Float) -> Argument {
        number.known().map_or(Argument::Float(number), |value| Argument::Number(Number::Float(value)))
    }
}

impl From<&Float> for Argument {
    fn from(number: &Float) -> Argument {
        number.clone().into()
    }
}

impl From<Tensor> for Argument {
    fn from(t: Tensor) -> Argument {
        Argument::Tensor(t)
    }
}

impl From<&Tensor> for Argument {
    fn from(t: &Tensor) -> Argument {
        Argument::Tensor(t.clone())
    }
}

macro_rules! argument_from_numbers {
    ($($type:ty)*) => { $(
        impl From<$type> for Argument {
            fn from(v: $type) -> Argument {
                Argument::Number(v.into())
            }
        }
    )* };
}
argument_from_numbers! { f32 f64 half::f16 half::bf16 i8 i16 i32 i64 u8 u32 usize bool Number }

impl Argument {
    pub(crate) fn operand(&self) -> Operand {
        match self {
            Argument::Tensor(t) => t.into(),
            Argument::Number(n) => Operand::Number(*n),
            Argument::Size(size) => Operand::Number(Number::Int(size.hint())),
            // Its kind alone counts.
            Argument::Float(_) => Operand::Number(Number::Float(0.0)),
        }
    }

    /// The tensor, or the number as one of a dtype.
    pub(crate) fn tensor(&self, dtype: DType, like: &Tensor, at: &Source) -> Result<Tensor> {
        match self {
            Argument::Tensor(t) => Ok(t.clone()),
            Argument::Number(n) => Tensor::scalar_at(n.to_scalar(dtype), like.device(), at),
            Argument::Size(size) => size.tensor(dtype, like.device(), at),
            Argument::Float(number) => number.tensor(dtype, like.device(), at),
        }
    }
}

/// Runs `op` on operands cast to `dtype` and broadcast to one shape, in one kernel.
fn run(name: &'static str, op: Op, operands: &[&Tensor], casts: &[DType], at: &Source) -> Result<Tensor> {
    let alike = |t: &&Tensor| !t.is_symbolic() && t.hint() == operands[0].hint();
    let spread: Vec<Tensor> = if operands.iter().all(alike) {
        operands.iter().map(|&t| t.clone()).collect()
    } else {
        let mut common = operands[0].sizes();
        for operand in &operands[1..] {
            common = shape::broadcast(name, &common, &operand.sizes(), at)?;
        }
        operands.iter().map(|t| t.broadcast_at(name, &common, at)).collect::<Result<_>>()?
    };
    let spread: Vec<&Tensor> = spread.iter().collect();
    if operands.iter().zip(casts).all(|(t, &dtype)| t.dtype() == dtype) {
        return eager::primitive(&op, &spread, at);
    }
    let write = |b: &mut GraphBuilder, inputs: &[NodeId]| {
        let mut cast = Vec::with_capacity(inputs.len());
        for (input, &dtype) in inputs.iter().zip(casts) {
            cast.push(build::cast(b, input, dtype)?);
        }
        b.emit(op.clone(), &cast)
    };
    let params: Vec<Param> = casts.iter().map(|&d| d.into()).collect();
    eager::composite(name, &params, &spread, write, at)
}

/// A quotient or a remainder in `dtype`; `checked` if the divisor may be an integer zero.
fn divided(
    name: &'static str,
    operands: [&Tensor; 2],
    dtype: DType,
    checked: bool,
    write: impl Fn(&mut GraphBuilder, &NodeId, &NodeId) -> Result<NodeId, kiln_ir::Error>,
    at: &Source,
) -> Result<Tensor> {
    shape::broadcast(name, &operands[0].sizes(), &operands[1].sizes(), at)?;
    let write = |b: &mut GraphBuilder, inputs: &[NodeId]| {
        let x = build::cast(b, &inputs[0], dtype)?;
        let y = build::cast(b, &inputs[1], dtype)?;
        let y = if checked { build::check_divisor(b, &y)? } else { y };
        write(b, &x, &y)
    };
    eager::composite(name, &[dtype.into(), checked.into()], &operands, write, at)
}

impl Tensor {
    /// Converts to another dtype. Floats become integers by truncation and saturation, integers wrap, anything but zero is
    /// true. Converting to its own dtype returns the tensor itself.
    ///
    /// ```
    /// use kiln::{DType, Device, Tensor};
    /// let x = Tensor::from_vec(vec![1.9f32, -1.9], 2, Device::Cpu)?;
    /// assert_eq!(x.to_dtype(DType::I64)?.to_vec::<i64>()?, [1, -1]);
    /// # Ok::<(), kiln::Error>(())
    /// ```
    #[track_caller]
    pub fn to_dtype(&self, dtype: DType) -> Result<Tensor> {
        self.to_dtype_at(dtype, &Source::caller())
    }

    pub(crate) fn to_dtype_at(&self, dtype: DType, at: &Source) -> Result<Tensor> {
        if dtype == self.dtype() { Ok(self.unchanged()) } else { eager::primitive(&Op::Cast(dtype), &[self], at) }
    }

    /// Reinterprets the bits as another dtype of the same width.
    #[track_caller]
    pub fn bitcast(&self, dtype: DType) -> Result<Tensor> {
        let at = Source::caller();
        if dtype.size_in_bits() != self.dtype().size_in_bits() {
            return Err(Error::DTypeMismatch { op: "bitcast", lhs: self.dtype(), rhs: dtype, at });
        }
        if self.is_traced() {
            return self.record_view(Op::Bitcast(dtype), &at);
        }
        Ok(Tensor::from_parts(self.buffer().clone(), self.layout().clone(), dtype))
    }

    pub(crate) fn binary(
        &self,
        name: &'static str,
        op: BinaryOp,
        other: Argument,
        float: bool,
        at: &Source,
    ) -> Result<Tensor> {
        if autocast::current().is_some() && op == BinaryOp::Pow {
            return self.power_in_region(name, other, at);
        }
        self.plain_binary(name, op, other, float, at)
    }

    /// A power inside of a region of [`crate::autocast`].
    #[cold]
    fn power_in_region(&self, name: &'static str, other: Argument, at: &Source) -> Result<Tensor> {
        let other = match other {
            Argument::Tensor(tensor) => Argument::Tensor(tensor.autocast(name, at)?),
            number => number,
        };
        self.autocast(name, at)?.plain_binary(name, BinaryOp::Pow, other, true, at)
    }

    fn plain_binary(
        &self,
        name: &'static str,
        op: BinaryOp,
        other: Argument,
        float: bool,
        at: &Source,
    ) -> Result<Tensor> {
        let dtype = promote(&[self.into(), other.operand()]);
        let dtype = if float { to_float(dtype) } else { dtype };
        if matches!(op, BinaryOp::Div | BinaryOp::Rem) && dtype.is_int() {
            return self.pair(name, other, |b, x, y| build::binary(b, op, x, y), at);
        }
        let other = other.tensor(dtype, self, at)?;
        run(name, Op::Binary(op), &[self, &other], &[dtype; 2], at)
    }

    /// As [`Tensor::binary`] with the tensor on the right.
    pub(crate) fn binary_reversed(
        &self,
        name: &'static str,
        op: BinaryOp,
        left: Argument,
        float: bool,
        at: &Source,
    ) -> Result<Tensor> {
        let dtype = promote(&[self.into(), left.operand()]);
        let dtype = if float { to_float(dtype) } else { dtype };
        let left = left.tensor(dtype, self, at)?;
        if matches!(op, BinaryOp::Div | BinaryOp::Rem) && dtype.is_int() {
            return divided(name, [&left, self], dtype, true, |b, x, y| build::binary(b, op, x, y), at);
        }
        run(name, Op::Binary(op), &[&left, self], &[dtype; 2], at)
    }

    fn compare(&self, op: CompareOp, other: Argument, at: &Source) -> Result<Tensor> {
        let dtype = promote(&[self.into(), other.operand()]);
        let other = other.tensor(dtype, self, at)?;
        run(op.name(), Op::Compare(op), &[self, &other], &[dtype; 2], at)
    }

    pub(crate) fn unary(&self, op: UnaryOp, float: bool, at: &Source) -> Result<Tensor> {
        if autocast::current().is_some() {
            let x = self.autocast(op.name(), at)?;
            return autocast::within(None, || x.unary(op, float, at));
        }
        let dtype = if float { to_float(self.dtype()) } else { self.dtype() };
        run(op.name(), Op::Unary(op), &[self], &[dtype], at)
    }

    /// Returns `then` where `self`, a bool tensor, is true, and `otherwise` elsewhere.
    ///
    /// ```
    /// use kiln::{DType, Device, Tensor};
    /// let x = Tensor::arange(4, DType::F32, Device::Cpu)?;
    /// let y = x.gt(1.0)?.where_(&x, 0.0)?;
    /// assert_eq!(y.to_vec::<f32>()?, [0., 0., 2., 3.]);
    /// # Ok::<(), kiln::Error>(())
    /// ```
    #[track_caller]
    pub fn where_(&self, then: impl Into<Argument>, otherwise: impl Into<Argument>) -> Result<Tensor> {
        let at = Source::caller();
        self.expect_bool("where_", &at)?;
        let (then, otherwise) = (then.into(), otherwise.into());
        let dtype = promote(&[then.operand(), otherwise.operand()]);
        let (then, otherwise) = (then.tensor(dtype, self, &at)?, otherwise.tensor(dtype, self, &at)?);
        run("where_", Op::Select, &[self, &then, &otherwise], &[DType::Bool, dtype, dtype], &at)
    }

    /// Returns `value` where `mask` is true and the tensor elsewhere; keeps the tensor's dtype.
    #[track_caller]
    pub fn masked_fill(&self, mask: &Tensor, value: impl Into<Number>) -> Result<Tensor> {
        let at = Source::caller();
        mask.expect_bool("masked_fill", &at)?;
        let value = Tensor::scalar_at(value.into().to_scalar(self.dtype()), self.device(), &at)?;
        let dtypes = [DType::Bool, self.dtype(), self.dtype()];
        run("masked_fill", Op::Select, &[mask, &value, self], &dtypes, &at)
    }

    pub(crate) fn expect_bool(&self, op: &'static str, at: &Source) -> Result<()> {
        match self.dtype() {
            DType::Bool => Ok(()),
            got => Err(Error::WrongDType { op, got, expected: "a bool mask", at: at.clone() }),
        }
    }

    /// Clamps elements to `low..=high`; NaN stays NaN. For one bound see [`Tensor::maximum`] and [`Tensor::minimum`].
    #[track_caller]
    pub fn clamp(&self, low: impl Into<Argument>, high: impl Into<Argument>) -> Result<Tensor> {
        let at = Source::caller();
        let raised = self.binary("clamp", BinaryOp::Max, low.into(), false, &at)?;
        raised.binary("clamp", BinaryOp::Min, high.into(), false, &at)
    }

    /// Raises `self` to the power of a number or tensor. An integer tensor to an integer number is exact; to an integer
    /// tensor it is computed in f64.
    #[track_caller]
    pub fn pow(&self, exponent: impl Into<Argument>) -> Result<Tensor> {
        let at = Source::caller();
        let exponent = exponent.into();
        let dtype = promote(&[self.into(), exponent.operand()]);
        if dtype.is_float() {
            return self.binary("pow", BinaryOp::Pow, exponent, true, &at);
        }
        match exponent {
            Argument::Number(Number::Float(_)) | Argument::Float(_) => {
                self.binary("pow", BinaryOp::Pow, exponent, true, &at)
            }
            Argument::Number(number) => self.integer_power(number.as_f64() as i64, dtype, &at),
            Argument::Size(size) => self.integer_power(size.number(&at), dtype, &at),
            Argument::Tensor(exponent) => {
                let wide = self.to_dtype_at(DType::F64, &at)?;
                wide.binary("pow", BinaryOp::Pow, exponent.into(), true, &at)?.to_dtype_at(dtype, &at)
            }
        }
    }

    /// By squaring.
    fn integer_power(&self, exponent: i64, dtype: DType, at: &Source) -> Result<Tensor> {
        let Ok(mut rest) = u64::try_from(exponent) else {
            let (op, name, expected) = ("pow", "exponent", "an integer has only powers of 0 and above");
            return Err(Error::BadArgument { op, name, value: exponent.into(), expected, at: at.clone() });
        };
        let base = self.to_dtype_at(dtype, at)?;
        let (mut power, mut result) = (base.clone(), None::<Tensor>);
        while rest > 0 {
            if rest & 1 == 1 {
                result = Some(match result {
                    Some(r) => r.binary("pow", BinaryOp::Mul, (&power).into(), false, at)?,
                    None => power.clone(),
                });
            }
            rest >>= 1;
            if rest > 0 {
                power = power.binary("pow", BinaryOp::Mul, (&power).into(), false, at)?;
            }
        }
        match result {
            Some(result) => Ok(result),
            None => Tensor::scalar_at(Number::Int(1).to_scalar(dtype), self.device(), at)?.broadcast_at(
                "pow",
                &self.sizes(),
                at,
            ),
        }
    }

    /// Remainder with the sign of the divisor, as Python's `%`; see [`Tensor::fmod`] for the other one.
    ///
    /// ```
    /// use kiln::{Device, Tensor};
    /// let x = Tensor::from_vec(vec![-7i64, 7], 2, Device::Cpu)?;
    /// assert_eq!(x.remainder(3)?.to_vec::<i64>()?, [2, 1]);
    /// assert_eq!(x.fmod(3)?.to_vec::<i64>()?, [-1, 1]);
    /// # Ok::<(), kiln::Error>(())
    /// ```
    #[track_caller]
    pub fn remainder(&self, divisor: impl Into<Argument>) -> Result<Tensor> {
        self.pair("remainder", divisor.into(), build::remainder, &Source::caller())
    }

    /// Quotient rounded towards −∞.
    #[track_caller]
    pub fn div_floor(&self, divisor: impl Into<Argument>) -> Result<Tensor> {
        self.pair("div_floor", divisor.into(), build::floor_div, &Source::caller())
    }

    /// A quotient or a remainder of two promoted operands, which broadcasts them itself. An integer divisor of zero is an
    /// error: a number's at once, an element's at run time.
    fn pair(
        &self,
        name: &'static str,
        other: Argument,
        write: impl Fn(&mut GraphBuilder, &NodeId, &NodeId) -> Result<NodeId, kiln_ir::Error>,
        at: &Source,
    ) -> Result<Tensor> {
        let dtype = promote(&[self.into(), other.operand()]);
        let checked = match &other {
            Argument::Number(number) if dtype.is_int() && number.to_scalar(dtype).as_i64() == 0 => {
                return Err(Error::DivisionByZero { op: name.into(), at: at.clone() });
            }
            Argument::Number(_) => false,
            Argument::Tensor(_) | Argument::Size(_) | Argument::Float(_) => dtype.is_int(),
        };
        let other = other.tensor(dtype, self, at)?;
        divided(name, [self, &other], dtype, checked, write, at)
    }

    /// Quotient rounded towards zero.
    #[track_caller]
    pub fn div_trunc(&self, divisor: impl Into<Argument>) -> Result<Tensor> {
        let at = Source::caller();
        let divisor = divisor.into();
        let quotient = self.binary("div_trunc", BinaryOp::Div, divisor, false, &at)?;
        if quotient.dtype().is_float() { quotient.unary(UnaryOp::Trunc, true, &at) } else { Ok(quotient) }
    }

    /// True where an element is +∞ or −∞.
    #[track_caller]
    pub fn is_inf(&self) -> Result<Tensor> {
        let at = Source::caller();
        let size = if self.dtype().is_float() { self.unary(UnaryOp::Abs, true, &at)? } else { self.clone() };
        size.compare(CompareOp::Eq, f64::INFINITY.into(), &at)
    }

    /// True where an element is neither infinite nor NaN.
    #[track_caller]
    pub fn is_finite(&self) -> Result<Tensor> {
        let at = Source::caller();
        let size = if self.dtype().is_float() { self.unary(UnaryOp::Abs, true, &at)? } else { self.clone() };
        size.compare(CompareOp::Lt, f64::INFINITY.into(), &at)
    }

    /// True where an element is NaN.
    #[track_caller]
    pub fn is_nan(&self) -> Result<Tensor> {
        self.unary(UnaryOp::IsNan, true, &Source::caller())
    }

    /// True where neither side is zero.
    #[track_caller]
    pub fn logical_and(&self, other: &Tensor) -> Result<Tensor> {
        self.logical("logical_and", BinaryOp::And, other, &Source::caller())
    }

    /// True where either side is not zero.
    #[track_caller]
    pub fn logical_or(&self, other: &Tensor) -> Result<Tensor> {
        self.logical("logical_or", BinaryOp::Or, other, &Source::caller())
    }

    /// True where one side is zero and the other is not.
    #[track_caller]
    pub fn logical_xor(&self, other: &Tensor) -> Result<Tensor> {
        self.logical("logical_xor", BinaryOp::Xor, other, &Source::caller())
    }

    /// True where an element is zero.
    #[track_caller]
    pub fn logical_not(&self) -> Result<Tensor> {
        let at = Source::caller();
        self.to_dtype_at(DType::Bool, &at)?.unary(UnaryOp::Not, false, &at)
    }

    fn logical(&self, name: &'static str, op: BinaryOp, other: &Tensor, at: &Source) -> Result<Tensor> {
        run(name, Op::Binary(op), &[self, other], &[DType::Bool; 2], at)
    }

    /// `self + weight · (end − self)`.
    #[track_caller]
    pub fn lerp(&self, end: &Tensor, weight: impl Into<Argument>) -> Result<Tensor> {
        let at = Source::caller();
        let way = end.binary("lerp", BinaryOp::Sub, self.into(), true, &at)?;
        let part = way.binary("lerp", BinaryOp::Mul, weight.into(), true, &at)?;
        self.binary("lerp", BinaryOp::Add, part.into(), true, &at)
    }

    /// Returns whether every element is within `absolute + relative · |other|` of the other tensor's; NaN is close to
    /// nothing. PyTorch's defaults are 1e-5 relative and 1e-8 absolute.
    ///
    /// ```
    /// use kiln::{Device, Tensor};
    /// let x = Tensor::from_vec(vec![1f32, 2.], 2, Device::Cpu)?;
    /// assert!(x.allclose(&(&x + 1e-7)?, 1e-5, 1e-8)?);
    /// assert!(!x.allclose(&(&x + 0.1)?, 1e-5, 1e-8)?);
    /// # Ok::<(), kiln::Error>(())
    /// ```
    #[track_caller]
    pub fn allclose(&self, other: &Tensor, relative: f64, absolute: f64) -> Result<bool> {
        let at = Source::caller();
        let (x, y) = (self.to_dtype_at(DType::F64, &at)?, other.to_dtype_at(DType::F64, &at)?);
        let same = x.compare(CompareOp::Eq, (&y).into(), &at)?;
        let distance = x.binary("allclose", BinaryOp::Sub, (&y).into(), false, &at)?.unary(UnaryOp::Abs, false, &at)?;
        let room = y.unary(UnaryOp::Abs, false, &at)?;
        let room = room.binary("allclose", BinaryOp::Mul, relative.into(), false, &at)?;
        let room = room.binary("allclose", BinaryOp::Add, absolute.into(), false, &at)?;
        // An infinite y makes room for everything; only the same infinity is close to it.
        let finite = distance.compare(CompareOp::Lt, f64::INFINITY.into(), &at)?;
        let near = distance.compare(CompareOp::Le, room.into(), &at)?.logical_and(&finite)?;
        near.logical_or(&same)?.all(..)?.item()
    }
}

macro_rules! binaries {
    ($($(#[$doc:meta])* $name:ident, $op:ident, $float:expr;)*) => {
        impl Tensor { $(
            $(#[$doc])*
            #[track_caller]
            pub fn $name(&self, other: impl Into<Argument>) -> Result<Tensor> {
                self.binary(stringify!($name), BinaryOp::$op, other.into(), $float, &Source::caller())
            }
        )* }
    };
}

binaries! {
    /// Sum.
    add, Add, false;
    /// Difference.
    sub, Sub, false;
    /// Product.
    mul, Mul, false;
    /// Quotient; integers become floats. [`Tensor::div_floor`] and [`Tensor::div_trunc`] give integers.
    div, Div, true;
    /// Remainder with the sign of the dividend, as Rust's and C's `%`.
    fmod, Rem, false;
    /// The larger of each pair; NaN if either is.
    maximum, Max, false;
    /// The smaller of each pair; NaN if either is.
    minimum, Min, false;
    /// The angle of the point (x: other, y: self).
    atan2, Atan2, true;
    /// Bits that both have; *and* of bools.
    bitand, And, false;
    /// Bits that either has; *or* of bools.
    bitor, Or, false;
    /// Bits that one of them has; *exclusive or* of bools.
    bitxor, Xor, false;
    /// Bits moved left.
    shl, Shl, false;
    /// Bits moved right, keeping the sign.
    shr, Shr, false;
}

macro_rules! comparisons {
    ($($(#[$doc:meta])* $name:ident, $op:ident;)*) => {
        impl Tensor { $(
            $(#[$doc])*
            #[track_caller]
            pub fn $name(&self, other: impl Into<Argument>) -> Result<Tensor> {
                self.compare(CompareOp::$op, other.into(), &Source::caller())
            }
        )* }
    };
}

comparisons! {
    /// Where `self = other`, as a bool tensor.
    eq, Eq;
    /// Where `self ≠ other`.
    ne, Ne;
    /// Where `self < other`.
    lt, Lt;
    /// Where `self ≤ other`.
    le, Le;
    /// Where `self > other`.
    gt, Gt;
    /// Where `self ≥ other`.
    ge, Ge;
}

macro_rules! unaries {
    ($($(#[$doc:meta])* $name:ident, $op:ident, $float:expr;)*) => {
        impl Tensor { $(
            $(#[$doc])*
            #[track_caller]
            pub fn $name(&self) -> Result<Tensor> {
                self.unary(UnaryOp::$op, $float, &Source::caller())
            }
        )* }
    };
}

unaries! {
    /// −x.
    neg, Neg, false;
    /// |x|.
    abs, Abs, false;
    /// −1, 0 or 1.
    sign, Sign, false;
    /// √x.
    sqrt, Sqrt, true;
    /// 1/√x.
    rsqrt, Rsqrt, true;
    /// 1/x.
    recip, Recip, true;
    /// eˣ.
    exp, Exp, true;
    /// 2ˣ.
    exp2, Exp2, true;
    /// eˣ − 1 without loss near 0.
    expm1, Expm1, true;
    /// Natural logarithm.
    log, Log, true;
    /// Logarithm to base 2.
    log2, Log2, true;
    /// ln(1 + x) without loss near 0.
    log1p, Log1p, true;
    /// Sine.
    sin, Sin, true;
    /// Cosine.
    cos, Cos, true;
    /// Tangent.
    tan, Tan, true;
    /// Arc sine.
    asin, Asin, true;
    /// Arc cosine.
    acos, Acos, true;
    /// Arc tangent.
    atan, Atan, true;
    /// Hyperbolic tangent.
    tanh, Tanh, true;
    /// Error function.
    erf, Erf, true;
    /// Inverse error function.
    erfinv, ErfInv, true;
    /// ln|Γ(x)|.
    lgamma, Lgamma, true;
    /// Bitwise not of integers, logical not of bools.
    not, Not, false;
}

macro_rules! roundings {
    ($($(#[$doc:meta])* $name:ident, $op:ident;)*) => {
        impl Tensor { $(
            $(#[$doc])*
            #[track_caller]
            pub fn $name(&self) -> Result<Tensor> {
                // Integers are whole already.
                if self.dtype().is_int() { Ok(self.clone()) } else { self.unary(UnaryOp::$op, true, &Source::caller()) }
            }
        )* }
    };
}

roundings! {
    /// Towards −∞.
    floor, Floor;
    /// Towards +∞.
    ceil, Ceil;
    /// To the nearest integer, ties to even.
    round, Round;
    /// Towards zero.
    trunc, Trunc;
}
