//! What several tests need.

use kiln_ir::Graph;
use kiln_kernels::kernel::KernelBody;
use kiln_kernels::{InputLayout, Kernel, ScheduleOptions, schedule};
use std::sync::Arc;

/// The kernels of a graph after the passes, for row-major inputs; of a loop those of its body.
pub fn kernels(graph: Graph) -> Vec<Arc<Kernel>> {
    let passes = kiln_passes::Options { keep_attention_gradients: true, keep_bounds: true, ..Default::default() };
    let graph = kiln_passes::run_options(graph, &passes, &mut |_, _| {}).unwrap();
    let layouts: Vec<InputLayout> = graph.inputs().iter().map(|&id| InputLayout::contiguous(graph.ty(id))).collect();
    let options = ScheduleOptions { target: kiln_cuda::TARGET, ..ScheduleOptions::default() };
    let schedule = schedule(&graph, &layouts, &options).unwrap();
    schedule.steps.iter().flat_map(|step| launched(&step.kernel)).collect()
}

/// The kernels that a backend compiles for a launch: the runtime runs loops itself.
fn launched(kernel: &Kernel) -> Vec<Arc<Kernel>> {
    match &kernel.body {
        KernelBody::Repeat(body) => {
            let copies = body.carried.iter().map(|carried| &carried.copy);
            body.all_launches().map(|launch| &launch.kernel).chain(copies).flat_map(launched).collect()
        }
        _ => vec![Arc::new(kernel.clone())],
    }
}
