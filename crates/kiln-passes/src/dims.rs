//! What can be proven of sizes. Every symbol of a graph is a size, so none is negative.

use kiln_ir::{Dim, Ranges};

/// Provably `a ≥ b`.
pub(crate) fn at_least(a: &Dim, b: &Dim) -> bool {
    let difference = a - b;
    if let Some(n) = difference.as_const() {
        return n >= 0;
    }
    let mut sizes = Ranges::new();
    difference.symbols().into_iter().for_each(|symbol| sizes.set(symbol, 0, None));
    difference.bounds(&sizes).0.is_some_and(|lowest| lowest >= 0)
}

/// The index after the last one that a slice of a non-empty axis touches.
pub(crate) fn slice_end(start: &Dim, size: &Dim, step: i64) -> Dim {
    start + (size - 1) * step + 1
}
