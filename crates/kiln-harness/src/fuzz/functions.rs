//! `kiln fuzz functions`: random functions over tensors and variables, called directly and compiled.

use kiln_oracle::functions::{compare, generate, shrink};
use kiln_terminal::Console;
use kiln_terminal::failure::Outcome;
use serde_json::json;
use std::time::{Duration, Instant};

/// Options of `kiln fuzz functions`.
#[derive(clap::Args)]
pub struct Arguments {
    /// How many functions
    #[arg(long, default_value_t = 10_000)]
    count: u64,
    /// The first seed; function number i has seed + i. By default the clock says, and it is printed
    #[arg(long)]
    pub seed: Option<u64>,
    /// Go on after a failure, and count
    #[arg(long)]
    keep_going: bool,
}

/// Runs random functions both ways, with seeds from `first` on; a failure is shrunk and printed.
pub fn run(console: &Console, arguments: &Arguments, first: u64) -> Outcome {
    let Arguments { count, keep_going, .. } = *arguments;
    // No function comes twice: its programs would only push others out of the user's cache.
    kiln::runtime::disk::set_store(None);
    let begin = Instant::now();
    let (mut failures, mut reported) = (0u64, Instant::now());
    for number in 0..count {
        let seed = first.wrapping_add(number);
        let program = generate(seed);
        if let Err(difference) = compare(&program) {
            failures += 1;
            let small = shrink(program, &mut |candidate| compare(candidate).is_err());
            let last = compare(&small).err().unwrap_or(difference);
            console.say(format!("seed {seed}: {last}\n{small}"));
            if !keep_going {
                return Err(
                    format!("eager and compiled differ for seed {seed} (function {} of {count})", number + 1).into()
                );
            }
        }
        if reported.elapsed() > Duration::from_secs(10) {
            reported = Instant::now();
            let done = number + 1;
            eprintln!("{done} functions, {:.0}/s, {failures} failures", done as f64 / begin.elapsed().as_secs_f64());
        }
    }
    let seconds = begin.elapsed().as_secs_f64();
    console.say(format!("{count} functions in {seconds:.1} s ({:.0}/s): {failures} failures", count as f64 / seconds));
    console.result(
        || json!({"what": "functions", "seed": first, "count": count, "seconds": seconds, "failures": failures}),
    );
    if failures > 0 {
        Err(format!("eager and compiled differ for {failures} of {count} functions").into())
    } else {
        Ok(())
    }
}
