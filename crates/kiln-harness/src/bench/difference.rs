//! How far a result is from the one that it should be.

use kiln::{DType, Device, Result, Tensor};

/// The largest difference between two results, over the largest value of `expected`; infinite where an element is NaN.
pub fn difference(y: &Tensor, expected: &Tensor) -> Result<f64> {
    let values = |x: &Tensor| x.to_dtype(DType::F32)?.reshape([-1])?.to_device(Device::Cpu)?.to_vec::<f32>();
    let (y, expected) = (values(y)?, values(expected)?);
    let largest = expected.iter().fold(f32::MIN_POSITIVE, |most, value| most.max(value.abs()));
    let apart = |(a, b): (&f32, &f32)| if a.is_nan() || b.is_nan() { f32::INFINITY } else { (a - b).abs() };
    Ok(f64::from(y.iter().zip(&expected).map(apart).fold(0f32, f32::max) / largest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nan_is_infinitely_far() -> Result<()> {
        let expected = Tensor::new([1f32, -4.0], Device::Cpu)?;
        assert_eq!(difference(&Tensor::new([2f32, -4.0], Device::Cpu)?, &expected)?, 0.25);
        assert_eq!(difference(&Tensor::new([f32::NAN, -4.0], Device::Cpu)?, &expected)?, f64::INFINITY);
        Ok(())
    }
}
