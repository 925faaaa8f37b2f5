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
//! Nothing here is on the way of a call: what it costs is paid by whoever looks.

pub mod bisect;
pub(crate) mod dump;
pub mod explain;
pub mod verify;
pub(crate) mod witness;

pub use bisect::{BisectReport, bisect_passes};
pub use dump::dump;
pub use explain::{Explanation, explain};
pub use verify::{VerifyReport, verify_program};
