//! What an eager op costs over its kernel: the whole call on tensors so small that the kernel is next to nothing, beside a
//! compiled graph and a bare program of the same op. `cargo bench -p kiln --bench eager`.

use kiln::ir::Graph;
use kiln::{DType, Device, Generator, Result, Tensor};
use std::hint::black_box;
use std::time::Instant;

/// A named call.
type Row<'a> = (&'a str, Box<dyn Fn() -> Result<()> + 'a>);
/// A named function of a tensor.
type Function = (&'static str, fn(&Tensor) -> Result<Tensor>);

/// Median nanoseconds a call.
fn time(call: impl Fn() -> Result<()>) -> Result<f64> {
    const CALLS: u32 = 2000;
    for _ in 0..CALLS {
        call()?;
    }
    let mut times: Vec<f64> = Vec::new();
    for _ in 0..15 {
        let start = Instant::now();
        for _ in 0..CALLS {
            call()?;
        }
        times.push(start.elapsed().as_nanos() as f64 / f64::from(CALLS));
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

fn main() -> Result<()> {
    let generator = Generator::new(0);
    let x = generator.randn([4, 8], DType::F32, Device::Cpu)?;
    let y = generator.randn([4, 8], DType::F32, Device::Cpu)?;
    let row = generator.randn([8], DType::F32, Device::Cpu)?;
    let graph = Graph::parse("graph(%0: f32[4, 8], %1: f32[4, 8]) {\n  %2: f32[4, 8] = add %0, %1\n  return %2\n}");
    let graph = graph.map_err(|_| ()).expect("the graph is valid");
    let compiled = kiln::compile_graph(&graph, &[])?;
    let inputs = [x.clone(), y.clone()];

    let captured = kiln::compile(|(x, y): &(Tensor, Tensor)| x + y);
    let arguments = (x.clone(), y.clone());
    let weights: Vec<Tensor> =
        (0..300).map(|_| generator.randn([4, 8], DType::F32, Device::Cpu)).collect::<Result<_>>()?;
    let heavy = kiln::compile(|x: &Tensor| weights.iter().try_fold(x.clone(), |sum, weight| sum + weight));

    let rows: [Row<'_>; 11] = [
        ("captured add", Box::new(|| captured.call(&arguments).map(|out| drop(black_box(out))))),
        ("captured, 300 weights", Box::new(|| heavy.call(&x).map(|out| drop(black_box(out))))),
        ("compiled add", Box::new(|| compiled.run(&inputs).map(|out| drop(black_box(out))))),
        ("x + y", Box::new(|| (&x + &y).map(|out| drop(black_box(out))))),
        ("x + row (broadcast)", Box::new(|| (&x + &row).map(|out| drop(black_box(out))))),
        ("x + 1.0", Box::new(|| (&x + 1.0).map(|out| drop(black_box(out))))),
        ("x.exp()", Box::new(|| x.exp().map(|out| drop(black_box(out))))),
        ("x.softmax(-1)", Box::new(|| x.softmax(-1).map(|out| drop(black_box(out))))),
        ("x.sum(-1)", Box::new(|| x.sum(-1).map(|out| drop(black_box(out))))),
        ("x.t() (view)", Box::new(|| x.t().map(|out| drop(black_box(out))))),
        ("x.i((0, 1..3)) (view)", Box::new(|| x.i((0, 1..3)).map(|out| drop(black_box(out))))),
    ];
    println!("{:<24} {:>9}", "call", "ns");
    for (name, call) in rows {
        println!("{name:<24} {:>9.0}", time(call)?);
    }
    println!();
    println!("{:<24} {:>9}", "first call of a shape", "ns");
    let first: [Function; 4] = [
        ("x + x", |x| x + x),
        ("x.exp()", Tensor::exp),
        ("x.softmax(-1)", |x| x.softmax(-1)),
        ("x.sum(-1)", |x| x.sum(-1)),
    ];
    for (name, call) in first {
        let inputs: Vec<Tensor> =
            (0..200).map(|n| Tensor::zeros([3, 1000 + n], DType::F32, Device::Cpu)).collect::<Result<_>>()?;
        let start = Instant::now();
        for x in &inputs {
            black_box(call(x)?);
        }
        println!("{name:<24} {:>9.0}", start.elapsed().as_nanos() as f64 / inputs.len() as f64);
    }
    Ok(())
}
