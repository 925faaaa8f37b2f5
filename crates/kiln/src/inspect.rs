//! Seeing what the compiler did, and whether it was right.
//!
//! ```text
//!  KILN_LOG    ──▶ events as they happen                                  (kiln_runtime::event)
//!  KILN_DEBUG  ──▶ a folder a program: graphs, kernels, code, memory      dump
//!  explain     ──▶ one text or page: all of it with measured times        explain
//!  verify      ──▶ each kernel against the interpreter; the first wrong   verify
//!  bisect      ──▶ each pass against the interpreter; the first wrong     bisect
//! ```
//!
//! The work is done by [`kiln_inspect`], which knows graphs and programs; the functions here take tensors.

pub use crate::compile::capture::explain;
pub use crate::compile::inspect::{bisect_passes, bisect_stages, dump, to_host, verify_program};
pub use kiln_inspect::{BisectReport, Deviation, Explanation, VerifyReport, bisect, explain, verify};
