//! Pooling over the last axes.

use super::scatter::lowest;
use super::{
    Built, Emit, add, add_scalar, and, argmax, binary_scalar, broadcast_to, cast, compare, constant_f64, constant_i64,
    div, div_scalar, fail, flatten, full, full_like, gather, index_select, iota, is_nan, max_over, mean, mul,
    mul_scalar, or, permute, reshape, size_value, slice_axis, squeeze, sub, transform_axis, transpose, widen,
};
use crate::{BinaryOp, CompareOp, DType, Dim, Op, ReduceKind, Scalar, TypeError, WindowDims};

/// Windows over the last axes, one entry per axis.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PoolOptions {
    /// Size of the window.
    pub size: Vec<usize>,
    /// Step of the window.
    pub stride: Vec<usize>,
    /// Elements added on both sides, which are ignored.
    pub padding: Vec<usize>,
    /// Spacing inside the window.
    pub dilation: Vec<usize>,
    /// A last window that is not full counts too.
    pub ceil: bool,
}

impl PoolOptions {
    /// Adjacent windows, without padding.
    pub fn new(size: &[usize]) -> PoolOptions {
        PoolOptions {
            size: size.to_vec(),
            stride: size.to_vec(),
            padding: vec![0; size.len()],
            dilation: vec![1; size.len()],
            ceil: false,
        }
    }

    /// The same sums and maxima of a tensor of this shape, by windows that are no longer than its axes: one that is, rounded up, is the only
    /// one and has all elements. (Windows may be as long as a model has channels, over an image of four pixels.)
    pub(super) fn clipped(&self, shape: &[Dim]) -> PoolOptions {
        let mut clipped = self.clone();
        let Some(first) = shape.len().checked_sub(self.size.len()).filter(|_| self.ceil) else { return clipped };
        for (i, length) in shape[first..].iter().enumerate() {
            let is_plain = self.padding.get(i) == Some(&0) && self.dilation.get(i) == Some(&1);
            if let (Some(length), Some(&stride), true) = (length.as_usize(), self.stride.get(i), is_plain)
                && (length + 1..length + stride).contains(&self.size[i])
                && length > 0
            {
                (clipped.size[i], clipped.stride[i]) = (length, length);
            }
        }
        clipped
    }
}

/// The windows as a primitive has them, for a tensor of this shape: `(low, high)` padding, the high one with what an
/// incomplete last window needs beyond the padding. Where a size is symbolic that is as much as it may need, and
/// [`cut_windows`] removes a window too many.
#[track_caller]
pub(super) fn window_dims<E: Emit>(
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
        let extent = (size - 1).checked_mul(dilation).and_then(|reach| reach.checked_add(1));
        let Some(extent) = extent.filter(|&extent| i64::try_from(extent).is_ok()) else {
            return fail::<_, E>(name, TypeError::TooLarge { ty });
        };
        if padding > extent / 2 {
            return fail::<_, E>(name, TypeError::PaddingTooLarge { axis: i, padding, window: extent });
        }
        let mut high = padding;
        if options.ceil {
            high = match ty.shape[first + i].as_usize() {
                None => padding + stride - 1,
                // Not even one window, rounded up: less than a step more would have to be there.
                Some(length) if length == 0 || length + 2 * padding + stride - 1 < extent => {
                    let (window, padded) = (Dim::from(extent), Dim::from(length + 2 * padding));
                    return fail::<_, E>(name, TypeError::WindowTooLarge { axis: first + i, window, padded, ty });
                }
                Some(length) => {
                    let mut count = (length + 2 * padding + stride - 1 - extent) / stride + 1;
                    // The last window must begin inside the input or the padding before it.
                    if (count - 1) * stride >= length + padding {
                        count -= 1;
                    }
                    ((count - 1) * stride + extent).saturating_sub(length + padding)
                }
            };
        }
        dims.size.push(size);
        dims.stride.push(stride);
        dims.dilation.push(dilation);
        dims.padding.push((padding, high));
    }
    Ok(dims)
}

/// Results for windows of x without those of a window that begins behind x and the padding before it, which rounding up
/// symbolic sizes may have made.
#[track_caller]
fn cut_windows<E: Emit>(e: &mut E, y: &E::Value, x: &E::Value, options: &PoolOptions) -> Built<E> {
    let (sizes, windows) = (e.ty(x).shape, e.ty(y).shape);
    let first = sizes.len() - options.size.len();
    let mut y = y.clone();
    for (i, size) in sizes[first..].iter().enumerate().filter(|(_, size)| options.ceil && size.as_const().is_none()) {
        let most = (size + options.padding[i] as i64).ceil_div(&Dim::from(options.stride[i]));
        let count = Dim::min(&windows[first + i], &most);
        y = slice_axis(e, &y, first + i, &Dim::from(0), &count, 1)?;
    }
    Ok(y)
}

/// The largest element of each window.
#[track_caller]
pub fn max_pool<E: Emit>(e: &mut E, x: &E::Value, options: &PoolOptions) -> Built<E> {
    let options = &options.clipped(&e.ty(x).shape);
    let dims = window_dims(e, "max_pool", x, options)?;
    let y = e.emit(Op::ReduceWindow { kind: ReduceKind::Max, dims: dims.into() }, std::slice::from_ref(x))?;
    cut_windows(e, &y, x, options)
}

/// The sum of each window.
#[track_caller]
pub fn sum_pool<E: Emit>(e: &mut E, x: &E::Value, options: &PoolOptions) -> Built<E> {
    let options = &options.clipped(&e.ty(x).shape);
    let dims = window_dims(e, "sum_pool", x, options)?;
    let (x, dtype) = widen(e, x)?;
    let y = e.emit(Op::ReduceWindow { kind: ReduceKind::Sum, dims: dims.into() }, std::slice::from_ref(&x))?;
    let y = cut_windows(e, &y, &x, options)?;
    cast(e, &y, dtype)
}

/// The mean of each window; padding counts as zeros if `count_padding` and not at all otherwise.
#[track_caller]
pub fn avg_pool<E: Emit>(e: &mut E, x: &E::Value, options: &PoolOptions, count_padding: bool) -> Built<E> {
    let (x, dtype) = widen(e, x)?;
    let total = sum_pool(e, &x, options)?;
    let y = divide_by_count(e, &total, &x, options, count_padding)?;
    cast(e, &y, dtype)
}

/// One value for each window of x, divided by how many elements of x its window has, padding included if `count_padding`.
#[track_caller]
pub(super) fn divide_by_count<E: Emit>(
    e: &mut E,
    y: &E::Value,
    x: &E::Value,
    options: &PoolOptions,
    count_padding: bool,
) -> Built<E> {
    let options = &options.clipped(&e.ty(x).shape);
    let dims = window_dims(e, "avg_pool", x, options)?;
    let ty = e.ty(x);
    let first = ty.rank() - options.size.len();
    let uneven = dims.padding[first..].iter().zip(&options.padding).any(|(&(_, high), &p)| high != p);
    let padded = options.padding.iter().any(|&p| p > 0);
    if !uneven && (count_padding || !padded) {
        let count: usize = options.size.iter().product();
        return div_scalar(e, y, count as f64);
    }
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
    let mut count = e.emit(Op::ReduceWindow { kind: ReduceKind::Sum, dims: count_dims.into() }, &[ones])?;
    // Where less than the padding is needed on the far side, the count has windows that the result has not.
    let shape = e.ty(y).shape;
    for (axis, size) in shape.iter().enumerate().skip(first) {
        count = slice_axis(e, &count, axis, &Dim::from(0), size, 1)?;
    }
    let count = broadcast_to(e, &count, &shape)?;
    div(e, y, &count)
}

/// The largest element of each window, and its position in the window, counted in row-major order: the first of equals.
#[track_caller]
pub fn max_pool_with_offsets<E: Emit>(
    e: &mut E,
    x: &E::Value,
    options: &PoolOptions,
) -> Result<(E::Value, E::Value), E::Error> {
    let dims = window_dims(e, "max_pool_with_offsets", x, options)?;
    let ty = e.ty(x);
    let first = ty.rank() - options.size.len();
    let low: Vec<Dim> = dims.padding.iter().map(|p| Dim::from(p.0)).collect();
    let high: Vec<Dim> = dims.padding.iter().map(|p| Dim::from(p.1)).collect();
    let padded = dims.padding.iter().any(|&p| p != (0, 0));
    let windows = if padded {
        let pad = Op::Pad { low: low.clone(), high: high.clone(), value: lowest(ty.dtype) };
        let x = e.emit(pad, std::slice::from_ref(x))?;
        unfold_windows(e, &x, first, options)?
    } else {
        unfold_windows(e, x, first, options)?
    };
    let last = ty.rank();
    let largest = max_over(e, &windows, &[last], true)?;
    let mut found = compare(e, CompareOp::Eq, &windows, &largest)?;
    if ty.dtype.is_float() {
        let nan = is_nan(e, &windows)?;
        found = or(e, &found, &nan)?;
    }
    if padded {
        // The padding is never the largest, even among elements equal to it.
        let mut shape = ty.shape.clone();
        shape[..first].fill(Dim::from(1));
        let inside = full(e, Scalar::bool(true), &shape)?;
        let inside = e.emit(Op::Pad { low, high, value: Scalar::bool(false) }, &[inside])?;
        let inside = unfold_windows(e, &inside, first, options)?;
        found = and(e, &found, &inside)?;
    }
    let offsets = argmax(e, &found, last, false)?;
    let values = squeeze(e, &largest, &[last])?;
    Ok((cut_windows(e, &values, x, options)?, cut_windows(e, &offsets, x, options)?))
}

/// The windows of the last axes, from `first`, each joined into a new last axis.
#[track_caller]
fn unfold_windows<E: Emit>(e: &mut E, x: &E::Value, first: usize, options: &PoolOptions) -> Built<E> {
    let rank = e.ty(x).rank();
    let mut y = x.clone();
    for (i, &size) in options.size.iter().enumerate() {
        let op = Op::Unfold { axis: first + i, size, stride: options.stride[i], dilation: options.dilation[i] };
        y = e.emit(op, &[y])?;
    }
    flatten(e, &y, rank, rank + options.size.len() - 1)
}

/// The largest element of each window, and where it is in the pooled axes of x joined: the first of equals.
#[track_caller]
pub fn max_pool_with_indices<E: Emit>(
    e: &mut E,
    x: &E::Value,
    options: &PoolOptions,
) -> Result<(E::Value, E::Value), E::Error> {
    let (values, offsets) = max_pool_with_offsets(e, x, options)?;
    let shape = e.ty(x).shape;
    let lengths = &shape[shape.len() - options.size.len()..];
    let indices = pool_indices(e, &offsets, lengths, options)?;
    Ok((values, indices))
}

/// Positions in pooled axes of these lengths, joined, from positions in windows.
#[track_caller]
pub fn pool_indices<E: Emit>(e: &mut E, offsets: &E::Value, lengths: &[Dim], options: &PoolOptions) -> Built<E> {
    let ty = e.ty(offsets);
    let first = match ty.rank().checked_sub(options.size.len()) {
        Some(first) if lengths.len() == options.size.len() && options.size.iter().all(|&size| size > 0) => first,
        _ => {
            let expected = format!("{} or more", options.size.len());
            return fail::<_, E>("pool_indices", TypeError::WrongRank { operand: 0, ty, expected });
        }
    };
    let mut rest = cast(e, offsets, DType::I64)?;
    let mut index = full_like(e, &rest, 0.0)?;
    // From the last axis, the fastest in the window and in x.
    let mut stride = Dim::from(1);
    for i in (0..options.size.len()).rev() {
        let inside = binary_scalar(e, BinaryOp::Rem, &rest, options.size[i] as f64)?;
        rest = binary_scalar(e, BinaryOp::Div, &rest, options.size[i] as f64)?;
        let inside = mul_scalar(e, &inside, options.dilation[i] as f64)?;
        let window = iota(e, DType::I64, &ty.shape, first + i)?;
        let window = mul_scalar(e, &window, options.stride[i] as f64)?;
        let window = add_scalar(e, &window, -(options.padding[i] as f64))?;
        let place = add(e, &window, &inside)?;
        let factor = size_value(e, &stride, DType::I64)?;
        let step = mul(e, &place, &factor)?;
        index = add(e, &index, &step)?;
        stride = &stride * &lengths[i];
    }
    Ok(index)
}

/// Means over windows that divide the last axes into the given numbers of parts, as evenly as possible.
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
        if let Some(length) = ty.shape[axis].as_usize().filter(|&n| parts > 0 && n > 0 && n % parts == 0) {
            let mut size = vec![1; ty.rank() - axis];
            size[0] = length / parts;
            y = avg_pool(e, &y, &PoolOptions::new(&size), true)?;
            continue;
        }
        // Windows of unequal length: a product with a matrix of weights.
        let weights = adaptive_weights(e, &ty.shape[axis], &Dim::from(parts), wide)?;
        let weights = transpose(e, &weights, 0, 1)?;
        y = transform_axis(e, &y, axis, &weights)?;
    }
    cast(e, &y, dtype)
}

/// The beginning and end of part number `part` of an axis, if it is divided as evenly as possible.
fn adaptive_bounds(length: usize, parts: usize, part: usize) -> (usize, usize) {
    (part * length / parts, ((part + 1) * length).div_ceil(parts))
}

/// `[parts, length]`: what each element of an axis contributes to the mean of each part.
#[track_caller]
pub(super) fn adaptive_weights<E: Emit>(e: &mut E, length: &Dim, parts: &Dim, dtype: DType) -> Built<E> {
    if let (Some(length), Some(parts)) = (length.as_usize(), parts.as_usize()) {
        let mut weights = vec![0.0; parts * length];
        for part in 0..parts {
            let (start, end) = adaptive_bounds(length, parts, part);
            weights[part * length + start..part * length + end].fill(1.0 / (end - start) as f64);
        }
        return constant_f64(e, dtype, &[parts, length], &weights);
    }
    // The same bounds, of sizes that the run will know.
    let shape = [parts.clone(), length.clone()];
    let (part, place) = (iota(e, DType::I64, &shape, 0)?, iota(e, DType::I64, &shape, 1)?);
    let (size, count) = (size_value(e, length, DType::I64)?, size_value(e, parts, DType::I64)?);
    let start = mul(e, &part, &size)?;
    let end = add(e, &start, &size)?;
    let end = add(e, &end, &count)?;
    let end = add_scalar(e, &end, -1.0)?;
    let (start, end) = (div(e, &start, &count)?, div(e, &end, &count)?);
    let after = compare(e, CompareOp::Ge, &place, &start)?;
    let before = compare(e, CompareOp::Lt, &place, &end)?;
    let inside = and(e, &after, &before)?;
    let inside = cast(e, &inside, dtype)?;
    let extent = sub(e, &end, &start)?;
    let extent = cast(e, &extent, dtype)?;
    div(e, &inside, &extent)
}

/// The largest elements of windows that divide the last axes, of constant sizes, into the given numbers of parts, as evenly as
/// possible, and their positions in those axes joined: the first of equals.
#[track_caller]
pub fn adaptive_max_pool<E: Emit>(e: &mut E, x: &E::Value, sizes: &[usize]) -> Result<(E::Value, E::Value), E::Error> {
    const NAME: &str = "adaptive_max_pool";
    let ty = e.ty(x);
    let lengths: Option<Vec<usize>> = ty.shape.iter().rev().take(sizes.len()).rev().map(Dim::as_usize).collect();
    let (first, lengths) = match (ty.rank().checked_sub(sizes.len()), lengths) {
        (Some(first), Some(lengths)) if !sizes.is_empty() && lengths.iter().chain(sizes).all(|&n| n > 0) => {
            (first, lengths)
        }
        _ => return fail::<_, E>(NAME, TypeError::BadAttribute { what: "a symbolic or empty size", ty }),
    };
    // Each part of an axis as long as the longest, by repeating its last element, which changes neither the largest nor where
    // it is first; the flat place of each element goes along.
    let mut windows = x.clone();
    let mut places = iota(e, DType::I64, &[Dim::from(lengths.iter().product::<usize>())], 0)?;
    places = reshape(e, &places, &ty.shape[first..])?;
    for (i, (&length, &parts)) in lengths.iter().zip(sizes).enumerate() {
        let bounds: Vec<(usize, usize)> = (0..parts).map(|part| adaptive_bounds(length, parts, part)).collect();
        let longest = bounds.iter().map(|(start, end)| end - start).max().unwrap_or(1);
        let taken = bounds.iter().flat_map(|&(start, end)| (0..longest).map(move |k| (start + k).min(end - 1) as i64));
        let taken = constant_i64(e, &taken.collect::<Vec<_>>())?;
        // Parts before, elements of a part behind all that is there.
        windows = split_parts(e, &windows, first + i, &taken, parts, longest)?;
        places = split_parts(e, &places, i, &taken, parts, longest)?;
    }
    let (windows, places) = (flatten_from(e, &windows, ty.rank())?, flatten_from(e, &places, sizes.len())?);
    let offsets = argmax(e, &windows, ty.rank(), true)?;
    let shape = e.ty(&windows).shape;
    let places = broadcast_to(e, &places, &shape)?;
    let values = gather(e, &windows, ty.rank(), &offsets)?;
    let indices = gather(e, &places, ty.rank(), &offsets)?;
    Ok((squeeze(e, &values, &[ty.rank()])?, squeeze(e, &indices, &[ty.rank()])?))
}

/// An axis replaced by parts, and a new last axis that counts the elements of a part.
#[track_caller]
fn split_parts<E: Emit>(
    e: &mut E,
    x: &E::Value,
    axis: usize,
    taken: &E::Value,
    parts: usize,
    longest: usize,
) -> Built<E> {
    let picked = index_select(e, x, axis, taken)?;
    let mut shape = e.ty(&picked).shape;
    shape.splice(axis..axis + 1, [Dim::from(parts), Dim::from(longest)]);
    let split = reshape(e, &picked, &shape)?;
    let order: Vec<usize> = (0..=axis).chain(axis + 2..shape.len()).chain([axis + 1]).collect();
    permute(e, &split, &order)
}

/// The axes from `first` joined.
#[track_caller]
fn flatten_from<E: Emit>(e: &mut E, x: &E::Value, first: usize) -> Built<E> {
    let last = e.ty(x).rank() - 1;
    flatten(e, x, first, last)
}
