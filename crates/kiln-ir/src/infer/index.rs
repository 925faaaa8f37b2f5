//! Type rules of the ops that read, write or produce indices.

use super::{
    check_axis, check_not_negative, exceeds, expect_class, expect_computable, expect_dtype, expect_same_but,
    expect_same_dtype, expect_same_shape, take,
};
use crate::{DType, Dim, ScatterKind, TensorType, TypeError};

pub(super) fn sort_indices(axis: usize, count: &Dim, operands: &[&TensorType]) -> Result<TensorType, TypeError> {
    let [x] = take(operands)?;
    expect_computable(0, x)?;
    check_axis(axis, x)?;
    check_not_negative("count", std::slice::from_ref(count))?;
    if exceeds(count, &x.shape[axis]) {
        return Err(TypeError::CountTooLarge { count: count.clone(), axis, ty: x.clone() });
    }
    let mut ty = TensorType::new(DType::I64, x.shape.clone());
    ty.shape[axis] = count.clone();
    Ok(ty)
}

pub(super) fn gather(axis: usize, operands: &[&TensorType]) -> Result<TensorType, TypeError> {
    let [x, index] = take(operands)?;
    expect_index(index)?;
    check_axis(axis, x)?;
    expect_same_but(x, index, axis)?;
    Ok(TensorType::new(x.dtype, index.shape.clone()))
}

pub(super) fn scatter(axis: usize, kind: ScatterKind, operands: &[&TensorType]) -> Result<TensorType, TypeError> {
    let [x, index, updates] = take(operands)?;
    for (operand, ty) in [(0, x), (2, updates)] {
        expect_class(operand, ty, kind.accepts())?;
    }
    expect_index(index)?;
    expect_same_dtype(x, updates)?;
    check_axis(axis, x)?;
    expect_same_but(x, index, axis)?;
    expect_same_shape(index, updates)?;
    Ok(x.clone())
}

fn expect_index(index: &TensorType) -> Result<(), TypeError> {
    expect_dtype(1, index, matches!(index.dtype, DType::I32 | DType::I64), "i32 or i64")
}
