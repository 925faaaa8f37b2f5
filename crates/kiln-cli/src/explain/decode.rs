//! `kiln explain --model MODEL`: every launch of one decode step in order, with its bytes, its time and how much of the memory's
//! bandwidth that is, and their sum against the whole step.

use super::launch;
use crate::mode::Mode;
use crate::program::{self, WEIGHTS, dtype};
use kiln::inspect::explain::{Kernel, Segment};
use kiln::{Device, Precision};
use kiln_llm::{DecodeStep, GeneratorOptions, OpenOptions, WeightFormat};
use kiln_terminal::failure::{Failure, Outcome};
use kiln_terminal::numbers::at_least;
use kiln_terminal::output_file::OutputFile;
use kiln_terminal::{Align, Console, Progress, Table, format};
use serde_json::{Value, json};
use std::time::Duration;

/// Which step of which part of a model, and how it is compiled.
#[derive(clap::Args)]
pub struct Step {
    /// Use only so many of the first layers of the model
    #[arg(long, conflicts_with = "file", value_name = "N", value_parser = at_least::<1>, help_heading = "Model")]
    layers: Option<usize>,
    /// Of weights and activations of the model: f32, bf16 or f16 [default: what suits the file]
    #[arg(long, conflicts_with = "file", value_name = "T", help_heading = "Model")]
    dtype: Option<String>,
    /// The weights of linear layers of the model: as-stored, int8, q8_0 or q4_k_m; quantised as they are loaded
    #[arg(long, conflicts_with = "file", default_value_t, value_name = "W", long_help = WEIGHTS, help_heading = "Model")]
    weights: WeightFormat,
    /// Tokens before the step
    #[arg(long, conflicts_with = "file", default_value_t = 16, value_name = "N", value_parser = at_least::<1>, help_heading = "Model")]
    prompt: usize,
    /// Texts at a time
    #[arg(long, conflicts_with = "file", default_value_t = 1, value_name = "N", value_parser = at_least::<1>, help_heading = "Model")]
    batch: usize,
    /// How the model is compiled: default, reduce-overhead, max-autotune or max-autotune-no-cudagraphs
    #[arg(long, conflicts_with = "file", value_enum, default_value_t = Mode::Default, value_name = "M", hide_possible_values = true,
        help_heading = "Model")]
    mode: Mode,
}

/// Measures and prints one step.
pub fn run(model: &str, step: &Step, device: Device, page: Option<OutputFile>, console: &Console) -> Outcome {
    let compile = step.mode.options(false, Precision::default());
    let compile = compile.ok_or_else(|| Failure::unusable("eager mode has no program").advise("--mode default"))?;
    let progress = Progress::start(format!("loading {model}"));
    let dtype = step.dtype.as_deref().map(dtype).transpose()?;
    let (layers, weights) = (step.layers, step.weights);
    let options = OpenOptions { device, dtype, layers, weights, ..OpenOptions::default() };
    let opened = kiln_llm::open(model, &options).map_err(program::failure)?;
    drop(progress);
    let sizes = opened.model.sizes();
    let context = (step.prompt + kiln_llm::DecodeStep::MOST_STEPS + 1).next_multiple_of(64).min(sizes.context);
    // Any tokens will do; the first few are control tokens in most vocabularies.
    let prompt: Vec<u32> = (0..step.prompt).map(|at| ((3 + at) % sizes.vocab) as u32).collect();
    let progress = Progress::start("measuring one decode step");
    let mut generator = opened
        .generator(GeneratorOptions { context, compile: Some(compile), ..GeneratorOptions::default() })
        .map_err(program::failure)?;
    let mut explained = generator.explain_decode(&vec![&prompt[..]; step.batch]).map_err(program::failure)?;
    drop(progress);
    explained.explanation.name = format!("one decode step of {}", opened.name);
    show(&explained, step, console);
    if let Some(mut page) = page {
        page.write(&explained.explanation.to_html())?;
        console.say(format!("\nwrote {}", page.path().display()));
    }
    console.result(|| {
        let mut figures = figures(&explained);
        figures["model"] = json!(opened.name);
        figures["device"] = json!(device.to_string());
        figures["dtype"] = json!(opened.dtype.name());
        figures["weights"] = json!(step.weights.name());
        figures["mode"] = json!(step.mode.name());
        figures["prompt"] = json!(step.prompt);
        figures["batch"] = json!(step.batch);
        figures
    });
    Ok(())
}

/// The launches of a step with the graph that each is of.
fn launches(step: &DecodeStep) -> impl Iterator<Item = (&Segment, &Kernel)> {
    let segments = step.explanation.segments.iter();
    segments.flat_map(|segment| segment.kernels.iter().map(move |kernel| (segment, kernel)))
}

/// Bytes and time of all launches.
fn sum(step: &DecodeStep) -> (u64, Duration) {
    launches(step).fold((0, Duration::ZERO), |(bytes, time), (_, kernel)| {
        (bytes + kernel.read + kernel.written, time + kernel.time)
    })
}

/// The part of the bandwidth of a copy that moving so many bytes in a time is.
fn of_copy(bytes: u64, time: Duration, copy: f64) -> f64 {
    bytes as f64 / time.as_nanos().max(1) as f64 / copy
}

fn show(step: &DecodeStep, asked: &Step, console: &Console) {
    let machine = &step.explanation.machine;
    let place = machine.device.clone().unwrap_or_else(|| format::plural(machine.threads, "thread", "threads"));
    let (prompt, mode, copy) = (asked.prompt, asked.mode.name(), machine.copy);
    let texts = format::plural(asked.batch, "text", "texts");
    console.say(format!("{} after {prompt} tokens of {texts}, {mode}", step.explanation.name));
    console.say(format!("measured on {place}; a copy of its memory runs at {copy:.1} GB/s\n"));
    let mut table = Table::new(&[
        ("", Align::Right),
        ("kernel", Align::Left),
        ("kind", Align::Left),
        ("bytes", Align::Right),
        ("time", Align::Right),
        ("GB/s", Align::Right),
        ("of copy", Align::Right),
        ("variables", Align::Left),
    ])
    .may_drop(&["variables", "kind"]);
    for (number, (segment, kernel)) in launches(step).enumerate() {
        table.row([
            number.to_string(),
            kernel.label.clone(),
            kernel.kind.to_owned(),
            format::bytes(kernel.read + kernel.written),
            time(kernel.time),
            format!("{:.1}", kernel.bandwidth()),
            format!("{:.0} %", 100.0 * kernel.bandwidth() / copy),
            segment.weights_of(kernel).first().map_or(String::new(), |name| (*name).to_owned()),
        ]);
    }
    console.table(&table);
    let (bytes, all) = sum(step);
    let line = |what: &str, took: Duration| {
        let part = 100.0 * of_copy(bytes, took, copy);
        console.say(format!("{what:<32} {:>10} {:>10} {part:>6.0} %", format::bytes(bytes), time(took)));
    };
    console.say("");
    line(&format!("sum of {} launches", launches(step).count()), all);
    line("the launches one after another", step.launches());
    line("a whole step, its token read", step.step.median);
}

fn time(time: Duration) -> String {
    format!("{:.1} µs", time.as_secs_f64() * 1e6)
}

fn figures(step: &DecodeStep) -> Value {
    let copy = step.explanation.machine.copy;
    let launches: Vec<Value> = launches(step)
        .map(|(segment, kernel)| {
            let mut figures = launch(kernel, copy);
            figures["variables"] = json!(segment.weights_of(kernel));
            figures["variant"] = json!(kernel.variant);
            figures
        })
        .collect();
    let (bytes, all) = sum(step);
    json!({
        "copy_gb_s": copy, "bytes": bytes, "launches": launches,
        "sum_s": all.as_secs_f64(), "sum_of_copy": of_copy(bytes, all, copy),
        "together_s": step.launches().as_secs_f64(), "together_of_copy": of_copy(bytes, step.launches(), copy),
        "step_s": step.step.median.as_secs_f64(), "step_min_s": step.step.fastest.as_secs_f64(),
        "step_of_copy": of_copy(bytes, step.step.median, copy),
    })
}
