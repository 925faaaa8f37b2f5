//! `kiln bench vision`: whole convolutional networks with random weights, eager and in the modes of compilation, with PyTorch's eager
//! and compiled ones beside them.

use super::clock::seconds;
use super::difference::difference;
use super::llm::options;
use super::outputs::Outputs;
use super::peer::TorchPeer;
use super::record::{Record, Subject};
use super::turns::{self, Own};
use super::{Arguments, table};
use crate::models::Weights;
use crate::vision::{Config, ResNet};
use kiln::nn::Module;
use kiln::{Compiled, DType, Result, Tensor};
use kiln_terminal::failure::{Failure, Outcome};
use serde_json::json;
use std::sync::Arc;

/// The script that runs the same network in PyTorch.
pub const PEER: &str = concat!(include_str!("peers/lines.py"), include_str!("torch_vision.py"));

/// Modes of PyTorch, as its script names them.
const TORCH: [&str; 3] = ["eager", "default", "reduce-overhead"];

/// The network's function.
type Function = Box<dyn Fn(&Tensor) -> Result<Tensor> + Send + Sync>;

/// One mode of Kiln.
struct Side {
    mode: String,
    run: Compiled<Function, Tensor, Tensor>,
    first: f64,
    /// The largest difference from the eager mode, over the largest value.
    difference: f64,
}

/// Measures ResNet-50 in every mode and prints a table.
pub fn run(arguments: &Arguments, outputs: &mut Outputs, threads: &[usize], peer: Option<TorchPeer>) -> Outcome {
    let threads = threads.last().copied().unwrap_or(1);
    kiln_cpu::pool::set_threads(threads);
    let device = arguments.device()?;
    let (dtype, bound) = match arguments.dtype() {
        "bf16" => (DType::Bf16, 0.06),
        "f16" => (DType::F16, 0.01),
        _ => (DType::F32, 1e-4),
    };
    let (batch, image) = (arguments.batch, arguments.image);
    let network = Arc::new(ResNet::new(&Config::RESNET50)?.to(device, dtype)?);
    // Channels last, as the peer has them.
    let images = Weights::new(5).normal(&[batch, image, image, 3], 1.0)?;
    let images = images.to_dtype(dtype)?.to_device(device)?.permute([0, 3, 1, 2])?;
    let eager = network.forward(&images)?;
    let mut sides = Vec::new();
    for mode in &arguments.modes {
        let options = options(mode).map_err(Failure::unusable)?;
        let network = network.clone();
        let function: Function = Box::new(move |images: &Tensor| network.forward(images));
        let run = match options {
            Some(options) => kiln::compile_with(function, options),
            None => kiln::compile_with(function, kiln::Options { disable: true, ..kiln::Options::default() }),
        };
        let (y, first) = seconds(|| run.call(&images))?;
        sides.push(Side { mode: mode.clone(), difference: difference(&y, &eager)?, first, run });
    }
    let subject = Subject {
        what: "vision".into(),
        model: format!("resnet50 {image}²"),
        device: arguments.device.clone(),
        dtype: arguments.dtype().to_owned(),
        batch,
        prompt: 0,
        threads,
        tokens_a_call: 0,
    };
    let case = json!({
        "kind": "resnet50", "batch": batch, "image": image, "dtype": arguments.dtype(), "device": arguments.device,
    });
    let modes: &[&str] = if arguments.no_torch_compile { &TORCH[..1] } else { &TORCH };
    let mut peer = peer;
    let setup = turns::Peer::setup(peer.as_mut(), case, threads, modes);
    let own = sides.iter().map(|side| Own::new(|| side.run.call(&images))).collect();
    let (timings, mut torch) = turns::take_all(arguments, own, setup)?;
    let mut records: Vec<Record> = Vec::new();
    for (side, timing) in sides.iter().zip(&timings) {
        let mut record = Record::timed(&subject, "kiln", &side.mode, timing);
        record.first_call_s = Some(side.first);
        record.launches = Some(side.run.programs().iter().map(|program| program.kernels.len() as u64).sum());
        record.matches_eager = Some(side.difference <= bound);
        record.extra = json!({"difference_from_eager": side.difference, "bound": bound, "image": image});
        records.push(record);
    }
    let version = peer.map(|peer| format!("torch {}", peer.version));
    for (number, mode) in modes.iter().enumerate() {
        if let Some(timing) = torch.timing(number) {
            let first_call_s = Some(torch.first(number)).filter(|first| first.is_finite());
            records.push(Record {
                peer: version.clone(),
                first_call_s,
                ..Record::timed(&subject, "torch", mode, &timing)
            });
        }
    }
    records.extend(Record::without_figures(&subject, "torch", torch.error.as_deref()));
    table::print(&records);
    arguments.write(outputs, records)
}
