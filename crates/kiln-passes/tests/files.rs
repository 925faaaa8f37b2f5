//! File tests: `tests/passes/*.kiln` holds, one after another, the passes to run, a graph, and the graph that must come out.
//!
//! ```text
//! # what this is about
//! run: simplify_algebra, dead_code        (or `all`, the whole list until nothing changes; `differentiate` adds gradients)
//! graph(%0: f32[4]) { … }
//! gives:
//! graph(%0: f32[4]) { … }
//! ----
//! run: …
//! ```
//!
//! `KILN_BLESS=1 cargo test -p kiln-passes --test files` writes what comes out into the files.

use kiln_ir::Graph;
use kiln_passes::{DifferentiateError, DifferentiateOptions, Options, Pass, Seeds, differentiate, is_differentiable};
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// One case: the text before the graph, the passes, the graph and what is expected.
struct Case<'a> {
    header: &'a str,
    passes: Vec<&'a str>,
    graph: &'a str,
    expected: &'a str,
}

fn parse<'a>(file: &Path, text: &'a str) -> Case<'a> {
    let missing = |what: &str| -> ! { panic!("{}: a case has no `{what}`:\n{text}", file.display()) };
    let start = text.find("graph(").unwrap_or_else(|| missing("graph("));
    let (header, rest) = text.split_at(start);
    let passes = header.lines().find_map(|line| line.strip_prefix("run:")).unwrap_or_else(|| missing("run:"));
    let (graph, expected) = rest.split_once("gives:").unwrap_or_else(|| missing("gives:"));
    Case { header, passes: passes.split(',').map(str::trim).collect(), graph, expected: expected.trim() }
}

/// With the gradients of the first output by every input that can have one.
fn differentiated(graph: &Graph) -> Result<Graph, DifferentiateError> {
    let inputs = graph.inputs().iter().enumerate();
    let by: Vec<usize> = inputs.filter(|(_, id)| is_differentiable(graph.ty(**id).dtype)).map(|(i, _)| i).collect();
    differentiate(graph, &[0], &by, &DifferentiateOptions { seeds: Seeds::Inputs, ..Default::default() })
}

fn run(file: &Path, case: &Case) -> String {
    let fail = |e: &dyn std::fmt::Display| -> ! { panic!("{}: {e}\n{}{}", file.display(), case.header, case.graph) };
    let mut graph = Graph::parse(case.graph).unwrap_or_else(|e| fail(&e));
    for name in &case.passes {
        graph = match Pass::named(name) {
            Some(pass) => pass.run(graph, &Options::default()).unwrap_or_else(|e| fail(&e)).graph,
            None if *name == "differentiate" => differentiated(&graph).unwrap_or_else(|e| fail(&e)),
            None if *name == "all with bounds" => {
                let options = Options { keep_bounds: true, ..Options::default() };
                kiln_passes::run_options(graph, &options, &mut |_, _| {}).unwrap_or_else(|e| fail(&e))
            }
            None if *name == "all" => kiln_passes::run(graph).unwrap_or_else(|e| fail(&e)),
            None => fail(&format!("there is no pass `{name}`")),
        };
    }
    graph.to_string().trim().to_owned()
}

#[test]
fn file_tests() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/passes");
    let bless = std::env::var_os("KILN_BLESS").is_some_and(|v| v == "1");
    let mut files: Vec<PathBuf> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|e| e == "kiln"));
    files.sort();
    assert!(!files.is_empty(), "no file tests in {}", folder.display());
    let mut failures = String::new();
    for file in &files {
        let text = std::fs::read_to_string(file).unwrap();
        let mut blessed = Vec::new();
        for text in text.split("\n----\n") {
            let case = parse(file, text);
            let got = run(file, &case);
            if got != case.expected && !bless {
                writeln!(failures, "{}\n{}gives:\n{got}\nexpected:\n{}\n", file.display(), case.header, case.expected)
                    .unwrap();
            }
            blessed.push(format!("{}{}\ngives:\n{got}\n", case.header, case.graph.trim_end()));
        }
        let blessed = blessed.join("\n----\n");
        if bless && blessed != text {
            std::fs::write(file, blessed).unwrap();
        }
    }
    assert!(failures.is_empty(), "{failures}KILN_BLESS=1 rewrites the expectations");
}
