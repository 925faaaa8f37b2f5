//! Derivatives of the pointwise functions as graphs: rules that take more than a line of their row. They follow PyTorch where a
//! derivative is a matter of convention, see `differentiate` of the passes.

use crate::CompareOp;
use crate::build::{
    Built, Emit, add, and, cast, compare, compare_scalar, div, full_like, log, masked_fill, mul, mul_scalar, neg, or,
    pow, recip, round, select, sub, sub_scalar,
};

/// What the derivative of a kind of op is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Derivative {
    /// There is a rule for its float operands.
    Rule,
    /// 0 wherever it exists: the result is piecewise constant.
    Zero,
    /// None: the op takes nothing, or its operands or results are integers, bools or bits.
    None,
}

/// What a rule gives: a cotangent for each operand, or nothing where it is 0 or was not wanted.
pub type Gradients<E> = Result<Vec<Option<<E as Emit>::Value>>, <E as Emit>::Error>;

/// What a rule for y = op(a, b) is given.
pub(super) struct Binary<'a, E: Emit> {
    pub operands: [&'a E::Value; 2],
    pub y: &'a E::Value,
    /// The cotangent of y.
    pub g: &'a E::Value,
    /// Whose cotangents to compute.
    pub wanted: [bool; 2],
}

/// What a rule for several operands computes, one by one as wanted.
pub fn when<E: Emit>(wanted: bool, compute: impl FnOnce() -> Built<E>) -> Result<Option<E::Value>, E::Error> {
    wanted.then(compute).transpose()
}

/// A rule that takes several steps, in the dtype to compute in, so that the result is rounded once.
pub(super) fn widened<E: Emit>(
    e: &mut E,
    v: &E::Value,
    g: &E::Value,
    rule: impl FnOnce(&mut E, &E::Value, &E::Value) -> Built<E>,
) -> Built<E> {
    let dtype = e.ty(v).dtype;
    let (v, g) = (cast(e, v, dtype.compute_type())?, cast(e, g, dtype.compute_type())?);
    let d = rule(e, &v, &g)?;
    cast(e, &d, dtype)
}

/// 1 − v².
pub(super) fn one_minus_square<E: Emit>(e: &mut E, v: &E::Value) -> Built<E> {
    let square = mul(e, v, v)?;
    let one = full_like(e, v, 1.0)?;
    sub(e, &one, &square)
}

/// Of a + b.
pub(super) fn sum<E: Emit>(_: &mut E, at: &Binary<E>) -> Gradients<E> {
    Ok(at.wanted.map(|wanted| wanted.then(|| at.g.clone())).into())
}

/// Of a − b.
pub(super) fn difference<E: Emit>(e: &mut E, at: &Binary<E>) -> Gradients<E> {
    Ok(vec![at.wanted[0].then(|| at.g.clone()), when::<E>(at.wanted[1], || neg(e, at.g))?])
}

/// Of a · b.
pub(super) fn product<E: Emit>(e: &mut E, at: &Binary<E>) -> Gradients<E> {
    let [a, b] = at.operands;
    Ok(vec![when::<E>(at.wanted[0], || mul(e, at.g, b))?, when::<E>(at.wanted[1], || mul(e, at.g, a))?])
}

/// A rule that takes several steps, on the operands, the result and the cotangent in the dtype to compute in.
fn widened_binary<E: Emit>(
    e: &mut E,
    at: &Binary<E>,
    rule: impl FnOnce(&mut E, [&E::Value; 3], [bool; 2]) -> Result<[Option<E::Value>; 2], E::Error>,
) -> Gradients<E> {
    let dtype = e.ty(at.g).dtype;
    let wide = dtype.compute_type();
    let (a, b, g) = (cast(e, at.operands[0], wide)?, cast(e, at.operands[1], wide)?, cast(e, at.g, wide)?);
    let cotangents = rule(e, [&a, &b, &g], at.wanted)?.into_iter().zip(at.wanted);
    cotangents.map(|(d, wanted)| d.filter(|_| wanted).map(|d| cast(e, &d, dtype)).transpose()).collect()
}

/// Of y = a / b.
pub(super) fn quotient<E: Emit>(e: &mut E, at: &Binary<E>) -> Gradients<E> {
    widened_binary(e, at, |e, [_, b, g], wanted| {
        let da = div(e, g, b)?;
        let db = when::<E>(wanted[1], || {
            let wide = e.ty(b).dtype;
            let y = cast(e, at.y, wide)?;
            let product = mul(e, &da, &y)?;
            neg(e, &product)
        })?;
        Ok([Some(da), db])
    })
}

/// Of y, the remainder of a / b.
pub(super) fn remainder<E: Emit>(e: &mut E, at: &Binary<E>) -> Gradients<E> {
    widened_binary(e, at, |e, [a, b, g], wanted| {
        let db = when::<E>(wanted[1], || {
            // The whole quotient, which a / b would round wrongly near a multiple of b.
            let wide = e.ty(a).dtype;
            let y = cast(e, at.y, wide)?;
            let whole = sub(e, a, &y)?;
            let quotient = div(e, &whole, b)?;
            let times = round(e, &quotient)?;
            let product = mul(e, g, &times)?;
            neg(e, &product)
        })?;
        Ok([Some(g.clone()), db])
    })
}

/// Of y = aᵇ.
pub(super) fn power<E: Emit>(e: &mut E, at: &Binary<E>) -> Gradients<E> {
    widened_binary(e, at, |e, [a, b, g], wanted| {
        let da = when::<E>(wanted[0], || power_base(e, a, b, g))?;
        let db = when::<E>(wanted[1], || power_exponent(e, a, b, at.y, g))?;
        Ok([da, db])
    })
}

/// g·b·aᵇ⁻¹, and 0 for b = 0 and any a.
fn power_base<E: Emit>(e: &mut E, a: &E::Value, b: &E::Value, g: &E::Value) -> Built<E> {
    let lower = sub_scalar(e, b, 1.0)?;
    let power = pow(e, a, &lower)?;
    let slope = mul(e, b, &power)?;
    let product = mul(e, g, &slope)?;
    let constant = compare_scalar(e, CompareOp::Eq, b, 0.0)?;
    masked_fill(e, &product, &constant, 0.0)
}

/// g·aᵇ·ln a, and 0 where a is negative or a = 0 and b ≥ 0.
fn power_exponent<E: Emit>(e: &mut E, a: &E::Value, b: &E::Value, y: &E::Value, g: &E::Value) -> Built<E> {
    let wide = e.ty(a).dtype;
    let y = cast(e, y, wide)?;
    let logarithm = log(e, a)?;
    let slope = mul(e, &y, &logarithm)?;
    let product = mul(e, g, &slope)?;
    let zero = compare_scalar(e, CompareOp::Eq, a, 0.0)?;
    let upwards = compare_scalar(e, CompareOp::Ge, b, 0.0)?;
    let flat = and(e, &zero, &upwards)?;
    let negative = compare_scalar(e, CompareOp::Lt, a, 0.0)?;
    let masked = or(e, &flat, &negative)?;
    masked_fill(e, &product, &masked, 0.0)
}

/// Of the angle of the point (b, a).
pub(super) fn angle<E: Emit>(e: &mut E, at: &Binary<E>) -> Gradients<E> {
    widened_binary(e, at, |e, [a, b, g], wanted| {
        let (aa, bb) = (mul(e, a, a)?, mul(e, b, b)?);
        let square = add(e, &aa, &bb)?;
        let inverse = recip(e, &square)?;
        let scaled = mul(e, g, &inverse)?;
        let da = when::<E>(wanted[0], || mul(e, &scaled, b))?;
        let db = when::<E>(wanted[1], || {
            let product = mul(e, &scaled, a)?;
            neg(e, &product)
        })?;
        Ok([da, db])
    })
}

/// Of the larger of two: its first operand loses where it is less.
pub(super) fn larger<E: Emit>(e: &mut E, at: &Binary<E>) -> Gradients<E> {
    extreme(e, CompareOp::Lt, CompareOp::Le, at)
}

/// Of the smaller of two.
pub(super) fn smaller<E: Emit>(e: &mut E, at: &Binary<E>) -> Gradients<E> {
    extreme(e, CompareOp::Gt, CompareOp::Ge, at)
}

/// `loses` is true where the first is not the result, `loses_or_ties` where it is not strictly.
fn extreme<E: Emit>(e: &mut E, loses: CompareOp, loses_or_ties: CompareOp, at: &Binary<E>) -> Gradients<E> {
    let Binary { operands: [a, b], g, wanted, .. } = *at;
    let zero = full_like(e, g, 0.0)?;
    if !(wanted[0] && wanted[1]) {
        let (own, bound) = if wanted[0] { (a, b) } else { (b, a) };
        let outside = compare(e, loses_or_ties, own, bound)?;
        let d = select(e, &outside, &zero, g)?;
        return Ok(if wanted[0] { vec![Some(d), None] } else { vec![None, Some(d)] });
    }
    let tied = compare(e, CompareOp::Eq, a, b)?;
    let half = mul_scalar(e, g, 0.5)?;
    let share = select(e, &tied, &half, g)?;
    let first_loses = compare(e, loses, a, b)?;
    let second_loses = compare(e, loses, b, a)?;
    let da = select(e, &first_loses, &zero, &share)?;
    let db = select(e, &second_loses, &zero, &share)?;
    Ok(vec![Some(da), Some(db)])
}
