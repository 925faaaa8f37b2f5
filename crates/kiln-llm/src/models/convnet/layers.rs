//! What convolutional networks are made of: a convolution with its norm and function, squeeze and excitation.

use crate::{Checkpoint, Error, Result, Weights};
use kiln::nn::{Forward, LayerNorm, Linear, Module};
use kiln::{Conv, Tensor, Var};
use std::fmt::Display;

/// A function of each element.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Function {
    /// As it is.
    Identity,
    /// max(x, 0).
    Relu,
    /// max(x, 0), at most 6.
    Relu6,
    /// x · σ(x).
    Silu,
    /// x · hard σ(x).
    HardSwish,
    /// x/6 + 1/2, from 0 to 1.
    HardSigmoid,
    /// 1/(1 + e⁻ˣ).
    Sigmoid,
    /// x · Φ(x).
    Gelu,
}

impl Function {
    /// By its name in a configuration.
    pub fn named(name: &str) -> Option<Function> {
        Some(match name {
            "relu" => Function::Relu,
            "relu6" => Function::Relu6,
            "silu" | "swish" => Function::Silu,
            "hard_swish" | "hardswish" => Function::HardSwish,
            "gelu" => Function::Gelu,
            _ => return None,
        })
    }

    /// The function of each element.
    #[track_caller]
    pub fn apply(self, x: &Tensor) -> kiln::Result<Tensor> {
        let ramp = |x: &Tensor| x.add(3.0)?.clamp(0.0, 6.0)?.mul(1.0 / 6.0);
        match self {
            Function::Identity => Ok(x.clone()),
            Function::Relu => x.relu(),
            Function::Relu6 => x.clamp(0.0, 6.0),
            Function::Silu => x.silu(),
            Function::HardSwish => x.mul(&ramp(x)?),
            Function::HardSigmoid => ramp(x),
            Function::Sigmoid => x.sigmoid(),
            Function::Gelu => x.gelu(),
        }
    }
}

/// Zeros around a picture before a convolution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Padding {
    /// So many on each side.
    Each(usize),
    /// Before and behind.
    Sides(usize, usize),
    /// As many as TensorFlow adds for ⌈size / stride⌉ results, one more behind than before where they are odd.
    Same,
}

/// A convolution, a batch norm with given statistics, and a function.
#[derive(Debug, Module)]
pub struct ConvNorm {
    /// `[out, in / groups, window, window]`.
    pub weight: Var,
    /// Of a convolution without a norm.
    pub bias: Option<Var>,
    /// Factor, offset, mean and variance a channel.
    pub norm: Option<Norm>,
    /// Pixels from one window to the next.
    pub stride: usize,
    /// Around the picture.
    #[module(skip)]
    pub padding: Padding,
    /// Groups of channels.
    pub groups: usize,
    /// Last.
    #[module(skip)]
    pub function: Function,
}

/// The statistics of a batch norm.
#[derive(Debug, Module)]
pub struct Norm {
    /// Factors.
    pub weight: Var,
    /// Offsets.
    pub bias: Var,
    /// Means.
    pub mean: Var,
    /// Variances.
    pub variance: Var,
    /// Keeps divisors from 0.
    pub epsilon: f64,
}

impl Forward for ConvNorm {
    type Output = Tensor;
    #[track_caller]
    fn forward(&self, x: &Tensor) -> kiln::Result<Tensor> {
        let window = self.weight.shape()[2];
        let around = |(low, high): (usize, usize), (left, right): (usize, usize)| {
            x.pad(&[(left as i64, right as i64), (low as i64, high as i64)], 0.0)
        };
        let (x, padding) = match self.padding {
            Padding::Each(padding) => (x.clone(), padding),
            Padding::Sides(low, high) => (around((low, high), (low, high))?, 0),
            Padding::Same => {
                let (rows, columns) =
                    (same(x.shape()[2], window, self.stride), same(x.shape()[3], window, self.stride));
                match (rows, columns) {
                    ((a, b), (c, d)) if a == b && c == d && a == c => (x.clone(), a),
                    (rows, columns) => (around(rows, columns)?, 0),
                }
            }
        };
        let options = Conv { stride: [self.stride; 2], padding: [padding; 2], groups: self.groups, ..Conv::default() };
        let bias = self.bias.as_ref().map(Var::get);
        let mut y = x.conv2d(&self.weight.get(), bias.as_ref(), &options)?;
        if let Some(norm) = &self.norm {
            let (weight, bias) = (norm.weight.get(), norm.bias.get());
            y = y.batch_norm(&norm.mean.get(), &norm.variance.get(), Some(&weight), Some(&bias), norm.epsilon)?;
        }
        self.function.apply(&y)
    }
}

/// The zeros before and behind that TensorFlow's `SAME` adds.
fn same(size: usize, window: usize, stride: usize) -> (usize, usize) {
    let total = ((size.div_ceil(stride) - 1) * stride + window).saturating_sub(size);
    (total / 2, total - total / 2)
}

/// Channels times what two products make of their means.
#[derive(Debug, Module)]
pub struct SqueezeExcite {
    /// To few channels, with its function.
    pub reduce: ConvNorm,
    /// And back, with the gate.
    pub expand: ConvNorm,
}

impl Forward for SqueezeExcite {
    type Output = Tensor;
    #[track_caller]
    fn forward(&self, x: &Tensor) -> kiln::Result<Tensor> {
        let gate = self.expand.forward(&self.reduce.forward(&x.mean_keepdim([2, 3])?)?)?;
        x.mul(&gate)
    }
}

/// A layer norm of each pixel's channels.
#[track_caller]
pub(super) fn over_channels(norm: &LayerNorm, x: &Tensor) -> kiln::Result<Tensor> {
    norm.forward(&x.permute([0, 2, 3, 1])?)?.permute([0, 3, 1, 2])
}

/// A place in a checkpoint whose shapes say what is there.
#[derive(Clone)]
pub(super) struct Reader<'a, 'w> {
    pub(super) checkpoint: &'a Checkpoint,
    pub(super) weights: &'a Weights<'w>,
    pub(super) prefix: String,
}

/// How a convolution goes over the picture, which is in no shape.
#[derive(Debug, Clone, Copy)]
pub(super) struct How {
    pub(super) stride: usize,
    pub(super) padding: Padding,
    pub(super) function: Function,
    pub(super) epsilon: f64,
}

impl How {
    /// From one pixel to the next, without a function.
    pub(super) fn plain(epsilon: f64) -> How {
        How { stride: 1, padding: Padding::Each(0), function: Function::Identity, epsilon }
    }
}

impl Reader<'_, '_> {
    pub(super) fn under(&self, name: impl Display) -> Self {
        Reader { prefix: format!("{}{name}.", self.prefix), ..self.clone() }
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.checkpoint.tensors.contains_key(&format!("{}{name}", self.prefix))
    }

    /// How many parts `{name}.0`, `{name}.1`, … there are.
    pub(super) fn count(&self, name: &str) -> usize {
        let any = |part: &String| {
            let from = self.checkpoint.tensors.range(part.clone()..).next();
            from.is_some_and(|(name, _)| name.starts_with(part))
        };
        (0..).take_while(|number| any(&format!("{}{name}{number}.", self.prefix))).count()
    }

    pub(super) fn shape<const N: usize>(&self, name: &str) -> Result<[usize; N]> {
        let name = format!("{}{name}", self.prefix);
        let Some(tensor) = self.checkpoint.tensors.get(&name) else { return Err(Error::MissingTensor { name }) };
        let got = tensor.shape().to_vec();
        <[usize; N]>::try_from(&got[..]).map_err(|_| Error::WrongShape { name, expected: vec![0; N], got: got.clone() })
    }

    pub(super) fn var(&self, name: &str, shape: &[usize]) -> Result<Var> {
        self.weights.var(&format!("{}{name}", self.prefix), shape)
    }

    /// A convolution of `channels` with the batch norm of another name, if it has one. The number of groups is what the shapes say.
    pub(super) fn conv(&self, name: &str, norm: Option<&str>, channels: usize, how: How) -> Result<ConvNorm> {
        let full = format!("{name}.weight");
        let shape @ [out, part, rows, columns] = self.shape::<4>(&full)?;
        let wrong =
            |expected| Error::WrongShape { name: format!("{}{full}", self.prefix), expected, got: shape.to_vec() };
        if part == 0 || !channels.is_multiple_of(part) || !out.is_multiple_of((channels / part).max(1)) || out == 0 {
            return Err(wrong(vec![out, channels, rows, columns]));
        }
        if rows != columns || rows == 0 {
            return Err(wrong(vec![out, part, rows, rows]));
        }
        let norm = match norm {
            Some(norm) => {
                let norm = self.under(norm);
                let [weight, bias, mean, variance] =
                    ["weight", "bias", "running_mean", "running_var"].map(|part| norm.var(part, &[out]));
                Some(Norm { weight: weight?, bias: bias?, mean: mean?, variance: variance?, epsilon: how.epsilon })
            }
            None => None,
        };
        let bias = format!("{name}.bias");
        Ok(ConvNorm {
            weight: self.var(&full, &shape)?,
            bias: if self.has(&bias) { Some(self.var(&bias, &[out])?) } else { None },
            norm,
            stride: how.stride,
            padding: how.padding,
            groups: channels / part,
            function: how.function,
        })
    }

    /// The window of a convolution.
    pub(super) fn window(&self, name: &str) -> Result<usize> {
        Ok(self.shape::<4>(&format!("{name}.weight"))?[2])
    }

    pub(super) fn linear(&self, name: &str, inputs: usize) -> Result<Linear> {
        let full = format!("{name}.weight");
        // A convolution of single pixels.
        if let Ok(shape @ [outputs, _, 1, 1]) = self.shape::<4>(&full) {
            let weight = self.var(&full, &[outputs, inputs, shape[2], shape[3]])?;
            let flat = Var::named(weight.name().unwrap_or_default(), &weight.get().reshape([outputs, inputs])?);
            let bias = format!("{name}.bias");
            let bias = if self.has(&bias) { Some(self.var(&bias, &[outputs])?) } else { None };
            return Ok(Linear { weight: flat, bias });
        }
        let [outputs, _] = self.shape::<2>(&full)?;
        self.weights.linear(&format!("{}{name}", self.prefix), inputs, outputs, self.has(&format!("{name}.bias")))
    }

    pub(super) fn layer_norm(&self, name: &str, width: usize, epsilon: f64) -> Result<LayerNorm> {
        self.weights.layer_norm(&format!("{}{name}", self.prefix), width, epsilon)
    }

    /// Squeeze and excitation, by the names of its two products.
    pub(super) fn squeeze(
        &self,
        names: [&str; 2],
        channels: usize,
        [inner, gate]: [Function; 2],
    ) -> Result<SqueezeExcite> {
        let reduce = self.conv(names[0], None, channels, How { function: inner, ..How::plain(0.0) })?;
        let few = reduce.weight.shape()[0];
        let expand = self.conv(names[1], None, few, How { function: gate, ..How::plain(0.0) })?;
        Ok(SqueezeExcite { reduce, expand })
    }
}
