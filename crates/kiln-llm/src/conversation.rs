//! A conversation: turn after turn through a model's chat template, of which each turn reads only what is new.
//!
//! ```text
//!  turn 1   [template · question]──▶ answer            cache: ████████░░░░░░░░░░░░░
//!  turn 2   [template · question · answer · question]  cache: ████████▒▒▒▒░░░░░░░░░   █ kept, ▒ read
//! ```
//!
//! The template is rendered anew each time, and its tokens are held against those in the cache: whatever it changes in earlier
//! turns, what is kept is what both begin with. Layers that see only the last tokens keep the keys of all of them, so that any
//! beginning can be kept.

use crate::{Generated, Generator, GeneratorOptions, Message, Opened, Request, Result};
use std::ops::ControlFlow;

/// A conversation with a model; see [`Opened::conversation`].
#[derive(Debug)]
pub struct Conversation<'a> {
    opened: &'a Opened,
    generator: Generator,
    messages: Vec<Message>,
}

impl<'a> Conversation<'a> {
    pub(crate) fn new(opened: &'a Opened, options: GeneratorOptions) -> Result<Conversation<'a>> {
        let generator = opened.generator(GeneratorOptions { reuse: true, ..options })?;
        Ok(Conversation { opened, generator, messages: Vec::new() })
    }

    /// What was said so far, which may be changed: a system message put first, turns taken back, all forgotten.
    pub fn messages(&mut self) -> &mut Vec<Message> {
        &mut self.messages
    }

    /// The generator, with the cache.
    pub fn generator(&self) -> &Generator {
        &self.generator
    }

    /// Says something; the answer is shown piece by piece as it comes. A turn that fails is not part of the conversation. One
    /// that does not fit the context fails with [`crate::Error::PromptTooLong`]: what is to be forgotten is the caller's choice.
    pub fn say(
        &mut self,
        words: &str,
        request: &Request,
        each: impl FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Generated> {
        let before = self.messages.len();
        self.messages.push(Message::new("user", words));
        let prompt = self.opened.chat_prompt(&self.messages);
        match prompt.and_then(|prompt| self.generator.generate_text_after(&prompt, request, each)) {
            Ok(answer) => {
                self.messages.push(Message::new("assistant", answer.text.trim()));
                Ok(answer)
            }
            Err(error) => {
                self.messages.truncate(before);
                Err(error)
            }
        }
    }
}
