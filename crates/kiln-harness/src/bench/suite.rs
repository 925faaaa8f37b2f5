//! `kiln bench suite`: the published table in one command, each case with its peers, within a time. On the CPU: decoding of four models and,
//! where there are any, of GGUF files; forward passes of 16, 128 and 512 tokens. On a GPU: decoding of Llama-3-8B and Llama-3.2-1B in bf16, of
//! sixteen texts, and with quantised weights (which peers do not have); forward passes of 512 and 2048 tokens.

use super::llm::Plan;
use super::llm::models::{self, Source};
use super::llm::sides::{self, Role};
use super::outputs::Outputs;
use super::record::{self, Record, best_kiln, best_peer};
use super::{Arguments, language, machine, table};
use kiln::DType;
use kiln_llm::WeightFormat;
use kiln_terminal::failure::{Failure, Outcome};
use kiln_terminal::{Align, Paint, Table, format};
use std::path::{Path, PathBuf};

/// One comparison of the suite.
struct Case {
    what: &'static str,
    model: &'static str,
    layers: Option<usize>,
    prompts: &'static [usize],
    /// Texts at a time.
    batch: usize,
    weights: WeightFormat,
    /// How many times as fast as the best peer it is meant to be.
    goal: f64,
}

impl Case {
    const fn new(what: &'static str, model: &'static str, prompts: &'static [usize], goal: f64) -> Case {
        Case { what, model, layers: None, prompts, batch: 1, weights: WeightFormat::AsStored, goal }
    }

    fn name(&self) -> String {
        let batch = if self.batch > 1 { format!(" batch {}", self.batch) } else { String::new() };
        let weights = match self.weights {
            WeightFormat::AsStored => String::new(),
            format => format!(" {format}"),
        };
        format!("{} {}{batch}{weights}", self.what, self.model)
    }
}

const ON_CPU: [Case; 7] = [
    Case::new("decode", "stories260K", &[16], 10.0),
    Case::new("decode", "stories15M", &[16], 3.0),
    Case::new("decode", "smollm2-135m", &[16], 1.2),
    Case { layers: Some(1), ..Case::new("decode", "llama-3.2-1b", &[16], 1.2) },
    Case::new("forward", "smollm2-135m", &[16, 128, 512], 1.1),
    Case::new("forward", "stories260K", &[16, 128, 512], 1.1),
    Case::new("forward", "stories15M", &[16, 128], 1.1),
];

const ON_GPU: [Case; 6] = [
    Case::new("decode", "llama-3-8b", &[128], 1.25),
    Case { batch: 16, ..Case::new("decode", "llama-3-8b", &[128], 1.25) },
    Case::new("decode", "llama-3.2-1b", &[128], 1.5),
    Case { weights: WeightFormat::Int8, ..Case::new("decode", "llama-3-8b", &[128], 1.0) },
    Case { weights: WeightFormat::Q4_K_M, ..Case::new("decode", "llama-3-8b", &[128], 1.0) },
    Case::new("forward", "llama-3-8b", &[512, 2048], 1.15),
];

/// How many times sooner a first call is meant to be than torch.compile's.
const SOONER: f64 = 100.0;

/// A row of the last table.
struct Verdict {
    goal: f64,
    records: Vec<Record>,
}

/// Runs every case, writing the files anew after each.
pub fn run(arguments: &Arguments, outputs: &mut Outputs) -> Outcome {
    let deadline = arguments.deadline(60.0)?;
    sides::can_start(&roles(arguments, "decode")?, &arguments.python())?;
    let threads = arguments.threads.first().copied().unwrap_or_else(machine::cores);
    let (cases, dtype): (&[Case], DType) = match arguments.device.as_str() {
        "cpu" => (&ON_CPU, DType::F32),
        _ => (&ON_GPU, DType::Bf16),
    };
    let (mut verdicts, mut records): (Vec<Verdict>, Vec<Record>) = (Vec::new(), Vec::new());
    let mut run = |what, source: &Source, prompt, batch, roles, goal| -> Outcome {
        let plan = language::plan(arguments, what, source, threads, prompt, roles)?;
        let found = Plan { batch, dtype: dtype.name().to_owned(), ..plan }.until(deadline).run()?;
        table::print(&found);
        records.extend(found.iter().cloned());
        verdicts.push(Verdict { goal, records: found });
        outputs.write(&records)
    };
    for case in cases.iter().filter(|case| case.name().contains(&arguments.filter)) {
        let source = source(case, dtype, arguments.models.as_deref())?;
        for &prompt in case.prompts {
            let roles = match case.weights {
                WeightFormat::AsStored => roles(arguments, case.what)?,
                // Peers read weights as they are stored.
                _ => kiln(arguments)?,
            };
            run(case.what, &source, prompt, case.batch, roles, case.goal)?;
        }
    }
    if arguments.device != "cpu" {
        print(&verdicts);
        return record::failed(&records);
    }
    for file in ggufs(arguments.models.as_deref()) {
        let source = models::prepare(&file.display().to_string(), DType::F32, None, WeightFormat::AsStored)?;
        if source.name.contains(&arguments.filter) {
            let mut roles = kiln(arguments)?;
            roles.extend(Role::peer("llama.cpp:default"));
            run("decode", &source, 16, 1, roles, 1.0)?;
        }
    }
    print(&verdicts);
    record::failed(&records)
}

/// The files of a case: of the models' folder, or random ones of the same shape.
fn source(case: &Case, dtype: DType, folder: Option<&Path>) -> Result<Source, Box<dyn std::error::Error>> {
    let stored = folder.map(|folder| folder.join(case.model)).filter(|path| path.join("model.safetensors").exists());
    match stored {
        Some(path) => models::prepare(&path.display().to_string(), dtype, case.layers, case.weights),
        None => models::prepare(case.model, dtype, case.layers, case.weights),
    }
}

/// GGUF files of the models' folder.
fn ggufs(folder: Option<&Path>) -> Vec<PathBuf> {
    let entries = folder.and_then(|folder| std::fs::read_dir(folder).ok()).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> =
        entries.map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|end| end == "gguf")).collect();
    files.sort();
    files
}

fn kiln(arguments: &Arguments) -> Result<Vec<Role>, Failure> {
    arguments.modes.iter().map(|mode| Role::kiln(mode).map_err(Failure::unusable)).collect()
}

fn roles(arguments: &Arguments, what: &str) -> Result<Vec<Role>, Failure> {
    let mut roles = kiln(arguments)?;
    if arguments.peer_modes.is_empty() {
        let torch = Role::torch(&arguments.device, !arguments.no_torch_compile);
        // The lean one is written for decoding; a pass over many tokens is the same work in both.
        roles.extend(torch.into_iter().filter(|role| what == "decode" || role.side == "torch"));
    }
    for text in &arguments.peer_modes {
        roles.push(Role::peer(text).map_err(Failure::unusable)?);
    }
    Ok(roles)
}

/// Everything at a glance, with the goals.
fn print(verdicts: &[Verdict]) {
    let paint = Paint::stdout();
    let columns = ["median", "its median", "×", "× of minima", "goal", "", "× torch.compile", "first call sooner"];
    let mut titles = vec![("measured", Align::Left), ("Kiln's best", Align::Left), ("best of the others", Align::Left)];
    titles.extend(columns.map(|title| (title, Align::Right)));
    let mut rows = Table::new(&titles);
    for Verdict { goal, records } in verdicts {
        let Some(kiln) = best_kiln(records) else { continue };
        let s = &kiln.subject;
        let measured = format!("{} {}, {} tokens", s.what, s.model, s.prompt);
        let median = |record: &Record| record.statistics().map_or("–".into(), |s| table::duration(s.median));
        let Some(peer) = best_peer(records) else {
            rows.row([measured, kiln.label(), "–".into(), median(kiln)]);
            continue;
        };
        let times = kiln.ratio(peer).unwrap_or(f64::NAN);
        let met = |met: bool| if met { paint.green("met") } else { paint.red("missed") };
        // torch.compile as people call it: of transformers' model.
        let usual = best_peer(records.iter().filter(|r| r.side == "torch" && r.is_compiled()));
        let sooner = match (kiln.first_call_s, table::first_call_of_peers(records)) {
            (Some(kiln), Some(peer)) if kiln > 0.0 => peer / kiln,
            _ => f64::NAN,
        };
        let first = if sooner.is_finite() {
            format!("{} {}", format::ratio(sooner), met(sooner >= SOONER))
        } else {
            "–".into()
        };
        rows.row([
            measured,
            kiln.label(),
            peer.label(),
            median(kiln),
            median(peer),
            paint.bold(format::ratio(times)),
            kiln.ratio_of_minima(peer).map_or("–".into(), format::ratio),
            format::ratio(*goal),
            met(times >= *goal),
            usual.and_then(|usual| kiln.ratio(usual)).map_or("–".into(), format::ratio),
            first,
        ]);
    }
    println!("\n{}", paint.bold("Kiln against the fastest of the others, by medians"));
    print!("{}", rows.render(paint));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_files_has_all_the_shapes() {
        for case in ON_CPU.iter().chain(&ON_GPU) {
            assert!(kiln_llm::Preset::named(case.model).is_some(), "{}", case.name());
        }
        let source = source(&ON_CPU[1], DType::F32, None).expect("random weights");
        assert_eq!((source.vocabulary, source.longest), (32_000, 256));
        assert!(source.path.join("model.safetensors").exists());
    }
}
