//! The graph floor of Kiln.
//!
//! ```text
//!  frontends ──add──▶ Graph ──▶ passes
//!                     │  ▲
//!              print  ▼  │ parse          verify: every node's type is what its op gives
//!                     text                interpret: plain loops, f64 accumulation
//! ```
//!
//! Invariants: a graph is functional; operands come before their users; every node's type is what [`infer()`] gives.

pub mod blocks;
mod branches;
pub mod build;
pub mod codec;
pub mod decompose;
pub mod dim;
pub mod dtype;
pub mod error;
#[doc(hidden)]
pub mod examples;
pub mod float8;
#[doc(hidden)]
pub mod generate;
pub mod graph;
pub mod host;
pub mod infer;
pub mod interpret;
mod literal;
pub mod op;
mod region;
pub mod scalar;
#[doc(hidden)]
pub mod shrink;
mod source;
mod specialise;
pub mod table;
pub mod text;
pub mod verify;

pub use blocks::BlockFormat;
pub use branches::Branches;
pub use dim::{Dim, Ranges, Symbol};
pub use dtype::DType;
pub use error::{Error, TypeError};
pub use graph::{Graph, Node, NodeId, Output, TensorType};
pub use host::{HostTensor, Mismatch, Tolerance};
pub use infer::infer;
pub use op::{ArgKind, AttentionOperand, Axes, ConvDims, DotDims, Literal, Op, OpKind, WindowDims};
pub use region::Region;
pub use scalar::Scalar;
pub use source::{Function, Source, SourceScope};
pub use table::{BinaryOp, CompareOp, ReduceKind, ScatterKind, UnaryOp};
pub use text::{ParseError, ParseErrorKind};

/// The version of this crate and a digest of its sources: part of every key of the disk cache.
pub const FINGERPRINT: &str = env!("KILN_FINGERPRINT");
