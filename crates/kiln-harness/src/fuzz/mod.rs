//! `kiln fuzz`: random graphs through the differential test, and random texts through the parser and the verifier.

mod ahead;
mod cache;
mod files;
mod functions;

use ahead::Ahead;
use kiln_ir::examples::{Random, examples};
use kiln_ir::{Graph, generate, shrink, text};
use kiln_kernels::Numerics;
use kiln_oracle::{self as oracle, Config, LayoutChoice, Tally};
use kiln_passes::{DifferentiateError, DifferentiateOptions, Seeds, differentiate};
use kiln_runtime::{disk, kernel_cache};
use kiln_terminal::Console;
use kiln_terminal::device::device;
use kiln_terminal::failure::Outcome;
use serde_json::json;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Options of `kiln fuzz`.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  kiln fuzz graphs --seconds 600 --check\n  kiln fuzz text --seconds 600\n  kiln fuzz cache --seconds 600\n  kiln fuzz files --seconds 600"
)]
pub struct Arguments {
    #[command(subcommand)]
    what: Fuzzer,
    /// End with one JSON object on standard output
    #[arg(long, global = true)]
    json: bool,
}

#[derive(clap::Subcommand)]
enum Fuzzer {
    /// Random graphs: interpreter, eager and compiled must agree; a failure is shrunk and printed as text
    #[command(
        after_help = "Examples:\n  kiln fuzz graphs\n  kiln fuzz graphs --count 10000 --seed 7\n  kiln fuzz graphs --seconds 3600 --check --keep-going --json\n  kiln fuzz graphs --convolutions --count 100000"
    )]
    Graphs(GraphOptions),
    /// Random functions: called as they are and compiled they must agree; a failure is shrunk and printed
    #[command(after_help = "Examples:\n  kiln fuzz functions --count 10000\n  kiln fuzz functions --count 1 --seed 7")]
    Functions(functions::Arguments),
    /// Mutated texts: nothing may panic, and what parses must verify and print back
    #[command(after_help = "Examples:\n  kiln fuzz text --seconds 600")]
    Text {
        /// How long
        #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..))]
        seconds: u64,
        /// Where the random numbers start; by default the clock says, and it is printed
        #[arg(long)]
        seed: Option<u64>,
    },
    /// Mutated files of models: nothing may panic, hang or take much memory
    #[command(after_help = "Examples:\n  kiln fuzz files --seconds 600\n  kiln fuzz files --kind templates --seed 7")]
    Files {
        /// Only files of this kind
        #[arg(long, value_enum)]
        kind: Option<files::Kind>,
        /// How long
        #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..))]
        seconds: u64,
        /// Where the random numbers start [default: the clock]
        #[arg(long)]
        seed: Option<u64>,
    },
    /// Mutated entries of the disk cache: nothing may panic, and every program gives the right answer
    #[command(after_help = "Examples:\n  kiln fuzz cache --seconds 600")]
    Cache {
        /// How long
        #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..))]
        seconds: u64,
        /// Where the random numbers start; by default the clock says, and it is printed
        #[arg(long)]
        seed: Option<u64>,
    },
}

/// Options of `kiln fuzz graphs`.
#[derive(clap::Args)]
struct GraphOptions {
    /// How many graphs [default: 10000, or as many as there is time for with --seconds]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Stop after so many seconds
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: Option<u64>,
    /// The first seed; graph number i has seed + i. By default the clock says, and it is printed
    #[arg(long)]
    seed: Option<u64>,
    /// Ops a graph at the most
    #[arg(long, default_value_t = 12, value_parser = kiln_terminal::numbers::at_least::<1>)]
    nodes: usize,
    /// What runs them: cpu, cuda or cuda:N
    #[arg(long, default_value = "cpu", value_name = "D")]
    device: String,
    /// Run every Nth graph op by op too, all others compiled only: most kernels are those of single ops, which take long to compile for a GPU
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    eager_every: u64,
    /// Graphs about convolutions: all attributes, channels first and last, odd and empty sizes; every third with its gradients
    #[arg(long)]
    convolutions: bool,
    /// Go on after a failure, and count
    #[arg(long)]
    keep_going: bool,
    /// Verify graphs between passes, schedules and memory plans too, as debug builds do
    #[arg(long)]
    check: bool,
}

/// Runs the requested fuzzer.
pub fn run(arguments: &Arguments) -> Outcome {
    let console = Console::new(arguments.json);
    let begin = |seed: Option<u64>| {
        let seed = seed.unwrap_or_else(seed_of_clock);
        console.say(format!("seed {seed}"));
        seed
    };
    match &arguments.what {
        Fuzzer::Graphs(options) => graphs(&console, options, begin(options.seed)),
        Fuzzer::Functions(options) => functions::run(&console, options, begin(options.seed)),
        Fuzzer::Text { seconds, seed } => texts(&console, *seconds, begin(*seed)),
        Fuzzer::Files { kind, seconds, seed } => files::run(&console, *kind, *seconds, begin(*seed)),
        Fuzzer::Cache { seconds, seed } => cache::run(&console, *seconds, begin(*seed)),
    }
}

/// A seed that hardly any other process has, however many begin at once: 48 bits of the time and the process's number, mixed.
fn seed_of_clock() -> u64 {
    let time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64);
    Random(Random(time).bits() ^ u64::from(std::process::id())).bits() >> 16
}

/// What became of a graph's gradients.
#[derive(Debug)]
enum Gradients {
    /// The graph was to have none.
    Unasked,
    /// They are among its outputs.
    Added,
    /// No output or no input is a float: it stays as it is.
    Undefined,
    /// They are defined, and could not be built.
    Failed(DifferentiateError),
}

/// Returns the graph of a seed, with the layouts and options to compare it with; every so many graphs run eagerly too.
fn config(seed: u64, nodes: usize, eager_every: u64, convolutions: bool) -> (Graph, Config, Gradients) {
    let symbolic = seed % 5 == 4 && !convolutions;
    let options = generate::Options { nodes, symbolic, ..Default::default() };
    // Of convolutions, every third has the gradients of its outputs in its inputs.
    let (graph, gradients) = match convolutions {
        true if seed.is_multiple_of(3) => with_gradients(generate::convolutions(seed, &options)),
        true => (generate::convolutions(seed, &options), Gradients::Unasked),
        false => (generate::graph(seed, &options), Gradients::Unasked),
    };
    let layout = if options.symbolic { LayoutChoice::Contiguous } else { LayoutChoice::ALL[(seed / 5 % 4) as usize] };
    let mut config = Config { layout, skip_eager: !seed.is_multiple_of(eager_every), ..Default::default() };
    config.options.disk_cache = false;
    if seed % 7 == 3 {
        config.options.schedule.numerics = Numerics::Eager;
    }
    (graph, config, gradients)
}

/// A graph with the gradients of its outputs in its inputs, where it has some. Its sizes are known and it has no loops: nothing in it
/// may be refused.
fn with_gradients(graph: Graph) -> (Graph, Gradients) {
    let float = |ty: &kiln_ir::TensorType| kiln_passes::is_differentiable(ty.dtype);
    let of: Vec<usize> = (0..graph.outputs().len()).filter(|&i| float(graph.ty(graph.outputs()[i].node))).collect();
    let with: Vec<usize> = (0..graph.inputs().len()).filter(|&i| float(graph.ty(graph.inputs()[i]))).collect();
    if of.is_empty() || with.is_empty() {
        return (graph, Gradients::Undefined);
    }
    let options = DifferentiateOptions { seeds: Seeds::Inputs, ..DifferentiateOptions::default() };
    match differentiate(&graph, &of, &with, &options) {
        Ok(joint) => (joint, Gradients::Added),
        Err(error) => (graph, Gradients::Failed(error)),
    }
}

fn graphs(console: &Console, options: &GraphOptions, first: u64) -> Outcome {
    if options.check {
        kiln_ir::verify::run_verifiers();
    }
    let device = device(&options.device)?;
    let begin = Instant::now();
    let count = options.count.unwrap_or(if options.seconds.is_some() { u64::MAX } else { 10_000 });
    let end = options.seconds.map(Duration::from_secs);
    let mut failed: Vec<u64> = Vec::new();
    let mut tally = Tally::default();
    let mut reported = Instant::now();
    // No graph comes twice, and its operations hardly ever.
    disk::set_store(None);
    let ahead = Ahead::new(device);
    let of_seed = |seed| config(seed, options.nodes, options.eager_every, options.convolutions);
    let compiled = || kernel_cache::stats().misses;
    let mut alone = 0;
    let mut done = 0;
    // Graphs that were to have gradients and define none.
    let mut forward_only = 0u64;
    while done < count && end.is_none_or(|end| begin.elapsed() < end) {
        let seed = first.wrapping_add(done);
        if done.is_multiple_of(ahead::GRAPHS) {
            let seeds = (0..ahead::GRAPHS.min(count - done)).map(|number| seed.wrapping_add(number));
            let made = |seed| {
                let (graph, config, _) = of_seed(seed);
                (seed, (graph, config))
            };
            ahead.compile(seeds.map(made));
        }
        let (graph, mut config, gradients) = of_seed(seed);
        config.options.device = device;
        done += 1;
        match gradients {
            Gradients::Unasked | Gradients::Added => {}
            Gradients::Undefined => forward_only += 1,
            Gradients::Failed(error) => {
                failed.push(seed);
                eprintln!("seed {seed} fails: {error}");
                console.say(format!("seed {seed}: {error}\n{graph}"));
                if !options.keep_going {
                    break;
                }
                continue;
            }
        }
        let compare = |graph: &Graph| oracle::compare(graph, &generate::inputs(graph, seed), &config);
        let before = compiled();
        let outcome = compare(&graph);
        alone += compiled() - before;
        match outcome {
            Ok(agreement) => tally.add(&agreement),
            Err(disagreement) => {
                failed.push(seed);
                eprintln!("seed {seed} fails: {disagreement}");
                // As small as there is time for.
                let is_time = || end.is_none_or(|end| begin.elapsed() < end);
                let small = shrink::shrink(graph, &mut |candidate| is_time() && compare(candidate).is_err());
                let last = compare(&small).err().unwrap_or(disagreement);
                console.say(format!("seed {seed}: {last}\n{config:?}\n{small}"));
                if !options.keep_going {
                    break;
                }
            }
        }
        if reported.elapsed() > Duration::from_secs(10) {
            reported = Instant::now();
            let rate = done as f64 / begin.elapsed().as_secs_f64();
            eprintln!("{done} graphs from seed {first}, {rate:.0}/s, {} failures", failed.len());
        }
    }
    let seconds = begin.elapsed().as_secs_f64();
    let rate = done as f64 / seconds.max(1e-9);
    console.say(format!("{done} graphs from seed {first} in {seconds:.1} s ({rate:.0}/s): {} failures", failed.len()));
    console.say(format!("{tally}"));
    if options.convolutions {
        console.say(format!("{forward_only} graphs without the gradients they were to have: they are of integers"));
    }
    console.result(|| {
        json!({"what": "graphs", "seed": first, "count": done, "seconds": seconds, "check": options.check,
            "eager_every": options.eager_every, "compiled_alone": alone, "forward_only": forward_only,
            "failures": failed.len(), "failed_seeds": failed, "agreed": tally.agreed(), "skipped_order": tally.order,
            "failed_alike": tally.failed_alike, "vacuous": tally.vacuous, "share_undecided": tally.share_undecided()})
    });
    match failed.as_slice() {
        [] => Ok(()),
        [seed] => Err(format!("seed {seed} fails (1 of {done} graphs): see what is printed above").into()),
        _ => Err(format!("{} of {done} graphs fail: see what is printed above", failed.len()).into()),
    }
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
    console.result(|| json!({"what": "text", "seed": seed, "count": rounds, "seconds": took, "failures": 0}));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_graphs_of_integers_go_without_gradients() {
        let (mut added, mut undefined) = (0, 0);
        for seed in 0..600 {
            let (graph, _, gradients) = config(seed, 12, 1, true);
            match gradients {
                Gradients::Unasked => assert!(!seed.is_multiple_of(3)),
                Gradients::Added => added += 1,
                Gradients::Undefined => undefined += 1,
                Gradients::Failed(error) => panic!("seed {seed}: {error}\n{graph}"),
            }
        }
        assert_eq!(added + undefined, 200);
        assert!(undefined > 0 && added > 5 * undefined, "{added} with gradients, {undefined} without");
    }
}
