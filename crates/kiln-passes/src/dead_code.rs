//! Drops nodes that no output needs. Inputs stay: they are the graph's signature.

use crate::rewrite::set_outputs;
use crate::{Options, Rewritten};
use kiln_ir::{Error, Graph, NodeId, Op};

/// The pass.
pub(crate) fn run(graph: Graph, _: &Options) -> Result<Rewritten, Error> {
    let mut live = vec![false; graph.nodes().len()];
    for output in graph.outputs() {
        live[output.node.index()] = true;
    }
    for (id, node) in graph.iter().rev() {
        live[id.index()] |= matches!(node.op, Op::Input { .. });
        if live[id.index()] {
            node.operands.iter().for_each(|operand| live[operand.index()] = true);
        }
    }
    if live.iter().all(|&live| live) {
        return Ok(Rewritten { graph, changed: false });
    }
    let (nodes, outputs) = graph.into_parts();
    let mut graph = Graph::with_capacity(live.iter().filter(|&&live| live).count());
    // Ids of dead nodes are never looked up: a live node's operands are live.
    let mut map = Vec::with_capacity(nodes.len());
    for (mut node, live) in nodes.into_iter().zip(live) {
        if !live {
            map.push(NodeId(u32::MAX));
            continue;
        }
        for operand in &mut node.operands {
            *operand = map[operand.index()];
        }
        map.push(graph.keep(node)?);
    }
    set_outputs(&mut graph, outputs, &map);
    Ok(Rewritten { graph, changed: true })
}
