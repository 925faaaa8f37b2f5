//! Type rules of the ops that combine elements along axes: reductions, scans, windows, convolutions.

use super::{
    check_ascending, check_axis, check_length, check_positive, exceeds, expect_class, expect_computable, expect_number,
    expect_same_dtype, is_negative, take,
};
use crate::{ConvDims, DType, Dim, ReduceKind, TensorType, TypeError, WindowDims};

pub(super) fn reduce(kind: ReduceKind, axes: &[usize], operands: &[&TensorType]) -> Result<TensorType, TypeError> {
    let [x] = take(operands)?;
    expect_class(0, x, kind.accepts())?;
    check_ascending(axes, x)?;
    let mut ty = x.clone();
    axes.iter().for_each(|&axis| ty.shape[axis] = Dim::from(1));
    Ok(ty)
}

pub(super) fn arg_reduce(axis: usize, operands: &[&TensorType]) -> Result<TensorType, TypeError> {
    let [x] = take(operands)?;
    expect_computable(0, x)?;
    check_axis(axis, x)?;
    if x.shape[axis].is_zero() {
        return Err(TypeError::EmptyAxis { axis, ty: x.clone() });
    }
    let mut ty = TensorType::new(DType::I64, x.shape.clone());
    ty.shape[axis] = Dim::from(1);
    Ok(ty)
}

pub(super) fn scan(kind: ReduceKind, axis: usize, operands: &[&TensorType]) -> Result<TensorType, TypeError> {
    let [x] = take(operands)?;
    expect_class(0, x, kind.accepts())?;
    check_axis(axis, x)?;
    Ok(x.clone())
}

pub(super) fn unfold(
    axis: usize,
    size: usize,
    stride: usize,
    dilation: usize,
    operands: &[&TensorType],
) -> Result<TensorType, TypeError> {
    let [x] = take(operands)?;
    check_axis(axis, x)?;
    check_positive("size", &[size])?;
    check_positive("stride", &[stride])?;
    check_positive("dilation", &[dilation])?;
    let window = extent(&Dim::from(size), dilation);
    let mut ty = x.clone();
    ty.shape[axis] = positions(axis, &window, &x.shape[axis], stride, x)?;
    ty.shape.push(Dim::from(size));
    Ok(ty)
}

pub(super) fn reduce_window(
    kind: ReduceKind,
    dims: &WindowDims,
    operands: &[&TensorType],
) -> Result<TensorType, TypeError> {
    let [x] = take(operands)?;
    expect_class(0, x, kind.accepts())?;
    check_length("size", dims.size.len(), x.rank())?;
    check_length("stride", dims.stride.len(), x.rank())?;
    check_length("dilation", dims.dilation.len(), x.rank())?;
    check_length("padding", dims.padding.len(), x.rank())?;
    check_positive("size", &dims.size)?;
    check_positive("stride", &dims.stride)?;
    check_positive("dilation", &dims.dilation)?;
    let mut ty = x.clone();
    for (axis, out) in ty.shape.iter_mut().enumerate() {
        let (low, high) = dims.padding[axis];
        // An axis that nothing slides over may be empty.
        if (dims.size[axis], dims.stride[axis], low, high) == (1, 1, 0, 0) {
            continue;
        }
        let window = extent(&Dim::from(dims.size[axis]), dims.dilation[axis]);
        let padded = &x.shape[axis] + Dim::from(low) + Dim::from(high);
        *out = positions(axis, &window, &padded, dims.stride[axis], x)?;
    }
    Ok(ty)
}

pub(super) fn conv(dims: &ConvDims, operands: &[&TensorType]) -> Result<TensorType, TypeError> {
    let [x, w] = take(operands)?;
    expect_number(0, x)?;
    expect_number(1, w)?;
    expect_same_dtype(x, w)?;
    if x.rank() < 3 {
        return Err(TypeError::WrongRank { operand: 0, ty: x.clone(), expected: "3 or more".to_owned() });
    }
    if w.rank() != x.rank() {
        return Err(TypeError::ShapesDiffer { lhs: x.clone(), rhs: w.clone(), sizes: None });
    }
    let spatial = x.rank() - 2;
    check_length("stride", dims.stride.len(), spatial)?;
    check_length("padding", dims.padding.len(), spatial)?;
    check_length("dilation", dims.dilation.len(), spatial)?;
    check_length("input_dilation", dims.input_dilation.len(), spatial)?;
    check_positive("stride", &dims.stride)?;
    check_positive("dilation", &dims.dilation)?;
    check_positive("input_dilation", &dims.input_dilation)?;
    check_positive("groups", &[dims.groups])?;
    let groups = Dim::from(dims.groups);
    if &w.shape[1] * &groups != x.shape[1] {
        let sizes = Some(Box::new((x.shape[1].clone(), &w.shape[1] * &groups)));
        return Err(TypeError::ShapesDiffer { lhs: x.clone(), rhs: w.clone(), sizes });
    }
    if w.shape[0].div_exact(&groups).is_none() {
        let what = "output channels must be a multiple of the groups";
        return Err(TypeError::NotDivisible { what, size: w.shape[0].clone(), by: groups });
    }
    let mut shape = vec![x.shape[0].clone(), w.shape[0].clone()];
    for i in 0..spatial {
        let kernel = &w.shape[i + 2];
        if kernel.is_zero() {
            return Err(TypeError::NotPositive { attribute: "kernel size", axis: i + 2, got: kernel.clone() });
        }
        let window = extent(kernel, dims.dilation[i]);
        let (low, high) = dims.padding[i];
        let padded = dilated(&x.shape[i + 2], dims.input_dilation[i]) + Dim::from(low) + Dim::from(high);
        if is_negative(&padded) {
            return Err(TypeError::Negative { attribute: "the padded size", axis: i + 2, got: padded });
        }
        shape.push(positions(i + 2, &window, &padded, dims.stride[i], x)?);
    }
    Ok(TensorType::new(x.dtype, shape))
}

/// Elements from the first to the last tap of a window.
fn extent(taps: &Dim, dilation: usize) -> Dim {
    (taps - 1) * Dim::from(dilation) + 1
}

/// Elements of an axis with `dilation − 1` zeros between neighbours; an empty axis stays empty.
fn dilated(size: &Dim, dilation: usize) -> Dim {
    if dilation == 1 { size.clone() } else { Dim::max_of([extent(size, dilation), Dim::from(0)]) }
}

/// How many places a window has.
fn positions(axis: usize, window: &Dim, padded: &Dim, stride: usize, ty: &TensorType) -> Result<Dim, TypeError> {
    if exceeds(window, padded) {
        let (window, padded) = (window.clone(), padded.clone());
        return Err(TypeError::WindowTooLarge { axis, window, padded, ty: ty.clone() });
    }
    Ok((padded - window).floor_div(&Dim::from(stride)) + 1)
}
