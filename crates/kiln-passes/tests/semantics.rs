//! The passes change nothing that a graph computes: interpreted before and after, on the examples of every op and on
//! thousands of random graphs, the results are the same to the last bit.

use kiln_ir::generate::{self, Options};
use kiln_ir::{Dim, Graph, HostTensor, Symbol, examples, interpret};

/// Random graphs of each of the two kinds (fixed and symbolic sizes); `KILN_TEST_GRAPHS` asks for another number.
fn count() -> u64 {
    std::env::var("KILN_TEST_GRAPHS").ok().and_then(|n| n.parse().ok()).unwrap_or(2000)
}

/// Equal bits, or both NaN.
fn same(a: &HostTensor, b: &HostTensor) -> bool {
    if !a.dtype().is_float() || a.dtype() != b.dtype() || a.shape() != b.shape() {
        return a == b;
    }
    let bits = |v: f64| if v.is_nan() { f64::NAN.to_bits() } else { v.to_bits() };
    a.to_f64().into_iter().zip(b.to_f64()).all(|(a, b)| bits(a) == bits(b))
}

fn check(name: &str, before: &Graph, inputs: &[HostTensor]) {
    let mut steps = Vec::new();
    let after = kiln_passes::run_with(before.clone(), &mut |pass, graph| steps.push((pass.to_owned(), graph.clone())));
    let after = after.unwrap_or_else(|e| panic!("{name}: {e}\n{before}"));
    after.verify().unwrap_or_else(|e| panic!("{name}: {e}\n{before}\n{after}"));
    let types = |graph: &Graph| -> Vec<_> { graph.inputs().iter().map(|&id| graph.ty(id).clone()).collect() };
    assert_eq!(types(before), types(&after), "{name}: the signature stays");
    let updates = |graph: &Graph| -> Vec<_> { graph.outputs().iter().map(|o| o.updates).collect() };
    assert_eq!(updates(before), updates(&after), "{name}: updates stay");
    let want = interpret::run(before, inputs).unwrap_or_else(|e| panic!("{name}: {e}\n{before}"));
    let agrees = |graph: &Graph| match interpret::run(graph, inputs) {
        Ok(got) => got.len() == want.len() && got.iter().zip(&want).all(|(got, want)| same(got, want)),
        Err(_) => false,
    };
    if agrees(&after) {
        return;
    }
    let mut last = before.clone();
    for (pass, graph) in steps {
        assert!(agrees(&graph), "{name}: {pass} changed the result\n{last}\n{graph}");
        last = graph;
    }
    panic!("{name}: the passes changed the result\n{before}\n{after}");
}

/// True when every symbol is an axis of some input, which is where the interpreter learns its number.
fn bound(graph: &Graph) -> bool {
    let inputs = graph.inputs().iter().flat_map(|&id| &graph.ty(id).shape);
    let known: Vec<Symbol> = inputs.filter_map(Dim::as_symbol).collect();
    graph.nodes().iter().flat_map(|n| &n.ty.shape).flat_map(Dim::symbols).all(|symbol| known.contains(&symbol))
}

#[test]
fn examples_compute_the_same() {
    for example in examples::examples() {
        for (n, binding) in example.bindings.iter().enumerate() {
            let inputs = example.inputs(binding, 7).expect("an example's bindings cover its symbols");
            let inputs: Vec<_> = inputs.iter().map(|l| HostTensor::from_literal(l).unwrap()).collect();
            if bound(&example.graph) {
                check(&format!("{} at binding {n}", example.name), &example.graph, &inputs);
            } else {
                kiln_passes::run(example.graph.clone()).unwrap_or_else(|e| panic!("{}: {e}", example.name));
            }
        }
    }
}

#[test]
fn random_graphs_compute_the_same() {
    for seed in 0..count() {
        let graph = generate::graph(seed, &Options { nodes: 20, ..Options::default() });
        check(&format!("seed {seed}"), &graph, &generate::inputs(&graph, seed));
    }
}

#[test]
fn random_graphs_of_symbolic_sizes_compute_the_same() {
    for seed in 0..count() {
        let graph = generate::graph(seed, &Options { nodes: 20, symbolic: true, ..Options::default() });
        check(&format!("symbolic seed {seed}"), &graph, &generate::inputs(&graph, seed));
    }
}

/// Once the passes are through with a graph they find nothing more in it.
#[test]
fn the_result_is_a_fixed_point() {
    for seed in 0..count() / 4 {
        let graph = generate::graph(seed, &Options { nodes: 20, symbolic: seed % 2 == 0, ..Options::default() });
        let once = kiln_passes::run(graph.clone()).unwrap();
        let twice = kiln_passes::run(once.clone()).unwrap();
        assert_eq!(once.to_string(), twice.to_string(), "seed {seed}\n{graph}");
    }
}
