//! Type rules of the ops that move elements without looking at them.

use super::{
    check_ascending, check_axis, check_length, check_not_negative, check_scalar, check_type, exceeds,
    expect_computable, expect_same_but, expect_same_dtype, expect_same_size, take,
};
use crate::{Dim, Scalar, TensorType, TypeError};

pub(super) fn reshape(shape: &[Dim], operands: &[&TensorType]) -> Result<TensorType, TypeError> {
    let [x] = take(operands)?;
    let ty = TensorType::new(x.dtype, shape);
    check_type(&ty)?;
    if ty.elements() != x.elements() {
        return Err(TypeError::ElementCounts { from: x.clone(), to: ty });
    }
    Ok(ty)
}

pub(super) fn permute(order: &[usize], operands: &[&TensorType]) -> Result<TensorType, TypeError> {
    let [x] = take(operands)?;
    let mut seen = vec![false; x.rank()];
    let fresh = |&axis: &usize| seen.get_mut(axis).is_some_and(|s| !std::mem::replace(s, true));
    if order.len() != x.rank() || !order.iter().all(fresh) {
        return Err(TypeError::NotAPermutation { order: order.to_vec(), ty: x.clone() });
    }
    Ok(TensorType::new(x.dtype, order.iter().map(|&axis| x.shape[axis].clone()).collect::<Vec<_>>()))
}

pub(super) fn expand(shape: &[Dim], operands: &[&TensorType]) -> Result<TensorType, TypeError> {
    let [x] = take(operands)?;
    let ty = TensorType::new(x.dtype, shape);
    if ty.rank() != x.rank() {
        return Err(TypeError::ShapesDiffer { lhs: x.clone(), rhs: ty, sizes: None });
    }
    for (from, to) in x.shape.iter().zip(shape).filter(|(from, _)| !from.is_one()) {
        expect_same_size(x, from, &ty, to)?;
    }
    Ok(ty)
}

pub(super) fn slice(
    start: &[Dim],
    size: &[Dim],
    step: &[i64],
    operands: &[&TensorType],
) -> Result<TensorType, TypeError> {
    let [x] = take(operands)?;
    check_length("start", start.len(), x.rank())?;
    check_length("size", size.len(), x.rank())?;
    check_length("step", step.len(), x.rank())?;
    if let Some(axis) = step.iter().position(|&s| s <= 0) {
        return Err(TypeError::NotPositive { attribute: "step", axis, got: Dim::from(step[axis]) });
    }
    check_not_negative("start", start)?;
    check_not_negative("size", size)?;
    for (axis, length) in x.shape.iter().enumerate() {
        let (start, size, step) = (&start[axis], &size[axis], step[axis]);
        let end = if size.is_zero() { start.clone() } else { start + (size - 1) * step + 1 };
        if end.is_undefined() || exceeds(&end, length) {
            let (start, size) = (start.clone(), size.clone());
            return Err(TypeError::SliceOutOfRange { axis, start, size, step, ty: x.clone() });
        }
    }
    Ok(TensorType::new(x.dtype, size))
}

pub(super) fn pad(low: &[Dim], high: &[Dim], value: Scalar, operands: &[&TensorType]) -> Result<TensorType, TypeError> {
    let [x] = take(operands)?;
    expect_computable(0, x)?;
    check_length("low", low.len(), x.rank())?;
    check_length("high", high.len(), x.rank())?;
    check_not_negative("low", low)?;
    check_not_negative("high", high)?;
    if value.dtype() != x.dtype {
        return Err(TypeError::BadAttribute { what: "a value of another dtype", ty: x.clone() });
    }
    check_scalar(value, x)?;
    let padded = x.shape.iter().zip(low.iter().zip(high)).map(|(n, (low, high))| low + n + high);
    Ok(TensorType::new(x.dtype, padded.collect::<Vec<_>>()))
}

pub(super) fn flip(axes: &[usize], operands: &[&TensorType]) -> Result<TensorType, TypeError> {
    let [x] = take(operands)?;
    check_ascending(axes, x)?;
    Ok(x.clone())
}

pub(super) fn concat(axis: usize, operands: &[&TensorType]) -> Result<TensorType, TypeError> {
    let Some((first, rest)) = operands.split_first() else {
        return Err(TypeError::OperandCount { expected: "at least one operand", got: 0 });
    };
    check_axis(axis, first)?;
    let mut ty = TensorType::clone(first);
    for other in rest {
        expect_same_dtype(first, other)?;
        expect_same_but(first, other, axis)?;
        ty.shape[axis] += &other.shape[axis];
    }
    Ok(ty)
}
