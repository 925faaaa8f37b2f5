//! `kiln bench train`: whole training steps (forward, backward, AdamW) of a small GPT and a small ViT as one program each,
//! against eager Kiln, PyTorch eager and torch.compile.

pub mod models;
#[cfg(test)]
mod tests;

use super::clock::{Timing, seconds};
use super::outputs::Outputs;
use super::peer::TorchPeer;
use super::record::{Record, Subject};
use super::turns::{self, Own};
use super::{Arguments, report};
use crate::models::Weights;
use kiln::nn::Module;
use kiln::optim::{AdamW, Optimizer};
use kiln::{Compiled, Options, Result, Tensor};
use kiln_terminal::failure::Outcome;
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
fn batch(model: &Model) -> Result<Batch> {
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

/// One measured case.
struct Row {
    model: Model,
    threads: usize,
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
    let mut rows = Vec::new();
    for &threads in threads {
        for model in MODELS.iter().filter(|model| name(model).contains(&arguments.filter)) {
            let row = measure(model, threads, peer.as_mut(), arguments)?;
            line(&row);
            rows.push(row);
        }
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

fn measure(
    model: &Model,
    threads: usize,
    peer: Option<&mut TorchPeer>,
    arguments: &Arguments,
) -> std::result::Result<Row, Box<dyn std::error::Error>> {
    kiln_cpu::pool::set_threads(threads);
    let batch = batch(model)?;
    let eager = training(Arc::new(model.network()?))?;
    eager(&batch)?;
    let options = Options { fullgraph: true, ..Options::default() };
    let compiled: Compiled<Step, Batch, Tensor> = kiln::compile_with(training(Arc::new(model.network()?))?, options);
    kiln_runtime::kernel_cache::clear();
    let (_, first) = seconds(|| compiled.call(&batch))?;
    let modes = if arguments.no_torch_compile { &MODES[..1] } else { &MODES[..] };
    let peer = turns::Peer::setup(peer, to_json(model), threads, modes);
    let own = [Own::new(|| compiled.call(&batch)), Own::new(|| eager(&batch)).half()];
    let ([kiln, eager], mut torch) = turns::take(arguments, own, peer)?;
    let programs = compiled.programs();
    let codes = || programs.iter().flat_map(|p| &p.segments).filter_map(|segment| segment.code.as_deref());
    let mut arena = 0;
    for code in codes() {
        arena += kiln_kernels::plan(code.program().schedule(), &|_| None)?.arena_bytes;
    }
    Ok(Row {
        model: *model,
        threads,
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
        "{:<22} {:>2} {:>6.1}ms {:>4} {:>6.1}MB {:>7.2}ms {:>7.2}ms {:>7} {:>7} {:>7}{}",
        name(&row.model),
        row.threads,
        row.first * 1e3,
        row.kernels,
        row.arena as f64 / 1e6,
        row.kiln.min * 1e3,
        row.kiln.median * 1e3,
        ratio(Some(&row.eager)),
        ratio(row.torch[0].as_ref()),
        ratio(compiled_peer(row)),
        row.peer_error.as_ref().map_or(String::new(), |e| format!("  {e}")),
    );
    // A long run is watched as it goes.
    output::flush();
}

/// The sides of a row, in the form that all benchmarks have.
fn records(row: &Row, version: Option<&str>) -> Vec<Record> {
    let (batch, tokens) = match row.model {
        Model::Gpt { context, batch, .. } => (batch, context),
        Model::Vit { batch, .. } => (batch, 0),
    };
    let subject = Subject {
        what: "train".into(),
        model: name(&row.model),
        device: "cpu".into(),
        dtype: "f32".into(),
        batch,
        prompt: tokens,
        threads: row.threads,
        tokens_a_call: tokens,
    };
    let mut kiln = Record::timed(&subject, "kiln", "default", &row.kiln);
    kiln.first_call_s = Some(row.first);
    kiln.launches = Some(row.kernels as u64);
    kiln.extra = json!({"case": to_json(&row.model), "arena_bytes": row.arena, "peer_error": row.peer_error});
    let mut records = vec![Record::timed(&subject, "kiln", "eager", &row.eager), kiln];
    let modes =
        ["eager", "default", "compiled with its optimizer"].into_iter().zip(row.torch.iter().map(Option::as_ref));
    records.extend(Record::of_torch(&subject, modes, row.torch_first, version, row.peer_error.as_deref()));
    records
}
