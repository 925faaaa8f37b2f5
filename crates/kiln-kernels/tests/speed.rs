//! The time that scheduling takes: `cargo test --release -p kiln-kernels --test speed -- --ignored --nocapture`.

use kiln_ir::Graph;
use kiln_kernels::{InputLayout, ScheduleOptions, plan, schedule};
use std::fmt::Write;
use std::time::Instant;

/// Layers of an RMS norm, a product, a bias, a gelu and a residual, as the passes leave them.
fn layers(count: usize, rows: &str) -> Graph {
    let (wide, row) = (format!("f32[{rows}, 256]"), format!("f32[{rows}, 1]"));
    let mut text = format!("graph(%0: {wide}, %1: f32[256], %2: f32[256, 256]) {{\n");
    let mut id = 2;
    let mut x = 0;
    for _ in 0..count {
        let mut add = |ty: &str, body: String| {
            id += 1;
            writeln!(text, "  %{id}: {ty} = {body} @ src/model.rs:{id}").unwrap();
            id
        };
        let square = add(&wide, format!("mul %{x}, %{x}"));
        let sum = add(&row, format!("reduce_sum %{square} {{axes=[1]}}"));
        let n = add(&row, "full {value=0.00390625}".into());
        let mean = add(&row, format!("mul %{sum}, %{n}"));
        let epsilon = add(&row, "full {value=1e-5}".into());
        let shifted = add(&row, format!("add %{mean}, %{epsilon}"));
        let scale = add(&row, format!("rsqrt %{shifted}"));
        let scale = add(&wide, format!("expand %{scale}"));
        let normal = add(&wide, format!("mul %{x}, %{scale}"));
        let weight = add("f32[1, 256]", "reshape %1".into());
        let weight = add(&wide, format!("expand %{weight}"));
        let normal = add(&wide, format!("mul %{normal}, %{weight}"));
        let dims = "lhs_batch=[], rhs_batch=[], lhs_contract=[1], rhs_contract=[1]";
        let product = add(&wide, format!("dot %{normal}, %2 {{{dims}}}"));
        let biased = add(&wide, format!("add %{product}, %{weight}"));
        let root = add(&wide, "full {value=0.70710677}".into());
        let inside = add(&wide, format!("mul %{biased}, %{root}"));
        let erf = add(&wide, format!("erf %{inside}"));
        let one = add(&wide, "full {value=1.0}".into());
        let erf = add(&wide, format!("add %{erf}, %{one}"));
        let half = add(&wide, "full {value=0.5}".into());
        let half = add(&wide, format!("mul %{biased}, %{half}"));
        let gelu = add(&wide, format!("mul %{half}, %{erf}"));
        x = add(&wide, format!("add %{x}, %{gelu}"));
    }
    writeln!(text, "  return %{x}\n}}").unwrap();
    Graph::parse(&text).unwrap()
}

#[test]
#[ignore = "a measurement"]
fn time_of_scheduling() {
    for (count, rows) in [(1, "64"), (1, "b"), (10, "b"), (100, "b"), (400, "b")] {
        let graph = layers(count, rows);
        let layouts: Vec<InputLayout> =
            graph.inputs().iter().map(|&id| InputLayout::contiguous(graph.ty(id))).collect();
        let options = ScheduleOptions::default();
        let result = schedule(&graph, &layouts, &options).unwrap();
        let mut times: Vec<f64> = (0..31)
            .map(|_| {
                let start = Instant::now();
                let result = schedule(&graph, &layouts, &options).unwrap();
                plan(&result, &|_| Some(64)).unwrap();
                start.elapsed().as_secs_f64() * 1e6
            })
            .collect();
        times.sort_by(f64::total_cmp);
        let (nodes, steps) = (graph.nodes().len(), result.steps.len());
        println!("{nodes} nodes, rows {rows}: {steps} kernels in {:.0} µs (median of 31)", times[15]);
    }
}
