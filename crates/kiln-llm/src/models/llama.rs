//! Llama 2 and 3, and what has their shape: SmolLM2, TinyStories' models; with a [`Variant`] Mistral, Qwen2, Qwen3
//! and Phi-3.
//!
//! ```text
//!  tokens ─▶ embedding ─▶ N × [ x + attention(norm(x)) ; x + mlp(norm(x)) ] ─▶ norm ─▶ logits
//! ```

use super::decoder::{Attention, AttentionKind, Decoder, Layer, Mlp};
use super::{CausalLm, Facts, Rotation, cut, trunk};
use crate::cache::{Mask, Step};
use crate::config::{Activation, Fields, Rope};
use crate::layers::Projection;
use crate::{Checkpoint, LlamaConfig, Result, Weights};
use kiln::nn::{Forward, Module, RmsNorm};
use kiln::{DType, RopeStyle, Tensor};
use std::sync::Arc;

/// A Llama with its weights, under the names that its checkpoints have.
#[derive(Debug, Module)]
pub struct Llama {
    /// All but the logits.
    pub model: Decoder<Block, RmsNorm>,
    /// The logits; without it the embedding makes them.
    pub lm_head: Option<Projection>,
    /// Settings.
    #[module(skip)]
    pub config: LlamaConfig,
    #[module(skip)]
    windows: Vec<Option<usize>>,
    #[module(skip)]
    rotation: Rotation,
    #[module(skip)]
    facts: Facts,
}

/// The differences of models that are otherwise like Llama.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Variant {
    /// One projection makes queries, keys and values, and one gate and up.
    pub joined: bool,
    /// Queries, keys and values have biases, and the projection behind them has none.
    pub qkv_bias: bool,
    /// Queries and keys are normed, each head by itself, before they are rotated.
    pub head_norms: bool,
    /// The attention window of each layer in tokens; `None` and layers beyond the list: all.
    pub windows: Vec<Option<usize>>,
    /// The rotary embedding, if it is not that of a Llama with these settings.
    pub rope: Option<Rope>,
    /// Interleaved rotary embedding, as in GGUF files: the two elements of a rotated pair are neighbours, not half a head apart.
    pub interleaved_rope: bool,
    /// Biases that are there if the checkpoint has them.
    pub stored_biases: StoredBiases,
}

/// The parts whose biases the checkpoint decides, where the configuration says nothing of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StoredBiases {
    /// The projections of attention.
    pub attention: bool,
    /// The projections of the feed-forward part.
    pub mlp: bool,
}

/// One layer.
#[derive(Debug, Module)]
pub struct Block {
    /// Before attention.
    pub input_layernorm: RmsNorm,
    /// Mixes tokens.
    pub self_attn: Attention<RmsNorm>,
    /// Before the feed-forward part.
    pub post_attention_layernorm: RmsNorm,
    /// Mixes what a token holds.
    pub mlp: Mlp,
}

/// Makes one of its `config.json`.
pub(super) fn load(config: &Fields, weights: &Weights<'_>, layers: Option<usize>) -> Result<Arc<dyn CausalLm>> {
    // Files from before these settings say nothing of the biases that they have.
    let stored_biases = StoredBiases { attention: !config.says("attention_bias"), mlp: !config.says("mlp_bias") };
    let mut config = LlamaConfig::from_fields(config)?;
    config.num_hidden_layers = cut(layers, config.num_hidden_layers)?;
    Ok(Arc::new(Llama::variant(&config, &Variant { stored_biases, ..Variant::default() }, weights)?))
}

impl Llama {
    /// With the weights of a checkpoint, in a dtype; those that have it already stay mapped.
    pub fn load(config: &LlamaConfig, checkpoint: &Checkpoint, dtype: DType) -> Result<Llama> {
        let weights = Weights::new(checkpoint, dtype);
        let model = Llama::new(config, &weights)?;
        weights.all_used("llama", None)?;
        Ok(model)
    }

    /// With these weights.
    pub fn new(config: &LlamaConfig, weights: &Weights<'_>) -> Result<Llama> {
        Llama::variant(config, &Variant::default(), weights)
    }

    /// One that is not quite a Llama, with these weights.
    pub fn variant(config: &LlamaConfig, variant: &Variant, weights: &Weights<'_>) -> Result<Llama> {
        let (width, vocabulary) = (config.hidden_size, config.vocab_size);
        let model = trunk(weights, &["model", ""], "embed_tokens.weight");
        let window = |layer: usize| variant.windows.get(layer).copied().flatten();
        let rope = variant.rope.clone().unwrap_or_else(|| config.rope());
        let style = if variant.interleaved_rope { RopeStyle::Interleaved } else { RopeStyle::Half };
        Ok(Llama {
            model: Decoder::load(config, &model, |_, weights| Block::load(config, variant, weights))?,
            lm_head: weights.head("lm_head", width, vocabulary, config.tie_word_embeddings)?,
            windows: (0..config.num_hidden_layers).map(window).collect(),
            rotation: Rotation { style, ..Rotation::from(&rope) },
            facts: weights.facts(config.sizes()),
            config: config.clone(),
        })
    }
}

impl CausalLm for Llama {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn rotations(&self) -> Vec<Rotation> {
        vec![self.rotation.clone()]
    }

    #[track_caller]
    fn hidden(&self, tokens: &Tensor, step: &Step) -> kiln::Result<Tensor> {
        self.model.run(self.model.embed_tokens.forward(tokens)?, step, &self.windows)
    }

    #[track_caller]
    fn logits(&self, hidden: &Tensor) -> kiln::Result<Tensor> {
        self.model.embed_tokens.logits_by(self.lm_head.as_ref(), hidden)
    }
}

impl Block {
    fn load(config: &LlamaConfig, variant: &Variant, weights: &Weights<'_>) -> Result<Block> {
        let (width, eps) = (config.hidden_size, config.rms_norm_eps);
        let kind = AttentionKind {
            joined: variant.joined,
            biased: config.attention_bias || variant.qkv_bias,
            normed: variant.head_norms,
            ..AttentionKind::default()
        };
        Ok(Block {
            input_layernorm: weights.rms_norm("input_layernorm", width, eps)?,
            self_attn: Attention::load(
                config,
                kind,
                &weights.under("self_attn").with_stored_biases(variant.stored_biases.attention),
            )?,
            post_attention_layernorm: weights.rms_norm("post_attention_layernorm", width, eps)?,
            mlp: Mlp::load(
                config,
                Activation::Silu,
                variant.joined,
                &weights.under("mlp").with_stored_biases(variant.stored_biases.mlp),
            )?,
        })
    }
}

impl Layer for Block {
    #[track_caller]
    fn forward(&self, x: &Tensor, layer: usize, step: &Step, mask: &Mask) -> kiln::Result<Tensor> {
        let x = (x + self.self_attn.forward(&self.input_layernorm.forward(x)?, layer, step, mask)?)?;
        &x + self.mlp.forward(&self.post_attention_layernorm.forward(&x)?)?
    }
}
