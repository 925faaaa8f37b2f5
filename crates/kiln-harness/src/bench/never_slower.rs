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
    threads: usize,
    build: Box<dyn Fn() -> Built>,
}

/// One measured row.
struct Row {
    name: String,
    threads: usize,
    kiln: Timing,
    eager: Timing,
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
    for case in small {
        let (name, threads) = (case.name(), case.threads);
        let build = move || -> Built {
            let graph = case.graph()?;
            let inputs = super::inputs(&case, &graph)?;
            Ok((graph, inputs))
        };
        works.push(Work { name, threads, build: Box::new(build) });
    }
    for work in conv::works(threads) {
        let build = move || -> Built {
            let graph = (work.graph)()?;
            let inputs = conv::inputs(&graph)?;
            Ok((graph, inputs))
        };
        works.push(Work { name: work.name, threads: work.threads, build: Box::new(build) });
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
        works.push(Work { name: format!("random graph {seed}"), threads, build: Box::new(build) });
    }
    works
}

/// Measures every row and prints a table.
pub fn run(arguments: &Arguments, outputs: &mut Outputs, threads: &[usize]) -> Outcome {
    println!("{:<70} {:>2} {:>11} {:>7}  (how many times slower eager Kiln is)", "case", "T", "min", "eager");
    let mut rows = Vec::new();
    for work in works(threads).into_iter().filter(|work| work.name.contains(&arguments.filter)) {
        // A graph that fails eagerly (an index out of range) fails compiled too, which others test.
        let Some(row) = measure(work, arguments)? else { continue };
        let ratio = row.eager.min / row.kiln.min;
        let again = if row.attempts > 1 { format!("  measured {} times", row.attempts) } else { String::new() };
        println!("{:<70} {:>2} {:>9.1}µs {ratio:>7.2}{again}", row.name, row.threads, row.kiln.min * 1e6);
        output::flush();
        rows.push(row);
    }
    println!();
    report::tell("against eager Kiln", rows.iter().map(|row| row.eager.min / row.kiln.min).collect());
    arguments.write(outputs, rows.iter().flat_map(records).collect())?;
    match rows.iter().filter(|row| row.is_slower()).map(|row| row.name.clone()).collect::<Vec<_>>() {
        names if names.is_empty() => Ok(()),
        names => Err(Failure::new(format!("slower compiled than eager: {}", names.join("; "))).into()),
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
    let mut best: Option<Row> = None;
    for attempt in 1..=ATTEMPTS {
        let own = [Own::new(|| compiled.run(&inputs)), Own::new(|| kiln::run_eagerly(&graph, &inputs))];
        let peer = turns::Peer::setup(None, Value::Null, work.threads, &[]);
        let ([kiln, eager], _) = turns::take(arguments, own, peer)?;
        let row = Row { name: work.name.clone(), threads: work.threads, kiln, eager, attempts: attempt };
        let slower = row.is_slower();
        let better = |best: &Row| row.kiln.min / row.eager.min < best.kiln.min / best.eager.min;
        if best.as_ref().is_none_or(better) {
            best = Some(row);
        }
        if !slower {
            break;
        }
    }
    Ok(best)
}

/// Both sides of a row, in the form that all benchmarks have.
fn records(row: &Row) -> Vec<Record> {
    let subject = Subject {
        what: "never-slower".into(),
        model: row.name.clone(),
        device: "cpu".into(),
        dtype: "f32".into(),
        batch: 1,
        prompt: 0,
        threads: row.threads,
        tokens_a_call: 0,
    };
    let mut kiln = Record::timed(&subject, "kiln", "default", &row.kiln);
    kiln.extra = json!({"attempts": row.attempts, "slower": row.is_slower()});
    vec![Record::timed(&subject, "kiln", "eager", &row.eager), kiln]
}
