//! Language models over Kiln: a folder of files comes in, text goes out.
//!
//! ```text
//!  config.json ────────────▶ Fields ──┐
//!  *.safetensors, *.gguf ──▶ Weights ─┴▶ CausalLm ──┬▶ Generator   one text, or a batch of them
//!  tokenizer.json ─────────▶ Tokenizer ─────────────┤              a program a bucket of prompts, one for all further tokens
//!  generation_config.json ─▶ Request ───────────────┴▶ Engine      texts that come and go, over pages
//!
//!  a pass:  tokens, positions ─▶ Step ─▶ model.hidden ─▶ model.logits ─▶ sampling ─▶ tokens     all one program
//!                                  └ rotations, masks, attention over the KvCache, which is written in place
//! ```
//!
//! ```
//! use kiln_llm::{GeneratorOptions, OpenOptions, Request};
//! use std::ops::ControlFlow;
//! # fn main() -> kiln_llm::Result<()> {
//! # let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/models/stories260K");
//! let opened = kiln_llm::open(folder, &OpenOptions::default())?;
//! let mut generator = opened.generator(GeneratorOptions::default())?;
//! let request = Request { max_tokens: 10, ..opened.request() };
//! let story = generator.generate_text("Once upon a time", &request, |piece| {
//!     print!("{piece}");
//!     ControlFlow::Continue(())
//! })?;
//! assert_eq!(story.text, ", there was a little girl named Lily");
//! # Ok(())
//! # }
//! ```
//!
//! Invariants: a file is foreign input, so that what it says is checked before it is used; the position of a token is data,
//! never a shape, so that one program serves every position; eager and compiled generation are the same code.

#![forbid(unsafe_code)]

pub mod cache;
mod chat;
mod checkpoint;
pub mod config;
mod conversation;
mod encode;
mod engine;
mod error;
mod files;
mod generate;
pub mod gguf;
mod hub;
mod jinja;
pub mod layers;
pub mod models;
pub mod open;
mod presets;
mod quantize;
mod random;
mod sample;
mod save;
mod text;
pub mod time;
mod tokenizer;
pub mod vision;
mod weight_files;
mod weights;

pub use cache::{KvCache, Mask, Step, Window};
pub use chat::{ChatTemplate, Message};
pub use checkpoint::Checkpoint;
pub use config::{GenerationConfig, LlamaConfig};
pub use conversation::Conversation;
pub use encode::{Embedder, EmbedderOptions, Pool, Pooling, similarity};
pub use engine::{Engine, EngineOptions, Event, Id};
pub use error::{Error, Result};
pub use generate::{Cancel, DecodeStep, Generated, Generator, GeneratorOptions, Padding, Request, STEPS_AHEAD, Stop};
pub use gguf::Gguf;
pub use jinja::{Limit, TemplateError};
pub use models::{CausalLm, Facts, Llama, Rotation, Sizes};
pub use open::{OpenOptions, Opened, Origin, embedded, generate, locate, open};
pub use presets::{PRESETS, Preset, presets};
pub use quantize::{UnknownWeightFormat, WeightFormat};
pub use sample::{Numbers, Rule, Sampler, Sampling};
pub use text::TextStream;
pub use tokenizer::{DecodeStream, Tokenizer, TokenizerError};
pub use vision::{Class, Classifier, ClassifierOptions, Image};
pub use weight_files::OtherWeights;
pub use weights::{OnProgress, Progress, Weights};

/// The Rust of the guide to models.
#[cfg(doctest)]
#[doc = include_str!("../guide.md")]
mod guide {}
