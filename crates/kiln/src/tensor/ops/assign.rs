//! Tensors with a part replaced. [`crate::Var`] does the same in place.

use crate::tensor::index::resolve_range;
use crate::tensor::ops::gather::spread_index;
use crate::tensor::ops::views::from_start;
use crate::tensor::shape::resolve_axis;
use crate::tensor::{dim, eager};
use crate::{DType, Dim, Error, Index, Indices, Result, Size, Tensor};
use kiln_ir::build::{self, Emit, GraphBuilder};
use kiln_ir::{BinaryOp, NodeId, Op, Scalar, ScatterKind, Source};

/// The part of a tensor that indices without tensors name.
#[derive(Debug, Clone)]
pub(crate) struct Region {
    pub(crate) starts: Vec<Dim>,
    pub(crate) sizes: Vec<Dim>,
    pub(crate) steps: Vec<usize>,
    /// The shape that [`Tensor::i`] gives it: without the axes of one place, with the new ones.
    pub(crate) shape: Vec<Dim>,
}

impl Region {
    pub(crate) fn of(op: &'static str, shape: &[Dim], parts: Vec<Index>, at: &Source) -> Result<Region> {
        let taken = parts.iter().filter(|p| !matches!(p, Index::Rest | Index::NewAxis)).count();
        let rests = parts.iter().filter(|p| matches!(p, Index::Rest)).count();
        if taken > shape.len() || rests > 1 {
            return Err(Error::TooManyIndices { count: parts.len(), shape: dim::hints(shape), at: at.clone() });
        }
        let rank = shape.len();
        let starts = vec![Dim::plain(0); rank];
        let mut region = Region { starts, sizes: shape.to_vec(), steps: vec![1; rank], shape: Vec::new() };
        let mut axis = 0;
        for part in parts {
            match part {
                Index::At(index) => {
                    let place = from_start(index, shape[axis], at);
                    if !Dim::plain(0).at_most(place, at) || !place.less(shape[axis], at) {
                        let (index, size) = (index.hint(), dim::hints(&[shape[axis]])[0]);
                        return Err(Error::IndexOutOfRange { op, index, size, at: at.clone() });
                    }
                    (region.starts[axis], region.sizes[axis]) = (place, Dim::plain(1));
                    axis += 1;
                }
                Index::Range(start, end, step) => {
                    let (first, last) = resolve_range(op, shape[axis], start, end, at)?;
                    if step == 0 || isize::try_from(step).is_err() {
                        let (name, expected) = ("step", "it has to be 1 or more");
                        return Err(Error::BadArgument { op, name, value: step.into(), expected, at: at.clone() });
                    }
                    let size = (last - first).div_ceil(step);
                    let step = if step > 1 && size.less(Dim::plain(2), at) { 1 } else { step };
                    (region.starts[axis], region.sizes[axis], region.steps[axis]) = (first, size, step);
                    region.shape.push(size);
                    axis += 1;
                }
                Index::Rest => {
                    let rest = rank - taken;
                    region.shape.extend_from_slice(&shape[axis..axis + rest]);
                    axis += rest;
                }
                Index::NewAxis => region.shape.push(Dim::plain(1)),
                Index::Places(_) => {
                    let (got, expected) = (DType::I64, "numbers and ranges (`index_copy` takes a tensor)");
                    return Err(Error::WrongDType { op, got, expected, at: at.clone() });
                }
            }
        }
        region.shape.extend_from_slice(&shape[axis..]);
        Ok(region)
    }

    /// What is written to the region, in its sizes.
    pub(crate) fn source(&self, op: &'static str, source: &Tensor, at: &Source) -> Result<Tensor> {
        source.broadcast_at(op, &self.shape, at)?.reshape_to(self.sizes.clone(), at)
    }

    /// The parameters of an operation on it.
    fn params(&self) -> [eager::Param; 3] {
        [(&dim::hints(&self.starts)).into(), (&dim::hints(&self.sizes)).into(), (&self.steps).into()]
    }

    /// Writes `x` with `source` in the region: pieces of `x` around it, which an update in place leaves where they are.
    fn write(&self, b: &mut GraphBuilder, x: NodeId, source: NodeId, axis: usize) -> Result<NodeId, kiln_ir::Error> {
        let shape = b.ty(&x).shape;
        let whole = |axis: &usize| {
            let (start, size) = (self.starts[*axis].expression(), self.sizes[*axis].expression());
            start.is_zero() && self.steps[*axis] == 1 && shape[*axis] == size
        };
        let Some(axis) = (axis..shape.len()).find(|axis| !whole(axis)) else { return Ok(source) };
        let cut = |b: &mut GraphBuilder, start: kiln_ir::Dim, size: kiln_ir::Dim, step: usize| {
            let (mut starts, mut sizes, mut steps) =
                (vec![kiln_ir::Dim::from(0); shape.len()], shape.clone(), vec![1i64; shape.len()]);
            (starts[axis], sizes[axis], steps[axis]) = (start, size, step as i64);
            b.emit(Op::Slice { start: starts, size: sizes, step: steps }, &[x])
        };
        let (start, size, step) = (self.starts[axis].expression(), self.sizes[axis].expression(), self.steps[axis]);
        let inside = cut(b, start.clone(), size.clone(), step)?;
        let inside = self.write(b, inside, source, axis + 1)?;
        if step > 1 {
            let places = b.ty(&inside).shape;
            let index = build::iota(b, DType::I64, &places, axis)?;
            let step = build::full(b, Scalar::int(DType::I64, step as i64), &places)?;
            let start = build::size_value(b, &start, DType::I64)?;
            let start = build::broadcast_to(b, &start, &places)?;
            let index = b.emit(Op::Binary(BinaryOp::Mul), &[index, step])?;
            let index = b.emit(Op::Binary(BinaryOp::Add), &[index, start])?;
            return b.emit(Op::Scatter { axis, kind: ScatterKind::Set }, &[x, index, inside]);
        }
        let end = &start + size;
        let mut parts = Vec::with_capacity(3);
        if !start.is_zero() {
            parts.push(cut(b, 0.into(), start, 1)?);
        }
        parts.push(inside);
        if shape[axis] != end {
            let rest = &shape[axis] - &end;
            parts.push(cut(b, end, rest, 1)?);
        }
        b.emit(Op::Concat { axis }, &parts)
    }
}

impl Tensor {
    /// Returns this tensor with the part that `indices` select replaced by `source`, which broadcasts. Indices are those of
    /// [`Tensor::i`] except for tensors.
    ///
    /// ```
    /// use kiln::{DType, Device, Tensor};
    /// let x = Tensor::zeros([2, 4], DType::F32, Device::Cpu)?;
    /// let y = x.slice_assign((1, 1..3), &Tensor::new([5f32, 6.], Device::Cpu)?)?;
    /// assert_eq!(y.to_vec::<f32>()?, [0., 0., 0., 0., 0., 5., 6., 0.]);
    /// # Ok::<(), kiln::Error>(())
    /// ```
    #[track_caller]
    pub fn slice_assign(&self, indices: impl Indices, source: &Tensor) -> Result<Tensor> {
        let at = Source::caller();
        let region = Region::of("slice_assign", &self.sizes(), indices.indices(), &at)?;
        self.region_assign(&region, source, &at)
    }

    pub(crate) fn region_assign(&self, region: &Region, source: &Tensor, at: &Source) -> Result<Tensor> {
        self.same_dtype("slice_assign", source, at)?;
        let source = region.source("slice_assign", source, at)?;
        let write = |b: &mut GraphBuilder, inputs: &[NodeId]| region.write(b, inputs[0], inputs[1], 0);
        eager::composite("slice_assign", &region.params(), &[self, &source], write, at)
    }

    /// Returns this tensor with slices of `source` at the positions of an axis that `index`, of one axis, lists. If a
    /// position occurs several times, the last one wins.
    ///
    /// ```
    /// use kiln::{DType, Device, Tensor};
    /// let x = Tensor::zeros([3, 2], DType::F32, Device::Cpu)?;
    /// let rows = Tensor::new([2i64, 0], Device::Cpu)?;
    /// let y = x.index_copy(0, &rows, &Tensor::new([[1f32, 2.], [3., 4.]], Device::Cpu)?)?;
    /// assert_eq!(y.to_vec::<f32>()?, [3., 4., 0., 0., 1., 2.]);
    /// # Ok::<(), kiln::Error>(())
    /// ```
    #[track_caller]
    pub fn index_copy(&self, axis: impl Size, index: &Tensor, source: &Tensor) -> Result<Tensor> {
        let at = Source::caller();
        let axis = resolve_axis("index_copy", axis, self.hint(), 0, &at)?;
        let index = spread_index("index_copy", &self.sizes(), axis, index, &at)?;
        self.scattered("index_copy", ScatterKind::Set, axis, &index, source, &at)
    }
}
