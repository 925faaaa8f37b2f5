//! `generation_config.json`: how the makers of a model mean it to be used.

use super::Fields;
use crate::Result;
use std::path::Path;

/// What `generation_config.json` says; what it does not say is `None` or empty.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GenerationConfig {
    /// Begins a text.
    pub bos_token_id: Option<u32>,
    /// Any of these ends a text.
    pub eos_token_ids: Vec<u32>,
    /// Fills up shorter texts of a batch.
    pub pad_token_id: Option<u32>,
    /// Whether tokens are drawn, rather than the likeliest taken.
    pub do_sample: bool,
    /// See [`crate::Sampling`].
    pub temperature: Option<f64>,
    /// See [`crate::Sampling`].
    pub top_k: Option<usize>,
    /// See [`crate::Sampling`].
    pub top_p: Option<f64>,
    /// See [`crate::Sampling`].
    pub min_p: Option<f64>,
    /// See [`crate::Sampling`].
    pub repetition_penalty: Option<f64>,
    /// Tokens to make.
    pub max_new_tokens: Option<usize>,
}

impl GenerationConfig {
    /// Reads `generation_config.json` of a folder; without one nothing is said.
    pub fn read(folder: impl AsRef<Path>) -> Result<GenerationConfig> {
        let path = folder.as_ref().join("generation_config.json");
        if !path.exists() {
            return Ok(GenerationConfig::default());
        }
        GenerationConfig::from_fields(&Fields::read(path)?)
    }

    /// From the members of a `generation_config.json`.
    ///
    /// ```
    /// use kiln_llm::config::{Fields, GenerationConfig};
    /// let json = br#"{"do_sample": true, "temperature": 0.6, "eos_token_id": [128001, 128009]}"#;
    /// let config = GenerationConfig::from_fields(&Fields::parse(json, "generation_config.json")?)?;
    /// assert_eq!(config.eos_token_ids, [128001, 128009]);
    /// assert_eq!(config.temperature, Some(0.6));
    /// # Ok::<(), kiln_llm::Error>(())
    /// ```
    pub fn from_fields(fields: &Fields) -> Result<GenerationConfig> {
        Ok(GenerationConfig {
            bos_token_id: fields.tokens("bos_token_id")?.first().copied(),
            eos_token_ids: fields.tokens("eos_token_id")?,
            pad_token_id: fields.tokens("pad_token_id")?.first().copied(),
            do_sample: fields.flag("do_sample", false)?,
            temperature: fields.number_if("temperature")?,
            top_k: fields.size_if("top_k")?,
            top_p: fields.number_if("top_p")?,
            min_p: fields.number_if("min_p")?,
            repetition_penalty: fields.number_if("repetition_penalty")?,
            max_new_tokens: fields.size_if("max_new_tokens")?,
        })
    }
}
