//! Generation requests and their results.

use crate::{GenerationConfig, Sampling};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Cancels a text from another thread or a signal handler. What was generated so far is returned, with [`Stop::Asked`].
///
/// ```
/// use kiln_llm::{Cancel, GeneratorOptions, Request, Stop};
/// let opened = kiln_llm::embedded()?;
/// let cancel = Cancel::default();
/// let request = Request { cancel: Some(cancel.clone()), ..opened.request() };
/// cancel.ask();
/// let text = opened.generator(GeneratorOptions::default())?.generate(&[1, 403], &request)?;
/// assert_eq!((text.stop, text.ids.len()), (Stop::Asked, 0));
/// # Ok::<(), kiln_llm::Error>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// Cancels.
    pub fn ask(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Clears the cancellation.
    pub fn reset(&self) {
        self.0.store(false, Ordering::Relaxed);
    }

    /// Returns whether it was cancelled.
    pub fn is_asked(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Returns the flag itself, for signal handlers.
    pub fn flag(&self) -> &Arc<AtomicBool> {
        &self.0
    }
}

impl PartialEq for Cancel {
    /// Whether both are the same: what calls off one calls off the other.
    fn eq(&self, other: &Cancel) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// A generation request: limits, sampling and stop conditions.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// The largest number of new tokens; the context may end earlier.
    pub max_tokens: usize,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Tokens that end the text and are not part of it.
    pub stop_tokens: Vec<u32>,
    /// Strings that end the text and are not part of it, however they are split into tokens. They need a tokenizer. Empty
    /// strings are ignored.
    pub stop: Vec<String>,
    /// Cancels the text before the next part of the prompt, or before the next token.
    pub cancel: Option<Cancel>,
}

impl Default for Request {
    /// 128 tokens, each the likeliest.
    fn default() -> Request {
        Request {
            max_tokens: 128,
            sampling: Sampling::default(),
            stop_tokens: Vec::new(),
            stop: Vec::new(),
            cancel: None,
        }
    }
}

impl From<&GenerationConfig> for Request {
    /// What the makers of a model say, with transformers' defaults for what they leave out: the likeliest token unless
    /// `do_sample` is set, else temperature 1 and the 50 likeliest.
    ///
    /// ```
    /// use kiln_llm::{GenerationConfig, Request};
    /// let config = GenerationConfig { do_sample: true, top_p: Some(0.9), eos_token_ids: vec![2], ..Default::default() };
    /// let request = Request::from(&config);
    /// assert_eq!((request.sampling.temperature, request.sampling.top_k, request.sampling.top_p), (1.0, 50, 0.9));
    /// assert_eq!(request.stop_tokens, [2]);
    /// ```
    fn from(config: &GenerationConfig) -> Request {
        let plain = Request::default();
        let drawn = Sampling {
            temperature: config.temperature.unwrap_or(1.0),
            top_k: config.top_k.unwrap_or(50),
            top_p: config.top_p.unwrap_or(1.0),
            min_p: config.min_p.unwrap_or(0.0),
            ..Sampling::default()
        };
        let sampling = if config.do_sample { drawn } else { Sampling::default() };
        let repetition_penalty = config.repetition_penalty.unwrap_or(1.0);
        Request {
            max_tokens: config.max_new_tokens.unwrap_or(plain.max_tokens),
            sampling: Sampling { repetition_penalty, ..sampling },
            stop_tokens: config.eos_token_ids.clone(),
            stop: Vec::new(),
            cancel: None,
        }
    }
}

/// Why a text ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// `max_tokens` was reached.
    Length,
    /// The context is full.
    Context,
    /// A stop token was generated.
    Token(u32),
    /// The stop string of this number was generated.
    Text(usize),
    /// The callback ended it, or it was cancelled ([`Cancel`]).
    Asked,
}

/// A generated text.
#[derive(Debug, Clone, PartialEq)]
pub struct Generated {
    /// The new tokens; with a stop string the one that completed it is the last.
    pub ids: Vec<u32>,
    /// Their text up to a stop string; empty where only tokens were requested.
    pub text: String,
    /// Why generation ended.
    pub stop: Stop,
    /// The number of prompt tokens whose keys and values were reused; see [`crate::GeneratorOptions::reuse`].
    pub reused: usize,
    /// Time to the first token.
    pub first_token: Duration,
    /// Time of all tokens after the first.
    pub decoding: Duration,
}

impl Generated {
    /// Returns the tokens per second, not counting the first token.
    pub fn tokens_per_second(&self) -> f64 {
        (self.ids.len().saturating_sub(1)) as f64 / self.decoding.as_secs_f64().max(1e-9)
    }
}
