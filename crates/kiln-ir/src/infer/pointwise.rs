//! Type rules of the pointwise ops: operands of one shape, a class of dtypes for each function.

use super::{expect_class, expect_computable, expect_dtype, expect_same_dtype, expect_same_shape, take};
use crate::{BinaryOp, DType, TensorType, TypeError, UnaryOp};

pub(super) fn unary(op: UnaryOp, operands: &[&TensorType]) -> Result<TensorType, TypeError> {
    let [x] = take(operands)?;
    expect_class(0, x, op.row().accepts)?;
    Ok(TensorType::new(op.result(x.dtype), x.shape.clone()))
}

pub(super) fn binary(op: BinaryOp, operands: &[&TensorType]) -> Result<TensorType, TypeError> {
    let [x, y] = take(operands)?;
    expect_class(0, x, op.row().accepts)?;
    expect_class(1, y, op.row().accepts)?;
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
