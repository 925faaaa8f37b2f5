//! Encoders against transformers: a small random BERT in every mode, and MiniLM where it is at hand.

use kiln::{DType, Device, Mode, Options, Tensor, safetensors};
use kiln_llm::{
    Checkpoint, Embedder, EmbedderOptions, Error, Pool, Pooling, Weights, config::BertConfig, models::Bert, similarity,
};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

fn tiny() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference/tiny-bert")
}

fn expected(folder: &Path) -> Vec<Value> {
    let text = std::fs::read(folder.join("expected.json")).unwrap();
    serde_json::from_slice::<Value>(&text).unwrap().as_array().unwrap().clone()
}

fn numbers(value: &Value) -> Vec<f32> {
    value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as f32).collect()
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

/// The largest difference.
fn apart(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(x, y)| (x - y).abs()).fold(0.0, f32::max)
}

/// A folder of the test's own with the files of another.
fn copy(from: &Path, name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("kiln-encoder-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    for file in std::fs::read_dir(from).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), folder.join(file.file_name())).unwrap();
    }
    folder
}

#[test]
fn every_token_is_what_transformers_says() {
    let config = BertConfig::read(tiny()).unwrap();
    let checkpoint = Checkpoint::open(tiny(), Device::Cpu).unwrap();
    let model = Bert::new(&config, &Weights::new(&checkpoint, DType::F32)).unwrap();
    for case in expected(&tiny()) {
        let tokens: Vec<i64> = ids(&case["ids"]).iter().map(|&id| id.into()).collect();
        let count = tokens.len();
        // Filling of any kind behind the text changes nothing.
        for filling in [0, 5] {
            let mut filled = tokens.clone();
            filled.extend(vec![7; filling.min(config.max_position_embeddings - count)]);
            let length = filled.len();
            let tokens = Tensor::from_vec(filled, [1, length], Device::Cpu).unwrap();
            let lengths = Tensor::from_vec(vec![count as i64], 1, Device::Cpu).unwrap();
            let hidden = model.hidden(&tokens, &lengths).unwrap().narrow(1, 0, count).unwrap();
            let far = apart(&hidden.to_vec::<f32>().unwrap(), &numbers(&case["hidden"]));
            assert!(far < 1e-5, "{}: {far:e}", case["text"]);
        }
    }
}

/// Texts of all lengths at once: cut, filled up, masked and put back in order, eagerly and in every mode.
#[test]
fn texts_become_their_vectors() {
    let cases = expected(&tiny());
    let texts: Vec<&str> = cases.iter().map(|case| case["text"].as_str().unwrap()).collect();
    let mut ways = vec![None];
    ways.extend(Mode::ALL.map(|mode| Some(Options { mode, ..Options::default() })));
    ways.push(EmbedderOptions::default().compile);
    for compile in ways {
        for batch in [1, 2, 32] {
            let options = EmbedderOptions { compile: compile.clone(), batch, ..EmbedderOptions::default() };
            let embedder = Embedder::open(tiny(), &options).unwrap();
            let vectors = embedder.embed(&texts).unwrap();
            for (case, vector) in cases.iter().zip(&vectors) {
                assert_eq!(embedder.tokens(case["text"].as_str().unwrap()).unwrap(), ids(&case["ids"]));
                let far = apart(vector, &numbers(&case["normalized"]));
                assert!(far < 1e-5, "{}: {far:e}, batch {batch}, {compile:?}", case["text"]);
            }
        }
    }
}

#[test]
fn a_vector_does_not_depend_on_its_neighbours() {
    let embedder = Embedder::open(tiny(), &EmbedderOptions::default()).unwrap();
    let texts =
        ["a cat", "the stock market fell today .", "sunny !", "a dog rests on the rug , the kitten sits on the mat ."];
    let together = embedder.embed(&texts).unwrap();
    let programs = embedder.compiles();
    assert_eq!(embedder.embed(&texts).unwrap(), together);
    assert_eq!(embedder.compiles(), programs, "a bucket's program is made once");
    for (text, vector) in texts.iter().zip(&together) {
        assert!(apart(&embedder.embed(&[text]).unwrap()[0], vector) < 1e-6);
    }
    assert!(embedder.embed(&[] as &[&str]).unwrap().is_empty());
}

#[test]
fn pooling_is_what_the_folder_asks_for() {
    let cases = expected(&tiny());
    let folder = copy(&tiny(), "pooling");
    let modules = |kinds: &[&str]| {
        let modules = kinds.iter().map(|kind| {
            let path = if *kind == "Pooling" { "1_Pooling" } else { "" };
            serde_json::json!({"path": path, "type": format!("sentence_transformers.models.{kind}")})
        });
        std::fs::write(folder.join("modules.json"), Value::Array(modules.collect()).to_string()).unwrap();
    };
    std::fs::create_dir_all(folder.join("1_Pooling")).unwrap();
    let pool = |text: &str| std::fs::write(folder.join("1_Pooling/config.json"), text).unwrap();
    let open = || Embedder::open(&folder, &EmbedderOptions::default());
    let check = |members: &[&str]| {
        let embedder = open().unwrap();
        for case in &cases {
            let want: Vec<f32> = members.iter().flat_map(|member| numbers(&case[member])).collect();
            let got = embedder.embed(&[case["text"].as_str().unwrap()]).unwrap().remove(0);
            assert!(apart(&got[..], &want) < 2e-5, "{members:?}");
        }
    };
    modules(&["Transformer", "Pooling"]);
    pool(r#"{"pooling_mode_mean_tokens": true}"#);
    check(&["mean"]);
    pool(r#"{"pooling_mode_mean_tokens": true, "pooling_mode_max_tokens": true}"#);
    check(&["max", "mean"]);
    pool(r#"{"pooling_mode_mean_tokens": false, "pooling_mode_mean_sqrt_len_tokens": true}"#);
    check(&["mean_sqrt_len"]);
    pool(r#"{"pooling_mode": "cls"}"#);
    let embedder = open().unwrap();
    let cls = &embedder.embed(&[cases[0]["text"].as_str().unwrap()]).unwrap()[0];
    assert!(apart(cls, &numbers(&cases[0]["hidden"])[..16]) < 1e-5);
    pool(r#"{"pooling_mode_mean_tokens": true}"#);
    modules(&["Transformer", "Pooling", "Normalize"]);
    check(&["normalized"]);
    modules(&["Transformer", "Pooling", "Dense"]);
    assert!(open().unwrap_err().to_string().contains("the module 'Dense' is not supported"));
    std::fs::write(folder.join("modules.json"), r#"[{"type": "Pooling", "path": "../../etc"}]"#).unwrap();
    assert!(open().unwrap_err().to_string().contains("is not in this folder"));
    let asked = Pooling { pools: vec![Pool::Max], normalize: false };
    let options = EmbedderOptions { pooling: Some(asked.clone()), ..EmbedderOptions::default() };
    assert_eq!(Embedder::open(&folder, &options).unwrap().pooling(), &asked);
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn long_texts_are_cut_where_asked() {
    let folder = copy(&tiny(), "cut");
    std::fs::write(folder.join("sentence_bert_config.json"), r#"{"max_seq_length": 6, "do_lower_case": true}"#)
        .unwrap();
    let embedder = Embedder::open(&folder, &EmbedderOptions::default()).unwrap();
    assert_eq!(embedder.longest(), 6);
    // [CLS] the cat sits on [SEP]
    assert_eq!(embedder.tokens("THE CAT SITS ON THE MAT").unwrap(), [2, 6, 7, 11, 13, 3]);
    assert_eq!(embedder.tokens("the cat").unwrap(), [2, 6, 7, 3]);
    let longest = |n| EmbedderOptions { longest: Some(n), ..EmbedderOptions::default() };
    assert_eq!(Embedder::open(&folder, &longest(4)).unwrap().tokens("the cat sits").unwrap(), [2, 6, 7, 3]);
    assert_eq!(Embedder::open(&folder, &longest(2)).unwrap_err(), Error::TooShort { longest: 2, least: 3 });
    let long = embedder.embed_tokens(&[vec![2; 7]]).unwrap_err();
    assert_eq!(long, Error::PromptTooLong { tokens: 7, context: 6 });
    assert_eq!(embedder.embed_tokens(&[vec![]]).unwrap_err(), Error::EmptyPrompt);
    let unknown = embedder.embed_tokens(&[vec![2, 99]]).unwrap_err();
    assert_eq!(unknown, Error::UnknownToken { token: 99, vocabulary: 31 });
    std::fs::remove_dir_all(folder).unwrap();
}

/// A checkpoint of a model with a head has every name under `bert.`; short dtypes are close.
#[test]
fn names_and_dtypes_of_checkpoints() {
    let cases = expected(&tiny());
    let folder = copy(&tiny(), "names");
    let tensors = Checkpoint::open(tiny(), Device::Cpu).unwrap().tensors;
    for (dtype, within) in [(DType::F32, 1e-5), (DType::F16, 5e-3), (DType::Bf16, 5e-2)] {
        let renamed: BTreeMap<String, Tensor> =
            tensors.iter().map(|(name, t)| (format!("bert.{name}"), t.to_dtype(dtype).unwrap())).collect();
        safetensors::save(folder.join("model.safetensors"), &renamed).unwrap();
        let embedder = Embedder::open(&folder, &EmbedderOptions::default()).unwrap();
        assert_eq!(embedder.model().dtype(), if dtype == DType::Bf16 { dtype } else { DType::F32 });
        for case in &cases {
            let got = embedder.embed(&[case["text"].as_str().unwrap()]).unwrap().remove(0);
            let far = apart(&got, &numbers(&case["normalized"]));
            assert!(far < within, "{dtype}: {far}");
        }
    }
    let mut short = tensors.clone();
    short.remove("encoder.layer.1.output.dense.bias");
    safetensors::save(folder.join("model.safetensors"), &short).unwrap();
    let missing = Embedder::open(&folder, &EmbedderOptions::default()).unwrap_err();
    assert_eq!(missing, Error::MissingTensor { name: "encoder.layer.1.output.dense.bias".into() });
    let config = |text: &str| {
        std::fs::write(folder.join("config.json"), text).unwrap();
        BertConfig::read(&folder).unwrap_err().to_string()
    };
    assert!(config(r#"{"model_type": "llama"}"#).contains("'llama' continue texts, and do nothing else"));
    assert!(config(r#"{"hidden_size": 16, "num_attention_heads": 3}"#).contains("3 heads do not divide"));
    assert!(config(r#"{"hidden_act": "mystery"}"#).contains("'mystery' is not supported"));
    assert!(config(r#"{"position_embedding_type": "relative_key"}"#).contains("'relative_key' is not supported"));
    std::fs::remove_dir_all(folder).unwrap();
}

/// `KILN_MINILM` names a folder with all-MiniLM-L6-v2 and `KILN_MODELS` the one with its `expected.json`.
#[test]
#[ignore = "needs all-MiniLM-L6-v2 in the folder KILN_MINILM"]
fn minilm_knows_a_cat_from_a_market() {
    let folder = PathBuf::from(std::env::var_os("KILN_MINILM").expect("KILN_MINILM names a folder with MiniLM"));
    let cases = expected(&folder);
    let texts: Vec<&str> = cases.iter().map(|case| case["text"].as_str().unwrap()).collect();
    let mut ways = vec![None, EmbedderOptions::default().compile];
    ways.extend(Mode::ALL.map(|mode| Some(Options { mode, ..Options::default() })));
    for compile in ways {
        let way = compile.as_ref().map(|how| (how.mode.name(), how.freeze));
        let options = EmbedderOptions { compile, ..EmbedderOptions::default() };
        let embedder = Embedder::open(&folder, &options).unwrap();
        let vectors = embedder.embed(&texts).unwrap();
        let mut worst = 0f32;
        for (case, vector) in cases.iter().zip(&vectors) {
            assert_eq!(embedder.tokens(case["text"].as_str().unwrap()).unwrap(), ids(&case["ids"]));
            worst = worst.max(apart(&vector[..8], &numbers(&case["embedding_first8"])));
        }
        eprintln!("{way:?}: {worst:.2e} from expected.json");
        assert!(worst < 1e-3);
        assert!(similarity(&vectors[0], &vectors[1]) > 0.5);
        assert!(similarity(&vectors[0], &vectors[2]) < 0.2);
    }
}
