//! Images as columns of windows, and back.

use super::{
    Built, Emit, PoolOptions, add, along_axis, arange, broadcast_to, cast, fail, full, mul, pad_constant, permute,
    reshape, size_value, slice_axis, widen,
};
use crate::{DType, Dim, Op, Scalar, ScatterKind, TypeError};

/// Fails unless there is one entry for each window axis of a tensor with two more axes at the least.
#[track_caller]
fn check_windows<E: Emit>(name: &'static str, options: &PoolOptions) -> Result<usize, E::Error> {
    let axes = options.size.len();
    for (attribute, got) in
        [("stride", options.stride.len()), ("padding", options.padding.len()), ("dilation", options.dilation.len())]
    {
        if got != axes {
            return fail::<_, E>(name, TypeError::AttributeLength { attribute, got, expected: axes });
        }
    }
    Ok(axes)
}

/// `x: [n, c, spatial…]` as `[n, c·window, windows]`: each window a column. Padding is zeros.
#[track_caller]
pub fn image_to_columns<E: Emit>(e: &mut E, x: &E::Value, options: &PoolOptions) -> Built<E> {
    const NAME: &str = "image_to_columns";
    let axes = check_windows::<E>(NAME, options)?;
    let ty = e.ty(x);
    if ty.rank() != axes + 2 {
        return fail::<_, E>(NAME, TypeError::WrongRank { operand: 0, ty, expected: (axes + 2).to_string() });
    }
    let amounts = options.padding.iter().map(|&p| (p as i64, p as i64));
    let amounts: Vec<(i64, i64)> = [(0, 0); 2].into_iter().chain(amounts).collect();
    let mut y = pad_constant(e, x, &amounts, 0.0)?;
    for (i, &size) in options.size.iter().enumerate() {
        let op = Op::Unfold { axis: i + 2, size, stride: options.stride[i], dilation: options.dilation[i] };
        y = e.emit(op, &[y])?;
    }
    // The window's axes, which came last, before those that count windows.
    let order: Vec<usize> = [0, 1].into_iter().chain(axes + 2..2 * axes + 2).chain(2..axes + 2).collect();
    let y = permute(e, &y, &order)?;
    let shape = e.ty(&y).shape;
    let product = |dims: &[Dim]| dims.iter().fold(Dim::from(1), |n, d| n * d);
    reshape(e, &y, &[shape[0].clone(), product(&shape[1..axes + 2]), product(&shape[axes + 2..])])
}

/// `[n, c·window, windows]` as the image `[n, c, spatial…]` of these spatial sizes, elements that windows share added up: the
/// transpose of [`image_to_columns`].
#[track_caller]
pub fn columns_to_image<E: Emit>(e: &mut E, x: &E::Value, sizes: &[Dim], options: &PoolOptions) -> Built<E> {
    const NAME: &str = "columns_to_image";
    let axes = check_windows::<E>(NAME, options)?;
    let (x, dtype) = widen(e, x)?;
    let ty = e.ty(&x);
    if ty.rank() != 3 || sizes.len() != axes {
        return fail::<_, E>(NAME, TypeError::WrongRank { operand: 0, ty, expected: "3".into() });
    }
    let window = Dim::from(options.size.iter().product::<usize>());
    let Some(channels) = ty.shape[1].div_exact(&window) else {
        let size = ty.shape[1].clone();
        return fail::<_, E>(NAME, TypeError::NotDivisible { what: "the columns", size, by: window });
    };
    // Where each element goes in the padded image: over the window's axes, then those that count windows.
    let mut places = full(e, Scalar::int(DType::I64, 0), &[])?;
    let mut padded = Vec::with_capacity(axes);
    let mut spread = vec![Dim::from(0); 2 * axes];
    for i in 0..axes {
        let extent = (options.size[i] as i64 - 1) * options.dilation[i] as i64 + 1;
        let length = &sizes[i] + 2 * options.padding[i] as i64;
        let windows = (&length - extent).floor_div(&Dim::from(options.stride[i])) + 1;
        let inside = arange(e, DType::I64, 0.0, options.dilation[i] as f64, options.size[i])?;
        let inside = along_axis(e, &inside, 2 * axes, i)?;
        let start = arange(e, DType::I64, 0.0, options.stride[i] as f64, windows.clone())?;
        let start = along_axis(e, &start, 2 * axes, axes + i)?;
        let place = add(e, &inside, &start)?;
        let factor = size_value(e, &length, DType::I64)?;
        let scaled = mul(e, &places, &factor)?;
        places = add(e, &scaled, &place)?;
        spread[i] = Dim::from(options.size[i]);
        spread[axes + i] = windows;
        padded.push(length);
    }
    let places = broadcast_to(e, &places, &spread)?;
    let count = e.ty(&places).elements();
    let lines = [ty.shape[0].clone(), channels.clone(), count.clone()];
    let places = reshape(e, &places, &[Dim::from(1), Dim::from(1), count])?;
    let places = broadcast_to(e, &places, &lines)?;
    let values = reshape(e, &x, &lines)?;
    let total = padded.iter().fold(Dim::from(1), |n, d| n * d);
    let zero = full(e, Scalar::float(ty.dtype, 0.0), &[ty.shape[0].clone(), channels.clone(), total])?;
    let image = e.emit(Op::Scatter { axis: 2, kind: ScatterKind::Add }, &[zero, places, values])?;
    let shape: Vec<Dim> = [ty.shape[0].clone(), channels].into_iter().chain(padded).collect();
    let mut image = reshape(e, &image, &shape)?;
    for (i, size) in sizes.iter().enumerate() {
        image = slice_axis(e, &image, i + 2, &Dim::from(options.padding[i]), size, 1)?;
    }
    cast(e, &image, dtype)
}
