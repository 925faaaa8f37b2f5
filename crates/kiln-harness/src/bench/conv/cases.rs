//! The convolutions that are measured, as networks have them.

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
        }
    }
}

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

    /// Operations, two a multiply-add.
    pub fn operations(&self) -> f64 {
        let weights: usize = self.w.iter().product();
        let places = match self.part {
            Part::Transposed => self.x[2..].iter().product::<usize>(),
            _ => self.result()[2..].iter().product(),
        };
        let one = 2.0 * (weights * places * self.x[0]) as f64;
        match self.part {
            Part::Basic => 2.0 * one,
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

/// A convolution of a batch of square images with a square kernel: channels, results, pixels, taps, stride, padding, groups.
type Square = (&'static str, Part, [usize; 7]);

const SQUARES: &[Square] = &[
    ("ResNet", Part::Forward, [3, 64, 224, 7, 2, 3, 1]),
    ("ResNet", Part::Forward, [64, 64, 56, 1, 1, 0, 1]),
    ("ResNet", Part::Forward, [64, 64, 56, 3, 1, 1, 1]),
    ("ResNet", Part::Forward, [128, 128, 28, 3, 1, 1, 1]),
    ("ResNet", Part::Forward, [256, 256, 14, 3, 1, 1, 1]),
    ("ResNet", Part::Forward, [512, 512, 7, 3, 1, 1, 1]),
    ("ResNet", Part::Forward, [128, 128, 56, 3, 2, 1, 1]),
    ("ResNet", Part::Forward, [256, 512, 56, 1, 2, 0, 1]),
    ("ResNet", Part::Forward, [512, 512, 14, 3, 2, 1, 1]),
    ("ResNet", Part::Forward, [1024, 256, 14, 1, 1, 0, 1]),
    ("ResNet", Part::Basic, [64, 64, 56, 3, 1, 1, 1]),
    ("ResNet", Part::Basic, [256, 256, 14, 3, 1, 1, 1]),
    ("CIFAR ResNet", Part::Trained, [16, 16, 32, 3, 1, 1, 1]),
    ("CIFAR ResNet", Part::Trained, [3, 16, 32, 3, 1, 1, 1]),
    ("ResNet", Part::Trained, [64, 64, 56, 3, 1, 1, 1]),
    ("MobileNetV2", Part::Forward, [3, 32, 224, 3, 2, 1, 1]),
    ("MobileNetV2", Part::Forward, [32, 32, 112, 3, 1, 1, 32]),
    ("MobileNetV2", Part::Forward, [144, 144, 56, 3, 1, 1, 144]),
    ("MobileNetV2", Part::Forward, [96, 96, 112, 3, 2, 1, 96]),
    ("MobileNetV2", Part::Forward, [576, 576, 14, 3, 2, 1, 576]),
    ("MobileNetV2", Part::Forward, [960, 960, 7, 3, 1, 1, 960]),
    ("MobileNetV2", Part::Inverted, [32, 192, 28, 3, 1, 1, 192]),
    ("MobileNetV2", Part::Inverted, [96, 576, 14, 3, 1, 1, 576]),
    ("MobileNetV3", Part::Forward, [672, 672, 14, 5, 1, 2, 672]),
    ("EfficientNet", Part::Forward, [240, 240, 28, 5, 2, 2, 240]),
    ("ConvNeXt", Part::Forward, [3, 96, 224, 4, 4, 0, 1]),
    ("ConvNeXt", Part::Forward, [96, 96, 56, 7, 1, 3, 96]),
    ("ConvNeXt", Part::Forward, [384, 384, 14, 7, 1, 3, 384]),
    ("ConvNeXt", Part::Forward, [96, 192, 56, 2, 2, 0, 1]),
    ("RegNetY", Part::Forward, [152, 152, 28, 3, 1, 1, 19]),
    ("ResNeXt", Part::Forward, [128, 128, 56, 3, 1, 1, 32]),
    ("ResNeXt", Part::Forward, [512, 512, 14, 3, 1, 1, 32]),
    ("ResNeXt", Part::Forward, [256, 256, 56, 3, 2, 1, 32]),
    ("U-Net", Part::Forward, [320, 320, 32, 3, 1, 1, 1]),
    ("U-Net", Part::Transposed, [128, 64, 32, 2, 2, 0, 1]),
    ("GAN", Part::Transposed, [256, 128, 16, 4, 2, 1, 1]),
    ("VAE", Part::Forward, [128, 128, 64, 3, 1, 1, 1]),
    ("VAE", Part::Forward, [128, 3, 128, 3, 1, 1, 1]),
    ("ResNet", Part::InputGradient, [64, 64, 56, 3, 1, 1, 1]),
    ("ResNet", Part::InputGradient, [128, 128, 56, 3, 2, 1, 1]),
    ("ResNet", Part::InputGradient, [256, 256, 14, 3, 1, 1, 1]),
    ("ResNet", Part::WeightGradient, [64, 64, 56, 3, 1, 1, 1]),
    ("ResNet", Part::WeightGradient, [128, 128, 56, 3, 2, 1, 1]),
    ("ResNet", Part::WeightGradient, [256, 256, 14, 3, 1, 1, 1]),
    ("MobileNetV2", Part::InputGradient, [144, 144, 56, 3, 1, 1, 144]),
    ("MobileNetV2", Part::WeightGradient, [144, 144, 56, 3, 1, 1, 144]),
];

/// Convolutions that are measured in other layouts and types as well: numbers as above.
const VARIED: &[(&str, [usize; 7])] = &[
    ("ResNet", [3, 64, 224, 7, 2, 3, 1]),
    ("ResNet", [64, 64, 56, 1, 1, 0, 1]),
    ("ResNet", [64, 64, 56, 3, 1, 1, 1]),
    ("ResNet", [256, 256, 14, 3, 1, 1, 1]),
    ("ResNet", [512, 512, 7, 3, 1, 1, 1]),
    ("ResNet", [128, 128, 56, 3, 2, 1, 1]),
    ("ResNet", [1024, 256, 14, 1, 1, 0, 1]),
    ("MobileNetV2", [3, 32, 224, 3, 2, 1, 1]),
    ("MobileNetV2", [144, 144, 56, 3, 1, 1, 144]),
    ("MobileNetV2", [576, 576, 14, 3, 2, 1, 576]),
    ("ConvNeXt", [96, 96, 56, 7, 1, 3, 96]),
    ("RegNetY", [152, 152, 28, 3, 1, 1, 19]),
    ("ResNeXt", [128, 128, 56, 3, 1, 1, 32]),
    ("ResNeXt", [512, 512, 14, 3, 1, 1, 32]),
    ("U-Net", [320, 320, 32, 3, 1, 1, 1]),
];

/// Type and layout of each of them.
const VARIANTS: [(DType, bool); 4] =
    [(DType::F32, true), (DType::Bf16, false), (DType::Bf16, true), (DType::F16, false)];

/// All rows, of one image and of eight.
pub fn all(threads: &[usize]) -> Vec<Case> {
    let mut cases = Vec::new();
    for (&threads, batch) in threads.iter().flat_map(|threads| [(threads, 1), (threads, 8)]) {
        for &(network, part, [channels, outputs, pixels, taps, stride, padding, groups]) in SQUARES {
            let w = match part {
                Part::Transposed => [channels, outputs / groups, taps, taps],
                Part::Inverted => [outputs, 1, taps, taps],
                _ => [outputs, channels / groups, taps, taps],
            };
            let x = vec![batch, channels, pixels, pixels];
            let (dtype, last) = (DType::F32, false);
            cases.push(Case { network, part, x, w: w.into(), stride, padding, groups, dtype, last, threads });
        }
        for (dtype, last) in VARIANTS {
            for &(network, [channels, outputs, pixels, taps, stride, padding, groups]) in VARIED {
                let (part, x) = (Part::Forward, vec![batch, channels, pixels, pixels]);
                let w = vec![outputs, channels / groups, taps, taps];
                cases.push(Case { network, part, x, w, stride, padding, groups, dtype, last, threads });
            }
        }
        let mut other = |network, x: &[usize], w: &[usize], stride, padding| {
            let (part, x, w) = (Part::Forward, [&[batch], x].concat(), w.to_vec());
            let (groups, dtype, last) = (1, DType::F32, false);
            cases.push(Case { network, part, x, w, stride, padding, groups, dtype, last, threads });
        };
        other("Whisper", &[80, 3000], &[384, 80, 3], 1, 1);
        other("Whisper", &[384, 3000], &[384, 384, 3], 2, 1);
        other("3-D", &[16, 16, 32, 32], &[32, 16, 3, 3, 3], 1, 1);
    }
    cases
}
