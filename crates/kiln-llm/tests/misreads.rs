//! A checkpoint that says something that Kiln does not honour is refused; nothing is guessed and nothing left out in silence.
//! The checkpoints are the small random ones of `reference/architectures`, changed here.

use kiln::{DType, Device, Tensor, safetensors};
use kiln_llm::{
    CausalLm, Checkpoint, Embedder, EmbedderOptions, Error, KvCache, OpenOptions, Step, Weights, config::Fields, models,
};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

fn reference(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference").join(name)
}

/// A model as its folder has it, to be changed.
#[derive(Clone)]
struct Model {
    config: Value,
    tensors: BTreeMap<String, Tensor>,
}

impl Model {
    fn of(name: &str) -> Model {
        let folder = reference(&format!("architectures/{name}"));
        let config = serde_json::from_slice(&std::fs::read(folder.join("config.json")).unwrap()).unwrap();
        Model { config, tensors: Checkpoint::open(folder, Device::Cpu).unwrap().tensors }
    }

    fn with(&self, name: &str, value: Value) -> Model {
        let mut model = self.clone();
        model.config[name] = value;
        model
    }

    fn without(&self, names: &[&str]) -> Model {
        let mut model = self.clone();
        names.iter().for_each(|name| drop(model.config.as_object_mut().unwrap().remove(*name)));
        model
    }

    fn and(&self, name: &str, tensor: &Tensor) -> Model {
        let mut model = self.clone();
        model.tensors.insert(name.into(), tensor.clone());
        model
    }

    fn load_cut(&self, layers: Option<usize>) -> kiln_llm::Result<Arc<dyn CausalLm>> {
        let fields = Fields::parse(self.config.to_string().as_bytes(), "config.json")?;
        let checkpoint = Checkpoint { tensors: self.tensors.clone(), ..Checkpoint::default() };
        models::load(&fields, &Weights::new(&checkpoint, DType::F32), layers)
    }

    fn load(&self) -> kiln_llm::Result<Arc<dyn CausalLm>> {
        self.load_cut(None)
    }

    fn error(&self) -> String {
        self.load().unwrap_err().to_string()
    }

    /// Logits of a short text.
    fn logits(&self) -> Vec<f32> {
        let model = self.load().unwrap();
        let cache = KvCache::fixed(&*model, 1, 8).unwrap();
        let row = |values: Vec<i64>| Tensor::from_vec(values, [1, 5], Device::Cpu).unwrap();
        let step: Step = cache.step(&row((0..5).collect())).unwrap();
        let hidden = model.hidden(&row(vec![3, 1, 4, 1, 5]), &step).unwrap();
        model.logits(&hidden).unwrap().to_vec().unwrap()
    }
}

fn values(shape: &[usize], scale: f32) -> Tensor {
    let count = shape.iter().product::<usize>();
    let values: Vec<f32> = (0..count).map(|i| ((i * 7919 % 23) as f32 / 11.0 - 1.0) * scale).collect();
    Tensor::from_vec(values, shape, Device::Cpu).unwrap()
}

/// A Gemma without `model_type` once ran as a Llama.
#[test]
fn architectures_say_what_model_type_does_not() {
    for name in ["llama", "gemma3", "gpt2", "gpt-neox", "qwen2", "qwen3", "mistral", "phi3"] {
        let model = Model::of(name);
        assert_eq!(model.without(&["model_type"]).logits(), model.logits(), "{name}");
        assert_eq!(model.without(&["architectures"]).logits(), model.logits(), "{name}");
        let neither = model.without(&["model_type", "architectures"]);
        assert_eq!(
            neither.error(),
            "config.json: neither model_type nor architectures says what kind of model this is"
        );
    }
    let gemma = Model::of("gemma3");
    let both = gemma.with("model_type", "llama".into());
    assert_eq!(
        both.error(),
        "config.json: model_type is 'llama', of which there is code for LlamaForCausalLM, LLaMAForCausalLM, LlamaModel, but \
         architectures says Gemma3ForCausalLM"
    );
    let headless = Model::of("llama").with("architectures", json!(["LlamaForSequenceClassification"]));
    assert!(headless.error().contains("but architectures says LlamaForSequenceClassification"), "{}", headless.error());
    let unknown = gemma.without(&["model_type"]).with("architectures", json!(["FalconForCausalLM"]));
    assert_eq!(unknown.error(), "config.json: models of type 'FalconForCausalLM' are not supported");
    assert!(
        gemma.with("architectures", json!("Gemma3ForCausalLM")).error().contains("architectures: no list of names")
    );
}

#[test]
fn mixtures_of_experts_are_named() {
    let llama = Model::of("llama").without(&["architectures"]);
    let expected = "are not supported: mixtures of experts (MoE) are not";
    for kind in ["mixtral", "qwen2_moe", "qwen3_moe", "deepseek_v2", "deepseek_v3", "olmoe", "gpt_oss", "granitemoe"] {
        let message = llama.with("model_type", kind.into()).error();
        assert!(message.contains(kind) && message.ends_with(expected), "{message}");
    }
    for (field, value) in [("num_local_experts", 8), ("num_experts", 60), ("n_routed_experts", 64)] {
        assert!(llama.with(field, value.into()).error().ends_with(expected));
        assert!(llama.with("model_type", "brand_new".into()).with(field, value.into()).error().ends_with(expected));
    }
    let classes = llama.without(&["model_type"]).with("architectures", json!(["DeepseekV3ForCausalLM"]));
    assert!(classes.error().ends_with(expected), "{}", classes.error());
    let t5 = llama.with("model_type", "t5".into());
    assert!(t5.error().ends_with("models with an encoder and a decoder are not"), "{}", t5.error());
}

/// The biases of a Llama whose configuration says nothing of them were once left out.
#[test]
fn biases_are_used_or_refused() {
    let llama = Model::of("llama");
    let mut biased = llama.clone();
    for layer in 0..2 {
        for (part, width) in [("q_proj", 32), ("k_proj", 16), ("v_proj", 16), ("o_proj", 32)] {
            biased.tensors.insert(format!("model.layers.{layer}.self_attn.{part}.bias"), values(&[width], 0.5));
        }
    }
    // Said to have none: the checkpoint does not fit.
    let message = biased.error();
    assert!(message.contains("has 8 tensors that a 'llama' with this configuration does not use"), "{message}");
    assert!(message.contains("'model.layers.0.self_attn.k_proj.bias'") && message.ends_with(" …"), "{message}");
    // Nothing said: the file decides.
    let silent = biased.without(&["attention_bias"]);
    let said = biased.with("attention_bias", true.into());
    assert_eq!(silent.logits(), said.logits());
    assert_ne!(silent.logits(), llama.logits());
    assert_eq!(llama.without(&["attention_bias"]).logits(), llama.logits());
    // Some of them are some of them.
    let mut some = silent.clone();
    some.tensors.retain(|name, _| !name.ends_with("o_proj.bias"));
    assert_ne!(some.logits(), silent.logits());
    assert!(
        some.with("attention_bias", true.into()).error().contains("no tensor 'model.layers.0.self_attn.o_proj.bias'")
    );
    let mlp = llama.without(&["mlp_bias"]).and("model.layers.1.mlp.down_proj.bias", &values(&[32], 0.5));
    assert_ne!(mlp.logits(), llama.logits());
    assert!(mlp.with("mlp_bias", false.into()).error().contains("'model.layers.1.mlp.down_proj.bias'"));
    for (name, tensor) in [("mistral", "o_proj"), ("qwen2", "o_proj"), ("qwen3", "q_proj")] {
        let model = Model::of(name).and(&format!("model.layers.0.self_attn.{tensor}.bias"), &values(&[32], 0.5));
        assert!(model.error().contains("1 tensor that a"), "{name}: {}", model.error());
    }
}

#[test]
fn tensors_that_nobody_uses_are_errors() {
    for (name, stray) in [
        ("llama", "model.layers.0.self_attn.q_norm.weight"),
        ("llama", "model.layers.2.input_layernorm.weight"),
        ("llama", "score.weight"),
        ("gpt2", "transformer.h.0.attn.q_attn.weight"),
        ("gpt-neox", "gpt_neox.layers.0.attention.norm.weight"),
        ("gemma3", "model.layers.0.laurel.weight"),
        ("phi3", "model.vision_embed_tokens.glb_GN"),
    ] {
        let message = Model::of(name).and(stray, &values(&[4], 1.0)).error();
        assert!(message.contains(&format!("does not use: '{stray}'")), "{name}: {message}");
    }
    // Layers beyond those of the configuration are not known either, unless fewer are asked for.
    let short = Model::of("llama").with("num_hidden_layers", 1.into());
    assert!(short.error().contains("'model.layers.1."), "{}", short.error());
    assert_eq!(Model::of("llama").load_cut(Some(1)).unwrap().sizes().layers, 1);
    let stray = Model::of("llama").and("model.layers.0.extra.weight", &values(&[4], 1.0));
    assert!(stray.load_cut(Some(1)).unwrap_err().to_string().contains("'model.layers.0.extra.weight'"));
}

/// Buffers of older versions of transformers, and parts that the task does not need.
#[test]
fn harmless_tensors_are_left_alone() {
    let square = values(&[1, 1, 4, 4], 1.0);
    for (name, harmless) in [
        ("llama", vec!["model.layers.0.self_attn.rotary_emb.inv_freq", "model.rotary_emb.inv_freq"]),
        ("gpt2", vec!["transformer.h.0.attn.bias", "transformer.h.1.attn.masked_bias"]),
        ("gpt-neox", vec!["gpt_neox.layers.0.attention.bias", "gpt_neox.layers.1.attention.rotary_emb.inv_freq"]),
    ] {
        let model = Model::of(name);
        let more = harmless.iter().fold(model.clone(), |model, name| model.and(name, &square));
        assert_eq!(more.logits(), model.logits(), "{name}");
    }
    // A buffer of one architecture is a bias of another.
    assert!(Model::of("llama").and("model.h.0.attn.bias", &square).load().is_err());
}

#[test]
fn tied_and_untied_heads() {
    let gemma = Model::of("gemma3");
    let embedding = gemma.tensors["model.embed_tokens.weight"].clone();
    assert_eq!(gemma.and("lm_head.weight", &embedding).logits(), gemma.logits());
    let other = (embedding.to_dtype(DType::F32).unwrap() + 1.0).unwrap();
    assert_eq!(
        gemma.and("lm_head.weight", &other).error(),
        "tie_word_embeddings is said, but tensor 'lm_head.weight' is not 'model.embed_tokens.weight'"
    );
    let mut llama = Model::of("llama");
    llama.tensors.remove("lm_head.weight");
    assert_eq!(
        llama.error(),
        "the checkpoint has no tensor 'lm_head.weight', and tie_word_embeddings does not say that the embedding makes the logits"
    );
    assert_ne!(llama.with("tie_word_embeddings", true.into()).logits(), Model::of("llama").logits());
}

/// Integers are quantised weights, whose scales are elsewhere.
#[test]
fn weights_of_integers_are_refused() {
    let mut llama = Model::of("llama");
    let name = "model.layers.1.mlp.up_proj.weight";
    let weight = llama.tensors[name].to_dtype(DType::I8).unwrap();
    llama.tensors.insert(name.into(), weight);
    assert!(llama.error().starts_with(&format!("tensor '{name}' is of i8")), "{}", llama.error());
}

/// Settings that change the maths, at more than their neutral value, of every architecture.
#[test]
fn settings_that_nobody_honours_are_refused() {
    let cases = [
        ("attn_logit_softcapping", json!(50.0)),
        ("embedding_multiplier", json!(12.0)),
        ("residual_multiplier", json!(0.22)),
        ("attention_multiplier", json!(0.015625)),
        ("logits_scaling", json!(8.0)),
        ("logit_scale", json!(0.0625)),
        ("scale_emb", json!(12)),
        ("clip_qkv", json!(8.0)),
        ("use_qk_norm", json!(true)),
        ("rotary_dim", json!(4)),
        ("rope_interleaved", json!(true)),
        ("no_rope_layers", json!([1, 0])),
        ("kv_lora_rank", json!(512)),
        ("parallel_block", json!(true)),
        ("attention_chunk_size", json!(8192)),
        ("quantization_config", json!({"quant_method": "gptq"})),
        ("position_embedding_type", json!("alibi")),
    ];
    for name in ["llama", "mistral", "qwen2", "qwen3", "gemma3", "phi3", "gpt2", "gpt-neox"] {
        for (field, value) in &cases {
            let error = Model::of(name).with(field, value.clone()).load().unwrap_err();
            assert!(matches!(&error, Error::Config { field: named, .. } if named == field), "{name}: {error}");
        }
        // What they are where they do nothing.
        let neutral = json!({
            "attn_logit_softcapping": null, "embedding_multiplier": 1.0, "logit_scale": 1, "use_qk_norm": false,
            "rope_interleaved": false, "no_rope_layers": [1, 1], "pretraining_tp": 1, "rotary_dim": null,
        });
        let mut model = Model::of(name);
        for (field, value) in neutral.as_object().unwrap() {
            model = model.with(field, value.clone());
        }
        assert_eq!(model.logits(), Model::of(name).logits(), "{name}");
    }
    let refused = |name: &str, field: &str, value: Value| {
        let error = Model::of(name).with(field, value).load().unwrap_err();
        assert!(matches!(&error, Error::Config { field: named, .. } if named == field), "{name}: {error}");
    };
    refused("llama", "final_logit_softcapping", json!(30.0));
    refused("llama", "sliding_window", json!(4));
    refused("llama", "layer_types", json!(["sliding_attention", "full_attention"]));
    refused("llama", "use_parallel_residual", json!(true));
    refused("llama", "query_pre_attn_scalar", json!(256));
    refused("gpt2", "head_dim", json!(16));
    refused("gpt-neox", "head_dim", json!(24));
    refused("gemma3", "hidden_act", json!("silu"));
    refused("mistral", "layer_types", json!(["full_attention", "sliding_attention"]));
    let scaling = json!({"rope_type": "linear", "factor": 2.0, "mrope_section": [16, 24, 24]});
    let message = Model::of("llama").with("rope_scaling", scaling).error();
    assert!(message.contains("rope_scaling: mrope_section is not supported"), "{message}");
}

/// A folder that goes away.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("kiln-misreads-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Encoders say what they do not use, too, but for the heads of other tasks.
#[test]
fn encoders_use_all_of_their_tensors() {
    let (folder, tiny) = (Folder::new("bert"), reference("tiny-bert"));
    for file in ["config.json", "tokenizer.json"] {
        std::fs::copy(tiny.join(file), folder.0.join(file)).unwrap();
    }
    let tensors = Checkpoint::open(&tiny, Device::Cpu).unwrap().tensors;
    let open = |more: &[&str]| {
        let mut tensors = tensors.clone();
        more.iter().for_each(|name| drop(tensors.insert((*name).into(), values(&[4], 1.0))));
        safetensors::save(folder.0.join("model.safetensors"), &tensors).unwrap();
        Embedder::open(&folder.0, &EmbedderOptions::default()).map(|embedder| embedder.width())
    };
    assert_eq!(open(&["embeddings.position_ids", "pooler.dense.weight", "cls.predictions.bias"]).unwrap(), 16);
    let message = open(&["encoder.layer.0.attention.self.distance_embedding.weight"]).unwrap_err().to_string();
    assert!(message.contains("does not use: 'encoder.layer.0.attention.self.distance_embedding.weight'"), "{message}");
    let config = std::fs::read_to_string(tiny.join("config.json")).unwrap();
    let quantised = config.replacen('{', r#"{"quantization_config": {"quant_method": "bitsandbytes"},"#, 1);
    std::fs::write(folder.0.join("config.json"), quantised).unwrap();
    assert!(open(&[]).unwrap_err().to_string().contains("quantised by 'bitsandbytes'"));
}

/// A model for another task says so, rather than which tensor it lacks.
#[test]
fn models_for_another_task_are_told() {
    let error = |name: &str| {
        let folder = reference(name);
        kiln_llm::open(folder.to_str().unwrap(), &OpenOptions::default()).unwrap_err().to_string()
    };
    assert!(error("tiny-bert").ends_with("models of type 'bert' turn texts into vectors, and do not write"));
    assert!(error("tiny-vit").ends_with("models of type 'vit' classify pictures, and do not write"));
    let llama = Embedder::open(reference("architectures/llama"), &EmbedderOptions::default()).unwrap_err();
    assert!(llama.to_string().ends_with("models of type 'llama' continue texts, and do nothing else"), "{llama}");
}
