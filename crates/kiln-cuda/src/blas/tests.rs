//! Products as a library would compute them, against the interpreter.

use super::product::{Extent, Placed, Product};
use kiln_ir::interpret::run;
use kiln_ir::{DType, Graph, HostTensor};
use kiln_kernels::kernel::{Access, Kernel};
use kiln_kernels::reference::run_kernel;
use kiln_kernels::{InputLayout, Role, Schedule, ScheduleOptions, schedule};

fn scheduled(source: &str) -> (Graph, Schedule) {
    let graph = kiln_passes::run(Graph::parse(source).unwrap()).unwrap();
    let layouts: Vec<InputLayout> = graph.inputs().iter().map(|&id| InputLayout::contiguous(graph.ty(id))).collect();
    let schedule = schedule(&graph, &layouts, &ScheduleOptions::default()).unwrap();
    (graph, schedule)
}

/// The product of a graph's only kernel.
fn product(source: &str) -> Option<Product> {
    let (_, schedule) = scheduled(source);
    let kernels: Vec<&Kernel> = schedule.steps.iter().map(|step| &*step.kernel).collect();
    assert_eq!(kernels.len(), 1, "{kernels:?}");
    Product::of(kernels[0])
}

/// `d = op(a) · op(b) + c + bias` on matrices by columns, as cublasLt.h defines it.
fn multiply(product: &Product, extent: &Extent, buffers: &mut [Vec<f64>]) {
    let index = |placed: &Placed, image: i64, row: i64, column: i64| {
        (placed.offset + image * placed.batch_stride + row + column * placed.leading) as usize
    };
    let swapped = |transposed: bool, row: i64, column: i64| if transposed { (column, row) } else { (row, column) };
    for image in 0..extent.batch {
        for (row, column) in (0..extent.rows).flat_map(|row| (0..extent.columns).map(move |column| (row, column))) {
            let mut sum = 0.0;
            for k in 0..extent.depth {
                let (a_row, a_column) = swapped(product.a.transposed, row, k);
                let (b_row, b_column) = swapped(product.b.transposed, k, column);
                sum += buffers[product.a.buffer][index(&extent.a, image, a_row, a_column)]
                    * buffers[product.b.buffer][index(&extent.b, image, b_row, b_column)];
            }
            sum += product.c.as_ref().map_or(0.0, |c| buffers[c.buffer][index(&extent.c, image, row, column)]);
            sum += product.bias.as_ref().map_or(0.0, |bias| buffers[bias.buffer][(extent.bias + row) as usize]);
            buffers[product.d.buffer][index(&extent.d, image, row, column)] = sum;
        }
    }
}

/// Holds a graph of one product against the interpreter.
fn check(source: &str) {
    let (graph, schedule) = scheduled(source);
    let [step] = schedule.steps.as_slice() else { panic!("{} kernels of {source}", schedule.steps.len()) };
    let product = Product::of(&step.kernel).unwrap_or_else(|| panic!("no product: {}", step.kernel));
    let extent = product.at(&[]).unwrap_or_else(|| panic!("{product}"));
    let inputs: Vec<HostTensor> = graph
        .inputs()
        .iter()
        .map(|&id| {
            let shape: Vec<usize> = graph.ty(id).shape.iter().map(|dim| dim.as_const().unwrap() as usize).collect();
            let count: usize = shape.iter().product();
            let values: Vec<f64> = (0..count).map(|at| ((at * 7 + shape.len()) % 11) as f64 - 5.0).collect();
            HostTensor::from_f64(DType::F32, &shape, &values).unwrap()
        })
        .collect();
    let wanted = run(&graph, &inputs).unwrap();
    let mut buffers: Vec<Vec<f64>> = step
        .args
        .iter()
        .map(|id| match schedule.buffers[id.index()].role {
            Role::Input(input) => inputs[input].to_f64(),
            _ => vec![0.0; wanted[0].to_f64().len()],
        })
        .collect();
    let Some(epilogue) = &product.epilogue else {
        multiply(&product, &extent, &mut buffers);
        assert_eq!(buffers[product.d.buffer], wanted[0].to_f64(), "{product}");
        return;
    };
    epilogue.verify().unwrap();
    buffers.push(vec![0.0; extent.scratch as usize / 4]);
    multiply(&product, &extent, &mut buffers);
    let tensor = |values: &Vec<f64>| HostTensor::from_f64(DType::F32, &[values.len()], values).unwrap();
    let mut tensors: Vec<HostTensor> = buffers.iter().map(tensor).collect();
    run_kernel(epilogue, &mut tensors, &[]).unwrap();
    let result = epilogue.buffers.iter().position(|buffer| buffer.access == Access::Write).unwrap();
    assert_eq!(tensors[result].to_f64(), wanted[0].to_f64(), "{product}");
}

#[test]
fn operands_of_every_order() {
    for (lhs, at) in [("f32[33, 40]", 1), ("f32[40, 33]", 0)] {
        for (rhs, from) in [("f32[26, 40]", 1), ("f32[40, 26]", 0)] {
            check(&format!(
                "graph(%0: {lhs}, %1: {rhs}) {{
  %2: f32[33, 26] = dot %0, %1 {{lhs_batch=[], rhs_batch=[], lhs_contract=[{at}], rhs_contract=[{from}]}}
  return %2
}}"
            ));
            check(&format!(
                "graph(%0: {lhs}, %1: {rhs}) {{
  %2: f32[33, 26] = dot %0, %1 {{lhs_batch=[], rhs_batch=[], lhs_contract=[{at}], rhs_contract=[{from}]}}
  %3: f32[26, 33] = permute %2 {{order=[1, 0]}}
  return %3
}}"
            ));
        }
    }
}

#[test]
fn batches_biases_and_residuals() {
    let dot = "%3: f32[2, 33, 26] = dot %0, %1 {lhs_batch=[0], rhs_batch=[0], lhs_contract=[2], rhs_contract=[1]}";
    check(&format!(
        "graph(%0: f32[2, 33, 40], %1: f32[2, 40, 26], %2: f32[2, 33, 26]) {{
  {dot}
  %4: f32[2, 33, 26] = add %2, %3
  return %4
}}"
    ));
    check(&format!(
        "graph(%0: f32[2, 33, 40], %1: f32[2, 40, 26], %2: f32[26]) {{
  {dot}
  %4: f32[1, 1, 26] = reshape %2
  %40: f32[2, 33, 26] = expand %4
  %6: f32[2, 33, 26] = add %3, %40
  return %6
}}"
    ));
}

#[test]
fn short_floats_round_once() {
    let source = "graph(%0: bf16[128, 512], %1: bf16[384, 512], %2: bf16[128, 384]) {
  %3: bf16[128, 384] = dot %0, %1 {lhs_batch=[], rhs_batch=[], lhs_contract=[1], rhs_contract=[1]}
  %4: bf16[128, 384] = add %3, %2
  return %4
}";
    let product = product(source).unwrap();
    assert_eq!((product.dtype, product.out_dtype), (DType::Bf16, DType::Bf16));
    assert!(product.c.is_some() && product.bias.is_none());
    assert!(!product.may_be_large() && product.at(&[]).is_some_and(|extent| !extent.is_few()));
}

#[test]
fn sizes_decide_at_a_launch() {
    let source = "graph(%0: bf16[t, 4096], %1: bf16[4096, 4096]) {
  %2: bf16[t, 4096] = dot %0, %1 {lhs_batch=[], rhs_batch=[], lhs_contract=[1], rhs_contract=[1]}
  return %2
}";
    let product = product(source).unwrap();
    assert!(product.may_be_large());
    assert!(product.at(&[1]).unwrap().is_few() && !product.at(&[1]).unwrap().is_large());
    assert!(product.at(&[512]).unwrap().is_large());
    assert_eq!(product.at(&[0]), None);
}

#[test]
fn other_epilogues_read_the_accumulators() {
    let dot = "%2: f32[33, 26] = dot %0, %1 {lhs_batch=[], rhs_batch=[], lhs_contract=[1], rhs_contract=[1]}";
    check(&format!(
        "graph(%0: f32[33, 40], %1: f32[26, 40]) {{
  {dot}
  %3: f32[33, 26] = mul %2, %2
  return %3
}}"
    ));
    // Axes that the result has in another order than the product.
    check(
        "graph(%0: f32[3, 11, 40], %1: f32[2, 13, 40]) {
  %2: f32[3, 11, 2, 13] = dot %0, %1 {lhs_batch=[], rhs_batch=[], lhs_contract=[2], rhs_contract=[2]}
  %3: f32[3, 2, 11, 13] = permute %2 {order=[0, 2, 1, 3]}
  return %3
}",
    );
    let deep = |depth: i64| {
        let source = format!(
            "graph(%0: bf16[512, {depth}], %1: bf16[384, {depth}]) {{
  %2: bf16[512, 384] = dot %0, %1 {{lhs_batch=[], rhs_batch=[], lhs_contract=[1], rhs_contract=[1]}}
  %3: bf16[512, 384] = exp %2
  return %3
}}"
        );
        product(&source).unwrap().may_be_large()
    };
    assert!(deep(2048) && !deep(512));
}

/// Rows that are padded to 16 bytes but do not fill them are read one by one by libraries, and in part by the own text.
#[test]
fn padded_rows_are_not_the_librarys() {
    let second = |between: i64| {
        let source = format!(
            "graph(%0: bf16[2048, 512], %1: bf16[{between}, 512], %2: bf16[{between}, 1024]) {{
  %3: bf16[2048, {between}] = dot %0, %1 {{lhs_batch=[], rhs_batch=[], lhs_contract=[1], rhs_contract=[1]}}
  %4: bf16[2048, 1024] = dot %3, %2 {{lhs_batch=[], rhs_batch=[], lhs_contract=[1], rhs_contract=[0]}}
  return %4
}}"
        );
        let graph = kiln_passes::run(Graph::parse(&source).unwrap()).unwrap();
        let layouts: Vec<_> = graph.inputs().iter().map(|&id| InputLayout::contiguous(graph.ty(id))).collect();
        let options = ScheduleOptions { target: crate::TARGET, ..ScheduleOptions::default() };
        let steps = schedule(&graph, &layouts, &options).unwrap().steps;
        steps.iter().map(|step| Product::of(&step.kernel).unwrap().may_be_large()).collect::<Vec<_>>()
    };
    assert_eq!((second(1200), second(1201)), (vec![true, true], vec![false, false]));
}

/// An epilogue costs less in the own text of warpgroups than in memory, where the text has work for every multiprocessor and the sum is
/// not so long that the library makes up for it.
#[test]
fn epilogues_stay_with_warpgroups() {
    let large = |rows: i64, depth: i64| {
        let source = format!(
            "graph(%0: bf16[{rows}, {depth}], %1: bf16[1024, {depth}]) {{
  %2: bf16[{rows}, 1024] = dot %0, %1 {{lhs_batch=[], rhs_batch=[], lhs_contract=[1], rhs_contract=[1]}}
  %3: bf16[{rows}, 1024] = exp %2
  return %3
}}"
        );
        let mut product = product(&source).unwrap();
        let without = product.may_be_large();
        product.warpgroups = true;
        (without, product.may_be_large())
    };
    assert_eq!((large(512, 2048), large(8192, 2048)), ((true, true), (true, false)));
    assert_eq!((large(8192, 4096), large(512, 8192)), ((true, true), (true, false)));
}

#[test]
fn integers_are_not_the_librarys() {
    let integers = "graph(%0: i32[128, 512], %1: i32[384, 512]) {
  %2: i32[128, 384] = dot %0, %1 {lhs_batch=[], rhs_batch=[], lhs_contract=[1], rhs_contract=[1]}
  return %2
}";
    assert_eq!(product(integers), None);
}
