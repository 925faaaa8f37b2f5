//! Embeddings: texts come in, a vector for each goes out, near each other where the texts mean the same.
//!
//! ```text
//!  texts ─▶ tokens, cut to the longest ─▶ batches of like length, filled up ─▶ one program a bucket: BERT, pooling ─▶ vectors
//! ```

mod buckets;
mod pooling;

pub use pooling::{Pool, Pooling};

use crate::config::{BertConfig, Fields};
use crate::models::Bert;
use crate::models::bert::valid;
use crate::open::suiting;
use crate::{Checkpoint, Error, Result, Tokenizer, Weights};
pub(crate) use buckets::rows;
use buckets::{Batch, LENGTHS};
use kiln::{Bundle, Compiled, DType, Device, Dynamic, Options, Tensor};
use std::path::Path;
use std::sync::Arc;

/// How an [`Embedder`] is made.
#[derive(Debug, Clone)]
pub struct EmbedderOptions {
    /// Where it runs.
    pub device: Device,
    /// Dtype of weights and activations; `None` takes bf16 for checkpoints in bf16, else f32.
    pub dtype: Option<DType>,
    /// How it is compiled; `None` runs it eagerly.
    pub compile: Option<Options>,
    /// Texts that go through the model together, at the most.
    pub batch: usize,
    /// Tokens that a text is cut to; `None` takes what the folder says.
    pub longest: Option<usize>,
    /// How tokens become one vector; `None` takes what the folder says.
    pub pooling: Option<Pooling>,
}

impl Default for EmbedderOptions {
    /// Compiled, on the CPU, 32 texts at once, the rest as the folder says.
    fn default() -> EmbedderOptions {
        EmbedderOptions {
            device: Device::Cpu,
            dtype: None,
            compile: Some(Options { freeze: true, ..Options::default() }),
            batch: 32,
            longest: None,
            pooling: None,
        }
    }
}

/// A batch, filled up to its bucket.
#[derive(Debug, Clone, Bundle)]
struct Texts {
    /// `[batch, tokens]`.
    tokens: Tensor,
    /// `[batch]`.
    lengths: Tensor,
}

type Program = Compiled<Box<dyn Fn(&Texts) -> kiln::Result<Tensor> + Send + Sync>, Texts, Tensor>;

/// A model that turns texts into vectors.
///
/// ```
/// use kiln_llm::{Embedder, EmbedderOptions, similarity};
/// let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/reference/tiny-bert");
/// let embedder = Embedder::open(folder, &EmbedderOptions::default())?;
/// let vectors = embedder.embed(&["a cat", "the cat", "a cat"])?;
/// assert_eq!(vectors[0].len(), embedder.width());
/// assert!((similarity(&vectors[0], &vectors[2]) - 1.0).abs() < 1e-6);
/// # Ok::<(), kiln_llm::Error>(())
/// ```
pub struct Embedder {
    model: Arc<Bert>,
    tokenizer: Tokenizer,
    program: Program,
    pooling: Pooling,
    batch: usize,
    longest: usize,
    lower_case: bool,
}

impl std::fmt::Debug for Embedder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Embedder { pooling, batch, longest, .. } = self;
        let config = &self.model.config;
        f.debug_struct("Embedder")
            .field("config", config)
            .field("pooling", pooling)
            .field("batch", batch)
            .field("longest", longest)
            .finish_non_exhaustive()
    }
}

impl Embedder {
    /// The model of a folder: `config.json`, `tokenizer.json`, the weights and, where they are there, the files of
    /// sentence-transformers (`modules.json`, `1_Pooling/config.json`, `sentence_bert_config.json`). Nothing is compiled
    /// before the first text.
    pub fn open(folder: impl AsRef<Path>, options: &EmbedderOptions) -> Result<Embedder> {
        let folder = folder.as_ref();
        let config = BertConfig::read(folder)?;
        let tokenizer = Tokenizer::read(folder)?;
        let pooling = match &options.pooling {
            Some(pooling) => pooling.clone(),
            None => Pooling::read(folder)?,
        };
        let sentences = folder.join("sentence_bert_config.json");
        let sentences = if sentences.exists() { Some(Fields::read(sentences)?) } else { None };
        let said = sentences.as_ref().map(|fields| fields.size_if("max_seq_length")).transpose()?.flatten();
        let lower_case = sentences.as_ref().map_or(Ok(false), |fields| fields.flag("do_lower_case", false))?;
        let checkpoint = Checkpoint::open(folder, options.device)?;
        let dtype = options.dtype.unwrap_or_else(|| suiting(checkpoint.dtype()));
        let weights = Weights::new(&checkpoint, dtype);
        let model = Arc::new(Bert::new(&config, &weights)?);
        weights.all_used("bert", None)?;
        let (before, after) = tokenizer.frame();
        let least = before.len() + after.len() + 1;
        let longest = options.longest.or(said).unwrap_or(usize::MAX).min(config.max_position_embeddings);
        if longest < least {
            return Err(Error::TooShort { longest, least });
        }
        let buckets = (LENGTHS.len() + 1) * (options.batch.max(1).ilog2() as usize + 2);
        let how = match &options.compile {
            // A bucket is a program of its own, and all of them are kept.
            Some(how) => Options {
                fullgraph: true,
                dynamic: Dynamic::Static,
                cache_limit: buckets,
                recompile_limit: how.recompile_limit.max(buckets),
                ..how.clone()
            },
            None => Options { disable: true, ..Options::default() },
        };
        let (bert, pools) = (model.clone(), pooling.clone());
        let embed: Box<dyn Fn(&Texts) -> _ + Send + Sync> = Box::new(move |texts| {
            let hidden = bert.hidden(&texts.tokens, &texts.lengths)?;
            pools.apply(&hidden, &valid(&texts.tokens, &texts.lengths)?)
        });
        let program = kiln::compile_with(embed, how);
        Ok(Embedder { model, tokenizer, program, pooling, batch: options.batch.max(1), longest, lower_case })
    }

    /// The model.
    pub fn model(&self) -> &Bert {
        &self.model
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// How tokens become one vector.
    pub fn pooling(&self) -> &Pooling {
        &self.pooling
    }

    /// Numbers of a vector.
    pub fn width(&self) -> usize {
        self.model.config.hidden_size * self.pooling.pools.len()
    }

    /// Tokens that a text is cut to.
    pub fn longest(&self) -> usize {
        self.longest
    }

    /// Programs made so far.
    pub fn compiles(&self) -> u64 {
        self.program.stats().compiles
    }

    /// The tokens of a text as the model sees them: with the special ones around, cut to the longest.
    pub fn tokens(&self, text: &str) -> Result<Vec<u32>> {
        let mut ids = match self.lower_case {
            true => self.tokenizer.encode(&text.to_lowercase(), true)?,
            false => self.tokenizer.encode(text, true)?,
        };
        if ids.len() > self.longest {
            let after = self.tokenizer.frame().1;
            ids.truncate(self.longest - after.len());
            ids.extend(after);
        }
        Ok(ids)
    }

    /// The vectors of texts, in their order.
    pub fn embed(&self, texts: &[impl AsRef<str>]) -> Result<Vec<Vec<f32>>> {
        let tokens: Result<Vec<Vec<u32>>> = texts.iter().map(|text| self.tokens(text.as_ref())).collect();
        self.embed_tokens(&tokens?)
    }

    /// [`Embedder::embed`] of texts that are tokens already, special ones included.
    pub fn embed_tokens(&self, texts: &[Vec<u32>]) -> Result<Vec<Vec<f32>>> {
        let config = &self.model.config;
        for text in texts {
            self.check(text)?;
        }
        let lengths: Vec<usize> = texts.iter().map(Vec::len).collect();
        let device = self.model.device();
        let mut vectors = vec![Vec::new(); texts.len()];
        for Batch { texts: members, rows, length } in buckets::batches(&lengths, self.batch, self.longest) {
            let mut tokens = vec![i64::from(config.pad_token_id); rows * length];
            // A row without a text still sees one token: a softmax over nothing is no number.
            let mut valid = vec![1i64; rows];
            for (row, &member) in members.iter().enumerate() {
                valid[row] = texts[member].len() as i64;
                let places = tokens[row * length..].iter_mut();
                places.zip(&texts[member]).for_each(|(place, &token)| *place = token.into());
            }
            let batch = Texts {
                tokens: Tensor::from_vec(tokens, [rows, length], device)?,
                lengths: Tensor::from_vec(valid, rows, device)?,
            };
            let pooled = self.program.call(&batch)?.to_vec::<f32>()?;
            for (vector, &member) in pooled.chunks_exact(self.width()).zip(&members) {
                vectors[member] = vector.to_vec();
            }
        }
        Ok(vectors)
    }

    fn check(&self, tokens: &[u32]) -> Result<()> {
        let vocabulary = self.model.config.vocab_size;
        if tokens.is_empty() {
            return Err(Error::EmptyPrompt);
        }
        if tokens.len() > self.longest {
            return Err(Error::PromptTooLong { tokens: tokens.len(), context: self.longest });
        }
        match tokens.iter().find(|&&token| token as usize >= vocabulary) {
            Some(&token) => Err(Error::UnknownToken { token, vocabulary }),
            None => Ok(()),
        }
    }
}

/// The cosine of the angle between two vectors: 1 for the same direction, 0 for nothing in common; 0 if one is all zeros.
///
/// ```
/// assert!((kiln_llm::similarity(&[3.0, 4.0], &[6.0, 8.0]) - 1.0).abs() < 1e-6);
/// assert_eq!(kiln_llm::similarity(&[1.0, 0.0], &[0.0, 2.0]), 0.0);
/// ```
pub fn similarity(a: &[f32], b: &[f32]) -> f32 {
    let dot = |a: &[f32], b: &[f32]| -> f64 { a.iter().zip(b).map(|(&x, &y)| f64::from(x) * f64::from(y)).sum() };
    let lengths = (dot(a, a) * dot(b, b)).sqrt();
    if lengths > 0.0 { (dot(a, b) / lengths) as f32 } else { 0.0 }
}
