//! Text after a prompt, as it comes: `01_generate [MODEL [PROMPT]]`, where MODEL is a folder or a GGUF file.

use kiln_llm::{GeneratorOptions, OpenOptions, Request};
use std::io::Write;
use std::ops::ControlFlow;

fn main() -> kiln_llm::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let opened = match arguments.next() {
        Some(model) => kiln_llm::open(&model, &OpenOptions::default())?,
        None => kiln_llm::embedded()?,
    };
    let prompt = arguments.next().unwrap_or("Once upon a time".into());
    let mut generator = opened.generator(GeneratorOptions::default())?;
    // The makers' own choices, but for the length.
    let request = Request { max_tokens: 100, ..opened.request() };
    let text = generator.generate_text(&prompt, &request, |piece| {
        print!("{piece}");
        match std::io::stdout().flush() {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }
    })?;
    println!("\n{:?} after {} tokens, {:.0} a second", text.stop, text.ids.len(), text.tokens_per_second());
    Ok(())
}
