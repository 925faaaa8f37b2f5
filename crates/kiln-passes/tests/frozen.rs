//! Splitting a graph at its frozen inputs changes nothing that it computes, for any set of frozen inputs.

use kiln_ir::generate::{self, Options};
use kiln_ir::{Graph, HostTensor, Op, interpret};
use kiln_passes::{MainInput, Split, SplitOptions, split_frozen};

/// Equal bits, or both NaN.
fn same(a: &HostTensor, b: &HostTensor) -> bool {
    if !a.dtype().is_float() || a.dtype() != b.dtype() || a.shape() != b.shape() {
        return a == b;
    }
    let bits = |v: f64| if v.is_nan() { f64::NAN.to_bits() } else { v.to_bits() };
    a.to_f64().into_iter().zip(b.to_f64()).all(|(a, b)| bits(a) == bits(b))
}

/// What the two halves give together.
fn run(split: &Split, inputs: &[HostTensor]) -> Result<Vec<HostTensor>, String> {
    let given: Vec<HostTensor> = split.prepare_inputs.iter().map(|&i| inputs[i].clone()).collect();
    let prepared = interpret::run(&split.prepare, &given).map_err(|e| e.to_string())?;
    let main: Vec<HostTensor> = split
        .main_inputs
        .iter()
        .map(|from| match *from {
            MainInput::Given(i) => inputs[i].clone(),
            MainInput::Prepared(p) => prepared[p].clone(),
        })
        .collect();
    interpret::run(&split.main, &main).map_err(|e| e.to_string())
}

fn check(graph: &Graph, frozen: &[bool], inputs: &[HostTensor]) {
    let Ok(want) = interpret::run(graph, inputs) else { return };
    for growth in [1, 4, usize::MAX] {
        let options = SplitOptions { growth };
        let split = split_frozen(graph, frozen, &options).unwrap();
        split.prepare.verify().unwrap_or_else(|e| panic!("{e}\n{}", split.prepare));
        split.main.verify().unwrap_or_else(|e| panic!("{e}\n{}", split.main));
        // A value that fails to compute may be one that no output needs.
        let got = run(&split, inputs).unwrap_or_else(|e| panic!("{e}\n{graph}\n{}\n{}", split.prepare, split.main));
        assert!(
            got.len() == want.len() && got.iter().zip(&want).all(|(a, b)| same(a, b)),
            "{frozen:?}\n{graph}\n{}\n{}",
            split.prepare,
            split.main
        );
    }
}

#[test]
fn random_graphs_compute_the_same() {
    for seed in 0..600u64 {
        let options = Options { symbolic: seed % 2 == 1, ..Default::default() };
        let graph = generate::graph(seed, &options);
        let inputs = generate::inputs(&graph, seed);
        for mask in [0u64, u64::MAX, seed.wrapping_mul(0x9e37_79b9_7f4a_7c15), seed.wrapping_mul(0xbf58_476d_1ce4_e5b9)]
        {
            let frozen: Vec<bool> = (0..inputs.len()).map(|i| mask >> (i % 64) & 1 == 1).collect();
            check(&graph, &frozen, &inputs);
        }
    }
}

fn dots(graph: &Graph) -> usize {
    graph.iter().filter(|(_, node)| matches!(node.op, Op::Dot { .. })).count()
}

const BLOCK: &str =
    "graph(%0: f32[b, 6], %1: f32[4, 6], %2: f32[5, 6], %3: f32[4], %4: f32[5], %5: i8[6, 3], %6: f32[3]) {
  %7: f32[b, 4] = dot %0, %1 {lhs_batch=[], rhs_batch=[], lhs_contract=[1], rhs_contract=[1]}
  %8: f32[1, 4] = reshape %3
  %9: f32[b, 4] = expand %8
  %10: f32[b, 4] = add %7, %9
  %11: f32[b, 5] = dot %0, %2 {lhs_batch=[], rhs_batch=[], lhs_contract=[1], rhs_contract=[1]}
  %12: f32[1, 5] = reshape %4
  %13: f32[b, 5] = expand %12
  %14: f32[b, 5] = add %11, %13
  %15: f32[6, 3] = cast %5
  %16: f32[1, 3] = reshape %6
  %17: f32[6, 3] = expand %16
  %18: f32[6, 3] = mul %15, %17
  %19: f32[b, 3] = dot %0, %18 {lhs_batch=[], rhs_batch=[], lhs_contract=[1], rhs_contract=[0]}
  return %10, %14, %19
}";

fn block() -> (Graph, Vec<bool>, Vec<HostTensor>) {
    let graph = Graph::parse(BLOCK).unwrap();
    let inputs = generate::inputs(&graph, 7);
    (graph, vec![false, true, true, true, true, true, true], inputs)
}

#[test]
fn weights_that_need_no_work_are_read_as_they_lie() {
    let (graph, frozen, inputs) = block();
    check(&graph, &frozen, &inputs);
    let split = split_frozen(&kiln_passes::run(graph).unwrap(), &frozen, &SplitOptions::default()).unwrap();
    // Only the dequantised weights are a value of their own.
    let prepared = |from: &&MainInput| matches!(from, MainInput::Prepared(_));
    assert_eq!(split.main_inputs.iter().filter(prepared).count(), 1, "{}", split.main);
    assert_eq!(split.main_inputs[0], MainInput::Given(0));
    assert_eq!(split.prepared_bytes, 6 * 3 * 4);
    assert_eq!(dots(&split.main), 3, "{}", split.main);
}

#[test]
fn what_grows_too_much_is_made_by_each_call() {
    let (graph, frozen, inputs) = block();
    let split = split_frozen(&graph, &frozen, &SplitOptions { growth: 2 }).unwrap();
    assert_eq!(split.prepared_bytes, 0, "i8 to f32 is four times as large\n{}", split.prepare);
    let got = run(&split, &inputs).unwrap();
    assert!(got.iter().zip(&interpret::run(&graph, &inputs).unwrap()).all(|(a, b)| same(a, b)));
}

#[test]
fn views_and_updates_are_not_prepared() {
    let text = "graph(%0: f32[b, 4], %1: f32[3, 4], %2: f32[4]) {
  %3: f32[4, 3] = permute %1 {order=[1, 0]}
  %4: f32[b, 3] = dot %0, %3 {lhs_batch=[], rhs_batch=[], lhs_contract=[1], rhs_contract=[0]}
  %5: f32[4] = exp %2
  return %4, %5 -> input 2
}";
    let graph = Graph::parse(text).unwrap();
    let split = split_frozen(&graph, &[false, true, true], &SplitOptions::default()).unwrap();
    assert!(split.prepare.outputs().is_empty());
    assert_eq!(split.main_inputs, [MainInput::Given(0), MainInput::Given(1), MainInput::Given(2)]);
    assert_eq!(split.main.outputs()[1].updates, Some(2));
}

#[test]
fn short_weights_stay_short() {
    let text = "graph(%0: f32[b, 4], %1: bf16[3, 4], %2: bf16[5, 4], %3: f32[2, 4]) {
  %4: f32[3, 4] = cast %1
  %5: f32[b, 3] = dot %0, %4 {lhs_batch=[], rhs_batch=[], lhs_contract=[1], rhs_contract=[1]}
  %6: f32[5, 4] = cast %2
  %7: f32[b, 5] = dot %0, %6 {lhs_batch=[], rhs_batch=[], lhs_contract=[1], rhs_contract=[1]}
  %8: f32[b, 2] = dot %0, %3 {lhs_batch=[], rhs_batch=[], lhs_contract=[1], rhs_contract=[1]}
  return %5, %7, %8
}";
    let graph = Graph::parse(text).unwrap();
    let frozen = [false, true, true, true];
    check(&graph, &frozen, &generate::inputs(&graph, 3));
    // The passes put views between the casts and the products.
    let graph = kiln_passes::run(graph).unwrap();
    check(&graph, &frozen, &generate::inputs(&graph, 3));
    let split = split_frozen(&graph, &frozen, &SplitOptions { growth: 1 }).unwrap();
    assert_eq!(split.prepared_bytes, 0, "{}", split.prepare);
}

/// 8-bit integers become floats in every call, however large frozen values may grow: that is what they are for.
#[test]
fn integers_of_weights_stay_integers() {
    let text = "graph(%0: bf16[b, 4], %1: i8[3, 4], %2: bf16[3], %3: i8[5, 4], %4: bf16[5]) {
  %5: bf16[3, 4] = cast %1
  %6: bf16[b, 3] = dot %0, %5 {lhs_batch=[], rhs_batch=[], lhs_contract=[1], rhs_contract=[1]}
  %7: bf16[1, 3] = reshape %2
  %8: bf16[b, 3] = expand %7
  %9: bf16[b, 3] = mul %6, %8
  %10: bf16[5, 4] = cast %3
  %11: bf16[b, 5] = dot %0, %10 {lhs_batch=[], rhs_batch=[], lhs_contract=[1], rhs_contract=[1]}
  %12: bf16[1, 5] = reshape %4
  %13: bf16[b, 5] = expand %12
  %14: bf16[b, 5] = mul %11, %13
  return %9, %14
}";
    let (frozen, options) = ([false, true, true, true, true], SplitOptions { growth: 8 });
    let graph = kiln_passes::run(Graph::parse(text).unwrap()).unwrap();
    assert!(split_frozen(&graph, &frozen, &options).unwrap().prepare.outputs().is_empty());
}
