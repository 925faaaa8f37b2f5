//! Language models over Kiln: a folder of files comes in, tokens go out.
//!
//! ```text
//!  config.json ─────────────▶ Fields ──────┐
//!  *.safetensors (mapped) ──▶ Weights ─────┴▶ CausalLm ─┐
//!  generation_config.json ──▶ Request ──────────────────┴▶ Generator: prefill, then one program a token ──▶ ids
//! ```
//!
//! ```
//! use kiln_llm::{Generator, GeneratorOptions, OpenOptions, Request};
//! # fn main() -> kiln_llm::Result<()> {
//! # let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/models/stories260K");
//! let opened = kiln_llm::open(folder, &OpenOptions::default())?;
//! let options = GeneratorOptions { context: 64, ..GeneratorOptions::default() };
//! let mut generator = Generator::new(opened.model, options)?;
//! let story = generator.generate(&[1, 403, 407, 261, 378], &Request { max_tokens: 3, ..Request::default() })?;
//! assert_eq!(story.ids, [432, 383, 286]);
//! # Ok(())
//! # }
//! ```
//!
//! Invariants: a file is foreign input, so that what it says is checked before it is used; the position of a token is data,
//! never a shape, so that one program serves every position; eager and compiled generation are the same code.

pub mod cache;
mod chat;
mod checkpoint;
pub mod config;
mod encode;
mod engine;
mod error;
mod generate;
pub mod gguf;
pub mod layers;
pub mod models;
pub mod open;
mod presets;
mod random;
mod sample;
mod save;
mod text;
mod tokenizer;
pub mod vision;
mod weights;

pub use cache::{KvCache, Mask, Step, Window};
pub use chat::{ChatTemplate, Message};
pub use checkpoint::Checkpoint;
pub use config::{GenerationConfig, LlamaConfig};
pub use encode::{Embedder, EmbedderOptions, Pool, Pooling, similarity};
pub use engine::{Engine, EngineOptions, Event, Id};
pub use error::{Error, Result};
pub use generate::{Generated, Generator, GeneratorOptions, Padding, Request, Stop};
pub use gguf::Gguf;
pub use models::{CausalLm, Llama, Rotation, Sizes};
pub use open::{OpenOptions, Opened, embedded, generate, open};
pub use presets::{PRESETS, Preset, presets};
pub use sample::{Numbers, Rule, Sampler, Sampling};
pub use text::TextStream;
pub use tokenizer::{DecodeStream, Tokenizer, TokenizerError};
pub use vision::{Class, Classifier, ClassifierOptions, Image};
pub use weights::{OnProgress, Progress, Weights};
