//! Differential tests: the reference interpreter is the oracle that eager and compiled programs are compared with.
//!
//! ```text
//!  Graph, inputs ──▶ interpreter, eager, compiled or frozen ──▶ compare within the error bounds ──▶ Agreement or Disagreement
//!  seed ──▶ a random function ──▶ called as it is and compiled, call after call ──▶ equal to the bit, or a Difference
//! ```
//!
//! Tests, the fuzzer and `kiln selftest` supply graphs and functions. The tolerance of a graph's results is the error bound
//! of [`kiln_inspect::bounds`]; how many elements were compared is counted ([`Tally`]).
//!
//! ```
//! use kiln_ir::{Graph, HostTensor};
//! let graph = Graph::parse("graph(%0: f32[2]) {
//!   %1: f32[2] = exp %0
//!   return %1
//! }").unwrap();
//! let x = HostTensor::from_slice(&[2], &[0f32, 1.0]).unwrap();
//! let agreement = kiln_oracle::compare(&graph, &[x], &Default::default()).unwrap();
//! assert_eq!((agreement.compared, agreement.undecided), (4, 0));
//! ```

mod compare;
pub mod functions;
mod layouts;
mod tally;

pub use compare::{Agreement, Candidate, Config, Disagreement, Failure, Skipped, ask, compare};
pub use layouts::LayoutChoice;
pub use tally::Tally;
