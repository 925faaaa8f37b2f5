//! Interpreter, eager and compiled agree: on every op's examples, and on random graphs. `KILN_FUZZ_GRAPHS` asks for more of
//! them than the some thousand that run by default.

use kiln_ir::examples::examples;
use kiln_ir::{Graph, HostTensor, generate, shrink};
use kiln_kernels::Numerics;
use kiln_oracle::{self as oracle, Config, LayoutChoice, Tally};

/// The share of comparisons that may hold nothing against the reference.
const MOST_SKIPPED: f64 = 0.05;

#[test]
fn on_every_op() {
    let mut tally = Tally::default();
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
                let config = Config { layout, ..Default::default() };
                match oracle::compare(&example.graph, &inputs, &config) {
                    Ok(agreement) => tally.add(&agreement),
                    Err(error) => panic!("{} ({layout:?}): {error}\n{}", example.name, example.graph),
                }
            }
        }
    }
    assert!(tally.comparisons > 1000 && tally.share_skipped() <= MOST_SKIPPED, "{tally}");
}

/// Some thousand graphs in a test run; the slow executor gets fewer.
fn count() -> u64 {
    let default = if kiln_cpu::features::Isa::get() == kiln_cpu::features::Isa::Portable { 500 } else { 2000 };
    std::env::var("KILN_FUZZ_GRAPHS").ok().and_then(|n| n.parse().ok()).unwrap_or(default)
}

fn on_random_graphs(first: u64, count: u64, options: &generate::Options, numerics: Numerics) {
    let mut tally = Tally::default();
    for seed in first..first + count {
        let graph = generate::graph(seed, options);
        let fixed = !options.symbolic;
        let layout = if fixed { LayoutChoice::ALL[(seed % 4) as usize] } else { LayoutChoice::Contiguous };
        let mut config = Config { layout, ..Default::default() };
        config.options.schedule.numerics = numerics;
        let compare = |graph: &Graph| oracle::compare(graph, &generate::inputs(graph, seed), &config);
        match compare(&graph) {
            Ok(agreement) => tally.add(&agreement),
            Err(_) => {
                let small = shrink::shrink(graph, &mut |candidate| compare(candidate).is_err());
                let error = compare(&small).expect_err("shrinking keeps the disagreement");
                panic!("seed {seed}, {layout:?}: {error}\n{small}");
            }
        }
    }
    assert!(tally.share_skipped() <= MOST_SKIPPED, "{tally}");
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
