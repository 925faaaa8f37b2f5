//! Fourier transforms of known lengths, as passes over all elements: Stockham's order, so that no pass is a permutation alone.
//!
//! ```text
//!  x  [b, A]   b elements are left to be transformed, for each of the A results of the passes so far; A = 1 at first
//!     = [a, b', A]                      a elements, b' apart
//!     ─▶ transform of length a          in registers: one value an element, straight-line code
//!     ─▶ times e^(∓2πi·j·k/b)           for element j of b' and result k of a
//!     ─▶ [b', k, A] = [b', a·A]         the results of this pass are the slower ones
//! ```
//!
//! Real and imaginary parts are the two halves of one tensor between passes, so that neighbours are neighbours in memory.

use super::{
    Built, Emit, add, cast, complex, complex_parts, constant_f64, mul, mul_scalar, neg, pick, reshape, stack, sub,
    widen,
};
use crate::{DType, Dim};
use std::f64::consts::{FRAC_1_SQRT_2, TAU};

/// The longest transform of one pass: as many complex numbers are live at once.
const LONGEST: usize = 16;

/// The lengths of the passes of a transform, as few as there can be, of which the longest is as short as it can be; `None` for a length with a prime factor that is too
/// large, and for one that is no transform.
pub(super) fn radices(n: usize) -> Option<Vec<usize>> {
    let mut rest = n;
    for prime in [2, 3, 5, 7, 11, 13] {
        while rest > 1 && rest.is_multiple_of(prime) {
            rest /= prime;
        }
    }
    if n < 2 || rest != 1 {
        return None;
    }
    fn shortest(n: usize, largest: usize, passes: usize) -> Option<Vec<usize>> {
        if n == 1 {
            return Some(Vec::new());
        }
        if passes == 0 {
            return None;
        }
        (2..=largest).rev().filter(|radix| n.is_multiple_of(*radix)).find_map(|radix| {
            let mut list = shortest(n / radix, radix, passes - 1)?;
            list.insert(0, radix);
            Some(list)
        })
    }
    let fewest = (1..=usize::BITS as usize).find(|&passes| shortest(n, LONGEST, passes).is_some())?;
    (2..=LONGEST).find_map(|largest| shortest(n, largest, fewest))
}

/// A complex number: real and imaginary parts.
type Pair<V> = (V, V);

/// The transform along an axis of complex numbers, pairs in the last axis, by passes of these lengths, times a factor.
#[track_caller]
pub(super) fn passes<E: Emit>(
    e: &mut E,
    x: &E::Value,
    axis: usize,
    forward: bool,
    factor: f64,
    radices: &[usize],
) -> Built<E> {
    // Short floats are rounded once.
    let (x, dtype) = widen(e, x)?;
    let ty = e.ty(&x);
    let (outer, inner) = (ty.shape[..axis].to_vec(), ty.shape[axis + 1..ty.rank() - 1].to_vec());
    let shape_of = |middle: &[usize]| -> Vec<Dim> {
        outer.iter().cloned().chain(middle.iter().map(|&n| Dim::from(n))).chain(inner.iter().cloned()).collect()
    };
    let (mut state, mut done) = (complex_parts(e, &x)?, 1);
    let mut left: usize = radices.iter().product();
    let mut results = Vec::new();
    for (pass, &radix) in radices.iter().enumerate() {
        let rest = left / radix;
        let view = shape_of(&[radix, rest, done]);
        let (real, imaginary) = (reshape(e, &state.0, &view)?, reshape(e, &state.1, &view)?);
        let mut parts = Vec::with_capacity(radix);
        for j in 0..radix {
            parts.push((pick(e, &real, axis, j as i64)?, pick(e, &imaginary, axis, j as i64)?));
        }
        results = small(e, &parts, forward)?;
        if rest > 1 {
            results = turned(e, results, ty.dtype, left, rest, forward, inner.len())?;
        }
        if pass == 0 && factor != 1.0 {
            for (real, imaginary) in &mut results {
                (*real, *imaginary) = (mul_scalar(e, real, factor)?, mul_scalar(e, imaginary, factor)?);
            }
        }
        done *= radix;
        left = rest;
        if left > 1 {
            let (real, imaginary): (Vec<_>, Vec<_>) = results.drain(..).unzip();
            let shape = shape_of(&[left, done]);
            let (real, imaginary) = (stack(e, &real, axis + 1)?, stack(e, &imaginary, axis + 1)?);
            // One tensor, so that one kernel writes it.
            let both = stack(e, &[real, imaginary], 0)?;
            let (real, imaginary) = (pick(e, &both, 0, 0)?, pick(e, &both, 0, 1)?);
            state = (reshape(e, &real, &shape)?, reshape(e, &imaginary, &shape)?);
        }
    }
    // The pairs of the last pass at once: parts that are written apart would have to be joined.
    let mut pairs = Vec::with_capacity(results.len());
    for (real, imaginary) in &results {
        pairs.push(complex(e, real, imaginary)?);
    }
    let y = stack(e, &pairs, axis + 1)?;
    let y = reshape(e, &y, &ty.shape)?;
    cast(e, &y, dtype)
}

/// Result k of a pass times e^(∓2πi·j·k/n) at each element j of what is left, the third last axis but for `inner` more.
#[track_caller]
fn turned<E: Emit>(
    e: &mut E,
    results: Vec<Pair<E::Value>>,
    dtype: DType,
    n: usize,
    rest: usize,
    forward: bool,
    inner: usize,
) -> Result<Vec<Pair<E::Value>>, E::Error> {
    let turn = if forward { -TAU } else { TAU } / n as f64;
    let angles = |k: usize| (0..rest).map(move |j| turn * (j * k % n) as f64);
    let count = results.len();
    let table = |e: &mut E, of: fn(f64) -> f64| -> Built<E> {
        let values: Vec<f64> = (0..count).flat_map(|k| angles(k).map(of)).collect();
        constant_f64(e, dtype, &[count, rest], &values)
    };
    let (cosines, sines) = (table(e, f64::cos)?, table(e, f64::sin)?);
    let mut aligned = vec![Dim::from(1); 2 + inner];
    aligned[0] = Dim::from(rest);
    let mut all = Vec::with_capacity(count);
    for (k, (real, imaginary)) in results.into_iter().enumerate() {
        if k == 0 {
            all.push((real, imaginary));
            continue;
        }
        let (cosine, sine) = (pick(e, &cosines, 0, k as i64)?, pick(e, &sines, 0, k as i64)?);
        let (cosine, sine) = (reshape(e, &cosine, &aligned)?, reshape(e, &sine, &aligned)?);
        let (rc, is) = (mul(e, &real, &cosine)?, mul(e, &imaginary, &sine)?);
        let (rs, ic) = (mul(e, &real, &sine)?, mul(e, &imaginary, &cosine)?);
        all.push((sub(e, &rc, &is)?, add(e, &rs, &ic)?));
    }
    Ok(all)
}

#[track_caller]
fn sum<E: Emit>(e: &mut E, x: &Pair<E::Value>, y: &Pair<E::Value>) -> Result<Pair<E::Value>, E::Error> {
    Ok((add(e, &x.0, &y.0)?, add(e, &x.1, &y.1)?))
}

#[track_caller]
fn difference<E: Emit>(e: &mut E, x: &Pair<E::Value>, y: &Pair<E::Value>) -> Result<Pair<E::Value>, E::Error> {
    Ok((sub(e, &x.0, &y.0)?, sub(e, &x.1, &y.1)?))
}

/// The transform of a few numbers, one value each.
#[track_caller]
fn small<E: Emit>(e: &mut E, x: &[Pair<E::Value>], forward: bool) -> Result<Vec<Pair<E::Value>>, E::Error> {
    match x.len() {
        0 | 1 => Ok(x.to_vec()),
        2 => Ok(vec![sum(e, &x[0], &x[1])?, difference(e, &x[0], &x[1])?]),
        4 => {
            let (even, odd) = (sum(e, &x[0], &x[2])?, sum(e, &x[1], &x[3])?);
            let (early, late) = (difference(e, &x[0], &x[2])?, difference(e, &x[1], &x[3])?);
            let late = turn(e, &late, 1, 4, forward)?;
            Ok(vec![
                sum(e, &even, &odd)?,
                sum(e, &early, &late)?,
                difference(e, &even, &odd)?,
                difference(e, &early, &late)?,
            ])
        }
        n => match [4, 2, 3, 5, 7].into_iter().find(|&a| n.is_multiple_of(a) && a < n) {
            Some(a) => split(e, x, a, forward),
            None => prime(e, x, forward),
        },
    }
}

/// n = a·b numbers by transforms of the lengths a and b; see [`super::dft`].
#[track_caller]
fn split<E: Emit>(e: &mut E, x: &[Pair<E::Value>], a: usize, forward: bool) -> Result<Vec<Pair<E::Value>>, E::Error> {
    let (n, b) = (x.len(), x.len() / a);
    let mut rows: Vec<Vec<Pair<E::Value>>> = vec![Vec::with_capacity(b); a];
    for j in 0..b {
        let column: Vec<Pair<E::Value>> = (0..a).map(|i| x[b * i + j].clone()).collect();
        for (k, result) in small(e, &column, forward)?.into_iter().enumerate() {
            rows[k].push(turn(e, &result, j * k, n, forward)?);
        }
    }
    let mut all: Vec<Option<Pair<E::Value>>> = vec![None; n];
    for (k, row) in rows.iter().enumerate() {
        for (far, result) in small(e, row, forward)?.into_iter().enumerate() {
            all[k + a * far] = Some(result);
        }
    }
    Ok(all.into_iter().flatten().collect())
}

/// An odd prime number of numbers. Those that are as far from the first on either side have the same cosines and opposite sines.
#[track_caller]
fn prime<E: Emit>(e: &mut E, x: &[Pair<E::Value>], forward: bool) -> Result<Vec<Pair<E::Value>>, E::Error> {
    let n = x.len();
    let half = n / 2;
    let mut folded = Vec::with_capacity(half);
    let mut first = x[0].clone();
    for j in 1..=half {
        let both = (sum(e, &x[j], &x[n - j])?, difference(e, &x[j], &x[n - j])?);
        first = sum(e, &first, &both.0)?;
        folded.push(both);
    }
    let mut all: Vec<Option<Pair<E::Value>>> = vec![None; n];
    all[0] = Some(first);
    for k in 1..=half {
        let (mut even, mut odd): (Pair<E::Value>, Option<Pair<E::Value>>) = (x[0].clone(), None);
        for (j, (sums, differences)) in folded.iter().enumerate() {
            let angle = TAU * ((j + 1) * k % n) as f64 / n as f64;
            let (cosine, sine) = (angle.cos(), angle.sin());
            let scaled = (mul_scalar(e, &sums.0, cosine)?, mul_scalar(e, &sums.1, cosine)?);
            even = sum(e, &even, &scaled)?;
            let scaled = (mul_scalar(e, &differences.0, sine)?, mul_scalar(e, &differences.1, sine)?);
            odd = Some(match odd {
                Some(odd) => sum(e, &odd, &scaled)?,
                None => scaled,
            });
        }
        let Some(odd) = odd else { continue };
        let odd = turn(e, &odd, 1, 4, forward)?;
        all[k] = Some(sum(e, &even, &odd)?);
        all[n - k] = Some(difference(e, &even, &odd)?);
    }
    Ok(all.into_iter().flatten().collect())
}

/// x · e^(∓2πi·k/n).
#[track_caller]
fn turn<E: Emit>(e: &mut E, x: &Pair<E::Value>, k: usize, n: usize, forward: bool) -> Result<Pair<E::Value>, E::Error> {
    // Backwards is the other way round.
    let k = if forward { (n - k % n) % n } else { k % n };
    let (real, imaginary) = x;
    let quarters = 4 * k;
    Ok(match quarters / n {
        0 if k == 0 => x.clone(),
        1 if quarters % n == 0 => (neg(e, imaginary)?, real.clone()),
        2 if quarters % n == 0 => (neg(e, real)?, neg(e, imaginary)?),
        3 if quarters % n == 0 => (imaginary.clone(), neg(e, real)?),
        quarter if 8 * k % n == 0 => {
            // Odd eighths: (±1 ± i)·√½.
            let (plus, minus) = (add(e, real, imaginary)?, sub(e, real, imaginary)?);
            let (real, imaginary) = match quarter {
                0 => ((&minus, FRAC_1_SQRT_2), (&plus, FRAC_1_SQRT_2)),
                1 => ((&plus, -FRAC_1_SQRT_2), (&minus, FRAC_1_SQRT_2)),
                2 => ((&minus, -FRAC_1_SQRT_2), (&plus, -FRAC_1_SQRT_2)),
                _ => ((&plus, FRAC_1_SQRT_2), (&minus, -FRAC_1_SQRT_2)),
            };
            (mul_scalar(e, real.0, real.1)?, mul_scalar(e, imaginary.0, imaginary.1)?)
        }
        _ => {
            let angle = TAU * k as f64 / n as f64;
            let (cosine, sine) = (angle.cos(), angle.sin());
            let (rc, is) = (mul_scalar(e, real, cosine)?, mul_scalar(e, imaginary, sine)?);
            let (rs, ic) = (mul_scalar(e, real, sine)?, mul_scalar(e, imaginary, cosine)?);
            (sub(e, &rc, &is)?, add(e, &rs, &ic)?)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::radices;

    #[test]
    fn as_few_passes_as_there_can_be() {
        assert_eq!(radices(1024), Some(vec![16, 16, 4]));
        assert_eq!(radices(16), Some(vec![16]));
        assert_eq!(radices(2), Some(vec![2]));
        assert_eq!(radices(100), Some(vec![10, 10]));
        assert_eq!(radices(13 * 11), Some(vec![13, 11]));
        // No transform, a prime that is too large, and one among others.
        assert_eq!((radices(1), radices(17), radices(34)), (None, None, None));
        for n in (2..3000usize).filter(|n| radices(*n).is_some()) {
            let list = radices(n).unwrap();
            assert!(list.iter().product::<usize>() == n && list.iter().all(|r| (2..=16).contains(r)), "{n}: {list:?}");
        }
    }
}
