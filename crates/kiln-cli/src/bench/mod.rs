//! `kiln bench`: fused kernels, products and attention, measured against a copy of the same bytes, against eager Kiln and,
//! if asked, against PyTorch eager and torch.compile in the same run, turn by turn.

mod calls;
mod cases;
mod clock;
mod first_call;
mod forward;
mod packed;
mod peer;
mod report;
mod train;

use crate::Outcome;
use cases::Case;
use clock::{Copier, best, time};
use kiln::opinions::{self, Question};
use kiln::{CompiledGraph, Device, Tensor};
use kiln_ir::HostTensor;
use peer::{Timing, TorchPeer};
use report::Row;
use std::path::PathBuf;
use std::time::Instant;

/// Options of `kiln bench`.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  kiln bench ops\n  kiln bench matmul --peer torch --python ~/torch/bin/python --json out.json\n  kiln bench ops --filter softmax --threads 1"
)]
pub struct Arguments {
    /// What to measure
    #[arg(value_enum)]
    what: What,
    /// Measure PyTorch beside Kiln
    #[arg(long, value_enum)]
    peer: Option<Peer>,
    /// The Python that has torch (default: $KILN_PYTHON, then python3)
    #[arg(long)]
    python: Option<String>,
    /// Threads, one table row each (default: 1 and all cores)
    #[arg(long, value_delimiter = ',')]
    threads: Vec<usize>,
    /// Only cases whose name contains this
    #[arg(long, default_value = "")]
    filter: String,
    /// Seconds a side and turn
    #[arg(long, default_value_t = 0.08)]
    seconds: f64,
    /// Turns: every side is measured once a turn
    #[arg(long, default_value_t = 3)]
    turns: usize,
    /// Do not compile with torch.compile (it takes seconds a case)
    #[arg(long)]
    no_torch_compile: bool,
    /// Make one first call and print it as JSON; what `first-call` starts its new processes with
    #[arg(long, hide = true)]
    cold: Option<String>,
    /// Write one JSON object a case to this file
    #[arg(long)]
    json: Option<PathBuf>,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum What {
    /// gelu·w+b, norms, softmax, RoPE, SwiGLU
    Ops,
    /// Products with plain weights, W[N, K] (linear) and W[K, N] (matmul), and with weights packed beforehand
    Matmul,
    /// Scaled dot-product attention
    Attention,
    /// The first call of 4- and 32-layer transformers in a new process, and where its time goes
    FirstCall,
    /// Forward passes: MLP blocks, attention blocks and a four-layer transformer at 1, 16 and 128 tokens
    Forward,
    /// What a call of a compiled function costs beyond its kernels
    Calls,
    /// Whole training steps of a small GPT and a small ViT: forward, backward, AdamW
    Train,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Peer {
    /// PyTorch eager and torch.compile
    Torch,
}

/// Measures what was asked for and prints a table.
pub fn run(arguments: &Arguments) -> Outcome {
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    let threads = match &arguments.threads[..] {
        [] if cores > 1 => vec![1, cores],
        [] => vec![1],
        given => given.to_vec(),
    };
    if let Some(case) = &arguments.cold {
        return first_call::cold(case);
    }
    let python = arguments.python.clone().or_else(|| std::env::var("KILN_PYTHON").ok()).unwrap_or("python3".into());
    let script = match arguments.what {
        What::Train => train::PEER,
        What::Calls => calls::PEER,
        _ => peer::SCRIPT,
    };
    let mut peer = match arguments.peer {
        Some(Peer::Torch) => Some(TorchPeer::start(&python, script)?),
        None => None,
    };
    let all = match arguments.what {
        What::FirstCall => return first_call::run(arguments, &python),
        What::Forward => return forward::run(arguments, &threads, peer),
        What::Train => return train::run(arguments, &threads, peer),
        What::Calls => return calls::run(arguments, peer),
        What::Ops => cases::ops(&threads),
        What::Matmul => cases::matmul(&threads),
        What::Attention => cases::attention(&threads),
    };
    let mut rows = Vec::new();
    report::header(peer.is_some());
    for case in all.into_iter().filter(|case| case.name().contains(&arguments.filter)) {
        let row = measure(case, peer.as_mut(), arguments)?;
        report::line(&row);
        rows.push(row);
    }
    report::summary(&rows, peer.as_ref().map(|p| p.version.as_str()));
    if let Some(path) = &arguments.json {
        report::write_json(path, &rows)?;
    }
    Ok(())
}

fn measure(
    case: Case,
    mut peer: Option<&mut TorchPeer>,
    arguments: &Arguments,
) -> Result<Row, Box<dyn std::error::Error>> {
    kiln_cpu::pool::set_threads(case.threads);
    let graph = case.graph()?;
    let hosts = inputs(&graph)?;
    let tensors: Vec<Tensor> = hosts
        .iter()
        .map(|h| Tensor::from_bytes(h.bytes(), h.shape().to_vec(), h.dtype(), Device::Cpu))
        .collect::<Result<_, _>>()?;
    kiln_runtime::kernel_cache::clear();
    let begin = Instant::now();
    let compiled = CompiledGraph::new(&graph, &[], &Default::default())?;
    let compile = begin.elapsed().as_secs_f64();
    let outputs = compiled.run(&tensors)?;
    let bytes = tensors.iter().chain(&outputs).map(|t| t.elements() * t.dtype().size_in_bits() / 8).sum::<usize>();

    let modes: &[&str] = if arguments.no_torch_compile { &["eager"] } else { &["eager", "compile"] };
    let mut first_calls = [f64::NAN; 2];
    let mut failed = None;
    if let Some(peer) = peer.as_deref_mut() {
        match peer.setup(case.to_json(), case.threads, modes) {
            Ok(first) => first_calls[..first.len()].copy_from_slice(&first),
            Err(error) => failed = Some(error.to_string()),
        }
    }
    let mut packed = match case.kind {
        "packed" => Some(packed::Product::new(&case, &tensors)?),
        _ => None,
    };
    let mut copier = Copier::new(bytes);
    let mut sides: [Vec<Timing>; 5] = Default::default();
    for _ in 0..arguments.turns {
        sides[0].push(match &mut packed {
            Some(product) => time(arguments.seconds, || product.run()),
            None => time(arguments.seconds, || {
                if let Err(error) = compiled.run(&tensors) {
                    eprintln!("{error}");
                }
            }),
        });
        sides[1].push(time(arguments.seconds / 2.0, || copier.copy(case.threads)));
        sides[2].push(time(arguments.seconds / 2.0, || {
            if let Err(error) = kiln::run_eagerly(&graph, &tensors) {
                eprintln!("{error}");
            }
        }));
        if let (Some(peer), None) = (peer.as_deref_mut(), &failed) {
            for (side, mode) in modes.iter().enumerate() {
                sides[3 + side].push(peer.time(mode, arguments.seconds)?);
            }
        }
    }
    let side = |n: usize| (!sides[n].is_empty()).then(|| best(&sides[n]));
    let agrees = agreement(&graph, &hosts);
    Ok(Row {
        kernels: compiled.program().steps().len(),
        compile,
        bytes,
        kiln: best(&sides[0]),
        copy: best(&sides[1]),
        eager: best(&sides[2]),
        torch_eager: side(3),
        torch_compile: side(4),
        torch_first: first_calls[1],
        peer_error: failed,
        agrees,
        case,
    })
}

/// True if the fused program agrees with the reference interpreter; `None` where the interpreter would take too long.
fn agreement(graph: &kiln_ir::Graph, hosts: &[HostTensor]) -> Option<bool> {
    let work: usize = hosts.iter().map(HostTensor::elements).sum();
    if work > 300_000
        || graph.iter().any(|(_, n)| matches!(n.op, kiln_ir::Op::Dot { .. } | kiln_ir::Op::Attention { .. }))
    {
        return None;
    }
    let question = Question { skip_eager: true, ..Default::default() };
    Some(opinions::compare(graph, hosts, &question).is_ok())
}

/// Ordinary numbers in −1..1.
fn inputs(graph: &kiln_ir::Graph) -> Result<Vec<HostTensor>, Box<dyn std::error::Error>> {
    let mut state = 0x2545_f491_4f6c_dd1du64;
    graph
        .inputs()
        .iter()
        .map(|&id| {
            let ty = graph.ty(id);
            let shape = ty.fixed_shape().ok_or("a benchmark with symbolic sizes")?;
            let count = shape.iter().product::<usize>();
            let values: Vec<f64> = (0..count)
                .map(|_| {
                    state ^= state << 13;
                    state ^= state >> 7;
                    state ^= state << 17;
                    (state >> 11) as f64 / (1u64 << 52) as f64 - 1.0
                })
                .collect();
            Ok(HostTensor::from_f64(ty.dtype, &shape, &values)?)
        })
        .collect()
}
