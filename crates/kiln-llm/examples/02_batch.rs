//! Prompts of several lengths together: each becomes what it becomes alone.

use kiln_llm::{GeneratorOptions, Request, Sampling};
use std::ops::ControlFlow;

fn main() -> kiln_llm::Result<()> {
    let opened = kiln_llm::embedded()?;
    let tokenizer = opened.tokenizer()?;
    let mut generator = opened.generator(GeneratorOptions { context: 256, ..GeneratorOptions::default() })?;
    let prompts = ["Tom", "Once upon a time", "Lily and her mom went to the park. They saw a big"];
    let prompts: Vec<Vec<u32>> = prompts.iter().map(|text| tokenizer.encode(text, true)).collect::<Result<_, _>>()?;

    let request = Request { max_tokens: 24, ..Request::default() };
    let together = generator.generate_batch(&prompts, &request)?;
    for (prompt, text) in prompts.iter().zip(&together) {
        println!("{}│{}", tokenizer.decode(prompt, true)?, tokenizer.decode(&text.ids, true)?);
        assert_eq!(text.ids, generator.generate(prompt, &request)?.ids);
    }

    // Each as its own request says: three ways to go on from one beginning.
    let drawn = |seed| Sampling { temperature: 0.8, top_p: 0.95, seed, ..Sampling::default() };
    let requests: Vec<Request> =
        (1..=3).map(|seed| Request { max_tokens: 24, sampling: drawn(seed), ..Request::default() }).collect();
    let texts: Vec<(&[u32], &Request)> = requests.iter().map(|request| (&prompts[1][..], request)).collect();
    for text in generator.generate_each(&texts, |_, _, _| ControlFlow::Continue(()))? {
        println!("Once upon a time│{}", tokenizer.decode(&text.ids, true)?);
    }
    Ok(())
}
