//! Two networks with their losses, as people write them: a GPT and a ViT of modules. In short floats they compute as PyTorch's
//! autocast does: products and attention in the short type, norms, residuals, losses and parameters in f32.

use kiln::nn::{self, Forward, LayerNorm, Linear, Module};
use kiln::{DType, Result, Tensor, Var};

/// A network to train, with its sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Model {
    /// Bytes in, the next byte out; embedding and head share a weight.
    Gpt {
        /// Transformer blocks.
        layers: usize,
        /// Width.
        hidden: usize,
        /// Attention heads.
        heads: usize,
        /// Tokens a sequence.
        context: usize,
        /// Sequences a step.
        batch: usize,
        /// Tokens known.
        vocabulary: usize,
    },
    /// Images of three channels in, a class out.
    Vit {
        /// Transformer blocks.
        layers: usize,
        /// Width.
        hidden: usize,
        /// Attention heads.
        heads: usize,
        /// Height and width of an image.
        image: usize,
        /// Height and width of a patch.
        patch: usize,
        /// Images a step.
        batch: usize,
        /// Classes known.
        classes: usize,
    },
}

/// A pre-norm transformer block.
#[derive(Debug, Module)]
pub struct Block {
    norm1: LayerNorm,
    qkv: Linear,
    projection: Linear,
    norm2: LayerNorm,
    up: Linear,
    down: Linear,
    #[module(skip)]
    heads: usize,
    #[module(skip)]
    causal: bool,
}

impl Block {
    fn new(hidden: usize, heads: usize, causal: bool) -> Result<Block> {
        Ok(Block {
            norm1: LayerNorm::new(hidden, 1e-5)?,
            qkv: linear(hidden, 3 * hidden)?,
            projection: linear(hidden, hidden)?,
            norm2: LayerNorm::new(hidden, 1e-5)?,
            up: linear(hidden, 4 * hidden)?,
            down: linear(4 * hidden, hidden)?,
            heads,
            causal,
        })
    }

    /// Of `[batch, tokens, hidden]`, with products in `dtype`.
    fn forward(&self, x: &Tensor, dtype: DType) -> Result<Tensor> {
        let [batch, tokens, hidden] = *x.shape() else { return x.reshape([0, 0, 0]) };
        let qkv = product(&self.qkv, &self.norm1.forward(x)?, dtype)?;
        let qkv = qkv.reshape([batch, tokens, 3, self.heads, hidden / self.heads])?.permute([2, 0, 3, 1, 4])?;
        let (q, k, v) = (qkv.select(0, 0)?, qkv.select(0, 1)?, qkv.select(0, 2)?);
        let mixed = q.scaled_dot_product_attention(&k, &v, None, self.causal, None)?;
        let mixed = mixed.transpose(1, 2)?.reshape([batch, tokens, hidden])?;
        let x = (x + product(&self.projection, &mixed, dtype)?.to_dtype(x.dtype())?)?;
        let wide = product(&self.up, &self.norm2.forward(&x)?, dtype)?;
        let wide = if self.causal { wide.gelu_tanh()? } else { wide.gelu()? };
        &x + product(&self.down, &wide, dtype)?.to_dtype(x.dtype())?
    }
}

/// A layer computed in another type than its parameters have.
fn product(layer: &Linear, x: &Tensor, dtype: DType) -> Result<Tensor> {
    let bias = layer.bias.as_ref().map(|bias| bias.get().to_dtype(dtype)).transpose()?;
    x.to_dtype(dtype)?.linear(&layer.weight.get().to_dtype(dtype)?, bias.as_ref())
}

/// Weights of deviation 0.02, biases 0.
fn linear(from: usize, to: usize) -> Result<Linear> {
    let weight = nn::init::parameter("weight", &nn::init::normal([to, from], 0.02)?);
    let bias = nn::init::parameter("bias", &nn::init::zeros(to)?);
    Ok(Linear { weight, bias: Some(bias) })
}

fn normal(name: &str, shape: impl kiln::Shape) -> Result<Var> {
    Ok(nn::init::parameter(name, &nn::init::normal(shape, 0.02)?))
}

/// What turns a batch into the first hidden states, and the last ones into logits.
#[derive(Debug, Module)]
pub enum Ends {
    /// A table of tokens, used at both ends.
    Tokens {
        /// `[tokens, hidden]`.
        token: Var,
    },
    /// Patches of images, with a class token before them.
    Patches {
        /// From a patch to a hidden state.
        patch: Linear,
        /// The hidden state that the class is read from.
        class: Var,
        /// From that to logits.
        head: Linear,
        /// Patches along a side and elements along a patch.
        #[module(skip)]
        sides: (usize, usize),
    },
}

/// A whole network, with the parameter names of the PyTorch one.
#[derive(Debug, Module)]
pub struct Network {
    #[module(flatten)]
    ends: Ends,
    position: Var,
    blocks: Vec<Block>,
    norm: LayerNorm,
    /// The type of products.
    #[module(skip)]
    dtype: DType,
}

impl Model {
    /// GPT-2 of 124 million parameters.
    const GPT2: Model = Model::Gpt { layers: 12, hidden: 768, heads: 12, context: 1024, batch: 16, vocabulary: 50257 };
    /// A ViT of 17 million parameters for pictures of ImageNet's size.
    const VIT: Model =
        Model::Vit { layers: 9, hidden: 384, heads: 6, image: 224, patch: 16, batch: 256, classes: 1000 };
    /// Those that are measured on a GPU.
    pub const LARGE: [Model; 2] = [Model::VIT, Model::GPT2];

    /// The model that a text names: `gpt2` or `vit`, with sizes that differ behind a colon, as in `gpt2:layers=2,batch=4`.
    pub fn parse(text: &str) -> std::result::Result<Model, String> {
        let (name, sizes) = text.split_once(':').unwrap_or((text, ""));
        let mut model = match name {
            "gpt2" => Model::GPT2,
            "vit" => Model::VIT,
            _ => return Err(format!("{name} is no model to train: gpt2 and vit are")),
        };
        for size in sizes.split(',').filter(|size| !size.is_empty()) {
            let known = size.split_once('=').and_then(|(key, value)| Some((key, value.parse::<usize>().ok()?)));
            let (key, value) = known.filter(|(_, value)| *value > 0).ok_or(format!("{size} is not size=number"))?;
            *model.size(key).ok_or(format!("{name} has no size {key}"))? = value;
        }
        Ok(model)
    }

    fn size(&mut self, key: &str) -> Option<&mut usize> {
        match self {
            Model::Gpt { layers, hidden, heads, context, batch, vocabulary } => match key {
                "layers" => Some(layers),
                "hidden" => Some(hidden),
                "heads" => Some(heads),
                "context" => Some(context),
                "batch" => Some(batch),
                "vocabulary" => Some(vocabulary),
                _ => None,
            },
            Model::Vit { layers, hidden, heads, image, patch, batch, classes } => match key {
                "layers" => Some(layers),
                "hidden" => Some(hidden),
                "heads" => Some(heads),
                "image" => Some(image),
                "patch" => Some(patch),
                "batch" => Some(batch),
                "classes" => Some(classes),
                _ => None,
            },
        }
    }

    /// The network with fresh parameters, with products in `dtype`.
    pub fn network(&self, dtype: DType) -> Result<Network> {
        let (ends, layers, hidden, heads, tokens) = match *self {
            Model::Gpt { layers, hidden, heads, context, vocabulary, .. } => {
                (Ends::Tokens { token: normal("token", [vocabulary, hidden])? }, layers, hidden, heads, context)
            }
            Model::Vit { layers, hidden, heads, image, patch, classes, .. } => {
                let sides = (image / patch, patch);
                let ends = Ends::Patches {
                    patch: linear(3 * patch * patch, hidden)?,
                    class: normal("class", hidden)?,
                    head: linear(hidden, classes)?,
                    sides,
                };
                (ends, layers, hidden, heads, sides.0 * sides.0 + 1)
            }
        };
        let causal = matches!(self, Model::Gpt { .. });
        Ok(Network {
            ends,
            position: normal("position", [tokens, hidden])?,
            blocks: (0..layers).map(|_| Block::new(hidden, heads, causal)).collect::<Result<_>>()?,
            norm: LayerNorm::new(hidden, 1e-5)?,
            dtype,
        })
    }
}

impl Network {
    /// The mean cross-entropy of a batch: tokens and the next ones, or images and classes.
    pub fn loss(&self, x: &Tensor, y: &Tensor) -> Result<Tensor> {
        let mut h = match &self.ends {
            Ends::Tokens { token } => token.get().embedding(x)?,
            Ends::Patches { patch, class, sides: (side, size), .. } => {
                let batch = x.shape()[0];
                let patches = x.reshape([batch, 3, *side, *size, *side, *size])?.permute([0, 2, 4, 1, 3, 5])?;
                let patches = patches.reshape([batch, side * side, 3 * size * size])?;
                let patches = product(patch, &patches, self.dtype)?.to_dtype(x.dtype())?;
                let class = class.get().broadcast_to([batch, 1, patches.shape()[2]])?;
                Tensor::cat(&[class, patches], 1)?
            }
        };
        h = (h + self.position.get())?;
        for block in &self.blocks {
            h = block.forward(&h, self.dtype)?;
        }
        match &self.ends {
            Ends::Tokens { token } => {
                let (dtype, classes) = (self.dtype, token.shape()[0]);
                let logits = self.norm.forward(&h)?.to_dtype(dtype)?.linear(&token.get().to_dtype(dtype)?, None)?;
                let logits = logits.reshape([y.elements(), classes])?.to_dtype(h.dtype())?;
                logits.cross_entropy(&y.reshape([-1])?)
            }
            Ends::Patches { head, .. } => {
                let logits = product(head, &self.norm.forward(&h.select(1, 0)?)?, self.dtype)?;
                logits.to_dtype(h.dtype())?.cross_entropy(y)
            }
        }
    }
}
