//! Caches of keys and values: rows written where data say, attention that reads them through a table of pages.

use kiln_ir::{DType, Graph, HostTensor};
use kiln_oracle::{self as oracle, Config};

/// One step of decoding over a pool of pages: keys are rotated and written with the values, then read through the table.
fn step(batch: usize, heads: usize, dtype: &str) -> Graph {
    let (rows, group) = (batch * heads, 3);
    let text = format!(
        "graph(%0: {dtype}[{batch}, 1, {heads}, 16], %1: {dtype}[{batch}, 1, {heads}, 16], %2: {dtype}[{batch}, {q}, 1, 16],
               %3: {dtype}[{batch}, 8], %4: {dtype}[{batch}, 8], %5: {dtype}[{pool}, 16], %6: {dtype}[{pool}, 16], %7: i64[{rows}],
               %8: i64[{batch}, 3], %9: bool[{batch}, 1, 1, 24]) {{
  %10: {dtype}[{rows}, 16] = reshape %0
  %11: {dtype}[{rows}, 8] = slice %10 {{start=[0, 0], size=[{rows}, 8], step=[1, 1]}}
  %12: {dtype}[{rows}, 8] = slice %10 {{start=[0, 8], size=[{rows}, 8], step=[1, 1]}}
  %50: {dtype}[{batch}, 1, 8] = reshape %3
  %13: {dtype}[{batch}, {heads}, 8] = expand %50
  %14: {dtype}[{rows}, 8] = reshape %13
  %51: {dtype}[{batch}, 1, 8] = reshape %4
  %15: {dtype}[{batch}, {heads}, 8] = expand %51
  %16: {dtype}[{rows}, 8] = reshape %15
  %17: {dtype}[{rows}, 8] = mul %11, %14
  %18: {dtype}[{rows}, 8] = mul %12, %16
  %19: {dtype}[{rows}, 8] = sub %17, %18
  %20: {dtype}[{rows}, 8] = mul %12, %14
  %21: {dtype}[{rows}, 8] = mul %11, %16
  %22: {dtype}[{rows}, 8] = add %20, %21
  %23: {dtype}[{rows}, 16] = concat %19, %22 {{axis=1}}
  %24: i64[{rows}, 1] = reshape %7
  %25: i64[{rows}, 16] = expand %24
  %26: {dtype}[{pool}, 16] = scatter_set %5, %25, %23 {{axis=0}}
  %27: {dtype}[{rows}, 16] = reshape %1
  %28: {dtype}[{pool}, 16] = scatter_set %6, %25, %27 {{axis=0}}
  %30: i64[{pages}] = reshape %8
  %31: i64[{pages}, 1, 1, 1] = reshape %30
  %32: i64[{pages}, {heads}, 8, 16] = expand %31
  %33: {dtype}[5, {heads}, 8, 16] = reshape %26
  %34: {dtype}[{pages}, {heads}, 8, 16] = gather %33, %32 {{axis=0}}
  %35: {dtype}[{batch}, 3, {heads}, 8, 16] = reshape %34
  %36: {dtype}[{batch}, {heads}, 3, 8, 16] = permute %35 {{order=[0, 2, 1, 3, 4]}}
  %37: {dtype}[{batch}, {heads}, 24, 16] = reshape %36
  %38: {dtype}[5, {heads}, 8, 16] = reshape %28
  %39: {dtype}[{pages}, {heads}, 8, 16] = gather %38, %32 {{axis=0}}
  %40: {dtype}[{batch}, 3, {heads}, 8, 16] = reshape %39
  %41: {dtype}[{batch}, {heads}, 3, 8, 16] = permute %40 {{order=[0, 2, 1, 3, 4]}}
  %42: {dtype}[{batch}, {heads}, 24, 16] = reshape %41
  %43: bool[{batch}, {q}, 1, 24] = expand %9
  %44: {dtype}[{batch}, {q}, 1, 16] = attention %2, %37, %42, %43 {{causal=false, scale=0.25}}
  return %26 -> input 5, %28 -> input 6, %44
}}",
        q = heads * group,
        pool = 5 * heads * 8,
        pages = batch * 3,
    );
    Graph::parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// Random numbers; rows of which some are the same, a table, and a mask that shows something of each text but the last.
fn inputs(graph: &Graph, seed: u64) -> Vec<HostTensor> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut below = move |most: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as usize % most
    };
    let tensor = |(number, &id): (usize, &kiln_ir::NodeId)| {
        let shape = graph.ty(id).fixed_shape().unwrap();
        let count: usize = shape.iter().product();
        let value = |i: usize, below: &mut dyn FnMut(usize) -> usize| match number {
            7 => below(12) as f64,
            8 => below(5) as f64,
            9 => f64::from(i % 24 < i / 24 * 11 % 24),
            _ => below(2000) as f64 / 1000.0 - 1.0,
        };
        let values: Vec<f64> = (0..count).map(|i| value(i, &mut below)).collect();
        HostTensor::from_f64(graph.ty(id).dtype, &shape, &values).unwrap()
    };
    graph.inputs().iter().enumerate().map(tensor).collect()
}

#[test]
fn writes_and_pages_agree_with_the_interpreter() {
    for dtype in ["f32", "bf16", "f16", "f64"] {
        for (batch, heads) in [(1, 2), (1, 1), (3, 2), (2, 1)] {
            let graph = step(batch, heads, dtype);
            for seed in 1..6 {
                let disagreement = oracle::compare(&graph, &inputs(&graph, seed), &Config::default());
                assert!(disagreement.is_ok(), "{dtype} {batch} {heads}: {}", disagreement.unwrap_err());
            }
        }
    }
}

#[test]
fn a_step_is_one_kernel_of_writes_and_one_of_attention() {
    for batch in [1, 3] {
        let graph = step(batch, 2, "f32");
        let compiled = kiln::CompiledGraph::new(&graph, &[], &Default::default()).unwrap();
        assert_eq!(compiled.program().steps().len(), 2, "{graph}");
    }
}

#[test]
fn rows_and_pages_out_of_range_are_errors() {
    let graph = step(1, 2, "f32");
    let compiled = kiln::CompiledGraph::new(&graph, &[], &Default::default()).unwrap();
    for (number, bad) in [(7, -1), (7, 80), (8, 5), (8, -3)] {
        let mut hosts = inputs(&graph, 3);
        let last = hosts[number].elements() - 1;
        hosts[number].set(last, kiln_ir::Scalar::int(DType::I64, bad));
        let place = |h: &HostTensor| {
            kiln::Tensor::from_bytes(h.bytes(), h.shape().to_vec(), h.dtype(), kiln::Device::Cpu).unwrap()
        };
        let tensors: Vec<kiln::Tensor> = hosts.iter().map(place).collect();
        let message = compiled.run(&tensors).unwrap_err().to_string();
        assert!(message.contains(&format!("{bad}")) && message.contains("range"), "{message}");
    }
}
