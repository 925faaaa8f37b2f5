//! Compiling functions: [`capture`] records a function once and guards what it assumed, [`freeze`] computes what depends on
//! weights alone ahead of the calls, [`buckets`] pads arguments to a few sizes, and `inspect` explains and verifies what
//! was compiled.

pub mod buckets;
pub mod capture;
pub mod freeze;
pub(crate) mod inspect;

pub use crate::tensor::compiled_graph::{CompiledGraph, compile_graph};
