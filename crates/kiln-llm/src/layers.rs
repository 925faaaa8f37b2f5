//! The layers that hold nearly all weights of a model, whatever form the weights have.

use kiln::Tensor;
use kiln::nn::{Embedding, Forward, Linear, Module, QuantizedEmbedding, QuantizedLinear};

/// x · Wᵀ + b.
#[derive(Debug, Clone, Module)]
pub enum Projection {
    /// W as numbers of the model's dtype.
    Dense(Linear),
    /// W as quantised blocks, unpacked by the product.
    Blocks(QuantizedLinear),
}

impl Forward for Projection {
    type Output = Tensor;
    #[track_caller]
    fn forward(&self, x: &Tensor) -> kiln::Result<Tensor> {
        match self {
            Projection::Dense(linear) => linear.forward(x),
            Projection::Blocks(linear) => linear.forward(x),
        }
    }
}

/// A vector a token; may also make the logits.
#[derive(Debug, Clone, Module)]
pub enum TokenEmbedding {
    /// As numbers of the model's dtype.
    Dense(Embedding),
    /// As quantised blocks; a token's are unpacked when it is met.
    Blocks(QuantizedEmbedding),
}

impl TokenEmbedding {
    /// Products of hidden vectors with the vector of every token: logits of models that have no head of their own.
    #[track_caller]
    pub fn logits(&self, hidden: &Tensor) -> kiln::Result<Tensor> {
        match self {
            TokenEmbedding::Dense(embedding) => hidden.linear(&embedding.weight.get(), None),
            TokenEmbedding::Blocks(embedding) => embedding.products(hidden),
        }
    }
}

impl Forward for TokenEmbedding {
    type Output = Tensor;
    #[track_caller]
    fn forward(&self, tokens: &Tensor) -> kiln::Result<Tensor> {
        match self {
            TokenEmbedding::Dense(embedding) => embedding.forward(tokens),
            TokenEmbedding::Blocks(embedding) => embedding.forward(tokens),
        }
    }
}
