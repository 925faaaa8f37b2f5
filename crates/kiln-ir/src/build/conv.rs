//! Convolutions of any number of spatial axes.

use super::{Built, Emit, add, along_axis, fail, flip, permute, reshape, slice_axis, sum, transpose};
use crate::{ConvDims, Dim, Op, TypeError};

/// Attributes of a convolution as PyTorch has them, one entry per spatial axis.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ConvOptions {
    /// Step of the window.
    pub stride: Vec<usize>,
    /// Zeros on both sides.
    pub padding: Vec<usize>,
    /// Spacing between the kernel's taps.
    pub dilation: Vec<usize>,
    /// Channel groups.
    pub groups: usize,
}

impl ConvOptions {
    /// Step 1, no padding, no dilation, one group.
    pub fn new(spatial: usize) -> ConvOptions {
        ConvOptions { stride: vec![1; spatial], padding: vec![0; spatial], dilation: vec![1; spatial], groups: 1 }
    }
}

/// Cross-correlation of `x: [n, c, spatial…]` with `w: [o, c/groups, kernel…]`, plus a bias per channel.
#[track_caller]
pub fn conv<E: Emit>(
    e: &mut E,
    x: &E::Value,
    w: &E::Value,
    bias: Option<&E::Value>,
    options: &ConvOptions,
) -> Built<E> {
    let dims = ConvDims {
        stride: options.stride.clone(),
        padding: options.padding.iter().map(|&p| (p as i64, p as i64)).collect(),
        dilation: options.dilation.clone(),
        input_dilation: vec![1; options.stride.len()],
        groups: options.groups,
    };
    let y = e.emit(Op::Conv(dims.into()), &[x.clone(), w.clone()])?;
    add_bias(e, &y, bias)
}

#[track_caller]
fn add_bias<E: Emit>(e: &mut E, y: &E::Value, bias: Option<&E::Value>) -> Built<E> {
    let Some(bias) = bias else { return Ok(y.clone()) };
    let rank = e.ty(y).rank();
    let bias = along_axis(e, bias, rank, 1)?;
    add(e, y, &bias)
}

/// Fails unless there is one option for each spatial axis of a tensor; returns their number.
#[track_caller]
fn check_options<E: Emit>(e: &E, name: &'static str, x: &E::Value, options: &ConvOptions) -> Result<usize, E::Error> {
    let ty = e.ty(x);
    let Some(spatial) = ty.rank().checked_sub(2) else {
        return fail::<_, E>(name, TypeError::WrongRank { operand: 1, ty, expected: "3 or more".into() });
    };
    for (attribute, got) in
        [("stride", options.stride.len()), ("padding", options.padding.len()), ("dilation", options.dilation.len())]
    {
        if got != spatial {
            return fail::<_, E>(name, TypeError::AttributeLength { attribute, got, expected: spatial });
        }
    }
    if let Some(axis) = options.stride.iter().position(|&stride| stride == 0) {
        return fail::<_, E>(name, TypeError::NotPositive { attribute: "stride", axis, got: Dim::from(0) });
    }
    Ok(spatial)
}

/// The transpose of a convolution (its gradient in x), with `w: [c, o/groups, kernel…]`; `output_padding` makes one side of
/// the result longer.
#[track_caller]
pub fn conv_transpose<E: Emit>(
    e: &mut E,
    x: &E::Value,
    w: &E::Value,
    bias: Option<&E::Value>,
    options: &ConvOptions,
    output_padding: &[usize],
) -> Built<E> {
    const NAME: &str = "conv_transpose";
    let ty = e.ty(w);
    let spatial = check_options(e, NAME, w, options)?;
    if output_padding.len() != spatial {
        let got = output_padding.len();
        return fail::<_, E>(NAME, TypeError::AttributeLength { attribute: "output_padding", got, expected: spatial });
    }
    let groups = Dim::from(options.groups);
    let Some(inputs) = ty.shape[0].div_exact(&groups) else {
        let size = ty.shape[0].clone();
        return fail::<_, E>(NAME, TypeError::NotDivisible { what: "input channels", size, by: groups });
    };
    let mut padding = Vec::with_capacity(spatial);
    for (axis, size) in ty.shape[2..].iter().enumerate() {
        let Some(taps) = size.as_const() else {
            return fail::<_, E>(NAME, TypeError::BadAttribute { what: "a symbolic kernel size", ty });
        };
        let reach = (taps - 1) * options.dilation[axis] as i64 - options.padding[axis] as i64;
        padding.push((reach, reach + output_padding[axis] as i64));
    }
    // Mirrored taps, with input and output channels swapped within each group.
    let mirrored = flip(e, w, &(2..ty.rank()).collect::<Vec<_>>())?;
    let outputs = ty.shape[1].clone();
    let kernel = &ty.shape[2..];
    let split: Vec<Dim> = [groups.clone(), inputs.clone(), outputs.clone()].iter().chain(kernel).cloned().collect();
    let split_w = reshape(e, &mirrored, &split)?;
    let order: Vec<usize> = [0, 2, 1].into_iter().chain(3..split.len()).collect();
    let exchanged = permute(e, &split_w, &order)?;
    let joined: Vec<Dim> = [groups * outputs, inputs].iter().chain(kernel).cloned().collect();
    let w = reshape(e, &exchanged, &joined)?;
    let dims = ConvDims {
        stride: vec![1; spatial],
        padding,
        dilation: options.dilation.clone(),
        input_dilation: options.stride.clone(),
        groups: options.groups,
    };
    let y = e.emit(Op::Conv(dims.into()), &[x.clone(), w])?;
    add_bias(e, &y, bias)
}

/// The gradients of a convolution.
#[derive(Debug, Clone, PartialEq)]
pub struct ConvGradients<V> {
    /// The gradient of the input.
    pub input: V,
    /// The gradient of the weight.
    pub weight: V,
    /// The gradient of the bias, per channel.
    pub bias: V,
}

/// The gradients of [`conv`] of x with w: in the input the transposed convolution, in the weight the convolution of the input
/// with the gradient over the batch, in the bias a sum.
#[track_caller]
pub fn conv_backward<E: Emit>(
    e: &mut E,
    gradient: &E::Value,
    x: &E::Value,
    w: &E::Value,
    options: &ConvOptions,
) -> Result<ConvGradients<E::Value>, E::Error> {
    let (x_shape, w_shape) = (e.ty(x).shape, e.ty(w).shape);
    Ok(ConvGradients {
        input: conv_input_gradient(e, gradient, &x_shape, w, options)?,
        weight: conv_weight_gradient(e, gradient, x, &w_shape, options)?,
        bias: channel_sum(e, gradient)?,
    })
}

/// The gradients of [`conv_transpose`] of x with w: in the input the convolution itself, in the weight that of a convolution
/// with input and result swapped, in the bias a sum.
#[track_caller]
pub fn conv_transpose_backward<E: Emit>(
    e: &mut E,
    gradient: &E::Value,
    x: &E::Value,
    w: &E::Value,
    options: &ConvOptions,
) -> Result<ConvGradients<E::Value>, E::Error> {
    let shape = e.ty(x).shape;
    let mut input = conv(e, gradient, w, None, options)?;
    // A result padded by more than a step has windows that no element of x made.
    for (axis, size) in shape.iter().enumerate().skip(2) {
        input = slice_axis(e, &input, axis, &Dim::from(0), size, 1)?;
    }
    let w_shape = e.ty(w).shape;
    Ok(ConvGradients {
        input,
        weight: conv_weight_gradient(e, x, gradient, &w_shape, options)?,
        bias: channel_sum(e, gradient)?,
    })
}

/// The gradient of [`conv`] in its input, of this shape.
#[track_caller]
pub fn conv_input_gradient<E: Emit>(
    e: &mut E,
    gradient: &E::Value,
    shape: &[Dim],
    w: &E::Value,
    options: &ConvOptions,
) -> Built<E> {
    const NAME: &str = "conv_input_gradient";
    check_options(e, NAME, w, options)?;
    let (ty, w_ty) = (e.ty(gradient), e.ty(w));
    if ty.rank() != w_ty.rank() || shape.len() != w_ty.rank() {
        return fail::<_, E>(NAME, TypeError::ShapesDiffer { lhs: ty, rhs: w_ty, sizes: None });
    }
    let mut output_padding = Vec::with_capacity(options.stride.len());
    for (i, &stride) in options.stride.iter().enumerate() {
        let window = (&w_ty.shape[i + 2] - 1) * options.dilation[i] as i64 + 1;
        let left = (&shape[i + 2] + 2 * options.padding[i] as i64 - window).modulo(&Dim::from(stride));
        // Elements at the end that no window reached; as many as there can be where the size is symbolic.
        output_padding.push(left.as_usize().unwrap_or(stride - 1));
    }
    let mut y = conv_transpose(e, gradient, w, None, options, &output_padding)?;
    for (axis, size) in shape.iter().enumerate().skip(2) {
        y = slice_axis(e, &y, axis, &Dim::from(0), size, 1)?;
    }
    Ok(y)
}

/// The gradient of [`conv`] in its weight, of this shape: a convolution of x with the gradient as its taps, step and dilation
/// swapped, in which the batch is the channels and a group's input channels the batch.
#[track_caller]
pub fn conv_weight_gradient<E: Emit>(
    e: &mut E,
    gradient: &E::Value,
    x: &E::Value,
    shape: &[Dim],
    options: &ConvOptions,
) -> Built<E> {
    const NAME: &str = "conv_weight_gradient";
    check_options(e, NAME, x, options)?;
    let (ty, x_ty) = (e.ty(gradient), e.ty(x));
    if ty.rank() != x_ty.rank() || shape.len() != x_ty.rank() {
        return fail::<_, E>(NAME, TypeError::ShapesDiffer { lhs: ty, rhs: x_ty, sizes: None });
    }
    let groups = Dim::from(options.groups);
    let (batch, inputs, spatial) = (&x_ty.shape[0], &shape[1], &x_ty.shape[2..]);
    let split: Vec<Dim> = [batch, &groups, inputs].into_iter().chain(spatial).cloned().collect();
    let split = reshape(e, x, &split)?;
    let order: Vec<usize> = [2, 1, 0].into_iter().chain(3..x_ty.rank() + 1).collect();
    let exchanged = permute(e, &split, &order)?;
    let joined: Vec<Dim> = [inputs.clone(), &groups * batch].iter().chain(spatial).cloned().collect();
    let images = reshape(e, &exchanged, &joined)?;
    let taps = transpose(e, gradient, 0, 1)?;
    let dims = ConvDims {
        stride: options.dilation.clone(),
        padding: options.padding.iter().map(|&p| (p as i64, p as i64)).collect(),
        dilation: options.stride.clone(),
        input_dilation: vec![1; options.stride.len()],
        groups: options.groups,
    };
    let y = e.emit(Op::Conv(dims.into()), &[images, taps])?;
    let mut y = transpose(e, &y, 0, 1)?;
    // Where the last step did not fill the input, the taps fit in once more.
    for (axis, size) in shape.iter().enumerate().skip(2) {
        y = slice_axis(e, &y, axis, &Dim::from(0), size, 1)?;
    }
    Ok(y)
}

/// The sum over all axes but the channels'.
#[track_caller]
fn channel_sum<E: Emit>(e: &mut E, x: &E::Value) -> Built<E> {
    let axes: Vec<usize> = (0..e.ty(x).rank()).filter(|&axis| axis != 1).collect();
    sum(e, x, &axes, false)
}
