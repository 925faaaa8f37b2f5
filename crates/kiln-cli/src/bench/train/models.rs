//! Two small networks, written once over whatever carries ops out: a GPT and a ViT with their losses.

use kiln_ir::build::{self, AttentionOptions, Built, CrossEntropyOptions, Emit};
use kiln_ir::{DType, Dim, TensorType};

/// How a parameter starts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Start {
    /// Normal numbers of this deviation.
    Normal(f64),
    /// One number everywhere.
    Number(f64),
}

/// A parameter of a model.
#[derive(Debug, Clone)]
pub struct Parameter {
    /// As PyTorch's state dict would call it.
    #[cfg_attr(not(test), expect(dead_code, reason = "tests find PyTorch's values by it"))]
    pub name: String,
    /// Its sizes.
    pub shape: Vec<usize>,
    /// Its first value.
    pub start: Start,
}

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

impl Model {
    /// `gpt` or `vit`.
    #[cfg(test)]
    pub fn name(&self) -> &'static str {
        match self {
            Model::Gpt { .. } => "gpt",
            Model::Vit { .. } => "vit",
        }
    }

    /// Blocks, width and heads.
    fn block_sizes(&self) -> (usize, usize, usize) {
        match *self {
            Model::Gpt { layers, hidden, heads, .. } | Model::Vit { layers, hidden, heads, .. } => {
                (layers, hidden, heads)
            }
        }
    }

    /// Sequences a step, tokens a sequence and outputs a token.
    pub fn sizes(&self) -> (usize, usize, usize) {
        match *self {
            Model::Gpt { context, batch, vocabulary, .. } => (batch, context, vocabulary),
            Model::Vit { image, patch, batch, classes, .. } => (batch, (image / patch).pow(2) + 1, classes),
        }
    }

    /// The types of a batch: what goes in, and the targets.
    pub fn batch(&self) -> [TensorType; 2] {
        match *self {
            Model::Gpt { context, batch, .. } => [(); 2].map(|()| TensorType::fixed(DType::I64, &[batch, context])),
            Model::Vit { image, batch, .. } => {
                [TensorType::fixed(DType::F32, &[batch, 3, image, image]), TensorType::fixed(DType::I64, &[batch])]
            }
        }
    }

    /// The parameters, in the order in which [`Model::loss`] takes them.
    pub fn parameters(&self) -> Vec<Parameter> {
        let (layers, hidden, _) = self.block_sizes();
        let (_, tokens, outputs) = self.sizes();
        let mut all = Vec::new();
        let mut add = |name: String, shape: &[usize], start| all.push(Parameter { name, shape: shape.to_vec(), start });
        let weight = Start::Normal(0.02);
        match self {
            Model::Gpt { .. } => {
                add("token".into(), &[outputs, hidden], weight);
                add("position".into(), &[tokens, hidden], weight);
            }
            Model::Vit { patch, .. } => {
                add("patch.weight".into(), &[hidden, 3 * patch * patch], weight);
                add("patch.bias".into(), &[hidden], Start::Number(0.0));
                add("class".into(), &[hidden], weight);
                add("position".into(), &[tokens, hidden], weight);
            }
        }
        let linear = |add: &mut dyn FnMut(String, &[usize], Start), name: String, from: usize, to: usize| {
            add(format!("{name}.weight"), &[to, from], weight);
            add(format!("{name}.bias"), &[to], Start::Number(0.0));
        };
        let norm = |add: &mut dyn FnMut(String, &[usize], Start), name: String| {
            add(format!("{name}.weight"), &[hidden], Start::Number(1.0));
            add(format!("{name}.bias"), &[hidden], Start::Number(0.0));
        };
        for layer in 0..layers {
            norm(&mut add, format!("blocks.{layer}.norm1"));
            linear(&mut add, format!("blocks.{layer}.qkv"), hidden, 3 * hidden);
            linear(&mut add, format!("blocks.{layer}.projection"), hidden, hidden);
            norm(&mut add, format!("blocks.{layer}.norm2"));
            linear(&mut add, format!("blocks.{layer}.up"), hidden, 4 * hidden);
            linear(&mut add, format!("blocks.{layer}.down"), 4 * hidden, hidden);
        }
        norm(&mut add, "norm".into());
        if let Model::Vit { .. } = self {
            linear(&mut add, "head".into(), hidden, outputs);
        }
        all
    }

    /// The mean cross-entropy of a batch.
    pub fn loss<E: Emit>(&self, e: &mut E, [x, y]: [&E::Value; 2], parameters: &[E::Value]) -> Built<E> {
        let (layers, _, heads) = self.block_sizes();
        let mut parameters = parameters.iter();
        let mut next = || parameters.next().expect("as many parameters as Model::parameters lists");
        let token = next();
        let mut h = match *self {
            Model::Gpt { .. } => build::embedding(e, token, x)?,
            Model::Vit { image, patch, batch, .. } => {
                let side = image / patch;
                let patches = reshape(e, x, &[batch, 3, side, patch, side, patch])?;
                let patches = build::permute(e, &patches, &[0, 2, 4, 1, 3, 5])?;
                let patches = reshape(e, &patches, &[batch, side * side, 3 * patch * patch])?;
                let patches = build::linear(e, &patches, token, Some(next()))?;
                let class = next();
                let width = e.ty(class).shape[0].clone();
                let class = build::broadcast_to(e, class, &[Dim::from(batch), Dim::from(1), width])?;
                build::concat(e, &[class, patches], 1)?
            }
        };
        h = build::add(e, &h, next())?;
        let causal = matches!(self, Model::Gpt { .. });
        for _ in 0..layers {
            let n = build::layer_norm(e, &h, 1, Some(next()), Some(next()), 1e-5)?;
            let a = self.attend(e, &n, heads, causal, [next(), next()])?;
            let a = build::linear(e, &a, next(), Some(next()))?;
            h = build::add(e, &h, &a)?;
            let n = build::layer_norm(e, &h, 1, Some(next()), Some(next()), 1e-5)?;
            let f = build::linear(e, &n, next(), Some(next()))?;
            let f = if causal { build::gelu_tanh(e, &f)? } else { build::gelu(e, &f)? };
            let f = build::linear(e, &f, next(), Some(next()))?;
            h = build::add(e, &h, &f)?;
        }
        if !causal {
            h = build::pick(e, &h, 1, 0)?;
        }
        let h = build::layer_norm(e, &h, 1, Some(next()), Some(next()), 1e-5)?;
        let logits = match self {
            Model::Gpt { .. } => build::linear(e, &h, token, None)?,
            Model::Vit { .. } => build::linear(e, &h, next(), Some(next()))?,
        };
        let (batch, tokens, outputs) = self.sizes();
        let (logits, y) = match self {
            Model::Gpt { .. } => (reshape(e, &logits, &[batch * tokens, outputs])?, reshape(e, y, &[batch * tokens])?),
            Model::Vit { .. } => (logits, y.clone()),
        };
        build::cross_entropy(e, &logits, &y, &CrossEntropyOptions::default())
    }

    /// Attention of all heads on `x: [batch, tokens, hidden]`, without the projection behind it.
    fn attend<E: Emit>(
        &self,
        e: &mut E,
        x: &E::Value,
        heads: usize,
        causal: bool,
        [weight, bias]: [&E::Value; 2],
    ) -> Built<E> {
        let (batch, tokens, _) = self.sizes();
        let (_, hidden, _) = self.block_sizes();
        let qkv = build::linear(e, x, weight, Some(bias))?;
        let qkv = reshape(e, &qkv, &[batch, tokens, 3, heads, hidden / heads])?;
        let qkv = build::permute(e, &qkv, &[2, 0, 3, 1, 4])?;
        let (q, k, v) = (build::pick(e, &qkv, 0, 0)?, build::pick(e, &qkv, 0, 1)?, build::pick(e, &qkv, 0, 2)?);
        let options = AttentionOptions { causal, ..Default::default() };
        let y = build::scaled_dot_product_attention(e, &q, &k, &v, &options)?;
        let y = build::transpose(e, &y, 1, 2)?;
        reshape(e, &y, &[batch, tokens, hidden])
    }
}

fn reshape<E: Emit>(e: &mut E, x: &E::Value, shape: &[usize]) -> Built<E> {
    let shape: Vec<Dim> = shape.iter().map(|&n| Dim::from(n)).collect();
    build::reshape(e, x, &shape)
}
