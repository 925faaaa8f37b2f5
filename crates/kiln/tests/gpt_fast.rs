//! The decoder of `examples/gpt_fast.rs`: compiled and eager generate the same tokens, and those of a trained checkpoint are PyTorch's.

use kiln::nn::Module;
use kiln::{Device, safetensors};
use std::path::Path;

#[allow(dead_code)]
#[path = "../examples/gpt_fast.rs"]
mod gpt_fast;

use gpt_fast::{Config, Llama, TextGenerator};

#[test]
fn compiled_and_eager_generate_the_same_tokens() {
    kiln::manual_seed(3);
    let config = Config { vocabulary: 96, width: 32, inner: 88, layers: 2, heads: 4, kv_heads: 2, context: 48 };
    let generator = TextGenerator::new(&config, Llama::new(&config, false).unwrap()).unwrap();
    let mut found = Vec::new();
    for temperature in [0.0, 1.0] {
        let all = generator.compare(&[1, 5, 9], 40, temperature).unwrap();
        assert_eq!((all.len(), all[0].tokens.len()), (3, 40));
        assert!(all.iter().all(|run| run.tokens == all[0].tokens), "at temperature {temperature}");
        found.push(all[0].tokens.clone());
    }
    assert_ne!(found[0], found[1], "drawing gives other tokens than the likeliest");
    // The cache ends; generating does too.
    assert_eq!(generator.compare(&[1, 5, 9], 1000, 0.0).unwrap()[1].tokens.len(), 46);
}

/// The first list of numbers of this name in a text of JSON.
fn numbers(json: &str, name: &str) -> Vec<i64> {
    let list = json.split_once(&format!("\"{name}\": [")).unwrap().1.split_once(']').unwrap().0;
    list.split(',').map(|number| number.trim().parse().unwrap()).collect()
}

#[test]
fn a_trained_checkpoint_continues_as_in_pytorch() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../kiln-llm/models/stories260K");
    let known = std::fs::read_to_string(folder.join("expected.json")).unwrap();
    let (prompt, all) = (numbers(&known, "prompt_ids"), numbers(&known, "greedy_ids"));
    let tensors = safetensors::load(folder.join("model.safetensors"), Device::Cpu).unwrap();
    let config = Config::of(&tensors, 8, 128);
    assert_eq!((config.layers, config.kv_heads, config.inner), (5, 4, 172));
    let llama = Llama::new(&config, true).unwrap();
    llama.load_state_dict(&tensors, true).unwrap();
    let count = (all.len() - prompt.len()).min(60);
    let runs = TextGenerator::new(&config, llama).unwrap().compare(&prompt, count, 0.0).unwrap();
    for run in runs {
        assert_eq!(run.tokens, all[prompt.len()..][..count]);
    }
}
