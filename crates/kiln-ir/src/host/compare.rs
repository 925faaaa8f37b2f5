//! Comparing tensors: exactly for integers and bools, within a tolerance for floats.

use super::HostTensor;
use crate::{DType, Scalar};

/// How far a float may be from the wanted one: `|got − want| ≤ absolute + relative·|want|`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tolerance {
    /// The absolute tolerance.
    pub absolute: f64,
    /// Allowed as a part of the wanted magnitude.
    pub relative: f64,
}

impl Tolerance {
    /// Nothing but equality.
    pub const EXACT: Tolerance = Tolerance { absolute: 0.0, relative: 0.0 };

    /// What a short chain of ops may lose in this dtype: a few units in the last place. Exact for integers.
    pub const fn of(dtype: DType) -> Tolerance {
        let (absolute, relative) = match dtype {
            DType::F64 => (1e-12, 1e-11),
            DType::F32 => (1e-5, 1e-5),
            DType::F16 => (1e-3, 2e-3),
            DType::Bf16 => (1e-2, 1.6e-2),
            DType::F8E4M3 => (1e-2, 0.125),
            DType::F8E5M2 => (1e-2, 0.25),
            _ => (0.0, 0.0),
        };
        Tolerance { absolute, relative }
    }

    /// Both parts multiplied, for long chains and long sums.
    pub const fn times(self, factor: f64) -> Tolerance {
        Tolerance { absolute: self.absolute * factor, relative: self.relative * factor }
    }
}

/// How two tensors differ.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Mismatch {
    /// The dtypes.
    #[error("dtype {got}, expected {want}")]
    DType {
        /// The dtype of this tensor.
        got: DType,
        /// Of the expected one.
        want: DType,
    },
    /// The shapes.
    #[error("shape {got:?}, expected {want:?}")]
    Shape {
        /// The shape of this tensor.
        got: Vec<usize>,
        /// Of the expected one.
        want: Vec<usize>,
    },
    /// Some elements differ; the first of them is reported.
    #[error(
        "{got} at {index:?}, expected {want} (off by {difference:e}, allowed {allowed:e}; {count} of {elements} elements differ)"
    )]
    Element {
        /// The index of the first.
        index: Vec<usize>,
        /// The element found.
        got: Scalar,
        /// The expected element.
        want: Scalar,
        /// The absolute difference; NaN if one of them is.
        difference: f64,
        /// The allowed difference.
        allowed: f64,
        /// How many elements differ.
        count: usize,
        /// Of how many.
        elements: usize,
    },
}

impl HostTensor {
    /// Checks that this tensor is what was wanted: dtype, shape and every element. Floats are compared within the
    /// tolerance, NaN equals NaN and an infinity equals itself; integers and bools are compared exactly.
    pub fn compare(&self, want: &HostTensor, tolerance: Tolerance) -> Result<(), Mismatch> {
        if self.dtype != want.dtype {
            return Err(Mismatch::DType { got: self.dtype, want: want.dtype });
        }
        if self.shape != want.shape {
            return Err(Mismatch::Shape { got: self.shape.clone(), want: want.shape.clone() });
        }
        if self.bytes == want.bytes {
            return Ok(());
        }
        let mut first = None;
        let mut count = 0;
        if self.dtype.is_float() {
            for (i, (&g, &w)) in self.to_f64().iter().zip(&want.to_f64()).enumerate() {
                let allowed = tolerance.absolute + tolerance.relative * w.abs();
                let equal = g == w || (g.is_nan() && w.is_nan());
                // Not `g.is_infinite() && …`: an infinite `want` makes `allowed` infinite, so nothing else may pass.
                let close = g.is_finite() && w.is_finite() && (g - w).abs() <= allowed;
                if !equal && !close {
                    first.get_or_insert((i, (g - w).abs(), allowed));
                    count += 1;
                }
            }
        } else {
            for (i, (&g, &w)) in self.to_i64().iter().zip(&want.to_i64()).enumerate() {
                if g != w {
                    first.get_or_insert((i, g.abs_diff(w) as f64, 0.0));
                    count += 1;
                }
            }
        }
        match first {
            None => Ok(()),
            Some((i, difference, allowed)) => Err(Mismatch::Element {
                index: self.unravel(i),
                got: self.get(i),
                want: want.get(i),
                difference,
                allowed,
                count,
                elements: self.elements(),
            }),
        }
    }

    /// The largest distance between elements of two tensors of one shape: infinite where only one is NaN or infinite,
    /// `None` when the shapes differ.
    pub fn max_difference(&self, other: &HostTensor) -> Option<f64> {
        if self.shape != other.shape {
            return None;
        }
        let distance = |a: f64, b: f64| {
            if a == b || (a.is_nan() && b.is_nan()) {
                0.0
            } else if a.is_finite() && b.is_finite() {
                (a - b).abs()
            } else {
                f64::INFINITY
            }
        };
        Some(self.to_f64().iter().zip(&other.to_f64()).map(|(&a, &b)| distance(a, b)).fold(0.0, f64::max))
    }

    /// The index of a row-major position.
    fn unravel(&self, mut position: usize) -> Vec<usize> {
        let mut index = vec![0; self.rank()];
        for (axis, &size) in self.shape.iter().enumerate().rev() {
            index[axis] = position % size;
            position /= size;
        }
        index
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn f32s(values: &[f64]) -> HostTensor {
        HostTensor::from_f64(DType::F32, &[values.len()], values).unwrap()
    }

    #[test]
    fn special_values_equal_themselves_only() {
        let all = f32s(&[f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0]);
        all.compare(&f32s(&[f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.0]), Tolerance::EXACT).unwrap();
        let loose = Tolerance::of(DType::F32).times(1e6);
        for (got, want) in [
            (1.0, f64::INFINITY),
            (f64::INFINITY, 1.0),
            (f64::NAN, 1.0),
            (1.0, f64::NAN),
            (f64::INFINITY, f64::NEG_INFINITY),
        ] {
            assert!(f32s(&[got]).compare(&f32s(&[want]), loose).is_err(), "{got} passed for {want}");
        }
        assert_eq!(all.max_difference(&f32s(&[0.0; 4])), Some(f64::INFINITY));
    }

    #[test]
    fn tells_the_first_element_and_the_count() {
        let got = HostTensor::from_f64(DType::F32, &[2, 2], &[1.0, 2.0, 3.0, 4.0]).unwrap();
        let want = HostTensor::from_f64(DType::F32, &[2, 2], &[1.0, 2.000001, 3.5, 5.0]).unwrap();
        match got.compare(&want, Tolerance::of(DType::F32)) {
            Err(Mismatch::Element { index, count: 2, elements: 4, difference: 0.5, .. }) => assert_eq!(index, [1, 0]),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn integers_are_exact_beyond_the_reach_of_f64() {
        let got = HostTensor::from_slice(&[1], &[i64::MAX]).unwrap();
        let want = HostTensor::from_slice(&[1], &[i64::MAX - 1]).unwrap();
        assert!(got.compare(&want, Tolerance::of(DType::F32)).is_err());
    }

    #[test]
    fn dtype_and_shape_come_first() {
        let x = f32s(&[1.0]);
        assert!(matches!(x.compare(&x.cast(DType::F64).unwrap(), Tolerance::EXACT), Err(Mismatch::DType { .. })));
        assert!(matches!(x.compare(&f32s(&[1.0, 1.0]), Tolerance::EXACT), Err(Mismatch::Shape { .. })));
    }
}
