//! Gradients of pooling, as functions of the gradient of its result.

use super::pool::{adaptive_weights, divide_by_count};
use super::{Built, Emit, PoolOptions, cast, fail, full, reshape, slice_axis, transform_axis, widen};
use crate::{ConvDims, Dim, Op, Scalar, ScatterKind, TensorType, TypeError};

/// The gradient of a maximum pool: each window's goes to the position that [`super::max_pool_with_indices`] returned, in a
/// tensor of the input's shape whose last `axes` axes were pooled.
#[track_caller]
pub fn max_pool_backward<E: Emit>(
    e: &mut E,
    gradient: &E::Value,
    indices: &E::Value,
    shape: &[Dim],
    axes: usize,
) -> Built<E> {
    const NAME: &str = "max_pool_backward";
    let (gradient, dtype) = widen(e, gradient)?;
    let ty = e.ty(&gradient);
    let first = match ty.rank().checked_sub(axes) {
        Some(first) if axes > 0 && shape.len() == ty.rank() => first,
        _ => {
            let rhs = TensorType::new(ty.dtype, shape);
            return fail::<_, E>(NAME, TypeError::ShapesDiffer { lhs: ty, rhs, sizes: None });
        }
    };
    let join = |shape: &[Dim]| -> Vec<Dim> {
        let joined = shape[first..].iter().fold(Dim::from(1), |n, d| n * d);
        shape[..first].iter().cloned().chain([joined]).collect()
    };
    let zero = full(e, Scalar::float(ty.dtype, 0.0), &join(shape))?;
    let windows = join(&ty.shape);
    let gradient = reshape(e, &gradient, &windows)?;
    let indices = reshape(e, indices, &windows)?;
    let y = e.emit(Op::Scatter { axis: first, kind: ScatterKind::Add }, &[zero, indices, gradient])?;
    let y = reshape(e, &y, shape)?;
    cast(e, &y, dtype)
}

/// The gradient of a mean pool of x, with its options.
#[track_caller]
pub fn avg_pool_backward<E: Emit>(
    e: &mut E,
    gradient: &E::Value,
    x: &E::Value,
    options: &PoolOptions,
    count_padding: bool,
) -> Built<E> {
    let (gradient, dtype) = widen(e, gradient)?;
    let (x, _) = widen(e, x)?;
    let share = divide_by_count(e, &gradient, &x, options, count_padding)?;
    let shape = e.ty(&x).shape;
    let y = sum_pool_backward(e, &share, &shape, options)?;
    cast(e, &y, dtype)
}

/// The gradient of a sum pool, for an input of this shape: each element gets the sum over the windows that have it, which is
/// a transposed convolution with ones.
#[track_caller]
pub fn sum_pool_backward<E: Emit>(e: &mut E, gradient: &E::Value, shape: &[Dim], options: &PoolOptions) -> Built<E> {
    const NAME: &str = "sum_pool_backward";
    let (gradient, dtype) = widen(e, gradient)?;
    let ty = e.ty(&gradient);
    let axes = options.size.len();
    for (attribute, got) in
        [("stride", options.stride.len()), ("padding", options.padding.len()), ("dilation", options.dilation.len())]
    {
        if got != axes {
            return fail::<_, E>(NAME, TypeError::AttributeLength { attribute, got, expected: axes });
        }
    }
    let first = match ty.rank().checked_sub(axes) {
        Some(first) if axes > 0 && shape.len() == ty.rank() => first,
        _ => {
            let rhs = TensorType::new(ty.dtype, shape);
            return fail::<_, E>(NAME, TypeError::ShapesDiffer { lhs: ty, rhs, sizes: None });
        }
    };
    let one = Dim::from(1);
    let outer = ty.shape[..first].iter().fold(one.clone(), |n, d| n * d);
    let images: Vec<Dim> = [outer, one.clone()].iter().chain(&ty.shape[first..]).cloned().collect();
    let images = reshape(e, &gradient, &images)?;
    let taps: Vec<Dim> = [&one, &one].into_iter().cloned().chain(options.size.iter().map(|&k| Dim::from(k))).collect();
    let taps = full(e, Scalar::float(ty.dtype, 1.0), &taps)?;
    let mut padding = Vec::with_capacity(axes);
    for i in 0..axes {
        let reach = (options.size[i].max(1) - 1) as i64 * options.dilation[i] as i64;
        let (stride, amount) = (options.stride[i] as i64, options.padding[i] as i64);
        // Enough on the far side for elements that no full step of the window reaches; what is too much is cut below.
        padding.push((reach - amount, reach - amount + stride - 1));
    }
    let dims = ConvDims {
        stride: vec![1; axes],
        padding,
        dilation: options.dilation.clone(),
        input_dilation: options.stride.clone(),
        groups: 1,
    };
    let mut y = e.emit(Op::Conv(dims.into()), &[images, taps])?;
    for (i, size) in shape[first..].iter().enumerate() {
        y = slice_axis(e, &y, i + 2, &Dim::from(0), size, 1)?;
    }
    let y = reshape(e, &y, shape)?;
    cast(e, &y, dtype)
}

/// The gradient of an adaptive mean pool, for an input of this shape, of which as many of the last axes were pooled as
/// `axes` says.
#[track_caller]
pub fn adaptive_avg_pool_backward<E: Emit>(e: &mut E, gradient: &E::Value, shape: &[Dim], axes: usize) -> Built<E> {
    const NAME: &str = "adaptive_avg_pool_backward";
    let (mut y, dtype) = widen(e, gradient)?;
    let ty = e.ty(&y);
    let first = match ty.rank().checked_sub(axes) {
        Some(first) if shape.len() == ty.rank() => first,
        _ => {
            let rhs = TensorType::new(ty.dtype, shape);
            return fail::<_, E>(NAME, TypeError::ShapesDiffer { lhs: ty, rhs, sizes: None });
        }
    };
    for (axis, size) in shape.iter().enumerate().skip(first) {
        if *size == ty.shape[axis] {
            continue;
        }
        let weights = adaptive_weights(e, size, &ty.shape[axis], ty.dtype)?;
        y = transform_axis(e, &y, axis, &weights)?;
    }
    cast(e, &y, dtype)
}
