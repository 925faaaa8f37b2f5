//! `kiln bench conv`: convolutions of networks, and what they do with images beside them, compiled against eager Kiln, PyTorch eager and torch.compile. A row that takes
//! longer compiled than eager fails the command.

mod cases;
mod images;

use super::clock::Timing;
use super::outputs::Outputs;
use super::peer::TorchPeer;
use super::record::{Record, Subject};
use super::turns::{self, Own};
use super::{Arguments, report};
use cases::Work;
use kiln::{CompiledGraph, Device, Tensor};
use kiln_ir::{Graph, HostTensor};
use kiln_terminal::failure::{Failure, Outcome};
use kiln_terminal::output;
use serde_json::json;

/// How many times the eager time a compiled row may take: what two series of one program differ by on a busy machine.
const SLOWER: f64 = 1.15;

/// One measured case.
struct Row {
    work: Work,
    kernels: usize,
    kiln: Timing,
    eager: Timing,
    torch_eager: Option<Timing>,
    torch_compile: Option<Timing>,
    torch_first: f64,
    peer_error: Option<String>,
}

/// Measures every case and prints a table.
pub fn run(arguments: &Arguments, outputs: &mut Outputs, threads: &[usize], mut peer: Option<TorchPeer>) -> Outcome {
    println!(
        "{:<58} {:>2} {:>4} {:>10} {:>8} {:>7} {:>7} {:>7}  (how many times slower the other side is)",
        "case", "T", "ker", "min", "GFLOP/s", "eager", "torch", "t.comp"
    );
    let mut rows = Vec::new();
    for work in works(threads).into_iter().filter(|work| work.name.contains(&arguments.filter)) {
        let row = measure(work, peer.as_mut(), arguments)?;
        line(&row);
        rows.push(row);
    }
    println!();
    let against = |pick: fn(&Row) -> Option<&Timing>| -> Vec<f64> {
        rows.iter().filter_map(|r| pick(r).map(|t| t.min / r.kiln.min)).collect()
    };
    report::tell("against eager Kiln", against(|r| Some(&r.eager)));
    let version = peer.map(|peer| format!("torch {}", peer.version));
    if let Some(version) = &version {
        report::tell(&format!("against {version} eager"), against(|r| r.torch_eager.as_ref()));
        report::tell("against torch.compile", against(|r| r.torch_compile.as_ref()));
    }
    arguments.write(outputs, rows.iter().flat_map(|row| records(row, version.as_deref())).collect())?;
    let slower = |row: &&Row| row.kiln.min > row.eager.min * SLOWER;
    match rows.iter().filter(slower).map(|row| row.work.name.clone()).collect::<Vec<_>>() {
        names if names.is_empty() => Ok(()),
        names => Err(Failure::new(format!("slower compiled than eager: {}", names.join("; "))).into()),
    }
}

/// All rows.
pub fn works(threads: &[usize]) -> Vec<Work> {
    cases::all(threads).into_iter().map(Work::from).chain(images::all(threads)).collect()
}

fn measure(work: Work, peer: Option<&mut TorchPeer>, arguments: &Arguments) -> Result<Row, Box<dyn std::error::Error>> {
    kiln_cpu::pool::set_threads(work.threads);
    let graph = (work.graph)()?;
    let tensor = |host: &HostTensor| Tensor::from_bytes(host.bytes(), host.shape().to_vec(), host.dtype(), Device::Cpu);
    let inputs = inputs(&graph)?.iter().map(tensor).collect::<Result<Vec<_>, _>>()?;
    let compiled = CompiledGraph::new(&graph, &[], &Default::default())?;
    compiled.run(&inputs)?;
    let modes: &[&str] = if arguments.no_torch_compile { &["eager"] } else { &["eager", "compile"] };
    let peer = turns::Peer::setup(peer, work.json.clone(), work.threads, modes);
    let own = [Own::new(|| compiled.run(&inputs)), Own::new(|| kiln::run_eagerly(&graph, &inputs))];
    let ([kiln, eager], mut torch) = turns::take(arguments, own, peer)?;
    Ok(Row {
        kernels: compiled.program().steps().len(),
        kiln,
        eager,
        torch_eager: torch.timing(0),
        torch_compile: torch.timing(1),
        torch_first: torch.first(1),
        peer_error: torch.error,
        work,
    })
}

/// Numbers from −1 to 1.
pub fn inputs(graph: &Graph) -> Result<Vec<HostTensor>, Box<dyn std::error::Error>> {
    let mut state = 0x2545_f491u32;
    let mut random = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        f64::from(((state >> 16) as i16) >> 4) / 2048.0
    };
    let tensor = |&id: &kiln_ir::NodeId| {
        let ty = graph.ty(id);
        let shape = ty.fixed_shape().ok_or("a benchmark with symbolic sizes")?;
        let values: Vec<f64> = (0..shape.iter().product()).map(|_| random()).collect();
        Ok(HostTensor::from_f64(ty.dtype, &shape, &values)?)
    };
    graph.inputs().iter().map(tensor).collect()
}

fn line(row: &Row) {
    let ratio =
        |other: &Option<Timing>| other.as_ref().map_or("–".to_owned(), |t| format!("{:.2}", t.min / row.kiln.min));
    print!(
        "{:<58} {:>2} {:>4} {:>8.1}µs {:>8.1} {:>7.2} {:>7} {:>7}",
        row.work.name.clone(),
        row.work.threads,
        row.kernels,
        row.kiln.min * 1e6,
        row.work.operations / row.kiln.min / 1e9,
        row.eager.min / row.kiln.min,
        ratio(&row.torch_eager),
        ratio(&row.torch_compile),
    );
    println!("{}", row.peer_error.as_ref().map_or(String::new(), |e| format!("  {e}")));
    // A long run is watched as it goes.
    output::flush();
}

/// The sides of a row, in the form that all benchmarks have.
fn records(row: &Row, version: Option<&str>) -> Vec<Record> {
    let subject = Subject {
        what: "conv".into(),
        model: row.work.name.clone(),
        device: "cpu".into(),
        dtype: row.work.dtype.name().into(),
        batch: row.work.batch,
        prompt: 0,
        threads: row.work.threads,
        tokens_a_call: 0,
    };
    let mut kiln = Record::timed(&subject, "kiln", "default", &row.kiln);
    kiln.launches = Some(row.kernels as u64);
    kiln.extra = json!({"case": row.work.json, "peer_error": row.peer_error});
    let mut records = vec![Record::timed(&subject, "kiln", "eager", &row.eager), kiln];
    let modes = [("eager", row.torch_eager.as_ref()), ("default", row.torch_compile.as_ref())].into_iter();
    records.extend(Record::of_torch(&subject, modes, row.torch_first, version, row.peer_error.as_deref()));
    records
}
