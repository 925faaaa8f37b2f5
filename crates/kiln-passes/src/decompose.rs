//! Rewrites the ops that no kernel is made for — convolution, pooling, and attention or its gradients where a target has no
//! kernel for them — into those that there are kernels for.

use crate::{Options, Rewritten};
use kiln_ir::{Error, Graph, Op};

/// The pass.
pub(crate) fn run(graph: Graph, options: &Options) -> Result<Rewritten, Error> {
    let rewritten = |op: &Op| match op {
        Op::Conv(_) | Op::ReduceWindow { .. } => true,
        Op::Attention { .. } => !options.keep_attention,
        Op::AttentionLogsumexp { .. } | Op::AttentionGradient { .. } => !options.keep_attention_gradients,
        _ => false,
    };
    if !graph.nodes().iter().any(|node| rewritten(&node.op)) {
        return Ok(Rewritten { graph, changed: false });
    }
    let graph = if options.split_phases { kiln_ir::decompose::split_phases(&graph)? } else { graph };
    let keep = |op: &Op| !rewritten(op);
    let graph = match options.depthwise_products {
        true => kiln_ir::decompose::decompose_into_products(&graph, &keep)?,
        false => kiln_ir::decompose::decompose(&graph, &keep)?,
    };
    Ok(Rewritten { graph, changed: true })
}
