//! Rust types that are elements of tensors, and numbers that can be operands beside a tensor.

use crate::DType;
use half::{bf16, f16};
use kiln_ir::Scalar;

mod sealed {
    pub trait Sealed {}
}

/// A Rust type that a tensor holds: `f32 f64 f16 bf16 i8 i16 i32 i64 u8 bool`.
///
/// ```
/// use kiln::{DType, Element};
/// assert_eq!(f32::DTYPE, DType::F32);
/// assert_eq!(half::bf16::DTYPE, DType::Bf16);
/// ```
pub trait Element: sealed::Sealed + Copy + Send + Sync + 'static {
    /// The dtype.
    const DTYPE: DType;

    /// The number as a scalar of its dtype.
    fn to_scalar(self) -> Scalar;

    /// The number of a scalar, converted as a cast converts.
    fn from_scalar(scalar: Scalar) -> Self;

    /// The bytes that tensors store for these elements.
    fn as_bytes(elements: &[Self]) -> &[u8];

    /// The elements that these bytes store. Bytes beyond the last whole element are ignored.
    fn from_bytes(bytes: &[u8]) -> Vec<Self>;
}

macro_rules! element {
    ($($type:ty, $dtype:ident, $to:expr, $from:expr;)*) => { $(
        impl sealed::Sealed for $type {}
        impl Element for $type {
            const DTYPE: DType = DType::$dtype;
            fn to_scalar(self) -> Scalar {
                $to(self)
            }
            fn from_scalar(scalar: Scalar) -> $type {
                $from(scalar.cast(DType::$dtype))
            }
            fn as_bytes(elements: &[$type]) -> &[u8] {
                // SAFETY: the type has no padding and any of its values is a run of initialised bytes.
                unsafe { std::slice::from_raw_parts(elements.as_ptr().cast(), size_of_val(elements)) }
            }
            fn from_bytes(bytes: &[u8]) -> Vec<$type> {
                let count = bytes.len() / size_of::<$type>();
                let mut elements: Vec<$type> = Vec::with_capacity(count);
                // SAFETY: the capacity holds `count` elements, every bit pattern is one (bools are handled apart).
                unsafe {
                    std::ptr::copy_nonoverlapping(bytes.as_ptr(), elements.as_mut_ptr().cast(), count * size_of::<$type>());
                    elements.set_len(count);
                }
                elements
            }
        }
        impl From<$type> for Number {
            fn from(v: $type) -> Number {
                match v.to_scalar() {
                    Scalar::Float(_, v) => Number::Float(v),
                    Scalar::Int(_, v) => Number::Int(v),
                }
            }
        }
    )* };
}

element! {
    f32, F32, |v| Scalar::Float(DType::F32, v as f64), |s: Scalar| s.as_f64() as f32;
    f64, F64, |v| Scalar::Float(DType::F64, v), Scalar::as_f64;
    f16, F16, |v: f16| Scalar::Float(DType::F16, v.to_f64()), |s: Scalar| f16::from_f64(s.as_f64());
    bf16, Bf16, |v: bf16| Scalar::Float(DType::Bf16, v.to_f64()), |s: Scalar| bf16::from_f64(s.as_f64());
    i8, I8, |v| Scalar::Int(DType::I8, v as i64), |s: Scalar| s.as_i64() as i8;
    i16, I16, |v| Scalar::Int(DType::I16, v as i64), |s: Scalar| s.as_i64() as i16;
    i32, I32, |v| Scalar::Int(DType::I32, v as i64), |s: Scalar| s.as_i64() as i32;
    i64, I64, |v| Scalar::Int(DType::I64, v), Scalar::as_i64;
    u8, U8, |v| Scalar::Int(DType::U8, v as i64), |s: Scalar| s.as_i64() as u8;
}

impl sealed::Sealed for bool {}
impl Element for bool {
    const DTYPE: DType = DType::Bool;
    fn to_scalar(self) -> Scalar {
        Scalar::bool(self)
    }
    fn from_scalar(scalar: Scalar) -> bool {
        scalar.cast(DType::Bool).as_i64() != 0
    }
    fn as_bytes(elements: &[bool]) -> &[u8] {
        // SAFETY: a bool is one byte, 0 or 1.
        unsafe { std::slice::from_raw_parts(elements.as_ptr().cast(), elements.len()) }
    }
    fn from_bytes(bytes: &[u8]) -> Vec<bool> {
        bytes.iter().map(|&b| b != 0).collect()
    }
}

/// A plain number as an operand beside a tensor. Its kind, not its width, takes part in type promotion: see
/// [`crate::promotion`].
///
/// ```
/// use kiln::Number;
/// assert_eq!(Number::from(2.5f32), Number::Float(2.5));
/// assert_eq!(Number::from(3), Number::Int(3));
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Number {
    /// A float.
    Float(f64),
    /// An integer.
    Int(i64),
    /// A bool.
    Bool(bool),
}

impl Number {
    /// Converts the number to a scalar of a dtype, as a cast does.
    pub fn to_scalar(self, dtype: DType) -> Scalar {
        match self {
            Number::Float(v) => Scalar::float(dtype, v),
            Number::Int(v) => Scalar::int(dtype, v),
            Number::Bool(v) => Scalar::int(dtype, v as i64),
        }
    }

    /// Returns the number as f64.
    pub fn as_f64(self) -> f64 {
        match self {
            Number::Float(v) => v,
            Number::Int(v) => v as f64,
            Number::Bool(v) => v as i64 as f64,
        }
    }
}

impl From<bool> for Number {
    fn from(v: bool) -> Number {
        Number::Bool(v)
    }
}

impl From<usize> for Number {
    fn from(v: usize) -> Number {
        i64::try_from(v).map_or(Number::Float(v as f64), Number::Int)
    }
}

impl From<u32> for Number {
    fn from(v: u32) -> Number {
        Number::Int(v.into())
    }
}

/// The bytes that store one scalar.
pub(crate) fn scalar_bytes(scalar: Scalar) -> ([u8; 8], usize) {
    let mut bytes = [0; 8];
    let mut put = |b: &[u8]| {
        bytes[..b.len()].copy_from_slice(b);
        b.len()
    };
    let size = match (scalar.dtype(), scalar) {
        (DType::F32, s) => put(&(s.as_f64() as f32).to_le_bytes()),
        (DType::F64, s) => put(&s.as_f64().to_le_bytes()),
        (DType::F16, s) => put(&f16::from_f64(s.as_f64()).to_le_bytes()),
        (DType::Bf16, s) => put(&bf16::from_f64(s.as_f64()).to_le_bytes()),
        (DType::I16, s) => put(&(s.as_i64() as i16).to_le_bytes()),
        (DType::I32, s) => put(&(s.as_i64() as i32).to_le_bytes()),
        (DType::I64, s) => put(&s.as_i64().to_le_bytes()),
        (d @ (DType::F8E4M3 | DType::F8E5M2), s) => put(&[kiln_ir::float8::encode(d, s.as_f64())]),
        (DType::I8 | DType::U8 | DType::Bool, s) => put(&[s.as_i64() as u8]),
        (DType::I4, s) => put(&[s.as_i64() as u8 & 15]),
    };
    (bytes, size)
}

/// The scalar that these bytes store.
pub(crate) fn scalar_from_bytes(dtype: DType, bytes: [u8; 8]) -> Scalar {
    let [a, b, c, d, ..] = bytes;
    match dtype {
        DType::F32 => Scalar::Float(dtype, f32::from_le_bytes([a, b, c, d]) as f64),
        DType::F64 => Scalar::Float(dtype, f64::from_le_bytes(bytes)),
        DType::F16 => Scalar::Float(dtype, f16::from_le_bytes([a, b]).to_f64()),
        DType::Bf16 => Scalar::Float(dtype, bf16::from_le_bytes([a, b]).to_f64()),
        DType::F8E4M3 | DType::F8E5M2 => Scalar::Float(dtype, kiln_ir::float8::decode(dtype, a)),
        DType::I8 => Scalar::Int(dtype, a as i8 as i64),
        DType::U8 => Scalar::Int(dtype, a as i64),
        DType::Bool => Scalar::Int(dtype, (a != 0) as i64),
        DType::I16 => Scalar::Int(dtype, i16::from_le_bytes([a, b]) as i64),
        DType::I32 => Scalar::Int(dtype, i32::from_le_bytes([a, b, c, d]) as i64),
        DType::I64 => Scalar::Int(dtype, i64::from_le_bytes(bytes)),
        DType::I4 => Scalar::Int(dtype, ((a as i64) << 60) >> 60),
    }
}
