//! The `kiln` command.
//!
//! ```text
//! kiln                     the demo: one function, eager and fused, timed and checked
//! kiln bench ops|matmul|attention|forward|first-call|calls|train [--peer torch]
//! kiln fuzz graphs|text|cache
//! kiln explain FILE        what became of a graph: kernels, bytes, what was not fused and why
//! kiln cache ls|why|clear|prune|export|import   what is on disk, and how to ship it
//! kiln doctor              what this machine offers and what Kiln would use
//! ```

mod bench;
mod cache;
mod demo;
mod doctor;
mod explain;
mod fuzz;
mod fuzz_cache;
mod models;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// What a command returns; an error is printed and becomes exit code 1.
type Outcome = Result<(), Box<dyn std::error::Error>>;

#[derive(Parser)]
#[command(name = "kiln", version, about = "Tensors that compile: eager programs into fused machine code")]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// One function, eager and fused: timed, checked against the reference interpreter (also what `kiln` alone does)
    Demo,
    /// Measure kernels, with PyTorch beside them if asked
    Bench(bench::Arguments),
    /// Look for graphs on which interpreter, eager and compiled disagree, texts that break the parser, or cache entries that break its reader
    Fuzz(fuzz::Arguments),
    /// Show what becomes of a graph given as text
    Explain(explain::Arguments),
    /// Show, shrink and ship the disk cache
    Cache(cache::Arguments),
    /// Show what this machine offers and what Kiln would use
    Doctor,
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().command {
        None | Some(Command::Demo) => demo::run(),
        Some(Command::Bench(arguments)) => bench::run(&arguments),
        Some(Command::Fuzz(arguments)) => fuzz::run(&arguments),
        Some(Command::Explain(arguments)) => explain::run(&arguments),
        Some(Command::Cache(arguments)) => cache::run(&arguments),
        Some(Command::Doctor) => doctor::run(),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("kiln: {error}");
            ExitCode::FAILURE
        }
    }
}
