//! The programs of a batch of texts: one for a prompt's bucket, one and the same for each further token.

use crate::models::CausalLm;
use crate::sample::Rule;
use crate::{KvCache, Result, Sampler};
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
    /// How first tokens are chosen.
    pub rule: Rule,
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
        let (first, second, third) = (state.clone(), state.clone(), state.clone());
        Ok(Programs {
            state,
            fill: program(compile, move |prompt| first.fill(prompt)),
            prefill: program(compile, move |prompt| second.prefill(prompt)),
            decode: program(compile, move |rule: &Rule| third.decode(*rule)),
        })
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

/// A function, compiled; without options it runs eagerly.
pub(crate) fn program<A: Bundle + 'static>(
    compile: Option<&Options>,
    f: impl Fn(&A) -> kiln::Result<Tensor> + Send + Sync + 'static,
) -> Program<A> {
    // A bucket is a program of its own; nothing is gained by symbols.
    let how = match compile {
        Some(how) => Options { fullgraph: true, dynamic: Dynamic::Static, ..how.clone() },
        None => Options { disable: true, ..Options::default() },
    };
    let f: Function<A> = Box::new(f);
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
        let hidden = self.model.hidden(&prompt.tokens, &self.cache.step(&positions)?)?;
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
        let last = |x: Tensor| x.flatten(0, 1)?.index_select(0, &prompt.last);
        self.advance(&last(hidden)?, &last(positions)?.unsqueeze(1)?, prompt.rule)
    }

    #[track_caller]
    fn decode(&self, rule: Rule) -> kiln::Result<Tensor> {
        let position = self.position.get();
        let hidden = self.model.hidden(&self.token.get(), &self.cache.step(&position)?)?.squeeze(1)?;
        self.advance(&hidden, &position, rule)
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
