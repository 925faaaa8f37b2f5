//! Runs composites on host tensors through the interpreter.

use kiln_ir::build::GraphBuilder;
use kiln_ir::{DType, Error, HostTensor, NodeId, TensorType, Tolerance, interpret};

/// Builds a graph over inputs of these types, runs it, and gives its outputs. Every node must have been added on behalf of
/// a line of the test, not of the library.
pub fn run_all(
    inputs: &[&HostTensor],
    build: impl FnOnce(&mut GraphBuilder, &[NodeId]) -> Result<Vec<NodeId>, Error>,
) -> Vec<HostTensor> {
    let mut b = GraphBuilder::new();
    let ids: Vec<NodeId> = inputs.iter().map(|t| b.input(TensorType::fixed(t.dtype(), t.shape())).unwrap()).collect();
    let outputs = build(&mut b, &ids).unwrap();
    outputs.into_iter().for_each(|o| b.output(o));
    let graph = b.finish();
    graph.verify().unwrap();
    for (id, node) in graph.iter() {
        assert!(node.source.file.contains("/tests/"), "{id} = {} comes from {}", node.op.kind().name(), node.source);
    }
    let inputs: Vec<HostTensor> = inputs.iter().map(|&t| t.clone()).collect();
    interpret::run(&graph, &inputs).unwrap()
}

/// [`run_all`] for one output.
pub fn run(
    inputs: &[&HostTensor],
    build: impl FnOnce(&mut GraphBuilder, &[NodeId]) -> Result<NodeId, Error>,
) -> HostTensor {
    run_all(inputs, |b, ids| Ok(vec![build(b, ids)?])).remove(0)
}

/// A tensor of f64.
pub fn floats(shape: &[usize], values: &[f64]) -> HostTensor {
    HostTensor::from_f64(DType::F64, shape, values).unwrap()
}

/// A tensor of i64.
pub fn ints(shape: &[usize], values: &[i64]) -> HostTensor {
    HostTensor::from_slice(shape, values).unwrap()
}

/// 0, 1, 2, … in f64.
pub fn count(shape: &[usize]) -> HostTensor {
    let n: usize = shape.iter().product();
    floats(shape, &(0..n).map(|i| i as f64).collect::<Vec<_>>())
}

/// Numbers between −2 and 2 without a pattern, in f64.
pub fn noise(shape: &[usize], seed: u64) -> HostTensor {
    let n: usize = shape.iter().product();
    let mut state = seed.wrapping_mul(2) + 1;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 40) as f64 / (1u64 << 22) as f64 - 2.0
    };
    floats(shape, &(0..n).map(|_| next()).collect::<Vec<_>>())
}

/// Fails unless a tensor has this shape and, nearly, these elements.
#[track_caller]
pub fn check(got: &HostTensor, shape: &[usize], want: &[f64]) {
    assert_eq!(got.shape(), shape);
    let want = HostTensor::from_f64(got.dtype(), shape, want).unwrap();
    got.compare(&want, Tolerance::of(got.dtype())).unwrap();
}
