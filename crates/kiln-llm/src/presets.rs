//! Models by name, with random weights: the shapes of known models for measurements, without their files.

use crate::Result;
use crate::config::Fields;

/// A known shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Preset {
    /// What it is asked for by.
    pub name: &'static str,
    /// Its `config.json`.
    pub config: &'static str,
}

/// Every preset.
pub const PRESETS: &[Preset] = &[
    Preset {
        name: "smollm2-135m",
        config: r#"{"model_type": "llama", "vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536,
            "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "rms_norm_eps": 1e-5,
            "max_position_embeddings": 8192, "rope_theta": 100000.0, "tie_word_embeddings": true}"#,
    },
    Preset {
        name: "llama-3.2-1b",
        config: r#"{"model_type": "llama", "vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 8192,
            "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64,
            "rms_norm_eps": 1e-5, "max_position_embeddings": 131072, "rope_theta": 500000.0,
            "rope_scaling": {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192}, "tie_word_embeddings": true}"#,
    },
];

impl Preset {
    /// The preset of a name.
    pub fn named(name: &str) -> Option<&'static Preset> {
        PRESETS.iter().find(|preset| preset.name == name)
    }

    /// The members of its `config.json`.
    pub fn fields(&self) -> Result<Fields> {
        Fields::parse(self.config.as_bytes(), self.name)
    }
}
