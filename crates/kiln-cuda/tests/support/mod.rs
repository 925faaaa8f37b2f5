//! What several tests need.

use kiln_ir::Graph;
use kiln_kernels::{InputLayout, Kernel, ScheduleOptions, schedule};
use std::sync::Arc;

/// The kernels of a graph after the passes, for row-major inputs.
pub fn kernels(graph: Graph) -> Vec<Arc<Kernel>> {
    let graph = kiln_passes::run(graph).unwrap();
    let layouts: Vec<InputLayout> = graph.inputs().iter().map(|&id| InputLayout::contiguous(graph.ty(id))).collect();
    let schedule = schedule(&graph, &layouts, &ScheduleOptions::default()).unwrap();
    schedule.steps.iter().map(|step| step.kernel.clone()).collect()
}
