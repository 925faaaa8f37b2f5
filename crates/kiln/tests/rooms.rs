//! The rooms of `kiln`, the folders of its sources, use each other only as the table in docs/architecture.md says, which has no
//! cycles. An edge is a path from the crate's root (`crate::…`, or `super::…` that leads there) outside of comments and tests; a
//! name that `lib.rs` re-exports belongs to the room that it comes from.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Each room with those that it may use, in the order of the table.
type Table = Vec<(String, BTreeSet<String>)>;

/// The names of the crate's root, each with the room that it comes from; `None` for one of another crate.
type Names = BTreeMap<String, Option<String>>;

#[test]
fn rooms_use_only_what_the_table_allows() {
    let (table, names) = (table(), root_names(&read("lib.rs")));
    let mut problems = cycles(&table);
    let mut used: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for path in sources(&src()).into_iter().filter(|path| path != "lib.rs") {
        let edges = edges(&path, &read(&path), &names);
        problems.extend(edges.iter().filter_map(|edge| refused(edge, &table)));
        used.entry(room_of(&path).to_owned()).or_default().extend(edges.into_iter().filter_map(|edge| edge.to));
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    let told: BTreeMap<String, BTreeSet<String>> = table.into_iter().collect();
    assert_eq!(told, used, "left: docs/architecture.md, right: the sources");
}

#[test]
fn a_wrong_edge_is_found() {
    let lib = "pub mod error;\npub mod tensor;\npub use tensor::{Tensor, ops::loss::{self, Loss as L}};\npub use kiln_ir as ir;";
    let names = root_names(lib);
    assert_eq!(names.keys().collect::<Vec<_>>(), ["L", "Tensor", "error", "ir", "loss", "tensor"]);
    let table: Table = vec![("error".into(), BTreeSet::new()), ("tensor".into(), ["error".to_owned()].into())];
    let found = |path: &str, text: &str| -> Vec<String> {
        edges(path, text, &names).iter().filter_map(|edge| refused(edge, &table)).collect()
    };
    let wrong = "//! crate::Tensor\nuse crate::{\n    error::Error,\n    Tensor,\n};\nfn f<'a>() { (\"crate::L\", '\"', crate::loss::g()) }";
    let uses = ["src/error/mod.rs:4: error uses tensor (Tensor)", "src/error/mod.rs:6: error uses tensor (loss)"];
    assert_eq!(found("error/mod.rs", wrong), uses);
    assert_eq!(found("error/mod.rs", "use super::tensor::ops;"), ["src/error/mod.rs:1: error uses tensor (tensor)"]);
    assert_eq!(found("error/a.rs", "use super::super::loss;"), ["src/error/a.rs:1: error uses tensor (loss)"]);
    assert_eq!(found("error/a.rs", "\nuse crate::nothing;"), ["src/error/a.rs:2: lib.rs has no nothing"]);
    assert_eq!(found("a.rs", "use crate::error;"), ["src/a.rs:1: a is no room of docs/architecture.md"]);
    assert!(found("tensor/mod.rs", "use crate::{Tensor, error::{A, B}, ir::Graph}; use super::error;").is_empty());
    assert!(found("error/a.rs", "use super::b;\n#[cfg(test)]\nmod tests { fn f() { crate::Tensor } }").is_empty());
    let circle: Table = vec![("a".into(), ["b".to_owned()].into()), ("b".into(), BTreeSet::new())];
    assert_eq!(cycles(&circle), ["docs/architecture.md: a uses b, which has to be above it"]);
}

fn src() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

fn read(path: &str) -> String {
    std::fs::read_to_string(src().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// The Rust files below a folder, as paths from `src`.
fn sources(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|end| end == "rs") {
            found.push(path.strip_prefix(src()).unwrap().to_str().unwrap().to_owned());
        }
    }
    found.sort();
    found
}

/// The table of the rooms in docs/architecture.md.
fn table() -> Table {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/architecture.md");
    let text = std::fs::read_to_string(path).unwrap();
    let rows = text.lines().skip_while(|line| !line.starts_with("| room |")).skip(2);
    let words = |cell: &str| -> Vec<String> { cell.split('`').skip(1).step_by(2).map(Into::into).collect() };
    let row = |row: &str| {
        let cells: Vec<&str> = row.trim_matches('|').split('|').collect();
        let [room, _, uses] = cells[..] else { panic!("{row}") };
        (words(room).remove(0), words(uses).into_iter().collect())
    };
    rows.take_while(|line| line.starts_with('|')).map(row).collect()
}

/// Rows that use a room which is not above them.
fn cycles(table: &Table) -> Vec<String> {
    let mut found = Vec::new();
    for (number, (room, uses)) in table.iter().enumerate() {
        let above = |used: &&String| table[..number].iter().any(|(room, _)| room == *used);
        for used in uses.iter().filter(|used| !above(used)) {
            found.push(format!("docs/architecture.md: {room} uses {used}, which has to be above it"));
        }
    }
    found
}

/// A name of the crate's root that a file uses at a line, and the other room it leads to: `None` where nobody knows the name.
struct Edge {
    path: String,
    line: usize,
    name: String,
    to: Option<String>,
}

/// The edges of a file. Names of other crates are none.
fn edges(path: &str, text: &str, names: &Names) -> Vec<Edge> {
    let depth = path.split('/').count() - usize::from(path.ends_with("/mod.rs"));
    let edge = |Token { word: name, line }: Token| {
        let to = match names.get(&name) {
            Some(None) => return None,
            Some(Some(room)) if room == room_of(path) => return None,
            known => known.cloned().flatten(),
        };
        Some(Edge { path: path.to_owned(), line, name, to })
    };
    root_uses(&without_tests(tokens(text)), depth).into_iter().filter_map(edge).collect()
}

/// The room of a file: its first folder, or its own name.
fn room_of(path: &str) -> &str {
    path.split('/').next().unwrap().trim_end_matches(".rs")
}

/// What is wrong with an edge.
fn refused(edge: &Edge, table: &Table) -> Option<String> {
    let Edge { path, line, name, to } = edge;
    let from = room_of(path);
    let Some(to) = to else { return Some(format!("src/{path}:{line}: lib.rs has no {name}")) };
    match table.iter().find(|(room, _)| room == from) {
        None => Some(format!("src/{path}:{line}: {from} is no room of docs/architecture.md")),
        Some((_, uses)) if uses.contains(to) => None,
        Some(_) => Some(format!("src/{path}:{line}: {from} uses {to} ({name})")),
    }
}

/// The names that `lib.rs` declares and re-exports. A function may have the name of a room, whose it then is too.
fn root_names(lib: &str) -> Names {
    let tokens = tokens(lib);
    let items: Vec<&[Token]> = tokens.split(|token| token.word == ";").collect();
    let mut names = Names::new();
    for item in &items {
        if let [.., keyword, name] = item
            && keyword.word == "mod"
        {
            names.insert(name.word.clone(), Some(name.word.clone()));
        }
    }
    for item in items {
        let Some(start) = item.iter().position(|token| token.word == "use") else { continue };
        let path = &item[start + 1..];
        let room = path.first().and_then(|first| names.get(&first.word).cloned()).flatten();
        for name in brought_in(path) {
            names.entry(name).or_insert_with(|| room.clone());
        }
    }
    names
}

/// The names that the path of a `use` brings in.
fn brought_in(path: &[Token]) -> Vec<String> {
    let (mut found, mut parents, mut last) = (Vec::new(), Vec::new(), String::new());
    for token in path {
        match token.word.as_str() {
            "::" | "as" => {}
            "{" => parents.push(std::mem::take(&mut last)),
            "," | "}" => {
                found.push(std::mem::take(&mut last));
                if token.word == "}" {
                    parents.pop();
                }
            }
            "self" => last = parents.last().cloned().unwrap_or_default(),
            word => last = word.to_owned(),
        }
    }
    found.push(last);
    found.retain(|name: &String| !name.is_empty());
    found
}

/// The names of the crate's root that paths lead to from a module so deep below it.
fn root_uses(tokens: &[Token], depth: usize) -> Vec<Token> {
    let is = |at: usize, word: &str| tokens.get(at).is_some_and(|token| token.word == word);
    let mut found = Vec::new();
    for start in 0..tokens.len() {
        if start > 0 && is(start - 1, "::") {
            continue;
        }
        let supers = (0..).take_while(|n| is(start + 2 * n, "super") && is(start + 2 * n + 1, "::")).count();
        let is_root = is(start, "crate") || is(start, "kiln");
        let rest = match is_root && is(start + 1, "::") {
            true => start + 2,
            false if supers == depth => start + 2 * depth,
            false => continue,
        };
        found.extend(first_names(&tokens[rest..]));
    }
    found
}

/// The first name of a path, or the first of each path in braces.
fn first_names(path: &[Token]) -> Vec<Token> {
    if path.first().is_none_or(|token| token.word != "{") {
        return path.first().cloned().into_iter().collect();
    }
    let (mut found, mut depth, mut is_first) = (Vec::new(), 0, false);
    for token in path {
        match token.word.as_str() {
            "{" => depth += 1,
            "}" => depth -= 1,
            _ if is_first => found.push(token.clone()),
            _ => {}
        }
        if depth == 0 {
            break;
        }
        is_first = depth == 1 && matches!(token.word.as_str(), "{" | ",");
    }
    found
}

/// What is left without the items under `#[cfg(test)]`.
fn without_tests(tokens: Vec<Token>) -> Vec<Token> {
    let (mut left, mut at) = (Vec::new(), 0);
    while at < tokens.len() {
        let is_test = ["#", "[", "cfg", "(", "test", ")", "]"];
        if !tokens[at..].iter().map(|token| token.word.as_str()).take(is_test.len()).eq(is_test) {
            left.push(tokens[at].clone());
            at += 1;
            continue;
        }
        let mut depth = 0;
        for token in &tokens[at..] {
            at += 1;
            match token.word.as_str() {
                "{" => depth += 1,
                "}" => depth -= 1,
                ";" => {}
                _ => continue,
            }
            if depth == 0 {
                break;
            }
        }
    }
    left
}

/// A word, `::` or one mark of a source, with its line.
#[derive(Debug, Clone)]
struct Token {
    word: String,
    line: usize,
}

/// The tokens of a source without comments and literals of text.
fn tokens(text: &str) -> Vec<Token> {
    let (mut found, mut rest, mut line) = (Vec::new(), text, 1);
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    while let Some(c) = rest.chars().next() {
        let raw = || rest.trim_start_matches(['b', 'r']).trim_start_matches('#').starts_with('"');
        let length = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if (rest.starts_with('r') || rest.starts_with("br")) && raw() {
            let open = rest.find('"').unwrap();
            let close = format!("\"{}", "#".repeat(rest[..open].matches('#').count()));
            rest[open + 1..].find(&close).map_or(rest.len(), |end| open + 1 + end + close.len())
        } else if c == '"' {
            quoted(rest, '"')
        } else if c == '\'' && (rest[1..].starts_with('\\') || rest[1..].chars().nth(1) == Some('\'')) {
            quoted(rest, '\'')
        } else {
            let word = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
            let length = if rest.starts_with("::") { 2 } else { word.max(c.len_utf8()) };
            if !c.is_whitespace() {
                found.push(Token { word: rest[..length].to_owned(), line });
            }
            length
        };
        line += rest[..length].matches('\n').count();
        rest = &rest[length..];
    }
    found
}

/// How long the literal is that a text begins with.
fn quoted(text: &str, mark: char) -> usize {
    let mut is_escaped = true;
    for (at, c) in text.char_indices() {
        if c == mark && !is_escaped {
            return at + 1;
        }
        // The first mark opens it.
        is_escaped = at > 0 && c == '\\' && !is_escaped;
    }
    text.len()
}
