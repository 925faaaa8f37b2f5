//! Language models over Kiln: a folder of files comes in, tokens go out.
//!
//! ```text
//!  config.json ─────────────▶ LlamaConfig ─┐
//!  *.safetensors (mapped) ──▶ Checkpoint ──┴▶ Llama ──┐
//!  generation_config.json ──▶ Request ────────────────┴▶ Generator: prefill, then one program a token ──▶ ids
//! ```
//!
//! ```
//! use kiln::Device;
//! use kiln_llm::{Checkpoint, Generator, GeneratorOptions, Llama, LlamaConfig, Request};
//! # fn main() -> kiln_llm::Result<()> {
//! let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/models/stories260K");
//! let config = LlamaConfig::read(folder)?;
//! let model = Llama::load(&config, &Checkpoint::open(folder, Device::Cpu)?, kiln::DType::F32)?;
//! let mut generator = Generator::new(model, GeneratorOptions { context: 64, ..GeneratorOptions::default() })?;
//! let story = generator.generate(&[1, 403, 407, 261, 378], &Request { max_tokens: 3, ..Request::default() })?;
//! assert_eq!(story.ids, [432, 383, 286]);
//! # Ok(())
//! # }
//! ```
//!
//! Invariants: a file is foreign input, so that what it says is checked before it is used; the position of a token is data,
//! never a shape, so that one program serves every position; eager and compiled generation are the same code.

mod cache;
mod chat;
mod checkpoint;
pub mod config;
mod error;
mod generate;
pub mod gguf;
pub mod models;
mod sample;
mod tokenizer;

pub use cache::{KvCache, Places};
pub use chat::{ChatTemplate, Message};
pub use checkpoint::{Checkpoint, Weights};
pub use config::{GenerationConfig, LlamaConfig};
pub use error::{Error, Result};
pub use generate::{Generated, Generator, GeneratorOptions, Request, Stop};
pub use gguf::Gguf;
pub use models::Llama;
pub use sample::{Rule, Sampler, Sampling};
pub use tokenizer::{DecodeStream, Tokenizer, TokenizerError};
