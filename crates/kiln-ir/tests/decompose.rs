//! A decomposed op gives what the op gives.

use kiln_ir::decompose::{Ways, decompose, decompose_by};
use kiln_ir::examples::examples;
use kiln_ir::{
    BlockFormat, ConvDims, DType, Dim, Error, Graph, HostTensor, NodeId, Op, OpKind, ReduceKind, Scalar, Source,
    TensorType, Tolerance, TypeError, WindowDims, interpret,
};

/// A small deterministic generator of test data.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let x = self.0 ^ (self.0 >> 33);
        x.wrapping_mul(0xff51afd7ed558ccd) >> 24
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    fn from(&mut self, low: i64, high: i64) -> i64 {
        low + self.below((high - low + 1) as usize) as i64
    }

    fn tensor(&mut self, dtype: DType, shape: &[usize]) -> HostTensor {
        let n = shape.iter().product();
        let values: Vec<f64> = (0..n).map(|_| self.from(-8, 8) as f64 / 4.0).collect();
        let values = if dtype.is_float() { values } else { values.iter().map(|v| v * 4.0).collect() };
        HostTensor::from_f64(dtype, shape, &values).unwrap()
    }
}

fn is_large(op: &Op) -> bool {
    op.is_attention() || matches!(op, Op::Conv(_) | Op::ReduceWindow { .. } | Op::Dequantize { .. })
}

/// Blocks of random bytes give the same elements to the bit, for any scales.
#[test]
fn blocks_come_apart_exactly() {
    let mut random = Random(11);
    for format in BlockFormat::ALL {
        for shape in [vec![3 * format.bytes()], vec![2, 3, format.bytes()], vec![0, format.bytes()]] {
            let bytes: Vec<u8> = (0..shape.iter().product()).map(|_| random.below(256) as u8).collect();
            let inputs = [HostTensor::from_slice(&shape, &bytes).unwrap()];
            let graph = graph_of(&Op::Dequantize { format }, &inputs).unwrap();
            let small = decompose(&graph, &|_| false).unwrap();
            assert!(!small.nodes().iter().any(|n| is_large(&n.op)));
            let (want, got) = (interpret::run(&graph, &inputs).unwrap(), interpret::run(&small, &inputs).unwrap());
            let bits = |x: &HostTensor| -> Vec<u64> {
                x.to_f64().iter().map(|v| if v.is_nan() { 0 } else { v.to_bits() }).collect()
            };
            assert_eq!(bits(&got[0]), bits(&want[0]), "{}", format.name());
        }
    }
}

/// Runs a graph and its decomposition and compares.
fn check(graph: &Graph, inputs: &[HostTensor], context: &dyn std::fmt::Debug) {
    check_small(graph, decompose(graph, &|_| false).unwrap(), inputs, context);
}

fn check_small(graph: &Graph, small: Graph, inputs: &[HostTensor], context: &dyn std::fmt::Debug) {
    small.verify().unwrap();
    assert!(!small.nodes().iter().any(|n| is_large(&n.op)), "{small:?}");
    assert_eq!(small.ty(small.outputs()[0].node), graph.ty(graph.outputs()[0].node));
    let want = interpret::run(graph, inputs).unwrap();
    let got = interpret::run(&small, inputs).unwrap();
    // The parts round short weights and slopes, which are summed up.
    let rounds = graph.nodes().iter().any(|n| matches!(n.op, Op::AttentionGradient { .. }));
    for (got, want) in got.iter().zip(&want) {
        let tolerance = Tolerance::of(want.dtype()).times(if rounds { 8.0 } else { 1.0 });
        got.compare(want, tolerance).unwrap_or_else(|e| panic!("{context:?}: {e}"));
    }
}

/// A graph of one op on tensors of constant shape; nothing if the op refuses their sizes.
fn graph_of(op: &Op, inputs: &[HostTensor]) -> Option<Graph> {
    let mut graph = Graph::new();
    let operands: Vec<NodeId> = inputs
        .iter()
        .map(|t| graph.input(TensorType::fixed(t.dtype(), t.shape()), Source::default()).unwrap())
        .collect();
    match graph.add(op.clone(), &operands, Source::caller()) {
        Ok(node) => graph.output(node),
        Err(Error::Type { cause, .. })
            if matches!(*cause, TypeError::WindowTooLarge { .. } | TypeError::Negative { .. }) =>
        {
            return None;
        }
        Err(other) => panic!("{other}"),
    }
    Some(graph)
}

#[test]
fn convolutions_of_every_rank_and_attribute() {
    let mut random = Random(1);
    let mut checked = 0;
    for case in 0..1500 {
        let rank = 1 + case % 3;
        let groups = [1, 1, 2, 3][random.below(4)];
        let dtype = [DType::F32, DType::F64, DType::Bf16, DType::I32][random.below(4)];
        let mut x_shape = vec![random.below(3), groups * (1 + random.below(2))];
        let mut w_shape = vec![groups * (1 + random.below(2)), x_shape[1] / groups];
        let mut dims = ConvDims { stride: vec![], padding: vec![], dilation: vec![], input_dilation: vec![], groups };
        for _ in 0..rank {
            x_shape.push(random.below(6));
            w_shape.push(1 + random.below(3));
            dims.stride.push(1 + random.below(3));
            dims.padding.push((random.from(-2, 3), random.from(-2, 3)));
            dims.dilation.push(1 + random.below(2));
            dims.input_dilation.push(1 + random.below(3));
        }
        let inputs = [random.tensor(dtype, &x_shape), random.tensor(dtype, &w_shape)];
        if let Some(graph) = graph_of(&Op::Conv(dims.clone().into()), &inputs) {
            check(&graph, &inputs, &(&dims, &x_shape, &w_shape));
            checked += 1;
        }
    }
    assert!(checked > 500, "only {checked} cases were valid");
}

#[test]
fn windows_of_every_rank_and_attribute() {
    let mut random = Random(2);
    let (mut checked, mut separated) = (0, 0);
    for case in 0..1200 {
        let rank = 1 + case % 3;
        let kind = ReduceKind::ALL[random.below(4)];
        let mut dtype = [DType::F32, DType::F16, DType::I8, DType::U8, DType::Bool][random.below(5)];
        if dtype == DType::Bool && matches!(kind, ReduceKind::Sum | ReduceKind::Prod) {
            dtype = DType::I64;
        }
        let shape: Vec<usize> = (0..rank).map(|_| random.below(7)).collect();
        let dims = WindowDims {
            size: (0..rank).map(|_| 1 + random.below(4)).collect(),
            stride: (0..rank).map(|_| 1 + random.below(3)).collect(),
            dilation: (0..rank).map(|_| 1 + random.below(2)).collect(),
            padding: (0..rank).map(|_| (random.below(3), random.below(3))).collect(),
        };
        let inputs = [random.tensor(dtype, &shape)];
        if let Some(graph) = graph_of(&Op::ReduceWindow { kind, dims: dims.clone().into() }, &inputs) {
            let context = (kind, &dims, &shape, dtype);
            check(&graph, &inputs, &context);
            let ways = Ways { separate_windows: true, ..Ways::default() };
            let small = decompose_by(&graph, &|_| false, ways).unwrap();
            let reductions = small.nodes().iter().filter(|node| matches!(node.op, Op::Reduce { .. })).count();
            check_small(&graph, small, &inputs, &context);
            checked += 1;
            separated += usize::from(reductions > 1);
        }
    }
    assert!(checked > 450 && separated > 40, "only {checked} cases were valid, {separated} an axis at a time");
}

#[test]
fn attention_with_masks_groups_and_empty_rows() {
    let mut random = Random(3);
    for case in 0..800 {
        let dtype = [DType::F32, DType::Bf16, DType::F16, DType::F64][case % 4];
        let (batch, groups) = (random.below(3), 1 + random.below(2));
        let heads = groups * (1 + random.below(3));
        let (t, s, d, e) = (random.below(5), random.below(6), random.below(4), 1 + random.below(3));
        let mut inputs = vec![
            random.tensor(dtype, &[batch, heads, t, d]),
            random.tensor(dtype, &[batch, groups, s, d]),
            random.tensor(dtype, &[batch, groups, s, e]),
        ];
        let masked = random.below(3);
        let shape = [batch, heads, t, s];
        let n: usize = shape.iter().product();
        if masked == 1 {
            let keep: Vec<bool> = (0..n).map(|_| random.below(3) > 0).collect();
            inputs.push(HostTensor::from_slice(&shape, &keep).unwrap());
        } else if masked == 2 {
            let hide = |r: &mut Random| if r.below(2) == 0 { f64::NEG_INFINITY } else { r.from(-4, 4) as f64 };
            let bias: Vec<f64> = (0..n).map(|_| hide(&mut random)).collect();
            let mask_dtype = if random.below(2) == 0 { dtype } else { DType::F32 };
            inputs.push(HostTensor::from_f64(mask_dtype, &shape, &bias).unwrap());
        }
        let causal = random.below(2) == 1;
        let op = Op::Attention { causal, scale: Scalar::float(DType::F64, 0.7), mask: masked > 0 };
        check(&graph_of(&op, &inputs).unwrap(), &inputs, &(op, batch, heads, groups, t, s));
    }
}

#[test]
fn symbolic_sizes_stay_symbolic() {
    let symbol = |name| Dim::symbol(name).unwrap();
    let (n, l, k, s, t) = (symbol("n"), symbol("l"), symbol("k"), symbol("s"), symbol("t"));
    let mut random = Random(4);

    // A convolution whose kernel size is symbolic as well.
    let mut graph = Graph::new();
    let x = graph.input(TensorType::new(DType::F32, vec![n.clone(), 2.into(), l]), Source::default()).unwrap();
    let w = graph.input(TensorType::new(DType::F32, vec![3.into(), 2.into(), k]), Source::default()).unwrap();
    let dims =
        ConvDims { stride: vec![2], padding: vec![(1, 2)], dilation: vec![2], input_dilation: vec![2], groups: 1 };
    let y = graph.add(Op::Conv(dims.into()), &[x, w], Source::default()).unwrap();
    graph.output(y);
    for (n, l, k) in [(2, 7, 3), (1, 4, 1), (3, 5, 2)] {
        check(&graph, &[random.tensor(DType::F32, &[n, 2, l]), random.tensor(DType::F32, &[3, 2, k])], &(n, l, k));
    }

    let mut graph = Graph::new();
    let mut operands = vec![];
    for (heads, length) in [(4, &t), (2, &s), (2, &s)] {
        let shape = vec![n.clone(), heads.into(), length.clone(), 3.into()];
        operands.push(graph.input(TensorType::new(DType::F32, shape), Source::default()).unwrap());
    }
    let op = Op::Attention { causal: true, scale: Scalar::float(DType::F64, 1.0), mask: false };
    let y = graph.add(op, &operands, Source::default()).unwrap();
    graph.output(y);
    for (n, t, s) in [(1, 1, 5), (2, 3, 3), (1, 4, 2), (0, 1, 1)] {
        let inputs = [[n, 4, t, 3], [n, 2, s, 3], [n, 2, s, 3]].map(|shape| random.tensor(DType::F32, &shape));
        check(&graph, &inputs, &(n, t, s));
    }
}

#[test]
fn every_example_of_an_op_runs_and_decomposes() {
    let mut large = 0;
    for example in examples() {
        for binding in &example.bindings {
            for seed in 0..3 {
                let literals = example.inputs(binding, seed).unwrap();
                let inputs: Vec<HostTensor> = literals.iter().map(|l| HostTensor::from_literal(l).unwrap()).collect();
                let outputs = interpret::run_at(&example.graph, &inputs, binding)
                    .unwrap_or_else(|e| panic!("{}: {e}", example.name));
                let node = example.graph.outputs()[0].node;
                let value = |s| binding.iter().find(|(symbol, _)| *symbol == s).map(|&(_, n)| n);
                let ty = example.graph.ty(node);
                let shape: Vec<usize> = ty.shape.iter().map(|d| d.eval(&value).unwrap() as usize).collect();
                assert_eq!((outputs[0].dtype(), outputs[0].shape()), (ty.dtype, &shape[..]), "{}", example.name);
                let attention = matches!(
                    example.kind,
                    OpKind::Attention | OpKind::AttentionLogsumexp | OpKind::AttentionGradient(_)
                );
                if attention || matches!(example.kind, OpKind::Conv | OpKind::ReduceWindow(_)) {
                    check(&example.graph, &inputs, &example.name);
                    large += 1;
                }
            }
        }
    }
    assert!(large > 0);
}

#[test]
fn what_is_kept_stays_and_lines_are_passed_on() {
    let mut graph = Graph::new();
    let x = graph.input(TensorType::fixed(DType::F32, &[1, 1, 4]), Source::default()).unwrap();
    let w = graph.input(TensorType::fixed(DType::F32, &[1, 1, 2]), Source::default()).unwrap();
    let dims =
        ConvDims { stride: vec![1], padding: vec![(0, 0)], dilation: vec![1], input_dilation: vec![1], groups: 1 };
    let line = Source::new("model.rs", 41);
    let y = graph.add(Op::Conv(dims.into()), &[x, w], line.clone()).unwrap();
    graph.update(y, 0);
    assert_eq!(decompose(&graph, &|_| true).unwrap(), graph);
    let small = decompose(&graph, &|op| matches!(op, Op::Attention { .. })).unwrap();
    assert!(small.iter().skip(2).all(|(_, node)| node.source == line));
    assert_eq!(small.outputs()[0].updates, Some(0));
}
