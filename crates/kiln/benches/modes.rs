//! What the modes gain: frozen against unfrozen, tuned against untuned, replayed against run, each in one process, turn by turn, as
//! ratios of the best times. `cargo bench -p kiln --bench modes -- [products] [transformer] [tune] [replay]`.

use kiln::ir::build::{self, GraphBuilder};
use kiln::ir::{DotDims, Graph, HostTensor, NodeId, Op, Scalar, TensorType};
use kiln::runtime::{InputView, disk};
use kiln::{CompiledGraph, DType, Device, Error, FreezeOptions, FrozenGraph, PackWeights, Result, Tensor};
use std::time::{Duration, Instant};

/// Best nanoseconds a call of each side; the sides take turns.
fn race(sides: &mut [&mut dyn FnMut() -> Result<()>], seconds: f64) -> Result<Vec<f64>> {
    let mut best = vec![f64::INFINITY; sides.len()];
    let mut calls = vec![1u32; sides.len()];
    for (side, calls) in sides.iter_mut().zip(&mut calls) {
        side()?;
        let start = Instant::now();
        side()?;
        *calls = (1e-3 / start.elapsed().as_secs_f64().max(1e-7)).clamp(1.0, 5000.0) as u32;
    }
    let start = Instant::now();
    while start.elapsed().as_secs_f64() < seconds {
        for ((side, best), &calls) in sides.iter_mut().zip(&mut best).zip(&calls) {
            // Each side has weights of its own, which the others have driven out of the caches.
            side()?;
            side()?;
            let start = Instant::now();
            for _ in 0..calls {
                side()?;
            }
            *best = best.min(start.elapsed().as_nanos() as f64 / f64::from(calls));
        }
    }
    Ok(best)
}

/// Numbers in −1..1 over the root of the width.
fn tensors(graph: &Graph, rows: usize) -> Result<Vec<Tensor>> {
    let fixed = graph.specialise(&|_| Some(rows.into())).map_err(|cause| Error::Graph { cause: Box::new(cause) })?;
    let mut state = 0x2545_f491_4f6c_dd1du64;
    let tensor = |&id: &NodeId| {
        let ty = fixed.ty(id);
        let shape = ty.fixed_shape().expect("every size has a value");
        let count: usize = shape.iter().product();
        let scale = 1.0 / (*shape.last().unwrap_or(&1) as f64).sqrt();
        let values: Vec<f64> = (0..count)
            .map(|_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                ((state >> 11) as f64 / (1u64 << 52) as f64 - 1.0) * scale
            })
            .collect();
        let host = HostTensor::from_f64(ty.dtype, &shape, &values).expect("as many values as the shape has");
        Tensor::from_bytes(host.bytes(), shape, ty.dtype, Device::Cpu)
    };
    fixed.inputs().iter().map(tensor).collect()
}

type Built<T> = std::result::Result<T, kiln::ir::Error>;

fn linear(b: &mut GraphBuilder, x: NodeId, w: NodeId) -> Built<NodeId> {
    let last = b.graph().ty(x).rank() - 1;
    let dims = DotDims { lhs_contract: vec![last], rhs_contract: vec![1], ..Default::default() };
    build::Emit::emit(b, Op::Dot { dims: dims.into(), out: DType::F32 }, &[x, w])
}

/// x[b, K] · W[N, K]ᵀ.
fn product(k: usize, n: usize) -> Built<Graph> {
    let mut b = GraphBuilder::new();
    let rows = kiln::ir::Symbol::new("b").expect("a short name");
    let x = b.input(TensorType::new(DType::F32, vec![rows.into(), k.into()]))?;
    let w = b.input(TensorType::fixed(DType::F32, &[n, k]))?;
    let y = linear(&mut b, x, w)?;
    b.output(y);
    Ok(b.finish())
}

/// Layers of rms norm, q, k, v, causal attention, output, and a gated MLP, as models write them.
fn transformer(layers: usize, tokens: usize, hidden: usize, heads: usize) -> Built<Graph> {
    let mut b = GraphBuilder::new();
    let (width, inner) = (hidden / heads, hidden * 8 / 3 / 32 * 32);
    let input = |b: &mut GraphBuilder, shape: &[usize]| b.input(TensorType::fixed(DType::F32, shape));
    let mut x = input(&mut b, &[tokens, hidden])?;
    for _ in 0..layers {
        let norm = input(&mut b, &[hidden])?;
        let h = build::rms_norm(&mut b, &x, 1, Some(&norm), 1e-5)?;
        let heads_of = |b: &mut GraphBuilder| -> Built<NodeId> {
            let w = input(b, &[hidden, hidden])?;
            let y = linear(b, h, w)?;
            let y = build::reshape(b, &y, &[1usize, tokens, heads, width].map(Into::into))?;
            build::permute(b, &y, &[0, 2, 1, 3])
        };
        let (q, k, v) = (heads_of(&mut b)?, heads_of(&mut b)?, heads_of(&mut b)?);
        let scale = Scalar::float(DType::F64, 1.0 / (width as f64).sqrt());
        let y = build::Emit::emit(&mut b, Op::Attention { causal: true, scale, mask: false }, &[q, k, v])?;
        let y = build::permute(&mut b, &y, &[0, 2, 1, 3])?;
        let y = build::reshape(&mut b, &y, &[tokens, hidden].map(Into::into))?;
        let w = input(&mut b, &[hidden, hidden])?;
        let y = linear(&mut b, y, w)?;
        x = build::add(&mut b, &x, &y)?;
        let norm = input(&mut b, &[hidden])?;
        let h = build::rms_norm(&mut b, &x, 1, Some(&norm), 1e-5)?;
        let (gate, up) = (input(&mut b, &[inner, hidden])?, input(&mut b, &[inner, hidden])?);
        let (gate, up) = (linear(&mut b, h, gate)?, linear(&mut b, h, up)?);
        let gate = build::silu(&mut b, &gate)?;
        let y = build::mul(&mut b, &gate, &up)?;
        let down = input(&mut b, &[hidden, inner])?;
        let y = linear(&mut b, y, down)?;
        x = build::add(&mut b, &x, &y)?;
    }
    b.output(x);
    Ok(b.finish())
}

fn graph(built: Built<Graph>) -> Result<Graph> {
    built.map_err(|cause| Error::Graph { cause: Box::new(cause) })
}

fn all_but_first(graph: &Graph) -> Vec<bool> {
    (0..graph.inputs().len()).map(|input| input > 0).collect()
}

fn products() -> Result<()> {
    println!("products with W[N, K], any number of rows: unfrozen / packed (> 1: packed is faster)");
    for (k, n) in [(256, 768), (768, 768), (768, 3072), (2048, 2048)] {
        let graph = graph(product(k, n))?;
        let plain = CompiledGraph::new(&graph, &[], &Default::default())?;
        let frozen = FrozenGraph::new(
            &graph,
            &[],
            &[false, true],
            &FreezeOptions { pack: PackWeights::Always, ..Default::default() },
        )?;
        let mut line =
            format!("  {k:>4} → {n:<4} ({:>5.1} MiB packed)", frozen.memory().packed_bytes as f64 / 1048576.0);
        for m in [1, 2, 4, 8, 16, 32, 128] {
            let inputs = tensors(&graph, m)?;
            let refs: Vec<&Tensor> = inputs.iter().collect();
            let mut sides: [&mut dyn FnMut() -> Result<()>; 2] =
                [&mut || plain.run(&inputs).map(|_| ()), &mut || frozen.run(&refs, &[0]).map(|_| ())];
            let best = race(&mut sides, 0.4)?;
            line += &format!("   M={m} {:.2}", best[0] / best[1]);
        }
        println!("{line}");
    }
    Ok(())
}

fn transformers() -> Result<()> {
    println!(
        "4 layers, hidden 256, 8 heads: µs unfrozen; times as fast frozen, frozen without packing, without joining, tuned, both"
    );
    for tokens in [1, 16, 128] {
        let graph = graph(transformer(4, tokens, 256, 8))?;
        let inputs = tensors(&graph, tokens)?;
        let refs: Vec<&Tensor> = inputs.iter().collect();
        let mask = all_but_first(&graph);
        let versions = vec![0; mask.len() - 1];
        let plain = CompiledGraph::new(&graph, &[], &Default::default())?;
        let frozen = FrozenGraph::new(&graph, &[], &mask, &FreezeOptions::default())?;
        let unpacked =
            FrozenGraph::new(&graph, &[], &mask, &FreezeOptions { pack: PackWeights::Never, ..Default::default() })?;
        let apart = FrozenGraph::new(&graph, &[], &mask, &FreezeOptions { join: false, ..Default::default() })?;
        let tuned = CompiledGraph::new(&graph, &[], &Default::default())?;
        let report = tuned.tune(&refs, Duration::from_secs(20))?;
        let both = FrozenGraph::new(&graph, &[], &mask, &FreezeOptions::default())?;
        both.tune(&refs, &versions, Duration::from_secs(20))?;
        let want = plain.run(&inputs)?.remove(0).to_vec::<f32>()?;
        let got = both.run(&refs, &versions)?.remove(0).to_vec::<f32>()?;
        let off = want.iter().zip(&got).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max);
        let mut sides: [&mut dyn FnMut() -> Result<()>; 6] = [
            &mut || plain.run(&inputs).map(|_| ()),
            &mut || frozen.run(&refs, &versions).map(|_| ()),
            &mut || unpacked.run(&refs, &versions).map(|_| ()),
            &mut || apart.run(&refs, &versions).map(|_| ()),
            &mut || tuned.run(&inputs).map(|_| ()),
            &mut || both.run(&refs, &versions).map(|_| ()),
        ];
        let best = race(&mut sides, 3.0)?;
        let ratios: Vec<String> = best[1..].iter().map(|time| format!("{:.2}", best[0] / time)).collect();
        let memory = frozen.memory();
        println!(
            "  {tokens:>3} tokens: {:>8.1} µs   {}   (launches {} → {}, {:.1} MiB packed, {:.1} MiB prepared, tuned in {:.1?}, off by {off:.1e})",
            best[0] / 1e3,
            ratios.join("  "),
            plain.program().steps().len(),
            frozen.program().steps().len(),
            memory.packed_bytes as f64 / 1048576.0,
            memory.prepared_bytes as f64 / 1048576.0,
            report.took,
        );
    }
    Ok(())
}

fn tuning() -> Result<()> {
    println!("products, tuned: times as fast as untuned, and what was chosen");
    for (k, n) in [(768, 768), (768, 3072), (3072, 768), (2048, 2048)] {
        for m in [1usize, 8, 32, 128, 512] {
            let symbolic = graph(product(k, n))?;
            let graph = graph(symbolic.specialise(&|_| Some(m.into())))?;
            let inputs = tensors(&graph, m)?;
            let refs: Vec<&Tensor> = inputs.iter().collect();
            let plain = CompiledGraph::new(&graph, &[], &Default::default())?;
            let tuned = CompiledGraph::new(&graph, &[], &Default::default())?;
            let report = tuned.tune(&refs, Duration::from_secs(5))?;
            let mut sides: [&mut dyn FnMut() -> Result<()>; 2] =
                [&mut || plain.run(&inputs).map(|_| ()), &mut || tuned.run(&inputs).map(|_| ())];
            let best = race(&mut sides, 0.5)?;
            let chosen = report.kernels.first().map_or(String::new(), |kernel| kernel.chosen.to_string());
            println!("  {m:>3}×{k}×{n}: {:.2}   {chosen} (in {:.1?})", best[0] / best[1], report.took);
        }
    }
    Ok(())
}

fn replays() -> Result<()> {
    println!("what a run costs over its launches, in ns: run, replay");
    for (name, graph) in [("1 launch", graph(product(8, 8))?), ("small transformer", graph(transformer(4, 1, 32, 2))?)]
    {
        let inputs = tensors(&graph, 1)?;
        let compiled = CompiledGraph::new(&graph, &[], &Default::default())?;
        let program = compiled.program();
        let view = |t| {
            let t: &Tensor = t;
            InputView { buffer: t.buffer(), dtype: t.dtype(), shape: t.shape(), strides: t.strides(), offset: 0 }
        };
        let views: Vec<InputView<'_>> = inputs.iter().map(view).collect();
        let mut inspected = program.inspect(&views).map_err(failed)?;
        let steps = program.steps().len();
        let mut produced = Vec::new();
        let mut sides: [&mut dyn FnMut() -> Result<()>; 3] = [
            &mut || (0..steps).try_for_each(|step| inspected.launch(step).map(|_| ()).map_err(failed)),
            &mut || program.run(&views).map(|_| ()).map_err(failed),
            &mut || {
                produced.clear();
                program.replay(&views, &mut produced).map(|_| ()).map_err(failed)
            },
        ];
        let best = race(&mut sides, 1.0)?;
        // Each launch of the first side is timed, which costs two readings of the clock.
        let clock = clock() * steps as f64;
        let direct = best[0] - clock;
        println!(
            "  {name}: {steps} launches, {} inputs: {:.0} ns direct, run +{:.0}, replay +{:.0} ({:.0} a launch)",
            views.len(),
            direct,
            best[1] - direct,
            best[2] - direct,
            (best[2] - direct) / steps as f64
        );
    }
    Ok(())
}

fn failed(cause: kiln::runtime::Error) -> Error {
    Error::Runtime { op: "bench".into(), cause: Box::new(cause), at: Default::default() }
}

/// Nanoseconds of two readings of the clock, at best.
fn clock() -> f64 {
    let batch = || {
        let start = Instant::now();
        for _ in 0..1000 {
            std::hint::black_box(Instant::now().elapsed());
        }
        start.elapsed().as_nanos() as f64 / 1000.0
    };
    (0..100).map(|_| batch()).fold(f64::INFINITY, f64::min)
}

fn main() -> Result<()> {
    // Tuning is measured here, not remembered.
    disk::set_store(None);
    let asked: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with("--")).collect();
    let wanted = |name: &str| asked.is_empty() || asked.iter().any(|a| a == name);
    type Bench = fn() -> Result<()>;
    let all: [(&str, Bench); 4] =
        [("products", products), ("transformer", transformers), ("tune", tuning), ("replay", replays)];
    all.iter().filter(|(name, _)| wanted(name)).try_for_each(|(_, bench)| bench())
}
