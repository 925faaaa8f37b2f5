//! One text of a batch while it grows.

use super::{Generated, Request, Stop};
use crate::{Error, Result, TextStream, Tokenizer};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

/// A text, what of it is there, and when it ends.
pub(crate) struct Row<'a> {
    request: &'a Request,
    /// Tokens that fit the context.
    room: usize,
    stream: Option<TextStream<'a>>,
    /// Stop strings that are special tokens, which have no text.
    special: Vec<(u32, usize)>,
    text: String,
    ids: Vec<u32>,
    stop: Option<Stop>,
    first: Duration,
    last: Duration,
}

impl<'a> Row<'a> {
    /// After a prompt of so many tokens.
    pub fn new(
        prompt: usize,
        request: &'a Request,
        wants_text: bool,
        context: usize,
        tokenizer: Option<&'a Tokenizer>,
    ) -> Result<Row<'a>> {
        let wanted = wants_text || request.stop.iter().any(|stop| !stop.is_empty());
        let tokenizer = if wanted { Some(tokenizer.ok_or(Error::TextWithoutTokenizer)?) } else { None };
        let special = tokenizer.map_or_else(Vec::new, |tokenizer| {
            let ids = request.stop.iter().enumerate().filter_map(|(which, stop)| Some((tokenizer.id(stop)?, which)));
            ids.filter(|&(id, _)| tokenizer.is_special(id)).collect()
        });
        // The newest token needs a place in the cache before it can have a successor.
        let room = context + 1 - prompt.min(context);
        Ok(Row {
            request,
            room,
            stream: tokenizer.map(|tokenizer| TextStream::new(tokenizer, &request.stop)),
            special,
            text: String::new(),
            ids: Vec::with_capacity(request.max_tokens.min(room)),
            stop: None,
            first: Duration::ZERO,
            last: Duration::ZERO,
        })
    }

    /// Whether no more tokens are wanted.
    pub fn is_done(&mut self) -> bool {
        if self.stop.is_none() && self.ids.len() >= self.request.max_tokens {
            self.stop = Some(Stop::Length);
        } else if self.stop.is_none() && self.ids.len() >= self.room {
            self.stop = Some(Stop::Context);
        }
        self.stop.is_some()
    }

    /// A further token, which is shown with the text it completes unless it ends the text.
    pub fn push(
        &mut self,
        token: u32,
        started: Instant,
        show: impl FnOnce(u32, &str) -> ControlFlow<()>,
    ) -> Result<()> {
        if self.first.is_zero() {
            self.first = started.elapsed();
        }
        self.stop = if self.request.stop_tokens.contains(&token) {
            Some(Stop::Token(token))
        } else {
            self.special.iter().find(|(id, _)| *id == token).map(|&(_, which)| Stop::Text(which))
        };
        if self.stop.is_none() {
            self.ids.push(token);
            let piece = match &mut self.stream {
                None => String::new(),
                Some(stream) => {
                    let piece = stream.push(token)?;
                    self.stop = stream.stopped().map(Stop::Text);
                    piece
                }
            };
            self.text += &piece;
            if show(token, &piece).is_break() && self.stop.is_none() {
                self.stop = Some(Stop::Asked);
            }
        }
        if self.is_done() {
            self.last = started.elapsed();
        }
        Ok(())
    }

    /// The text; what was held back of it is shown.
    pub fn finish(mut self, started: Instant, show: impl FnOnce(&str) -> ControlFlow<()>) -> Result<Generated> {
        if let Some(stream) = self.stream.take() {
            let rest = stream.finish()?;
            if !rest.is_empty() {
                self.text += &rest;
                // Nothing follows that could be called off.
                let _ = show(&rest);
            }
        }
        if self.last.is_zero() {
            self.last = started.elapsed();
        }
        Ok(Generated {
            ids: self.ids,
            text: self.text,
            stop: self.stop.unwrap_or(Stop::Length),
            first_token: self.first,
            decoding: self.last.saturating_sub(self.first),
        })
    }
}
