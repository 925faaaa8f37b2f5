//! Convolutions of any number of spatial axes.

use super::{Built, Emit, add, along_axis, fail, flip, permute, reshape};
use crate::{ConvDims, Dim, Op, TypeError};

/// Attributes of a convolution as PyTorch has them, one entry a spatial axis.
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

/// Cross-correlation of `x: [n, c, spatial…]` with `w: [o, c/groups, kernel…]`, plus a bias a channel.
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
    let y = e.emit(Op::Conv(dims), &[x.clone(), w.clone()])?;
    add_bias(e, &y, bias)
}

#[track_caller]
fn add_bias<E: Emit>(e: &mut E, y: &E::Value, bias: Option<&E::Value>) -> Built<E> {
    let Some(bias) = bias else { return Ok(y.clone()) };
    let rank = e.ty(y).rank();
    let bias = along_axis(e, bias, rank, 1)?;
    add(e, y, &bias)
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
    let Some(spatial) = ty.rank().checked_sub(2) else {
        return fail::<_, E>(NAME, TypeError::WrongRank { operand: 1, ty, expected: "3 or more".into() });
    };
    for (attribute, got) in [
        ("stride", options.stride.len()),
        ("padding", options.padding.len()),
        ("dilation", options.dilation.len()),
        ("output_padding", output_padding.len()),
    ] {
        if got != spatial {
            return fail::<_, E>(NAME, TypeError::AttributeLength { attribute, got, expected: spatial });
        }
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
    // Mirrored taps, and channels in and out exchanged within each group.
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
    let y = e.emit(Op::Conv(dims), &[x.clone(), w])?;
    add_bias(e, &y, bias)
}
