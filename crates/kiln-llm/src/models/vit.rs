//! Vision transformers: ViT and DeiT, which see a picture as a row of patches.
//!
//! ```text
//!  pixels ─▶ patches ─▶ product ─▶ tokens of no patch before, + positions ─▶ N × [ x + attention(norm(x)) ; x + mlp(norm(x)) ]
//!                                                                                  first token ─▶ norm ─▶ head ─▶ logits
//! ```

use crate::config::{Activation, VitConfig, VitNames};
use crate::{Result, Weights};
use kiln::nn::{Forward, LayerNorm, Linear, Module};
use kiln::{DType, Device, Tensor, Var};

/// A vision transformer with its weights, under timm's names.
#[derive(Debug, Module)]
pub struct Vit {
    /// Patches to vectors: `[width, 3 · patch²]`.
    pub patch_embed: Linear,
    /// The token that is classified, `[1, 1, width]`.
    pub cls_token: Var,
    /// Of a DeiT the token that another model taught.
    pub dist_token: Option<Var>,
    /// `[1, tokens, width]`.
    pub pos_embed: Var,
    /// In order.
    pub blocks: Vec<Block>,
    /// Before the head.
    pub norm: LayerNorm,
    /// To the kinds of pictures.
    pub head: Linear,
    /// The same for the taught token; the mean of both is the answer.
    pub head_dist: Option<Linear>,
    /// Sizes.
    #[module(skip)]
    pub config: VitConfig,
}

/// One layer.
#[derive(Debug, Module)]
pub struct Block {
    /// Before attention.
    pub norm1: LayerNorm,
    /// Mixes tokens.
    pub attn: Attention,
    /// Before the feed-forward part.
    pub norm2: LayerNorm,
    /// Mixes what a token holds.
    pub mlp: Mlp,
}

/// Attention of every token to every token.
#[derive(Debug, Module)]
pub struct Attention {
    /// To queries, keys and values in one product.
    pub qkv: Linear,
    /// From the heads back.
    pub proj: Linear,
    /// How many heads.
    pub heads: usize,
}

/// fc2(activation(fc1(x))).
#[derive(Debug, Module)]
pub struct Mlp {
    /// To the wide side.
    pub fc1: Linear,
    /// And back.
    pub fc2: Linear,
    /// Between.
    #[module(skip)]
    pub activation: Activation,
}

impl Vit {
    /// With its weights, under the names that the configuration says.
    pub fn new(config: &VitConfig, weights: &Weights<'_>) -> Result<Vit> {
        let (width, classes, eps) = (config.hidden_size, config.classes, config.layer_norm_eps);
        let (outer, patches, blocks, heads) = match &config.names {
            VitNames::Timm => (
                weights.clone(),
                weights.under("patch_embed").under("proj"),
                weights.under("blocks"),
                ["cls_token", "dist_token", "pos_embed", "head", "head_dist"],
            ),
            VitNames::Transformers { prefix } => {
                let model = weights.under(prefix);
                let embeddings = model.under("embeddings");
                let taught = weights.has("cls_classifier.weight");
                (
                    embeddings.clone(),
                    embeddings.under("patch_embeddings").under("projection"),
                    model.under("encoder").under("layer"),
                    [
                        "cls_token",
                        "distillation_token",
                        "position_embeddings",
                        if taught { "cls_classifier" } else { "classifier" },
                        "distillation_classifier",
                    ],
                )
            }
        };
        let [class, taught, positions, head, head_dist] = heads;
        let norm = match &config.names {
            VitNames::Timm if config.mean_pooled => weights.layer_norm("fc_norm", width, eps)?,
            VitNames::Timm => weights.layer_norm("norm", width, eps)?,
            VitNames::Transformers { prefix } => weights.under(prefix).layer_norm("layernorm", width, eps)?,
        };
        let side = config.image_size / config.patch_size;
        let tokens = side * side + 1 + usize::from(config.distilled);
        let patch = config.patch_size;
        let taught_head = config.distilled && weights.has(&format!("{head_dist}.weight"));
        let block = |layer| Block::new(config, &blocks.under(layer));
        Ok(Vit {
            patch_embed: Linear {
                weight: flat(&patches.var("weight", &[width, 3, patch, patch])?, width)?,
                bias: if patches.has("bias") { Some(patches.var("bias", &[width])?) } else { None },
            },
            cls_token: outer.var(class, &[1, 1, width])?,
            dist_token: if config.distilled { Some(outer.var(taught, &[1, 1, width])?) } else { None },
            pos_embed: outer.var(positions, &[1, tokens, width])?,
            blocks: (0..config.num_hidden_layers).map(block).collect::<Result<_>>()?,
            norm,
            head: weights.linear(head, width, classes, true)?,
            head_dist: if taught_head { Some(weights.linear(head_dist, width, classes, true)?) } else { None },
            config: config.clone(),
        })
    }

    /// Dtype of the weights.
    pub fn dtype(&self) -> DType {
        self.pos_embed.dtype()
    }

    /// Where the weights are.
    pub fn device(&self) -> Device {
        self.pos_embed.device()
    }

    /// What becomes of the tokens of pictures, `[pictures, 3, side, side]`: `[pictures, tokens, width]`.
    #[track_caller]
    pub fn hidden(&self, pixels: &Tensor) -> kiln::Result<Tensor> {
        let (patch, width) = (self.config.patch_size, self.config.hidden_size);
        let side = self.config.image_size / patch;
        let pictures = pixels.size(0)?;
        // Patches do not overlap, so that their convolution is one product of the picture, cut up.
        let cut = pixels.to_dtype(self.dtype())?.reshape((pictures, 3, side, patch, side, patch))?;
        let rows = cut.permute([0, 2, 4, 1, 3, 5])?.reshape((pictures, side * side, 3 * patch * patch))?;
        let patches = self.patch_embed.forward(&rows)?;
        let alone = |token: &Var| token.get().expand((pictures, 1, width));
        let mut tokens = vec![alone(&self.cls_token)?];
        if let Some(taught) = &self.dist_token {
            tokens.push(alone(taught)?);
        }
        tokens.push(patches);
        let mut x = (Tensor::cat(&tokens, 1)? + self.pos_embed.get())?;
        for block in &self.blocks {
            x = block.forward(&x)?;
        }
        Ok(x)
    }

    /// How much each kind is like pictures, `[pictures, 3, side, side]`: `[pictures, classes]`.
    #[track_caller]
    pub fn logits(&self, pixels: &Tensor) -> kiln::Result<Tensor> {
        let hidden = self.hidden(pixels)?;
        // The norm is of each token, so that only those that are classified need it.
        let normed = |token: Tensor| self.norm.forward(&token);
        if self.config.mean_pooled {
            let skipped = 1 + usize::from(self.config.distilled);
            let side = self.config.image_size / self.config.patch_size;
            return self.head.forward(&normed(hidden.narrow(1, skipped, side * side)?.mean(1)?)?);
        }
        let logits = self.head.forward(&normed(hidden.select(1, 0)?)?)?;
        match &self.head_dist {
            Some(taught) => (logits + taught.forward(&normed(hidden.select(1, 1)?)?)?)? * 0.5,
            None => Ok(logits),
        }
    }
}

/// A matrix with so many rows of a tensor with more axes.
fn flat(var: &Var, rows: usize) -> Result<Var> {
    let columns = var.elements() / rows;
    Ok(Var::named(var.name().unwrap_or_default(), &var.get().reshape([rows, columns])?))
}

impl Block {
    fn new(config: &VitConfig, weights: &Weights<'_>) -> Result<Block> {
        let (width, inner, eps) = (config.hidden_size, config.intermediate_size, config.layer_norm_eps);
        let timm = config.names == VitNames::Timm;
        let [norm1, norm2, proj, fc1, fc2] = match timm {
            true => ["norm1", "norm2", "attn.proj", "mlp.fc1", "mlp.fc2"],
            false => {
                ["layernorm_before", "layernorm_after", "attention.output.dense", "intermediate.dense", "output.dense"]
            }
        };
        let qkv = match timm {
            true => weights.linear("attn.qkv", width, 3 * width, config.qkv_bias)?,
            false => joined(&weights.under("attention").under("attention"), width, config.qkv_bias)?,
        };
        let heads = config.num_attention_heads;
        Ok(Block {
            norm1: weights.layer_norm(norm1, width, eps)?,
            attn: Attention { qkv, proj: weights.linear(proj, width, width, true)?, heads },
            norm2: weights.layer_norm(norm2, width, eps)?,
            mlp: Mlp {
                fc1: weights.linear(fc1, width, inner, true)?,
                fc2: weights.linear(fc2, inner, width, true)?,
                activation: config.hidden_act,
            },
        })
    }

    #[track_caller]
    fn forward(&self, x: &Tensor) -> kiln::Result<Tensor> {
        let x = (x + self.attn.forward(&self.norm1.forward(x)?)?)?;
        &x + self.mlp.forward(&self.norm2.forward(&x)?)?
    }
}

/// Three products with one factor in common as one.
fn joined(weights: &Weights<'_>, width: usize, bias: bool) -> Result<Linear> {
    let parts = ["query", "key", "value"].map(|name| weights.linear(name, width, width, bias));
    let [q, k, v] = parts;
    let parts = [q?, k?, v?];
    let rows: Vec<Tensor> = parts.iter().map(|part| part.weight.get()).collect();
    let biases: Vec<Tensor> = parts.iter().filter_map(|part| part.bias.as_ref()).map(Var::get).collect();
    let bias = if bias { Some(Var::named("qkv.bias", &Tensor::cat(&biases, 0)?)) } else { None };
    Ok(Linear { weight: Var::named("qkv.weight", &Tensor::cat(&rows, 0)?), bias })
}

impl Forward for Attention {
    type Output = Tensor;
    #[track_caller]
    fn forward(&self, x: &Tensor) -> kiln::Result<Tensor> {
        let split = self.qkv.forward(x)?.unflatten(-1, [3, self.heads as i64, -1])?;
        let part = |which: usize| split.select(2, which)?.transpose(1, 2);
        let mixed = part(0)?.scaled_dot_product_attention(&part(1)?, &part(2)?, None, false, None)?;
        self.proj.forward(&mixed.transpose(1, 2)?.flatten(-2, -1)?)
    }
}

impl Forward for Mlp {
    type Output = Tensor;
    #[track_caller]
    fn forward(&self, x: &Tensor) -> kiln::Result<Tensor> {
        self.fc2.forward(&self.activation.apply(&self.fc1.forward(x)?)?)
    }
}
