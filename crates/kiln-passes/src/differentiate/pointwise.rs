//! Rules of the pointwise functions.

use super::{Gradients, special, when, zeros};
use kiln_ir::build::{
    self, Built, Emit, add, add_scalar, and, cast, compare, compare_scalar, cos, div, exp, full_like, log, mul,
    mul_scalar, neg, or, pow, recip, round, rsqrt, sign, sin, sub, sub_scalar,
};
use kiln_ir::{BinaryOp, CompareOp, UnaryOp};
use std::f64::consts::{FRAC_2_SQRT_PI, LN_2};

/// The cotangent of x for `y = op(x)`. Rules of one rounding step work in x's own dtype, the others in the wide one.
pub(super) fn unary<E: Emit>(e: &mut E, op: UnaryOp, x: &E::Value, y: &E::Value, g: &E::Value) -> Built<E> {
    match op {
        UnaryOp::Neg => return neg(e, g),
        UnaryOp::Exp => return mul(e, g, y),
        UnaryOp::Log => return div(e, g, x),
        UnaryOp::Abs => {
            let direction = sign(e, x)?;
            return mul(e, g, &direction);
        }
        _ => {}
    }
    let dtype = e.ty(x).dtype;
    let wide = dtype.compute_type();
    let from_result = matches!(
        op,
        UnaryOp::Sqrt
            | UnaryOp::Rsqrt
            | UnaryOp::Recip
            | UnaryOp::Exp2
            | UnaryOp::Expm1
            | UnaryOp::Tan
            | UnaryOp::Tanh
            | UnaryOp::ErfInv
    );
    let v = cast(e, if from_result { y } else { x }, wide)?;
    let g = cast(e, g, wide)?;
    let d = match op {
        UnaryOp::Sqrt => {
            let twice = mul_scalar(e, &v, 2.0)?;
            div(e, &g, &twice)?
        }
        UnaryOp::Rsqrt => {
            let square = mul(e, &v, &v)?;
            let cube = mul(e, &square, &v)?;
            let product = mul(e, &g, &cube)?;
            mul_scalar(e, &product, -0.5)?
        }
        UnaryOp::Recip => {
            let square = mul(e, &v, &v)?;
            let product = mul(e, &g, &square)?;
            neg(e, &product)?
        }
        UnaryOp::Exp2 => {
            let product = mul(e, &g, &v)?;
            mul_scalar(e, &product, LN_2)?
        }
        UnaryOp::Expm1 => {
            let power = add_scalar(e, &v, 1.0)?;
            mul(e, &g, &power)?
        }
        UnaryOp::Log2 => {
            let scaled = mul_scalar(e, &v, LN_2)?;
            div(e, &g, &scaled)?
        }
        UnaryOp::Log1p => {
            let raised = add_scalar(e, &v, 1.0)?;
            div(e, &g, &raised)?
        }
        UnaryOp::Sin => {
            let slope = cos(e, &v)?;
            mul(e, &g, &slope)?
        }
        UnaryOp::Cos => {
            let slope = sin(e, &v)?;
            let product = mul(e, &g, &slope)?;
            neg(e, &product)?
        }
        UnaryOp::Tan => {
            let square = mul(e, &v, &v)?;
            let slope = add_scalar(e, &square, 1.0)?;
            mul(e, &g, &slope)?
        }
        UnaryOp::Asin | UnaryOp::Acos => {
            let rest = one_minus_square(e, &v)?;
            let slope = rsqrt(e, &rest)?;
            let product = mul(e, &g, &slope)?;
            if op == UnaryOp::Asin { product } else { neg(e, &product)? }
        }
        UnaryOp::Atan => {
            let square = mul(e, &v, &v)?;
            let raised = add_scalar(e, &square, 1.0)?;
            div(e, &g, &raised)?
        }
        UnaryOp::Tanh => {
            let slope = one_minus_square(e, &v)?;
            mul(e, &g, &slope)?
        }
        UnaryOp::Erf => {
            let square = mul(e, &v, &v)?;
            let exponent = neg(e, &square)?;
            let bell = exp(e, &exponent)?;
            let slope = mul_scalar(e, &bell, FRAC_2_SQRT_PI)?;
            mul(e, &g, &slope)?
        }
        UnaryOp::ErfInv => {
            let square = mul(e, &v, &v)?;
            let growth = exp(e, &square)?;
            let slope = mul_scalar(e, &growth, 1.0 / FRAC_2_SQRT_PI)?;
            mul(e, &g, &slope)?
        }
        UnaryOp::Lgamma => {
            let slope = special::digamma(e, &v)?;
            mul(e, &g, &slope)?
        }
        UnaryOp::Neg
        | UnaryOp::Exp
        | UnaryOp::Log
        | UnaryOp::Abs
        | UnaryOp::Sign
        | UnaryOp::Floor
        | UnaryOp::Ceil
        | UnaryOp::Round
        | UnaryOp::Trunc
        | UnaryOp::Not
        | UnaryOp::IsNan => unreachable!("answered above, or declared to have no rule"),
    };
    cast(e, &d, dtype)
}

/// 1 − v².
fn one_minus_square<E: Emit>(e: &mut E, v: &E::Value) -> Built<E> {
    let square = mul(e, v, v)?;
    let one = full_like(e, v, 1.0)?;
    sub(e, &one, &square)
}

/// The cotangents of both operands.
pub(super) fn binary<E: Emit>(
    e: &mut E,
    op: BinaryOp,
    [a, b]: [&E::Value; 2],
    y: &E::Value,
    g: &E::Value,
    wanted: &[bool],
) -> Gradients<E> {
    match op {
        BinaryOp::Add => return Ok(vec![wanted[0].then(|| g.clone()), wanted[1].then(|| g.clone())]),
        BinaryOp::Sub => return Ok(vec![wanted[0].then(|| g.clone()), when::<E>(wanted[1], || neg(e, g))?]),
        BinaryOp::Mul => {
            return Ok(vec![when::<E>(wanted[0], || mul(e, g, b))?, when::<E>(wanted[1], || mul(e, g, a))?]);
        }
        BinaryOp::Max => return extreme(e, CompareOp::Lt, CompareOp::Le, [a, b], g, wanted),
        BinaryOp::Min => return extreme(e, CompareOp::Gt, CompareOp::Ge, [a, b], g, wanted),
        _ => {}
    }
    let dtype = e.ty(a).dtype;
    let wide = dtype.compute_type();
    let (a, b, y) = (&cast(e, a, wide)?, &cast(e, b, wide)?, y);
    let g = &cast(e, g, wide)?;
    let (da, db) = match op {
        BinaryOp::Div => {
            let quotient = div(e, g, b)?;
            let db = when::<E>(wanted[1], || {
                let y = cast(e, y, wide)?;
                let product = mul(e, &quotient, &y)?;
                neg(e, &product)
            })?;
            (Some(quotient), db)
        }
        BinaryOp::Rem => {
            let db = when::<E>(wanted[1], || {
                // The whole quotient, which x / y would round wrongly near a multiple of y.
                let y = cast(e, y, wide)?;
                let whole = sub(e, a, &y)?;
                let quotient = div(e, &whole, b)?;
                let times = round(e, &quotient)?;
                let product = mul(e, g, &times)?;
                neg(e, &product)
            })?;
            (Some(g.clone()), db)
        }
        BinaryOp::Pow => {
            let da = when::<E>(wanted[0], || power_base(e, a, b, g))?;
            let db = when::<E>(wanted[1], || power_exponent(e, a, b, y, g))?;
            (da, db)
        }
        BinaryOp::Atan2 => {
            // The angle of the point (b, a).
            let (aa, bb) = (mul(e, a, a)?, mul(e, b, b)?);
            let square = add(e, &aa, &bb)?;
            let inverse = recip(e, &square)?;
            let scaled = mul(e, g, &inverse)?;
            let da = when::<E>(wanted[0], || mul(e, &scaled, b))?;
            let db = when::<E>(wanted[1], || {
                let product = mul(e, &scaled, a)?;
                neg(e, &product)
            })?;
            (da, db)
        }
        _ => unreachable!("answered above, or declared to have no rule"),
    };
    let mut back = |d: Option<E::Value>, wanted: bool| d.filter(|_| wanted).map(|d| cast(e, &d, dtype)).transpose();
    Ok(vec![back(da, wanted[0])?, back(db, wanted[1])?])
}

/// g·b·aᵇ⁻¹, and 0 for b = 0 whatever a is.
fn power_base<E: Emit>(e: &mut E, a: &E::Value, b: &E::Value, g: &E::Value) -> Built<E> {
    let lower = sub_scalar(e, b, 1.0)?;
    let power = pow(e, a, &lower)?;
    let slope = mul(e, b, &power)?;
    let product = mul(e, g, &slope)?;
    let constant = compare_scalar(e, CompareOp::Eq, b, 0.0)?;
    build::masked_fill(e, &product, &constant, 0.0)
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
    build::masked_fill(e, &product, &masked, 0.0)
}

/// The larger or the smaller of two: `loses` tells where the first is not the result, `loses_or_ties` where it is not
/// strictly.
fn extreme<E: Emit>(
    e: &mut E,
    loses: CompareOp,
    loses_or_ties: CompareOp,
    [a, b]: [&E::Value; 2],
    g: &E::Value,
    wanted: &[bool],
) -> Gradients<E> {
    let ty = e.ty(g);
    let zero = zeros(e, &ty)?;
    if !(wanted[0] && wanted[1]) {
        let (own, bound) = if wanted[0] { (a, b) } else { (b, a) };
        let outside = compare(e, loses_or_ties, own, bound)?;
        let d = build::select(e, &outside, &zero, g)?;
        return Ok(if wanted[0] { vec![Some(d), None] } else { vec![None, Some(d)] });
    }
    let tied = compare(e, CompareOp::Eq, a, b)?;
    let half = mul_scalar(e, g, 0.5)?;
    let share = build::select(e, &tied, &half, g)?;
    let first_loses = compare(e, loses, a, b)?;
    let second_loses = compare(e, loses, b, a)?;
    let da = build::select(e, &first_loses, &zero, &share)?;
    let db = build::select(e, &second_loses, &zero, &share)?;
    Ok(vec![Some(da), Some(db)])
}

/// The cotangent goes to the side that was chosen, place by place.
pub(super) fn select<E: Emit>(e: &mut E, condition: &E::Value, g: &E::Value, wanted: &[bool]) -> Gradients<E> {
    let ty = e.ty(g);
    let zero = zeros(e, &ty)?;
    let then = when::<E>(wanted[1], || build::select(e, condition, g, &zero))?;
    let otherwise = when::<E>(wanted[2], || build::select(e, condition, &zero, g))?;
    Ok(vec![None, then, otherwise])
}
