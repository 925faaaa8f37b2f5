//! Continuous batching: texts join and leave a running batch without a new program.
//!
//! ```text
//!  submit ─▶ waiting ─▶ running: its prompt part by part ─▶ a token a step ─▶ done
//!               ▲             │ pages run out
//!               └─ youngest ◀─┘ (computed again later)
//! ```
//!
//! With `reuse` the pages of a finished text are kept for one with the same prefix, until they are needed.
//!
//! Invariants: a page belongs to one text; the tokens of a text depend on its prompt, its request and its seed, not on the
//! texts beside it; which program runs depends on the number of rows and the length of the longest table, both rounded up to
//! powers of two, and on whether a text draws or penalises.

mod kept;
mod programs;

use crate::cache::{KvCache, Pages, Table};
use crate::generate::{Row, check, parts};
use crate::models::CausalLm;
use crate::{Error, Generated, Request, Result, Stop, Tokenizer};
use kept::Kept;
use kiln::Options;
use programs::{Line, Programs};
use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

/// Options of an [`Engine`].
#[derive(Debug, Clone)]
pub struct EngineOptions {
    /// The number of texts that are generated at a time.
    pub slots: usize,
    /// The largest number of tokens of a text, including the prompt; at most what the model supports.
    pub context: usize,
    /// Tokens per page.
    pub page: usize,
    /// Pages for all texts together; `None` means as many as all slots need for whole contexts.
    pub pages: Option<usize>,
    /// The largest part of a prompt in one step.
    pub prefill: usize,
    /// Whether every step computes all slots over whole contexts, so that even the rounding of a text's results does not
    /// depend on the number and length of the other texts. Otherwise rows and pages are rounded up to the next power of
    /// two.
    pub steady: bool,
    /// Whether the pages of a finished text are kept until they are needed, and reused by a text with the same prefix, such
    /// as the next turn of a conversation. Texts that run at the same time share no pages.
    pub reuse: bool,
    /// How the model is compiled; `None` runs it eagerly.
    pub compile: Option<Options>,
}

impl Default for EngineOptions {
    /// Compiled, eight texts of up to 2048 tokens.
    fn default() -> EngineOptions {
        EngineOptions {
            slots: 8,
            context: 2048,
            page: 32,
            pages: None,
            prefill: 512,
            steady: false,
            reuse: false,
            compile: Some(Options::default()),
        }
    }
}

/// The number of a submitted text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Id(u64);

impl std::fmt::Display for Id {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// What happened in a step.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// A text has a new token.
    Token {
        /// The text.
        id: Id,
        /// The token.
        token: u32,
        /// The text that it completes; empty without a tokenizer, and never a part of a stop string.
        text: String,
    },
    /// A text has ended.
    Done {
        /// The text.
        id: Id,
        /// The whole text, including what was held back as a possible stop string.
        generated: Generated,
    },
}

impl Event {
    /// Returns the number of the text.
    pub fn id(&self) -> Id {
        match self {
            Event::Token { id, .. } | Event::Done { id, .. } => *id,
        }
    }
}

/// A text on its way.
#[derive(Debug)]
struct Text {
    id: Id,
    /// The prompt, and what was generated.
    tokens: Vec<u32>,
    /// How many of them have keys and values in the cache.
    filled: usize,
    table: Table,
    slot: usize,
    row: Row,
    /// Tokens that were in the cache when it joined.
    reused: usize,
    submitted: Instant,
}

impl Text {
    /// Tokens that are not in the cache.
    fn rest(&self) -> usize {
        self.tokens.len() - self.filled
    }

    fn line(&self, count: usize) -> Line<'_> {
        Line {
            tokens: &self.tokens[self.filled..self.filled + count],
            start: self.filled,
            length: self.tokens.len(),
            pages: self.table.pages(),
            slot: self.slot,
            sampling: &self.row.request().sampling,
        }
    }
}

/// A model that continues many texts at a time, which may join and leave at any step.
///
/// ```
/// use kiln_llm::{Engine, EngineOptions, Event, Request};
/// let opened = kiln_llm::embedded()?;
/// let mut engine = opened.engine(EngineOptions { slots: 2, context: 64, ..EngineOptions::default() })?;
/// let request = Request { max_tokens: 3, ..Request::default() };
/// let first = engine.submit(&[1, 403, 407, 261, 378], request.clone())?;
/// engine.step()?;
/// let second = engine.submit(&[1, 403, 407], request)?;
/// let mut done = Vec::new();
/// while !engine.is_idle() {
///     for event in engine.step()? {
///         if let Event::Done { id, generated } = event {
///             done.push((id, generated.ids));
///         }
///     }
/// }
/// assert_eq!(done, [(first, vec![432, 383, 286]), (second, vec![261, 378, 432])]);
/// # Ok::<(), kiln_llm::Error>(())
/// ```
pub struct Engine {
    model: Arc<dyn CausalLm>,
    tokenizer: Option<Arc<Tokenizer>>,
    options: EngineOptions,
    programs: Programs,
    pages: Pages,
    kept: Kept,
    free_slots: Vec<usize>,
    waiting: VecDeque<Text>,
    /// In the order in which they joined.
    running: Vec<Text>,
    submitted: u64,
    preempted: u64,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine")
            .field("options", &self.options)
            .field("running", &self.running.len())
            .field("waiting", &self.waiting.len())
            .field("free_pages", &self.free_pages())
            .finish_non_exhaustive()
    }
}

impl Engine {
    /// Makes an engine for a model. Nothing is compiled before the first step.
    pub fn new(model: Arc<dyn CausalLm>, options: EngineOptions) -> Result<Engine> {
        let context = options.context.min(model.sizes().context).max(1);
        let (slots, page) = (options.slots.max(1), options.page.clamp(1, context));
        // One more, which is nobody's.
        let pages = options.pages.unwrap_or(slots * context.div_ceil(page)).max(1) + 1;
        let cache = KvCache::paged(&*model, pages, page, context)?;
        let programs = Programs::new(&model, cache, slots, options.steady, options.compile.as_ref())?;
        let prefill = options.prefill.max(1);
        Ok(Engine {
            tokenizer: None,
            options: EngineOptions { slots, context, page, pages: Some(pages - 1), prefill, ..options },
            programs,
            pages: Pages::new(pages, page),
            kept: Kept::default(),
            free_slots: (0..slots).rev().collect(),
            waiting: VecDeque::new(),
            running: Vec::new(),
            submitted: 0,
            preempted: 0,
            model,
        })
    }

    /// Sets the tokenizer, which text and stop strings need.
    pub fn with_tokenizer(self, tokenizer: Arc<Tokenizer>) -> Engine {
        Engine { tokenizer: Some(tokenizer), ..self }
    }

    /// Returns the model.
    pub fn model(&self) -> &Arc<dyn CausalLm> {
        &self.model
    }

    /// Returns the options, with defaults filled in.
    pub fn options(&self) -> &EngineOptions {
        &self.options
    }

    /// Returns whether no text is running or waiting.
    pub fn is_idle(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty()
    }

    /// Returns the number of running texts.
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// Returns the number of texts that wait for a slot or for pages.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Returns the number of pages not used by a running text, including the kept ones.
    pub fn free_pages(&self) -> usize {
        self.pages.free() + self.kept.pages()
    }

    /// Returns how often a text was preempted, giving its pages to an older one.
    pub fn preempted(&self) -> u64 {
        self.preempted
    }

    /// Returns the bytes of the KV cache.
    pub fn cache_bytes(&self) -> usize {
        self.programs.cache().bytes()
    }

    /// Returns the number of programs compiled for prompts and for further tokens.
    pub fn compiles(&self) -> (u64, u64) {
        self.programs.compiles()
    }

    /// Submits a text; its tokens are returned by [`Engine::step`].
    pub fn submit(&mut self, prompt: &[u32], request: Request) -> Result<Id> {
        let room = self.options.context.min(self.pages.count() * self.pages.page());
        check(prompt, room, self.model.sizes().vocab)?;
        request.sampling.check()?;
        let wants_text = self.tokenizer.is_some();
        let row = Row::new(prompt, request, wants_text, self.options.context, self.tokenizer.as_ref())?;
        let id = Id(self.submitted);
        self.submitted += 1;
        self.waiting.push_back(Text {
            id,
            tokens: prompt.to_vec(),
            filled: 0,
            table: Table::default(),
            slot: 0,
            row,
            reused: 0,
            submitted: Instant::now(),
        });
        Ok(id)
    }

    /// Ends a text and returns what was generated; `None` if it has ended already.
    pub fn cancel(&mut self, id: Id) -> Result<Option<Generated>> {
        let text = match self.running.iter().position(|text| text.id == id) {
            Some(at) => {
                let mut text = self.running.remove(at);
                self.leave(&mut text);
                Some(text)
            }
            None => {
                let at = self.waiting.iter().position(|text| text.id == id);
                at.and_then(|at| self.waiting.remove(at))
            }
        };
        let Some(mut text) = text else { return Ok(None) };
        text.row.end(Stop::Asked);
        Ok(Some(text.row.finish(text.submitted, |_| ControlFlow::Continue(()))?))
    }

    /// Admits waiting texts, prefills a part of a prompt, and decodes one token of each text whose prompt is done.
    pub fn step(&mut self) -> Result<Vec<Event>> {
        let mut events = Vec::new();
        self.join()?;
        // Twice: a text that is read again has a token more than there are pages for.
        self.grow();
        self.fill(&mut events)?;
        self.grow();
        self.decode(&mut events)?;
        self.remove_done(&mut events)?;
        Ok(events)
    }

    /// Texts get slots and pages for all tokens that they have.
    fn join(&mut self) -> Result<()> {
        while let Some(text) = self.waiting.front_mut() {
            // One that asks for no tokens needs no room; it goes with those that end in this step.
            if !text.row.is_done() {
                let Some(&slot) = self.free_slots.last() else { break };
                // Those that run need pages soon: who joins now must not have to leave for them.
                let needed = self.pages.missing(&text.table, text.tokens.len());
                if self.pages.free() + self.kept.pages() >= needed + self.running.len() {
                    if let Some((table, same)) = self.kept.take(self.programs.cache(), &text.tokens) {
                        (text.table, text.filled, text.reused) = (table, same, same);
                        self.pages.shrink(&mut text.table, text.tokens.len());
                    }
                    let missing = self.pages.missing(&text.table, text.tokens.len());
                    self.kept.make_room(&mut self.pages, missing);
                    // There are as many: what was taken over has only made them fewer.
                    self.pages.reserve(&mut text.table, text.tokens.len());
                    text.slot = slot;
                    self.programs.begin(slot, &text.tokens, &text.row.request().sampling)?;
                    self.free_slots.pop();
                } else if self.running.is_empty() {
                    // Even all pages are too few.
                    text.row.end(Stop::Context);
                } else {
                    break;
                }
            }
            self.running.extend(self.waiting.pop_front());
        }
        Ok(())
    }

    /// One part of the oldest prompt that is not in the cache.
    fn fill(&mut self, events: &mut Vec<Event>) -> Result<()> {
        let Some(text) = self.running.iter_mut().find(|text| text.rest() > 1 && !text.row.is_done()) else {
            return Ok(());
        };
        let (largest, context, vocabulary) = (self.options.prefill, self.options.context, self.model.sizes().vocab);
        if text.rest() > largest {
            self.programs.fill(&text.line(largest))?;
            text.filled += largest;
            return Ok(());
        }
        let last = parts(text.filled, text.tokens.len(), largest, context).pop();
        // Maybe at tokens that are there already.
        let (start, bucket) = last.unwrap_or((text.filled, 1));
        text.filled = start;
        let token = self.programs.prefill(&text.line(text.rest()), bucket)?;
        push(text, token, vocabulary, self.programs.cache(), events)
    }

    /// Pages for all tokens of each text; where there is none, the youngest texts give theirs.
    fn grow(&mut self) {
        let mut index = 0;
        while index < self.running.len() {
            let text = &mut self.running[index];
            if !text.row.is_done() {
                let missing = self.pages.missing(&text.table, text.tokens.len());
                self.kept.make_room(&mut self.pages, missing);
            }
            if text.row.is_done() || self.pages.reserve(&mut text.table, text.tokens.len()) {
                index += 1;
                continue;
            }
            let last = self.running.iter().rposition(|text| !text.row.is_done()).unwrap_or(index);
            if self.running[..last].iter().all(|text| text.row.is_done()) {
                self.running[index].row.end(Stop::Context);
                continue;
            }
            let mut youngest = self.running.remove(last);
            youngest.filled = 0;
            self.leave(&mut youngest);
            self.preempted += 1;
            self.waiting.push_front(youngest);
        }
    }

    /// A token of each text whose other tokens are all in the cache.
    fn decode(&mut self, events: &mut Vec<Event>) -> Result<()> {
        let vocabulary = self.model.sizes().vocab;
        let mut ready: Vec<&mut Text> = self.running.iter_mut().collect();
        ready.retain(|text| text.rest() == 1 && !text.row.is_done());
        if ready.is_empty() {
            return Ok(());
        }
        let slots = self.options.slots;
        let rows = if self.options.steady { slots } else { ready.len().next_power_of_two().min(slots) };
        let lines: Vec<Line<'_>> = ready.iter().map(|text| text.line(1)).collect();
        let tokens = self.programs.decode(&lines, rows)?;
        for (text, token) in ready.into_iter().zip(tokens) {
            push(text, token, vocabulary, self.programs.cache(), events)?;
        }
        Ok(())
    }

    fn remove_done(&mut self, events: &mut Vec<Event>) -> Result<()> {
        let mut index = 0;
        while index < self.running.len() {
            if !self.running[index].row.is_done() {
                index += 1;
                continue;
            }
            let mut text = self.running.remove(index);
            self.leave(&mut text);
            let generated = text.row.finish(text.submitted, |_| ControlFlow::Continue(()))?;
            events.push(Event::Done { id: text.id, generated: Generated { reused: text.reused, ..generated } });
        }
        Ok(())
    }

    /// Takes back what a text that runs no more had, or keeps what of it is in the cache.
    fn leave(&mut self, text: &mut Text) {
        // Only texts with pages have a slot.
        if !text.table.pages().is_empty() {
            self.free_slots.push(text.slot);
        }
        if self.options.reuse {
            self.kept.keep(&mut self.pages, &text.tokens[..text.filled], std::mem::take(&mut text.table));
        } else {
            self.pages.release(&mut text.table);
        }
    }
}

/// A text gets its next token; all before it are in the cache, unless it is to be read again because of that token.
fn push(text: &mut Text, token: i64, vocabulary: usize, cache: &KvCache, events: &mut Vec<Event>) -> Result<()> {
    let valid = u32::try_from(token).ok().filter(|&token| (token as usize) < vocabulary);
    let token = valid.ok_or(Error::UnknownToken { token: token as u32, vocabulary })?;
    text.filled = text.tokens.len();
    text.tokens.push(token);
    if cache.crosses_border(text.tokens.len()) {
        text.filled = 0;
    }
    let id = text.id;
    text.row.push(token, text.submitted, |token, piece| {
        events.push(Event::Token { id, token, text: piece.to_owned() });
        ControlFlow::Continue(())
    })
}
