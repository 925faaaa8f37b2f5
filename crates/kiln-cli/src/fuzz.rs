//! `kiln fuzz`: random graphs through all three opinions, and random texts through the parser and the verifier.

use crate::failure::Outcome;
use crate::terminal::Console;
use kiln::opinions::{self, LayoutChoice, Question};
use kiln_ir::examples::{Random, examples};
use kiln_ir::{Graph, generate, shrink, text};
use kiln_kernels::Numerics;
use serde_json::json;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Options of `kiln fuzz`.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  kiln fuzz graphs --count 10000 --seed 7\n  kiln fuzz text --seconds 600\n  kiln fuzz cache --seconds 600\n  kiln fuzz files --seconds 600"
)]
pub struct Arguments {
    #[command(subcommand)]
    what: What,
    /// End with one JSON object on standard output
    #[arg(long, global = true)]
    json: bool,
}

#[derive(clap::Subcommand)]
enum What {
    /// Random graphs: interpreter, eager and compiled must agree; a failure is shrunk and printed as text
    #[command(after_help = "Examples:\n  kiln fuzz graphs --count 10000 --seed 7")]
    Graphs {
        /// How many graphs
        #[arg(long, default_value_t = 10_000)]
        count: u64,
        /// The first seed; graph number i has seed + i
        #[arg(long, default_value_t = 0)]
        seed: u64,
        /// Ops a graph at the most
        #[arg(long, default_value_t = 12)]
        nodes: usize,
        /// Go on after a failure, and count
        #[arg(long)]
        keep_going: bool,
    },
    /// Mutated texts: nothing may panic, and what parses must verify and print back
    #[command(after_help = "Examples:\n  kiln fuzz text --seconds 600")]
    Text {
        /// How long
        #[arg(long, default_value_t = 60)]
        seconds: u64,
        /// Where the random numbers start
        #[arg(long, default_value_t = 0)]
        seed: u64,
    },
    /// Mutated files of models: nothing may panic, hang or take much memory
    #[command(after_help = "Examples:\n  kiln fuzz files --seconds 600\n  kiln fuzz files --kind templates --seed 7")]
    Files {
        /// Only files of this kind
        #[arg(long, value_enum)]
        kind: Option<crate::fuzz_files::Kind>,
        /// How long
        #[arg(long, default_value_t = 60)]
        seconds: u64,
        /// Where the random numbers start [default: the clock]
        #[arg(long)]
        seed: Option<u64>,
    },
    /// Mutated entries of the disk cache: nothing may panic, and every program gives the right answer
    #[command(after_help = "Examples:\n  kiln fuzz cache --seconds 600")]
    Cache {
        /// How long
        #[arg(long, default_value_t = 60)]
        seconds: u64,
        /// Where the random numbers start
        #[arg(long, default_value_t = 0)]
        seed: u64,
    },
}

/// Runs the fuzzer asked for.
pub fn run(arguments: &Arguments) -> Outcome {
    let console = Console::new(arguments.json);
    match arguments.what {
        What::Graphs { count, seed, nodes, keep_going } => graphs(&console, count, seed, nodes, keep_going),
        What::Text { seconds, seed } => texts(&console, seconds, seed),
        What::Files { kind, seconds, seed } => {
            let clock = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
            crate::fuzz_files::run(&console, kind, seconds, seed.unwrap_or_else(clock))
        }
        What::Cache { seconds, seed } => crate::fuzz_cache::run(&console, seconds, seed),
    }
}

/// What a seed asks: the graph, its inputs, and how they lie and compute.
fn question(seed: u64, nodes: usize) -> (Graph, Question) {
    let options = generate::Options { nodes, symbolic: seed % 5 == 4, ..Default::default() };
    let graph = generate::graph(seed, &options);
    let layout = if options.symbolic { LayoutChoice::Contiguous } else { LayoutChoice::ALL[(seed / 5 % 4) as usize] };
    let mut question = Question { layout, ..Default::default() };
    if seed % 7 == 3 {
        question.options.schedule.numerics = Numerics::Eager;
    }
    (graph, question)
}

fn graphs(console: &Console, count: u64, seed: u64, nodes: usize, keep_going: bool) -> Outcome {
    let begin = Instant::now();
    let mut failures = 0u64;
    let mut reported = Instant::now();
    for number in 0..count {
        let seed = seed.wrapping_add(number);
        let (graph, question) = question(seed, nodes);
        let disagree = |graph: &Graph| opinions::compare(graph, &generate::inputs(graph, seed), &question).err();
        if let Some(disagreement) = disagree(&graph) {
            failures += 1;
            let small = shrink::shrink(graph, &mut |candidate| disagree(candidate).is_some());
            let last = disagree(&small).unwrap_or(disagreement);
            console.say(format!("seed {seed}: {last}\n{question:?}\n{small}"));
            if !keep_going {
                return Err(format!("the opinions differ for seed {seed} (graph {} of {count})", number + 1).into());
            }
        }
        if reported.elapsed() > Duration::from_secs(10) {
            reported = Instant::now();
            let done = number + 1;
            eprintln!("{done} graphs, {:.0}/s, {failures} failures", done as f64 / begin.elapsed().as_secs_f64());
        }
    }
    let seconds = begin.elapsed().as_secs_f64();
    console.say(format!("{count} graphs in {seconds:.1} s ({:.0}/s): {failures} failures", count as f64 / seconds));
    console.result(|| json!({"what": "graphs", "count": count, "seconds": seconds, "failures": failures}));
    if failures > 0 { Err(format!("the opinions differ for {failures} of {count} graphs").into()) } else { Ok(()) }
}

fn texts(console: &Console, seconds: u64, seed: u64) -> Outcome {
    let begin = Instant::now();
    let mut random = Random(seed);
    let seeds: Vec<String> = examples().iter().map(|example| example.graph.to_string()).collect();
    let mut rounds = 0u64;
    while begin.elapsed() < Duration::from_secs(seconds) {
        for _ in 0..256 {
            let mut text = seeds[random.below(seeds.len())].clone().into_bytes();
            text::mutate(&mut text, &mut random);
            text::fuzz_once(&text);
            rounds += 1;
        }
    }
    let took = begin.elapsed().as_secs_f64();
    console.say(format!("{rounds} texts in {took:.1} s: no panic, every graph that parsed was valid"));
    console.result(|| json!({"what": "text", "count": rounds, "seconds": took, "failures": 0}));
    Ok(())
}
