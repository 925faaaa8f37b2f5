//! The table of pointwise ops: one row per op, which every other part of the compiler reads.
//!
//! ```text
//!                    ┌─ the enum, the text name, the codec's number      op, text, codec
//!                    ├─ the graph builder                                build
//!  row of an op  ────┼─ dtypes accepted and given                        infer, generate, kernels
//!  (unary, binary,   ├─ meaning on f64 and on integers                   interpret, reference kernels, scalar calls of the CPU
//!   compare, reduce) ├─ cost                                             cost model, the CPU's unrolling
//!                    ├─ derivative                                       differentiate
//!                    └─ tolerance, jumps, domain                         oracle, examples
//! ```
//!
//! A row is found by the op's discriminant; nothing is hashed or searched. The order of the rows is the order of the codec's
//! numbers, so a new row goes to the end.

mod binary;
mod compare;
mod gradient;
mod reduce;
mod unary;

pub use binary::{BinaryOp, BinaryRow, Operand};
pub use compare::CompareOp;
pub use gradient::{Derivative, Gradients, when};
pub use reduce::{ReduceKind, ScatterKind};
pub use unary::{UnaryOp, UnaryRow};

pub(crate) use binary::functions as binary_functions;
pub(crate) use unary::functions as unary_functions;

use crate::DType;

/// Declares an enum of plain op names with `ALL`, `name` and `from_name`.
macro_rules! named_ops {
    ($(#[$meta:meta])* $enum:ident { $($(#[$doc:meta])* $variant:ident = $name:expr,)* }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $enum { $($(#[$doc])* $variant,)* }
        impl $enum {
            /// Every variant, in the order of the declaration.
            pub const ALL: &'static [$enum] = &[$($enum::$variant,)*];
            /// The name in the text form.
            pub const fn name(self) -> &'static str {
                match self { $($enum::$variant => $name,)* }
            }
            /// The variant of that name.
            pub fn from_name(name: &str) -> Option<$enum> {
                Self::ALL.iter().copied().find(|v| v.name() == name)
            }
        }
    };
}
pub(crate) use named_ops;

/// A class of dtypes that an op accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DTypeClass {
    /// Every dtype.
    Any,
    /// Every dtype but those that are only stored.
    Computable,
    /// Floats and integers.
    Number,
    /// Floats.
    Float,
    /// Integers.
    Integer,
    /// Integers and bools.
    Bits,
}

impl DTypeClass {
    /// True if the class has that dtype.
    pub const fn has(self, dtype: DType) -> bool {
        match self {
            DTypeClass::Any => true,
            _ if dtype.is_storage_only() => false,
            DTypeClass::Computable => true,
            DTypeClass::Number => !matches!(dtype, DType::Bool),
            DTypeClass::Float => dtype.is_float(),
            DTypeClass::Integer => dtype.is_int(),
            DTypeClass::Bits => dtype.is_int() || matches!(dtype, DType::Bool),
        }
    }

    /// A common dtype of the class.
    pub const fn example(self) -> DType {
        if matches!(self, DTypeClass::Integer | DTypeClass::Bits) { DType::I32 } else { DType::F32 }
    }

    /// A description of the operands, for errors.
    pub const fn text(self) -> &'static str {
        match self {
            DTypeClass::Any | DTypeClass::Computable => "anything",
            DTypeClass::Number => "a number",
            DTypeClass::Float => "a float",
            DTypeClass::Integer => "an integer",
            DTypeClass::Bits => "an integer or bool",
        }
    }
}
