//! GPT-NeoX and Pythia: rotary positions of a part of each head; attention and the feed-forward part side by side.
//!
//! ```text
//!  tokens ─▶ embedding ─▶ N × [ x + attention(norm(x)) + mlp(norm'(x)) ] ─▶ norm ─▶ logits
//! ```

use super::{CausalLm, Facts, Rotation, cut, joined, trunk};
use crate::cache::{Mask, Step, Window};
use crate::config::{Activation, Fields, GptNeoxConfig};
use crate::layers::{Projection, TokenEmbedding};
use crate::{Result, Weights};
use kiln::Tensor;
use kiln::nn::{Forward, LayerNorm, Module};
use std::sync::Arc;

/// A GPT-NeoX with its weights, under the names that its checkpoints have.
#[derive(Debug, Module)]
pub struct GptNeox {
    /// All but the logits.
    pub gpt_neox: Decoder,
    /// The logits; without it the embedding makes them.
    pub embed_out: Option<Projection>,
    /// Settings.
    #[module(skip)]
    pub config: GptNeoxConfig,
    #[module(skip)]
    facts: Facts,
}

/// The embedding, the blocks and the last norm.
#[derive(Debug, Module)]
pub struct Decoder {
    /// A row a token.
    pub embed_in: TokenEmbedding,
    /// In order.
    pub layers: Vec<Block>,
    /// Before the logits.
    pub final_layer_norm: LayerNorm,
}

/// One layer.
#[derive(Debug, Module)]
pub struct Block {
    /// Before attention.
    pub input_layernorm: LayerNorm,
    /// Mixes tokens.
    pub attention: Attention,
    /// Before the feed-forward part.
    pub post_attention_layernorm: LayerNorm,
    /// Mixes what a token holds.
    pub mlp: Mlp,
    /// Whether both parts start from the block's input.
    pub parallel: bool,
}

/// Attention with rotary positions.
#[derive(Debug, Module)]
pub struct Attention {
    /// To a head's query, key and value, head by head.
    pub query_key_value: Projection,
    /// From the heads back.
    pub dense: Projection,
    /// Width of a head.
    pub head_dim: usize,
}

/// to_width(activation(to_inner(x))).
#[derive(Debug, Module)]
pub struct Mlp {
    /// To the inner width.
    pub dense_h_to_4h: Projection,
    /// Back.
    pub dense_4h_to_h: Projection,
    /// Between them.
    #[module(skip)]
    pub activation: Activation,
}

/// Makes one of its `config.json`.
pub(super) fn load(config: &Fields, weights: &Weights<'_>, layers: Option<usize>) -> Result<Arc<dyn CausalLm>> {
    let mut config = GptNeoxConfig::from_fields(config)?;
    config.num_hidden_layers = cut(layers, config.num_hidden_layers)?;
    Ok(Arc::new(GptNeox::new(&config, weights)?))
}

impl GptNeox {
    /// With these weights.
    pub fn new(config: &GptNeoxConfig, weights: &Weights<'_>) -> Result<GptNeox> {
        let (width, vocabulary) = (config.hidden_size, config.vocab_size);
        let model = trunk(weights, &["gpt_neox", ""], "embed_in.weight");
        let (count, tied) = (config.num_hidden_layers, config.tie_word_embeddings);
        let layers: Result<Vec<Block>> =
            (0..count).map(|layer| Block::load(config, &model.layer("layers", layer, count))).collect();
        let head = if weights.has("embed_out.weight") { "embed_out" } else { "lm_head" };
        Ok(GptNeox {
            gpt_neox: Decoder {
                embed_in: model.token_embedding("embed_in", vocabulary, width, tied)?,
                layers: layers?,
                final_layer_norm: model.layer_norm("final_layer_norm", width, config.layer_norm_eps)?,
            },
            embed_out: weights.head(head, width, vocabulary, tied)?,
            facts: weights.facts(config.sizes()),
            config: config.clone(),
        })
    }
}

impl CausalLm for GptNeox {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn rotations(&self) -> Vec<Rotation> {
        vec![Rotation::from(&self.config.rope)]
    }

    #[track_caller]
    fn hidden(&self, tokens: &Tensor, step: &Step) -> kiln::Result<Tensor> {
        let mask = step.mask(Window::All)?;
        let mut x = self.gpt_neox.embed_in.forward(tokens)?;
        for (index, block) in self.gpt_neox.layers.iter().enumerate() {
            x = block.forward(&x, index, step, &mask)?;
        }
        self.gpt_neox.final_layer_norm.forward(&x)
    }

    #[track_caller]
    fn logits(&self, hidden: &Tensor) -> kiln::Result<Tensor> {
        self.gpt_neox.embed_in.logits_by(self.embed_out.as_ref(), hidden)
    }
}

impl Block {
    fn load(config: &GptNeoxConfig, weights: &Weights<'_>) -> Result<Block> {
        let (width, inner, eps) = (config.hidden_size, config.intermediate_size, config.layer_norm_eps);
        let (attention, mlp, biased) = (weights.under("attention"), weights.under("mlp"), config.attention_bias);
        Ok(Block {
            input_layernorm: weights.layer_norm("input_layernorm", width, eps)?,
            attention: Attention {
                query_key_value: attention.projection("query_key_value", width, 3 * width, biased)?,
                dense: attention.projection("dense", width, width, biased)?,
                head_dim: width / config.num_attention_heads,
            },
            post_attention_layernorm: weights.layer_norm("post_attention_layernorm", width, eps)?,
            mlp: Mlp {
                dense_h_to_4h: mlp.projection("dense_h_to_4h", width, inner, true)?,
                dense_4h_to_h: mlp.projection("dense_4h_to_h", inner, width, true)?,
                activation: config.activation,
            },
            parallel: config.use_parallel_residual,
        })
    }

    #[track_caller]
    fn forward(&self, x: &Tensor, layer: usize, step: &Step, mask: &Mask) -> kiln::Result<Tensor> {
        let mixed = (x + self.attention.forward(&self.input_layernorm.forward(x)?, layer, step, mask)?)?;
        let start = if self.parallel { x } else { &mixed };
        let made = self.mlp.forward(&self.post_attention_layernorm.forward(start)?)?;
        mixed + made
    }
}

impl Attention {
    #[track_caller]
    fn forward(&self, x: &Tensor, layer: usize, step: &Step, mask: &Mask) -> kiln::Result<Tensor> {
        let depth = self.head_dim;
        let all = self.query_key_value.forward(x)?.unflatten(-1, [-1, 3 * depth as i64])?.transpose(1, 2)?;
        let part = |number: usize| all.narrow(-1, number * depth, depth);
        let (q, k) = (step.rotate(0, &part(0)?)?, step.rotate(0, &part(1)?)?);
        let mixed = step.attend(layer, &q, &k, &part(2)?, mask, None)?;
        self.dense.forward(&joined(&mixed)?)
    }
}

impl Forward for Mlp {
    type Output = Tensor;
    #[track_caller]
    fn forward(&self, x: &Tensor) -> kiln::Result<Tensor> {
        self.dense_4h_to_h.forward(&self.activation.apply(&self.dense_h_to_4h.forward(x)?)?)
    }
}
