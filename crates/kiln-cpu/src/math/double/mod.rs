//! Functions of 64-bit floats.

mod exponential;
mod logarithm;
mod sigmoid;
mod tables;

pub use exponential::*;
pub use logarithm::*;
pub use sigmoid::*;
pub use tables::{ARC, CIRCLE, POWER};
