//! `kiln bench train`: whole training steps (forward, backward, AdamW) of a GPT and a ViT as one program each, against eager Kiln,
//! PyTorch eager and torch.compile. On the CPU small ones in f32; on a GPU a ViT of 17 and a GPT-2 of 124 million parameters with
//! products in bf16. The loss of a compiled step has to be that of the eager one.

pub mod models;
#[cfg(test)]
mod tests;

use super::clock::{Timing, seconds};
use super::outputs::Outputs;
use super::peer::TorchPeer;
use super::record::{Record, Subject};
use super::turns::{self, Own};
use super::{Arguments, launches, report};
use crate::models::Weights;
use kiln::nn::Module;
use kiln::optim::{AdamW, Optimizer};
use kiln::{Compiled, DType, Device, Mode, Options, Result, Tensor};
use kiln_terminal::failure::{Failure, Outcome};
use kiln_terminal::output;
use models::{Model, Network};
use serde_json::{Value, json};
use std::sync::Arc;

/// The script that trains the same models in PyTorch.
pub const PEER: &str = concat!(include_str!("../peers/lines.py"), include_str!("torch_train.py"));

/// Small models as people train them on a laptop.
const MODELS: [Model; 2] = [
    Model::Gpt { layers: 4, hidden: 256, heads: 8, context: 128, batch: 8, vocabulary: 256 },
    Model::Vit { layers: 4, hidden: 192, heads: 3, image: 32, patch: 4, batch: 32, classes: 10 },
];

/// What goes in and what should come out.
type Batch = (Tensor, Tensor);
/// One training step; gives the loss before it.
type Step = Box<dyn Fn(&Batch) -> Result<Tensor> + Send + Sync>;

/// The training step of a network: loss, gradients, AdamW.
fn training(network: Arc<Network>) -> Result<Step> {
    let optimizer = AdamW::new(network.parameters(), 1e-3)?;
    Ok(Box::new(move |(x, y): &Batch| {
        let loss = network.loss(x, y)?;
        loss.backward()?;
        optimizer.step()?;
        optimizer.zero_grad();
        Ok(loss.detach())
    }))
}

/// A batch of random numbers.
fn batch(model: &Model, device: Device) -> Result<Batch> {
    let (x, y) = host_batch(model)?;
    Ok((x.to_device(device)?, y.to_device(device)?))
}

fn host_batch(model: &Model) -> Result<Batch> {
    let random = Weights::new(3);
    match *model {
        Model::Gpt { context, batch, vocabulary, .. } => {
            Ok((random.tokens(batch, context, vocabulary)?, random.tokens(batch, context, vocabulary)?))
        }
        Model::Vit { image, batch, classes, .. } => {
            Ok((random.normal(&[batch, 3, image, image], 1.0)?, random.tokens(1, batch, classes)?.reshape([batch])?))
        }
    }
}

/// What is measured: a model, in one of Kiln's modes.
#[derive(Clone, Copy)]
struct Case {
    model: Model,
    device: Device,
    /// Of products.
    dtype: DType,
    mode: (&'static str, Mode),
    threads: usize,
}

/// One measured case.
struct Row {
    case: Case,
    /// The loss of the first compiled step.
    loss: f64,
    /// Seconds of the first call: capture, passes, kernels, code, one step.
    first: f64,
    kernels: usize,
    arena: usize,
    kiln: Timing,
    eager: Timing,
    torch: [Option<Timing>; 3],
    torch_first: f64,
    peer_error: Option<String>,
}

/// Measures both models and prints a table.
pub fn run(arguments: &Arguments, outputs: &mut Outputs, threads: &[usize], mut peer: Option<TorchPeer>) -> Outcome {
    println!(
        "{:<22} {:>2} {:>8} {:>4} {:>8} {:>9} {:>9} {:>7} {:>7} {:>7}  (how many times slower the other side is)",
        "case", "T", "1st call", "ker", "arena", "min", "median", "eager", "torch", "t.comp"
    );
    let mut rows: Vec<Row> = Vec::new();
    for case in cases(arguments, threads)? {
        // The peers' figures do not depend on Kiln's mode.
        let first = rows.iter().all(|row| (row.case.model, row.case.threads) != (case.model, case.threads));
        let row = measure(&case, peer.as_mut().filter(|_| first), arguments)?;
        line(&row);
        rows.push(row);
    }
    println!();
    let against = |pick: &dyn Fn(&Row) -> Option<f64>| rows.iter().filter_map(pick).collect::<Vec<f64>>();
    report::tell("against eager Kiln", against(&|r| ratio(r, Some(&r.eager))));
    if let Some(peer) = &peer {
        report::tell(&format!("against torch {} eager", peer.version), against(&|r| ratio(r, r.torch[0].as_ref())));
        report::tell("against torch.compile", against(&|r| ratio(r, compiled_peer(r))));
    }
    let version = peer.map(|peer| format!("torch {}", peer.version));
    arguments.write(outputs, rows.iter().flat_map(|row| records(row, version.as_deref())).collect())
}

/// Kiln's modes; on the CPU the first.
const OWN_MODES: [(&str, Mode); 3] =
    [("default", Mode::Default), ("reduce-overhead", Mode::ReduceOverhead), ("max-autotune", Mode::MaxAutotune)];

/// What was asked for. A GPU has one number of threads.
fn cases(arguments: &Arguments, threads: &[usize]) -> std::result::Result<Vec<Case>, Failure> {
    let device = arguments.device()?;
    let on_gpu = device != Device::Cpu;
    let models = match &arguments.model {
        Some(text) => vec![Model::parse(text).map_err(Failure::unusable)?],
        None if on_gpu => Model::LARGE.to_vec(),
        None => MODELS.to_vec(),
    };
    let dtype = match arguments.dtype.as_deref() {
        Some("f32") => DType::F32,
        Some("f16") => DType::F16,
        None if !on_gpu => DType::F32,
        _ => DType::Bf16,
    };
    let asked = |(name, _): &&(&str, Mode)| on_gpu && arguments.modes.iter().any(|mode| mode == name);
    let mut modes: Vec<(&'static str, Mode)> = OWN_MODES.iter().filter(asked).copied().collect();
    if modes.is_empty() {
        modes.push(OWN_MODES[0]);
    }
    let threads = if on_gpu { &threads[..1] } else { threads };
    let mut cases = Vec::new();
    for &threads in threads {
        for &model in models.iter().filter(|model| name(model).contains(&arguments.filter)) {
            cases.extend(modes.iter().map(|&mode| Case { model, device, dtype, mode, threads }));
        }
    }
    Ok(cases)
}

fn name(model: &Model) -> String {
    match model {
        Model::Gpt { layers, hidden, context, batch, .. } => format!("gpt {layers}×{hidden}, {batch}×{context}"),
        Model::Vit { layers, hidden, image, batch, .. } => format!("vit {layers}×{hidden}, {batch}×{image}²"),
    }
}

fn to_json(model: &Model) -> Value {
    match *model {
        Model::Gpt { layers, hidden, heads, context, batch, vocabulary } => json!({
            "kind": "gpt", "layers": layers, "hidden": hidden, "heads": heads, "context": context, "batch": batch,
            "vocabulary": vocabulary,
        }),
        Model::Vit { layers, hidden, heads, image, patch, batch, classes } => json!({
            "kind": "vit", "layers": layers, "hidden": hidden, "heads": heads, "image": image, "patch": patch,
            "batch": batch, "classes": classes,
        }),
    }
}

/// PyTorch eager with its fused optimizer; the loss compiled with the fused optimizer; loss and optimizer compiled.
const MODES: [&str; 3] = ["eager", "compile", "compile_all"];

/// How far the loss of a compiled step may be from that of an eager one, of it.
fn tolerance(dtype: DType) -> f64 {
    if dtype == DType::F32 { 1e-4 } else { 1e-2 }
}

fn measure(
    case: &Case,
    peer: Option<&mut TorchPeer>,
    arguments: &Arguments,
) -> std::result::Result<Row, Box<dyn std::error::Error>> {
    let Case { model, device, dtype, mode: (_, mode), threads } = *case;
    kiln_cpu::pool::set_threads(threads);
    let batch = batch(&model, device)?;
    let networks = [model.network(dtype)?.to_device(device)?, model.network(dtype)?.to_device(device)?];
    networks[1].load_state_dict(&networks[0].state_dict(), true)?;
    let [eager, own] = networks.map(|network| training(Arc::new(network)));
    let eager = eager?;
    let expected = loss(&eager(&batch)?)?;
    let options = Options { fullgraph: true, mode, ..Options::default() };
    let compiled: Compiled<Step, Batch, Tensor> = kiln::compile_with(own?, options);
    kiln_runtime::kernel_cache::clear();
    let (got, first) = seconds(|| compiled.call(&batch))?;
    let got = loss(&got)?;
    let agrees = (got - expected).abs() <= tolerance(dtype) * expected.abs();
    if !agrees {
        return Err(format!("{}: the loss is {got}, and {expected} eagerly", name(&model)).into());
    }
    let modes = if arguments.no_torch_compile { &MODES[..1] } else { &MODES[..] };
    let mut asked = to_json(&model);
    asked["device"] = json!(if device == Device::Cpu { "cpu" } else { "cuda" });
    asked["dtype"] = json!(dtype.name());
    let peer = turns::Peer::setup(peer, asked, threads, modes);
    let own = [Own::new(|| compiled.call(&batch)), Own::new(|| eager(&batch)).half()];
    let ([kiln, eager], mut torch) = turns::take(arguments, own, peer)?;
    if arguments.explain {
        println!("{}", launches::table(&compiled.explain(&batch)?));
    }
    let programs = compiled.programs();
    let codes = || programs.iter().flat_map(|p| &p.segments).filter_map(|segment| segment.code.as_deref());
    let mut arena = 0;
    for code in codes() {
        arena += kiln_kernels::plan(code.program().schedule(), &|_| None)?.arena_bytes;
    }
    Ok(Row {
        case: *case,
        loss: got,
        first,
        kernels: codes().map(|code| code.program().steps().len()).sum(),
        arena,
        kiln,
        eager,
        torch: [0, 1, 2].map(|mode| torch.timing(mode)),
        torch_first: torch.first(1),
        peer_error: torch.error,
    })
}

fn loss(tensor: &Tensor) -> Result<f64> {
    Ok(f64::from(tensor.to_device(Device::Cpu)?.item::<f32>()?))
}

fn ratio(row: &Row, other: Option<&Timing>) -> Option<f64> {
    other.map(|t| t.min / row.kiln.min)
}

/// The faster of torch.compile's two ways.
fn compiled_peer(row: &Row) -> Option<&Timing> {
    row.torch[1..].iter().flatten().min_by(|a, b| a.min.total_cmp(&b.min))
}

fn line(row: &Row) {
    let ratio = |other: Option<&Timing>| ratio(row, other).map_or("–".to_owned(), |r| format!("{r:.2}"));
    println!(
        "{:<22} {:>2} {:>6.1}ms {:>4} {:>6.1}MB {:>7.2}ms {:>7.2}ms {:>7} {:>7} {:>7}  loss {:.4}, {} {}{}",
        name(&row.case.model),
        row.case.threads,
        row.first * 1e3,
        row.kernels,
        row.arena as f64 / 1e6,
        row.kiln.min * 1e3,
        row.kiln.median * 1e3,
        ratio(Some(&row.eager)),
        ratio(row.torch[0].as_ref()),
        ratio(compiled_peer(row)),
        row.loss,
        row.case.dtype,
        row.case.mode.0,
        row.peer_error.as_ref().map_or(String::new(), |e| format!("  {e}")),
    );
    // A long run is watched as it goes.
    output::flush();
}

/// The sides of a row, in the form that all benchmarks have.
fn records(row: &Row, version: Option<&str>) -> Vec<Record> {
    let (batch, tokens) = match row.case.model {
        Model::Gpt { context, batch, .. } => (batch, context),
        Model::Vit { batch, .. } => (batch, 0),
    };
    let subject = Subject {
        what: "train".into(),
        model: name(&row.case.model),
        device: row.case.device.to_string(),
        dtype: row.case.dtype.name().into(),
        batch,
        prompt: tokens,
        threads: row.case.threads,
        tokens_a_call: tokens,
    };
    let mut kiln = Record::timed(&subject, "kiln", row.case.mode.0, &row.kiln);
    kiln.first_call_s = Some(row.first);
    kiln.launches = Some(row.kernels as u64);
    kiln.extra = json!({"case": to_json(&row.case.model), "loss": row.loss, "arena_bytes": row.arena, "peer_error": row.peer_error});
    let mut records = vec![Record::timed(&subject, "kiln", "eager", &row.eager), kiln];
    let modes =
        ["eager", "default", "compiled with its optimizer"].into_iter().zip(row.torch.iter().map(Option::as_ref));
    records.extend(Record::of_torch(&subject, modes, row.torch_first, version, row.peer_error.as_deref()));
    records
}
