//! Complex numbers as pairs: a tensor of complex numbers is one of floats with a last axis of 2, real part first.

use super::{
    Built, Emit, add, along_axis, constant_f64, cos, fail, full_like, index_select, iota, mul, mul_scalar, pick, rem,
    reshape, sin, size_value, slice_axis, stack, sub, transform_axis, unsqueeze,
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

/// The discrete Fourier transform of complex numbers along an axis, Σ x·e^(∓2πi·jk/n) (minus for `forward`), times a factor.
/// A known length without large prime factors takes a few passes over all elements, each of which transforms up to 16 of them at a time
/// in registers (`build::fourier`). Another that is no prime is split by Cooley and Tukey's rule: n·(a + b) steps for n = a·b instead of
/// n², and sums that are as short; a large prime is a convolution of a power of two by Bluestein's. What is left, and a symbolic n, is a
/// product with the n×n matrix of roots of unity, gathered from a table of n of them.
#[track_caller]
pub fn dft<E: Emit>(e: &mut E, x: &E::Value, axis: usize, forward: bool, factor: f64) -> Built<E> {
    const NAME: &str = "dft";
    let last = pair_axis(e, NAME, 0, x)?;
    let ty = e.ty(x);
    if axis >= last {
        return fail::<_, E>(NAME, TypeError::AxisOutOfRange { axis, ty });
    }
    let n = ty.shape[axis].clone();
    if let Some(radices) = n.as_usize().and_then(super::fourier::radices) {
        return super::fourier::passes(e, x, axis, forward, factor, &radices);
    }
    if let Some((a, b)) = n.as_usize().and_then(even_split) {
        return split_dft(e, x, axis, forward, factor, a, b);
    }
    if let Some(n) = n.as_usize().filter(|&n| n > LONGEST_PRODUCT) {
        return chirp_dft(e, x, axis, forward, factor, n);
    }
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

/// The two factors of a number that are nearest to each other, if it is no prime; none of a few elements, which one product
/// transforms as well.
fn even_split(n: usize) -> Option<(usize, usize)> {
    let a = (2..=n.isqrt()).rev().find(|a| n.is_multiple_of(*a)).filter(|_| n > 8)?;
    Some((a, n / a))
}

/// The transform of length n = a·b as transforms of the lengths a and b. With j = b·j₁ + j₂ and k = k₁ + a·k₂
///
/// ```text
/// X[k] = Σ_j₂ e^(∓2πi·j₂k₂/b) · e^(∓2πi·j₂k₁/n) · Σ_j₁ e^(∓2πi·j₁k₁/a) · x[j]
/// ```
#[track_caller]
fn split_dft<E: Emit>(
    e: &mut E,
    x: &E::Value,
    axis: usize,
    forward: bool,
    factor: f64,
    a: usize,
    b: usize,
) -> Built<E> {
    let ty = e.ty(x);
    let mut shape = ty.shape.clone();
    shape.splice(axis..=axis, [Dim::from(a), Dim::from(b)]);
    let x = reshape(e, x, &shape)?;
    let inner = dft(e, &x, axis, forward, factor)?;
    let turn = if forward { -TAU } else { TAU } / (a * b) as f64;
    let angles = (0..a).flat_map(|k| (0..b).map(move |j| turn * (j * k % (a * b)) as f64));
    let roots: Vec<f64> = angles.flat_map(|angle| [angle.cos(), angle.sin()]).collect();
    let roots = constant_f64(e, ty.dtype, &[a, b, 2], &roots)?;
    // Beside the axes after those of the transform.
    let mut aligned = vec![Dim::from(1); shape.len() - axis];
    (aligned[0], aligned[1]) = (Dim::from(a), Dim::from(b));
    if let Some(parts) = aligned.last_mut() {
        *parts = Dim::from(2);
    }
    let roots = reshape(e, &roots, &aligned)?;
    let turned = complex_mul(e, &inner, &roots)?;
    let outer = dft(e, &turned, axis + 1, forward, 1.0)?;
    let y = super::transpose(e, &outer, axis, axis + 1)?;
    reshape(e, &y, &ty.shape)
}

/// The longest prime that is transformed by a product with a matrix.
const LONGEST_PRODUCT: usize = 64;

/// The transform of any length as a convolution, whose length is a power of two. With jk = (j² + k² − (k − j)²)/2 and the chirp
/// c[j] = e^(∓πi·j²/n)
///
/// ```text
/// X[k] = c[k] · Σ_j (x[j]·c[j]) · conj(c[k − j])
/// ```
#[track_caller]
fn chirp_dft<E: Emit>(e: &mut E, x: &E::Value, axis: usize, forward: bool, factor: f64, n: usize) -> Built<E> {
    let ty = e.ty(x);
    let sign = if forward { -1.0 } else { 1.0 };
    // j² mod 2n, exactly.
    let angle = |j: usize| sign * TAU / 2.0 * ((j as u128 * j as u128) % (2 * n as u128)) as f64 / n as f64;
    let chirp: Vec<(f64, f64)> = (0..n).map(|j| (angle(j).cos(), angle(j).sin())).collect();
    let m = (2 * n - 1).next_power_of_two();
    let mut kernel = vec![(0.0, 0.0); m];
    for (j, &(real, imaginary)) in chirp.iter().enumerate() {
        kernel[j] = (real, -imaginary);
        kernel[(m - j) % m] = (real, -imaginary);
    }
    let mut spectrum = kernel;
    power_of_two_dft(&mut spectrum);
    let along = |e: &mut E, numbers: &[(f64, f64)]| -> Built<E> {
        let flat: Vec<f64> = numbers.iter().flat_map(|&(real, imaginary)| [real, imaginary]).collect();
        let table = constant_f64(e, ty.dtype, &[numbers.len(), 2], &flat)?;
        let mut aligned = vec![Dim::from(1); ty.rank() - axis];
        aligned[0] = Dim::from(numbers.len());
        aligned[ty.rank() - axis - 1] = Dim::from(2);
        reshape(e, &table, &aligned)
    };
    let (chirp, spectrum) = (along(e, &chirp)?, along(e, &spectrum)?);
    let turned = complex_mul(e, x, &chirp)?;
    let mut amounts = vec![(0, 0); ty.rank()];
    amounts[axis].1 = (m - n) as i64;
    let padded = super::pad_constant(e, &turned, &amounts, 0.0)?;
    let there = dft(e, &padded, axis, true, 1.0)?;
    let product = complex_mul(e, &there, &spectrum)?;
    let back = dft(e, &product, axis, false, factor / m as f64)?;
    let back = slice_axis(e, &back, axis, &Dim::from(0), &Dim::from(n), 1)?;
    complex_mul(e, &back, &chirp)
}

/// The forward transform of a table whose length is a power of two, in place.
fn power_of_two_dft(x: &mut [(f64, f64)]) {
    let n = x.len();
    for i in 0..n {
        let j = if n > 1 { i.reverse_bits() >> (usize::BITS - n.ilog2()) } else { i };
        if i < j {
            x.swap(i, j);
        }
    }
    let mut half = 1;
    while half < n {
        for block in (0..n).step_by(2 * half) {
            for k in 0..half {
                let angle = -TAU * k as f64 / (2 * half) as f64;
                let (cos, sin) = (angle.cos(), angle.sin());
                let ((a, b), (c, d)) = (x[block + k], x[block + half + k]);
                let (real, imaginary) = (c * cos - d * sin, c * sin + d * cos);
                x[block + k] = (a + real, b + imaginary);
                x[block + half + k] = (a - real, b - imaginary);
            }
        }
        half *= 2;
    }
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
