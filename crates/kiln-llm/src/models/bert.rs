//! BERT: encoders that see the whole text at once (MiniLM and other makers of embeddings).
//!
//! ```text
//!  tokens ─▶ token + position + type ─▶ norm ─▶ N × [ norm(x + attention(x)) ; norm(x + mlp(x)) ] ─▶ a vector a token
//! ```

use crate::config::{Activation, BertConfig};
use crate::{Result, Weights};
use kiln::nn::{Embedding, Forward, LayerNorm, Linear, Module};
use kiln::{DType, Device, Tensor};

/// A BERT with its weights, under the names that its checkpoints have.
#[derive(Debug, Module)]
pub struct Bert {
    /// Tokens to vectors.
    pub embeddings: Embeddings,
    /// The blocks.
    pub encoder: Encoder,
    /// Sizes.
    #[module(skip)]
    pub config: BertConfig,
}

/// What a token is, where it is, and which part of the text it belongs to.
#[derive(Debug, Module)]
pub struct Embeddings {
    /// A row a token.
    pub word_embeddings: Embedding,
    /// A row a position.
    pub position_embeddings: Embedding,
    /// A row a kind.
    pub token_type_embeddings: Embedding,
    /// Of the sum.
    #[module(rename = "LayerNorm")]
    pub norm: LayerNorm,
}

/// The blocks, in order.
#[derive(Debug, Module)]
pub struct Encoder {
    /// In order.
    pub layer: Vec<Block>,
}

/// One layer.
#[derive(Debug, Module)]
pub struct Block {
    /// Mixes tokens.
    pub attention: Attention,
    /// To the wide side.
    pub intermediate: Dense,
    /// And back.
    pub output: Residual,
}

/// Attention of every token to every token.
#[derive(Debug, Module)]
pub struct Attention {
    /// To heads.
    #[module(rename = "self")]
    pub heads: Heads,
    /// From the heads back.
    pub output: Residual,
}

/// Queries, keys and values.
#[derive(Debug, Module)]
pub struct Heads {
    /// To queries.
    pub query: Linear,
    /// To keys.
    pub key: Linear,
    /// To values.
    pub value: Linear,
    /// How many heads.
    pub count: usize,
}

/// A product and an activation.
#[derive(Debug, Module)]
pub struct Dense {
    /// The product.
    pub dense: Linear,
    /// After it.
    #[module(skip)]
    pub activation: Activation,
}

/// norm(x + product).
#[derive(Debug, Module)]
pub struct Residual {
    /// The product.
    pub dense: Linear,
    /// Of the sum.
    #[module(rename = "LayerNorm")]
    pub norm: LayerNorm,
}

impl Bert {
    /// With its weights. Names may begin with `bert.`, as
    /// they do where a head was trained on top.
    pub fn new(config: &BertConfig, weights: &Weights<'_>) -> Result<Bert> {
        let headed = weights.has("bert.embeddings.word_embeddings.weight");
        let weights = if headed { weights.under("bert") } else { weights.clone() };
        let (width, eps) = (config.hidden_size, config.layer_norm_eps);
        let embeddings = weights.under("embeddings");
        let layers = weights.under("encoder").under("layer");
        let layer = |number| Block::load(config, &layers.under(number));
        Ok(Bert {
            embeddings: Embeddings {
                word_embeddings: embeddings.embedding("word_embeddings", config.vocab_size, width)?,
                position_embeddings: embeddings.embedding(
                    "position_embeddings",
                    config.max_position_embeddings,
                    width,
                )?,
                token_type_embeddings: embeddings.embedding("token_type_embeddings", config.type_vocab_size, width)?,
                norm: embeddings.layer_norm("LayerNorm", width, eps)?,
            },
            encoder: Encoder { layer: (0..config.num_hidden_layers).map(layer).collect::<Result<_>>()? },
            config: config.clone(),
        })
    }

    /// Dtype of the weights.
    pub fn dtype(&self) -> DType {
        self.embeddings.word_embeddings.weight.dtype()
    }

    /// Where the weights are.
    pub fn device(&self) -> Device {
        self.embeddings.word_embeddings.weight.device()
    }

    /// What becomes of tokens, `[batch, tokens]`, all of the first kind: `[batch, tokens, width]`. Each text has as many
    /// tokens as `lengths`, `[batch]`, says; what stands behind them is filling, which no token sees.
    #[track_caller]
    pub fn hidden(&self, tokens: &Tensor, lengths: &Tensor) -> kiln::Result<Tensor> {
        self.hidden_of(tokens, None, lengths)
    }

    /// [`Bert::hidden`] with the kind of each token, `[batch, tokens]`.
    #[track_caller]
    pub fn hidden_of(&self, tokens: &Tensor, kinds: Option<&Tensor>, lengths: &Tensor) -> kiln::Result<Tensor> {
        // As attention wants it: every row of every head sees the same columns.
        let mask = valid(tokens, lengths)?.unsqueeze(1)?.unsqueeze(1)?;
        let mut x = self.embeddings.forward(tokens, kinds)?;
        for block in &self.encoder.layer {
            x = block.forward(&x, &mask)?;
        }
        Ok(x)
    }
}

/// Which places hold tokens of the texts, `[batch, tokens]`.
#[track_caller]
pub fn valid(tokens: &Tensor, lengths: &Tensor) -> kiln::Result<Tensor> {
    Tensor::arange(tokens.size(1)?, DType::I64, tokens.device())?.lt(lengths.unsqueeze(-1)?)
}

impl Embeddings {
    #[track_caller]
    fn forward(&self, tokens: &Tensor, kinds: Option<&Tensor>) -> kiln::Result<Tensor> {
        let words = self.word_embeddings.forward(tokens)?;
        let kinds = match kinds {
            Some(kinds) => self.token_type_embeddings.forward(kinds)?,
            None => self.token_type_embeddings.weight.get().select(0, 0)?,
        };
        let positions = self.position_embeddings.weight.get().narrow(0, 0, tokens.size(1)?)?;
        self.norm.forward(&((words + kinds)? + positions)?)
    }
}

impl Block {
    fn load(config: &BertConfig, weights: &Weights<'_>) -> Result<Block> {
        let (width, inner) = (config.hidden_size, config.intermediate_size);
        let heads = weights.under("attention").under("self");
        Ok(Block {
            attention: Attention {
                heads: Heads {
                    query: heads.linear("query", width, width, true)?,
                    key: heads.linear("key", width, width, true)?,
                    value: heads.linear("value", width, width, true)?,
                    count: config.num_attention_heads,
                },
                output: Residual::load(config, &weights.under("attention").under("output"), width)?,
            },
            intermediate: Dense {
                dense: weights.under("intermediate").linear("dense", width, inner, true)?,
                activation: config.hidden_act,
            },
            output: Residual::load(config, &weights.under("output"), inner)?,
        })
    }

    #[track_caller]
    fn forward(&self, x: &Tensor, mask: &Tensor) -> kiln::Result<Tensor> {
        let x = self.attention.output.forward(&self.attention.heads.forward(x, mask)?, x)?;
        let wide = self.intermediate.activation.apply(&self.intermediate.dense.forward(&x)?)?;
        self.output.forward(&wide, &x)
    }
}

impl Heads {
    #[track_caller]
    fn forward(&self, x: &Tensor, mask: &Tensor) -> kiln::Result<Tensor> {
        let heads = |y: Tensor| y.unflatten(-1, [self.count as i64, -1])?.transpose(1, 2);
        let q = heads(self.query.forward(x)?)?;
        let (k, v) = (heads(self.key.forward(x)?)?, heads(self.value.forward(x)?)?);
        q.scaled_dot_product_attention(&k, &v, Some(mask), false, None)?.transpose(1, 2)?.flatten(-2, -1)
    }
}

impl Residual {
    fn load(config: &BertConfig, weights: &Weights<'_>, input: usize) -> Result<Residual> {
        let width = config.hidden_size;
        let dense = weights.linear("dense", input, width, true)?;
        Ok(Residual { dense, norm: weights.layer_norm("LayerNorm", width, config.layer_norm_eps)? })
    }

    #[track_caller]
    fn forward(&self, x: &Tensor, skipped: &Tensor) -> kiln::Result<Tensor> {
        self.norm.forward(&(self.dense.forward(x)? + skipped)?)
    }
}
