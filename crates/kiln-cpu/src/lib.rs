//! kiln-cpu.
