//! Rewrites the ops that no kernel is made for — convolution, pooling, and attention or its gradients where a target has no
//! kernel for them — into those that there are kernels for.

use crate::{Options, Rewritten};
use kiln_ir::decompose::{Ways, decompose_by, has_bounds, masks_of_bounds};
use kiln_ir::{Error, Graph, Op};

/// The pass.
pub(crate) fn run(graph: Graph, options: &Options) -> Result<Rewritten, Error> {
    let rewritten = |op: &Op| match op {
        Op::Conv(_) | Op::ReduceWindow { .. } => true,
        Op::Attention { .. } => !options.keep_attention,
        Op::AttentionLogsumexp { .. } | Op::AttentionGradient { .. } => !options.keep_attention_gradients,
        _ => false,
    };
    // One launch computes attention and its logarithms, if both have the same mask.
    let backward = |op: &Op| matches!(op, Op::AttentionLogsumexp { .. } | Op::AttentionGradient { .. });
    let keep_bounds = options.keep_bounds && !graph.nodes().iter().any(|node| backward(&node.op));
    let bounds = !keep_bounds && graph.nodes().iter().any(|node| has_bounds(&graph, node));
    let graph = if bounds { masks_of_bounds(&graph)? } else { graph };
    if !graph.nodes().iter().any(|node| rewritten(&node.op)) {
        return Ok(Rewritten { graph, changed: bounds });
    }
    let graph = if options.split_phases { kiln_ir::decompose::split_phases(&graph)? } else { graph };
    let keep = |op: &Op| !rewritten(op);
    let ways = Ways { depthwise_products: options.depthwise_products, separate_windows: options.separate_windows };
    Ok(Rewritten { graph: decompose_by(&graph, &keep, ways)?, changed: true })
}
