//! Graphs of PyTorch's ATen ops → Kiln graphs. No Python is needed: whoever captures a graph (a `torch.compile` backend, a reader
//! of `torch.export` files) describes it as an [`AtenGraph`].
//!
//! ```text
//!  AtenGraph ──import──▶ Imported: Graph, where its inputs come from, how its outputs lie in memory
//!      │                     ▲
//!      └─ each Call ──row────┘   rows: one an op, its name, its documentation and its expression over kiln_ir::build
//! ```
//!
//! - Values are functional. A `copy_` into an input is an update of it; no other op may write.
//! - Every result is compared with the dtype and the sizes that PyTorch found: an expression that gives something else is an
//!   error, never a wrong answer.
//! - An op without a row, or a call that a row does not cover, is named by [`Error`], so that the caller can run it elsewhere.

mod call;
mod error;
mod expression;
mod graph;
mod import;
mod layout;
mod promote;
pub mod rows;

pub use call::{Context, Results, Value};
pub use error::Error;
pub use expression::{ExpressionError, parse_size};
pub use graph::{Argument, AtenGraph, Call, Element, Meta, ValueId};
#[doc(hidden)]
pub use import::last_call;
pub use import::{Imported, InputFrom, OutputFrom, import, unsupported};
pub use layout::StoredAs;
pub use rows::{Row, rows};
