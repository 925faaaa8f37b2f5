//! Parts of one attention are one launch where they read the same memory, and give what they gave apart.

use kiln_ir::examples::Random;
use kiln_ir::{DType, Graph, HostTensor, Tolerance, interpret};
use kiln_kernels::kernel::{AttentionPart, KernelBody};
use kiln_kernels::{InputLayout, Schedule, ScheduleOptions, reference, schedule};

/// Attention and all of its gradients, from the logarithms of scores of that scale.
fn source(scale: &str) -> String {
    format!(
        "graph(%0: f32[1, 4, 5, 8], %1: f32[1, 2, 7, 8], %2: f32[1, 2, 7, 6], %3: f32[1, 4, 5, 6], %4: f32[1, 4, 5, 1]) {{
  %5: f32[1, 4, 5, 6] = attention %0, %1, %2 {{scale=0.5, causal=true}}
  %6: f32[1, 4, 5, 6] = mul %5, %3
  %7: f32[1, 4, 5, 1] = attention_logsumexp %0, %1 {{scale={scale}, causal=true}}
  %8: f32[1, 4, 5, 8] = attention_gradient_queries %0, %1, %2, %6, %7, %4 {{scale=0.5, causal=true}}
  %9: f32[1, 2, 7, 8] = attention_gradient_keys %0, %1, %2, %6, %7, %4 {{scale=0.5, causal=true}}
  %10: f32[1, 2, 7, 6] = attention_gradient_values %0, %1, %2, %6, %7, %4 {{scale=0.5, causal=true}}
  return %8, %9, %10
}}"
    )
}

fn scheduled(graph: &Graph, no_fusion: bool) -> Schedule {
    let layouts: Vec<InputLayout> = graph.inputs().iter().map(|&id| InputLayout::contiguous(graph.ty(id))).collect();
    schedule(graph, &layouts, &ScheduleOptions { no_fusion, ..ScheduleOptions::default() }).unwrap()
}

/// The number of launches for attention, with logarithms beside the result, for logarithms alone and for gradients.
fn counts(schedule: &Schedule) -> [usize; 4] {
    let mut counts = [0; 4];
    for step in &schedule.steps {
        match &step.kernel.body {
            KernelBody::Attention(body) => counts[usize::from(body.logsumexp.is_some())] += 1,
            KernelBody::AttentionBackward(body) => match body.part {
                AttentionPart::Logsumexp { .. } => counts[2] += 1,
                AttentionPart::Gradients(_) => counts[3] += 1,
            },
            _ => {}
        }
    }
    counts
}

fn inputs(graph: &Graph) -> Vec<HostTensor> {
    let mut random = Random(7);
    let tensor = |id: &kiln_ir::NodeId| {
        let shape = graph.ty(*id).fixed_shape().unwrap();
        let values: Vec<f64> = (0..shape.iter().product()).map(|_| random.unit() * 2.0 - 1.0).collect();
        HostTensor::from_f64(DType::F32, &shape, &values).unwrap()
    };
    graph.inputs().iter().map(tensor).collect()
}

fn agrees(graph: &Graph, schedule: &Schedule) {
    let inputs = inputs(graph);
    let flat = |t: &HostTensor| HostTensor::from_bytes(t.dtype(), &[t.elements()], t.bytes().to_vec()).unwrap();
    let wanted = interpret::run(graph, &inputs).unwrap();
    let mut memory: Vec<HostTensor> = inputs.iter().map(flat).collect();
    let got = reference::run(schedule, &mut memory, &|_| None).unwrap();
    for (got, wanted) in got.iter().zip(&wanted) {
        got.compare(&flat(wanted), Tolerance::of(DType::F32)).unwrap();
    }
}

#[test]
fn parts_of_one_attention_are_joined() {
    let graph = Graph::parse(&source("0.5")).unwrap();
    let schedule = scheduled(&graph, false);
    assert_eq!(counts(&schedule), [0, 1, 0, 2], "{schedule}");
    agrees(&graph, &schedule);
}

#[test]
fn parts_of_different_attentions_are_not() {
    let graph = Graph::parse(&source("0.25")).unwrap();
    let schedule = scheduled(&graph, false);
    assert_eq!(counts(&schedule), [1, 0, 1, 2], "{schedule}");
    agrees(&graph, &schedule);
    let graph = Graph::parse(&source("0.5")).unwrap();
    let apart = scheduled(&graph, true);
    assert_eq!(counts(&apart), [1, 0, 1, 3], "{apart}");
    agrees(&graph, &apart);
}
