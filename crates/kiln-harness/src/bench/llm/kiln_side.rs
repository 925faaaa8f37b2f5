//! Kiln's side of `kiln bench decode` and `kiln bench forward --model`: one model in one mode, in a process of its own.

use crate::bench::clock::seconds;
use crate::bench::side::serve;
use crate::bench::{launches, machine};
use kiln::runtime::HostMemory;
use kiln::{Compiled, DType, Device, Dynamic, Mode, Options, Precision, Tensor};
use kiln_llm::{CausalLm, Generator, GeneratorOptions, KvCache, OpenOptions, Request, WeightFormat};
use kiln_runtime::disk::{self, Store};
use kiln_runtime::phase;
use serde_json::{Value, json};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

type Answer = Result<Value, Box<dyn std::error::Error>>;

/// Answers requests until standard input ends.
pub fn run() -> kiln_terminal::failure::Outcome {
    let mut work: Option<Work> = None;
    serve(|request| match (request["do"].as_str(), &mut work) {
        (Some("open"), _) => {
            let (opened, answer) = Work::open(request)?;
            work = Some(opened);
            Ok(answer)
        }
        (Some("turn"), Some(work)) => work.turn(request),
        (Some("memory"), Some(work)) => Ok(work.memory()),
        (Some("check"), Some(work)) => work.check(request),
        (Some("explain"), Some(Work::Forward(forward))) => {
            Ok(json!({"text": launches::table(&forward.pass.explain(&forward.tokens)?)}))
        }
        (other, _) => Err(format!("what is {other:?}?").into()),
    })
}

/// A pass over tokens.
type Function = Box<dyn Fn(&Tensor) -> kiln::Result<Tensor> + Send + Sync>;
/// One that may be compiled.
type Pass = Compiled<Function, Tensor, Tensor>;

enum Work {
    Decode(Box<Decode>),
    Forward(Box<Forward>),
}

struct Decode {
    generator: Generator,
    prompts: Vec<Vec<u32>>,
    spec: Spec,
}

struct Forward {
    pass: Pass,
    tokens: Tensor,
    before: u64,
}

/// What the request says about the model.
#[derive(Clone)]
struct Spec {
    folder: String,
    layers: Option<usize>,
    device: Device,
    dtype: DType,
    weights: WeightFormat,
    compile: Option<Options>,
    context: usize,
    ahead: Option<usize>,
    before: u64,
}

/// The word of a mode in which launches of a GPU do not overlap: in the environment of its process.
pub const SERIAL: &str = "serial";

/// The options of a mode; `+freeze` packs the weights beforehand, `+high` and `+medium` are precisions, `+serial` is one for
/// whoever starts the process.
pub fn options(mode: &str) -> Result<Option<Options>, String> {
    let mut words = mode.split('+');
    let name = words.next().unwrap_or_default();
    let unknown = || format!("there is no mode '{mode}'");
    let mut options = match Mode::named(name) {
        Some(mode) => Options { mode, ..Options::default() },
        None if mode == "eager" => return Ok(None),
        None => return Err(unknown()),
    };
    for word in words {
        match (word, Precision::named(word)) {
            ("freeze", _) => options.freeze = true,
            (SERIAL, _) => {}
            (_, Some(precision)) => options.precision = precision,
            _ => return Err(unknown()),
        }
    }
    Ok(Some(options))
}

impl Work {
    fn open(request: &Value) -> Result<(Work, Value), Box<dyn std::error::Error>> {
        let text = |name: &str| request[name].as_str().ok_or_else(|| format!("no {name}"));
        let number = |name: &str| request[name].as_u64().map(|n| n as usize).ok_or_else(|| format!("no {name}"));
        kiln_cpu::pool::set_threads(number("threads")?);
        if let Some(folder) = request["cache"].as_str() {
            disk::set_store(Some(Store::open(folder, disk::DEFAULT_MOST_BYTES)?));
        }
        if request["weigh"].as_bool() == Some(true) {
            // Code that is read from disk while the model runs is not the model's memory.
            machine::load_program();
        }
        let spec = Spec {
            folder: text("folder")?.to_owned(),
            layers: request["layers"].as_u64().map(|layers| layers as usize),
            device: text("device")?.parse().map_err(|error: kiln::runtime::UnknownDevice| error.to_string())?,
            dtype: dtype(text("dtype")?)?,
            weights: text("weights")?.parse()?,
            compile: options(text("mode")?)?,
            context: number("context")?,
            ahead: request["ahead"].as_u64().map(|ahead| ahead as usize),
            before: machine::resident(),
        };
        let prompts: Vec<Vec<u32>> = serde_json::from_value(request["prompts"].clone())?;
        if text("what")? == "forward" {
            Forward::open(&spec, &prompts)
        } else {
            Decode::open(spec, prompts, number("tokens")?)
        }
    }

    fn turn(&mut self, request: &Value) -> Answer {
        let count = request["repeats"].as_u64().ok_or("no repeats")? as usize;
        let limit = Duration::try_from_secs_f64(request["seconds"].as_f64().ok_or("no seconds")?)?;
        match self {
            Work::Decode(decode) => decode.text(count, limit),
            Work::Forward(forward) => forward.calls(count, limit),
        }
    }

    fn memory(&self) -> Value {
        let before = match self {
            Work::Decode(decode) => decode.spec.before,
            Work::Forward(forward) => forward.before,
        };
        json!({"peak_bytes": machine::resident_peak().saturating_sub(before), "process_bytes": before})
    }

    fn check(&mut self, request: &Value) -> Answer {
        let file = request["file"].as_str().ok_or("no file")?;
        let rows = request["rows"].as_u64().ok_or("no rows")? as usize;
        let logits = match self {
            Work::Decode(decode) => {
                decode.logits(&serde_json::from_value::<Vec<Vec<u32>>>(request["follow"].clone())?)?
            }
            Work::Forward(forward) => {
                let logits = forward.pass.call(&forward.tokens)?;
                let length = logits.shape()[1];
                logits.narrow(1, length.saturating_sub(rows) as i64, rows.min(length))?
            }
        };
        let logits = logits.to_dtype(DType::F32)?;
        let values = logits.reshape([-1])?.to_vec::<f32>()?;
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        std::fs::write(file, bytes)?;
        Ok(json!({"count": values.len()}))
    }
}

fn dtype(name: &str) -> Result<DType, String> {
    [DType::F32, DType::Bf16, DType::F16].into_iter().find(|d| d.name() == name).ok_or_else(|| format!("dtype {name}?"))
}

fn load(spec: &Spec) -> kiln_llm::Result<Arc<dyn CausalLm>> {
    let options = OpenOptions {
        device: spec.device,
        dtype: Some(spec.dtype),
        layers: spec.layers,
        weights: spec.weights,
        ..OpenOptions::default()
    };
    let model = kiln_llm::open(&spec.folder, &options)?.model;
    // The tokenizer is dropped: only tokens are needed here.
    HostMemory::return_freed();
    Ok(model)
}

impl Decode {
    fn open(spec: Spec, prompts: Vec<Vec<u32>>, tokens: usize) -> Result<(Work, Value), Box<dyn std::error::Error>> {
        let model = load(&spec)?;
        let weights = model.weight_bytes();
        let (context, compile, ahead) = (spec.context, spec.compile.clone(), spec.ahead);
        let options = GeneratorOptions { context, compile, ahead, ..GeneratorOptions::default() };
        let mut decode = Decode { generator: Generator::new(model, options)?, prompts, spec };
        // The first token after the first one makes the program that all others use.
        let start = Instant::now();
        let (first, phases) = phase::recorded(|| decode.text(1, Duration::MAX));
        let first_call = start.elapsed();
        first?;
        // Launches are recorded as one when a program runs again.
        let (answer, later) = phase::recorded(|| decode.text(tokens, Duration::MAX));
        let mut answer = answer?;
        answer["first_call_s"] = json!(first_call.as_secs_f64());
        answer["first_call_ms"] = milliseconds(&phases, Some(first_call));
        answer["later_ms"] = milliseconds(&later, None);
        answer["weights_bytes"] = json!(weights);
        answer["kv_bytes"] = json!(decode.generator.cache_bytes());
        answer["launches"] = json!(decode.generator.kernels_per_token());
        answer["kernels"] = json!(kernels(&decode.spec));
        answer["ahead"] = json!(decode.generator.steps_ahead());
        Ok((Work::Decode(Box::new(decode)), answer))
    }

    /// Texts of so many tokens after the first, each timed from the one before until its number is here.
    fn text(&mut self, tokens: usize, limit: Duration) -> Answer {
        let request = Request { max_tokens: tokens + 1, ..Request::default() };
        let texts: Vec<(&[u32], &Request)> = self.prompts.iter().map(|prompt| (&prompt[..], &request)).collect();
        let begin = Instant::now();
        let (mut last, mut samples, mut prefill) = (begin, Vec::with_capacity(tokens), None);
        let texts = self.generator.generate_each(&texts, |row, _, _| {
            let now = Instant::now();
            if row == 0 {
                let took = (now - last).as_secs_f64() * 1e3;
                match prefill {
                    None => prefill = Some(took),
                    Some(_) => samples.push(took),
                }
                last = now;
            }
            if now - begin > limit { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        let ids: Vec<Vec<u32>> = texts.into_iter().map(|text| text.ids).collect();
        // The last steps of a text were launched by earlier ones, which had as much more to do.
        let drained = self.generator.steps_ahead().min(samples.len().saturating_sub(1));
        samples.truncate(samples.len() - drained);
        Ok(json!({"prefill_ms": prefill, "ms": samples, "drained": drained, "ids": ids}))
    }

    /// Logits after the prompts and after each token that is to follow them, `[texts, 1 + tokens, vocabulary]`, by programs
    /// compiled in the same mode.
    fn logits(&mut self, follow: &[Vec<u32>]) -> kiln_llm::Result<Tensor> {
        let texts: Vec<(&[u32], &[u32])> =
            self.prompts.iter().map(Vec::as_slice).zip(follow.iter().map(Vec::as_slice)).collect();
        Ok(Tensor::stack(&self.generator.logits(&texts)?, 0)?)
    }
}

/// The pass over whole prompts, its argument, and the bytes of its cache.
fn pass(
    spec: &Spec,
    model: &Arc<dyn CausalLm>,
    prompts: &[Vec<u32>],
) -> Result<(Pass, Tensor, usize), Box<dyn std::error::Error>> {
    let (batch, length) = (prompts.len(), prompts.first().map_or(0, Vec::len));
    let device = model.device();
    let cache = KvCache::fixed(model.as_ref(), batch, length)?;
    let bytes = cache.bytes();
    let positions = (0..batch).flat_map(|_| 0..length as i64).collect();
    let positions = Tensor::from_vec(positions, [batch, length], device)?;
    let numbers: Vec<i64> = prompts.iter().flatten().map(|&token| token.into()).collect();
    let tokens = Tensor::from_vec(numbers, [batch, length], device)?;
    let model = model.clone();
    let f: Function = Box::new(move |tokens| model.logits(&model.hidden(tokens, &cache.step(&positions)?)?));
    let how = match &spec.compile {
        Some(how) => Options { fullgraph: true, dynamic: Dynamic::Static, ..how.clone() },
        None => Options { disable: true, ..Options::default() },
    };
    Ok((kiln::compile_with(f, how), tokens, bytes))
}

impl Forward {
    fn open(spec: &Spec, prompts: &[Vec<u32>]) -> Result<(Work, Value), Box<dyn std::error::Error>> {
        let model = load(spec)?;
        let (pass, tokens, kv) = pass(spec, &model, prompts)?;
        let (outcome, phases) = phase::recorded(|| seconds(|| pass.call(&tokens)));
        let (_, first) = outcome?;
        for _ in 0..3 {
            pass.call(&tokens)?;
        }
        let phases = milliseconds(&phases, Some(Duration::from_secs_f64(first)));
        let answer = json!({
            "first_call_s": first, "first_call_ms": phases, "weights_bytes": model.weight_bytes(), "kv_bytes": kv,
            "launches": pass.programs().first().map(|program| program.kernels.len()),
            "kernels": kernels(spec),
        });
        Ok((Work::Forward(Box::new(Forward { pass, tokens, before: spec.before })), answer))
    }

    fn calls(&self, count: usize, limit: Duration) -> Answer {
        let begin = Instant::now();
        let mut samples = Vec::with_capacity(count);
        while samples.len() < count && begin.elapsed() <= limit {
            let (logits, seconds) = seconds(|| self.pass.call(&self.tokens))?;
            samples.push(seconds * 1e3);
            drop(logits);
        }
        Ok(json!({"ms": samples}))
    }
}

/// The time of each phase by name, in the order in which they first ended; and what of the whole is in none of them. Runs are left out
/// where there is no whole: there is one for every token.
fn milliseconds(phases: &[(&'static str, Duration)], whole: Option<Duration>) -> Value {
    let mut sums: Vec<(&str, Duration)> = Vec::new();
    for &(name, took) in phases.iter().filter(|(name, _)| whole.is_some() || *name != phase::RUN) {
        match sums.iter_mut().find(|(known, _)| *known == name) {
            Some((_, sum)) => *sum += took,
            None => sums.push((name, took)),
        }
    }
    if let Some(whole) = whole {
        let known: Duration = sums.iter().map(|(_, sum)| *sum).sum();
        sums.push(("rest", whole.saturating_sub(known)));
    }
    Value::Object(sums.into_iter().map(|(name, sum)| (name.to_owned(), json!(sum.as_secs_f64() * 1e3))).collect())
}

/// Kernels compiled so far; nothing to tell of eager mode, where every op is one.
fn kernels(spec: &Spec) -> Option<u64> {
    spec.compile.as_ref().map(|_| kiln_runtime::kernel_cache::stats().misses)
}
