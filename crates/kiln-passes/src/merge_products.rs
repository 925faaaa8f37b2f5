//! Merges products of one left operand with several frozen right operands into one product with their concatenation, whose
//! result is sliced: q, k and v of attention, gate and up of a gated MLP. Concatenating weights costs nothing at run time,
//! since [`crate::split_frozen`] moves it out of the calls. Biases that are frozen too are added to the whole.

use crate::SplitOptions;
use crate::frozen::{Depends, dependences, pays, widened};
use kiln_ir::{BinaryOp, DType, Dim, DotDims, Error, Graph, Node, NodeId, Op, Source};
use std::collections::HashMap;

/// A graph with merged products.
#[derive(Debug, Clone)]
pub struct Merged {
    /// The graph.
    pub graph: Graph,
    /// The products that went into one, for each that was made.
    pub groups: Vec<usize>,
}

/// Products that become one.
#[derive(Default)]
struct Group {
    /// In the order of the graph.
    dots: Vec<NodeId>,
    /// The sum of each product and its bias, and the bias before it is expanded; empty if there are none.
    sums: Vec<(NodeId, NodeId)>,
}

/// Merges the products of a graph whose inputs are frozen where `frozen` says so, but for weights that a split under `options`
/// would leave to each call.
///
/// ```
/// use kiln_ir::Graph;
/// let graph = Graph::parse("graph(%0: f32[b, 8], %1: f32[8, 4], %2: f32[8, 6]) {
///   %3: f32[b, 4] = dot %0, %1 {lhs_batch=[], rhs_batch=[], lhs_contract=[1], rhs_contract=[0]}
///   %4: f32[b, 6] = dot %0, %2 {lhs_batch=[], rhs_batch=[], lhs_contract=[1], rhs_contract=[0]}
///   return %3, %4
/// }").unwrap();
/// let merged = kiln_passes::merge_products(&graph, &[false, true, true], &Default::default()).unwrap();
/// assert_eq!(merged.groups, [2]);
/// assert_eq!(merged.graph.iter().filter(|(_, n)| n.op.kind().name() == "dot").count(), 1);
/// ```
pub fn merge_products(graph: &Graph, frozen: &[bool], options: &SplitOptions) -> Result<Merged, Error> {
    let depends = dependences(graph, frozen);
    let groups = groups(graph, &depends, options);
    if groups.is_empty() {
        return Ok(Merged { graph: graph.clone(), groups: Vec::new() });
    }
    let mut new = Graph::new();
    let mut map = vec![NodeId(u32::MAX); graph.nodes().len()];
    // Weights come first, so that the first product of a group can use those of all others.
    let first = |node: &Node, at: NodeId| matches!(node.op, Op::Input { .. }) || depends[at.index()] != Depends::Calls;
    for (id, node) in graph.iter().filter(|(id, node)| first(node, *id)) {
        map[id.index()] = keep(&mut new, node, &map)?;
    }
    for (id, node) in graph.iter().filter(|(id, node)| !first(node, *id)) {
        if map[id.index()].0 != u32::MAX {
            continue;
        }
        match groups.iter().find(|group| group.dots[0] == id) {
            Some(group) => group.build(graph, &mut new, &mut map)?,
            None => map[id.index()] = keep(&mut new, node, &map)?,
        }
    }
    crate::rewrite::set_outputs(&mut new, graph.outputs().to_vec(), &map);
    let groups = groups.iter().map(|group| group.dots.len()).collect();
    Ok(Merged { graph: new, groups })
}

fn keep(new: &mut Graph, node: &Node, map: &[NodeId]) -> Result<NodeId, Error> {
    let mut node = node.clone();
    node.operands.iter_mut().for_each(|operand| *operand = map[operand.index()]);
    new.keep(node)
}

/// What products must share: the left operand, how they sum, the types of results and of weights in memory, and whether a bias
/// follows, which would be no part of the product otherwise.
type Key<'a> = (NodeId, &'a DotDims, DType, DType, bool);

fn groups(graph: &Graph, depends: &[Depends], options: &SplitOptions) -> Vec<Group> {
    let users = graph.users();
    let mut found: HashMap<Key<'_>, Group> = HashMap::new();
    for (id, node) in graph.iter() {
        let Op::Dot { dims, out } = &node.op else { continue };
        let [lhs, rhs] = node.operands[..] else { continue };
        let free = graph.ty(rhs).rank() - dims.rhs_contract.len();
        // Blocks would have to be copied to be contiguous.
        let blocks = is_blocks(graph, rhs);
        let weights = depends[rhs.index()] == Depends::Frozen && depends[lhs.index()] == Depends::Calls && !blocks;
        if weights && dims.rhs_batch.is_empty() && free == 1 {
            let bias = bias(graph, depends, &users, id);
            let stored = graph.ty(Weights::of(graph, rhs).stem).dtype;
            let group = found.entry((lhs, dims, *out, stored, bias.is_some())).or_default();
            group.dots.push(id);
            group.sums.extend(bias);
        }
    }
    let stems = |group: &Group| -> Vec<NodeId> {
        group.dots.iter().map(|&dot| Weights::of(graph, graph.node(dot).operands[1]).stem).collect()
    };
    let worth = |group: &Group| group.dots.len() > 1 && pays(graph, &stems(group), options.growth);
    let mut groups: Vec<Group> = found.into_values().filter(worth).collect();
    groups.sort_by_key(|group| group.dots[0]);
    groups
}

/// True for views of quantised blocks.
fn is_blocks(graph: &Graph, mut id: NodeId) -> bool {
    while graph.node(id).op.is_view() {
        id = graph.node(id).operands[0];
    }
    matches!(graph.node(id).op, Op::Dequantize { .. })
}

/// Weights in their stored layout and the views of them that a product reads: casts that widen them are applied after they are
/// concatenated.
struct Weights {
    stem: NodeId,
    /// The views from the stem on.
    views: Vec<NodeId>,
}

impl Weights {
    fn of(graph: &Graph, operand: NodeId) -> Weights {
        let (mut at, mut views) = (operand, Vec::new());
        loop {
            if let Some(stem) = widened(graph, at) {
                views.reverse();
                return Weights { stem, views };
            }
            if !graph.node(at).op.is_view() {
                return Weights { stem: operand, views: Vec::new() };
            }
            views.push(at);
            at = graph.node(at).operands[0];
        }
    }

    /// The views of the stem, in another graph.
    fn build(&self, graph: &Graph, new: &mut Graph, map: &[NodeId]) -> Result<NodeId, Error> {
        self.views.iter().try_fold(map[self.stem.index()], |at, view| {
            let node = graph.node(*view);
            new.add(node.op.clone(), &[at], node.source.clone())
        })
    }
}

/// The sum of a product and a frozen bias along its last axis, if the product has no other users.
fn bias(graph: &Graph, depends: &[Depends], users: &[Vec<NodeId>], dot: NodeId) -> Option<(NodeId, NodeId)> {
    let &[sum] = &users[dot.index()][..] else { return None };
    let node = graph.node(sum);
    if node.op != Op::Binary(BinaryOp::Add) || graph.outputs().iter().any(|output| output.node == dot) {
        return None;
    }
    let other = *node.operands.iter().find(|&&operand| operand != dot)?;
    // One row needs no expanding.
    let small = match &graph.node(other).op {
        Op::Expand { .. } => graph.node(other).operands[0],
        _ => other,
    };
    let (shape, whole) = (&graph.ty(small).shape, &node.ty.shape);
    let (last, outer) = shape.split_last()?;
    let along_last = outer.iter().all(Dim::is_one) && whole.last() == Some(last);
    (along_last && depends[small.index()] == Depends::Frozen).then_some((sum, small))
}

impl Group {
    /// The product of all, and the slices that replace the members.
    fn build(&self, graph: &Graph, new: &mut Graph, map: &mut [NodeId]) -> Result<(), Error> {
        let first = graph.node(self.dots[0]);
        let Op::Dot { dims, out } = &first.op else { return Ok(()) };
        let at = &first.source;
        let mut rights = Vec::with_capacity(self.dots.len());
        for &dot in &self.dots {
            rights.push(Weights::of(graph, graph.node(dot).operands[1]).build(graph, new, map)?);
        }
        let rank = new.ty(rights[0]).rank();
        let axis = (0..rank).find(|axis| !dims.rhs_contract.contains(axis)).unwrap_or(0);
        let mut right = side_by_side(new, &rights, axis, at)?;
        let read = graph.ty(first.operands[1]).dtype;
        if read != new.ty(right).dtype {
            right = new.add(Op::Cast(read), &[right], at.clone())?;
        }
        let left = map[first.operands[0].index()];
        let mut whole = new.add(Op::Dot { dims: dims.clone(), out: *out }, &[left, right], at.clone())?;
        let mut members: Vec<NodeId> = self.dots.clone();
        if !self.sums.is_empty() {
            let biases: Vec<NodeId> = self.sums.iter().map(|(_, bias)| map[bias.index()]).collect();
            let axis = new.ty(biases[0]).rank() - 1;
            let bias = new.add(Op::Concat { axis }, &biases, at.clone())?;
            let shape = new.ty(whole).shape.clone();
            let bias = new.add(Op::Expand { shape }, &[bias], at.clone())?;
            whole = new.add(Op::Binary(BinaryOp::Add), &[whole, bias], graph.node(self.sums[0].0).source.clone())?;
            members = self.sums.iter().map(|(sum, _)| *sum).collect();
        }
        let mut offset = Dim::default();
        for member in members {
            let node = graph.node(member);
            let width = node.ty.shape.last().cloned().unwrap_or_default();
            map[member.index()] = slice(new, whole, &offset, &width, &node.source)?;
            offset += width;
        }
        if !self.sums.is_empty() {
            // Only the sums used the products; they are never looked up.
            self.dots.iter().for_each(|dot| map[dot.index()] = whole);
        }
        Ok(())
    }
}

/// Concatenates weights along an axis. Where all of them are permuted alike, the stored weights are concatenated, and the whole
/// is permuted: rows that were contiguous along the sum stay so.
fn side_by_side(graph: &mut Graph, weights: &[NodeId], axis: usize, at: &Source) -> Result<NodeId, Error> {
    if let Op::Permute { order } = graph.node(weights[0]).op.clone()
        && weights.iter().all(|&id| graph.node(id).op == Op::Permute { order: order.clone() })
    {
        let stored: Vec<NodeId> = weights.iter().map(|&id| graph.node(id).operands[0]).collect();
        let whole = graph.add(Op::Concat { axis: order[axis] }, &stored, at.clone())?;
        return graph.add(Op::Permute { order }, &[whole], at.clone());
    }
    graph.add(Op::Concat { axis }, weights, at.clone())
}

/// A range of the last axis.
fn slice(graph: &mut Graph, of: NodeId, offset: &Dim, width: &Dim, at: &Source) -> Result<NodeId, Error> {
    let mut size = graph.ty(of).shape.clone();
    let mut start = vec![Dim::default(); size.len()];
    let step = vec![1; size.len()];
    if let (Some(start), Some(size)) = (start.last_mut(), size.last_mut()) {
        (*start, *size) = (offset.clone(), width.clone());
    }
    graph.add(Op::Slice { start, size, step }, &[of], at.clone())
}
