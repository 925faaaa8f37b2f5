//! Every op, on the examples that every floor takes its cases from.

use crate::finite::{Counts, check_at};
use kiln_ir::examples::{Example, examples};
use kiln_ir::{DType, Graph, HostTensor, OpKind};
use kiln_passes::{Derivative, DifferentiateOptions, Seeds, derivative, differentiate};
use std::collections::BTreeMap;

/// The graph of an example on f64 instead of f32; nothing where it has other floats, or no derivative.
fn in_f64(example: &Example) -> Option<Graph> {
    let other = |d: DType| d.is_float() && !matches!(d, DType::F32 | DType::F64);
    if derivative(example.kind) == Derivative::None || example.graph.nodes().iter().any(|n| other(n.ty.dtype)) {
        return None;
    }
    let text = example.graph.to_string().replace("f32", "f64");
    Some(Graph::parse(&text).unwrap_or_else(|e| panic!("{}: {e}\n{text}", example.name)))
}

#[test]
fn every_op_has_a_rule_or_says_why_not() {
    let mut counts: BTreeMap<OpKind, Counts> = BTreeMap::new();
    for example in examples() {
        let Some(graph) = in_f64(&example) else { continue };
        let total = counts.entry(example.kind).or_default();
        for (n, binding) in example.bindings.iter().enumerate() {
            // In the types of the example, then in f64: the values are drawn for those.
            let Some(inputs) = example.inputs(binding, 7 * n as u64 + 3) else { continue };
            let as_tensor = |literal| HostTensor::from_literal(literal).unwrap();
            let wide = |x: HostTensor| if x.dtype() == DType::F32 { x.cast(DType::F64).unwrap() } else { x };
            let inputs: Vec<HostTensor> = inputs.iter().map(as_tensor).map(wide).collect();
            let found = check_at(&graph, &inputs, binding, 11 + n as u64);
            let found = found.unwrap_or_else(|e| panic!("{} at {binding:?}: {e}", example.name));
            total.compared += found.compared;
            total.skipped += found.skipped;
        }
    }
    for kind in OpKind::all() {
        let Counts { compared, skipped } = counts.get(&kind).copied().unwrap_or_default();
        match derivative(kind) {
            Derivative::Rule => {
                assert!(compared >= 5, "{}: only {compared} elements compared", kind.name());
                assert!(skipped * 2 <= compared, "{}: {skipped} skipped, {compared} compared", kind.name());
            }
            // Steps are nowhere near the points compared, so that 0 is right there.
            Derivative::Zero => assert!(compared >= 5, "{}: only {compared} elements compared", kind.name()),
            Derivative::None => {}
        }
    }
}

/// Every example of every type: the joint graph verifies, and a gradient has the type of its input.
#[test]
fn short_floats_and_symbols_have_gradients_of_the_right_type() {
    for example in examples() {
        let graph = &example.graph;
        let floats = |ids: Vec<kiln_ir::NodeId>| -> Vec<usize> {
            let carries = |id: &kiln_ir::NodeId| kiln_passes::is_differentiable(graph.ty(*id).dtype);
            (0..ids.len()).filter(|&i| carries(&ids[i])).collect()
        };
        let of = floats(graph.outputs().iter().map(|o| o.node).collect());
        let by = floats(graph.inputs().to_vec());
        let joint =
            differentiate(graph, &of, &by, &DifferentiateOptions { seeds: Seeds::Inputs, ..Default::default() });
        let joint = joint.unwrap_or_else(|e| panic!("{}: {e}", example.name));
        joint.verify().unwrap_or_else(|e| panic!("{}: {e}", example.name));
        for (n, &input) in by.iter().enumerate() {
            let gradient = joint.outputs()[graph.outputs().len() + n].node;
            assert_eq!(joint.ty(gradient), graph.ty(graph.inputs()[input]), "{}", example.name);
        }
    }
}
