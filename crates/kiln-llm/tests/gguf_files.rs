//! Whole GGUF files, which are too large to be part of the repository.
//!
//! ```sh
//! python tests/reference/make_gguf_reference.py FILE.gguf FOLDER
//! KILN_GGUF=FILE.gguf KILN_GGUF_REFERENCE=FOLDER cargo test --release -p kiln-llm --test gguf_files -- --ignored --nocapture
//! ```

use kiln::{Device, Options, Precision, Tensor, safetensors};
use kiln_ir::examples::Random;
use kiln_llm::{
    CausalLm, ChatTemplate, Generator, GeneratorOptions, Gguf, KvCache, Message, OpenOptions, Request, Tokenizer, open,
};
use serde_json::Value;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::PathBuf;

/// Of the largest logit; rounding of two f32 programs with other orders of sums, over dozens of layers.
const TOLERANCE: f32 = 1e-4;
const CONTEXT: usize = 256;

fn named(variable: &str) -> PathBuf {
    std::env::var_os(variable).unwrap_or_else(|| panic!("{variable} names a path")).into()
}

fn expected() -> Value {
    serde_json::from_slice(&std::fs::read(named("KILN_GGUF_REFERENCE").join("expected.json")).unwrap()).unwrap()
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

/// Tokens are transformers' or, where that does without what the file says of special tokens, llama.cpp's; the chat template
/// makes the same text.
#[test]
#[ignore = "needs a GGUF file and its reference, named by KILN_GGUF and KILN_GGUF_REFERENCE"]
fn texts_become_the_same_tokens() {
    let file = Gguf::open(named("KILN_GGUF")).unwrap();
    let tokenizer = Tokenizer::from_gguf(&file).unwrap();
    let expected = expected();
    let (mut transformers, mut llama_cpp, mut all) = (0, 0, 0);
    for case in expected["tokens"].as_array().unwrap() {
        let text = case["text"].as_str().unwrap();
        let (found, first, second) =
            (tokenizer.encode(text, false).unwrap(), ids(&case["ids"]), ids(&case["llama_cpp"]));
        assert!(found == first || found == second, "{text:?}: {found:?}, not {first:?} or {second:?}");
        all += 1;
        transformers += usize::from(found == first);
        llama_cpp += usize::from(found == second);
    }
    println!("{all} texts, {transformers} as transformers, {llama_cpp} as llama.cpp");
    let template = ChatTemplate::from_gguf(&file).unwrap().unwrap();
    let question = [Message::new("user", "What is the capital of France?")];
    assert_eq!(template.render(&question, true).unwrap(), expected["chat"].as_str().unwrap());
}

fn row(values: impl IntoIterator<Item = i64>) -> Tensor {
    let values: Vec<i64> = values.into_iter().collect();
    let count = values.len();
    Tensor::from_vec(values, [1, count], Device::Cpu).unwrap()
}

fn pass(model: &dyn CausalLm, tokens: &[u32], start: usize, cache: &KvCache) -> Tensor {
    let positions = row((start..start + tokens.len()).map(|at| at as i64));
    let hidden = model.hidden(&row(tokens.iter().map(|&id| id.into())), &cache.step(&positions).unwrap()).unwrap();
    model.logits(&hidden).unwrap().squeeze(0).unwrap()
}

fn best(logits: &[f32]) -> usize {
    (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap()
}

/// Logits agree with those that transformers computes from unpacked weights, prompts at once and token by token; the likeliest
/// continuations are the same, eager and compiled.
#[test]
#[ignore = "needs a GGUF file and its reference, named by KILN_GGUF and KILN_GGUF_REFERENCE"]
fn logits_and_texts_agree() {
    let file = named("KILN_GGUF");
    let model = open(file.to_str().unwrap(), &OpenOptions::default()).unwrap().model;
    let logits = safetensors::load(named("KILN_GGUF_REFERENCE").join("expected.safetensors"), Device::Cpu).unwrap();
    let (mut positions, mut same, mut most) = (0, 0, 0f32);
    for (number, text) in expected()["texts"].as_array().unwrap().iter().enumerate() {
        let (prompt, greedy) = (ids(&text["prompt"]), ids(&text["greedy"]));
        let want: Vec<f32> = logits[&format!("logits.{number}")].to_vec().unwrap();
        let width = want.len() / prompt.len();
        let cache = || KvCache::fixed(&*model, 1, CONTEXT).unwrap();
        let at_once = pass(&*model, &prompt, 0, &cache());
        let kept = cache();
        let few = prompt.len().min(48);
        let one_by_one: Vec<Tensor> =
            prompt[..few].iter().enumerate().map(|(at, &id)| pass(&*model, &[id], at, &kept)).collect();
        let one_by_one = Tensor::cat(&one_by_one, 0).unwrap();
        for (how, got) in [("at once", at_once), ("one by one", one_by_one)] {
            let got: Vec<f32> = got.to_vec().unwrap();
            let largest = want.iter().fold(0f32, |most, x| most.max(x.abs()));
            let apart = got.iter().zip(&want).fold(0f32, |most, (got, want)| most.max((got - want).abs()));
            let rows = got.chunks_exact(width).zip(want.chunks_exact(width));
            let agreed = rows.clone().filter(|(got, want)| best(got) == best(want)).count();
            println!("text {number}, {how}: {agreed} of {} the same, ± {apart:.1e} of {largest:.1}", rows.len());
            (positions, same, most) = (positions + rows.len(), same + agreed, most.max(apart / largest));
        }
        for compile in [None, Some(Options::default())] {
            let options = GeneratorOptions { context: CONTEXT, compile, ..GeneratorOptions::default() };
            let mut generator = Generator::new(model.clone(), options).unwrap();
            let request = Request { max_tokens: greedy.len(), ..Request::default() };
            assert_eq!(generator.generate(&prompt, &request).unwrap().ids, greedy, "text {number}");
        }
    }
    println!("{same} of {positions} likeliest tokens the same, logits ± {most:.1e} of the largest");
    assert_eq!(same, positions);
    assert!(most < TOLERANCE, "{most:.1e}");
}

/// What lower precisions lose: next to nothing at `High`, at `Medium` about as much as others who round activations to 8 bits.
#[test]
#[ignore = "needs a GGUF file and its reference, named by KILN_GGUF and KILN_GGUF_REFERENCE"]
fn lower_precisions_stay_close() {
    let file = named("KILN_GGUF");
    let model = open(file.to_str().unwrap(), &OpenOptions::default()).unwrap().model;
    let logits = safetensors::load(named("KILN_GGUF_REFERENCE").join("expected.safetensors"), Device::Cpu).unwrap();
    for (precision, tolerance, least) in [(Precision::High, 1e-3, 0.99), (Precision::Medium, 0.2, 0.9)] {
        let options = || Options { precision, ..Options::default() };
        let (mut positions, mut same, mut most, mut error, mut texts) = (0, 0, 0f32, 0f32, 0);
        for (number, text) in expected()["texts"].as_array().unwrap().iter().enumerate() {
            let (prompt, greedy) = (ids(&text["prompt"]), ids(&text["greedy"]));
            let want: Vec<f32> = logits[&format!("logits.{number}")].to_vec().unwrap();
            let width = want.len() / prompt.len();
            let (held, cache) = (model.clone(), KvCache::fixed(&*model, 1, CONTEXT).unwrap());
            let step = cache.step(&row(0..prompt.len() as i64)).unwrap();
            let compiled = kiln::compile_with(
                move |tokens: &Tensor| -> kiln::Result<Tensor> { held.logits(&held.hidden(tokens, &step)?) },
                options(),
            );
            let got: Vec<f32> = compiled.call(&row(prompt.iter().map(|&id| id.into()))).unwrap().to_vec().unwrap();
            let largest = want.iter().fold(0f32, |most, x| most.max(x.abs()));
            let apart = got.iter().zip(&want).fold(0f32, |most, (got, want)| most.max((got - want).abs()));
            let rows = got.chunks_exact(width).zip(want.chunks_exact(width));
            same += rows.clone().filter(|(got, want)| best(got) == best(want)).count();
            (positions, most, error) = (positions + rows.len(), most.max(apart / largest), error.max(apart));
            let options = GeneratorOptions { context: CONTEXT, compile: Some(options()), ..Default::default() };
            let request = Request { max_tokens: greedy.len(), ..Request::default() };
            let mut generator = Generator::new(model.clone(), options).unwrap();
            texts += usize::from(generator.generate(&prompt, &request).unwrap().ids == greedy);
        }
        println!(
            "{precision:?}: {same} of {positions} likeliest tokens the same, logits off by {error:.2e}, {most:.1e} of the largest, {texts} texts the same"
        );
        assert!(same as f64 >= least * positions as f64, "{precision:?}: {same} of {positions}");
        assert!(most < tolerance, "{precision:?}: {most:.1e}");
    }
}

/// Whatever is done to the head of a large file, it is read or refused.
#[test]
#[ignore = "needs a GGUF file, named by KILN_GGUF"]
fn changed_heads_are_read_or_refused() {
    let mut original = std::fs::File::open(named("KILN_GGUF")).unwrap();
    let length = original.metadata().unwrap().len();
    let file = Gguf::open(named("KILN_GGUF")).unwrap();
    let head = file.tensors().values().map(|tensor| tensor.range.start).min().unwrap();
    let mut bytes = vec![0; head];
    original.read_exact(&mut bytes).unwrap();
    // As long as the file, but without its elements.
    let path = std::env::temp_dir().join(format!("kiln-changed-{}.gguf", std::process::id()));
    let mut copy = std::fs::File::create(&path).unwrap();
    copy.write_all(&bytes).unwrap();
    copy.set_len(length).unwrap();
    assert_eq!(Gguf::open(&path).unwrap().tensors(), file.tensors());
    let mut random = Random(1);
    let mut random = |below| random.below(below);
    let (mut read, mut refused) = (0, 0);
    let rounds = std::env::var("KILN_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(500);
    for _ in 0..rounds {
        // Settings are at the beginning, tensors at the end, and between them there is little but texts.
        let at = match random(4) {
            0 => random(24),
            1 => random(head.min(2048)),
            2 => head - 1 - random(head.min(24 << 10)),
            _ => random(head),
        };
        let wide = [0, 1, u64::MAX, 1 << 63, 1 << 32, length, length - at as u64, head as u64, random(256) as u64];
        let change = wide[random(9)].to_le_bytes();
        let count = [1, 1, 2, 4, 8][random(5)].min(head - at);
        let mut write = |bytes: &[u8]| {
            copy.seek(SeekFrom::Start(at as u64)).unwrap();
            copy.write_all(bytes).unwrap();
        };
        write(&change[..count]);
        match Gguf::open(&path) {
            Ok(changed) => {
                read += 1;
                assert!(changed.tensors().values().all(|tensor| tensor.range.end as u64 <= length));
                let _ = changed.config();
                let _ = changed.checkpoint(Device::Cpu);
                if read % 16 == 0 {
                    let _ = Tokenizer::from_gguf(&changed).map(|tokenizer| tokenizer.encode("ab <|im_end|> 12", true));
                    let _ = ChatTemplate::from_gguf(&changed);
                }
            }
            Err(_) => refused += 1,
        }
        write(&bytes[at..at + count]);
    }
    std::fs::remove_file(&path).unwrap();
    println!("{read} read, {refused} refused");
    assert!(read > 0 && refused > 0);
}
