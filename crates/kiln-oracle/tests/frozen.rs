//! Random graphs with some of their inputs frozen, against the interpreter.

use kiln_ir::{Graph, generate, shrink};
use kiln_oracle::{self as oracle, Config, LayoutChoice};

#[test]
fn random_graphs_agree_with_the_interpreter() {
    let count = std::env::var("KILN_FUZZ_GRAPHS").ok().and_then(|n| n.parse().ok()).unwrap_or(400);
    for seed in 7_000_000..7_000_000 + count {
        let options = generate::Options { symbolic: seed % 2 == 1, ..Default::default() };
        let graph = generate::graph(seed, &options);
        let layout =
            if options.symbolic { LayoutChoice::Contiguous } else { LayoutChoice::ALL[(seed / 2 % 4) as usize] };
        let frozen = |graph: &Graph| {
            let mask = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            (0..graph.inputs().len()).map(|i| mask >> (i % 64) & 1 == 1).collect::<Vec<bool>>()
        };
        let disagree = |graph: &Graph| {
            let config = Config { layout, skip_eager: true, frozen: frozen(graph), ..Default::default() };
            oracle::compare(graph, &generate::inputs(graph, seed), &config).err()
        };
        if disagree(&graph).is_some() {
            let small = shrink::shrink(graph, &mut |candidate| disagree(candidate).is_some());
            panic!("seed {seed}: {}\n{small}", disagree(&small).expect("shrinking keeps the disagreement"));
        }
    }
}
