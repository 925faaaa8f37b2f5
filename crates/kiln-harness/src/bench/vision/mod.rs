//! `kiln bench vision`: whole convolutional networks with random weights, eager and in the modes of compilation, with PyTorch's eager,
//! channels-last and compiled ones beside them, which have the same weights and inputs and have to give the same answers.

pub mod networks;
mod resnet;

use super::clock::{Timing, seconds};
use super::difference::difference;
use super::files::Files;
use super::llm::options;
use super::outputs::Outputs;
use super::peer::TorchPeer;
use super::record::{Record, Subject, best_kiln, best_peer};
use super::turns::{self, Own};
use super::{Arguments, launches, report, table};
use kiln::{Compiled, DType, Device, Options, Tensor, safetensors};
use kiln_terminal::failure::{Failure, Outcome};
use networks::{Function, Network};
use serde_json::json;

/// The script that runs the same networks in PyTorch.
pub const PEER: &str = concat!(include_str!("../peers/lines.py"), include_str!("torch_vision.py"));

/// Modes of PyTorch, as its script names them, on the CPU (compiled with freezing) and on a GPU.
const TORCH_CPU: [&str; 3] = ["eager", "channels-last", "compile"];
const TORCH_GPU: [&str; 3] = ["eager", "default", "reduce-overhead"];

/// One mode of Kiln.
struct Side {
    mode: String,
    run: Compiled<Function, Vec<Tensor>, Tensor>,
    first: f64,
    /// The largest difference from the eager mode, over the largest value.
    difference: f64,
}

/// What is measured.
struct Case {
    network: Network,
    batch: usize,
    image: usize,
    dtype: DType,
    device: Device,
    threads: usize,
}

/// Measures networks in every mode and prints a table each.
pub fn run(arguments: &Arguments, outputs: &mut Outputs, threads: &[usize], mut peer: Option<TorchPeer>) -> Outcome {
    let threads = threads.last().copied().unwrap_or(1);
    kiln_cpu::pool::set_threads(threads);
    let device = arguments.device()?;
    let dtype = match arguments.dtype() {
        "bf16" => DType::Bf16,
        "f16" => DType::F16,
        _ => DType::F32,
    };
    let networks = match &arguments.model {
        Some(names) => names.split(',').map(Network::named).collect::<Result<_, _>>()?,
        None if device == Device::Cpu => Network::all(),
        None => vec![Network::named("resnet-50")?],
    };
    let (mut all, mut against) = (Vec::new(), Vec::new());
    for network in networks.into_iter().filter(|network| network.name().contains(&arguments.filter)) {
        let case = Case { network, batch: arguments.batch(), image: arguments.image, dtype, device, threads };
        let records = measure(&case, arguments, peer.as_mut())?;
        table::print(&records);
        let best = best_kiln(&records).zip(best_peer(&records));
        against.extend(best.and_then(|(kiln, peer)| kiln.ratio_of_minima(peer)));
        all.extend(records);
    }
    if let Some(peer) = &peer {
        println!();
        report::tell(&format!("against the fastest of torch {}", peer.version), against);
    }
    arguments.write(outputs, all)
}

/// The sides of one network.
fn measure(
    case: &Case,
    arguments: &Arguments,
    peer: Option<&mut TorchPeer>,
) -> Result<Vec<Record>, Box<dyn std::error::Error>> {
    let &Case { network, batch, image, dtype, device, threads } = case;
    let bound = match dtype {
        DType::Bf16 => 0.06,
        DType::F16 => 0.01,
        _ => 1e-4,
    };
    let weights = network.weights(dtype)?;
    let inputs = network.inputs(batch, image, dtype, device)?;
    let function = || network.function(&weights, dtype, device);
    let eager = function()?(&inputs)?;
    let mut sides = Vec::new();
    for mode in &arguments.modes {
        let options = options(mode).map_err(Failure::unusable)?;
        // Weights that change are not frozen.
        if network.is_trained() && options.as_ref().is_some_and(|options| options.freeze) {
            continue;
        }
        let options = options.unwrap_or(Options { disable: true, ..Options::default() });
        let run = kiln::compile_with(function()?, options);
        let (y, first) = seconds(|| run.call(&inputs))?;
        sides.push(Side { mode: mode.clone(), difference: difference(&y, &eager)?, first, run });
    }
    let files = Files::new("vision")?;
    let file = |name: &str| files.path(&format!("{name}.safetensors"));
    let mut asked = network.to_json();
    if peer.is_some() {
        let host = |tensor: &Tensor| tensor.to_device(Device::Cpu)?.contiguous();
        let inputs = inputs.iter().map(host).collect::<kiln::Result<Vec<_>>>()?;
        safetensors::save(file("weights"), &weights)?;
        safetensors::save(file("inputs"), inputs.iter().enumerate().map(|(i, x)| (i.to_string(), x)))?;
        for name in ["weights", "inputs", "answer"] {
            asked[name] = json!(file(name));
        }
        asked["device"] = json!(if device == Device::Cpu { "cpu" } else { "cuda" });
    }
    let modes = if device == Device::Cpu { &TORCH_CPU } else { &TORCH_GPU };
    let modes: Vec<&str> = modes.iter().copied().filter(|mode| is_wanted(arguments, mode)).collect();
    let version = peer.is_some();
    let mut peer = peer;
    let setup = turns::Peer::setup(peer.as_deref_mut(), asked.clone(), threads, &modes);
    let own = sides.iter().map(|side| Own::new(|| side.run.call(&inputs))).collect();
    let (timings, mut torch) = turns::take_all(arguments, own, setup)?;
    if arguments.explain {
        for side in &sides {
            println!("{}:\n{}", side.mode, launches::table(&side.run.explain(&inputs)?));
        }
    }
    let subject = Subject {
        what: "vision".into(),
        model: format!("{} {image}²", network.name()),
        device: arguments.device.clone(),
        dtype: arguments.dtype().to_owned(),
        batch,
        prompt: 0,
        threads,
        tokens_a_call: 0,
    };
    let mut records: Vec<Record> = Vec::new();
    for (side, timing) in sides.iter().zip(&timings) {
        let mut record = Record::timed(&subject, "kiln", &side.mode, timing);
        record.first_call_s = Some(side.first);
        record.launches = Some(side.run.programs().iter().map(|program| program.kernels.len() as u64).sum());
        record.matches_eager = Some(side.difference <= bound);
        record.extra = json!({"difference_from_eager": side.difference, "bound": bound, "image": image});
        records.push(record);
    }
    let version = peer.filter(|_| version).map(|peer| format!("torch {}", peer.version));
    // What the peer wrote.
    let answer = safetensors::load(file("answer"), Device::Cpu).ok().and_then(|mut found| found.remove("answer"));
    let answered = answer.map(|answer| difference(&eager, &answer)).transpose()?;
    for (number, mode) in modes.iter().enumerate() {
        if let Some(timing) = torch.timing(number) {
            let mut record = torch_record(&subject, mode, &timing, torch.first(number));
            record.peer = version.clone();
            // Only the first mode's answer is compared; sums of another order differ by more than one compiler's own.
            if let (0, Some(difference)) = (number, answered) {
                record.matches_eager = Some(difference <= bound * PEER_SLACK);
                record.extra = json!({"difference_from_kiln_eager": difference, "bound": bound * PEER_SLACK});
            }
            records.push(record);
        }
    }
    records.extend(Record::without_figures(&subject, "torch", torch.error.as_deref()));
    Ok(records)
}

/// How many times as far another library's answer may be as that of another mode.
const PEER_SLACK: f64 = 10.0;

fn torch_record(subject: &Subject, mode: &str, timing: &Timing, first: f64) -> Record {
    let first_call_s = Some(first).filter(|first| first.is_finite());
    Record { first_call_s, ..Record::timed(subject, "torch", mode, timing) }
}

/// Whether a mode of PyTorch was asked for.
fn is_wanted(arguments: &Arguments, mode: &str) -> bool {
    let compiled = !matches!(mode, "eager" | "channels-last");
    let named = |asked: &String| asked == mode || asked.strip_prefix("torch:") == Some(mode);
    let asked = arguments.peer_modes.is_empty() || arguments.peer_modes.iter().any(named);
    asked && !(compiled && arguments.no_torch_compile)
}
