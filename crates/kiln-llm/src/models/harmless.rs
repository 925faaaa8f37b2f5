//! Tensors of checkpoints that a model does without. Whatever else a checkpoint has and a model does not use is an error:
//! a bias or a norm that is left out makes a model that runs and says something else.

use crate::{Error, Result, Weights};
use kiln::{DType, Tensor};

/// Tensors that are without effect on what a model gives.
struct Harmless {
    /// Their names; `*` stands for any text.
    pattern: &'static str,
    /// The kinds of models whose checkpoints have them; empty for all.
    kinds: &'static [&'static str],
    /// Why they are without effect.
    #[cfg_attr(not(test), expect(dead_code, reason = "for readers of the table, and for the test that all have one"))]
    why: &'static str,
}

const fn harmless(pattern: &'static str, kinds: &'static [&'static str], why: &'static str) -> Harmless {
    Harmless { pattern, kinds, why }
}

const ANGLES: &str = "angles a position, which the configuration gives too";
const CAUSAL: &str = "a buffer that says that tokens see none behind them";
const NUMBERS: &str = "the numbers 0, 1, 2 …, a buffer";
const TRAINING: &str = "a head of pre-training or of another task, which vectors of tokens do not go through";
const PICTURES: &str = "the part that sees pictures, without which texts are the same";

const HARMLESS: &[Harmless] = &[
    harmless("*rotary_emb.inv_freq", &[], ANGLES),
    harmless("*rotary_emb.cos_cached", &[], ANGLES),
    harmless("*rotary_emb.sin_cached", &[], ANGLES),
    harmless("*h.*.attn.bias", &["gpt2"], CAUSAL),
    harmless("*h.*.attn.masked_bias", &["gpt2"], CAUSAL),
    harmless("*layers.*.attention.bias", &["gpt_neox"], CAUSAL),
    harmless("*layers.*.attention.masked_bias", &["gpt_neox"], CAUSAL),
    harmless("multiple_choice_head.*", &["gpt2"], "a second head, which chooses among answers and makes no logits"),
    harmless("*vision_tower.*", &["gemma3"], PICTURES),
    harmless("*multi_modal_projector.*", &["gemma3"], PICTURES),
    harmless("*embeddings.position_ids", &["bert"], NUMBERS),
    harmless("*embeddings.token_type_ids", &["bert"], "zeros, a buffer"),
    harmless("*pooler.dense.*", &["bert", "vit", "deit"], TRAINING),
    harmless("cls.*", &["bert"], TRAINING),
    harmless("classifier.*", &["bert"], TRAINING),
    harmless("qa_outputs.*", &["bert"], TRAINING),
    harmless("*num_batches_tracked", &[], "a count of training steps"),
    harmless("*embeddings.mask_token", &["vit", "deit"], "stands for patches that are hidden, in training alone"),
];

/// The tables that make logits, and the embeddings that they are where both are one.
const TIED: &[(&str, &[&str])] =
    &[("lm_head.weight", &["embed_tokens.weight", "wte.weight"]), ("embed_out.weight", &["embed_in.weight"])];

/// How many names an error shows.
const SHOWN: usize = 4;

impl Weights<'_> {
    /// Refuses a checkpoint with tensors that a model of a kind did not take and that are not known to be without effect.
    /// With `cut` only so many layers were made, and the others are not missed.
    pub fn all_used(&self, kind: &str, cut: Option<usize>) -> Result<()> {
        let mut unused = Vec::new();
        for name in self.untaken() {
            if is_harmless(&name, kind) || cut.is_some_and(|layers| layer(&name).is_some_and(|n| n >= layers)) {
                continue;
            }
            match self.tied_to(&name) {
                Some(embedding) if self.are_equal(&name, &embedding)? => {}
                Some(embedding) => return Err(Error::UntiedHead { name, embedding }),
                None => unused.push(name),
            }
        }
        match unused.len() {
            0 => Ok(()),
            count => {
                unused.truncate(SHOWN);
                Err(Error::UnusedTensors { kind: kind.into(), names: unused, count })
            }
        }
    }

    /// The embedding that was taken in place of a head.
    fn tied_to(&self, name: &str) -> Option<String> {
        let (_, embeddings) = TIED.iter().find(|(head, _)| is_last(name, head))?;
        self.taken_names().into_iter().find(|taken| embeddings.iter().any(|embedding| is_last(taken, embedding)))
    }

    fn are_equal(&self, one: &str, other: &str) -> Result<bool> {
        let (Some(one), Some(other)) = (self.stored(one), self.stored(other)) else { return Ok(false) };
        if one.shape() != other.shape() || one.shape().len() != 2 {
            return Ok(false);
        }
        let rows = one.shape()[0];
        // A part at a time: tables of a large vocabulary are gigabytes.
        let part = |table: &Tensor, start: usize| -> kiln::Result<Vec<f32>> {
            table.narrow(0, start, rows.min(start + ROWS) - start)?.to_dtype(DType::F32)?.to_vec()
        };
        for start in (0..rows).step_by(ROWS) {
            let (one, other) = (part(one, start)?, part(other, start)?);
            if !one.iter().zip(&other).all(|(a, b)| a.to_bits() == b.to_bits()) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Rows of two tables that are compared at once.
const ROWS: usize = 4096;

/// Whether a name is another one, or ends in it behind a dot.
fn is_last(name: &str, last: &str) -> bool {
    name.strip_suffix(last).is_some_and(|before| before.is_empty() || before.ends_with('.'))
}

/// The first number in a name, which is that of the layer.
fn layer(name: &str) -> Option<usize> {
    name.split('.').find_map(|part| part.parse().ok())
}

fn is_harmless(name: &str, kind: &str) -> bool {
    let of_kind = |harmless: &&Harmless| harmless.kinds.is_empty() || harmless.kinds.contains(&kind);
    HARMLESS.iter().filter(of_kind).any(|harmless| matches(harmless.pattern, name))
}

/// Whether a pattern with `*` for any text is a name.
fn matches(pattern: &str, name: &str) -> bool {
    let Some((first, mut rest)) = pattern.split_once('*') else { return pattern == name };
    let Some(mut name) = name.strip_prefix(first) else { return false };
    while let Some((part, more)) = rest.split_once('*') {
        let Some(at) = name.find(part) else { return false };
        (name, rest) = (&name[at + part.len()..], more);
    }
    name.ends_with(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_whole_names() {
        assert!(matches("*h.*.attn.bias", "transformer.h.11.attn.bias"));
        assert!(matches("*h.*.attn.bias", "h.0.attn.bias"));
        assert!(!matches("*h.*.attn.bias", "transformer.h.11.attn.c_attn.bias.x"));
        assert!(!matches("cls.*", "bert.cls.weight"));
        assert!(matches("a", "a") && !matches("a", "ab"));
    }

    #[test]
    fn what_is_harmless_belongs_to_a_kind_and_has_a_reason() {
        assert!(is_harmless("h.0.attn.bias", "gpt2") && !is_harmless("h.0.attn.bias", "llama"));
        assert!(is_harmless("model.layers.3.self_attn.rotary_emb.inv_freq", "llama"));
        assert!(!is_harmless("model.layers.3.self_attn.q_proj.bias", "llama"));
        // The bias of GPT-2's projection ends like the buffer beside it.
        assert!(!is_harmless("h.0.attn.c_attn.bias", "gpt2"));
        let known = |kind: &&str| crate::models::Kind::named(kind).is_some();
        for harmless in HARMLESS {
            assert!(!harmless.why.is_empty() && harmless.kinds.iter().all(&known), "{}", harmless.pattern);
        }
    }

    #[test]
    fn heads_and_layers_are_found_in_names() {
        assert!(
            is_last("language_model.lm_head.weight", "lm_head.weight") && !is_last("xlm_head.weight", "lm_head.weight")
        );
        assert_eq!(layer("model.layers.12.mlp.up_proj.weight"), Some(12));
        assert_eq!(layer("model.norm.weight"), None);
    }
}
