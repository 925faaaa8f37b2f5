//! Texts that come while others are being generated: they join the batch, and no program is made for it.

use kiln_llm::{EngineOptions, Event, Request};
use std::collections::BTreeMap;

fn main() -> kiln_llm::Result<()> {
    let opened = kiln_llm::embedded()?;
    let tokenizer = opened.tokenizer()?;
    let mut engine = opened.engine(EngineOptions { slots: 4, context: 256, ..EngineOptions::default() })?;
    let mut arriving = ["Once upon a time", "Tom", "Lily saw", "The dog", "One day", "A bird"].into_iter();
    let mut texts = BTreeMap::new();
    let mut steps = 0;
    loop {
        // Somebody comes every tenth step.
        if steps % 10 == 0
            && let Some(prompt) = arriving.next()
        {
            let request = Request { max_tokens: 30, stop: vec![".".into()], ..opened.request() };
            let id = engine.submit(&tokenizer.encode(prompt, true)?, request)?;
            texts.insert(id, prompt.to_owned());
        }
        if engine.is_idle() && arriving.len() == 0 {
            break;
        }
        for event in engine.step()? {
            match event {
                Event::Token { id, text, .. } => texts.entry(id).or_default().push_str(&text),
                Event::Done { id, generated } => {
                    println!("step {steps:3}: text {id} {:?}: {}", generated.stop, texts[&id]);
                }
            }
        }
        steps += 1;
    }
    let (prompts, tokens) = engine.compiles();
    println!("{steps} steps with {prompts} programs for prompts and {tokens} for further tokens");
    Ok(())
}
