//! What a gradient is where finite differences have no say: at ties and kinks, for errors, and what is emitted.

use kiln_ir::{Graph, HostTensor, Op, interpret};
use kiln_passes::{DifferentiateError, DifferentiateOptions, Seeds, differentiate};

fn parse(text: &str) -> Graph {
    Graph::parse(text).unwrap_or_else(|e| panic!("{e}\n{text}"))
}

/// Gradients by all inputs of the sum of output 0.
fn gradients(text: &str, inputs: &[HostTensor]) -> Vec<Vec<f64>> {
    let graph = parse(text);
    let by: Vec<usize> = (0..graph.inputs().len()).filter(|&i| graph.ty(graph.inputs()[i]).dtype.is_float()).collect();
    let joint =
        differentiate(&graph, &[0], &by, &DifferentiateOptions { seeds: Seeds::Inputs, ..Default::default() }).unwrap();
    let ty = graph.ty(graph.outputs()[0].node);
    let one = kiln_ir::Scalar::float(ty.dtype, 1.0);
    let ones = HostTensor::full(&ty.fixed_shape().unwrap(), one).unwrap();
    let all: Vec<HostTensor> = inputs.iter().cloned().chain([ones]).collect();
    let results = interpret::run(&joint, &all).unwrap();
    results[graph.outputs().len()..].iter().map(HostTensor::to_f64).collect()
}

fn vector(values: &[f64]) -> HostTensor {
    HostTensor::from_slice(&[values.len()], values).unwrap()
}

/// The gradient of one op on a vector.
fn slope(op: &str, values: &[f64]) -> Vec<f64> {
    let n = values.len();
    let text = format!("graph(%0: f64[{n}]) {{\n  %1: f64[{n}] = {op} %0\n  return %1\n}}");
    gradients(&text, &[vector(values)]).remove(0)
}

/// The gradients of one op of two vectors.
fn slopes(op: &str, x: &[f64], y: &[f64]) -> Vec<Vec<f64>> {
    let n = x.len();
    let text = format!("graph(%0: f64[{n}], %1: f64[{n}]) {{\n  %2: f64[{n}] = {op} %0, %1\n  return %2\n}}");
    gradients(&text, &[vector(x), vector(y)])
}

#[test]
fn kinks_are_as_in_pytorch() {
    assert_eq!(slope("abs", &[-2.0, 0.0, 3.0]), [-1.0, 0.0, 1.0]);
    assert_eq!(slope("sqrt", &[0.0, 4.0]), [f64::INFINITY, 0.25]);
    assert_eq!(slopes("max", &[1.0, 2.0, 3.0], &[2.0, 2.0, 2.0]), [[0.0, 0.5, 1.0], [1.0, 0.5, 0.0]]);
    assert_eq!(slopes("min", &[1.0, 2.0, 3.0], &[2.0, 2.0, 2.0]), [[1.0, 0.5, 0.0], [0.0, 0.5, 1.0]]);
    assert_eq!(slopes("pow", &[0.0, 0.0, -2.0, -2.0], &[0.0, 2.0, 2.0, 0.0]), [[0.0, 0.0, -4.0, 0.0], [0.0; 4]]);
    let relu = "graph(%0: f64[3]) {\n  %1: f64[3] = full {value=0.0}\n  %2: f64[3] = max %0, %1\n  return %2\n}";
    assert_eq!(gradients(relu, &[vector(&[-1.0, 0.0, 2.0])]), [[0.0, 0.0, 1.0]]);
}

#[test]
fn equals_share_or_the_first_takes_all() {
    let x = vector(&[1.0, 3.0, 3.0, 2.0]);
    let over = |op: &str, shape: &str| format!("graph(%0: f64[4]) {{\n  %1: f64[{shape}] = {op}\n  return %1\n}}");
    let amax = over("reduce_max %0 {axes=[0]}", "1");
    assert_eq!(gradients(&amax, std::slice::from_ref(&x)), [[0.0, 0.5, 0.5, 0.0]]);
    let pool = over("window_max %0 {size=[4], stride=[1], dilation=[1], padding=[(0, 0)]}", "1");
    assert_eq!(gradients(&pool, std::slice::from_ref(&x)), [[0.0, 1.0, 0.0, 0.0]]);
    let running = over("scan_max %0 {axis=0, reverse=false}", "4");
    assert_eq!(gradients(&running, &[x]), [[1.0, 1.0, 2.0, 0.0]]);
}

#[test]
fn the_write_that_stays_gets_the_gradient() {
    let text = "graph(%0: f64[3], %1: i64[3], %2: f64[3]) {
  %3: f64[3] = scatter_set %0, %1, %2 {axis=0}
  return %3
}";
    let index = HostTensor::from_slice(&[3], &[1i64, 0, 1]).unwrap();
    let (x, updates) = (vector(&[1.0; 3]), vector(&[2.0; 3]));
    assert_eq!(gradients(text, &[x, index, updates]), [[0.0, 0.0, 1.0], [0.0, 1.0, 1.0]]);
}

#[test]
fn products_survive_zeros() {
    let text = "graph(%0: f64[3]) {\n  %1: f64[1] = reduce_prod %0 {axes=[0]}\n  return %1\n}";
    assert_eq!(gradients(text, &[vector(&[2.0, 0.0, 5.0])]), [[0.0, 10.0, 0.0]]);
    assert_eq!(gradients(text, &[vector(&[0.0, 0.0, 5.0])]), [[0.0, 0.0, 0.0]]);
    let text = "graph(%0: f64[4]) {\n  %1: f64[4] = scan_prod %0 {axis=0, reverse=false}\n  return %1\n}";
    // 2, 2·0, 2·0·3, 2·0·3·0
    assert_eq!(gradients(text, &[vector(&[2.0, 0.0, 3.0, 0.0])]), [[1.0, 8.0, 0.0, 0.0]]);
}

#[test]
fn a_path_that_does_not_exist_costs_nothing_but_its_zeros() {
    let graph = parse(
        "graph(%0: f32[4], %1: f32[4], %2: f32[4]) {
  %3: f32[4] = floor %1
  %4: f32[4] = mul %0, %3
  %5: f32[1] = reduce_sum %4 {axes=[0]}
  return %5
}",
    );
    let joint = differentiate(&graph, &[0], &[2, 0, 0], &DifferentiateOptions::default()).unwrap();
    // The seed, its expansion, one product, the zeros of %2.
    assert_eq!(joint.nodes().len(), graph.nodes().len() + 4, "{joint}");
    let outputs: Vec<_> = joint.outputs().iter().map(|o| o.node).collect();
    assert!(matches!(joint.node(outputs[1]).op, Op::Full { .. }));
    assert_eq!(outputs[2], outputs[3]);
}

#[test]
fn new_nodes_carry_the_lines_of_the_old_ones() {
    let graph = parse(
        "graph(%0: f32[4]) {
  %1: f32[4] = tanh %0   @ model.rs:7
  %2: f32[1] = reduce_sum %1 {axes=[0]}   @ model.rs:8
  return %2
}",
    );
    let joint = differentiate(&graph, &[0], &[0], &DifferentiateOptions::default()).unwrap();
    let lines: Vec<u32> = joint.nodes()[graph.nodes().len()..].iter().map(|n| n.source.line).collect();
    assert_eq!(lines[..2], [8, 8]);
    assert!(lines[2..].iter().all(|&line| line == 7), "{joint}");
}

#[test]
fn what_cannot_be_differentiated_is_an_error() {
    let graph = parse("graph(%0: f32[4], %1: i32[4]) {\n  %2: f32[4] = exp %0   @ a.rs:1\n  return %2, %1\n}");
    let of = |of: &[usize], by: &[usize]| differentiate(&graph, of, by, &DifferentiateOptions::default()).unwrap_err();
    assert!(matches!(of(&[0], &[0]), DifferentiateError::SeedNeeded { output: 0, .. }));
    assert!(matches!(of(&[2], &[0]), DifferentiateError::UnknownOutput { output: 2, count: 2 }));
    assert!(matches!(of(&[1], &[0]), DifferentiateError::OutputType { output: 1, .. }));
    assert!(matches!(of(&[0], &[1]), DifferentiateError::InputType { input: 1, .. }));
    assert!(matches!(of(&[0], &[5]), DifferentiateError::UnknownInput { input: 5, count: 2 }));
    let message = of(&[0], &[0]).to_string();
    assert_eq!(message, "output 0 is f32[4]: without a seed only one element can be differentiated, at a.rs:1");
}
