//! `kiln cache` as people and scripts use it.

use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};

fn kiln(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kiln"));
    command.args(arguments).env("KILN_CACHE", "on").env("KILN_CACHE_DIR", folder);
    command.output().unwrap()
}

fn text(folder: &Path, arguments: &[&str]) -> String {
    let Output { status, stdout, stderr } = kiln(folder, arguments);
    assert!(status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&stderr));
    String::from_utf8(stdout).unwrap()
}

fn json(folder: &Path, arguments: &[&str]) -> Value {
    serde_json::from_str(&text(folder, &[arguments, &["--json"]].concat())).unwrap()
}

#[test]
fn entries_are_listed_explained_shipped_and_removed() {
    let root = std::env::temp_dir().join(format!("kiln-cli-cache-{}", std::process::id()));
    let (here, there, archive) = (root.join("here"), root.join("there"), root.join("archive"));
    std::fs::create_dir_all(&root).unwrap();
    assert!(text(&here, &["cache", "ls"]).contains("0 entries"));

    // Two programs that differ in the size of the context.
    for context in ["64", "128"] {
        text(&here, &["run", "stories260K", "--prompt", "Lily", "-n", "1", "--context", context]);
    }
    let list = json(&here, &["cache", "ls"]);
    let entries = list["entries"].as_array().unwrap();
    assert_eq!(entries.len(), 2);
    let key = entries[0]["key"].as_str().unwrap();
    assert!(text(&here, &["cache", "ls"]).contains(&key[..12]));
    let why = text(&here, &["cache", "why", &key[..10]]);
    assert!(why.contains("the key was made of") && why.contains("f32[128, 4]") && why.contains("f32[64, 4]"), "{why}");
    let why = json(&here, &["cache", "why", key]);
    assert!(why["differences"].as_array().unwrap().iter().any(|d| d["part"] == "inputs"), "{why}");

    let exported = json(&here, &["cache", "export", archive.to_str().unwrap()]);
    assert_eq!(exported["entries"], entries.len());
    assert_eq!(json(&there, &["cache", "import", archive.to_str().unwrap()])["entries"], entries.len());
    assert_eq!(json(&there, &["cache", "ls"])["entries"].as_array().unwrap().len(), entries.len());
    let mut bytes = std::fs::read(&archive).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&archive, bytes).unwrap();
    let imported = json(&there, &["cache", "import", archive.to_str().unwrap()]);
    assert_eq!(imported["refused"].as_array().unwrap().len(), 1, "{imported}");

    assert_eq!(json(&there, &["cache", "prune", "--max-bytes", "0"])["removed"], entries.len());
    assert_eq!(json(&here, &["cache", "clear"])["removed"], entries.len());
    let refused = kiln(&here, &["cache", "why", "abc"]);
    assert!(!refused.status.success() && String::from_utf8_lossy(&refused.stderr).contains("no entry's key begins"));
    let refused = kiln(&here, &["cache", "import", "/nowhere/at/all"]);
    assert!(!refused.status.success() && String::from_utf8_lossy(&refused.stderr).contains("/nowhere/at/all"));
    std::fs::remove_dir_all(&root).unwrap();
}
