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
//! Words of a line that starts with `with:` change the options: `eager` rounds as eager does. The graph is taken as it is: no
//! pass runs before. `KILN_BLESS=1 cargo test -p kiln-kernels --test files` writes what comes out into the files.

use kiln_ir::Graph;
use kiln_kernels::{InputLayout, Numerics, ScheduleOptions, schedule};
use std::fmt::Write;
use std::path::{Path, PathBuf};

fn run(file: &Path, header: &str, text: &str) -> String {
    let fail = |e: &dyn std::fmt::Display| -> ! { panic!("{}: {e}\n{header}{text}", file.display()) };
    let graph = Graph::parse(text).unwrap_or_else(|e| fail(&e));
    let mut options = ScheduleOptions::default();
    for word in header.lines().filter_map(|line| line.strip_prefix("with:")).flat_map(str::split_whitespace) {
        match word {
            "eager" => options.numerics = Numerics::Eager,
            other => fail(&format!("there is no option `{other}`")),
        }
    }
    let layouts: Vec<InputLayout> = graph.inputs().iter().map(|&id| InputLayout::contiguous(graph.ty(id))).collect();
    let schedule = schedule(&graph, &layouts, &options).unwrap_or_else(|e| fail(&e));
    schedule.to_string().trim().to_owned()
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
