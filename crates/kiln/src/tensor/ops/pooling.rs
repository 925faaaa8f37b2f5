//! Pools that also say where their largest elements were, their inverse, and pools by a power.

use crate::tensor::dim;
use crate::tensor::eager::{self, Param};
use crate::{DType, Dim, Error, Pool, Result, Tensor};
use kiln_ir::build::{self, Emit, GraphBuilder};
use kiln_ir::{NodeId, Op, ScatterKind, Source};

impl Tensor {
    /// Values and places of a pool. The values are gathered by the places, so that a gradient goes where the place says, as PyTorch's does.
    fn with_places(
        &self,
        op: &'static str,
        axes: usize,
        key: &[Param],
        write: impl Fn(&mut GraphBuilder, &NodeId) -> Result<NodeId, kiln_ir::Error>,
        at: &Source,
    ) -> Result<(Tensor, Tensor)> {
        if self.rank() < axes {
            let expected = ["one axis or more", "two axes or more", "three axes or more"][axes.clamp(1, 3) - 1];
            return Err(Error::WrongRank { op, shape: self.hint().to_vec(), expected, at: at.clone() });
        }
        let first = self.rank() - axes;
        let write = |b: &mut GraphBuilder, inputs: &[NodeId]| {
            let places = write(b, &inputs[0])?;
            let last = b.ty(&inputs[0]).rank() - 1;
            let flat = build::flatten(b, &inputs[0], first, last)?;
            let shape = b.ty(&places).shape;
            let lines = build::flatten(b, &places, first, last)?;
            let values = b.emit(Op::Gather { axis: first }, &[flat, lines])?;
            Ok(vec![build::reshape(b, &values, &shape)?, places])
        };
        let mut results = eager::composites(op, key, &[self], write, at)?;
        let places = results.pop();
        match (results.pop(), places) {
            (Some(values), Some(places)) => Ok((values, places)),
            _ => unreachable!("two results were written"),
        }
    }

    fn pooled_places<const N: usize>(
        &self,
        op: &'static str,
        options: &Pool<N>,
        at: &Source,
    ) -> Result<(Tensor, Tensor)> {
        let (built, key) = options.keyed();
        self.with_places(op, N, &key, |b, x| Ok(build::max_pool_with_indices(b, x, &built)?.1), at)
    }

    fn parted_places(&self, op: &'static str, sizes: &[usize], at: &Source) -> Result<(Tensor, Tensor)> {
        self.with_places(op, sizes.len(), &[sizes.into()], |b, x| Ok(build::adaptive_max_pool(b, x, sizes)?.1), at)
    }

    /// [`Tensor::max_pool1d`], and the place of each in the pooled axis.
    #[track_caller]
    pub fn max_pool1d_with_indices(&self, options: &Pool<1>) -> Result<(Tensor, Tensor)> {
        self.pooled_places("max_pool1d_with_indices", options, &Source::caller())
    }

    /// [`Tensor::max_pool2d`], and the place of each in the pooled axes joined.
    ///
    /// ```
    /// use kiln::{DType, Device, Pool, Tensor};
    /// let x = Tensor::arange(16, DType::F32, Device::Cpu)?.reshape([1, 1, 4, 4])?;
    /// let (values, places) = x.max_pool2d_with_indices(&Pool::new([2, 2]))?;
    /// assert_eq!(places.to_vec::<i64>()?, [5, 7, 13, 15]);
    /// let back = values.max_unpool2d(&places, [4, 4])?;
    /// assert_eq!(back.sum(..)?.item::<f32>()?, 40.0);
    /// # Ok::<(), kiln::Error>(())
    /// ```
    #[track_caller]
    pub fn max_pool2d_with_indices(&self, options: &Pool<2>) -> Result<(Tensor, Tensor)> {
        self.pooled_places("max_pool2d_with_indices", options, &Source::caller())
    }

    /// [`Tensor::max_pool3d`], and the place of each in the pooled axes joined.
    #[track_caller]
    pub fn max_pool3d_with_indices(&self, options: &Pool<3>) -> Result<(Tensor, Tensor)> {
        self.pooled_places("max_pool3d_with_indices", options, &Source::caller())
    }

    /// The largest elements of windows that divide the last axis into that many parts, as evenly as possible, and their places.
    #[track_caller]
    pub fn adaptive_max_pool1d(&self, size: usize) -> Result<(Tensor, Tensor)> {
        self.parted_places("adaptive_max_pool1d", &[size], &Source::caller())
    }

    /// The largest elements of windows that divide the last two axes, and their places in these axes joined.
    #[track_caller]
    pub fn adaptive_max_pool2d(&self, sizes: [usize; 2]) -> Result<(Tensor, Tensor)> {
        self.parted_places("adaptive_max_pool2d", &sizes, &Source::caller())
    }

    /// The largest elements of windows that divide the last three axes, and their places in these axes joined.
    #[track_caller]
    pub fn adaptive_max_pool3d(&self, sizes: [usize; 3]) -> Result<(Tensor, Tensor)> {
        self.parted_places("adaptive_max_pool3d", &sizes, &Source::caller())
    }

    fn unpooled(&self, op: &'static str, places: &Tensor, sizes: &[usize], at: &Source) -> Result<Tensor> {
        if places.dtype() != DType::I64 {
            return Err(Error::WrongDType { op, got: places.dtype(), expected: "i64 places", at: at.clone() });
        }
        if self.rank() < sizes.len() || !self.is_shaped_like(places, at) {
            let (lhs, rhs) = (self.hint().to_vec(), places.hint().to_vec());
            return Err(Error::ShapeMismatch { op, lhs, rhs, sizes: None, at: at.clone() });
        }
        let first = self.rank() - sizes.len();
        let lead: Vec<Dim> = self.sizes()[..first].to_vec();
        let count = dim::product(&self.sizes()[first..]);
        let lines: Vec<Dim> = lead.iter().copied().chain([count]).collect();
        let total = Dim::plain(sizes.iter().product::<usize>() as i64);
        let whole: Vec<Dim> = lead.iter().copied().chain([total]).collect();
        let zeros = Tensor::scalar_at(kiln_ir::Scalar::float(self.dtype(), 0.0), self.device(), at)?;
        let zeros = zeros.broadcast_at(op, &whole, at)?;
        let (values, places) = (self.reshape_to(lines.clone(), at)?, places.reshape_to(lines, at)?);
        let image = zeros.scattered(op, ScatterKind::Set, first, &places, &values, at)?;
        let shape = lead.into_iter().chain(sizes.iter().map(|&n| Dim::plain(n as i64))).collect();
        image.reshape_to(shape, at)
    }

    /// The inverse of [`Tensor::max_pool1d_with_indices`]: elements at their places in an axis of this size, zeros elsewhere.
    #[track_caller]
    pub fn max_unpool1d(&self, places: &Tensor, size: usize) -> Result<Tensor> {
        self.unpooled("max_unpool1d", places, &[size], &Source::caller())
    }

    /// The inverse of [`Tensor::max_pool2d_with_indices`].
    #[track_caller]
    pub fn max_unpool2d(&self, places: &Tensor, sizes: [usize; 2]) -> Result<Tensor> {
        self.unpooled("max_unpool2d", places, &sizes, &Source::caller())
    }

    /// The inverse of [`Tensor::max_pool3d_with_indices`].
    #[track_caller]
    pub fn max_unpool3d(&self, places: &Tensor, sizes: [usize; 3]) -> Result<Tensor> {
        self.unpooled("max_unpool3d", places, &sizes, &Source::caller())
    }

    /// (Σ xᵖ)^(1/p) over each window of the last two axes.
    #[track_caller]
    pub fn lp_pool2d(&self, p: f64, options: &Pool<2>) -> Result<Tensor> {
        let (built, mut key) = options.keyed();
        key.push(p.into());
        let write = |b: &mut GraphBuilder, inputs: &[NodeId]| {
            let powers = build::pow_scalar(b, &inputs[0], p)?;
            let sums = build::sum_pool(b, &powers, &built)?;
            build::pow_scalar(b, &sums, 1.0 / p)
        };
        eager::composite("lp_pool2d", &key, &[self], write, &Source::caller())
    }
}
