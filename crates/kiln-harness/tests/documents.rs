//! The documents say what is: links lead somewhere, paths that they name exist, and the table of crates in docs/architecture.md is
//! that of the manifests.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The documents for people, by their paths below the root, with their texts.
fn documents() -> Vec<(PathBuf, String)> {
    let mut paths: Vec<PathBuf> = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"].map(PathBuf::from).into();
    let docs = std::fs::read_dir(root().join("docs")).unwrap();
    let names = docs.map(|entry| PathBuf::from("docs").join(entry.unwrap().file_name()));
    paths.extend(names.filter(|path| path.extension().is_some_and(|end| end == "md")));
    let read = |path: PathBuf| {
        let text = std::fs::read_to_string(root().join(&path)).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        (path, text)
    };
    paths.into_iter().map(read).collect()
}

/// The parts of a text between two marks on one line.
fn between<'a>(text: &'a str, open: &'a str, close: char) -> impl Iterator<Item = &'a str> {
    text.split(open).skip(1).filter_map(move |rest| rest.lines().next()?.split_once(close).map(|(part, _)| part))
}

/// The text without blocks of code, which show programs and outputs rather than places.
fn prose(text: &str) -> String {
    let mut inside = false;
    let mut keep = |line: &&str| {
        let fence = line.trim_start().starts_with("```");
        inside ^= fence;
        !inside && !fence
    };
    text.lines().filter(|line| keep(line)).flat_map(|line| [line, "\n"]).collect()
}

/// Headings as links name them.
fn anchors(text: &str) -> BTreeSet<String> {
    let heading = |line: &str| line.starts_with('#').then(|| line.trim_start_matches('#').trim().to_lowercase());
    let slug = |heading: String| {
        let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect::<String>()
    };
    prose(text).lines().filter_map(heading).map(slug).collect()
}

/// What is wrong with a link of a document; nothing if it leads somewhere.
fn broken(document: &Path, text: &str, link: &str) -> Option<String> {
    if link.contains("://") {
        return None;
    }
    let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
    let target = root().join(document.parent().unwrap()).join(path);
    let target_text = match path {
        "" => text.to_owned(),
        _ if !target.exists() => return Some("there is no such file".into()),
        _ => std::fs::read_to_string(&target).unwrap_or_default(),
    };
    (!anchor.is_empty() && !anchors(&target_text).contains(anchor)).then(|| "there is no such heading".into())
}

#[test]
fn links_lead_somewhere() {
    let (mut links, mut problems) = (0, Vec::new());
    for (path, text) in documents() {
        let prose = prose(&text);
        for link in between(&prose, "](", ')') {
            links += 1;
            problems.extend(broken(&path, &text, link).map(|why| format!("{}: {link}: {why}", path.display())));
        }
    }
    assert!(links > 50, "{links} links");
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    // A test that could not fail would say the same.
    let text = "# One heading: `a`\n";
    assert!(broken(Path::new("README.md"), text, "#one-heading-a").is_none());
    assert!(broken(Path::new("README.md"), text, "#another").is_some());
    assert!(broken(Path::new("docs/cli.md"), text, "no-such-file.md").is_some());
    assert!(broken(Path::new("docs/cli.md"), text, "../README.md#no-such-heading").is_some());
}

/// Whether words in backticks are a path of the repository that is not there.
fn is_missing(words: &str) -> bool {
    let is_path = |words: &str| {
        let first = words.split('/').next().unwrap_or_default();
        let known = matches!(first, "crates" | "docs") || root().join("crates").join(first).is_dir();
        known && !first.is_empty() && words.contains('/') && !words.contains(char::is_whitespace)
    };
    // NAME and … stand for something else.
    let placeholder = |part: &str| {
        part.contains('…') || (part.len() > 2 && part.trim_end_matches(".rs").chars().all(char::is_uppercase))
    };
    let words = words.split(':').next().unwrap_or_default();
    if !is_path(words) || words.split('/').any(placeholder) {
        return false;
    }
    let there = |path: &str| root().join(path).exists() || root().join("crates").join(path).exists();
    // Of several files by a pattern the folder.
    let fixed = words.split('*').next().unwrap_or_default();
    match fixed.len() == words.len() {
        true => !there(words),
        false => !there(fixed.rsplit_once('/').map_or("", |(folder, _)| folder)),
    }
}

#[test]
fn paths_exist() {
    let mut problems = Vec::new();
    for (path, text) in documents() {
        // A log tells of the past.
        let is_log = path.ends_with("CHANGELOG.md") || path.ends_with("benchmarks-log.md");
        let prose = prose(&text);
        for words in prose.lines().flat_map(|line| line.split('`').skip(1).step_by(2)).filter(|_| !is_log) {
            if is_missing(words) {
                problems.push(format!("{}: {words}", path.display()));
            }
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    assert!(
        is_missing("crates/kiln/src/nothing.rs") && is_missing("kiln-cpu/src/nothing.rs") && is_missing("docs/no/*.md")
    );
    assert!(!is_missing("crates/kiln/src/lib.rs") && !is_missing("kiln-cpu/src/gemm") && !is_missing("docs/*.md"));
}

/// Kiln's own crates among the dependencies of a manifest.
fn uses(manifest: &str) -> BTreeSet<String> {
    let section =
        manifest.split("\n[dependencies]\n").nth(1).and_then(|rest| rest.split("\n[").next()).unwrap_or_default();
    let names = section.lines().filter_map(|line| line.split(['.', ' ', '=']).next());
    names.filter(|name| *name == "kiln" || name.starts_with("kiln-")).map(Into::into).collect()
}

#[test]
fn the_table_of_crates_is_that_of_the_manifests() {
    let text = std::fs::read_to_string(root().join("docs/architecture.md")).unwrap();
    let mut told = BTreeSet::new();
    let table = text.lines().skip_while(|line| !line.starts_with("| crate |")).skip(2);
    for row in table.take_while(|line| line.starts_with('|')) {
        let cells: Vec<&str> = row.trim_matches('|').split('|').collect();
        let [name, _, used] = cells[..] else { panic!("{row}") };
        let names = |cell: &str| cell.split('`').skip(1).step_by(2).map(Into::into).collect::<BTreeSet<String>>();
        let name = names(name).pop_first().unwrap();
        let manifest = std::fs::read_to_string(root().join("crates").join(&name).join("Cargo.toml")).unwrap();
        assert_eq!(names(used), uses(&manifest), "{name}");
        told.insert(name);
    }
    let crates = std::fs::read_dir(root().join("crates")).unwrap();
    let all: BTreeSet<String> = crates.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    assert_eq!(told, all);
}
