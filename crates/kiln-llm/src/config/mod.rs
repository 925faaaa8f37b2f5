//! Settings of models: `config.json` and `generation_config.json`, typed, with the defaults that transformers has.

mod bert;
mod fields;
mod generation;
mod llama;
mod vit;

pub use bert::{Activation, BertConfig};
pub use fields::Fields;
pub use generation::GenerationConfig;
pub use llama::{LlamaConfig, RopeScaling};
pub use vit::{VitConfig, VitNames};
