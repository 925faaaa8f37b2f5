//! Comparisons.

use super::named_ops;
use crate::Scalar;

/// Declares the comparisons: `Variant name: meaning, the comparison with the operands exchanged, the one that is true where this one
/// is false`.
macro_rules! compare_ops {
    ($($(#[$doc:meta])* $variant:ident $name:ident: $operator:tt, $mirrored:ident, $negated:ident;)*) => {
        named_ops! {
            /// Comparisons of two operands of one dtype and shape; the result is `Bool`. Comparisons with NaN are false but `Ne`.
            CompareOp { $($(#[$doc])* $variant = stringify!($name),)* }
        }

        impl CompareOp {
            /// Whether it holds.
            #[inline]
            pub fn holds<T: PartialOrd>(self, x: T, y: T) -> bool {
                match self { $(CompareOp::$variant => x $operator y,)* }
            }

            /// The comparison that gives the same with the operands exchanged.
            pub const fn mirrored(self) -> CompareOp {
                match self { $(CompareOp::$variant => CompareOp::$mirrored,)* }
            }

            /// The comparison that is true where this one is false; of floats only for `Eq` and `Ne`, as no order holds with NaN.
            pub const fn negated(self) -> CompareOp {
                match self { $(CompareOp::$variant => CompareOp::$negated,)* }
            }
        }
    };
}

compare_ops! {
    /// x = y.
    Eq eq: ==, Eq, Ne;
    /// x ≠ y.
    Ne ne: !=, Ne, Eq;
    /// x < y.
    Lt lt: <, Gt, Ge;
    /// x ≤ y.
    Le le: <=, Ge, Gt;
    /// x > y.
    Gt gt: >, Lt, Le;
    /// x ≥ y.
    Ge ge: >=, Le, Lt;
}

impl CompareOp {
    /// Whether it holds for two numbers of one dtype.
    pub fn eval(self, x: Scalar, y: Scalar) -> bool {
        match (x, y) {
            (Scalar::Float(_, x), Scalar::Float(_, y)) => self.holds(x, y),
            _ => self.holds(x.as_i64(), y.as_i64()),
        }
    }
}
