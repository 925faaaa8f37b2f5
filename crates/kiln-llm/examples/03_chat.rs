//! A conversation through a model's own chat template: `03_chat MODEL QUESTION…`.

use kiln_llm::{ChatTemplate, GeneratorOptions, OpenOptions, Request};
use std::io::Write;
use std::ops::ControlFlow;

fn main() -> kiln_llm::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let mut opened = match arguments.next() {
        Some(model) => kiln_llm::open(&model, &OpenOptions::default())?,
        None => kiln_llm::embedded()?,
    };
    if opened.chat.is_none() {
        // A storyteller does not chat: it goes on with what was said.
        let source = "{% for message in messages %}{{ message['content'] }} {% endfor %}";
        opened.chat = Some(ChatTemplate::new(source, &[])?);
    }
    let mut questions: Vec<String> = arguments.collect();
    if questions.is_empty() {
        questions = ["There was a cat.", "It saw a dog."].map(String::from).to_vec();
    }
    let mut conversation = opened.conversation(GeneratorOptions::default())?;
    let request = Request { max_tokens: 60, ..opened.request() };
    for question in questions {
        println!("> {question}");
        let answer = conversation.say(&question, &request, |piece| {
            print!("{piece}");
            match std::io::stdout().flush() {
                Ok(()) => ControlFlow::Continue(()),
                Err(_) => ControlFlow::Break(()),
            }
        })?;
        println!("\n({} tokens of the prompt were in the cache)", answer.reused);
    }
    Ok(())
}
