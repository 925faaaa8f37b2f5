//! `kiln bench control`: functions that are no straight line of operations. A sample is one pass over all arguments of a case, which
//! differ in sizes or data; what is compiled on the way is counted by itself.

use super::clock::{Timing, seconds, together};
use super::outputs::Outputs;
use super::peer::TorchPeer;
use super::record::{Record, Subject};
use super::turns::{self, Own};
use super::{Arguments, Outcome};
use super::{beam, merges};
use kiln::nn::{Forward, Gru, Lstm, Module};
use kiln::{Bundle, DType, Device, Float, Generator, Options, Result, Stats, Tensor, compile_with};
use serde_json::json;

/// The same functions in PyTorch.
pub const PEER: &str = concat!(include_str!("peers/lines.py"), include_str!("torch_control.py"));

/// One case.
struct Row {
    name: &'static str,
    /// Arguments of a pass.
    calls: usize,
    stats: Stats,
    /// Seconds of the first pass beyond that of eager calls.
    first: f64,
    compiled: Timing,
    eager: Timing,
    torch: Option<(Timing, Timing)>,
    /// Seconds of torch.compile's first pass.
    torch_first: f64,
    peer_error: Option<String>,
}

fn randn(shape: &[usize], seed: u64) -> Result<Tensor> {
    Generator::new(seed).randn(shape, DType::F32, Device::Cpu)
}

fn measure<A: Bundle, R: Bundle>(
    name: &'static str,
    f: impl Fn(&A) -> Result<R>,
    arguments: &[A],
    peer: Option<&mut TorchPeer>,
    options: &Arguments,
) -> std::result::Result<Row, Box<dyn std::error::Error>> {
    let fast = compile_with(f, Options::default());
    let pass = |call: &dyn Fn(&A) -> Result<R>| arguments.iter().try_for_each(|argument| call(argument).map(drop));
    // What eager code compiles for itself is there before.
    pass(&|argument| fast.inner()(argument))?;
    let ((), first) = seconds::<_, kiln::Error>(|| pass(&|argument| fast.call(argument)))?;
    // Those that decide by measuring have decided.
    (0..2).try_for_each(|_| pass(&|argument| fast.call(argument)))?;
    let modes: &[&str] = if options.no_torch_compile { &["eager"] } else { &["eager", "compile"] };
    let has_peer = peer.is_some();
    let peer = turns::Peer::setup(peer, json!({ "name": name }), 1, modes);
    let own =
        [Own::new(|| pass(&|argument| fast.call(argument))), Own::new(|| pass(&|argument| fast.inner()(argument)))];
    let ([compiled, eager], mut torch) = turns::take(options, own, peer)?;
    let (peer_error, torch_first) = (torch.error.clone(), torch.first(1));
    let nothing = || together(&[]);
    let torch = (has_peer && peer_error.is_none())
        .then(|| (torch.timing(0).unwrap_or_else(nothing), torch.timing(1).unwrap_or_else(nothing)));
    let first = (first - eager.min).max(0.0);
    let (calls, stats) = (arguments.len(), fast.stats());
    Ok(Row { name, calls, stats, first, compiled, eager, torch, torch_first, peer_error })
}

/// Measures and prints every case.
pub fn run(arguments: &Arguments, outputs: &mut Outputs, mut peer: Option<TorchPeer>) -> Outcome {
    kiln_cpu::pool::set_threads(1);
    println!(
        "functions that are no straight line; times in µs a call, over all arguments, best of {} turns\n",
        arguments.turns
    );
    println!(
        "{:<24} {:>5} {:>8} {:>6} {:>9} {:>9} {:>9} {:>7} {:>9} {:>9} {:>9} {:>9}",
        "case",
        "calls",
        "programs",
        "graphs",
        "compile",
        "compiled",
        "eager",
        "ratio",
        "torch",
        "torch.c",
        "its first",
        "ratio"
    );
    let mut rows = Vec::new();
    let mut add = |row: std::result::Result<Row, Box<dyn std::error::Error>>| -> Outcome {
        let row = row?;
        print(&row);
        rows.push(row);
        Ok(())
    };
    let wanted = |name: &str| name.contains(&arguments.filter);
    if wanted("break, 300 sizes") {
        let sizes = (2..302).map(|n| randn(&[n, 64], n as u64)).collect::<Result<Vec<_>>>()?;
        add(measure("break, 300 sizes", broken, &sizes, peer.as_mut(), arguments))?;
    }
    if wanted("amax().item()") {
        let data = (0..64).map(|n| randn(&[256, 256], n)).collect::<Result<Vec<_>>>()?;
        let f = |x: &Tensor| x.gelu()?.div(x.abs()?.amax(..)?.item::<f32>()?)?.tanh()?.add(1.0)?.mul(x);
        add(measure("amax().item()", f, &data, peer.as_mut(), arguments))?;
    }
    if wanted("masked_select") {
        let data = (0..64).map(|n| randn(&[128, 128], n)).collect::<Result<Vec<_>>>()?;
        let f = |x: &Tensor| {
            let chosen = x.masked_select(&x.gt(0.0)?)?;
            chosen.sub(chosen.mean(..)?)?.tanh()?.square()?.mean(..)
        };
        add(measure("masked_select", f, &data, peer.as_mut(), arguments))?;
    }
    if wanted("sparse MoE") {
        let data = (0..64).map(|n| randn(&[128, 64], n)).collect::<Result<Vec<_>>>()?;
        let (router, up, down) = experts()?;
        let f = |x: &Tensor| mixture(x, &router, &up, &down);
        add(measure("sparse MoE", f, &data, peer.as_mut(), arguments))?;
    }
    if wanted("Newton, early exit") {
        let data = (0..64).map(|n| randn(&[4096], n)?.abs()?.add(0.5)).collect::<Result<Vec<_>>>()?;
        add(measure("Newton, early exit", newton, &data, peer.as_mut(), arguments))?;
    }
    if wanted("Newton, 64 tolerances") {
        let argument = |n: u64| Ok((randn(&[4096], n)?.abs()?.add(0.5)?, Float::from(1e-5 * (1 + n) as f64)));
        let data = (0..64).map(argument).collect::<Result<Vec<_>>>()?;
        add(measure("Newton, 64 tolerances", newton_until, &data, peer.as_mut(), arguments))?;
    }
    if wanted("while_loop") {
        let data = (0..64).map(|n| randn(&[4096], n)?.abs()?.add(0.5)).collect::<Result<Vec<_>>>()?;
        let turns = kiln::while_loop(
            |(root, x): &(Tensor, Tensor)| root.square()?.sub(x)?.abs()?.amax(..)?.gt(1e-4),
            |(root, x): &(Tensor, Tensor)| Ok((root.add(x.div(root)?)?.mul(0.5)?, x.clone())),
        );
        let f = move |x: &Tensor| Ok(turns.call((x.add(1.0)?.mul(0.5)?, x.clone()))?.0);
        add(measure("while_loop", f, &data, peer.as_mut(), arguments))?;
    }
    if wanted("early-exit network") {
        let data = (0..64).map(|n| randn(&[32, 64], n)?.mul(0.25 + n as f64 / 16.0)).collect::<Result<Vec<_>>>()?;
        let weights = (0..6).map(|n| randn(&[64, 64], 1000 + n)?.mul(0.15)).collect::<Result<Vec<_>>>()?;
        let f = |x: &Tensor| early_exit(x, &weights);
        add(measure("early-exit network", f, &data, peer.as_mut(), arguments))?;
    }
    if wanted("variational early exit") {
        let data = (0..64).map(|n| randn(&[32, 64], n)?.mul(0.25 + n as f64 / 16.0)).collect::<Result<Vec<_>>>()?;
        let weights = (0..6).map(|n| randn(&[64, 64], 1000 + n)?.mul(0.15)).collect::<Result<Vec<_>>>()?;
        let f = |x: &Tensor| variational(x, &weights);
        add(measure("variational early exit", f, &data, peer.as_mut(), arguments))?;
    }
    if wanted("beam search") {
        let data = (0..64).map(|n| Tensor::new([n % beam::WORDS], Device::Cpu)).collect::<Result<Vec<_>>>()?;
        let search = beam::search(&randn(&[beam::WORDS as usize, beam::WORDS as usize], 900)?)?;
        add(measure("beam search", search, &data, peer.as_mut(), arguments))?;
    }
    if wanted("byte-pair merges") {
        let merge = merges::merge()?;
        add(measure("byte-pair merges", merge, &merges::words(64)?, peer.as_mut(), arguments))?;
    }
    if wanted("LSTM, 300 lengths") {
        let layer = Lstm::new(32, 64, 1)?;
        let f = move |x: &Tensor| kiln::no_grad(|| layer.forward(x));
        add(measure("LSTM, 300 lengths", f, &sequences()?, peer.as_mut(), arguments))?;
    }
    if wanted("GRU, 300 lengths") {
        let layer = Gru::new(32, 64, 1)?;
        let f = move |x: &Tensor| kiln::no_grad(|| layer.forward(x));
        add(measure("GRU, 300 lengths", f, &sequences()?, peer.as_mut(), arguments))?;
    }
    if wanted("LSTM training step") {
        let layer = Lstm::new(32, 64, 1)?;
        let f = move |x: &Tensor| training_step(&layer, x);
        add(measure("LSTM training step", f, &sequences()?, peer.as_mut(), arguments))?;
    }
    if wanted("LSTM of a scan") {
        let data = (1..301).map(|n| randn(&[n, 8, 32], n as u64)).collect::<Result<Vec<_>>>()?;
        let (inputs, hidden) = (randn(&[32, 256], 1)?.mul(0.1)?, randn(&[64, 256], 2)?.mul(0.1)?);
        let cell = kiln::scan(move |((h, c), x): &((Tensor, Tensor), Tensor)| {
            let gates = x.matmul(&inputs)?.add(h.matmul(&hidden)?)?;
            let gate = |n: usize| gates.narrow(1, n * 64, 64);
            let c = gate(1)?.sigmoid()?.mul(c)?.add(gate(0)?.sigmoid()?.mul(gate(2)?.tanh()?)?)?;
            let h = gate(3)?.sigmoid()?.mul(c.tanh()?)?;
            Ok(((h.clone(), c), h))
        });
        let f = move |x: &Tensor| {
            let zeros = Tensor::zeros([8, 64], DType::F32, Device::Cpu)?;
            Ok(cell.call((zeros.clone(), zeros), x.clone())?.1)
        };
        add(measure("LSTM of a scan", f, &data, peer.as_mut(), arguments))?;
    }
    println!(
        "\nprograms and graphs: compiled for all arguments; compile: seconds of the first pass beyond an eager one; ratio: eager to compiled, torch.compile to compiled{}",
        peer.as_ref().map(|peer| format!(" (PyTorch {})", peer.version)).unwrap_or_default()
    );
    let version = peer.map(|peer| format!("torch {}", peer.version));
    arguments.write(outputs, rows.iter().flat_map(|row| records(row, version.as_deref())).collect())
}

/// Eight sequences of each length up to 300.
fn sequences() -> Result<Vec<Tensor>> {
    (1..301).map(|n| randn(&[8, n, 32], n as u64)).collect()
}

/// A decision by data between two element-wise ways.
fn broken(x: &Tensor) -> Result<Tensor> {
    let y = x.mul(2.0)?.add(1.0)?;
    if y.sum(..)?.gt(0.0)?.item::<bool>()? { y.gelu()?.mul(x) } else { y.tanh()?.sub(x) }
}

/// Router, and both layers of eight experts.
fn experts() -> Result<(Tensor, Vec<Tensor>, Vec<Tensor>)> {
    let layer = |rows: usize, columns: usize, first: u64| {
        (0..8).map(|n| randn(&[rows, columns], first + n)?.mul(0.1)).collect::<Result<Vec<_>>>()
    };
    Ok((randn(&[64, 8], 500)?, layer(64, 128, 600)?, layer(128, 64, 700)?))
}

/// Each token goes to the expert that its router likes best.
fn mixture(x: &Tensor, router: &Tensor, up: &[Tensor], down: &[Tensor]) -> Result<Tensor> {
    let scores = x.matmul(router)?.softmax(-1)?;
    let (gate, expert) = (scores.amax(-1)?, scores.argmax(-1)?);
    let mut out = x.zeros_like()?;
    for (number, (up, down)) in up.iter().zip(down).enumerate() {
        let rows = expert.eq(number as i64)?.nonzero()?.squeeze(1)?;
        let own = x.index_select(0, &rows)?.matmul(up)?.gelu()?.matmul(down)?;
        out = out.index_add(0, &rows, &own.mul(gate.index_select(0, &rows)?.unsqueeze(1)?)?)?;
    }
    Ok(out)
}

/// Square roots, until they are good enough.
fn newton(x: &Tensor) -> Result<Tensor> {
    let mut root = x.add(1.0)?.mul(0.5)?;
    while root.square()?.sub(x)?.abs()?.amax(..)?.gt(1e-4)?.item::<bool>()? {
        root = root.add(x.div(&root)?)?.mul(0.5)?;
    }
    Ok(root)
}

/// The same, good enough for a number that each call gives.
fn newton_until((x, tolerance): &(Tensor, Float)) -> Result<Tensor> {
    let mut root = x.add(1.0)?.mul(0.5)?;
    while root.square()?.sub(x)?.abs()?.amax(..)?.item_float()? > tolerance {
        root = root.add(x.div(&root)?)?.mul(0.5)?;
    }
    Ok(root)
}

/// Layers, until the result is large enough.
fn early_exit(x: &Tensor, weights: &[Tensor]) -> Result<Tensor> {
    let mut h = x.clone();
    for weight in weights {
        h = h.matmul(weight)?.gelu()?.add(&h)?;
        if h.abs()?.mean(..)?.gt(1.0)?.item::<bool>()? {
            break;
        }
    }
    h.softmax(-1)
}

/// Layers with noise, until a random number is below what the result makes of it.
fn variational(x: &Tensor, weights: &[Tensor]) -> Result<Tensor> {
    let mut h = x.clone();
    for weight in weights {
        h = h.matmul(weight)?.gelu()?.add(&h)?.add(h.randn_like()?.mul(0.1)?)?;
        let chance = h.abs()?.mean(..)?.sub(1.0)?.sigmoid()?;
        if Tensor::rand((), DType::F32, Device::Cpu)?.lt(&chance)?.item::<bool>()? {
            break;
        }
    }
    h.softmax(-1)
}

/// A step of gradient descent.
fn training_step(layer: &Lstm, x: &Tensor) -> Result<Tensor> {
    let loss = layer.forward(x)?.square()?.mean(..)?;
    loss.backward()?;
    for weight in layer.parameters() {
        if let Some(gradient) = weight.grad() {
            weight.set(&weight.get().detach().sub(gradient.mul(1e-3)?)?)?;
        }
        weight.zero_grad();
    }
    Ok(loss)
}

fn print(row: &Row) {
    let micros = |seconds: f64| match seconds.is_finite() {
        true => format!("{:.1}", seconds * 1e6 / row.calls as f64),
        false => "–".to_owned(),
    };
    let times = |ratio: f64| if ratio.is_finite() { format!("{ratio:.2}×") } else { "–".to_owned() };
    let span = |seconds: f64| if seconds.is_finite() { format!("{seconds:.3} s") } else { "–".to_owned() };
    let torch = row.torch.as_ref().map_or((f64::NAN, f64::NAN), |(eager, compiled)| (eager.min, compiled.min));
    println!(
        "{:<24} {:>5} {:>8} {:>6} {:>9} {:>9} {:>9} {:>7} {:>9} {:>9} {:>9} {:>9}",
        row.name,
        row.calls,
        row.stats.programs,
        row.stats.graphs,
        span(row.first),
        micros(row.compiled.min),
        micros(row.eager.min),
        times(row.eager.min / row.compiled.min),
        micros(torch.0),
        micros(torch.1),
        span(row.torch_first),
        times(torch.1 / row.compiled.min),
    );
    if let Some(error) = &row.peer_error {
        println!("  {error}");
    }
}

/// The sides of a row, in the form that all benchmarks have.
fn records(row: &Row, version: Option<&str>) -> Vec<Record> {
    let subject = Subject {
        what: "control".into(),
        model: row.name.into(),
        device: "cpu".into(),
        dtype: "f32".into(),
        batch: 1,
        prompt: 0,
        threads: 1,
        tokens_a_call: 0,
    };
    let mut kiln = Record::timed(&subject, "kiln", "default", &row.compiled);
    kiln.first_call_s = Some(row.first);
    let Stats { programs, graphs, compiles, branches, fallbacks, .. } = row.stats;
    kiln.extra = json!({
        "case": row.name, "calls": row.calls, "programs": programs, "graphs": graphs, "compiles": compiles,
        "branches": branches, "fallbacks": fallbacks,
    });
    let mut records = vec![Record::timed(&subject, "kiln", "eager", &row.eager), kiln];
    if let Some((eager, compiled)) = &row.torch {
        for (mode, timing, first) in [("eager", eager, None), ("default", compiled, Some(row.torch_first))] {
            let mut record = Record::timed(&subject, "torch", mode, timing);
            record.peer = version.map(str::to_owned);
            record.first_call_s = first;
            records.push(record);
        }
    }
    records.extend(Record::without_figures(&subject, "torch", row.peer_error.as_deref()));
    records
}
