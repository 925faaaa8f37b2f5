//! Indexing by several tensors at once and by masks, as NumPy and PyTorch do it.

use super::{
    Built, Emit, add, broadcast_shapes, broadcast_to, cast, fail, flatten, full, index_select, mul, permute, reshape,
    scatter_rows, select, size_value, true_positions, wrap_index,
};
use crate::{DType, Dim, Scalar, ScatterKind, TensorType, TypeError};

/// Several indices as one into the indexed axes joined.
struct JoinedIndex<V> {
    /// A vector of places.
    flat: V,
    /// What the indices broadcast to.
    shape: Vec<Dim>,
    /// The indexed axes.
    axes: Vec<usize>,
    /// The others.
    rest: Vec<usize>,
}

impl<V> JoinedIndex<V> {
    /// Where the index's axes are in the result: where the indexed axes were if those are side by side, else in front.
    fn position(&self) -> usize {
        let adjacent = self.axes.windows(2).all(|pair| pair[1] == pair[0] + 1);
        if adjacent { self.axes[0] } else { 0 }
    }

    /// The axes of x, the indexed ones first.
    fn order(&self) -> Vec<usize> {
        self.axes.iter().chain(&self.rest).copied().collect()
    }

    /// The result's shape with the index's axes first.
    fn front_shape(&self, x: &TensorType) -> Vec<Dim> {
        self.shape.iter().cloned().chain(self.rest.iter().map(|&axis| x.shape[axis].clone())).collect()
    }

    /// The order of axes that takes the result with the index's axes first to the result.
    fn placing(&self) -> Vec<usize> {
        let (count, position) = (self.shape.len(), self.position());
        (count..count + position).chain(0..count).chain(count + position..count + self.rest.len()).collect()
    }
}

#[track_caller]
fn join_indices<E: Emit>(
    e: &mut E,
    name: &'static str,
    x: &E::Value,
    indices: &[Option<E::Value>],
) -> Result<JoinedIndex<E::Value>, E::Error> {
    let ty = e.ty(x);
    if indices.len() > ty.rank() {
        return fail::<_, E>(name, TypeError::AxisOutOfRange { axis: indices.len() - 1, ty });
    }
    let mut joined: Option<E::Value> = None;
    let mut axes = Vec::with_capacity(indices.len());
    for (axis, index) in indices.iter().enumerate() {
        let Some(index) = index else { continue };
        axes.push(axis);
        let index = wrap_index(e, index, &ty.shape[axis])?;
        let index = cast(e, &index, DType::I64)?;
        joined = Some(match joined {
            None => index,
            Some(before) => {
                let size = size_value(e, &ty.shape[axis], DType::I64)?;
                let scaled = mul(e, &before, &size)?;
                add(e, &scaled, &index)?
            }
        });
    }
    let Some(joined) = joined else {
        return fail::<_, E>(name, TypeError::OperandCount { expected: "at least one index", got: 0 });
    };
    let index_ty = e.ty(&joined);
    let flat = reshape(e, &joined, &[index_ty.elements()])?;
    let rest = (0..ty.rank()).filter(|axis| !axes.contains(axis)).collect();
    Ok(JoinedIndex { flat, shape: index_ty.shape, axes, rest })
}

/// `x[…, index0, …, index1, …]` with one index or none for each of the first axes: indices broadcast, negative ones count
/// from the end, and the axes of the index come where the indexed axes were if those are side by side, in front otherwise.
#[track_caller]
pub fn index_axes<E: Emit>(e: &mut E, x: &E::Value, indices: &[Option<E::Value>]) -> Built<E> {
    let index = join_indices(e, "index_axes", x, indices)?;
    let ty = e.ty(x);
    let front = permute(e, x, &index.order())?;
    let joined = flatten(e, &front, 0, index.axes.len() - 1)?;
    let picked = index_select(e, &joined, 0, &index.flat)?;
    let split = reshape(e, &picked, &index.front_shape(&ty))?;
    permute(e, &split, &index.placing())
}

/// x with `x[…, index0, …, index1, …] ∘= values`, with indices as for [`index_axes`]; values broadcast to what that gives.
#[track_caller]
pub fn index_put_axes<E: Emit>(
    e: &mut E,
    kind: ScatterKind,
    x: &E::Value,
    indices: &[Option<E::Value>],
    values: &E::Value,
) -> Built<E> {
    let index = join_indices(e, "index_put_axes", x, indices)?;
    let ty = e.ty(x);
    let (order, placing, front_shape) = (index.order(), index.placing(), index.front_shape(&ty));
    let shape: Vec<Dim> = placing.iter().map(|&axis| front_shape[axis].clone()).collect();
    let values = broadcast_to(e, values, &shape)?;
    // One list of places along one axis: nothing has to move, so that x can be written in place.
    if let ([axis], [_]) = (&index.axes[..], &index.shape[..]) {
        return scatter_rows(e, kind, x, *axis, &index.flat, &values);
    }
    let values = permute(e, &values, &inverse(&placing))?;
    let values = flatten_front(e, &values, index.shape.len())?;
    let front = permute(e, x, &order)?;
    let split_shape = e.ty(&front).shape;
    let joined = flatten(e, &front, 0, index.axes.len() - 1)?;
    let written = scatter_rows(e, kind, &joined, 0, &index.flat, &values)?;
    let split = reshape(e, &written, &split_shape)?;
    permute(e, &split, &inverse(&order))
}

/// The first `count` axes as one, also where there are none.
#[track_caller]
fn flatten_front<E: Emit>(e: &mut E, x: &E::Value, count: usize) -> Built<E> {
    let shape = e.ty(x).shape;
    let joined = shape[..count].iter().fold(Dim::from(1), |n, d| n * d);
    let shape: Vec<Dim> = [joined].into_iter().chain(shape[count..].iter().cloned()).collect();
    reshape(e, x, &shape)
}

fn inverse(order: &[usize]) -> Vec<usize> {
    let mut inverse = vec![0; order.len()];
    for (to, &from) in order.iter().enumerate() {
        inverse[from] = to;
    }
    inverse
}

/// x with values where a mask, which spans axes from `first`, is true: `x[:, …, mask] = values`, or `+=` if `accumulate`.
/// Values broadcast to x with the axes of the mask replaced by one, along which they are either one for all or one for each
/// true element in row-major order; more true elements than values are an error at run time.
#[track_caller]
pub fn masked_put<E: Emit>(
    e: &mut E,
    x: &E::Value,
    first: usize,
    mask: &E::Value,
    values: &E::Value,
    accumulate: bool,
) -> Built<E> {
    const NAME: &str = "masked_put";
    let (ty, mask_ty, values_ty) = (e.ty(x), e.ty(mask), e.ty(values));
    let (last, result_rank) = match ty.rank().checked_sub(first + mask_ty.rank()) {
        Some(after) if mask_ty.rank() > 0 => (first + mask_ty.rank(), first + 1 + after),
        _ => return fail::<_, E>(NAME, TypeError::ShapesDiffer { lhs: ty, rhs: mask_ty, sizes: None }),
    };
    let Some(missing) = result_rank.checked_sub(values_ty.rank()) else {
        return fail::<_, E>(NAME, TypeError::ShapesDiffer { lhs: ty, rhs: values_ty, sizes: None });
    };
    let shape: Vec<Dim> = std::iter::repeat_n(Dim::from(1), missing).chain(values_ty.shape).collect();
    let count = shape[first].clone();
    if count.is_zero() {
        return Ok(x.clone());
    }
    let mut values = reshape(e, values, &shape)?;
    let mut spread = shape.clone();
    if count.is_one() {
        spread.splice(first..first + 1, mask_ty.shape.iter().map(|_| Dim::from(1)));
    } else {
        let places = true_positions(e, mask)?;
        let places = reshape(e, &places, &[mask_ty.elements()])?;
        // What is not replaced reads the first, whose place exists; a true element too many reads beyond the last, which is
        // an error at run time.
        let mask = reshape(e, mask, &[mask_ty.elements()])?;
        let start = full(e, Scalar::int(DType::I64, 0), &[])?;
        let places = select(e, &mask, &places, &start)?;
        values = index_select(e, &values, first, &places)?;
        spread.splice(first..first + 1, mask_ty.shape.iter().cloned());
    }
    values = reshape(e, &values, &spread)?;
    values = broadcast_to(e, &values, &ty.shape)?;
    if accumulate {
        values = add(e, x, &values)?;
    }
    let aligned: Vec<Dim> = mask_ty.shape.iter().cloned().chain((last..ty.rank()).map(|_| Dim::from(1))).collect();
    let mask = reshape(e, mask, &aligned)?;
    select(e, &mask, &values, x)
}

/// x with its elements where a mask is true, in row-major order, replaced by the first elements of a source; the mask
/// broadcasts to x. More true elements than the source has are an error at run time.
#[track_caller]
pub fn masked_scatter<E: Emit>(e: &mut E, x: &E::Value, mask: &E::Value, source: &E::Value) -> Built<E> {
    let ty = e.ty(x);
    let count = e.ty(source).elements();
    if count.is_zero() {
        return Ok(x.clone());
    }
    let shape = broadcast_shapes(e, x, mask)?;
    if shape != ty.shape {
        let mask_ty = e.ty(mask);
        return fail::<_, E>("masked_scatter", TypeError::ShapesDiffer { lhs: ty, rhs: mask_ty, sizes: None });
    }
    let mask = broadcast_to(e, mask, &shape)?;
    let source = reshape(e, source, &[count])?;
    let x_flat = reshape(e, x, &[ty.elements()])?;
    let mask_flat = reshape(e, &mask, &[ty.elements()])?;
    let y = masked_put(e, &x_flat, 0, &mask_flat, &source, false)?;
    reshape(e, &y, &ty.shape)
}

/// The elements of x where a mask is true, in row-major order, followed by zeros, in a shape of their own: what
/// [`masked_scatter`] does, backwards. More true elements than the shape has places are an error at run time.
#[track_caller]
pub fn masked_pack<E: Emit>(e: &mut E, x: &E::Value, mask: &E::Value, shape: &[Dim]) -> Built<E> {
    let ty = e.ty(x);
    let mask = broadcast_to(e, mask, &ty.shape)?;
    let target = TensorType::new(ty.dtype, shape);
    let count = target.elements();
    // What is not kept goes to one more place in front, so that one true element too many has none and is an error.
    let places = true_positions(e, &mask)?;
    let places = super::add_scalar(e, &places, 1.0)?;
    let outside = full(e, Scalar::int(DType::I64, 0), &[])?;
    let places = select(e, &mask, &places, &outside)?;
    let places = reshape(e, &places, &[ty.elements()])?;
    let flat = reshape(e, x, &[ty.elements()])?;
    let zero = full(e, Scalar::int(ty.dtype, 0), &[&count + 1])?;
    let packed = scatter_rows(e, ScatterKind::Set, &zero, 0, &places, &flat)?;
    let packed = super::narrow(e, &packed, 0, 1, count)?;
    reshape(e, &packed, shape)
}
