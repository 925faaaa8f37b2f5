//! Sine, cosine, tangent and their inverses, for F32.

use super::*;

const F: Ty = Ty::F32;
const I: Ty = Ty::I32;

/// Up to here three parts of π/2 reduce an argument well enough; beyond, lanes call the scalar function.
const REDUCED: f64 = 71_000.0;

/// x = j·π/2 + r with |r| ≤ π/4: (j as an integer, r).
fn reduce(b: &mut Builder, x: V) -> (V, V) {
    let two_over_pi = b.splat(F, std::f64::consts::FRAC_2_PI);
    let t = b.mul(F, x, two_over_pi);
    let j = b.un(UnOp::Round, F, t);
    let mut r = x;
    // Single-precision parts of π/2, the first two short enough for exact products.
    for bits in [0x3fc9_0fd8u32, 0x34a8_885a, 0x27c2_34c4] {
        let part = b.bits(F, bits.into());
        r = b.fnma(F, j, part, r);
    }
    (b.convert(I, F, j), r)
}

fn sine_part(b: &mut Builder, r: V, s: V) -> V {
    let p = polynomial(b, F, s, &[2.865_679_56e-6, -1.985_599_23e-4, 8.333_385_92e-3, -1.666_666_72e-1]);
    let t = b.mul(F, r, s);
    b.fma(F, p, t, r)
}

fn cosine_part(b: &mut Builder, s: V) -> V {
    polynomial(b, F, s, &[2.446_770_67e-5, -1.388_772_97e-3, 4.166_665_67e-2, -0.5, 1.0])
}

/// Sine of x + quarter·π/2.
fn sine(b: &mut Builder, x: V, quarter: u64) -> V {
    let (j, r) = reduce(b, x);
    let s = b.mul(F, r, r);
    let (sine, cosine) = (sine_part(b, r, s), cosine_part(b, s));
    let quarter = b.bits(I, quarter);
    let j = b.add(I, j, quarter);
    let (one, zero) = (b.bits(I, 1), b.bits(I, 0));
    let odd = b.and(I, j, one);
    let odd = b.compare(CompareOp::Ne, I, odd, zero);
    let v = b.select(F, odd, cosine, sine);
    // The second bit of j to the sign.
    let two = b.bits(I, 2);
    let sign = b.and(I, j, two);
    let sign = b.shift(BinOp::Shl, I, sign, 30);
    b.xor(F, v, sign)
}

/// Lanes beyond the reduction take the scalar function's value.
fn beyond(b: &mut Builder, f: ScalarFn, x: V, v: V) -> V {
    let size = abs(b, F, x);
    let limit = b.splat(F, REDUCED);
    let large = b.compare(CompareOp::Gt, F, size, limit);
    b.pure(Op::Call(f), F, F, &[x, V::NONE, large, v])
}

/// sin x
pub(super) fn sin(b: &mut Builder, x: V) -> V {
    let v = sine(b, x, 0);
    beyond(b, ScalarFn::Sin, x, v)
}

/// cos x
pub(super) fn cos(b: &mut Builder, x: V) -> V {
    let v = sine(b, x, 1);
    beyond(b, ScalarFn::Cos, x, v)
}

/// tan x, or −1/tan in odd quarters.
pub(super) fn tan(b: &mut Builder, x: V) -> V {
    let (j, r) = reduce(b, x);
    let s = b.mul(F, r, r);
    let p = polynomial(
        b,
        F,
        s,
        &[
            4.374_690_8e-3,
            9.301_961_8e-5,
            1.083_282_66e-2,
            2.128_343_84e-2,
            5.405_965_45e-2,
            0.133_326_66,
            0.333_333_49,
        ],
    );
    let cube = b.mul(F, r, s);
    let t = b.fma(F, p, cube, r);
    // What the sum has lost is brought into the inverse: −1/(t + l) ≈ q + q²·l.
    let lost = b.sub(F, r, t);
    let lost = b.fma(F, p, cube, lost);
    let minus = b.splat(F, -1.0);
    let q = b.div(F, minus, t);
    let square = b.mul(F, q, q);
    let inverse = b.fma(F, square, lost, q);
    let (one, zero) = (b.bits(I, 1), b.bits(I, 0));
    let odd = b.and(I, j, one);
    let odd = b.compare(CompareOp::Ne, I, odd, zero);
    let v = b.select(F, odd, inverse, t);
    beyond(b, ScalarFn::Tan, x, v)
}

/// arc sine of z in 0..9/16 with s = z².
fn asin_part(b: &mut Builder, z: V, s: V) -> V {
    let p = polynomial(
        b,
        F,
        s,
        &[4.752_553_6e-2, 6.701_270_6e-3, 3.402_632_5e-2, 4.422_945_2e-2, 7.502_12e-2, 0.166_666_31],
    );
    let t = b.mul(F, z, s);
    b.fma(F, p, t, z)
}

/// For |x| > 9/16 the arc of √((1 − |x|)/2): (whether so, arc of the argument used).
fn half_arc(b: &mut Builder, size: V) -> (V, V) {
    let (half, minus_half) = (b.splat(F, 0.5), b.splat(F, -0.5));
    let limit = b.splat(F, 0.5625);
    let far = b.compare(CompareOp::Gt, F, size, limit);
    let rest = b.fma(F, size, minus_half, half);
    let root = b.un(UnOp::Sqrt, F, rest);
    let square = b.mul(F, size, size);
    let s = b.select(F, far, rest, square);
    let z = b.select(F, far, root, size);
    (far, asin_part(b, z, s))
}

/// arc sine
pub(super) fn asin(b: &mut Builder, x: V) -> V {
    let size = abs(b, F, x);
    let (far, arc) = half_arc(b, size);
    // π/2 − 2·arc, with π/2 in two parts.
    let (minus_two, high, low) = (b.splat(F, -2.0), b.bits(F, 0x3fc9_0fdb), b.bits(F, 0xb33b_bd2e));
    let v = b.fma(F, arc, minus_two, low);
    let v = b.add(F, v, high);
    let v = b.select(F, far, v, arc);
    let sign = sign_bit(b, F, x);
    b.or(F, v, sign)
}

/// arc cosine
pub(super) fn acos(b: &mut Builder, x: V) -> V {
    let size = abs(b, F, x);
    let (far, arc) = half_arc(b, size);
    let zero = b.splat(F, 0.0);
    let negative = b.compare(CompareOp::Lt, F, x, zero);
    let (high, low) = (b.bits(F, 0x3fc9_0fdb), b.bits(F, 0xb33b_bd2e));
    // Near 0: π/2 − arc, with x's sign on the arc.
    let sign = sign_bit(b, F, x);
    let signed = b.xor(F, arc, sign);
    let near = b.sub(F, low, signed);
    let near = b.add(F, near, high);
    // Far: 2·arc, or π − 2·arc.
    let twice = b.add(F, arc, arc);
    let (pi_high, pi_low) = (b.bits(F, 0x4049_0fdb), b.bits(F, 0xb3bb_bd2e));
    let other = b.sub(F, pi_low, twice);
    let other = b.add(F, other, pi_high);
    let outer = b.select(F, negative, other, twice);
    b.select(F, far, outer, near)
}

/// arc tangent of t in 0..1
fn atan_part(b: &mut Builder, t: V) -> V {
    let s = b.mul(F, t, t);
    let p = polynomial(
        b,
        F,
        s,
        &[
            2.785_698_28e-3,
            -1.586_602_26e-2,
            4.247_222_31e-2,
            -7.497_530_43e-2,
            1.064_487_99e-1,
            -1.420_703_08e-1,
            1.999_345_42e-1,
            -3.333_314_66e-1,
        ],
    );
    let p = b.mul(F, p, s);
    b.fma(F, p, t, t)
}

/// π/2 − v, with π/2 as a product that is rounded once with the difference.
fn from_quarter(b: &mut Builder, v: V) -> V {
    let (p, q) = (b.bits(F, 0x3f6e_e581), b.bits(F, 0x3fd7_74eb));
    b.fma_op(FmaOp::Sub, F, p, q, v)
}

/// arc tangent
pub(super) fn atan(b: &mut Builder, x: V) -> V {
    let size = abs(b, F, x);
    let one = b.splat(F, 1.0);
    let far = b.compare(CompareOp::Gt, F, size, one);
    let inverse = b.div(F, one, size);
    let t = b.select(F, far, inverse, size);
    let v = atan_part(b, t);
    let other = from_quarter(b, v);
    let v = b.select(F, far, other, v);
    let sign = sign_bit(b, F, x);
    b.or(F, v, sign)
}

/// The angle of (y, x).
pub(super) fn atan2(b: &mut Builder, y: V, x: V) -> V {
    let (ay, ax) = (abs(b, F, y), abs(b, F, x));
    let steep = b.compare(CompareOp::Gt, F, ay, ax);
    let (small, large) = (b.select(F, steep, ax, ay), b.select(F, steep, ay, ax));
    let ratio = b.div(F, small, large);
    // 0/0 is 0 here, ∞/∞ is 1.
    let (zero, one) = (b.splat(F, 0.0), b.splat(F, 1.0));
    let (origin, equal) = (b.compare(CompareOp::Eq, F, large, zero), b.compare(CompareOp::Eq, F, small, large));
    let ratio = b.select(F, equal, one, ratio);
    let ratio = b.select(F, origin, zero, ratio);
    let v = atan_part(b, ratio);
    let other = from_quarter(b, v);
    let v = b.select(F, steep, other, v);
    // x's sign bit, −0 among them, turns to π − v.
    let pi_high = b.bits(F, 0x4049_0fdb);
    let pi_low = b.bits(F, 0xb3bb_bd2e);
    let back = b.sub(F, pi_low, v);
    let back = b.add(F, back, pi_high);
    let least = b.bits(Ty::I32, 0);
    let left = b.compare(CompareOp::Lt, Ty::I32, x, least);
    let v = b.select(F, left, back, v);
    let sign = sign_bit(b, F, y);
    let v = b.or(F, v, sign);
    // NaN of either.
    let sum = b.add(F, x, y);
    let (nan_x, nan_y) = (b.compare(CompareOp::Ne, F, x, x), b.compare(CompareOp::Ne, F, y, y));
    let nan = b.or(Ty::Mask, nan_x, nan_y);
    b.select(F, nan, sum, v)
}
