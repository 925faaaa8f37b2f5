//! `kiln` alone, or `kiln demo`: the model that is part of the program tells a story op by op and compiled, and a table says what
//! compiling cost and brought, and whether every token is the same.

use crate::demo_kernel;
use crate::mode::Mode;
use crate::tell::{Told, tell};
use kiln::Precision;
use kiln_llm::{Generator, GeneratorOptions, Opened, Request, Sampling, TextStream, Tokenizer};
use kiln_runtime::event::{self, Category, Event};
use kiln_terminal::failure::{Failure, Outcome};
use kiln_terminal::numbers::{at_least, from_zero};
use kiln_terminal::output_file::OutputFile;
use kiln_terminal::{Align, Column, Console, Table, format};
use serde_json::{Value, json};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const EXAMPLES: &str = "\
Examples:
  kiln demo
  kiln demo --prompt 'Tim had a red ball' --tokens 100
  kiln demo --temperature 0.8 --seed 7     # drawn, and still the same tokens in every mode
  kiln demo --json                         # the figures as one object
  kiln demo --svg demo.svg                 # a picture of what is shown
  kiln demo --kernel                       # one function, from its graph to its machine code";

const PROMPT: &str = "Once upon a time";
/// With the prompt above, to the end of a sentence.
const TOKENS: usize = 127;

/// Options of `kiln demo`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// How the story begins
    #[arg(long, default_value = PROMPT)]
    prompt: String,
    /// How many tokens it goes on for
    #[arg(long, default_value_t = TOKENS, value_name = "N", value_parser = at_least::<2>)]
    tokens: usize,
    /// How freely tokens are drawn; 0 takes the likeliest
    #[arg(long, default_value_t = 0.0, value_name = "T", value_parser = from_zero)]
    temperature: f64,
    /// What the draws begin with
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Print the figures as one JSON object
    #[arg(long)]
    json: bool,
    /// Show one function instead, from its graph to its machine code
    #[arg(long, conflicts_with_all = ["json", "svg", "prompt", "tokens", "temperature", "seed"])]
    kernel: bool,
    /// Write a picture (SVG) of what is shown, with its colours, to this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

impl Default for Arguments {
    fn default() -> Arguments {
        Arguments {
            prompt: PROMPT.into(),
            tokens: TOKENS,
            temperature: 0.0,
            seed: 0,
            json: false,
            kernel: false,
            svg: None,
        }
    }
}

/// Those that tell the story: the first is what the others are held against.
const CONTENDERS: [Mode; 3] = [Mode::Eager, Mode::Default, Mode::ReduceOverhead];
/// The one whose story is shown beside the eager one.
const SHOWN: usize = 2;

/// One way to run the model.
struct Contender {
    mode: Mode,
    generator: Generator,
    told: Told,
    kernels: Option<usize>,
    /// Tokens a second, one figure a round.
    rates: Vec<f64>,
    /// The first token that is not eager's, with both.
    difference: Option<Difference>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Difference {
    at: usize,
    here: Option<u32>,
    eager: Option<u32>,
}

/// Where two texts part.
fn difference(eager: &[u32], here: &[u32]) -> Option<Difference> {
    let at = (0..eager.len().max(here.len())).find(|&at| eager.get(at) != here.get(at))?;
    Some(Difference { at, here: here.get(at).copied(), eager: eager.get(at).copied() })
}

/// Tells the story.
pub fn run(arguments: &Arguments) -> Outcome {
    if arguments.kernel {
        return demo_kernel::run();
    }
    let console = Console::new(arguments.json);
    let mut picture = OutputFile::maybe(arguments.svg.as_deref())?;
    let console = if arguments.svg.is_some() { console.recorded() } else { console };
    let paint = console.paint;
    // What compiling costs is a part of the show, so that nothing comes from the disk.
    kiln_runtime::disk::set_store(None);
    let opened = kiln_llm::embedded()?;
    let tokenizer = opened.tokenizer.clone().ok_or("the embedded model has no tokenizer")?;
    let prompt = tokenizer.encode(&arguments.prompt, true)?;
    let room = opened.model.sizes().context.saturating_sub(prompt.len());
    if arguments.tokens > room {
        let message =
            format!("{} of the model's context are left for the story", format::plural(room, "token", "tokens"));
        return Err(Failure::unusable(message).advise(format!("--tokens {}", room.max(2))).into());
    }
    let request = Request {
        max_tokens: arguments.tokens,
        sampling: Sampling { temperature: arguments.temperature, seed: arguments.seed, ..Sampling::default() },
        ..Request::default()
    };
    introduce(&console, &opened);

    let mut contenders: Vec<Contender> = Vec::new();
    for (place, mode) in CONTENDERS.into_iter().enumerate() {
        let show = (place == 0 || place == SHOWN).then(|| (&console, &tokenizer, &arguments.prompt[..]));
        let eager = contenders.first().map(|eager| &eager.told.ids[..]);
        let contender = first_text(&opened, &prompt, &request, mode, show, eager)?;
        contenders.push(contender);
    }
    measure(&mut contenders, &prompt, &request)?;

    console.say("");
    console.table(&table(&contenders, &console));
    console.say("");
    let equal = contenders.iter().all(|contender| contender.difference.is_none());
    let ids = &contenders[0].told.ids;
    if equal {
        let shown: Vec<String> = ids.iter().take(6).map(u32::to_string).collect();
        let all = format!("all {} tokens equal in every mode", ids.len());
        console.hang(format!("  {} {all}  {}", paint.green("✓"), paint.dim(format!("[{} …]", shown.join(" ")))), 2);
    }
    let rounds = contenders[0].rates.len();
    let note = format!("median of {rounds} interleaved rounds; compile: capture to machine code, no cache");
    console.hang(format!("  {}", paint.dim(note)), 0);
    console.say("");
    let next = paint.cyan("kiln run stories260K --prompt 'Tim had a red ball'");
    console.hang(format!("  {} {next}", paint.dim("next")), 5);
    console.say(format!("       {}", paint.cyan("kiln doctor")));

    console.result(|| figures(arguments, &opened, &prompt, &tokenizer, &contenders));
    if let Some(file) = &mut picture {
        file.write(&kiln_terminal::svg::render(&console.recording(), "cargo run --release"))?;
    }
    match contenders.iter().find_map(|contender| Some((contender.mode.name(), contender.difference?))) {
        None => Ok(()),
        Some((name, Difference { at, here, eager })) => {
            let word = |token: Option<u32>| token.map_or("the end".to_owned(), |token| token.to_string());
            let message = format!("{name}: token {at} is {}, and {} when run op by op", word(here), word(eager));
            Err(Failure::new(message).advise("kiln selftest").into())
        }
    }
}

/// Says who speaks.
fn introduce(console: &Console, opened: &Opened) {
    let paint = console.paint;
    let threads = kiln_cpu::pool::threads();
    let facts = [
        opened.name.clone(),
        format!("{} layers", opened.model.sizes().layers),
        format!("{} of weights, in this binary", format::bytes(opened.model.weight_bytes() as u64)),
        opened.dtype.name().to_owned(),
        format!("{} on {}", kiln_cpu::features::Isa::get().name(), format::plural(threads, "thread", "threads")),
    ];
    console.say("");
    console.hang(format!("  {}  {}", paint.ember("kiln"), paint.dim(facts.join(" · "))), 6);
}

/// The first text of a contender: its programs are made on the way.
fn first_text(
    opened: &Opened,
    prompt: &[u32],
    request: &Request,
    mode: Mode,
    show: Option<(&Console, &Arc<Tokenizer>, &str)>,
    eager: Option<&[u32]>,
) -> Result<Contender, Box<dyn std::error::Error>> {
    let options = GeneratorOptions {
        context: opened.model.sizes().context,
        compile: mode.options(false, Precision::Highest),
        ..GeneratorOptions::default()
    };
    let mut generator = Generator::new(opened.model.clone(), options)?;
    // Each begins with nothing, not with the kernels of the one before.
    kiln_runtime::kernel_cache::clear();
    let told = match show {
        None => tell(&mut generator, prompt, request, None, |_| ControlFlow::Continue(()))?,
        Some((console, tokenizer, beginning)) => {
            let paint = console.paint;
            let (title, bar) = match mode {
                Mode::Eager => (paint.bold("eager"), paint.dim("▏")),
                _ => (paint.ember("compiled"), paint.ember("▏")),
            };
            console.say(format!("\n  {title}"));
            let mut column = Column::new(format!("  {bar} "), kiln_terminal::width().min(100));
            let mut text = TextStream::new(tokenizer.clone(), &[]).after(prompt)?;
            console.stream(column.push(beginning));
            let told = tell(&mut generator, prompt, request, None, |id| {
                if let Ok(part) = text.push(id) {
                    console.stream(column.push(&part));
                }
                ControlFlow::Continue(())
            })?;
            console.stream(column.push(&text.finish()?));
            console.stream(column.finish());
            let took = format::seconds((told.compile + told.first_token + told.decoding).as_secs_f64());
            let compile = format::seconds(told.compile.as_secs_f64());
            let words = format!("{} tokens in {took}, {compile} of it compiling", told.ids.len());
            console.hang(format!("  {bar} {}", paint.dim(words)), 2);
            told
        }
    };
    let kernels = match mode {
        Mode::Eager => Some(launches_a_token(&mut generator, prompt, request)?),
        _ => generator.kernels_per_token(),
    };
    let difference = eager.and_then(|eager| difference(eager, &told.ids));
    Ok(Contender { mode, generator, told, kernels, rates: Vec::new(), difference })
}

/// Kernels that run for one further token, counted.
fn launches_a_token(generator: &mut Generator, prompt: &[u32], request: &Request) -> kiln_llm::Result<usize> {
    let mut count = |max_tokens| -> kiln_llm::Result<usize> {
        let launched = Arc::new(AtomicUsize::new(0));
        let into = launched.clone();
        let listening = event::listen(&[Category::Run], move |event| {
            if let Event::ProgramRun { launches, .. } = event {
                into.fetch_add(*launches, Ordering::Relaxed);
            }
        });
        generator.generate(prompt, &Request { max_tokens, ..request.clone() })?;
        drop(listening);
        Ok(launched.load(Ordering::Relaxed))
    };
    Ok(count(2)?.saturating_sub(count(1)?))
}

/// Every contender tells the story once a round.
fn measure(contenders: &mut [Contender], prompt: &[u32], request: &Request) -> Outcome {
    const ROUNDS: std::ops::RangeInclusive<usize> = 3..=9;
    const PATIENCE: Duration = Duration::from_millis(2500);
    let began = Instant::now();
    for round in 0..*ROUNDS.end() {
        if round >= *ROUNDS.start() && began.elapsed() > PATIENCE {
            break;
        }
        let eager = contenders[0].told.ids.clone();
        for contender in &mut *contenders {
            let text = contender.generator.generate(prompt, request)?;
            contender.rates.push(text.tokens_per_second());
            contender.difference = contender.difference.or(difference(&eager, &text.ids));
        }
    }
    Ok(())
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 0 => (sorted[middle - 1] + sorted[middle]) / 2.0,
        _ => sorted[middle],
    }
}

fn table(contenders: &[Contender], console: &Console) -> Table {
    let paint = console.paint;
    let mut table = Table::new(&[
        ("mode", Align::Left),
        ("compile", Align::Right),
        ("tokens/s", Align::Right),
        ("speed-up", Align::Right),
        ("kernels/token", Align::Right),
        ("tokens", Align::Left),
    ]);
    let slow = median(&contenders[0].rates);
    let best = contenders.iter().map(|contender| median(&contender.rates)).fold(0.0, f64::max);
    for contender in contenders {
        let rate = median(&contender.rates);
        let is_eager = contender.mode == Mode::Eager;
        let ratio = format::ratio(rate / slow);
        let ratio = match rate == best {
            true => paint.bold_green(ratio),
            false if is_eager => paint.dim(ratio),
            false => paint.green(ratio),
        };
        let tokens = match contender.difference {
            _ if is_eager => paint.dim("reference"),
            None => paint.green("equal"),
            Some(Difference { at, .. }) => paint.bold_red(format!("differ at {at}")),
        };
        table.row([
            paint.bold(contender.mode.name()),
            format::seconds(contender.told.compile.as_secs_f64()),
            format::rate(rate),
            ratio,
            contender.kernels.map_or("–".into(), |kernels| format::count(kernels as u64)),
            tokens,
        ]);
    }
    table
}

fn figures(
    arguments: &Arguments,
    opened: &Opened,
    prompt: &[u32],
    tokenizer: &Tokenizer,
    contenders: &[Contender],
) -> Value {
    let slow = median(&contenders[0].rates);
    let modes = contenders.iter().map(|contender| {
        let rate = median(&contender.rates);
        json!({
            "mode": contender.mode.name(), "compile_s": contender.told.compile.as_secs_f64(),
            "first_token_ms": contender.told.first_token.as_secs_f64() * 1e3, "tokens_per_s": rate, "speed_up": rate / slow,
            "kernels_per_token": contender.kernels, "tokens_equal": contender.difference.is_none(),
            "token_ids": contender.told.ids,
        })
    });
    let ids = &contenders[0].told.ids;
    json!({
        "model": opened.name, "device": "cpu", "dtype": opened.dtype.name(), "isa": kiln_cpu::features::Isa::get().name(),
        "threads": kiln_cpu::pool::threads(), "prompt": arguments.prompt, "prompt_ids": prompt, "token_ids": ids,
        "text": tokenizer.decode(ids, true).unwrap_or_default(), "rounds": contenders[0].rates.len(),
        "tokens_equal": contenders.iter().all(|contender| contender.difference.is_none()),
        "modes": modes.collect::<Vec<Value>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_part_where_the_first_token_differs_or_one_ends() {
        assert_eq!(difference(&[1, 2], &[1, 2]), None);
        assert_eq!(difference(&[1, 2], &[1, 3]), Some(Difference { at: 1, here: Some(3), eager: Some(2) }));
        assert_eq!(difference(&[1, 2], &[1]), Some(Difference { at: 1, here: None, eager: Some(2) }));
    }

    #[test]
    fn the_middle_of_figures() {
        assert_eq!((median(&[3.0, 1.0, 2.0]), median(&[4.0, 1.0])), (2.0, 2.5));
    }
}
