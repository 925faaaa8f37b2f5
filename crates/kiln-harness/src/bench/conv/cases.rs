//! One convolution that is measured, alone or in a block of a network, and its graph.

use kiln_ir::build::{self, ConvOptions, Emit, GraphBuilder};
use kiln_ir::{ConvDims, DType, Error, Graph, NodeId, Op, TensorType};
use serde_json::{Value, json};

/// A row of the table: a graph that is compiled, run op by op, and computed by the peer.
pub struct Work {
    pub name: String,
    /// Threads of all sides.
    pub threads: usize,
    pub batch: usize,
    /// Of images and weights.
    pub dtype: DType,
    /// Operations, two a multiply-add; zero where memory is what counts.
    pub operations: f64,
    /// Whether all inputs but the first are weights, which are packed beforehand on one side more.
    pub has_weights: bool,
    /// For the peer.
    pub json: Value,
    /// Builds the graph.
    pub graph: Box<dyn Fn() -> Result<Graph, Box<dyn std::error::Error>>>,
}

impl From<Case> for Work {
    fn from(case: Case) -> Work {
        Work {
            name: case.name(),
            threads: case.threads,
            batch: case.x[0],
            dtype: case.dtype,
            operations: case.operations(),
            has_weights: case.has_weights(),
            json: case.to_json(),
            graph: Box::new(move || Ok(case.graph()?)),
        }
    }
}

/// What is computed with a convolution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The convolution and its bias.
    Forward,
    /// The transposed convolution and its bias.
    Transposed,
    /// The gradient in the input.
    InputGradient,
    /// The gradient in the weight.
    WeightGradient,
    /// Convolution, batch norm by the statistics of the batch, ReLU: a layer in training.
    Trained,
    /// Convolution, eval batch norm, ReLU and the same convolution again with batch norm, residual and ReLU: a ResNet's block.
    Basic,
    /// 1×1 to more channels, this depthwise convolution, 1×1 back, with batch norms, ReLU6 and a residual: a MobileNet's block.
    Inverted,
    /// This depthwise convolution with batch norm and SiLU; its mean goes through two 1×1 ones (to a 24th of the channels and back) and a
    /// sigmoid and scales it; 1×1 to a sixth of the channels with batch norm: the end of an EfficientNet's block.
    SqueezeExcite,
    /// Group norm, SiLU and this convolution, twice, and the input added: a diffusion network's block.
    Residual,
}

impl Part {
    fn name(self) -> &'static str {
        match self {
            Part::Forward => "forward",
            Part::Transposed => "transposed",
            Part::InputGradient => "input gradient",
            Part::WeightGradient => "weight gradient",
            Part::Trained => "trained layer",
            Part::Basic => "basic block",
            Part::Inverted => "inverted residual",
            Part::SqueezeExcite => "squeeze-excite",
            Part::Residual => "group norm residual",
        }
    }
}

/// Groups of the norms of [`Part::Residual`].
const NORM_GROUPS: usize = 32;

/// One row of the table.
#[derive(Debug, Clone)]
pub struct Case {
    /// The network that it is from.
    pub network: &'static str,
    pub part: Part,
    /// `[n, c, spatial…]`.
    pub x: Vec<usize>,
    /// `[o, c / groups, kernel…]`, or `[c, o / groups, kernel…]` of a transposed one.
    pub w: Vec<usize>,
    /// The same along each axis.
    pub stride: usize,
    pub padding: usize,
    pub groups: usize,
    /// The type of all elements.
    pub dtype: DType,
    /// Whether images and weights have their channels last in memory.
    pub last: bool,
    /// Threads of all sides.
    pub threads: usize,
}

impl Case {
    fn spatial(&self) -> usize {
        self.x.len() - 2
    }

    /// For the table.
    pub fn name(&self) -> String {
        let sizes = |sizes: &[usize]| sizes.iter().map(usize::to_string).collect::<Vec<_>>().join("×");
        let (channels, outputs) = match self.part {
            Part::Transposed => (self.w[0], self.w[1] * self.groups),
            Part::SqueezeExcite => (self.w[0], self.squeezed()[1]),
            _ => (self.w[1] * self.groups, self.w[0]),
        };
        let mut name = format!("{} {}×{channels}→{outputs} {}", self.network, self.x[0], sizes(&self.w[2..]));
        if self.stride > 1 {
            name += &format!(" s{}", self.stride);
        }
        if self.groups > 1 {
            name += &format!(" g{}", self.groups);
        }
        name += &format!(" of {}", sizes(&self.x[2..]));
        if self.part != Part::Forward {
            name += &format!(", {}", self.part.name());
        }
        if self.dtype != DType::F32 {
            name += &format!(" {}", self.dtype);
        }
        if self.last {
            name += " channels-last";
        }
        name
    }

    /// For the peer.
    pub fn to_json(&self) -> Value {
        json!({
            "kind": "conv", "part": self.part.name(), "shape": self.x, "weight": self.w, "stride": self.stride,
            "padding": self.padding, "groups": self.groups, "dtype": self.dtype.to_string(), "last": self.last,
            "has_weights": self.has_weights(),
        })
    }

    fn options(&self) -> ConvOptions {
        let spatial = self.spatial();
        ConvOptions {
            stride: vec![self.stride; spatial],
            padding: vec![self.padding; spatial],
            dilation: vec![1; spatial],
            groups: self.groups,
        }
    }

    fn result(&self) -> Vec<usize> {
        let places = |i: usize| (self.x[i] + 2 * self.padding - self.w[i]) / self.stride + 1;
        [self.x[0], self.w[0]].into_iter().chain((2..self.x.len()).map(places)).collect()
    }

    /// Channels between the two 1×1 convolutions of [`Part::SqueezeExcite`], and those of its result.
    fn squeezed(&self) -> [usize; 2] {
        [self.w[0] / 24, self.w[0] / 6]
    }

    /// Whether weights are all but the first input, which a network holds and a compiler may pack.
    pub fn has_weights(&self) -> bool {
        !matches!(self.part, Part::InputGradient | Part::WeightGradient | Part::Trained)
    }

    /// Operations, two a multiply-add.
    pub fn operations(&self) -> f64 {
        let weights: usize = self.w.iter().product();
        let places = match self.part {
            Part::Transposed => self.x[2..].iter().product::<usize>(),
            _ => self.result()[2..].iter().product(),
        };
        let one = 2.0 * (weights * places * self.x[0]) as f64;
        match self.part {
            Part::Basic | Part::Residual => 2.0 * one,
            Part::SqueezeExcite => {
                let pixels: usize = self.result()[2..].iter().product();
                let (channels, [squeezed, outputs]) = (self.w[0], self.squeezed());
                one + 2.0 * (self.x[0] * channels * (2 * squeezed + pixels * outputs)) as f64
            }
            Part::Inverted => {
                let pixels: usize = self.x[2..].iter().product();
                one + 4.0 * (self.x[0] * self.x[1] * self.w[0] * pixels) as f64
            }
            _ => one,
        }
    }

    /// The graph that is compiled, and run op by op.
    pub fn graph(&self) -> Result<Graph, Error> {
        let mut b = GraphBuilder::new();
        let input = |b: &mut GraphBuilder, shape: &[usize]| match (self.last, shape) {
            (true, &[n, c, y, x]) => {
                let last = b.input(TensorType::fixed(self.dtype, &[n, y, x, c]))?;
                build::permute(b, &last, &[0, 3, 1, 2])
            }
            _ => b.input(TensorType::fixed(self.dtype, shape)),
        };
        let options = self.options();
        let y = match self.part {
            Part::Forward => {
                let (x, w) = (input(&mut b, &self.x)?, input(&mut b, &self.w)?);
                let bias = input(&mut b, &self.w[..1])?;
                build::conv(&mut b, &x, &w, Some(&bias), &options)?
            }
            Part::Transposed => {
                let (x, w) = (input(&mut b, &self.x)?, input(&mut b, &self.w)?);
                let bias = input(&mut b, &[self.w[1] * self.groups])?;
                build::conv_transpose(&mut b, &x, &w, Some(&bias), &options, &vec![0; self.spatial()])?
            }
            Part::InputGradient | Part::WeightGradient => {
                let (x, w) = (input(&mut b, &self.x)?, input(&mut b, &self.w)?);
                let g = input(&mut b, &self.result())?;
                let padding = options.padding.iter().map(|&p| (p as i64, p as i64)).collect();
                let ConvOptions { stride, dilation, groups, .. } = options;
                let dims = ConvDims { stride, padding, dilation, input_dilation: vec![1; self.spatial()], groups };
                let wanted = [self.part == Part::InputGradient, self.part == Part::WeightGradient];
                // The result is of no use for either.
                let gradients = kiln_passes::gradient(&mut b, &Op::Conv(dims.into()), &[x, w], &g, &g, &wanted)?;
                gradients.into_iter().flatten().next().unwrap_or(g)
            }
            Part::Trained => {
                let (x, w) = (input(&mut b, &self.x)?, input(&mut b, &self.w)?);
                let y = build::conv(&mut b, &x, &w, None, &options)?;
                let axes: Vec<usize> = (0..self.x.len()).filter(|&axis| axis != 1).collect();
                let mean = build::mean(&mut b, &y, &axes, true)?;
                let centered = build::sub(&mut b, &y, &mean)?;
                let square = build::mul(&mut b, &centered, &centered)?;
                let variance = build::mean(&mut b, &square, &axes, true)?;
                let variance = build::add_scalar(&mut b, &variance, 1e-5)?;
                let scale = build::rsqrt(&mut b, &variance)?;
                let y = build::mul(&mut b, &centered, &scale)?;
                let y = norm(&mut b, y, self.w[0])?;
                build::relu(&mut b, &y)?
            }
            Part::Basic => {
                let x = input(&mut b, &self.x)?;
                let mut y = x;
                for last in [false, true] {
                    let w = input(&mut b, &self.w)?;
                    y = build::conv(&mut b, &y, &w, None, &options)?;
                    y = norm(&mut b, y, self.w[0])?;
                    if last {
                        y = build::add(&mut b, &y, &x)?;
                    }
                    y = build::relu(&mut b, &y)?;
                }
                y
            }
            Part::Inverted => {
                let (x, inner) = (input(&mut b, &self.x)?, self.w[0]);
                let point = ConvOptions::new(self.spatial());
                let w = input(&mut b, &[inner, self.x[1], 1, 1])?;
                let y = build::conv(&mut b, &x, &w, None, &point)?;
                let y = norm(&mut b, y, inner)?;
                let y = build::relu6(&mut b, &y)?;
                let w = input(&mut b, &self.w)?;
                let y = build::conv(&mut b, &y, &w, None, &options)?;
                let y = norm(&mut b, y, inner)?;
                let y = build::relu6(&mut b, &y)?;
                let w = input(&mut b, &[self.x[1], inner, 1, 1])?;
                let y = build::conv(&mut b, &y, &w, None, &point)?;
                let y = norm(&mut b, y, self.x[1])?;
                build::add(&mut b, &y, &x)?
            }
            Part::SqueezeExcite => {
                let (x, point, channels) = (input(&mut b, &self.x)?, ConvOptions::new(2), self.w[0]);
                let [squeezed, outputs] = self.squeezed();
                let w = input(&mut b, &self.w)?;
                let y = build::conv(&mut b, &x, &w, None, &options)?;
                let y = norm(&mut b, y, channels)?;
                let y = build::silu(&mut b, &y)?;
                let mut gate = build::mean(&mut b, &y, &[2, 3], true)?;
                for (from, to) in [(channels, squeezed), (squeezed, channels)] {
                    let w = input(&mut b, &[to, from, 1, 1])?;
                    let bias = input(&mut b, &[to])?;
                    gate = build::conv(&mut b, &gate, &w, Some(&bias), &point)?;
                    gate = if to < from { build::silu(&mut b, &gate)? } else { build::sigmoid(&mut b, &gate)? };
                }
                let y = build::mul(&mut b, &y, &gate)?;
                let w = input(&mut b, &[outputs, channels, 1, 1])?;
                let y = build::conv(&mut b, &y, &w, None, &point)?;
                norm(&mut b, y, outputs)?
            }
            Part::Residual => {
                let x = input(&mut b, &self.x)?;
                let mut y = x;
                for _ in 0..2 {
                    let (scale, shift) = (input(&mut b, &self.x[1..2])?, input(&mut b, &self.x[1..2])?);
                    y = build::group_norm(&mut b, &y, NORM_GROUPS, Some(&scale), Some(&shift), 1e-5)?;
                    y = build::silu(&mut b, &y)?;
                    let (w, bias) = (input(&mut b, &self.w)?, input(&mut b, &self.w[..1])?);
                    y = build::conv(&mut b, &y, &w, Some(&bias), &options)?;
                }
                build::add(&mut b, &y, &x)?
            }
        };
        let y = if self.last { build::permute(&mut b, &y, &[0, 2, 3, 1])? } else { y };
        b.output(y);
        Ok(b.finish())
    }
}

/// Batch norm as evaluation has it: a factor and a summand a channel.
fn norm(b: &mut GraphBuilder, x: NodeId, channels: usize) -> Result<NodeId, Error> {
    let rank = b.ty(&x).rank();
    let mut parameter = || -> Result<NodeId, Error> {
        let vector = b.input(TensorType::fixed(DType::F32, &[channels]))?;
        build::along_axis(b, &vector, rank, 1)
    };
    let (scale, shift) = (parameter()?, parameter()?);
    let y = build::mul(b, &x, &scale)?;
    build::add(b, &y, &shift)
}
