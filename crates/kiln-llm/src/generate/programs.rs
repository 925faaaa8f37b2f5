//! The programs of a batch of texts: one for a prompt's bucket, one and the same for each further token.

use crate::models::CausalLm;
use crate::sample::Rule;
use crate::{Error, KvCache, Result, Sampler};
use kiln::{Bundle, Compiled, DType, Dynamic, Options, Tensor, Var};
use std::sync::Arc;

/// A part of the prompts of a batch, as data.
#[derive(Debug, Clone, Bundle)]
pub(super) struct Prompt {
    /// `[rows, bucket]`.
    pub tokens: Tensor,
    /// Where the first column is in the padded prompts, `[1]`.
    pub start: Tensor,
    /// Columns of filling before each prompt, `[rows, 1]`.
    pub pads: Tensor,
    /// Where the last token of each prompt is in the flattened tokens, `[rows]`.
    pub last: Tensor,
    /// Tokens of each prompt, `[rows, 1]`.
    pub lengths: Tensor,
    /// How first tokens are chosen.
    pub rule: Rule,
}

/// A token for each text of a batch, as data.
#[derive(Debug, Clone, Bundle)]
pub(super) struct Next {
    /// `[rows, 1]`.
    pub tokens: Tensor,
    /// `[rows, 1]`.
    pub positions: Tensor,
}

/// What the programs share.
struct State {
    model: Arc<dyn CausalLm>,
    cache: KvCache,
    sampler: Sampler,
    /// The newest tokens, `[rows, 1]`.
    token: Var,
    /// Their positions, `[rows, 1]`.
    position: Var,
    rows: usize,
}

type Function<A> = Box<dyn Fn(&A) -> kiln::Result<Tensor> + Send + Sync>;

/// A function of data that is compiled once for each of its shapes.
pub(crate) type Program<A> = Compiled<Function<A>, A, Tensor>;

/// A batch of texts with its cache and its programs. Nothing is compiled before it is called.
pub(super) struct Programs {
    state: Arc<State>,
    /// Writes a prompt's part to the cache; what follows has the rest.
    pub fill: Program<Prompt>,
    /// Writes the rest of the prompts and gives the first tokens, `[rows]`.
    pub prefill: Program<Prompt>,
    /// Gives the next tokens, `[rows]`.
    pub decode: Program<Rule>,
    /// `prefill` with the logits, `[rows, vocabulary]`, and no choice.
    prompt_logits: Program<Prompt>,
    /// The logits after tokens that are given, `[rows, vocabulary]`.
    pub next_logits: Program<Next>,
}

impl Programs {
    pub fn new(model: &Arc<dyn CausalLm>, rows: usize, context: usize, compile: Option<&Options>) -> Result<Programs> {
        let device = model.device();
        let state = Arc::new(State {
            cache: KvCache::fixed(&**model, rows, context)?,
            sampler: Sampler::new(rows, model.sizes().vocab, device)?,
            token: Var::named("token", &Tensor::zeros([rows, 1], DType::I64, device)?),
            position: Var::named("position", &Tensor::zeros([rows, 1], DType::I64, device)?),
            model: model.clone(),
            rows,
        });
        Ok(Programs {
            fill: program(&state, compile, State::fill),
            prefill: program(&state, compile, State::prefill),
            decode: program(&state, compile, State::decode),
            prompt_logits: program(&state, compile, State::prompt_logits),
            next_logits: program(&state, compile, State::next_logits),
            state,
        })
    }

    /// Reads prompts; gives the first tokens, `[rows]`, unless they are called off between two parts.
    pub fn read(&self, parts: &[Prompt], is_called_off: &dyn Fn() -> bool) -> Result<Option<Tensor>> {
        self.read_by(&self.prefill, parts, is_called_off)
    }

    /// Reads prompts; gives the logits after them, `[rows, vocabulary]`.
    pub fn read_logits(&self, parts: &[Prompt]) -> Result<Tensor> {
        self.read_by(&self.prompt_logits, parts, &|| false)?.ok_or(Error::EmptyPrompt)
    }

    fn read_by(
        &self,
        last: &Program<Prompt>,
        parts: &[Prompt],
        is_called_off: &dyn Fn() -> bool,
    ) -> Result<Option<Tensor>> {
        let (end, before) = parts.split_last().ok_or(Error::EmptyPrompt)?;
        for part in before {
            self.fill.call(part)?;
            if is_called_off() {
                return Ok(None);
            }
        }
        Ok(Some(last.call(end)?))
    }

    pub fn rows(&self) -> usize {
        self.state.rows
    }

    pub fn sampler(&self) -> &Sampler {
        &self.state.sampler
    }

    pub fn cache(&self) -> &KvCache {
        &self.state.cache
    }
}

/// A function of what programs share and of data, compiled; without options it runs eagerly.
pub(crate) fn program<S: Send + Sync + 'static, A: Bundle + 'static>(
    state: &Arc<S>,
    compile: Option<&Options>,
    f: fn(&S, &A) -> kiln::Result<Tensor>,
) -> Program<A> {
    // A bucket is a program of its own; nothing is gained by symbols.
    let how = match compile {
        Some(how) => Options { fullgraph: true, dynamic: Dynamic::Static, ..how.clone() },
        None => Options { disable: true, ..Options::default() },
    };
    let state = state.clone();
    let f: Function<A> = Box::new(move |argument| f(&state, argument));
    kiln::compile_with(f, how)
}

impl State {
    /// What the layers make of a part of the prompts; and the positions of its tokens, `[rows, bucket]`.
    ///
    /// Filling is written to the cache too. Behind a prompt no token sees it before it is overwritten; before a prompt it goes
    /// to the place of the prompt's first token, which comes later and stays.
    #[track_caller]
    fn pass(&self, prompt: &Prompt) -> kiln::Result<(Tensor, Tensor)> {
        let columns = Tensor::arange(prompt.tokens.size(1)?, DType::I64, prompt.tokens.device())?;
        let positions = ((columns + &prompt.start)? - &prompt.pads)?.maximum(0)?;
        let step = self.cache.step(&positions)?.of_texts(&prompt.lengths)?;
        let hidden = self.model.hidden(&prompt.tokens, &step)?;
        Ok((hidden, positions))
    }

    #[track_caller]
    fn fill(&self, prompt: &Prompt) -> kiln::Result<Tensor> {
        self.pass(prompt)?;
        &prompt.start + prompt.tokens.size(1)?
    }

    #[track_caller]
    fn prefill(&self, prompt: &Prompt) -> kiln::Result<Tensor> {
        let (hidden, positions) = self.pass(prompt)?;
        self.advance(&ends(hidden, prompt)?, &ends(positions, prompt)?.unsqueeze(1)?, prompt.rule)
    }

    #[track_caller]
    fn prompt_logits(&self, prompt: &Prompt) -> kiln::Result<Tensor> {
        let (hidden, _) = self.pass(prompt)?;
        self.model.logits(&ends(hidden, prompt)?)
    }

    #[track_caller]
    fn decode(&self, rule: &Rule) -> kiln::Result<Tensor> {
        let position = self.position.get();
        self.advance(&self.one(&self.token.get(), &position)?, &position, *rule)
    }

    #[track_caller]
    fn next_logits(&self, next: &Next) -> kiln::Result<Tensor> {
        self.model.logits(&self.one(&next.tokens, &next.positions)?)
    }

    /// What the layers make of one token of each text, `[rows, width]`.
    #[track_caller]
    fn one(&self, tokens: &Tensor, positions: &Tensor) -> kiln::Result<Tensor> {
        self.model.hidden(tokens, &self.cache.step(positions)?)?.squeeze(1)
    }

    /// Chooses the tokens after those at `positions`, `[rows, 1]`, of which `hidden`, `[rows, width]`, came.
    #[track_caller]
    fn advance(&self, hidden: &Tensor, positions: &Tensor, rule: Rule) -> kiln::Result<Tensor> {
        let next = self.sampler.choose(&self.model.logits(hidden)?, positions, rule)?;
        self.token.set(&next.unsqueeze(1)?)?;
        let mut after = (positions + 1)?;
        if self.rows > 1 {
            // A text whose context is full stays there while its neighbours go on.
            after = after.minimum((self.cache.context() - 1) as i64)?;
        }
        self.position.set(&after)?;
        Ok(next)
    }
}

/// Of a value for each token of a part, those of the prompts' last tokens.
#[track_caller]
fn ends(values: Tensor, prompt: &Prompt) -> kiln::Result<Tensor> {
    values.flatten(0, 1)?.index_select(0, &prompt.last)
}
