//! `kiln bench never-slower`: ops, products, convolutions and what is done with images beside them, and random graphs, compiled and op by
//! op in turns. A row that takes longer compiled than eager fails the command.

use super::clock::Timing;
use super::conv;
use super::outputs::Outputs;
use super::record::{Record, Subject};
use super::turns::{self, Own};
use super::{Arguments, cases, report};
use kiln::{CompiledGraph, Device, Tensor};
use kiln_ir::{Graph, HostTensor, generate};
use kiln_terminal::failure::{Failure, Outcome};
use kiln_terminal::output;
use serde_json::{Value, json};

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

type Built = Result<(Graph, Vec<HostTensor>), Box<dyn std::error::Error>>;

/// A row before it is measured.
struct Work {
    name: String,
    dtype: &'static str,
    threads: usize,
    build: Box<dyn Fn() -> Built>,
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
}

fn works(threads: &[usize]) -> Vec<Work> {
    let mut works = Vec::new();
    let small = cases::ops(threads).into_iter().chain(cases::matmul(threads)).chain(cases::attention(threads));
    // Ways of one product have its graph: here nothing chooses between them.
    for case in small.filter(|case| !cases::WAYS.contains(&case.kind)) {
        let (name, dtype, threads) = (case.name(), case.dtype.name(), case.threads);
        let build = move || -> Built {
            let graph = case.graph()?;
            let inputs = super::inputs(&case, &graph)?;
            Ok((graph, inputs))
        };
        works.push(Work { name, dtype, threads, build: Box::new(build) });
    }
    for work in conv::works(threads) {
        let build = move || -> Built {
            let graph = (work.graph)()?;
            let inputs = conv::inputs(&graph)?;
            Ok((graph, inputs))
        };
        works.push(Work { name: work.name, dtype: work.dtype.name(), threads: work.threads, build: Box::new(build) });
    }
    for (&threads, seed) in threads.iter().flat_map(|threads| (0..GRAPHS).map(move |seed| (threads, seed))) {
        let build = move || -> Built {
            let options = generate::Options {
                nodes: 16,
                max_elements: ELEMENTS,
                composites: 0.3,
                sharing: 0.0,
                ..generate::Options::default()
            };
            let graph = generate::graph(seed, &options);
            let inputs = generate::inputs(&graph, seed);
            Ok((graph, inputs))
        };
        works.push(Work { name: format!("random graph {seed}"), dtype: "mixed", threads, build: Box::new(build) });
    }
    works
}

/// Measures every row and prints a table.
pub fn run(arguments: &Arguments, outputs: &mut Outputs, threads: &[usize]) -> Outcome {
    println!("{:<70} {:>2} {:>11} {:>7}  (how many times slower eager Kiln is)", "case", "T", "min", "eager");
    let mut rows = Vec::new();
    let mut skipped = 0;
    for work in works(threads).into_iter().filter(|work| work.name.contains(&arguments.filter)) {
        // A graph that fails eagerly (an index out of range) fails compiled too, which others test.
        let Some(row) = measure(work, arguments)? else {
            skipped += 1;
            continue;
        };
        let ratio = row.eager.min / row.kiln.min;
        let again = if row.attempts > 1 { format!("  measured {} times", row.attempts) } else { String::new() };
        println!("{:<70} {:>2} {:>9.1}µs {ratio:>7.2}{again}", row.name, row.threads, row.kiln.min * 1e6);
        output::flush();
        rows.push(row);
    }
    println!();
    if skipped > 0 {
        println!("{skipped} graphs skipped, which fail eagerly");
    }
    report::tell("against eager Kiln", rows.iter().map(|row| row.eager.min / row.kiln.min).collect());
    arguments.write(outputs, rows.iter().flat_map(records).collect())?;
    Ok(verdict(&rows)?)
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

fn measure(work: Work, arguments: &Arguments) -> Result<Option<Row>, Box<dyn std::error::Error>> {
    kiln_cpu::pool::set_threads(work.threads);
    let (graph, hosts) = (work.build)()?;
    let tensor = |host: &HostTensor| Tensor::from_bytes(host.bytes(), host.shape().to_vec(), host.dtype(), Device::Cpu);
    let inputs = hosts.iter().map(tensor).collect::<Result<Vec<_>, _>>()?;
    if kiln::run_eagerly(&graph, &inputs).is_err() {
        return Ok(None);
    }
    let compiled = CompiledGraph::new(&graph, &[], &Default::default())?;
    compiled.run(&inputs)?;
    let attempt = || {
        let own = [Own::new(|| compiled.run(&inputs)), Own::new(|| kiln::run_eagerly(&graph, &inputs))];
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
    let mut made = 1;
    while best.is_slower() && made < ATTEMPTS {
        let row = attempt()?;
        made += 1;
        if !row.is_slower() || row.kiln.min / row.eager.min < best.kiln.min / best.eager.min {
            best = row;
        }
    }
    Ok(Row { attempts: made, ..best })
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

    #[test]
    fn rows_are_different_graphs_with_their_own_dtypes() {
        let works = works(&[1]);
        let is_way = |work: &&Work| cases::WAYS.iter().any(|way| work.name.starts_with(&format!("{way} ")));
        assert_eq!(works.iter().filter(is_way).map(|work| &work.name).collect::<Vec<_>>(), Vec::<&String>::new());
        let named = works.iter().filter(|work| work.name.ends_with(" bf16")).collect::<Vec<_>>();
        assert!(!named.is_empty() && named.iter().all(|work| work.dtype == "bf16"));
        assert!(records(&row(1.0, 1.0)).iter().all(|record| record.to_json()["dtype"] == "bf16"));
    }
}
