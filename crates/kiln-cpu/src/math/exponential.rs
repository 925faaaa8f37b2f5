//! eˣ, 2ˣ, eˣ − 1, tanh and the error function, for F32.

use super::*;

const F: Ty = Ty::F32;

/// x = n·ln 2 + r with |r| ≤ ln 2 / 2: (n, r).
fn reduce(b: &mut Builder, x: V) -> (V, V) {
    let log2e = b.splat(F, std::f64::consts::LOG2_E);
    let t = b.mul(F, x, log2e);
    let n = b.un(UnOp::Round, F, t);
    // ln 2 in two parts, the first with zeros at its end so that its product with n is exact.
    let (high, low) = (b.splat(F, 0.693145751953125), b.splat(F, 1.428606765330187e-6));
    let r = b.fnma(F, n, high, x);
    (n, b.fnma(F, n, low, r))
}

/// Beyond these the result is ∞ or 0. The operand comes last, so that NaN passes.
fn clamp(b: &mut Builder, x: V, low: f64, high: f64) -> V {
    let (low, high) = (b.splat(F, low), b.splat(F, high));
    let x = b.bin(BinOp::Min, F, high, x);
    b.bin(BinOp::Max, F, low, x)
}

/// eˣ
pub(super) fn exp(b: &mut Builder, x: V) -> V {
    let x = clamp(b, x, -104.0, 89.0);
    let (n, r) = reduce(b, x);
    let p =
        polynomial(b, F, r, &[1.381_499_6e-3, 8.368_702_6e-3, 4.166_838_2e-2, 0.166_665_21, 0.499_999_94, 1.0, 1.0]);
    b.pure(Op::Scale, F, F, &[p, n])
}

/// 2ˣ
pub(super) fn exp2(b: &mut Builder, x: V) -> V {
    let x = clamp(b, x, -151.0, 129.0);
    let n = b.un(UnOp::Round, F, x);
    let r = b.sub(F, x, n);
    let p = polynomial(
        b,
        F,
        r,
        &[1.535_288_03e-4, 1.339_886_92e-3, 9.618_438_78e-3, 5.550_332_37e-2, 0.240_226_477, 0.693_147_182, 1.0],
    );
    b.pure(Op::Scale, F, F, &[p, n])
}

/// eˣ − 1 = 2ⁿ·(eʳ − 1) + (2ⁿ − 1), with the last difference exact in two parts.
pub(super) fn expm1(b: &mut Builder, x: V) -> V {
    let a = clamp(b, x, -88.0, 89.0);
    let (n, r) = reduce(b, a);
    let p = polynomial(b, F, r, &[1.984_482_5e-4, 1.394_056_7e-3, 8.333_391_5e-3, 4.166_636_2e-2, 0.166_666_66, 0.5]);
    let square = b.mul(F, r, r);
    let v = b.fma(F, p, square, r);
    // Half of 2ⁿ, so that n = 128 does not overflow.
    let half = b.splat(F, 0.5);
    let t = b.pure(Op::Scale, F, F, &[half, n]);
    let y = b.sub(F, t, half);
    let rest = b.sub(F, t, y);
    let rest = b.sub(F, rest, half);
    let sum = b.fma(F, v, t, rest);
    let sum = b.add(F, sum, y);
    let large = b.add(F, sum, sum);
    let zero = b.splat(F, 0.0);
    let near = b.compare(CompareOp::Eq, F, n, zero);
    let result = b.select(F, near, v, large);
    // −0 stays; the clamp has made −∞ finite, which gives −1 all the same.
    let sign = sign_bit(b, F, x);
    b.or(F, result, sign)
}

/// tanh x: a polynomial near 0, else 1 − 2 / (e²ˣ + 1).
pub(super) fn tanh(b: &mut Builder, x: V) -> V {
    let size = abs(b, F, x);
    let square = b.mul(F, x, x);
    let p = polynomial(b, F, square, &[-5.705_038_6e-3, 2.063_912e-2, -5.373_971_5e-2, 0.133_314_42, -0.333_332_81]);
    let cube = b.mul(F, square, x);
    let small = b.fma(F, p, cube, x);
    // Beyond 10 the result is 1; the clamp is all that e²ˣ needs, so it is the exponential without its own.
    let ten = b.splat(F, 10.0);
    let limited = b.bin(BinOp::Min, F, ten, size);
    let twice = b.add(F, limited, limited);
    let (n, r) = reduce(b, twice);
    let e =
        polynomial(b, F, r, &[1.381_499_6e-3, 8.368_702_6e-3, 4.166_838_2e-2, 0.166_665_21, 0.499_999_94, 1.0, 1.0]);
    let e = b.pure(Op::Scale, F, F, &[e, n]);
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

/// 1 + tanh x = 2 / (1 + e⁻²ˣ), without the cancellation for negative x.
pub fn one_plus_tanh(b: &mut Builder, x: V) -> V {
    let minus = b.splat(F, -2.0);
    let t = b.mul(F, x, minus);
    let e = exp(b, t);
    let (one, two) = (b.splat(F, 1.0), b.splat(F, 2.0));
    let below = b.add(F, e, one);
    b.div(F, two, below)
}

/// erf x: an odd polynomial near 0, else 1 − exp of a polynomial.
pub(super) fn erf(b: &mut Builder, x: V) -> V {
    let size = abs(b, F, x);
    let square = b.mul(F, x, x);
    let p = polynomial(
        b,
        F,
        square,
        &[-5.967_617_03e-4, 4.991_194_23e-3, -2.676_813_49e-2, 1.128_199_25e-1, -3.761_253_36e-1, 1.283_791_66e-1],
    );
    let small = b.fma(F, p, x, x);
    // Beyond 4 the result is 1 and the polynomial is no longer good. The operand comes last: NaN passes.
    let four = b.splat(F, 4.0);
    let t = b.bin(BinOp::Min, F, four, size);
    let s = b.mul(F, t, t);
    let r = polynomial(b, F, t, &[-1.728_534_70e-5, 3.831_971_26e-4]);
    let u = polynomial(b, F, t, &[-3.883_964_38e-3, 2.425_462_19e-2]);
    let mut r = b.fma(F, r, s, u);
    for c in [-1.067_778_77e-1, -6.348_466_87e-1, -1.287_175_12e-1] {
        let c = b.splat(F, c);
        r = b.fma(F, r, t, c);
    }
    let minus = neg(b, F, t);
    let r = b.fma(F, r, t, minus);
    let e = exp(b, r);
    let one = b.splat(F, 1.0);
    let large = b.sub(F, one, e);
    let sign = sign_bit(b, F, x);
    let large = b.or(F, large, sign);
    let limit = b.splat(F, 0.927734375);
    let near = b.compare(CompareOp::Lt, F, size, limit);
    b.select(F, near, small, large)
}
