//! Pointwise composites against the functions they stand for.

use crate::harness::{check, floats, ints, run};
use kiln_ir::build::{self, GraphBuilder};
use kiln_ir::interpret::special::erf;
use kiln_ir::{CompareOp, DType, Error, HostTensor, NodeId, Tolerance};

type Function = fn(&mut GraphBuilder, &NodeId) -> Result<NodeId, Error>;
type Expected = fn(f64) -> f64;

const POINTS: [f64; 21] = [
    -1e30, -700.0, -80.0, -25.0, -6.5, -3.0, -1.5, -1.0, -0.5, -1e-3, 0.0, 1e-9, 1e-3, 0.5, 1.0, 1.5, 3.0, 6.5, 25.0,
    80.0, 1e30,
];

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

#[test]
fn activations_are_what_they_say() {
    let functions: &[(&str, Function, Expected)] = &[
        ("relu", |b, x| build::relu(b, x), |x| x.max(0.0)),
        ("relu6", |b, x| build::relu6(b, x), |x| x.clamp(0.0, 6.0)),
        ("leaky_relu", |b, x| build::leaky_relu(b, x, 0.1), |x| if x > 0.0 { x } else { 0.1 * x }),
        ("elu", |b, x| build::elu(b, x, 1.5), |x| if x > 0.0 { x } else { 1.5 * x.exp_m1() }),
        ("celu", |b, x| build::celu(b, x, 2.0), |x| x.max(0.0) + (2.0 * (x / 2.0).exp_m1()).min(0.0)),
        (
            "selu",
            |b, x| build::selu(b, x),
            |x| 1.0507009873554805 * if x > 0.0 { x } else { 1.6732632423543772 * x.exp_m1() },
        ),
        ("sigmoid", |b, x| build::sigmoid(b, x), sigmoid),
        ("log_sigmoid", |b, x| build::log_sigmoid(b, x), |x| -softplus(-x)),
        ("silu", |b, x| build::silu(b, x), |x| x * sigmoid(x)),
        ("gelu", |b, x| build::gelu(b, x), |x| 0.5 * x * (1.0 + erf(x / 2f64.sqrt()))),
        (
            "gelu_tanh",
            |b, x| build::gelu_tanh(b, x),
            |x| 0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh()),
        ),
        ("quick_gelu", |b, x| build::quick_gelu(b, x), |x| x * sigmoid(1.702 * x)),
        ("softplus", |b, x| build::softplus(b, x, 1.0, 20.0), |x| if x > 20.0 { x } else { softplus(x) }),
        ("softplus 2", |b, x| build::softplus(b, x, 2.0, 20.0), |x| if x > 10.0 { x } else { softplus(2.0 * x) / 2.0 }),
        ("mish", |b, x| build::mish(b, x), |x| x * softplus(x).tanh()),
        ("hardsigmoid", |b, x| build::hardsigmoid(b, x), |x| (x + 3.0).clamp(0.0, 6.0) / 6.0),
        ("hardswish", |b, x| build::hardswish(b, x), |x| x * (x + 3.0).clamp(0.0, 6.0) / 6.0),
        ("softsign", |b, x| build::softsign(b, x), |x| x / (1.0 + x.abs())),
        ("threshold", |b, x| build::threshold(b, x, 1.0, -7.0), |x| if x > 1.0 { x } else { -7.0 }),
        ("sinh", |b, x| build::sinh(b, x), f64::sinh),
        ("cosh", |b, x| build::cosh(b, x), f64::cosh),
        ("asinh", |b, x| build::asinh(b, x), f64::asinh),
        ("acosh", |b, x| build::acosh(b, x), |x| if x < 1.0 { f64::NAN } else { x.acosh() }),
        ("atanh", |b, x| build::atanh(b, x), f64::atanh),
    ];
    for &(name, function, expected) in functions {
        for dtype in [DType::F64, DType::F32, DType::Bf16] {
            let x = HostTensor::from_f64(dtype, &[POINTS.len()], &POINTS).unwrap();
            let want: Vec<f64> = x.to_f64().into_iter().map(expected).collect();
            let want = HostTensor::from_f64(dtype, &[POINTS.len()], &want).unwrap();
            let got = run(&[&x], |b, ids| function(b, &ids[0]));
            // A step below the smallest normal float is no error; relative accuracy counts for the rest.
            let (absolute, relative) = match dtype {
                DType::F64 => (1e-14, 1e-13),
                DType::F32 => (1e-7, 3e-6),
                _ => (1e-6, 4e-3),
            };
            let close = |(i, &x): (usize, &f64)| {
                let (g, w) = (got.get_f64(i), want.get_f64(i));
                // Formulas by f32 overflow to their limits where f64 does not: inf·0 is no expectation.
                assert!(
                    g == w || (g.is_nan() && w.is_nan()) || (g - w).abs() <= absolute + relative * w.abs(),
                    "{name} of {dtype} at {x}: {g}, expected {w}"
                );
            };
            POINTS.iter().enumerate().for_each(close);
        }
    }
}

#[test]
fn hyperbolic_functions_lose_nothing_near_zero() {
    let x = [1e-12, -1e-12, 1e-5, 0.3];
    for (function, expected) in [
        ((|b, x| build::sinh(b, x)) as Function, f64::sinh as fn(f64) -> f64),
        (|b, x| build::asinh(b, x), f64::asinh),
        (|b, x| build::atanh(b, x), f64::atanh),
    ] {
        let got = run(&[&floats(&[4], &x)], |b, ids| function(b, &ids[0]));
        let want = floats(&[4], &x.map(expected));
        got.compare(&want, Tolerance { absolute: 0.0, relative: 1e-14 }).unwrap();
    }
}

#[test]
fn floored_division() {
    let x = [7, -7, 7, -7, 6, 0, 5];
    let y = [2, 2, -2, -2, 3, 5, 0];
    let (xs, ys) = (ints(&[7], &x), ints(&[7], &y));
    let quotient = run(&[&xs, &ys], |b, v| build::floor_div(b, &v[0], &v[1]));
    assert_eq!(quotient.to_i64(), [3, -4, -4, 3, 2, 0, 0]);
    let rest = run(&[&xs, &ys], |b, v| build::remainder(b, &v[0], &v[1]));
    assert_eq!(rest.to_i64(), [1, 1, -1, -1, 0, 0, 0]);

    for dtype in [DType::F64, DType::F32, DType::Bf16] {
        let x = HostTensor::from_f64(dtype, &[6], &[7.5, -7.5, 7.5, -7.5, 1.0, 5.0]).unwrap();
        let y = HostTensor::from_f64(dtype, &[6], &[2.0, 2.0, -2.0, -2.0, 0.1, 0.0]).unwrap();
        // 0.1 in f64 and f32 is a little above a tenth and goes into 1 nine times; in bf16 likewise.
        let quotient = run(&[&x, &y], |b, v| build::floor_div(b, &v[0], &v[1]));
        check(&quotient, &[6], &[3.0, -4.0, -4.0, 3.0, 9.0, f64::INFINITY]);
        let rest = run(&[&x, &y], |b, v| build::remainder(b, &v[0], &v[1]));
        let tenth = y.get_f64(4);
        check(&rest, &[6], &[1.5, 0.5, -0.5, -1.5, 1.0 % tenth, f64::NAN]);
    }
}

#[test]
fn broadcasting_follows_numpy() {
    let (x, y) = (crate::harness::count(&[2, 1, 3]), floats(&[2, 1], &[10.0, 20.0]));
    let sum = run(&[&x, &y], |b, v| build::add(b, &v[0], &v[1]));
    check(&sum, &[2, 2, 3], &[10., 11., 12., 20., 21., 22., 13., 14., 15., 23., 24., 25.]);
    let scalar = floats(&[], &[5.0]);
    check(&run(&[&scalar, &y], |b, v| build::mul(b, &v[0], &v[1])), &[2, 1], &[50.0, 100.0]);
    let condition = HostTensor::from_slice(&[3], &[true, false, true]).unwrap();
    let chosen = run(&[&condition, &y, &scalar], |b, v| build::select(b, &v[0], &v[1], &v[2]));
    check(&chosen, &[2, 3], &[10., 5., 10., 20., 5., 20.]);

    let mut b = GraphBuilder::new();
    let x = b.input(kiln_ir::TensorType::fixed(DType::F32, &[2, 3])).unwrap();
    let y = b.input(kiln_ir::TensorType::fixed(DType::F32, &[2])).unwrap();
    let line = line!() + 1;
    let error = build::add(&mut b, &x, &y).unwrap_err();
    let want = format!("broadcast: f32[2, 3] and f32[2] do not agree (3 ≠ 2), at {}:{line}", file!());
    assert_eq!(error.to_string(), want);
}

#[test]
fn scalars_clamps_and_fills() {
    let x = floats(&[3], &[-2.0, f64::NAN, 3.0]);
    check(&run(&[&x], |b, v| build::clamp(b, &v[0], Some(-1.0), Some(1.0))), &[3], &[-1.0, f64::NAN, 1.0]);
    for (power, want) in [
        (1.0, 3.0),
        (2.0, 9.0),
        (3.0, 27.0),
        (0.5, 3f64.sqrt()),
        (-0.5, 1.0 / 3f64.sqrt()),
        (-1.0, 1.0 / 3.0),
        (2.5, 3f64.powf(2.5)),
    ] {
        assert!((run(&[&x], |b, v| build::pow_scalar(b, &v[0], power)).get_f64(2) - want).abs() < 1e-14);
    }
    let filled = run(&[&x], |b, v| {
        let mask = build::compare_scalar(b, CompareOp::Gt, &v[0], 0.0)?;
        build::masked_fill(b, &v[0], &mask, 9.0)
    });
    check(&filled, &[3], &[-2.0, f64::NAN, 9.0]);
    check(&run(&[], |b, _| build::arange(b, DType::F64, 1.0, 0.5, 3)), &[3], &[1.0, 1.5, 2.0]);
}
