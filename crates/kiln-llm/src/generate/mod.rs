//! Generation: a prompt runs one program for its bucket, every further token the same decode program.
//!
//! ```text
//!  prompts, cut and filled up to buckets ─▶ fill … ─▶ prefill ─▶ first tokens ─┐
//!                                              │ cache, tokens, positions (variables)
//!                                              └──────▶ decode ─▶ next tokens ─▶ decode ─▶ …
//! ```

mod explain;
mod logits;
mod programs;
mod prompt;
mod request;
mod row;
mod steps;

pub use explain::DecodeStep;
pub(crate) use programs::{Program, program};
pub(crate) use prompt::parts;
pub use request::{Cancel, Generated, Request, Stop};
pub(crate) use row::Row;

use crate::models::CausalLm;
use crate::{Error, KvCache, Result, Tokenizer};
use kiln::Options;
use programs::Programs;
use prompt::{prompts, reusable};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;
use steps::Steps;

/// Options of a [`Generator`].
#[derive(Debug, Clone)]
pub struct GeneratorOptions {
    /// The largest number of tokens of a text, including the prompt; at most what the model supports.
    pub context: usize,
    /// How the model is compiled; `None` runs it eagerly.
    pub compile: Option<Options>,
    /// The largest bucket: longer prompts are prefilled in parts. It bounds the memory that a prompt takes besides the
    /// cache.
    pub prefill: usize,
    /// On which side the shorter prompts of a batch are padded; the texts are the same.
    pub padding: Padding,
    /// Whether a single text that shares a prefix with the previous one reuses its keys and values, as the turns of a
    /// conversation do. Texts are the same except for rounding.
    pub reuse: bool,
    /// How many steps are launched before the token of a step is read. The texts are the same: steps after a text's last token
    /// are discarded. `None`: [`STEPS_AHEAD`] on an asynchronous device, where it hides the time that a token takes to the
    /// host, and otherwise 0.
    pub ahead: Option<usize>,
}

/// The steps that are launched ahead on an asynchronous device; see [`GeneratorOptions::ahead`].
pub const STEPS_AHEAD: usize = 4;

impl Default for GeneratorOptions {
    /// Compiled, for 2048 tokens, prompts in parts of 512, each text read from its beginning.
    fn default() -> GeneratorOptions {
        GeneratorOptions {
            context: 2048,
            compile: Some(Options::default()),
            prefill: 512,
            padding: Padding::Right,
            reuse: false,
            ahead: None,
        }
    }
}

/// On which side the shorter prompts of a batch are padded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Padding {
    /// After the prompt: all prompts begin in one column. Prompts that are prefilled in parts are always padded on the
    /// left.
    #[default]
    Right,
    /// Before the prompt: all prompts end in one column.
    Left,
}

/// A model that continues texts, one or a batch at a time.
pub struct Generator {
    model: Arc<dyn CausalLm>,
    tokenizer: Option<Arc<Tokenizer>>,
    options: GeneratorOptions,
    one: Programs,
    /// The tokens whose keys and values the cache of `one` has, from position 0 on.
    held: Vec<u32>,
    /// The programs of the last batch size.
    batch: Option<Programs>,
}

impl std::fmt::Debug for Generator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (sizes, options) = (self.model.sizes(), &self.options);
        f.debug_struct("Generator").field("sizes", sizes).field("options", options).finish_non_exhaustive()
    }
}

impl Generator {
    /// Makes a generator for a model. Nothing is compiled before the first text.
    pub fn new(model: Arc<dyn CausalLm>, options: GeneratorOptions) -> Result<Generator> {
        let context = options.context.min(model.sizes().context).max(1);
        let options = GeneratorOptions { context, prefill: options.prefill.max(1), ..options };
        let one = Programs::new(&model, 1, context, options.compile.as_ref())?;
        Ok(Generator { model, tokenizer: None, options, one, held: Vec::new(), batch: None })
    }

    /// Sets the tokenizer, which text prompts and stop strings need.
    pub fn with_tokenizer(self, tokenizer: Arc<Tokenizer>) -> Generator {
        Generator { tokenizer: Some(tokenizer), ..self }
    }

    /// Returns the model.
    pub fn model(&self) -> &Arc<dyn CausalLm> {
        &self.model
    }

    /// Returns the largest number of tokens of a text.
    pub fn context(&self) -> usize {
        self.options.context
    }

    /// Returns how many steps are launched before the token of a step is read; see [`GeneratorOptions::ahead`].
    pub fn steps_ahead(&self) -> usize {
        let by_device = || if kiln::backend(self.model.device()).is_asynchronous() { STEPS_AHEAD } else { 0 };
        self.options.ahead.unwrap_or_else(by_device)
    }

    /// Returns the bytes of the KV caches.
    pub fn cache_bytes(&self) -> usize {
        self.all().map(|programs| programs.cache().bytes()).sum()
    }

    fn all(&self) -> impl Iterator<Item = &Programs> {
        std::iter::once(&self.one).chain(&self.batch)
    }

    /// Returns the tokens of the last single text whose keys and values are in the cache; with [`GeneratorOptions::reuse`]
    /// a prompt that begins with them is prefilled only after them. The last token of a text is not in the cache.
    pub fn held(&self) -> &[u32] {
        &self.held
    }

    /// Returns the number of programs compiled for prompts and for further tokens.
    pub fn compiles(&self) -> (u64, u64) {
        let prompts = |p: &Programs| p.prefill.stats().compiles + p.fill.stats().compiles;
        (self.all().map(prompts).sum(), self.all().map(|p| p.decode.stats().compiles).sum())
    }

    /// Returns the number of kernels that one further token of one text runs; `None` before the first one, and in eager
    /// mode.
    pub fn kernels_per_token(&self) -> Option<usize> {
        self.one.decode.programs().first().map(|program| program.kernels.len())
    }

    /// Continues a text.
    pub fn generate(&mut self, prompt: &[u32], request: &Request) -> Result<Generated> {
        self.generate_with(prompt, request, |_| ControlFlow::Continue(()))
    }

    /// Like [`Generator::generate`], but calls back with each new token.
    pub fn generate_with(
        &mut self,
        prompt: &[u32],
        request: &Request,
        mut each: impl FnMut(u32) -> ControlFlow<()>,
    ) -> Result<Generated> {
        let shown = |_, token: Option<u32>, _: &str| token.map_or(ControlFlow::Continue(()), &mut each);
        one(self.run(&[(prompt, request)], false, shown)?)
    }

    /// Continues a prompt of text, calling back with each new piece of text; no part of a stop string is passed.
    ///
    /// ```
    /// use kiln_llm::{GeneratorOptions, Request};
    /// use std::ops::ControlFlow;
    /// let opened = kiln_llm::embedded()?;
    /// let mut generator = opened.generator(GeneratorOptions { context: 64, ..GeneratorOptions::default() })?;
    /// let request = Request { stop: vec![".".into()], ..Request::default() };
    /// let story = generator.generate_text("Once upon a time", &request, |piece| {
    ///     print!("{piece}");
    ///     ControlFlow::Continue(())
    /// })?;
    /// assert_eq!(story.text, ", there was a little girl named Lily");
    /// # Ok::<(), kiln_llm::Error>(())
    /// ```
    pub fn generate_text(
        &mut self,
        prompt: &str,
        request: &Request,
        each: impl FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Generated> {
        let tokenizer = self.tokenizer.as_ref().ok_or(Error::TextWithoutTokenizer)?;
        let prompt = tokenizer.encode(prompt, true)?;
        self.generate_text_after(&prompt, request, each)
    }

    /// Like [`Generator::generate_text`], after tokens such as those of [`crate::Opened::chat_prompt`].
    pub fn generate_text_after(
        &mut self,
        prompt: &[u32],
        request: &Request,
        mut each: impl FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Generated> {
        let shown = |_, _, text: &str| if text.is_empty() { ControlFlow::Continue(()) } else { each(text) };
        one(self.run(&[(prompt, request)], true, shown)?)
    }

    /// Continues a batch of texts of any lengths; each result is the same as alone.
    pub fn generate_batch(&mut self, prompts: &[Vec<u32>], request: &Request) -> Result<Vec<Generated>> {
        let texts: Vec<(&[u32], &Request)> = prompts.iter().map(|prompt| (&prompt[..], request)).collect();
        self.generate_each(&texts, |_, _, _| ControlFlow::Continue(()))
    }

    /// Continues a batch of texts, each with its own request. Calls back with each new token and the number of its text,
    /// and with the piece of text that it completes where the request has stop strings.
    pub fn generate_each(
        &mut self,
        texts: &[(&[u32], &Request)],
        mut each: impl FnMut(usize, u32, &str) -> ControlFlow<()>,
    ) -> Result<Vec<Generated>> {
        let shown = |row, token: Option<u32>, text: &str| match token {
            Some(token) => each(row, token, text),
            None => ControlFlow::Continue(()),
        };
        self.run(texts, false, shown)
    }

    /// Continues texts; `each` is shown tokens with the text they complete, and at a text's end what was held back.
    fn run(
        &mut self,
        texts: &[(&[u32], &Request)],
        wants_text: bool,
        mut each: impl FnMut(usize, Option<u32>, &str) -> ControlFlow<()>,
    ) -> Result<Vec<Generated>> {
        let started = Instant::now();
        let (context, vocabulary) = (self.options.context, self.model.sizes().vocab);
        for (prompt, _) in texts {
            check(prompt, context, vocabulary)?;
        }
        let rows: Result<Vec<Row>> = texts
            .iter()
            .map(|(prompt, request)| Row::new(prompt, (*request).clone(), wants_text, context, self.tokenizer.as_ref()))
            .collect();
        let mut rows = rows?;
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        let single = rows.len() == 1;
        // Taken out: after an error nothing is known of the cache.
        let mut held = if single { std::mem::take(&mut self.held) } else { Vec::new() };
        let reused = if self.options.reuse { reusable(self.one.cache(), &held, texts[0].0) } else { 0 };
        let (options, device, ahead) = (self.options.clone(), self.model.device(), self.steps_ahead());
        let programs = self.programs(rows.len())?;
        let samplings: Vec<_> = texts.iter().map(|(prompt, request)| (&request.sampling, *prompt)).collect();
        let rule = programs.sampler().start(&samplings)?;
        let all: Vec<&[u32]> = texts.iter().map(|(prompt, _)| *prompt).collect();
        let (parts, reused) = prompts(programs.rows(), &all, reused, rule, &options, device)?;
        let mut tokens = vec![0i64; programs.rows()];
        let mut steps = Steps::new(ahead);
        // How much of what is held stands when the text is called off while it is read.
        let (mut begun, mut kept) = (false, reused);
        while rows.iter().any(|row| !row.is_done()) {
            if begun {
                held.push(tokens[0] as u32);
                while let Some(length) = steps.next_length(&rows) {
                    if crosses_border(texts, &rows, length, programs.cache()) {
                        break;
                    }
                    steps.push(programs.decode.call(&rule)?)?;
                }
            }
            if steps.is_empty() {
                // The prompts, and again where a text goes beyond a border: then nothing is launched ahead of what is read.
                let longer = if begun { Some(longer(texts, &rows, programs.cache())) } else { None };
                let again = match &longer {
                    None => {
                        held.clear();
                        held.extend(texts[0].0);
                        None
                    }
                    Some(longer) => {
                        kept = 0;
                        let all: Vec<&[u32]> = longer.iter().map(Vec::as_slice).collect();
                        Some(prompts(programs.rows(), &all, 0, rule, &options, device)?.0)
                    }
                };
                begun = true;
                match programs.read(again.as_ref().unwrap_or(&parts), &|| rows.iter().all(Row::is_done))? {
                    Some(next) => steps.push(next)?,
                    None => {
                        held.truncate(kept);
                        break;
                    }
                }
            }
            steps.read(&mut tokens)?;
            for (index, (row, &next)) in rows.iter_mut().zip(&tokens).enumerate() {
                if row.is_done() {
                    continue;
                }
                let token = u32::try_from(next).ok().filter(|&token| (token as usize) < vocabulary);
                let token = token.ok_or(Error::UnknownToken { token: next as u32, vocabulary })?;
                row.push(token, started, |token, text| each(index, Some(token), text))?;
            }
        }
        if single {
            self.held = held;
        }
        let finish = |(index, row): (usize, Row)| row.finish(started, |text| each(index, None, text));
        let done: Result<Vec<Generated>> = rows.into_iter().enumerate().map(finish).collect();
        Ok(done?.into_iter().map(|text| Generated { reused, ..text }).collect())
    }

    /// The programs for so many texts; those for a batch are made for a power of two.
    fn programs(&mut self, texts: usize) -> Result<&Programs> {
        if texts == 1 {
            return Ok(&self.one);
        }
        let rows = texts.next_power_of_two();
        match self.batch.take() {
            Some(batch) if batch.rows() == rows => Ok(self.batch.insert(batch)),
            _ => {
                let options = &self.options;
                let made = Programs::new(&self.model, rows, options.context, options.compile.as_ref())?;
                Ok(self.batch.insert(made))
            }
        }
    }
}

/// Whether a text that goes on has gone beyond a border when each has so many new tokens.
fn crosses_border(texts: &[(&[u32], &Request)], rows: &[Row], length: usize, cache: &KvCache) -> bool {
    let mut both = texts.iter().zip(rows);
    both.any(|((prompt, _), row)| !row.is_done() && cache.crosses_border(prompt.len() + length))
}

/// All texts up to their newest tokens: they are read again.
fn longer(texts: &[(&[u32], &Request)], rows: &[Row], cache: &KvCache) -> Vec<Vec<u32>> {
    // The last token of a full context has no place; such a text has ended.
    let whole = |((prompt, _), row): (&(&[u32], &Request), &Row)| -> Vec<u32> {
        prompt.iter().chain(row.ids()).copied().take(cache.context()).collect()
    };
    texts.iter().zip(rows).map(whole).collect()
}

fn one(texts: Vec<Generated>) -> Result<Generated> {
    // As many texts come back as went in.
    texts.into_iter().next().ok_or(Error::EmptyPrompt)
}

/// An error if a prompt cannot be continued.
pub(crate) fn check(prompt: &[u32], context: usize, vocabulary: usize) -> Result<()> {
    if prompt.is_empty() {
        return Err(Error::EmptyPrompt);
    }
    if prompt.len() > context {
        return Err(Error::PromptTooLong { tokens: prompt.len(), context });
    }
    match prompt.iter().find(|&&token| token as usize >= vocabulary) {
        Some(&token) => Err(Error::UnknownToken { token, vocabulary }),
        None => Ok(()),
    }
}
