//! Pointwise functions under their usual names, broadcasting, and those that take a few primitives.

use super::{Built, Emit, broadcast, broadcast_shapes, broadcast_to, fail, narrow, reshape};
pub use crate::table::{binary_functions::*, unary_functions::*};
use crate::{BinaryOp, CompareOp, DType, Dim, HostTensor, Op, Scalar, TensorType, TypeError};

/// A primitive of two operands, broadcast to one shape.
#[track_caller]
pub fn binary<E: Emit>(e: &mut E, op: BinaryOp, x: &E::Value, y: &E::Value) -> Built<E> {
    let (x, y) = broadcast(e, x, y)?;
    e.emit(Op::Binary(op), &[x, y])
}

/// A comparison of two operands, broadcast to one shape.
#[track_caller]
pub fn compare<E: Emit>(e: &mut E, op: CompareOp, x: &E::Value, y: &E::Value) -> Built<E> {
    let (x, y) = broadcast(e, x, y)?;
    e.emit(Op::Compare(op), &[x, y])
}

/// x where the condition holds, y elsewhere; all three broadcast.
#[track_caller]
pub fn select<E: Emit>(e: &mut E, condition: &E::Value, x: &E::Value, y: &E::Value) -> Built<E> {
    let (x, y) = broadcast(e, x, y)?;
    let shape = broadcast_shapes(e, condition, &x)?;
    let condition = broadcast_to(e, condition, &shape)?;
    let x = broadcast_to(e, &x, &shape)?;
    let y = broadcast_to(e, &y, &shape)?;
    e.emit(Op::Select, &[condition, x, y])
}

/// Converted; nothing is emitted when the dtype is the same.
#[track_caller]
pub fn cast<E: Emit>(e: &mut E, x: &E::Value, dtype: DType) -> Built<E> {
    if e.ty(x).dtype == dtype {
        return Ok(x.clone());
    }
    e.emit(Op::Cast(dtype), std::slice::from_ref(x))
}

/// Short floats as f32, the type to compute in, and the dtype to go back to.
#[track_caller]
pub(crate) fn widen<E: Emit>(e: &mut E, x: &E::Value) -> Result<(E::Value, DType), E::Error> {
    let dtype = e.ty(x).dtype;
    let wide = if dtype.is_float() { dtype.compute_type() } else { dtype };
    Ok((cast(e, x, wide)?, dtype))
}

/// One value in a shape.
#[track_caller]
pub fn full<E: Emit>(e: &mut E, value: Scalar, shape: &[Dim]) -> Built<E> {
    e.emit(Op::Full { value, shape: shape.to_vec() }, &[])
}

/// One value in the dtype and shape of x.
#[track_caller]
pub fn full_like<E: Emit>(e: &mut E, x: &E::Value, value: f64) -> Built<E> {
    let ty = e.ty(x);
    full(e, Scalar::float(ty.dtype, value), &ty.shape)
}

/// The index along an axis of a shape.
#[track_caller]
pub fn iota<E: Emit>(e: &mut E, dtype: DType, shape: &[Dim], axis: usize) -> Built<E> {
    e.emit(Op::Iota { dtype, shape: shape.to_vec(), axis }, &[])
}

/// A vector of constant integers.
#[track_caller]
pub fn constant_i64<E: Emit>(e: &mut E, values: &[i64]) -> Built<E> {
    let tensor = HostTensor::from_slice(&[values.len()], values).expect("a slice that exists fits into memory");
    e.emit(Op::Constant(tensor.to_literal()), &[])
}

/// A constant tensor of rounded floats.
#[track_caller]
pub fn constant_f64<E: Emit>(e: &mut E, dtype: DType, shape: &[usize], values: &[f64]) -> Built<E> {
    match HostTensor::from_f64(dtype, shape, values) {
        Ok(tensor) => e.emit(Op::Constant(tensor.to_literal()), &[]),
        Err(_) => {
            let ty = TensorType::fixed(dtype, shape);
            let what = "another number of elements than values";
            fail::<_, E>("constant", TypeError::BadAttribute { what, ty })
        }
    }
}

/// A size as a number that can be computed with: a tensor of rank 0. A symbolic size is the last element of an iota, which
/// costs a kernel no memory.
#[track_caller]
pub fn size_value<E: Emit>(e: &mut E, size: &Dim, dtype: DType) -> Built<E> {
    if let Some(n) = size.as_const() {
        return full(e, Scalar::int(dtype, n), &[]);
    }
    let counted = iota(e, DType::I64, &[size + 1], 0)?;
    let last = narrow(e, &counted, 0, size.clone(), 1)?;
    let last = reshape(e, &last, &[])?;
    cast(e, &last, dtype)
}

/// x + a number of its dtype.
#[track_caller]
pub fn add_scalar<E: Emit>(e: &mut E, x: &E::Value, y: f64) -> Built<E> {
    binary_scalar(e, BinaryOp::Add, x, y)
}

/// x − a number of its dtype.
#[track_caller]
pub fn sub_scalar<E: Emit>(e: &mut E, x: &E::Value, y: f64) -> Built<E> {
    binary_scalar(e, BinaryOp::Sub, x, y)
}

/// x · a number of its dtype.
#[track_caller]
pub fn mul_scalar<E: Emit>(e: &mut E, x: &E::Value, y: f64) -> Built<E> {
    binary_scalar(e, BinaryOp::Mul, x, y)
}

/// x / a number of its dtype.
#[track_caller]
pub fn div_scalar<E: Emit>(e: &mut E, x: &E::Value, y: f64) -> Built<E> {
    binary_scalar(e, BinaryOp::Div, x, y)
}

/// A primitive of x and a number of its dtype.
#[track_caller]
pub fn binary_scalar<E: Emit>(e: &mut E, op: BinaryOp, x: &E::Value, y: f64) -> Built<E> {
    let y = full_like(e, x, y)?;
    e.emit(Op::Binary(op), &[x.clone(), y])
}

/// A comparison of x with a number of its dtype.
#[track_caller]
pub fn compare_scalar<E: Emit>(e: &mut E, op: CompareOp, x: &E::Value, y: f64) -> Built<E> {
    let y = full_like(e, x, y)?;
    e.emit(Op::Compare(op), &[x.clone(), y])
}

/// x to a constant power: squares, cubes, roots and reciprocals without `pow`. The power of an integer must be a whole number
/// that is not negative.
#[track_caller]
pub fn pow_scalar<E: Emit>(e: &mut E, x: &E::Value, y: f64) -> Built<E> {
    let float = e.ty(x).dtype.is_float();
    if y == 1.0 {
        return Ok(x.clone());
    } else if y == 2.0 {
        return mul(e, x, x);
    } else if y == 3.0 {
        let square = mul(e, x, x)?;
        return mul(e, &square, x);
    } else if float && y == 0.5 {
        return sqrt(e, x);
    } else if float && y == -0.5 {
        return rsqrt(e, x);
    } else if float && y == -1.0 {
        return recip(e, x);
    }
    if !float && y >= 0.0 && y.fract() == 0.0 && y <= f64::from(u32::MAX) {
        return whole_power(e, x, y as u32);
    }
    binary_scalar(e, BinaryOp::Pow, x, y)
}

/// x multiplied by itself, by squares of squares.
#[track_caller]
fn whole_power<E: Emit>(e: &mut E, x: &E::Value, mut power: u32) -> Built<E> {
    let mut y = full_like(e, x, 1.0)?;
    let mut square = x.clone();
    while power > 0 {
        if power & 1 == 1 {
            y = mul(e, &y, &square)?;
        }
        power >>= 1;
        if power > 0 {
            square = mul(e, &square, &square)?;
        }
    }
    Ok(y)
}

/// x kept between two bounds; NaN stays.
#[track_caller]
pub fn clamp<E: Emit>(e: &mut E, x: &E::Value, low: Option<f64>, high: Option<f64>) -> Built<E> {
    let mut y = x.clone();
    if let Some(low) = low {
        y = binary_scalar(e, BinaryOp::Max, &y, low)?;
    }
    if let Some(high) = high {
        y = binary_scalar(e, BinaryOp::Min, &y, high)?;
    }
    Ok(y)
}

/// x with a value where the mask holds; the mask broadcasts to x.
#[track_caller]
pub fn masked_fill<E: Emit>(e: &mut E, x: &E::Value, mask: &E::Value, value: f64) -> Built<E> {
    let fill = full_like(e, x, value)?;
    select(e, mask, &fill, x)
}

/// Where a remainder has another sign than its divisor, so that the quotient must go down by one.
#[track_caller]
fn rounds_down<E: Emit>(e: &mut E, rest: &E::Value, y: &E::Value) -> Built<E> {
    let some = compare_scalar(e, CompareOp::Ne, rest, 0.0)?;
    let rest_negative = compare_scalar(e, CompareOp::Lt, rest, 0.0)?;
    let y_negative = compare_scalar(e, CompareOp::Lt, y, 0.0)?;
    let differ = xor(e, &rest_negative, &y_negative)?;
    and(e, &some, &differ)
}

/// ⌊x / y⌋; an integer zero divisor gives 0, a float one what `x / y` gives.
#[track_caller]
pub fn floor_div<E: Emit>(e: &mut E, x: &E::Value, y: &E::Value) -> Built<E> {
    let (x, y) = broadcast(e, x, y)?;
    if !e.ty(&x).dtype.is_float() {
        let quotient = div(e, &x, &y)?;
        let rest = rem(e, &x, &y)?;
        let down = rounds_down(e, &rest, &y)?;
        let lower = sub_scalar(e, &quotient, 1.0)?;
        return select(e, &down, &lower, &quotient);
    }
    // Not floor(x / y): a quotient that rounds up to an integer would be one too large.
    let (wide_x, dtype) = widen(e, &x)?;
    let (wide_y, _) = widen(e, &y)?;
    let rest = rem(e, &wide_x, &wide_y)?;
    let whole = sub(e, &wide_x, &rest)?;
    let quotient = div(e, &whole, &wide_y)?;
    let nearest = round(e, &quotient)?;
    let down = rounds_down(e, &rest, &wide_y)?;
    let lower = sub_scalar(e, &nearest, 1.0)?;
    let floored = select(e, &down, &lower, &nearest)?;
    let zero = compare_scalar(e, CompareOp::Eq, &wide_y, 0.0)?;
    let infinite = div(e, &wide_x, &wide_y)?;
    let result = select(e, &zero, &infinite, &floored)?;
    cast(e, &result, dtype)
}

/// Remainder with the sign of y: x − y·⌊x / y⌋.
#[track_caller]
pub fn remainder<E: Emit>(e: &mut E, x: &E::Value, y: &E::Value) -> Built<E> {
    let (x, y) = broadcast(e, x, y)?;
    let rest = rem(e, &x, &y)?;
    let down = rounds_down(e, &rest, &y)?;
    let raised = add(e, &rest, &y)?;
    select(e, &down, &raised, &rest)
}

/// Hyperbolic sine, exact near 0 and up to the largest float.
#[track_caller]
pub fn sinh<E: Emit>(e: &mut E, x: &E::Value) -> Built<E> {
    let (x, dtype) = widen(e, x)?;
    let a = abs(e, &x)?;
    // Near 0 by expm1, which loses nothing there; far out by the square of a root, which does not overflow early.
    let near = clamp(e, &a, None, Some(1.0))?;
    let t = expm1(e, &near)?;
    let t1 = add_scalar(e, &t, 1.0)?;
    let ratio = div(e, &t, &t1)?;
    let near_sum = add(e, &t, &ratio)?;
    let near_value = mul_scalar(e, &near_sum, 0.5)?;
    let (grown, shrunk) = half_exponentials(e, &a)?;
    let far_value = sub(e, &grown, &shrunk)?;
    let far = compare_scalar(e, CompareOp::Gt, &a, 1.0)?;
    let magnitude = select(e, &far, &far_value, &near_value)?;
    let direction = sign(e, &x)?;
    let y = mul(e, &magnitude, &direction)?;
    cast(e, &y, dtype)
}

/// Hyperbolic cosine.
#[track_caller]
pub fn cosh<E: Emit>(e: &mut E, x: &E::Value) -> Built<E> {
    let (x, dtype) = widen(e, x)?;
    let a = abs(e, &x)?;
    let (grown, shrunk) = half_exponentials(e, &a)?;
    let y = add(e, &grown, &shrunk)?;
    cast(e, &y, dtype)
}

/// eᵃ/2 and e⁻ᵃ/2.
#[track_caller]
fn half_exponentials<E: Emit>(e: &mut E, a: &E::Value) -> Result<(E::Value, E::Value), E::Error> {
    let half = mul_scalar(e, a, 0.5)?;
    let root = exp(e, &half)?;
    let half_root = mul_scalar(e, &root, 0.5)?;
    let grown = mul(e, &half_root, &root)?;
    let negative = neg(e, a)?;
    let small = exp(e, &negative)?;
    let shrunk = mul_scalar(e, &small, 0.5)?;
    Ok((grown, shrunk))
}

/// Beyond this a² + 1 is a² in every float type.
const LARGE: f64 = 1e8;

/// Inverse hyperbolic sine.
#[track_caller]
pub fn asinh<E: Emit>(e: &mut E, x: &E::Value) -> Built<E> {
    let (x, dtype) = widen(e, x)?;
    let a = abs(e, &x)?;
    let small = clamp(e, &a, None, Some(LARGE))?;
    let square = mul(e, &small, &small)?;
    let square1 = add_scalar(e, &square, 1.0)?;
    let root = sqrt(e, &square1)?;
    let root1 = add_scalar(e, &root, 1.0)?;
    let ratio = div(e, &square, &root1)?;
    let sum = add(e, &small, &ratio)?;
    let near = log1p(e, &sum)?;
    let magnitude = or_log_twice(e, &a, &near)?;
    let direction = sign(e, &x)?;
    let y = mul(e, &magnitude, &direction)?;
    cast(e, &y, dtype)
}

/// Inverse hyperbolic cosine; NaN below 1.
#[track_caller]
pub fn acosh<E: Emit>(e: &mut E, x: &E::Value) -> Built<E> {
    let (x, dtype) = widen(e, x)?;
    let bounded = clamp(e, &x, Some(1.0), Some(LARGE))?;
    let t = sub_scalar(e, &bounded, 1.0)?;
    let t2 = add_scalar(e, &t, 2.0)?;
    let product = mul(e, &t, &t2)?;
    let root = sqrt(e, &product)?;
    let sum = add(e, &t, &root)?;
    let near = log1p(e, &sum)?;
    let y = or_log_twice(e, &x, &near)?;
    let below = compare_scalar(e, CompareOp::Lt, &x, 1.0)?;
    let y = masked_fill(e, &y, &below, f64::NAN)?;
    cast(e, &y, dtype)
}

/// ln(2x) where x is large, else what was computed for the rest.
#[track_caller]
fn or_log_twice<E: Emit>(e: &mut E, x: &E::Value, near: &E::Value) -> Built<E> {
    let logarithm = log(e, x)?;
    let far = add_scalar(e, &logarithm, std::f64::consts::LN_2)?;
    let large = compare_scalar(e, CompareOp::Gt, x, LARGE)?;
    select(e, &large, &far, near)
}

/// Inverse hyperbolic tangent.
#[track_caller]
pub fn atanh<E: Emit>(e: &mut E, x: &E::Value) -> Built<E> {
    let (x, dtype) = widen(e, x)?;
    let above = log1p(e, &x)?;
    let negative = neg(e, &x)?;
    let below = log1p(e, &negative)?;
    let difference = sub(e, &above, &below)?;
    let y = mul_scalar(e, &difference, 0.5)?;
    cast(e, &y, dtype)
}

/// Whole numbers `0, 1, … size − 1`, times a step, from a start.
#[track_caller]
pub fn arange<E: Emit>(e: &mut E, dtype: DType, start: f64, step: f64, size: impl Into<Dim>) -> Built<E> {
    let count = iota(e, dtype, &[size.into()], 0)?;
    let scaled = if step == 1.0 { count } else { mul_scalar(e, &count, step)? };
    if start == 0.0 { Ok(scaled) } else { add_scalar(e, &scaled, start) }
}
