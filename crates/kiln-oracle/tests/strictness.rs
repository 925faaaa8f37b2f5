//! What the oracle must notice: answers that are a little wrong where little rounds, or wrong altogether where much does. Bounds
//! that explain everything would pass the fuzzer too.

use kiln_ir::examples::Random;
use kiln_ir::{DType, Graph, HostTensor, Scalar};
use kiln_oracle::{self as oracle, Config, Disagreement};

/// Compares with every answer changed by `tamper`.
fn tampered(graph: &str, inputs: &[HostTensor], tamper: fn(f64) -> f64) -> Result<oracle::Agreement, Disagreement> {
    thread_local!(static TAMPER: std::cell::Cell<fn(f64) -> f64> = const { std::cell::Cell::new(|x| x) });
    TAMPER.set(tamper);
    let change = |answer: &mut HostTensor| {
        for i in 0..answer.elements() {
            let (dtype, value) = (answer.dtype(), TAMPER.get()(answer.get(i).as_f64()));
            let value = if dtype.is_float() { Scalar::float(dtype, value) } else { Scalar::int(dtype, value as i64) };
            answer.set(i, value);
        }
    };
    let mut config = Config { tamper: Some(change), ..Default::default() };
    config.options.disk_cache = false;
    oracle::compare(&Graph::parse(graph).unwrap(), inputs, &config)
}

/// The graph agrees as it is, with nothing left undecided, and does not when its answer is changed.
fn notices(graph: &str, inputs: &[HostTensor], tamper: fn(f64) -> f64) {
    let honest = tampered(graph, inputs, |x| x).unwrap_or_else(|e| panic!("{graph}\n{e}"));
    assert_eq!((honest.undecided, honest.skipped), (0, None), "{graph}");
    assert!(honest.compared > 0 && !honest.is_vacuous(), "{graph}");
    assert!(tampered(graph, inputs, tamper).is_err(), "{graph}: a wrong answer passes");
}

fn numbers(dtype: DType, shape: &[usize], seed: u64) -> HostTensor {
    let mut random = Random(seed);
    let values: Vec<f64> = (0..shape.iter().product()).map(|_| 0.1 + random.unit()).collect();
    HostTensor::from_f64(dtype, shape, &values).unwrap()
}

#[test]
fn sums_of_short_floats_are_rounded_once() {
    let graph = "graph(%0: f16[512]) { %1: f16[1] = reduce_sum %0 {axes=[0]} return %1 }";
    notices(graph, &[numbers(DType::F16, &[512], 1)], |x| x * 1.02);
}

#[test]
fn products_are_as_near_as_sums_in_their_dtype() {
    for (dtype, off) in [("f32", (|x| x * (1.0 + 3e-4)) as fn(f64) -> f64), ("f64", |x| x * (1.0 + 1e-12))] {
        let graph = format!(
            "graph(%0: {dtype}[3, 256], %1: {dtype}[5, 256]) {{ %2: {dtype}[3, 5] = dot %0, %1 {{lhs_batch=[], rhs_batch=[], \
             lhs_contract=[1], rhs_contract=[1]}} return %2 }}"
        );
        let dtype = if dtype == "f32" { DType::F32 } else { DType::F64 };
        notices(&graph, &[numbers(dtype, &[3, 256], 1), numbers(dtype, &[5, 256], 2)], off);
    }
}

/// Of two sums that are equal but for rounding, the difference may be anything as small as their errors, and nothing larger.
#[test]
fn what_cancels_is_small() {
    let graph = "graph(%0: f32[300]) {
        %1: f32[1] = reduce_sum %0 {axes=[0]}
        %2: f32[300] = scan_sum %0 {axis=0, reverse=true}
        %3: f32[1] = slice %2 {start=[0], size=[1], step=[1]}
        %4: f32[1] = sub %1, %3
        return %4
    }";
    let inputs = [numbers(DType::F32, &[300], 1)];
    tampered(graph, &inputs, |x| x).unwrap();
    assert!(tampered(graph, &inputs, |x| x + 1.0).is_err());
}

#[test]
fn functions_away_from_their_jumps() {
    for (op, tamper) in [
        ("log", (|x| x + 1e-4) as fn(f64) -> f64),
        ("lgamma", |_| f64::INFINITY),
        ("log1p", |_| f64::NAN),
        ("tanh", |x| x * (1.0 + 1e-4)),
    ] {
        let graph = format!("graph(%0: f32[64]) {{ %1: f32[64] = {op} %0 return %1 }}");
        notices(&graph, &[numbers(DType::F32, &[64], 3)], tamper);
    }
    let floor = "graph(%0: f32[64]) { %1: f32[64] = floor %0 return %1 }";
    notices(floor, &[numbers(DType::F32, &[64], 3)], |x| x + 1.0);
    let apart = "graph(%0: f32[64]) { %1: f32[64] = exp %0 %2: bool[64] = ne %1, %0 return %2 }";
    notices(apart, &[numbers(DType::F32, &[64], 3)], |x| 1.0 - x);
}

/// A checkpoint with an infinite scale does not look healthy.
#[test]
fn products_with_an_infinite_scale() {
    let graph = "graph(%0: f32[3, 32], %1: u8[2, 18]) {
        %2: f32[2, 32] = dequantize %1 {format=q4_0}
        %3: f32[3, 2] = dot %0, %2 {lhs_batch=[], rhs_batch=[], lhs_contract=[1], rhs_contract=[1]}
        return %3
    }";
    let mut blocks: Vec<i64> = (0..36).map(|i| i * 37 % 256).collect();
    blocks[..2].copy_from_slice(&[0x00, 0x7c]);
    blocks[18..20].copy_from_slice(&[0x00, 0x3c]);
    let blocks = HostTensor::from_i64(DType::U8, &[2, 18], &blocks).unwrap();
    let inputs = [numbers(DType::F32, &[3, 32], 1), blocks];
    notices(graph, &inputs, |x| if x.is_nan() { f64::INFINITY } else { x });
    notices(graph, &inputs, |x| if x.is_finite() { x * (1.0 + 1e-4) } else { x });
}

/// What is not compared is said.
#[test]
fn agreements_say_what_they_rest_on() {
    let undecided = "graph(%0: f32[64]) {
        %1: f32[64] = exp %0
        %2: f32[64] = log %1
        %3: bool[64] = eq %0, %2
        return %3
    }";
    let agreement = tampered(undecided, &[numbers(DType::F32, &[64], 3)], |x| 1.0 - x).unwrap();
    assert!(agreement.is_vacuous() && agreement.undecided > 0, "{agreement:?}");
    let order = "graph(%0: f32[2]) { %1: f32[1] = reduce_sum %0 {axes=[0]} return %1 }";
    let large = HostTensor::from_f64(DType::F32, &[2], &[3e38, 3e38]).unwrap();
    assert_eq!(tampered(order, &[large], |x| x).unwrap().skipped, Some(oracle::Skipped::Order));
}

/// The logarithm of a sum of exponentials is off by what the sum loses beside its largest term, and by no more.
#[test]
fn logarithms_of_sums_are_as_near_as_their_sums() {
    let graph = "graph(%0: f32[1, 2, 3, 8], %1: f32[1, 2, 5, 8]) {
        %2: f32[1, 2, 3, 1] = attention_logsumexp %0, %1 {scale=0.35, causal=false}
        return %2
    }";
    let inputs = [numbers(DType::F32, &[1, 2, 3, 8], 1), numbers(DType::F32, &[1, 2, 5, 8], 2)];
    notices(graph, &inputs, |x| x * (1.0 + 1e-4));
    notices(graph, &inputs, |x| x + 1e-4);
}

/// Near its zeros on the negative side ln|Γ| is the difference of two logarithms, and no nearer than they are.
#[test]
fn differences_of_logarithms_are_as_near_as_those() {
    let graph = "graph(%0: f64[1]) {
        %1: f64[1] = lgamma %0
        return %1
    }";
    let input = [HostTensor::from_f64(DType::F64, &[1], &[-2.457]).unwrap()];
    assert!(tampered(graph, &input, |x| x + 1e-16).is_ok());
    notices(graph, &input, |x| x + 1e-13);
    let input = [HostTensor::from_f64(DType::F64, &[1], &[2.5]).unwrap()];
    notices(graph, &input, |x| x * (1.0 + 1e-13));
}
