//! A tensor in plain host memory: the inputs and outputs of the reference interpreter, and what tests compare. Elements are
//! packed little-endian in row-major order, exactly as a [`Literal`] holds them.

mod compare;

pub use compare::{Mismatch, Tolerance};

use crate::{DType, Literal, Scalar, float8};
use half::{bf16, f16};
use std::fmt;

/// A dense tensor of any dtype in host memory.
///
/// ```
/// use kiln_ir::{DType, HostTensor};
/// let x = HostTensor::from_f64(DType::Bf16, &[2, 2], &[1.0, 2.0, 3.0, 4.1]).unwrap();
/// assert_eq!(x.get_f64(3), 4.09375);
/// assert_eq!(x.bytes().len(), 8);
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct HostTensor {
    dtype: DType,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

/// An error of making or reading a host tensor.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HostError {
    /// The number of elements or bytes given is not what the shape takes.
    #[error("{dtype}{shape:?} takes {expected} {unit}, not {got}")]
    Length {
        /// Element type.
        dtype: DType,
        /// Sizes.
        shape: Vec<usize>,
        /// `elements` or `bytes`.
        unit: &'static str,
        /// The expected number.
        expected: usize,
        /// The number given.
        got: usize,
    },
    /// The shape has more elements than can be addressed or allocated.
    #[error("{dtype}{shape:?} does not fit into memory")]
    TooLarge {
        /// Element type.
        dtype: DType,
        /// Sizes.
        shape: Vec<usize>,
    },
    /// The elements were read as another type than they are.
    #[error("a tensor of {got} was read as {expected}")]
    WrongDType {
        /// The requested dtype.
        expected: DType,
        /// The dtype of the tensor.
        got: DType,
    },
}

/// A Rust type that is the element of some dtype.
pub trait Element: Copy {
    /// The dtype.
    const DTYPE: DType;
    /// Appends the little-endian bytes.
    fn write(self, bytes: &mut Vec<u8>);
    /// Reads from exactly as many bytes as the dtype has.
    fn read(bytes: &[u8]) -> Self;
}

macro_rules! element {
    ($($ty:ty = $dtype:ident,)*) => {$(
        impl Element for $ty {
            const DTYPE: DType = DType::$dtype;
            fn write(self, bytes: &mut Vec<u8>) {
                bytes.extend_from_slice(&self.to_le_bytes());
            }
            fn read(bytes: &[u8]) -> Self {
                let mut raw = [0; size_of::<$ty>()];
                raw.copy_from_slice(bytes);
                <$ty>::from_le_bytes(raw)
            }
        }
    )*};
}

element! { f32 = F32, f64 = F64, f16 = F16, bf16 = Bf16, i8 = I8, i16 = I16, i32 = I32, i64 = I64, u8 = U8, }

impl Element for bool {
    const DTYPE: DType = DType::Bool;
    fn write(self, bytes: &mut Vec<u8>) {
        bytes.push(self as u8);
    }
    fn read(bytes: &[u8]) -> Self {
        bytes[0] != 0
    }
}

/// An empty vector with room for `n` elements, or nothing when memory does not allow it.
pub(crate) fn try_with_capacity<T>(n: usize) -> Option<Vec<T>> {
    let mut v = Vec::new();
    v.try_reserve_exact(n).ok()?;
    Some(v)
}

/// `n` copies of a value, or nothing when memory does not allow it.
pub(crate) fn try_filled<T: Clone>(n: usize, value: T) -> Option<Vec<T>> {
    let mut v = try_with_capacity(n)?;
    v.resize(n, value);
    Some(v)
}

/// The number of elements of a shape, if it can be addressed.
pub(crate) fn element_count(shape: &[usize]) -> Option<usize> {
    if shape.contains(&0) {
        return Some(0);
    }
    shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d)).filter(|&n| isize::try_from(n).is_ok())
}

impl HostTensor {
    /// From packed little-endian bytes in row-major order.
    pub fn from_bytes(dtype: DType, shape: &[usize], bytes: Vec<u8>) -> Result<HostTensor, HostError> {
        let expected = element_count(shape)
            .and_then(|n| dtype.bytes_for(n))
            .ok_or_else(|| HostError::TooLarge { dtype, shape: shape.to_vec() })?;
        if bytes.len() != expected {
            let got = bytes.len();
            return Err(HostError::Length { dtype, shape: shape.to_vec(), unit: "bytes", expected, got });
        }
        Ok(HostTensor { dtype, shape: shape.to_vec(), bytes })
    }

    /// From elements in row-major order, each rounded to `dtype` as [`Scalar::float`] does.
    pub fn from_f64(dtype: DType, shape: &[usize], values: &[f64]) -> Result<HostTensor, HostError> {
        let mut bytes = Self::room(dtype, shape, values.len())?;
        macro_rules! write_all {
            ($convert:expr) => {
                values.iter().for_each(|&v| bytes.extend_from_slice(&$convert(v).to_le_bytes()))
            };
        }
        match dtype {
            DType::F32 => write_all!(|v| v as f32),
            DType::F64 => write_all!(|v: f64| v),
            DType::F16 => write_all!(|v| f16::from_f32(v as f32)),
            DType::Bf16 => write_all!(|v| bf16::from_f32(v as f32)),
            DType::I8 => write_all!(|v| v as i32 as i8),
            DType::I16 => write_all!(|v| v as i32 as i16),
            DType::I32 => write_all!(|v| v as i32),
            DType::I64 => write_all!(|v| v as i64),
            DType::U8 => write_all!(|v| v as i32 as u8),
            DType::Bool => write_all!(|v: f64| (v != 0.0) as u8),
            DType::F8E4M3 | DType::F8E5M2 => write_all!(|v| float8::encode(dtype, v)),
            DType::I4 => bytes.extend(values.chunks(2).map(|p| pack_i4(p.iter().map(|&v| v as i32 as i64)))),
        }
        Ok(HostTensor { dtype, shape: shape.to_vec(), bytes })
    }

    /// From elements in row-major order, each wrapped (or converted) to `dtype` as [`Scalar::int`] does.
    pub fn from_i64(dtype: DType, shape: &[usize], values: &[i64]) -> Result<HostTensor, HostError> {
        let mut bytes = Self::room(dtype, shape, values.len())?;
        macro_rules! write_all {
            ($convert:expr) => {
                values.iter().for_each(|&v| bytes.extend_from_slice(&$convert(v).to_le_bytes()))
            };
        }
        match dtype {
            DType::F32 => write_all!(|v| v as f32),
            DType::F64 => write_all!(|v| v as f64),
            DType::F16 => write_all!(|v| f16::from_f32(v as f64 as f32)),
            DType::Bf16 => write_all!(|v| bf16::from_f32(v as f64 as f32)),
            DType::I8 => write_all!(|v| v as i8),
            DType::I16 => write_all!(|v| v as i16),
            DType::I32 => write_all!(|v| v as i32),
            DType::I64 => write_all!(|v: i64| v),
            DType::U8 => write_all!(|v| v as u8),
            DType::Bool => write_all!(|v| (v != 0) as u8),
            DType::F8E4M3 | DType::F8E5M2 => write_all!(|v| float8::encode(dtype, v as f64)),
            DType::I4 => bytes.extend(values.chunks(2).map(|p| pack_i4(p.iter().copied()))),
        }
        Ok(HostTensor { dtype, shape: shape.to_vec(), bytes })
    }

    /// From elements of a Rust type, whose dtype it takes.
    pub fn from_slice<T: Element>(shape: &[usize], values: &[T]) -> Result<HostTensor, HostError> {
        let mut bytes = Self::room(T::DTYPE, shape, values.len())?;
        values.iter().for_each(|v| v.write(&mut bytes));
        Ok(HostTensor { dtype: T::DTYPE, shape: shape.to_vec(), bytes })
    }

    /// A tensor with one value everywhere.
    pub fn full(shape: &[usize], value: Scalar) -> Result<HostTensor, HostError> {
        let dtype = value.dtype();
        let too_large = || HostError::TooLarge { dtype, shape: shape.to_vec() };
        let one = match value {
            Scalar::Float(dtype, v) => HostTensor::from_f64(dtype, &[1], &[v])?,
            Scalar::Int(dtype, v) => HostTensor::from_i64(dtype, &[1], &[v])?,
        };
        let n = element_count(shape).ok_or_else(too_large)?;
        let len = dtype.bytes_for(n).ok_or_else(too_large)?;
        let bytes = match (&one.bytes[..], dtype) {
            (&[byte], DType::I4) => {
                let mut bytes = try_filled(len, byte & 0xf | byte << 4).ok_or_else(too_large)?;
                if let (1, Some(last)) = (n % 2, bytes.last_mut()) {
                    *last &= 0xf;
                }
                bytes
            }
            (&[byte], _) => try_filled(len, byte).ok_or_else(too_large)?,
            (pattern, _) => {
                let mut bytes = try_with_capacity(len).ok_or_else(too_large)?;
                (0..n).for_each(|_| bytes.extend_from_slice(pattern));
                bytes
            }
        };
        Ok(HostTensor { dtype, shape: shape.to_vec(), bytes })
    }

    /// A tensor of zeros (or false).
    pub fn zeros(dtype: DType, shape: &[usize]) -> Result<HostTensor, HostError> {
        HostTensor::full(shape, Scalar::int(dtype, 0))
    }

    /// A tensor of rank 0.
    pub fn scalar(value: Scalar) -> HostTensor {
        HostTensor::full(&[], value).expect("one element fits into memory")
    }

    /// From a constant of a graph.
    pub fn from_literal(literal: &Literal) -> Result<HostTensor, HostError> {
        HostTensor::from_bytes(literal.dtype, &literal.shape, literal.bytes.to_vec())
    }

    /// As a constant for a graph.
    pub fn to_literal(&self) -> Literal {
        Literal { dtype: self.dtype, shape: self.shape.clone(), bytes: self.bytes.as_slice().into() }
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The sizes.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Number of axes.
    pub fn rank(&self) -> usize {
        self.shape.len()
    }

    /// Number of elements.
    pub fn elements(&self) -> usize {
        element_count(&self.shape).expect("a tensor that exists has a number of elements")
    }

    /// The packed elements.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The packed elements, to be overwritten.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// The packed elements, owned.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// The elements as a Rust type of the same dtype.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>, HostError> {
        if self.dtype != T::DTYPE {
            return Err(HostError::WrongDType { expected: T::DTYPE, got: self.dtype });
        }
        Ok(self.bytes.chunks_exact(T::DTYPE.size_in_bits() / 8).map(T::read).collect())
    }

    /// Every element as f64 (integers beyond 2⁵³ are rounded).
    pub fn to_f64(&self) -> Vec<f64> {
        macro_rules! read_all {
            ($ty:ty, $convert:expr) => {
                self.bytes.chunks_exact(size_of::<$ty>()).map(|b| $convert(<$ty as Element>::read(b))).collect()
            };
        }
        match self.dtype {
            DType::F32 => read_all!(f32, |v| v as f64),
            DType::F64 => read_all!(f64, |v| v),
            DType::F16 => read_all!(f16, |v: f16| v.to_f64()),
            DType::Bf16 => read_all!(bf16, |v: bf16| v.to_f64()),
            DType::F8E4M3 | DType::F8E5M2 => self.bytes.iter().map(|&b| float8::decode(self.dtype, b)).collect(),
            _ => self.to_i64().into_iter().map(|v| v as f64).collect(),
        }
    }

    /// Every element as i64 (floats truncated and saturated; bools 0 and 1).
    pub fn to_i64(&self) -> Vec<i64> {
        macro_rules! read_all {
            ($ty:ty) => {
                self.bytes.chunks_exact(size_of::<$ty>()).map(|b| <$ty as Element>::read(b) as i64).collect()
            };
        }
        match self.dtype {
            DType::I8 => read_all!(i8),
            DType::I16 => read_all!(i16),
            DType::I32 => read_all!(i32),
            DType::I64 => read_all!(i64),
            DType::U8 => read_all!(u8),
            DType::Bool => read_all!(bool),
            DType::I4 => (0..self.elements()).map(|i| unpack_i4(&self.bytes, i)).collect(),
            _ => self.to_f64().into_iter().map(|v| v as i64).collect(),
        }
    }

    /// One element by its row-major position.
    ///
    /// # Panics
    /// When there is no such element.
    pub fn get(&self, i: usize) -> Scalar {
        macro_rules! read {
            ($ty:ty) => {
                <$ty as Element>::read(&self.bytes[i * size_of::<$ty>()..(i + 1) * size_of::<$ty>()])
            };
        }
        let dtype = self.dtype;
        match dtype {
            DType::F32 => Scalar::Float(dtype, read!(f32) as f64),
            DType::F64 => Scalar::Float(dtype, read!(f64)),
            DType::F16 => Scalar::Float(dtype, read!(f16).to_f64()),
            DType::Bf16 => Scalar::Float(dtype, read!(bf16).to_f64()),
            DType::F8E4M3 | DType::F8E5M2 => Scalar::Float(dtype, float8::decode(dtype, self.bytes[i])),
            DType::I8 => Scalar::Int(dtype, read!(i8) as i64),
            DType::I16 => Scalar::Int(dtype, read!(i16) as i64),
            DType::I32 => Scalar::Int(dtype, read!(i32) as i64),
            DType::I64 => Scalar::Int(dtype, read!(i64)),
            DType::U8 => Scalar::Int(dtype, read!(u8) as i64),
            DType::Bool => Scalar::bool(read!(bool)),
            DType::I4 => {
                assert!(i < self.elements(), "element {i} of a tensor of {}", self.elements());
                Scalar::Int(dtype, unpack_i4(&self.bytes, i))
            }
        }
    }

    /// One element as f64.
    ///
    /// # Panics
    /// When there is no such element.
    pub fn get_f64(&self, i: usize) -> f64 {
        self.get(i).as_f64()
    }

    /// One element as i64.
    ///
    /// # Panics
    /// When there is no such element.
    pub fn get_i64(&self, i: usize) -> i64 {
        self.get(i).as_i64()
    }

    /// Replaces one element; the value is cast to the dtype.
    ///
    /// # Panics
    /// When there is no such element.
    pub fn set(&mut self, i: usize, value: Scalar) {
        assert!(i < self.elements(), "element {i} of a tensor of {}", self.elements());
        let one = HostTensor::scalar(value.cast(self.dtype));
        if self.dtype == DType::I4 {
            let shift = (i % 2) * 4;
            let byte = &mut self.bytes[i / 2];
            *byte = *byte & !(0xf << shift) | (one.bytes[0] & 0xf) << shift;
        } else {
            let n = one.bytes.len();
            self.bytes[i * n..(i + 1) * n].copy_from_slice(&one.bytes);
        }
    }

    /// Every element converted as [`crate::Op::Cast`] converts.
    pub fn cast(&self, dtype: DType) -> Result<HostTensor, HostError> {
        if dtype == self.dtype {
            Ok(self.clone())
        } else if self.dtype.is_float() {
            HostTensor::from_f64(dtype, &self.shape, &self.to_f64())
        } else {
            HostTensor::from_i64(dtype, &self.shape, &self.to_i64())
        }
    }

    /// The same elements in row-major order under another shape.
    pub fn reshape(mut self, shape: &[usize]) -> Result<HostTensor, HostError> {
        let expected = self.elements();
        match element_count(shape) {
            Some(got) if got == expected => {
                self.shape = shape.to_vec();
                Ok(self)
            }
            got => Err(HostError::Length {
                dtype: self.dtype,
                shape: shape.to_vec(),
                unit: "elements",
                expected: got.unwrap_or(usize::MAX),
                got: expected,
            }),
        }
    }

    /// Every element's bits, widened with zeros.
    pub(crate) fn to_words(&self) -> Vec<u64> {
        macro_rules! read_all {
            ($ty:ty) => {
                self.bytes.as_chunks().0.iter().map(|&b| <$ty>::from_le_bytes(b) as u64).collect()
            };
        }
        match self.dtype.size_in_bits() {
            64 => read_all!(u64),
            32 => read_all!(u32),
            16 => read_all!(u16),
            8 => read_all!(u8),
            _ => (0..self.elements()).map(|i| unpack_i4(&self.bytes, i) as u64 & 0xf).collect(),
        }
    }

    /// From each element's bits.
    pub(crate) fn from_words(dtype: DType, shape: &[usize], words: &[u64]) -> Result<HostTensor, HostError> {
        let mut bytes = Self::room(dtype, shape, words.len())?;
        macro_rules! write_all {
            ($ty:ty) => {
                words.iter().for_each(|&w| bytes.extend_from_slice(&(w as $ty).to_le_bytes()))
            };
        }
        match dtype.size_in_bits() {
            64 => write_all!(u64),
            32 => write_all!(u32),
            16 => write_all!(u16),
            8 => write_all!(u8),
            _ => bytes.extend(words.chunks(2).map(|p| pack_i4(p.iter().map(|&w| w as i64)))),
        }
        Ok(HostTensor { dtype, shape: shape.to_vec(), bytes })
    }

    /// Checks the number of elements and reserves the bytes.
    fn room(dtype: DType, shape: &[usize], got: usize) -> Result<Vec<u8>, HostError> {
        let too_large = || HostError::TooLarge { dtype, shape: shape.to_vec() };
        let expected = element_count(shape).ok_or_else(too_large)?;
        if got != expected {
            return Err(HostError::Length { dtype, shape: shape.to_vec(), unit: "elements", expected, got });
        }
        dtype.bytes_for(got).and_then(try_with_capacity).ok_or_else(too_large)
    }
}

/// One or two 4-bit integers as a byte, low half first.
fn pack_i4(values: impl Iterator<Item = i64>) -> u8 {
    values.zip([0, 4]).fold(0, |byte, (v, shift)| byte | ((v & 0xf) as u8) << shift)
}

/// The 4-bit integer at a position.
fn unpack_i4(bytes: &[u8], i: usize) -> i64 {
    let half = bytes[i / 2] >> ((i % 2) * 4);
    ((half << 4) as i8 >> 4) as i64
}

impl fmt::Debug for HostTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 32;
        write!(f, "{}{:?} [", self.dtype, self.shape)?;
        for i in 0..self.elements().min(SHOWN) {
            write!(f, "{}{}", if i == 0 { "" } else { ", " }, self.get(i))?;
        }
        f.write_str(if self.elements() > SHOWN { ", …]" } else { "]" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_dtype_keeps_small_integers() {
        for dtype in DType::ALL {
            let values: Vec<i64> = if dtype == DType::Bool { vec![0, 1, 1] } else { vec![0, 1, 7] };
            let t = HostTensor::from_i64(dtype, &[3], &values).unwrap();
            assert_eq!(t.bytes().len(), dtype.bytes_for(3).unwrap());
            assert_eq!(t.to_i64(), values, "{dtype}");
            assert_eq!(t.to_f64(), values.iter().map(|&v| v as f64).collect::<Vec<_>>());
            for (i, &v) in values.iter().enumerate() {
                assert_eq!(t.get(i), Scalar::int(dtype, v));
            }
            let same = HostTensor::from_f64(dtype, &[3], &t.to_f64()).unwrap();
            assert_eq!(t, same);
        }
    }

    #[test]
    fn set_changes_one_element_only() {
        for dtype in DType::ALL {
            let mut t = HostTensor::zeros(dtype, &[5]).unwrap();
            t.set(3, Scalar::float(dtype, 1.0));
            assert_eq!(t.to_i64(), [0, 0, 0, 1, 0], "{dtype}");
        }
    }

    #[test]
    fn full_and_scalars_agree() {
        for dtype in DType::ALL {
            for n in [0, 1, 2, 5] {
                let t = HostTensor::full(&[n], Scalar::int(dtype, 1)).unwrap();
                assert_eq!(t, HostTensor::from_i64(dtype, &[n], &vec![1; n]).unwrap());
            }
        }
        let t = HostTensor::full(&[3], Scalar::int(DType::I4, -3)).unwrap();
        assert_eq!(t.to_i64(), [-3, -3, -3]);
    }

    #[test]
    fn i4_packs_low_half_first_and_wraps() {
        let t = HostTensor::from_i64(DType::I4, &[3], &[-8, 7, 9]).unwrap();
        assert_eq!(t.bytes(), [0x78, 0x09]);
        assert_eq!(t.to_i64(), [-8, 7, -7]);
    }

    #[test]
    fn typed_slices_round_trip() {
        let t = HostTensor::from_slice(&[2], &[f16::from_f32(1.5), f16::NAN]).unwrap();
        assert_eq!(t.dtype(), DType::F16);
        assert_eq!(t.to_vec::<f16>().unwrap()[0].to_f32(), 1.5);
        assert_eq!(t.to_vec::<f32>(), Err(HostError::WrongDType { expected: DType::F32, got: DType::F16 }));
        let t = HostTensor::from_slice(&[3], &[true, false, true]).unwrap();
        assert_eq!(t.to_vec::<bool>().unwrap(), [true, false, true]);
        let t = HostTensor::from_slice(&[2], &[i64::MIN, i64::MAX]).unwrap();
        assert_eq!(t.to_i64(), [i64::MIN, i64::MAX]);
    }

    #[test]
    fn wrong_lengths_and_absurd_shapes_are_errors() {
        assert!(matches!(
            HostTensor::from_f64(DType::F32, &[2], &[1.0]),
            Err(HostError::Length { expected: 2, got: 1, .. })
        ));
        assert!(matches!(
            HostTensor::from_bytes(DType::F32, &[2], vec![0; 7]),
            Err(HostError::Length { expected: 8, got: 7, .. })
        ));
        assert!(matches!(HostTensor::zeros(DType::F32, &[usize::MAX, 2]), Err(HostError::TooLarge { .. })));
        assert!(matches!(HostTensor::zeros(DType::F32, &[1 << 60]), Err(HostError::TooLarge { .. })));
        assert_eq!(HostTensor::zeros(DType::F32, &[usize::MAX, 2, 0]).unwrap().elements(), 0);
    }

    #[test]
    fn floats_truncate_and_saturate_to_integers_as_scalars_do() {
        let values = [3.9, -3.9, 1e20, -1e20, f64::NAN, 300.0, 0.5];
        for dtype in DType::ALL {
            let t = HostTensor::from_f64(dtype, &[values.len()], &values).unwrap();
            for (i, &v) in values.iter().enumerate() {
                let (got, want) = (t.get(i), Scalar::float(dtype, v));
                assert!(got == want || (got.as_f64().is_nan() && want.as_f64().is_nan()), "{dtype} {v}: {got} {want}");
            }
        }
    }
}
