//! Seeing what the compiler did, and whether it was right.
//!
//! ```text
//!  KILN_LOG    ──▶ events as they happen                                  (kiln_runtime::event)
//!  KILN_DEBUG  ──▶ a folder a program: graphs, kernels, code, memory      dump (kiln::pipeline)
//!  explain     ──▶ one text or page: all of it with measured times        explain
//!  verify      ──▶ each kernel against the interpreter; the first wrong   verify
//!  bisect      ──▶ each pass against the interpreter; the first wrong     bisect
//! ```
//!
//! Nothing here is on the way of a call: what it costs is paid by whoever looks.

pub mod bisect;
pub mod explain;
pub mod verify;

pub use crate::capture::explain;
pub use bisect::{BisectReport, bisect_passes};
pub use explain::Explanation;
pub use verify::{VerifyReport, verify_program};

use crate::CompiledGraph;
use kiln_ir::Source;
use std::io;
use std::path::{Path, PathBuf};

/// Writes everything about a program to a new folder within `into`, which is made if need be: graphs after each pass, kernels,
/// vector IR, machine code and memory. `KILN_DEBUG=1` does this for every program made.
///
/// ```
/// use kiln::ir::Graph;
/// let graph = Graph::parse("graph(%0: f32[8]) {
///   %1: f32[8] = exp %0
///   return %1
/// }").unwrap();
/// let compiled = kiln::compile_graph(&graph, &[])?;
/// let folder = kiln::inspect::dump(&compiled, &std::env::temp_dir().join("kiln_debug_example")).unwrap();
/// assert!(folder.join("index.txt").is_file());
/// # std::fs::remove_dir_all(folder.parent().unwrap()).unwrap();
/// # Ok::<(), kiln::Error>(())
/// ```
pub fn dump(compiled: &CompiledGraph, into: &Path) -> io::Result<PathBuf> {
    crate::pipeline::dump::dump(&compiled.unit(&Source::default()), compiled.program(), compiled.passes_took(), into)
}
