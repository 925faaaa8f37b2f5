//! Views: other shapes and orders of the same memory. Nothing here launches a kernel, but a reshape (or what is made of one) whose elements do not lie so
//! that strides can describe the result: that one copies.

use crate::autograd::tape;
use crate::layout::Layout;
use crate::shape::{checked_elements, resolve_axes, resolve_axis, resolve_shape};
use crate::{Axes, Error, Result, Shape, Size, Tensor, capture, eager};
use kiln_ir::{Op, Source};

impl Tensor {
    /// The same elements in row-major order under another shape; one size may be −1 and is then found.
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

    pub(crate) fn reshape_at(&self, op: &'static str, sizes: Vec<i64>, at: &Source) -> Result<Tensor> {
        let elements = self.elements();
        let Some(shape) = find_shape(elements, &sizes) else {
            return Err(Error::BadReshape { op, from: self.shape().to_vec(), elements, to: sizes, at: at.clone() });
        };
        self.reshape_to(shape, at)
    }

    /// Reshapes to as many elements.
    pub(crate) fn reshape_to(&self, shape: Vec<usize>, at: &Source) -> Result<Tensor> {
        if shape == self.shape() {
            return Ok(self.unchanged());
        }
        if self.is_captured() {
            return self.record_reshape(&shape, at);
        }
        match self.layout().reshape(&shape) {
            Some(layout) => Ok(self.with_layout(layout)),
            None => Ok(eager::copy(self, at)?.with_layout(Layout::contiguous(shape))),
        }
    }

    /// Elements in row-major order without gaps: the tensor itself if they are, otherwise a copy.
    #[track_caller]
    pub fn contiguous(&self) -> Result<Tensor> {
        self.contiguous_at(&Source::caller())
    }

    pub(crate) fn contiguous_at(&self, at: &Source) -> Result<Tensor> {
        if self.is_contiguous() { Ok(self.unchanged()) } else { eager::copy(self, at) }
    }

    /// Axis `i` of the result is axis `order[i]`.
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
            return Err(Error::WrongRank { op, shape: self.shape().to_vec(), expected, at });
        }
        resolve_axes("permute", &given, self.shape(), &at)?;
        let order: Vec<usize> =
            given.iter().map(|&a| resolve_axis("permute", a, self.shape(), 0, &at)).collect::<Result<_>>()?;
        self.permute_to(order, &at)
    }

    /// Two axes change places.
    #[track_caller]
    pub fn transpose(&self, a: impl Size, b: impl Size) -> Result<Tensor> {
        let at = Source::caller();
        let a = resolve_axis("transpose", a, self.shape(), 0, &at)?;
        let b = resolve_axis("transpose", b, self.shape(), 0, &at)?;
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
        capture::is_active() || self.is_traced() || tape::is_recorded(&[self])
    }

    #[cold]
    pub(crate) fn record_view(&self, op: Op, at: &Source) -> Result<Tensor> {
        eager::emit(&op, &[self], self.device(), at)
    }

    fn record_reshape(&self, shape: &[usize], at: &Source) -> Result<Tensor> {
        self.record_view(Op::Reshape { shape: dims(shape) }, at)
    }

    /// The last two axes change places.
    #[track_caller]
    pub fn t(&self) -> Result<Tensor> {
        if self.rank() < 2 {
            let (op, expected, at) = ("t", "two axes or more", Source::caller());
            return Err(Error::WrongRank { op, shape: self.shape().to_vec(), expected, at });
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

    pub(crate) fn broadcast_at(&self, op: &'static str, shape: &[usize], at: &Source) -> Result<Tensor> {
        if shape == self.shape() {
            return Ok(self.unchanged());
        }
        let mismatch = |sizes| {
            let (lhs, rhs) = (self.shape().to_vec(), shape.to_vec());
            Error::ShapeMismatch { op, lhs, rhs, sizes, at: at.clone() }
        };
        let Some(missing) = shape.len().checked_sub(self.rank()) else { return Err(mismatch(None)) };
        if let Some((&a, &b)) = self.shape().iter().zip(&shape[missing..]).find(|&(&a, &b)| a != b && a != 1) {
            return Err(mismatch(Some((a, b))));
        }
        if checked_elements(shape).is_none() {
            return Err(Error::TooLarge { op, dtype: self.dtype(), shape: shape.to_vec(), at: at.clone() });
        }
        let mut padded = vec![1; missing];
        padded.extend_from_slice(self.shape());
        if self.is_captured() {
            let aligned = if missing == 0 { self.clone() } else { self.record_reshape(&padded, at)? };
            return aligned.record_view(Op::Expand { shape: dims(shape) }, at);
        }
        let mut strides = vec![0; missing];
        strides.extend_from_slice(self.strides());
        let layout = Layout::new(padded, strides, self.layout().offset());
        Ok(self.with_layout(layout.expand(shape.to_vec())))
    }

    /// As [`Tensor::broadcast_to`], where −1 keeps an axis as it is.
    #[track_caller]
    pub fn expand(&self, shape: impl Shape) -> Result<Tensor> {
        let at = Source::caller();
        let mut sizes = shape.sizes();
        let missing = sizes.len().saturating_sub(self.rank());
        for (size, &own) in sizes[missing..].iter_mut().zip(self.shape()) {
            if *size == -1 {
                *size = own as i64;
            }
        }
        let shape = resolve_shape("expand", sizes, &at)?;
        self.broadcast_at("expand", &shape, &at)
    }

    /// `length` indices of an axis, from `start` on.
    #[track_caller]
    pub fn narrow(&self, axis: impl Size, start: usize, length: usize) -> Result<Tensor> {
        let at = Source::caller();
        let axis = resolve_axis("narrow", axis, self.shape(), 0, &at)?;
        self.slice_at("narrow", axis, start, start.saturating_add(length), 1, &at)
    }

    /// Every `step`th index of an axis in `start..end`.
    ///
    /// ```
    /// use kiln::{DType, Device, Tensor};
    /// let x = Tensor::arange(10, DType::I64, Device::Cpu)?;
    /// assert_eq!(x.slice(0, 1, 8, 3)?.to_vec::<i64>()?, [1, 4, 7]);
    /// # Ok::<(), kiln::Error>(())
    /// ```
    #[track_caller]
    pub fn slice(&self, axis: impl Size, start: usize, end: usize, step: usize) -> Result<Tensor> {
        let at = Source::caller();
        let axis = resolve_axis("slice", axis, self.shape(), 0, &at)?;
        self.slice_at("slice", axis, start, end, step, &at)
    }

    pub(crate) fn slice_at(
        &self,
        op: &'static str,
        axis: usize,
        start: usize,
        end: usize,
        step: usize,
        at: &Source,
    ) -> Result<Tensor> {
        let size = self.shape()[axis];
        if start > end || end > size {
            let (start, end) = (start.to_i64(), end.to_i64());
            return Err(Error::BadRange { op, start, end, size, at: at.clone() });
        }
        if step == 0 || isize::try_from(step).is_err() {
            let (name, expected) = ("step", "it has to be 1 or more");
            return Err(Error::BadArgument { op, name, value: step.into(), expected, at: at.clone() });
        }
        let (mut starts, mut sizes, mut steps) = (vec![0; self.rank()], self.shape().to_vec(), vec![1; self.rank()]);
        // A step beyond the axis is as good as its size, and keeps strides small.
        (starts[axis], sizes[axis], steps[axis]) = (start, (end - start).div_ceil(step), step.min(size.max(1)));
        self.cut(&starts, &sizes, &steps, at)
    }

    /// `sizes` elements an axis, from `starts`, every `steps`th; they lie inside the axes.
    pub(crate) fn cut(&self, starts: &[usize], sizes: &[usize], steps: &[usize], at: &Source) -> Result<Tensor> {
        let op =
            || Op::Slice { start: dims(starts), size: dims(sizes), step: steps.iter().map(|&n| n as i64).collect() };
        if self.is_captured() {
            return self.record_view(op(), at);
        }
        let layout = self.layout().slice(starts, sizes, steps);
        // Memory is addressed by bytes: what would begin inside one is copied.
        if eager::starts_inside_a_byte(&layout, self.dtype()) {
            return eager::primitive(&op(), &[self], at);
        }
        Ok(self.with_layout(layout))
    }

    /// One index of an axis; the axis goes away. A negative index counts from the end.
    #[track_caller]
    pub fn select(&self, axis: impl Size, index: impl Size) -> Result<Tensor> {
        let at = Source::caller();
        let axis = resolve_axis("select", axis, self.shape(), 0, &at)?;
        self.select_at("select", axis, index.to_i64(), &at)
    }

    pub(crate) fn select_at(&self, op: &'static str, axis: usize, index: i64, at: &Source) -> Result<Tensor> {
        let size = self.shape()[axis];
        let resolved = if index < 0 { index + size as i64 } else { index };
        if resolved < 0 || resolved >= size as i64 {
            return Err(Error::IndexOutOfRange { op, index, size, at: at.clone() });
        }
        let start = resolved as usize;
        let one = self.slice_at(op, axis, start, start + 1, 1, at)?;
        let (mut shape, mut strides) = (one.shape().to_vec(), one.strides().to_vec());
        shape.remove(axis);
        if one.is_captured() {
            return one.record_reshape(&shape, at);
        }
        strides.remove(axis);
        Ok(one.with_layout(Layout::new(shape, strides, one.layout().offset())))
    }

    /// Reverses axes, without a copy.
    #[track_caller]
    pub fn flip(&self, axes: impl Axes) -> Result<Tensor> {
        let at = Source::caller();
        let axes = resolve_axes("flip", axes, self.shape(), &at)?;
        if self.is_captured() {
            return self.record_view(Op::Flip { axes }, &at);
        }
        Ok(self.with_layout(self.layout().flip(&axes)))
    }

    /// Rolls elements along an axis by `shift` places; what falls off one end comes in at the other.
    #[track_caller]
    pub fn roll(&self, shift: i64, axis: impl Size) -> Result<Tensor> {
        let at = Source::caller();
        let axis = resolve_axis("roll", axis, self.shape(), 0, &at)?;
        let size = self.shape()[axis];
        if size == 0 {
            return Ok(self.clone());
        }
        let cut = (-shift).rem_euclid(size as i64) as usize;
        let head = self.slice_at("roll", axis, 0, cut, 1, &at)?;
        let tail = self.slice_at("roll", axis, cut, size, 1, &at)?;
        Tensor::cat(&[tail, head], axis)
    }

    /// Removes axes of size 1: those given, where they are of size 1, or with `..` all.
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
        let axes = resolve_axes("squeeze", axes, self.shape(), &at)?;
        let kept = |axis: &usize| !(axes.contains(axis) && self.shape()[*axis] == 1);
        let kept: Vec<usize> = (0..self.rank()).filter(kept).collect();
        if self.is_captured() {
            return self.reshape_to(kept.iter().map(|&axis| self.shape()[axis]).collect(), &at);
        }
        Ok(self.with_layout(self.layout().permute(&kept)))
    }

    /// A new axis of size 1 at a place.
    #[track_caller]
    pub fn unsqueeze(&self, axis: impl Size) -> Result<Tensor> {
        let at = Source::caller();
        let axis = resolve_axis("unsqueeze", axis, self.shape(), 1, &at)?;
        let (mut shape, mut strides) = (self.shape().to_vec(), self.strides().to_vec());
        shape.insert(axis, 1);
        if self.is_captured() {
            return self.record_reshape(&shape, &at);
        }
        strides.insert(axis, 0);
        Ok(self.with_layout(Layout::new(shape, strides, self.layout().offset())))
    }

    /// Joins the axes `start..=end` into one.
    #[track_caller]
    pub fn flatten(&self, start: impl Size, end: impl Size) -> Result<Tensor> {
        let at = Source::caller();
        if self.rank() == 0 {
            return self.reshape_to(vec![1], &at);
        }
        let start = resolve_axis("flatten", start, self.shape(), 0, &at)?;
        let end = resolve_axis("flatten", end, self.shape(), 0, &at)?;
        if start > end {
            let (op, size, start, end) = ("flatten", self.rank(), start as i64, end as i64);
            return Err(Error::BadRange { op, start, end, size, at });
        }
        let mut shape = self.shape().to_vec();
        shape.splice(start..=end, [self.shape()[start..=end].iter().product()]);
        self.reshape_to(shape, &at)
    }

    /// Splits an axis into several; one of the sizes may be −1.
    #[track_caller]
    pub fn unflatten(&self, axis: impl Size, sizes: impl Shape) -> Result<Tensor> {
        let at = Source::caller();
        let axis = resolve_axis("unflatten", axis, self.shape(), 0, &at)?;
        let sizes = sizes.sizes();
        let Some(found) = find_shape(self.shape()[axis], &sizes) else {
            let (op, from, elements) = ("unflatten", vec![self.shape()[axis]], self.shape()[axis]);
            return Err(Error::BadReshape { op, from, elements, to: sizes, at });
        };
        let mut shape = self.shape().to_vec();
        shape.splice(axis..=axis, found);
        self.reshape_to(shape, &at)
    }

    /// Windows of `size` along an axis, `step` apart, as a new last axis; overlapping windows share memory.
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
        let axis = resolve_axis("unfold", axis, self.shape(), 0, &at)?;
        let bad = |name, value: usize, expected| {
            Err(Error::BadArgument { op: "unfold", name, value: value.into(), expected, at: at.clone() })
        };
        if step == 0 || isize::try_from(step).is_err() {
            return bad("step", step, "it has to be 1 or more");
        }
        if size == 0 || size > self.shape()[axis] {
            return bad("size", size, "a window has to fit in the axis");
        }
        let step = step.min(self.shape()[axis]);
        if self.is_captured() {
            return self.record_view(Op::Unfold { axis, size, stride: step, dilation: 1 }, &at);
        }
        Ok(self.with_layout(self.layout().unfold(axis, size, step, 1)))
    }

    /// Pieces of `size` along an axis; the last may be smaller.
    #[track_caller]
    pub fn split(&self, size: usize, axis: impl Size) -> Result<Vec<Tensor>> {
        let at = Source::caller();
        let axis = resolve_axis("split", axis, self.shape(), 0, &at)?;
        if size == 0 {
            let (op, name, expected) = ("split", "size", "it has to be 1 or more");
            return Err(Error::BadArgument { op, name, value: size.into(), expected, at });
        }
        let total = self.shape()[axis];
        let pieces = total.div_ceil(size).max(1);
        (0..pieces)
            .map(|i| self.slice_at("split", axis, i * size, (i * size).saturating_add(size).min(total), 1, &at))
            .collect()
    }

    /// Pieces of the given sizes along an axis; they have to add up to the axis.
    #[track_caller]
    pub fn split_sizes(&self, sizes: &[usize], axis: impl Size) -> Result<Vec<Tensor>> {
        let at = Source::caller();
        let axis = resolve_axis("split_sizes", axis, self.shape(), 0, &at)?;
        let total = sizes.iter().fold(0usize, |sum, &n| sum.saturating_add(n));
        if total != self.shape()[axis] {
            let (lhs, rhs) = (sizes.to_vec(), self.shape().to_vec());
            return Err(Error::ShapeMismatch {
                op: "split_sizes",
                lhs,
                rhs,
                sizes: Some((total, self.shape()[axis])),
                at,
            });
        }
        let mut start = 0;
        sizes
            .iter()
            .map(|&size| {
                start += size;
                self.slice_at("split_sizes", axis, start - size, start, 1, &at)
            })
            .collect()
    }

    /// At most `count` pieces of one size along an axis; the last may be smaller.
    #[track_caller]
    pub fn chunk(&self, count: usize, axis: impl Size) -> Result<Vec<Tensor>> {
        let at = Source::caller();
        let axis = resolve_axis("chunk", axis, self.shape(), 0, &at)?;
        if count == 0 {
            let (op, name, expected) = ("chunk", "count", "it has to be 1 or more");
            return Err(Error::BadArgument { op, name, value: count.into(), expected, at });
        }
        self.split(self.shape()[axis].div_ceil(count).max(1), axis)
    }

    /// The places of an axis, one tensor each.
    #[track_caller]
    pub fn unbind(&self, axis: impl Size) -> Result<Vec<Tensor>> {
        let at = Source::caller();
        let axis = resolve_axis("unbind", axis, self.shape(), 0, &at)?;
        (0..self.shape()[axis]).map(|i| self.select_at("unbind", axis, i as i64, &at)).collect()
    }

    /// One axis moved to another place, the others in their order.
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
        let from = resolve_axis("movedim", from, self.shape(), 0, &at)?;
        let to = resolve_axis("movedim", to, self.shape(), 0, &at)?;
        let mut order: Vec<usize> = (0..self.rank()).filter(|&axis| axis != from).collect();
        order.insert(to, from);
        self.permute_to(order, &at)
    }

    /// The diagonal of the last two axes, `offset` places above the main one (below, if negative), as a new last axis.
    #[track_caller]
    pub fn diagonal(&self, offset: i64) -> Result<Tensor> {
        let at = Source::caller();
        if self.rank() < 2 {
            let (op, expected) = ("diagonal", "two axes or more");
            return Err(Error::WrongRank { op, shape: self.shape().to_vec(), expected, at });
        }
        let n = self.rank();
        let (rows, columns) = (self.shape()[n - 2], self.shape()[n - 1]);
        let below = usize::try_from(offset.unsigned_abs()).unwrap_or(usize::MAX);
        let (row, column) = if offset < 0 { (below.min(rows), 0) } else { (0, below.min(columns)) };
        let length = (rows - row).min(columns - column);
        let corner = self.slice_at("diagonal", n - 2, row, row + length, 1, &at)?;
        let corner = corner.slice_at("diagonal", n - 1, column, column + length, 1, &at)?;
        let (mut shape, mut strides) = (corner.shape().to_vec(), corner.strides().to_vec());
        shape.pop();
        if corner.is_captured() {
            // Every (length + 1)th element of the corner's rows, one after another.
            let mut rows = shape.clone();
            rows[n - 2] = length * length;
            let (starts, mut steps) = (vec![0; n - 1], vec![1; n - 1]);
            steps[n - 2] = length + 1;
            return corner.record_reshape(&rows, &at)?.cut(&starts, &shape, &steps, &at);
        }
        if let Some(last) = strides.pop() {
            strides[n - 2] += last;
        }
        Ok(corner.with_layout(Layout::new(shape, strides, corner.layout().offset())))
    }
}

fn dims(numbers: &[usize]) -> Vec<kiln_ir::Dim> {
    numbers.iter().map(|&n| n.into()).collect()
}

/// The shape of so many elements that `sizes` mean, one of which may be −1.
fn find_shape(elements: usize, sizes: &[i64]) -> Option<Vec<usize>> {
    let known: Vec<usize> =
        sizes.iter().filter(|&&n| n != -1).map(|&n| usize::try_from(n).ok()).collect::<Option<_>>()?;
    let product = checked_elements(&known)?;
    let missing = match sizes.len() - known.len() {
        0 => (product == elements).then_some(0)?,
        1 => (product != 0 && elements.is_multiple_of(product)).then(|| elements / product)?,
        _ => return None,
    };
    Some(sizes.iter().map(|&n| if n == -1 { missing } else { n as usize }).collect())
}
