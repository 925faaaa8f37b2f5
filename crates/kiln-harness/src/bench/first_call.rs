//! `kiln bench first-call`: what the first call of a compiled transformer costs in a process that has compiled nothing yet,
//! and where the time goes. Every sample is a process of its own.

use super::Arguments;
use super::clock::seconds;
use super::forward::{Case, Function, Part};
use super::outputs::Outputs;
use super::peer::{SCRIPT, TorchPeer};
use crate::models::{Config, Family};
use kiln::{Compiled, Tensor};
use kiln_runtime::phase;
use kiln_terminal::failure::{Failure, Outcome};
use kiln_terminal::output;
use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;

/// The parts of a first call, in order. What is in none of the others is capture.
const PHASES: [&str; 6] = ["capture", "passes", "schedule", "code", "plan", "run"];

const TOKENS: usize = 16;

fn cases() -> Vec<Case> {
    let both = [Family::Gpt, Family::Llama].into_iter().flat_map(|family| [(family, 4), (family, 32)]);
    both.map(|(family, layers)| case(family, layers)).collect()
}

fn case(family: Family, layers: usize) -> Case {
    let config = match family {
        Family::Gpt => Config::gpt(layers, 256, 8, 1000, 256),
        Family::Llama => Config::llama(layers, 256, 8, 1000, 256),
    };
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    Case { part: Part::Transformer, config, tokens: TOKENS, threads }
}

/// One sample: the first call in this process, as a line of JSON.
pub fn cold(text: &str) -> Outcome {
    let wanted = cases().into_iter().find(|case| case.name() == text).ok_or("no such case")?;
    let (f, x) = wanted.build()?;
    let compiled: Compiled<Function, Tensor, Tensor> = kiln::compile(f);
    let (outcome, phases) = phase::recorded(|| seconds(|| compiled.call(&x)));
    let (_, total) = outcome?;
    let (_, run) = seconds(|| compiled.call(&x))?;
    let stats = kiln_runtime::kernel_cache::stats();
    let mut line = json!({"total": total, "run": run, "kernels": stats.misses, "launches": stats.hits + stats.misses});
    let mut rest = total - run;
    for name in &PHASES[1..5] {
        let spent: f64 = phases.iter().filter(|(phase, _)| phase == name).map(|(_, took)| took.as_secs_f64()).sum();
        rest -= spent;
        line[*name] = spent.into();
    }
    // Only where there is a disk cache.
    for name in ["key", "read", "store"] {
        let spent: f64 = phases.iter().filter(|(phase, _)| *phase == name).map(|(_, took)| took.as_secs_f64()).sum();
        rest -= spent;
        line[name] = spent.into();
    }
    line["capture"] = rest.max(0.0).into();
    println!("{line}");
    Ok(())
}

/// Samples every case in new processes and prints a table.
pub fn run(arguments: &Arguments, outputs: &mut Outputs, python: &str) -> Outcome {
    print!("{:<26} {:>8} {:>9}", "first call of", "min", "median");
    PHASES.iter().for_each(|name| print!(" {name:>8}"));
    println!(" {:>8} {:>8} {:>8} {:>13}", "kernels", "launches", "warm", "torch.compile");
    let (mut rows, mut failed) = (Vec::new(), None);
    for case in cases().into_iter().filter(|case| case.name().contains(&arguments.filter)) {
        let mut samples = Vec::new();
        for _ in 0..5 * arguments.turns {
            samples.push(sample(&case.name(), None)?);
        }
        let total = |sample: &Value| sample["total"].as_f64().unwrap_or(f64::NAN);
        samples.sort_by(|a, b| total(a).total_cmp(&total(b)));
        let (fastest, middle) = (&samples[0], &samples[samples.len() / 2]);
        print!("{:<26} {:>6.1}ms {:>7.1}ms", case.name(), total(fastest) * 1e3, total(middle) * 1e3);
        PHASES.iter().for_each(|name| print!(" {:>6.2}ms", fastest[name].as_f64().unwrap_or(f64::NAN) * 1e3));
        print!(" {:>8} {:>8}", fastest["kernels"], fastest["launches"]);
        let warm = warm(&case.name(), samples.len())?;
        print!(" {:>6.1}ms", total(&warm) * 1e3);
        // A long run is watched as it goes.
        output::flush();
        let torch = match arguments.peer.contains(&super::Peer::Torch) {
            true if !arguments.no_torch_compile => {
                // A process of its own as well, so that nothing is compiled yet.
                let first = TorchPeer::start(python, SCRIPT)
                    .and_then(|mut peer| peer.setup(case.to_json(), case.threads, &["compile"]));
                match first {
                    Ok(setup) => {
                        print!(" {:>12.1}s", setup.first[0]);
                        Some(setup.first[0])
                    }
                    Err(error) => {
                        print!("  {error}");
                        failed = failed.or(Some(Failure::new(format!("{}: {error}", case.name()))));
                        None
                    }
                }
            }
            _ => None,
        };
        println!();
        rows.push(json!({
            "case": case.to_json(), "name": case.name(), "fastest_s": fastest, "median_s": middle, "samples": samples.len(),
            "warm_s": warm, "torch_compile_s": torch,
        }));
    }
    outputs.write_lines(rows)?;
    failed.map_or(Ok(()), |failed| Err(failed.into()))
}

/// The fastest first call of a case in new processes that find the program on disk.
fn warm(name: &str, samples: usize) -> Result<Value, Box<dyn std::error::Error>> {
    let folder = std::env::temp_dir().join(format!("kiln-first-call-{}", std::process::id()));
    sample(name, Some(&folder))?;
    let warm: Result<Vec<Value>, _> = (0..samples).map(|_| sample(name, Some(&folder))).collect();
    std::fs::remove_dir_all(&folder)?;
    let total = |sample: &Value| sample["total"].as_f64().unwrap_or(f64::NAN);
    warm?.into_iter().min_by(|a, b| total(a).total_cmp(&total(b))).ok_or_else(|| "no samples".into())
}

/// The first call of a case in a new process, with a disk cache in a folder or without one.
fn sample(name: &str, folder: Option<&Path>) -> Result<Value, Box<dyn std::error::Error>> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["bench", "first-call", "--cold", name]);
    match folder {
        Some(folder) => command.env("KILN_CACHE", "on").env("KILN_CACHE_DIR", folder),
        None => command.env("KILN_CACHE", "off"),
    };
    let output = command.output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned().into());
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}
