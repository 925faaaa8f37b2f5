//! The operations of tensors, as methods: each is a primitive op, a view, or a small graph that [`crate::tensor::eager`] runs.

pub(crate) mod assign;
pub(crate) mod expr;
mod functional;
pub(crate) mod gather;
pub mod loss;
mod operators;
pub(crate) mod pointwise;
pub mod product;
pub mod quantized;
mod reduce;
pub(crate) mod views;
