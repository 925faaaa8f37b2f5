//! The expressions of ATen ops, one row an op or a few alike.

mod attention;
mod complex;
mod core;
mod create;
mod index;
mod norm;
mod pointwise;
mod pool;
mod product;
mod random;
mod reduce;
mod sample;
mod special;
mod view;

use crate::Element;
use crate::call::{Context, Results};
use std::collections::HashMap;
use std::sync::LazyLock;

/// The expression of one or more ops.
pub struct Row {
    /// The ops.
    pub ops: &'static [&'static str],
    /// A description of the expression; functions and primitives in backticks.
    pub text: &'static str,
    /// The expression.
    pub build: fn(&mut Context) -> Results,
}

/// Every row.
pub fn rows() -> impl Iterator<Item = &'static Row> {
    [
        view::ROWS,
        create::ROWS,
        pointwise::ROWS,
        reduce::ROWS,
        index::ROWS,
        product::ROWS,
        complex::ROWS,
        norm::ROWS,
        pool::ROWS,
        sample::ROWS,
        attention::ROWS,
        random::ROWS,
        core::ROWS,
        special::ROWS,
    ]
    .into_iter()
    .flatten()
}

/// Whether an op may have tensors of numbers that Kiln stores and does not compute with: it moves elements, or has no use for them.
pub(crate) fn takes_storage(op: &str, elements: &[Element]) -> bool {
    let is_of = |rows: &[Row]| rows.iter().any(|row| row.ops.contains(&op));
    is_of(attention::ROWS) || (is_of(view::ROWS) && elements.windows(2).all(|pair| pair[0] == pair[1]))
}

/// The row of an op.
pub fn find(op: &str) -> Option<&'static Row> {
    static ROWS: LazyLock<HashMap<&'static str, &'static Row>> =
        LazyLock::new(|| rows().flat_map(|row| row.ops.iter().map(move |op| (*op, row))).collect());
    ROWS.get(op).copied()
}
