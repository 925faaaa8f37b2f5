//! Generation: the prompt goes through one program for its bucket, each further token through one and the same program.
//!
//! ```text
//!  prompt, filled up to a bucket ─▶ prefill ─▶ first token ─┐
//!                                     │ cache, token, position (variables)
//!                                     └──────▶ decode ─▶ next token ─▶ decode ─▶ …
//! ```

use crate::models::CausalLm;
use crate::sample::Rule;
use crate::{Error, KvCache, Result, Sampler, Sampling};
use kiln::{Bundle, Compiled, DType, Dynamic, Options, Tensor, Var};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How a [`Generator`] is made.
#[derive(Debug, Clone)]
pub struct GeneratorOptions {
    /// Tokens of a text, prompt included; at most those the model was made for.
    pub context: usize,
    /// How it is compiled; `None` runs it eagerly.
    pub compile: Option<Options>,
}

impl Default for GeneratorOptions {
    /// Compiled, for 2048 tokens.
    fn default() -> GeneratorOptions {
        GeneratorOptions { context: 2048, compile: Some(Options::default()) }
    }
}

/// What is asked for with a prompt.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// At most so many new tokens; the context may end before.
    pub max_tokens: usize,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Any of these ends the text, and is not part of it.
    pub stop_tokens: Vec<u32>,
}

impl Default for Request {
    /// 128 tokens, each the likeliest.
    fn default() -> Request {
        Request { max_tokens: 128, sampling: Sampling::default(), stop_tokens: Vec::new() }
    }
}

/// Why a text ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// As many tokens as were asked for.
    Length,
    /// The context is full.
    Context,
    /// A stop token came.
    Token(u32),
    /// The receiver of the tokens wanted no more.
    Asked,
}

/// A text that was generated.
#[derive(Debug, Clone, PartialEq)]
pub struct Generated {
    /// The new tokens.
    pub ids: Vec<u32>,
    /// Why there are no more.
    pub stop: Stop,
    /// Until the first token was there.
    pub first_token: Duration,
    /// For all tokens after the first.
    pub decoding: Duration,
}

impl Generated {
    /// Tokens a second, the first one not counted.
    pub fn tokens_per_second(&self) -> f64 {
        (self.ids.len().saturating_sub(1)) as f64 / self.decoding.as_secs_f64().max(1e-9)
    }
}

/// The arguments of a prefill.
#[derive(Debug, Clone, Bundle)]
struct Prompt {
    /// `[1, bucket]`.
    tokens: Tensor,
    /// Position of the first, `[1]`.
    start: Tensor,
    /// Index of the last one that is no filling, `[1]`.
    last: Tensor,
    rule: Rule,
}

/// What the two programs share.
struct State {
    model: Arc<dyn CausalLm>,
    cache: KvCache,
    sampler: Sampler,
    /// The newest token, `[1, 1]`.
    token: Var,
    /// Its position, `[1, 1]`.
    position: Var,
}

type Step<A> = Compiled<Box<dyn Fn(&A) -> kiln::Result<Tensor> + Send + Sync>, A, Tensor>;

/// A model that continues texts, one at a time.
pub struct Generator {
    state: Arc<State>,
    prefill: Step<Prompt>,
    decode: Step<Rule>,
}

impl std::fmt::Debug for Generator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Generator").field("sizes", self.state.model.sizes()).finish_non_exhaustive()
    }
}

/// The smallest prefill.
const SMALLEST_BUCKET: usize = 16;

impl Generator {
    /// For a model. Nothing is compiled before the first text.
    pub fn new(model: Arc<dyn CausalLm>, options: GeneratorOptions) -> Result<Generator> {
        let context = options.context.min(model.sizes().context).max(1);
        let device = model.device();
        let state = Arc::new(State {
            cache: KvCache::fixed(&*model, 1, context)?,
            sampler: Sampler::new(model.sizes().vocab, device)?,
            token: Var::named("token", &Tensor::zeros([1, 1], DType::I64, device)?),
            position: Var::named("position", &Tensor::zeros([1, 1], DType::I64, device)?),
            model,
        });
        // A bucket is a program of its own; nothing is gained by symbols.
        let how = match options.compile {
            Some(how) => Options { fullgraph: true, dynamic: Dynamic::Static, ..how },
            None => Options { disable: true, ..Options::default() },
        };
        let (first, second) = (state.clone(), state.clone());
        let prefill: Box<dyn Fn(&Prompt) -> _ + Send + Sync> = Box::new(move |prompt| first.prefill(prompt));
        let decode: Box<dyn Fn(&Rule) -> _ + Send + Sync> = Box::new(move |rule| second.decode(*rule));
        Ok(Generator {
            state,
            prefill: kiln::compile_with(prefill, how.clone()),
            decode: kiln::compile_with(decode, how),
        })
    }

    /// The model.
    pub fn model(&self) -> &Arc<dyn CausalLm> {
        &self.state.model
    }

    /// Tokens of the context.
    pub fn context(&self) -> usize {
        self.state.cache.context()
    }

    /// Programs made so far for prompts and for further tokens.
    pub fn compiles(&self) -> (u64, u64) {
        (self.prefill.stats().compiles, self.decode.stats().compiles)
    }

    /// Kernels that run for one further token; `None` before the first one, and in eager mode.
    pub fn kernels_per_token(&self) -> Option<usize> {
        self.decode.programs().first().map(|program| program.kernels.len())
    }

    /// Continues a text.
    pub fn generate(&mut self, prompt: &[u32], request: &Request) -> Result<Generated> {
        self.generate_with(prompt, request, |_| ControlFlow::Continue(()))
    }

    /// [`Generator::generate`], with each new token shown as it comes.
    pub fn generate_with(
        &mut self,
        prompt: &[u32],
        request: &Request,
        mut each: impl FnMut(u32) -> ControlFlow<()>,
    ) -> Result<Generated> {
        let started = Instant::now();
        let (context, vocabulary) = (self.context(), self.model().sizes().vocab);
        self.check(prompt)?;
        let mut text = Generated {
            ids: Vec::with_capacity(request.max_tokens.min(context)),
            stop: Stop::Length,
            first_token: Duration::ZERO,
            decoding: Duration::ZERO,
        };
        let mut tokens: Vec<i64> = prompt.iter().map(|&token| token.into()).collect();
        let rule = self.state.sampler.start(&request.sampling, &tokens)?;
        let bucket = prompt.len().next_power_of_two().max(SMALLEST_BUCKET).min(context);
        tokens.resize(bucket, 0);
        let device = self.model().device();
        let number = |n: usize| Tensor::from_vec(vec![n as i64], 1, device);
        let first = Prompt {
            tokens: Tensor::from_vec(tokens, [1, bucket], device)?,
            start: number(0)?,
            last: number(prompt.len() - 1)?,
            rule,
        };
        let mut since = started;
        while text.ids.len() < request.max_tokens {
            // The newest token needs a place in the cache before it can have a successor.
            if prompt.len() + text.ids.len() > context {
                text.stop = Stop::Context;
                break;
            }
            let next = if text.ids.is_empty() { self.prefill.call(&first)? } else { self.decode.call(&rule)? };
            let next = next.item::<i64>()?;
            let token = u32::try_from(next).ok().filter(|&token| (token as usize) < vocabulary);
            let token = token.ok_or(Error::UnknownToken { token: next as u32, vocabulary })?;
            if text.ids.is_empty() {
                text.first_token = started.elapsed();
                since = Instant::now();
            }
            if request.stop_tokens.contains(&token) {
                text.stop = Stop::Token(token);
                break;
            }
            text.ids.push(token);
            if each(token).is_break() {
                text.stop = Stop::Asked;
                break;
            }
        }
        text.decoding = since.elapsed();
        Ok(text)
    }

    fn check(&self, prompt: &[u32]) -> Result<()> {
        let (context, vocabulary) = (self.context(), self.model().sizes().vocab);
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
}

impl State {
    /// Fills the cache with a prompt and gives the first token after it. Filling behind the prompt is written to the cache
    /// too; no token sees it before it is overwritten.
    #[track_caller]
    fn prefill(&self, prompt: &Prompt) -> kiln::Result<Tensor> {
        let offsets = Tensor::arange(prompt.tokens.size(1)?, DType::I64, prompt.tokens.device())?;
        let step = self.cache.step(&(offsets + &prompt.start)?.unsqueeze(0)?)?;
        let hidden = self.model.hidden(&prompt.tokens, &step)?;
        let last = hidden.index_select(1, &prompt.last)?.squeeze(1)?;
        self.advance(&last, &(&prompt.start + &prompt.last)?.unsqueeze(0)?, prompt.rule)
    }

    /// The token after the newest one.
    #[track_caller]
    fn decode(&self, rule: Rule) -> kiln::Result<Tensor> {
        let position = self.position.get();
        let hidden = self.model.hidden(&self.token.get(), &self.cache.step(&position)?)?.squeeze(1)?;
        self.advance(&hidden, &position, rule)
    }

    /// Chooses the token after the one at `position`, of which `hidden`, `[1, width]`, came.
    #[track_caller]
    fn advance(&self, hidden: &Tensor, position: &Tensor, rule: Rule) -> kiln::Result<Tensor> {
        let next = self.sampler.choose(&self.model.logits(hidden)?, rule)?;
        self.token.set(&next.unsqueeze(0)?)?;
        self.position.set(&(position + 1)?)?;
        Ok(next)
    }
}
