//! Complex numbers as pairs: a tensor of complex numbers is one of floats with a last axis of 2, real part first.

use super::{
    Built, Emit, add, along_axis, concat, constant_f64, cos, fail, flip, full_like, index_select, iota, mul,
    mul_scalar, neg, pick, rem, reshape, sin, size_value, slice_axis, stack, sub, transform_axis, unsqueeze,
};
use crate::{DType, Dim, TypeError};
use std::f64::consts::TAU;

/// The axis of the pairs.
#[track_caller]
fn pair_axis<E: Emit>(e: &E, name: &'static str, operand: usize, x: &E::Value) -> Result<usize, E::Error> {
    let ty = e.ty(x);
    match ty.shape.last() {
        Some(size) if size.as_const() == Some(2) => Ok(ty.rank() - 1),
        _ => fail::<_, E>(
            name,
            TypeError::WrongRank { operand, ty, expected: "1 or more, the last axis of size 2".into() },
        ),
    }
}

/// Complex numbers of these real and imaginary parts.
#[track_caller]
pub fn complex<E: Emit>(e: &mut E, real: &E::Value, imaginary: &E::Value) -> Built<E> {
    let (real, imaginary) = super::broadcast(e, real, imaginary)?;
    let rank = e.ty(&real).rank();
    stack(e, &[real, imaginary], rank)
}

/// Complex numbers without an imaginary part.
#[track_caller]
pub fn complex_from_real<E: Emit>(e: &mut E, real: &E::Value) -> Built<E> {
    let zero = full_like(e, real, 0.0)?;
    complex(e, real, &zero)
}

/// Real and imaginary parts.
#[track_caller]
pub fn complex_parts<E: Emit>(e: &mut E, x: &E::Value) -> Result<(E::Value, E::Value), E::Error> {
    let last = pair_axis(e, "complex_parts", 0, x)?;
    Ok((pick(e, x, last, 0)?, pick(e, x, last, 1)?))
}

/// Complex numbers of these magnitudes and angles.
#[track_caller]
pub fn polar<E: Emit>(e: &mut E, magnitude: &E::Value, angle: &E::Value) -> Built<E> {
    let (cosine, sine) = (cos(e, angle)?, sin(e, angle)?);
    let (real, imaginary) = (mul(e, magnitude, &cosine)?, mul(e, magnitude, &sine)?);
    complex(e, &real, &imaginary)
}

/// The product of complex numbers, broadcasting.
#[track_caller]
pub fn complex_mul<E: Emit>(e: &mut E, x: &E::Value, y: &E::Value) -> Built<E> {
    let ((a, b), (c, d)) = (complex_parts(e, x)?, complex_parts(e, y)?);
    let (ac, bd) = (mul(e, &a, &c)?, mul(e, &b, &d)?);
    let (ad, bc) = (mul(e, &a, &d)?, mul(e, &b, &c)?);
    let (real, imaginary) = (sub(e, &ac, &bd)?, add(e, &ad, &bc)?);
    complex(e, &real, &imaginary)
}

/// The product of complex and real numbers, broadcasting.
#[track_caller]
pub fn complex_scale<E: Emit>(e: &mut E, x: &E::Value, real: &E::Value) -> Built<E> {
    pair_axis(e, "complex_scale", 0, x)?;
    let rank = e.ty(real).rank();
    let real = unsqueeze(e, real, rank)?;
    mul(e, x, &real)
}

/// The discrete Fourier transform of complex numbers along an axis, Σ x·e^(∓2πi·jk/n) (minus for `forward`), times a factor:
/// a product with the n×n matrix of roots of unity, gathered from a table of n of them. n may be symbolic. That is n² steps
/// where the fast transform takes n·log n, but they are a matrix product's.
#[track_caller]
pub fn dft<E: Emit>(e: &mut E, x: &E::Value, axis: usize, forward: bool, factor: f64) -> Built<E> {
    const NAME: &str = "dft";
    let last = pair_axis(e, NAME, 0, x)?;
    let ty = e.ty(x);
    if axis >= last {
        return fail::<_, E>(NAME, TypeError::AxisOutOfRange { axis, ty });
    }
    let n = ty.shape[axis].clone();
    let (cosines, sines) = unit_roots(e, &n, ty.dtype, if forward { -1.0 } else { 1.0 })?;
    // jk mod n, exactly.
    let square = [n.clone(), n.clone()];
    let (j, k) = (iota(e, DType::I64, &square, 0)?, iota(e, DType::I64, &square, 1)?);
    let product = mul(e, &j, &k)?;
    let size = size_value(e, &n, DType::I64)?;
    let turns = rem(e, &product, &size)?;
    let turns = reshape(e, &turns, &[&n * &n])?;
    let mut parts = Vec::with_capacity(2);
    for table in [cosines, sines] {
        let matrix = index_select(e, &table, 0, &turns)?;
        let matrix = reshape(e, &matrix, &square)?;
        parts.push(if factor == 1.0 { matrix } else { mul_scalar(e, &matrix, factor)? });
    }
    let (cosine, sine) = (&parts[0], &parts[1]);
    let (real, imaginary) = complex_parts(e, x)?;
    let (rc, is) = (transform_axis(e, &real, axis, cosine)?, transform_axis(e, &imaginary, axis, sine)?);
    let (rs, ic) = (transform_axis(e, &real, axis, sine)?, transform_axis(e, &imaginary, axis, cosine)?);
    let (real, imaginary) = (sub(e, &rc, &is)?, add(e, &rs, &ic)?);
    complex(e, &real, &imaginary)
}

/// Cosine and sine of ±2πk/n for k below n.
#[track_caller]
fn unit_roots<E: Emit>(e: &mut E, n: &Dim, dtype: DType, sign: f64) -> Result<(E::Value, E::Value), E::Error> {
    if let Some(count) = n.as_usize() {
        let angle = |k: usize| sign * TAU * k as f64 / count as f64;
        let cosines: Vec<f64> = (0..count).map(|k| angle(k).cos()).collect();
        let sines: Vec<f64> = (0..count).map(|k| angle(k).sin()).collect();
        return Ok((constant_f64(e, dtype, &[count], &cosines)?, constant_f64(e, dtype, &[count], &sines)?));
    }
    let k = iota(e, dtype, std::slice::from_ref(n), 0)?;
    let size = size_value(e, n, dtype)?;
    let size = along_axis(e, &size, 1, 0)?;
    let part = super::div(e, &k, &size)?;
    let angle = mul_scalar(e, &part, sign * TAU)?;
    Ok((cos(e, &angle)?, sin(e, &angle)?))
}

/// The first `n/2 + 1` elements of the [`dft`] of real numbers along an axis of length n; the others are their conjugates.
#[track_caller]
pub fn dft_of_real<E: Emit>(e: &mut E, x: &E::Value, axis: usize, forward: bool, factor: f64) -> Built<E> {
    super::shape::check_axis(e, "dft_of_real", x, axis)?;
    let half = e.ty(x).shape[axis].floor_div(&Dim::from(2)) + 1;
    let x = complex_from_real(e, x)?;
    let y = dft(e, &x, axis, forward, factor)?;
    slice_axis(e, &y, axis, &Dim::from(0), &half, 1)
}

/// The [`dft`], of length n along an axis, whose input is given by its first `n/2 + 1` elements, the others being their
/// conjugates in reverse order, so that the result is real.
#[track_caller]
pub fn dft_to_real<E: Emit>(e: &mut E, x: &E::Value, axis: usize, n: &Dim, forward: bool, factor: f64) -> Built<E> {
    super::shape::check_axis(e, "dft_to_real", x, axis)?;
    let half = n.floor_div(&Dim::from(2)) + 1;
    let x = slice_axis(e, x, axis, &Dim::from(0), &half, 1)?;
    let (real, imaginary) = complex_parts(e, &x)?;
    // Elements n/2 + 1 … n − 1 are the conjugates of n − (n/2 + 1) … 1.
    let rest = n - &half;
    let one = Dim::from(1);
    let real_rest = slice_axis(e, &real, axis, &one, &rest, 1)?;
    let real_rest = flip(e, &real_rest, &[axis])?;
    let imaginary_rest = slice_axis(e, &imaginary, axis, &one, &rest, 1)?;
    let imaginary_rest = flip(e, &imaginary_rest, &[axis])?;
    let imaginary_rest = neg(e, &imaginary_rest)?;
    let real = concat(e, &[real, real_rest], axis)?;
    let imaginary = concat(e, &[imaginary, imaginary_rest], axis)?;
    // The imaginary parts of the first and the middle element cancel out of the real part below.
    let whole = complex(e, &real, &imaginary)?;
    let y = dft(e, &whole, axis, forward, factor)?;
    Ok(complex_parts(e, &y)?.0)
}
