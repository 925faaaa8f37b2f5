//! How far one tensor is from another.

use crate::bounds::{epsilon, normal};
use kiln_ir::{DType, HostTensor, Scalar};
use std::fmt;

/// How far computed elements are from what they should be.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Deviation {
    /// Elements compared.
    pub elements: usize,
    /// The largest distance.
    pub max_abs: f64,
    /// The largest distance by the size of what it should be.
    pub max_rel: f64,
    /// The largest distance in units of the last place of the tensor's dtype.
    pub max_ulp: f64,
    /// Row-major position of the element that is furthest off, counted in units of the last place.
    pub worst: usize,
    /// What it is there.
    pub got: f64,
    /// What it should be there.
    pub want: f64,
}

impl Deviation {
    /// Compares two tensors of the same dtype and as many elements. Where one is not a number or infinite and the other is not,
    /// the distance is infinite.
    pub fn between(got: &HostTensor, want: &HostTensor) -> Deviation {
        let mut found = Deviation { elements: want.elements(), ..Deviation::default() };
        if got.bytes() == want.bytes() {
            return found;
        }
        for element in 0..want.elements() {
            let (g, w) = (got.get(element).as_f64(), want.get(element).as_f64());
            let apart = distance(got.get(element), want.get(element));
            if apart == 0.0 {
                continue;
            }
            let ulp = apart / unit(want.dtype(), w);
            found.max_abs = found.max_abs.max(apart);
            found.max_rel = found.max_rel.max(if w == 0.0 { f64::INFINITY } else { apart / w.abs() });
            if ulp > found.max_ulp {
                (found.max_ulp, found.worst, found.got, found.want) = (ulp, element, g, w);
            }
        }
        found
    }
}

/// A figure of an error: short, and nothing where there is none.
pub(crate) struct Figure(pub(crate) f64);

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self.0 {
            0.0 => "0".to_owned(),
            x if x.is_infinite() => "inf".to_owned(),
            x if (0.01..10_000.0).contains(&x) => format!("{x:.2}"),
            x => format!("{x:.1e}"),
        };
        f.pad(&text)
    }
}

impl fmt::Display for Deviation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Deviation { max_abs, max_rel, max_ulp, .. } = *self;
        write!(f, "{} abs, {} rel, {} ulp", Figure(max_abs), Figure(max_rel), Figure(max_ulp))
    }
}

fn distance(got: Scalar, want: Scalar) -> f64 {
    if let (Scalar::Int(_, got), Scalar::Int(_, want)) = (got, want) {
        return got.abs_diff(want) as f64;
    }
    let (got, want) = (got.as_f64(), want.as_f64());
    if got == want || (got.is_nan() && want.is_nan()) {
        0.0
    } else if got.is_finite() && want.is_finite() {
        (got - want).abs()
    } else {
        f64::INFINITY
    }
}

/// A unit of the last place of a number of this dtype.
fn unit(dtype: DType, value: f64) -> f64 {
    if !dtype.is_float() || !value.is_finite() {
        return 1.0;
    }
    let magnitude = value.abs().max(normal(dtype));
    magnitude.log2().floor().exp2() * epsilon(dtype)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(got: &[f32], want: &[f32]) -> Deviation {
        let host = |values: &[f32]| HostTensor::from_slice(&[values.len()], values).unwrap();
        Deviation::between(&host(got), &host(want))
    }

    #[test]
    fn distances_are_told_three_ways() {
        let next = f32::from_bits(1000f32.to_bits() + 3);
        let found = of(&[1.0, next, f32::NAN], &[1.0, 1000.0, f32::NAN]);
        assert_eq!((found.elements, found.worst, found.max_ulp), (3, 1, 3.0));
        assert_eq!(found.max_abs, (next - 1000.0) as f64);
        assert!((found.max_rel - found.max_abs / 1000.0).abs() < 1e-12);
        assert_eq!(of(&[f32::INFINITY], &[1.0]).max_abs, f64::INFINITY);
        assert_eq!(of(&[f32::NAN], &[1.0]).max_ulp, f64::INFINITY);
        assert_eq!(of(&[0.0], &[-0.0]).max_abs, 0.0);
    }
}
