//! Rules of dot and convolution: each gradient is a product of the cotangent with the other operand.

use super::views::{cut, inverse};
use super::{Gradients, when};
use kiln_ir::build::{BuildError, Built, Emit, cast, flip, permute, reshape};
use kiln_ir::decompose::conv_taps;
use kiln_ir::{ConvDims, Dim, DotDims, Op, Source, TensorType, TypeError};

/// The cotangents of both sides, in their dtype: where the result of short floats is f32, its cotangent is rounded to them.
pub(super) fn dot<E: Emit>(
    e: &mut E,
    dims: &DotDims,
    [a, b]: [&E::Value; 2],
    g: &E::Value,
    wanted: &[bool],
) -> Gradients<E> {
    let (a_ty, b_ty) = (e.ty(a), e.ty(b));
    let g = cast(e, g, a_ty.dtype)?;
    let side = |ty: &TensorType, batch: &[usize], contract: &[usize]| Side {
        batch: batch.to_vec(),
        contract: contract.to_vec(),
        free: (0..ty.rank()).filter(|axis| !batch.contains(axis) && !contract.contains(axis)).collect(),
    };
    let left = side(&a_ty, &dims.lhs_batch, &dims.lhs_contract);
    let right = side(&b_ty, &dims.rhs_batch, &dims.rhs_contract);
    let (batch, a_free) = (left.batch.len(), left.free.len());
    let b_axes: Vec<usize> = (batch + a_free..batch + a_free + right.free.len()).collect();
    let a_axes: Vec<usize> = (batch..batch + a_free).collect();
    let da = when::<E>(wanted[0], || dot_side(e, &g, &b_axes, &left, b, &right))?;
    let db = when::<E>(wanted[1], || dot_side(e, &g, &a_axes, &right, a, &left))?;
    Ok(vec![da, db])
}

/// What the axes of one side of a dot are for.
struct Side {
    batch: Vec<usize>,
    contract: Vec<usize>,
    free: Vec<usize>,
}

/// The cotangent of one side: that of the result, contracted with the other side over the other's free axes, which are
/// `summed` in the result.
fn dot_side<E: Emit>(
    e: &mut E,
    g: &E::Value,
    summed: &[usize],
    own: &Side,
    other_value: &E::Value,
    other: &Side,
) -> Built<E> {
    let batch: Vec<usize> = (0..own.batch.len()).collect();
    // What is left of the other side, in its order, stands for the own axes that were contracted with it.
    let mut pairs: Vec<(usize, usize)> = other.contract.iter().copied().zip(own.contract.iter().copied()).collect();
    pairs.sort_unstable();
    let contracted: Vec<usize> = pairs.into_iter().map(|(_, own)| own).collect();
    let g_first: Vec<usize> = own.batch.iter().chain(&own.free).chain(&contracted).copied().collect();
    let g_last: Vec<usize> = own.batch.iter().chain(&contracted).chain(&own.free).copied().collect();
    let g_dims = (batch, summed.to_vec());
    let other_dims = (other.batch.clone(), other.free.clone());
    let out = e.ty(g).dtype;
    // The order that comes out right without a transposition, if one does.
    let swap = g_last.is_sorted() && !g_first.is_sorted();
    let (axes, lhs, rhs, lhs_dims, rhs_dims) = match swap {
        true => (g_last, other_value, g, other_dims, g_dims),
        false => (g_first, g, other_value, g_dims, other_dims),
    };
    let dims =
        DotDims { lhs_batch: lhs_dims.0, rhs_batch: rhs_dims.0, lhs_contract: lhs_dims.1, rhs_contract: rhs_dims.1 };
    let d = e.emit(Op::Dot { dims: dims.into(), out }, &[lhs.clone(), rhs.clone()])?;
    permute(e, &d, &inverse(&axes))
}

/// The cotangents of input and kernel.
pub(super) fn conv<E: Emit>(
    e: &mut E,
    dims: &ConvDims,
    [x, w]: [&E::Value; 2],
    g: &E::Value,
    wanted: &[bool],
) -> Gradients<E> {
    let dx = when::<E>(wanted[0], || conv_input(e, dims, x, w, g))?;
    let dw = when::<E>(wanted[1], || conv_kernel(e, dims, x, w, g))?;
    Ok(vec![dx, dw])
}

/// A convolution of the cotangent with the mirrored kernel, channels in and out exchanged, steps and spacings too.
fn conv_input<E: Emit>(e: &mut E, dims: &ConvDims, x: &E::Value, w: &E::Value, g: &E::Value) -> Built<E> {
    let (x_ty, w_ty, out) = (e.ty(x), e.ty(w), e.ty(g).shape);
    let spatial = x_ty.rank() - 2;
    let mut padding = Vec::with_capacity(spatial);
    for i in 0..spatial {
        let Some(taps) = w_ty.shape[i + 2].as_const() else {
            let cause = TypeError::BadAttribute { what: "a symbolic kernel size", ty: w_ty };
            let (function, at) = ("gradient of a convolution", Source::caller());
            return Err(E::Error::from(BuildError { function, cause: Box::new(cause), at }));
        };
        let (stride, spacing) = (dims.stride[i] as i64, dims.input_dilation[i] as i64);
        let reach = (taps - 1) * dims.dilation[i] as i64;
        let (low, high) = dims.padding[i];
        let after = match (x_ty.shape[i + 2].as_const(), out[i + 2].as_const()) {
            (Some(length), Some(places)) => (length - 1) * spacing + low - (places - 1) * stride,
            // As much as can be needed; what is too much is cut off at the end.
            _ => reach - high + stride - 1,
        };
        padding.push((reach - low, after));
    }
    let wide: Vec<usize> = (2..w_ty.rank()).filter(|&axis| !w_ty.shape[axis].is_one()).collect();
    let mut kernel = if wide.is_empty() { w.clone() } else { flip(e, w, &wide)? };
    if dims.groups == 1 {
        let order: Vec<usize> = [1, 0].into_iter().chain(2..w_ty.rank()).collect();
        kernel = permute(e, &kernel, &order)?;
    } else {
        let groups = Dim::from(dims.groups);
        let outputs = group_size(&w_ty.shape[0], &groups);
        let inputs = &w_ty.shape[1];
        let taps = &w_ty.shape[2..];
        let split: Vec<Dim> = [&groups, &outputs, inputs].into_iter().chain(taps).cloned().collect();
        kernel = reshape(e, &kernel, &split)?;
        let order: Vec<usize> = [0, 2, 1].into_iter().chain(3..split.len()).collect();
        kernel = permute(e, &kernel, &order)?;
        let joined: Vec<Dim> = [&groups * inputs, outputs].iter().chain(taps).cloned().collect();
        kernel = reshape(e, &kernel, &joined)?;
    }
    let back = ConvDims {
        stride: dims.input_dilation.clone(),
        padding,
        dilation: dims.dilation.clone(),
        input_dilation: dims.stride.clone(),
        groups: dims.groups,
    };
    let d = e.emit(Op::Conv(back.into()), &[g.clone(), kernel])?;
    cut(e, &d, &vec![Dim::from(0); x_ty.rank()], &x_ty.shape)
}

/// Channels of one group; the type rule of a convolution makes sure that they divide evenly.
fn group_size(channels: &Dim, groups: &Dim) -> Dim {
    channels.div_exact(groups).unwrap_or_else(|| channels.floor_div(groups))
}

/// The input under each tap, contracted with the cotangent over images and places.
fn conv_kernel<E: Emit>(e: &mut E, dims: &ConvDims, x: &E::Value, w: &E::Value, g: &E::Value) -> Built<E> {
    let (w_ty, g_ty) = (e.ty(w), e.ty(g));
    let spatial = w_ty.rank() - 2;
    let taps = conv_taps(e, dims, x, &w_ty.shape[2..], &g_ty.shape[2..])?;
    let (g, taps, dims) = if dims.groups == 1 {
        let summed: Vec<usize> = [0].into_iter().chain(2..2 + spatial).collect();
        (g.clone(), taps, DotDims { lhs_contract: summed.clone(), rhs_contract: summed, ..DotDims::default() })
    } else {
        let groups = Dim::from(dims.groups);
        let mut g_shape = g_ty.shape.clone();
        g_shape.splice(1..2, [groups.clone(), group_size(&w_ty.shape[0], &groups)]);
        let mut taps_shape = e.ty(&taps).shape;
        taps_shape.splice(1..2, [groups, w_ty.shape[1].clone()]);
        let (g, taps) = (reshape(e, g, &g_shape)?, reshape(e, &taps, &taps_shape)?);
        let summed: Vec<usize> = [0].into_iter().chain(3..3 + spatial).collect();
        let (lhs_batch, rhs_batch) = (vec![1], vec![1]);
        (g, taps, DotDims { lhs_batch, rhs_batch, lhs_contract: summed.clone(), rhs_contract: summed })
    };
    let d = e.emit(Op::Dot { dims: dims.into(), out: w_ty.dtype }, &[g, taps])?;
    reshape(e, &d, &w_ty.shape)
}
