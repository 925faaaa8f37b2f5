//! Attention with its projections.

use super::linear::value as value_of;
use super::{Forward, Linear, Module, init};
use crate::{Error, Result, Tensor, Var};
use kiln_ir::Source;

/// Multi-head attention between sequences `[…, tokens, width]`, with the parameters of PyTorch's `MultiheadAttention`.
///
/// ```
/// use kiln::nn::{Forward, Module, MultiHeadAttention};
/// use kiln::{DType, Device, Tensor};
/// let attention = MultiHeadAttention::new(16, 4)?.causal();
/// assert_eq!(attention.forward(&Tensor::ones([2, 5, 16], DType::F32, Device::Cpu)?)?.shape(), [2, 5, 16]);
/// let names: Vec<String> = attention.named_parameters().into_iter().map(|(name, _)| name).collect();
/// assert_eq!(names, ["in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias"]);
/// # Ok::<(), kiln::Error>(())
/// ```
#[derive(Debug, Clone, Module)]
pub struct MultiHeadAttention {
    /// The projections to queries, keys and values, stacked: `[width + 2 · kv_heads · depth, width]`.
    pub in_proj_weight: Var,
    /// The biases of these projections.
    pub in_proj_bias: Option<Var>,
    /// The projection from the heads back to the width.
    pub out_proj: Linear,
    /// The number of query heads.
    pub heads: usize,
    /// The number of key and value heads, each shared by `heads / kv_heads` query heads.
    pub kv_heads: usize,
    /// Whether a token attends only to tokens up to itself.
    pub causal: bool,
}

impl MultiHeadAttention {
    /// Makes attention with `heads` heads, which must divide the width, and zero biases.
    #[track_caller]
    pub fn new(width: usize, heads: usize) -> Result<MultiHeadAttention> {
        MultiHeadAttention::grouped(width, heads, heads)
    }

    /// Makes grouped-query attention: `kv_heads` must divide `heads`.
    #[track_caller]
    pub fn grouped(width: usize, heads: usize, kv_heads: usize) -> Result<MultiHeadAttention> {
        let bad = |name, value: usize, expected, at| {
            Err(Error::BadArgument { op: "MultiHeadAttention", name, value: value.into(), expected, at })
        };
        if heads == 0 || !width.is_multiple_of(heads) {
            return bad("heads", heads, "they have to divide the width", Source::caller());
        }
        if kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
            return bad("kv_heads", kv_heads, "they have to divide the heads", Source::caller());
        }
        let rows = width + 2 * kv_heads * (width / heads);
        let out_proj = Linear::new(width, width)?;
        Ok(MultiHeadAttention {
            in_proj_weight: init::parameter("in_proj_weight", &init::xavier_uniform([rows, width])?),
            in_proj_bias: Some(init::parameter("in_proj_bias", &init::zeros(rows)?)),
            out_proj: Linear { bias: Some(init::parameter("bias", &init::zeros(width)?)), ..out_proj },
            heads,
            kv_heads,
            causal: false,
        })
    }

    /// Makes the attention causal: a token attends only to tokens up to itself.
    pub fn causal(self) -> MultiHeadAttention {
        MultiHeadAttention { causal: true, ..self }
    }

    /// Removes the biases.
    pub fn without_bias(self) -> MultiHeadAttention {
        MultiHeadAttention { in_proj_bias: None, out_proj: self.out_proj.without_bias(), ..self }
    }

    fn width(&self) -> usize {
        self.in_proj_weight.shape()[1]
    }

    /// `[…, tokens, heads · depth]` as `[…, heads, tokens, depth]`.
    #[track_caller]
    fn split(&self, x: &Tensor, heads: usize) -> Result<Tensor> {
        x.unflatten(-1, [heads, self.width() / self.heads])?.transpose(-2, -3)
    }

    /// Attends from `query` to `key` and `value`. A bool mask keeps positions that are true (PyTorch's module drops them),
    /// a float mask is added; both broadcast to `[…, heads, queries, keys]`.
    ///
    /// ```
    /// use kiln::nn::MultiHeadAttention;
    /// use kiln::{DType, Device, Tensor};
    /// let attention = MultiHeadAttention::new(8, 2)?;
    /// let x = Tensor::ones([1, 3, 8], DType::F32, Device::Cpu)?;
    /// let memory = Tensor::ones([1, 7, 8], DType::F32, Device::Cpu)?;
    /// assert_eq!(attention.attend(&x, &memory, &memory, None)?.shape(), [1, 3, 8]);
    /// # Ok::<(), kiln::Error>(())
    /// ```
    #[track_caller]
    pub fn attend(&self, query: &Tensor, key: &Tensor, value: &Tensor, mask: Option<&Tensor>) -> Result<Tensor> {
        let _line = Source::scope();
        let (weight, bias) = (self.in_proj_weight.get(), value_of(&self.in_proj_bias));
        let shared = self.width() / self.heads * self.kv_heads;
        let sizes = [self.width(), shared, shared];
        let weights = weight.split_sizes(&sizes, 0)?;
        let biases = match &bias {
            Some(bias) => bias.split_sizes(&sizes, 0)?,
            None => Vec::new(),
        };
        let q = query.linear(&weights[0], biases.first())?;
        let k = key.linear(&weights[1], biases.get(1))?;
        let v = value.linear(&weights[2], biases.get(2))?;
        self.mix(&q, &k, &v, mask)
    }

    /// Attention between projected queries, keys and values, and the projection back.
    #[track_caller]
    fn mix(&self, q: &Tensor, k: &Tensor, v: &Tensor, mask: Option<&Tensor>) -> Result<Tensor> {
        let (q, k, v) = (self.split(q, self.heads)?, self.split(k, self.kv_heads)?, self.split(v, self.kv_heads)?);
        let mixed = q.scaled_dot_product_attention(&k, &v, mask, self.causal, None)?;
        self.out_proj.forward(&mixed.transpose(-2, -3)?.flatten(-2, -1)?)
    }
}

/// Of a sequence to itself.
impl Forward for MultiHeadAttention {
    type Output = Tensor;
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let _line = Source::scope();
        let shared = self.width() / self.heads * self.kv_heads;
        let projected = x.linear(&self.in_proj_weight.get(), value_of(&self.in_proj_bias).as_ref())?;
        let parts = projected.split_sizes(&[self.width(), shared, shared], -1)?;
        self.mix(&parts[0], &parts[1], &parts[2], None)
    }
}

/// Of a sequence to itself, with a mask as for [`MultiHeadAttention::attend`].
impl Forward<(Tensor, Tensor)> for MultiHeadAttention {
    type Output = Tensor;
    #[track_caller]
    fn forward(&self, (x, mask): &(Tensor, Tensor)) -> Result<Tensor> {
        let _line = Source::scope();
        self.attend(x, x, x, Some(mask))
    }
}
