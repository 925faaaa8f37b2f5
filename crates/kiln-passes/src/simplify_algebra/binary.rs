//! Laws of two operands. Canonical form has put a constant operand of a commutative op second.

use crate::canonicalize::negated;
use crate::facts;
use crate::rewrite::{Found, Rewriter};
use kiln_ir::{BinaryOp, DType, Node, NodeId, Op, Scalar, UnaryOp};

pub(super) fn rule(rw: &mut Rewriter, node: &Node, op: BinaryOp) -> Found {
    let (x, y) = (node.operands[0], node.operands[1]);
    if x == y
        && let Some(found) = with_itself(rw, node, op)?
    {
        return Ok(Some(found));
    }
    if let Some(value) = rw.splat(y) {
        let found = match value {
            Scalar::Float(dtype, c) => with_float(rw, node, op, dtype, c)?,
            Scalar::Int(dtype, c) => with_int(rw, node, op, dtype, c)?,
        };
        if found.is_some() {
            return Ok(found);
        }
    }
    if let Some(value) = rw.splat(x)
        && let Some(found) = of_constant(rw, node, op, value)?
    {
        return Ok(Some(found));
    }
    with_negated(rw, node, op)
}

/// `x ∘ x`.
fn with_itself(rw: &mut Rewriter, node: &Node, op: BinaryOp) -> Found {
    let x = node.operands[0];
    match op {
        // Equal bits on both sides: either is the answer, NaN stays NaN.
        BinaryOp::Max | BinaryOp::Min => Ok(Some(x)),
        BinaryOp::And | BinaryOp::Or => Ok(Some(x)),
        BinaryOp::Xor => rw.replace_by_full(node, Scalar::int(node.ty.dtype, 0)),
        // Integers only: ∞ − ∞ and NaN − NaN are NaN.
        BinaryOp::Sub if !node.ty.dtype.is_float() => rw.replace_by_full(node, Scalar::int(node.ty.dtype, 0)),
        // |x|·|x| and (−x)·(−x) have the magnitude and the (clear) sign of x·x.
        BinaryOp::Mul => match rw.op(x) {
            Op::Unary(UnaryOp::Neg) => {
                let inner = rw.operand(x);
                rw.replace(node, Op::Binary(op), &[inner, inner])
            }
            Op::Unary(UnaryOp::Abs) => {
                let inner = rw.operand(x);
                rw.replace(node, Op::Binary(op), &[inner, inner])
            }
            _ => Ok(None),
        },
        _ => Ok(None),
    }
}

/// `x ∘ c` on floats.
fn with_float(rw: &mut Rewriter, node: &Node, op: BinaryOp, dtype: DType, c: f64) -> Found {
    let x = node.operands[0];
    let negative_zero = c == 0.0 && c.is_sign_negative();
    match op {
        // x + (−0) is x for every x: +0 + −0 = +0 and −0 + −0 = −0. But −0 + +0 = +0, so +0 may go only where −0 cannot be.
        BinaryOp::Add if negative_zero => Ok(Some(x)),
        BinaryOp::Add if c == 0.0 && facts::never_negative_zero(rw.graph(), x) => Ok(Some(x)),
        // Exact; signs of zero and infinity stay; NaN stays.
        BinaryOp::Mul | BinaryOp::Div if c == 1.0 => Ok(Some(x)),
        // Exact up to the sign, which flips for zeros and infinities too.
        BinaryOp::Mul | BinaryOp::Div if c == -1.0 => rw.replace(node, Op::Unary(UnaryOp::Neg), &[x]),
        // x·2⁻ᵏ and x / 2ᵏ are the same real number, so they round alike; so are the cases of 0, ∞ and NaN.
        BinaryOp::Div => match exact_reciprocal(dtype, c) {
            Some(reciprocal) => {
                let y = rw.full_like(node, reciprocal, x)?;
                rw.replace(node, Op::Binary(BinaryOp::Mul), &[x, y])
            }
            None => Ok(None),
        },
        // No number is below −∞; equal infinities are one; NaN stays. (max(x, +∞) is no constant: NaN.)
        BinaryOp::Max if c == f64::NEG_INFINITY => Ok(Some(x)),
        BinaryOp::Min if c == f64::INFINITY => Ok(Some(x)),
        BinaryOp::Max | BinaryOp::Min => clamp_twice(rw, node, op),
        BinaryOp::Pow => power(rw, node, c),
        _ => Ok(None),
    }
}

/// `max(max(x, c), c)` is `max(x, c)`: what the inner one gives is c, NaN or beyond c, and choosing again changes nothing.
fn clamp_twice(rw: &mut Rewriter, node: &Node, op: BinaryOp) -> Found {
    let (x, y) = (node.operands[0], node.operands[1]);
    let inner = rw.node(x);
    let again = inner.op == Op::Binary(op) && rw.splat(inner.operands[1]) == rw.splat(y);
    Ok(again.then_some(x))
}

/// The powers that IEEE 754 fixes. `pow(x, ½)` is not `√x`: pow gives +0 for −0 and +∞ for −∞.
fn power(rw: &mut Rewriter, node: &Node, exponent: f64) -> Found {
    let x = node.operands[0];
    if exponent == 0.0 {
        // pow(x, ±0) is 1 for every x, even NaN.
        return rw.replace_by_full(node, Scalar::float(node.ty.dtype, 1.0));
    }
    if exponent == 1.0 {
        return Ok(Some(x));
    }
    if exponent == 2.0 {
        // The product is the correctly rounded square; even powers of −0 and −∞ are +0 and +∞ as squares are.
        return rw.replace(node, Op::Binary(BinaryOp::Mul), &[x, x]);
    }
    if exponent == -1.0 {
        // The quotient is the correctly rounded inverse; odd powers keep the sign of zeros and infinities as it does.
        return rw.replace(node, Op::Unary(UnaryOp::Recip), &[x]);
    }
    Ok(None)
}

/// 1/c where c is a power of two whose reciprocal is a normal number of the dtype.
fn exact_reciprocal(dtype: DType, c: f64) -> Option<Scalar> {
    // The exponents of the smallest and the largest normal numbers.
    let (lowest, highest) = match dtype {
        DType::F64 => (-1022, 1023),
        DType::F32 | DType::Bf16 => (-126, 127),
        DType::F16 => (-14, 15),
        _ => return None,
    };
    let bits = c.to_bits();
    let (mantissa, exponent) = (bits & ((1 << 52) - 1), (bits >> 52 & 0x7ff) as i32 - 1023);
    let exact = c.is_normal() && mantissa == 0 && (lowest..=highest).contains(&-exponent);
    exact.then(|| Scalar::Float(dtype, 1.0 / c))
}

/// `x ∘ c` on integers and bools, which wrap and have neither NaN nor a second zero.
fn with_int(rw: &mut Rewriter, node: &Node, op: BinaryOp, dtype: DType, c: i64) -> Found {
    let x = node.operands[0];
    let ones = if dtype == DType::Bool { 1 } else { Scalar::int(dtype, -1).as_i64() };
    let (lowest, highest) = dtype.int_range();
    let zero = Scalar::int(dtype, 0);
    match op {
        BinaryOp::Add | BinaryOp::Or | BinaryOp::Xor | BinaryOp::Shl | BinaryOp::Shr if c == 0 => Ok(Some(x)),
        BinaryOp::Mul | BinaryOp::And if c == 0 => rw.replace_by_full(node, zero),
        BinaryOp::Mul | BinaryOp::Div if c == 1 => Ok(Some(x)),
        // By definition a zero divisor gives 0.
        BinaryOp::Div | BinaryOp::Rem if c == 0 => rw.replace_by_full(node, zero),
        BinaryOp::Rem if c == 1 || (c == -1 && lowest < 0) => rw.replace_by_full(node, zero),
        // The lowest number is its own negative on both sides.
        BinaryOp::Mul if c == -1 && lowest < 0 => rw.replace(node, Op::Unary(UnaryOp::Neg), &[x]),
        BinaryOp::And if c == ones => Ok(Some(x)),
        BinaryOp::Or if c == ones => rw.replace_by_full(node, Scalar::int(dtype, c)),
        BinaryOp::Xor if c == ones => rw.replace(node, Op::Unary(UnaryOp::Not), &[x]),
        BinaryOp::Max if c == lowest => Ok(Some(x)),
        BinaryOp::Min if c == highest => Ok(Some(x)),
        BinaryOp::Max if c == highest => rw.replace_by_full(node, Scalar::int(dtype, c)),
        BinaryOp::Min if c == lowest => rw.replace_by_full(node, Scalar::int(dtype, c)),
        BinaryOp::Add
        | BinaryOp::Mul
        | BinaryOp::And
        | BinaryOp::Or
        | BinaryOp::Xor
        | BinaryOp::Max
        | BinaryOp::Min => join_constants(rw, node, op),
        _ => Ok(None),
    }
}

/// `(x ∘ a) ∘ b` is `x ∘ (a ∘ b)`: these are associative modulo 2ⁿ. Floats are not.
fn join_constants(rw: &mut Rewriter, node: &Node, op: BinaryOp) -> Found {
    let (inner, b) = (node.operands[0], node.operands[1]);
    if rw.op(inner) != &Op::Binary(op) {
        return Ok(None);
    }
    let (x, a) = (rw.node(inner).operands[0], rw.node(inner).operands[1]);
    if rw.splat(a).is_none() {
        return Ok(None);
    }
    let joined = rw.emit(node, Op::Binary(op), &[a, b])?;
    rw.replace(node, Op::Binary(op), &[x, joined])
}

/// `c ∘ x`.
fn of_constant(rw: &mut Rewriter, node: &Node, op: BinaryOp, c: Scalar) -> Found {
    let x = node.operands[1];
    match (op, c) {
        // The reciprocal is this quotient by definition.
        (BinaryOp::Div, Scalar::Float(_, 1.0)) => rw.replace(node, Op::Unary(UnaryOp::Recip), &[x]),
        // −0 − x is −x for both zeros; +0 − x is not: +0 − +0 = +0.
        (BinaryOp::Sub, Scalar::Float(_, v)) if v == 0.0 && v.is_sign_negative() => {
            rw.replace(node, Op::Unary(UnaryOp::Neg), &[x])
        }
        (BinaryOp::Sub, Scalar::Int(_, 0)) if node.ty.dtype != DType::Bool => {
            rw.replace(node, Op::Unary(UnaryOp::Neg), &[x])
        }
        // pow(1, y) is 1 for every y, even NaN.
        (BinaryOp::Pow, Scalar::Float(_, 1.0)) => rw.replace_by_full(node, c),
        // 0 shifted, divided or taken the rest of stays 0 (a zero divisor gives 0 by definition).
        (BinaryOp::Shl | BinaryOp::Shr | BinaryOp::Div | BinaryOp::Rem, Scalar::Int(_, 0)) => {
            rw.replace_by_full(node, c)
        }
        _ => Ok(None),
    }
}

/// Negations that meet. IEEE sums, products and quotients depend on signs as real ones do, zeros and infinities included.
fn with_negated(rw: &mut Rewriter, node: &Node, op: BinaryOp) -> Found {
    let (x, y) = (node.operands[0], node.operands[1]);
    let inside = |rw: &Rewriter, id: NodeId| matches!(rw.op(id), Op::Unary(UnaryOp::Neg)).then(|| rw.operand(id));
    match (op, inside(rw, x), inside(rw, y)) {
        // x + (−y) is the definition of x − y.
        (BinaryOp::Add, None, Some(y)) => rw.replace(node, Op::Binary(BinaryOp::Sub), &[x, y]),
        (BinaryOp::Add, Some(x), None) => rw.replace(node, Op::Binary(BinaryOp::Sub), &[y, x]),
        // x − (−y) is x + y; the sign of a zero difference is the sign of that sum.
        (BinaryOp::Sub, _, Some(y)) => rw.replace(node, Op::Binary(BinaryOp::Add), &[x, y]),
        (BinaryOp::Mul, Some(x), Some(y)) => rw.replace(node, Op::Binary(op), &[x, y]),
        // Not for integers: dividing the lowest by a negative is a case of its own.
        (BinaryOp::Div, Some(x), Some(y)) if node.ty.dtype.is_float() => rw.replace(node, Op::Binary(op), &[x, y]),
        (BinaryOp::Mul | BinaryOp::Div, Some(x), None) if op == BinaryOp::Mul || node.ty.dtype.is_float() => {
            let Some(negated) = rw.splat(y).and_then(negated) else { return Ok(None) };
            let y = rw.full_like(node, negated, y)?;
            rw.replace(node, Op::Binary(op), &[x, y])
        }
        _ => Ok(None),
    }
}
