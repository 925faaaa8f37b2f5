//! Settings of vision transformers: from transformers' `config.json`, or from the tensors of a checkpoint with timm's names.

use super::{Activation, Fields};
use crate::models::Kind;
use crate::{Checkpoint, Error, Result};

/// Whose names the tensors of a checkpoint have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VitNames {
    /// `blocks.0.attn.qkv.weight`.
    Timm,
    /// `vit.encoder.layer.0.attention.attention.query.weight`, or under another first part.
    Transformers {
        /// The first part: `vit` or `deit`.
        prefix: String,
    },
}

/// Sizes of a vision transformer.
#[derive(Debug, Clone, PartialEq)]
pub struct VitConfig {
    /// Whose names its tensors have.
    pub names: VitNames,
    /// Pixels of a side of the picture.
    pub image_size: usize,
    /// Pixels of a side of a patch.
    pub patch_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width inside of the feed-forward part.
    pub intermediate_size: usize,
    /// Blocks.
    pub num_hidden_layers: usize,
    /// Heads of attention.
    pub num_attention_heads: usize,
    /// Keeps the norms' divisors from 0.
    pub layer_norm_eps: f64,
    /// Inside of the feed-forward part.
    pub hidden_act: Activation,
    /// Whether queries, keys and values have biases.
    pub qkv_bias: bool,
    /// Whether there is a second token of no patch, taught by another model (DeiT).
    pub distilled: bool,
    /// Whether the patches' mean is classified, rather than the tokens of no patch.
    pub mean_pooled: bool,
    /// Kinds of pictures.
    pub classes: usize,
}

/// Width of a head of nearly every vision transformer.
const USUAL_HEAD: usize = 64;

impl VitConfig {
    /// Of a checkpoint and, if there is one, its `config.json`.
    pub fn detect(config: Option<&Fields>, checkpoint: &Checkpoint) -> Result<VitConfig> {
        let vit = match config {
            Some(fields) if Kind::of(fields)?.is_some() => VitConfig::from_transformers(fields, checkpoint)?,
            _ => VitConfig::from_timm(config, checkpoint)?,
        };
        let (heads, width) = (vit.num_attention_heads, vit.hidden_size);
        let bad = |field: &str, problem: String| Error::Config {
            path: config.map_or_else(|| "config.json".into(), |fields| fields.path().to_owned()),
            field: field.into(),
            problem,
        };
        if width == 0 || vit.classes == 0 {
            return Err(bad("num_labels", format!("{} kinds of a width of {width}", vit.classes)));
        }
        if heads == 0 || width % heads != 0 {
            return Err(bad("num_attention_heads", format!("{heads} heads do not divide a width of {width}")));
        }
        if vit.patch_size == 0 || vit.image_size % vit.patch_size != 0 || vit.image_size == 0 {
            let problem = format!("patches of {} do not divide a side of {}", vit.patch_size, vit.image_size);
            return Err(bad("patch_size", problem));
        }
        Ok(vit)
    }

    /// From the members of a `config.json` of transformers (`ViTForImageClassification`, `DeiTForImageClassification`, with a
    /// teacher or without).
    pub fn from_transformers(fields: &Fields, checkpoint: &Checkpoint) -> Result<VitConfig> {
        fields.model_type(&["vit", "deit"])?;
        fields.supported(&[])?;
        let prefix = Kind::of(fields)?.map_or("vit", |kind| kind.model_type).to_owned();
        if fields.size("num_channels", 3)? != 3 {
            return Err(fields.bad("num_channels", "pictures have three"));
        }
        let distilled = checkpoint.tensors.contains_key(&format!("{prefix}.embeddings.distillation_token"));
        let taught = checkpoint.tensors.contains_key("cls_classifier.weight");
        let head = if taught { "cls_classifier.weight" } else { "classifier.weight" };
        Ok(VitConfig {
            names: VitNames::Transformers { prefix },
            image_size: fields.positive("image_size", 224)?,
            patch_size: fields.positive("patch_size", 16)?,
            hidden_size: fields.positive("hidden_size", 768)?,
            intermediate_size: fields.positive("intermediate_size", 3072)?,
            num_hidden_layers: fields.size("num_hidden_layers", 12)?,
            num_attention_heads: fields.positive("num_attention_heads", 12)?,
            layer_norm_eps: fields.number("layer_norm_eps", 1e-12)?,
            hidden_act: Activation::from_fields(fields, "hidden_act")?,
            qkv_bias: fields.flag("qkv_bias", true)?,
            distilled,
            mean_pooled: false,
            classes: shape::<2>(checkpoint, head)?[0],
        })
    }

    /// From the shapes of tensors with timm's names. The number of heads is in no shape: it is what `model_args` of a timm
    /// `config.json` says, or the width over 64.
    pub fn from_timm(config: Option<&Fields>, checkpoint: &Checkpoint) -> Result<VitConfig> {
        let [width, channels, patch, other] = shape::<4>(checkpoint, "patch_embed.proj.weight")?;
        let [_, places, _] = shape::<3>(checkpoint, "pos_embed")?;
        if (channels, patch) != (3, other) {
            let (name, got) = ("patch_embed.proj.weight".into(), vec![width, channels, patch, other]);
            return Err(Error::WrongShape { name, expected: vec![width, 3, patch, patch], got });
        }
        let has = |name: &str| checkpoint.tensors.contains_key(name);
        let distilled = has("dist_token");
        let patches = places.saturating_sub(1 + usize::from(distilled));
        let side = patches.isqrt();
        if side * side != patches {
            let expected = vec![1, side * side + places - patches, width];
            return Err(Error::WrongShape { name: "pos_embed".into(), expected, got: vec![1, places, width] });
        }
        let layers = (0..).take_while(|layer| has(&format!("blocks.{layer}.norm1.weight"))).count();
        let inner = if layers == 0 { 0 } else { shape::<2>(checkpoint, "blocks.0.mlp.fc1.weight")?[0] };
        let arguments = config.map(|fields| fields.object("model_args")).transpose()?.flatten();
        let heads = arguments.map(|fields| fields.size_if("num_heads")).transpose()?.flatten();
        let vit = VitConfig {
            names: VitNames::Timm,
            image_size: side * patch,
            patch_size: patch,
            hidden_size: width,
            intermediate_size: inner,
            num_hidden_layers: layers,
            num_attention_heads: heads.unwrap_or(width / USUAL_HEAD),
            layer_norm_eps: 1e-6,
            hidden_act: Activation::Gelu,
            qkv_bias: has("blocks.0.attn.qkv.bias"),
            distilled,
            mean_pooled: has("fc_norm.weight"),
            classes: shape::<2>(checkpoint, "head.weight")?[0],
        };
        // A part that is not known would be left out without a word.
        match checkpoint.tensors.keys().find(|name| !vit.knows(name)) {
            Some(name) => Err(Error::UnknownTensor { name: name.clone() }),
            None => Ok(vit),
        }
    }

    /// Whether a tensor of timm's is one that the model has.
    fn knows(&self, name: &str) -> bool {
        let part = match name.strip_prefix("blocks.").and_then(|rest| rest.split_once('.')) {
            Some((number, part)) if number.parse().is_ok_and(|n: usize| n < self.num_hidden_layers) => part,
            Some(_) => return false,
            None => {
                let whole = ["cls_token", "dist_token", "pos_embed"].contains(&name);
                let norm = if self.mean_pooled { "fc_norm" } else { "norm" };
                let module = name.strip_suffix(".weight").or(name.strip_suffix(".bias"));
                let known = |module| ["patch_embed.proj", norm, "head", "head_dist"].contains(&module);
                return whole || module.is_some_and(known);
            }
        };
        let module = part.strip_suffix(".weight").or(part.strip_suffix(".bias"));
        module.is_some_and(|module| ["norm1", "norm2", "attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2"].contains(&module))
    }
}

/// The shape of a tensor, which has to have so many axes.
fn shape<const N: usize>(checkpoint: &Checkpoint, name: &str) -> Result<[usize; N]> {
    let Some(tensor) = checkpoint.tensors.get(name) else { return Err(Error::MissingTensor { name: name.into() }) };
    let wrong = |_| Error::WrongShape { name: name.into(), expected: vec![0; N], got: tensor.shape().to_vec() };
    <[usize; N]>::try_from(tensor.shape()).map_err(wrong)
}
