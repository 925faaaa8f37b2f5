//! Gemma 3's texts: norms before and behind each part, of each head too; most layers see only so far back and have positions
//! of their own.
//!
//! ```text
//!  tokens ─▶ embedding · √width ─▶ N × [ x + norm(attention(norm(x))) ; x + norm(mlp(norm(x))) ] ─▶ norm ─▶ logits
//! ```

use super::decoder::{Attention, AttentionKind, Decoder, Layer, Mlp, Norm};
use super::{CausalLm, Facts, Rotation, cut, trunk};
use crate::cache::{Mask, Step};
use crate::config::{Fields, Gemma3Config};
use crate::layers::Projection;
use crate::{Result, Weights};
use kiln::nn::{Forward, Module};
use kiln::{DType, Tensor, Var};
use std::sync::Arc;

/// A Gemma 3 with its weights, under the names that its checkpoints have.
#[derive(Debug, Module)]
pub struct Gemma3 {
    /// All but the logits.
    pub model: Decoder<Block, OffsetNorm>,
    /// The logits; without it the embedding makes them.
    pub lm_head: Option<Projection>,
    /// Settings.
    #[module(skip)]
    pub config: Gemma3Config,
    #[module(skip)]
    facts: Facts,
}

/// One layer.
#[derive(Debug, Module)]
pub struct Block {
    /// Before attention.
    pub input_layernorm: OffsetNorm,
    /// Mixes tokens.
    pub self_attn: Attention<OffsetNorm>,
    /// Behind attention.
    pub post_attention_layernorm: OffsetNorm,
    /// Before the feed-forward part.
    pub pre_feedforward_layernorm: OffsetNorm,
    /// Mixes what a token holds.
    pub mlp: Mlp,
    /// Behind the feed-forward part.
    pub post_feedforward_layernorm: OffsetNorm,
}

/// A root-mean-square norm whose weight is stored less 1, computed in f32 whatever the model's dtype.
#[derive(Debug, Module)]
pub struct OffsetNorm {
    /// What is added to 1.
    pub weight: Var,
    /// Keeps the divisor from 0.
    pub epsilon: f64,
}

/// Makes one of its `config.json`.
pub(super) fn load(config: &Fields, weights: &Weights<'_>, layers: Option<usize>) -> Result<Arc<dyn CausalLm>> {
    let mut config = Gemma3Config::from_fields(config)?;
    config.llama.num_hidden_layers = cut(layers, config.llama.num_hidden_layers)?;
    config.windows.truncate(config.llama.num_hidden_layers);
    Ok(Arc::new(Gemma3::new(&config, weights)?))
}

/// Where the text part is: of a text model, of one with images by newer and older versions of transformers, or alone.
const TRUNKS: &[&str] = &["model", "model.language_model", "language_model.model", ""];

impl Gemma3 {
    /// With these weights.
    pub fn new(config: &Gemma3Config, weights: &Weights<'_>) -> Result<Gemma3> {
        let llama = &config.llama;
        let (width, vocabulary) = (llama.hidden_size, llama.vocab_size);
        let model = trunk(weights, TRUNKS, "embed_tokens.weight");
        let head = trunk(weights, &["", "language_model"], "lm_head.weight");
        Ok(Gemma3 {
            model: Decoder::load(llama, &model, |layer, weights| Block::load(config, layer, weights))?,
            lm_head: head.head("lm_head", width, vocabulary, llama.tie_word_embeddings)?,
            facts: weights.facts(llama.sizes()),
            config: config.clone(),
        })
    }
}

impl CausalLm for Gemma3 {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn rotations(&self) -> Vec<Rotation> {
        vec![Rotation::from(&self.config.local_rope), Rotation::from(&self.config.global_rope)]
    }

    #[track_caller]
    fn hidden(&self, tokens: &Tensor, step: &Step) -> kiln::Result<Tensor> {
        // Rounded to the dtype, as the model was trained.
        let root = (self.config.llama.hidden_size as f64).sqrt();
        let scale = Tensor::full(1, root, self.dtype(), self.device())?;
        let x = (self.model.embed_tokens.forward(tokens)? * scale)?;
        self.model.run(x, step, &self.config.windows)
    }

    #[track_caller]
    fn logits(&self, hidden: &Tensor) -> kiln::Result<Tensor> {
        let logits = self.model.embed_tokens.logits_by(self.lm_head.as_ref(), hidden)?;
        match self.config.final_logit_softcapping {
            Some(cap) => (logits / cap)?.tanh()? * cap,
            None => Ok(logits),
        }
    }
}

impl Block {
    fn load(config: &Gemma3Config, layer: usize, weights: &Weights<'_>) -> Result<Block> {
        let llama = &config.llama;
        let norm = |name: &str| OffsetNorm::from_weights(name, llama.hidden_size, llama.rms_norm_eps, weights);
        let kind = AttentionKind {
            biased: llama.attention_bias,
            normed: true,
            // 0 in layers with a window, 1 in the others.
            rotation: usize::from(config.windows[layer].is_none()),
            scale: Some(config.query_pre_attn_scalar.powf(-0.5)),
            ..AttentionKind::default()
        };
        Ok(Block {
            input_layernorm: norm("input_layernorm")?,
            self_attn: Attention::load(llama, kind, &weights.under("self_attn"))?,
            post_attention_layernorm: norm("post_attention_layernorm")?,
            pre_feedforward_layernorm: norm("pre_feedforward_layernorm")?,
            mlp: Mlp::load(llama, config.activation, false, &weights.under("mlp"))?,
            post_feedforward_layernorm: norm("post_feedforward_layernorm")?,
        })
    }
}

impl Layer for Block {
    #[track_caller]
    fn forward(&self, x: &Tensor, layer: usize, step: &Step, mask: &Mask) -> kiln::Result<Tensor> {
        let mixed = self.self_attn.forward(&self.input_layernorm.forward(x)?, layer, step, mask)?;
        let x = (x + self.post_attention_layernorm.forward(&mixed)?)?;
        let made = self.mlp.forward(&self.pre_feedforward_layernorm.forward(&x)?)?;
        &x + self.post_feedforward_layernorm.forward(&made)?
    }
}

impl Norm for OffsetNorm {
    fn from_weights(name: &str, width: usize, epsilon: f64, weights: &Weights<'_>) -> Result<OffsetNorm> {
        Ok(OffsetNorm { weight: weights.under(name).zeros("weight", &[width])?, epsilon })
    }
}

impl Forward for OffsetNorm {
    type Output = Tensor;
    #[track_caller]
    fn forward(&self, x: &Tensor) -> kiln::Result<Tensor> {
        let weight = (self.weight.get().to_dtype(DType::F32)? + 1)?;
        x.to_dtype(DType::F32)?.rms_norm(1, Some(&weight), self.epsilon)?.to_dtype(x.dtype())
    }
}
