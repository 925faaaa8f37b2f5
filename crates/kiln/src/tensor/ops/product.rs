//! Products: matrices, linear layers, convolutions, pooling.

use crate::tensor::autocast;
use crate::tensor::eager::{self, Param};
use crate::{DType, Error, Result, Tensor};
use kiln_ir::build::{self, ConvOptions, GraphBuilder, PoolOptions};
use kiln_ir::{NodeId, Source};

impl Tensor {
    /// Matrix product over the last two axes; the axes before broadcast. A vector on the left is a row, on the right a
    /// column. Both must have the same dtype; short floats accumulate in f32.
    ///
    /// ```
    /// use kiln::{Device, Tensor};
    /// let a = Tensor::new([[1f32, 2.], [3., 4.]], Device::Cpu)?;
    /// let b = Tensor::new([[1f32], [10.]], Device::Cpu)?;
    /// assert_eq!(a.matmul(&b)?.to_vec::<f32>()?, [21., 43.]);
    /// # Ok::<(), kiln::Error>(())
    /// ```
    #[track_caller]
    pub fn matmul(&self, other: &Tensor) -> Result<Tensor> {
        let at = Source::caller();
        let (x, y) = (&self.autocast("matmul", &at)?, &other.autocast("matmul", &at)?);
        x.check_product("matmul", y, &at)?;
        let write = |b: &mut GraphBuilder, inputs: &[NodeId]| build::matmul(b, &inputs[0], &inputs[1]);
        eager::composite("matmul", &[], &[x, y], write, &at)
    }

    pub(super) fn check_product(&self, op: &'static str, other: &Tensor, at: &Source) -> Result<()> {
        self.same_dtype(op, other, at)?;
        for side in [self, other] {
            if side.rank() == 0 {
                let expected = "one axis or more";
                return Err(Error::WrongRank { op, shape: vec![], expected, at: at.clone() });
            }
        }
        let (left, right) = (self.rank() - 1, other.rank().saturating_sub(2));
        let mismatch = |sizes| {
            let (lhs, rhs) = (self.hint().to_vec(), other.hint().to_vec());
            Error::ShapeMismatch { op, lhs, rhs, sizes, at: at.clone() }
        };
        if !self.extent(left).equals(other.extent(right), at) {
            return Err(mismatch(Some((self.hint()[left], other.hint()[right]))));
        }
        let batch = |t: &Tensor| t.sizes()[..t.rank().saturating_sub(2)].to_vec();
        match crate::tensor::shape::broadcast(op, &batch(self), &batch(other), at) {
            Ok(_) => Ok(()),
            Err(Error::ShapeMismatch { sizes, .. }) => Err(mismatch(sizes)),
            Err(other) => Err(other),
        }
    }

    /// Batched matrix product of `[n, rows, k]` and `[n, k, columns]`.
    #[track_caller]
    pub fn bmm(&self, other: &Tensor) -> Result<Tensor> {
        let at = Source::caller();
        let (x, y) = (&self.autocast("bmm", &at)?, &other.autocast("bmm", &at)?);
        for side in [self, other] {
            if side.rank() != 3 {
                let expected = "three axes";
                return Err(Error::WrongRank { op: "bmm", shape: side.hint().to_vec(), expected, at });
            }
        }
        x.check_product("bmm", y, &at)?;
        if !self.extent(0).equals(other.extent(0), &at) {
            let (lhs, rhs) = (self.hint().to_vec(), other.hint().to_vec());
            let sizes = Some((self.hint()[0], other.hint()[0]));
            return Err(Error::ShapeMismatch { op: "bmm", lhs, rhs, sizes, at });
        }
        let write = |b: &mut GraphBuilder, inputs: &[NodeId]| build::matmul(b, &inputs[0], &inputs[1]);
        eager::composite("bmm", &[], &[x, y], write, &at)
    }

    /// x·wᵀ + bias over the last axis, with `w: [out, in]`. With an f32 `x`, a weight of shorter floats is widened as it is
    /// read, which is exact: half the memory for the same product.
    ///
    /// ```
    /// use kiln::{DType, Device, Tensor};
    /// let x = Tensor::new([[1.5f32, -2.0]], Device::Cpu)?;
    /// let weight = Tensor::new([[2f32, 0.5], [1.0, 1.0]], Device::Cpu)?;
    /// assert_eq!(x.linear(&weight.to_dtype(DType::F16)?, None)?.to_vec::<f32>()?, [2.0, -0.5]);
    /// # Ok::<(), kiln::Error>(())
    /// ```
    #[track_caller]
    pub fn linear(&self, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
        let at = Source::caller();
        let mut operands = vec![self, weight];
        operands.extend(bias);
        let cast = autocast::operands("linear", &operands, &at)?;
        let operands = cast.as_ref().map_or(operands, |cast| cast.iter().collect());
        let (x, weight) = (operands[0], operands[1]);
        let widens = x.dtype() == DType::F32 && matches!(weight.dtype(), DType::F16 | DType::Bf16);
        if !widens {
            x.same_dtype("linear", weight, &at)?;
        }
        x.check_linear("linear", weight, &at)?;
        let write = |b: &mut GraphBuilder, inputs: &[NodeId]| {
            let weight = if widens { build::cast(b, &inputs[1], DType::F32)? } else { inputs[1] };
            build::linear(b, &inputs[0], &weight, inputs.get(2))
        };
        eager::composite("linear", &[], &operands, write, &at)
    }

    /// Checks the shapes of x·wᵀ with `w: [out, in]`.
    pub(super) fn check_linear(&self, op: &'static str, weight: &Tensor, at: &Source) -> Result<()> {
        let at = at.clone();
        if self.rank() == 0 || weight.rank() != 2 {
            let (side, expected) =
                if self.rank() == 0 { (self, "one axis or more") } else { (weight, "a weight of two axes") };
            return Err(Error::WrongRank { op, shape: side.hint().to_vec(), expected, at });
        }
        let last = self.rank() - 1;
        if !self.extent(last).equals(weight.extent(1), &at) {
            let (lhs, rhs) = (self.hint().to_vec(), weight.hint().to_vec());
            let sizes = Some((self.hint()[last], weight.hint()[1]));
            return Err(Error::ShapeMismatch { op, lhs, rhs, sizes, at });
        }
        Ok(())
    }

    /// Returns the dot product of two vectors.
    #[track_caller]
    pub fn dot(&self, other: &Tensor) -> Result<Tensor> {
        let at = Source::caller();
        for side in [self, other] {
            if side.rank() != 1 {
                let expected = "one axis";
                return Err(Error::WrongRank { op: "dot", shape: side.hint().to_vec(), expected, at });
            }
        }
        self.check_product("dot", other, &at)?;
        let write = |b: &mut GraphBuilder, inputs: &[NodeId]| build::matmul(b, &inputs[0], &inputs[1]);
        eager::composite("dot", &[], &[self, other], write, &at)
    }

    /// Outer product of two vectors: `y[i, j] = self[i] · other[j]`.
    #[track_caller]
    pub fn outer(&self, other: &Tensor) -> Result<Tensor> {
        let at = Source::caller();
        let write = |b: &mut GraphBuilder, inputs: &[NodeId]| build::outer(b, &inputs[0], &inputs[1]);
        eager::composite("outer", &[], &[self, other], write, &at)
    }

    /// A sum of products in Einstein's notation, for instance `bij,bjk->bik`, as `torch.einsum` reads it: a repeated label
    /// is a diagonal (`ii->i`), `...` stands for any number of axes, axes of size 1 broadcast.
    ///
    /// ```
    /// use kiln::{DType, Device, Tensor};
    /// let a = Tensor::ones([2, 3], DType::F32, Device::Cpu)?;
    /// assert_eq!(Tensor::einsum("ij,kj->ik", &[&a, &a])?.to_vec::<f32>()?, [3.; 4]);
    /// # Ok::<(), kiln::Error>(())
    /// ```
    #[track_caller]
    pub fn einsum(equation: &str, operands: &[&Tensor]) -> Result<Tensor> {
        let at = Source::caller();
        let cast = autocast::operands("einsum", operands, &at)?;
        let cast: Option<Vec<&Tensor>> = cast.as_ref().map(|cast| cast.iter().collect());
        let operands = cast.as_deref().unwrap_or(operands);
        let key: Vec<Param> = equation.chars().map(|c| Param::Int(c as i64)).collect();
        let write = |b: &mut GraphBuilder, inputs: &[NodeId]| build::einsum(b, equation, inputs);
        eager::composite("einsum", &key, operands, write, &at)
    }

    fn convolved(
        &self,
        op: &'static str,
        weight: &Tensor,
        bias: Option<&Tensor>,
        options: &ConvOptions,
        transposed: Option<&[usize]>,
        at: &Source,
    ) -> Result<Tensor> {
        let mut operands = vec![self, weight];
        operands.extend(bias);
        let cast = autocast::operands(op, &operands, at)?;
        let operands = cast.as_ref().map_or(operands, |cast| cast.iter().collect());
        operands[0].same_dtype(op, operands[1], at)?;
        let spatial = options.stride.len();
        for side in [self, weight] {
            if side.rank() != spatial + 2 {
                let expected = ["three axes", "four axes", "five axes"][spatial.clamp(1, 3) - 1];
                return Err(Error::WrongRank { op, shape: side.hint().to_vec(), expected, at: at.clone() });
            }
        }
        let lists = [&options.stride, &options.padding, &options.dilation];
        let mut key: Vec<Param> = lists.iter().map(|&list| list.into()).collect();
        key.extend([options.groups.into(), transposed.unwrap_or(&[]).into()]);
        let write = |b: &mut GraphBuilder, inputs: &[NodeId]| match transposed {
            Some(extra) => build::conv_transpose(b, &inputs[0], &inputs[1], inputs.get(2), options, extra),
            None => build::conv(b, &inputs[0], &inputs[1], inputs.get(2), options),
        };
        eager::composite(op, &key, &operands, write, at)
    }

    /// Cross-correlation of `[n, c, length]` with `weight: [o, c/groups, taps]`.
    #[track_caller]
    pub fn conv1d(&self, weight: &Tensor, bias: Option<&Tensor>, options: &Conv<1>) -> Result<Tensor> {
        let at = Source::caller();
        options.check_plain("conv1d", &at)?;
        self.convolved("conv1d", weight, bias, &options.build(), None, &at)
    }

    /// Cross-correlation of `[n, c, height, width]` with `weight: [o, c/groups, rows, columns]`.
    ///
    /// ```
    /// use kiln::{Conv, DType, Device, Tensor};
    /// let x = Tensor::ones([1, 1, 4, 4], DType::F32, Device::Cpu)?;
    /// let w = Tensor::ones([2, 1, 3, 3], DType::F32, Device::Cpu)?;
    /// let y = x.conv2d(&w, None, &Conv { padding: [1, 1], ..Conv::default() })?;
    /// assert_eq!(y.shape(), [1, 2, 4, 4]);
    /// # Ok::<(), kiln::Error>(())
    /// ```
    #[track_caller]
    pub fn conv2d(&self, weight: &Tensor, bias: Option<&Tensor>, options: &Conv<2>) -> Result<Tensor> {
        let at = Source::caller();
        options.check_plain("conv2d", &at)?;
        self.convolved("conv2d", weight, bias, &options.build(), None, &at)
    }

    /// The transpose of [`Tensor::conv1d`], with `weight: [c, o/groups, taps]`.
    #[track_caller]
    pub fn conv_transpose1d(&self, weight: &Tensor, bias: Option<&Tensor>, options: &Conv<1>) -> Result<Tensor> {
        let at = Source::caller();
        let extra = options.check_transposed("conv_transpose1d", &at)?;
        self.convolved("conv_transpose1d", weight, bias, &options.build(), Some(extra), &at)
    }

    /// The transpose of [`Tensor::conv2d`], with `weight: [c, o/groups, rows, columns]`.
    #[track_caller]
    pub fn conv_transpose2d(&self, weight: &Tensor, bias: Option<&Tensor>, options: &Conv<2>) -> Result<Tensor> {
        let at = Source::caller();
        let extra = options.check_transposed("conv_transpose2d", &at)?;
        self.convolved("conv_transpose2d", weight, bias, &options.build(), Some(extra), &at)
    }

    /// Cross-correlation of `[n, c, depth, height, width]` with `weight: [o, c/groups, planes, rows, columns]`.
    #[track_caller]
    pub fn conv3d(&self, weight: &Tensor, bias: Option<&Tensor>, options: &Conv<3>) -> Result<Tensor> {
        let at = Source::caller();
        options.check_plain("conv3d", &at)?;
        self.convolved("conv3d", weight, bias, &options.build(), None, &at)
    }

    /// The transpose of [`Tensor::conv3d`], with `weight: [c, o/groups, planes, rows, columns]`.
    #[track_caller]
    pub fn conv_transpose3d(&self, weight: &Tensor, bias: Option<&Tensor>, options: &Conv<3>) -> Result<Tensor> {
        let at = Source::caller();
        let extra = options.check_transposed("conv_transpose3d", &at)?;
        self.convolved("conv_transpose3d", weight, bias, &options.build(), Some(extra), &at)
    }

    fn pooled<const N: usize>(
        &self,
        op: &'static str,
        options: &Pool<N>,
        write: impl Fn(&mut GraphBuilder, &NodeId, &PoolOptions) -> Result<NodeId, kiln_ir::Error>,
        at: &Source,
    ) -> Result<Tensor> {
        if self.rank() < N {
            let expected = ["one axis or more", "two axes or more", "three axes or more"][N.clamp(1, 3) - 1];
            return Err(Error::WrongRank { op, shape: self.hint().to_vec(), expected, at: at.clone() });
        }
        let x = self.autocast(op, at)?;
        let (built, key) = options.keyed();
        let write = |b: &mut GraphBuilder, inputs: &[NodeId]| write(b, &inputs[0], &built);
        eager::composite(op, &key, &[&x], write, at)
    }

    fn averaged<const N: usize>(&self, op: &'static str, options: &Pool<N>, at: &Source) -> Result<Tensor> {
        let write = |b: &mut GraphBuilder, x: &NodeId, o: &PoolOptions| build::avg_pool(b, x, o, options.count_padding);
        self.pooled(op, options, write, at)
    }

    fn parted(&self, op: &'static str, sizes: &[usize], at: &Source) -> Result<Tensor> {
        let write = |b: &mut GraphBuilder, inputs: &[NodeId]| build::adaptive_avg_pool(b, &inputs[0], sizes);
        eager::composite(op, &[sizes.into()], &[&self.autocast(op, at)?], write, at)
    }

    /// The largest element of each window over the last axis.
    #[track_caller]
    pub fn max_pool1d(&self, options: &Pool<1>) -> Result<Tensor> {
        self.pooled("max_pool1d", options, build::max_pool, &Source::caller())
    }

    /// The largest element of each window over the last two axes.
    ///
    /// ```
    /// use kiln::{DType, Device, Pool, Tensor};
    /// let x = Tensor::arange(16, DType::F32, Device::Cpu)?.reshape([1, 1, 4, 4])?;
    /// assert_eq!(x.max_pool2d(&Pool::new([2, 2]))?.to_vec::<f32>()?, [5., 7., 13., 15.]);
    /// # Ok::<(), kiln::Error>(())
    /// ```
    #[track_caller]
    pub fn max_pool2d(&self, options: &Pool<2>) -> Result<Tensor> {
        self.pooled("max_pool2d", options, build::max_pool, &Source::caller())
    }

    /// The largest element of each window over the last three axes.
    #[track_caller]
    pub fn max_pool3d(&self, options: &Pool<3>) -> Result<Tensor> {
        self.pooled("max_pool3d", options, build::max_pool, &Source::caller())
    }

    /// The mean of each window over the last axis.
    #[track_caller]
    pub fn avg_pool1d(&self, options: &Pool<1>) -> Result<Tensor> {
        self.averaged("avg_pool1d", options, &Source::caller())
    }

    /// The mean of each window over the last two axes.
    #[track_caller]
    pub fn avg_pool2d(&self, options: &Pool<2>) -> Result<Tensor> {
        self.averaged("avg_pool2d", options, &Source::caller())
    }

    /// The mean of each window over the last three axes.
    #[track_caller]
    pub fn avg_pool3d(&self, options: &Pool<3>) -> Result<Tensor> {
        self.averaged("avg_pool3d", options, &Source::caller())
    }

    /// Means over windows that divide the last axis into that many parts, as evenly as possible.
    #[track_caller]
    pub fn adaptive_avg_pool1d(&self, size: usize) -> Result<Tensor> {
        self.parted("adaptive_avg_pool1d", &[size], &Source::caller())
    }

    /// Means over windows that divide the last two axes into the given numbers of parts, as evenly as possible.
    #[track_caller]
    pub fn adaptive_avg_pool2d(&self, sizes: [usize; 2]) -> Result<Tensor> {
        self.parted("adaptive_avg_pool2d", &sizes, &Source::caller())
    }

    /// Means over windows that divide the last three axes into the given numbers of parts, as evenly as possible.
    #[track_caller]
    pub fn adaptive_avg_pool3d(&self, sizes: [usize; 3]) -> Result<Tensor> {
        self.parted("adaptive_avg_pool3d", &sizes, &Source::caller())
    }
}

/// Options of a convolution over `N` spatial axes; the default is stride 1, no padding, no dilation, one group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conv<const N: usize> {
    /// Stride of the window.
    pub stride: [usize; N],
    /// Zeros added on both sides.
    pub padding: [usize; N],
    /// Spacing between the kernel's taps.
    pub dilation: [usize; N],
    /// Channel groups.
    pub groups: usize,
    /// Elements added at the end of a transposed convolution's result.
    pub output_padding: [usize; N],
}

impl<const N: usize> Default for Conv<N> {
    fn default() -> Conv<N> {
        Conv { stride: [1; N], padding: [0; N], dilation: [1; N], groups: 1, output_padding: [0; N] }
    }
}

fn wrong_output_padding(op: &'static str, extra: usize, expected: &'static str, at: &Source) -> Error {
    let value = (extra as i64).into();
    Error::BadArgument { op, name: "output_padding", value, expected, at: at.clone() }
}

impl<const N: usize> Conv<N> {
    /// A convolution that is not transposed has no use for more results.
    fn check_plain(&self, op: &'static str, at: &Source) -> Result<()> {
        match self.output_padding.iter().find(|&&extra| extra > 0) {
            None => Ok(()),
            Some(&extra) => Err(wrong_output_padding(op, extra, "only a transposed convolution has it", at)),
        }
    }

    /// What makes results longer must not leave some that no window reaches.
    fn check_transposed(&self, op: &'static str, at: &Source) -> Result<&[usize; N]> {
        let most = self.stride.iter().zip(&self.dilation).map(|(&stride, &dilation)| stride.max(dilation));
        match self.output_padding.iter().zip(most).find(|&(&extra, most)| extra > 0 && extra >= most) {
            None => Ok(&self.output_padding),
            Some((&extra, _)) => {
                Err(wrong_output_padding(op, extra, "it has to be smaller than the stride or the dilation", at))
            }
        }
    }

    fn build(&self) -> ConvOptions {
        ConvOptions {
            stride: self.stride.to_vec(),
            padding: self.padding.to_vec(),
            dilation: self.dilation.to_vec(),
            groups: self.groups,
        }
    }
}

/// Options of pooling over the last `N` axes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pool<const N: usize> {
    /// Size of the window.
    pub size: [usize; N],
    /// Stride of the window.
    pub stride: [usize; N],
    /// Elements added on both sides.
    pub padding: [usize; N],
    /// Spacing inside the window.
    pub dilation: [usize; N],
    /// Whether a last, partial window counts too.
    pub ceil: bool,
    /// Whether padding counts as zeros in a mean.
    pub count_padding: bool,
}

impl<const N: usize> Pool<N> {
    /// Makes adjacent windows without padding.
    pub fn new(size: [usize; N]) -> Pool<N> {
        Pool { size, stride: size, padding: [0; N], dilation: [1; N], ceil: false, count_padding: true }
    }

    /// The windows as a graph has them, and as the key of an operation.
    pub(super) fn keyed(&self) -> (PoolOptions, Vec<Param>) {
        let built = self.build();
        let lists = [&built.size, &built.stride, &built.padding, &built.dilation];
        let mut key: Vec<Param> = lists.iter().map(|&list| list.into()).collect();
        key.extend([self.ceil.into(), self.count_padding.into()]);
        (built, key)
    }

    fn build(&self) -> PoolOptions {
        PoolOptions {
            size: self.size.to_vec(),
            stride: self.stride.to_vec(),
            padding: self.padding.to_vec(),
            dilation: self.dilation.to_vec(),
            ceil: self.ceil,
        }
    }
}
