//! kiln-passes.
