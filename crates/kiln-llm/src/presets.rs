//! Models by name, with random weights: the shapes of known models for measurements, without their files.

use crate::Result;
use crate::config::Fields;

/// A known model shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Preset {
    /// Its name.
    pub name: &'static str,
    /// The number of its parameters.
    pub parameters: u64,
    /// The models that have this shape.
    pub description: &'static str,
    /// Its `config.json`.
    pub config: &'static str,
}

/// Every preset, smaller ones of a family before larger ones.
pub const PRESETS: &[Preset] = &[
    Preset {
        name: "stories260k",
        parameters: 260_032,
        description: "TinyStories' smallest Llama",
        config: r#"{"model_type": "llama", "vocab_size": 512, "hidden_size": 64, "intermediate_size": 172,
            "num_hidden_layers": 5, "num_attention_heads": 8, "num_key_value_heads": 4, "rms_norm_eps": 1e-5,
            "max_position_embeddings": 512, "rope_theta": 10000.0, "tie_word_embeddings": true}"#,
    },
    Preset {
        name: "stories15m",
        parameters: 15_191_712,
        description: "TinyStories' Llama of 6 layers",
        config: r#"{"model_type": "llama", "vocab_size": 32000, "hidden_size": 288, "intermediate_size": 768,
            "num_hidden_layers": 6, "num_attention_heads": 6, "num_key_value_heads": 6, "rms_norm_eps": 1e-5,
            "max_position_embeddings": 256, "rope_theta": 10000.0, "tie_word_embeddings": true}"#,
    },
    Preset {
        name: "smollm2-135m",
        parameters: 134_515_008,
        description: "SmolLM2 135M of Hugging Face",
        config: r#"{"model_type": "llama", "vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536,
            "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "rms_norm_eps": 1e-5,
            "max_position_embeddings": 8192, "rope_theta": 100000.0, "tie_word_embeddings": true}"#,
    },
    Preset {
        name: "smollm2-360m",
        parameters: 361_821_120,
        description: "SmolLM2 360M of Hugging Face",
        config: r#"{"model_type": "llama", "vocab_size": 49152, "hidden_size": 960, "intermediate_size": 2560,
            "num_hidden_layers": 32, "num_attention_heads": 15, "num_key_value_heads": 5, "rms_norm_eps": 1e-5,
            "max_position_embeddings": 8192, "rope_theta": 100000.0, "tie_word_embeddings": true}"#,
    },
    Preset {
        name: "llama-3.2-1b",
        parameters: 1_235_814_400,
        description: "Llama 3.2 1B of Meta",
        config: r#"{"model_type": "llama", "vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 8192,
            "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64,
            "rms_norm_eps": 1e-5, "max_position_embeddings": 131072, "rope_theta": 500000.0,
            "rope_scaling": {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192}, "tie_word_embeddings": true}"#,
    },
    Preset {
        name: "llama-3.2-3b",
        parameters: 3_212_749_824,
        description: "Llama 3.2 3B of Meta",
        config: r#"{"model_type": "llama", "vocab_size": 128256, "hidden_size": 3072, "intermediate_size": 8192,
            "num_hidden_layers": 28, "num_attention_heads": 24, "num_key_value_heads": 8, "head_dim": 128,
            "rms_norm_eps": 1e-5, "max_position_embeddings": 131072, "rope_theta": 500000.0,
            "rope_scaling": {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192}, "tie_word_embeddings": true}"#,
    },
    Preset {
        name: "llama-3-8b",
        parameters: 8_030_261_248,
        description: "Llama 3 8B of Meta",
        config: r#"{"model_type": "llama", "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336,
            "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-5,
            "max_position_embeddings": 8192, "rope_theta": 500000.0, "tie_word_embeddings": false}"#,
    },
    Preset {
        name: "mistral-7b",
        parameters: 7_241_732_096,
        description: "Mistral 7B v0.1, with its window of 4096 tokens",
        config: r#"{"model_type": "mistral", "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336,
            "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-5,
            "max_position_embeddings": 32768, "rope_theta": 10000.0, "sliding_window": 4096}"#,
    },
    Preset {
        name: "qwen2.5-0.5b",
        parameters: 494_032_768,
        description: "Qwen2.5 0.5B of Alibaba",
        config: r#"{"model_type": "qwen2", "vocab_size": 151936, "hidden_size": 896, "intermediate_size": 4864,
            "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2, "rms_norm_eps": 1e-6,
            "max_position_embeddings": 32768, "rope_theta": 1000000.0, "tie_word_embeddings": true}"#,
    },
    Preset {
        name: "qwen2.5-7b",
        parameters: 7_615_616_512,
        description: "Qwen2.5 7B of Alibaba",
        config: r#"{"model_type": "qwen2", "vocab_size": 152064, "hidden_size": 3584, "intermediate_size": 18944,
            "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4, "rms_norm_eps": 1e-6,
            "max_position_embeddings": 131072, "rope_theta": 1000000.0, "tie_word_embeddings": false}"#,
    },
    Preset {
        name: "qwen3-0.6b",
        parameters: 596_049_920,
        description: "Qwen3 0.6B of Alibaba",
        config: r#"{"model_type": "qwen3", "vocab_size": 151936, "hidden_size": 1024, "intermediate_size": 3072,
            "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
            "rms_norm_eps": 1e-6, "max_position_embeddings": 40960, "rope_theta": 1000000.0,
            "tie_word_embeddings": true}"#,
    },
    Preset {
        name: "qwen3-8b",
        parameters: 8_190_735_360,
        description: "Qwen3 8B of Alibaba",
        config: r#"{"model_type": "qwen3", "vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 12288,
            "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
            "rms_norm_eps": 1e-6, "max_position_embeddings": 40960, "rope_theta": 1000000.0,
            "tie_word_embeddings": false}"#,
    },
    Preset {
        name: "gemma-3-1b",
        parameters: 999_885_952,
        description: "Gemma 3 1B of Google, which reads texts only",
        config: r#"{"model_type": "gemma3_text", "vocab_size": 262144, "hidden_size": 1152, "intermediate_size": 6912,
            "num_hidden_layers": 26, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256,
            "rms_norm_eps": 1e-6, "max_position_embeddings": 32768, "rope_theta": 1000000.0,
            "rope_local_base_freq": 10000.0, "query_pre_attn_scalar": 256, "sliding_window": 512,
            "sliding_window_pattern": 6, "tie_word_embeddings": true}"#,
    },
    Preset {
        name: "phi-3-mini",
        parameters: 3_821_079_552,
        description: "Phi-3 mini of Microsoft, for 4096 tokens",
        config: r#"{"model_type": "phi3", "vocab_size": 32064, "hidden_size": 3072, "intermediate_size": 8192,
            "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32, "rms_norm_eps": 1e-5,
            "max_position_embeddings": 4096, "rope_theta": 10000.0, "sliding_window": 2047,
            "tie_word_embeddings": false}"#,
    },
    Preset {
        name: "gpt2",
        parameters: 124_439_808,
        description: "GPT-2 of OpenAI, the smallest",
        config: r#"{"model_type": "gpt2", "vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_layer": 12,
            "n_head": 12, "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new"}"#,
    },
    Preset {
        name: "pythia-160m",
        parameters: 162_322_944,
        description: "Pythia 160M of EleutherAI",
        config: r#"{"model_type": "gpt_neox", "vocab_size": 50304, "hidden_size": 768, "intermediate_size": 3072,
            "num_hidden_layers": 12, "num_attention_heads": 12, "max_position_embeddings": 2048,
            "layer_norm_eps": 1e-5, "rotary_pct": 0.25, "rotary_emb_base": 10000, "hidden_act": "gelu",
            "use_parallel_residual": true, "tie_word_embeddings": false}"#,
    },
];

/// Every preset, for lists.
///
/// ```
/// let llama = kiln_llm::presets().iter().find(|preset| preset.name == "llama-3.2-1b");
/// assert_eq!(llama.map(|preset| preset.parameters), Some(1_235_814_400));
/// ```
pub fn presets() -> &'static [Preset] {
    PRESETS
}

impl Preset {
    /// The preset of a name.
    pub fn named(name: &str) -> Option<&'static Preset> {
        PRESETS.iter().find(|preset| preset.name.eq_ignore_ascii_case(name))
    }

    /// The preset whose name is nearest to another, if it is near at all.
    pub(crate) fn nearest(name: &str) -> Option<&'static str> {
        let name = name.to_ascii_lowercase();
        // A name with more behind it is that of a trained model (`qwen2.5-0.5b-instruct`), which the preset is not.
        let near = PRESETS.iter().map(|preset| (edits(&name, preset.name), preset.name)).min()?;
        (near.0 <= TYPOS).then_some(near.1)
    }

    /// The members of its `config.json`.
    pub fn fields(&self) -> Result<Fields> {
        Fields::parse(self.config.as_bytes(), self.name)
    }
}

/// So many characters of a name may be wrong for another one to be meant.
const TYPOS: usize = 2;

/// How many characters have to be put in, left out or replaced to make one text the other.
fn edits(one: &str, other: &str) -> usize {
    let mut row: Vec<usize> = (0..=other.chars().count()).collect();
    for (i, a) in one.chars().enumerate() {
        let mut before = std::mem::replace(&mut row[0], i + 1);
        for (j, b) in other.chars().enumerate() {
            let kept = before + usize::from(a != b);
            before = row[j + 1];
            row[j + 1] = kept.min(before + 1).min(row[j] + 1);
        }
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Gemma3Config, Gpt2Config, GptNeoxConfig, LlamaConfig, MistralConfig, Phi3Config};
    use crate::config::{Qwen2Config, Qwen3Config};

    /// Norms, projections and embeddings of a Llama, with what its relatives add in a block.
    fn of_llama(c: &LlamaConfig, more_in_block: usize) -> usize {
        let (width, inner) = (c.hidden_size, c.intermediate_size);
        let (queries, shared) = (c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim);
        let block = 2 * width * queries + 2 * width * shared + 3 * width * inner + 2 * width + more_in_block;
        let tables = if c.tie_word_embeddings { 1 } else { 2 };
        tables * c.vocab_size * width + c.num_hidden_layers * block + width
    }

    #[test]
    fn counts_are_those_of_the_shapes() {
        for preset in PRESETS {
            let fields = preset.fields().unwrap();
            let counted = match fields.text("model_type").unwrap().unwrap() {
                "llama" => of_llama(&LlamaConfig::from_fields(&fields).unwrap(), 0),
                "mistral" => of_llama(&MistralConfig::from_fields(&fields).unwrap().llama, 0),
                "phi3" => of_llama(&Phi3Config::from_fields(&fields).unwrap().llama, 0),
                "qwen2" => {
                    let c = Qwen2Config::from_fields(&fields).unwrap().llama;
                    of_llama(&c, (c.num_attention_heads + 2 * c.num_key_value_heads) * c.head_dim)
                }
                "qwen3" => {
                    let c = Qwen3Config::from_fields(&fields).unwrap().llama;
                    of_llama(&c, 2 * c.head_dim)
                }
                "gemma3_text" => {
                    let c = Gemma3Config::from_fields(&fields).unwrap().llama;
                    of_llama(&c, 2 * c.head_dim + 2 * c.hidden_size)
                }
                "gpt2" => {
                    let c = Gpt2Config::from_fields(&fields).unwrap();
                    let (width, inner) = (c.n_embd, c.n_inner);
                    let block = 4 * width * width + 4 * width + 2 * width * inner + width + inner + 4 * width;
                    (c.vocab_size + c.n_positions) * width + c.n_layer * block + 2 * width
                }
                "gpt_neox" => {
                    let c = GptNeoxConfig::from_fields(&fields).unwrap();
                    let (width, inner) = (c.hidden_size, c.intermediate_size);
                    let block = 4 * width * width + 4 * width + 2 * width * inner + width + inner + 4 * width;
                    2 * c.vocab_size * width + c.num_hidden_layers * block + 2 * width
                }
                other => panic!("{other}"),
            };
            assert_eq!(counted as u64, preset.parameters, "{}", preset.name);
        }
    }

    #[test]
    fn near_names_are_suggested() {
        assert_eq!(Preset::nearest("llama3-8b"), Some("llama-3-8b"));
        assert_eq!(Preset::nearest("Qwen2.5-0.5B-Instruct"), None);
        assert_eq!(Preset::nearest("gpt-2"), Some("gpt2"));
        assert_eq!(Preset::nearest("/some/folder/of/mine"), None);
        assert_eq!(edits("kitten", "sitting"), 3);
        assert!(Preset::named("GPT2").is_some());
    }
}
