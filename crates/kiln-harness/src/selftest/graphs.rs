//! Differential tests of graphs: of every op's examples, of shapes that models have, and of random graphs.

use super::lab::Lab;
use kiln_ir::build::{self, AttentionOptions, Emit, GraphBuilder};
use kiln_ir::examples::{Random, examples};
use kiln_ir::{
    BinaryOp, DType, Dim, Graph, HostTensor, NodeId, Op, OpKind, ReduceKind, TensorType, UnaryOp, generate, interpret,
};
use kiln_kernels::Numerics;
use kiln_oracle::LayoutChoice;
use kiln_passes::{Derivative, DifferentiateOptions, Seeds, derivative, differentiate, is_differentiable};

/// A family of ops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    Elementwise,
    Views,
    Reductions,
    Products,
    Attention,
    Convolutions,
    Indexing,
    Sorting,
    Random,
    /// Numbers that are stored in fewer bits than they are computed with.
    Quantised,
    /// Bodies that run turn after turn.
    Loops,
}

impl Family {
    fn of(kind: OpKind) -> Option<Family> {
        Some(match kind {
            OpKind::Input => return None,
            OpKind::Full | OpKind::Constant | OpKind::Iota => Family::Elementwise,
            OpKind::Unary(_) | OpKind::Binary(_) | OpKind::Compare(_) => Family::Elementwise,
            OpKind::Select | OpKind::Cast | OpKind::Bitcast => Family::Elementwise,
            OpKind::Reduce(_) | OpKind::ArgReduce(_) | OpKind::Scan(_) | OpKind::ReduceWindow(_) => Family::Reductions,
            OpKind::Reshape | OpKind::Permute | OpKind::Expand | OpKind::Slice | OpKind::Pad => Family::Views,
            OpKind::Flip | OpKind::Unfold | OpKind::Concat => Family::Views,
            OpKind::Dot => Family::Products,
            OpKind::Attention | OpKind::AttentionLogsumexp | OpKind::AttentionGradient(_) => Family::Attention,
            OpKind::Conv => Family::Convolutions,
            OpKind::Gather | OpKind::Scatter(_) => Family::Indexing,
            OpKind::SortIndices => Family::Sorting,
            OpKind::RandomBits => Family::Random,
            OpKind::Dequantize => Family::Quantised,
            OpKind::Loop | OpKind::Cond => Family::Loops,
        })
    }

    fn ops(self) -> Vec<OpKind> {
        OpKind::all().into_iter().filter(|&kind| Family::of(kind) == Some(self)).collect()
    }

    /// The examples of its ops, lying in memory in every way, and random graphs of them with others around.
    pub fn run(self, lab: &mut Lab) {
        let ops = self.ops();
        let stride = if lab.quick { 3 } else { 1 };
        let shown = examples().into_iter().filter(|example| Family::of(example.kind) == Some(self));
        for (number, example) in shown.enumerate() {
            if number % stride != 0 && ops.len() > 1 {
                continue;
            }
            for (seed, binding) in example.bindings.iter().enumerate() {
                let Some(literals) = example.inputs(binding, seed as u64) else { continue };
                let inputs: Result<Vec<HostTensor>, _> = literals.iter().map(HostTensor::from_literal).collect();
                let Some(inputs) = lab.expect(&example.name, inputs) else { continue };
                // A program with symbolic sizes is compiled for row-major inputs.
                let layouts = if binding.is_empty() { &LayoutChoice::ALL[..] } else { &[LayoutChoice::Contiguous] };
                let layouts = if lab.quick { &layouts[..1] } else { layouts };
                for &layout in layouts {
                    if lab.is_enough() {
                        return;
                    }
                    let config = lab.config(layout);
                    lab.compare(&example.name, &example.graph, &inputs, &config);
                }
            }
        }
        if ops.is_empty() {
            return;
        }
        // As many of its own as of others.
        let around = [
            OpKind::Binary(BinaryOp::Add),
            OpKind::Binary(BinaryOp::Mul),
            OpKind::Unary(UnaryOp::Tanh),
            OpKind::Permute,
            OpKind::Reshape,
            OpKind::Slice,
            OpKind::Reduce(ReduceKind::Sum),
        ];
        let mut drawn = around.to_vec();
        drawn.extend(ops.iter().copied().cycle().take(ops.len().max(around.len())));
        let options = generate::Options { nodes: 8, ops: drawn, composites: 0.0, ..Default::default() };
        random(lab, 10_000_000 * (self as u64 + 1), 600, &options);
        self.shapes(lab);
    }

    /// Shapes as models have them, larger than random ones.
    fn shapes(self, lab: &mut Lab) {
        let mut graphs: Vec<(String, Built)> = Vec::new();
        let floats = if lab.quick { &[DType::F32][..] } else { &[DType::F32, DType::Bf16, DType::F16] };
        for &dtype in floats {
            match self {
                Family::Products => {
                    for [m, k, n] in
                        [[1, 64, 300], [7, 129, 65], [6, 512, 300], [16, 768, 140], [64, 96, 130], [33, 256, 1]]
                    {
                        graphs.push((format!("{dtype} product of {m} × {k} × {n}"), product(dtype, m, k, n)));
                    }
                }
                Family::Attention => {
                    for (rows, columns, causal, mask) in
                        [(1, 47, false, true), (33, 33, true, false), (20, 70, false, false), (17, 64, true, true)]
                    {
                        let name = format!("{dtype} attention of {rows} to {columns}");
                        graphs.push((name, attention(dtype, rows, columns, causal, mask)));
                    }
                    for (rows, columns, causal, mask) in [(70, 70, true, false), (40, 130, false, true)] {
                        let name = format!("{dtype} gradients of attention of {rows} to {columns}");
                        graphs.push((name, gradients_of_attention(dtype, rows, columns, causal, mask)));
                    }
                }
                Family::Convolutions => {
                    for (stride, groups) in [(1, 1), (2, 2), (1, 8)] {
                        let name = format!("{dtype} convolution by steps of {stride} in {groups} groups");
                        graphs.push((name, convolution(dtype, stride, groups)));
                    }
                }
                Family::Sorting => {
                    for (length, count) in [(100, 100), (1500, 1500), (3000, 20)] {
                        let name = format!("{dtype} first {count} of {length}");
                        graphs.push((name, first_of(dtype, length, count)));
                    }
                }
                Family::Reductions => graphs.push((format!("{dtype} sums along 1500"), running_sum(dtype, 1500))),
                _ => {}
            }
        }
        graphs.extend(self.long_shapes());
        for (seed, (name, graph)) in graphs.into_iter().enumerate() {
            let Some(graph) = lab.expect(&name, graph) else { continue };
            let config = lab.config(LayoutChoice::Contiguous);
            let inputs = generate::inputs(&graph, seed as u64);
            lab.compare(name, &graph, &inputs, &config);
        }
    }
}

impl Family {
    /// Long sums and many keys of short floats, which have code of their own on tensor cores.
    fn long_shapes(self) -> Vec<(String, Built)> {
        let dtype = DType::Bf16;
        match self {
            Family::Products => {
                let sizes =
                    [[1, 2048, 72], [3, 1024, 40], [5, 2048, 33], [9, 4096, 70], [16, 8192, 40], [16, 14336, 24]];
                let plain =
                    sizes.map(|[m, k, n]| (format!("{dtype} product of {m} × {k} × {n}"), product(dtype, m, k, n)));
                let gated = [1, 7, 16]
                    .map(|rows| (format!("{dtype} gated product of {rows} rows"), gated(dtype, rows, 4096, 50)));
                let orders = [[true, true], [true, false], [false, true], [false, false]].map(|along| {
                    let name = format!("{dtype} 64 products of 72 × 104 × 80, along the sum: {along:?}");
                    (name, large_product(dtype, 64, [72, 104, 80], along))
                });
                let deep = [(
                    format!("{dtype} deep products across the sum"),
                    large_product(dtype, 9, [72, 8200, 80], [false, false]),
                )];
                let chained = [(format!("{dtype} products with rows of 1029"), chained(dtype, 64, [66, 16, 1029, 72]))];
                plain.into_iter().chain(gated).chain(orders).chain(deep).chain(chained).collect()
            }
            Family::Attention => {
                let sizes = [(70, 70, true, 64), (130, 197, false, 64), (65, 129, true, 128), (1, 300, false, 128)];
                let forward = sizes.map(|(rows, columns, causal, width)| {
                    let name = format!("{dtype} attention of {rows} to {columns}, heads of {width}");
                    (name, heads(dtype, rows, columns, causal, width))
                });
                let backward = sizes[..3].iter().map(|&(rows, columns, causal, width)| {
                    let name = format!("{dtype} gradients of attention of {rows} to {columns}, heads of {width}");
                    (name, gradients_of_heads(dtype, rows, columns, causal, width))
                });
                let bounded = [(130, 197, false, 64), (200, 300, true, 128), (1, 300, false, 128), (2, 40, false, 32)];
                let bounded = bounded.map(|(rows, columns, causal, width)| {
                    let name = format!("{dtype} attention of {rows} to some of {columns}, heads of {width}");
                    (name, bounded_heads(dtype, rows, columns, causal, width))
                });
                forward.into_iter().chain(backward).chain(bounded).collect()
            }
            _ => Vec::new(),
        }
    }
}

/// Random graphs of everything: fixed sizes in every layout, symbolic sizes, and rounding as eager rounds.
pub fn fusion(lab: &mut Lab) {
    random(lab, 5_000_000, 2500, &generate::Options::default());
    let symbolic = generate::Options { symbolic: true, ..Default::default() };
    random(lab, 6_000_000, 1000, &symbolic);
    let long = generate::Options { nodes: 40, ..Default::default() };
    random(lab, 7_000_000, 200, &long);
}

fn random(lab: &mut Lab, first: u64, count: u64, options: &generate::Options) {
    for seed in first..first + lab.count(count) {
        if lab.is_enough() {
            return;
        }
        let layout = if options.symbolic { LayoutChoice::Contiguous } else { LayoutChoice::ALL[(seed % 4) as usize] };
        let mut config = lab.config(layout);
        if seed % 7 == 3 {
            config.options.schedule.numerics = Numerics::Eager;
        }
        lab.compare_random(seed, options, &config);
    }
}

/// Gradients of random graphs by every input.
pub fn gradients(lab: &mut Lab) {
    let ops = OpKind::all().into_iter().filter(|&kind| derivative(kind) == Derivative::Rule).collect();
    let dtypes = vec![DType::F32, DType::Bf16, DType::F64];
    let mut options = generate::Options { nodes: 6, max_elements: 256, ops, dtypes, ..Default::default() };
    let config = lab.config(LayoutChoice::Contiguous);
    for seed in 0..lab.count(900) {
        if lab.is_enough() {
            return;
        }
        options.symbolic = seed % 3 == 0;
        let graph = generate::graph(seed, &options);
        match differentiated(&graph, &generate::inputs(&graph, seed), seed) {
            Ok(Some((joint, inputs))) => lab.compare(format!("gradients of seed {seed}"), &joint, &inputs, &config),
            Ok(None) => {}
            Err(error) => lab.judge(Some(format!("gradients of seed {seed}: {error}\n{graph}"))),
        }
    }
}

/// The graph with the gradients of every output by every input that can have one, and seeds behind the inputs; nothing where
/// there is nothing to differentiate.
fn differentiated(graph: &Graph, inputs: &[HostTensor], seed: u64) -> Result<Option<(Graph, Vec<HostTensor>)>, String> {
    let floats = |ids: Vec<NodeId>| -> Vec<usize> {
        ids.iter().enumerate().filter(|(_, id)| is_differentiable(graph.ty(**id).dtype)).map(|(i, _)| i).collect()
    };
    let of = floats(graph.outputs().iter().map(|output| output.node).collect());
    let by = floats(graph.inputs().to_vec());
    // Windows over nothing but padding have gradients of no places, which only symbolic sizes can express.
    let window = |op: &Op| matches!(op, Op::ReduceWindow { .. } | Op::Conv(_));
    let empty = inputs.iter().any(|x| x.elements() == 0) && graph.nodes().iter().any(|node| window(&node.op));
    let Ok(outputs) = interpret::run(graph, inputs) else { return Ok(None) };
    if of.is_empty() || by.is_empty() || empty {
        return Ok(None);
    }
    let options = DifferentiateOptions { seeds: Seeds::Inputs, ..Default::default() };
    let joint = differentiate(graph, &of, &by, &options).map_err(|error| error.to_string())?;
    let mut random = Random(seed);
    let mut all = inputs.to_vec();
    for output in of {
        let weights: Vec<f64> = (0..outputs[output].elements()).map(|_| random.unit() * 2.0 - 1.0).collect();
        let seeds = HostTensor::from_f64(outputs[output].dtype(), outputs[output].shape(), &weights);
        all.push(seeds.map_err(|error| error.to_string())?);
    }
    Ok(Some((joint, all)))
}

type Built = Result<Graph, Box<dyn std::error::Error>>;

fn input(b: &mut GraphBuilder, dtype: DType, shape: &[usize]) -> Result<NodeId, kiln_ir::Error> {
    b.input(TensorType::fixed(dtype, shape))
}

fn product(dtype: DType, m: usize, k: usize, n: usize) -> Built {
    let mut b = GraphBuilder::new();
    let (x, w) = (input(&mut b, dtype, &[m, k])?, input(&mut b, dtype, &[n, k])?);
    let y = build::linear(&mut b, &x, &w, None)?;
    let y = build::gelu(&mut b, &y)?;
    b.output(y);
    Ok(b.finish())
}

/// Products with operands that lie along the sum or across it, and an epilogue that loads and stores matrices.
fn large_product(dtype: DType, batch: usize, [m, k, n]: [usize; 3], [left, right]: [bool; 2]) -> Built {
    let mut b = GraphBuilder::new();
    let x = input(&mut b, dtype, &if left { [batch, m, k] } else { [batch, k, m] })?;
    let w = input(&mut b, dtype, &if right { [batch, n, k] } else { [batch, k, n] })?;
    let added = input(&mut b, dtype, &[batch, m, n])?;
    let x = if left { x } else { build::permute(&mut b, &x, &[0, 2, 1])? };
    let w = if right { build::permute(&mut b, &w, &[0, 2, 1])? } else { w };
    let y = build::matmul(&mut b, &x, &w)?;
    let z = build::gelu(&mut b, &y)?;
    let z = build::add(&mut b, &z, &added)?;
    b.output(y);
    b.output(z);
    Ok(b.finish())
}

/// Products one after another: the rows between them are of any length.
fn chained(dtype: DType, batch: usize, [m, k, between, n]: [usize; 4]) -> Built {
    let mut b = GraphBuilder::new();
    let x = input(&mut b, dtype, &[batch, m, k])?;
    let (up, down) = (input(&mut b, dtype, &[between, k])?, input(&mut b, dtype, &[batch, between, n])?);
    let y = build::linear(&mut b, &x, &up, None)?;
    let y = build::matmul(&mut b, &y, &down)?;
    b.output(y);
    Ok(b.finish())
}

fn gated(dtype: DType, m: usize, k: usize, n: usize) -> Built {
    let mut b = GraphBuilder::new();
    let x = input(&mut b, dtype, &[m, k])?;
    let (gate, up) = (input(&mut b, dtype, &[n, k])?, input(&mut b, dtype, &[n, k])?);
    let (gate, up) = (build::linear(&mut b, &x, &gate, None)?, build::linear(&mut b, &x, &up, None)?);
    let gate = build::silu(&mut b, &gate)?;
    let y = build::mul(&mut b, &gate, &up)?;
    b.output(y);
    Ok(b.finish())
}

fn heads(dtype: DType, rows: usize, columns: usize, causal: bool, width: usize) -> Built {
    let mut b = GraphBuilder::new();
    let q = input(&mut b, dtype, &[1, 4, rows, width])?;
    let (k, v) = (input(&mut b, dtype, &[1, 2, columns, width])?, input(&mut b, dtype, &[1, 2, columns, width])?);
    let options = AttentionOptions { mask: None, causal, scale: None };
    let y = build::scaled_dot_product_attention(&mut b, &q, &k, &v, &options)?;
    b.output(y);
    Ok(b.finish())
}

/// Attention whose rows see up to 90 keys each, some rows none.
fn bounded_heads(dtype: DType, rows: usize, columns: usize, causal: bool, width: usize) -> Built {
    let mut b = GraphBuilder::new();
    let q = input(&mut b, dtype, &[2, 4, rows, width])?;
    let (k, v) = (input(&mut b, dtype, &[2, 2, columns, width])?, input(&mut b, dtype, &[2, 2, columns, width])?);
    let shape = [2, 1, rows, 1].map(Dim::from);
    let (row, batch) = (build::iota(&mut b, DType::I64, &shape, 2)?, build::iota(&mut b, DType::I64, &shape, 0)?);
    let (row, batch) = (build::mul_scalar(&mut b, &row, 3.0)?, build::mul_scalar(&mut b, &batch, 130.0)?);
    let end = build::add(&mut b, &row, &batch)?;
    let end = build::add_scalar(&mut b, &end, -5.0)?;
    let first = build::add_scalar(&mut b, &end, -90.0)?;
    let mask = Some(build::concat(&mut b, &[first, end], 3)?);
    let options = AttentionOptions { mask, causal, scale: None };
    let y = build::scaled_dot_product_attention(&mut b, &q, &k, &v, &options)?;
    b.output(y);
    Ok(b.finish())
}

fn attention(dtype: DType, rows: usize, columns: usize, causal: bool, masked: bool) -> Built {
    let mut b = GraphBuilder::new();
    let q = input(&mut b, dtype, &[2, 4, rows, 32])?;
    let (k, v) = (input(&mut b, dtype, &[2, 2, columns, 32])?, input(&mut b, dtype, &[2, 2, columns, 32])?);
    let mask = if masked { Some(input(&mut b, DType::Bool, &[2, 1, 1, columns])?) } else { None };
    let options = AttentionOptions { mask, causal, scale: None };
    let y = build::scaled_dot_product_attention(&mut b, &q, &k, &v, &options)?;
    b.output(y);
    Ok(b.finish())
}

/// Attention and its gradients in queries, keys and values.
fn gradients_of_attention(dtype: DType, rows: usize, columns: usize, causal: bool, masked: bool) -> Built {
    let graph = attention(dtype, rows, columns, causal, masked)?;
    let options = DifferentiateOptions { seeds: Seeds::Inputs, ..Default::default() };
    Ok(differentiate(&graph, &[0], &[0, 1, 2], &options)?)
}

/// Gradients of attention with scores that f32 holds well, whatever the inputs are.
fn gradients_of_heads(dtype: DType, rows: usize, columns: usize, causal: bool, width: usize) -> Built {
    let mut b = GraphBuilder::new();
    let mut bounded = |shape: [usize; 4]| -> Result<NodeId, kiln_ir::Error> {
        let x = input(&mut b, dtype, &shape)?;
        b.emit(Op::Unary(UnaryOp::Tanh), &[x])
    };
    let (q, k, v) = (bounded([1, 4, rows, width])?, bounded([1, 2, columns, width])?, bounded([1, 2, columns, width])?);
    let options = AttentionOptions { mask: None, causal, scale: None };
    let y = build::scaled_dot_product_attention(&mut b, &q, &k, &v, &options)?;
    b.output(y);
    let options = DifferentiateOptions { seeds: Seeds::Inputs, ..Default::default() };
    Ok(differentiate(&b.finish(), &[0], &[0, 1, 2], &options)?)
}

/// The first of each line, largest first, and where they were.
fn first_of(dtype: DType, length: usize, count: usize) -> Built {
    let mut b = GraphBuilder::new();
    let x = input(&mut b, dtype, &[3, length])?;
    let (values, places) = build::topk(&mut b, &x, count as i64, 1, true)?;
    b.output(values);
    b.output(places);
    Ok(b.finish())
}

fn running_sum(dtype: DType, length: usize) -> Built {
    let mut b = GraphBuilder::new();
    let x = input(&mut b, dtype, &[3, length])?;
    let y = build::cumsum(&mut b, &x, 1)?;
    b.output(y);
    Ok(b.finish())
}

fn convolution(dtype: DType, stride: usize, groups: usize) -> Built {
    let mut b = GraphBuilder::new();
    let (x, w) = (input(&mut b, dtype, &[2, 8, 15, 13])?, input(&mut b, dtype, &[16, 8 / groups, 3, 3])?);
    let options =
        build::ConvOptions { stride: vec![stride; 2], padding: vec![1; 2], groups, ..build::ConvOptions::new(2) };
    let y = build::conv(&mut b, &x, &w, None, &options)?;
    let y = build::relu(&mut b, &y)?;
    b.output(y);
    Ok(b.finish())
}
