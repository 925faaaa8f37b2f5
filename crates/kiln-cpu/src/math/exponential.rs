//! eˣ and what is made of it.

use super::*;

const F: Ty = Ty::F32;

/// eˣ for F32: x = n·ln 2 + r, a polynomial in r, then 2ⁿ.
pub(super) fn exp(b: &mut Builder, x: V) -> V {
    // Beyond these the result is ∞ or 0. The operand comes last, so that NaN passes.
    let (low, high) = (b.splat(F, -104.0), b.splat(F, 89.0));
    let x = b.bin(BinOp::Min, F, high, x);
    let x = b.bin(BinOp::Max, F, low, x);
    let log2e = b.splat(F, std::f64::consts::LOG2_E);
    let t = b.mul(F, x, log2e);
    let n = b.un(UnOp::Round, F, t);
    // ln 2 in two parts, the first with zeros at its end so that its product with n is exact.
    let (ln2_high, ln2_low) = (b.splat(F, 0.693359375), b.splat(F, -2.121_944_4e-4));
    let r = b.fnma(F, n, ln2_high, x);
    let r = b.fnma(F, n, ln2_low, r);
    let p = polynomial(
        b,
        F,
        r,
        &[1.378_364_1e-3, 8.375_128_9e-3, 4.166_896_5e-2, 1.666_647_2e-1, 4.999_998_5e-1, 1.0, 1.0],
    );
    b.pure(Op::Scale, F, F, &[p, n])
}

/// tanh x for F32: a polynomial near 0, else 1 − 2 / (e²ˣ + 1).
pub(super) fn tanh(b: &mut Builder, x: V) -> V {
    let size = abs(b, F, x);
    let square = b.mul(F, x, x);
    let p = polynomial(
        b,
        F,
        square,
        &[-5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1],
    );
    let cube = b.mul(F, square, x);
    let small = b.fma(F, p, cube, x);
    let twice = b.add(F, size, size);
    let e = exp(b, twice);
    let (one, two) = (b.splat(F, 1.0), b.splat(F, 2.0));
    let below = b.add(F, e, one);
    let part = b.div(F, two, below);
    let large = b.sub(F, one, part);
    let sign = sign_bit(b, F, x);
    let large = b.or(F, large, sign);
    let limit = b.splat(F, 0.625);
    let near = b.compare(CompareOp::Lt, F, size, limit);
    b.select(F, near, small, large)
}
