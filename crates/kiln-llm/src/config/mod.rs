//! Settings of models: `config.json` and `generation_config.json`, typed, with the defaults that transformers has.

mod activation;
mod bert;
mod fields;
mod gemma3;
mod generation;
mod gpt2;
mod gpt_neox;
mod llama;
mod mistral;
mod phi3;
mod qwen;
mod rope;
mod settings;
mod vit;

pub use activation::Activation;
pub use bert::BertConfig;
pub use fields::Fields;
pub use gemma3::Gemma3Config;
pub use generation::GenerationConfig;
pub use gpt_neox::GptNeoxConfig;
pub use gpt2::Gpt2Config;
pub use llama::LlamaConfig;
pub use mistral::MistralConfig;
pub use phi3::Phi3Config;
pub use qwen::{Qwen2Config, Qwen3Config};
pub use rope::{Rope, RopeScaling};
pub use vit::{VitConfig, VitNames};
