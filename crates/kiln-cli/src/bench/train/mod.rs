//! `kiln bench train`: whole training steps (forward, backward, AdamW) of a small GPT and a small ViT as one program each,
//! against PyTorch eager and torch.compile.

pub mod models;
pub mod step;
#[cfg(test)]
mod tests;

use super::clock::{best, time};
use super::peer::{Timing, TorchPeer};
use super::{Arguments, report};
use crate::Outcome;
use kiln::{CompiledGraph, DType, Device, Tensor};
use models::{Model, Start};
use serde_json::{Value, json};
use std::io::Write;
use std::time::Instant;
use step::{AdamW, step_graph};

/// The script that trains the same models in PyTorch.
pub const PEER: &str = include_str!("torch_train.py");

/// Small models as people train them on a laptop.
const MODELS: [Model; 2] = [
    Model::Gpt { layers: 4, hidden: 256, heads: 8, context: 128, batch: 8, vocabulary: 256 },
    Model::Vit { layers: 4, hidden: 192, heads: 3, image: 32, patch: 4, batch: 32, classes: 10 },
];

/// A model being trained: its program and what it works on.
pub struct Training {
    compiled: CompiledGraph,
    batch: [Tensor; 2],
    /// Parameters, the step count and both moments, as the step graph takes them.
    state: Vec<Tensor>,
}

impl Training {
    /// Compiles the step of a model and makes its parameters.
    pub fn new(
        model: &Model,
        batch: [Tensor; 2],
        parameters: Vec<Tensor>,
    ) -> Result<Training, Box<dyn std::error::Error>> {
        let graph = step_graph(model, &AdamW::default())?;
        let compiled = CompiledGraph::new(&graph, &[], &Default::default())?;
        let zeros = |p: &Tensor| Tensor::from_vec(vec![0f32; p.elements()], p.shape(), Device::Cpu);
        let mut state = Vec::with_capacity(3 * parameters.len() + 1);
        let moments: Vec<Tensor> =
            parameters.iter().chain(&parameters).map(zeros).collect::<Result<_, kiln::Error>>()?;
        state.extend(parameters);
        state.push(Tensor::from_slice(&[0f32], [0usize; 0], Device::Cpu)?);
        state.extend(moments);
        Ok(Training { compiled, batch, state })
    }

    /// One step; gives the loss before it.
    pub fn step(&mut self) -> Result<Tensor, kiln::Error> {
        let mut inputs = Vec::with_capacity(self.state.len() + 2);
        inputs.extend(self.batch.iter().cloned());
        inputs.append(&mut self.state);
        let mut outputs = self.compiled.run_owned(inputs)?;
        self.state = outputs.split_off(1);
        Ok(outputs.remove(0))
    }

    /// The current parameters.
    #[cfg(test)]
    pub fn parameters(&self) -> &[Tensor] {
        &self.state[..self.state.len() / 3]
    }
}

/// Numbers from a seed: a batch and first parameters.
pub fn beginning(model: &Model) -> Result<([Tensor; 2], Vec<Tensor>), kiln::Error> {
    let random = crate::models::Weights::new(3);
    let (_, _, outputs) = model.sizes();
    let [x, y] = model.batch().map(|ty| {
        let shape = ty.fixed_shape().expect("a model's sizes are numbers");
        match ty.dtype {
            DType::I64 => random.tokens(1, shape.iter().product(), outputs)?.reshape(shape),
            _ => random.normal(&shape, 1.0),
        }
    });
    let parameter = |p: &models::Parameter| match p.start {
        Start::Normal(deviation) => random.normal(&p.shape, deviation),
        Start::Number(number) => {
            Tensor::from_vec(vec![number as f32; p.shape.iter().product()], p.shape.clone(), Device::Cpu)
        }
    };
    Ok(([x?, y?], model.parameters().iter().map(parameter).collect::<Result<_, _>>()?))
}

/// One measured case.
struct Row {
    model: Model,
    threads: usize,
    compile: f64,
    kernels: usize,
    arena: usize,
    kiln: Timing,
    torch: [Option<Timing>; 3],
    torch_first: f64,
    peer_error: Option<String>,
}

/// Measures both models and prints a table.
pub fn run(arguments: &Arguments, threads: &[usize], mut peer: Option<TorchPeer>) -> Outcome {
    println!(
        "{:<24} {:>2} {:>8} {:>4} {:>8} {:>9} {:>9} {:>7} {:>7}  (how many times slower the other side is)",
        "case", "T", "compile", "ker", "arena", "min", "median", "torch", "t.comp"
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
    if let Some(peer) = &peer {
        report::tell(&format!("against torch {} eager", peer.version), against(&|r| ratio(r, r.torch[0])));
        report::tell("against torch.compile", against(&|r| ratio(r, compiled_peer(r))));
    }
    if let Some(path) = &arguments.json {
        write_json(path, &rows)?;
    }
    Ok(())
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
    mut peer: Option<&mut TorchPeer>,
    arguments: &Arguments,
) -> Result<Row, Box<dyn std::error::Error>> {
    kiln_cpu::pool::set_threads(threads);
    let (batch, parameters) = beginning(model)?;
    kiln_runtime::kernel_cache::clear();
    let begin = Instant::now();
    let mut training = Training::new(model, batch, parameters)?;
    let compile = begin.elapsed().as_secs_f64();
    training.step()?;
    let modes = if arguments.no_torch_compile { &MODES[..1] } else { &MODES[..] };
    let mut torch_first = f64::NAN;
    let mut peer_error = None;
    if let Some(peer) = peer.as_deref_mut() {
        match peer.setup(to_json(model), threads, modes) {
            Ok(found) => torch_first = found.get(1).copied().unwrap_or(f64::NAN),
            Err(error) => peer_error = Some(error.to_string()),
        }
    }
    let mut sides: [Vec<Timing>; 4] = Default::default();
    for _ in 0..arguments.turns {
        sides[0].push(time(arguments.seconds, || {
            if let Err(error) = training.step() {
                eprintln!("{error}");
            }
        }));
        if let (Some(peer), None) = (peer.as_deref_mut(), &peer_error) {
            for (side, mode) in modes.iter().enumerate() {
                sides[1 + side].push(peer.time(mode, arguments.seconds)?);
            }
        }
    }
    let side = |n: usize| (!sides[n].is_empty()).then(|| best(&sides[n]));
    let program = training.compiled.program();
    Ok(Row {
        model: *model,
        threads,
        compile,
        kernels: program.steps().len(),
        arena: kiln_kernels::plan(program.schedule(), &|_| None)?.arena_bytes,
        kiln: best(&sides[0]),
        torch: [side(1), side(2), side(3)],
        torch_first,
        peer_error,
    })
}

fn ratio(row: &Row, other: Option<Timing>) -> Option<f64> {
    other.map(|t| t.min / row.kiln.min)
}

/// The faster of torch.compile's two ways.
fn compiled_peer(row: &Row) -> Option<Timing> {
    row.torch[1..].iter().flatten().copied().min_by(|a, b| a.min.total_cmp(&b.min))
}

fn line(row: &Row) {
    let ratio = |other: Option<Timing>| ratio(row, other).map_or("–".to_owned(), |r| format!("{r:.2}"));
    println!(
        "{:<24} {:>2} {:>6.1}ms {:>4} {:>6.1}MB {:>7.2}ms {:>7.2}ms {:>7} {:>7}{}",
        name(&row.model),
        row.threads,
        row.compile * 1e3,
        row.kernels,
        row.arena as f64 / 1e6,
        row.kiln.min * 1e3,
        row.kiln.median * 1e3,
        ratio(row.torch[0]),
        ratio(compiled_peer(row)),
        row.peer_error.as_ref().map_or(String::new(), |e| format!("  {e}")),
    );
    // A long run is watched as it goes; a closed pipe is the reader's choice.
    let _ = std::io::stdout().flush();
}

fn write_json(path: &std::path::Path, rows: &[Row]) -> std::io::Result<()> {
    let mut file = std::io::BufWriter::new(std::fs::File::create(path)?);
    let seconds = |t: Option<Timing>| t.map(|t| json!({"min_s": t.min, "median_s": t.median}));
    for row in rows {
        let object = json!({
            "case": to_json(&row.model), "name": name(&row.model), "threads": row.threads, "kernels": row.kernels,
            "compile_s": row.compile, "arena_bytes": row.arena, "kiln": seconds(Some(row.kiln)),
            "torch_eager": seconds(row.torch[0]), "torch_compile": seconds(row.torch[1]),
            "torch_compile_all": seconds(row.torch[2]),
            "torch_first_s": row.torch_first.is_finite().then_some(row.torch_first),
        });
        writeln!(file, "{object}")?;
    }
    file.flush()
}
