//! The passes change nothing that a graph computes: interpreted before and after, on the examples of every op and on
//! thousands of random graphs, the results are the same to the last bit.

use kiln_ir::decompose::decompose;
use kiln_ir::generate::{self, Options};
use kiln_ir::{DType, Dim, Graph, HostTensor, Op, OpKind, Symbol, UnaryOp, examples, interpret, shrink};

/// Random graphs of each of the two kinds (fixed and symbolic sizes); `KILN_TEST_GRAPHS` sets another number.
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

/// What is wrong with the passes on this graph, if anything is.
fn fault(before: &Graph, inputs: &[HostTensor]) -> Option<String> {
    let mut steps = Vec::new();
    let after = kiln_passes::run_with(before.clone(), &mut |pass, graph| steps.push((pass.to_owned(), graph.clone())));
    let after = match after {
        Ok(after) => after,
        Err(e) => return Some(e.to_string()),
    };
    if let Err(e) = after.verify() {
        return Some(e.to_string());
    }
    let signature = |graph: &Graph| -> Vec<_> { graph.inputs().iter().map(|&id| graph.ty(id).clone()).collect() };
    let updates = |graph: &Graph| -> Vec<_> { graph.outputs().iter().map(|o| o.updates).collect() };
    if signature(before) != signature(&after) || updates(before) != updates(&after) {
        return Some(format!("the signature changed\n{after}"));
    }
    // Convolutions, windows and gradients of attention add up in another order once they are decomposed, which the tests of
    // `decompose` check; everything after that is exact.
    let kept = |op: &Op| {
        let gradient = matches!(op, Op::AttentionLogsumexp { .. } | Op::AttentionGradient { .. });
        !gradient && !matches!(op, Op::Conv(_) | Op::ReduceWindow { .. })
    };
    let want = decompose(before, &kept).map_err(|e| e.to_string());
    let want = match want.and_then(|graph| interpret::run(&graph, inputs).map_err(|e| e.to_string())) {
        Ok(want) => want,
        Err(e) => return Some(format!("it cannot be run: {e}")),
    };
    let agrees = |graph: &Graph| match interpret::run(graph, inputs) {
        Ok(got) => got.len() == want.len() && got.iter().zip(&want).all(|(got, want)| same(got, want)),
        Err(_) => false,
    };
    if agrees(&after) {
        return None;
    }
    let culprit = steps.iter().find(|(_, graph)| !agrees(graph)).map_or("the whole", |(pass, _)| pass);
    Some(format!("{culprit} changed the result\n{after}"))
}

/// Fails with the smallest graph that shows the fault.
fn check_generated(seed: u64, options: &Options) {
    let graph = generate::graph(seed, options);
    if fault(&graph, &generate::inputs(&graph, seed)).is_none() {
        return;
    }
    let runs = |graph: &Graph| interpret::run(graph, &generate::inputs(graph, seed)).is_ok();
    let mut fails = |g: &Graph| runs(g) && fault(g, &generate::inputs(g, seed)).is_some();
    let small = if runs(&graph) { shrink::shrink(graph, &mut fails) } else { graph };
    let fault = fault(&small, &generate::inputs(&small, seed)).unwrap_or_default();
    panic!("seed {seed}, symbolic: {}, dtypes {:?}\n{small}\n{fault}", options.symbolic, options.dtypes);
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
            if !bound(&example.graph) {
                kiln_passes::run(example.graph.clone()).unwrap_or_else(|e| panic!("{}: {e}", example.name));
            } else if let Some(fault) = fault(&example.graph, &inputs) {
                panic!("{} at binding {n}\n{}\n{fault}", example.name, example.graph);
            }
        }
    }
}

#[test]
fn random_graphs_compute_the_same() {
    let options = Options { nodes: 20, ..Options::default() };
    (0..count()).for_each(|seed| check_generated(seed, &options));
}

#[test]
fn random_graphs_of_symbolic_sizes_compute_the_same() {
    let options = Options { nodes: 20, symbolic: true, ..Options::default() };
    (0..count()).for_each(|seed| check_generated(seed, &options));
}

/// The rules speak of few ops and constants, so graphs made of nothing else meet more of them.
#[test]
fn random_graphs_of_pointwise_ops_and_views_compute_the_same() {
    let pointwise = |kind: &OpKind| match kind {
        OpKind::Unary(op) => matches!(
            op,
            UnaryOp::Neg
                | UnaryOp::Abs
                | UnaryOp::Not
                | UnaryOp::IsNan
                | UnaryOp::Floor
                | UnaryOp::Recip
                | UnaryOp::Sign
        ),
        OpKind::Binary(_) | OpKind::Compare(_) | OpKind::Select | OpKind::Cast | OpKind::Full => true,
        _ => false,
    };
    let view = |kind: &OpKind| {
        use OpKind::*;
        matches!(kind, Reshape | Permute | Expand | Slice | Pad | Flip | Unfold | Concat | Iota | Gather | Reduce(_))
    };
    let of = |keep: &dyn Fn(&OpKind) -> bool| OpKind::all().into_iter().filter(keep).collect::<Vec<_>>();
    for (ops, dtypes) in [
        (of(&pointwise), vec![DType::F32, DType::Bool]),
        (of(&pointwise), vec![DType::I8, DType::U8, DType::Bool, DType::F16]),
        (of(&view), vec![DType::F32, DType::I64]),
    ] {
        for symbolic in [false, true] {
            let options = Options {
                nodes: 24,
                symbolic,
                dtypes: dtypes.clone(),
                ops: ops.clone(),
                composites: 0.0,
                ..Options::default()
            };
            (0..count()).for_each(|seed| check_generated(seed, &options));
        }
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
