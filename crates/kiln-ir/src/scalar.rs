//! One number of any dtype, compared and hashed by its bits so that `-0.0`, `0.0` and every NaN are distinct.

use crate::DType;
use half::{bf16, f16};
use std::fmt;

/// A scalar constant. The value is kept exactly as its dtype can represent it.
#[derive(Clone, Copy)]
pub enum Scalar {
    /// A floating-point value, already rounded to the dtype.
    Float(DType, f64),
    /// An integer or bool value, already wrapped to the dtype.
    Int(DType, i64),
}

impl Scalar {
    /// A float value rounded to `dtype`. To an integer type it is truncated and saturated to 64 bits (`I64`) or 32 bits
    /// (the others, which then wrap to their width); NaN becomes 0. This is what [`crate::Op::Cast`] does.
    pub fn float(dtype: DType, value: f64) -> Scalar {
        match dtype {
            DType::F64 => Scalar::Float(dtype, value),
            DType::F32 => Scalar::Float(dtype, value as f32 as f64),
            // Through f32, as hardware and PyTorch do.
            DType::F16 => Scalar::Float(dtype, f16::from_f32(value as f32).to_f64()),
            DType::Bf16 => Scalar::Float(dtype, bf16::from_f32(value as f32).to_f64()),
            DType::F8E4M3 | DType::F8E5M2 => Scalar::Float(dtype, crate::float8::round(dtype, value)),
            DType::Bool => Scalar::Int(dtype, (value != 0.0) as i64),
            DType::I64 => Scalar::Int(dtype, value as i64),
            _ => Scalar::int(dtype, value as i32 as i64),
        }
    }

    /// An integer value wrapped to `dtype`, or converted if `dtype` is a float type.
    pub fn int(dtype: DType, value: i64) -> Scalar {
        match dtype {
            DType::I64 => Scalar::Int(dtype, value),
            DType::I32 => Scalar::Int(dtype, value as i32 as i64),
            DType::I16 => Scalar::Int(dtype, value as i16 as i64),
            DType::I8 => Scalar::Int(dtype, value as i8 as i64),
            DType::U8 => Scalar::Int(dtype, value as u8 as i64),
            DType::I4 => Scalar::Int(dtype, (value << 60) >> 60),
            DType::Bool => Scalar::Int(dtype, (value != 0) as i64),
            DType::F32 => Scalar::Float(dtype, value as f32 as f64),
            _ => Scalar::float(dtype, value as f64),
        }
    }

    /// True or false.
    pub fn bool(value: bool) -> Scalar {
        Scalar::Int(DType::Bool, value as i64)
    }

    /// The dtype.
    pub fn dtype(self) -> DType {
        match self {
            Scalar::Float(d, _) | Scalar::Int(d, _) => d,
        }
    }

    /// The value as f64 (integers beyond 2⁵³ are rounded).
    pub fn as_f64(self) -> f64 {
        match self {
            Scalar::Float(_, v) => v,
            Scalar::Int(_, v) => v as f64,
        }
    }

    /// The value as i64 (floats truncated and saturated).
    pub fn as_i64(self) -> i64 {
        match self {
            Scalar::Float(_, v) => v as i64,
            Scalar::Int(_, v) => v,
        }
    }

    /// The value converted to another dtype, as [`crate::Op::Cast`] converts.
    pub fn cast(self, dtype: DType) -> Scalar {
        match self {
            Scalar::Float(_, v) => Scalar::float(dtype, v),
            Scalar::Int(_, v) => Scalar::int(dtype, v),
        }
    }

    fn bits(self) -> (DType, u64) {
        match self {
            Scalar::Float(d, v) => (d, v.to_bits()),
            Scalar::Int(d, v) => (d, v as u64),
        }
    }
}

impl PartialEq for Scalar {
    fn eq(&self, other: &Self) -> bool {
        self.bits() == other.bits()
    }
}
impl Eq for Scalar {}
impl std::hash::Hash for Scalar {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.bits().hash(state);
    }
}

impl fmt::Display for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Scalar::Int(DType::Bool, v) => write!(f, "{}", v != 0),
            Scalar::Int(_, v) => write!(f, "{v}"),
            Scalar::Float(_, v) if v.is_nan() => {
                // Payload and sign matter only to a bitcast; keep them so that text round-trips.
                if v.to_bits() == f64::NAN.to_bits() {
                    f.write_str("nan")
                } else {
                    write!(f, "nan:{:016x}", v.to_bits())
                }
            }
            Scalar::Float(_, v) if v.is_infinite() => f.write_str(if v > 0.0 { "inf" } else { "-inf" }),
            Scalar::Float(DType::F64, v) => write!(f, "{v:?}"),
            Scalar::Float(_, v) => write!(f, "{:?}", v as f32),
        }
    }
}

impl fmt::Debug for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}{}", self.dtype())
    }
}
