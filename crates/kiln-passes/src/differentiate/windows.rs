//! Rules of combining over windows (pooling).

use super::indexing::scatter_add;
use super::reduce::products_of_others;
use super::views::{cut, inverse, spread, view};
use kiln_ir::build::{Built, Emit, add, binary_scalar, cast, iota, mul, mul_scalar, permute, reshape, size_value};
use kiln_ir::{ArgKind, BinaryOp, DType, Dim, Op, ReduceKind, TensorType, WindowDims};

/// The cotangent of x.
pub(super) fn reduce_window<E: Emit>(
    e: &mut E,
    kind: ReduceKind,
    dims: &WindowDims,
    x: &E::Value,
    g: &E::Value,
) -> Built<E> {
    if dims.size.iter().all(|&size| size == 1) {
        let (_, steps) = taps(e, kind, dims, x, g)?;
        return back(e, &steps, g.clone());
    }
    match kind {
        ReduceKind::Sum => sum(e, dims, x, g),
        ReduceKind::Prod => product(e, dims, x, g),
        ReduceKind::Max => extreme(e, kind, ArgKind::Max, dims, x, g),
        ReduceKind::Min => extreme(e, kind, ArgKind::Min, dims, x, g),
    }
}

/// Views and pads on the way from x to its windows, each with the type it was applied to.
type Steps = Vec<(Op, TensorType)>;

/// Every window spread out, `[out…, window…]` without the window axes of size 1.
fn taps<E: Emit>(
    e: &mut E,
    kind: ReduceKind,
    dims: &WindowDims,
    x: &E::Value,
    g: &E::Value,
) -> Result<(E::Value, Steps), E::Error> {
    let dtype = e.ty(x).dtype;
    let out = e.ty(g).shape;
    let mut steps = Steps::new();
    let mut value = x.clone();
    let mut step = |e: &mut E, value: E::Value, op: Op| -> Built<E> {
        steps.push((op.clone(), e.ty(&value)));
        e.emit(op, &[value])
    };
    if dims.padding.iter().any(|&(low, high)| low + high > 0) {
        let low = dims.padding.iter().map(|p| Dim::from(p.0)).collect();
        let high = dims.padding.iter().map(|p| Dim::from(p.1)).collect();
        value = step(e, value, Op::Pad { low, high, value: kind.identity(dtype) })?;
    }
    for axis in 0..out.len() {
        let (size, stride, dilation) = (dims.size[axis], dims.stride[axis], dims.dilation[axis]);
        if size > 1 {
            value = step(e, value, Op::Unfold { axis, size, stride, dilation })?;
        } else if stride > 1 {
            let mut sizes = e.ty(&value).shape;
            sizes[axis] = out[axis].clone();
            let mut strides = vec![1; sizes.len()];
            strides[axis] = stride as i64;
            let start = vec![Dim::from(0); sizes.len()];
            value = step(e, value, Op::Slice { start, size: sizes, step: strides })?;
        }
    }
    Ok((value, steps))
}

/// A cotangent of the windows taken back to x.
fn back<E: Emit>(e: &mut E, steps: &Steps, mut g: E::Value) -> Built<E> {
    for (op, ty) in steps.iter().rev() {
        g = view(e, op, ty, &g)?;
    }
    Ok(g)
}

/// A sum over windows of the cotangent: each element gets what every window that covers it has.
fn sum<E: Emit>(e: &mut E, dims: &WindowDims, x: &E::Value, g: &E::Value) -> Built<E> {
    let shape = e.ty(x).shape;
    let spaced = spread(e, g, &dims.stride)?;
    let (mut start, mut kept, mut padding) = (vec![], vec![], vec![]);
    for (axis, length) in e.ty(&spaced).shape.iter().enumerate() {
        // dx[p] = Σⱼ spaced[p + low − j·dilation], j counted from the end of the window
        let reach = (dims.size[axis] - 1) * dims.dilation[axis];
        let (low, high) = dims.padding[axis];
        let first = low.saturating_sub(reach);
        let before = reach.saturating_sub(low);
        let left = length - Dim::from(first);
        let wanted = &shape[axis] + Dim::from(reach - before);
        let (size, after) = match (left.as_usize(), wanted.as_usize()) {
            (Some(left), Some(wanted)) => (Dim::from(left.min(wanted)), wanted.saturating_sub(left)),
            // As many as there can be need to be; what is too much is cut off at the end.
            _ => (left, reach.saturating_sub(high)),
        };
        start.push(Dim::from(first));
        kept.push(size);
        padding.push((before, after));
    }
    let trimmed = cut(e, &spaced, &start, &kept)?;
    let back = WindowDims {
        size: dims.size.clone(),
        stride: vec![1; dims.stride.len()],
        dilation: dims.dilation.clone(),
        padding,
    };
    let total = e.emit(Op::ReduceWindow { kind: ReduceKind::Sum, dims: back.into() }, &[trimmed])?;
    cut(e, &total, &vec![Dim::from(0); shape.len()], &shape)
}

/// The product of each window's other elements, added up over the windows.
fn product<E: Emit>(e: &mut E, dims: &WindowDims, x: &E::Value, g: &E::Value) -> Built<E> {
    let dtype = e.ty(x).dtype;
    let wide = dtype.compute_type();
    let (x, g) = (cast(e, x, wide)?, cast(e, g, wide)?);
    let (windows, steps) = taps(e, ReduceKind::Prod, dims, &x, &g)?;
    let mut shape = e.ty(&g).shape;
    let axes: Vec<usize> = (shape.len()..e.ty(&windows).rank()).collect();
    shape.resize(shape.len() + axes.len(), Dim::from(1));
    let others = products_of_others(e, &windows, &axes)?;
    let g = reshape(e, &g, &shape)?;
    let d = mul(e, &others, &g)?;
    let d = back(e, &steps, d)?;
    cast(e, &d, dtype)
}

/// Each window's cotangent goes to its first extreme element: the place of that is computed and added to.
fn extreme<E: Emit>(
    e: &mut E,
    kind: ReduceKind,
    arg: ArgKind,
    dims: &WindowDims,
    x: &E::Value,
    g: &E::Value,
) -> Built<E> {
    // The axes that windows move along come last and count as one.
    let rank = dims.size.len();
    let moves = |a: &usize| dims.size[*a] > 1 || dims.stride[*a] > 1 || dims.padding[*a] != (0, 0);
    let order: Vec<usize> = (0..rank).filter(|a| !moves(a)).chain((0..rank).filter(moves)).collect();
    let first = (0..rank).filter(|a| !moves(a)).count();
    let dims = WindowDims {
        size: order.iter().map(|&a| dims.size[a]).collect(),
        stride: order.iter().map(|&a| dims.stride[a]).collect(),
        dilation: order.iter().map(|&a| dims.dilation[a]).collect(),
        padding: order.iter().map(|&a| dims.padding[a]).collect(),
    };
    let (x, g) = (permute(e, x, &order)?, permute(e, g, &order)?);
    let (x_ty, out) = (e.ty(&x), e.ty(&g).shape);
    let (windows, _) = taps(e, kind, &dims, &x, &g)?;
    let taps: usize = dims.size.iter().product();
    let line: Vec<Dim> = out.iter().cloned().chain([Dim::from(taps)]).collect();
    let windows = reshape(e, &windows, &line)?;
    let chosen = e.emit(Op::ArgReduce { kind: arg, axis: rank }, &[windows])?;
    let chosen = reshape(e, &chosen, &out)?;
    // Places are counted in the padded x: what a window gives to padding is cut off at the end.
    let low: Vec<Dim> = dims.padding.iter().map(|p| Dim::from(p.0)).collect();
    let padded = x_ty.shape.iter().zip(&dims.padding).map(|(n, &(low, high))| n + Dim::from(low) + Dim::from(high));
    let padded: Vec<Dim> = padded.collect();
    let mut flat: Option<E::Value> = None;
    let mut after = taps;
    for (axis, length) in padded.iter().enumerate().skip(first) {
        let (size, stride, dilation) = (dims.size[axis], dims.stride[axis], dims.dilation[axis]);
        let mut place = iota(e, DType::I64, &out, axis)?;
        if stride > 1 {
            place = mul_scalar(e, &place, stride as f64)?;
        }
        if size > 1 {
            let outermost = after == taps;
            after /= size;
            let mut tap = chosen.clone();
            if after > 1 {
                tap = binary_scalar(e, BinaryOp::Div, &tap, after as f64)?;
            }
            if !outermost {
                tap = binary_scalar(e, BinaryOp::Rem, &tap, size as f64)?;
            }
            if dilation > 1 {
                tap = mul_scalar(e, &tap, dilation as f64)?;
            }
            place = add(e, &place, &tap)?;
        }
        flat = Some(match flat {
            None => place,
            Some(outer) => {
                let length = size_value(e, length, DType::I64)?;
                let scaled = mul(e, &outer, &length)?;
                add(e, &scaled, &place)?
            }
        });
    }
    let joined = |shape: &[Dim]| -> Vec<Dim> {
        let last = shape[first..].iter().cloned().product();
        shape[..first].iter().cloned().chain([last]).collect()
    };
    // Some axis has a window, so that there is a place along it.
    let Some(flat) = flat else { return Ok(g) };
    let index = reshape(e, &flat, &joined(&out))?;
    let values = reshape(e, &g, &joined(&out))?;
    let ty = TensorType::new(x_ty.dtype, joined(&padded));
    let d = scatter_add(e, first, &ty, &index, &values)?;
    let d = reshape(e, &d, &padded)?;
    let d = cut(e, &d, &low, &x_ty.shape)?;
    permute(e, &d, &inverse(&order))
}
