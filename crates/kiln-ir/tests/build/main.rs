//! The composites, run by the interpreter.

mod harness;
mod layers;
mod pointwise;
mod products;
mod shapes;
mod writes;
