//! Arithmetic laws that hold to the last bit. Each rule says why it holds for NaN, infinities and both zeros; where two NaNs
//! differ only in sign or payload they count as equal, as IEEE 754 leaves those open.
//!
//! What looks right and is not, and so is absent: `x·0` (NaN, ∞, −x), `x − x` and `x / x` (NaN, ∞), `x + 0` (−0 becomes +0),
//! `0 − x` as `−x` (+0), `−(x − y)` as `y − x` (zero's sign), `pow(x, ½)` as `√x` (−0, −∞), `x·(1/y)` as `x / y` (two
//! roundings), `¬(x < y)` as `x ≥ y` (NaN), and any change to the order of float additions or products.

mod binary;
mod cast;
mod compare;
mod reduce;
mod select;
mod unary;

use crate::rewrite::{Found, Rewriter, rewrite};
use crate::{Options, Rewritten};
use kiln_ir::{Error, Graph, Node, Op};

/// The pass.
pub(crate) fn run(graph: Graph, _: &Options) -> Result<Rewritten, Error> {
    rewrite(graph, rule)
}

fn rule(rw: &mut Rewriter, node: &Node) -> Found {
    match &node.op {
        Op::Unary(op) => unary::rule(rw, node, *op),
        Op::Binary(op) => binary::rule(rw, node, *op),
        Op::Compare(op) => compare::rule(rw, node, *op),
        Op::Select => select::rule(rw, node),
        Op::Cast(to) => cast::cast(rw, node, *to),
        Op::Bitcast(to) => cast::bitcast(rw, node, *to),
        Op::Reduce { kind, axes } => reduce::reduce(rw, node, *kind, axes),
        Op::ArgReduce { axis, .. } | Op::SortIndices { axis, .. } => reduce::index_of_one(rw, node, *axis),
        _ => Ok(None),
    }
}
