//! File tests: `tests/schedule/*.kiln` holds, one after another, a graph and the kernels it must become.
//!
//! ```text
//! # what this is about
//! graph(%0: f32[4]) { … }
//! gives:
//! name(buffers)
//! loop(…) …
//! ----
//! ```
//!
//! Words of a line that starts with `with:` change the options: `eager` rounds as eager does, `guarded` is a target whose products read through padding, `scaled` one whose products of four results and more read scaled pixels,
//! `product_order` one whose temporaries lie
//! in the order of products, `short_operands` one whose products read short floats as they are, `high` and
//! `medium` are precisions. The graph is taken as it is: no
//! pass runs before. Each schedule is also run on random inputs and compared with the interpreter. `KILN_BLESS=1 cargo test -p kiln-kernels --test files` writes what comes out into the files.

use kiln_ir::examples::Random;
use kiln_ir::{Graph, HostTensor, Symbol, Tolerance, interpret};
use kiln_kernels::{InputLayout, Numerics, Precision, Schedule, ScheduleOptions, reference, schedule};
use std::fmt::Write;
use std::path::{Path, PathBuf};

fn run(file: &Path, header: &str, text: &str) -> String {
    let fail = |e: &dyn std::fmt::Display| -> ! { panic!("{}: {e}\n{header}{text}", file.display()) };
    let graph = Graph::parse(text).unwrap_or_else(|e| fail(&e));
    let mut options = ScheduleOptions::default();
    for word in header.lines().filter_map(|line| line.strip_prefix("with:")).flat_map(str::split_whitespace) {
        match word {
            "eager" => options.numerics = Numerics::Eager,
            "guarded" => options.target.guarded_operands = true,
            "scaled" => options.target.scaled_operands = 4,
            "product_order" => options.target.product_order = true,
            "short_operands" => options.target.short_operands = true,
            other => match Precision::named(other) {
                Some(precision) => options.precision = precision,
                None => fail(&format!("there is no option `{other}`")),
            },
        }
    }
    let layouts: Vec<InputLayout> = graph.inputs().iter().map(|&id| InputLayout::contiguous(graph.ty(id))).collect();
    let schedule = schedule(&graph, &layouts, &options).unwrap_or_else(|e| fail(&e));
    if let Err(e) = agrees(&graph, &schedule) {
        fail(&e);
    }
    schedule.to_string().trim().to_owned()
}

/// Sizes of the symbols in the files.
fn size(symbol: Symbol) -> Option<i64> {
    Some(match symbol.as_str() {
        "b" => 2,
        "t" => 5,
        _ => 3,
    })
}

fn agrees(graph: &Graph, schedule: &Schedule) -> Result<(), String> {
    let mut inputs = Vec::new();
    for (seed, &id) in graph.inputs().iter().enumerate() {
        let ty = graph.ty(id);
        let mut random = Random(seed as u64 + 1);
        let shape: Vec<usize> = ty.shape.iter().map(|d| d.eval(&size).unwrap() as usize).collect();
        let mut tensor = HostTensor::zeros(ty.dtype, &shape).unwrap();
        let (low, high) = if ty.dtype.is_int() { (0.0, 4.0) } else { (-2.0, 2.0) };
        (0..tensor.elements()).for_each(|i| tensor.set(i, random.scalar(ty.dtype, low, high)));
        inputs.push(tensor);
    }
    let wanted = interpret::run(graph, &inputs).map_err(|e| e.to_string())?;
    let mut memory: Vec<HostTensor> = inputs.iter().map(|t| t.clone().reshape(&[t.elements()]).unwrap()).collect();
    let got = reference::run(schedule, &mut memory, &size).map_err(|e| e.to_string())?;
    for (got, wanted) in got.into_iter().zip(wanted) {
        // Kernels keep short floats in f32 where the interpreter rounds after every op.
        let tolerance = Tolerance::of(wanted.dtype()).times(4.0);
        got.reshape(wanted.shape()).unwrap().compare(&wanted, tolerance).map_err(|e| e.to_string())?;
    }
    Ok(())
}

#[test]
fn file_tests() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/schedule");
    let bless = std::env::var_os("KILN_BLESS").is_some_and(|v| v == "1");
    let mut files: Vec<PathBuf> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|e| e == "kiln"));
    files.sort();
    assert!(!files.is_empty(), "no file tests in {}", folder.display());
    let mut failures = String::new();
    for file in &files {
        let text = std::fs::read_to_string(file).unwrap();
        let mut blessed = Vec::new();
        for case in text.split("\n----\n") {
            let start = case.find("graph(").unwrap_or_else(|| panic!("{}: a case has no graph", file.display()));
            let (header, rest) = case.split_at(start);
            let (graph, expected) = rest.split_once("gives:").unwrap_or((rest, ""));
            let got = run(file, header, graph);
            if got != expected.trim() && !bless {
                writeln!(failures, "{}\n{header}gives:\n{got}\nexpected:\n{}\n", file.display(), expected.trim())
                    .unwrap();
            }
            blessed.push(format!("{header}{}\ngives:\n{got}\n", graph.trim_end()));
        }
        let blessed = blessed.join("\n----\n");
        if bless && blessed != text {
            std::fs::write(file, blessed).unwrap();
        }
    }
    assert!(failures.is_empty(), "{failures}KILN_BLESS=1 rewrites the expectations");
}
