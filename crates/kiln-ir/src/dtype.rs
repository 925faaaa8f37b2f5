//! Element types.

use std::fmt;
use std::str::FromStr;

/// The element type of a tensor.
///
/// ```
/// use kiln_ir::DType;
/// assert_eq!(DType::Bf16.size_in_bits(), 16);
/// assert_eq!("f32".parse::<DType>().unwrap(), DType::F32);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DType {
    /// 32-bit IEEE float.
    F32,
    /// 64-bit IEEE float.
    F64,
    /// 16-bit IEEE float.
    F16,
    /// The upper half of an `F32`.
    Bf16,
    /// 8-bit signed integer.
    I8,
    /// 16-bit signed integer.
    I16,
    /// 32-bit signed integer.
    I32,
    /// 64-bit signed integer; the type of indices.
    I64,
    /// 8-bit unsigned integer.
    U8,
    /// One byte, 0 or 1.
    Bool,
    /// 8-bit float with 4 exponent bits; storage only: cast before computing.
    F8E4M3,
    /// 8-bit float with 5 exponent bits; storage only: cast before computing.
    F8E5M2,
    /// Two signed 4-bit integers per byte, low half first; storage only: cast before computing.
    I4,
}

impl DType {
    /// Every dtype, in the order of the declaration.
    pub const ALL: [DType; 13] = [
        DType::F32,
        DType::F64,
        DType::F16,
        DType::Bf16,
        DType::I8,
        DType::I16,
        DType::I32,
        DType::I64,
        DType::U8,
        DType::Bool,
        DType::F8E4M3,
        DType::F8E5M2,
        DType::I4,
    ];

    /// The name in the text form.
    pub const fn name(self) -> &'static str {
        match self {
            DType::F32 => "f32",
            DType::F64 => "f64",
            DType::F16 => "f16",
            DType::Bf16 => "bf16",
            DType::I8 => "i8",
            DType::I16 => "i16",
            DType::I32 => "i32",
            DType::I64 => "i64",
            DType::U8 => "u8",
            DType::Bool => "bool",
            DType::F8E4M3 => "f8e4m3",
            DType::F8E5M2 => "f8e5m2",
            DType::I4 => "i4",
        }
    }

    /// Bits per element in memory.
    pub const fn size_in_bits(self) -> usize {
        match self {
            DType::F64 | DType::I64 => 64,
            DType::F32 | DType::I32 => 32,
            DType::F16 | DType::Bf16 | DType::I16 => 16,
            DType::I8 | DType::U8 | DType::Bool | DType::F8E4M3 | DType::F8E5M2 => 8,
            DType::I4 => 4,
        }
    }

    /// The smallest and the largest value of an integer type or bool.
    pub const fn int_range(self) -> (i64, i64) {
        match self {
            DType::Bool => (0, 1),
            DType::U8 => (0, 255),
            _ => (i64::MIN >> (64 - self.size_in_bits()), i64::MAX >> (64 - self.size_in_bits())),
        }
    }

    /// Bytes that `elements` packed elements take; `None` on overflow.
    pub const fn bytes_for(self, elements: usize) -> Option<usize> {
        match elements.checked_mul(self.size_in_bits()) {
            Some(bits) => Some(bits.div_ceil(8)),
            None => None,
        }
    }

    /// True for every floating-point type, storage types included.
    pub const fn is_float(self) -> bool {
        matches!(self, DType::F32 | DType::F64 | DType::F16 | DType::Bf16 | DType::F8E4M3 | DType::F8E5M2)
    }

    /// True for the integer types; `Bool` is not one.
    pub const fn is_int(self) -> bool {
        matches!(self, DType::I8 | DType::I16 | DType::I32 | DType::I64 | DType::U8 | DType::I4)
    }

    /// True for types that only casts, views and copies accept.
    pub const fn is_storage_only(self) -> bool {
        matches!(self, DType::F8E4M3 | DType::F8E5M2 | DType::I4)
    }

    /// The type that arithmetic on this type is carried out in inside one kernel: `F32` for the short floats, `I32` for
    /// the short integers, itself otherwise.
    pub const fn compute_type(self) -> DType {
        match self {
            DType::F16 | DType::Bf16 | DType::F8E4M3 | DType::F8E5M2 => DType::F32,
            DType::I8 | DType::I16 | DType::U8 | DType::I4 => DType::I32,
            other => other,
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A dtype name that is not one of [`DType::ALL`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown dtype '{name}'")]
pub struct UnknownDType {
    /// The name as written.
    pub name: String,
}

impl FromStr for DType {
    type Err = UnknownDType;
    fn from_str(s: &str) -> Result<Self, Self::Err> {
        DType::ALL.into_iter().find(|d| d.name() == s).ok_or_else(|| UnknownDType { name: s.to_owned() })
    }
}
