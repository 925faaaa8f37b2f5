//! Gather and scatter by integer tensors. Indices are `i32` or `i64`; one outside of its axis is an error at run time.

use crate::tensor::shape::resolve_axis;
use crate::tensor::{dim, eager, tracer};
use crate::{DType, Dim, Error, Result, Size, Tensor};
use kiln_ir::build::{self, Emit, GraphBuilder};
use kiln_ir::{CompareOp, NodeId, Op, ScatterKind, Source};

impl Tensor {
    pub(super) fn expect_index(&self, op: &'static str, at: &Source) -> Result<()> {
        match self.dtype() {
            DType::I32 | DType::I64 => Ok(()),
            got => Err(Error::WrongDType { op, got, expected: "i32 or i64 indices", at: at.clone() }),
        }
    }

    /// Returns the positions of an axis that `index`, of one axis, lists, in its order.
    ///
    /// ```
    /// use kiln::{DType, Device, Tensor};
    /// let x = Tensor::arange(6, DType::F32, Device::Cpu)?.reshape([3, 2])?;
    /// let rows = Tensor::new([2i64, 0], Device::Cpu)?;
    /// assert_eq!(x.index_select(0, &rows)?.to_vec::<f32>()?, [4., 5., 0., 1.]);
    /// # Ok::<(), kiln::Error>(())
    /// ```
    #[track_caller]
    pub fn index_select(&self, axis: impl Size, index: &Tensor) -> Result<Tensor> {
        let at = Source::caller();
        let axis = resolve_axis("index_select", axis, self.hint(), 0, &at)?;
        let index = spread_index("index_select", &self.sizes(), axis, index, &at)?;
        self.picked("index_select", axis, &index, &at)
    }

    fn picked(&self, name: &'static str, axis: usize, index: &Tensor, at: &Source) -> Result<Tensor> {
        let write = |b: &mut GraphBuilder, inputs: &[NodeId]| b.emit(Op::Gather { axis }, inputs);
        eager::composite(name, &[axis.into()], &[self, index], write, at)
    }

    /// For [`Tensor::i`]: as `index_select`, negative places counting from the end.
    pub(crate) fn index_places(&self, axis: usize, index: &Tensor, at: &Source) -> Result<Tensor> {
        let index = spread_index("index", &self.sizes(), axis, index, at)?;
        let write = |b: &mut GraphBuilder, inputs: &[NodeId]| {
            let size = b.ty(&inputs[0]).shape[axis].clone();
            let index = build::wrap_index(b, &inputs[1], &size)?;
            b.emit(Op::Gather { axis }, &[inputs[0], index])
        };
        eager::composite("index", &[axis.into()], &[self, &index], write, at)
    }

    /// `y[…, i, …] = x[…, index[…, i, …], …]`. The index has as many axes as the tensor and is at most as large on the
    /// others.
    #[track_caller]
    pub fn gather(&self, axis: impl Size, index: &Tensor) -> Result<Tensor> {
        let at = Source::caller();
        let axis = resolve_axis("gather", axis, self.hint(), 0, &at)?;
        index.expect_index("gather", &at)?;
        let x = self.cut_to("gather", index, Some(axis), &at)?;
        x.picked("gather", axis, index, &at)
    }

    /// The corner of this tensor that has another's sizes, but for one axis.
    fn cut_to(&self, op: &'static str, other: &Tensor, but: Option<usize>, at: &Source) -> Result<Tensor> {
        let mut sizes = other.sizes();
        if let (Some(axis), true) = (but, self.rank() == other.rank()) {
            sizes[axis] = self.extent(axis);
        }
        let larger = sizes.iter().zip(self.sizes()).find(|(want, have)| !want.at_most(*have, at));
        let larger = larger.map(|(&want, have)| dim::hints(&[have, want])).map(|pair| (pair[0], pair[1]));
        if self.rank() != other.rank() || larger.is_some() {
            let (lhs, rhs) = (self.hint().to_vec(), other.hint().to_vec());
            return Err(Error::ShapeMismatch { op, lhs, rhs, sizes: larger, at: at.clone() });
        }
        let zeros = vec![Dim::plain(0); sizes.len()];
        self.cut(&zeros, &sizes, &vec![1; sizes.len()], at)
    }

    pub(crate) fn scattered(
        &self,
        op: &'static str,
        kind: ScatterKind,
        axis: impl Size,
        index: &Tensor,
        updates: &Tensor,
        at: &Source,
    ) -> Result<Tensor> {
        let axis = resolve_axis(op, axis, self.hint(), 0, at)?;
        index.expect_index(op, at)?;
        if updates.dtype() != self.dtype() {
            return Err(Error::DTypeMismatch { op, lhs: self.dtype(), rhs: updates.dtype(), at: at.clone() });
        }
        let updates = updates.cut_to(op, index, None, at)?;
        let differs =
            (0..self.rank().min(index.rank())).find(|&i| i != axis && !index.extent(i).equals(self.extent(i), at));
        if index.rank() != self.rank() || differs.is_some() {
            let sizes = differs.map(|i| (self.hint()[i], index.hint()[i]));
            let (lhs, rhs) = (self.hint().to_vec(), index.hint().to_vec());
            return Err(Error::ShapeMismatch { op, lhs, rhs, sizes, at: at.clone() });
        }
        let write = |b: &mut GraphBuilder, inputs: &[NodeId]| b.emit(Op::Scatter { axis, kind }, inputs);
        eager::composite(op, &[axis.into(), (kind as i64).into()], &[self, index, &updates], write, at)
    }

    /// Returns this tensor with `updates` written where the index says along an axis. If a position occurs several times,
    /// the last one wins.
    ///
    /// ```
    /// use kiln::{DType, Device, Tensor};
    /// let x = Tensor::zeros(4, DType::F32, Device::Cpu)?;
    /// let index = Tensor::new([3i64, 1, 3], Device::Cpu)?;
    /// let updates = Tensor::new([1f32, 2., 3.], Device::Cpu)?;
    /// assert_eq!(x.scatter(0, &index, &updates)?.to_vec::<f32>()?, [0., 2., 0., 3.]);
    /// assert_eq!(x.scatter_add(0, &index, &updates)?.to_vec::<f32>()?, [0., 2., 0., 4.]);
    /// # Ok::<(), kiln::Error>(())
    /// ```
    #[track_caller]
    pub fn scatter(&self, axis: impl Size, index: &Tensor, updates: &Tensor) -> Result<Tensor> {
        self.scattered("scatter", ScatterKind::Set, axis, index, updates, &Source::caller())
    }

    /// Returns this tensor with `updates` added where the index says along an axis.
    #[track_caller]
    pub fn scatter_add(&self, axis: impl Size, index: &Tensor, updates: &Tensor) -> Result<Tensor> {
        self.scattered("scatter_add", ScatterKind::Add, axis, index, updates, &Source::caller())
    }

    /// Returns this tensor combined with `updates` where the index says along an axis.
    #[track_caller]
    pub fn scatter_reduce(
        &self,
        axis: impl Size,
        index: &Tensor,
        updates: &Tensor,
        kind: ScatterKind,
    ) -> Result<Tensor> {
        self.scattered("scatter_reduce", kind, axis, index, updates, &Source::caller())
    }

    /// Returns this tensor with slices of `updates` added at the positions of an axis that `index`, of one axis, lists.
    #[track_caller]
    pub fn index_add(&self, axis: impl Size, index: &Tensor, updates: &Tensor) -> Result<Tensor> {
        let at = Source::caller();
        let axis = resolve_axis("index_add", axis, self.hint(), 0, &at)?;
        let index = spread_index("index_add", &self.sizes(), axis, index, &at)?;
        self.scattered("index_add", ScatterKind::Add, axis, &index, updates, &at)
    }

    /// Returns this tensor with `values` at the positions that indices of one shape give on its first axes, one index per
    /// axis. Values broadcast; negative indices count from the end; with [`ScatterKind::Add`] values for one position are
    /// summed.
    ///
    /// ```
    /// use kiln::{DType, Device, Tensor, ir::ScatterKind};
    /// let x = Tensor::zeros([2, 2], DType::F32, Device::Cpu)?;
    /// let (row, column) = (Tensor::new([0i64, -1], Device::Cpu)?, Tensor::new([1i64, 0], Device::Cpu)?);
    /// let y = x.index_put(&[&row, &column], &Tensor::new(5f32, Device::Cpu)?, ScatterKind::Set)?;
    /// assert_eq!(y.to_vec::<f32>()?, [0., 5., 5., 0.]);
    /// # Ok::<(), kiln::Error>(())
    /// ```
    #[track_caller]
    pub fn index_put(&self, indices: &[&Tensor], values: &Tensor, kind: ScatterKind) -> Result<Tensor> {
        let at = Source::caller();
        for index in indices {
            index.expect_index("index_put", &at)?;
        }
        self.same_dtype("index_put", values, &at)?;
        let mut operands = vec![self, values];
        operands.extend(indices);
        let write =
            |b: &mut GraphBuilder, inputs: &[NodeId]| build::index_put(b, kind, &inputs[0], &inputs[2..], &inputs[1]);
        eager::composite("index_put", &[(kind as i64).into()], &operands, write, &at)
    }

    /// Returns this tensor with `start..start + source's size` of an axis replaced by `source`.
    #[track_caller]
    pub fn slice_scatter(&self, source: &Tensor, axis: impl Size, start: impl Size) -> Result<Tensor> {
        let at = Source::caller();
        let axis = resolve_axis("slice_scatter", axis, self.hint(), 0, &at)?;
        self.same_dtype("slice_scatter", source, &at)?;
        let length = if axis < source.rank() { source.extent(axis) } else { Dim::plain(0) };
        let start = start.to_dim();
        let end = start + length;
        let place = self.slice_at("slice_scatter", axis, start, end, 1, &at)?;
        if !place.is_shaped_like(source, &at) {
            let (lhs, rhs) = (place.hint().to_vec(), source.hint().to_vec());
            return Err(Error::ShapeMismatch { op: "slice_scatter", lhs, rhs, sizes: None, at });
        }
        let before = self.slice_at("slice_scatter", axis, Dim::plain(0), start, 1, &at)?;
        let after = self.slice_at("slice_scatter", axis, end, self.extent(axis), 1, &at)?;
        Tensor::cat(&[before, source.clone(), after], axis)
    }

    /// Looks up rows of this table of `[entries, width]` by an index of any shape; `width` becomes the new last axis.
    ///
    /// ```
    /// use kiln::{DType, Device, Tensor};
    /// let table = Tensor::arange(6, DType::F32, Device::Cpu)?.reshape([3, 2])?;
    /// let words = Tensor::new([[0i64, 2], [1, 1]], Device::Cpu)?;
    /// assert_eq!(table.embedding(&words)?.shape(), [2, 2, 2]);
    /// let unknown = Tensor::new([3i64], Device::Cpu)?;
    /// let message = table.embedding(&unknown).unwrap_err().to_string();
    /// assert!(message.contains("index 3 is out of range for an axis of 3"));
    /// # Ok::<(), kiln::Error>(())
    /// ```
    #[track_caller]
    pub fn embedding(&self, index: &Tensor) -> Result<Tensor> {
        let at = Source::caller();
        index.expect_index("embedding", &at)?;
        if self.rank() != 2 {
            let expected = "a table of two axes";
            return Err(Error::WrongRank { op: "embedding", shape: self.hint().to_vec(), expected, at });
        }
        let flat = index.reshape_to(vec![dim::product(&index.sizes())], &at)?;
        let spread = spread_index("embedding", &self.sizes(), 0, &flat, &at)?;
        let rows = self.picked("embedding", 0, &spread, &at)?;
        let mut shape = index.sizes();
        shape.push(self.extent(1));
        rows.reshape_to(shape, &at)
    }

    /// Appends an axis of `classes` with 1 at the index and 0 elsewhere, as i64.
    ///
    /// ```
    /// use kiln::{Device, Tensor};
    /// assert_eq!(Tensor::new([2i64, 0], Device::Cpu)?.one_hot(3)?.to_vec::<i64>()?, [0, 0, 1, 1, 0, 0]);
    /// let message = Tensor::new([3i64], Device::Cpu)?.one_hot(3).unwrap_err().to_string();
    /// assert!(message.starts_with("one_hot: index 3 is out of range for an axis of 3"));
    /// # Ok::<(), kiln::Error>(())
    /// ```
    #[track_caller]
    pub fn one_hot(&self, classes: impl Size) -> Result<Tensor> {
        let at = Source::caller();
        self.expect_index("one_hot", &at)?;
        let mut shape = self.sizes();
        shape.push(classes.to_dim());
        let shape = crate::tensor::shape::resolve_sizes("one_hot", shape, &at)?;
        crate::tensor::create::check_size("one_hot", &shape, DType::I64, &at)?;
        // The index is given in the shape of the result, from which a program for any size takes the number of classes.
        let index = self.unsqueeze(self.rank())?.broadcast_at("one_hot", &shape, &at)?;
        let write = |b: &mut GraphBuilder, inputs: &[NodeId]| {
            let ty = b.ty(&inputs[0]);
            let last = ty.rank() - 1;
            let index = build::check_index(b, &inputs[0], &ty.shape[last])?;
            let class = build::iota(b, ty.dtype, &ty.shape, last)?;
            let same = b.emit(Op::Compare(CompareOp::Eq), &[index, class])?;
            build::cast(b, &same, DType::I64)
        };
        eager::composite("one_hot", &[], &[&index], write, &at)
    }

    /// Returns the indices of the elements that are not zero, one row each, one column per axis. The shape depends on the
    /// elements, so this reads them back to the host. In a compiled function the graph ends here, and the number of rows is a
    /// symbol of the next: one program is for all data.
    ///
    /// ```
    /// use kiln::{DType, Device, Tensor};
    /// let fast = kiln::compile(|x: &Tensor| x.index_select(0, &x.gt(0.0)?.nonzero()?.squeeze(1)?)?.neg());
    /// let of = |values: &[f32]| Tensor::from_slice(values, values.len(), Device::Cpu);
    /// assert_eq!(fast.call(&of(&[1., -2., 3., 0.])?)?.to_vec::<f32>()?, [-1., -3.]);
    /// assert_eq!(fast.call(&of(&[-1., -2., 3., 0.])?)?.to_vec::<f32>()?, [-3.]);
    /// assert!(fast.call(&of(&[-1., -2., -3., 0.])?)?.to_vec::<f32>()?.is_empty());
    /// assert_eq!((fast.stats().compiles, fast.stats().branches), (1, 0));
    /// # Ok::<(), kiln::Error>(())
    /// ```
    #[track_caller]
    pub fn nonzero(&self) -> Result<Tensor> {
        let at = Source::caller();
        if self.is_traced() {
            let flags = self.to_dtype_at(DType::Bool, &at)?;
            return tracer::sized_by_data(&flags, |flags, _| flags.nonzero(), flags.most_elements(), &at);
        }
        let flags = self.to_dtype_at(DType::Bool, &at)?.bytes_at(&at)?;
        let mut rows: Vec<i64> = Vec::new();
        for (place, _) in flags.iter().enumerate().filter(|(_, flag)| **flag != 0) {
            let (mut rest, start) = (place, rows.len());
            for &size in self.shape().iter().rev() {
                rows.push((rest % size) as i64);
                rest /= size;
            }
            rows[start..].reverse();
        }
        let count = flags.iter().filter(|flag| **flag != 0).count();
        Tensor::from_bytes_at(crate::Element::as_bytes(&rows), vec![count, self.rank()], DType::I64, self.device(), &at)
    }

    /// Returns the one element, an integer, as a size: what [`Tensor::item`] reads is a number, and a graph that has it in its shapes is
    /// for that number alone. In a compiled function the graph ends here, and the size is a symbol of the next: one program is
    /// for all data.
    ///
    /// ```
    /// use kiln::{DType, Device, Tensor};
    /// // A padded batch, cut to the longest of its rows.
    /// let cut = |(x, lengths): &(Tensor, Tensor)| x.narrow(1, 0, lengths.amax(..)?.item_size()?)?.sum(1);
    /// let fast = kiln::compile(cut);
    /// let x = Tensor::ones([3, 8], DType::F32, Device::Cpu)?;
    /// for longest in 2..8 {
    ///     let lengths = Tensor::new([1, longest, 2i64], Device::Cpu)?;
    ///     assert_eq!(fast.call(&(x.clone(), lengths))?.to_vec::<f32>()?, [longest as f32; 3]);
    /// }
    /// assert_eq!((fast.stats().compiles, fast.stats().branches), (1, 0));
    /// # Ok::<(), kiln::Error>(())
    /// ```
    #[track_caller]
    pub fn item_size(&self) -> Result<Dim> {
        let at = Source::caller();
        if !self.dtype().is_int() || self.dtype() == DType::Bool {
            return Err(Error::WrongDType { op: "item_size", got: self.dtype(), expected: "integers", at });
        }
        if !dim::product(&self.sizes()).equals(Dim::plain(1), &at) {
            return Err(Error::NotOneElement { shape: self.hint().to_vec(), at });
        }
        let rows = match self.is_traced() {
            true => tracer::sized_by_data(self, Tensor::empty_rows, None, &at)?,
            false => self.empty_rows(&at)?,
        };
        rows.size(0)
    }

    /// As many rows as the one element says, without elements.
    fn empty_rows(&self, at: &Source) -> Result<Tensor> {
        /// More elements than memory has addresses for.
        const TOO_MANY: i64 = 1 << 48;
        let count = self.item::<i64>()?;
        let Some(size) = usize::try_from(count).ok().filter(|_| count < TOO_MANY) else {
            return Err(Error::BadShape { op: "item_size", sizes: vec![count], at: at.clone() });
        };
        Tensor::zeros([size, 0], DType::Bool, self.device())
    }

    /// The places of a mask's true elements in row-major order.
    fn places(&self, at: &Source) -> Result<Tensor> {
        let flags = self.bytes_at(at)?;
        let places: Vec<i64> = (0i64..).zip(&flags).filter(|(_, flag)| **flag != 0).map(|(i, _)| i).collect();
        let (count, bytes) = (places.len(), crate::Element::as_bytes(&places));
        Tensor::from_bytes_at(bytes, vec![count], DType::I64, self.device(), at)
    }

    /// How many elements it has at the most, if that is a number.
    fn most_elements(&self) -> Option<usize> {
        let count = dim::product(&self.sizes());
        usize::try_from(count.hint()).ok().filter(|_| count.is_plain())
    }

    /// Returns the distinct elements of all axes in ascending order; NaN come last, each by itself. The length depends on the
    /// elements: see [`Tensor::nonzero`].
    ///
    /// ```
    /// use kiln::{Device, Tensor};
    /// let x = Tensor::new([3i64, 1, 3, 2, 1], Device::Cpu)?;
    /// assert_eq!(x.unique()?.to_vec::<i64>()?, [1, 2, 3]);
    /// # Ok::<(), kiln::Error>(())
    /// ```
    #[track_caller]
    pub fn unique(&self) -> Result<Tensor> {
        let at = Source::caller();
        let count = dim::product(&self.sizes());
        let sorted = self.reshape_to(vec![count], &at)?.sort(0, false)?.0;
        // The first of equal ones: those that differ from the one before.
        let last = count - 1;
        if count.equals(Dim::plain(0), &at) {
            return Ok(sorted);
        }
        let differs = sorted.narrow(0, 1, last)?.ne(&sorted.narrow(0, 0, last)?)?;
        let first = Tensor::ones(1, DType::Bool, self.device())?;
        sorted.masked_select(&Tensor::cat(&[first, differs], 0)?)
    }

    /// Returns the elements where a mask of the same shape is true, in row-major order. The length depends on the mask: see
    /// [`Tensor::nonzero`].
    #[track_caller]
    pub fn masked_select(&self, mask: &Tensor) -> Result<Tensor> {
        let at = Source::caller();
        mask.expect_bool("masked_select", &at)?;
        let mask = mask.broadcast_at("masked_select", &self.sizes(), &at)?;
        let index = match mask.is_traced() {
            true => tracer::sized_by_data(&mask, Tensor::places, mask.most_elements(), &at)?,
            false => mask.places(&at)?,
        };
        self.reshape_to(vec![dim::product(&self.sizes())], &at)?.index_select(0, &index)
    }

    /// Keeps the part of the last two axes on and below a diagonal; zero elsewhere.
    #[track_caller]
    pub fn tril(&self, diagonal: i64) -> Result<Tensor> {
        let at = Source::caller();
        let write = |b: &mut GraphBuilder, inputs: &[NodeId]| build::tril(b, &inputs[0], diagonal);
        eager::composite("tril", &[diagonal.into()], &[self], write, &at)
    }

    /// Keeps the part of the last two axes on and above a diagonal; zero elsewhere.
    #[track_caller]
    pub fn triu(&self, diagonal: i64) -> Result<Tensor> {
        let at = Source::caller();
        let write = |b: &mut GraphBuilder, inputs: &[NodeId]| build::triu(b, &inputs[0], diagonal);
        eager::composite("triu", &[diagonal.into()], &[self], write, &at)
    }
}

/// An index of one axis, repeated along the other axes of a shape.
pub(crate) fn spread_index(
    op: &'static str,
    shape: &[Dim],
    axis: usize,
    index: &Tensor,
    at: &Source,
) -> Result<Tensor> {
    index.expect_index(op, at)?;
    if index.rank() > 1 {
        let expected = "an index of one axis";
        return Err(Error::WrongRank { op, shape: index.hint().to_vec(), expected, at: at.clone() });
    }
    let count = dim::product(&index.sizes());
    let mut aligned = vec![Dim::plain(1); shape.len()];
    aligned[axis] = count;
    let mut spread = shape.to_vec();
    spread[axis] = count;
    index.reshape_to(aligned, at)?.broadcast_at(op, &spread, at)
}
