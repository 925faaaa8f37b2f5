//! Computes cheap values again near a late use, so that their memory is free between: for graphs of training steps that have to fit a budget. Runs on request, after
//! the passes of the list, which would make one value of both.
//!
//! ```text
//!  z ──▶ gelu ──▶ a ──▶ product … … … ──▶ gradient reads a        a is kept all the way
//!  z ──▶ gelu ──▶ a ──▶ product … … … z ──▶ gelu ──▶ gradient     z is needed there anyway
//! ```
//!
//! Every op is a function of its operands, random bits too, so results are the same within the rounding of fused code: a value that is computed again
//! inside of a kernel may be contracted with what reads it there. Short floats, which such a kernel does not round, are kept. What is computed again begins at z + −0, where an element of a
//! late value chooses between two −0: fusion would compute it early otherwise, beside the first one.

use crate::frozen::bytes_of;
use crate::rewrite::set_outputs;
use kiln_ir::build::{Emit, GraphBuilder};
use kiln_ir::{BinaryOp, DType, Dim, Error, Graph, NodeId, Op, Scalar, UnaryOp};

/// Values below this are not worth the code.
const LEAST_BYTES: usize = 4096;
/// Nodes that are computed again for one value, at the most.
const MOST_NODES: usize = 32;
/// A value that waits for fewer nodes than this is not waiting.
const LEAST_WAIT: usize = 8;
/// Graphs that are measured, at the most.
const MOST_MEASURES: usize = 24;

/// A value that can be computed again.
#[derive(Debug, Clone)]
struct Candidate {
    value: NodeId,
    /// Uses from this node on read the second value.
    from: usize,
    /// What is computed again, operands first; nothing for a value that stays, whose late readers wait.
    chain: Vec<NodeId>,
    /// Bytes that are free between, times the nodes between.
    gain: u128,
}

/// The graph with values computed again until `measure`, which says how many bytes of temporaries a graph takes, gives `budget` or less, or nothing more
/// helps; nothing if it fits as it is, or if nothing helps. Which values: those that free most bytes for longest, whose operands are needed at the
/// late use anyway. A choice that does not measure smaller is taken back. `rounds_each` says that every op rounds as if it ran alone; otherwise
/// nothing is computed again that goes through floats shorter than f32.
pub fn recompute(
    graph: &Graph,
    budget: usize,
    rounds_each: bool,
    measure: &mut dyn FnMut(&Graph) -> Option<usize>,
) -> Result<Option<Graph>, Error> {
    let Some(mut bytes) = measure(graph).filter(|&bytes| bytes > budget) else { return Ok(None) };
    let mut best: Option<Graph> = None;
    let mut measures = 1;
    // Values of the current graph that do not help by themselves.
    let mut refused: Vec<NodeId> = Vec::new();
    while bytes > budget && measures < MOST_MEASURES {
        let current = best.as_ref().unwrap_or(graph);
        let mut candidates = candidates(current, rounds_each);
        candidates.retain(|candidate| !refused.contains(&candidate.value));
        if candidates.is_empty() {
            break;
        }
        candidates.sort_by_key(|candidate| std::cmp::Reverse(candidate.gain));
        // Many at once, and fewer where that does not help.
        let mut count = candidates.len();
        let found = loop {
            let tried = applied(current, &candidates[..count])?;
            measures += 1;
            match measure(&tried) {
                Some(less) if less < bytes => break Some((tried, less)),
                _ if count == 1 || measures >= MOST_MEASURES => break None,
                _ => count = count.div_ceil(4).max(1).min(count - 1),
            }
        };
        match found {
            Some((graph, less)) => {
                (best, bytes) = (Some(graph), less);
                refused.clear();
            }
            None => refused.push(candidates[0].value),
        }
    }
    Ok(best)
}

/// The places that read each node, in order; outputs read at the end.
fn uses(graph: &Graph) -> Vec<Vec<usize>> {
    let mut uses: Vec<Vec<usize>> = vec![Vec::new(); graph.nodes().len()];
    for (id, node) in graph.iter() {
        node.operands.iter().for_each(|operand| uses[operand.index()].push(id.index()));
    }
    graph.outputs().iter().for_each(|output| uses[output.node.index()].push(graph.nodes().len()));
    uses
}

fn is_given(op: &Op) -> bool {
    matches!(op, Op::Input { .. } | Op::Constant(_))
}

fn is_cheap(op: &Op) -> bool {
    op.is_pointwise() || op.is_view() || matches!(op, Op::RandomBits { .. } | Op::Full { .. } | Op::Iota { .. })
}

fn candidates(graph: &Graph, rounds_each: bool) -> Vec<Candidate> {
    let uses = uses(graph);
    // A value is needed as long as what is computed from it without memory of its own.
    let mut last: Vec<usize> = uses.iter().map(|uses| uses.last().copied().unwrap_or(0)).collect();
    for (id, node) in graph.iter().rev() {
        if is_cheap(&node.op) {
            for operand in &node.operands {
                last[operand.index()] = last[operand.index()].max(last[id.index()]);
            }
        }
    }
    let found = graph.iter().filter_map(|(id, node)| {
        let bytes = bytes_of(&node.ty);
        // What is not cheap stays; what is computed from it for late uses must not be computed early, since it would be kept beside it.
        // What is given takes none of the program's memory, whoever reads it when.
        let stays = !is_cheap(&node.op) && !is_given(&node.op) && node.ty.dtype == DType::F32;
        if !(node.op.is_pointwise() || stays) || bytes < LEAST_BYTES || bytes == usize::MAX {
            return None;
        }
        let own = &uses[id.index()];
        let waits = own.windows(2).map(|pair| (pair[1] - pair[0], pair[1]));
        let (wait, from) = waits.max_by_key(|&(wait, _)| wait).filter(|&(wait, _)| wait >= LEAST_WAIT)?;
        // An output has to be there at the end, whoever reads it before.
        if from >= graph.nodes().len() {
            return None;
        }
        if stays {
            return Some(Candidate { value: id, from, chain: Vec::new(), gain: bytes as u128 * wait as u128 });
        }
        let (chain, leaves) = chain(graph, id, rounds_each)?;
        // Leaves that are gone by then would have to be kept instead.
        let kept = leaves.iter().filter(|&&leaf| last[leaf.index()] < from && !is_given(&graph.node(leaf).op));
        let kept = kept.map(|&leaf| bytes_of(graph.ty(leaf))).fold(0, usize::saturating_add);
        let saved = bytes.checked_sub(kept).filter(|&saved| saved > 0)?;
        Some(Candidate { value: id, from, chain, gain: saved as u128 * wait as u128 })
    });
    found.collect()
}

/// What a value is cheaply computed from, operands first, and the values that this begins with. Nothing if it would be other bits: a short float is
/// rounded where it is kept, and not inside of a kernel, unless each op rounds.
fn chain(graph: &Graph, id: NodeId, rounds_each: bool) -> Option<(Vec<NodeId>, Vec<NodeId>)> {
    let (mut open, mut inside, mut leaves) = (vec![id], Vec::new(), Vec::new());
    while let Some(at) = open.pop() {
        if inside.contains(&at) || leaves.contains(&at) {
            continue;
        }
        if !is_cheap(&graph.node(at).op) {
            leaves.push(at);
            continue;
        }
        inside.push(at);
        let is_short = matches!(graph.ty(at).dtype, DType::F16 | DType::Bf16);
        if inside.len() > MOST_NODES || is_short && !rounds_each {
            return None;
        }
        open.extend(&graph.node(at).operands);
    }
    inside.sort_unstable();
    Some((inside, leaves))
}

/// The graph in which late uses of the candidates read second values.
fn applied(graph: &Graph, candidates: &[Candidate]) -> Result<Graph, Error> {
    let mut b = GraphBuilder::new();
    let mut map: Vec<NodeId> = Vec::with_capacity(graph.nodes().len());
    // The second value of a node, for readers from a place on.
    let mut second: Vec<Option<(usize, NodeId)>> = vec![None; graph.nodes().len()];
    for (id, node) in graph.iter() {
        for candidate in candidates.iter().filter(|candidate| candidate.from == id.index()) {
            let mut copies: Vec<(NodeId, NodeId)> = Vec::new();
            let late = late_value(graph, candidate);
            if candidate.chain.is_empty() {
                b.set_source(Some(node.source.clone()));
                let late = late.map(|late| map[late.index()]);
                copies.push((candidate.value, after(&mut b, map[candidate.value.index()], late)?));
            }
            for &of in &candidate.chain {
                let node = graph.node(of);
                b.set_source(Some(node.source.clone()));
                let mut operands = Vec::with_capacity(node.operands.len());
                for operand in &node.operands {
                    let copy = copies.iter().find(|(known, _)| known == operand).map(|&(_, copy)| copy);
                    operands.push(match copy {
                        Some(copy) => copy,
                        None => {
                            let late = late.map(|late| map[late.index()]);
                            let copy = after(&mut b, map[operand.index()], late)?;
                            copies.push((*operand, copy));
                            copy
                        }
                    });
                }
                copies.push((of, b.emit(node.op.clone(), &operands)?));
            }
            if let Some(&(_, copy)) = copies.iter().find(|(known, _)| *known == candidate.value) {
                second[candidate.value.index()] = Some((candidate.from, copy));
            }
        }
        let read = |operand: &NodeId| match second[operand.index()] {
            Some((from, copy)) if id.index() >= from => copy,
            _ => map[operand.index()],
        };
        let operands: Vec<NodeId> = node.operands.iter().map(read).collect();
        b.set_source(Some(node.source.clone()));
        map.push(match &node.op {
            Op::Input { .. } => b.input(node.ty.clone())?,
            op => b.emit(op.clone(), &operands)?,
        });
    }
    let mut made = b.finish();
    set_outputs(&mut made, graph.outputs().to_vec(), &map);
    Ok(made)
}

/// A value that is there shortly before the late use, and not long before.
fn late_value(graph: &Graph, candidate: &Candidate) -> Option<NodeId> {
    let halfway = candidate.value.index() + (candidate.from - candidate.value.index()) / 2;
    let serves = |id: &NodeId| {
        let ty = graph.ty(*id);
        let has_elements = ty.fixed_shape().is_some_and(|shape| !shape.contains(&0));
        id.index() > halfway && *id != candidate.value && ty.dtype == DType::F32 && has_elements
    };
    let reader = graph.iter().nth(candidate.from).map(|(_, node)| node)?;
    let before = graph.iter().map(|(id, _)| id).rev().skip_while(|id| id.index() >= candidate.from);
    reader.operands.iter().copied().filter(serves).max().or_else(|| before.take(2 * LEAST_WAIT).find(serves))
}

/// The same bits, not before another value is there.
fn after(b: &mut GraphBuilder, value: NodeId, late: Option<NodeId>) -> Result<NodeId, Error> {
    let ty = b.ty(&value);
    let Some(late) = late.filter(|_| ty.dtype == DType::F32) else { return Ok(value) };
    let of = b.ty(&late);
    let rank = of.rank();
    let (start, one) = (vec![Dim::from(0); rank], vec![Dim::from(1); rank]);
    let first = b.emit(Op::Slice { start, size: one, step: vec![1; rank] }, &[late])?;
    let alone = b.emit(Op::Reshape { shape: vec![Dim::from(1); ty.rank()] }, &[first])?;
    let chooses = b.emit(Op::Unary(UnaryOp::IsNan), &[alone])?;
    let single = vec![Dim::from(1); ty.rank()];
    let nothing =
        |b: &mut GraphBuilder| b.emit(Op::Full { value: Scalar::float(DType::F32, -0.0), shape: single.clone() }, &[]);
    let (x, y) = (nothing(b)?, nothing(b)?);
    let chosen = b.emit(Op::Select, &[chooses, x, y])?;
    let spread = b.emit(Op::Expand { shape: ty.shape }, &[chosen])?;
    b.emit(Op::Binary(BinaryOp::Add), &[value, spread])
}

#[cfg(test)]
mod tests {
    use super::recompute;
    use kiln_ir::Graph;

    /// Values of a dtype that wait for the last of ten products.
    fn waiting(dtype: &str, head: &str, first: usize, late: &[usize]) -> Graph {
        let ty = format!("{dtype}[64, 64]");
        let mut text = format!("graph(%0: {ty}, %1: {ty}) {{\n{}", head.replace("TY", &ty));
        let dims = "{lhs_batch=[], rhs_batch=[], lhs_contract=[1], rhs_contract=[0]}";
        let mut at = first;
        let mut product = |lhs: usize, rhs: usize| {
            text += &format!("  %{at}: {ty} = dot %{lhs}, %{rhs} {dims}\n");
            at += 1;
        };
        product(first - 2, first - 1);
        (first..first + 9).for_each(|last| product(last, last));
        late.iter().enumerate().for_each(|(number, &value)| product(first + 9 + number, value));
        Graph::parse(&format!("{text}  return %{}\n}}", at - 1)).expect("a graph")
    }

    const EXPS: &str = "  %2: TY = exp %0\n  %3: TY = exp %1\n";

    #[test]
    fn what_is_given_takes_no_memory() {
        let mut bytes = 100;
        let mut less = |_: &Graph| {
            bytes -= 1;
            Some(bytes)
        };
        assert!(recompute(&waiting("f32", "", 2, &[0, 1]), 0, true, &mut less).expect("a graph").is_none());
    }

    #[test]
    fn short_floats_are_kept_where_kernels_do_not_round_them() {
        for (dtype, rounds_each, is_kept) in [("bf16", false, true), ("bf16", true, false), ("f32", false, false)] {
            let mut bytes = 100;
            let mut less = |_: &Graph| {
                bytes -= 1;
                Some(bytes)
            };
            let made = recompute(&waiting(dtype, EXPS, 4, &[2, 3]), 0, rounds_each, &mut less).expect("a graph");
            assert_eq!(made.is_none(), is_kept, "{dtype} {rounds_each}");
        }
    }

    /// As it is, with both values computed again, with one, with the other.
    #[test]
    fn a_value_that_does_not_help_says_nothing_of_an_equal_one() {
        let mut bytes = [100, 100, 100, 50].into_iter();
        let made = recompute(&waiting("f32", EXPS, 4, &[2, 3]), 60, true, &mut |_| bytes.next());
        assert!(made.expect("a graph").is_some());
    }
}
