//! kiln-ir.
