//! Small random models of each architecture agree with transformers: `reference/make_references.py` made the folders under
//! `reference/architectures`, and checked that other positions, masks and scales would show.

use kiln::{DType, Device, Options, Tensor, safetensors};
use kiln_llm::{
    CausalLm, Checkpoint, Engine, EngineOptions, Error, Event, Generator, GeneratorOptions, KvCache, OpenOptions,
    Padding, Request, Step, Weights, config, models, open,
};
use serde_json::Value;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Of the largest logit: far below the least of the changes that the script looks for, and above what the order of sums makes.
const TOLERANCE: f32 = 2e-5;

fn reference(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference/architectures").join(name)
}

struct Text {
    prompt: Vec<u32>,
    greedy: Vec<u32>,
    /// `[tokens, vocabulary]`.
    logits: Tensor,
}

/// Longer than every text, and than the original context of a Phi-3.
const CONTEXT: usize = 40;

fn texts(name: &str) -> Vec<Text> {
    let folder = reference(name);
    let texts: Value = serde_json::from_slice(&std::fs::read(folder.join("expected.json")).unwrap()).unwrap();
    let logits = safetensors::load(folder.join("expected.safetensors"), Device::Cpu).unwrap();
    let ids = |v: &Value| -> Vec<u32> { v.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect() };
    let text = |(number, text): (usize, &Value)| {
        let (prompt, greedy) = (ids(&text["prompt"]), ids(&text["greedy"]));
        Text { prompt, greedy, logits: logits[&format!("logits.{number}")].clone() }
    };
    texts.as_array().unwrap().iter().enumerate().map(text).collect()
}

fn load(folder: &Path) -> Arc<dyn CausalLm> {
    open(folder.to_str().unwrap(), &OpenOptions { dtype: Some(DType::F32), ..OpenOptions::default() }).unwrap().model
}

fn tensor(values: impl IntoIterator<Item = i64>) -> Tensor {
    let values: Vec<i64> = values.into_iter().collect();
    let count = values.len();
    Tensor::from_vec(values, [1, count], Device::Cpu).unwrap()
}

/// Logits of a whole text.
fn pass(model: &dyn CausalLm, tokens: &[u32], cache: &KvCache) -> kiln::Result<Tensor> {
    part(model, tokens, 0..tokens.len(), cache)
}

/// Logits of a part of a text whose tokens before it are in the cache.
fn part(model: &dyn CausalLm, text: &[u32], range: Range<usize>, cache: &KvCache) -> kiln::Result<Tensor> {
    let (positions, tokens) = (tensor(range.clone().map(|at| at as i64)), &text[range]);
    let step: Step = cache.step(&positions)?.of_texts(&tensor([text.len() as i64]))?;
    let hidden = model.hidden(&tensor(tokens.iter().map(|&id| id.into())), &step)?;
    model.logits(&hidden)?.squeeze(0)
}

/// The largest difference as a part of the largest logit.
fn apart(got: &Tensor, expected: &Tensor) -> f32 {
    assert_eq!(got.shape(), expected.shape());
    let largest = |x: &Tensor| x.abs().unwrap().to_vec::<f32>().unwrap().into_iter().fold(0.0, f32::max);
    let difference = largest(&(got - expected).unwrap());
    assert!(difference.is_finite());
    difference / largest(expected)
}

/// The logits of a whole prompt at once, of its tokens one by one, and of a compiled program.
fn logits_agree(model: &Arc<dyn CausalLm>, text: &Text) -> f32 {
    let model = model.clone();
    let cache = || KvCache::fixed(&*model, 1, CONTEXT).unwrap();
    let at_once = pass(&*model, &text.prompt, &cache()).unwrap();
    let kept = cache();
    let rows: Vec<Tensor> =
        (0..text.prompt.len()).map(|at| part(&*model, &text.prompt, at..at + 1, &kept).unwrap()).collect();
    let one_by_one = Tensor::cat(&rows, 0).unwrap();
    // In two parts: the second sees the first in the cache.
    let kept = cache();
    let parts = [0..2, 2..text.prompt.len()].map(|range| part(&*model, &text.prompt, range, &kept).unwrap());
    let in_parts = Tensor::cat(&parts, 0).unwrap();

    let (owner, kept) = (model.clone(), cache());
    let how = Options { fullgraph: true, ..Options::default() };
    let program = kiln::compile_with(
        move |(tokens, positions): &(Tensor, Tensor)| {
            let hidden = owner.hidden(tokens, &kept.step(positions)?)?;
            owner.logits(&hidden)?.squeeze(0)
        },
        how,
    );
    let tokens = tensor(text.prompt.iter().map(|&id| id.into()));
    let positions = tensor((0..text.prompt.len()).map(|at| at as i64));
    let compiled = program.call(&(tokens, positions)).unwrap();
    [at_once, one_by_one, in_parts, compiled].iter().map(|got| apart(got, &text.logits)).fold(0.0, f32::max)
}

/// What a model says, and in how many kernels a token.
fn greedy(model: &Arc<dyn CausalLm>, text: &Text, compile: Option<Options>) -> (Vec<u32>, Option<usize>) {
    let options = GeneratorOptions { context: CONTEXT, compile, ..GeneratorOptions::default() };
    let mut generator = Generator::new(model.clone(), options).unwrap();
    let request = Request { max_tokens: text.greedy.len(), ..Request::default() };
    let ids = generator.generate(&text.prompt, &request).unwrap().ids;
    (ids, generator.kernels_per_token())
}

/// Everything about one folder.
fn agrees(name: &str) {
    let model = load(&reference(name));
    let (mut worst, mut counts) = (0f32, (0, 0));
    for text in texts(name) {
        worst = worst.max(logits_agree(&model, &text));
        assert_eq!(greedy(&model, &text, None).0, text.greedy, "{name}, eager");
        let (said, kernels) = greedy(&model, &text, Some(Options::default()));
        assert_eq!(said, text.greedy, "{name}, compiled");
        let (said, frozen) = greedy(&model, &text, Some(Options { freeze: true, ..Options::default() }));
        assert_eq!(said, text.greedy, "{name}, frozen");
        counts = (frozen.unwrap(), kernels.unwrap());
        assert!(counts.0 <= counts.1, "{name}: {} kernels a token frozen, {} otherwise", counts.0, counts.1);
    }
    println!("{name}: {worst:.1e} of the largest logit, {} kernels frozen, {} otherwise", counts.0, counts.1);
    assert!(worst < TOLERANCE, "{name}: logits are {worst:.1e} of the largest one away");
}

macro_rules! agree {
    ($($test:ident $name:literal)*) => { $(
        #[test]
        fn $test() {
            agrees($name);
        }
    )* };
}
agree! {
    llama "llama"
    llama_3_with_scaled_positions "llama-3"
    llama_with_biases_and_linear_positions "llama-linear"
    llama_with_yarn "llama-yarn"
    llama_with_dynamic_positions "llama-dynamic"
    mistral_with_a_window "mistral"
    qwen2 "qwen2"
    qwen2_with_windows_in_some_layers "qwen2-window"
    qwen3 "qwen3"
    gemma3 "gemma3"
    gemma3_with_bent_logits "gemma3-softcap"
    phi3_with_a_window "phi3"
    phi3_with_long_positions "phi3-longrope"
    phi3_with_partial_positions "phi3-partial"
    gpt2 "gpt2"
    gpt2_with_other_scales "gpt2-variant"
    gpt_neox "gpt-neox"
    gpt_neox_one_behind_the_other "gpt-neox-sequential"
}

/// Texts of a Phi-3 that are short, long, and grow from one to the other beside each other, and in pages too few for them all.
#[test]
fn phi3_texts_cross_the_border_one_by_one() {
    let (model, texts) = (load(&reference("phi3-longrope")), texts("phi3-longrope"));
    let prompts: Vec<Vec<u32>> = texts.iter().map(|text| text.prompt.clone()).collect();
    let request = Request { max_tokens: texts[0].greedy.len(), ..Request::default() };
    for compile in [None, Some(Options::default())] {
        for (padding, ahead) in [(Padding::Left, 0), (Padding::Right, 0), (Padding::Right, 3)] {
            let (compile, ahead) = (compile.clone(), Some(ahead));
            let options = GeneratorOptions { context: CONTEXT, compile, padding, ahead, ..Default::default() };
            let made = Generator::new(model.clone(), options).unwrap().generate_batch(&prompts, &request).unwrap();
            for (text, made) in texts.iter().zip(made) {
                assert_eq!(made.ids, text.greedy, "beside others, {padding:?}");
            }
        }
        for pages in [None, Some(9)] {
            let options = EngineOptions {
                slots: 3,
                context: CONTEXT,
                page: 8,
                pages,
                prefill: 8,
                compile: compile.clone(),
                ..Default::default()
            };
            let mut engine = Engine::new(model.clone(), options).unwrap();
            let ids: Vec<_> = prompts.iter().map(|prompt| engine.submit(prompt, request.clone()).unwrap()).collect();
            let mut made = BTreeMap::new();
            while !engine.is_idle() {
                for event in engine.step().unwrap() {
                    if let Event::Done { id, generated } = event {
                        made.insert(id, generated.ids);
                    }
                }
            }
            for (text, id) in texts.iter().zip(ids) {
                assert_eq!(made[&id], text.greedy, "in an engine with {pages:?} pages");
            }
        }
    }
}

#[test]
fn every_folder_has_its_test() {
    let source = include_str!("architectures.rs");
    for folder in std::fs::read_dir(reference("")).unwrap() {
        let name = folder.unwrap().file_name().into_string().unwrap();
        assert!(source.contains(&format!("\"{name}\"\n")), "{name} has no test");
    }
}

/// The tensors of a folder under other names.
fn renamed(name: &str, rename: impl Fn(&str) -> Option<String>) -> Checkpoint {
    let stored = Checkpoint::open(reference(name), Device::Cpu).unwrap();
    let tensors: BTreeMap<String, Tensor> =
        stored.tensors.into_iter().filter_map(|(name, tensor)| Some((rename(&name)?, tensor))).collect();
    Checkpoint { tensors, ..Checkpoint::default() }
}

fn fields(name: &str) -> config::Fields {
    config::Fields::read(reference(name).join("config.json")).unwrap()
}

fn first_logits(config: &config::Fields, checkpoint: &Checkpoint, name: &str) -> kiln_llm::Result<f32> {
    let model = models::load(config, &Weights::new(checkpoint, DType::F32), None)?;
    let text = &texts(name)[1];
    Ok(logits_agree(&model, text))
}

#[test]
fn models_saved_without_their_head_lack_a_prefix() {
    for (name, prefix) in
        [("qwen2", "model."), ("gpt2", "transformer."), ("gemma3", "model."), ("phi3-partial", "model.")]
    {
        let bare = renamed(name, |tensor| Some(tensor.strip_prefix(prefix).unwrap_or(tensor).to_owned()));
        assert!(first_logits(&fields(name), &bare, name).unwrap() < TOLERANCE, "{name}");
    }
    // One whose logits need a head of their own says that it is missing.
    let headless = renamed("mistral", |tensor| tensor.strip_prefix("model.").map(str::to_owned));
    let error = first_logits(&fields("mistral"), &headless, "mistral").unwrap_err();
    assert_eq!(error, Error::NoHead { name: "lm_head.weight".into() });
}

#[test]
fn a_tied_head_may_be_stored_too() {
    let mut both = Checkpoint::open(reference("llama-3"), Device::Cpu).unwrap();
    both.tensors.insert("lm_head.weight".into(), both.tensors["model.embed_tokens.weight"].clone());
    assert!(first_logits(&fields("llama-3"), &both, "llama-3").unwrap() < TOLERANCE);
}

#[test]
fn the_text_part_of_a_model_with_images_is_found() {
    let stored = std::fs::read(reference("gemma3").join("config.json")).unwrap();
    let text: Value = serde_json::from_slice(&stored).unwrap();
    let whole = serde_json::json!({"model_type": "gemma3", "text_config": text, "vision_config": {"hidden_size": 8}});
    let whole = config::Fields::parse(whole.to_string().as_bytes(), "config.json").unwrap();
    for prefix in ["model.language_model.", "language_model.model."] {
        let named = |tensor: &str| Some(format!("{prefix}{}", tensor.strip_prefix("model.")?));
        assert!(first_logits(&whole, &renamed("gemma3", named), "gemma3").unwrap() < TOLERANCE, "{prefix}");
    }
}

#[test]
fn heads_of_gpt_neox_have_two_names() {
    let newer = renamed("gpt-neox", |tensor| Some(tensor.replace("embed_out", "lm_head")));
    assert!(first_logits(&fields("gpt-neox"), &newer, "gpt-neox").unwrap() < TOLERANCE);
}

/// A folder in two shards with an index, as large models are.
#[test]
fn sharded_folders_are_one() {
    let folder = std::env::temp_dir().join(format!("kiln-shards-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::copy(reference("qwen3").join("config.json"), folder.join("config.json")).unwrap();
    let stored = Checkpoint::open(reference("qwen3"), Device::Cpu).unwrap();
    let mut map = serde_json::Map::new();
    let mut shards = [BTreeMap::new(), BTreeMap::new()];
    for (number, (name, tensor)) in stored.tensors.iter().enumerate() {
        let shard = number % 2;
        map.insert(name.clone(), format!("model-0000{}-of-00002.safetensors", shard + 1).into());
        shards[shard].insert(name.clone(), tensor.clone());
    }
    for (number, shard) in shards.iter().enumerate() {
        safetensors::save(folder.join(format!("model-0000{}-of-00002.safetensors", number + 1)), shard).unwrap();
    }
    let index = serde_json::json!({"metadata": {"total_size": 0}, "weight_map": map});
    std::fs::write(folder.join("model.safetensors.index.json"), index.to_string()).unwrap();
    let model = load(&folder);
    assert!(logits_agree(&model, &texts("qwen3")[2]) < TOLERANCE);
    std::fs::remove_dir_all(&folder).unwrap();
}

/// The first layers alone are a model too, in each architecture.
#[test]
fn fewer_layers_can_be_asked_for() {
    for folder in std::fs::read_dir(reference("")).unwrap() {
        let folder = folder.unwrap().path();
        let options = OpenOptions { layers: Some(1), dtype: Some(DType::Bf16), ..OpenOptions::default() };
        let opened = open(folder.to_str().unwrap(), &options).unwrap();
        assert_eq!((opened.model.sizes().layers, opened.dtype), (1, DType::Bf16), "{}", folder.display());
        let logits = pass(&*opened.model, &[3, 5, 7], &KvCache::fixed(&*opened.model, 1, 8).unwrap()).unwrap();
        assert_eq!((logits.shape(), logits.dtype()), (&[3, 96][..], DType::Bf16), "{}", folder.display());
    }
}

/// Short floats round at every step, and still give nearly what f32 gives.
#[test]
fn bf16_is_near() {
    for name in ["llama", "qwen3", "gemma3", "phi3", "gpt2", "gpt-neox"] {
        let options = OpenOptions { dtype: Some(DType::Bf16), ..OpenOptions::default() };
        let model = open(reference(name).to_str().unwrap(), &options).unwrap().model;
        let text = &texts(name)[1];
        let got = pass(&*model, &text.prompt, &KvCache::fixed(&*model, 1, CONTEXT).unwrap()).unwrap();
        let far = apart(&got.to_dtype(DType::F32).unwrap(), &text.logits);
        println!("{name}: {far:.1e}");
        assert!(far < 0.08, "{name}: {far}");
    }
}

/// Presets are whole models: one with a single layer computes, and its weights are those of its seed.
#[test]
fn every_small_preset_runs() {
    let small = |preset: &&kiln_llm::Preset| preset.parameters < 200_000_000;
    for preset in kiln_llm::presets().iter().filter(small) {
        let how = |seed| OpenOptions { layers: Some(1), dtype: Some(DType::Bf16), seed, ..OpenOptions::default() };
        let logits = |seed: u64| {
            let model = open(preset.name, &how(seed)).unwrap().model;
            let cache = KvCache::fixed(&*model, 1, 8).unwrap();
            pass(&*model, &[1, 2, 3], &cache).unwrap().to_dtype(DType::F32).unwrap().to_vec::<f32>().unwrap()
        };
        let first = logits(0);
        assert!(first.iter().all(|x| x.is_finite()) && first.iter().any(|x| *x != 0.0), "{}", preset.name);
        if preset.parameters < 20_000_000 {
            assert_eq!(first, logits(0), "{}", preset.name);
            assert_ne!(first, logits(1), "{}", preset.name);
        }
    }
    let error = open("lama-3-8b", &OpenOptions::default()).unwrap_err().to_string();
    assert!(error.contains("is 'llama-3-8b' meant?") && error.contains("pythia-160m"), "{error}");
}

/// Where neither `generation_config.json` nor `config.json` names the token that ends a text, the tokenizer's settings do; a
/// folder without a tokenizer still computes.
#[test]
fn the_end_of_a_text_is_found_wherever_it_is_said() {
    let folder = std::env::temp_dir().join(format!("kiln-ends-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(reference("qwen2").join(file), folder.join(file)).unwrap();
    }
    let opened = || open(folder.to_str().unwrap(), &OpenOptions::default()).unwrap();
    assert!(opened().stop_tokens.is_empty() && opened().tokenizer.is_none());
    let missing = opened().tokenizer().map(|_| ()).unwrap_err().to_string();
    assert!(missing.contains("tokenizer.json"), "{missing}");

    let stories = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/stories260K");
    std::fs::copy(stories.join("tokenizer.json"), folder.join("tokenizer.json")).unwrap();
    let settings = r#"{"eos_token": {"content": "</s>"}, "chat_template": "{{ messages[0].content }}{{ eos_token }}"}"#;
    std::fs::write(folder.join("tokenizer_config.json"), settings).unwrap();
    assert_eq!(opened().stop_tokens, [2]);
    let talk = [kiln_llm::Message::new("user", "hi")];
    assert_eq!(opened().chat.unwrap().render(&talk, true).unwrap(), "hi</s>");

    std::fs::write(folder.join("generation_config.json"), r#"{"eos_token_id": [5, 7]}"#).unwrap();
    assert_eq!(opened().stop_tokens, [5, 7]);
    std::fs::write(folder.join("chat_template.jinja"), "apart").unwrap();
    assert_eq!(opened().chat.unwrap().render(&talk, true).unwrap(), "apart");
    std::fs::remove_dir_all(&folder).unwrap();
}
