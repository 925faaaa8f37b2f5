//! Views: other shapes and orders of the same memory. Nothing here launches a kernel, except for a reshape (or an operation
//! made of one) whose result strides cannot express: that copies.

use crate::tensor::layout::Layout;
use crate::tensor::shape::{
    check_elements, checked_elements, resolve_axes, resolve_axis, resolve_shape, resolve_sizes,
};
use crate::tensor::{dim, eager, tape, tracer};
use crate::{Axes, Dim, Error, Result, Shape, Size, Tensor};
use kiln_ir::{Op, Source};

impl Tensor {
    /// Returns the same elements in row-major order with another shape; one size may be −1 and is then inferred.
    ///
    /// ```
    /// use kiln::{DType, Device, Tensor};
    /// let x = Tensor::arange(6, DType::F32, Device::Cpu)?;
    /// assert_eq!(x.reshape((2, -1))?.shape(), [2, 3]);
    /// assert!(x.reshape((4, -1)).is_err());
    /// # Ok::<(), kiln::Error>(())
    /// ```
    #[track_caller]
    pub fn reshape(&self, shape: impl Shape) -> Result<Tensor> {
        self.reshape_at("reshape", shape.sizes(), &Source::caller())
    }

    pub(crate) fn reshape_at(&self, op: &'static str, sizes: Vec<Dim>, at: &Source) -> Result<Tensor> {
        let Some(shape) = find_shape(&self.sizes(), &sizes, at) else {
            let (from, elements) = (self.hint().to_vec(), self.hint().iter().product());
            let to = sizes.iter().map(|size| size.hint()).collect();
            return Err(Error::BadReshape { op, from, elements, to, at: at.clone() });
        };
        self.reshape_to(shape, at)
    }

    /// Reshapes to as many elements.
    pub(crate) fn reshape_to(&self, shape: Vec<Dim>, at: &Source) -> Result<Tensor> {
        if self.is_captured() {
            return if self.has_sizes(&shape) { Ok(self.unchanged()) } else { self.record_reshape(&shape, at) };
        }
        let shape = dim::hints(&shape);
        if shape == self.hint() {
            return Ok(self.unchanged());
        }
        match self.layout().reshape(&shape) {
            Some(layout) => Ok(self.with_layout(layout)),
            None => Ok(eager::copy(self, at)?.with_layout(Layout::contiguous(shape))),
        }
    }

    /// Whether both have the same sizes, which is asked axis by axis.
    pub(crate) fn is_shaped_like(&self, other: &Tensor, at: &Source) -> bool {
        self.rank() == other.rank() && (0..self.rank()).all(|axis| self.extent(axis).equals(other.extent(axis), at))
    }

    /// Whether these are the sizes, however they are written; asks nothing.
    pub(crate) fn has_sizes(&self, shape: &[Dim]) -> bool {
        let same = |(axis, size): (usize, &Dim)| match size.is_plain() && !self.is_symbolic() {
            true => size.hint() == self.hint()[axis] as i64,
            false => size.expression() == self.extent(axis).expression(),
        };
        shape.len() == self.rank() && shape.iter().enumerate().all(same)
    }

    /// Returns the elements in row-major order without gaps: the tensor itself if they already are, otherwise a copy.
    #[track_caller]
    pub fn contiguous(&self) -> Result<Tensor> {
        self.contiguous_at(&Source::caller())
    }

    pub(crate) fn contiguous_at(&self, at: &Source) -> Result<Tensor> {
        if self.is_contiguous() { Ok(self.unchanged()) } else { eager::copy(self, at) }
    }

    /// Permutes the axes: axis `i` of the result is axis `order[i]`.
    ///
    /// ```
    /// use kiln::{DType, Device, Tensor};
    /// let x = Tensor::zeros([2, 3, 4], DType::F32, Device::Cpu)?;
    /// assert_eq!(x.permute([2, 0, 1])?.shape(), [4, 2, 3]);
    /// # Ok::<(), kiln::Error>(())
    /// ```
    #[track_caller]
    pub fn permute(&self, order: impl Axes) -> Result<Tensor> {
        let at = Source::caller();
        let given = order.axes(self.rank());
        if given.len() != self.rank() {
            let (op, expected) = ("permute", "as many axes as it is given");
            return Err(Error::WrongRank { op, shape: self.hint().to_vec(), expected, at });
        }
        resolve_axes("permute", &given, self.hint(), &at)?;
        let order: Vec<usize> =
            given.iter().map(|&a| resolve_axis("permute", a, self.hint(), 0, &at)).collect::<Result<_>>()?;
        self.permute_to(order, &at)
    }

    /// Swaps two axes.
    #[track_caller]
    pub fn transpose(&self, a: impl Size, b: impl Size) -> Result<Tensor> {
        let at = Source::caller();
        let a = resolve_axis("transpose", a, self.hint(), 0, &at)?;
        let b = resolve_axis("transpose", b, self.hint(), 0, &at)?;
        let mut order: Vec<usize> = (0..self.rank()).collect();
        order.swap(a, b);
        self.permute_to(order, &at)
    }

    #[inline]
    fn permute_to(&self, order: Vec<usize>, at: &Source) -> Result<Tensor> {
        if self.is_captured() {
            return self.record_view(Op::Permute { order }, at);
        }
        Ok(self.with_layout(self.layout().permute(&order)))
    }

    /// Whether views of this tensor are recorded: it is a value of a function being captured or met there, where they are not even
    /// made, or it is on a tape.
    #[inline]
    fn is_captured(&self) -> bool {
        tracer::is_active() || self.is_traced() || tape::is_recorded(&[self])
    }

    #[cold]
    pub(crate) fn record_view(&self, op: Op, at: &Source) -> Result<Tensor> {
        eager::emit(&op, &[self], self.device(), at)
    }

    fn record_reshape(&self, shape: &[Dim], at: &Source) -> Result<Tensor> {
        self.record_view(Op::Reshape { shape: dim::expressions(shape) }, at)
    }

    /// Swaps the last two axes.
    #[track_caller]
    pub fn t(&self) -> Result<Tensor> {
        if self.rank() < 2 {
            let (op, expected, at) = ("t", "two axes or more", Source::caller());
            return Err(Error::WrongRank { op, shape: self.hint().to_vec(), expected, at });
        }
        self.transpose(-2, -1)
    }

    /// Repeats to a larger shape by NumPy's broadcasting rule, without a copy.
    ///
    /// ```
    /// use kiln::{DType, Device, Tensor};
    /// let x = Tensor::arange(3, DType::I64, Device::Cpu)?;
    /// assert_eq!(x.broadcast_to([2, 3])?.to_vec::<i64>()?, [0, 1, 2, 0, 1, 2]);
    /// # Ok::<(), kiln::Error>(())
    /// ```
    #[track_caller]
    pub fn broadcast_to(&self, shape: impl Shape) -> Result<Tensor> {
        let at = Source::caller();
        let shape = resolve_shape("broadcast_to", shape, &at)?;
        self.broadcast_at("broadcast_to", &shape, &at)
    }

    pub(crate) fn broadcast_at(&self, op: &'static str, shape: &[Dim], at: &Source) -> Result<Tensor> {
        if self.has_sizes(shape) {
            return Ok(self.unchanged());
        }
        let mismatch = |sizes| {
            let (lhs, rhs) = (self.hint().to_vec(), dim::hints(shape));
            Error::ShapeMismatch { op, lhs, rhs, sizes, at: at.clone() }
        };
        let Some(missing) = shape.len().checked_sub(self.rank()) else { return Err(mismatch(None)) };
        for (own, &wanted) in self.sizes().into_iter().zip(&shape[missing..]) {
            let is_one = own.is_plain() && own.hint() == 1;
            if !is_one && !own.equals(wanted, at) && !own.equals(Dim::plain(1), at) {
                let sizes = dim::hints(&[own, wanted]);
                return Err(mismatch(Some((sizes[0], sizes[1]))));
            }
        }
        check_elements(op, shape, self.dtype(), at)?;
        let mut padded = vec![Dim::plain(1); missing];
        padded.extend(self.sizes());
        if self.is_captured() {
            let aligned = if missing == 0 { self.clone() } else { self.record_reshape(&padded, at)? };
            return match aligned.has_sizes(shape) {
                true => Ok(aligned),
                false => aligned.record_view(Op::Expand { shape: dim::expressions(shape) }, at),
            };
        }
        let mut strides = vec![0; missing];
        strides.extend_from_slice(self.strides());
        let layout = Layout::new(dim::hints(&padded), strides, self.layout().offset());
        Ok(self.with_layout(layout.expand(dim::hints(shape))))
    }

    /// Like [`Tensor::broadcast_to`], but −1 keeps the size of an axis.
    #[track_caller]
    pub fn expand(&self, shape: impl Shape) -> Result<Tensor> {
        let at = Source::caller();
        let mut sizes = shape.sizes();
        let missing = sizes.len().saturating_sub(self.rank());
        for (size, own) in sizes[missing..].iter_mut().zip(self.sizes()) {
            if size.is_plain() && size.hint() == -1 {
                *size = own;
            }
        }
        let shape = resolve_sizes("expand", sizes, &at)?;
        self.broadcast_at("expand", &shape, &at)
    }

    /// Returns `length` positions of an axis, from `start` on.
    #[track_caller]
    pub fn narrow(&self, axis: impl Size, start: impl Size, length: impl Size) -> Result<Tensor> {
        let at = Source::caller();
        let axis = resolve_axis("narrow", axis, self.hint(), 0, &at)?;
        let start = start.to_dim();
        self.slice_at("narrow", axis, start, start + length.to_dim(), 1, &at)
    }

    /// Returns every `step`th position of an axis in `start..end`.
    ///
    /// ```
    /// use kiln::{DType, Device, Tensor};
    /// let x = Tensor::arange(10, DType::I64, Device::Cpu)?;
    /// assert_eq!(x.slice(0, 1, 8, 3)?.to_vec::<i64>()?, [1, 4, 7]);
    /// # Ok::<(), kiln::Error>(())
    /// ```
    #[track_caller]
    pub fn slice(&self, axis: impl Size, start: impl Size, end: impl Size, step: usize) -> Result<Tensor> {
        let at = Source::caller();
        let axis = resolve_axis("slice", axis, self.hint(), 0, &at)?;
        self.slice_at("slice", axis, start.to_dim(), end.to_dim(), step, &at)
    }

    pub(crate) fn slice_at(
        &self,
        op: &'static str,
        axis: usize,
        start: Dim,
        end: Dim,
        step: usize,
        at: &Source,
    ) -> Result<Tensor> {
        let size = self.extent(axis);
        if !Dim::plain(0).at_most(start, at) || !start.at_most(end, at) || !end.at_most(size, at) {
            let (start, end, size) = (start.hint(), end.hint(), self.hint()[axis]);
            return Err(Error::BadRange { op, start, end, size, at: at.clone() });
        }
        if step == 0 || isize::try_from(step).is_err() {
            let (name, expected) = ("step", "it has to be 1 or more");
            return Err(Error::BadArgument { op, name, value: step.into(), expected, at: at.clone() });
        }
        let (mut starts, mut sizes) = (vec![Dim::plain(0); self.rank()], self.sizes());
        let mut steps = vec![1; self.rank()];
        (starts[axis], sizes[axis]) = (start, (end - start).div_ceil(step));
        // A step beyond the axis is as good as its size, and keeps strides small.
        steps[axis] = if size.is_plain() { step.min(self.hint()[axis].max(1)) } else { step };
        self.cut(&starts, &sizes, &steps, at)
    }

    /// Takes `sizes` elements of each axis from `starts`, with a step of `steps`; they must be within the axes.
    pub(crate) fn cut(&self, starts: &[Dim], sizes: &[Dim], steps: &[usize], at: &Source) -> Result<Tensor> {
        let op = || Op::Slice {
            start: dim::expressions(starts),
            size: dim::expressions(sizes),
            step: steps.iter().map(|&n| n as i64).collect(),
        };
        if self.is_captured() {
            return self.record_view(op(), at);
        }
        let layout = self.layout().slice(&dim::hints(starts), &dim::hints(sizes), steps);
        // Memory is addressed by bytes: what would begin inside one is copied.
        if eager::starts_inside_a_byte(&layout, self.dtype()) {
            return eager::primitive(&op(), &[self], at);
        }
        Ok(self.with_layout(layout))
    }

    /// Returns one position of an axis; the axis is removed. A negative index counts from the end.
    #[track_caller]
    pub fn select(&self, axis: impl Size, index: impl Size) -> Result<Tensor> {
        let at = Source::caller();
        let axis = resolve_axis("select", axis, self.hint(), 0, &at)?;
        self.select_at("select", axis, index.to_dim(), &at)
    }

    pub(crate) fn select_at(&self, op: &'static str, axis: usize, index: Dim, at: &Source) -> Result<Tensor> {
        let size = self.extent(axis);
        let start = from_start(index, size, at);
        if !Dim::plain(0).at_most(start, at) || !start.less(size, at) {
            let (index, size) = (index.hint(), self.hint()[axis]);
            return Err(Error::IndexOutOfRange { op, index, size, at: at.clone() });
        }
        let one = self.slice_at(op, axis, start, start + 1, 1, at)?;
        if one.is_captured() {
            let mut shape = one.sizes();
            shape.remove(axis);
            return one.record_reshape(&shape, at);
        }
        let (mut shape, mut strides) = (one.shape().to_vec(), one.strides().to_vec());
        shape.remove(axis);
        strides.remove(axis);
        Ok(one.with_layout(Layout::new(shape, strides, one.layout().offset())))
    }

    /// Reverses axes, without a copy.
    #[track_caller]
    pub fn flip(&self, axes: impl Axes) -> Result<Tensor> {
        let at = Source::caller();
        let axes = resolve_axes("flip", axes, self.hint(), &at)?;
        if self.is_captured() {
            return self.record_view(Op::Flip { axes }, &at);
        }
        Ok(self.with_layout(self.layout().flip(&axes)))
    }

    /// Rolls elements along an axis by `shift` positions; elements that leave one end enter at the other.
    #[track_caller]
    pub fn roll(&self, shift: i64, axis: impl Size) -> Result<Tensor> {
        let at = Source::caller();
        let axis = resolve_axis("roll", axis, self.hint(), 0, &at)?;
        let size = self.extent(axis);
        if size.equals(Dim::plain(0), &at) {
            return Ok(self.clone());
        }
        let cut = Dim::plain(shift.saturating_neg()) % size;
        let head = self.slice_at("roll", axis, Dim::plain(0), cut, 1, &at)?;
        let tail = self.slice_at("roll", axis, cut, size, 1, &at)?;
        Tensor::cat(&[tail, head], axis)
    }

    /// Removes axes of size 1: those given that have size 1, or all with `..`.
    ///
    /// ```
    /// use kiln::{DType, Device, Tensor};
    /// let x = Tensor::zeros([1, 3, 1], DType::F32, Device::Cpu)?;
    /// assert_eq!(x.squeeze(..)?.shape(), [3]);
    /// assert_eq!(x.squeeze(-1)?.unsqueeze(0)?.shape(), [1, 1, 3]);
    /// # Ok::<(), kiln::Error>(())
    /// ```
    #[track_caller]
    pub fn squeeze(&self, axes: impl Axes) -> Result<Tensor> {
        let at = Source::caller();
        let axes = resolve_axes("squeeze", axes, self.hint(), &at)?;
        let kept = |axis: &usize| !(axes.contains(axis) && self.extent(*axis).equals(Dim::plain(1), &at));
        let kept: Vec<usize> = (0..self.rank()).filter(kept).collect();
        if self.is_captured() {
            return self.reshape_to(kept.iter().map(|&axis| self.extent(axis)).collect(), &at);
        }
        Ok(self.with_layout(self.layout().permute(&kept)))
    }

    /// Inserts an axis of size 1.
    #[track_caller]
    pub fn unsqueeze(&self, axis: impl Size) -> Result<Tensor> {
        let at = Source::caller();
        let axis = resolve_axis("unsqueeze", axis, self.hint(), 1, &at)?;
        if self.is_captured() {
            let mut shape = self.sizes();
            shape.insert(axis, Dim::plain(1));
            return self.record_reshape(&shape, &at);
        }
        let (mut shape, mut strides) = (self.shape().to_vec(), self.strides().to_vec());
        shape.insert(axis, 1);
        strides.insert(axis, 0);
        Ok(self.with_layout(Layout::new(shape, strides, self.layout().offset())))
    }

    /// Flattens the axes `start..=end` into one.
    #[track_caller]
    pub fn flatten(&self, start: impl Size, end: impl Size) -> Result<Tensor> {
        let at = Source::caller();
        if self.rank() == 0 {
            return self.reshape_to(vec![Dim::plain(1)], &at);
        }
        let start = resolve_axis("flatten", start, self.hint(), 0, &at)?;
        let end = resolve_axis("flatten", end, self.hint(), 0, &at)?;
        if start > end {
            let (op, size, start, end) = ("flatten", self.rank(), start as i64, end as i64);
            return Err(Error::BadRange { op, start, end, size, at });
        }
        let mut shape = self.sizes();
        let joined = dim::product(&shape[start..=end]);
        shape.splice(start..=end, [joined]);
        self.reshape_to(shape, &at)
    }

    /// Splits an axis into several; one of the sizes may be −1.
    #[track_caller]
    pub fn unflatten(&self, axis: impl Size, sizes: impl Shape) -> Result<Tensor> {
        let at = Source::caller();
        let axis = resolve_axis("unflatten", axis, self.hint(), 0, &at)?;
        let sizes = sizes.sizes();
        let Some(found) = find_shape(&[self.extent(axis)], &sizes, &at) else {
            let (op, from, elements) = ("unflatten", vec![self.hint()[axis]], self.hint()[axis]);
            return Err(Error::BadReshape { op, from, elements, to: sizes.iter().map(|n| n.hint()).collect(), at });
        };
        let mut shape = self.sizes();
        shape.splice(axis..=axis, found);
        self.reshape_to(shape, &at)
    }

    /// Returns windows of `size` along an axis, `step` apart, as a new last axis; overlapping windows share memory.
    ///
    /// ```
    /// use kiln::{DType, Device, Tensor};
    /// let x = Tensor::arange(5, DType::I64, Device::Cpu)?;
    /// assert_eq!(x.unfold(0, 3, 2)?.to_vec::<i64>()?, [0, 1, 2, 2, 3, 4]);
    /// # Ok::<(), kiln::Error>(())
    /// ```
    #[track_caller]
    pub fn unfold(&self, axis: impl Size, size: usize, step: usize) -> Result<Tensor> {
        let at = Source::caller();
        let axis = resolve_axis("unfold", axis, self.hint(), 0, &at)?;
        let bad = |name, value: usize, expected| {
            Err(Error::BadArgument { op: "unfold", name, value: value.into(), expected, at: at.clone() })
        };
        if step == 0 || isize::try_from(step).is_err() {
            return bad("step", step, "it has to be 1 or more");
        }
        let length = self.extent(axis);
        if size == 0 || length.less(size.into(), &at) {
            return bad("size", size, "a window has to fit in the axis");
        }
        let step = if length.is_plain() { step.min(self.hint()[axis]) } else { step };
        if self.is_captured() {
            return self.record_view(Op::Unfold { axis, size, stride: step, dilation: 1 }, &at);
        }
        self.viewed(&at, |layout| layout.unfold(axis, size, step, 1))
    }

    /// Splits an axis into pieces of `size`; the last may be smaller. The number of pieces is guarded.
    #[track_caller]
    pub fn split(&self, size: impl Size, axis: impl Size) -> Result<Vec<Tensor>> {
        let at = Source::caller();
        let axis = resolve_axis("split", axis, self.hint(), 0, &at)?;
        self.split_at("split", size.to_dim(), axis, &at)
    }

    fn split_at(&self, op: &'static str, size: Dim, axis: usize, at: &Source) -> Result<Vec<Tensor>> {
        if !Dim::plain(0).less(size, at) {
            let (name, value, expected) = ("size", size.hint(), "it has to be 1 or more");
            return Err(Error::BadArgument { op, name, value: value.into(), expected, at: at.clone() });
        }
        let total = self.extent(axis);
        let mut pieces = Vec::new();
        let mut start = Dim::plain(0);
        // Each turn asks whether something is left, which fixes the number of pieces and no size.
        loop {
            let end = start + size;
            let is_last = total.at_most(end, at);
            let end = if is_last { total } else { end };
            pieces.push(self.slice_at(op, axis, start, end, 1, at)?);
            if is_last {
                return Ok(pieces);
            }
            start = end;
        }
    }

    /// Splits an axis into pieces of the given sizes, which must add up to the axis.
    #[track_caller]
    pub fn split_sizes<S: Size>(&self, sizes: &[S], axis: impl Size) -> Result<Vec<Tensor>> {
        let at = Source::caller();
        let axis = resolve_axis("split_sizes", axis, self.hint(), 0, &at)?;
        let sizes: Vec<Dim> = sizes.iter().map(|size| size.to_dim()).collect();
        let total = sizes.iter().fold(Dim::plain(0), |sum, &size| sum + size);
        if !total.equals(self.extent(axis), &at) {
            let (lhs, rhs) = (dim::hints(&sizes), self.hint().to_vec());
            let sizes = Some((dim::hints(&[total])[0], self.hint()[axis]));
            return Err(Error::ShapeMismatch { op: "split_sizes", lhs, rhs, sizes, at });
        }
        let mut start = Dim::plain(0);
        let mut pieces = Vec::with_capacity(sizes.len());
        for &size in &sizes {
            pieces.push(self.slice_at("split_sizes", axis, start, start + size, 1, &at)?);
            start += size;
        }
        Ok(pieces)
    }

    /// Splits an axis into at most `count` pieces of one size; the last may be smaller.
    #[track_caller]
    pub fn chunk(&self, count: usize, axis: impl Size) -> Result<Vec<Tensor>> {
        let at = Source::caller();
        let axis = resolve_axis("chunk", axis, self.hint(), 0, &at)?;
        if count == 0 {
            let (op, name, expected) = ("chunk", "count", "it has to be 1 or more");
            return Err(Error::BadArgument { op, name, value: count.into(), expected, at });
        }
        self.split_at("chunk", self.extent(axis).div_ceil(count).max(1), axis, &at)
    }

    /// Returns the positions of an axis, one tensor each.
    #[track_caller]
    pub fn unbind(&self, axis: impl Size) -> Result<Vec<Tensor>> {
        let at = Source::caller();
        let axis = resolve_axis("unbind", axis, self.hint(), 0, &at)?;
        (0..self.extent(axis).number(&at)).map(|i| self.select_at("unbind", axis, i.into(), &at)).collect()
    }

    /// Moves one axis to another position; the others keep their order.
    ///
    /// ```
    /// use kiln::{DType, Device, Tensor};
    /// let x = Tensor::zeros([2, 3, 4], DType::F32, Device::Cpu)?;
    /// assert_eq!(x.movedim(0, -1)?.shape(), [3, 4, 2]);
    /// # Ok::<(), kiln::Error>(())
    /// ```
    #[track_caller]
    pub fn movedim(&self, from: impl Size, to: impl Size) -> Result<Tensor> {
        let at = Source::caller();
        let from = resolve_axis("movedim", from, self.hint(), 0, &at)?;
        let to = resolve_axis("movedim", to, self.hint(), 0, &at)?;
        let mut order: Vec<usize> = (0..self.rank()).filter(|&axis| axis != from).collect();
        order.insert(to, from);
        self.permute_to(order, &at)
    }

    /// Returns the diagonal of the last two axes, `offset` positions above the main one (below, if negative), as a new last
    /// axis.
    #[track_caller]
    pub fn diagonal(&self, offset: i64) -> Result<Tensor> {
        let at = Source::caller();
        if self.rank() < 2 {
            let (op, expected) = ("diagonal", "two axes or more");
            return Err(Error::WrongRank { op, shape: self.hint().to_vec(), expected, at });
        }
        let n = self.rank();
        let (rows, columns) = (self.extent(n - 2), self.extent(n - 1));
        let below = Dim::from(offset.unsigned_abs());
        let (row, column) = if offset < 0 { (below.min(rows), 0.into()) } else { (0.into(), below.min(columns)) };
        let length = (rows - row).min(columns - column);
        let corner = self.slice_at("diagonal", n - 2, row, row + length, 1, &at)?;
        let corner = corner.slice_at("diagonal", n - 1, column, column + length, 1, &at)?;
        if corner.is_captured() {
            // Every (length + 1)th element of the corner's rows, one after another: where the length is no number, the
            // first of each row of length + 1, once a row is added at the end.
            let mut shape = corner.sizes();
            shape.pop();
            let mut rows = shape.clone();
            rows[n - 2] = length * length;
            let flat = corner.record_reshape(&rows, &at)?;
            if length.is_plain() {
                let (starts, mut steps) = (vec![Dim::plain(0); n - 1], vec![1; n - 1]);
                steps[n - 2] = dim::hints(&[length + 1])[0];
                return flat.cut(&starts, &shape, &steps, &at);
            }
            let mut amounts = vec![(0.into(), 0.into()); n - 1];
            amounts[n - 2].1 = length;
            let padded = flat.pad_at("diagonal", &amounts, 0.0, &at)?;
            let mut square = shape.clone();
            square.push(length + 1);
            return padded.record_reshape(&square, &at)?.select_at("diagonal", n - 1, 0.into(), &at);
        }
        corner.viewed(&at, |layout| {
            let (mut shape, mut strides) = (layout.shape().to_vec(), layout.strides().to_vec());
            shape.pop();
            if let Some(last) = strides.pop() {
                strides[n - 2] += last;
            }
            Layout::new(shape, strides, layout.offset())
        })
    }

    /// A view of some of the elements, the first of a row-major layout among them. Memory is addressed by bytes: a view that would begin
    /// inside one is of a copy.
    fn viewed(&self, at: &Source, view: impl Fn(&Layout) -> Layout) -> Result<Tensor> {
        let layout = view(self.layout());
        if !eager::starts_inside_a_byte(&layout, self.dtype()) {
            return Ok(self.with_layout(layout));
        }
        let copy = eager::copy(self, at)?;
        Ok(copy.with_layout(view(copy.layout())))
    }
}

/// An index that counts from the end when it is negative.
pub(crate) fn from_start(index: Dim, size: Dim, at: &Source) -> Dim {
    if index.less(Dim::plain(0), at) { index + size } else { index }
}

/// The shape of as many elements as another that `sizes` mean, one of which may be −1.
fn find_shape(own: &[Dim], sizes: &[Dim], at: &Source) -> Option<Vec<Dim>> {
    let is_open = |size: &Dim| size.is_plain() && size.hint() == -1;
    let known: Vec<Dim> = sizes.iter().copied().filter(|size| !is_open(size)).collect();
    if known.iter().any(|size| size.less(Dim::plain(0), at)) {
        return None;
    }
    checked_elements(&dim::hints(&known))?;
    let (elements, product) = (dim::product(own), dim::product(&known));
    let missing = match sizes.len() - known.len() {
        0 => elements.equals(product, at).then_some(product)?,
        1 if product.equals(Dim::plain(0), at) => return None,
        1 => match elements.expression().div_exact(&product.expression()) {
            Some(_) => elements / product,
            None => (elements % product).equals(Dim::plain(0), at).then(|| elements / product)?,
        },
        _ => return None,
    };
    Some(sizes.iter().map(|size| if is_open(size) { missing } else { *size }).collect())
}
