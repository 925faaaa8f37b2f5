//! `kiln run --chat`: a conversation through the model's chat template. Each line is a turn; the template makes one prompt of
//! all that was said, of which the model reads what it has not in its cache.

use super::Speaker;
use super::model::failure;
use crate::failure::Outcome;
use crate::terminal::Paint;
use kiln_llm::{Error, Message};
use signal_hook::consts::SIGINT;
use std::io::{IsTerminal, Write, stderr, stdin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Talks until the input ends or `/exit`.
pub fn run(speaker: &mut Speaker) -> Outcome {
    if speaker.opened.chat.is_none() {
        return Err(failure(Error::NoChatTemplate { name: speaker.opened.name.clone() }).into());
    }
    let (interrupt, is_person) = (Interrupt::listen()?, stdin().is_terminal());
    let mut conversation = beginning(speaker);
    if let Some(prompt) = &speaker.arguments.prompt {
        return turn(speaker, &mut conversation, prompt, &interrupt);
    }
    let paint = Paint::stderr();
    if is_person {
        eprintln!("{}", paint.dim("/reset forgets, /exit ends, Ctrl-C stops an answer"));
    }
    loop {
        if is_person {
            eprint!("{} ", paint.ember("›"));
            stderr().flush()?;
        }
        let mut line = String::new();
        if stdin().read_line(&mut line)? == 0 {
            return Ok(());
        }
        match line.trim() {
            "" => continue,
            "/exit" | "/quit" => return Ok(()),
            "/reset" => conversation = beginning(speaker),
            words => match turn(speaker, &mut conversation, words, &interrupt) {
                // A person can go on; a script wants to know.
                Err(error) if is_person => eprint!("{}", crate::failure::render(error.as_ref(), paint)),
                outcome => outcome?,
            },
        }
    }
}

fn beginning(speaker: &Speaker) -> Vec<Message> {
    speaker.arguments.system.iter().map(|text| Message::new("system", text)).collect()
}

/// A question and its answer; a turn that fails is not part of the conversation.
fn turn(speaker: &mut Speaker, conversation: &mut Vec<Message>, words: &str, interrupt: &Interrupt) -> Outcome {
    let mut messages = conversation.clone();
    messages.push(Message::new("user", words));
    let ids = speaker.opened.chat_prompt(&messages).map_err(failure)?;
    let (told, text) = interrupt.during(|stopped| speaker.answer(&ids, Some(stopped)))?;
    messages.push(Message::new("assistant", text.trim()));
    *conversation = messages;
    speaker.console.result(|| speaker.figures(&ids, &told, &text));
    Ok(())
}

/// Ctrl-C ends an answer; where there is none, the program.
struct Interrupt {
    stopped: Arc<AtomicBool>,
    idle: Arc<AtomicBool>,
}

impl Interrupt {
    fn listen() -> std::io::Result<Interrupt> {
        let interrupt = Interrupt { stopped: Arc::default(), idle: Arc::new(AtomicBool::new(true)) };
        // 128 + SIGINT, as shells count.
        signal_hook::flag::register_conditional_shutdown(SIGINT, 130, interrupt.idle.clone())?;
        signal_hook::flag::register(SIGINT, interrupt.stopped.clone())?;
        Ok(interrupt)
    }

    fn during<T>(&self, work: impl FnOnce(&AtomicBool) -> T) -> T {
        self.stopped.store(false, Ordering::Relaxed);
        self.idle.store(false, Ordering::Relaxed);
        let result = work(&self.stopped);
        self.idle.store(true, Ordering::Relaxed);
        result
    }
}
