//! The graph of many examples gives what the graph of one gives for each: every op, with every choice of batched operands.

use kiln_ir::build::GraphBuilder;
use kiln_ir::examples::examples;
use kiln_ir::{Dim, Graph, HostTensor, Op, OpKind, Symbol, TensorType, interpret};
use kiln_passes::{Vectorized, vectorize};
use std::collections::{BTreeMap, BTreeSet};

const EXAMPLES: usize = 3;

/// Tensors of one shape along a new first axis. Elements that share a byte are laid out anew.
fn stacked(tensors: &[HostTensor]) -> HostTensor {
    let shape: Vec<usize> = [tensors.len()].into_iter().chain(tensors[0].shape().iter().copied()).collect();
    let mut all = HostTensor::zeros(tensors[0].dtype(), &shape).unwrap();
    let count = tensors[0].elements();
    for (number, tensor) in tensors.iter().enumerate() {
        (0..count).for_each(|i| all.set(number * count + i, tensor.get(i)));
    }
    all
}

/// The graph for many, with the inputs that are batched.
fn many(graph: &Graph, batched: &[bool]) -> Result<Graph, kiln_ir::Error> {
    let mut b = GraphBuilder::new();
    let size = Dim::from(EXAMPLES);
    let mut inputs = Vec::new();
    for (&id, &is_batched) in graph.inputs().iter().zip(batched) {
        let ty = graph.ty(id);
        let shape: Vec<Dim> = is_batched.then(|| size.clone()).into_iter().chain(ty.shape.iter().cloned()).collect();
        inputs.push(Vectorized { node: b.input(TensorType::new(ty.dtype, shape))?, is_batched });
    }
    for output in vectorize(&mut b, graph, &size, &inputs)? {
        b.output(output);
    }
    let graph = b.finish();
    graph.verify()?;
    Ok(graph)
}

fn is_close(x: f64, y: f64) -> bool {
    x == y || x.is_nan() && y.is_nan() || (x - y).abs() <= 1e-5 * x.abs().max(y.abs()).max(1.0)
}

/// Whether an op has no form for many of such operands, and says so.
fn is_refused(op: &Op, batched: &[bool]) -> bool {
    let may_fail = |graph: &Graph| {
        let fails = |op: &Op| matches!(op, Op::Gather { .. } | Op::Scatter { .. }) || op.has_bodies();
        graph.nodes().iter().any(|node| fails(&node.op))
    };
    match op {
        Op::Cond { branches, .. } => batched[0] && (may_fail(branches.then()) || may_fail(branches.otherwise())),
        Op::RandomBits { .. } => true,
        Op::Loop { region, .. } => region.is_conditional(),
        _ => false,
    }
}

/// Which operands are batched: all, one alone, all but one.
fn choices(inputs: usize) -> BTreeSet<Vec<bool>> {
    let mut choices = BTreeSet::from([vec![true; inputs]]);
    for one in 0..inputs {
        choices.insert((0..inputs).map(|i| i == one).collect());
        choices.insert((0..inputs).map(|i| i != one).collect());
    }
    choices.retain(|choice| choice.contains(&true));
    choices
}

#[test]
fn every_op_has_a_rule() {
    let mut seen: BTreeMap<OpKind, usize> = BTreeMap::new();
    for example in examples() {
        let inputs = example.graph.inputs().len();
        let Some(last) = example.graph.nodes().last() else { continue };
        let binding: Vec<(Symbol, i64)> = example.bindings[0].clone();
        let one: Option<Vec<Vec<HostTensor>>> = (0..EXAMPLES as u64)
            .map(|seed| {
                let literals = example.inputs(&binding, 7 + seed)?;
                Some(literals.iter().map(|literal| HostTensor::from_literal(literal).unwrap()).collect())
            })
            .collect();
        let Some(one) = one else { continue };
        // Dtypes beyond the first few differ in nothing that a rule looks at.
        let count = seen.entry(example.kind).or_insert(0usize);
        *count += 1;
        if *count > 12 {
            continue;
        }
        for batched in choices(inputs) {
            let graph = match many(&example.graph, &batched) {
                Ok(graph) => graph,
                Err(error) => {
                    assert!(is_refused(&last.op, &batched), "{} {batched:?}: {error}", example.name);
                    continue;
                }
            };
            let row = |number: usize| -> Vec<HostTensor> {
                (0..inputs).map(|i| one[if batched[i] { number } else { 0 }][i].clone()).collect()
            };
            let rows: Vec<Vec<HostTensor>> = (0..EXAMPLES).map(row).collect();
            let singles: Result<Vec<_>, _> =
                rows.iter().map(|row| interpret::run_at(&example.graph, row, &binding)).collect();
            // Some examples show an error at run time.
            let Ok(singles) = singles else { continue };
            let all: Vec<HostTensor> = (0..inputs)
                .map(|i| match batched[i] {
                    true => stacked(&rows.iter().map(|row| row[i].clone()).collect::<Vec<_>>()),
                    false => one[0][i].clone(),
                })
                .collect();
            let together = interpret::run_at(&graph, &all, &binding).unwrap();
            for (result, got) in together.iter().enumerate() {
                let wanted = stacked(&singles.iter().map(|single| single[result].clone()).collect::<Vec<_>>());
                assert_eq!((got.dtype(), got.shape()), (wanted.dtype(), wanted.shape()), "{}", example.name);
                let differs = (0..got.elements()).find(|&i| !is_close(got.get(i).as_f64(), wanted.get(i).as_f64()));
                assert!(differs.is_none(), "{} {batched:?} at {differs:?}", example.name);
            }
        }
    }
    let all: BTreeSet<OpKind> = OpKind::all().into_iter().collect();
    let missing: Vec<_> = all.iter().filter(|kind| !seen.contains_key(kind)).collect();
    assert!(missing.is_empty(), "no example of {missing:?}");
}
