//! Schedules give what the interpreter gives: on every op's examples and on random graphs, run by the reference executor.

mod support;

use kiln_ir::decompose::decompose;
use kiln_ir::examples::{self, Random};
use kiln_ir::generate::{self, symbol_value};
use kiln_ir::{Dim, Graph, HostTensor, NodeId, Op, Scalar, Symbol, TensorType, Tolerance, interpret, shrink};
use kiln_kernels::{Error, InputLayout, Numerics, ScheduleOptions, Target, reference, schedule};
use support::GPU;

/// Only ops that have kernels.
fn with_kernels(graph: &Graph) -> Graph {
    decompose(graph, &|op| !matches!(op, Op::Conv(_) | Op::ReduceWindow { .. })).unwrap()
}

/// The layout of an input in memory, its numbers, and the number of elements of the memory.
struct Placed {
    layout: InputLayout,
    strides: Vec<i64>,
    offset: i64,
    elements: usize,
}

/// Row-major, or axes in another order with gaps, an offset, and some axes backwards.
fn place(shape: &[usize], ty: &TensorType, random: &mut Random) -> Placed {
    if random.chance(0.5) {
        let layout = InputLayout::contiguous(ty);
        let mut strides = vec![1; shape.len()];
        (1..shape.len()).rev().for_each(|d| strides[d - 1] = strides[d] * shape[d] as i64);
        return Placed { layout, strides, offset: 0, elements: shape.iter().product() };
    }
    let mut order: Vec<usize> = (0..shape.len()).collect();
    random.shuffle(&mut order);
    let (mut strides, mut step, mut offset) = (vec![0; shape.len()], 1 + random.below(2) as i64, 0);
    let (mut low, mut high) = (0, 0);
    for &d in &order {
        let size = shape[d] as i64;
        strides[d] = if random.chance(0.2) { -step } else { step };
        let reach = strides[d] * (size - 1).max(0);
        (low, high) = (low + reach.min(0), high + reach.max(0));
        step *= size.max(1) + random.below(2) as i64;
    }
    offset += random.below(3) as i64 - low;
    let elements = usize::try_from(offset + high + 1).unwrap();
    let layout = InputLayout { strides: strides.iter().map(|&s| Dim::from(s)).collect(), offset: offset.into() };
    Placed { layout, strides, offset, elements }
}

impl Placed {
    fn each(&self, shape: &[usize], visit: &mut dyn FnMut(usize, usize)) {
        for number in 0..shape.iter().product() {
            let (mut rest, mut at) = (number, self.offset);
            for (&size, &stride) in shape.iter().zip(&self.strides).rev() {
                at += (rest % size) as i64 * stride;
                rest /= size;
            }
            visit(number, at as usize);
        }
    }
}

/// What is wrong with the schedule of a graph, if anything. `None` too for a graph that the interpreter does not run.
fn fault(
    graph: &Graph,
    inputs: &[HostTensor],
    options: &ScheduleOptions,
    size: &dyn Fn(Symbol) -> Option<i64>,
    seed: u64,
) -> Option<String> {
    let wanted = interpret::run(graph, inputs).ok()?;
    let random = &mut Random(seed);
    let placed: Vec<Placed> =
        graph.inputs().iter().zip(inputs).map(|(&id, t)| place(t.shape(), graph.ty(id), random)).collect();
    let layouts: Vec<InputLayout> = placed.iter().map(|p| p.layout.clone()).collect();
    let schedule = match schedule(graph, &layouts, options) {
        Ok(schedule) => schedule,
        Err(e) => return Some(format!("does not schedule: {e}")),
    };
    let mut memory = Vec::new();
    for (tensor, placed) in inputs.iter().zip(&placed) {
        let mut flat = HostTensor::zeros(tensor.dtype(), &[placed.elements]).unwrap();
        placed.each(tensor.shape(), &mut |number, at| flat.set(at, tensor.get(number)));
        memory.push(flat);
    }
    let before = memory.clone();
    let got = match reference::run(&schedule, &mut memory, size) {
        Ok(got) => got,
        Err(e) => return Some(format!("{e}\n{schedule}")),
    };
    for (number, (got, wanted)) in got.iter().zip(&wanted).enumerate() {
        let mut shaped = HostTensor::zeros(got.dtype(), wanted.shape()).unwrap();
        match graph.outputs()[number].updates {
            Some(input) => placed[input].each(wanted.shape(), &mut |n, at| shaped.set(n, got.get(at))),
            None => (0..wanted.elements()).for_each(|i| shaped.set(i, got.get(i))),
        }
        let tolerance = Tolerance::of(wanted.dtype()).times(4.0);
        if let Err(e) = shaped.compare(wanted, tolerance)
            && !is_rounding(graph, inputs, number, &shaped, wanted)
        {
            return Some(format!("output {number}: {e}\n{schedule}"));
        }
    }
    for (input, (now, before)) in memory.iter().zip(&before).enumerate() {
        if !updated(graph, input) && now.bytes() != before.bytes() {
            return Some(format!("input {input} changed\n{schedule}"));
        }
    }
    None
}

/// Moves what sums are made of by a few roundings of f32, which kernels do and the interpreter does not.
struct Shake<'a>(&'a Graph, Random);

impl interpret::Observer for Shake<'_> {
    fn operand(&mut self, node: NodeId, _: usize, value: &HostTensor) -> Option<HostTensor> {
        let combines = matches!(self.0.node(node).op, Op::Reduce { .. } | Op::Dot { .. } | Op::Attention { .. });
        if !combines || !value.dtype().is_float() {
            return None;
        }
        let mut shaken = value.clone();
        for i in 0..value.elements() {
            let sign = if self.1.chance(0.5) { 1.0 } else { -1.0 };
            shaken.set(i, Scalar::float(value.dtype(), value.get_f64(i) * (1.0 + sign * 1e-6)));
        }
        Some(shaken)
    }
}

/// Whether an output is as far from the wanted one as small errors in its sums may bring it.
fn is_rounding(graph: &Graph, inputs: &[HostTensor], output: usize, got: &HostTensor, wanted: &HostTensor) -> bool {
    let mut reach = vec![0.0f64; wanted.elements()];
    for seed in 0..6 {
        let shaken = interpret::run_with(graph, inputs, &mut Shake(graph, Random(seed))).unwrap();
        for (i, reach) in reach.iter_mut().enumerate() {
            let moved = (shaken[output].get_f64(i) - wanted.get_f64(i)).abs();
            *reach = if moved.is_nan() { f64::INFINITY } else { reach.max(moved) };
        }
    }
    let tolerance = Tolerance::of(wanted.dtype()).times(4.0);
    (0..wanted.elements()).all(|i| {
        let (got, wanted) = (got.get_f64(i), wanted.get_f64(i));
        let same = got == wanted || (got.is_nan() && wanted.is_nan());
        same || (got - wanted).abs() <= tolerance.absolute + tolerance.relative * wanted.abs() + 8.0 * reach[i]
            || reach[i] == f64::INFINITY
    })
}

fn updated(graph: &Graph, input: usize) -> bool {
    graph.outputs().iter().any(|o| o.updates == Some(input))
}

/// Rounding as the interpreter does; some seeds without fusion.
fn options_of(seed: u64) -> ScheduleOptions {
    let target = if seed.is_multiple_of(2) { GPU } else { Target::default() };
    ScheduleOptions { no_fusion: seed % 5 == 4, target, ..eager() }
}

fn eager() -> ScheduleOptions {
    ScheduleOptions { numerics: Numerics::Eager, ..Default::default() }
}

#[test]
fn explanations_name_kernels_and_reasons() {
    let text = "graph(%0: f32[8, 64], %1: f32[64, 32]) {
      %2: f32[8, 64] = exp %0 @ model.rs:3
      %3: f32[8, 32] = dot %2, %1 {lhs_batch=[], rhs_batch=[], lhs_contract=[1], rhs_contract=[0]} @ model.rs:4
      return %3
    }";
    let graph = Graph::parse(text).unwrap();
    let layouts: Vec<InputLayout> = graph.inputs().iter().map(|&id| InputLayout::contiguous(graph.ty(id))).collect();
    let schedule = schedule(&graph, &layouts, &ScheduleOptions::default()).unwrap();
    let text = schedule.explain(&graph, &|_| None);
    assert!(text.contains("0: exp (1 nodes, 2048 bytes read, 2048 written)"), "{text}");
    assert!(text.contains("%2: f32[8, 64] = exp at model.rs:3"), "{text}");
    assert!(text.contains("%2 exp and %3 dot are not fused: the operand of a product"), "{text}");
}

#[test]
fn a_long_chain_of_views_needs_no_deep_stack() {
    let mut text = String::from("graph(%0: f32[4, 6]) {\n");
    for id in 1..20_000 {
        let shape = if id % 2 == 0 { "4, 6" } else { "6, 4" };
        text += &format!("  %{id}: f32[{shape}] = permute %{} {{order=[1, 0]}}\n", id - 1);
    }
    text += "  return %19999\n}";
    let graph = Graph::parse(&text).unwrap();
    let layouts = [InputLayout::contiguous(graph.ty(graph.inputs()[0]))];
    assert!(!schedule(&graph, &layouts, &ScheduleOptions::default()).unwrap().steps.is_empty());
}

#[test]
fn names_of_loop_variables_are_refused_as_sizes() {
    let graph = Graph::parse("graph(%0: f32[i3]) { %1: f32[i3] = exp %0 return %1 }").unwrap();
    let layouts = [InputLayout::contiguous(graph.ty(graph.inputs()[0]))];
    let error = schedule(&graph, &layouts, &ScheduleOptions::default()).unwrap_err();
    assert!(matches!(error, Error::ReservedSymbol { symbol } if symbol.as_str() == "i3"));
}

#[test]
fn every_op_has_a_schedule() {
    let mut failures = Vec::new();
    for example in examples::examples() {
        let graph = with_kernels(&example.graph);
        for binding in &example.bindings {
            let Some(inputs) = example.inputs(binding, 7) else { continue };
            let inputs: Vec<HostTensor> = inputs.iter().map(|l| HostTensor::from_literal(l).unwrap()).collect();
            let size = |s: Symbol| binding.iter().find(|(n, _)| *n == s).map(|(_, value)| *value);
            for target in [Target::default(), GPU] {
                if let Some(e) = fault(&graph, &inputs, &ScheduleOptions { target, ..eager() }, &size, 7) {
                    failures.push(format!("{}\n{}{e}", example.name, graph));
                }
            }
        }
    }
    assert!(failures.is_empty(), "{} fail; the first:\n{}", failures.len(), failures[0]);
}

/// What is wrong with the schedule of a generated graph. Products and sums overflow f32 here and not the interpreter's f64, so
/// a difference in a graph that has some counts if it is there for small whole numbers as well.
fn random_fault(graph: &Graph, seed: u64) -> Option<String> {
    let whole = with_kernels(graph);
    let mut inputs = generate::inputs(graph, seed);
    let found = fault(&whole, &inputs, &options_of(seed), &symbol_value, seed)?;
    if !whole.nodes().iter().any(|n| matches!(n.op, Op::Dot { .. } | Op::Reduce { .. })) {
        return Some(found);
    }
    let huge = |node: &kiln_ir::Node| match &node.op {
        Op::Constant(literal) => {
            let values = HostTensor::from_literal(literal).unwrap().to_f64();
            values.iter().any(|v| v.is_nan() || v.abs() > 1e9)
        }
        _ => false,
    };
    if whole.nodes().iter().any(huge) {
        return None;
    }
    for tensor in inputs.iter_mut().filter(|t| t.dtype().is_float()) {
        let mut random = Random(seed);
        let dtype = tensor.dtype();
        (0..tensor.elements()).for_each(|i| tensor.set(i, Scalar::int(dtype, random.below(7) as i64 - 3)));
    }
    fault(&whole, &inputs, &options_of(seed), &symbol_value, seed)
}

fn random_graphs(seeds: std::ops::Range<u64>, options: &generate::Options) {
    for seed in seeds {
        let graph = generate::graph(seed, options);
        let mut fails = |graph: &Graph| random_fault(graph, seed).is_some();
        if fails(&graph) {
            let small = shrink::shrink(graph, &mut fails);
            let why = random_fault(&small, seed);
            let small = with_kernels(&small);
            panic!("seed {seed}:\n{small}\n{}", why.unwrap_or_default());
        }
    }
}

fn count() -> u64 {
    std::env::var("KILN_FUZZ_COUNT").ok().and_then(|n| n.parse().ok()).unwrap_or(400)
}

#[test]
fn random_graphs_agree() {
    random_graphs(0..count(), &generate::Options { max_elements: 512, ..Default::default() });
}

#[test]
fn random_symbolic_graphs_agree() {
    let options = generate::Options { max_elements: 512, symbolic: true, ..Default::default() };
    random_graphs(1_000_000..1_000_000 + count(), &options);
}

#[test]
fn random_long_graphs_agree() {
    let options = generate::Options { nodes: 40, max_elements: 256, ..Default::default() };
    random_graphs(2_000_000..2_000_000 + count() / 4, &options);
}
