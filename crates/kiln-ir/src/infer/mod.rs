//! The type rule of every op: dtype and shape of the result from those of the operands.
//!
//! Sizes may be symbolic. Where two sizes must be equal they must be so structurally, for that is what can be proven; where one
//! must not exceed another, only what is provably too large is refused. A size that is negative for given values of the symbols
//! is refused when they are given.

mod index;
mod pointwise;
mod product;
#[cfg(test)]
mod tests;
mod view;
mod window;

use crate::table::DTypeClass;
use crate::{DType, Dim, Op, Scalar, TensorType, TypeError};

/// The type of `op` applied to operands of these types.
///
/// ```
/// use kiln_ir::{BinaryOp, DType, Op, TensorType, infer};
/// let (x, y) = (TensorType::fixed(DType::F32, &[2, 3]), TensorType::fixed(DType::F32, &[2, 4]));
/// assert_eq!(infer(&Op::Binary(BinaryOp::Add), &[&x, &x]), Ok(x.clone()));
/// let error = infer(&Op::Binary(BinaryOp::Add), &[&x, &y]).unwrap_err();
/// assert_eq!(error.to_string(), "f32[2, 3] and f32[2, 4] do not agree (3 ≠ 4)");
/// ```
pub fn infer(op: &Op, operands: &[&TensorType]) -> Result<TensorType, TypeError> {
    let ty = match op {
        Op::Input { .. } => return Err(TypeError::InputType),
        Op::Full { value, shape } => {
            let [] = take(operands)?;
            let ty = TensorType::new(value.dtype(), shape.clone());
            check_scalar(*value, &ty)?;
            ty
        }
        Op::Constant(literal) => {
            let [] = take(operands)?;
            constant(literal)?
        }
        Op::Iota { dtype, shape, axis } => {
            let [] = take(operands)?;
            let ty = TensorType::new(*dtype, shape.clone());
            if dtype.is_storage_only() || *dtype == DType::Bool {
                return Err(TypeError::BadAttribute { what: "an iota needs a number's dtype", ty });
            }
            check_axis(*axis, &ty)?;
            ty
        }
        Op::RandomBits { shape, .. } => {
            let [seed] = take(operands)?;
            expect_dtype(0, seed, seed.dtype == DType::I64, "i64")?;
            expect_rank(0, seed, 0)?;
            TensorType::new(DType::I32, shape.clone())
        }
        Op::Unary(op) => pointwise::unary(*op, operands)?,
        Op::Binary(op) => pointwise::binary(*op, operands)?,
        Op::Compare(_) => pointwise::compare(operands)?,
        Op::Select => pointwise::select(operands)?,
        Op::Cast(dtype) => {
            let [x] = take(operands)?;
            TensorType::new(*dtype, x.shape.clone())
        }
        Op::Bitcast(dtype) => pointwise::bitcast(*dtype, operands)?,
        Op::Reduce { kind, axes } => window::reduce(*kind, axes, operands)?,
        Op::ArgReduce { axis, .. } => window::arg_reduce(*axis, operands)?,
        Op::Scan { kind, axis, .. } => window::scan(*kind, *axis, operands)?,
        Op::SortIndices { axis, count, .. } => index::sort_indices(*axis, count, operands)?,
        Op::Reshape { shape } => view::reshape(shape, operands)?,
        Op::Permute { order } => view::permute(order, operands)?,
        Op::Expand { shape } => view::expand(shape, operands)?,
        Op::Slice { start, size, step } => view::slice(start, size, step, operands)?,
        Op::Pad { low, high, value } => view::pad(low, high, *value, operands)?,
        Op::Flip { axes } => view::flip(axes, operands)?,
        Op::Unfold { axis, size, stride, dilation } => window::unfold(*axis, *size, *stride, *dilation, operands)?,
        Op::Concat { axis } => view::concat(*axis, operands)?,
        Op::Gather { axis } => index::gather(*axis, operands)?,
        Op::Scatter { axis, kind } => index::scatter(*axis, *kind, operands)?,
        Op::Dot { dims, out } => product::dot(dims, *out, operands)?,
        Op::Dequantize { format } => product::dequantize(*format, operands)?,
        Op::Conv(dims) => window::conv(dims, operands)?,
        Op::ReduceWindow { kind, dims } => window::reduce_window(*kind, dims, operands)?,
        Op::Attention { scale, mask, .. } => product::attention(*scale, *mask, operands)?,
        Op::AttentionLogsumexp { scale, mask, .. } => product::attention_logsumexp(*scale, *mask, operands)?,
        Op::AttentionGradient { of, scale, mask, .. } => product::attention_gradient(*of, *scale, *mask, operands)?,
        Op::Loop { region, result } => region.infer(*result, operands)?,
        Op::Cond { branches, result } => branches.infer(*result, operands)?,
    };
    check_type(&ty)?;
    Ok(ty)
}

/// Refuses a type that no tensor can have: a negative size, or more bytes than can be addressed. Constant sizes count as at
/// least 1, so that the strides of an empty tensor fit as well.
pub fn check_type(ty: &TensorType) -> Result<(), TypeError> {
    let mut constant: i64 = 1;
    for size in &ty.shape {
        match size.as_const() {
            Some(n) if n < 0 => return Err(TypeError::NegativeSize { ty: ty.clone() }),
            Some(n) => match constant.checked_mul(n.max(1)) {
                Some(product) => constant = product,
                None => return Err(TypeError::TooLarge { ty: ty.clone() }),
            },
            None if size.is_undefined() => return Err(TypeError::TooLarge { ty: ty.clone() }),
            None => {}
        }
    }
    let bytes = usize::try_from(constant).ok().and_then(|n| ty.dtype.bytes_for(n));
    let fits = bytes.is_some_and(|bytes| isize::try_from(bytes).is_ok());
    if !fits || ty.elements().is_undefined() { Err(TypeError::TooLarge { ty: ty.clone() }) } else { Ok(()) }
}

fn constant(literal: &crate::Literal) -> Result<TensorType, TypeError> {
    let ty = TensorType::fixed(literal.dtype, &literal.shape);
    check_type(&ty)?;
    let elements = literal.shape.iter().product();
    let expected = ty.dtype.bytes_for(elements).ok_or_else(|| TypeError::TooLarge { ty: ty.clone() })?;
    if literal.bytes.len() != expected {
        return Err(TypeError::LiteralLength { ty, expected, got: literal.bytes.len() });
    }
    if ty.dtype == DType::Bool && literal.bytes.iter().any(|&b| b > 1) {
        return Err(TypeError::BadAttribute { what: "a byte that is neither 0 nor 1", ty });
    }
    Ok(ty)
}

/// A scalar must be one its dtype can represent.
fn check_scalar(value: Scalar, ty: &TensorType) -> Result<(), TypeError> {
    let exact = match value {
        Scalar::Float(dtype, v) => dtype.is_float() && (v.is_nan() || Scalar::float(dtype, v) == value),
        Scalar::Int(dtype, v) => !dtype.is_float() && Scalar::int(dtype, v) == value,
    };
    if exact { Ok(()) } else { Err(TypeError::BadAttribute { what: "a value out of range", ty: ty.clone() }) }
}

fn take<'a, const N: usize>(operands: &[&'a TensorType]) -> Result<[&'a TensorType; N], TypeError> {
    let expected = match N {
        0 => "no operands",
        1 => "one operand",
        2 => "two operands",
        3 => "three operands",
        _ => "four operands",
    };
    operands.try_into().map_err(|_| TypeError::OperandCount { expected, got: operands.len() })
}

fn expect_dtype(operand: usize, ty: &TensorType, ok: bool, expected: &'static str) -> Result<(), TypeError> {
    if ok { Ok(()) } else { Err(TypeError::WrongDType { operand, got: ty.dtype, expected }) }
}

/// Everything but the storage-only types.
fn expect_computable(operand: usize, ty: &TensorType) -> Result<(), TypeError> {
    match ty.dtype.is_storage_only() {
        true => Err(TypeError::StorageOnly { operand, got: ty.dtype }),
        false => Ok(()),
    }
}

fn expect_class(operand: usize, ty: &TensorType, class: DTypeClass) -> Result<(), TypeError> {
    expect_computable(operand, ty)?;
    expect_dtype(operand, ty, class.has(ty.dtype), class.text())
}

fn expect_number(operand: usize, ty: &TensorType) -> Result<(), TypeError> {
    expect_class(operand, ty, DTypeClass::Number)
}

fn expect_float(operand: usize, ty: &TensorType) -> Result<(), TypeError> {
    expect_class(operand, ty, DTypeClass::Float)
}

fn expect_rank(operand: usize, ty: &TensorType, rank: usize) -> Result<(), TypeError> {
    if ty.rank() == rank {
        return Ok(());
    }
    Err(TypeError::WrongRank { operand, ty: ty.clone(), expected: rank.to_string() })
}

fn expect_same_dtype(lhs: &TensorType, rhs: &TensorType) -> Result<(), TypeError> {
    if lhs.dtype == rhs.dtype {
        return Ok(());
    }
    Err(TypeError::DTypesDiffer { lhs: lhs.clone(), rhs: rhs.clone() })
}

fn expect_same_shape(lhs: &TensorType, rhs: &TensorType) -> Result<(), TypeError> {
    expect_same_but(lhs, rhs, usize::MAX)
}

/// The same rank, and the same sizes on every axis but one.
fn expect_same_but(lhs: &TensorType, rhs: &TensorType, axis: usize) -> Result<(), TypeError> {
    if lhs.rank() != rhs.rank() {
        return Err(TypeError::ShapesDiffer { lhs: lhs.clone(), rhs: rhs.clone(), sizes: None });
    }
    let pairs = lhs.shape.iter().zip(&rhs.shape).enumerate();
    pairs.filter(|(i, _)| *i != axis).try_for_each(|(_, (l, r))| expect_same_size(lhs, l, rhs, r))
}

fn expect_same_size(lhs: &TensorType, l: &Dim, rhs: &TensorType, r: &Dim) -> Result<(), TypeError> {
    if l == r {
        return Ok(());
    }
    let sizes = Some(Box::new((l.clone(), r.clone())));
    Err(TypeError::ShapesDiffer { lhs: lhs.clone(), rhs: rhs.clone(), sizes })
}

fn check_axis(axis: usize, ty: &TensorType) -> Result<(), TypeError> {
    if axis < ty.rank() { Ok(()) } else { Err(TypeError::AxisOutOfRange { axis, ty: ty.clone() }) }
}

/// Axes that are in range, distinct and ascending.
fn check_ascending(axes: &[usize], ty: &TensorType) -> Result<(), TypeError> {
    check_distinct(axes.iter().copied(), ty)?;
    if axes.is_sorted() { Ok(()) } else { Err(TypeError::AxesNotAscending { axes: axes.to_vec() }) }
}

/// Axes that are in range and distinct.
fn check_distinct(axes: impl Iterator<Item = usize>, ty: &TensorType) -> Result<(), TypeError> {
    let mut seen = vec![false; ty.rank()];
    for axis in axes {
        check_axis(axis, ty)?;
        if std::mem::replace(&mut seen[axis], true) {
            return Err(TypeError::RepeatedAxis { axis, ty: ty.clone() });
        }
    }
    Ok(())
}

fn check_length(attribute: &'static str, got: usize, expected: usize) -> Result<(), TypeError> {
    if got == expected { Ok(()) } else { Err(TypeError::AttributeLength { attribute, got, expected }) }
}

fn check_positive(attribute: &'static str, entries: &[usize]) -> Result<(), TypeError> {
    match entries.iter().position(|&n| n == 0) {
        Some(axis) => Err(TypeError::NotPositive { attribute, axis, got: Dim::from(0) }),
        None => Ok(()),
    }
}

fn check_not_negative(attribute: &'static str, entries: &[Dim]) -> Result<(), TypeError> {
    match entries.iter().position(is_negative) {
        Some(axis) => Err(TypeError::Negative { attribute, axis, got: entries[axis].clone() }),
        None => Ok(()),
    }
}

/// Provably below zero.
fn is_negative(size: &Dim) -> bool {
    size.as_const().is_some_and(|n| n < 0)
}

/// Provably `a > b`.
fn exceeds(a: &Dim, b: &Dim) -> bool {
    is_negative(&(b - a))
}
