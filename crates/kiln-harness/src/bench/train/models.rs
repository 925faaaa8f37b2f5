//! Two small networks with their losses, as people write them: a GPT and a ViT of modules.

use kiln::nn::{self, Forward, LayerNorm, Linear, Module};
use kiln::{Result, Tensor, Var};

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

    /// Of `[batch, tokens, hidden]`.
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let [batch, tokens, hidden] = *x.shape() else { return x.reshape([0, 0, 0]) };
        let qkv = self.qkv.forward(&self.norm1.forward(x)?)?;
        let qkv = qkv.reshape([batch, tokens, 3, self.heads, hidden / self.heads])?.permute([2, 0, 3, 1, 4])?;
        let (q, k, v) = (qkv.select(0, 0)?, qkv.select(0, 1)?, qkv.select(0, 2)?);
        let mixed = q.scaled_dot_product_attention(&k, &v, None, self.causal, None)?;
        let mixed = mixed.transpose(1, 2)?.reshape([batch, tokens, hidden])?;
        let x = (x + self.projection.forward(&mixed)?)?;
        let wide = self.up.forward(&self.norm2.forward(&x)?)?;
        let wide = if self.causal { wide.gelu_tanh()? } else { wide.gelu()? };
        &x + self.down.forward(&wide)?
    }
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
}

impl Model {
    /// The network with fresh parameters.
    pub fn network(&self) -> Result<Network> {
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
                let patches = patch.forward(&patches.reshape([batch, side * side, 3 * size * size])?)?;
                let class = class.get().broadcast_to([batch, 1, patches.shape()[2]])?;
                Tensor::cat(&[class, patches], 1)?
            }
        };
        h = (h + self.position.get())?;
        for block in &self.blocks {
            h = block.forward(&h)?;
        }
        match &self.ends {
            Ends::Tokens { token } => {
                let logits = self.norm.forward(&h)?.linear(&token.get(), None)?;
                let classes = token.shape()[0];
                logits.reshape([y.elements(), classes])?.cross_entropy(&y.reshape([-1])?)
            }
            Ends::Patches { head, .. } => head.forward(&self.norm.forward(&h.select(1, 0)?)?)?.cross_entropy(y),
        }
    }
}
