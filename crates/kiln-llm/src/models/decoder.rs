//! What Llama, Phi-3, Gemma 3 and their kin are made of; each says in its own file how it puts the parts together.
//!
//! ```text
//!  embedding ─▶ N × layer ─▶ norm          attention: heads ─▶ norm? ─▶ turn ─▶ cache ─▶ mix ─▶ back
//!                                          mlp:       activation(gate) · up ─▶ back
//! ```

use super::{heads, joined, masks};
use crate::cache::{Mask, Step};
use crate::config::Activation;
use crate::layers::{Projection, TokenEmbedding};
use crate::{LlamaConfig, Result, Weights};
use kiln::Tensor;
use kiln::nn::{Forward, Module, RmsNorm};

/// The embedding, the layers and the last norm.
#[derive(Debug, Module)]
pub struct Decoder<L, N> {
    /// A row a token.
    pub embed_tokens: TokenEmbedding,
    /// In order.
    pub layers: Vec<L>,
    /// Before the logits.
    pub norm: N,
}

/// A layer of a decoder.
pub trait Layer {
    /// What it makes of the vectors of tokens; `layer` is its number.
    fn forward(&self, x: &Tensor, layer: usize, step: &Step, mask: &Mask) -> kiln::Result<Tensor>;
}

/// A norm of the last axis.
pub trait Norm: Forward<Output = Tensor> + Sized {
    /// With the weight of that name.
    fn from_weights(name: &str, width: usize, epsilon: f64, weights: &Weights<'_>) -> Result<Self>;
}

impl Norm for RmsNorm {
    fn from_weights(name: &str, width: usize, epsilon: f64, weights: &Weights<'_>) -> Result<RmsNorm> {
        weights.rms_norm(name, width, epsilon)
    }
}

impl<L: Layer, N: Norm> Decoder<L, N> {
    /// With these weights, of which `layer` makes the layer of a number.
    pub(super) fn load(
        config: &LlamaConfig,
        weights: &Weights<'_>,
        layer: impl Fn(usize, &Weights<'_>) -> Result<L>,
    ) -> Result<Decoder<L, N>> {
        let (count, tied) = (config.num_hidden_layers, config.tie_word_embeddings);
        let layers: Result<Vec<L>> =
            (0..count).map(|number| layer(number, &weights.layer("layers", number, count))).collect();
        Ok(Decoder {
            embed_tokens: weights.token_embedding("embed_tokens", config.vocab_size, config.hidden_size, tied)?,
            layers: layers?,
            norm: N::from_weights("norm", config.hidden_size, config.rms_norm_eps, weights)?,
        })
    }

    /// Applies layers and norm to the vectors of tokens; each layer attends within its window.
    #[track_caller]
    pub(super) fn run(&self, mut x: Tensor, step: &Step, windows: &[Option<usize>]) -> kiln::Result<Tensor> {
        let masks = masks(step, windows)?;
        for (number, (layer, mask)) in self.layers.iter().zip(&masks).enumerate() {
            x = layer.forward(&x, number, step, mask)?;
        }
        self.norm.forward(&x)
    }
}

/// Attention with rotary positions; several heads of queries share one of keys and values.
#[derive(Debug, Module)]
pub struct Attention<N> {
    /// To queries, keys and values.
    #[module(flatten)]
    pub heads: HeadProjections,
    /// From the heads back.
    pub o_proj: Projection,
    /// Of each head of the queries.
    pub q_norm: Option<N>,
    /// Of each head of the keys.
    pub k_norm: Option<N>,
    /// Width of a head.
    pub head_dim: usize,
    /// Which of the model's rotations.
    pub rotation: usize,
    /// Of the scores; without one that is 1 / √width.
    pub scale: Option<f64>,
}

/// The projections to queries, keys and values as a checkpoint has them.
#[derive(Debug, Module)]
pub enum HeadProjections {
    /// Each by itself.
    Separate {
        /// To queries.
        q_proj: Projection,
        /// To keys.
        k_proj: Projection,
        /// To values.
        v_proj: Projection,
    },
    /// One behind the other.
    Joined {
        /// To queries, keys and values.
        qkv_proj: Projection,
        /// Heads of the queries, and of keys and of values.
        counts: (usize, usize),
    },
}

/// The differences between the attention of models.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct AttentionKind {
    /// One projection makes queries, keys and values.
    pub(super) joined: bool,
    /// Queries, keys and values have biases.
    pub(super) biased: bool,
    /// Heads of queries and keys are normed before they are rotated.
    pub(super) normed: bool,
    /// See [`Attention::rotation`].
    pub(super) rotation: usize,
    /// See [`Attention::scale`].
    pub(super) scale: Option<f64>,
}

impl<N: Norm> Attention<N> {
    pub(super) fn load(config: &LlamaConfig, kind: AttentionKind, weights: &Weights<'_>) -> Result<Attention<N>> {
        let (width, depth) = (config.hidden_size, config.head_dim);
        let (count, shared) = (config.num_attention_heads, config.num_key_value_heads);
        let project = |name: &str, heads: usize| weights.projection(name, width, heads * depth, kind.biased);
        let norm = |name: &str| {
            let norm = || N::from_weights(name, depth, config.rms_norm_eps, weights);
            kind.normed.then(norm).transpose()
        };
        Ok(Attention {
            heads: if kind.joined {
                HeadProjections::Joined { qkv_proj: project("qkv_proj", count + 2 * shared)?, counts: (count, shared) }
            } else {
                HeadProjections::Separate {
                    q_proj: project("q_proj", count)?,
                    k_proj: project("k_proj", shared)?,
                    v_proj: project("v_proj", shared)?,
                }
            },
            o_proj: weights.projection("o_proj", count * depth, width, config.attention_bias)?,
            q_norm: norm("q_norm")?,
            k_norm: norm("k_norm")?,
            head_dim: depth,
            rotation: kind.rotation,
            scale: kind.scale,
        })
    }

    #[track_caller]
    pub(super) fn forward(&self, x: &Tensor, layer: usize, step: &Step, mask: &Mask) -> kiln::Result<Tensor> {
        let [mut q, mut k, v] = self.heads.of(x, self.head_dim)?;
        if let (Some(q_norm), Some(k_norm)) = (&self.q_norm, &self.k_norm) {
            (q, k) = (q_norm.forward(&q)?, k_norm.forward(&k)?);
        }
        let (q, k) = (step.rotate(self.rotation, &q)?, step.rotate(self.rotation, &k)?);
        let mixed = step.attend(layer, &q, &k, &v, mask, self.scale)?;
        self.o_proj.forward(&joined(&mixed)?)
    }
}

impl HeadProjections {
    /// Heads of queries, keys and values, `[batch, heads, tokens, depth]`.
    #[track_caller]
    fn of(&self, x: &Tensor, depth: usize) -> kiln::Result<[Tensor; 3]> {
        match self {
            HeadProjections::Separate { q_proj, k_proj, v_proj } => Ok([
                heads(&q_proj.forward(x)?, depth)?,
                heads(&k_proj.forward(x)?, depth)?,
                heads(&v_proj.forward(x)?, depth)?,
            ]),
            HeadProjections::Joined { qkv_proj, counts: (count, shared) } => {
                let all = heads(&qkv_proj.forward(x)?, depth)?;
                let part = |first: usize, heads: usize| all.narrow(1, first, heads);
                Ok([part(0, *count)?, part(*count, *shared)?, part(count + shared, *shared)?])
            }
        }
    }
}

/// down(activation(gate(x)) · up(x)).
#[derive(Debug, Module)]
pub struct Mlp {
    /// To gate and up.
    #[module(flatten)]
    pub inner: GateProjections,
    /// Back to the width.
    pub down_proj: Projection,
    /// Of the gate.
    #[module(skip)]
    pub activation: Activation,
}

/// The projections to what is let through and to what is there, as a checkpoint has them.
#[derive(Debug, Module)]
pub enum GateProjections {
    /// Each by itself.
    Separate {
        /// What is let through.
        gate_proj: Projection,
        /// What is there.
        up_proj: Projection,
    },
    /// One behind the other.
    Joined {
        /// What is let through, then what is there.
        gate_up_proj: Projection,
        /// Width of each of the two.
        width: usize,
    },
}

impl Mlp {
    /// With the sizes and biases of a configuration.
    pub(super) fn load(
        config: &LlamaConfig,
        activation: Activation,
        joined: bool,
        weights: &Weights<'_>,
    ) -> Result<Mlp> {
        let (width, inner, biased) = (config.hidden_size, config.intermediate_size, config.mlp_bias);
        let project = |name: &str, outputs: usize| weights.projection(name, width, outputs, biased);
        Ok(Mlp {
            inner: if joined {
                GateProjections::Joined { gate_up_proj: project("gate_up_proj", 2 * inner)?, width: inner }
            } else {
                GateProjections::Separate {
                    gate_proj: project("gate_proj", inner)?,
                    up_proj: project("up_proj", inner)?,
                }
            },
            down_proj: weights.projection("down_proj", inner, width, biased)?,
            activation,
        })
    }
}

impl Forward for Mlp {
    type Output = Tensor;
    #[track_caller]
    fn forward(&self, x: &Tensor) -> kiln::Result<Tensor> {
        let (gate, up) = match &self.inner {
            GateProjections::Separate { gate_proj, up_proj } => {
                (self.activation.apply(&gate_proj.forward(x)?)?, up_proj.forward(x)?)
            }
            GateProjections::Joined { gate_up_proj, width } => {
                let both = gate_up_proj.forward(x)?;
                (self.activation.apply(&both.narrow(-1, 0, *width)?)?, both.narrow(-1, *width, *width)?)
            }
        };
        self.down_proj.forward(&(gate * up)?)
    }
}
