//! `docs/tensor.md` is held against the sources: every public method of `Tensor` is there once, under the file that has it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Macros whose entries `name …` become methods of `Tensor`.
const METHOD_MACROS: [&str; 8] =
    ["activations", "binaries", "comparisons", "roundings", "unaries", "reductions", "args", "extremes"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The text between a line's opening brace and the brace that closes it.
fn braced(text: &str) -> &str {
    let mut depth = 1;
    let end = text.char_indices().find(|&(_, c)| {
        depth += match c {
            '{' => 1,
            '}' => -1,
            _ => 0,
        };
        depth == 0
    });
    &text[..end.map_or(text.len(), |(at, _)| at)]
}

fn word(text: &str) -> &str {
    let end = text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(text.len());
    &text[..end]
}

/// The public methods of `Tensor` in a file.
fn methods(source: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (at, start) in source.match_indices("\nimpl Tensor {") {
        let body = braced(&source[at + start.len()..]);
        let functions = body.lines().filter_map(|line| line.trim_start().strip_prefix("pub fn "));
        found.extend(functions.map(|rest| word(rest).to_owned()));
    }
    for name in METHOD_MACROS {
        let start = format!("\n{name}! {{");
        for (at, start) in source.match_indices(&start) {
            let entries = braced(&source[at + start.len()..]).lines().map(str::trim_start);
            let entries = entries.map(word).filter(|name| !name.is_empty() && name.starts_with(char::is_lowercase));
            found.extend(entries.map(str::to_owned));
        }
    }
    found
}

/// Every source file of the crate but those of layers and optimizers, which have macros of the same names.
fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.file_name().and_then(|name| name.to_str()) {
            Some("nn" | "optim") => {}
            _ if path.is_dir() => sources(&path, found),
            _ => found.push(path),
        }
    }
}

/// Every name of an op that PyTorch's graphs contain is in `docs/surface.md`, with methods that exist or a reason.
#[test]
fn every_op_of_pytorchs_graphs_is_a_method_or_has_a_reason() {
    let read = |path: &str| std::fs::read_to_string(root().join(path)).unwrap();
    let index = read("docs/tensor.md");
    let methods: BTreeSet<&str> = index.lines().filter_map(|line| line.strip_prefix("| `")).map(word).collect();
    let mut layers = String::new();
    for entry in std::fs::read_dir(root().join("crates/kiln/src/nn")).unwrap() {
        layers += &std::fs::read_to_string(entry.unwrap().path()).unwrap_or_default();
    }
    let page = read("docs/surface.md");
    let mut listed = BTreeSet::new();
    for line in page.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        let [op, _, kiln, note] = cells[..] else { panic!("{line}") };
        assert!(listed.insert(op.trim_matches('`').to_owned()), "{op} is listed twice");
        if kiln == "–" {
            assert!(note.trim_end_matches('|').trim().len() > 10, "{op} has neither a method nor a reason");
            continue;
        }
        for name in kiln.split(", ").map(|name| name.trim_matches('`')) {
            let exists = match name.strip_prefix("nn::") {
                Some(layer) => layers.contains(layer),
                None => methods.contains(name),
            };
            assert!(exists, "{op}: there is no {name}");
        }
    }
    let names = read("crates/kiln/tests/reference/aten_names.txt");
    let names: BTreeSet<String> = names.lines().map(str::to_owned).collect();
    assert_eq!(names, listed);
    assert!(names.len() > 200);
}

#[test]
fn every_method_of_tensor_is_listed_once_beside_pytorchs_name() {
    let page = std::fs::read_to_string(root().join("docs/tensor.md")).unwrap();
    let mut listed = BTreeSet::new();
    let mut file = String::new();
    for line in page.lines() {
        if line.starts_with("## ") {
            file = line.split('`').nth(1).expect("a section names its file").to_owned();
            assert!(root().join(&file).is_file(), "{file}");
        } else if let Some(row) = line.strip_prefix("| `") {
            let method = word(row).to_owned();
            assert!(listed.insert((file.clone(), method.clone())), "{method} is listed twice");
            assert!(row.matches('|').count() == 2 && row.ends_with(" |"), "{line}");
        }
    }
    let mut files = Vec::new();
    sources(&root().join("crates/kiln/src"), &mut files);
    let mut defined = BTreeSet::new();
    for path in files {
        let name = path.strip_prefix(root()).unwrap().to_str().unwrap().to_owned();
        let source = std::fs::read_to_string(&path).unwrap();
        defined.extend(methods(&source).into_iter().map(|method| (name.clone(), method)));
    }
    let missing: Vec<_> = defined.difference(&listed).collect();
    let gone: Vec<_> = listed.difference(&defined).collect();
    assert!(missing.is_empty() && gone.is_empty(), "not in docs/tensor.md: {missing:?}; no methods any more: {gone:?}");
    assert!(defined.len() > 200, "{}", defined.len());
}
