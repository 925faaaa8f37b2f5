//! `kiln bench`: fused kernels, products and attention, measured against a copy of the same bytes, against eager Kiln and,
//! if asked, against PyTorch eager and torch.compile in the same run, turn by turn.

mod beam;
mod blocks;
mod calls;
mod cases;
mod census;
mod clock;
mod control;
mod conv;
mod difference;
mod direct;
mod files;
mod first_call;
mod forward;
mod html;
mod language;
mod launches;
mod llm;
mod machine;
mod merges;
mod never_slower;
mod outputs;
mod peer;
mod published;
mod record;
mod report;
mod side;
mod stats;
mod suite;
mod table;
mod train;
mod turns;
mod vision;

use cases::Case;
use clock::{Copier, Turn};
use kiln::{CompiledGraph, Device, Tensor};
use kiln_ir::HostTensor;
use kiln_llm::WeightFormat;
use kiln_oracle::{self as oracle, Config};
use kiln_runtime::environment;
use kiln_terminal::failure::{Failure, Outcome};
use kiln_terminal::numbers::{at_least, positive, threads};
use outputs::Outputs;
use peer::TorchPeer;
use record::Record;
use report::Row;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use turns::Own;

const EXAMPLES: &str = "\
Examples:
  kiln bench decode                                                # the embedded model, every mode
  kiln bench decode --model stories15M --peer torch --html out.html  # a folder, PyTorch beside it
  kiln bench decode --model smollm2.gguf --peer llama.cpp --threads 2
  kiln bench decode --model smollm2.gguf --modes default,default+high,default+medium
  kiln bench decode --model llama-3.2-1b --layers 1 --modes eager,default --tokens 64
  kiln bench decode --model llama-3.2-1b --layers 2 --dtype bf16 --weights int8 --modes eager,default
  kiln bench forward --model smollm2-135m --prompt 16,128,512 --peer torch --json out.jsonl
  kiln bench forward --peer torch --filter \"gpt MLP\"                # blocks and small transformers
  kiln bench suite --models ~/models --minutes 40 --json suite.jsonl --html suite.html
  kiln bench train --threads 2
  kiln bench train --device cuda --peer torch                       # GPT-2 and a ViT in bf16
  kiln bench vision --device cuda --dtype bf16 --batch 64 --peer torch
  kiln bench conv --peer torch --batch 1 --threads 2                # convolutions of one image
  kiln bench ops --filter softmax --threads 1
  kiln bench blocks --filter q4 --threads 2
  kiln bench matmul --peer torch --python ~/torch/bin/python
  kiln bench calls
  kiln bench control --peer torch                                  # breaks, loops, sizes of data
  kiln bench report > docs/benchmarks.md                           # the page of the lines that are kept

Every mode of every side is a process of its own; they take turns. Above 5 % variation there is a warning.";

/// Options of `kiln bench`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// What to measure
    #[arg(value_enum)]
    what: Benchmark,
    /// Folder, GGUF file, or preset (decode, forward; default of decode: the embedded stories260K); gpt2 or vit, with sizes that differ as in gpt2:layers=2,batch=4 (train); networks as resnet-50,unet,resnet-50:train (vision; default: all on the CPU)
    #[arg(long)]
    model: Option<String>,
    /// Where: cpu, or cuda and cuda:1 for what measures GPUs (decode, forward of a model, train, vision, suite)
    #[arg(long, default_value = "cpu")]
    device: String,
    /// Of weights and activations of a model (default: f32); of products of a model that is trained (default: f32 on the CPU, bf16 on a GPU)
    #[arg(long, value_parser = ["f32", "bf16", "f16"])]
    dtype: Option<String>,
    /// The weights of linear layers of a model: as-stored, int8, q8_0 or q4_k_m; quantised as they are loaded (decode, forward; not for GGUF files, and not beside peers)
    #[arg(long, default_value_t, value_name = "W")]
    weights: WeightFormat,
    /// Texts or images at a time (default: 1; conv: only the rows of so many, 1 or 8)
    #[arg(long, value_parser = at_least::<1>)]
    batch: Option<usize>,
    /// Height and width of an image (vision)
    #[arg(long, default_value_t = 224, value_parser = at_least::<1>)]
    image: usize,
    /// Tokens of the prompt, or of a forward pass, one table each
    #[arg(long, value_delimiter = ',', default_value = "16", value_parser = at_least::<1>)]
    prompt: Vec<usize>,
    /// Tokens of a text after the first, of which two warm up (decode)
    #[arg(long, default_value_t = 128, value_parser = at_least::<3>)]
    tokens: usize,
    /// Steps that Kiln launches before the token of a step is read; 0 reads each token before the next step (decode; default: 0 on the CPU, 4 on a GPU)
    #[arg(long, value_name = "N")]
    ahead: Option<usize>,
    /// Hold the logits of every side against those of float32 with the same weights: PyTorch's where it takes part, Kiln's elsewhere (decode, forward)
    #[arg(long)]
    exact: bool,
    /// Folder of a disk cache for Kiln's processes; without it they have none, so that each compiles everything. A second run with the same folder has warm first calls (decode, forward)
    #[arg(long, value_name = "FOLDER")]
    cache: Option<std::path::PathBuf>,
    /// Modes of Kiln: eager, default, reduce-overhead, max-autotune; with +freeze, weights are packed beforehand, with +high or +medium products may be less exact; with +serial launches of a GPU do not overlap, which has to give the same bits
    #[arg(long, value_delimiter = ',', default_value = "eager,default,reduce-overhead,max-autotune")]
    modes: Vec<String>,
    /// Use only so many of the first layers, of a folder or a preset
    #[arg(long, value_parser = at_least::<1>)]
    layers: Option<usize>,
    /// Measure a peer beside Kiln
    #[arg(long, value_enum, value_delimiter = ',')]
    peer: Vec<Peer>,
    /// Modes of the peers, for instance torch:eager,torch-lean:default (default: all that make sense)
    #[arg(long, value_delimiter = ',')]
    peer_modes: Vec<String>,
    /// The Python that has the peer (default: $KILN_PYTHON, then python3)
    #[arg(long)]
    python: Option<String>,
    /// Threads, one table or row each (default: all cores; 1 and all cores where there is no model)
    #[arg(long, value_delimiter = ',', value_parser = threads)]
    threads: Vec<usize>,
    /// Samples a mode of a model
    #[arg(long, default_value_t = 100, value_parser = at_least::<1>)]
    repeats: usize,
    /// Seconds a mode of a model may take for its samples; a mode with fewer samples than requested says so
    #[arg(long, default_value_t = 60.0, value_parser = positive)]
    limit: f64,
    /// Folder of models: stories15M and GGUF files are taken from here (suite)
    #[arg(long)]
    models: Option<PathBuf>,
    /// Minutes after which no peer is begun any more (suite), torch.compile is left out (conv), no row is begun any more (never-slower; default there: 30, elsewhere 60)
    #[arg(long, value_parser = positive)]
    minutes: Option<f64>,
    /// Only cases whose name contains this
    #[arg(long, default_value = "")]
    filter: String,
    /// Seconds a side and turn, where there is no model
    #[arg(long, default_value_t = 0.08, value_parser = positive)]
    seconds: f64,
    /// Turns: every side is measured once a turn
    #[arg(long, default_value_t = 3, value_parser = at_least::<1>)]
    turns: usize,
    /// Do not compile with torch.compile (it takes seconds to minutes a case)
    #[arg(long)]
    no_torch_compile: bool,
    /// Show the launches of a step by what they compute, the longest first (train, vision, forward of a model)
    #[arg(long)]
    explain: bool,
    /// Make one first call and print it as JSON; what `first-call` starts its new processes with
    #[arg(long, hide = true)]
    cold: Option<String>,
    /// Be one side of a comparison: answer requests from standard input
    #[arg(long, hide = true)]
    side: bool,
    /// Write one JSON object a mode to this file
    #[arg(long)]
    json: Option<PathBuf>,
    /// Folder of JSON lines (report)
    #[arg(long, value_name = "FOLDER", default_value = "docs/benchmarks")]
    lines: PathBuf,
    /// Write a page with plots to this file
    #[arg(long)]
    html: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Benchmark {
    /// Tokens a second of a language model: a prompt, then one token after the other
    Decode,
    /// gelu·w+b, norms, softmax, RoPE, SwiGLU
    Ops,
    /// Products with plain weights, W[N, K] (linear) and W[K, N] (matmul), with weights packed beforehand, and one row in both orders of reading
    Matmul,
    /// Products with weights as quantised blocks, against a sum of the same bytes and against f32 weights
    Blocks,
    /// Scaled dot-product attention, alone and with its gradients
    Attention,
    /// The first call of 4- and 32-layer transformers in a new process, and where its time goes
    FirstCall,
    /// Forward passes: of a language model with --model; otherwise MLP blocks, attention blocks and a four-layer transformer at 1, 16 and 128 tokens
    Forward,
    /// What a call of a compiled function costs beyond its kernels
    Calls,
    /// Functions that are no straight line: breaks at many sizes, numbers that are read, sizes that depend on data, loops; programs, seconds to compile, calls
    Control,
    /// Whole training steps of a GPT and a ViT: forward, backward, AdamW
    Train,
    /// Convolutions of networks, of one image and of eight, with weights as they are and packed, their gradients, blocks around them, pooling, resizing and norms; fails where compiled is slower than eager
    Conv,
    /// Ops, products, convolutions, what is done with images, networks, transformers and random graphs, compiled and eager, until its minutes are up; fails where compiled is slower
    NeverSlower,
    /// Forward passes and training steps of convolutional networks with random weights, the same ones as the peer's: ResNet, MobileNet, EfficientNet, ConvNeXt, a U-Net
    Vision,
    /// The published table, each row with PyTorch: on the CPU decode of four models, forward passes of 16, 128 and 512 tokens, first calls; on a GPU Llama-3-8B and Llama-3.2-1B in bf16
    Suite,
    /// Measure nothing: write docs/benchmarks.md from JSON lines that were kept
    Report,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Peer {
    /// PyTorch eager and torch.compile
    Torch,
    /// llama.cpp, for GGUF files
    #[value(name = "llama.cpp")]
    LlamaCpp,
}

impl Benchmark {
    /// As it is typed.
    fn name(self) -> &'static str {
        match self {
            Benchmark::Decode => "decode",
            Benchmark::Ops => "ops",
            Benchmark::Matmul => "matmul",
            Benchmark::Blocks => "blocks",
            Benchmark::Attention => "attention",
            Benchmark::FirstCall => "first-call",
            Benchmark::Forward => "forward",
            Benchmark::Calls => "calls",
            Benchmark::Control => "control",
            Benchmark::Train => "train",
            Benchmark::Conv => "conv",
            Benchmark::NeverSlower => "never-slower",
            Benchmark::Vision => "vision",
            Benchmark::Suite => "suite",
            Benchmark::Report => "report",
        }
    }
}

impl Arguments {
    /// One side's turn where there is no model: the requested number of samples, unless that takes ten times as long as it
    /// should. A training step and a pass over many images are long; they may take as long as a model.
    fn turn(&self) -> Turn {
        let limit = match self.what {
            Benchmark::Train | Benchmark::Vision => self.limit / self.turns as f64,
            // Many rows, of which few are close.
            Benchmark::NeverSlower => self.seconds * 2.0,
            _ => self.seconds * 10.0,
        };
        Turn { seconds: self.seconds, repeats: self.repeats.div_ceil(self.turns), limit }
    }

    /// Warns about figures that should not be quoted as they are, and writes the requested files. A side without figures
    /// fails the command.
    fn write(&self, outputs: &mut Outputs, mut records: Vec<Record>) -> Outcome {
        let wide = |record: &&Record| record.statistics().is_some_and(|s| s.warning().is_some());
        let (all, varying) = (records.len(), records.iter().filter(wide).count());
        if varying > 0 {
            println!(
                "! {varying} of {all} series vary by more than 5 % of their mean: quote minima, or a quieter machine"
            );
        }
        for record in &mut records {
            record.cut = record.error.is_none() && record.samples.len() < self.repeats;
        }
        let short = records.iter().filter(|record| record.cut).count();
        if short > 0 {
            println!("! {short} of {all} series have fewer than {} samples: their time was up", self.repeats);
        }
        outputs.write(&records)?;
        record::failed(&records)
    }

    /// The device of the name.
    fn device(&self) -> Result<Device, Failure> {
        self.device.parse().map_err(|error: kiln_runtime::UnknownDevice| Failure::unusable(error.to_string()))
    }

    /// Returns an error where `--device` is no device, or one that the benchmark does not measure.
    fn check_device(&self) -> Result<(), Failure> {
        let measures_gpus = match self.what {
            Benchmark::Decode | Benchmark::Train | Benchmark::Vision | Benchmark::Suite => true,
            Benchmark::Forward => self.model.is_some(),
            _ => false,
        };
        let device = self.device()?;
        if device == Device::Cpu || measures_gpus {
            return Ok(());
        }
        let failure = Failure::unusable(format!("bench {} measures the CPU and not {device}", self.what.name()));
        Err(failure.advise("on a GPU: bench decode, forward --model, train, vision, suite; kiln explain --device cuda times the launches of a graph"))
    }

    /// The type of a model's weights and activations.
    fn dtype(&self) -> &str {
        self.dtype.as_deref().unwrap_or("f32")
    }

    /// Texts or images at a time.
    fn batch(&self) -> usize {
        self.batch.unwrap_or(1)
    }

    /// When the minutes are up.
    fn deadline(&self, default_minutes: f64) -> Result<Instant, Failure> {
        let minutes = self.minutes.unwrap_or(default_minutes);
        let end = Duration::try_from_secs_f64(minutes * 60.0).ok().and_then(|span| Instant::now().checked_add(span));
        end.ok_or_else(|| Failure::unusable("--minutes takes a positive number"))
    }

    /// The Python that has the peers.
    fn python(&self) -> String {
        self.python.clone().or_else(|| environment::PYTHON.get()).unwrap_or("python3".into())
    }
}

/// Runs the requested benchmark and prints a table.
pub fn run(arguments: &Arguments) -> Outcome {
    if arguments.side {
        return llm::serve();
    }
    if arguments.what == Benchmark::Report {
        print!("{}", published::page(&arguments.lines)?);
        return Ok(());
    }
    arguments.check_device()?;
    let mut outputs = Outputs::open(arguments)?;
    let outputs = &mut outputs;
    match arguments.what {
        Benchmark::Decode => return language::run(arguments, outputs, "decode"),
        Benchmark::Forward if arguments.model.is_some() => return language::run(arguments, outputs, "forward"),
        Benchmark::Suite => return suite::run(arguments, outputs),
        _ => {}
    }
    if let Some(case) = &arguments.cold {
        return first_call::cold(case);
    }
    // What another process compiled before must not count.
    kiln_runtime::disk::set_store(None);
    let cores = machine::cores();
    let threads = match &arguments.threads[..] {
        [] if cores > 1 => vec![1, cores],
        [] => vec![1],
        given => given.to_vec(),
    };
    let python = arguments.python();
    if arguments.peer.contains(&Peer::Torch) {
        peer::can_start(&python)?;
    }
    let start = |script| match arguments.peer.contains(&Peer::Torch) {
        true => TorchPeer::start(&python, script).map(Some),
        false => Ok(None),
    };
    let all = match arguments.what {
        Benchmark::FirstCall => return first_call::run(arguments, outputs, &python),
        Benchmark::Forward => return forward::run(arguments, outputs, &threads, start(peer::SCRIPT)?),
        Benchmark::Train => return train::run(arguments, outputs, &threads, start(train::PEER)?),
        Benchmark::Conv => return conv::run(arguments, outputs, &threads, start(conv::PEER)?),
        Benchmark::NeverSlower => return never_slower::run(arguments, outputs, &threads),
        Benchmark::Vision => return vision::run(arguments, outputs, &threads, start(vision::PEER)?),
        Benchmark::Control => return control::run(arguments, outputs, start(control::PEER)?),
        Benchmark::Calls => return calls::run(arguments, outputs, start(calls::PEER)?),
        Benchmark::Blocks => return blocks::run(arguments, outputs, &threads),
        Benchmark::Decode | Benchmark::Suite | Benchmark::Report => return Err("these were done above".into()),
        Benchmark::Ops => cases::ops(&threads),
        Benchmark::Matmul => cases::matmul(&threads),
        Benchmark::Attention => cases::attention(&threads),
    };
    let mut peer = start(peer::SCRIPT)?;
    let mut rows = Vec::new();
    report::header(peer.is_some());
    for case in all.into_iter().filter(|case| case.name().contains(&arguments.filter)) {
        let row = measure(case, peer.as_mut(), arguments)?;
        report::line(&row);
        rows.push(row);
    }
    report::summary(&rows, peer.as_ref().map(|p| p.version.as_str()));
    let what = arguments.what.name();
    arguments.write(outputs, rows.iter().flat_map(|row| report::records(what, row)).collect())
}

fn measure(case: Case, peer: Option<&mut TorchPeer>, arguments: &Arguments) -> Result<Row, Box<dyn std::error::Error>> {
    kiln_cpu::pool::set_threads(case.threads);
    let graph = case.graph()?;
    let hosts = inputs(&case, &graph)?;
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
    let peer = turns::Peer::setup(peer, case.to_json(), case.threads, modes);
    let mut direct = direct::Product::of(&case, &tensors)?;
    let mut copier = Copier::new(bytes);
    let fused = match &mut direct {
        Some(product) => Own::new(|| product.run()),
        None => Own::new(|| compiled.run(&tensors)),
    };
    let copy = Own::new(|| -> kiln::Result<()> {
        copier.copy(case.threads);
        Ok(())
    });
    let own = [fused, copy.half(), Own::new(|| kiln::run_eagerly(&graph, &tensors)).half()];
    let ([kiln, copy, eager], mut torch) = turns::take(arguments, own, peer)?;
    let agrees = agreement(&graph, &hosts);
    Ok(Row {
        kernels: compiled.program().steps().len(),
        compile,
        bytes,
        kiln,
        copy,
        eager,
        torch_eager: torch.timing(0),
        torch_compile: torch.timing(1),
        torch_first: torch.first(1),
        peer_error: torch.error,
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
    let config = Config { skip_eager: true, ..Default::default() };
    Some(oracle::compare(graph, hosts, &config).is_ok())
}

/// The inputs of a case.
fn inputs(case: &Case, graph: &kiln_ir::Graph) -> Result<Vec<HostTensor>, Box<dyn std::error::Error>> {
    let mut state = 0x2545_f491_4f6c_dd1du64;
    graph
        .inputs()
        .iter()
        .enumerate()
        .map(|(input, &id)| {
            let ty = graph.ty(id);
            let shape = ty.fixed_shape().ok_or("a benchmark with symbolic sizes")?;
            let count = shape.iter().product::<usize>();
            let random = || {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                (state >> 11) as f64 / (1u64 << 53) as f64
            };
            Ok(HostTensor::from_f64(ty.dtype, &shape, &case.elements(input, ty.dtype, count, random))?)
        })
        .collect()
}
