//! MobileNets and EfficientNets: blocks that widen, filter each channel, and narrow again, beside a shortcut.

use super::layers::{ConvNorm, Function, How, Padding, Reader, SqueezeExcite};
use super::{Block, Head, Stem};
use crate::config::Fields;
use crate::{Error, Result};
use kiln::Tensor;
use kiln::nn::{Forward, Module};

/// x + narrow(squeeze(filter(widen(x)))), or without x where channels or sizes change.
#[derive(Debug, Module)]
pub struct Inverted {
    /// Widen, filter, in order.
    pub convs: Vec<ConvNorm>,
    /// Of channels.
    pub se: Option<SqueezeExcite>,
    /// To the channels of the result.
    pub project: Option<ConvNorm>,
    /// Whether x is added.
    pub residual: bool,
}

/// What the name of a network says that shapes do not.
#[derive(Debug, PartialEq, Eq)]
pub struct Plan {
    /// Names of timm's that begin with it are of this plan.
    pub prefix: &'static str,
    /// The stride of each stage's first block.
    pub strides: &'static [usize],
    /// The function of each stage; the last one is for all that follow, and for stem and head.
    pub functions: &'static [Function],
    /// Of the stem and the head.
    pub outer: Function,
    /// Inside and at the end of squeeze and excitation.
    pub squeeze: [Function; 2],
    /// Whether the last convolution comes after the mean (MobileNetV3).
    pub late_head: bool,
}

use Function::{HardSigmoid, HardSwish, Relu, Relu6, Sigmoid, Silu};

const fn plan(prefix: &'static str, strides: &'static [usize], function: &'static [Function; 1]) -> Plan {
    Plan { prefix, strides, functions: function, outer: function[0], squeeze: [function[0], Sigmoid], late_head: false }
}

/// Longer names before shorter ones.
const PLANS: &[Plan] = &[
    plan("mobilenetv2_", &[1, 2, 2, 2, 1, 2, 1], &[Relu6]),
    Plan {
        prefix: "mobilenetv3_large_",
        strides: &[1, 2, 2, 2, 1, 2, 1],
        functions: &[Relu, Relu, Relu, HardSwish],
        outer: HardSwish,
        squeeze: [Relu, HardSigmoid],
        late_head: true,
    },
    Plan {
        prefix: "mobilenetv3_small_",
        strides: &[2, 2, 2, 1, 2, 1],
        functions: &[Relu, Relu, HardSwish],
        outer: HardSwish,
        squeeze: [Relu, HardSigmoid],
        late_head: true,
    },
    plan("efficientnet_lite", &[1, 2, 2, 2, 1, 2, 1], &[Relu6]),
    plan("efficientnet_b", &[1, 2, 2, 2, 1, 2, 1], &[Silu]),
    plan("efficientnetv2_", &[1, 2, 2, 2, 1, 2, 1], &[Silu]),
];

impl Plan {
    /// The plan of a name of timm's.
    pub(super) fn named(name: &str) -> Option<&'static Plan> {
        let name = name.strip_prefix("tf_").unwrap_or(name);
        let plan = PLANS.iter().find(|plan| name.starts_with(plan.prefix))?;
        let rest = &name[plan.prefix.len()..];
        let is_size = |rest: &str| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit());
        let known = match plan.prefix {
            "efficientnetv2_" => ["s", "m", "l", "xl", "b0", "b1", "b2", "b3", "rw_s", "rw_m", "rw_t"].contains(&rest),
            // The minimal variants of MobileNetV3 have other activations.
            _ => is_size(rest),
        };
        known.then_some(plan)
    }
}

/// Convolutions under timm's names; TensorFlow's networks pad as it does, and have another epsilon.
pub(super) fn timm(
    reader: &Reader<'_, '_>,
    plan: &'static Plan,
    config: Option<&Fields>,
) -> Result<(Stem, Vec<Block>, Head)> {
    let named = config.map(|fields| fields.text("architecture")).transpose()?.flatten().unwrap_or_default();
    let tensorflow = named.starts_with("tf_");
    let epsilon = if tensorflow { 1e-3 } else { 1e-5 };
    let around = |window: usize| if tensorflow { Padding::Same } else { Padding::Each(window / 2) };
    let how = |at: &Reader<'_, '_>, name: &str, stride: usize, function: Function| -> Result<How> {
        Ok(How { stride, padding: around(at.window(name)?), function, epsilon })
    };
    let conv = reader.conv("conv_stem", Some("bn1"), 3, how(reader, "conv_stem", 2, plan.outer)?)?;
    let mut channels = conv.weight.shape()[0];
    let mut blocks = Vec::new();
    let stages = reader.under("blocks");
    for stage in 0..stages.count("") {
        let function = plan.functions[stage.min(plan.functions.len() - 1)];
        let part = stages.under(stage);
        for number in 0..part.count("") {
            let at = part.under(number);
            let Some(&first) = plan.strides.get(stage) else {
                return Err(Error::UnknownTensor { name: format!("{}0", part.prefix) });
            };
            let stride = if number == 0 { first } else { 1 };
            let plain = How::plain(epsilon);
            // Which of them a block has says what kind it is: one convolution, depthwise and one pixel, widened, or widened by windows.
            let (names, project): (&[(&str, &str, usize)], _) = match () {
                () if at.has("conv.weight") => (&[("conv", "bn1", stride)], None),
                () if at.has("conv_exp.weight") => (&[("conv_exp", "bn1", stride)], Some(("conv_pwl", "bn2"))),
                () if at.has("conv_pwl.weight") => {
                    (&[("conv_pw", "bn1", 1), ("conv_dw", "bn2", stride)], Some(("conv_pwl", "bn3")))
                }
                () => (&[("conv_dw", "bn1", stride)], Some(("conv_pw", "bn2"))),
            };
            let mut width = channels;
            let mut convs = Vec::with_capacity(names.len());
            for &(name, norm, stride) in names {
                let made = at.conv(name, Some(norm), width, how(&at, name, stride, function)?)?;
                width = made.weight.shape()[0];
                convs.push(made);
            }
            let se = match at.has("se.conv_reduce.weight") {
                true => Some(at.under("se").squeeze(["conv_reduce", "conv_expand"], width, plan.squeeze)?),
                false => None,
            };
            let project = match project {
                Some((name, norm)) => Some(at.conv(name, Some(norm), width, plain)?),
                None => None,
            };
            let output = project.as_ref().map_or(width, |conv| conv.weight.shape()[0]);
            let residual = stride == 1 && output == channels;
            blocks.push(Block::Inverted(Inverted { convs, se, project, residual }));
            channels = output;
        }
    }
    let last = How { function: plan.outer, ..How::plain(epsilon) };
    let (conv_head, after) = match plan.late_head {
        true => (None, Some(reader.conv("conv_head", None, channels, last)?)),
        false => (Some(reader.conv("conv_head", Some("bn2"), channels, last)?), None),
    };
    let wide = conv_head.as_ref().or(after.as_ref()).map_or(channels, |conv| conv.weight.shape()[0]);
    let head = Head { conv: conv_head, norm: None, after, classifier: reader.linear("classifier", wide)? };
    Ok((Stem { conv, norm: None, pooled: false }, blocks, head))
}

/// A function that a configuration names.
fn function(fields: &Fields, default: &'static str) -> Result<Function> {
    let name = fields.text("hidden_act")?.unwrap_or(default);
    Function::named(name).ok_or_else(|| fields.bad("hidden_act", format!("'{name}' is not supported")))
}

/// MobileNetV2 under transformers' names.
pub(super) fn mobilenet(reader: &Reader<'_, '_>, fields: &Fields) -> Result<(Stem, Vec<Block>, Head)> {
    const STRIDES: [usize; 16] = [2, 1, 2, 1, 1, 2, 1, 1, 1, 1, 1, 1, 2, 1, 1, 1];
    fields.supported(&[])?;
    if fields.size("output_stride", 32)? != 32 {
        return Err(fields.bad("output_stride", "only 32 is supported"));
    }
    let (act, epsilon) = (function(fields, "relu6")?, fields.number("layer_norm_eps", 0.001)?);
    let padding = if fields.flag("tf_padding", true)? { Padding::Same } else { Padding::Each(1) };
    let how = |stride, function| How { stride, padding, function, epsilon };
    let norm = |at: &Reader<'_, '_>, channels, how| at.conv("convolution", Some("normalization"), channels, how);
    let model = reader.under("mobilenet_v2");
    let first = model.under("conv_stem");
    let conv = norm(&first.under("first_conv"), 3, how(2, act))?;
    let mut channels = conv.weight.shape()[0];
    let mut blocks = Vec::new();
    let layers = model.under("layer");
    let parts = layers.count("");
    if parts > STRIDES.len() {
        return Err(Error::UnknownTensor { name: format!("{}{}", layers.prefix, STRIDES.len()) });
    }
    let places = (0..parts).map(|number| (layers.under(number), STRIDES[number]));
    for (number, (at, stride)) in std::iter::once((first, 1)).chain(places).enumerate() {
        let (mut convs, mut width) = (Vec::new(), channels);
        for (name, how) in
            [("expand_1x1", How { function: act, ..How::plain(epsilon) }), ("conv_3x3", how(stride, act))]
        {
            if name == "conv_3x3" || at.has(&format!("{name}.convolution.weight")) {
                let made = norm(&at.under(name), width, how)?;
                width = made.weight.shape()[0];
                convs.push(made);
            }
        }
        let project = norm(&at.under("reduce_1x1"), width, How::plain(epsilon))?;
        let output = project.weight.shape()[0];
        let residual = number > 0 && stride == 1 && output == channels;
        blocks.push(Block::Inverted(Inverted { convs, se: None, project: Some(project), residual }));
        channels = output;
    }
    let conv_head = norm(&model.under("conv_1x1"), channels, How { function: act, ..How::plain(epsilon) })?;
    let classifier = reader.linear("classifier", conv_head.weight.shape()[0])?;
    let head = Head { conv: Some(conv_head), norm: None, after: None, classifier };
    Ok((Stem { conv, norm: None, pooled: false }, blocks, head))
}

/// EfficientNet under transformers' names.
pub(super) fn efficientnet(reader: &Reader<'_, '_>, fields: &Fields) -> Result<(Stem, Vec<Block>, Head)> {
    fields.supported(&[])?;
    if let Some(pooling) = fields.text("pooling_type")?.filter(|&pooling| pooling != "mean") {
        return Err(fields.bad("pooling_type", format!("'{pooling}' is not supported, 'mean' is")));
    }
    let (act, epsilon) = (function(fields, "swish")?, fields.number("batch_norm_eps", 1e-3)?);
    let list = |name: &str, default: &[usize]| -> Result<Vec<usize>> {
        let Some(value) = fields.get(name) else { return Ok(default.to_vec()) };
        let numbers =
            value.as_array().map(|items| items.iter().map(|item| item.as_u64().map(|n| n as usize)).collect());
        numbers.flatten().ok_or_else(|| fields.bad(name, "no list of numbers"))
    };
    let strides = list("strides", &[1, 2, 2, 2, 1, 2, 1])?;
    let repeats = list("num_block_repeats", &[1, 2, 2, 3, 3, 4, 1])?;
    let even = list("depthwise_padding", &[])?;
    let deep = fields.number("depth_coefficient", 3.1)?;
    let places = strides.iter().zip(&repeats).flat_map(|(&stride, &count)| {
        let count = (deep * count as f64).ceil().clamp(0.0, 1e4) as usize;
        (0..count).map(move |number| (if number == 0 { stride } else { 1 }, number == 0))
    });
    let model = reader.under("efficientnet");
    let small =
        |window: usize, adjust: bool| Padding::Sides((window / 2).saturating_sub(usize::from(adjust)), window / 2);
    let outer = model.under("embeddings");
    let padding = small(outer.window("convolution")?, true);
    let conv = outer.conv("convolution", Some("batchnorm"), 3, How { stride: 2, padding, function: act, epsilon })?;
    let mut channels = conv.weight.shape()[0];
    let encoder = model.under("encoder");
    let stages = encoder.under("blocks");
    let (count, mut blocks) = (stages.count(""), Vec::new());
    for (number, (stride, first)) in places.enumerate().take(count) {
        let at = stages.under(number);
        let (mut convs, mut width) = (Vec::new(), channels);
        if at.has("expansion.expand_conv.weight") {
            let how = How { function: act, ..How::plain(epsilon) };
            let made = at.under("expansion").conv("expand_conv", Some("expand_bn"), width, how)?;
            width = made.weight.shape()[0];
            convs.push(made);
        }
        let filter = at.under("depthwise_conv");
        let window = filter.window("depthwise_conv")?;
        let padding = if stride == 2 { small(window, !even.contains(&number)) } else { Padding::Same };
        let how = How { stride, padding, function: act, epsilon };
        convs.push(filter.conv("depthwise_conv", Some("depthwise_norm"), width, how)?);
        let se = Some(at.under("squeeze_excite").squeeze(["reduce", "expand"], width, [act, Sigmoid])?);
        let project = at.under("projection").conv("project_conv", Some("project_bn"), width, How::plain(epsilon))?;
        channels = project.weight.shape()[0];
        let residual = stride == 1 && !first;
        blocks.push(Block::Inverted(Inverted { convs, se, project: Some(project), residual }));
    }
    let how = How { function: act, ..How::plain(epsilon) };
    let conv_head = encoder.conv("top_conv", Some("top_bn"), channels, how)?;
    let classifier = reader.linear("classifier", conv_head.weight.shape()[0])?;
    let head = Head { conv: Some(conv_head), norm: None, after: None, classifier };
    Ok((Stem { conv, norm: None, pooled: false }, blocks, head))
}

impl Forward for Inverted {
    type Output = Tensor;
    #[track_caller]
    fn forward(&self, x: &Tensor) -> kiln::Result<Tensor> {
        let mut y = x.clone();
        for conv in &self.convs {
            y = conv.forward(&y)?;
        }
        if let Some(se) = &self.se {
            y = se.forward(&y)?;
        }
        if let Some(project) = &self.project {
            y = project.forward(&y)?;
        }
        if self.residual { y + x } else { Ok(y) }
    }
}
