//! Differential tests of whole *functions*: the same program called as it is and compiled, call after call.
//!
//! A [`Program`] is a small function over the public API of tensors and variables: it reads elements and decides by them, has
//! disabled parts, variables of its own and others, snapshots, updates, gradients, random numbers, loops, nested compiled functions, and is called several times
//! with other data, sizes and settings. [`generate()`] makes one of a seed, [`compare`] runs it both ways and compares everything
//! that can be seen after each call, [`shrink()`] makes a program that fails smaller. Programs print as Rust that reads well.
//!
//! Every number that a program computes is an integer: inputs are, products are clamped, and nothing divides. Sums and products of
//! integers are exact in any order as long as they stay below 2²⁴ (f32) or 2⁵³ (f64), so both ways must agree bit for bit. A
//! program in f32 that does not is asked again in f64: an answer that is right there was rounding, and is not counted.
//!
//! ```
//! use kiln_oracle::functions::{compare, generate};
//! let program = generate(7);
//! compare(&program).unwrap_or_else(|difference| panic!("{difference}\n{program}"));
//! ```

mod compare;
mod generate;
mod print;
mod program;
mod run;
mod shrink;

pub use compare::{Difference, compare};
pub use generate::{generate, generate_plain, generate_with_variables};
pub use program::{
    Binary, Block, Call, Choices, Expression, HELD_VARIABLES, Program, Statement, Tapes, Test, Unary, ValueNumber,
};
pub use shrink::shrink;
