//! Products of a few rows with what is before, after and beside them: fewer launches, the same results.

use kiln_ir::examples::Random;
use kiln_ir::{Graph, HostTensor, Scalar, Tolerance, interpret};
use kiln_kernels::kernel::KernelBody;
use kiln_kernels::{InputLayout, Numerics, Schedule, ScheduleOptions, Target, reference, schedule};

const HEADS: usize = 4;
const GROUPS: usize = 2;
const WIDTH: usize = 16;
const HIDDEN: usize = 160;
const INNER: usize = 96;

/// The parts of a transformer's layer beside attention, for `rows` tokens: norm, queries, keys and values with rotated positions,
/// norm, gate and up.
fn layer(rows: usize, dtype: &str, bias: bool) -> Graph {
    let (half, queries, keys) = (WIDTH / 2, HEADS * WIDTH, GROUPS * WIDTH);
    let mut text = format!(
        "graph(%0: {dtype}[{rows}, {HIDDEN}], %1: {dtype}[{HIDDEN}], %2: {dtype}[{queries}, {HIDDEN}], %3: {dtype}[{keys}, {HIDDEN}],
         %4: {dtype}[{keys}, {HIDDEN}], %5: {dtype}[{rows}, {half}], %6: {dtype}[{rows}, {half}], %7: {dtype}[{INNER}, {HIDDEN}],
         %8: {dtype}[{INNER}, {HIDDEN}], %9: {dtype}[{queries}]) {{\n"
    );
    let mut next = 10;
    let mut add = |shape: &str, of: &str, what: String| {
        let id = next;
        next += 1;
        text += &format!("  %{id}: {of}[{shape}] = {what}\n");
        id
    };
    let hidden = format!("{rows}, {HIDDEN}");
    let x = add(&hidden, "f32", "cast %0".into());
    let squared = add(&hidden, "f32", format!("mul %{x}, %{x}"));
    let sum = add(&format!("{rows}, 1"), "f32", format!("reduce_sum %{squared} {{axes=[1]}}"));
    let eps = add(&format!("{rows}, 1"), "f32", "full {value=1e-5}".into());
    let sum = add(&format!("{rows}, 1"), "f32", format!("add %{sum}, %{eps}"));
    let root = add(&format!("{rows}, 1"), "f32", format!("rsqrt %{sum}"));
    let root = add(&hidden, "f32", format!("expand %{root}"));
    let scaled = add(&hidden, "f32", format!("mul %{x}, %{root}"));
    let weight = add(&format!("{HIDDEN}"), "f32", "cast %1".into());
    let weight = add(&format!("1, {HIDDEN}"), "f32", format!("reshape %{weight}"));
    let weight = add(&hidden, "f32", format!("expand %{weight}"));
    let scaled = add(&hidden, "f32", format!("mul %{scaled}, %{weight}"));
    let norm = add(&hidden, dtype, format!("cast %{scaled}"));
    let product = |add: &mut dyn FnMut(&str, &str, String) -> usize, columns: usize, weight: usize| {
        let w = add(&format!("{HIDDEN}, {columns}"), dtype, format!("permute %{weight} {{order=[1, 0]}}"));
        let dims = "{lhs_batch=[], rhs_batch=[], lhs_contract=[1], rhs_contract=[0]}";
        add(&format!("{rows}, {columns}"), dtype, format!("dot %{norm}, %{w} {dims}"))
    };
    let mut outputs = Vec::new();
    for (heads, weight) in [(HEADS, 2), (GROUPS, 3)] {
        let mut y = product(&mut add, heads * WIDTH, weight);
        if bias && heads == HEADS {
            let b = add(&format!("1, {queries}"), dtype, "reshape %9".into());
            let b = add(&format!("{rows}, {queries}"), dtype, format!("expand %{b}"));
            y = add(&format!("{rows}, {queries}"), dtype, format!("add %{y}, %{b}"));
        }
        let whole = format!("{rows}, {heads}, {WIDTH}");
        let part = format!("{rows}, {heads}, {half}");
        let y = add(&whole, dtype, format!("reshape %{y}"));
        let y = add(&whole, "f32", format!("cast %{y}"));
        let slice = |start: usize| {
            format!("slice %{y} {{start=[0, 0, {start}], size=[{rows}, {heads}, {half}], step=[1, 1, 1]}}")
        };
        let (a, b) = (add(&part, "f32", slice(0)), add(&part, "f32", slice(half)));
        let table = |add: &mut dyn FnMut(&str, &str, String) -> usize, input: usize| {
            let t = add(&format!("{rows}, {half}"), "f32", format!("cast %{input}"));
            let t = add(&format!("{rows}, 1, {half}"), "f32", format!("reshape %{t}"));
            add(&part, "f32", format!("expand %{t}"))
        };
        let (cos, sin) = (table(&mut add, 5), table(&mut add, 6));
        let times = |add: &mut dyn FnMut(&str, &str, String) -> usize, x: usize, y: usize| {
            add(&part, "f32", format!("mul %{x}, %{y}"))
        };
        let (ac, bs) = (times(&mut add, a, cos), times(&mut add, b, sin));
        let (bc, as_) = (times(&mut add, b, cos), times(&mut add, a, sin));
        let (low, high) =
            (add(&part, "f32", format!("sub %{ac}, %{bs}")), add(&part, "f32", format!("add %{bc}, %{as_}")));
        let (low, high) = (add(&part, dtype, format!("cast %{low}")), add(&part, dtype, format!("cast %{high}")));
        let whole = add(&whole, dtype, format!("concat %{low}, %{high} {{axis=2}}"));
        outputs.push(whole);
    }
    outputs.push(product(&mut add, keys, 4));
    let (gate, up) = (product(&mut add, INNER, 7), product(&mut add, INNER, 8));
    let inner = format!("{rows}, {INNER}");
    let tanh = add(&inner, dtype, format!("tanh %{gate}"));
    outputs.push(add(&inner, dtype, format!("mul %{tanh}, %{up}")));
    let outputs: Vec<String> = outputs.iter().map(|id| format!("%{id}")).collect();
    text += &format!("  return {}\n}}", outputs.join(", "));
    Graph::parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"))
}

fn scheduled(graph: &Graph, few_rows: i64) -> Schedule {
    let layouts: Vec<InputLayout> = graph.inputs().iter().map(|&id| InputLayout::contiguous(graph.ty(id))).collect();
    let target = Target { few_rows, ..Target::default() };
    let options = ScheduleOptions { numerics: Numerics::Eager, target, ..ScheduleOptions::default() };
    schedule(graph, &layouts, &options).unwrap()
}

fn inputs(graph: &Graph) -> Vec<HostTensor> {
    let mut random = Random(7);
    let one = |&id: &kiln_ir::NodeId| {
        let ty = graph.ty(id);
        let shape: Vec<usize> = ty.shape.iter().map(|d| d.as_usize().unwrap()).collect();
        let mut tensor = HostTensor::zeros(ty.dtype, &shape).unwrap();
        (0..tensor.elements())
            .for_each(|i| tensor.set(i, Scalar::float(ty.dtype, random.below(17) as f64 / 8.0 - 1.0)));
        tensor
    };
    graph.inputs().iter().map(one).collect()
}

#[test]
fn a_layer_is_one_launch_and_gives_the_same() {
    for (rows, dtype, bias) in [(1, "bf16", false), (1, "f32", true), (3, "bf16", true), (3, "f16", false)] {
        let graph = layer(rows, dtype, bias);
        let (apart, joined) = (scheduled(&graph, 0), scheduled(&graph, 8));
        assert!(apart.steps.len() >= 6, "{apart}");
        assert_eq!(joined.steps.len(), 1, "{joined}");
        let KernelBody::Parallel(bodies) = &joined.steps[0].kernel.body else { panic!("{joined}") };
        assert_eq!(bodies.len(), 4, "{joined}");
        let inputs = inputs(&graph);
        let wanted = interpret::run(&graph, &inputs).unwrap();
        let got = reference::run(&joined, &mut inputs.clone(), &|_| None).unwrap();
        for (got, wanted) in got.iter().zip(&wanted) {
            let got = HostTensor::from_bytes(got.dtype(), wanted.shape(), got.bytes().to_vec()).unwrap();
            got.compare(wanted, Tolerance::of(wanted.dtype()).times(2.0)).unwrap();
        }
    }
}

#[test]
fn the_largest_of_a_long_row_is_found_in_parts() {
    for (kind, dtype) in [("argmax", "f32"), ("argmin", "f32"), ("argmax", "bf16"), ("argmax", "i32")] {
        let text = format!("graph(%0: {dtype}[3, 4096]) {{\n  %1: i64[3, 1] = {kind} %0 {{axis=1}}\n  return %1\n}}");
        let graph = Graph::parse(&text).unwrap();
        let layouts = [InputLayout::contiguous(graph.ty(graph.inputs()[0]))];
        let target = Target { few_rows: 0, long_row: 1024, ..Target::default() };
        let schedule = schedule(&graph, &layouts, &ScheduleOptions { target, ..Default::default() }).unwrap();
        assert_eq!(schedule.steps.len(), 2, "{schedule}");
        // Few different values, so that there are many equal ones; one row with a NaN.
        let mut random = Random(3);
        let dtype = graph.ty(graph.inputs()[0]).dtype;
        let mut x = HostTensor::zeros(dtype, &[3, 4096]).unwrap();
        (0..x.elements()).for_each(|i| x.set(i, Scalar::int(kiln_ir::DType::I64, random.below(9) as i64).cast(dtype)));
        if dtype.is_float() {
            x.set(4096 + 2000, Scalar::float(dtype, f64::NAN));
        }
        let wanted = interpret::run(&graph, std::slice::from_ref(&x)).unwrap();
        let flat = HostTensor::from_bytes(dtype, &[3 * 4096], x.bytes().to_vec()).unwrap();
        let got = reference::run(&schedule, &mut [flat], &|_| None).unwrap();
        assert_eq!(got[0].to_i64(), wanted[0].to_i64(), "{kind} {dtype}");
    }
}

/// Keys with rotated positions and values of a token of each text, written to the rows of a cache that an index says; and perhaps queries.
fn write_of_tokens(texts: usize, with_queries: bool) -> Graph {
    let (b, rows) = (texts, texts * 4);
    let (weight, product, result) = match with_queries {
        false => ("", String::new(), ""),
        true => (
            ", %8: f32[96, 160]",
            format!(
                "%40: f32[160, 96] = permute %8 {{order=[1, 0]}}
      %41: f32[{b}, 96] = dot %0, %40 {{lhs_batch=[], rhs_batch=[], lhs_contract=[1], rhs_contract=[0]}}"
            ),
            ", %41",
        ),
    };
    let text = format!(
        "graph(%0: f32[{b}, 160], %1: f32[64, 160], %2: f32[64, 160], %3: f32[{b}, 1, 1, 8], %4: f32[{b}, 1, 1, 8], %5: f32[32, 16],
        %6: f32[32, 16], %7: i64[{rows}]{weight}) {{
      %10: f32[160, 64] = permute %1 {{order=[1, 0]}}
      %11: f32[{b}, 64] = dot %0, %10 {{lhs_batch=[], rhs_batch=[], lhs_contract=[1], rhs_contract=[0]}}
      %12: f32[160, 64] = permute %2 {{order=[1, 0]}}
      %13: f32[{b}, 64] = dot %0, %12 {{lhs_batch=[], rhs_batch=[], lhs_contract=[1], rhs_contract=[0]}}
      %14: f32[{b}, 4, 1, 16] = reshape %11
      %15: f32[{b}, 4, 1, 8] = slice %14 {{start=[0, 0, 0, 0], size=[{b}, 4, 1, 8], step=[1, 1, 1, 1]}}
      %16: f32[{b}, 4, 1, 8] = slice %14 {{start=[0, 0, 0, 8], size=[{b}, 4, 1, 8], step=[1, 1, 1, 1]}}
      %17: f32[{b}, 4, 1, 8] = expand %3
      %18: f32[{b}, 4, 1, 8] = expand %4
      %19: f32[{b}, 4, 1, 8] = mul %15, %17
      %20: f32[{b}, 4, 1, 8] = mul %16, %18
      %21: f32[{b}, 4, 1, 8] = sub %19, %20
      %22: f32[{b}, 4, 1, 8] = mul %16, %17
      %23: f32[{b}, 4, 1, 8] = mul %15, %18
      %24: f32[{b}, 4, 1, 8] = add %22, %23
      %25: f32[{b}, 4, 1, 16] = concat %21, %24 {{axis=3}}
      %26: f32[{rows}, 16] = reshape %25
      %27: f32[{rows}, 16] = reshape %13
      %28: i64[{rows}, 1] = reshape %7
      %29: i64[{rows}, 16] = expand %28
      %30: f32[32, 16] = scatter_set %5, %29, %26 {{axis=0}}
      %31: f32[32, 16] = scatter_set %6, %29, %27 {{axis=0}}
      {product}
      return %30 -> input 5, %31 -> input 6{result}
    }}"
    );
    Graph::parse(&text).unwrap_or_else(|e| panic!("{e}"))
}

/// Runs a graph of [`write_of_tokens`] with rows apart, two pairs with the same place, and all at one place: the last stays.
fn check_written_rows(graph: &Graph, joined: &Schedule, texts: usize) {
    for rows in [[3, 9, 17, 31], [5, 8, 5, 8], [2, 2, 2, 2], [7, 7, 1, 7]] {
        let mut inputs = inputs(graph);
        for i in 0..4 * texts {
            inputs[7].set(i, Scalar::int(kiln_ir::DType::I64, (rows[i % 4] + i as i64 / 4 % 2) % 32));
        }
        let wanted = interpret::run(graph, &inputs).unwrap();
        let mut memory = inputs.clone();
        let outputs = reference::run(joined, &mut memory, &|_| None).unwrap();
        for (number, wanted) in wanted.iter().enumerate() {
            let got = if number < 2 { &memory[5 + number] } else { &outputs[number] };
            let got = HostTensor::from_bytes(got.dtype(), wanted.shape(), got.bytes().to_vec()).unwrap();
            let outcome = got.compare(wanted, Tolerance::of(wanted.dtype()).times(2.0));
            outcome.unwrap_or_else(|e| panic!("{texts} texts, {rows:?}: {e}"));
        }
    }
}

#[test]
fn a_product_writes_rows_where_an_index_says() {
    for texts in [1, 2, 3] {
        let graph = write_of_tokens(texts, false);
        let joined = scheduled(&graph, 8);
        assert_eq!(joined.steps.len(), 1, "{joined}");
        let KernelBody::Matmul(body) = &joined.steps[0].kernel.body else { panic!("{joined}") };
        assert_eq!(body.rhs.len(), 4, "{joined}");
        check_written_rows(&graph, &joined, texts);
    }
}

#[test]
fn beside_queries_keys_and_values_are_products_apart() {
    for texts in [1, 2, 3] {
        let graph = write_of_tokens(texts, true);
        let joined = scheduled(&graph, 8);
        assert_eq!(joined.steps.len(), 1, "{joined}");
        let bodies = joined.steps[0].kernel.bodies();
        let operands = bodies.iter().map(|body| match body {
            KernelBody::Matmul(body) => body.rhs.len(),
            _ => panic!("{joined}"),
        });
        let mut operands: Vec<usize> = operands.collect();
        operands.sort_unstable();
        assert_eq!(operands, [1, 2, 2], "{joined}");
        check_written_rows(&graph, &joined, texts);
    }
}

#[test]
fn scatters_beside_each_other_are_one_launch() {
    let text = "graph(%0: f32[700, 16], %1: f32[700, 16], %2: f32[600, 16], %3: f32[600, 16], %4: i64[600]) {
      %5: i64[600, 1] = reshape %4
      %6: i64[600, 16] = expand %5
      %7: f32[700, 16] = scatter_set %0, %6, %2 {axis=0}
      %8: f32[700, 16] = scatter_set %1, %6, %3 {axis=0}
      return %7 -> input 0, %8 -> input 1
    }";
    let graph = Graph::parse(text).unwrap();
    assert_eq!(scheduled(&graph, 0).steps.len(), 2);
    let joined = scheduled(&graph, 8);
    assert_eq!(joined.steps.len(), 1, "{joined}");
    assert!(matches!(&joined.steps[0].kernel.body, KernelBody::Parallel(bodies) if bodies.len() == 2), "{joined}");
    let mut inputs = inputs(&graph);
    for i in 0..600 {
        // Every place but a few is written twice.
        inputs[4].set(i, Scalar::int(kiln_ir::DType::I64, (i as i64 * 7) % 311));
    }
    let wanted = interpret::run(&graph, &inputs).unwrap();
    reference::run(&joined, &mut inputs, &|_| None).unwrap();
    for (got, wanted) in inputs.iter().zip(&wanted) {
        let got = HostTensor::from_bytes(got.dtype(), wanted.shape(), got.bytes().to_vec()).unwrap();
        got.compare(wanted, Tolerance::of(wanted.dtype())).unwrap();
    }
}
