//! Folders with shards are read as one; folders that lie are errors.

use kiln::{DType, Device, safetensors};
use kiln_llm::{Checkpoint, Llama, LlamaConfig};
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};

const STORIES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/models/stories260K");

/// A folder of a test's own, removed at its end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("kiln-llm-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn index(&self, map: &Map<String, Value>) {
        let index = serde_json::json!({"metadata": {}, "weight_map": map});
        std::fs::write(self.0.join("model.safetensors.index.json"), index.to_string()).unwrap();
    }

    fn error(&self) -> String {
        let message = Checkpoint::open(&self.0, Device::Cpu).unwrap_err().to_string();
        message.replace(&self.0.display().to_string(), "FOLDER")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A folder that stays behind fails no test.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn sharded(folder: &Path) -> Map<String, Value> {
    let whole = Checkpoint::open(STORIES, Device::Cpu).unwrap();
    let mut map = Map::new();
    for shard in 0..2 {
        let file = format!("model-{shard}.safetensors");
        let part: Vec<_> = whole.tensors.iter().enumerate().filter(|(i, _)| i % 2 == shard).map(|(_, t)| t).collect();
        safetensors::save(folder.join(&file), part.iter().copied()).unwrap();
        map.extend(part.iter().map(|(name, _)| ((*name).clone(), Value::from(file.clone()))));
    }
    map
}

#[test]
fn shards_are_one_checkpoint() {
    let folder = Folder::new("shards");
    let map = sharded(&folder.0);
    folder.index(&map);
    let (whole, parts) = (Checkpoint::open(STORIES, Device::Cpu).unwrap(), Checkpoint::open(&folder.0, Device::Cpu));
    let parts = parts.unwrap();
    assert_eq!(parts.tensors.len(), whole.tensors.len());
    for (name, tensor) in &whole.tensors {
        assert_eq!(parts.tensors[name].to_vec::<f32>().unwrap(), tensor.to_vec::<f32>().unwrap(), "{name}");
    }
}

#[test]
fn folders_that_lie_are_errors() {
    let folder = Folder::new("lies");
    assert_eq!(folder.error(), "FOLDER: no *.safetensors file is there");
    let map = sharded(&folder.0);
    let mut more = map.clone();
    more.insert("ghost".into(), "model-0.safetensors".into());
    folder.index(&more);
    assert_eq!(
        folder.error(),
        "FOLDER/model.safetensors.index.json: tensor 'ghost' in 'model-0.safetensors': the file does not have it"
    );
    for outside in ["../secret.safetensors", "/etc/passwd", "a/b.safetensors", ""] {
        let mut more = map.clone();
        more.insert("ghost".into(), outside.into());
        folder.index(&more);
        let expected = format!(
            "FOLDER/model.safetensors.index.json: tensor 'ghost' in '{outside}': the file is not one of this folder"
        );
        assert_eq!(folder.error(), expected);
    }
    std::fs::write(folder.0.join("model.safetensors.index.json"), "{").unwrap();
    assert!(folder.error().starts_with("FOLDER/model.safetensors.index.json: not JSON: "));
    std::fs::write(folder.0.join("model.safetensors.index.json"), "{}").unwrap();
    assert_eq!(folder.error(), "FOLDER/model.safetensors.index.json: weight_map: it is missing or no object");
    folder.index(&map);
    let shard = folder.0.join("model-1.safetensors");
    let bytes = std::fs::read(&shard).unwrap();
    std::fs::write(&shard, &bytes[..bytes.len() - 4]).unwrap();
    assert!(folder.error().contains("are not within the"), "{}", folder.error());
}

/// Whatever the safetensors files of a folder are called, they are its weights.
#[test]
fn weights_under_other_names_are_found() {
    let whole = Checkpoint::open(STORIES, Device::Cpu).unwrap();
    let count = |folder: &Folder| Checkpoint::open(&folder.0, Device::Cpu).unwrap().tensors.len();
    let folder = Folder::new("named");
    safetensors::save(folder.0.join("consolidated.00.safetensors"), &whole.tensors).unwrap();
    std::fs::write(folder.0.join("adapter_model.safetensors"), "not looked at").unwrap();
    std::fs::write(folder.0.join("._consolidated.00.safetensors"), "of a Mac").unwrap();
    assert_eq!(count(&folder), whole.tensors.len());

    // Shards without an index, all of them or not.
    let folder = Folder::new("unindexed");
    sharded(&folder.0);
    assert_eq!(count(&folder), whole.tensors.len());
    let (one, other) =
        (folder.0.join("model-00001-of-00002.safetensors"), folder.0.join("model-00002-of-00002.safetensors"));
    std::fs::rename(folder.0.join("model-0.safetensors"), &one).unwrap();
    std::fs::rename(folder.0.join("model-1.safetensors"), &other).unwrap();
    assert_eq!(count(&folder), whole.tensors.len());
    std::fs::copy(&one, folder.0.join("copy.safetensors")).unwrap();
    let first = whole.tensors.keys().next().unwrap();
    let expected =
        format!("FOLDER/model-00001-of-00002.safetensors: tensor '{first}' is in another file of the folder too");
    assert_eq!(folder.error(), expected);
    std::fs::remove_file(folder.0.join("copy.safetensors")).unwrap();
    std::fs::remove_file(&other).unwrap();
    assert_eq!(folder.error(), "FOLDER: 1 of 2 shards are there, and no *.safetensors.index.json");

    // An index under another name; two of them are one too many.
    let folder = Folder::new("other-index");
    let index = serde_json::json!({"weight_map": sharded(&folder.0)}).to_string();
    std::fs::write(folder.0.join("model.fp16.safetensors.index.json"), &index).unwrap();
    assert_eq!(count(&folder), whole.tensors.len());
    std::fs::write(folder.0.join("second.safetensors.index.json"), &index).unwrap();
    assert!(folder.error().contains("both name shards"), "{}", folder.error());
}

/// A tensor that a shard has and the index does not name is part of the checkpoint.
#[test]
fn what_an_index_does_not_name_is_not_lost() {
    let folder = Folder::new("unnamed");
    let mut map = sharded(&folder.0);
    map.remove("model.norm.weight").unwrap();
    folder.index(&map);
    assert!(Checkpoint::open(&folder.0, Device::Cpu).unwrap().tensors.contains_key("model.norm.weight"));
}

/// Weights in formats that are not read are named.
#[test]
fn other_formats_are_named() {
    for (file, expected) in [
        ("pytorch_model.bin", "'pytorch_model.bin' is a pickle, which is a program and is not read"),
        ("consolidated.00.pth", "'consolidated.00.pth' is a pickle"),
        ("tf_model.h5", "the format of 'tf_model.h5' is not read"),
        ("model.Q4_0.gguf", "'model.Q4_0.gguf' is opened by itself"),
        ("adapter_model.safetensors", "'adapter_model.safetensors' holds differences to another model's weights"),
    ] {
        let folder = Folder::new(&format!("format-{file}"));
        std::fs::write(folder.0.join(file), "x").unwrap();
        std::fs::write(folder.0.join("training_args.bin"), "x").unwrap();
        assert!(folder.error().contains(expected), "{}", folder.error());
    }
}

#[test]
fn weights_that_do_not_fit_the_configuration_are_errors() {
    let config = LlamaConfig::read(STORIES).unwrap();
    let mut checkpoint = Checkpoint::open(STORIES, Device::Cpu).unwrap();
    let message = |config: &LlamaConfig, checkpoint: &Checkpoint| {
        Llama::load(config, checkpoint, DType::F32).unwrap_err().to_string()
    };
    let wide = LlamaConfig { intermediate_size: 173, ..config.clone() };
    let expected = "tensor 'model.layers.0.mlp.gate_proj.weight' is [172, 64], the configuration asks for [173, 64]";
    assert_eq!(message(&wide, &checkpoint), expected);
    let untied = LlamaConfig { tie_word_embeddings: false, ..config.clone() };
    assert!(message(&untied, &checkpoint).starts_with("the checkpoint has no tensor 'lm_head.weight', and tie_word"));
    checkpoint.tensors.remove("model.norm.weight");
    assert_eq!(message(&config, &checkpoint), "the checkpoint has no tensor 'model.norm.weight'");
}

#[test]
fn settings_that_make_no_sense_are_errors() {
    use kiln_llm::config::Fields;
    let message = |json: &str| {
        let fields = Fields::parse(json.as_bytes(), "config.json").unwrap();
        LlamaConfig::from_fields(&fields).unwrap_err().to_string()
    };
    assert_eq!(message(r#"{"model_type": "mamba"}"#), "config.json: models of type 'mamba' are not supported");
    assert_eq!(message(r#"{"num_attention_heads": 0}"#), "config.json: num_attention_heads: must not be 0");
    assert_eq!(message(r#"{"hidden_size": -4}"#), "config.json: hidden_size: -4 is no size");
    assert_eq!(
        message(r#"{"num_key_value_heads": 5}"#),
        "config.json: num_key_value_heads: 5 does not divide 32 heads"
    );
    assert_eq!(message(r#"{"hidden_size": 4}"#), "config.json: head_dim: must not be 0");
    assert_eq!(message(r#"{"rope_scaling": {"rope_type": "yarn"}}"#), "config.json: rope_scaling: factor is missing");
}

/// Llama 3.1's frequencies, from transformers.
#[test]
fn llama3_scaling_is_that_of_transformers() {
    use kiln_llm::config::Fields;
    let json = br#"{"head_dim": 16, "rope_theta": 500000.0, "rope_scaling": {"rope_type": "llama3", "factor": 8.0,
        "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}}"#;
    let config = LlamaConfig::from_fields(&Fields::parse(json, "config.json").unwrap()).unwrap();
    let expected = [
        1.0,
        0.193922758102417,
        0.03760603070259094,
        0.00729266507551074,
        0.0005248460220173001,
        3.428102354519069e-05,
        6.647869668086059e-06,
        1.289173155782919e-06,
    ];
    for (got, expected) in config.frequencies().into_iter().zip(expected) {
        assert!((got - expected).abs() <= expected * 1e-6, "{got} {expected}");
    }
}
