//! What is asked for with a prompt, and what comes of it.

use crate::{GenerationConfig, Sampling};
use std::time::Duration;

/// What is asked for with a prompt.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// At most so many new tokens; the context may end before.
    pub max_tokens: usize,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Any of these ends the text, and is not part of it.
    pub stop_tokens: Vec<u32>,
    /// Any of these ends the text as well, and is not part of it, however its letters are cut into tokens. They need a
    /// tokenizer. Empty ones are none.
    pub stop: Vec<String>,
}

impl Default for Request {
    /// 128 tokens, each the likeliest.
    fn default() -> Request {
        Request { max_tokens: 128, sampling: Sampling::default(), stop_tokens: Vec::new(), stop: Vec::new() }
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
        }
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
    /// The stop string of this number came.
    Text(usize),
    /// The receiver of the tokens wanted no more.
    Asked,
}

/// A text that was generated.
#[derive(Debug, Clone, PartialEq)]
pub struct Generated {
    /// The new tokens; with a stop string the one that completed it is the last.
    pub ids: Vec<u32>,
    /// Their text up to a stop string; empty where only tokens were asked for.
    pub text: String,
    /// Why there are no more.
    pub stop: Stop,
    /// Tokens of the prompt that were in the cache already and were not read; see [`crate::GeneratorOptions::reuse`].
    pub reused: usize,
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
