//! What a target may ask for that training steps need: short operands in memory, columns summed in parts, and values that are computed
//! again instead of being stored.

use kiln_ir::examples::Random;
use kiln_ir::{DType, Graph, HostTensor, Scalar, Tolerance, interpret};
use kiln_kernels::kernel::{Access, KernelBody};
use kiln_kernels::{InputLayout, Schedule, ScheduleOptions, Target, reference, schedule};

fn scheduled(source: &str, target: Target) -> Schedule {
    let graph = Graph::parse(source).unwrap();
    let layouts: Vec<InputLayout> = graph.inputs().iter().map(|&id| InputLayout::contiguous(graph.ty(id))).collect();
    schedule(&graph, &layouts, &ScheduleOptions { target, ..ScheduleOptions::default() }).unwrap()
}

fn is_product(body: &KernelBody) -> bool {
    matches!(body, KernelBody::Matmul(_))
}

#[test]
fn casts_to_short_operands_are_stored() {
    let source = "graph(%0: bf16[64, 128], %1: f32[128, 256]) {
  %2: bf16[128, 256] = cast %1
  %3: bf16[64, 256] = dot %0, %2 {lhs_batch=[], rhs_batch=[], lhs_contract=[1], rhs_contract=[0]}
  return %3
}";
    let operands = |schedule: &Schedule| -> Vec<DType> {
        let product = schedule.steps.iter().find(|step| is_product(&step.kernel.body)).unwrap();
        product.kernel.buffers.iter().filter(|b| b.access == Access::Read).map(|b| b.dtype).collect()
    };
    let on_the_way = scheduled(source, Target::default());
    assert_eq!((on_the_way.steps.len(), operands(&on_the_way)), (1, vec![DType::Bf16, DType::F32]));
    let stored = scheduled(source, Target { short_operands: true, ..Target::default() });
    assert_eq!((stored.steps.len(), operands(&stored)), (2, vec![DType::Bf16, DType::Bf16]));
}

#[test]
fn long_columns_are_summed_in_parts() {
    let source = "graph(%0: f32[4096, 96]) {
  %1: f32[1, 96] = reduce_sum %0 {axes=[0]}
  return %1
}";
    assert_eq!(scheduled(source, Target::default()).steps.len(), 1);
    let target = Target { many_columns: 1 << 16, ..Target::default() };
    assert_eq!(scheduled(source, target).steps.len(), 2);
    // Rows are shared by threads, and short columns are not worth it.
    for source in [source.replace("axes=[0]", "axes=[1]").replace("[1, 96]", "[4096, 1]"), source.replace("4096", "64")]
    {
        assert_eq!(scheduled(&source, target).steps.len(), 1, "{source}");
    }
}

/// The bytes that an activation's result and its gradient go through.
#[test]
fn large_values_are_computed_again() {
    let source = "graph(%0: bf16[4096, 64], %1: bf16[64, 512], %2: f32[4096, 512]) {
  %3: bf16[4096, 512] = dot %0, %1 {lhs_batch=[], rhs_batch=[], lhs_contract=[1], rhs_contract=[0]}
  %4: f32[4096, 512] = cast %3
  %5: f32[4096, 512] = erf %4
  %6: f32[4096, 512] = mul %5, %4
  %7: bf16[4096, 512] = cast %6
  %8: f32[512, 512] = dot %7, %7 {lhs_batch=[], rhs_batch=[], lhs_contract=[0], rhs_contract=[0]}
  %9: f32[4096, 512] = dot %2, %8 {lhs_batch=[], rhs_batch=[], lhs_contract=[1], rhs_contract=[0]}
  %10: f32[4096, 512] = mul %5, %9
  %11: f32[4096, 512] = add %10, %4
  return %8, %11
}";
    let temporaries = |source: &str, target| {
        let schedule = scheduled(source, target);
        let temps = schedule.buffers.iter().filter(|buffer| buffer.role == kiln_kernels::Role::Temp);
        temps.map(|buffer| buffer.dtype).collect::<Vec<DType>>()
    };
    assert!(temporaries(source, Target::default()).contains(&DType::F32));
    let target = Target { recomputed: 64, ..Target::default() };
    assert!(temporaries(source, target).iter().all(|&dtype| dtype == DType::Bf16), "{:?}", temporaries(source, target));
    // A value that reads another several times loads it once.
    let source = source.replace("erf %4", "exp %14").replace("  %5:", "  %12: f32[4096, 512] = mul %4, %4\n  %13: f32[4096, 512] = mul %12, %4\n  %14: f32[4096, 512] = add %13, %4\n  %5:");
    assert!(
        temporaries(&source, target).iter().all(|&dtype| dtype == DType::Bf16),
        "{:?}",
        temporaries(&source, target)
    );
}

/// The results of a schedule and of the interpreter for the same inputs, which agree.
fn assert_same(source: &str, schedule: &Schedule) {
    let graph = Graph::parse(source).unwrap();
    let mut random = Random(7);
    let input = |&id: &kiln_ir::NodeId| {
        let ty = graph.ty(id);
        let shape: Vec<usize> = ty.shape.iter().map(|size| size.as_const().unwrap() as usize).collect();
        let mut tensor = HostTensor::zeros(ty.dtype, &shape).unwrap();
        for at in 0..tensor.elements() {
            let value = if ty.dtype.is_float() {
                Scalar::float(ty.dtype, random.below(1000) as f64 / 500.0 - 1.0)
            } else {
                Scalar::int(ty.dtype, random.below(5) as i64)
            };
            tensor.set(at, value);
        }
        tensor
    };
    let inputs: Vec<HostTensor> = graph.inputs().iter().map(input).collect();
    let wanted = interpret::run(&graph, &inputs).unwrap();
    let run = |schedule: &Schedule| reference::run(schedule, &mut inputs.clone(), &|_| None).unwrap();
    let (got, plain) = (run(schedule), run(&scheduled(source, Target::default())));
    for ((got, wanted), plain) in got.iter().zip(&wanted).zip(&plain) {
        // Sums of short floats that are not rounded on the way differ from the interpreter's.
        if got.bytes() == plain.bytes() {
            continue;
        }
        let mut shaped = HostTensor::zeros(wanted.dtype(), wanted.shape()).unwrap();
        (0..wanted.elements()).for_each(|at| shaped.set(at, got.get(at)));
        shaped.compare(wanted, Tolerance::of(wanted.dtype()).times(4.0)).unwrap();
    }
}

fn launches(schedule: &Schedule) -> Vec<&str> {
    schedule.steps.iter().map(|step| step.label.as_str()).collect()
}

/// The gradient of a cross-entropy: one position a row.
const CLASSES: &str = "graph(%0: f32[6, 5], %1: i64[6, 1], %2: f32[6, 1]) {
  %3: f32[6, 1] = gather %0, %1 {axis=1}
  %4: f32[6, 5] = full {value=0.0}
  %5: f32[6, 5] = scatter_add %4, %1, %2 {axis=1}
  %6: f32[6, 5] = neg %5
  %7: f32[6, 1] = reduce_sum %6 {axes=[1]}
  %8: f32[6, 5] = expand %7
  %9: f32[6, 5] = exp %0
  %10: f32[6, 5] = mul %8, %9
  %11: f32[6, 5] = add %5, %10
  return %3, %11
}";

#[test]
fn one_element_a_line_is_chosen() {
    let scatters = |schedule: &Schedule| {
        schedule.steps.iter().filter(|step| matches!(step.kernel.body, KernelBody::Routine(_))).count()
    };
    let before = scheduled(CLASSES, Target::default());
    assert_eq!(scatters(&before), 1);
    let target = Target { direct_gradients: true, ..Target::default() };
    let after = scheduled(CLASSES, target);
    assert_eq!((scatters(&after), after.steps.len()), (0, 2), "{after}");
    assert!(before.steps.len() > after.steps.len());
    assert_same(CLASSES, &after);
    // Nobody would see a position that is out of range.
    let unchecked = CLASSES.replace("gather %0, %1 {axis=1}", "neg %2");
    assert_eq!(scatters(&scheduled(&unchecked, target)), 1);
    // Several elements of a line may be one.
    let several = "graph(%0: f32[6, 5], %1: i64[6, 2], %2: f32[6, 2]) {
  %3: f32[6, 2] = gather %0, %1 {axis=1}
  %4: f32[6, 5] = scatter_add %0, %1, %2 {axis=1}
  return %3, %4
}";
    assert_eq!(scatters(&scheduled(several, target)), 1);
    assert_same(several, &scheduled(several, target));
}

/// The gradients of three parts of one product.
const PARTS: &str = "graph(%0: f32[4, 8], %1: f32[4, 8], %2: f32[4, 8], %3: f32[12, 16]) {
  %4: bf16[4, 8] = cast %0
  %5: bf16[4, 8] = cast %1
  %6: bf16[4, 8] = cast %2
  %7: bf16[12, 8] = pad %4 {low=[4, 0], high=[4, 0], value=0.0}
  %8: bf16[12, 8] = pad %5 {low=[0, 0], high=[8, 0], value=0.0}
  %9: bf16[12, 8] = pad %6 {low=[8, 0], high=[0, 0], value=0.0}
  %10: f32[12, 8] = cast %7
  %11: f32[12, 8] = cast %8
  %12: f32[12, 8] = add %10, %11
  %13: f32[12, 8] = cast %9
  %14: f32[12, 8] = add %12, %13
  %15: bf16[12, 8] = cast %14
  return %15
}";

#[test]
fn parts_between_zeros_are_concatenated() {
    let adds = |source: &str| {
        let target = Target { direct_gradients: true, ..Target::default() };
        let schedule = scheduled(source, target);
        assert_same(source, &schedule);
        schedule.to_string().contains("add")
    };
    assert!(scheduled(PARTS, Target::default()).to_string().contains("add"));
    assert!(!adds(PARTS));
    // Parts that overlap, leave a gap, or lie between other values.
    assert!(adds(&PARTS.replace("low=[4, 0], high=[4, 0]", "low=[3, 0], high=[5, 0]")));
    assert!(adds(&PARTS.replace("low=[8, 0], high=[0, 0]", "low=[0, 0], high=[8, 0]")));
    assert!(adds(&PARTS.replace("value=0.0", "value=1.0")));
    assert!(adds(&PARTS.replace("value=0.0", "value=-0.0")));
}

/// Rows of an odd number of elements, which products write and read.
const ODD: &str = "graph(%0: bf16[64, 4], %1: bf16[1027, 4]) {
  %2: bf16[64, 1027] = dot %0, %1 {lhs_batch=[], rhs_batch=[], lhs_contract=[1], rhs_contract=[1]}
  %7: bf16[64, 1027] = exp %2
  %8: bf16[64, 4] = dot %2, %1 {lhs_batch=[], rhs_batch=[], lhs_contract=[1], rhs_contract=[0]}
  %9: bf16[1027, 4] = dot %7, %0 {lhs_batch=[], rhs_batch=[], lhs_contract=[0], rhs_contract=[0]}
  return %8, %9
}";

#[test]
fn rows_of_products_are_aligned() {
    let target = Target { row_alignment: 16, ..Target::default() };
    let schedule = scheduled(ODD, target);
    assert_same(ODD, &schedule);
    let text = schedule.to_string();
    assert!(text.contains("*1032") && !text.contains("*1027"), "{text}");
    let elements = |schedule: &Schedule| {
        let temps = schedule.buffers.iter().filter(|b| b.dtype == DType::Bf16 && b.role == kiln_kernels::Role::Temp);
        temps.map(|b| b.elements.as_const().unwrap()).collect::<Vec<_>>()
    };
    assert!(elements(&schedule).iter().all(|&n| n == 64 * 1032), "{:?}", elements(&schedule));
    assert!(elements(&scheduled(ODD, Target { row_alignment: 0, ..target })).iter().all(|&n| n == 64 * 1027));
    // One of the readers has the elements in a row.
    let flat =
        ODD.replace("return %8", "%10: bf16[65728] = reshape %2\n  %11: bf16[65728] = neg %10\n  return %11, %8");
    let schedule = scheduled(&flat, target);
    assert_same(&flat, &schedule);
    assert!(schedule.to_string().contains("*1027"));
}

/// Updates of small parameters, which nothing else of a step needs.
#[test]
fn small_updates_are_one_launch() {
    let source = "graph(%0: f32[512, 64], %1: f32[64, 64], %2: f32[64], %3: f32[64], %4: f32[64]) {
  %5: f32[1, 64] = reduce_sum %0 {axes=[0]}
  %6: f32[64] = reshape %5
  %7: f32[64] = sub %2, %6
  %8: f32[512, 64] = dot %0, %1 {lhs_batch=[], rhs_batch=[], lhs_contract=[1], rhs_contract=[0]}
  %9: f32[1, 64] = reduce_sum %8 {axes=[0]}
  %10: f32[64] = reshape %9
  %11: f32[64] = sub %3, %10
  %12: f32[512, 64] = dot %8, %1 {lhs_batch=[], rhs_batch=[], lhs_contract=[1], rhs_contract=[0]}
  %13: f32[1, 64] = reduce_sum %12 {axes=[0]}
  %14: f32[64] = reshape %13
  %15: f32[64] = sub %4, %14
  return %7 -> input 2, %11 -> input 3, %15 -> input 4
}";
    let apart = scheduled(source, Target::default());
    let joined = scheduled(source, Target { few_rows: 8, ..Target::default() });
    assert_eq!((apart.steps.len(), joined.steps.len()), (5, 3), "{:?}", launches(&joined));
    assert!(matches!(joined.steps[2].kernel.body, KernelBody::Parallel(_)));
    assert_same(source, &joined);
}

/// The gradient of a weight reads heads side by side, as other readers of theirs do, whatever the order of the product's axes.
#[test]
fn heads_side_by_side_stay_in_the_order_of_their_rows() {
    let source = "graph(%0: bf16[4, 2, 16, 8], %1: bf16[4, 16, 24]) {
  %2: bf16[4, 2, 16, 8] = exp %0
  %3: bf16[4, 16, 2, 8] = permute %2 {order=[0, 2, 1, 3]}
  %4: bf16[4, 16, 16] = reshape %3
  %5: bf16[16, 4, 16] = permute %4 {order=[2, 0, 1]}
  %6: bf16[16, 24] = dot %5, %1 {lhs_batch=[], rhs_batch=[], lhs_contract=[1, 2], rhs_contract=[0, 1]}
  %7: bf16[24, 16] = dot %1, %4 {lhs_batch=[], rhs_batch=[], lhs_contract=[0, 1], rhs_contract=[0, 1]}
  return %6, %7
}";
    let target = Target { short_operands: true, product_order: true, guarded_operands: true, ..Target::default() };
    let schedule = scheduled(source, target);
    assert_same(source, &schedule);
    let products = schedule.steps.iter().filter(|step| is_product(&step.kernel.body));
    for (step, operand) in
        products.zip(["lhs\n    v0: f32 = load b0[i0 + i2*16]", "rhs\n    v0: f32 = load b1[i1 + i2*16]"])
    {
        let text = step.kernel.to_string();
        assert!(text.contains(operand), "{text}");
    }
}

/// The gradient of a convolution in its weight sums every pixel of every image for a few results.
#[test]
fn weight_gradients_are_summed_in_parts() {
    let source = "graph(%0: f32[8, 6, 20, 20], %1: f32[8, 4, 18, 18]) {
  %2: f32[8, 6, 18, 20, 3] = unfold %0 {axis=2, size=3, stride=1, dilation=1}
  %3: f32[8, 6, 18, 18, 3, 3] = unfold %2 {axis=3, size=3, stride=1, dilation=1}
  %4: f32[4, 6, 3, 3] = dot %1, %3 {lhs_batch=[], rhs_batch=[], lhs_contract=[0, 2, 3], rhs_contract=[0, 2, 3]}
  return %4
}";
    let products = |schedule: &Schedule| {
        let product = schedule.steps.iter().find_map(|step| match &step.kernel.body {
            KernelBody::Matmul(body) => {
                Some(body.batch.iter().map(|axis| axis.size.as_const().unwrap()).product::<i64>())
            }
            _ => None,
        });
        (schedule.steps.len(), product.unwrap())
    };
    assert_eq!(products(&scheduled(source, Target::default())), (1, 1));
    // 216 results: four parts keep 800 busy.
    let parts = scheduled(source, Target { busy_results: 800, ..Target::default() });
    assert_eq!(products(&parts), (2, 4), "{parts}");
    assert_same(source, &parts);
    // A product of matrices has libraries and clusters for it.
    let matrices = "graph(%0: f32[4096, 8], %1: f32[4096, 8]) {
  %2: f32[8, 8] = dot %0, %1 {lhs_batch=[], rhs_batch=[], lhs_contract=[0], rhs_contract=[0]}
  return %2
}";
    assert_eq!(products(&scheduled(matrices, Target { busy_results: 800, ..Target::default() })), (1, 1));
}

/// Rows of an input that begin at odd places are copied where products can read them; those of an aligned one are not.
#[test]
fn odd_rows_of_inputs_are_copied() {
    let source = "graph(%0: bf16[80, 1025], %1: bf16[80, 16]) {
  %2: bf16[1025, 16] = dot %0, %1 {lhs_batch=[], rhs_batch=[], lhs_contract=[0], rhs_contract=[0]}
  return %2
}";
    let target = Target { row_alignment: 16, ..Target::default() };
    let copied = scheduled(source, target);
    assert_eq!(copied.steps.len(), 2, "{copied}");
    let pitch = copied.buffers.iter().find(|buffer| buffer.role == kiln_kernels::Role::Temp).unwrap();
    assert_eq!(pitch.elements.as_const(), Some(80 * 1032));
    assert_same(source, &copied);
    assert_eq!(scheduled(&source.replace("1025", "1024"), target).steps.len(), 1);
    assert_eq!(scheduled(source, Target::default()).steps.len(), 1);
}

/// A loop over images whose channels lie innermost takes channels innermost, although the graph has pixels there.
#[test]
fn loops_go_through_memory_in_its_order() {
    let source = "graph(%0: f32[2, 5, 5, 8], %1: f32[8]) {
  %2: f32[2, 8, 5, 5] = permute %0 {order=[0, 3, 1, 2]}
  %3: f32[1, 8, 1, 1] = reshape %1
  %4: f32[2, 8, 5, 5] = expand %3
  %5: f32[2, 8, 5, 5] = mul %2, %4
  %6: f32[2, 5, 5, 8] = permute %5 {order=[0, 2, 3, 1]}
  return %6
}";
    let innermost = |target: Target| {
        let schedule = scheduled(source, target);
        assert_same(source, &schedule);
        let KernelBody::Loop(body) = &schedule.steps[0].kernel.body else { panic!("{schedule}") };
        body.grid.iter().chain(&body.row).next_back().unwrap().size.as_const()
    };
    assert_eq!(innermost(Target { product_order: true, ..Target::default() }), Some(8));
}
