//! Convolutional networks that say what pictures show: ResNet, RegNet, MobileNet, EfficientNet and ConvNeXt.
//!
//! ```text
//!  pixels ─▶ stem ─▶ N × block (residual, inverted, ConvNeXt) ─▶ head ─▶ mean of all pixels ─▶ logits
//! ```
//!
//! Channels, windows, groups and the number of blocks are read off the shapes of the tensors; what shapes do not say (strides, activations, padding) comes from
//! `config.json` and the tables of each family: `resnet.rs`, `inverted.rs` and `convnext.rs`.

mod convnext;
mod inverted;
mod layers;
pub mod presets;
mod resnet;

pub use convnext::ConvNextBlock;
pub use inverted::Inverted;
pub use layers::{ConvNorm, Function, Padding, SqueezeExcite};
pub use resnet::Residual;

use crate::config::Fields;
use crate::models::{Kind, Unsupported};
use crate::{Checkpoint, Error, Result, Weights};
use kiln::nn::{Forward, LayerNorm, Linear, Module};
use kiln::{DType, Device, Pool, Tensor};
use std::path::PathBuf;

/// A convolutional network with its weights.
#[derive(Debug, Module)]
pub struct ConvNet {
    /// To the first channels.
    pub stem: Stem,
    /// In order.
    pub blocks: Vec<Block>,
    /// From the last block to the classes.
    pub head: Head,
    /// The pixels of a side that it was trained with, where the configuration says so.
    pub side: Option<usize>,
}

/// What sees the pixels.
#[derive(Debug, Module)]
pub struct Stem {
    /// With its norm.
    pub conv: ConvNorm,
    /// Over channels (ConvNeXt).
    pub norm: Option<LayerNorm>,
    /// Whether the largest of 3 × 3 pixels, every second, goes on (ResNet).
    pub pooled: bool,
}

/// One part of the body.
#[derive(Debug, Module)]
pub enum Block {
    /// Of a ResNet or a RegNet.
    Residual(Residual),
    /// Of a MobileNet or an EfficientNet.
    Inverted(Inverted),
    /// Of a ConvNeXt.
    ConvNext(ConvNextBlock),
}

/// From pixels to classes.
#[derive(Debug, Module)]
pub struct Head {
    /// Before the mean.
    pub conv: Option<ConvNorm>,
    /// Of the mean.
    pub norm: Option<LayerNorm>,
    /// A product of the mean, with its function (MobileNetV3).
    pub after: Option<ConvNorm>,
    /// To the classes.
    pub classifier: Linear,
}

/// The families that there is code for, with whose names their tensors have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// timm's and torchvision's.
    Resnet,
    /// transformers'.
    ResnetHf,
    /// RegNetX and RegNetY of timm.
    Regnet,
    /// MobileNet and EfficientNet of timm, by their name.
    Inverted(&'static inverted::Plan),
    /// MobileNetV2 of transformers.
    MobilenetHf,
    /// EfficientNet of transformers.
    EfficientnetHf,
    /// ConvNeXt of timm.
    Convnext,
    /// ConvNeXt of transformers, under this first part.
    ConvnextHf(&'static str),
}

impl Family {
    /// The family of a folder's model; `None` where it is no convolutional network.
    pub fn detect(config: Option<&Fields>, checkpoint: &Checkpoint) -> Result<Option<Family>> {
        if let Some(fields) = config
            && let Some(kind) = Kind::of(fields)?
        {
            match kind.model_type {
                "resnet" => return Ok(Some(Family::ResnetHf)),
                "mobilenet_v2" => return Ok(Some(Family::MobilenetHf)),
                "efficientnet" => return Ok(Some(Family::EfficientnetHf)),
                "convnext" => return Ok(Some(Family::ConvnextHf("convnext"))),
                "convnextv2" => return Ok(Some(Family::ConvnextHf("convnextv2"))),
                "timm_wrapper" => {}
                _ => return Ok(None),
            }
        }
        let named = config.map(|fields| fields.text("architecture")).transpose()?.flatten();
        if let (Some(named), Some(fields)) = (named, config) {
            if named.starts_with("vit") || named.starts_with("deit") {
                return Ok(None);
            }
            let unknown = || Error::UnknownArchitecture {
                path: fields.path().to_owned(),
                found: named.into(),
                why: Unsupported::NoCode,
            };
            return Family::named(named).map(Some).ok_or_else(unknown);
        }
        let has = |name: &str| checkpoint.tensors.contains_key(name);
        Ok(match () {
            () if has("layer1.0.conv1.weight") => Some(Family::Resnet),
            () if has("stages.0.blocks.0.conv_dw.weight") => Some(Family::Convnext),
            // Strides and activations of these are in no shape.
            () if has("conv_stem.weight") || has("s1.b1.conv1.conv.weight") => {
                return Err(unnamed(config, "architecture"));
            }
            () => None,
        })
    }

    /// The family of a name of timm's: `resnet50`, `tf_efficientnet_b0.ns_jft_in1k`.
    ///
    /// ```
    /// use kiln_llm::models::convnet::Family;
    /// assert_eq!(Family::named("resnet50.a1_in1k"), Some(Family::Resnet));
    /// assert_eq!(Family::named("resnet50d"), None);
    /// ```
    pub fn named(name: &str) -> Option<Family> {
        let name = name.split('.').next().unwrap_or(name);
        if resnet::is_plain(name) {
            return Some(Family::Resnet);
        }
        if resnet::is_regnet(name) {
            return Some(Family::Regnet);
        }
        if let Some(rest) = name.strip_prefix("convnextv2_").or(name.strip_prefix("convnext_")) {
            let sizes = ["atto", "femto", "pico", "nano", "tiny", "small", "base", "large", "xlarge", "huge"];
            return sizes.contains(&rest).then_some(Family::Convnext);
        }
        inverted::Plan::named(name).map(Family::Inverted)
    }

    /// The name that errors give it.
    pub fn name(self) -> &'static str {
        match self {
            Family::Resnet | Family::ResnetHf => "resnet",
            Family::Regnet => "regnet",
            Family::Inverted(plan) => plan.prefix,
            Family::MobilenetHf => "mobilenet_v2",
            Family::EfficientnetHf => "efficientnet",
            Family::Convnext | Family::ConvnextHf(_) => "convnext",
        }
    }
}

/// Strides and activations are in no shape: a member of the configuration has to name the network.
fn unnamed(config: Option<&Fields>, field: &str) -> Error {
    let path = config.map_or_else(|| PathBuf::from("config.json"), |fields| fields.path().to_owned());
    Error::Config { path, field: field.into(), problem: "it has to name the network".into() }
}

impl ConvNet {
    /// The model of a family with its weights.
    pub fn new(
        family: Family,
        config: Option<&Fields>,
        checkpoint: &Checkpoint,
        weights: &Weights<'_>,
    ) -> Result<ConvNet> {
        let reader = layers::Reader { checkpoint, weights, prefix: String::new() };
        let side = side(config)?;
        let (stem, blocks, head) = match family {
            Family::Resnet => resnet::timm(&reader)?,
            Family::ResnetHf => resnet::transformers(&reader, required(config)?)?,
            Family::Regnet => resnet::regnet(&reader)?,
            Family::Inverted(plan) => inverted::timm(&reader, plan, config)?,
            Family::MobilenetHf => inverted::mobilenet(&reader, required(config)?)?,
            Family::EfficientnetHf => inverted::efficientnet(&reader, required(config)?)?,
            Family::Convnext => convnext::timm(&reader)?,
            Family::ConvnextHf(prefix) => convnext::transformers(&reader, prefix, required(config)?)?,
        };
        Ok(ConvNet { stem, blocks, head, side })
    }

    /// Dtype of the weights.
    pub fn dtype(&self) -> DType {
        self.stem.conv.weight.dtype()
    }

    /// Where the weights are.
    pub fn device(&self) -> Device {
        self.stem.conv.weight.device()
    }

    /// Kinds of pictures.
    pub fn classes(&self) -> usize {
        self.head.classifier.weight.shape()[0]
    }

    /// What the body makes of pictures, `[pictures, 3, height, width]`: `[pictures, channels, rows, columns]`.
    #[track_caller]
    pub fn features(&self, pixels: &Tensor) -> kiln::Result<Tensor> {
        let mut x = self.stem.forward(&pixels.to_dtype(self.dtype())?)?;
        for block in &self.blocks {
            x = match block {
                Block::Residual(block) => block.forward(&x)?,
                Block::Inverted(block) => block.forward(&x)?,
                Block::ConvNext(block) => block.forward(&x)?,
            };
        }
        match &self.head.conv {
            Some(conv) => conv.forward(&x),
            None => Ok(x),
        }
    }

    /// How much each kind is like pictures, `[pictures, 3, height, width]`: `[pictures, classes]`.
    #[track_caller]
    pub fn logits(&self, pixels: &Tensor) -> kiln::Result<Tensor> {
        let mut x = self.features(pixels)?.mean_keepdim([2, 3])?;
        if let Some(after) = &self.head.after {
            x = after.forward(&x)?;
        }
        x = x.flatten(1, -1)?;
        if let Some(norm) = &self.head.norm {
            x = norm.forward(&x)?;
        }
        self.head.classifier.forward(&x)
    }
}

impl Forward for Stem {
    type Output = Tensor;
    #[track_caller]
    fn forward(&self, x: &Tensor) -> kiln::Result<Tensor> {
        let mut x = self.conv.forward(x)?;
        if let Some(norm) = &self.norm {
            x = layers::over_channels(norm, &x)?;
        }
        match self.pooled {
            true => x.max_pool2d(&Pool { stride: [2, 2], padding: [1, 1], ..Pool::new([3, 3]) }),
            false => Ok(x),
        }
    }
}

fn required(config: Option<&Fields>) -> Result<&Fields> {
    config.ok_or_else(|| unnamed(None, "model_type"))
}

/// The side of pictures: of timm's `pretrained_cfg`, or `image_size`.
fn side(config: Option<&Fields>) -> Result<Option<usize>> {
    let Some(fields) = config else { return Ok(None) };
    if let Some(pretrained) = fields.object("pretrained_cfg")?
        && let Some(size) = pretrained.get("input_size")
    {
        let sizes = size.as_array().and_then(|sizes| sizes.iter().map(|n| n.as_u64()).collect::<Option<Vec<u64>>>());
        return match sizes.as_deref() {
            Some([3, height, width]) if height == width && (1..65536).contains(height) => Ok(Some(*height as usize)),
            _ => Err(pretrained.bad("input_size", format!("{size} is no [3, side, side]"))),
        };
    }
    match fields.get("image_size").and_then(|size| size.as_u64()) {
        Some(_) => fields.positive("image_size", 224).map(Some),
        None => Ok(None),
    }
}
