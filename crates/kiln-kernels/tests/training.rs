//! What a target may ask for that training steps need: short operands in memory, columns summed in parts, and values that are computed
//! again instead of being stored.

use kiln_ir::{DType, Graph};
use kiln_kernels::kernel::{Access, KernelBody};
use kiln_kernels::{InputLayout, Schedule, ScheduleOptions, Target, schedule};

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
    let temporaries = |target| {
        let schedule = scheduled(source, target);
        let temps = schedule.buffers.iter().filter(|buffer| buffer.role == kiln_kernels::Role::Temp);
        temps.map(|buffer| buffer.dtype).collect::<Vec<DType>>()
    };
    assert!(temporaries(Target::default()).contains(&DType::F32));
    let target = Target { recomputed: 64, ..Target::default() };
    assert!(temporaries(target).iter().all(|&dtype| dtype == DType::Bf16), "{:?}", temporaries(target));
}
