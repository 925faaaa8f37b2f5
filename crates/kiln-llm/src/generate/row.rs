//! One text of a batch during generation.

use super::{Cancel, Generated, Request, Stop};
use crate::{Error, Result, TextStream, Tokenizer};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A text, what of it is there, and when it ends.
#[derive(Debug)]
pub(crate) struct Row {
    request: Request,
    /// Tokens that fit the context.
    room: usize,
    stream: Option<TextStream>,
    /// Stop strings that are special tokens, which have no text.
    special: Vec<(u32, usize)>,
    text: String,
    ids: Vec<u32>,
    stop: Option<Stop>,
    first: Duration,
    last: Duration,
}

impl Row {
    /// After a prompt.
    pub fn new(
        prompt: &[u32],
        request: Request,
        wants_text: bool,
        context: usize,
        tokenizer: Option<&Arc<Tokenizer>>,
    ) -> Result<Row> {
        let wanted = wants_text || request.stop.iter().any(|stop| !stop.is_empty());
        let tokenizer = if wanted { Some(tokenizer.ok_or(Error::TextWithoutTokenizer)?) } else { None };
        let special = tokenizer.map_or_else(Vec::new, |tokenizer| {
            let ids = request.stop.iter().enumerate().filter_map(|(which, stop)| Some((tokenizer.id(stop)?, which)));
            ids.filter(|&(id, _)| tokenizer.is_special(id)).collect()
        });
        // The newest token needs a place in the cache before it can have a successor.
        let room = context + 1 - prompt.len().min(context);
        let stream = tokenizer.map(|tokenizer| TextStream::new(tokenizer.clone(), &request.stop).after(prompt));
        Ok(Row {
            room,
            stream: stream.transpose()?,
            special,
            text: String::new(),
            ids: Vec::with_capacity(request.max_tokens.min(room)),
            request,
            stop: None,
            first: Duration::ZERO,
            last: Duration::ZERO,
        })
    }

    /// Returns its request.
    pub fn request(&self) -> &Request {
        &self.request
    }

    /// The new tokens so far.
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// Ends the text, unless it has ended.
    pub fn end(&mut self, stop: Stop) {
        self.stop.get_or_insert(stop);
    }

    /// Why no more tokens are wanted.
    fn stop(&self) -> Option<Stop> {
        let length = self.ids.len() >= self.request.max_tokens;
        let full = self.ids.len() >= self.room;
        let asked = self.request.cancel.as_ref().is_some_and(Cancel::is_asked);
        let ended = self.stop.or(length.then_some(Stop::Length)).or(full.then_some(Stop::Context));
        ended.or(asked.then_some(Stop::Asked))
    }

    /// Whether no more tokens are wanted.
    pub fn is_done(&self) -> bool {
        self.stop().is_some()
    }

    /// How many more tokens may come at the most.
    pub fn left(&self) -> usize {
        if self.is_done() { 0 } else { self.request.max_tokens.min(self.room) - self.ids.len() }
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
            stop: self.stop().unwrap_or(Stop::Length),
            ids: self.ids,
            text: self.text,
            reused: 0,
            first_token: self.first,
            decoding: self.last.saturating_sub(self.first),
        })
    }
}
