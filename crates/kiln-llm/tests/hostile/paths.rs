//! Every file of a model may be a pipe that nobody writes to, a device without an end, or a folder.
#![cfg(unix)]

use super::soon;
use kiln_llm::config::{Fields, GenerationConfig};
use kiln_llm::{ChatTemplate, Checkpoint, Gguf, Image, OpenOptions, Pooling, Tokenizer};
use std::path::{Path, PathBuf};
use std::process::Command;

/// What stands where a file should be, and the word for it.
fn odd_files(folder: &Path) -> Vec<(&'static str, PathBuf)> {
    let pipe = folder.join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    std::fs::create_dir(folder.join("folder")).unwrap();
    vec![("a pipe", pipe), ("a device", "/dev/zero".into()), ("a folder", folder.join("folder"))]
}

#[test]
fn no_file_of_a_model_is_waited_for() {
    let folder = std::env::temp_dir().join(format!("kiln-odd-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    type Reader = fn(&Path) -> Result<(), kiln_llm::Error>;
    let readers: [(&str, Reader); 12] = [
        ("config.json", |folder| kiln_llm::open(folder.to_str().unwrap(), &OpenOptions::default()).map(drop)),
        ("tokenizer.json", |folder| Tokenizer::read(folder).map(drop)),
        ("generation_config.json", |folder| GenerationConfig::read(folder).map(drop)),
        ("tokenizer_config.json", |folder| ChatTemplate::read(folder).map(drop)),
        ("special_tokens_map.json", |folder| ChatTemplate::read(folder).map(drop)),
        ("chat_template.json", |folder| ChatTemplate::read(folder).map(drop)),
        ("chat_template.jinja", |folder| ChatTemplate::read(folder).map(drop)),
        ("model.safetensors", |folder| Checkpoint::open(folder, kiln::Device::Cpu).map(drop)),
        ("model.safetensors.index.json", |folder| Checkpoint::open(folder, kiln::Device::Cpu).map(drop)),
        ("modules.json", |folder| Pooling::read(folder).map(drop)),
        ("model.gguf", |folder| Gguf::open(folder.join("model.gguf")).map(drop)),
        ("picture.png", |folder| Image::open(folder.join("picture.png")).map(drop)),
    ];
    for (what, target) in odd_files(&folder) {
        for (name, read) in readers {
            std::os::unix::fs::symlink(&target, folder.join(name)).unwrap();
            let inside = folder.clone();
            let error = soon(name, move || read(&inside)).unwrap_err().to_string();
            assert!(
                error.contains(name) && error.contains(&format!("it is {what}, not a regular file")),
                "{name}: {error}"
            );
            std::fs::remove_file(folder.join(name)).unwrap();
        }
    }
    // Longer than such a file is: it takes no place on the disk.
    let file = std::fs::File::create(folder.join("config.json")).unwrap();
    file.set_len(1 << 40).unwrap();
    let error = Fields::read(folder.join("config.json")).unwrap_err().to_string();
    assert!(error.contains("it has more than the 33554432 bytes that are read of such a file"), "{error}");
    std::fs::remove_dir_all(&folder).unwrap();
}

/// Names and values of files are escaped and cut in every error that quotes them.
#[test]
fn strings_of_files_are_harmless_in_errors() {
    let bad = format!("\u{1b}]0;x\u{7}\u{9b}31m\u{202e}\n{}", "n".repeat(1 << 20));
    let quoted = serde_json::Value::from(bad.as_str());
    let parse = |text: String| Fields::parse(text.as_bytes(), "config.json");
    let errors = [
        parse(format!(r#"{{"n": {quoted}}}"#)).unwrap().size("n", 1).unwrap_err(),
        parse(format!(r#"{{"model_type": {quoted}}}"#)).unwrap().model_type(&["llama"]).unwrap_err(),
        parse(format!(r#"{{"a": {quoted}}}"#))
            .unwrap()
            .activation("a", kiln_llm::config::Activation::Silu)
            .unwrap_err(),
        Tokenizer::parse(format!(r#"{{"model": {{"type": {quoted}}}}}"#).as_bytes()).unwrap_err(),
        Tokenizer::parse(
            format!(r#"{{"model": {{"type": "BPE", "vocab": {{}}, "merges": [[{quoted}, {quoted}]]}}}}"#).as_bytes(),
        )
        .unwrap_err(),
        kiln_llm::open(&bad, &OpenOptions::default()).unwrap_err(),
        ChatTemplate::new(&format!("{{{{ 'a'|{} }}}}", "n".repeat(100_000)), &[])
            .and_then(|template| template.render(&[], true))
            .unwrap_err(),
    ];
    for error in errors {
        let text = error.to_string();
        assert!(text.len() < 4000, "{} bytes: {text:.300}", text.len());
        assert!(!text.chars().any(|c| c.is_control() || c == '\u{202e}'), "{text:?}");
    }
}
