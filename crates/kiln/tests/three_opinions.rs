//! Interpreter, eager and compiled agree: on every op's examples, and on random graphs. `KILN_FUZZ_GRAPHS` asks for more of
//! them than the some thousand that run by default.

use kiln::opinions::{self, LayoutChoice, Question};
use kiln_ir::examples::examples;
use kiln_ir::{Graph, HostTensor, generate, shrink};
use kiln_kernels::Numerics;

#[test]
fn on_every_op() {
    let mut asked = 0;
    for example in examples() {
        for (seed, binding) in example.bindings.iter().enumerate() {
            let Some(literals) = example.inputs(binding, seed as u64) else { continue };
            let inputs: Vec<HostTensor> = literals.iter().map(|l| HostTensor::from_literal(l).unwrap()).collect();
            let fixed = binding.is_empty();
            for layout in LayoutChoice::ALL {
                // A program with symbolic sizes is compiled for row-major inputs.
                if !fixed && layout != LayoutChoice::Contiguous {
                    continue;
                }
                let question = Question { layout, ..Default::default() };
                if let Err(error) = opinions::compare(&example.graph, &inputs, &question) {
                    panic!("{} ({layout:?}): {error}\n{}", example.name, example.graph);
                }
                asked += 1;
            }
        }
    }
    assert!(asked > 1000, "only {asked} questions were asked");
}

/// Some thousand graphs in a test run; the slow executor gets fewer.
fn count() -> u64 {
    let default = if kiln_cpu::features::Isa::get() == kiln_cpu::features::Isa::Portable { 500 } else { 2000 };
    std::env::var("KILN_FUZZ_GRAPHS").ok().and_then(|n| n.parse().ok()).unwrap_or(default)
}

fn on_random_graphs(first: u64, count: u64, options: &generate::Options, numerics: Numerics) {
    for seed in first..first + count {
        let graph = generate::graph(seed, options);
        let fixed = !options.symbolic;
        let layout = if fixed { LayoutChoice::ALL[(seed % 4) as usize] } else { LayoutChoice::Contiguous };
        let mut question = Question { layout, ..Default::default() };
        question.options.schedule.numerics = numerics;
        let disagree = |graph: &Graph| opinions::compare(graph, &generate::inputs(graph, seed), &question).err();
        if disagree(&graph).is_some() {
            let small = shrink::shrink(graph, &mut |candidate| disagree(candidate).is_some());
            panic!("seed {seed}, {layout:?}: {}\n{small}", disagree(&small).expect("shrinking keeps the disagreement"));
        }
    }
}

#[test]
fn on_random_graphs_of_fixed_sizes() {
    on_random_graphs(1_000_000, count(), &generate::Options::default(), Numerics::Fast);
}

#[test]
fn on_random_graphs_of_symbolic_sizes() {
    let options = generate::Options { symbolic: true, ..Default::default() };
    on_random_graphs(2_000_000, count() / 2, &options, Numerics::Fast);
}

#[test]
fn on_random_graphs_that_round_as_eager_does() {
    on_random_graphs(3_000_000, count() / 2, &generate::Options::default(), Numerics::Eager);
}

#[test]
fn on_long_random_graphs() {
    let options = generate::Options { nodes: 40, ..Default::default() };
    on_random_graphs(4_000_000, count() / 8, &options, Numerics::Fast);
}
