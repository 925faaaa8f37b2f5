//! Functions of 32-bit floats. No 64-bit vector occurs in them: it would halve the lanes of the whole kernel.

mod exponential;
mod gamma;
mod logarithm;
mod sigmoid;
mod tables;

pub use exponential::*;
pub use gamma::*;
pub use logarithm::*;
pub use sigmoid::*;
pub use tables::{ARC, CIRCLE, POWER};
