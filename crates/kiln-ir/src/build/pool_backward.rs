//! Gradients of pooling, as functions of the gradient of its result.

use super::pool::{adaptive_weights, divide_by_count};
use super::{
    Built, Emit, PoolOptions, add, cast, compare, fail, full, iota, mul_scalar, repeat_interleave, reshape, select,
    slice_axis, transform_axis, widen,
};
use crate::{CompareOp, ConvDims, DType, Dim, Op, Scalar, ScatterKind, TensorType, TypeError};

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

/// [`max_pool_backward`] of a pool with these options: each element looks at the windows that may have it. Where sizes are not known, and
/// where these windows are many, it is that one.
#[track_caller]
pub fn max_pool_windows_backward<E: Emit>(
    e: &mut E,
    gradient: &E::Value,
    indices: &E::Value,
    shape: &[Dim],
    options: &PoolOptions,
) -> Built<E> {
    let axes = options.size.len();
    let Some(looks) = Look::all(&e.ty(gradient).shape, shape, options) else {
        return max_pool_backward(e, gradient, indices, shape, axes);
    };
    let (gradient, dtype) = widen(e, gradient)?;
    let first = shape.len() - axes;
    // The position of each element among those that indices count.
    let mut here = iota(e, DType::I64, shape, first)?;
    for (i, look) in looks.iter().enumerate().skip(1) {
        let before = mul_scalar(e, &here, look.size as f64)?;
        let place = iota(e, DType::I64, shape, first + i)?;
        here = add(e, &before, &place)?;
    }
    let mut windows = vec![(gradient, cast(e, indices, DType::I64)?)];
    for (i, look) in looks.iter().enumerate() {
        let mut seen = Vec::with_capacity(windows.len() * look.windows as usize);
        for (gradient, indices) in &windows {
            let wide = e.ty(gradient).dtype;
            let gradient = look.padded(e, gradient, first + i, Scalar::float(wide, 0.0))?;
            let indices = look.padded(e, indices, first + i, Scalar::int(DType::I64, -1))?;
            for back in 0..look.windows {
                seen.push((look.window(e, &gradient, first + i, back)?, look.window(e, &indices, first + i, back)?));
            }
        }
        windows = seen;
    }
    let wide = e.ty(&windows[0].0).dtype;
    let zero = full(e, Scalar::float(wide, 0.0), shape)?;
    let mut total = zero.clone();
    for (gradient, indices) in &windows {
        let is_here = compare(e, CompareOp::Eq, indices, &here)?;
        let part = select(e, &is_here, gradient, &zero)?;
        total = add(e, &total, &part)?;
    }
    cast(e, &total, dtype)
}

/// Windows that an element of an axis may be in: the one that begins last at or before it, and some before that.
struct Look {
    /// How many.
    windows: i64,
    stride: i64,
    /// Elements before the first of the axis.
    before: i64,
    /// The axis's own size, and how many windows could begin in it.
    size: i64,
    begins: i64,
    /// How many windows there are.
    count: i64,
}

/// Windows that are looked at for an element at the most.
const MOST_WINDOWS: i64 = 16;

impl Look {
    fn all(windows: &[Dim], shape: &[Dim], options: &PoolOptions) -> Option<Vec<Look>> {
        let axes = options.size.len();
        let first = shape.len().checked_sub(axes).filter(|_| windows.len() == shape.len() && axes > 0)?;
        let fits = [&options.stride, &options.padding, &options.dilation].iter().all(|list| list.len() == axes);
        let look = |i: usize| {
            let (size, count) = (shape[first + i].as_const()?, windows[first + i].as_const()?);
            let (stride, before) = (options.stride[i] as i64, options.padding[i] as i64);
            let reach = (options.size[i] as i64 - 1) * options.dilation[i] as i64 + 1;
            let begins = (size - 1 + before) / stride.max(1) + 1;
            let look = Look { windows: (reach + stride - 1) / stride.max(1), stride, before, size, begins, count };
            (size > 0 && stride > 0 && reach > 0 && count <= begins).then_some(look)
        };
        let looks: Vec<Look> = (0..axes).filter(|_| fits).map(look).collect::<Option<_>>()?;
        let count: i64 = looks.iter().map(|look| look.windows).product();
        (looks.len() == axes && count <= MOST_WINDOWS).then_some(looks)
    }

    /// A value a window with room for windows that there are not.
    #[track_caller]
    fn padded<E: Emit>(&self, e: &mut E, x: &E::Value, axis: usize, value: Scalar) -> Built<E> {
        let none = vec![Dim::default(); e.ty(x).rank()];
        let (mut low, mut high) = (none.clone(), none);
        low[axis] = Dim::from(self.windows - 1);
        high[axis] = Dim::from(self.begins - self.count);
        e.emit(Op::Pad { low, high, value }, std::slice::from_ref(x))
    }

    /// The window so many before the last that begins at or before each element.
    #[track_caller]
    fn window<E: Emit>(&self, e: &mut E, padded: &E::Value, axis: usize, back: i64) -> Built<E> {
        let (start, count) = (Dim::from(self.windows - 1 - back), Dim::from(self.begins));
        let x = slice_axis(e, padded, axis, &start, &count, 1)?;
        let x = repeat_interleave(e, &x, axis, self.stride)?;
        slice_axis(e, &x, axis, &Dim::from(self.before), &Dim::from(self.size), 1)
    }
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
    let options = &options.clipped(shape);
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
