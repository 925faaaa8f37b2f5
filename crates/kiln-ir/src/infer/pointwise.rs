//! Type rules of the pointwise ops: operands of one shape, a class of dtypes for each function.

use super::{expect_computable, expect_dtype, expect_float, expect_number, expect_same_dtype, expect_same_shape, take};
use crate::{BinaryOp, DType, TensorType, TypeError, UnaryOp};

pub(super) fn unary(op: UnaryOp, operands: &[&TensorType]) -> Result<TensorType, TypeError> {
    let [x] = take(operands)?;
    match op {
        UnaryOp::Neg | UnaryOp::Abs | UnaryOp::Sign => expect_number(0, x)?,
        UnaryOp::Not => expect_bits(0, x)?,
        UnaryOp::IsNan => {
            expect_float(0, x)?;
            return Ok(TensorType::new(DType::Bool, x.shape.clone()));
        }
        UnaryOp::Floor
        | UnaryOp::Ceil
        | UnaryOp::Round
        | UnaryOp::Trunc
        | UnaryOp::Sqrt
        | UnaryOp::Rsqrt
        | UnaryOp::Recip
        | UnaryOp::Exp
        | UnaryOp::Exp2
        | UnaryOp::Expm1
        | UnaryOp::Log
        | UnaryOp::Log2
        | UnaryOp::Log1p
        | UnaryOp::Sin
        | UnaryOp::Cos
        | UnaryOp::Tan
        | UnaryOp::Asin
        | UnaryOp::Acos
        | UnaryOp::Atan
        | UnaryOp::Tanh
        | UnaryOp::Erf
        | UnaryOp::ErfInv
        | UnaryOp::Lgamma => expect_float(0, x)?,
    }
    Ok(x.clone())
}

pub(super) fn binary(op: BinaryOp, operands: &[&TensorType]) -> Result<TensorType, TypeError> {
    let [x, y] = take(operands)?;
    for (operand, ty) in [x, y].into_iter().enumerate() {
        match op {
            BinaryOp::Add | BinaryOp::Mul | BinaryOp::Max | BinaryOp::Min => expect_computable(operand, ty)?,
            BinaryOp::Sub | BinaryOp::Div | BinaryOp::Rem => expect_number(operand, ty)?,
            BinaryOp::Pow | BinaryOp::Atan2 => expect_float(operand, ty)?,
            BinaryOp::And | BinaryOp::Or | BinaryOp::Xor => expect_bits(operand, ty)?,
            BinaryOp::Shl | BinaryOp::Shr => {
                expect_computable(operand, ty)?;
                expect_dtype(operand, ty, ty.dtype.is_int(), "an integer")?;
            }
        }
    }
    expect_same_dtype(x, y)?;
    expect_same_shape(x, y)?;
    Ok(x.clone())
}

pub(super) fn compare(operands: &[&TensorType]) -> Result<TensorType, TypeError> {
    let [x, y] = take(operands)?;
    expect_computable(0, x)?;
    expect_computable(1, y)?;
    expect_same_dtype(x, y)?;
    expect_same_shape(x, y)?;
    Ok(TensorType::new(DType::Bool, x.shape.clone()))
}

pub(super) fn select(operands: &[&TensorType]) -> Result<TensorType, TypeError> {
    let [condition, x, y] = take(operands)?;
    expect_dtype(0, condition, condition.dtype == DType::Bool, "bool")?;
    expect_computable(1, x)?;
    expect_computable(2, y)?;
    expect_same_dtype(x, y)?;
    expect_same_shape(condition, x)?;
    expect_same_shape(x, y)?;
    Ok(x.clone())
}

pub(super) fn bitcast(to: DType, operands: &[&TensorType]) -> Result<TensorType, TypeError> {
    let [x] = take(operands)?;
    let from = x.dtype;
    // A bool is 0 or 1, which other bytes need not be.
    if from != to && (from.size_in_bits() != to.size_in_bits() || to == DType::Bool) {
        return Err(TypeError::BadBitcast { from, to });
    }
    Ok(TensorType::new(to, x.shape.clone()))
}

fn expect_bits(operand: usize, ty: &TensorType) -> Result<(), TypeError> {
    expect_computable(operand, ty)?;
    expect_dtype(operand, ty, ty.dtype.is_int() || ty.dtype == DType::Bool, "an integer or bool")
}
