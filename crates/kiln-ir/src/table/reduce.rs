//! What reductions, scans, windows and scatters combine elements with: functions of two operands, from a first value.

use super::{BinaryOp, DTypeClass, named_ops};
use crate::{DType, Scalar};

/// Declares what reductions combine with: `Variant name: function of two operands, dtypes, identity of floats`.
macro_rules! reduce_kinds {
    ($($(#[$doc:meta])* $variant:ident $name:ident: $combine:ident, $class:ident, $identity:expr;)*) => {
        named_ops! {
            /// What a reduction, a scan or a window combines with. Max and Min give NaN if any element is NaN. Bools: Max is
            /// *any*, Min is *all*. An empty Sum is 0, Prod 1, Max the lowest value (−∞), Min the highest (+∞).
            ReduceKind { $($(#[$doc])* $variant = stringify!($name),)* }
        }

        impl ReduceKind {
            /// The function that combines two elements.
            pub const fn combine(self) -> BinaryOp {
                match self { $(ReduceKind::$variant => BinaryOp::$combine,)* }
            }

            /// The dtypes of the operand.
            pub const fn accepts(self) -> DTypeClass {
                match self { $(ReduceKind::$variant => DTypeClass::$class,)* }
            }

            /// The float that combining with leaves an element as it is.
            pub const fn float_identity(self) -> f64 {
                match self { $(ReduceKind::$variant => $identity,)* }
            }
        }
    };
}

reduce_kinds! {
    /// Sum; short floats accumulate in f32.
    Sum sum: Add, Number, 0.0;
    /// Product.
    Prod prod: Mul, Number, 1.0;
    /// Largest.
    Max max: Max, Computable, f64::NEG_INFINITY;
    /// Smallest.
    Min min: Min, Computable, f64::INFINITY;
}

impl ReduceKind {
    /// What combining with leaves an element as it is, which is what a reduction of nothing gives.
    ///
    /// ```
    /// use kiln_ir::{DType, ReduceKind, Scalar};
    /// assert_eq!(ReduceKind::Max.identity(DType::I8), Scalar::int(DType::I8, -128));
    /// assert_eq!(ReduceKind::Min.identity(DType::F32), Scalar::float(DType::F32, f64::INFINITY));
    /// ```
    pub fn identity(self, dtype: DType) -> Scalar {
        let identity = self.float_identity();
        if dtype.is_float() {
            return Scalar::float(dtype, identity);
        }
        let (lowest, highest) = dtype.int_range();
        // To the nearest of the dtype: infinities to its ends.
        Scalar::int(dtype, (identity as i64).clamp(lowest, highest))
    }
}

named_ops! {
    /// How a scatter combines with what is there. With several writes to one place, `Set` keeps the last in row-major order.
    ScatterKind {
        /// Replace.
        Set = "set",
        /// Add.
        Add = "add",
        /// Keep the larger.
        Max = "max",
        /// Keep the smaller.
        Min = "min",
        /// Multiply.
        Mul = "mul",
    }
}

impl ScatterKind {
    /// The reduction that combines with what is there; `None` where it is replaced.
    pub const fn reduction(self) -> Option<ReduceKind> {
        match self {
            ScatterKind::Set => None,
            ScatterKind::Add => Some(ReduceKind::Sum),
            ScatterKind::Max => Some(ReduceKind::Max),
            ScatterKind::Min => Some(ReduceKind::Min),
            ScatterKind::Mul => Some(ReduceKind::Prod),
        }
    }

    /// The dtypes of the operand and the updates.
    pub const fn accepts(self) -> DTypeClass {
        match self.reduction() {
            Some(kind) => kind.accepts(),
            None => DTypeClass::Computable,
        }
    }
}
