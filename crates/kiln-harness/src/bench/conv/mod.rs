//! `kiln bench conv`: convolutions of networks, and what they do with images beside them: compiled, compiled with weights packed
//! beforehand, and eager, with PyTorch's eager, channels-last and compiled ones beside them, which have the same numbers and have to give
//! the same answers. A row that takes longer compiled than eager fails the command.

mod cases;
mod images;
mod rows;

use super::clock::Timing;
use super::difference::difference;
use super::files::Files;
use super::outputs::Outputs;
use super::peer::TorchPeer;
use super::record::{Record, Subject};
use super::turns::{self, Own};
use super::{Arguments, report};
use cases::Work;
use kiln::{CompiledGraph, DType, Device, FreezeOptions, FrozenGraph, Tensor};
use kiln_ir::{Graph, HostTensor};
use kiln_terminal::failure::{Failure, Outcome};
use kiln_terminal::output;
use serde_json::json;
use std::time::Instant;

/// The script that computes the same in PyTorch.
pub const PEER: &str = concat!(include_str!("../peers/lines.py"), include_str!("torch_conv.py"));

/// How many times the eager time a compiled row may take: what two series of one program differ by on a busy machine.
const SLOWER: f64 = 1.15;
/// Seconds in which torch.compile compiles a row, or is left out of it.
const COMPILE_SECONDS: f64 = 120.0;
/// Minutes after which torch.compile is left out.
const MINUTES: f64 = 60.0;
/// How many times as far another library's answer may be as that of another mode.
const PEER_SLACK: f64 = 10.0;

/// Modes of PyTorch, as its script names them.
const TORCH: [&str; 3] = ["eager", "channels-last", "compile"];

/// One measured case.
struct Row {
    work: Work,
    kernels: usize,
    kiln: Timing,
    /// With weights packed beforehand, where there are any.
    frozen: Option<Timing>,
    eager: Timing,
    /// The modes of [`TORCH`].
    torch: [Option<Timing>; 3],
    torch_first: f64,
    /// Why the peer has no samples, or torch.compile has none.
    peer_error: Option<String>,
    note: Option<String>,
    /// The largest difference of a compiled result from the eager one, and of the peer's, over the largest value.
    difference: f64,
    peer_difference: Option<f64>,
}

impl Row {
    /// How many times as long the fastest mode of PyTorch takes as a mode of Kiln.
    fn against_best(&self, kiln: &Timing) -> Option<f64> {
        let minima = self.torch.iter().flatten().map(|timing| timing.min);
        minima.min_by(f64::total_cmp).map(|best| best / kiln.min)
    }

    /// Kiln with weights packed beforehand, where there are any, as torch.compile has them.
    fn packed(&self) -> &Timing {
        self.frozen.as_ref().unwrap_or(&self.kiln)
    }

    /// How far results of the dtype may be apart.
    fn bound(&self) -> f64 {
        match self.work.dtype {
            DType::Bf16 => 0.03,
            DType::F16 => 0.005,
            _ => 1e-4,
        }
    }

    fn peer_differs(&self) -> bool {
        self.peer_difference.is_some_and(|difference| difference > self.bound() * PEER_SLACK)
    }
}

/// Measures every case and prints a table.
pub fn run(arguments: &Arguments, outputs: &mut Outputs, threads: &[usize], mut peer: Option<TorchPeer>) -> Outcome {
    let deadline = arguments.deadline(MINUTES)?;
    println!(
        "{:<62} {:>2} {:>4} {:>10} {:>8} {:>7} {:>7} {:>7} {:>7} {:>7} {:>7}  (how many times slower the other side is)",
        "case", "T", "ker", "min", "GFLOP/s", "frozen", "eager", "torch", "t.last", "t.comp", "best"
    );
    let is_wanted =
        |work: &Work| work.name.contains(&arguments.filter) && arguments.batch.is_none_or(|batch| batch == work.batch);
    let mut rows = Vec::new();
    let mut left_out = 0;
    for work in works(threads).into_iter().filter(is_wanted) {
        let compiles = !arguments.no_torch_compile && Instant::now() < deadline;
        left_out += usize::from(peer.is_some() && !compiles && !arguments.no_torch_compile);
        let row = measure(work, peer.as_mut(), arguments, compiles)?;
        line(&row);
        rows.push(row);
    }
    println!();
    let against = |pick: &dyn Fn(&Row) -> Option<f64>| -> Vec<f64> { rows.iter().filter_map(pick).collect() };
    report::tell("against eager Kiln", against(&|r| Some(r.eager.min / r.kiln.min)));
    let version = peer.map(|peer| format!("torch {}", peer.version));
    if let Some(version) = &version {
        for (number, mode) in ["eager", "eager with channels last", "compiled"].iter().enumerate() {
            let name = format!("against {version} {mode}");
            report::tell(&name, against(&|r| r.torch[number].as_ref().map(|t| t.min / r.kiln.min)));
        }
        report::tell("against the best of PyTorch, weights as they are", against(&|r| r.against_best(&r.kiln)));
        report::tell("against the best of PyTorch, weights packed", against(&|r| r.against_best(r.packed())));
        if left_out > 0 {
            println!("! torch.compile was left out of {left_out} of {} rows: the time was up (--minutes)", rows.len());
        }
    }
    arguments.write(outputs, rows.iter().flat_map(|row| records(row, version.as_deref())).collect())?;
    verdict(&rows)
}

/// Whether the command succeeds with these rows.
fn verdict(rows: &[Row]) -> Outcome {
    let named = |wrong: &dyn Fn(&&Row) -> bool| -> Vec<&str> {
        rows.iter().filter(wrong).map(|row| row.work.name.as_str()).collect()
    };
    let other = named(&|row| row.peer_differs());
    if !other.is_empty() {
        return Err(Failure::new(format!("PyTorch gives another answer: {}", other.join("; "))).into());
    }
    let slower = named(&|row| row.kiln.min > row.eager.min * SLOWER);
    if !slower.is_empty() {
        return Err(Failure::new(format!("slower compiled than eager: {}", slower.join("; "))).into());
    }
    Ok(())
}

/// All rows.
pub fn works(threads: &[usize]) -> Vec<Work> {
    rows::all(threads).into_iter().map(Work::from).chain(images::all(threads)).collect()
}

fn measure(
    work: Work,
    process: Option<&mut TorchPeer>,
    arguments: &Arguments,
    compiles: bool,
) -> Result<Row, Box<dyn std::error::Error>> {
    kiln_cpu::pool::set_threads(work.threads);
    let graph = (work.graph)()?;
    let hosts = inputs(&graph)?;
    let tensor = |host: &HostTensor| Tensor::from_bytes(host.bytes(), host.shape().to_vec(), host.dtype(), Device::Cpu);
    let inputs = hosts.iter().map(tensor).collect::<Result<Vec<_>, _>>()?;
    let expected = kiln::run_eagerly(&graph, &inputs)?;
    let compiled = CompiledGraph::new(&graph, &[], &Default::default())?;
    let mut far = apart(&compiled.run(&inputs)?, &expected)?;
    let borrowed: Vec<&Tensor> = inputs.iter().collect();
    let frozen = match work.has_weights {
        true => {
            let weights: Vec<bool> = (0..inputs.len()).map(|input| input > 0).collect();
            Some(FrozenGraph::new(&graph, &[], &weights, &FreezeOptions::default())?)
        }
        false => None,
    };
    let versions = vec![0; inputs.len().saturating_sub(1)];
    if let Some(frozen) = &frozen {
        far = far.max(apart(&frozen.run(&borrowed, &versions)?, &expected)?);
    }
    let files = Files::new("conv")?;
    let mut asked = work.json.clone();
    if process.is_some() {
        std::fs::write(files.path("inputs"), hosts.iter().map(HostTensor::bytes).collect::<Vec<_>>().concat())?;
        asked["inputs"] = json!(files.path("inputs"));
        asked["answer"] = json!(files.path("answer"));
        asked["compile_limit"] = json!(COMPILE_SECONDS);
    }
    let modes = &TORCH[..if compiles { 3 } else { 2 }];
    let peer = turns::Peer::setup(process, asked, work.threads, modes);
    let mut own = vec![Own::new(|| compiled.run(&inputs)), Own::new(|| kiln::run_eagerly(&graph, &inputs)).half()];
    own.extend(frozen.as_ref().map(|frozen| Own::new(|| frozen.run(&borrowed, &versions))));
    let (timings, mut torch) = turns::take_all(arguments, own, peer)?;
    let mut timings = timings.into_iter();
    let (Some(kiln), Some(eager)) = (timings.next(), timings.next()) else {
        return Err("a side without a timing".into());
    };
    let answer = std::fs::read(files.path("answer")).ok();
    let peer_difference = answer.zip(expected.first()).map(|(answer, expected)| {
        let answer = Tensor::from_bytes(&answer, [answer.len() / size_of::<f32>()], DType::F32, Device::Cpu)?;
        if answer.shape()[0] == expected.elements() { difference(&answer, expected) } else { Ok(f64::INFINITY) }
    });
    Ok(Row {
        kernels: compiled.program().steps().len(),
        kiln,
        frozen: timings.next(),
        eager,
        torch: [0, 1, 2].map(|mode| torch.timing(mode)),
        torch_first: torch.first(2),
        note: torch.note().map(str::to_owned),
        peer_error: torch.error,
        difference: far,
        peer_difference: peer_difference.transpose()?,
        work,
    })
}

/// The largest difference of results, over the largest value of each.
fn apart(results: &[Tensor], expected: &[Tensor]) -> kiln::Result<f64> {
    results.iter().zip(expected).try_fold(0.0, |most: f64, (y, expected)| Ok(most.max(difference(y, expected)?)))
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
    let times = |ratio: Option<f64>| ratio.map_or("–".to_owned(), |ratio| format!("{ratio:.2}"));
    let ratio = |other: &Option<Timing>| times(other.as_ref().map(|other| other.min / row.kiln.min));
    print!(
        "{:<62} {:>2} {:>4} {:>8.1}µs {:>8.1} {:>7} {:>7.2} {:>7} {:>7} {:>7} {:>7}",
        row.work.name,
        row.work.threads,
        row.kernels,
        row.kiln.min * 1e6,
        row.work.operations / row.kiln.min / 1e9,
        ratio(&row.frozen),
        row.eager.min / row.kiln.min,
        ratio(&row.torch[0]),
        ratio(&row.torch[1]),
        ratio(&row.torch[2]),
        times(row.against_best(row.packed())),
    );
    if row.difference > row.bound() {
        print!("  DIFFERS FROM EAGER BY {:.1e}", row.difference);
    }
    if let Some(difference) = row.peer_difference.filter(|_| row.peer_differs()) {
        print!("  PYTORCH DIFFERS BY {difference:.1e}");
    }
    row.peer_error.iter().chain(&row.note).for_each(|why| print!("  {why}"));
    println!();
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
    kiln.matches_eager = Some(row.difference <= row.bound());
    kiln.extra = json!({
        "case": row.work.json, "difference_from_eager": row.difference, "peer_difference": row.peer_difference,
        "peer_error": row.peer_error, "peer_note": row.note,
    });
    let mut records = vec![Record::timed(&subject, "kiln", "eager", &row.eager), kiln];
    records.extend(row.frozen.as_ref().map(|frozen| Record::timed(&subject, "kiln", "default+freeze", frozen)));
    let names = ["eager", "channels-last", "default"];
    let modes = names.into_iter().zip(row.torch.iter().map(Option::as_ref));
    records.extend(Record::of_torch(&subject, modes, row.torch_first, version, row.peer_error.as_deref()));
    records
}
