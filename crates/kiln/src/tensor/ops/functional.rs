//! The functions of neural networks: activations, softmax, norms, attention, losses. Each is one graph, run as the kernels it fuses to.
//! On short floats they compute in f32 and round once.

use crate::tensor::autocast;
use crate::tensor::eager::{self, Param};
use crate::tensor::promotion::to_float;
use crate::tensor::shape::resolve_axis;
use crate::{DType, Dim, Error, Result, Size, Tensor};
use kiln_ir::build::{self, AttentionOptions, GraphBuilder, PadMode, RopeStyle};
use kiln_ir::{NodeId, Op, Source};

/// Writes a function of one value.
pub(super) type Write = fn(&mut GraphBuilder, &NodeId) -> Result<NodeId, kiln_ir::Error>;

impl Tensor {
    pub(super) fn activation(
        &self,
        name: &'static str,
        params: &[Param],
        write: impl Fn(&mut GraphBuilder, &NodeId) -> Result<NodeId, kiln_ir::Error>,
        at: &Source,
    ) -> Result<Tensor> {
        let x = self.autocast(name, at)?;
        let dtype = to_float(x.dtype());
        let write = |b: &mut GraphBuilder, inputs: &[NodeId]| {
            let x = build::cast(b, &inputs[0], dtype)?;
            write(b, &x)
        };
        eager::composite(name, params, &[&x], write, at)
    }

    fn over_axis(
        &self,
        name: &'static str,
        axis: impl Size,
        write: fn(&mut GraphBuilder, &NodeId, usize) -> Result<NodeId, kiln_ir::Error>,
        at: &Source,
    ) -> Result<Tensor> {
        let axis = resolve_axis(name, axis, self.hint(), 0, at)?;
        self.activation(name, &[axis.into()], |b, x| write(b, x, axis), at)
    }

    /// Softmax along an axis: eˣ, normalised to sum to 1.
    ///
    /// ```
    /// use kiln::{DType, Device, Tensor};
    /// let x = Tensor::zeros([2, 4], DType::F32, Device::Cpu)?;
    /// assert_eq!(x.softmax(-1)?.to_vec::<f32>()?, [0.25; 8]);
    /// # Ok::<(), kiln::Error>(())
    /// ```
    #[track_caller]
    pub fn softmax(&self, axis: impl Size) -> Result<Tensor> {
        self.over_axis("softmax", axis, build::softmax, &Source::caller())
    }

    /// The logarithm of [`Tensor::softmax`].
    #[track_caller]
    pub fn log_softmax(&self, axis: impl Size) -> Result<Tensor> {
        self.over_axis("log_softmax", axis, build::log_softmax, &Source::caller())
    }

    /// The first half of an axis times the sigmoid of the second.
    #[track_caller]
    pub fn glu(&self, axis: impl Size) -> Result<Tensor> {
        self.over_axis("glu", axis, build::glu, &Source::caller())
    }

    /// x where x > 0, `slope`·x elsewhere.
    #[track_caller]
    pub fn leaky_relu(&self, slope: f64) -> Result<Tensor> {
        self.activation("leaky_relu", &[slope.into()], |b, x| build::leaky_relu(b, x, slope), &Source::caller())
    }

    /// x where x > 0, `alpha`·(eˣ − 1) elsewhere.
    #[track_caller]
    pub fn elu(&self, alpha: f64) -> Result<Tensor> {
        self.activation("elu", &[alpha.into()], |b, x| build::elu(b, x, alpha), &Source::caller())
    }

    /// ln(1 + eˣ).
    #[track_caller]
    pub fn softplus(&self) -> Result<Tensor> {
        self.activation("softplus", &[], |b, x| build::softplus(b, x, 1.0, 20.0), &Source::caller())
    }

    /// Layer norm over the last `axes` axes; weight and bias have the shape of these axes.
    ///
    /// ```
    /// use kiln::{DType, Device, Tensor};
    /// let x = Tensor::arange(6, DType::F32, Device::Cpu)?.reshape([2, 3])?;
    /// let y = x.layer_norm(1, None, None, 1e-5)?;
    /// assert!(y.mean(-1)?.allclose(&Tensor::zeros(2, DType::F32, Device::Cpu)?, 0.0, 1e-6)?);
    /// # Ok::<(), kiln::Error>(())
    /// ```
    #[track_caller]
    pub fn layer_norm(
        &self,
        axes: usize,
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
        epsilon: f64,
    ) -> Result<Tensor> {
        self.normed("layer_norm", &[axes.into(), epsilon.into()], [weight, bias], &Source::caller(), |b, x, [w, c]| {
            build::layer_norm(b, x, axes, w, c, epsilon)
        })
    }

    /// x / √(mean of x² + epsilon) over the last `axes` axes, times weight.
    #[track_caller]
    pub fn rms_norm(&self, axes: usize, weight: Option<&Tensor>, epsilon: f64) -> Result<Tensor> {
        self.normed("rms_norm", &[axes.into(), epsilon.into()], [weight, None], &Source::caller(), |b, x, [w, _]| {
            build::rms_norm(b, x, axes, w, epsilon)
        })
    }

    /// Group norm of `[n, c, …]`: statistics over each of `groups` groups of channels; weight and bias have c elements.
    #[track_caller]
    pub fn group_norm(
        &self,
        groups: usize,
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
        epsilon: f64,
    ) -> Result<Tensor> {
        self.normed(
            "group_norm",
            &[groups.into(), epsilon.into()],
            [weight, bias],
            &Source::caller(),
            |b, x, [w, c]| build::group_norm(b, x, groups, w, c, epsilon),
        )
    }

    /// A norm with an optional weight and bias; which of them there are is part of the key.
    fn normed(
        &self,
        name: &'static str,
        params: &[Param],
        optional: [Option<&Tensor>; 2],
        at: &Source,
        write: impl Fn(&mut GraphBuilder, &NodeId, [Option<&NodeId>; 2]) -> Result<NodeId, kiln_ir::Error>,
    ) -> Result<Tensor> {
        let mut operands = vec![self];
        operands.extend(optional.iter().flatten());
        let cast = autocast::operands(name, &operands, at)?;
        let operands = cast.as_ref().map_or(operands, |cast| cast.iter().collect());
        let mut key = params.to_vec();
        key.extend(optional.iter().map(|o| Param::from(o.is_some())));
        let write = |b: &mut GraphBuilder, inputs: &[NodeId]| {
            let mut rest = inputs[1..].iter();
            let present = optional.map(|o| o.and_then(|_| rest.next()));
            write(b, &inputs[0], present)
        };
        eager::composite(name, &key, &operands, write, at)
    }

    /// Batch norm of `[n, c, …]` with given statistics, as in evaluation.
    #[track_caller]
    pub fn batch_norm(
        &self,
        mean: &Tensor,
        variance: &Tensor,
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
        epsilon: f64,
    ) -> Result<Tensor> {
        let mut operands = vec![self, mean, variance];
        operands.extend([weight, bias].iter().flatten());
        let key = [epsilon.into(), weight.is_some().into(), bias.is_some().into()];
        let write = |b: &mut GraphBuilder, inputs: &[NodeId]| {
            let mut rest = inputs[3..].iter();
            let w = weight.and_then(|_| rest.next());
            let c = bias.and_then(|_| rest.next());
            build::batch_norm(b, &inputs[0], &inputs[1], &inputs[2], w, c, epsilon)
        };
        eager::composite("batch_norm", &key, &operands, write, &Source::caller())
    }

    /// softmax(q·kᵀ·scale + mask)·v, with this tensor as `q: […, heads, rows, depth]`, `k: […, groups, columns, depth]` and
    /// `v: […, groups, columns, width]`. A bool mask keeps positions that are true, a float mask is added; both broadcast.
    /// An i64 mask holds bounds, `[…, rows, 2]`: a row sees the keys from the first number on and before the second, and a GPU reads no
    /// others. With `causal` every key is visible to the last row, all but the last to the row before it, and so on. The default
    /// scale is 1/√depth.
    #[track_caller]
    pub fn scaled_dot_product_attention(
        &self,
        k: &Tensor,
        v: &Tensor,
        mask: Option<&Tensor>,
        causal: bool,
        scale: Option<f64>,
    ) -> Result<Tensor> {
        let at = Source::caller();
        let mut operands = vec![self, k, v];
        operands.extend(mask);
        let cast = autocast::operands("scaled_dot_product_attention", &operands, &at)?;
        let operands = cast.as_ref().map_or(operands, |cast| cast.iter().collect());
        let write = |b: &mut GraphBuilder, inputs: &[NodeId]| {
            let options = AttentionOptions { mask: inputs.get(3).copied(), causal, scale };
            build::scaled_dot_product_attention(b, &inputs[0], &inputs[1], &inputs[2], &options)
        };
        let key = [causal.into(), scale.is_some().into(), scale.unwrap_or(0.0).into()];
        eager::composite("scaled_dot_product_attention", &key, &operands, write, &at)
    }

    /// Pads axes with a constant; `amounts` are (before, after), from the last axis backwards; negative amounts crop.
    ///
    /// ```
    /// use kiln::{DType, Device, Tensor};
    /// let x = Tensor::ones([1, 2], DType::I64, Device::Cpu)?;
    /// assert_eq!(x.pad(&[(1, 2)], 0.0)?.to_vec::<i64>()?, [0, 1, 1, 0, 0]);
    /// # Ok::<(), kiln::Error>(())
    /// ```
    #[track_caller]
    pub fn pad<S: Size>(&self, amounts: &[(S, S)], value: f64) -> Result<Tensor> {
        let at = Source::caller();
        if amounts.len() > self.rank() {
            let expected = "no more amounts than axes";
            return Err(Error::WrongRank { op: "pad", shape: self.hint().to_vec(), expected, at });
        }
        let mut all = vec![(Dim::plain(0), Dim::plain(0)); self.rank() - amounts.len()];
        all.extend(amounts.iter().rev().map(|(low, high)| (low.to_dim(), high.to_dim())));
        self.pad_at("pad", &all, value, &at)
    }

    /// Adds a constant around every axis.
    pub(crate) fn pad_at(&self, op: &'static str, amounts: &[(Dim, Dim)], value: f64, at: &Source) -> Result<Tensor> {
        if amounts.iter().all(|(low, high)| low.is_plain() && high.is_plain()) {
            let all: Vec<(i64, i64)> = amounts.iter().map(|(low, high)| (low.hint(), high.hint())).collect();
            let mut key: Vec<Param> = vec![value.into()];
            key.extend(all.iter().flat_map(|&(low, high)| [Param::from(low), Param::from(high)]));
            let write = |b: &mut GraphBuilder, inputs: &[NodeId]| build::pad_constant(b, &inputs[0], &all, value);
            return eager::composite(op, &key, &[self], write, at);
        }
        let zero = Dim::plain(0);
        let mut padded = self.clone();
        for (axis, &(low, high)) in amounts.iter().enumerate() {
            // What is negative crops.
            let (first, last) = (low.less(zero, at), high.less(zero, at));
            let start = if first { zero - low } else { zero };
            let end = if last { padded.extent(axis) + high } else { padded.extent(axis) };
            if first || last {
                padded = padded.slice_at(op, axis, start, end, 1, at)?;
            }
        }
        let added = |pick: fn(&(Dim, Dim)) -> Dim| amounts.iter().map(|pair| pick(pair).max(0).expression()).collect();
        let (low, high) = (added(|pair| pair.0), added(|pair| pair.1));
        let value = kiln_ir::Scalar::float(self.dtype(), value);
        eager::primitive(&Op::Pad { low, high, value }, &[&padded], at)
    }

    /// Pads one axis at both ends with its own elements: reflected, the edge repeated, or circular.
    #[track_caller]
    pub fn pad_axis(&self, axis: impl Size, low: usize, high: usize, mode: PadMode) -> Result<Tensor> {
        let at = Source::caller();
        let axis = resolve_axis("pad_axis", axis, self.hint(), 0, &at)?;
        let x = self.autocast("pad_axis", &at)?;
        let key = [axis.into(), low.into(), high.into(), (mode as i64).into()];
        let write = |b: &mut GraphBuilder, inputs: &[NodeId]| build::pad_axis(b, &inputs[0], axis, low, high, mode);
        eager::composite("pad_axis", &key, &[&x], write, &at)
    }

    /// Resizes the last axes to these sizes by the nearest element.
    #[track_caller]
    pub fn interpolate_nearest(&self, sizes: &[usize]) -> Result<Tensor> {
        let at = Source::caller();
        let write = |b: &mut GraphBuilder, inputs: &[NodeId]| build::interpolate_nearest(b, &inputs[0], sizes);
        let x = self.autocast("interpolate_nearest", &at)?;
        eager::composite("interpolate_nearest", &[sizes.into()], &[&x], write, &at)
    }

    /// Resizes the last axes to these sizes by linear interpolation; with `align_corners` the outermost elements keep their
    /// positions.
    #[track_caller]
    pub fn interpolate_linear(&self, sizes: &[usize], align_corners: bool) -> Result<Tensor> {
        let at = Source::caller();
        let x = self.autocast("interpolate_linear", &at)?;
        let key = [sizes.into(), align_corners.into()];
        let write =
            |b: &mut GraphBuilder, inputs: &[NodeId]| build::interpolate_linear(b, &inputs[0], sizes, align_corners);
        eager::composite("interpolate_linear", &key, &[&x], write, &at)
    }

    /// Moves channels into the last two axes: `[…, c·r², h, w]` becomes `[…, c, h·r, w·r]`.
    ///
    /// ```
    /// use kiln::{DType, Device, Tensor};
    /// let x = Tensor::arange(8, DType::F32, Device::Cpu)?.reshape([4, 1, 2])?;
    /// assert_eq!(x.pixel_shuffle(2)?.to_vec::<f32>()?, [0., 2., 1., 3., 4., 6., 5., 7.]);
    /// # Ok::<(), kiln::Error>(())
    /// ```
    #[track_caller]
    pub fn pixel_shuffle(&self, factor: usize) -> Result<Tensor> {
        let at = Source::caller();
        let (rest, [c, h, w]) = self.pixels("pixel_shuffle", &at)?;
        let (r, n) = (Dim::plain(factor as i64), rest.len());
        let area = r * r;
        if factor == 0 || !c.is_multiple_of(area) {
            return Err(bad_factor("pixel_shuffle", factor, &at));
        }
        let apart = rest.iter().copied().chain([c / area, r, r, h, w]).collect();
        let order: Vec<usize> = (0..=n).chain([n + 3, n + 1, n + 4, n + 2]).collect();
        let joined = rest.iter().copied().chain([c / area, h * r, w * r]).collect();
        self.reshape_to(apart, &at)?.permute(&order)?.reshape_to(joined, &at)
    }

    /// The opposite of [`Tensor::pixel_shuffle`].
    #[track_caller]
    pub fn pixel_unshuffle(&self, factor: usize) -> Result<Tensor> {
        let at = Source::caller();
        let (rest, [c, h, w]) = self.pixels("pixel_unshuffle", &at)?;
        let (r, n) = (Dim::plain(factor as i64), rest.len());
        if factor == 0 || !h.is_multiple_of(r) || !w.is_multiple_of(r) {
            return Err(bad_factor("pixel_unshuffle", factor, &at));
        }
        let apart = rest.iter().copied().chain([c, h / r, r, w / r, r]).collect();
        let order: Vec<usize> = (0..=n).chain([n + 2, n + 4, n + 1, n + 3]).collect();
        let joined = rest.iter().copied().chain([c * r * r, h / r, w / r]).collect();
        self.reshape_to(apart, &at)?.permute(&order)?.reshape_to(joined, &at)
    }

    /// The sizes before the last three axes, and theirs.
    fn pixels(&self, op: &'static str, at: &Source) -> Result<(Vec<Dim>, [Dim; 3])> {
        let sizes = self.sizes().to_vec();
        match sizes.split_last_chunk::<3>() {
            Some((rest, last)) => Ok((rest.to_vec(), *last)),
            None => {
                let expected = "three axes or more";
                Err(Error::WrongRank { op, shape: self.hint().to_vec(), expected, at: at.clone() })
            }
        }
    }

    /// Rotary embedding: rotates pairs of elements of the last axis by an angle, given as cosine and sine with half as many
    /// elements on the last axis and otherwise broadcasting to this tensor.
    #[track_caller]
    pub fn rope(&self, cos: &Tensor, sin: &Tensor, style: RopeStyle) -> Result<Tensor> {
        let write = |b: &mut GraphBuilder, inputs: &[NodeId]| build::rope(b, &inputs[0], &inputs[1], &inputs[2], style);
        eager::composite("rope", &[(style as i64).into()], &[self, cos, sin], write, &Source::caller())
    }

    /// Repeats the whole tensor, `counts[i]` times along axis i; counts align at the end and may add axes.
    #[track_caller]
    pub fn repeat<S: Size>(&self, counts: &[S]) -> Result<Tensor> {
        let at = Source::caller();
        if counts.len() < self.rank() {
            let expected = "a count for each axis";
            return Err(Error::WrongRank { op: "repeat", shape: self.hint().to_vec(), expected, at });
        }
        let missing = counts.len() - self.rank();
        let one = Dim::plain(1);
        let counts: Vec<Dim> = counts.iter().map(|count| count.to_dim()).collect();
        let counts = crate::tensor::shape::resolve_sizes("repeat", counts, &at)?;
        let sizes: Vec<Dim> = vec![one; missing].into_iter().chain(self.sizes()).collect();
        let split_up = sizes.iter().flat_map(|&n| [one, n]).collect();
        let repeated: Vec<Dim> = sizes.iter().zip(&counts).flat_map(|(&n, &c)| [c, n]).collect();
        let joined: Vec<Dim> = sizes.iter().zip(&counts).map(|(&n, &c)| n * c).collect();
        crate::tensor::create::check_size("repeat", &joined, self.dtype(), &at)?;
        self.reshape_to(split_up, &at)?.broadcast_at("repeat", &repeated, &at)?.reshape_to(joined, &at)
    }

    /// Repeats each position of an axis `count` times.
    #[track_caller]
    pub fn repeat_interleave(&self, count: impl Size, axis: impl Size) -> Result<Tensor> {
        let at = Source::caller();
        let axis = resolve_axis("repeat_interleave", axis, self.hint(), 0, &at)?;
        let mut repeated = self.sizes();
        repeated.insert(axis + 1, count.to_dim());
        let repeated = crate::tensor::shape::resolve_sizes("repeat_interleave", repeated, &at)?;
        let mut joined = self.sizes();
        joined[axis] *= count.to_dim();
        crate::tensor::create::check_size("repeat_interleave", &joined, self.dtype(), &at)?;
        self.unsqueeze(axis + 1)?.broadcast_at("repeat_interleave", &repeated, &at)?.reshape_to(joined, &at)
    }
}

macro_rules! activations {
    ($($(#[$doc:meta])* $name:ident = $build:ident;)*) => {
        impl Tensor { $(
            $(#[$doc])*
            #[track_caller]
            pub fn $name(&self) -> Result<Tensor> {
                self.activation(stringify!($name), &[], build::$build as Write, &Source::caller())
            }
        )* }
    };
}

activations! {
    /// 1 / (1 + e⁻ˣ).
    sigmoid = sigmoid;
    /// The logarithm of [`Tensor::sigmoid`], without loss for large |x|.
    log_sigmoid = log_sigmoid;
    /// x · sigmoid(x).
    silu = silu;
    /// x · Φ(x), by the error function.
    gelu = gelu;
    /// The tanh approximation of [`Tensor::gelu`].
    gelu_tanh = gelu_tanh;
    /// x between 0 and 6.
    relu6 = relu6;
    /// The scaled elu whose constants keep mean and variance.
    selu = selu;
    /// x · tanh(softplus(x)).
    mish = mish;
    /// relu6(x + 3) / 6.
    hardsigmoid = hardsigmoid;
    /// x · relu6(x + 3) / 6.
    hardswish = hardswish;
    /// x / (1 + |x|).
    softsign = softsign;
    /// Hyperbolic sine.
    sinh = sinh;
    /// Hyperbolic cosine.
    cosh = cosh;
    /// Inverse hyperbolic sine.
    asinh = asinh;
    /// Inverse hyperbolic cosine.
    acosh = acosh;
    /// Inverse hyperbolic tangent.
    atanh = atanh;
}

impl Tensor {
    /// max(x, 0); integers stay integers.
    #[track_caller]
    pub fn relu(&self) -> Result<Tensor> {
        let write = |b: &mut GraphBuilder, inputs: &[NodeId]| build::relu(b, &inputs[0]);
        eager::composite("relu", &[], &[self], write, &Source::caller())
    }

    /// x².
    #[track_caller]
    pub fn square(&self) -> Result<Tensor> {
        let write = |b: &mut GraphBuilder, inputs: &[NodeId]| build::mul(b, &inputs[0], &inputs[0]);
        eager::composite("square", &[], &[self], write, &Source::caller())
    }

    /// The dtype that a product of these is carried out in, which both have to have.
    pub(crate) fn same_dtype(&self, op: &'static str, other: &Tensor, at: &Source) -> Result<DType> {
        if self.dtype() == other.dtype() {
            return Ok(self.dtype());
        }
        Err(Error::DTypeMismatch { op, lhs: self.dtype(), rhs: other.dtype(), at: at.clone() })
    }
}

fn bad_factor(op: &'static str, factor: usize, at: &Source) -> Error {
    let expected = "it has to divide what is moved";
    Error::BadArgument { op, name: "factor", value: factor.into(), expected, at: at.clone() }
}
