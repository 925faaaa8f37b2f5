//! A whole Llama decoder and its generation loop over `kiln` alone, after PyTorch's gpt-fast: RMS norms, rotary positions,
//! grouped-query attention over a static KV cache, SwiGLU, greedy and temperature sampling.
//!
//! ```text
//!  prompt ──▶ prefill (all tokens, one program) ──▶ token ──▶ decode (one token, one program) ──▶ token ──▶ …
//! ```
//!
//! Without arguments the weights are random. A checkpoint with Hugging Face's names is read as it is, with its number of heads:
//! `cargo run --release -p kiln --example gpt_fast crates/kiln-llm/models/stories260K/model.safetensors 8`

use kiln::nn::{Embedding, Forward, Linear, Module, RmsNorm};
use kiln::{DType, Device, Generator, Mode, Options, Result, RopeStyle, Tensor, Var, safetensors};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Sizes of a decoder.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    pub(crate) vocabulary: usize,
    pub(crate) width: usize,
    pub(crate) inner: usize,
    pub(crate) layers: usize,
    pub(crate) heads: usize,
    /// Heads of keys and values; each serves `heads / kv_heads` heads of queries.
    pub(crate) kv_heads: usize,
    /// Positions of the KV cache.
    pub(crate) context: usize,
}

impl Config {
    /// The sizes of a checkpoint's tensors.
    pub(crate) fn of(tensors: &BTreeMap<String, Tensor>, heads: usize, context: usize) -> Config {
        let size = |name: &str, axis: usize| tensors.get(name).map_or(0, |tensor| tensor.shape()[axis]);
        let width = size("model.embed_tokens.weight", 1);
        let layer = |number: &usize| tensors.contains_key(&format!("model.layers.{number}.input_layernorm.weight"));
        Config {
            vocabulary: size("model.embed_tokens.weight", 0),
            width,
            inner: size("model.layers.0.mlp.up_proj.weight", 0),
            layers: (0..).take_while(layer).count(),
            heads,
            kv_heads: size("model.layers.0.self_attn.k_proj.weight", 0) * heads / width.max(1),
            context,
        }
    }
}

#[derive(Module)]
struct Attention {
    q_proj: Linear,
    k_proj: Linear,
    v_proj: Linear,
    o_proj: Linear,
}

#[derive(Module)]
struct Mlp {
    gate_proj: Linear,
    up_proj: Linear,
    down_proj: Linear,
}

#[derive(Module)]
struct Layer {
    input_layernorm: RmsNorm,
    self_attn: Attention,
    post_attention_layernorm: RmsNorm,
    mlp: Mlp,
}

#[derive(Module)]
struct Decoder {
    embed_tokens: Embedding,
    layers: Vec<Layer>,
    norm: RmsNorm,
}

/// The weights, under the names that checkpoints have.
#[derive(Module)]
pub(crate) struct Llama {
    model: Decoder,
    /// Without one the embedding is the head too.
    lm_head: Option<Linear>,
}

/// Keys and values of one layer, `[context, kv_heads, depth]` each.
struct LayerCache {
    keys: Var,
    values: Var,
}

/// What every layer of one pass needs to know of its tokens.
struct Pass<'a> {
    positions: &'a Tensor,
    /// Cosines and sines of the rotary embedding, `[tokens, depth / 2]`.
    turn: (Tensor, Tensor),
    /// Which positions of the cache each token sees, `[tokens, context]`.
    mask: Tensor,
}

impl Attention {
    fn forward(&self, x: &Tensor, cache: &LayerCache, pass: &Pass<'_>) -> Result<Tensor> {
        let depth = cache.keys.shape()[2];
        // [tokens, heads, depth]
        let heads =
            |projection: &Linear| projection.forward(x)?.unflatten(-1, [projection.weight.shape()[0] / depth, depth]);
        let rope = |heads: &Tensor| heads.transpose(0, 1)?.rope(&pass.turn.0, &pass.turn.1, RopeStyle::Half);
        let (q, k) = (rope(&heads(&self.q_proj)?)?, rope(&heads(&self.k_proj)?)?);
        cache.keys.index_copy(0, pass.positions, &k.transpose(0, 1)?)?;
        cache.values.index_copy(0, pass.positions, &heads(&self.v_proj)?)?;
        let (k, v) = (cache.keys.get().transpose(0, 1)?, cache.values.get().transpose(0, 1)?);
        let mixed = q.scaled_dot_product_attention(&k, &v, Some(&pass.mask), false, None)?;
        self.o_proj.forward(&mixed.transpose(0, 1)?.flatten(1, 2)?)
    }
}

impl Mlp {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.down_proj.forward(&(self.gate_proj.forward(x)?.silu()? * self.up_proj.forward(x)?)?)
    }
}

impl Llama {
    pub(crate) fn new(config: &Config, tied: bool) -> Result<Llama> {
        const EPSILON: f64 = 1e-5;
        let (width, depth) = (config.width, config.width / config.heads);
        let linear = |input, output| Ok::<_, kiln::Error>(Linear::new(input, output)?.without_bias());
        let layer = |_| {
            Ok(Layer {
                input_layernorm: RmsNorm::new(width, EPSILON)?,
                self_attn: Attention {
                    q_proj: linear(width, config.heads * depth)?,
                    k_proj: linear(width, config.kv_heads * depth)?,
                    v_proj: linear(width, config.kv_heads * depth)?,
                    o_proj: linear(config.heads * depth, width)?,
                },
                post_attention_layernorm: RmsNorm::new(width, EPSILON)?,
                mlp: Mlp {
                    gate_proj: linear(width, config.inner)?,
                    up_proj: linear(width, config.inner)?,
                    down_proj: linear(config.inner, width)?,
                },
            })
        };
        let model = Decoder {
            embed_tokens: Embedding::new(config.vocabulary, width)?,
            layers: (0..config.layers).map(layer).collect::<Result<_>>()?,
            norm: RmsNorm::new(width, EPSILON)?,
        };
        let lm_head = if tied { None } else { Some(linear(width, config.vocabulary)?) };
        Ok(Llama { model, lm_head })
    }
}

/// A model with a cache for one text.
pub(crate) struct TextGenerator {
    config: Config,
    llama: Llama,
    cache: Vec<LayerCache>,
    /// Cosines and sines of every position, `[context, depth / 2]`.
    turns: (Tensor, Tensor),
    places: Tensor,
    random: Generator,
}

/// What generating gave, and how long its parts took.
pub(crate) struct Generated {
    pub(crate) tokens: Vec<i64>,
    /// From the prompt to the first of them.
    pub(crate) first: Duration,
    /// All others.
    pub(crate) rest: Duration,
}

impl TextGenerator {
    pub(crate) fn new(config: &Config, llama: Llama) -> Result<TextGenerator> {
        let depth = config.width / config.heads;
        let empty = || Tensor::zeros([config.context, config.kv_heads, depth], DType::F32, Device::Cpu);
        let layer = |_| Ok(LayerCache { keys: Var::new(&empty()?), values: Var::new(&empty()?) });
        let places = Tensor::arange(config.context, DType::I64, Device::Cpu)?;
        let frequencies: Vec<f32> =
            (0..depth / 2).map(|pair| 10_000f32.powf(-2.0 * pair as f32 / depth as f32)).collect();
        let angles = places.to_dtype(DType::F32)?.outer(&Tensor::from_vec(frequencies, depth / 2, Device::Cpu)?)?;
        let cache = (0..config.layers).map(layer).collect::<Result<_>>()?;
        Ok(TextGenerator {
            config: config.clone(),
            llama,
            cache,
            turns: (angles.cos()?, angles.sin()?),
            places,
            random: Generator::new(0),
        })
    }

    /// The logits behind the last of some tokens, `[vocabulary]`; keys and values go to the tokens' positions.
    fn logits(&self, tokens: &Tensor, positions: &Tensor) -> Result<Tensor> {
        let Llama { model, lm_head } = &self.llama;
        let pass = Pass {
            positions,
            turn: (self.turns.0.embedding(positions)?, self.turns.1.embedding(positions)?),
            mask: self.places.le(&positions.unsqueeze(-1)?)?,
        };
        let mut x = model.embed_tokens.forward(tokens)?;
        for (layer, cache) in model.layers.iter().zip(&self.cache) {
            x = (&x + layer.self_attn.forward(&layer.input_layernorm.forward(&x)?, cache, &pass)?)?;
            x = (&x + layer.mlp.forward(&layer.post_attention_layernorm.forward(&x)?)?)?;
        }
        let last = model.norm.forward(&x.narrow(0, x.size(0)? - 1, 1)?)?;
        let logits = match lm_head {
            Some(head) => head.forward(&last)?,
            None => last.linear(&model.embed_tokens.weight.get(), None)?,
        };
        logits.squeeze(0)
    }

    /// The next token, `[1]`: the likeliest, or with a temperature one drawn by its probability (the Gumbel trick).
    fn next(&self, tokens: &Tensor, positions: &Tensor, temperature: f64) -> Result<Tensor> {
        let logits = self.logits(tokens, positions)?;
        if temperature == 0.0 {
            return logits.argmax_keepdim(0);
        }
        let uniform = self.random.rand(self.config.vocabulary, DType::F32, Device::Cpu)?.clamp(1e-20, 1.0 - 1e-7)?;
        let noise = uniform.log()?.neg()?.log()?;
        ((logits / temperature)? - noise)?.argmax_keepdim(0)
    }

    /// Tokens behind a prompt; `prefill` and `decode` run [`TextGenerator::next`] of all of the prompt, and of one token.
    fn run(
        &self,
        prompt: &[i64],
        count: usize,
        prefill: impl Fn(&(Tensor, Tensor)) -> Result<Tensor>,
        decode: impl Fn(&(Tensor, Tensor)) -> Result<Tensor>,
    ) -> Result<Generated> {
        let began = Instant::now();
        let positions = Tensor::arange(prompt.len(), DType::I64, Device::Cpu)?;
        let mut token = prefill(&(Tensor::from_slice(prompt, prompt.len(), Device::Cpu)?, positions))?;
        let mut tokens = vec![token.item::<i64>()?];
        let first = began.elapsed();
        for position in prompt.len()..(prompt.len() + count - 1).min(self.config.context) {
            token = decode(&(token, Tensor::new([position as i64], Device::Cpu)?))?;
            tokens.push(token.item::<i64>()?);
        }
        Ok(Generated { tokens, first, rest: began.elapsed() - first })
    }

    /// Generates op by op, and twice with both passes compiled: the first of the two makes the programs.
    pub(crate) fn compare(&self, prompt: &[i64], count: usize, temperature: f64) -> Result<Vec<Generated>> {
        let next = |(tokens, positions): &(Tensor, Tensor)| self.next(tokens, positions, temperature);
        let options = || Options { mode: Mode::ReduceOverhead, fullgraph: true, ..Options::default() };
        let (prefill, decode) = (kiln::compile_with(next, options()), kiln::compile_with(next, options()));
        kiln::no_grad(|| {
            self.random.reseed(7);
            let mut all = vec![self.run(prompt, count, next, next)?];
            for _ in 0..2 {
                self.random.reseed(7);
                all.push(self.run(prompt, count, |x| prefill.call(x), |x| decode.call(x))?);
            }
            Ok(all)
        })
    }
}

fn main() -> Result<()> {
    const CONTEXT: usize = 256;
    let mut arguments = std::env::args().skip(1);
    let (config, llama) = match arguments.next() {
        None => {
            let (vocabulary, width, inner, context) = (4096, 256, 688, CONTEXT);
            let config = Config { vocabulary, width, inner, layers: 4, heads: 8, kv_heads: 4, context };
            (config.clone(), Llama::new(&config, false)?)
        }
        Some(path) => {
            let tensors = safetensors::load(path, Device::Cpu)?;
            let heads = arguments.next().and_then(|heads| heads.parse().ok()).unwrap_or(8);
            let config = Config::of(&tensors, heads, CONTEXT);
            let llama = Llama::new(&config, !tensors.contains_key("lm_head.weight"))?;
            llama.load_state_dict(&tensors, true)?;
            (config, llama)
        }
    };
    println!("{} parameters, {config:?}", llama.num_parameters());
    let generator = TextGenerator::new(&config, llama)?;
    for (what, temperature) in [("greedy", 0.0), ("temperature 0.8", 0.8)] {
        let all = generator.compare(&[1, 403, 407, 261, 378], 100, temperature)?;
        println!("\n{what}: {:?} …", &all[0].tokens[..10]);
        for (name, run) in ["eager", "compiled, first call", "compiled"].iter().zip(&all) {
            let rate = (run.tokens.len() - 1) as f64 / run.rest.as_secs_f64();
            let first = run.first.as_secs_f64() * 1e3;
            println!("  {name:<21} {first:8.2} ms to the first token, then {rate:7.0} tokens/s");
        }
        assert!(all.iter().all(|run| run.tokens == all[0].tokens), "compiled and eager generate the same tokens");
    }
    Ok(())
}
