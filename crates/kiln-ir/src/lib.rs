//! kiln-ir.

pub mod dim;
pub use dim::{Dim, Ranges, Symbol};
