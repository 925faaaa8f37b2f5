//! Runs every numbered example: each has to end well.

use std::path::Path;
use std::process::Command;

#[test]
fn every_example_runs() {
    let names = ["01_generate", "02_batch", "03_chat", "04_engine", "05_image_to_image"];
    // Examples lie next to the folder that this test was built into.
    let built = std::env::current_exe().unwrap();
    let target = built.parent().and_then(Path::parent).unwrap().join("examples");
    if names.iter().any(|name| !target.join(name).exists()) {
        // `cargo test` builds them on the way; `cargo test --test examples` does not.
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "--package", "kiln-llm", "--examples"]);
        if !cfg!(debug_assertions) {
            build.arg("--release");
        }
        assert!(build.status().unwrap().success());
    }
    for name in names {
        let output = Command::new(target.join(name)).output().unwrap_or_else(|e| panic!("{name}: {e}"));
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{name} failed:\n{errors}");
        assert!(!output.stdout.is_empty(), "{name} says nothing");
    }
}
