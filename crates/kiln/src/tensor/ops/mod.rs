//! The operations of tensors, as methods: each is a primitive op, a view, or a small graph that [`crate::tensor::eager`] runs.

pub(crate) mod assign;
mod distance;
pub(crate) mod expr;
pub mod fft;
mod functional;
pub(crate) mod gather;
pub mod loss;
mod operators;
pub(crate) mod pointwise;
mod pooling;
pub mod product;
pub mod quantized;
pub(crate) mod rearrange;
mod reduce;
mod sample;
mod search;
mod special;
mod statistics;
pub(crate) mod views;
