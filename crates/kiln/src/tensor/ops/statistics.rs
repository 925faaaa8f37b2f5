//! Statistics that come in pairs, differences, and sums that leave out what is no number.

use crate::tensor::eager;
use crate::tensor::promotion::to_float;
use crate::tensor::shape::{resolve_axes, resolve_axis};
use crate::{Axes, DType, Error, Result, Size, Tensor};
use kiln_ir::build::{self, Emit, GraphBuilder};
use kiln_ir::{NodeId, Source};

/// Writes a variance or a deviation: axes, correction, and whether the axes stay.
type Spread = fn(&mut GraphBuilder, &NodeId, &[usize], f64, bool) -> Result<NodeId, kiln_ir::Error>;

impl Tensor {
    /// Variance, its divisor less by `correction`, and mean over axes, in one pass.
    #[track_caller]
    pub fn var_mean(&self, axes: impl Axes, correction: f64) -> Result<(Tensor, Tensor)> {
        self.spread_and_mean("var_mean", axes, correction, build::var, &Source::caller())
    }

    /// Standard deviation and mean over axes, in one pass.
    #[track_caller]
    pub fn std_mean(&self, axes: impl Axes, correction: f64) -> Result<(Tensor, Tensor)> {
        self.spread_and_mean("std_mean", axes, correction, build::std_dev, &Source::caller())
    }

    fn spread_and_mean(
        &self,
        name: &'static str,
        axes: impl Axes,
        correction: f64,
        write: Spread,
        at: &Source,
    ) -> Result<(Tensor, Tensor)> {
        let axes = resolve_axes(name, axes, self.hint(), at)?;
        let dtype = to_float(self.dtype());
        let both = |b: &mut GraphBuilder, inputs: &[NodeId]| {
            let x = build::cast(b, &inputs[0], dtype)?;
            Ok(vec![write(b, &x, &axes, correction, false)?, build::mean(b, &x, &axes, false)?])
        };
        let key = [(&axes).into(), correction.into(), dtype.into()];
        let mut results = eager::composites(name, &key, &[self], both, at)?;
        let mean = results.swap_remove(1);
        Ok((results.swap_remove(0), mean))
    }

    /// The smallest and the largest elements over axes.
    #[track_caller]
    pub fn aminmax(&self, axes: impl Axes) -> Result<(Tensor, Tensor)> {
        let axes = axes.axes(self.rank());
        Ok((self.amin(&axes)?, self.amax(&axes)?))
    }

    /// How many elements are not zero, as i64.
    #[track_caller]
    pub fn count_nonzero(&self, axes: impl Axes) -> Result<Tensor> {
        self.ne(0)?.sum(axes)
    }

    fn without_nan(&self, name: &'static str, axes: impl Axes, mean: bool, at: &Source) -> Result<Tensor> {
        let axes = resolve_axes(name, axes, self.hint(), at)?;
        let dtype = to_float(self.dtype());
        let write = |b: &mut GraphBuilder, inputs: &[NodeId]| {
            let x = build::cast(b, &inputs[0], dtype)?;
            let nan = build::is_nan(b, &x)?;
            let x = build::masked_fill(b, &x, &nan, 0.0)?;
            let total = build::sum(b, &x, &axes, false)?;
            if !mean {
                return Ok(total);
            }
            let counted = build::not(b, &nan)?;
            let counted = build::cast(b, &counted, dtype.compute_type())?;
            let count = build::sum(b, &counted, &axes, false)?;
            let count = build::cast(b, &count, dtype)?;
            build::div(b, &total, &count)
        };
        eager::composite(name, &[(&axes).into(), dtype.into()], &[self], write, at)
    }

    /// The sum over axes of what is not NaN; of integers that of all.
    #[track_caller]
    pub fn nansum(&self, axes: impl Axes) -> Result<Tensor> {
        if !self.dtype().is_float() {
            return self.sum(axes);
        }
        self.without_nan("nansum", axes, false, &Source::caller())
    }

    /// The mean over axes of what is not NaN; NaN where there is nothing.
    #[track_caller]
    pub fn nanmean(&self, axes: impl Axes) -> Result<Tensor> {
        self.without_nan("nanmean", axes, true, &Source::caller())
    }

    /// Differences of neighbours along an axis, taken `times` times.
    ///
    /// ```
    /// use kiln::{Device, Tensor};
    /// let x = Tensor::new([1i64, 4, 9, 16], Device::Cpu)?;
    /// assert_eq!(x.diff(1, 0)?.to_vec::<i64>()?, [3, 5, 7]);
    /// assert_eq!(x.diff(2, 0)?.to_vec::<i64>()?, [2, 2]);
    /// # Ok::<(), kiln::Error>(())
    /// ```
    #[track_caller]
    pub fn diff(&self, times: usize, axis: impl Size) -> Result<Tensor> {
        let at = Source::caller();
        let axis = resolve_axis("diff", axis, self.hint(), 0, &at)?;
        let mut x = self.clone();
        for _ in 0..times {
            if x.extent(axis).equals(crate::Dim::plain(0), &at) {
                break;
            }
            let less = x.extent(axis) - 1;
            let (low, high) = (x.narrow(axis, 0, less)?, x.narrow(axis, 1, less)?);
            x = if x.dtype() == DType::Bool { high.ne(&low)? } else { high.sub(&low)? };
        }
        Ok(x)
    }

    /// ln Σ eˣ of the elements so far along an axis, for numbers whose spread does not exceed what a float's exponent holds.
    #[track_caller]
    pub fn logcumsumexp(&self, axis: impl Size) -> Result<Tensor> {
        let at = Source::caller();
        let axis = resolve_axis("logcumsumexp", axis, self.hint(), 0, &at)?;
        let write = |b: &mut GraphBuilder, x: &NodeId| build::logcumsumexp(b, x, axis);
        self.activation("logcumsumexp", &[axis.into()], write, &at)
    }

    /// The covariances of variables, the rows of a matrix, over observations, its columns; the divisor is less by `correction`.
    #[track_caller]
    pub fn cov(&self, correction: f64) -> Result<Tensor> {
        let at = Source::caller();
        if self.rank() != 2 {
            let expected = "two axes";
            return Err(Error::WrongRank { op: "cov", shape: self.hint().to_vec(), expected, at });
        }
        let write = |b: &mut GraphBuilder, x: &NodeId| {
            let mean = build::mean(b, x, &[1], true)?;
            let centered = build::sub(b, x, &mean)?;
            let turned = build::matrix_transpose(b, &centered)?;
            let product = build::matmul(b, &centered, &turned)?;
            let (count, dtype) = (b.ty(x).shape[1].clone(), b.ty(x).dtype);
            let count = build::size_value(b, &count, dtype)?;
            let divisor = build::add_scalar(b, &count, -correction)?;
            build::div(b, &product, &divisor)
        };
        self.activation("cov", &[correction.into()], write, &at)
    }
}
