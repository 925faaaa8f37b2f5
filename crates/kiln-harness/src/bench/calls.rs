//! `kiln bench calls`: what a call of a compiled function costs beyond its kernels. The work is next to nothing, so that the
//! way there is what is measured.

use super::clock::{Timing, time, together};
use super::outputs::Outputs;
use super::peer::TorchPeer;
use super::record::{Record, Subject};
use super::turns::{self, Own};
use super::{Arguments, Outcome};
use kiln::{DType, Device, Mode, Options, Result, Tensor, Var, compile_with};
use serde_json::json;
use std::cell::Cell;

/// The same functions in PyTorch.
pub const PEER: &str = concat!(include_str!("peers/lines.py"), include_str!("torch_calls.py"));

/// Seconds a call of one case.
struct Row {
    name: &'static str,
    mode: Mode,
    kernels: usize,
    /// The kernels launched one after the other, with everything at hand.
    launches: f64,
    /// The call.
    call: Timing,
    /// The function itself.
    eager: Timing,
    torch: Option<(Timing, Timing)>,
    /// Why the peer has no figures.
    peer_error: Option<String>,
}

fn draw() -> Result<Tensor> {
    Tensor::randn(8, DType::F32, Device::Cpu)
}

/// Times a compiled function, the function itself, and the bare launches of its kernels. `arguments` are given in turn.
fn measure<A: kiln::Bundle, R: kiln::Bundle>(
    name: &'static str,
    mode: Mode,
    f: impl Fn(&A) -> Result<R>,
    arguments: &[A],
    peer: Option<&mut TorchPeer>,
    options: &Arguments,
) -> std::result::Result<Row, Box<dyn std::error::Error>> {
    let fast = compile_with(f, Options { mode, ..Options::default() });
    for argument in arguments.iter().chain(arguments) {
        fast.call(argument)?;
        fast.inner()(argument)?;
    }
    let modes: &[&str] = if options.no_torch_compile { &["eager"] } else { &["eager", "compile"] };
    let has_peer = peer.is_some();
    let peer = turns::Peer::setup(peer, json!({ "name": name }), 1, modes);
    let turn = Cell::new(0);
    let next = || {
        turn.set(turn.get() + 1);
        &arguments[turn.get() % arguments.len()]
    };
    let own = [Own::new(|| fast.call(next())), Own::new(|| fast.inner()(next()))];
    let ([call, eager], mut torch) = turns::take(options, own, peer)?;
    let segments: Vec<_> = fast.programs().into_iter().next_back().map(|program| program.segments).unwrap_or_default();
    let codes: Vec<_> = segments.into_iter().filter_map(|segment| segment.code).collect();
    let mut launches = 0.0;
    for code in &codes {
        launches += launch_time(code, options)?;
    }
    let kernels = codes.iter().map(|code| code.program().steps().len()).sum();
    let (peer_error, nothing) = (torch.error.clone(), || together(&[]));
    let torch = (has_peer && peer_error.is_none())
        .then(|| (torch.timing(0).unwrap_or_else(nothing), torch.timing(1).unwrap_or_else(nothing)));
    Ok(Row { name, mode, kernels, launches, call, eager, torch, peer_error })
}

/// Seconds that the launches of a program take by themselves, on inputs of any elements.
fn launch_time(
    code: &kiln::CompiledGraph,
    options: &Arguments,
) -> std::result::Result<f64, Box<dyn std::error::Error>> {
    let graph = code.graph();
    let size = |dim: &kiln_ir::Dim| dim.eval(&|_| Some(8)).and_then(|n| usize::try_from(n).ok()).unwrap_or(1);
    let tensors = graph
        .inputs()
        .iter()
        .map(|&id| {
            let ty = graph.ty(id);
            Tensor::ones(ty.shape.iter().map(size).collect::<Vec<_>>(), ty.dtype, Device::Cpu)?.contiguous()
        })
        .collect::<Result<Vec<Tensor>>>()?;
    let views: Vec<kiln::runtime::InputView<'_>> = tensors
        .iter()
        .map(|tensor| kiln::runtime::InputView {
            buffer: tensor.buffer(),
            dtype: tensor.dtype(),
            shape: tensor.shape(),
            strides: tensor.strides(),
            offset: 0,
        })
        .collect();
    let mut inspection = code.program().inspect(&views)?;
    let steps = code.program().steps().len();
    let turn = time::<Box<dyn std::error::Error>>(options.turn(), || {
        Ok((0..steps).try_for_each(|step| inspection.launch(step).map(drop))?)
    })?;
    Ok(together(&[turn]).min)
}

/// Measures and prints every case.
pub fn run(arguments: &Arguments, outputs: &mut Outputs, mut peer: Option<TorchPeer>) -> Outcome {
    kiln_cpu::pool::set_threads(1);
    println!(
        "a call of a compiled function beyond its kernels; times in µs a call, best of {} turns\n",
        arguments.turns
    );
    println!(
        "{:<20} {:<16} {:>7} {:>8} {:>8} {:>8} {:>9} {:>9} {:>9} {:>7}",
        "case", "mode", "kernels", "launches", "call", "beyond", "eager", "torch", "torch.c", "ratio"
    );
    let mut rows = Vec::new();
    let all = |name: &str| name.contains(&arguments.filter);
    for mode in [Mode::Default, Mode::ReduceOverhead] {
        let mut add = |row: std::result::Result<Row, Box<dyn std::error::Error>>| -> Outcome {
            let row = row?;
            print(&row);
            rows.push(row);
            Ok(())
        };
        if all("one tensor") {
            let f = |x: &Tensor| x.mul(2.0)?.add(1.0);
            add(measure("one tensor", mode, f, &[draw()?], peer.as_mut(), arguments))?;
        }
        if all("16 tensors") {
            let list = (0..16).map(|_| draw()).collect::<Result<Vec<Tensor>>>()?;
            let f = |list: &Vec<Tensor>| list[1..].iter().try_fold(list[0].clone(), |sum, x| sum.add(x));
            add(measure("16 tensors", mode, f, &[list], peer.as_mut(), arguments))?;
        }
        if all("300 tensors held") {
            let weights = (0..300).map(|_| draw()).collect::<Result<Vec<Tensor>>>()?;
            let f = |x: &Tensor| weights.iter().try_fold(x.clone(), |sum, w| sum.add(w));
            add(measure("300 tensors held", mode, f, &[draw()?], peer.as_mut(), arguments))?;
        }
        if all("300 variables") {
            let weights = (0..300).map(|_| Ok(Var::new(&draw()?))).collect::<Result<Vec<Var>>>()?;
            let f = |x: &Tensor| weights.iter().try_fold(x.clone(), |sum, w| sum.add(w.get()));
            add(measure("300 variables", mode, f, &[draw()?], peer.as_mut(), arguments))?;
        }
        if all("sizes that change") {
            let sizes = [8, 9, 10, 11].iter().map(|&n| Tensor::randn(n, DType::F32, Device::Cpu));
            let sizes = sizes.collect::<Result<Vec<Tensor>>>()?;
            let f = |x: &Tensor| x.mul(2.0)?.add(1.0);
            add(measure("sizes that change", mode, f, &sizes, peer.as_mut(), arguments))?;
        }
        if all("a branch on data") {
            let f = |x: &Tensor| {
                let y = x.mul(2.0)?;
                if y.sum(..)?.gt(0.0)?.item::<bool>()? { y.add(1.0) } else { y.sub(1.0) }
            };
            add(measure("a branch on data", mode, f, &[draw()?.abs()?], peer.as_mut(), arguments))?;
        }
        if all("a variable updated") {
            let state = Var::new(&draw()?);
            let f = |x: &Tensor| {
                state.add_assign(x)?;
                x.mul(2.0)
            };
            add(measure("a variable updated", mode, f, &[draw()?], peer.as_mut(), arguments))?;
        }
    }
    println!(
        "\nlaunches: the kernels alone; beyond: call − launches; ratio: torch.compile's call − launches, to beyond{}",
        peer.as_ref().map(|peer| format!(" (PyTorch {})", peer.version)).unwrap_or_default()
    );
    let version = peer.map(|peer| format!("torch {}", peer.version));
    arguments.write(outputs, rows.iter().flat_map(|row| records(row, version.as_deref())).collect())
}

impl Row {
    fn beyond(&self) -> f64 {
        (self.call.min - self.launches).max(0.0)
    }

    /// How many times more PyTorch spends beyond the kernels, if these take it as long.
    fn ratio(&self) -> f64 {
        self.torch.as_ref().map_or(f64::NAN, |(_, compiled)| (compiled.min - self.launches) / self.beyond())
    }
}

fn print(row: &Row) {
    let micros = |seconds: f64| if seconds.is_finite() { format!("{:.2}", seconds * 1e6) } else { "–".to_owned() };
    let torch = row.torch.as_ref().map_or((f64::NAN, f64::NAN), |(eager, compiled)| (eager.min, compiled.min));
    let ratio = if row.ratio().is_finite() { format!("{:.1}×", row.ratio()) } else { "–".to_owned() };
    println!(
        "{:<20} {:<16} {:>7} {:>8} {:>8} {:>8} {:>9} {:>9} {:>9} {:>7}",
        row.name,
        row.mode.name(),
        row.kernels,
        micros(row.launches),
        micros(row.call.min),
        micros(row.beyond()),
        micros(row.eager.min),
        micros(torch.0),
        micros(torch.1),
        ratio
    );
    if let Some(error) = &row.peer_error {
        println!("  {error}");
    }
}

/// The sides of a row, in the form that all benchmarks have.
fn records(row: &Row, version: Option<&str>) -> Vec<Record> {
    let subject = Subject {
        what: "calls".into(),
        model: format!("{}, {}", row.name, row.mode.name()),
        device: "cpu".into(),
        dtype: "f32".into(),
        batch: 1,
        prompt: 0,
        threads: 1,
        tokens_a_call: 0,
    };
    let mut kiln = Record::timed(&subject, "kiln", row.mode.name(), &row.call);
    kiln.launches = Some(row.kernels as u64);
    kiln.extra = json!({"case": row.name, "launches_s": row.launches, "beyond_s": row.beyond()});
    let mut records = vec![Record::timed(&subject, "kiln", "eager", &row.eager), kiln];
    if let Some((eager, compiled)) = &row.torch {
        for (mode, timing) in [("eager", eager), ("default", compiled)] {
            let mut record = Record::timed(&subject, "torch", mode, timing);
            record.peer = version.map(str::to_owned);
            records.push(record);
        }
    }
    records.extend(Record::without_figures(&subject, "torch", row.peer_error.as_deref()));
    records
}
