//! `kiln bench never-slower`: ops, products, convolutions and what is done with images beside them, networks, transformers and random
//! graphs, compiled and op by op in turns, until its minutes are up. A row that takes longer compiled than eager fails the command.

use super::clock::Timing;
use super::conv;
use super::outputs::Outputs;
use super::record::{Record, Subject};
use super::turns::{self, Own};
use super::vision::networks::Network;
use super::{Arguments, cases, forward, report};
use kiln::{Compiled, CompiledGraph, DType, Device, Tensor};
use kiln_ir::{Graph, HostTensor, generate};
use kiln_terminal::failure::{Failure, Outcome};
use kiln_terminal::output;
use serde_json::{Value, json};
use std::rc::Rc;
use std::time::Instant;

/// How many times the eager time a compiled row may take, and by how many seconds it may be longer: what two series of one program
/// differ by on a busy machine.
const SLOWER: f64 = 1.15;
const SECONDS: f64 = 3e-6;
/// How often a row is measured before it counts as slower: noise passes.
const ATTEMPTS: usize = 3;
/// Random graphs.
const GRAPHS: u64 = 60;
/// Elements of a node of a random graph at the most.
const ELEMENTS: usize = 1 << 16;

/// Minutes after which no row is begun any more.
const MINUTES: f64 = 30.0;
/// Height and width of the images of networks, and of those that are trained.
const IMAGE: usize = 224;
const TRAINED_IMAGE: usize = 64;

/// One program, compiled and op by op.
struct Pair {
    compiled: Box<dyn Fn() -> kiln::Result<()>>,
    eager: Box<dyn Fn() -> kiln::Result<()>>,
}

impl Pair {
    fn of_graph(graph: Graph, hosts: &[HostTensor]) -> kiln::Result<Pair> {
        let tensor =
            |host: &HostTensor| Tensor::from_bytes(host.bytes(), host.shape().to_vec(), host.dtype(), Device::Cpu);
        let inputs = Rc::new(hosts.iter().map(tensor).collect::<kiln::Result<Vec<_>>>()?);
        let compiled = CompiledGraph::new(&graph, &[], &Default::default())?;
        let same = inputs.clone();
        Ok(Pair {
            compiled: Box::new(move || compiled.run(&inputs).map(drop)),
            eager: Box::new(move || kiln::run_eagerly(&graph, &same).map(drop)),
        })
    }

    /// A network of `kiln bench vision`. One that is trained has weights of its own on each side.
    fn of_network(network: Network) -> Result<Pair, Box<dyn std::error::Error>> {
        let image = if network.is_trained() { TRAINED_IMAGE } else { IMAGE };
        let weights = network.weights(DType::F32)?;
        let inputs = Rc::new(network.inputs(1, image, DType::F32, Device::Cpu)?);
        let function = || network.function(&weights, DType::F32, Device::Cpu);
        let (compiled, eager, same) = (kiln::compile(function()?), function()?, inputs.clone());
        Ok(Pair {
            compiled: Box::new(move || compiled.call(&inputs).map(drop)),
            eager: Box::new(move || eager(&same).map(drop)),
        })
    }

    /// A row of `kiln bench forward`.
    fn of_forward(case: forward::Case) -> kiln::Result<Pair> {
        let (f, x) = case.build()?;
        let compiled: Rc<Compiled<forward::Function, Tensor, Tensor>> = Rc::new(kiln::compile(f));
        let (same, y) = (compiled.clone(), x.clone());
        Ok(Pair {
            compiled: Box::new(move || compiled.call(&x).map(drop)),
            eager: Box::new(move || same.inner()(&y).map(drop)),
        })
    }
}

/// A row before it is measured.
struct Work {
    name: String,
    dtype: &'static str,
    threads: usize,
    build: Box<dyn Fn() -> Result<Pair, Box<dyn std::error::Error>>>,
}

/// One measured row.
struct Row {
    name: String,
    dtype: &'static str,
    threads: usize,
    kiln: Timing,
    eager: Timing,
    /// How often it was measured.
    attempts: usize,
}

impl Row {
    fn is_slower(&self) -> bool {
        self.kiln.min > self.eager.min * SLOWER && self.kiln.min - self.eager.min > SECONDS
    }

    /// This one or another measurement of the same row, whichever is in favour of compiling.
    fn or(self, other: Row) -> Row {
        let attempts = self.attempts + other.attempts;
        let ratio = |row: &Row| row.kiln.min / row.eager.min;
        let best = if !other.is_slower() || ratio(&other) < ratio(&self) { other } else { self };
        Row { attempts, ..best }
    }
}

/// All rows of these threads, by kinds.
fn kinds(threads: &[usize]) -> [(&'static str, Vec<Work>); 5] {
    let small = cases::ops(threads).into_iter().chain(cases::matmul(threads)).chain(cases::attention(threads));
    // Ways of one product have its graph: here nothing chooses between them.
    let small = small.filter(|case| !cases::WAYS.contains(&case.kind)).map(|case| {
        let (name, dtype, threads) = (case.name(), case.dtype.name(), case.threads);
        let build = move || {
            let graph = case.graph()?;
            let inputs = super::inputs(&case, &graph)?;
            Ok(Pair::of_graph(graph, &inputs)?)
        };
        Work { name, dtype, threads, build: Box::new(build) }
    });
    let convolutions = conv::works(threads).into_iter().map(|work| {
        let build = move || {
            let graph = (work.graph)()?;
            let inputs = conv::inputs(&graph)?;
            Ok(Pair::of_graph(graph, &inputs)?)
        };
        Work { name: work.name, dtype: work.dtype.name(), threads: work.threads, build: Box::new(build) }
    });
    let networks =
        threads.iter().flat_map(|&threads| Network::all().into_iter().map(move |network| (threads, network)));
    let networks = networks.map(|(threads, network)| Work {
        name: network.name(),
        dtype: "f32",
        threads,
        build: Box::new(move || Pair::of_network(network)),
    });
    let transformers = forward::cases(threads).into_iter().map(|case| Work {
        name: case.name(),
        dtype: "f32",
        threads: case.threads,
        build: Box::new(move || Ok(Pair::of_forward(case)?)),
    });
    let graphs = threads.iter().flat_map(|&threads| (0..GRAPHS).map(move |seed| (threads, seed)));
    let graphs = graphs.map(|(threads, seed)| {
        let build = move || {
            let options = generate::Options {
                nodes: 16,
                max_elements: ELEMENTS,
                composites: 0.3,
                sharing: 0.0,
                ..generate::Options::default()
            };
            let graph = generate::graph(seed, &options);
            let inputs = generate::inputs(&graph, seed);
            Ok(Pair::of_graph(graph, &inputs)?)
        };
        Work { name: format!("random graph {seed}"), dtype: "mixed", threads, build: Box::new(build) }
    });
    [
        ("ops and products", small.collect()),
        ("convolutions", convolutions.collect()),
        ("networks", networks.collect()),
        ("transformers", transformers.collect()),
        ("random graphs", graphs.collect()),
    ]
}

/// One row of each kind, then the next of each, so that a run that is cut short has rows of all kinds. With the number of the kind.
fn in_turns(kinds: Vec<Vec<Work>>) -> Vec<(usize, Work)> {
    let longest = kinds.iter().map(Vec::len).max().unwrap_or(0);
    let mut kinds: Vec<_> = kinds.into_iter().map(Vec::into_iter).collect();
    let turn = |_| kinds.iter_mut().enumerate().filter_map(|(kind, works)| Some((kind, works.next()?))).collect();
    (0..longest).flat_map::<Vec<_>, _>(turn).collect()
}

/// Measures every row for which there is time and prints a table.
pub fn run(arguments: &Arguments, outputs: &mut Outputs, threads: &[usize]) -> Outcome {
    let deadline = arguments.deadline(MINUTES)?;
    println!("{:<70} {:>2} {:>11} {:>7}  (how many times slower eager Kiln is)", "case", "T", "min", "eager");
    let wanted = |works: Vec<Work>| works.into_iter().filter(|work| work.name.contains(&arguments.filter)).collect();
    let (names, kinds): (Vec<&str>, Vec<Vec<Work>>) =
        kinds(threads).into_iter().map(|(name, works)| (name, wanted(works))).unzip();
    let totals: Vec<usize> = kinds.iter().map(Vec::len).collect();
    let works = in_turns(kinds);
    let (mut rows, mut counts, mut skipped) = (Vec::new(), vec![0; totals.len()], 0);
    for (number, (kind, work)) in works.iter().enumerate() {
        if Instant::now() >= deadline {
            break;
        }
        counts[*kind] += 1;
        // A graph that fails eagerly (an index out of range) fails compiled too, which others test.
        let Some(row) = measure(work, arguments)? else {
            skipped += 1;
            continue;
        };
        line(&row);
        rows.push((number, row));
    }
    let mut rows = again(rows, &works, arguments)?;
    println!();
    if skipped > 0 {
        println!("{skipped} graphs skipped, which fail eagerly");
    }
    let told: Vec<String> = (0..names.len()).map(|k| format!("{} of {} {}", counts[k], totals[k], names[k])).collect();
    let (begun, all) = (counts.iter().sum::<usize>(), works.len());
    println!("measured {begun} of {all} rows: {}", told.join(", "));
    if begun < all {
        println!("! the time was up, {} rows were not measured (--minutes)", all - begun);
    }
    report::tell("against eager Kiln", rows.iter().map(|row| row.eager.min / row.kiln.min).collect());
    rows.sort_by(|a, b| (a.eager.min / a.kiln.min).total_cmp(&(b.eager.min / b.kiln.min)));
    arguments.write(outputs, rows.iter().flat_map(records).collect())?;
    Ok(verdict(&rows)?)
}

/// Measures rows that were slower once more when all others are done: what disturbed them may have passed.
fn again(
    rows: Vec<(usize, Row)>,
    works: &[(usize, Work)],
    arguments: &Arguments,
) -> Result<Vec<Row>, Box<dyn std::error::Error>> {
    if rows.iter().any(|(_, row)| row.is_slower()) {
        println!("\nonce more:");
    }
    let mut found = Vec::new();
    for (number, row) in rows {
        found.push(match row.is_slower() {
            true => {
                let row = match measure(&works[number].1, arguments)? {
                    Some(other) => row.or(other),
                    None => row,
                };
                line(&row);
                row
            }
            false => row,
        });
    }
    Ok(found)
}

fn line(row: &Row) {
    let ratio = row.eager.min / row.kiln.min;
    let again = if row.attempts > 1 { format!("  measured {} times", row.attempts) } else { String::new() };
    println!("{:<70} {:>2} {:>9.1}µs {ratio:>7.2}{again}", row.name, row.threads, row.kiln.min * 1e6);
    output::flush();
}

/// Whether the command succeeds with these rows.
fn verdict(rows: &[Row]) -> Result<(), Failure> {
    if rows.is_empty() {
        return Err(Failure::new("no row was measured"));
    }
    match rows.iter().filter(|row| row.is_slower()).map(|row| row.name.as_str()).collect::<Vec<_>>() {
        names if names.is_empty() => Ok(()),
        names => Err(Failure::new(format!("slower compiled than eager: {}", names.join("; ")))),
    }
}

fn measure(work: &Work, arguments: &Arguments) -> Result<Option<Row>, Box<dyn std::error::Error>> {
    kiln_cpu::pool::set_threads(work.threads);
    let pair = (work.build)()?;
    if (pair.eager)().is_err() {
        return Ok(None);
    }
    (pair.compiled)()?;
    let attempt = || {
        let own = [Own::new(&pair.compiled), Own::new(&pair.eager)];
        let peer = turns::Peer::setup(None, Value::Null, work.threads, &[]);
        let ([kiln, eager], _) = turns::take(arguments, own, peer)?;
        Ok(Row { name: work.name.clone(), dtype: work.dtype, threads: work.threads, kiln, eager, attempts: 1 })
    };
    best_of(attempt).map(Some)
}

/// The best of as many attempts as it takes until one is not slower.
fn best_of(
    mut attempt: impl FnMut() -> Result<Row, Box<dyn std::error::Error>>,
) -> Result<Row, Box<dyn std::error::Error>> {
    let mut best = attempt()?;
    while best.is_slower() && best.attempts < ATTEMPTS {
        best = best.or(attempt()?);
    }
    Ok(best)
}

/// Both sides of a row, in the form that all benchmarks have.
fn records(row: &Row) -> Vec<Record> {
    let subject = Subject {
        what: "never-slower".into(),
        model: row.name.clone(),
        device: "cpu".into(),
        dtype: row.dtype.into(),
        batch: 1,
        prompt: 0,
        threads: row.threads,
        tokens_a_call: 0,
    };
    let mut kiln = Record::timed(&subject, "kiln", "default", &row.kiln);
    kiln.extra = json!({"attempts": row.attempts, "slower": row.is_slower()});
    vec![Record::timed(&subject, "kiln", "eager", &row.eager), kiln]
}

#[cfg(test)]
mod tests {
    use super::super::clock;
    use super::*;

    fn row(kiln: f64, eager: f64) -> Row {
        let timing = |seconds: f64| clock::together(&[vec![seconds; 3]]);
        let (kiln, eager) = (timing(kiln), timing(eager));
        Row { name: "linear".into(), dtype: "bf16", threads: 1, kiln, eager, attempts: 1 }
    }

    #[test]
    fn no_rows_are_a_failure() {
        assert_eq!(verdict(&[]).unwrap_err().to_string(), "no row was measured");
        verdict(&[row(1.0, 1.0)]).unwrap();
        assert_eq!(verdict(&[row(2.0, 1.0)]).unwrap_err().to_string(), "slower compiled than eager: linear");
    }

    #[test]
    fn attempts_are_those_that_were_made() {
        let best = |seconds: &[f64]| {
            let mut left = seconds.iter();
            best_of(|| Ok(row(*left.next().ok_or("too many attempts")?, 1.0))).unwrap()
        };
        let all = best(&[2.0, 3.0, 4.0]);
        assert_eq!((all.attempts, all.is_slower()), (ATTEMPTS, true));
        assert!((all.kiln.min - 2.0).abs() < 1e-9, "{}", all.kiln.min);
        let second = best(&[2.0, 1.0]);
        assert_eq!((second.attempts, second.is_slower()), (2, false));
        assert_eq!(best(&[1.0]).attempts, 1);
    }

    /// A run that is cut short has rows of every kind.
    #[test]
    fn kinds_take_turns() {
        let works = in_turns(kinds(&[1]).map(|(_, works)| works).into());
        let first: Vec<usize> = works.iter().take(6).map(|(kind, _)| *kind).collect();
        assert_eq!(first, [0, 1, 2, 3, 4, 0]);
        assert_eq!(works.len(), kinds(&[1]).iter().map(|(_, works)| works.len()).sum::<usize>());
    }

    /// A later measurement counts if it is in favour of compiling.
    #[test]
    fn noise_that_passed_is_no_failure() {
        assert!(!row(2.0, 1.0).or(row(1.0, 1.0)).is_slower());
        let both = row(2.0, 1.0).or(row(3.0, 1.0));
        assert_eq!((both.attempts, both.kiln.min), (2, 2.0));
    }

    #[test]
    fn rows_are_different_graphs_with_their_own_dtypes() {
        let works: Vec<Work> = in_turns(kinds(&[1]).map(|(_, works)| works).into()).into_iter().map(|w| w.1).collect();
        let is_way = |work: &&Work| cases::WAYS.iter().any(|way| work.name.starts_with(&format!("{way} ")));
        assert_eq!(works.iter().filter(is_way).map(|work| &work.name).collect::<Vec<_>>(), Vec::<&String>::new());
        let named = works.iter().filter(|work| work.name.ends_with(" bf16")).collect::<Vec<_>>();
        assert!(!named.is_empty() && named.iter().all(|work| work.dtype == "bf16"));
        assert!(records(&row(1.0, 1.0)).iter().all(|record| record.to_json()["dtype"] == "bf16"));
    }
}
