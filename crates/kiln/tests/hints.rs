//! What the compiler says of a type that lacks a trait of Kiln: it has to name the derive.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

/// The library that this test was built with: the newest of its name beside the test.
fn library() -> PathBuf {
    let deps = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    let made = |path: &PathBuf| path.metadata().and_then(|data| data.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
    let is_library = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_str().unwrap_or_default();
        name.starts_with("libkiln-") && name.ends_with(".rlib")
    };
    let files = std::fs::read_dir(deps).unwrap().map(|entry| entry.unwrap().path());
    files.filter(is_library).max_by_key(made).expect("the library lies beside the test")
}

/// What the compiler says of a text that must not compile.
fn complaint(name: &str, text: &str) -> String {
    let folder = std::env::temp_dir().join(format!("kiln-hints-{}-{name}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("snippet.rs");
    std::fs::write(&file, text).unwrap();
    let library = library();
    let output = Command::new(Path::new(env!("CARGO")).with_file_name("rustc"))
        .args(["--edition", "2024", "--crate-type", "lib", "--emit", "metadata", "--out-dir"])
        .arg(&folder)
        .arg("-L")
        .arg(format!("dependency={}", library.parent().unwrap().display()))
        .arg("--extern")
        .arg(format!("kiln={}", library.display()))
        .arg(&file)
        .output()
        .unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    assert!(!output.status.success(), "{name} compiles");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_missing_trait_names_its_derive() {
    let cases = [
        (
            "argument",
            "pub struct Batch { pub x: kiln::Tensor }
            pub fn f() { let _ = kiln::compile(|batch: &Batch| batch.x.exp()); }",
            "derive(kiln::Bundle)",
        ),
        (
            "result",
            "pub struct Pair { pub x: kiln::Tensor }
            pub fn f() { let _ = kiln::compile(|x: &kiln::Tensor| Ok(Pair { x: x.exp()? })); }",
            "derive(kiln::Bundle)",
        ),
        (
            "field",
            "pub struct Inner { pub x: kiln::Var }
            #[derive(kiln::nn::Module)]
            pub struct Outer { pub inner: Inner }",
            "derive(kiln::nn::Module)",
        ),
        (
            "module",
            "pub struct Net { pub x: kiln::Var }
            pub fn f(net: Net) { let _ = kiln::compile_module::<_, kiln::Tensor>(net); }",
            "derive(kiln::nn::Module)",
        ),
        (
            "forward",
            "#[derive(kiln::nn::Module)]
            pub struct Net { pub x: kiln::Var }
            pub fn f(net: Net) { let _ = kiln::compile_module::<_, kiln::Tensor>(net); }",
            "impl kiln::nn::Forward<",
        ),
        (
            "uncompiled",
            "pub struct Net { pub x: kiln::Var }
            pub fn f(net: Net) { let _: kiln::Compiled<_, kiln::Tensor, kiln::Tensor> = kiln::compile(net); }",
            "derive(kiln::nn::Module)",
        ),
        (
            "error",
            "pub enum Mine { Kiln(kiln::Error) }
            impl From<kiln::Error> for Mine { fn from(e: kiln::Error) -> Mine { Mine::Kiln(e) } }
            fn g(x: &kiln::Tensor) -> Result<kiln::Tensor, Mine> { Ok(x.exp()?) }
            pub fn f() { let _ = kiln::compile(g); }",
            "own_error",
        ),
    ];
    for (name, text, hint) in cases {
        let said = complaint(name, text);
        assert!(said.contains(hint), "{name} does not say `{hint}`:\n{said}");
    }
}
