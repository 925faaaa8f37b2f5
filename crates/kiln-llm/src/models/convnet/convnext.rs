//! ConvNeXt, of both versions: a depthwise window of 7 × 7, a norm, and a wide feed-forward part, beside a shortcut.

use super::layers::{ConvNorm, Function, How, Padding, Reader, over_channels};
use super::{Block, Head, Stem};
use crate::Result;
use crate::config::Fields;
use kiln::nn::{Forward, LayerNorm, Linear, Module};
use kiln::{Tensor, Var};

/// x + scale · fc2(activation(fc1(norm(depthwise(x))))), after a smaller picture where a stage begins.
#[derive(Debug, Module)]
pub struct ConvNextBlock {
    /// A norm and a convolution by 2 × 2, at the start of a stage.
    pub down: Option<Down>,
    /// 7 × 7, a channel each.
    pub depthwise: ConvNorm,
    /// Over channels.
    pub norm: LayerNorm,
    /// To the wide side.
    pub fc1: Linear,
    /// Factor and offset of the norm over the picture (the second version).
    pub response: Option<(Var, Var)>,
    /// And back.
    pub fc2: Linear,
    /// A factor a channel (the first version).
    pub scale: Option<Var>,
}

/// A smaller picture of more channels.
#[derive(Debug, Module)]
pub struct Down {
    /// Over channels.
    pub norm: LayerNorm,
    /// By 2 × 2.
    pub conv: ConvNorm,
}

/// The names of a block's parts.
struct Names {
    down: &'static str,
    blocks: &'static str,
    depthwise: &'static str,
    norm: &'static str,
    fc1: &'static str,
    fc2: &'static str,
    response: &'static str,
    scale: &'static str,
}

/// With the names of timm.
pub(super) fn timm(reader: &Reader<'_, '_>) -> Result<(Stem, Vec<Block>, Head)> {
    let names = Names {
        down: "downsample",
        blocks: "blocks",
        depthwise: "conv_dw",
        norm: "norm",
        fc1: "mlp.fc1",
        fc2: "mlp.fc2",
        response: "mlp.grn",
        scale: "gamma",
    };
    let (stem, blocks, width) = body(reader, ["stem.0", "stem.1"], &reader.under("stages"), &names, 1e-6)?;
    let norm = Some(reader.layer_norm("head.norm", width, 1e-6)?);
    Ok((stem, blocks, Head { conv: None, norm, after: None, classifier: reader.linear("head.fc", width)? }))
}

/// With the names of transformers.
pub(super) fn transformers(reader: &Reader<'_, '_>, prefix: &str, fields: &Fields) -> Result<(Stem, Vec<Block>, Head)> {
    fields.supported(&[])?;
    let act = fields.text("hidden_act")?.unwrap_or("gelu");
    if act != "gelu" {
        return Err(fields.bad("hidden_act", format!("'{act}' is not supported for this model type, 'gelu' is")));
    }
    let epsilon = fields.number("layer_norm_eps", 1e-12)?;
    let names = Names {
        down: "downsampling_layer",
        blocks: "layers",
        depthwise: "dwconv",
        norm: "layernorm",
        fc1: "pwconv1",
        fc2: "pwconv2",
        response: "grn",
        scale: "layer_scale_parameter",
    };
    let model = reader.under(prefix);
    let stem = ["embeddings.patch_embeddings", "embeddings.layernorm"];
    // These norms have an epsilon of their own; the last one has the configuration's.
    let (stem, blocks, width) = body(&model, stem, &model.under("encoder.stages"), &names, 1e-6)?;
    let norm = Some(model.layer_norm("layernorm", width, epsilon)?);
    Ok((stem, blocks, Head { conv: None, norm, after: None, classifier: reader.linear("classifier", width)? }))
}

fn body(
    reader: &Reader<'_, '_>,
    [patches, norm]: [&str; 2],
    stages: &Reader<'_, '_>,
    names: &Names,
    epsilon: f64,
) -> Result<(Stem, Vec<Block>, usize)> {
    let patch = reader.window(patches)?;
    let conv = reader.conv(patches, None, 3, How { stride: patch, ..How::plain(0.0) })?;
    let mut width = conv.weight.shape()[0];
    let norm = Some(reader.layer_norm(norm, width, epsilon)?);
    let mut blocks = Vec::new();
    for stage in 0..stages.count("") {
        let at = stages.under(stage);
        let mut down = None;
        if at.has(&format!("{}.1.weight", names.down)) {
            let parts = at.under(names.down);
            let conv = parts.conv("1", None, width, How { stride: parts.window("1")?, ..How::plain(0.0) })?;
            down = Some(Down { norm: parts.layer_norm("0", width, epsilon)?, conv });
        }
        let inside = at.under(names.blocks);
        for number in 0..inside.count("") {
            let part = inside.under(number);
            let down = down.take();
            width = down.as_ref().map_or(width, |down| down.conv.weight.shape()[0]);
            let padding = Padding::Each(part.window(names.depthwise)? / 2);
            let fc1 = part.linear(names.fc1, width)?;
            let inner = fc1.weight.shape()[0];
            let response = match part.has(&format!("{}.weight", names.response)) {
                true => {
                    let (at, shape) = (part.under(names.response), [1, 1, 1, inner]);
                    let flat = at.shape::<1>("weight").is_ok();
                    let shape = if flat { &shape[3..] } else { &shape[..] };
                    Some((at.var("weight", shape)?, at.var("bias", shape)?))
                }
                false => None,
            };
            let scale = if part.has(names.scale) { Some(part.var(names.scale, &[width])?) } else { None };
            blocks.push(Block::ConvNext(ConvNextBlock {
                down,
                depthwise: part.conv(names.depthwise, None, width, How { padding, ..How::plain(0.0) })?,
                norm: part.layer_norm(names.norm, width, epsilon)?,
                fc1,
                response,
                fc2: part.linear(names.fc2, inner)?,
                scale,
            }));
        }
    }
    Ok((Stem { conv, norm, pooled: false }, blocks, width))
}

impl Forward for ConvNextBlock {
    type Output = Tensor;
    #[track_caller]
    fn forward(&self, x: &Tensor) -> kiln::Result<Tensor> {
        let mut x = x.clone();
        if let Some(down) = &self.down {
            x = down.conv.forward(&over_channels(&down.norm, &x)?)?;
        }
        let rows = self.depthwise.forward(&x)?.permute([0, 2, 3, 1])?;
        let mut inner = Function::Gelu.apply(&self.fc1.forward(&self.norm.forward(&rows)?)?)?;
        if let Some((weight, bias)) = &self.response {
            // How strong a channel is in the whole picture, against the others.
            let strength = inner.norm_keepdim(2.0, [1, 2])?;
            let share = strength.div(&strength.mean_keepdim(-1)?.add(1e-6)?)?;
            inner = inner.add(&inner.mul(&share)?.mul(weight.get())?.add(bias.get())?)?;
        }
        let mut y = self.fc2.forward(&inner)?;
        if let Some(scale) = &self.scale {
            y = y.mul(scale.get())?;
        }
        x + y.permute([0, 3, 1, 2])?
    }
}
