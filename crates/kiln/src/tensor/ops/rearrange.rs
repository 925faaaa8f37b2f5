//! New tensors of the elements of others: parts replaced, elements picked by places, masks or strides.

use crate::tensor::dim;
use crate::tensor::eager::{self, Param};
use crate::tensor::ops::gather::spread_index;
use crate::tensor::shape::resolve_axis;
use crate::{Dim, Error, Number, Result, Size, Tensor};
use kiln_ir::build::{self, Emit, GraphBuilder};
use kiln_ir::{CompareOp, DType, NodeId, ScatterKind, Source};

/// How [`Tensor::embedding_bag`] combines the rows of a bag.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Bag {
    /// Their sum.
    Sum,
    /// Their mean.
    Mean,
    /// The largest of each column.
    Max,
}

impl Tensor {
    /// This tensor with one position of an axis replaced.
    #[track_caller]
    pub fn select_scatter(&self, source: &Tensor, axis: impl Size, index: impl Size) -> Result<Tensor> {
        let axis = resolve_axis("select_scatter", axis, self.hint(), 0, &Source::caller())?;
        let index = index.to_dim();
        let start = if index.is_plain() && index.hint() < 0 { self.extent(axis) + index } else { index };
        self.slice_scatter(&source.unsqueeze(axis)?, axis, start)
    }

    /// This tensor with a diagonal of its last two axes replaced.
    #[track_caller]
    pub fn diagonal_scatter(&self, source: &Tensor, offset: i64) -> Result<Tensor> {
        let at = Source::caller();
        self.same_dtype("diagonal_scatter", source, &at)?;
        let place = self.diagonal(offset)?;
        if !place.is_shaped_like(source, &at) {
            let (lhs, rhs) = (place.hint().to_vec(), source.hint().to_vec());
            return Err(Error::ShapeMismatch { op: "diagonal_scatter", lhs, rhs, sizes: None, at });
        }
        let write = |b: &mut GraphBuilder, inputs: &[NodeId]| {
            let ty = b.ty(&inputs[0]);
            let (row, column) = (ty.rank() - 2, ty.rank() - 1);
            let square = [ty.shape[row].clone(), ty.shape[column].clone()];
            // The elements lie along the axis in which the diagonal begins at 0.
            let (along, across) = if offset >= 0 { (0, column) } else { (1, row) };
            let length = b.ty(&inputs[1]).shape[row].clone();
            let mut high = vec![kiln_ir::Dim::from(0); row + 1];
            high[row] = &square[along] - &length;
            let pad = kiln_ir::Op::Pad {
                low: vec![kiln_ir::Dim::from(0); row + 1],
                high,
                value: kiln_ir::Scalar::int(ty.dtype, 0),
            };
            let part = b.emit(pad, &inputs[1..])?;
            let part = build::unsqueeze(b, &part, across)?;
            let (i, j) = (build::iota(b, DType::I64, &square, 0)?, build::iota(b, DType::I64, &square, 1)?);
            let distance = build::sub(b, &j, &i)?;
            let on = build::compare_scalar(b, CompareOp::Eq, &distance, offset as f64)?;
            build::select(b, &on, &part, &inputs[0])
        };
        eager::composite("diagonal_scatter", &[offset.into()], &[self, source], write, &at)
    }

    /// This tensor with the elements of `source`, in order, where a mask is true.
    #[track_caller]
    pub fn masked_scatter(&self, mask: &Tensor, source: &Tensor) -> Result<Tensor> {
        let at = Source::caller();
        mask.expect_bool("masked_scatter", &at)?;
        self.same_dtype("masked_scatter", source, &at)?;
        let mask = mask.broadcast_at("masked_scatter", &self.sizes(), &at)?;
        let write =
            |b: &mut GraphBuilder, inputs: &[NodeId]| build::masked_scatter(b, &inputs[0], &inputs[1], &inputs[2]);
        eager::composite("masked_scatter", &[], &[self, &mask, source], write, &at)
    }

    /// This tensor with a number at the positions of an axis that `index`, of one axis, lists.
    #[track_caller]
    pub fn index_fill(&self, axis: impl Size, index: &Tensor, value: impl Into<Number>) -> Result<Tensor> {
        let at = Source::caller();
        let axis = resolve_axis("index_fill", axis, self.hint(), 0, &at)?;
        let index = spread_index("index_fill", &self.sizes(), axis, index, &at)?;
        let value = Tensor::scalar_at(value.into().to_scalar(self.dtype()), self.device(), &at)?;
        let updates = value.broadcast_at("index_fill", &index.sizes(), &at)?;
        self.scattered("index_fill", ScatterKind::Set, axis, &index, &updates, &at)
    }

    /// Rows of this table `[entries, width]`, looked up by `index` of one axis and combined bag by bag; a bag begins at each of `offsets`,
    /// which ascend from 0. An empty bag is zeros.
    ///
    /// ```
    /// use kiln::{Bag, DType, Device, Tensor};
    /// let table = Tensor::arange(6, DType::F32, Device::Cpu)?.reshape([3, 2])?;
    /// let (index, offsets) = (Tensor::new([0i64, 2, 1], Device::Cpu)?, Tensor::new([0i64, 2, 3], Device::Cpu)?);
    /// assert_eq!(table.embedding_bag(&index, &offsets, Bag::Mean)?.to_vec::<f32>()?, [2., 3., 2., 3., 0., 0.]);
    /// # Ok::<(), kiln::Error>(())
    /// ```
    #[track_caller]
    pub fn embedding_bag(&self, index: &Tensor, offsets: &Tensor, bag: Bag) -> Result<Tensor> {
        let at = Source::caller();
        index.expect_index("embedding_bag", &at)?;
        offsets.expect_index("embedding_bag", &at)?;
        if self.rank() != 2 || index.rank() != 1 || offsets.rank() != 1 {
            let expected = "a table of two axes, an index and offsets of one";
            return Err(Error::WrongRank { op: "embedding_bag", shape: self.hint().to_vec(), expected, at });
        }
        let rows = self.embedding(index)?;
        // The bag of each row: how many bags began before or at it, but one.
        let places = Tensor::arange(index.extent(0), DType::I64, self.device())?;
        let own = places.bucketize(&offsets.to_dtype_at(DType::I64, &at)?, true)?.sub(1)?;
        let bags = [offsets.extent(0), self.extent(1)];
        let zeros = Tensor::zeros(bags, self.dtype(), self.device())?;
        if bag == Bag::Max {
            let lowest = Tensor::full(bags, f64::NEG_INFINITY, self.dtype(), self.device())?;
            let spread = spread_index("embedding_bag", &lowest.sizes(), 0, &own, &at)?;
            let largest = lowest.scattered("embedding_bag", ScatterKind::Max, 0, &spread, &rows, &at)?;
            return largest.eq(f64::NEG_INFINITY)?.where_(&zeros, &largest);
        }
        let sums = zeros.index_add(0, &own, &rows)?;
        if bag == Bag::Sum {
            return Ok(sums);
        }
        let counts = Tensor::zeros(offsets.extent(0), self.dtype(), self.device())?;
        let ones = Tensor::ones(index.extent(0), self.dtype(), self.device())?;
        let counts = counts.index_add(0, &own, &ones)?.maximum(1.0)?;
        sums.div(&counts.unsqueeze(1)?)
    }

    /// The elements at places of all axes joined.
    #[track_caller]
    pub fn take(&self, index: &Tensor) -> Result<Tensor> {
        let at = Source::caller();
        let flat = self.reshape_to(vec![dim::product(&self.sizes())], &at)?;
        let places = index.reshape_to(vec![dim::product(&index.sizes())], &at)?;
        flat.index_places(0, &places, &at)?.reshape_to(index.sizes(), &at)
    }

    /// The elements that indices give on several axes at once, one for each of the first axes or `None` for a whole axis; indices
    /// broadcast together, and negative ones count from the end: `x[i, :, j]`.
    ///
    /// ```
    /// use kiln::{DType, Device, Tensor};
    /// let x = Tensor::arange(8, DType::F32, Device::Cpu)?.reshape([2, 2, 2])?;
    /// let (i, k) = (Tensor::new([0i64, 1], Device::Cpu)?, Tensor::new([-1i64, 0], Device::Cpu)?);
    /// assert_eq!(x.index_axes(&[Some(&i), None, Some(&k)])?.to_vec::<f32>()?, [1., 3., 4., 6.]);
    /// # Ok::<(), kiln::Error>(())
    /// ```
    #[track_caller]
    pub fn index_axes(&self, indices: &[Option<&Tensor>]) -> Result<Tensor> {
        let at = Source::caller();
        let mut operands = vec![self];
        for index in indices.iter().flatten() {
            index.expect_index("index_axes", &at)?;
            operands.push(index);
        }
        if operands.len() == 1 {
            return Ok(self.clone());
        }
        let key: Vec<Param> = indices.iter().map(|index| index.is_some().into()).collect();
        let write = |b: &mut GraphBuilder, inputs: &[NodeId]| {
            let mut rest = inputs[1..].iter();
            let given: Vec<Option<NodeId>> = indices.iter().map(|i| i.and_then(|_| rest.next().copied())).collect();
            build::index_axes(b, &inputs[0], &given)
        };
        eager::composite("index_axes", &key, &operands, write, &at)
    }

    /// Elements by strides of the tensor in row-major order, from an offset on; they may overlap. A copy, unlike PyTorch's view.
    #[track_caller]
    pub fn as_strided(&self, shape: &[usize], strides: &[usize], offset: usize) -> Result<Tensor> {
        let at = Source::caller();
        if shape.len() != strides.len() {
            let expected = "a stride for each axis";
            return Err(Error::WrongRank { op: "as_strided", shape: shape.to_vec(), expected, at });
        }
        let reach = shape.iter().zip(strides).try_fold(offset, |reach, (&n, &s)| {
            n.saturating_sub(1).checked_mul(s).and_then(|more| reach.checked_add(more))
        });
        let inside = shape.contains(&0) || reach.is_some_and(|last| last < self.elements());
        if !inside {
            let (name, expected) = ("shape", "it has to stay inside of the tensor");
            return Err(Error::BadArgument { op: "as_strided", name, value: offset.into(), expected, at });
        }
        let dims = |sizes: &[usize]| -> Vec<kiln_ir::Dim> { sizes.iter().map(|&n| n.into()).collect() };
        let write = |b: &mut GraphBuilder, inputs: &[NodeId]| {
            build::as_strided(b, &inputs[0], &dims(shape), &dims(strides), &offset.into())
        };
        eager::composite("as_strided", &[shape.into(), strides.into(), offset.into()], &[self], write, &at)
    }

    /// Turns the plane of two axes by quarters of a turn, from the first axis towards the second.
    #[track_caller]
    pub fn rot90(&self, turns: i64, axes: [i64; 2]) -> Result<Tensor> {
        match turns.rem_euclid(4) {
            1 => self.flip(axes[1])?.transpose(axes[0], axes[1]),
            2 => self.flip(axes),
            3 => self.flip(axes[0])?.transpose(axes[0], axes[1]),
            _ => Ok(self.clone()),
        }
    }

    /// Vectors spread over the axes of a common grid, one axis each, in their order (`indexing="ij"`).
    #[track_caller]
    pub fn meshgrid(vectors: &[&Tensor]) -> Result<Vec<Tensor>> {
        let at = Source::caller();
        let sizes: Vec<Dim> = vectors.iter().map(|vector| dim::product(&vector.sizes())).collect();
        let spread = |(axis, vector): (usize, &&Tensor)| {
            let mut aligned = vec![Dim::plain(1); sizes.len()];
            aligned[axis] = sizes[axis];
            vector.reshape_to(aligned, &at)?.broadcast_at("meshgrid", &sizes, &at)
        };
        vectors.iter().enumerate().map(spread).collect()
    }
}
