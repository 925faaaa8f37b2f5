//! Shrinking keeps what satisfies the predicate and drops the rest.

use kiln_ir::generate::{self, Options};
use kiln_ir::shrink::shrink;
use kiln_ir::{BinaryOp, Graph, Op, UnaryOp, interpret};

fn has(graph: &Graph, op: &Op) -> bool {
    graph.nodes().iter().any(|n| n.op == *op)
}

#[test]
fn a_node_is_found_in_a_large_graph() {
    let (mut tried, wanted) = (0, Op::Unary(UnaryOp::Tanh));
    for seed in 0..400 {
        let options = Options { nodes: 40, symbolic: seed % 2 == 0, ..Options::default() };
        let graph = generate::graph(seed, &options);
        if !has(&graph, &wanted) {
            continue;
        }
        tried += 1;
        let small = shrink(graph, &mut |g| has(g, &wanted));
        small.verify().unwrap();
        assert_eq!(small.nodes().len(), 2, "an operand and the op\n{small}");
        assert_eq!(small.outputs().len(), 1, "{small}");
        let sizes = small.nodes()[0].ty.fixed_shape().unwrap();
        assert!(sizes.iter().all(|&n| n <= 1), "{small}");
    }
    assert!(tried >= 5, "only {tried} of the graphs have the op");
}

#[test]
fn a_fault_in_values_is_kept() {
    // Stands for a wrong result: a float sum above 3.
    let shows = |graph: &Graph| {
        let Ok(outputs) = interpret::run(graph, &generate::inputs(graph, 1)) else { return false };
        graph.outputs().iter().zip(outputs).any(|(output, value)| {
            let node = graph.node(output.node);
            let large = |v: &f64| v.is_finite() && *v > 3.0;
            node.op == Op::Binary(BinaryOp::Add) && node.ty.dtype.is_float() && value.to_f64().iter().any(large)
        })
    };
    let mut tried = 0;
    for seed in 0..600 {
        let graph = generate::graph(seed, &Options { nodes: 30, ..Options::default() });
        if !shows(&graph) {
            continue;
        }
        tried += 1;
        let small = shrink(graph.clone(), &mut |g| shows(g));
        assert!(shows(&small));
        assert!(small.nodes().len() <= 8, "{small}");
    }
    assert!(tried >= 3, "only {tried} graphs show it");
}
