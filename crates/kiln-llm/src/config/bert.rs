//! Settings of BERT and what has its shape (MiniLM, BGE, E5, GTE).

use super::{Activation, Fields};
use crate::Result;
use std::path::Path;

/// What `config.json` says about a BERT.
#[derive(Debug, Clone, PartialEq)]
pub struct BertConfig {
    /// Tokens with an embedding.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width inside of the feed-forward part.
    pub intermediate_size: usize,
    /// Blocks.
    pub num_hidden_layers: usize,
    /// Heads of attention.
    pub num_attention_heads: usize,
    /// Positions with an embedding.
    pub max_position_embeddings: usize,
    /// Kinds of tokens with an embedding.
    pub type_vocab_size: usize,
    /// Keeps the norms' divisors from 0.
    pub layer_norm_eps: f64,
    /// Inside of the feed-forward part.
    pub hidden_act: Activation,
    /// Fills up shorter texts of a batch.
    pub pad_token_id: u32,
}

impl BertConfig {
    /// Reads `config.json` of a folder.
    pub fn read(folder: impl AsRef<Path>) -> Result<BertConfig> {
        BertConfig::from_fields(&Fields::read(folder.as_ref().join("config.json"))?)
    }

    /// From the members of a `config.json`.
    ///
    /// ```
    /// use kiln_llm::config::{BertConfig, Fields};
    /// let json = br#"{"model_type": "bert", "hidden_size": 384, "num_attention_heads": 12, "num_hidden_layers": 6}"#;
    /// let config = BertConfig::from_fields(&Fields::parse(json, "config.json")?)?;
    /// assert_eq!((config.num_hidden_layers, config.max_position_embeddings), (6, 512));
    /// # Ok::<(), kiln_llm::Error>(())
    /// ```
    pub fn from_fields(fields: &Fields) -> Result<BertConfig> {
        fields.model_type(&["bert"])?;
        fields.supported(&[])?;
        let positions = fields.text("position_embedding_type")?.unwrap_or("absolute");
        if positions != "absolute" {
            return Err(fields.bad("position_embedding_type", format!("'{positions}' is not supported")));
        }
        if fields.flag("is_decoder", false)? {
            return Err(fields.bad("is_decoder", "a BERT that generates is not supported"));
        }
        let hidden_size = fields.positive("hidden_size", 768)?;
        let config = BertConfig {
            vocab_size: fields.positive("vocab_size", 30522)?,
            hidden_size,
            intermediate_size: fields.positive("intermediate_size", 3072)?,
            num_hidden_layers: fields.size("num_hidden_layers", 12)?,
            num_attention_heads: fields.heads("num_attention_heads", 12, hidden_size)?,
            max_position_embeddings: fields.positive("max_position_embeddings", 512)?,
            type_vocab_size: fields.positive("type_vocab_size", 2)?,
            layer_norm_eps: fields.number("layer_norm_eps", 1e-12)?,
            hidden_act: Activation::from_fields(fields, "hidden_act")?,
            pad_token_id: fields.tokens("pad_token_id")?.first().copied().unwrap_or(0),
        };
        if config.pad_token_id as usize >= config.vocab_size {
            return Err(fields.bad("pad_token_id", format!("{} is outside the vocabulary", config.pad_token_id)));
        }
        Ok(config)
    }
}
