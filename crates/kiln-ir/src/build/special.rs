//! Functions of numbers beyond the primitives: signs by their bit, lengths, logarithms of sums, rounding to decimals.

use super::{
    Built, Emit, abs, add, add_scalar, and, binary, binary_scalar, cast, compare, compare_scalar, digamma, div,
    div_scalar, fail, floor, full, is_nan, log, log1p, masked_fill, mul, mul_scalar, neg, or, recip, round, select,
    sin, sqrt, sub, widen,
};
use crate::{BinaryOp, CompareOp, DType, Op, Scalar, TypeError};
use std::f64::consts::{LOG10_E, PI};

/// Whether the bit of the sign is set, also of −0 and NaN.
#[track_caller]
pub fn sign_bit<E: Emit>(e: &mut E, x: &E::Value) -> Built<E> {
    let bits = match e.ty(x).dtype {
        DType::F64 => DType::I64,
        DType::F32 => DType::I32,
        DType::F16 | DType::Bf16 => DType::I16,
        DType::Bool => return super::full_like(e, x, 0.0),
        got if got.is_float() => {
            return fail::<_, E>("sign_bit", TypeError::WrongDType { operand: 0, got, expected: "16 bits or more" });
        }
        _ => return compare_scalar(e, CompareOp::Lt, x, 0.0),
    };
    let bits = e.emit(Op::Bitcast(bits), std::slice::from_ref(x))?;
    compare_scalar(e, CompareOp::Lt, &bits, 0.0)
}

/// |x| with the sign of y. The gradient of y is zero.
#[track_caller]
pub fn copysign<E: Emit>(e: &mut E, x: &E::Value, y: &E::Value) -> Built<E> {
    let size = abs(e, x)?;
    let negative = neg(e, &size)?;
    let sign = sign_bit(e, y)?;
    select(e, &sign, &negative, &size)
}

/// The larger and the smaller of each pair of one shape. One choice makes both, so that of equal ones either is the gradient of one operand,
/// which the rules of `Max` and `Min`, each for itself, do not promise.
#[track_caller]
fn ordered<E: Emit>(e: &mut E, x: &E::Value, y: &E::Value) -> Result<[E::Value; 2], E::Error> {
    let first = compare(e, CompareOp::Ge, x, y)?;
    Ok([select(e, &first, x, y)?, select(e, &first, y, x)?])
}

/// √(x² + y²) of floats, where neither square overflows.
#[track_caller]
pub fn hypot<E: Emit>(e: &mut E, x: &E::Value, y: &E::Value) -> Built<E> {
    let dtype = e.ty(x).dtype;
    let (x, y) = (abs(e, x)?, abs(e, y)?);
    let (x, y) = super::broadcast(e, &x, &y)?;
    let [large, small] = ordered(e, &x, &y)?;
    // Of two zeros there is no quotient; its gradient is to be a number there.
    let zero = compare_scalar(e, CompareOp::Eq, &large, 0.0)?;
    let safe = masked_fill(e, &large, &zero, 1.0)?;
    let quotient = div(e, &small, &safe)?;
    let square = mul(e, &quotient, &quotient)?;
    let sum = add_scalar(e, &square, 1.0)?;
    let root = sqrt(e, &sum)?;
    let length = mul(e, &large, &root)?;
    // Beside an infinity even NaN does not count.
    let infinite_x = compare_scalar(e, CompareOp::Eq, &x, f64::INFINITY)?;
    let infinite_y = compare_scalar(e, CompareOp::Eq, &y, f64::INFINITY)?;
    let infinite = or(e, &infinite_x, &infinite_y)?;
    let infinity = full(e, Scalar::float(dtype, f64::INFINITY), &[])?;
    select(e, &infinite, &infinity, &length)
}

/// A float rounded to so many decimals, or with a negative number to tens, hundreds, ….
#[track_caller]
pub fn round_decimals<E: Emit>(e: &mut E, x: &E::Value, decimals: i32) -> Built<E> {
    let factor = 10f64.powi(decimals.unsigned_abs() as i32);
    let scaled = if decimals > 0 { mul_scalar(e, x, factor)? } else { div_scalar(e, x, factor)? };
    let whole = round(e, &scaled)?;
    if decimals > 0 { div_scalar(e, &whole, factor) } else { mul_scalar(e, &whole, factor) }
}

/// [`digamma`] also at its poles: of negative whole numbers NaN, of zero the infinity of the other sign; in f32 at least.
#[track_caller]
pub fn digamma_with_poles<E: Emit>(e: &mut E, x: &E::Value) -> Built<E> {
    let (x, own) = widen(e, x)?;
    let y = digamma(e, &x)?;
    let below = floor(e, &x)?;
    let whole = compare(e, CompareOp::Eq, &below, &x)?;
    let negative = compare_scalar(e, CompareOp::Lt, &x, 0.0)?;
    let pole = and(e, &whole, &negative)?;
    let y = masked_fill(e, &y, &pole, f64::NAN)?;
    let zero = compare_scalar(e, CompareOp::Eq, &x, 0.0)?;
    let inverse = recip(e, &x)?;
    let infinity = neg(e, &inverse)?;
    let y = select(e, &zero, &infinity, &y)?;
    cast(e, &y, own)
}

/// Logarithm to base 10.
#[track_caller]
pub fn log10<E: Emit>(e: &mut E, x: &E::Value) -> Built<E> {
    let (x, dtype) = widen(e, x)?;
    let natural = log(e, &x)?;
    let y = mul_scalar(e, &natural, LOG10_E)?;
    cast(e, &y, dtype)
}

/// The larger (`BinaryOp::Max`) or smaller of each pair; where one of them is NaN, the other.
#[track_caller]
pub fn extreme_number<E: Emit>(e: &mut E, op: BinaryOp, x: &E::Value, y: &E::Value) -> Built<E> {
    let extreme = binary(e, op, x, y)?;
    if !e.ty(x).dtype.is_float() {
        return Ok(extreme);
    }
    let (no_x, no_y) = (is_nan(e, x)?, is_nan(e, y)?);
    let with_x = select(e, &no_y, x, &extreme)?;
    select(e, &no_x, y, &with_x)
}

/// sin(πx) / (πx), at 0 the limit 1.
#[track_caller]
pub fn sinc<E: Emit>(e: &mut E, x: &E::Value) -> Built<E> {
    let (x, dtype) = widen(e, x)?;
    let zero = compare_scalar(e, CompareOp::Eq, &x, 0.0)?;
    // The quotient is not computed at 0, so that its gradient is a number there.
    let safe = masked_fill(e, &x, &zero, 1.0)?;
    let turned = mul_scalar(e, &safe, PI)?;
    let wave = sin(e, &turned)?;
    let y = div(e, &wave, &turned)?;
    let y = masked_fill(e, &y, &zero, 1.0)?;
    cast(e, &y, dtype)
}

/// ln(eˣ + eʸ), without overflow; of two equal infinities that infinity.
#[track_caller]
pub fn logaddexp<E: Emit>(e: &mut E, x: &E::Value, y: &E::Value) -> Built<E> {
    let (x, dtype) = widen(e, x)?;
    let (y, _) = widen(e, y)?;
    let (x, y) = super::broadcast(e, &x, &y)?;
    let [large, small] = ordered(e, &x, &y)?;
    let same = compare(e, CompareOp::Eq, &x, &y)?;
    let size = abs(e, &x)?;
    let infinite = compare_scalar(e, CompareOp::Eq, &size, f64::INFINITY)?;
    let same = and(e, &same, &infinite)?;
    let distance = sub(e, &small, &large)?;
    let distance = masked_fill(e, &distance, &same, 0.0)?;
    let share = super::exp(e, &distance)?;
    let more = log1p(e, &share)?;
    let sum = add(e, &large, &more)?;
    cast(e, &sum, dtype)
}

/// x·ln y, 0 where x is 0 whatever y is, NaN where y is NaN.
#[track_caller]
pub fn xlogy<E: Emit>(e: &mut E, x: &E::Value, y: &E::Value) -> Built<E> {
    let (x, dtype) = widen(e, x)?;
    let (y, _) = widen(e, y)?;
    let (x, y) = super::broadcast(e, &x, &y)?;
    let zero = compare_scalar(e, CompareOp::Eq, &x, 0.0)?;
    // Elsewhere the logarithm is a number, and the gradient of x also where x is 0.
    let none = compare_scalar(e, CompareOp::Le, &y, 0.0)?;
    let infinite = compare_scalar(e, CompareOp::Eq, &y, f64::INFINITY)?;
    let unbounded = or(e, &none, &infinite)?;
    let nothing = and(e, &zero, &unbounded)?;
    let logarithm = log(e, &y)?;
    let logarithm = masked_fill(e, &logarithm, &nothing, 0.0)?;
    let product = mul(e, &x, &logarithm)?;
    cast(e, &product, dtype)
}

/// NaN and both infinities replaced by numbers.
#[track_caller]
pub fn nan_to_num<E: Emit>(e: &mut E, x: &E::Value, nan: f64, positive: f64, negative: f64) -> Built<E> {
    let is_nan = is_nan(e, x)?;
    let above = compare_scalar(e, CompareOp::Eq, x, f64::INFINITY)?;
    let below = compare_scalar(e, CompareOp::Eq, x, f64::NEG_INFINITY)?;
    let y = masked_fill(e, x, &is_nan, nan)?;
    let y = masked_fill(e, &y, &above, positive)?;
    masked_fill(e, &y, &below, negative)
}

/// x where |x| > λ, 0 elsewhere.
#[track_caller]
pub fn hardshrink<E: Emit>(e: &mut E, x: &E::Value, lambda: f64) -> Built<E> {
    let size = abs(e, x)?;
    let small = compare_scalar(e, CompareOp::Le, &size, lambda)?;
    masked_fill(e, x, &small, 0.0)
}

/// x moved by λ towards 0, where it stays.
#[track_caller]
pub fn softshrink<E: Emit>(e: &mut E, x: &E::Value, lambda: f64) -> Built<E> {
    let (below, above) = (add_scalar(e, x, lambda)?, add_scalar(e, x, -lambda)?);
    let below = binary_scalar(e, BinaryOp::Min, &below, 0.0)?;
    let above = binary_scalar(e, BinaryOp::Max, &above, 0.0)?;
    add(e, &below, &above)
}

/// ln(x / (1 − x)), x first moved into ε…1 − ε if there is one.
#[track_caller]
pub fn logit<E: Emit>(e: &mut E, x: &E::Value, epsilon: Option<f64>) -> Built<E> {
    let (x, dtype) = widen(e, x)?;
    let x = match epsilon {
        Some(epsilon) => super::clamp(e, &x, Some(epsilon), Some(1.0 - epsilon))?,
        None => x,
    };
    let rest = neg(e, &x)?;
    let rest = add_scalar(e, &rest, 1.0)?;
    let odds = div(e, &x, &rest)?;
    let y = log(e, &odds)?;
    cast(e, &y, dtype)
}
