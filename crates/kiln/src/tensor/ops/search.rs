//! Places among sorted numbers, counts, order statistics, and draws by weight.

use crate::tensor::eager;
use crate::tensor::shape::resolve_axis;
use crate::tensor::{dim, tracer};
use crate::{DType, Dim, Error, Generator, Result, Size, Tensor};
use kiln_ir::build::{self, Emit, GraphBuilder};
use kiln_ir::{NodeId, Op, ScatterKind, Source};

impl Tensor {
    /// For each element the number of ascending `boundaries` below it, those equal to it included if `right`, as i64; NaN comes last.
    ///
    /// ```
    /// use kiln::{Device, Tensor};
    /// let boundaries = Tensor::new([1f32, 3., 5.], Device::Cpu)?;
    /// let x = Tensor::new([0f32, 3., 9.], Device::Cpu)?;
    /// assert_eq!(x.bucketize(&boundaries, false)?.to_vec::<i64>()?, [0, 1, 3]);
    /// assert_eq!(x.bucketize(&boundaries, true)?.to_vec::<i64>()?, [0, 2, 3]);
    /// # Ok::<(), kiln::Error>(())
    /// ```
    #[track_caller]
    pub fn bucketize(&self, boundaries: &Tensor, right: bool) -> Result<Tensor> {
        let at = Source::caller();
        self.same_dtype("bucketize", boundaries, &at)?;
        let write =
            |b: &mut GraphBuilder, inputs: &[NodeId]| build::bucketize(b, &inputs[0], &inputs[1], right, DType::I64);
        eager::composite("bucketize", &[right.into()], &[self, boundaries], write, &at)
    }

    /// Where each of `values: […, k]` would be inserted into this tensor `[…, n]`, ascending along its last axis: before equal elements,
    /// or behind them if `right`. A tensor of one axis serves values of any shape.
    #[track_caller]
    pub fn searchsorted(&self, values: &Tensor, right: bool) -> Result<Tensor> {
        let at = Source::caller();
        self.same_dtype("searchsorted", values, &at)?;
        if self.rank() == 1 {
            let write = |b: &mut GraphBuilder, inputs: &[NodeId]| {
                build::bucketize(b, &inputs[1], &inputs[0], right, DType::I64)
            };
            return eager::composite("searchsorted", &[right.into()], &[self, values], write, &at);
        }
        if self.rank() == 0 {
            let expected = "one axis or more";
            return Err(Error::WrongRank { op: "searchsorted", shape: vec![], expected, at });
        }
        let write = |b: &mut GraphBuilder, inputs: &[NodeId]| build::searchsorted(b, &inputs[0], &inputs[1], right);
        eager::composite("searchsorted", &[right.into()], &[self, values], write, &at)
    }

    /// How many elements fall into each of `bins` parts of equal length of low ≤ x ≤ high; where low equals high the range is that of the
    /// elements.
    #[track_caller]
    pub fn histc(&self, bins: usize, low: f64, high: f64) -> Result<Tensor> {
        let at = Source::caller();
        let write = |b: &mut GraphBuilder, inputs: &[NodeId]| build::histogram(b, &inputs[0], bins, low, high);
        eager::composite("histc", &[bins.into(), low.into(), high.into()], &[self], write, &at)
    }

    /// How many elements, or with weights how much of them, fall between neighbours of ascending `edges`; the last edge belongs to the last bin.
    ///
    /// ```
    /// use kiln::{Device, Tensor};
    /// let x = Tensor::new([0f32, 1., 1.5, 4., 7.], Device::Cpu)?;
    /// let edges = Tensor::new([0f32, 1., 4.], Device::Cpu)?;
    /// assert_eq!(x.histogram(&edges, None)?.to_vec::<f32>()?, [1., 3.]);
    /// # Ok::<(), kiln::Error>(())
    /// ```
    #[track_caller]
    pub fn histogram(&self, edges: &Tensor, weights: Option<&Tensor>) -> Result<Tensor> {
        let at = Source::caller();
        self.same_dtype("histogram", edges, &at)?;
        if edges.rank() != 1 || edges.elements() < 2 {
            let expected = "one axis of two edges or more";
            return Err(Error::WrongRank { op: "histogram", shape: edges.hint().to_vec(), expected, at });
        }
        let mut operands = vec![self, edges];
        operands.extend(weights);
        let bins = edges.length_of(0, &at) - 1;
        let write = |b: &mut GraphBuilder, inputs: &[NodeId]| {
            let ty = b.ty(&inputs[0]);
            let flat = build::reshape(b, &inputs[0], &[ty.elements()])?;
            let above = build::bucketize(b, &flat, &inputs[1], true, DType::I64)?;
            let place = build::add_scalar(b, &above, -1.0)?;
            let top = build::pick(b, &inputs[1], 0, bins)?;
            let is_top = build::compare(b, kiln_ir::CompareOp::Eq, &flat, &top)?;
            let place = build::masked_fill(b, &place, &is_top, bins as f64 - 1.0)?;
            let from = build::compare_scalar(b, kiln_ir::CompareOp::Ge, &place, 0.0)?;
            let to = build::compare_scalar(b, kiln_ir::CompareOp::Lt, &place, bins as f64)?;
            let inside = build::and(b, &from, &to)?;
            let weight = match inputs.get(2) {
                Some(weights) => build::reshape(b, weights, &[ty.elements()])?,
                None => build::full_like(b, &flat, 1.0)?,
            };
            let zero = build::full_like(b, &weight, 0.0)?;
            let weight = build::select(b, &inside, &weight, &zero)?;
            let place = build::clamp(b, &place, Some(0.0), Some(bins as f64 - 1.0))?;
            let dtype = b.ty(&weight).dtype;
            let empty = build::full(b, kiln_ir::Scalar::float(dtype, 0.0), &[bins.into()])?;
            b.emit(Op::Scatter { axis: 0, kind: ScatterKind::Add }, &[empty, place, weight])
        };
        eager::composite("histogram", &[bins.into(), weights.is_some().into()], &operands, write, &at)
    }

    /// How often each of 0, 1, … occurs in a tensor of integers, at least `minimum` counts; with weights their sums. The length depends on
    /// the elements: see [`Tensor::nonzero`].
    ///
    /// ```
    /// use kiln::{Device, Tensor};
    /// let x = Tensor::new([1i64, 3, 1], Device::Cpu)?;
    /// assert_eq!(x.bincount(None, 0)?.to_vec::<i64>()?, [0, 2, 0, 1]);
    /// assert_eq!(x.bincount(None, 6)?.shape(), [6]);
    /// # Ok::<(), kiln::Error>(())
    /// ```
    #[track_caller]
    pub fn bincount(&self, weights: Option<&Tensor>, minimum: usize) -> Result<Tensor> {
        let at = Source::caller();
        if !self.dtype().is_int() || self.dtype() == DType::Bool {
            return Err(Error::WrongDType { op: "bincount", got: self.dtype(), expected: "integers", at });
        }
        let count = dim::product(&self.sizes());
        let places = self.to_dtype_at(DType::I64, &at)?.reshape_to(vec![count], &at)?;
        // The largest number that has a count, whatever the elements are.
        let floor = Tensor::from_vec(vec![minimum as i64 - 1], 1, self.device())?;
        let numbers = Tensor::cat(&[places.clone(), floor], 0)?;
        let empty = match numbers.is_traced() {
            true => tracer::sized_by_data(&numbers, Tensor::zeros_up_to_the_largest, None, &at)?,
            false => numbers.zeros_up_to_the_largest(&at)?,
        };
        match weights {
            Some(weights) => {
                let weights = weights.reshape_to(vec![count], &at)?;
                let dtype = if weights.dtype() == DType::F32 { DType::F32 } else { DType::F64 };
                let (empty, weights) = (empty.to_dtype_at(dtype, &at)?, weights.to_dtype_at(dtype, &at)?);
                empty.scattered("bincount", ScatterKind::Add, 0, &places, &weights, &at)
            }
            None => {
                let ones = places.ones_like()?;
                empty.scattered("bincount", ScatterKind::Add, 0, &places, &ones, &at)
            }
        }
    }

    fn zeros_up_to_the_largest(&self, _: &Source) -> Result<Tensor> {
        let largest = self.amax(..)?.item::<i64>()?;
        Tensor::zeros(usize::try_from(largest + 1).unwrap_or(0), DType::I64, self.device())
    }

    /// The distinct elements in ascending order, for each element of this tensor where its value is among them, and how often each occurs.
    ///
    /// ```
    /// use kiln::{Device, Tensor};
    /// let x = Tensor::new([[3i64, 1], [3, 2]], Device::Cpu)?;
    /// let (values, inverse, counts) = x.unique_with_counts()?;
    /// assert_eq!(values.to_vec::<i64>()?, [1, 2, 3]);
    /// assert_eq!((inverse.shape(), inverse.to_vec::<i64>()?), (&[2, 2][..], vec![2, 0, 2, 1]));
    /// assert_eq!(counts.to_vec::<i64>()?, [1, 1, 2]);
    /// # Ok::<(), kiln::Error>(())
    /// ```
    #[track_caller]
    pub fn unique_with_counts(&self) -> Result<(Tensor, Tensor, Tensor)> {
        let at = Source::caller();
        let count = dim::product(&self.sizes());
        let flat = self.reshape_to(vec![count], &at)?;
        let (sorted, order) = flat.sort(0, false)?;
        let (values, group, counts) = sorted.groups(&at)?;
        let inverse = group.zeros_like()?.scattered("unique", ScatterKind::Set, 0, &order, &group, &at)?;
        Ok((values, inverse.reshape_to(self.sizes(), &at)?, counts))
    }

    /// The elements without those that equal the one before, for each element the number of its run, and the lengths of the runs.
    #[track_caller]
    pub fn unique_consecutive(&self) -> Result<(Tensor, Tensor, Tensor)> {
        let at = Source::caller();
        let flat = self.reshape_to(vec![dim::product(&self.sizes())], &at)?;
        let (values, group, counts) = flat.groups(&at)?;
        Ok((values, group.reshape_to(self.sizes(), &at)?, counts))
    }

    /// The distinct slices of an axis in ascending order, as their first different elements are; for each slice of this tensor where its like
    /// is among them; and how often each occurs. A slice with NaN is like no other. How many there are depends on the elements: see
    /// [`Tensor::nonzero`].
    ///
    /// ```
    /// use kiln::{Device, Tensor};
    /// let x = Tensor::new([[2i64, 1], [1, 9], [2, 1]], Device::Cpu)?;
    /// let (rows, inverse, counts) = x.unique_dim(0)?;
    /// assert_eq!((rows.shape(), rows.to_vec::<i64>()?), (&[2, 2][..], vec![1, 9, 2, 1]));
    /// assert_eq!((inverse.to_vec::<i64>()?, counts.to_vec::<i64>()?), (vec![1, 0, 1], vec![1, 2]));
    /// # Ok::<(), kiln::Error>(())
    /// ```
    #[track_caller]
    pub fn unique_dim(&self, axis: impl Size) -> Result<(Tensor, Tensor, Tensor)> {
        let at = Source::caller();
        let axis = resolve_axis("unique_dim", axis, self.hint(), 0, &at)?;
        let moved = self.movedim(axis as i64, 0)?;
        let sizes = moved.sizes();
        let (count, width) = (sizes[0], dim::product(&sizes[1..]));
        if count.equals(Dim::plain(0), &at) {
            let none = Tensor::zeros(0, DType::I64, self.device())?;
            return Ok((self.clone(), none.clone(), none));
        }
        let rows = moved.reshape_to(vec![count, width], &at)?;
        // The place of each row among the distinct ones, by some of its columns: two at a time become one.
        let numbers = if self.dtype() == DType::Bool { rows.to_dtype_at(DType::I64, &at)? } else { rows.clone() };
        let mut ranks = numbers.ranks(&at)?;
        while ranks.dim(1)? > 1 {
            let columns = ranks.dim(1)?;
            let pairs =
                ranks.narrow(1, 0, columns / 2 * 2)?.reshape_to(vec![count, (columns / 2).into(), 2.into()], &at)?;
            let both = pairs.select(2, 0)?.mul(count)?.add(&pairs.select(2, 1)?)?.ranks(&at)?;
            ranks = match columns % 2 {
                0 => both,
                _ => Tensor::cat(&[both, ranks.narrow(1, columns - 1, 1)?], 1)?,
            };
        }
        let inverse = match ranks.dim(1)? {
            0 => Tensor::zeros(count, DType::I64, self.device())?,
            _ => ranks.select(1, 0)?,
        };
        let (sorted, order) = inverse.sort(0, false)?;
        let last = count - 1;
        let differs = sorted.narrow(0, 1, last)?.ne(&sorted.narrow(0, 0, last)?)?;
        let first = Tensor::cat(&[Tensor::ones(1, DType::Bool, self.device())?, differs], 0)?;
        let first = order.masked_select(&first)?;
        let mut own = sizes;
        own[0] = first.extent(0);
        let values = rows.index_select(0, &first)?.reshape_to(own, &at)?.movedim(0, axis as i64)?;
        let empty = Tensor::zeros(first.sizes(), DType::I64, self.device())?;
        let counts = empty.scattered("unique", ScatterKind::Add, 0, &inverse, &inverse.ones_like()?, &at)?;
        Ok((values, inverse, counts))
    }

    /// Of each column: for each element how many smaller ones there are, equal ones counted once.
    fn ranks(&self, at: &Source) -> Result<Tensor> {
        let (sorted, order) = self.sort(0, false)?;
        let last = self.extent(0) - 1;
        let differs = sorted.narrow(0, 1, last)?.ne(&sorted.narrow(0, 0, last)?)?.to_dtype_at(DType::I64, at)?;
        let first = order.narrow(0, 0, 1)?.zeros_like()?;
        let ranks = Tensor::cat(&[first, differs], 0)?.cumsum(0)?;
        ranks.zeros_like()?.scattered("unique", ScatterKind::Set, 0, &order, &ranks, at)
    }

    /// Of one axis: the first element of each run of equal ones, the number of each element's run, and the lengths of runs.
    fn groups(&self, at: &Source) -> Result<(Tensor, Tensor, Tensor)> {
        let count = self.extent(0);
        if count.equals(Dim::plain(0), at) {
            let none = Tensor::zeros(0, DType::I64, self.device())?;
            return Ok((self.clone(), none.clone(), none));
        }
        let last = count - 1;
        let differs = self.narrow(0, 1, last)?.ne(&self.narrow(0, 0, last)?)?;
        let starts = Tensor::cat(&[Tensor::ones(1, DType::Bool, self.device())?, differs], 0)?;
        let values = self.masked_select(&starts)?;
        let group = starts.to_dtype_at(DType::I64, at)?.cumsum(0)?.sub(1)?;
        let empty = Tensor::zeros(values.sizes(), DType::I64, self.device())?;
        let counts = empty.scattered("unique", ScatterKind::Add, 0, &group, &group.ones_like()?, at)?;
        Ok((values, group, counts))
    }

    /// Whether each element is one of `elements`.
    #[track_caller]
    pub fn isin(&self, elements: &Tensor) -> Result<Tensor> {
        let at = Source::caller();
        self.same_dtype("isin", elements, &at)?;
        let flat = elements.reshape_to(vec![dim::product(&elements.sizes())], &at)?;
        self.unsqueeze(self.rank())?.eq(&flat)?.any(-1)
    }

    /// The `k`-th smallest element of an axis, counted from 1, and its index.
    #[track_caller]
    pub fn kthvalue(&self, k: usize, axis: impl Size) -> Result<(Tensor, Tensor)> {
        let at = Source::caller();
        let axis = resolve_axis("kthvalue", axis, self.hint(), 0, &at)?;
        if k == 0 || !Dim::plain(k as i64).at_most(self.extent(axis), &at) {
            let (name, expected) = ("k", "it counts from 1 to the size of the axis");
            return Err(Error::BadArgument { op: "kthvalue", name, value: k.into(), expected, at });
        }
        let (values, index) = self.sort(axis, false)?;
        Ok((values.select(axis, k - 1)?, index.select(axis, k - 1)?))
    }

    /// The median of an axis, the lower of the middle two, and its index. An axis with NaN has the median NaN.
    #[track_caller]
    pub fn median(&self, axis: impl Size) -> Result<(Tensor, Tensor)> {
        let at = Source::caller();
        let axis = resolve_axis("median", axis, self.hint(), 0, &at)?;
        if self.extent(axis).equals(Dim::plain(0), &at) {
            return Err(Error::EmptyReduction { op: "median", shape: self.hint().to_vec(), at });
        }
        let middle = (self.extent(axis) - 1) / 2;
        let (values, index) = self.sort(axis, false)?;
        let (median, place) = (values.select(axis, middle)?, index.select(axis, middle)?);
        if !self.dtype().is_float() {
            return Ok((median, place));
        }
        // NaN is sorted last, so an axis with one ends in it; the first of them is told.
        let is_nan = self.is_nan()?;
        let (any, first) = (is_nan.any(axis)?, is_nan.to_dtype_at(DType::I32, &at)?.argmax(axis)?);
        Ok((any.where_(f64::NAN, &median)?.to_dtype_at(self.dtype(), &at)?, any.where_(&first, &place)?))
    }

    /// The value that a share `q` of an axis is below, by a line between the two elements that are nearest. An axis
    /// with NaN has the quantile NaN.
    #[track_caller]
    pub fn quantile(&self, q: f64, axis: impl Size) -> Result<Tensor> {
        let at = Source::caller();
        let axis = resolve_axis("quantile", axis, self.hint(), 0, &at)?;
        if !(0.0..=1.0).contains(&q) {
            let (name, expected) = ("q", "it has to be between 0 and 1");
            return Err(Error::BadArgument { op: "quantile", name, value: q.into(), expected, at });
        }
        let size = self.length_of(axis, &at);
        if size == 0 {
            return Err(Error::EmptyReduction { op: "quantile", shape: self.hint().to_vec(), at });
        }
        let place = q * (size - 1) as f64;
        let below = place.floor() as usize;
        let sorted = self.sort(axis, false)?.0;
        let low = sorted.select(axis, below)?;
        // At an element itself its neighbour does not count: it may be infinite.
        let value = match place.ceil() as usize {
            above if above == below => low,
            above => low.lerp(&sorted.select(axis, above)?, place - place.floor())?,
        };
        match self.dtype().is_float() {
            true => self.is_nan()?.any(axis)?.where_(f64::NAN, &value)?.to_dtype_at(self.dtype(), &at),
            false => Ok(value),
        }
    }

    /// Draws `count` places of the last axis, each with a probability in proportion to its element, which is 0 or more: as i64. Without
    /// replacement no place is drawn twice. Uses the default generator; see [`Generator::multinomial`].
    #[track_caller]
    pub fn multinomial(&self, count: usize, replacement: bool) -> Result<Tensor> {
        crate::tensor::random::default_generator().multinomial(self, count, replacement)
    }
}

impl Generator {
    /// Draws places by weight: see [`Tensor::multinomial`].
    ///
    /// ```
    /// use kiln::{Device, Generator, Tensor};
    /// let weights = Tensor::new([0f32, 3., 0., 1.], Device::Cpu)?;
    /// let drawn = Generator::new(7).multinomial(&weights, 2, false)?.to_vec::<i64>()?;
    /// assert!(drawn == [1, 3] || drawn == [3, 1]);
    /// # Ok::<(), kiln::Error>(())
    /// ```
    #[track_caller]
    pub fn multinomial(&self, weights: &Tensor, count: usize, replacement: bool) -> Result<Tensor> {
        let at = Source::caller();
        if !weights.dtype().is_float() || weights.rank() == 0 || weights.rank() > 2 {
            let expected = "weights of one or two axes";
            return Err(Error::WrongRank { op: "multinomial", shape: weights.hint().to_vec(), expected, at });
        }
        let last = weights.rank() - 1;
        let weights = weights.detach().to_dtype_at(DType::F64, &at)?;
        let places = weights.extent(last);
        let is_captured = weights.is_traced() || tracer::is_active();
        if !is_captured && !weights.sum(last)?.gt(0.0)?.all(..)?.item::<bool>()? {
            let (name, expected) = ("weights", "each row needs a sum above 0");
            return Err(Error::BadArgument { op: "multinomial", name, value: 0.0.into(), expected, at });
        }
        if !replacement {
            if !Dim::plain(count as i64).at_most(weights.extent(last), &at) {
                let (name, expected) = ("count", "no more than there are, without replacement");
                return Err(Error::BadArgument { op: "multinomial", name, value: count.into(), expected, at });
            }
            // The largest of weights over exponential variables: each is the next one drawn.
            let noise = self.rand(weights.sizes(), DType::F64, weights.device())?;
            let race = weights.div(&noise.neg()?.log1p()?.neg()?)?;
            return Ok(race.topk(count, last, true)?.1);
        }
        let sums = weights.cumsum(last)?;
        let total = sums.narrow(last, weights.extent(last) - 1, 1)?;
        let mut shape = weights.sizes();
        shape[last] = Dim::plain(count as i64);
        // In f64, where a share of the total stays below it: nothing of weight 0 is drawn.
        let shares = self.rand(shape, DType::F32, weights.device())?.to_dtype_at(DType::F64, &at)?;
        // A captured function cannot refuse weights without a sum; what it draws from them is a place nevertheless.
        sums.searchsorted(&shares.mul(&total)?, true)?.minimum(places - 1)
    }
}
