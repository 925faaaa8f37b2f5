//! Gradients against finite differences in f64, for every op, for composites and for random graphs; against PyTorch, for two
//! small networks; and the conventions that finite differences cannot check.

mod composites;
mod conventions;
mod finite;
mod ops;
mod pytorch;
mod random;
