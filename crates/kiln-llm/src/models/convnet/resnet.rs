//! ResNets, and their kin with wider blocks, groups or squeeze and excitation, and RegNets: three (or two) convolutions beside a shortcut.

use super::layers::{ConvNorm, Function, How, Padding, Reader, SqueezeExcite};
use super::{Block, Head, Stem};
use crate::Result;
use crate::config::Fields;
use kiln::Tensor;
use kiln::nn::{Forward, Module};

/// max(shortcut(x) + convolutions(x), 0).
#[derive(Debug, Module)]
pub struct Residual {
    /// Two of 3 × 3, or one of it between two of one pixel.
    pub convs: Vec<ConvNorm>,
    /// Of channels, before the sum or (RegNet) before the last convolution.
    pub se: Option<SqueezeExcite>,
    /// Convolutions before it.
    #[module(skip)]
    pub squeezed: usize,
    /// Where channels or sizes change.
    pub shortcut: Option<ConvNorm>,
    /// Of the sum.
    #[module(skip)]
    pub function: Function,
}

/// What torchvision's and timm's batch norms have.
const EPSILON: f64 = 1e-5;

/// Whether a name of timm's is a ResNet with a plain stem.
pub(super) fn is_plain(name: &str) -> bool {
    let name = name.strip_prefix("tv_").unwrap_or(name);
    let depths = ["18", "34", "50", "101", "152"];
    match name.strip_prefix("seresnet").or(name.strip_prefix("resnet")) {
        Some(depth) => depths.contains(&depth),
        None => [
            "wide_resnet50_2",
            "wide_resnet101_2",
            "resnext50_32x4d",
            "resnext101_32x4d",
            "resnext101_32x8d",
            "resnext101_64x4d",
            "seresnext50_32x4d",
            "seresnext101_32x4d",
            "seresnext101_32x8d",
        ]
        .contains(&name),
    }
}

/// With the names of timm and torchvision.
pub(super) fn timm(reader: &Reader<'_, '_>) -> Result<(Stem, Vec<Block>, Head)> {
    let relu = Function::Relu;
    let conv = reader.conv(
        "conv1",
        Some("bn1"),
        3,
        How { stride: 2, padding: Padding::Each(3), function: relu, epsilon: EPSILON },
    )?;
    let mut channels = conv.weight.shape()[0];
    let mut blocks = Vec::new();
    for stage in 1..=4 {
        let part = reader.under(format!("layer{stage}"));
        for number in 0..part.count("") {
            let at = part.under(number);
            let stride = if stage > 1 && number == 0 { 2 } else { 1 };
            let names = [("conv1", "bn1"), ("conv2", "bn2"), ("conv3", "bn3")];
            let count = if at.has("conv3.weight") { 3 } else { 2 };
            let shortcut = at.has("downsample.0.weight").then_some(("downsample.0", "downsample.1"));
            let mut block = residual(&at, &names[..count], shortcut, channels, stride, relu, false)?;
            channels = width(&block);
            if at.has("se.fc1.weight") {
                block.se = Some(at.under("se").squeeze(["fc1", "fc2"], channels, [relu, Function::Sigmoid])?);
            }
            blocks.push(Block::Residual(block));
        }
    }
    let head = Head { conv: None, norm: None, after: None, classifier: reader.linear("fc", channels)? };
    Ok((Stem { conv, norm: None, pooled: true }, blocks, head))
}

/// Whether a name of timm's is a RegNetX or RegNetY, as `regnety_008`.
pub(super) fn is_regnet(name: &str) -> bool {
    let size = name.strip_prefix("regnetx_").or(name.strip_prefix("regnety_"));
    size.is_some_and(|size| !size.is_empty() && size.bytes().all(|byte| byte.is_ascii_digit()))
}

/// RegNets with the names of timm.
pub(super) fn regnet(reader: &Reader<'_, '_>) -> Result<(Stem, Vec<Block>, Head)> {
    let relu = Function::Relu;
    let how = How { stride: 2, padding: Padding::Each(1), function: relu, epsilon: EPSILON };
    let conv = reader.conv("stem.conv", Some("stem.bn"), 3, how)?;
    let mut channels = conv.weight.shape()[0];
    let mut blocks = Vec::new();
    for stage in 1..=4 {
        let part = reader.under(format!("s{stage}"));
        let there = |number: &usize| part.has(&format!("b{number}.conv1.conv.weight"));
        for number in (1..).take_while(there) {
            let at = part.under(format!("b{number}"));
            let stride = if number == 1 { 2 } else { 1 };
            let names = [("conv1.conv", "conv1.bn"), ("conv2.conv", "conv2.bn"), ("conv3.conv", "conv3.bn")];
            let shortcut = at.has("downsample.conv.weight").then_some(("downsample.conv", "downsample.bn"));
            let mut block = residual(&at, &names, shortcut, channels, stride, relu, false)?;
            if at.has("se.fc1.weight") {
                let inner = block.convs[1].weight.shape()[0];
                block.se = Some(at.under("se").squeeze(["fc1", "fc2"], inner, [relu, Function::Sigmoid])?);
                block.squeezed = 2;
            }
            channels = width(&block);
            blocks.push(Block::Residual(block));
        }
    }
    let head = Head { conv: None, norm: None, after: None, classifier: reader.linear("head.fc", channels)? };
    Ok((Stem { conv, norm: None, pooled: false }, blocks, head))
}

/// With the names of transformers.
pub(super) fn transformers(reader: &Reader<'_, '_>, fields: &Fields) -> Result<(Stem, Vec<Block>, Head)> {
    fields.supported(&[])?;
    let name = fields.text("hidden_act")?.unwrap_or("relu");
    let function =
        Function::named(name).ok_or_else(|| fields.bad("hidden_act", format!("'{name}' is not supported")))?;
    let early = fields.flag("downsample_in_bottleneck", false)?;
    let first = fields.flag("downsample_in_first_stage", false)?;
    let body = reader.under("resnet");
    let how = How { stride: 2, padding: Padding::Each(3), function, epsilon: EPSILON };
    let conv = body.under("embedder.embedder").conv("convolution", Some("normalization"), 3, how)?;
    let mut channels = conv.weight.shape()[0];
    let mut blocks = Vec::new();
    let stages = body.under("encoder.stages");
    for stage in 0..stages.count("") {
        let layers = stages.under(stage).under("layers");
        for number in 0..layers.count("") {
            let at = layers.under(number);
            let stride = if number == 0 && (stage > 0 || first) { 2 } else { 1 };
            let names = [0, 1, 2].map(|i| (format!("layer.{i}.convolution"), format!("layer.{i}.normalization")));
            let names: Vec<(&str, &str)> = names.iter().map(|(conv, norm)| (conv.as_str(), norm.as_str())).collect();
            let count = if at.has("layer.2.convolution.weight") { 3 } else { 2 };
            let shortcut =
                at.has("shortcut.convolution.weight").then_some(("shortcut.convolution", "shortcut.normalization"));
            let block = residual(&at, &names[..count], shortcut, channels, stride, function, early)?;
            channels = width(&block);
            blocks.push(Block::Residual(block));
        }
    }
    let head = Head { conv: None, norm: None, after: None, classifier: reader.linear("classifier.1", channels)? };
    Ok((Stem { conv, norm: None, pooled: true }, blocks, head))
}

fn width(block: &Residual) -> usize {
    block.convs.last().map_or(0, |conv| conv.weight.shape()[0])
}

/// `early` puts the stride of a block of three into the first convolution.
fn residual(
    at: &Reader<'_, '_>,
    names: &[(&str, &str)],
    shortcut: Option<(&str, &str)>,
    input: usize,
    stride: usize,
    function: Function,
    early: bool,
) -> Result<Residual> {
    let strided = if names.len() == 3 && !early { 1 } else { 0 };
    let (mut convs, mut channels) = (Vec::new(), input);
    for (number, &(conv, norm)) in names.iter().enumerate() {
        let how = How {
            stride: if number == strided { stride } else { 1 },
            padding: Padding::Each(at.window(conv)? / 2),
            function: if number + 1 < names.len() { function } else { Function::Identity },
            epsilon: EPSILON,
        };
        let made = at.conv(conv, Some(norm), channels, how)?;
        channels = made.weight.shape()[0];
        convs.push(made);
    }
    let shortcut = match shortcut {
        Some((conv, norm)) => Some(at.conv(conv, Some(norm), input, How { stride, ..How::plain(EPSILON) })?),
        None => None,
    };
    Ok(Residual { squeezed: convs.len(), convs, se: None, shortcut, function })
}

impl Forward for Residual {
    type Output = Tensor;
    #[track_caller]
    fn forward(&self, x: &Tensor) -> kiln::Result<Tensor> {
        let mut y = x.clone();
        for (number, conv) in self.convs.iter().enumerate() {
            y = conv.forward(&y)?;
            if let (Some(se), true) = (&self.se, number + 1 == self.squeezed) {
                y = se.forward(&y)?;
            }
        }
        let beside = match &self.shortcut {
            Some(shortcut) => shortcut.forward(x)?,
            None => x.clone(),
        };
        self.function.apply(&(y + beside)?)
    }
}
