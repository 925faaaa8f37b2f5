//! Interpreter, eager and compiled agree on gradients: of every op's examples, and of random graphs
//! (`KILN_FUZZ_GRAPHS` says how many).

use kiln_ir::examples::{Random, examples};
use kiln_ir::{DType, Graph, HostTensor, NodeId, Op, OpKind, Symbol, generate, interpret, shrink};
use kiln_oracle::{self as oracle, Config};
use kiln_passes::{Derivative, DifferentiateOptions, Seeds, derivative, differentiate, is_differentiable};

/// The graph with the gradients of every output by every input that can have one, and seeds behind the inputs.
fn differentiated(
    graph: &Graph,
    inputs: &[HostTensor],
    sizes: &[(Symbol, i64)],
    seed: u64,
) -> Option<(Graph, Vec<HostTensor>)> {
    let floats = |ids: Vec<NodeId>| -> Vec<usize> {
        ids.iter().enumerate().filter(|(_, id)| is_differentiable(graph.ty(**id).dtype)).map(|(i, _)| i).collect()
    };
    let of = floats(graph.outputs().iter().map(|o| o.node).collect());
    let by = floats(graph.inputs().to_vec());
    if of.is_empty() || by.is_empty() {
        return None;
    }
    let outputs = interpret::run_at(graph, inputs, sizes).ok()?;
    // Windows over nothing but padding have gradients of no places, which only symbolic sizes can express: eager, whose sizes
    // are numbers, refuses the op.
    let window = |op: &Op| matches!(op, Op::ReduceWindow { .. } | Op::Conv(_));
    if inputs.iter().any(|x| x.elements() == 0) && graph.nodes().iter().any(|n| window(&n.op)) {
        return None;
    }
    let joint = differentiate(graph, &of, &by, &DifferentiateOptions { seeds: Seeds::Inputs, ..Default::default() });
    let joint = joint.unwrap_or_else(|e| panic!("{e}\n{graph}"));
    let mut random = Random(seed);
    let mut all = inputs.to_vec();
    for output in of {
        let weights: Vec<f64> = (0..outputs[output].elements()).map(|_| random.unit() * 2.0 - 1.0).collect();
        all.push(HostTensor::from_f64(outputs[output].dtype(), outputs[output].shape(), &weights).unwrap());
    }
    Some((joint, all))
}

#[test]
fn of_every_op() {
    let mut asked = 0;
    for example in examples() {
        if derivative(example.kind) == Derivative::None {
            continue;
        }
        for (seed, binding) in example.bindings.iter().enumerate() {
            let Some(literals) = example.inputs(binding, seed as u64) else { continue };
            let inputs: Vec<HostTensor> = literals.iter().map(|l| HostTensor::from_literal(l).unwrap()).collect();
            let Some((joint, inputs)) = differentiated(&example.graph, &inputs, binding, seed as u64) else { continue };
            if let Err(error) = oracle::compare(&joint, &inputs, &Config::default()) {
                panic!("{}: {error}\n{joint}", example.name);
            }
            asked += 1;
        }
    }
    assert!(asked > 300, "only {asked} graphs were compared");
}

#[test]
fn of_random_graphs() {
    let ops = OpKind::all().into_iter().filter(|&kind| derivative(kind) == Derivative::Rule).collect();
    let dtypes = vec![DType::F32, DType::Bf16, DType::F64];
    let mut options = generate::Options { nodes: 6, max_elements: 256, ops, dtypes, ..Default::default() };
    let count = std::env::var("KILN_FUZZ_GRAPHS").ok().and_then(|n| n.parse().ok()).unwrap_or(400);
    for seed in 0..count {
        options.symbolic = seed % 3 == 0;
        let disagree = |graph: &Graph| {
            let (joint, inputs) = differentiated(graph, &generate::inputs(graph, seed), &[], seed)?;
            oracle::compare(&joint, &inputs, &Config::default()).err().map(|e| format!("{e}\n{joint}"))
        };
        let graph = generate::graph(seed, &options);
        if disagree(&graph).is_some() {
            let small = shrink::shrink(graph, &mut |candidate| disagree(candidate).is_some());
            panic!("seed {seed}: {}\n{small}", disagree(&small).expect("shrinking keeps the disagreement"));
        }
    }
}
