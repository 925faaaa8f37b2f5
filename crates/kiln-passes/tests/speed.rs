//! The time that the passes take on a graph of a few hundred nodes:
//! `cargo test --release -p kiln-passes --test speed -- --ignored --nocapture`.

use kiln_ir::Graph;
use std::fmt::Write;
use std::time::Instant;

/// Layers of a norm, a product and a gelu, written as a frontend writes them: every broadcast and constant in full.
fn layers(count: usize) -> Graph {
    let mut text = String::from("graph(%0: f32[b, 256], %1: f32[256], %2: f32[256, 256]) {\n");
    let mut id = 2;
    let mut x = 0;
    for _ in 0..count {
        let mut add = |ty: &str, body: String| {
            id += 1;
            writeln!(text, "  %{id}: {ty} = {body} @ src/model.rs:{id}").unwrap();
            id
        };
        let (wide, row) = ("f32[b, 256]", "f32[b, 1]");
        let two = add(wide, "full {value=2.0}".into());
        let square = add(wide, format!("pow %{x}, %{two}"));
        let sum = add(row, format!("reduce_sum %{square} {{axes=[1]}}"));
        let n = add(row, "full {value=256.0}".into());
        let mean = add(row, format!("div %{sum}, %{n}"));
        let epsilon = add(row, "full {value=1e-5}".into());
        let shifted = add(row, format!("add %{epsilon}, %{mean}"));
        let scale = add(row, format!("rsqrt %{shifted}"));
        let scale = add(wide, format!("expand %{scale}"));
        let normal = add(wide, format!("mul %{x}, %{scale}"));
        let weight = add("f32[1, 256]", "reshape %1".into());
        let weight = add(wide, format!("expand %{weight}"));
        let normal = add(wide, format!("mul %{normal}, %{weight}"));
        let dims = "lhs_batch=[], rhs_batch=[], lhs_contract=[1], rhs_contract=[1]";
        let product = add(wide, format!("dot %{normal}, %2 {{{dims}}}"));
        let root = add(wide, "full {value=1.4142135}".into());
        let inside = add(wide, format!("div %{product}, %{root}"));
        let erf = add(wide, format!("erf %{inside}"));
        let one = add(wide, "full {value=1.0}".into());
        let erf = add(wide, format!("add %{one}, %{erf}"));
        let half = add(wide, format!("div %{product}, %{two}"));
        let gelu = add(wide, format!("mul %{half}, %{erf}"));
        x = add(wide, format!("add %{x}, %{gelu}"));
    }
    writeln!(text, "  return %{x}\n}}").unwrap();
    Graph::parse(&text).unwrap()
}

#[test]
#[ignore = "a measurement"]
fn time_of_the_passes() {
    for count in [14, 140] {
        let graph = layers(count);
        let mut changes = 0;
        let after = kiln_passes::run_with(graph.clone(), &mut |_, _| changes += 1).unwrap();
        let mut times: Vec<f64> = (0..51)
            .map(|_| {
                let graph = graph.clone();
                let start = Instant::now();
                kiln_passes::run(graph).unwrap();
                start.elapsed().as_secs_f64() * 1e6
            })
            .collect();
        times.sort_by(f64::total_cmp);
        let (before, after) = (graph.nodes().len(), after.nodes().len());
        println!("{before} nodes to {after}: {:.0} µs, {changes} passes that changed something", times[25]);
    }
}
