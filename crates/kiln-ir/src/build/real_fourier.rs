//! Fourier transforms of real numbers, and to them: half of the complex numbers are the conjugates of the others.
//!
//! An even number n = 2m of real numbers is taken for m complex ones, z[j] = x[2j] + i·x[2j + 1], so that a transform takes half of the steps.
//! With ω = e^(∓2πi/n), Z the transform of z and Z[m] = Z[0]
//!
//! ```text
//!  X[k] = (Z[k] + conj Z[m − k])/2 − i·ωᵏ·(Z[k] − conj Z[m − k])/2            of real numbers, for k ≤ m
//!  Z[k] = (X[k] + conj X[m − k]) + i·ωᵏ·(X[k] − conj X[m − k])                to real numbers, for k < m
//! ```

use super::{
    Built, Emit, add, cast, compare_scalar, complex, complex_from_real, complex_parts, concat, constant_f64, dft, flip,
    full_like, iota, mul, neg, permute, reshape, select, slice_axis, sub, widen,
};
use crate::{CompareOp, DType, Dim};
use std::f64::consts::TAU;

/// Half of a known even length. A transform of two numbers has nothing to halve.
fn known_half(n: &Dim) -> Option<usize> {
    n.as_usize().filter(|n| n.is_multiple_of(2) && *n > 2).map(|n| n / 2)
}

/// The first `n/2 + 1` elements of the [`dft`] of real numbers along an axis of length n; the others are their conjugates.
#[track_caller]
pub fn dft_of_real<E: Emit>(e: &mut E, x: &E::Value, axis: usize, forward: bool, factor: f64) -> Built<E> {
    super::shape::check_axis(e, "dft_of_real", x, axis)?;
    let size = e.ty(x).shape[axis].clone();
    if let Some(m) = known_half(&size) {
        return half_of_real(e, x, axis, forward, factor, m);
    }
    let half = size.floor_div(&Dim::from(2)) + 1;
    let x = complex_from_real(e, x)?;
    let y = dft(e, &x, axis, forward, factor)?;
    slice_axis(e, &y, axis, &Dim::from(0), &half, 1)
}

/// The [`dft`], of length n along an axis, whose input is given by its first `n/2 + 1` elements, the others being their
/// conjugates in reverse order, so that the result is real. The imaginary parts of the first and, where n is even, the middle element do
/// not count.
#[track_caller]
pub fn dft_to_real<E: Emit>(e: &mut E, x: &E::Value, axis: usize, n: &Dim, forward: bool, factor: f64) -> Built<E> {
    super::shape::check_axis(e, "dft_to_real", x, axis)?;
    let half = n.floor_div(&Dim::from(2)) + 1;
    let x = slice_axis(e, x, axis, &Dim::from(0), &half, 1)?;
    if let Some(m) = known_half(n) {
        return half_to_real(e, &x, axis, forward, factor, m);
    }
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

/// Cosines and sines of ωᵏ for k below `count`, beside so many axes after theirs.
#[track_caller]
fn roots<E: Emit>(
    e: &mut E,
    dtype: DType,
    m: usize,
    count: usize,
    forward: bool,
    inner: usize,
) -> Result<(E::Value, E::Value), E::Error> {
    let turn = if forward { -TAU } else { TAU } / (2 * m) as f64;
    let mut aligned = vec![Dim::from(1); 1 + inner];
    aligned[0] = Dim::from(count);
    let table = |e: &mut E, of: fn(f64) -> f64| -> Built<E> {
        let values: Vec<f64> = (0..count).map(|k| of(turn * k as f64)).collect();
        let table = constant_f64(e, dtype, &[count], &values)?;
        reshape(e, &table, &aligned)
    };
    Ok((table(e, f64::cos)?, table(e, f64::sin)?))
}

#[track_caller]
fn half_of_real<E: Emit>(e: &mut E, x: &E::Value, axis: usize, forward: bool, factor: f64, m: usize) -> Built<E> {
    // Short floats are rounded once.
    let (x, dtype) = widen(e, x)?;
    let ty = e.ty(&x);
    let (rank, inner) = (ty.rank(), ty.rank() - 1 - axis);
    let mut shape = ty.shape;
    shape.splice(axis..=axis, [Dim::from(m), Dim::from(2)]);
    let pairs = reshape(e, &x, &shape)?;
    let order: Vec<usize> = (0..=axis).chain(axis + 2..=rank).chain([axis + 1]).collect();
    let pairs = permute(e, &pairs, &order)?;
    let z = dft(e, &pairs, axis, forward, factor / 2.0)?;
    let first = slice_axis(e, &z, axis, &Dim::from(0), &Dim::from(1), 1)?;
    let z = concat(e, &[z, first], axis)?;
    let back = flip(e, &z, &[axis])?;
    let ((a, b), (c, d)) = (complex_parts(e, &z)?, complex_parts(e, &back)?);
    let (even_real, even_imaginary) = (add(e, &a, &c)?, sub(e, &b, &d)?);
    let (p, q) = (sub(e, &a, &c)?, add(e, &b, &d)?);
    // −i·(p + iq)·(cos + i·sin)
    let (cosine, sine) = roots(e, ty.dtype, m, m + 1, forward, inner)?;
    let (qc, ps) = (mul(e, &q, &cosine)?, mul(e, &p, &sine)?);
    let (qs, pc) = (mul(e, &q, &sine)?, mul(e, &p, &cosine)?);
    let (odd_real, odd_imaginary) = (add(e, &qc, &ps)?, sub(e, &qs, &pc)?);
    let (real, imaginary) = (add(e, &even_real, &odd_real)?, add(e, &even_imaginary, &odd_imaginary)?);
    let y = complex(e, &real, &imaginary)?;
    cast(e, &y, dtype)
}

#[track_caller]
fn half_to_real<E: Emit>(e: &mut E, x: &E::Value, axis: usize, forward: bool, factor: f64, m: usize) -> Built<E> {
    let (x, dtype) = widen(e, x)?;
    let rank = e.ty(&x).rank() - 1;
    let inner = rank - 1 - axis;
    let back = flip(e, &x, &[axis])?;
    let first = |e: &mut E, x: &E::Value| slice_axis(e, x, axis, &Dim::from(0), &Dim::from(m), 1);
    let (x, back) = (first(e, &x)?, first(e, &back)?);
    let ty = e.ty(&x);
    let ((a, b), (c, d)) = (complex_parts(e, &x)?, complex_parts(e, &back)?);
    let mut aligned = vec![Dim::from(1); 1 + inner];
    aligned[0] = Dim::from(m);
    let number = iota(e, DType::I64, &aligned, 0)?;
    let counts = compare_scalar(e, CompareOp::Ne, &number, 0.0)?;
    let zero = full_like(e, &b, 0.0)?;
    let (b, d) = (select(e, &counts, &b, &zero)?, select(e, &counts, &d, &zero)?);
    let (even_real, even_imaginary) = (add(e, &a, &c)?, sub(e, &b, &d)?);
    let (p, q) = (sub(e, &a, &c)?, add(e, &b, &d)?);
    // i·(p + iq)·(cos + i·sin)
    let (cosine, sine) = roots(e, ty.dtype, m, m, forward, inner)?;
    let (ps, qc) = (mul(e, &p, &sine)?, mul(e, &q, &cosine)?);
    let (pc, qs) = (mul(e, &p, &cosine)?, mul(e, &q, &sine)?);
    let (odd_real, odd_imaginary) = (add(e, &ps, &qc)?, sub(e, &pc, &qs)?);
    let (real, imaginary) = (sub(e, &even_real, &odd_real)?, add(e, &even_imaginary, &odd_imaginary)?);
    let whole = complex(e, &real, &imaginary)?;
    let z = dft(e, &whole, axis, forward, factor)?;
    // Real and imaginary parts are neighbours along the axis.
    let order: Vec<usize> = (0..=axis).chain([rank]).chain(axis + 1..rank).collect();
    let z = permute(e, &z, &order)?;
    let mut shape = ty.shape[..rank].to_vec();
    shape[axis] = Dim::from(2 * m);
    let y = reshape(e, &z, &shape)?;
    cast(e, &y, dtype)
}
