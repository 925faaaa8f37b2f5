//! GGUF files written here are read back; files that lie are errors.

use kiln::{BlockFormat, DType, Device, Tensor};
use kiln_ir::examples::Random;
use kiln_llm::gguf::{BlockType, Metadata};
use kiln_llm::{
    CausalLm, ChatTemplate, Checkpoint, Generator, GeneratorOptions, Gguf, KvCache, Llama, LlamaConfig, Message,
    Request, Tokenizer, Weights,
};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const STORIES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/models/stories260K");

/// Writes a file.
#[derive(Default)]
struct Writer {
    keys: Vec<u8>,
    key_count: u64,
    tensors: Vec<u8>,
    tensor_count: u64,
    elements: Vec<u8>,
}

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

impl Writer {
    fn key(&mut self, key: &str, kind: u32, value: &[u8]) {
        self.keys.extend(text(key));
        self.keys.extend(kind.to_le_bytes());
        self.keys.extend(value);
        self.key_count += 1;
    }

    fn number(&mut self, key: &str, value: u32) {
        self.key(key, 4, &value.to_le_bytes());
    }

    fn list<'a>(&mut self, key: &str, kind: u32, items: impl ExactSizeIterator<Item = Vec<u8>> + 'a) {
        let mut value = kind.to_le_bytes().to_vec();
        value.extend((items.len() as u64).to_le_bytes());
        items.for_each(|item| value.extend(item));
        self.key(key, 9, &value);
    }

    /// `shape` has the innermost axis first.
    fn tensor(&mut self, name: &str, shape: &[u64], block: BlockType, bytes: &[u8]) {
        self.tensors.extend(text(name));
        self.tensors.extend((shape.len() as u32).to_le_bytes());
        shape.iter().for_each(|size| self.tensors.extend(size.to_le_bytes()));
        self.tensors.extend(block.code().to_le_bytes());
        self.tensors.extend((self.elements.len() as u64).to_le_bytes());
        self.elements.extend(bytes);
        self.elements.resize(self.elements.len().next_multiple_of(32), 0);
        self.tensor_count += 1;
    }

    fn finish(&self) -> Vec<u8> {
        let mut file = b"GGUF".to_vec();
        file.extend(3u32.to_le_bytes());
        file.extend(self.tensor_count.to_le_bytes());
        file.extend(self.key_count.to_le_bytes());
        file.extend(&self.keys);
        file.extend(&self.tensors);
        file.resize(file.len().next_multiple_of(32), 0);
        file.extend(&self.elements);
        file
    }
}

/// stories260K as llama.cpp would convert it, its elements in f32.
fn stories() -> Vec<u8> {
    stories_with(|_| ())
}

/// The same with more keys and tensors.
fn stories_with(more: impl FnOnce(&mut Writer)) -> Vec<u8> {
    let config = LlamaConfig::read(STORIES).unwrap();
    let checkpoint = Checkpoint::open(STORIES, Device::Cpu).unwrap();
    let mut file = Writer::default();
    file.key("general.architecture", 8, &text("llama"));
    for (name, value) in [
        ("embedding_length", config.hidden_size),
        ("block_count", config.num_hidden_layers),
        ("feed_forward_length", config.intermediate_size),
        ("attention.head_count", config.num_attention_heads),
        ("attention.head_count_kv", config.num_key_value_heads),
        ("context_length", config.max_position_embeddings),
    ] {
        file.number(&format!("llama.{name}"), value as u32);
    }
    file.key("llama.attention.layer_norm_rms_epsilon", 6, &1e-5f32.to_le_bytes());
    file.key("tokenizer.ggml.model", 8, &text("llama"));
    let json: Value =
        serde_json::from_slice(&std::fs::read(Path::new(STORIES).join("tokenizer.json")).unwrap()).unwrap();
    let mut tokens = vec![String::new(); config.vocab_size];
    for (token, id) in json["model"]["vocab"].as_object().unwrap() {
        tokens[id.as_u64().unwrap() as usize] = token.clone();
    }
    file.list("tokenizer.ggml.tokens", 8, tokens.iter().map(|token| text(token)));
    // SentencePiece numbers its tokens by score.
    file.list("tokenizer.ggml.scores", 6, (0..tokens.len()).map(|id| (-(id as f32)).to_le_bytes().to_vec()));
    file.list(
        "tokenizer.ggml.token_type",
        5,
        (0..tokens.len()).map(|id| {
            let kind: i32 = match id {
                0 => 2,
                1 | 2 => 3,
                3..259 => 6,
                _ => 1,
            };
            kind.to_le_bytes().to_vec()
        }),
    );
    for (name, id) in [("bos", 1), ("eos", 2), ("unknown", 0)] {
        file.number(&format!("tokenizer.ggml.{name}_token_id"), id);
    }
    for (name, tensor) in &checkpoint.tensors {
        let heads = if name.contains("q_proj") {
            config.num_attention_heads
        } else if name.contains("k_proj") {
            config.num_key_value_heads
        } else {
            0
        };
        let shape = tensor.shape().to_vec();
        let stored = match heads {
            0 => tensor.clone(),
            heads => tensor.reshape([heads, 2, config.head_dim / 2, shape[1]]).unwrap().transpose(1, 2).unwrap(),
        };
        let bytes: Vec<u8> = stored.to_vec::<f32>().unwrap().iter().flat_map(|x| x.to_le_bytes()).collect();
        let sizes: Vec<u64> = shape.iter().rev().map(|&n| n as u64).collect();
        file.tensor(&stored_name(name), &sizes, BlockType::F32, &bytes);
    }
    more(&mut file);
    file.finish()
}

fn stored_name(name: &str) -> String {
    let pairs = [
        ("model.embed_tokens", "token_embd"),
        ("model.norm", "output_norm"),
        ("model.layers", "blk"),
        ("input_layernorm", "attn_norm"),
        ("post_attention_layernorm", "ffn_norm"),
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.o_proj", "attn_output"),
        ("mlp.gate_proj", "ffn_gate"),
        ("mlp.up_proj", "ffn_up"),
        ("mlp.down_proj", "ffn_down"),
    ];
    pairs.iter().fold(name.to_owned(), |name, (from, to)| name.replace(from, to))
}

#[test]
fn a_llama_of_a_file_is_the_llama_of_the_folder() {
    let file = Gguf::from_bytes(stories()).unwrap();
    let config = file.config().unwrap();
    let tokenizer = Tokenizer::from_gguf(&file).unwrap();
    let prompt = tokenizer.encode("Once upon a time", true).unwrap();
    assert_eq!(prompt, [1, 403, 407, 261, 378]);
    let checkpoint = file.checkpoint(Device::Cpu).unwrap();
    let model = file.model(&config, &Weights::new(&checkpoint, DType::F32)).unwrap();
    let options = GeneratorOptions { context: 32, ..GeneratorOptions::default() };
    let mut generator = Generator::new(Arc::new(model), options).unwrap();
    let ids = generator.generate(&prompt, &Request { max_tokens: 12, ..Request::default() }).unwrap().ids;
    let expected = std::fs::read(Path::new(STORIES).join("expected.json")).unwrap();
    let expected: Value = serde_json::from_slice(&expected).unwrap();
    assert_eq!(ids, serde_json::from_value::<Vec<u32>>(expected[0]["greedy_ids"].clone()).unwrap()[5..17]);
}

/// Blocks and elements that gguf's own Python package gives for them.
#[test]
fn blocks_are_dequantised_as_the_reference_does() {
    let reference: Value = serde_json::from_str(include_str!("reference/blocks.json")).unwrap();
    let mut seen = 0;
    for case in reference.as_array().unwrap() {
        let code = case["type"].as_u64().unwrap() as u32;
        let block = BlockType::from_code(code).unwrap();
        let hex = case["bytes"].as_str().unwrap();
        let bytes: Vec<u8> =
            (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap()).collect();
        let mut elements = Vec::new();
        block.dequantise(&bytes, &mut elements);
        let expected: Vec<f32> =
            case["elements"].as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as f32).collect();
        assert_eq!(elements, expected, "{block:?}");
        seen += 1;
    }
    assert_eq!(seen, 7);
}

#[test]
fn files_that_lie_are_errors() {
    let message = |file: Vec<u8>| Gguf::from_bytes(file).unwrap_err().to_string();
    assert_eq!(message(b"GGML".to_vec()), "bytes: it does not begin with 'GGUF'");
    assert_eq!(message(b"GG".to_vec()), "bytes: the magic at byte 0 goes beyond the end of the file");
    let mut huge = Writer::default().finish();
    huge[8..16].copy_from_slice(&u64::MAX.to_le_bytes());
    assert_eq!(message(huge), "bytes: the tensors at byte 8 goes beyond the end of the file");
    let with = |shape: &[u64], block, bytes: usize| {
        let mut file = Writer::default();
        file.tensor("x", shape, block, &vec![0; bytes]);
        file.finish()
    };
    let short = message(with(&[1 << 20], BlockType::F32, 64));
    assert_eq!(short, "bytes: tensor 'x': its elements go beyond the end of the file");
    assert_eq!(message(with(&[1 << 40, 1 << 40], BlockType::F32, 64)), "bytes: tensor 'x': it is too large");
    let ragged = message(with(&[33], BlockType::Blocks(BlockFormat::Q8_0), 64));
    assert_eq!(ragged, "bytes: tensor 'x': its rows are not made of whole blocks");
    let mut twice = Writer::default();
    twice.number("a", 1);
    twice.number("a", 2);
    assert_eq!(message(twice.finish()), "bytes: 'a' is there twice");
    let mut odd = Writer::default();
    odd.number("general.alignment", 24);
    assert_eq!(message(odd.finish()), "bytes: general.alignment: no power of two up to 2²⁰");
}

/// One byte of a file would become many in memory.
#[test]
fn endless_lists_are_errors() {
    let count = (1 << 22) + 1;
    let mut list = 0u32.to_le_bytes().to_vec();
    list.extend((count as u64).to_le_bytes());
    list.resize(list.len() + count, 7);
    let mut file = Writer::default();
    file.key("x", 9, &list);
    let message = Gguf::from_bytes(file.finish()).unwrap_err().to_string();
    assert_eq!(message, "bytes: the list at byte 49 and those before it have more than 4194304 values");
}

/// A file says one token that ends a text; control tokens with telling names end it too.
#[test]
fn all_tokens_that_end_a_text_are_found() {
    let mut file = Writer::default();
    file.key("general.architecture", 8, &text("qwen2"));
    for (name, size) in [
        ("embedding_length", 32),
        ("block_count", 1),
        ("feed_forward_length", 32),
        ("attention.head_count", 2),
        ("context_length", 64),
    ] {
        file.number(&format!("qwen2.{name}"), size);
    }
    file.key("qwen2.attention.layer_norm_rms_epsilon", 6, &1e-6f32.to_le_bytes());
    let tokens = ["a", "<|endoftext|>", "<|im_end|>", "<|im_start|>", "<|eot_id|>", "<turn>"];
    file.list("tokenizer.ggml.tokens", 8, tokens.into_iter().map(text));
    file.list(
        "tokenizer.ggml.token_type",
        5,
        [1i32, 3, 3, 3, 1, 3].map(|kind| kind.to_le_bytes().to_vec()).into_iter(),
    );
    file.number("tokenizer.ggml.eos_token_id", 2);
    file.number("tokenizer.ggml.eot_token_id", 5);
    file.tensor("token_embd.weight", &[32, 6], BlockType::F32, &[0; 32 * 6 * 4]);
    assert_eq!(Gguf::from_bytes(file.finish()).unwrap().config().unwrap().eos_token_ids, [2, 5, 1]);
}

/// The model of a file, with all of its layers.
fn model(file: Vec<u8>) -> kiln_llm::Result<Llama> {
    let file = Gguf::from_bytes(file)?;
    let checkpoint = file.checkpoint(Device::Cpu)?;
    file.model(&file.config()?, &Weights::new(&checkpoint, DType::F32))
}

/// Logits of a short text.
fn logits(model: &Llama) -> Vec<f32> {
    let row = |values: [i64; 5]| Tensor::from_vec(values.to_vec(), [1, 5], Device::Cpu).unwrap();
    let cache = KvCache::fixed(model, 1, 8).unwrap();
    let step = cache.step(&row([0, 1, 2, 3, 4])).unwrap();
    let hidden = model.hidden(&row([1, 403, 407, 261, 378]), &step).unwrap();
    model.logits(&hidden).unwrap().to_vec().unwrap()
}

/// Keys that change what a model computes are honoured or refused, and so are those that nobody knows.
#[test]
fn settings_of_a_file_are_honoured_or_refused() {
    let usual = logits(&model(stories()).unwrap());
    let float = |key: &'static str, value: f32| stories_with(move |file| file.key(key, 6, &value.to_le_bytes()));
    let number = |key: &'static str, value: u32| stories_with(move |file| file.number(key, value));
    let message = |file: Vec<u8>| model(file).unwrap_err().to_string();
    // A head has 8 elements: all of them turn, or the first four, each pair by its own angle.
    assert_eq!(logits(&model(number("llama.rope.dimension_count", 8)).unwrap()), usual);
    let half = model(number("llama.rope.dimension_count", 4)).unwrap();
    assert_eq!(half.rotations()[0].frequencies, [1.0, 0.01]);
    assert_ne!(logits(&half), usual);
    for odd in [10, 3] {
        let message = message(number("llama.rope.dimension_count", odd));
        assert_eq!(message, format!("GGUF: llama.rope.dimension_count: {odd} is no even part of a head of 8 elements"));
    }
    // A factor alone is a linear one, as in llama.cpp.
    for key in ["llama.rope.scaling.factor", "llama.rope.scale_linear"] {
        let slow = model(float(key, 2.0)).unwrap();
        assert_eq!(slow.rotations()[0].frequencies[0], 0.5);
    }
    assert_eq!(logits(&model(float("llama.attention.scale", 8f32.powf(-0.5))).unwrap()), usual);
    assert_eq!(logits(&model(number("llama.expert_count", 0)).unwrap()), usual);
    assert_eq!(logits(&model(number("llama.attention.sliding_window", 512)).unwrap()), usual);
    for (file, expected) in [
        (float("llama.attention.scale", 0.5), "llama.attention.scale: scores scaled by other than 0.353553"),
        (number("llama.attention.value_length", 16), "llama.attention.value_length: values of another width"),
        (number("llama.attention.sliding_window", 64), "llama.attention.sliding_window: attention with a window"),
        (float("llama.logit_scale", 0.25), "llama.logit_scale: 0.25 is not supported"),
        (float("llama.attention.clamp_kqv", 8.0), "llama.attention.clamp_kqv: 8 is not supported"),
        (float("llama.brand.new", 8.0), "llama.brand.new: there is no code for this setting"),
        (number("split.count", 3), "split.count: the model is split into 3 files"),
        (
            stories_with(|file| file.key("general.type", 8, &text("adapter"))),
            "general.type: a file of type 'adapter' holds no whole model",
        ),
        (
            stories_with(|file| file.key("llama.rope.scaling.type", 8, &text("longrope"))),
            "llama.rope.scaling.type: positions scaled by 'longrope' are not supported",
        ),
    ] {
        let message = message(file);
        assert!(message.contains(expected), "{message}\nlacks\n{expected}");
    }
}

/// A mixture of experts was once said to lack a tensor.
#[test]
fn files_of_other_models_say_what_they_are() {
    let architecture = |name: &str, experts: u32| {
        let mut file = Writer::default();
        file.key("general.architecture", 8, &text(name));
        file.number(&format!("{name}.expert_count"), experts);
        Gguf::from_bytes(file.finish()).unwrap().config().unwrap_err().to_string()
    };
    let experts = "are not supported: mixtures of experts (MoE) are not";
    for (name, count) in [("llama", 8), ("qwen2", 4), ("qwen2moe", 0), ("deepseek2", 0), ("gpt-oss", 32), ("new", 2)] {
        let message = architecture(name, count);
        assert!(message.contains(&format!("'{name}'")) && message.ends_with(experts), "{message}");
    }
    assert!(architecture("gemma3", 0).ends_with("are not supported as GGUF files, but as folders with safetensors"));
    assert!(architecture("falcon", 0).ends_with("models of type 'falcon' are not supported"));
}

/// Biases are where the file has them; what else is left over is named as the file names it.
#[test]
fn tensors_of_a_file_are_used_or_refused() {
    let usual = logits(&model(stories()).unwrap());
    let bytes: Vec<u8> = (0..64).flat_map(|i| ((i % 7) as f32 - 3.0).to_le_bytes()).collect();
    let biased = stories_with(|file| file.tensor("blk.0.attn_q.bias", &[64], BlockType::F32, &bytes));
    assert_ne!(logits(&model(biased).unwrap()), usual);
    let stray = stories_with(|file| file.tensor("blk.0.attn_q_norm.weight", &[8], BlockType::F32, &bytes[..32]));
    let message = model(stray).unwrap_err().to_string();
    assert!(message.ends_with("does not use: 'blk.0.attn_q_norm.weight'"), "{message}");
    let mut short = LlamaConfig::read(STORIES).unwrap();
    short.intermediate_size = 171;
    let file = Gguf::from_bytes(stories()).unwrap();
    let checkpoint = file.checkpoint(Device::Cpu).unwrap();
    let message = file.model(&short, &Weights::new(&checkpoint, DType::F32)).unwrap_err().to_string();
    assert!(message.starts_with("tensor 'blk.0.ffn_gate.weight' is [172, 64]"), "{message}");
}

/// Types are named as ggml names them, with those that can be read.
#[test]
fn types_of_blocks_have_names() {
    let stored = |code: u32| {
        let mut file = Writer::default();
        file.tensor("x", &[256], BlockType::F32, &[0; 1024]);
        // The type stands before the offset, which ends the entry.
        let at = file.tensors.len() - 12;
        file.tensors[at..at + 4].copy_from_slice(&code.to_le_bytes());
        Gguf::from_bytes(file.finish()).unwrap_err().to_string()
    };
    for (code, name) in
        [(13, "Q5_K"), (10, "Q2_K"), (23, "IQ4_XS"), (35, "TQ2_0"), (39, "MXFP4"), (7, "Q5_1"), (99, "type 99")]
    {
        let message = stored(code);
        assert!(
            message.contains(&format!("tensor 'x' is stored as {name}, which is not supported; F32, F16, ")),
            "{message}"
        );
        assert!(message.ends_with("Q6_K, BF16 are"), "{message}");
    }
}

/// Whatever is done to a file, it is read or refused, and what is read lies within it.
#[test]
fn mutations_are_read_or_refused() {
    let mut file = Writer::default();
    file.key("general.architecture", 8, &text("llama"));
    file.number("llama.block_count", 2);
    file.list("tokenizer.ggml.tokens", 8, ["a", "b", "ab"].into_iter().map(text));
    file.key("tokenizer.ggml.model", 8, &text("llama"));
    file.list("tokenizer.ggml.scores", 6, [0f32, -1.0, -2.0].into_iter().map(|x| x.to_le_bytes().to_vec()));
    file.tensor("token_embd.weight", &[32, 3], BlockType::Blocks(BlockFormat::Q8_0), &[1; 34 * 3]);
    file.tensor("x", &[4, 2], BlockType::F16, &[2; 16]);
    let file = file.finish();
    assert_eq!(Gguf::from_bytes(file.clone()).unwrap().get("llama.block_count"), Some(&Metadata::Unsigned(2)));
    let mut random = Random(1);
    let mut random = |below| random.below(below);
    let (mut read, mut refused) = (0, 0);
    for _ in 0..20_000 {
        let mut mutant = file.clone();
        for _ in 0..=random(3) {
            let at = random(mutant.len());
            match random(4) {
                0 => mutant[at] = random(256) as u8,
                1 => mutant[at] ^= 1 << random(8),
                2 => mutant.truncate(at.max(1)),
                _ => {
                    let wide = [0, 1, u64::MAX, 1 << 63, 1 << 32, mutant.len() as u64][random(6)].to_le_bytes();
                    let end = (at + 8).min(mutant.len());
                    mutant[at..end].copy_from_slice(&wide[..end - at]);
                }
            }
        }
        let length = mutant.len();
        match Gguf::from_bytes(mutant) {
            Ok(file) => {
                read += 1;
                for tensor in file.tensors().values() {
                    assert!(tensor.range.end <= length);
                    assert_eq!(file.elements(tensor).len(), tensor.elements());
                }
                // These may be refused too, but not with a panic.
                let _ = Tokenizer::from_gguf(&file).map(|tokenizer| tokenizer.encode("ab ba", true));
                if let Ok(config) = file.config() {
                    let checkpoint = file.checkpoint(Device::Cpu).unwrap();
                    let _ = file.model(&config, &Weights::new(&checkpoint, DType::F32));
                }
            }
            Err(_) => refused += 1,
        }
    }
    assert!(read > 100 && refused > 1000, "{read} read, {refused} refused");
}

/// `KILN_SMOLLM2` names the GGUF file of SmolLM2-135M-Instruct.
#[test]
#[ignore = "needs the GGUF file of SmolLM2-135M-Instruct, named by KILN_SMOLLM2"]
fn smollm2_knows_the_capital_of_france() {
    let path = PathBuf::from(std::env::var_os("KILN_SMOLLM2").expect("KILN_SMOLLM2 names a file"));
    let file = Gguf::open(path).unwrap();
    let config = file.config().unwrap();
    let tokenizer = Tokenizer::from_gguf(&file).unwrap();
    let template = ChatTemplate::from_gguf(&file).unwrap().unwrap();
    let question = [Message::new("user", "What is the capital of France?")];
    let prompt = tokenizer.encode(&template.render(&question, true).unwrap(), false).unwrap();
    let checkpoint = file.checkpoint(Device::Cpu).unwrap();
    let model = file.model(&config, &Weights::new(&checkpoint, DType::F32)).unwrap();
    let options = GeneratorOptions { context: 128, ..GeneratorOptions::default() };
    let mut generator = Generator::new(Arc::new(model), options).unwrap();
    let request = Request { max_tokens: 24, stop_tokens: config.eos_token_ids.clone(), ..Request::default() };
    let answer = generator.generate(&prompt, &request).unwrap();
    let text = tokenizer.decode(&answer.ids, true).unwrap();
    assert!(text.contains("Paris"), "{text}");
}
