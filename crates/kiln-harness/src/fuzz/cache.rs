//! `kiln fuzz cache`: files of the disk cache with bytes changed, cut, doubled and exchanged. Whatever is in the folder, a program
//! compiles and gives the bits that it gives without a cache; and a payload that is not what was written does not panic.

use kiln::{CompileOptions, CompiledGraph, DType, Device, Tensor};
use kiln_ir::examples::Random;
use kiln_ir::{Graph, generate};
use kiln_runtime::disk::{self, Kind, Store};
use kiln_runtime::{Program, kernel_cache};
use kiln_terminal::Console;
use kiln_terminal::failure::Outcome;
use serde_json::json;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// A graph with its inputs, its answer and its file.
struct Case {
    graph: Graph,
    inputs: Vec<Tensor>,
    answer: Result<Vec<Vec<u8>>, String>,
    file: PathBuf,
    whole: Vec<u8>,
    payload: Vec<u8>,
}

/// Mutates entries for so many seconds.
pub fn run(console: &Console, seconds: u64, seed: u64) -> Outcome {
    let folder = std::env::temp_dir().join(format!("kiln-fuzz-cache-{}", std::process::id()));
    let outcome = in_folder(console, &folder, seconds, seed);
    disk::set_store(None);
    std::fs::remove_dir_all(&folder)?;
    outcome
}

fn in_folder(console: &Console, folder: &PathBuf, seconds: u64, seed: u64) -> Outcome {
    disk::set_store(Some(Store::open(folder, disk::DEFAULT_MOST_BYTES)?));
    let mut random = Random(seed);
    let cases = cases(seed, 40)?;
    let begin = Instant::now();
    let (mut rounds, mut decoded) = (0u64, 0u64);
    while begin.elapsed() < Duration::from_secs(seconds) {
        let at = random.below(cases.len());
        let case = &cases[at];
        let mut file = case.whole.clone();
        let other = &cases[random.below(cases.len())].whole;
        mutate(&mut file, other, &mut random);
        std::fs::write(&case.file, &file)?;
        if random.below(8) == 0 {
            kernel_cache::clear();
        }
        let answer = answer(&case.graph, &case.inputs, true);
        if answer != case.answer {
            return Err(format!("round {rounds}: {answer:?} and not {:?} for\n{}", case.answer, case.graph).into());
        }
        // Beneath the digest, which nothing that was changed passes: reading must not panic either.
        let mut payload = case.payload.clone();
        mutate(&mut payload, &cases[random.below(cases.len())].payload, &mut random);
        let contiguous = |&id: &kiln_ir::NodeId| kiln_kernels::InputLayout::contiguous(case.graph.ty(id));
        let layouts: Vec<_> = case.graph.inputs().iter().map(contiguous).collect();
        // Read only, never run: machine code that somebody changed does whatever it likes.
        decoded += u64::from(Program::restore(&payload, &case.graph, &layouts, kiln::backend(Device::Cpu)).is_ok());
        kernel_cache::clear();
        rounds += 1;
    }
    let stats = disk::stats();
    let took = begin.elapsed().as_secs_f64();
    console.say(format!(
        "{rounds} entries in {took:.1} s: every answer right; {} files refused, {} read; {decoded} changed payloads decoded",
        stats.damaged, stats.hits
    ));
    console.result(|| json!({"what": "cache", "seed": seed, "count": rounds, "seconds": took, "failures": 0}));
    Ok(())
}

/// Graphs whose programs are in the store.
fn cases(seed: u64, count: usize) -> Result<Vec<Case>, Box<dyn std::error::Error>> {
    let store = disk::store().ok_or("no store")?;
    let mut cases: Vec<Case> = Vec::new();
    for seed in (0..50 * count as u64).map(|number| seed.wrapping_add(number)) {
        if cases.len() == count {
            break;
        }
        let graph = generate::graph(seed, &generate::Options { symbolic: seed % 4 == 0, ..Default::default() });
        let inputs: Option<Vec<Tensor>> = generate::inputs(&graph, seed)
            .iter()
            .map(|t| Tensor::from_bytes(t.bytes(), t.shape().to_vec(), t.dtype(), Device::Cpu).ok())
            .collect();
        let (Some(inputs), true) = (inputs, graph.outputs().iter().all(|o| o.updates.is_none())) else { continue };
        let expected = answer(&graph, &inputs, false);
        let known: Vec<PathBuf> = cases.iter().map(|case| case.file.clone()).collect();
        if answer(&graph, &inputs, true) != expected {
            return Err(format!("the cold program differs for seed {seed}").into());
        }
        let new = store.list()?.into_iter().find(|l| l.kind == Kind::Program && !known.contains(&l.file));
        let Some(listed) = new else { continue };
        let (whole, payload) = (std::fs::read(&listed.file)?, store.read(&listed)?.payload);
        cases.push(Case { graph, inputs, answer: expected, file: listed.file, whole, payload });
    }
    if cases.is_empty() { Err("no graph of these seeds compiles".into()) } else { Ok(cases) }
}

/// The bits of the results, or the error's text.
fn answer(graph: &Graph, inputs: &[Tensor], disk_cache: bool) -> Result<Vec<Vec<u8>>, String> {
    let options = CompileOptions { disk_cache, ..CompileOptions::default() };
    let compiled = CompiledGraph::new(graph, &[], &options).map_err(|error| error.to_string())?;
    let outputs = compiled.run(inputs).map_err(|error| error.to_string())?;
    outputs.iter().map(|t| bits(t).map_err(|error| error.to_string())).collect()
}

/// The bytes of a tensor, without the half byte behind an odd number of halves, which nobody writes.
fn bits(tensor: &Tensor) -> kiln::Result<Vec<u8>> {
    let mut bytes = tensor.to_bytes()?;
    let odd = tensor.dtype() == DType::I4 && tensor.shape().iter().product::<usize>() % 2 == 1;
    if let Some(last) = bytes.last_mut().filter(|_| odd) {
        *last &= 15;
    }
    Ok(bytes)
}

/// Changes some bytes, cuts some out, doubles some, or takes some of another file.
fn mutate(bytes: &mut Vec<u8>, other: &[u8], random: &mut Random) {
    for _ in 0..=random.below(3) {
        let at = random.below(bytes.len() + 1);
        let end = (at + random.below(16)).min(bytes.len());
        match random.below(7) {
            0 if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
            1 if at < bytes.len() => bytes[at] = random.bits() as u8,
            2 => bytes.truncate(at),
            3 => drop(bytes.drain(at..end)),
            4 => {
                let piece = bytes[at..end].to_vec();
                bytes.splice(at..at, piece);
            }
            5 => {
                let end = end.min(other.len());
                let piece = other.get(at.min(end)..end).unwrap_or_default().to_vec();
                bytes.splice(at..at + piece.len().min(bytes.len() - at), piece);
            }
            _ => *bytes = other.to_vec(),
        }
    }
}
