//! Batch norms in the weights of frozen convolutions: the same numbers, but for rounding, with nothing but a sum left for each call.

use kiln_ir::{BinaryOp, Graph, HostTensor, Op, interpret};
use kiln_passes::{MainInput, SplitOptions, fold_norms, split_frozen};

const CONV: &str = "{stride=[1, 1], padding=[(1, 1), (1, 1)], dilation=[1, 1], input_dilation=[1, 1], groups=GROUPS}";

/// (conv(x, w) + b − m) · f + c, as batch norm in evaluation writes it.
fn norm(groups: usize) -> Graph {
    let text = "graph(%0: f32[n, 4, 5, 5], %1: f32[6, IN, 3, 3], %2: f32[6], %3: f32[6], %4: f32[6], %5: f32[6]) {
  %6: f32[n, 6, 5, 5] = conv %0, %1 CONV
  %7: f32[1, 6, 1, 1] = reshape %2
  %8: f32[n, 6, 5, 5] = expand %7
  %9: f32[n, 6, 5, 5] = add %6, %8
  %10: f32[1, 6, 1, 1] = reshape %3
  %11: f32[n, 6, 5, 5] = expand %10
  %12: f32[n, 6, 5, 5] = sub %9, %11
  %13: f32[6] = rsqrt %4
  %14: f32[1, 6, 1, 1] = reshape %13
  %15: f32[n, 6, 5, 5] = expand %14
  %16: f32[n, 6, 5, 5] = mul %12, %15
  %17: f32[1, 6, 1, 1] = reshape %5
  %18: f32[n, 6, 5, 5] = expand %17
  %19: f32[n, 6, 5, 5] = add %16, %18
  return %19
}";
    let conv = CONV.replace("GROUPS", &groups.to_string());
    Graph::parse(&text.replace("CONV", &conv).replace("IN", &(4 / groups).to_string())).unwrap()
}

fn numbers(shape: &[usize], seed: usize) -> HostTensor {
    let count = shape.iter().product::<usize>();
    let value = |i: usize| (((i * 7919 + seed * 104729) % 1000) as f32) / 500.0 + 0.1;
    HostTensor::from_slice(shape, &(0..count).map(value).collect::<Vec<f32>>()).unwrap()
}

#[test]
fn factors_go_into_weights() {
    for groups in [1, 2] {
        let graph = norm(groups);
        let folded = fold_norms(&graph, &[false, true, true, true, true, true]).unwrap().expect("a norm to fold");
        folded.verify().unwrap();
        let folded = kiln_passes::run(folded).unwrap();
        let split = split_frozen(&folded, &[false, true, true, true, true, true], &SplitOptions::default()).unwrap();
        // What depends on the picture is the convolution and one sum.
        let binary = |op: BinaryOp| split.main.nodes().iter().filter(|node| node.op == Op::Binary(op)).count();
        let counts = (binary(BinaryOp::Mul), binary(BinaryOp::Sub), binary(BinaryOp::Add));
        assert_eq!(counts, (0, 0, 1), "{}", split.main);
        assert!(split.main_inputs.iter().filter(|from| matches!(from, MainInput::Prepared(_))).count() >= 2);
        let inputs = [
            numbers(&[2, 4, 5, 5], 1),
            numbers(&[6, 4 / groups, 3, 3], 2),
            numbers(&[6], 3),
            numbers(&[6], 4),
            numbers(&[6], 5),
            numbers(&[6], 6),
        ];
        let (want, got) = (interpret::run(&graph, &inputs).unwrap(), interpret::run(&folded, &inputs).unwrap());
        for (want, got) in want[0].to_f64().iter().zip(got[0].to_f64()) {
            assert!((want - got).abs() <= 1e-5 * want.abs().max(1.0), "{want} became {got}");
        }
    }
}

#[test]
fn what_is_not_frozen_or_read_elsewhere_stays() {
    let graph = norm(1);
    for unfrozen in [1, 2, 3, 4] {
        let mut frozen = [false, true, true, true, true, true];
        frozen[unfrozen] = false;
        assert!(fold_norms(&graph, &frozen).unwrap().is_none(), "input {unfrozen}");
    }
    // The offset behind the factor does not matter.
    assert!(fold_norms(&graph, &[false, true, true, true, true, false]).unwrap().is_some());
    // A convolution that somebody else reads too.
    let conv = CONV.replace("GROUPS", "1");
    let text = format!(
        "graph(%0: f32[1, 4, 5, 5], %1: f32[6, 4, 3, 3], %2: f32[6]) {{
  %3: f32[1, 6, 5, 5] = conv %0, %1 {conv}
  %4: f32[1, 6, 1, 1] = reshape %2
  %5: f32[1, 6, 5, 5] = expand %4
  %6: f32[1, 6, 5, 5] = mul %3, %5
  return %6, %3
}}"
    );
    let shared = Graph::parse(&text).unwrap();
    assert!(fold_norms(&shared, &[false, true, true]).unwrap().is_none());
    let alone = Graph::parse(&text.replace("%6, %3", "%6")).unwrap();
    assert!(fold_norms(&alone, &[false, true, true]).unwrap().is_some());
    // A factor a pixel is none a channel.
    let pixels =
        text.replace("%6, %3", "%6").replace("f32[6])", "f32[25])").replace("f32[1, 6, 1, 1]", "f32[1, 1, 5, 5]");
    assert!(fold_norms(&Graph::parse(&pixels).unwrap(), &[false, true, true]).unwrap().is_none());
}
