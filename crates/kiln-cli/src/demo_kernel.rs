//! `kiln` alone: one function goes from graph to machine code, is timed eager and fused, and is checked by the interpreter.

use kiln::{CompiledGraph, Device, Tensor};
use kiln_ir::build::{self, GraphBuilder};
use kiln_ir::{DType, HostTensor, TensorType};
use kiln_oracle::{self as oracle, Config};
use kiln_terminal::failure::Outcome;
use std::time::Instant;

/// gelu(x)·w + b on this many rows and columns.
const SHAPE: [usize; 2] = [512, 1024];

/// Shows the way of one function through the house.
pub fn run() -> Outcome {
    let mut b = GraphBuilder::new();
    let x = b.input(TensorType::fixed(DType::F32, &SHAPE))?;
    let w = b.input(TensorType::fixed(DType::F32, &SHAPE[1..]))?;
    let c = b.input(TensorType::fixed(DType::F32, &SHAPE[1..]))?;
    let h = build::gelu_tanh(&mut b, &x)?;
    let h = build::mul(&mut b, &h, &w)?;
    let y = build::add(&mut b, &h, &c)?;
    b.output(y);
    let graph = b.finish();

    println!("gelu(x)·w + b, x: f32{SHAPE:?}\n");
    println!("as a graph, {} nodes:\n{graph}", graph.nodes().len());

    let hosts: Vec<HostTensor> = graph
        .inputs()
        .iter()
        .map(|&id| {
            let shape = graph.ty(id).fixed_shape().ok_or("fixed sizes")?;
            let count: usize = shape.iter().product();
            let values: Vec<f64> = (0..count).map(|i| ((i * 7919) % 2003) as f64 / 400.0 - 2.5).collect();
            Ok(HostTensor::from_f64(DType::F32, &shape, &values)?)
        })
        .collect::<Result<_, Box<dyn std::error::Error>>>()?;
    let tensors: Vec<Tensor> = hosts
        .iter()
        .map(|h| Tensor::from_bytes(h.bytes(), h.shape().to_vec(), h.dtype(), Device::Cpu))
        .collect::<Result<_, _>>()?;

    let begin = Instant::now();
    let compiled = CompiledGraph::new(&graph, &[], &Default::default())?;
    let first = begin.elapsed();
    let begin = Instant::now();
    kiln_runtime::kernel_cache::clear();
    let compiled_again = CompiledGraph::new(&graph, &[], &Default::default())?;
    let again = begin.elapsed();
    drop(compiled_again);

    let program = compiled.program();
    println!("compiled for {}:", program.backend().target());
    for step in program.steps() {
        println!("  {}: {} bytes of machine code", step.label(), step.code().code_bytes());
    }
    println!("{}", program.schedule().steps[0].kernel);

    let fused = fastest(|| compiled.run(&tensors).map(drop))?;
    let eager = fastest(|| kiln::run_eagerly(&graph, &tensors).map(drop))?;
    oracle::compare(&graph, &hosts, &Config::default())?;

    println!(
        "compile, first call   {:>9.1} µs   (warm process {:.1} µs)",
        first.as_secs_f64() * 1e6,
        again.as_secs_f64() * 1e6
    );
    println!("eager, op by op       {:>9.1} µs", eager * 1e6);
    println!("fused, one kernel     {:>9.1} µs   {:.1}× as fast", fused * 1e6, eager / fused);
    println!("interpreter, eager and compiled agree on all {} elements", SHAPE[0] * SHAPE[1]);
    Ok(())
}

/// Seconds of the fastest of some calls.
fn fastest<E>(mut f: impl FnMut() -> Result<(), E>) -> Result<f64, E> {
    let mut best = f64::INFINITY;
    for _ in 0..50 {
        let begin = Instant::now();
        f()?;
        best = best.min(begin.elapsed().as_secs_f64());
    }
    Ok(best)
}
