//! Architectures, each a file.

pub mod llama;

pub use llama::Llama;
