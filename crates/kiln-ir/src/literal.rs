//! The elements of a [`Literal`], one by one.

use crate::{DType, Literal, Scalar, float8};
use half::{bf16, f16};
use std::sync::Arc;

impl Literal {
    /// A constant of these elements in row-major order, each converted to `dtype` as a cast does. Gives `None` where their
    /// number is not the shape's.
    ///
    /// ```
    /// use kiln_ir::{DType, Literal, Scalar};
    /// let pair = Literal::from_elements(DType::Bf16, &[2], [1.0, -2.5].map(|v| Scalar::float(DType::Bf16, v))).unwrap();
    /// assert_eq!(pair.element(1), Some(Scalar::float(DType::Bf16, -2.5)));
    /// assert_eq!(pair.element(2), None);
    /// ```
    pub fn from_elements(dtype: DType, shape: &[usize], elements: impl IntoIterator<Item = Scalar>) -> Option<Literal> {
        let mut bytes = Vec::new();
        let mut count = 0;
        for element in elements {
            append(&mut bytes, count, element.cast_bits(dtype));
            count += 1;
        }
        let wanted = shape.iter().try_fold(1usize, |n, &size| n.checked_mul(size));
        (wanted == Some(count)).then(|| Literal { dtype, shape: shape.to_vec(), bytes: Arc::from(bytes) })
    }

    /// Element number `index` in row-major order, where the bytes have one.
    pub fn element(&self, index: usize) -> Option<Scalar> {
        let dtype = self.dtype;
        if dtype == DType::I4 {
            let byte = i64::from(*self.bytes.get(index / 2)?);
            return Some(Scalar::int(dtype, byte >> (index % 2 * 4)));
        }
        let width = dtype.size_in_bits() / 8;
        let start = index.checked_mul(width)?;
        let bytes = self.bytes.get(start..start.checked_add(width)?)?;
        let mut wide = [0; 8];
        wide[..width].copy_from_slice(bytes);
        let bits = u64::from_le_bytes(wide);
        Some(match dtype {
            DType::F64 => Scalar::Float(dtype, f64::from_bits(bits)),
            DType::F32 => Scalar::Float(dtype, f32::from_bits(bits as u32).into()),
            DType::F16 => Scalar::Float(dtype, f16::from_bits(bits as u16).to_f64()),
            DType::Bf16 => Scalar::Float(dtype, bf16::from_bits(bits as u16).to_f64()),
            DType::F8E4M3 | DType::F8E5M2 => Scalar::Float(dtype, float8::decode(dtype, bits as u8)),
            _ => Scalar::int(dtype, bits as i64),
        })
    }
}

impl Scalar {
    /// As [`Scalar::cast`], but a scalar that has the dtype already keeps its NaN payload.
    fn cast_bits(self, dtype: DType) -> Scalar {
        if self.dtype() == dtype { self } else { self.cast(dtype) }
    }
}

/// Puts element number `index` behind the `index` elements that are there.
fn append(bytes: &mut Vec<u8>, index: usize, element: Scalar) {
    match (element.dtype(), element) {
        (DType::I4, _) => {
            let nibble = element.as_i64() as u8 & 15;
            match bytes.last_mut() {
                Some(last) if index % 2 == 1 => *last |= nibble << 4,
                _ => bytes.push(nibble),
            }
        }
        (DType::F64, _) => bytes.extend(element.as_f64().to_le_bytes()),
        (DType::F32, _) => bytes.extend((element.as_f64() as f32).to_le_bytes()),
        (DType::F16, _) => bytes.extend(f16::from_f64(element.as_f64()).to_le_bytes()),
        (DType::Bf16, _) => bytes.extend(bf16::from_f64(element.as_f64()).to_le_bytes()),
        (dtype @ (DType::F8E4M3 | DType::F8E5M2), _) => bytes.push(float8::encode(dtype, element.as_f64())),
        (dtype, _) => bytes.extend(&element.as_i64().to_le_bytes()[..dtype.size_in_bits() / 8]),
    }
}
