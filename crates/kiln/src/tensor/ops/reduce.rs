//! Reductions: sums, means, extremes and the like over axes; running sums; order statistics.
//!
//! Every reduction takes the axes to reduce over: one number, several, or `..` for all. The axes are removed; with
//! `_keepdim` they stay with size 1. Sums of integers and bools are `i64`; means of them are `f32`.

use crate::tensor::dim;
use crate::tensor::eager::{self, Param};
use crate::tensor::promotion::to_float;
use crate::tensor::shape::{resolve_axes, resolve_axis};
use crate::{Axes, DType, Dim, Error, Result, Size, Tensor};
use kiln_ir::build::{self, GraphBuilder};
use kiln_ir::{NodeId, Op, ReduceKind, Source};

/// Writes a reduction over axes; the flag says whether they stay.
type Reduce = fn(&mut GraphBuilder, &NodeId, &[usize], bool) -> Result<NodeId, kiln_ir::Error>;

impl Tensor {
    fn reduced(
        &self,
        name: &'static str,
        (axes, keep): (Vec<usize>, bool),
        dtype: DType,
        params: &[Param],
        write: impl Fn(&mut GraphBuilder, &NodeId, &[usize], bool) -> Result<NodeId, kiln_ir::Error>,
        at: &Source,
    ) -> Result<Tensor> {
        let x = self.autocast(name, at)?;
        let dtype = if x.dtype() == self.dtype() { dtype } else { x.dtype() };
        let mut key: Vec<Param> = vec![(&axes).into(), keep.into(), dtype.into()];
        key.extend_from_slice(params);
        let write = |b: &mut GraphBuilder, inputs: &[NodeId]| {
            let x = build::cast(b, &inputs[0], dtype)?;
            write(b, &x, &axes, keep)
        };
        eager::composite(name, &key, &[&x], write, at)
    }

    fn plain(
        &self,
        name: &'static str,
        axes: impl Axes,
        keep: bool,
        dtype: DType,
        write: Reduce,
        at: &Source,
    ) -> Result<Tensor> {
        let axes = resolve_axes(name, axes, self.hint(), at)?;
        self.reduced(name, (axes, keep), dtype, &[], write, at)
    }

    fn extreme(
        &self,
        name: &'static str,
        kind: ReduceKind,
        axes: impl Axes,
        keep: bool,
        at: &Source,
    ) -> Result<Tensor> {
        let resolved = resolve_axes(name, axes, self.hint(), at)?;
        if resolved.iter().any(|&axis| self.extent(axis).equals(Dim::plain(0), at)) {
            return Err(Error::EmptyReduction { op: name, shape: self.hint().to_vec(), at: at.clone() });
        }
        let write =
            |b: &mut GraphBuilder, x: &NodeId, axes: &[usize], keep: bool| build::reduce(b, kind, x, axes, keep);
        self.reduced(name, (resolved, keep), self.dtype(), &[], write, at)
    }

    fn arg(
        &self,
        name: &'static str,
        write: fn(&mut GraphBuilder, &NodeId, usize, bool) -> Result<NodeId, kiln_ir::Error>,
        axes: impl Axes,
        keep: bool,
        at: &Source,
    ) -> Result<Tensor> {
        let axes = resolve_axes(name, axes, self.hint(), at)?;
        let (x, axis) = match axes[..] {
            [axis] => (self.clone(), axis),
            _ if axes.len() == self.rank() => (self.reshape_to(vec![dim::product(&self.sizes())], at)?, 0),
            _ => {
                let expected = "one axis, or all of them";
                return Err(Error::WrongRank { op: name, shape: self.hint().to_vec(), expected, at: at.clone() });
            }
        };
        if x.extent(axis).equals(Dim::plain(0), at) {
            return Err(Error::EmptyReduction { op: name, shape: self.hint().to_vec(), at: at.clone() });
        }
        let run = |b: &mut GraphBuilder, inputs: &[NodeId]| write(b, &inputs[0], axis, keep);
        let index = eager::composite(name, &[axis.into(), keep.into()], &[&x], run, at)?;
        if keep && axes.len() != 1 { index.reshape_to(vec![Dim::plain(1); self.rank()], at) } else { Ok(index) }
    }

    /// The dtype that sums are carried out in.
    fn sum_dtype(&self) -> DType {
        if self.dtype().is_float() { self.dtype() } else { DType::I64 }
    }

    /// Variance over axes; the divisor is the number of elements less `correction` (1 gives the unbiased estimate).
    #[track_caller]
    pub fn var_with(&self, axes: impl Axes, correction: f64, keepdim: bool) -> Result<Tensor> {
        let write =
            |b: &mut GraphBuilder, x: &NodeId, axes: &[usize], keep: bool| build::var(b, x, axes, correction, keep);
        let at = Source::caller();
        let axes = resolve_axes("var", axes, self.hint(), &at)?;
        self.reduced("var", (axes, keepdim), to_float(self.dtype()), &[correction.into()], write, &at)
    }

    /// Standard deviation over axes; see [`Tensor::var_with`].
    #[track_caller]
    pub fn std_with(&self, axes: impl Axes, correction: f64, keepdim: bool) -> Result<Tensor> {
        let write =
            |b: &mut GraphBuilder, x: &NodeId, axes: &[usize], keep: bool| build::std_dev(b, x, axes, correction, keep);
        let at = Source::caller();
        let axes = resolve_axes("std", axes, self.hint(), &at)?;
        self.reduced("std", (axes, keepdim), to_float(self.dtype()), &[correction.into()], write, &at)
    }

    /// Unbiased variance over axes.
    #[track_caller]
    pub fn var(&self, axes: impl Axes) -> Result<Tensor> {
        self.var_with(axes, 1.0, false)
    }

    /// Unbiased standard deviation over axes.
    #[track_caller]
    pub fn std(&self, axes: impl Axes) -> Result<Tensor> {
        self.std_with(axes, 1.0, false)
    }

    /// The p-norm over axes: 2 is the Euclidean norm, 1 the sum of absolute values, ∞ the largest, 0 the number of non-zero
    /// elements.
    #[track_caller]
    pub fn norm(&self, p: f64, axes: impl Axes) -> Result<Tensor> {
        self.norm_at(p, axes, false, &Source::caller())
    }

    /// [`Tensor::norm`] with the axes kept as size 1.
    #[track_caller]
    pub fn norm_keepdim(&self, p: f64, axes: impl Axes) -> Result<Tensor> {
        self.norm_at(p, axes, true, &Source::caller())
    }

    fn norm_at(&self, p: f64, axes: impl Axes, keep: bool, at: &Source) -> Result<Tensor> {
        let write = |b: &mut GraphBuilder, x: &NodeId, axes: &[usize], keep: bool| build::norm(b, x, p, axes, keep);
        let axes = resolve_axes("norm", axes, self.hint(), at)?;
        self.reduced("norm", (axes, keep), to_float(self.dtype()), &[p.into()], write, at)
    }

    /// Returns the largest elements along an axis, and their indices.
    #[track_caller]
    pub fn max_with_index(&self, axis: impl Size) -> Result<(Tensor, Tensor)> {
        let axis = axis.to_i64();
        Ok((self.amax(axis)?, self.argmax(axis)?))
    }

    /// Returns the smallest elements along an axis, and their indices.
    #[track_caller]
    pub fn min_with_index(&self, axis: impl Size) -> Result<(Tensor, Tensor)> {
        let axis = axis.to_i64();
        Ok((self.amin(axis)?, self.argmin(axis)?))
    }

    fn scan(&self, name: &'static str, kind: ReduceKind, axis: impl Size, dtype: DType, at: &Source) -> Result<Tensor> {
        let axis = resolve_axis(name, axis, self.hint(), 0, at)?;
        let x = self.to_dtype_at(dtype, at)?.autocast(name, at)?;
        eager::primitive(&Op::Scan { kind, axis, reverse: false }, &[&x], at)
    }

    /// Running sum along an axis.
    ///
    /// ```
    /// use kiln::{DType, Device, Tensor};
    /// let x = Tensor::arange(4, DType::I64, Device::Cpu)?;
    /// assert_eq!(x.cumsum(0)?.to_vec::<i64>()?, [0, 1, 3, 6]);
    /// # Ok::<(), kiln::Error>(())
    /// ```
    #[track_caller]
    pub fn cumsum(&self, axis: impl Size) -> Result<Tensor> {
        self.scan("cumsum", ReduceKind::Sum, axis, self.sum_dtype(), &Source::caller())
    }

    /// Running product along an axis.
    #[track_caller]
    pub fn cumprod(&self, axis: impl Size) -> Result<Tensor> {
        self.scan("cumprod", ReduceKind::Prod, axis, self.sum_dtype(), &Source::caller())
    }

    /// Largest element so far along an axis.
    #[track_caller]
    pub fn cummax(&self, axis: impl Size) -> Result<Tensor> {
        self.scan("cummax", ReduceKind::Max, axis, self.dtype(), &Source::caller())
    }

    /// Smallest element so far along an axis.
    #[track_caller]
    pub fn cummin(&self, axis: impl Size) -> Result<Tensor> {
        self.scan("cummin", ReduceKind::Min, axis, self.dtype(), &Source::caller())
    }

    /// Returns the indices that sort an axis; the sort is stable, and NaN is the largest.
    #[track_caller]
    pub fn argsort(&self, axis: impl Size, descending: bool) -> Result<Tensor> {
        let at = Source::caller();
        let axis = resolve_axis("argsort", axis, self.hint(), 0, &at)?;
        let count = self.extent(axis).expression();
        eager::primitive(&Op::SortIndices { axis, descending, count }, &[self], &at)
    }

    /// Sorts an axis; returns the elements and the indices that sort it.
    ///
    /// ```
    /// use kiln::{Device, Tensor};
    /// let x = Tensor::from_vec(vec![3f32, 1., 2.], 3, Device::Cpu)?;
    /// let (values, indices) = x.sort(0, false)?;
    /// assert_eq!(values.to_vec::<f32>()?, [1., 2., 3.]);
    /// assert_eq!(indices.to_vec::<i64>()?, [1, 2, 0]);
    /// # Ok::<(), kiln::Error>(())
    /// ```
    #[track_caller]
    pub fn sort(&self, axis: impl Size, descending: bool) -> Result<(Tensor, Tensor)> {
        let at = Source::caller();
        let axis = resolve_axis("sort", axis, self.hint(), 0, &at)?;
        self.sorted("sort", axis, self.extent(axis), descending, &at)
    }

    /// Returns the `count` largest (or smallest) elements of an axis in order, and their indices.
    #[track_caller]
    pub fn topk(&self, count: impl Size, axis: impl Size, largest: bool) -> Result<(Tensor, Tensor)> {
        let at = Source::caller();
        let axis = resolve_axis("topk", axis, self.hint(), 0, &at)?;
        let count = count.to_dim();
        if !Dim::plain(0).at_most(count, &at) || !count.at_most(self.extent(axis), &at) {
            let (op, name, expected) = ("topk", "count", "the axis has not as many elements");
            return Err(Error::BadArgument { op, name, value: count.hint().into(), expected, at });
        }
        self.sorted("topk", axis, count, largest, &at)
    }

    fn sorted(
        &self,
        name: &'static str,
        axis: usize,
        count: Dim,
        descending: bool,
        at: &Source,
    ) -> Result<(Tensor, Tensor)> {
        let picked = count.expression();
        let write = |b: &mut GraphBuilder, inputs: &[NodeId]| {
            let (values, indices) = build::topk(b, &inputs[0], &picked, axis, descending)?;
            Ok(vec![values, indices])
        };
        let key = [axis.into(), count.hint().into(), descending.into()];
        let what = eager::Operation::Composite(name, &key);
        let mut both = eager::run(what, &[self], self.device(), &write, at)?;
        let values = both.swap_remove(0);
        Ok((values, both.swap_remove(0)))
    }
}

macro_rules! reductions {
    ($($(#[$doc:meta])* $name:ident, $keepdim:ident, $dtype:expr, $write:expr;)*) => {
        impl Tensor { $(
            $(#[$doc])*
            #[track_caller]
            pub fn $name(&self, axes: impl Axes) -> Result<Tensor> {
                self.plain(stringify!($name), axes, false, $dtype(self), $write as Reduce, &Source::caller())
            }

            #[doc = concat!("[`Tensor::", stringify!($name), "`] with the axes kept.")]
            #[track_caller]
            pub fn $keepdim(&self, axes: impl Axes) -> Result<Tensor> {
                self.plain(stringify!($name), axes, true, $dtype(self), $write as Reduce, &Source::caller())
            }
        )* }
    };
}

reductions! {
    /// Sum over axes; of nothing, 0.
    ///
    /// ```
    /// use kiln::{DType, Device, Tensor};
    /// let x = Tensor::arange(6, DType::F32, Device::Cpu)?.reshape([2, 3])?;
    /// assert_eq!(x.sum(-1)?.to_vec::<f32>()?, [3., 12.]);
    /// assert_eq!(x.sum_keepdim([0, 1])?.shape(), [1, 1]);
    /// # Ok::<(), kiln::Error>(())
    /// ```
    sum, sum_keepdim, Tensor::sum_dtype, |b, x, axes, keep| build::reduce(b, ReduceKind::Sum, x, axes, keep);
    /// Product over axes; of nothing, 1.
    prod, prod_keepdim, Tensor::sum_dtype, |b, x, axes, keep| build::reduce(b, ReduceKind::Prod, x, axes, keep);
    /// Mean over axes; of nothing, NaN.
    mean, mean_keepdim, |t: &Tensor| to_float(t.dtype()), |b, x, axes, keep| build::mean(b, x, axes, keep);
    /// ln Σ eˣ over axes, without overflow.
    logsumexp, logsumexp_keepdim, |t: &Tensor| to_float(t.dtype()), |b, x, axes, keep| build::logsumexp(b, x, axes, keep);
    /// Whether any element over axes is not zero.
    any, any_keepdim, |_: &Tensor| DType::Bool, |b, x, axes, keep| build::any(b, x, axes, keep);
    /// Whether no element over axes is zero.
    all, all_keepdim, |_: &Tensor| DType::Bool, |b, x, axes, keep| build::all(b, x, axes, keep);
}

macro_rules! extremes {
    ($($(#[$doc:meta])* $name:ident, $keepdim:ident, $kind:ident;)*) => {
        impl Tensor { $(
            $(#[$doc])*
            #[track_caller]
            pub fn $name(&self, axes: impl Axes) -> Result<Tensor> {
                self.extreme(stringify!($name), ReduceKind::$kind, axes, false, &Source::caller())
            }

            #[doc = concat!("[`Tensor::", stringify!($name), "`] with the axes kept.")]
            #[track_caller]
            pub fn $keepdim(&self, axes: impl Axes) -> Result<Tensor> {
                self.extreme(stringify!($name), ReduceKind::$kind, axes, true, &Source::caller())
            }
        )* }
    };
}

extremes! {
    /// Largest element over axes; NaN if there is one. [`Tensor::max_with_index`] also says where.
    amax, amax_keepdim, Max;
    /// Smallest element over axes; NaN if there is one. [`Tensor::min_with_index`] also says where.
    amin, amin_keepdim, Min;
    /// Largest element over axes, the same as [`Tensor::amax`].
    max, max_keepdim, Max;
    /// Smallest element over axes, the same as [`Tensor::amin`].
    min, min_keepdim, Min;
}

macro_rules! args {
    ($($(#[$doc:meta])* $name:ident, $keepdim:ident;)*) => {
        impl Tensor { $(
            $(#[$doc])*
            #[track_caller]
            pub fn $name(&self, axes: impl Axes) -> Result<Tensor> {
                self.arg(stringify!($name), build::$name, axes, false, &Source::caller())
            }

            #[doc = concat!("[`Tensor::", stringify!($name), "`] with the axes kept.")]
            #[track_caller]
            pub fn $keepdim(&self, axes: impl Axes) -> Result<Tensor> {
                self.arg(stringify!($name), build::$name, axes, true, &Source::caller())
            }
        )* }
    };
}

args! {
    /// Index of the largest element along one axis, or with `..` in row-major order; the first among equals.
    argmax, argmax_keepdim;
    /// Index of the smallest element along one axis, or with `..` in row-major order; the first among equals.
    argmin, argmin_keepdim;
}
