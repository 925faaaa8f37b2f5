//! `kiln selftest`: differential tests on this machine, one line a group. Whatever a compiled program says is compared with what
//! the reference interpreter, eager execution or PyTorch says.

mod graphs;
mod lab;
mod models;
mod programs;

use graphs::Family;
use kiln::Device;
use kiln_oracle::Tally;
use kiln_runtime::disk;
use kiln_terminal::device::device;
use kiln_terminal::failure::{Failure, Outcome};
use kiln_terminal::{Console, Progress, format};
use lab::Lab;
use serde_json::json;
use std::time::{Duration, Instant};

const EXAMPLES: &str = "\
Examples:
  kiln selftest                                # everything, on the CPU
  kiln selftest --quick                        # a sample, in a few seconds
  kiln selftest --group matmul --group attention
  kiln selftest --device cpu --json
  KILN_CPU_ISA=avx2 kiln selftest              # another code generator of the same machine";

/// Options of `kiln selftest`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// What is tested: cpu, cuda or cuda:N
    #[arg(long, default_value = "cpu", value_name = "D")]
    device: String,
    /// A sample of each group
    #[arg(long)]
    quick: bool,
    /// Only this group; may be given several times
    #[arg(long, value_name = "NAME")]
    group: Vec<String>,
    /// End with one JSON object on standard output
    #[arg(long)]
    json: bool,
    /// Change the answers of compiled programs in this group, to see that it can fail
    #[arg(long, value_name = "NAME", hide = true)]
    fault: Option<String>,
}

/// A part of the test.
struct Group {
    name: &'static str,
    about: &'static str,
    run: fn(&mut Lab),
}

const GROUPS: &[Group] = &[
    Group { name: "elementwise", about: "arithmetic, functions, casts", run: |lab| Family::Elementwise.run(lab) },
    Group { name: "views", about: "reshape, permute, slice, pad, concat", run: |lab| Family::Views.run(lab) },
    Group { name: "reductions", about: "sums, extremes, scans, windows", run: |lab| Family::Reductions.run(lab) },
    Group { name: "matmul", about: "products of every layout and dtype", run: |lab| Family::Products.run(lab) },
    Group { name: "attention", about: "masked, causal, grouped heads", run: |lab| Family::Attention.run(lab) },
    Group { name: "conv", about: "steps, padding, groups", run: |lab| Family::Convolutions.run(lab) },
    Group { name: "gather-scatter", about: "indices as data", run: |lab| Family::Indexing.run(lab) },
    Group { name: "sort", about: "orders and the largest few", run: |lab| Family::Sorting.run(lab) },
    Group { name: "random", about: "the same numbers everywhere", run: |lab| Family::Random.run(lab) },
    Group { name: "quantised", about: "blocks of few bits", run: |lab| Family::Quantised.run(lab) },
    Group { name: "loops", about: "bodies that run turn after turn", run: |lab| Family::Loops.run(lab) },
    Group { name: "fusion", about: "random graphs of everything", run: graphs::fusion },
    Group { name: "training", about: "gradients, whole steps", run: programs::training },
    Group { name: "capture", about: "breaks, branches, threads", run: programs::capture },
    Group { name: "dynamic", about: "sizes that change", run: programs::dynamic },
    Group { name: "modes", about: "every mode, frozen or not", run: programs::modes },
    Group { name: "generation", about: "a trained model, token by token", run: models::generation },
    Group { name: "disk-cache", about: "programs from disk, whole and damaged", run: models::cache },
];

/// The result of a group.
struct GroupResult {
    group: &'static Group,
    checks: u64,
    failures: Vec<String>,
    tally: Tally,
    took: Duration,
}

impl GroupResult {
    fn status(&self) -> &'static str {
        if self.failures.is_empty() { "ok" } else { "FAIL" }
    }
}

/// Runs the groups.
pub fn run(arguments: &Arguments) -> Outcome {
    let device = device(&arguments.device)?;
    let chosen = chosen(&arguments.group)?;
    if let Some(unknown) = arguments.fault.as_ref().filter(|name| GROUPS.iter().all(|group| group.name != **name)) {
        return Err(unknown_group(unknown).into());
    }
    // What is on disk was made before; this is about what is made now.
    disk::set_store(None);
    let console = Console::new(arguments.json);
    let (paint, backend) = (console.paint, kiln::backend(device));
    let threads = format::plural(backend.threads(), "thread", "threads");
    console.say(format!("{} on {device} ({}, {threads})", paint.ember("kiln selftest"), backend.target()));
    let began = Instant::now();
    let mut all = Vec::new();
    for group in chosen {
        let progress = Progress::start(group.name);
        let found = examine(group, device, arguments.quick, arguments.fault.as_deref() == Some(group.name));
        drop(progress);
        let status = match found.failures.is_empty() {
            true => paint.green("ok   "),
            false => paint.bold_red("FAIL "),
        };
        let (checks, time) = (format::count(found.checks), format::seconds(found.took.as_secs_f64()));
        console.say(format!("  {status} {:<15}{checks:>7} checks  {time:>8}   {}", group.name, paint.dim(group.about)));
        for failure in &found.failures {
            console.say(format!("        {}", failure.trim_end().replace('\n', "\n        ")));
        }
        all.push(found);
    }
    let (checks, seconds) = (all.iter().map(|found| found.checks).sum(), began.elapsed().as_secs_f64());
    let mut tally = Tally::default();
    all.iter().for_each(|found| tally.merge(&found.tally));
    if tally.comparisons > 0 {
        console.say(format!("graphs: {tally}"));
    }
    let failed: Vec<&str> = all.iter().filter(|f| !f.failures.is_empty()).map(|f| f.group.name).collect();
    let summary = format!("{} checks in {}", format::count(checks), format::seconds(seconds));
    if failed.is_empty() {
        console.say(format!("{}: {summary}", paint.bold_green("interpreter, eager and compiled agree")));
    }
    console.result(|| {
        let group = |found: &GroupResult| {
            let seconds = found.took.as_secs_f64();
            let status = found.status().to_lowercase();
            json!({"group": found.group.name, "status": status, "checks": found.checks, "failures": found.failures, "seconds": seconds})
        };
        json!({
            "device": device.to_string(), "target": backend.target(), "threads": backend.threads(), "quick": arguments.quick,
            "passed": failed.is_empty(), "checks": checks, "agreed": tally.agreed(), "skipped_order": tally.order,
            "failed_alike": tally.failed_alike, "vacuous": tally.vacuous, "share_undecided": tally.share_undecided(), "seconds": seconds, "groups": all.iter().map(group).collect::<Vec<_>>(),
        })
    });
    match failed.is_empty() {
        true => Ok(()),
        false => Err(Failure::new(format!("{} of {} groups: {summary}", failed.join(", "), all.len())).into()),
    }
}

fn examine(group: &'static Group, device: Device, quick: bool, fault: bool) -> GroupResult {
    let began = Instant::now();
    let mut lab = Lab::new(device, quick, fault);
    (group.run)(&mut lab);
    GroupResult { group, checks: lab.checks, failures: lab.failures, tally: lab.tally, took: began.elapsed() }
}

fn chosen(names: &[String]) -> Result<Vec<&'static Group>, Failure> {
    match names.iter().find(|name| GROUPS.iter().all(|group| group.name != **name)) {
        Some(unknown) => Err(unknown_group(unknown)),
        None if names.is_empty() => Ok(GROUPS.iter().collect()),
        None => Ok(GROUPS.iter().filter(|group| names.iter().any(|name| name == group.name)).collect()),
    }
}

fn unknown_group(name: &str) -> Failure {
    let names: Vec<&str> = GROUPS.iter().map(|group| group.name).collect();
    Failure::unusable(format!("there is no group '{name}'")).advise(format!("--group {}", names.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every group passes, and none would pass whatever compiled programs say.
    #[test]
    fn every_group_can_fail() {
        for group in GROUPS {
            let right = examine(group, Device::Cpu, true, false);
            assert!(right.failures.is_empty(), "{}: {}", group.name, right.failures.join("\n"));
            let wrong = examine(group, Device::Cpu, true, true);
            assert!(right.checks > 0 && !wrong.failures.is_empty(), "{} notices nothing", group.name);
        }
    }

    #[test]
    fn groups_are_known_by_their_names() {
        assert_eq!(chosen(&[]).unwrap().len(), GROUPS.len());
        let two = chosen(&["modes".into(), "matmul".into()]).unwrap();
        assert_eq!(two.iter().map(|group| group.name).collect::<Vec<_>>(), ["matmul", "modes"]);
        assert!(chosen(&["nonsense".into()]).is_err());
        assert!(device("cpu").is_ok() && device("cuda:0").is_err() && device("cpu:1").is_err());
    }
}
