//! Which tapes the gradients of a whole program are on. Eager code computes them an operation at a time, and a gradient is on the tapes
//! of the operands that its operations read and of the cotangents: one that depends on none of them is a constant, although the gradient of
//! the whole program reads operands, by whose comparisons it selects.

use super::Rule;
use kiln_ir::build::{Emit, GraphBuilder};
use kiln_ir::{Graph, NodeId, Op};
use kiln_passes::is_differentiable;
use std::collections::{BTreeSet, HashMap};

/// An operation of several nodes, or with several results: its operands, and its results.
pub(crate) type Operands = (Vec<NodeId>, Vec<NodeId>);

/// The inputs of a graph, and by number after these the cotangents of its outputs, that a value is on the tapes of.
type Sources = BTreeSet<usize>;

/// For each input whose gradient is wanted the inputs, and after these the outputs, whose tapes (or whose cotangents' tapes) that
/// gradient is on in eager code; nothing for the others.
pub(crate) fn of_gradients(
    graph: &Graph,
    stops: &[NodeId],
    operations: &[Operands],
    wanted: &[bool],
    present: &[bool],
) -> Vec<Sources> {
    let count = graph.nodes().len();
    // By their last results.
    let mut ends: HashMap<NodeId, usize> = HashMap::new();
    let mut owners: HashMap<NodeId, usize> = HashMap::new();
    for (number, (operands, results)) in operations.iter().enumerate() {
        // A result that was there before is what it was.
        if results.iter().all(|result| operands.iter().all(|operand| operand < result)) {
            owners.extend(results.iter().map(|result| (*result, number)));
            ends.extend(results.iter().max().map(|last| (*last, number)));
        }
    }
    let is_float = |id: NodeId| is_differentiable(graph.ty(id).dtype);
    let mut on: Vec<Sources> = Vec::with_capacity(count);
    for (id, node) in graph.iter() {
        let mut own = Sources::new();
        if let Op::Input { index } = node.op {
            own.extend(is_float(id).then_some(index));
        } else if is_float(id) && !stops.contains(&id) {
            let linked = owners.get(&id).map_or(&[][..], |&number| &operations[number].0[..]);
            for operand in node.operands.iter().chain(linked) {
                own.extend(&on[operand.index()]);
            }
        }
        on.push(own);
    }
    let inputs = graph.inputs().len();
    let mut cotangents: Vec<Option<Sources>> = vec![None; count];
    let seeds = graph.outputs().iter().zip(present).enumerate().filter(|(_, (_, present))| **present);
    for (number, (output, _)) in seeds {
        cotangents[output.node.index()].get_or_insert_default().insert(inputs + number);
    }
    for (id, node) in graph.iter().rev() {
        let (operands, results) = match (ends.get(&id), owners.get(&id)) {
            (Some(&number), _) => (&operations[number].0[..], &operations[number].1[..]),
            (None, Some(_)) => continue,
            (None, None) => (&node.operands[..], &[id][..]),
        };
        let has = |result: &NodeId| cotangents[result.index()].is_some() && !stops.contains(result);
        let given: Vec<bool> = results.iter().map(has).collect();
        let leads = |operand: &NodeId| on[operand.index()].iter().any(|&input| wanted.get(input) == Some(&true));
        let asked: Vec<bool> = operands.iter().map(leads).collect();
        if matches!(node.op, Op::Input { .. }) || !given.contains(&true) || !asked.contains(&true) {
            continue;
        }
        let mut sources = Sources::new();
        for (result, _) in results.iter().zip(&given).filter(|(_, given)| **given) {
            sources.extend(cotangents[result.index()].iter().flatten());
        }
        let reads = reads(graph, operands, results, &asked, &given).unwrap_or_else(|| vec![true; operands.len()]);
        for (operand, _) in operands.iter().zip(reads).filter(|(_, reads)| *reads) {
            sources.extend(&on[operand.index()]);
        }
        for (operand, _) in operands.iter().zip(asked).filter(|(_, asked)| *asked) {
            cotangents[operand.index()].get_or_insert_default().extend(&sources);
        }
    }
    let gradient = |(&input, &wanted): (&NodeId, &bool)| match wanted {
        true => cotangents[input.index()].take().unwrap_or_default(),
        false => Sources::new(),
    };
    graph.inputs().iter().zip(wanted).map(gradient).collect()
}

/// For each operand of an operation whether its gradient reads it.
fn reads(
    graph: &Graph,
    operands: &[NodeId],
    results: &[NodeId],
    wanted: &[bool],
    present: &[bool],
) -> Option<Vec<bool>> {
    let mut b = GraphBuilder::new();
    let mut map: HashMap<NodeId, NodeId> = HashMap::new();
    let mut places = Vec::with_capacity(operands.len());
    for &operand in operands {
        let place = b.input(graph.ty(operand).clone()).ok()?;
        places.push(*map.entry(operand).or_insert(place));
    }
    let mut waiting = results.to_vec();
    while let Some(&id) = waiting.last() {
        let node = graph.node(id);
        let before: Vec<NodeId> = node.operands.iter().copied().filter(|operand| !map.contains_key(operand)).collect();
        if map.contains_key(&id) {
            waiting.pop();
        } else if before.is_empty() {
            let own: Vec<NodeId> = node.operands.iter().filter_map(|operand| map.get(operand).copied()).collect();
            // Nothing of it comes from elsewhere.
            let made = if matches!(node.op, Op::Input { .. }) { None } else { b.emit(node.op.clone(), &own).ok() };
            map.insert(id, made?);
            waiting.pop();
        } else {
            waiting.extend(before);
        }
    }
    results.iter().for_each(|result| b.output(map[result]));
    let gradient = Rule::new(b.finish(), "operation").gradient(wanted, present).ok()?;
    // What comes in twice is the first of its inputs.
    let first = |place: NodeId| places.iter().position(|known| *known == place);
    Some(places.iter().map(|&place| first(place).is_some_and(|first| gradient.reads(first))).collect())
}
