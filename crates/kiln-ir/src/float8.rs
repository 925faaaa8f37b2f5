//! The two 8-bit float formats, bit by bit. `f8e4m3` has no infinity (its largest value is 448, overflow becomes NaN);
//! `f8e5m2` is IEEE-like.

use crate::DType;

/// The format's mantissa bits, bias, and whether it keeps infinities.
fn format(dtype: DType) -> (u32, i32, bool) {
    match dtype {
        DType::F8E4M3 => (3, 7, false),
        _ => (2, 15, true),
    }
}

/// The value of one byte.
pub fn decode(dtype: DType, byte: u8) -> f64 {
    let (mantissa_bits, bias, has_inf) = format(dtype);
    let sign = if byte & 0x80 != 0 { -1.0 } else { 1.0 };
    let magnitude = byte & 0x7f;
    let exponent = (magnitude >> mantissa_bits) as i32;
    let mantissa = (magnitude & ((1 << mantissa_bits) - 1)) as f64;
    let top: i32 = 0x7f >> mantissa_bits;
    if has_inf && exponent == top {
        return if mantissa == 0.0 { sign * f64::INFINITY } else { f64::NAN };
    }
    if !has_inf && magnitude == 0x7f {
        return f64::NAN;
    }
    let unit = 1.0 / (1u32 << mantissa_bits) as f64;
    if exponent == 0 {
        sign * mantissa * unit * 2f64.powi(1 - bias)
    } else {
        sign * (1.0 + mantissa * unit) * 2f64.powi(exponent - bias)
    }
}

/// The byte nearest to `value`, ties to even.
pub fn encode(dtype: DType, value: f64) -> u8 {
    let (mantissa_bits, bias, has_inf) = format(dtype);
    let sign = if value.is_sign_negative() { 0x80 } else { 0 };
    let nan = 0x7f;
    if value.is_nan() {
        return sign | nan;
    }
    let a = value.abs();
    let largest = if has_inf { 57344.0 } else { 448.0 };
    let overflow = if has_inf { 0x7c } else { nan };
    if a.is_infinite() {
        return sign | overflow;
    }
    if a == 0.0 {
        return sign;
    }
    let exponent = (((a.to_bits() >> 52) as i32) - 1023).max(1 - bias);
    let quantum = 2f64.powi(exponent - mantissa_bits as i32);
    let rounded = (a / quantum).round_ties_even() * quantum;
    if rounded > largest {
        return sign | overflow;
    }
    let e = (((rounded.to_bits() >> 52) as i32) - 1023).max(1 - bias);
    let steps = (rounded / 2f64.powi(e - mantissa_bits as i32)) as u32;
    let implicit = 1u32 << mantissa_bits;
    if steps < implicit {
        sign | steps as u8
    } else {
        sign | ((((e + bias) as u32) << mantissa_bits) | (steps - implicit)) as u8
    }
}

/// `value` rounded to the format.
pub fn round(dtype: DType, value: f64) -> f64 {
    decode(dtype, encode(dtype, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_survives_a_round_trip() {
        for dtype in [DType::F8E4M3, DType::F8E5M2] {
            for byte in 0..=255u8 {
                let value = decode(dtype, byte);
                if value.is_nan() {
                    assert!(decode(dtype, encode(dtype, value)).is_nan());
                } else {
                    assert_eq!(encode(dtype, value), byte, "{dtype} {byte:#x} = {value}");
                }
            }
        }
    }

    #[test]
    fn rounds_to_the_nearest_even() {
        assert_eq!(round(DType::F8E4M3, 1.0625), 1.0);
        assert_eq!(round(DType::F8E4M3, 1.1875), 1.25);
        assert!(round(DType::F8E4M3, 1000.0).is_nan());
        assert_eq!(round(DType::F8E5M2, 1e6), f64::INFINITY);
    }
}
