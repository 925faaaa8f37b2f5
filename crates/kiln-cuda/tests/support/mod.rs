//! What several tests need.

use kiln_ir::Graph;
use kiln_kernels::{InputLayout, Kernel, ScheduleOptions, Target, schedule};
use std::sync::Arc;

/// The kernels of a graph after the passes, for row-major inputs.
pub fn kernels(graph: Graph) -> Vec<Arc<Kernel>> {
    let passes = kiln_passes::Options { keep_attention_gradients: true, ..Default::default() };
    let graph = kiln_passes::run_options(graph, &passes, &mut |_, _| {}).unwrap();
    let layouts: Vec<InputLayout> = graph.inputs().iter().map(|&id| InputLayout::contiguous(graph.ty(id))).collect();
    let target = Target {
        few_rows: 16,
        long_row: 1 << 13,
        guarded_operands: true,
        product_order: true,
        attention_gradients: true,
        short_operands: true,
        many_columns: 1 << 16,
        recomputed: 64,
    };
    let options = ScheduleOptions { target, ..ScheduleOptions::default() };
    let schedule = schedule(&graph, &layouts, &options).unwrap();
    schedule.steps.iter().map(|step| step.kernel.clone()).collect()
}
