//! Writing by index: scatter in the forms that PyTorch has, parts of a tensor replaced, views of strides.

use super::shape::check_axis;
use super::{
    Built, Emit, add, along_axis, arange, broadcast_to, cast, compare_scalar, concat, div, fail, full, full_like,
    index_select, iota, mul, permute, reshape, scatter_rows, select, size_value, slice_axis, unsqueeze,
};
use crate::{CompareOp, DType, Dim, Op, Scalar, ScatterKind, TensorType, TypeError};

/// x with `x[…, index[…, i, …], …] ∘= updates[…, i, …]`. The index may be shorter than x on the other axes, and shorter than
/// the updates on every axis.
#[track_caller]
pub fn scatter<E: Emit>(
    e: &mut E,
    kind: ScatterKind,
    x: &E::Value,
    axis: usize,
    index: &E::Value,
    updates: &E::Value,
) -> Built<E> {
    check_axis(e, "scatter", x, axis)?;
    let (x_ty, index_ty, updates_ty) = (e.ty(x), e.ty(index), e.ty(updates));
    for other in [&index_ty, &updates_ty] {
        if other.rank() != x_ty.rank() {
            return fail::<_, E>("scatter", TypeError::ShapesDiffer { lhs: x_ty, rhs: other.clone(), sizes: None });
        }
    }
    let zero = Dim::from(0);
    let mut updates = updates.clone();
    let mut part = x.clone();
    for (other, size) in index_ty.shape.iter().enumerate() {
        updates = slice_axis(e, &updates, other, &zero, size, 1)?;
        if other != axis {
            part = slice_axis(e, &part, other, &zero, size, 1)?;
        }
    }
    let mut written = e.emit(Op::Scatter { axis, kind }, &[part, index.clone(), updates])?;
    // Elements beyond the index: axis by axis from the last, the written part is followed by the rest of x.
    for other in (0..x_ty.rank()).rev() {
        let (covered, size) = (&index_ty.shape[other], &x_ty.shape[other]);
        if other == axis || covered == size {
            continue;
        }
        let mut rest = slice_axis(e, x, other, covered, &(size - covered), 1)?;
        for (before, size) in index_ty.shape[..other].iter().enumerate() {
            if before != axis {
                rest = slice_axis(e, &rest, before, &zero, size, 1)?;
            }
        }
        written = concat(e, &[written, rest], other)?;
    }
    Ok(written)
}

/// How [`scatter_reduce`] combines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ScatterReduction {
    /// The sum.
    Sum,
    /// The product.
    Prod,
    /// The mean.
    Mean,
    /// The largest.
    Max,
    /// The smallest.
    Min,
}

/// x with what an index names replaced by a reduction of the updates that go there, and of what was there if `include_self`;
/// what no index names stays. Shapes as for [`scatter`].
#[track_caller]
pub fn scatter_reduce<E: Emit>(
    e: &mut E,
    reduction: ScatterReduction,
    x: &E::Value,
    axis: usize,
    index: &E::Value,
    updates: &E::Value,
    include_self: bool,
) -> Built<E> {
    let ty = e.ty(x);
    let (kind, neutral) = match reduction {
        ScatterReduction::Sum | ScatterReduction::Mean => (ScatterKind::Add, Scalar::int(ty.dtype, 0)),
        ScatterReduction::Prod => (ScatterKind::Mul, Scalar::int(ty.dtype, 1)),
        ScatterReduction::Max => (ScatterKind::Max, lowest(ty.dtype)),
        ScatterReduction::Min => (ScatterKind::Min, highest(ty.dtype)),
    };
    let index_shape = e.ty(index).shape;
    let mut start = x.clone();
    if !include_self {
        let neutral = full(e, neutral, &index_shape)?;
        start = scatter(e, ScatterKind::Set, x, axis, index, &neutral)?;
    }
    let total = scatter(e, kind, &start, axis, index, updates)?;
    if reduction != ScatterReduction::Mean {
        return Ok(total);
    }
    let one = full(e, Scalar::int(ty.dtype, 1), &index_shape)?;
    let none = full_like(e, x, if include_self { 1.0 } else { 0.0 })?;
    let count = scatter(e, ScatterKind::Add, &none, axis, index, &one)?;
    let untouched = compare_scalar(e, CompareOp::Eq, &count, 0.0)?;
    let one = full_like(e, &count, 1.0)?;
    let count = select(e, &untouched, &one, &count)?;
    if ty.dtype.is_float() { div(e, &total, &count) } else { super::floor_div(e, &total, &count) }
}

/// The value that every other of a dtype is larger than or equal to.
pub(super) fn lowest(dtype: DType) -> Scalar {
    match dtype {
        DType::I64 => Scalar::int(dtype, i64::MIN),
        DType::I32 => Scalar::int(dtype, i64::from(i32::MIN)),
        DType::I16 => Scalar::int(dtype, i64::from(i16::MIN)),
        DType::I8 => Scalar::int(dtype, i64::from(i8::MIN)),
        _ => Scalar::float(dtype, if dtype.is_float() { f64::NEG_INFINITY } else { 0.0 }),
    }
}

/// The value that every other of a dtype is smaller than or equal to.
fn highest(dtype: DType) -> Scalar {
    match dtype {
        DType::I64 => Scalar::int(dtype, i64::MAX),
        DType::I32 => Scalar::int(dtype, i64::from(i32::MAX)),
        DType::I16 => Scalar::int(dtype, i64::from(i16::MAX)),
        DType::I8 => Scalar::int(dtype, i64::from(i8::MAX)),
        DType::U8 => Scalar::int(dtype, i64::from(u8::MAX)),
        DType::Bool => Scalar::bool(true),
        _ => Scalar::float(dtype, f64::INFINITY),
    }
}

/// x with `size` elements of an axis from `start`, by `step`, replaced by those of `part`, which has that shape.
#[track_caller]
pub fn slice_scatter<E: Emit>(
    e: &mut E,
    x: &E::Value,
    part: &E::Value,
    axis: usize,
    start: &Dim,
    step: i64,
) -> Built<E> {
    check_axis(e, "slice_scatter", x, axis)?;
    let (ty, part_ty) = (e.ty(x), e.ty(part));
    if part_ty.rank() != ty.rank() {
        return fail::<_, E>("slice_scatter", TypeError::ShapesDiffer { lhs: ty, rhs: part_ty, sizes: None });
    }
    let (length, size) = (&ty.shape[axis], &part_ty.shape[axis]);
    if size.is_zero() {
        return Ok(x.clone());
    }
    if step != 1 && !size.is_one() {
        let places = arange(e, DType::I64, 0.0, step as f64, size.clone())?;
        let start = size_value(e, start, DType::I64)?;
        let places = add(e, &places, &start)?;
        return scatter_rows(e, ScatterKind::Set, x, axis, &places, part);
    }
    let end = start + size;
    let mut parts = Vec::with_capacity(3);
    if !start.is_zero() {
        parts.push(slice_axis(e, x, axis, &Dim::from(0), start, 1)?);
    }
    parts.push(part.clone());
    if end != *length {
        parts.push(slice_axis(e, x, axis, &end, &(length - &end), 1)?);
    }
    concat(e, &parts, axis)
}

/// x with one index of an axis replaced by a tensor without that axis.
#[track_caller]
pub fn select_scatter<E: Emit>(e: &mut E, x: &E::Value, part: &E::Value, axis: usize, index: &Dim) -> Built<E> {
    let part = unsqueeze(e, part, axis)?;
    slice_scatter(e, x, &part, axis, index, 1)
}

/// The positions in a vector, in row-major order of its elements, of a view of these sizes and strides.
#[track_caller]
fn strided_places<E: Emit>(
    e: &mut E,
    name: &'static str,
    ty: &TensorType,
    shape: &[Dim],
    strides: &[Dim],
    offset: &Dim,
) -> Built<E> {
    if strides.len() != shape.len() {
        let (got, expected) = (strides.len(), shape.len());
        return fail::<_, E>(name, TypeError::AttributeLength { attribute: "strides", got, expected });
    }
    // Places in constant shapes are known now; symbolic ones are left to the run.
    if let Some(size) = ty.elements().as_const() {
        let ends = shape.iter().zip(strides).map(|(n, s)| (n - 1) * s);
        let end = ends.fold(offset + 1, |sum, reach| sum + reach);
        let empty = shape.iter().any(Dim::is_zero);
        if !empty && end.as_const().is_some_and(|end| end > size) {
            return fail::<_, E>(name, TypeError::CountTooLarge { count: end, axis: 0, ty: ty.clone() });
        }
    }
    let mut places = size_value(e, offset, DType::I64)?;
    for (axis, (size, stride)) in shape.iter().zip(strides).enumerate() {
        if stride.is_zero() || size.is_one() {
            continue;
        }
        let count = iota(e, DType::I64, std::slice::from_ref(size), 0)?;
        let stride = size_value(e, stride, DType::I64)?;
        let step = mul(e, &count, &stride)?;
        let step = along_axis(e, &step, shape.len(), axis)?;
        places = add(e, &places, &step)?;
    }
    let places = broadcast_to(e, &places, shape)?;
    let count = e.ty(&places).elements();
    reshape(e, &places, &[count])
}

/// A strided view as a block: a part of each axis of a row-major tensor that has the elements of the vector.
struct StridedBlock {
    /// The axes of the tensor, and the part of each that the view has: its first element and how many.
    axes: Vec<i64>,
    parts: Vec<(i64, i64)>,
    /// The axis of the view that each axis is, if it is one.
    of_view: Vec<Option<usize>>,
}

impl StridedBlock {
    /// `None` for views whose sizes are not known, whose axes overlap or whose strides do not divide each other.
    fn new(elements: &Dim, shape: &[Dim], strides: &[Dim], offset: &Dim) -> Option<StridedBlock> {
        let mut span = elements.as_const().filter(|n| *n > 0)?;
        let mut rest = offset.as_const().filter(|n| (0..span).contains(n))?;
        let mut axes = Vec::with_capacity(shape.len());
        for (axis, (size, stride)) in shape.iter().zip(strides).enumerate() {
            match (size.as_const()?, stride.as_const()?) {
                (1, _) => {}
                (size, stride) if size > 1 && stride > 0 => axes.push((stride, size, axis)),
                _ => return None,
            }
        }
        axes.sort_by_key(|(stride, ..)| -stride);
        let mut block = StridedBlock { axes: Vec::new(), parts: Vec::new(), of_view: Vec::new() };
        for (stride, size, axis) in axes {
            let first = rest / stride;
            if span % stride != 0 || size > span / stride - first {
                return None;
            }
            block.push(span / stride, (first, size), Some(axis));
            (span, rest) = (stride, rest % stride);
        }
        if span > 1 {
            block.push(span, (rest, 1), None);
        }
        Some(block)
    }

    fn push(&mut self, axis: i64, part: (i64, i64), of_view: Option<usize>) {
        self.axes.push(axis);
        self.parts.push(part);
        self.of_view.push(of_view);
    }

    /// Axes of the view in the order of the block's.
    fn order(&self) -> impl Iterator<Item = usize> {
        self.of_view.iter().flatten().copied()
    }

    /// The vector as a tensor with the block's axes.
    #[track_caller]
    fn whole<E: Emit>(&self, e: &mut E, x: &E::Value) -> Built<E> {
        let axes: Vec<Dim> = self.axes.iter().map(|&n| Dim::from(n)).collect();
        reshape(e, x, &axes)
    }

    /// The view.
    #[track_caller]
    fn read<E: Emit>(&self, e: &mut E, x: &E::Value, shape: &[Dim]) -> Built<E> {
        let mut y = self.whole(e, x)?;
        for (axis, &(first, size)) in self.parts.iter().enumerate() {
            y = slice_axis(e, &y, axis, &Dim::from(first), &Dim::from(size), 1)?;
        }
        let sorted: Vec<Dim> = self.order().map(|axis| shape[axis].clone()).collect();
        let y = reshape(e, &y, &sorted)?;
        // From the block's order back to that of the view's axes, without those of size one.
        let mut back: Vec<usize> = (0..sorted.len()).collect();
        let order: Vec<usize> = self.order().collect();
        back.sort_by_key(|&at| order[at]);
        let y = permute(e, &y, &back)?;
        reshape(e, &y, shape)
    }

    /// The vector with the view replaced.
    #[track_caller]
    fn write<E: Emit>(&self, e: &mut E, x: &E::Value, part: &E::Value) -> Built<E> {
        let shape = e.ty(part).shape;
        let order: Vec<usize> = self.order().collect();
        let mut kept = order.clone();
        kept.sort_unstable();
        let sizes: Vec<Dim> = kept.iter().map(|&axis| shape[axis].clone()).collect();
        let part = reshape(e, part, &sizes)?;
        let to: Vec<usize> = order.iter().filter_map(|axis| kept.iter().position(|k| k == axis)).collect();
        let part = permute(e, &part, &to)?;
        let sizes: Vec<Dim> = self.parts.iter().map(|&(_, size)| Dim::from(size)).collect();
        let part = reshape(e, &part, &sizes)?;
        let whole = self.whole(e, x)?;
        self.put(e, &whole, &part, 0)
    }

    /// x with the parts of an axis and those after it replaced.
    #[track_caller]
    fn put<E: Emit>(&self, e: &mut E, x: &E::Value, part: &E::Value, axis: usize) -> Built<E> {
        let Some(&(first, size)) = self.parts.get(axis) else { return Ok(part.clone()) };
        let (first, size) = (Dim::from(first), Dim::from(size));
        let within = slice_axis(e, x, axis, &first, &size, 1)?;
        let within = self.put(e, &within, part, axis + 1)?;
        slice_scatter(e, x, &within, axis, &first, 1)
    }
}

/// A strided view of x, taken as one row-major vector, of these sizes, strides and this offset: slices where the strides are those of a
/// row-major tensor, else a gather.
#[track_caller]
pub fn as_strided<E: Emit>(e: &mut E, x: &E::Value, shape: &[Dim], strides: &[Dim], offset: &Dim) -> Built<E> {
    let ty = e.ty(x);
    if strides.len() == shape.len()
        && let Some(block) = StridedBlock::new(&ty.elements(), shape, strides, offset)
    {
        return block.read(e, x, shape);
    }
    let places = strided_places(e, "as_strided", &ty, shape, strides, offset)?;
    let flat = reshape(e, x, &[ty.elements()])?;
    let picked = index_select(e, &flat, 0, &places)?;
    reshape(e, &picked, shape)
}

/// x with the elements of an [`as_strided`] view replaced by those of `part`, which has the view's shape.
#[track_caller]
pub fn as_strided_scatter<E: Emit>(
    e: &mut E,
    x: &E::Value,
    part: &E::Value,
    strides: &[Dim],
    offset: &Dim,
) -> Built<E> {
    let (ty, shape) = (e.ty(x), e.ty(part).shape);
    if strides.len() == shape.len()
        && let Some(block) = StridedBlock::new(&ty.elements(), &shape, strides, offset)
    {
        let written = block.write(e, x, part)?;
        return reshape(e, &written, &ty.shape);
    }
    let places = strided_places(e, "as_strided_scatter", &ty, &shape, strides, offset)?;
    let flat = reshape(e, x, &[ty.elements()])?;
    let count = e.ty(part).elements();
    let part = reshape(e, part, &[count])?;
    let written = scatter_rows(e, ScatterKind::Set, &flat, 0, &places, &part)?;
    reshape(e, &written, &ty.shape)
}

/// The gradient of an embedding's weight `[entries, width]`: each row of the gradient added where its index says. Rows of
/// the padding entry count for nothing; with `by_frequency` rows are divided by how often their entry was used.
#[track_caller]
pub fn embedding_backward<E: Emit>(
    e: &mut E,
    gradient: &E::Value,
    index: &E::Value,
    entries: &Dim,
    padding: Option<i64>,
    by_frequency: bool,
) -> Built<E> {
    let (ty, count) = (e.ty(gradient), e.ty(index).elements());
    let Some(width) = ty.shape.last().cloned() else {
        let expected = "1 or more".into();
        return fail::<_, E>("embedding_backward", TypeError::WrongRank { operand: 0, ty, expected });
    };
    let index = reshape(e, index, std::slice::from_ref(&count))?;
    let mut rows = reshape(e, gradient, &[count.clone(), width.clone()])?;
    if by_frequency {
        let one = full(e, Scalar::int(ty.dtype, 1), std::slice::from_ref(&count))?;
        let none = full(e, Scalar::int(ty.dtype, 0), std::slice::from_ref(entries))?;
        let used = scatter_rows(e, ScatterKind::Add, &none, 0, &index, &one)?;
        let used = index_select(e, &used, 0, &index)?;
        let used = unsqueeze(e, &used, 1)?;
        rows = div(e, &rows, &used)?;
    }
    if let Some(padding) = padding {
        let dtype = e.ty(&index).dtype;
        let padding = full(e, Scalar::int(dtype, padding), std::slice::from_ref(&count))?;
        let kept = super::compare(e, CompareOp::Ne, &index, &padding)?;
        let kept = unsqueeze(e, &kept, 1)?;
        let zero = full_like(e, &rows, 0.0)?;
        rows = select(e, &kept, &rows, &zero)?;
    }
    let zero = full(e, Scalar::int(ty.dtype, 0), &[entries.clone(), width])?;
    let rows = cast(e, &rows, ty.dtype)?;
    scatter_rows(e, ScatterKind::Add, &zero, 0, &index, &rows)
}
