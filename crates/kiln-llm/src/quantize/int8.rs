//! Rows of floats as 8-bit integers with a scale for each row.

use half::{bf16, f16};
use kiln::DType;

/// The largest integer; −128 is not used, so that the range is symmetric.
const MOST: f32 = 127.0;

/// The smallest scale in a dtype with which no integer for a magnitude up to `most` is beyond the range. It is rounded to
/// the dtype before elements are divided by it, so that the dtype adds no error of its own.
pub(super) fn scale(most: f32, dtype: DType) -> f32 {
    let exact = most / MOST;
    if most == 0.0 {
        return 0.0;
    }
    let at_least = |rounded: f32, next: f32| if rounded < exact || rounded == 0.0 { next } else { rounded };
    match dtype {
        DType::Bf16 => {
            let rounded = bf16::from_f32(exact);
            at_least(rounded.to_f32(), bf16::from_bits(rounded.to_bits() + 1).to_f32())
        }
        DType::F16 => {
            let rounded = f16::from_f32(exact);
            at_least(rounded.to_f32(), f16::from_bits(rounded.to_bits() + 1).to_f32())
        }
        _ => at_least(exact, f32::from_bits(1)),
    }
}

/// The largest magnitude that has a finite scale in a dtype.
pub(super) fn most(dtype: DType) -> f32 {
    match dtype {
        DType::F16 => f16::MAX.to_f32() * MOST,
        // A scale that is rounded up stays finite.
        _ => f32::MAX / 2.0,
    }
}

/// Encodes one row and returns its scale: that of its largest magnitude.
pub(super) fn encode(row: &[f32], out: &mut [i8], dtype: DType) -> f32 {
    let scale = scale(row.iter().fold(0f32, |most, x| most.max(x.abs())), dtype);
    for (q, &x) in out.iter_mut().zip(row) {
        *q = if scale == 0.0 { 0 } else { (x / scale).round_ties_even().clamp(-MOST, MOST) as i8 };
    }
    scale
}
