//! The functions on numbers: errors against the bounds that the module's table states, over samples of all bit patterns
//! (over every pattern in `every_input`, which is left out by default), and special values.

use super::functions::{double_binary, double_unary, single_binary, single_unary};
use super::*;
use std::sync::Mutex;

/// The bounds for F32 and for F64, in units in the last place; none for calls. The standard library's functions, the reference, are
/// themselves off by up to one unit in F64, `tanh` by two, and the reference for `erf` by more.
const BOUNDS: [(UnaryOp, f64, Option<f64>); 16] = [
    (UnaryOp::Exp, 0.9, Some(1.0)),
    (UnaryOp::Exp2, 0.92, Some(1.0)),
    (UnaryOp::Expm1, 1.51, Some(2.0)),
    (UnaryOp::Log, 0.86, Some(1.0)),
    (UnaryOp::Log2, 1.14, Some(2.0)),
    (UnaryOp::Log1p, 1.44, Some(2.0)),
    (UnaryOp::Sin, 1.9, Some(2.0)),
    (UnaryOp::Cos, 1.9, Some(2.0)),
    (UnaryOp::Tan, 1.97, Some(2.0)),
    (UnaryOp::Asin, 1.68, Some(2.0)),
    (UnaryOp::Acos, 1.14, Some(2.0)),
    (UnaryOp::Atan, 1.22, Some(2.0)),
    (UnaryOp::Tanh, 1.45, Some(3.0)),
    (UnaryOp::Erf, 1.54, Some(6.0)),
    (UnaryOp::ErfInv, 1.67, None),
    (UnaryOp::Lgamma, 1.95, None),
];

/// Distance from an exact value in units of its last place; ∞ if only one is NaN or infinite, or if the signs of zeros differ.
fn ulps(got: f32, want: f64) -> f64 {
    let rounded = want as f32;
    if got.is_nan() || want.is_nan() {
        return if got.is_nan() && want.is_nan() { 0.0 } else { f64::INFINITY };
    }
    if got == 0.0 && got.is_sign_negative() != want.is_sign_negative() {
        return f64::INFINITY;
    }
    if got == rounded && got.is_infinite() {
        return 0.0;
    }
    if want.is_infinite() {
        return f64::INFINITY;
    }
    // Beyond the largest number the next one would be 2¹²⁸.
    let got = if got.is_infinite() { 2f64.powi(128).copysign(got.into()) } else { got.into() };
    let exponent = ((want.to_bits() >> 52) as i32 & 0x7ff) - 1023;
    (got - want).abs() / 2f64.powi(exponent.max(-126) - 23)
}

/// The largest error over every `step`-th bit pattern from `from` up to `to`, and where.
fn worst(op: UnaryOp, from: u64, to: u64, step: usize) -> (f64, f32) {
    let exact = op.row().float.expect("a function of floats");
    let mut worst = (0.0, 0.0);
    for bits in (from..to).step_by(step) {
        let x = f32::from_bits(bits as u32);
        let y = single_unary(op, x).expect("every function with a bound is there");
        let error = ulps(y, exact(x.into()));
        if error > worst.0 {
            worst = (error, x);
        }
    }
    worst
}

#[test]
fn sampled_inputs() {
    for (op, bound, _) in BOUNDS {
        let (error, x) = worst(op, 0, 1 << 32, 8191);
        assert!(error <= bound, "{}({x:e}): {error} ulp", op.name());
    }
}

/// All 2³² inputs: `cargo test --release -p kiln-cpu every_input -- --ignored --nocapture`.
#[test]
#[ignore = "takes minutes a function"]
fn every_input() {
    for (op, bound, _) in BOUNDS {
        let found = Mutex::new((0.0, 0.0));
        std::thread::scope(|scope| {
            let threads = std::thread::available_parallelism().map_or(2, |n| n.get()) as u64;
            for part in 0..threads {
                let found = &found;
                scope.spawn(move || {
                    let local = worst(op, (part << 32) / threads, ((part + 1) << 32) / threads, 1);
                    let mut found = found.lock().expect("no thread panics with it");
                    if local.0 > found.0 {
                        *found = local;
                    }
                });
            }
        });
        let (error, x) = found.into_inner().expect("no thread panics with it");
        println!("{:8} {error:.4} ulp at {x:e} ({:08x})", op.name(), x.to_bits());
        assert!(error <= bound, "{}({x:e}): {error} ulp", op.name());
    }
}

const SPECIAL: [f32; 36] = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    f32::INFINITY,
    f32::NEG_INFINITY,
    f32::NAN,
    0.5,
    -0.5,
    2.0,
    -2.0,
    3.0,
    -3.0,
    1e-45,
    -1e-45,
    f32::MAX,
    f32::MIN,
    f32::MIN_POSITIVE,
    1e10,
    -1e10,
    16_777_216.0,
    16_777_215.0,
    -16_777_215.0,
    8_388_607.5,
    0.3,
    -0.3,
    1.000_000_1,
    0.999_999_94,
    1e-30,
    1e30,
    7.0,
    100.0,
    -150.0,
    127.0,
    128.0,
    -149.0,
];

fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// Pairs of special values, of arbitrary bit patterns and of moderate numbers.
fn pairs() -> impl Iterator<Item = (f32, f32)> {
    let special = SPECIAL.iter().flat_map(|&x| SPECIAL.iter().map(move |&y| (x, y)));
    let mut state = 0x9e37_79b9_7f4a_7c15;
    let other = (0..200_000).map(move |n| {
        let (a, b) = (random(&mut state) >> 16, random(&mut state) >> 16);
        let moderate = |bits: u64, size: f32| ((bits & 0xff_ffff) as f32 / 16_777_216.0 - 0.5) * size;
        match n % 3 {
            0 => (f32::from_bits(a as u32), f32::from_bits(b as u32)),
            1 => (moderate(a, 200.0), moderate(b, 20.0)),
            _ => (moderate(a, 1.6).abs() + 0.6, moderate(b, 600.0)),
        }
    });
    special.chain(other)
}

#[test]
fn functions_of_two_operands() {
    for (op, bound) in [(BinaryOp::Pow, 0.82), (BinaryOp::Atan2, 1.5), (BinaryOp::Rem, 0.0)] {
        let exact = op.row().float.expect("a function of floats");
        for (x, y) in pairs() {
            let z = single_binary(op, x, y).expect("the function is there");
            let want = exact(x.into(), y.into());
            let error = ulps(z, want);
            assert!(error <= bound, "{}({x:e}, {y:e}) = {z:e}, not {want:e}: {error} ulp", op.name());
        }
    }
}

#[test]
fn small_whole_powers_are_exact() {
    let pow = |x: f32, y: f32| single_binary(BinaryOp::Pow, x, y).expect("the function is there");
    for base in 1..=60 {
        for power in 0..=4 {
            let want = (base as f32).powi(power);
            assert_eq!(pow(base as f32, power as f32), want, "{base}^{power}");
            assert_eq!(pow(-base as f32, power as f32), (-base as f32).powi(power), "(-{base})^{power}");
        }
    }
}

#[test]
fn sine_and_cosine_never_exceed_one() {
    for bits in (0..f32::INFINITY.to_bits()).step_by(211) {
        let x = f32::from_bits(bits);
        for op in [UnaryOp::Sin, UnaryOp::Cos] {
            assert!(single_unary(op, x).is_some_and(|y| y.abs() <= 1.0), "{}({x:e})", op.name());
        }
    }
}

#[test]
fn exponential_of_what_is_not_positive() {
    for bits in (0..1u32 << 31).step_by(4093) {
        let x = -f32::from_bits(bits);
        let error = ulps(single::exp_nonpositive(x), f64::from(x).exp());
        assert!(error <= 0.9, "{x:e}: {error} ulp");
    }
}

/// Distance in units of the last place, whole but for powers of two.
fn double_ulps(got: f64, want: f64) -> f64 {
    if got.is_nan() && want.is_nan() || got.to_bits() == want.to_bits() {
        return 0.0;
    }
    if !got.is_finite() || !want.is_finite() || got.is_sign_negative() != want.is_sign_negative() {
        return f64::INFINITY;
    }
    got.to_bits().abs_diff(want.to_bits()) as f64
}

#[test]
fn double_precision() {
    let special = SPECIAL.map(f64::from).into_iter();
    let special =
        special.chain([5e-324, -5e-324, 1e-310, 709.78, 709.79, -745.1, -745.2, -708.5, 1e22, -1074.5, 1023.99]);
    let mut state = 0x9e37_79b9_7f4a_7c15;
    let other = (0..200_000).map(|n| {
        let bits = random(&mut state);
        let unit = (bits >> 11) as f64 / (1u64 << 53) as f64 - 0.5;
        match n % 3 {
            0 => f64::from_bits(bits),
            1 => unit * 4.0,
            _ => unit * 2f64.powi((bits & 31) as i32 - 16),
        }
    });
    for x in special.chain(other) {
        for (op, bound) in BOUNDS.into_iter().filter_map(|(op, _, bound)| Some((op, bound?))) {
            let exact = op.row().float.expect("a function of floats");
            let y = double_unary(op, x).expect("every function with a bound is there");
            let want = exact(x);
            let error = double_ulps(y, want);
            assert!(error <= bound, "{}({x:e}) = {y:e}, not {want:e}: {error} ulp", op.name());
        }
    }
}

#[test]
fn double_precision_of_two_operands() {
    for (op, bound) in [(BinaryOp::Pow, 2.0), (BinaryOp::Atan2, 2.0), (BinaryOp::Rem, 0.0)] {
        let exact = op.row().float.expect("a function of floats");
        for (x, y) in pairs() {
            let (x, y) = (f64::from(x), f64::from(y));
            // Neighbours of what is a float of 32 bits, so that all bits are at work.
            for (x, y) in [(x, y), (x * 1.000_000_000_1, y), (x, y * 0.999_999_999_9)] {
                let z = double_binary(op, x, y).expect("the function is there");
                let want = exact(x, y);
                let error = double_ulps(z, want);
                assert!(error <= bound, "{}({x:e}, {y:e}) = {z:e}, not {want:e}: {error} ulp", op.name());
            }
        }
    }
}
