//! Tells a story with the model that ships with the repository, eagerly and compiled, and says how fast each was.
//!
//! `cargo run --release -p kiln-llm --example tell_a_story`

use kiln::{DType, Device, Mode, Options};
use kiln_llm::{Checkpoint, Generator, GeneratorOptions, Llama, LlamaConfig, Request, Tokenizer};
use std::io::Write;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let shipped = concat!(env!("CARGO_MANIFEST_DIR"), "/models/stories260K");
    let folder = std::env::args().nth(1).unwrap_or(shipped.into());
    let (config, tokenizer) = (LlamaConfig::read(&folder)?, Tokenizer::read(&folder)?);
    let checkpoint = Checkpoint::open(&folder, Device::Cpu)?;
    let prompt = tokenizer.encode("Once upon a time", true)?;
    let request = Request { max_tokens: 200, ..Request::default() };
    let compiled = |mode, freeze| Some(Options { mode, freeze, ..Options::default() });
    for (name, compile) in [
        ("eager", None),
        ("default", compiled(Mode::Default, false)),
        ("reduce-overhead", compiled(Mode::ReduceOverhead, false)),
        ("reduce-overhead, frozen", compiled(Mode::ReduceOverhead, true)),
    ] {
        let model = Llama::load(&config, &checkpoint, DType::F32)?;
        let mut generator =
            Generator::new(Arc::new(model), GeneratorOptions { context: 256, compile, ..GeneratorOptions::default() })?;
        // The first text makes the programs.
        let started = Instant::now();
        let mut text = tokenizer.stream(true);
        let first = generator.generate_with(&prompt, &request, |id| {
            if let Ok(part) = text.push(id) {
                print!("{part}");
            }
            match std::io::stdout().flush() {
                Ok(()) => ControlFlow::Continue(()),
                Err(_) => ControlFlow::Break(()),
            }
        })?;
        let cold = started.elapsed();
        let runs: Result<Vec<_>, _> = (0..5).map(|_| generator.generate(&prompt, &request)).collect();
        let runs = runs?;
        let best = runs.iter().map(|run| run.tokens_per_second()).fold(0.0, f64::max);
        let warm = runs.iter().map(|run| run.first_token + run.decoding).min().unwrap_or_default();
        println!(
            "\n── {name}: {best:.0} tokens/s, {:?} kernels a token; first text {:.0} ms, later ones {:.0} ms; same tokens: {}\n",
            generator.kernels_per_token(),
            cold.as_secs_f64() * 1e3,
            warm.as_secs_f64() * 1e3,
            runs.iter().all(|run| run.ids == first.ids),
        );
    }
    Ok(())
}
