//! Pooling over the last axes.

use super::{
    Built, Emit, broadcast_to, cast, constant_f64, div, div_scalar, dot, fail, full, mean, permute, slice_axis, widen,
};
use crate::{Dim, DotDims, Op, ReduceKind, Scalar, TypeError, WindowDims};

/// Windows over the last axes, one entry an axis.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PoolOptions {
    /// Size of the window.
    pub size: Vec<usize>,
    /// Step of the window.
    pub stride: Vec<usize>,
    /// Elements added on both sides, that count for nothing.
    pub padding: Vec<usize>,
    /// Spacing inside the window.
    pub dilation: Vec<usize>,
    /// A last window that is not full counts too; needs constant sizes.
    pub ceil: bool,
}

impl PoolOptions {
    /// Windows side by side, without padding.
    pub fn new(size: &[usize]) -> PoolOptions {
        PoolOptions {
            size: size.to_vec(),
            stride: size.to_vec(),
            padding: vec![0; size.len()],
            dilation: vec![1; size.len()],
            ceil: false,
        }
    }
}

/// The windows as a primitive has them, for a tensor of this shape: `(low, high)` padding, the high one with what an
/// incomplete last window needs beyond the padding.
#[track_caller]
fn window_dims<E: Emit>(
    e: &E,
    name: &'static str,
    x: &E::Value,
    options: &PoolOptions,
) -> Result<WindowDims, E::Error> {
    let ty = e.ty(x);
    let axes = options.size.len();
    for (attribute, got) in
        [("stride", options.stride.len()), ("padding", options.padding.len()), ("dilation", options.dilation.len())]
    {
        if got != axes {
            return fail::<_, E>(name, TypeError::AttributeLength { attribute, got, expected: axes });
        }
    }
    let Some(first) = ty.rank().checked_sub(axes) else {
        return fail::<_, E>(name, TypeError::WrongRank { operand: 0, ty, expected: format!("{axes} or more") });
    };
    let mut dims = WindowDims {
        size: vec![1; first],
        stride: vec![1; first],
        dilation: vec![1; first],
        padding: vec![(0, 0); first],
    };
    for i in 0..axes {
        let (size, stride, padding, dilation) =
            (options.size[i], options.stride[i], options.padding[i], options.dilation[i]);
        if size == 0 || stride == 0 || dilation == 0 {
            return fail::<_, E>(name, TypeError::NotPositive { attribute: "window", axis: i, got: Dim::from(0) });
        }
        let mut high = padding;
        if options.ceil {
            let Some(length) = ty.shape[first + i].as_usize() else {
                return fail::<_, E>(name, TypeError::BadAttribute { what: "rounding up a symbolic size", ty });
            };
            let extent = (size - 1) * dilation + 1;
            let padded = length + 2 * padding;
            if padded < extent {
                let (window, padded) = (Dim::from(extent), Dim::from(padded));
                return fail::<_, E>(name, TypeError::WindowTooLarge { axis: first + i, window, padded, ty });
            }
            let mut count = (padded - extent).div_ceil(stride) + 1;
            // The last window must begin inside the input or the padding before it.
            if (count - 1) * stride >= length + padding {
                count -= 1;
            }
            high = ((count - 1) * stride + extent).saturating_sub(length + padding);
        }
        dims.size.push(size);
        dims.stride.push(stride);
        dims.dilation.push(dilation);
        dims.padding.push((padding, high));
    }
    Ok(dims)
}

/// The largest element of each window.
#[track_caller]
pub fn max_pool<E: Emit>(e: &mut E, x: &E::Value, options: &PoolOptions) -> Built<E> {
    let dims = window_dims(e, "max_pool", x, options)?;
    e.emit(Op::ReduceWindow { kind: ReduceKind::Max, dims }, std::slice::from_ref(x))
}

/// The mean of each window; padding counts as zeros if `count_padding` and not at all otherwise.
#[track_caller]
pub fn avg_pool<E: Emit>(e: &mut E, x: &E::Value, options: &PoolOptions, count_padding: bool) -> Built<E> {
    let dims = window_dims(e, "avg_pool", x, options)?;
    let (x, dtype) = widen(e, x)?;
    let ty = e.ty(&x);
    let total = e.emit(Op::ReduceWindow { kind: ReduceKind::Sum, dims: dims.clone() }, &[x])?;
    let first = ty.rank() - options.size.len();
    let uneven = dims.padding[first..].iter().zip(&options.padding).any(|(&(_, high), &p)| high != p);
    let padded = options.padding.iter().any(|&p| p > 0);
    let y = if !uneven && (count_padding || !padded) {
        let count: usize = options.size.iter().product();
        div_scalar(e, &total, count as f64)?
    } else {
        // Count by pooling ones; the padding is ones as well if it counts.
        let mut shape = ty.shape.clone();
        shape[..first].fill(Dim::from(1));
        let mut count_dims = dims;
        if count_padding {
            for (i, &padding) in options.padding.iter().enumerate() {
                shape[first + i] += Dim::from(2 * padding);
                let high = count_dims.padding[first + i].1;
                count_dims.padding[first + i] = (0, high.saturating_sub(padding));
            }
        }
        let ones = full(e, Scalar::float(ty.dtype, 1.0), &shape)?;
        let count = e.emit(Op::ReduceWindow { kind: ReduceKind::Sum, dims: count_dims }, &[ones])?;
        let mut result_shape = e.ty(&count).shape;
        let total_shape = e.ty(&total).shape;
        // Where less than the padding is needed on the far side, the count has windows that the result has not.
        let mut count = count;
        for axis in first..result_shape.len() {
            count = slice_axis(e, &count, axis, &Dim::from(0), &total_shape[axis], 1)?;
            result_shape[axis] = total_shape[axis].clone();
        }
        let count = broadcast_to(e, &count, &total_shape)?;
        div(e, &total, &count)?
    };
    cast(e, &y, dtype)
}

/// Means over windows that divide the last axes into the given numbers of parts, as even as can be. A size must be constant
/// unless it is reduced to 1.
#[track_caller]
pub fn adaptive_avg_pool<E: Emit>(e: &mut E, x: &E::Value, sizes: &[usize]) -> Built<E> {
    const NAME: &str = "adaptive_avg_pool";
    let ty = e.ty(x);
    let Some(first) = ty.rank().checked_sub(sizes.len()) else {
        return fail::<_, E>(
            NAME,
            TypeError::WrongRank { operand: 0, ty, expected: format!("{} or more", sizes.len()) },
        );
    };
    let (mut y, dtype) = widen(e, x)?;
    let wide = e.ty(&y).dtype;
    for (i, &parts) in sizes.iter().enumerate() {
        let axis = first + i;
        if ty.shape[axis] == Dim::from(parts) {
            continue;
        }
        if parts == 1 {
            y = mean(e, &y, &[axis], true)?;
            continue;
        }
        let Some(length) = ty.shape[axis].as_usize() else {
            return fail::<_, E>(NAME, TypeError::BadAttribute { what: "a symbolic size", ty });
        };
        if parts > 0 && length % parts == 0 && length > 0 {
            let mut size = vec![1; ty.rank() - axis];
            size[0] = length / parts;
            y = avg_pool(e, &y, &PoolOptions::new(&size), true)?;
            continue;
        }
        // Windows of unequal length: a product with a matrix of weights.
        let mut weights = vec![0.0; parts * length];
        for part in 0..parts {
            let (start, end) = (part * length / parts, ((part + 1) * length).div_ceil(parts));
            weights[part * length + start..part * length + end].fill(1.0 / (end - start) as f64);
        }
        let weights = constant_f64(e, wide, &[parts, length], &weights)?;
        let dims = DotDims { lhs_contract: vec![axis], rhs_contract: vec![1], ..DotDims::default() };
        let product = dot(e, &y, &weights, dims)?;
        // The new axis came last.
        let last = ty.rank() - 1;
        let order: Vec<usize> = (0..axis).chain([last]).chain(axis..last).collect();
        y = permute(e, &product, &order)?;
    }
    cast(e, &y, dtype)
}
