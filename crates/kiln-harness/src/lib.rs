//! The benchmark, self-test and fuzzing harness: `kiln bench`, `kiln selftest` and `kiln fuzz`.
//!
//! ```text
//!  bench     cases, models and peers ──▶ turns ──▶ Record a mode of a side ──▶ table, JSON lines, page with plots
//!  selftest  groups of graphs and programs ──▶ differential tests on this machine ──▶ a line a group
//!  fuzz      random graphs, functions, texts, files, cache entries ──▶ the first that breaks something, shrunk
//! ```
//!
//! Each module has the options of its command (`Arguments`) and what it does (`run`); the `kiln` command dispatches to them.
//!
//! - Every side of a benchmark takes turns with the others in one run; ratios are never of two runs.
//! - A side that fails, and a mode of Kiln whose results differ from eager, fail the command.

#![warn(clippy::print_stdout, clippy::print_stderr)]

#[macro_use]
extern crate kiln_terminal;

pub mod bench;
pub mod fuzz;
pub mod selftest;

mod models;
