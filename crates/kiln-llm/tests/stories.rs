//! Greedy text of trained models, eagerly and compiled in every mode, is what PyTorch makes of them in f32.

use kiln::{DType, Device, Mode, Options};
use kiln_llm::{Checkpoint, Generator, GeneratorOptions, Llama, LlamaConfig, Request, Sampling, Stop};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::Arc;

fn shipped() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("models/stories260K")
}

fn generator(folder: &Path, context: usize, compile: Option<Options>) -> Generator {
    let config = LlamaConfig::read(folder).unwrap();
    let model = Llama::load(&config, &Checkpoint::open(folder, Device::Cpu).unwrap(), DType::F32).unwrap();
    Generator::new(Arc::new(model), GeneratorOptions { context, compile, ..GeneratorOptions::default() }).unwrap()
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

/// Compares with each prompt of `expected.json`.
fn agrees(folder: &Path, compile: Option<Options>) {
    let expected = std::fs::read(folder.join("expected.json")).unwrap();
    let expected: Value = serde_json::from_slice(&expected).unwrap();
    let mut generator = generator(folder, 256, compile);
    for text in expected.as_array().unwrap() {
        let (prompt, whole) = (ids(&text["prompt_ids"]), ids(&text["greedy_ids"]));
        let new = &whole[prompt.len()..];
        let request = Request { max_tokens: new.len(), ..Request::default() };
        assert_eq!(generator.generate(&prompt, &request).unwrap().ids, new);
    }
    assert!(generator.compiles().1 <= 1, "one program for every position");
}

#[test]
fn stories260k_eager() {
    agrees(&shipped(), None);
}

#[test]
fn stories260k_compiled_in_every_mode() {
    for mode in Mode::ALL {
        agrees(&shipped(), Some(Options { mode, ..Options::default() }));
    }
    agrees(&shipped(), Some(Options { freeze: true, ..Options::default() }));
}

/// `KILN_MODELS` names the folder that holds the models which are too large for the repository.
#[test]
#[ignore = "needs the folder stories15M under KILN_MODELS"]
fn stories15m_eager_and_compiled() {
    let models = std::env::var_os("KILN_MODELS").expect("KILN_MODELS names a folder with stories15M");
    let folder = Path::new(&models).join("stories15M");
    agrees(&folder, None);
    agrees(&folder, Some(Options::default()));
}

/// The same draws eagerly and compiled; another seed draws another text; other numbers need no other program.
#[test]
fn sampling_is_part_of_the_program() {
    let prompt = [1, 403, 407, 261, 378];
    let sampling = Sampling { temperature: 0.8, top_k: 40, top_p: 0.95, min_p: 0.02, repetition_penalty: 1.1, seed: 7 };
    let request = |sampling: &Sampling| Request { max_tokens: 24, sampling: sampling.clone(), ..Request::default() };
    let mut eager = generator(&shipped(), 64, None);
    let mut compiled = generator(&shipped(), 64, Some(Options::default()));
    let text = compiled.generate(&prompt, &request(&sampling)).unwrap();
    assert_eq!(eager.generate(&prompt, &request(&sampling)).unwrap().ids, text.ids);
    assert_eq!(compiled.generate(&prompt, &request(&sampling)).unwrap().ids, text.ids);
    let other = Sampling { seed: 8, ..sampling.clone() };
    assert_ne!(compiled.generate(&prompt, &request(&other)).unwrap().ids, text.ids);
    // One candidate leaves no choice, however it is said.
    let greedy = Sampling { repetition_penalty: 1.1, ..Sampling::default() };
    let greedy = compiled.generate(&prompt, &request(&greedy)).unwrap().ids;
    for one in [
        Sampling { top_k: 1, ..sampling.clone() },
        Sampling { top_p: 1e-6, ..sampling.clone() },
        Sampling { min_p: 1.0, ..sampling.clone() },
    ] {
        assert_eq!(compiled.generate(&prompt, &request(&one)).unwrap().ids, greedy);
    }
    // One program draws, one takes the likeliest.
    assert_eq!(compiled.compiles(), (2, 2));
}

#[test]
fn a_penalty_changes_what_is_said_again() {
    let mut generator = generator(&shipped(), 128, Some(Options::default()));
    let sampling = Sampling { repetition_penalty: 100.0, ..Sampling::default() };
    let request = Request { max_tokens: 60, sampling, ..Request::default() };
    let mut text = generator.generate(&[1, 403, 407, 261, 378], &request).unwrap().ids;
    text.sort_unstable();
    let count = text.len();
    text.dedup();
    assert!(text.len() > count * 9 / 10, "{} of {count} tokens differ", text.len());
}

#[test]
fn texts_end_where_they_should() {
    let mut generator = generator(&shipped(), 20, Some(Options::default()));
    let prompt = [1, 403, 407, 261, 378];
    let text = generator.generate(&prompt, &Request::default()).unwrap();
    // The last token of a full context has no successor, but is itself one.
    assert_eq!((text.ids.len(), text.stop), (16, Stop::Context));
    let stopping = Request { stop_tokens: vec![text.ids[3]], ..Request::default() };
    let stopped = generator.generate(&prompt, &stopping).unwrap();
    assert_eq!((&stopped.ids[..], stopped.stop), (&text.ids[..3], Stop::Token(text.ids[3])));
    assert_eq!(generator.generate(&[], &Request::default()).unwrap_err().to_string(), "the prompt has no tokens");
    let long = generator.generate(&[1; 21], &Request::default()).unwrap_err().to_string();
    assert_eq!(long, "a prompt of 21 tokens does not fit a context of 20");
    let unknown = generator.generate(&[1, 512], &Request::default()).unwrap_err().to_string();
    assert_eq!(unknown, "token 512 is outside the vocabulary of 512");
}

/// A token takes few kernels, and with frozen weights fewer: products that share their input are one, and what turns queries
/// and keys is one kernel for each, which writes the cache too.
#[test]
fn a_token_takes_few_kernels() {
    let kernels = |freeze: bool| {
        let mut generator = generator(&shipped(), 64, Some(Options { freeze, ..Options::default() }));
        generator.generate(&[1, 403], &Request { max_tokens: 3, ..Request::default() }).unwrap();
        generator.kernels_per_token().unwrap()
    };
    let (plain, frozen) = (kernels(false), kernels(true));
    assert!(plain <= 68 && frozen <= 58, "{plain} kernels, {frozen} frozen");
}
