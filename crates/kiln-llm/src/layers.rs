//! The layers that hold nearly all weights of a model, whatever form the weights have.

use kiln::nn::{Embedding, Forward, Int8Linear, Linear, Module, QuantizedEmbedding, QuantizedLinear};
use kiln::{DType, Tensor, Var};

/// x · Wᵀ + b.
#[derive(Debug, Clone, Module)]
pub enum Projection {
    /// W as numbers; those of a model in f32 may be shorter floats, widened as the product reads them.
    Dense(Linear),
    /// W as quantised blocks, unpacked by the product.
    Blocks(QuantizedLinear),
    /// W as 8-bit integers with a scale for each output.
    Int8(Int8Linear),
}

impl Forward for Projection {
    type Output = Tensor;
    #[track_caller]
    fn forward(&self, x: &Tensor) -> kiln::Result<Tensor> {
        match self {
            Projection::Dense(linear) => linear.forward(x),
            Projection::Blocks(linear) => linear.forward(x),
            Projection::Int8(linear) => linear.forward(x),
        }
    }
}

/// A vector a token; may also make the logits.
#[derive(Debug, Clone, Module)]
pub enum TokenEmbedding {
    /// As numbers of the model's dtype.
    Dense(Embedding),
    /// As shorter floats than the model's dtype, as their file has them.
    Short(ShortEmbedding),
    /// As quantised blocks; a token's are unpacked when it is met.
    Blocks(QuantizedEmbedding),
}

/// A table of short floats whose rows are widened when they are met.
#[derive(Debug, Clone, Module)]
pub struct ShortEmbedding {
    /// `[rows, width]`.
    pub weight: Var,
    /// What the rows come out as.
    #[module(skip)]
    pub dtype: DType,
}

impl Forward for ShortEmbedding {
    type Output = Tensor;
    #[track_caller]
    fn forward(&self, tokens: &Tensor) -> kiln::Result<Tensor> {
        self.weight.get().embedding(tokens)?.to_dtype(self.dtype)
    }
}

impl TokenEmbedding {
    /// Logits by a model's head, or by this table where it has none.
    #[track_caller]
    pub fn logits_by(&self, head: Option<&Projection>, hidden: &Tensor) -> kiln::Result<Tensor> {
        match head {
            Some(head) => head.forward(hidden),
            None => self.logits(hidden),
        }
    }

    /// Products of hidden vectors with the vector of every token: logits of models that have no head of their own.
    #[track_caller]
    pub fn logits(&self, hidden: &Tensor) -> kiln::Result<Tensor> {
        match self {
            TokenEmbedding::Dense(embedding) => hidden.linear(&embedding.weight.get(), None),
            TokenEmbedding::Short(embedding) => hidden.linear(&embedding.weight.get(), None),
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
            TokenEmbedding::Short(embedding) => embedding.forward(tokens),
            TokenEmbedding::Blocks(embedding) => embedding.forward(tokens),
        }
    }
}
