//! Gradients of parts of a tensor, written directly: a scatter of one element a line is a choice at each element, the sum of such a
//! line is the element, and a sum of parts that lie between zeros and cover everything is their concatenation.

use crate::materialise::pads_with_zeros;
use crate::schedule::Target;
use kiln_ir::{
    BinaryOp, CompareOp, DType, Error, Graph, Node, NodeId, Op, ReduceKind, Scalar, ScatterKind, TensorType, UnaryOp,
};

/// What a node becomes.
pub(crate) enum Direct {
    /// A choice between the base and the base with the update.
    Choice,
    /// These updates, added to 0.
    Updates { updates: NodeId, negated: bool },
    /// These parts along an axis.
    Concat { axis: usize, parts: Vec<NodeId> },
}

/// What a node becomes, if the target asks for it; many parts of a sum are a concatenation on any target, since each element would look
/// at all of them.
pub(crate) fn direct_of(graph: &Graph, node: &Node, target: Target) -> Option<Direct> {
    let is_many = |direct: &Direct| matches!(direct, Direct::Concat { parts, .. } if parts.len() >= MANY_PARTS);
    match &node.op {
        Op::Cast(to) if !target.direct_gradients => concat(graph, node.operands[0], *to).filter(is_many),
        Op::Binary(BinaryOp::Add) if !target.direct_gradients => concat_of(graph, node, node.ty.dtype).filter(is_many),
        _ if !target.direct_gradients => None,
        Op::Scatter { axis, kind: ScatterKind::Add } => is_single(graph, node, *axis).then_some(Direct::Choice),
        Op::Reduce { kind: ReduceKind::Sum, axes } => {
            let mut of = graph.node(node.operands[0]);
            let mut negated = false;
            while of.op == Op::Unary(UnaryOp::Neg) {
                (negated, of) = (!negated, graph.node(of.operands[0]));
            }
            let Op::Scatter { axis, kind: ScatterKind::Add } = of.op else { return None };
            let of_zeros = is_zero(graph, of.operands[0]);
            let sums = axes.as_slice() == [axis] && of_zeros && is_single(graph, of, axis);
            sums.then(|| Direct::Updates { updates: of.operands[2], negated })
        }
        Op::Cast(to) => concat(graph, node.operands[0], *to),
        Op::Binary(BinaryOp::Add) => concat_of(graph, node, node.ty.dtype),
        _ => None,
    }
}

/// The nodes that are computed after the rewrites.
pub(crate) fn needed(graph: &Graph, target: Target) -> Vec<bool> {
    let mut needed = vec![false; graph.nodes().len()];
    graph.inputs().iter().for_each(|id| needed[id.index()] = true);
    graph.outputs().iter().for_each(|output| needed[output.node.index()] = true);
    for (id, node) in graph.iter().rev() {
        if needed[id.index()] {
            let own = direct_of(graph, node, target).map_or_else(|| node.operands.clone(), |d| d.operands(node));
            own.iter().for_each(|operand| needed[operand.index()] = true);
        }
    }
    needed
}

/// Whether a scatter has one update a line, at a position that a gather has checked: choices would not notice a wrong one.
fn is_single(graph: &Graph, node: &Node, axis: usize) -> bool {
    let [base, index, _] = node.operands[..] else { return false };
    let (size, float) = (&node.ty.shape[axis], node.ty.dtype.is_float() && !node.ty.dtype.is_storage_only());
    let checks = |(_, other): (NodeId, &Node)| {
        let gathers = matches!(other.op, Op::Gather { axis: along } if along == axis && other.operands[1] == index);
        gathers && graph.ty(other.operands[0]).shape[axis] == *size
    };
    float && graph.ty(index).shape[axis].is_one() && graph.ty(base).rank() > 1 && graph.iter().any(checks)
}

fn is_zero(graph: &Graph, id: NodeId) -> bool {
    matches!(&graph.node(id).op, Op::Full { value, .. } if value.as_f64().to_bits() == 0)
}

/// What a cast of a sum becomes, where the parts have the type that it is cast to.
fn concat(graph: &Graph, sum: NodeId, to: DType) -> Option<Direct> {
    let node = graph.node(sum);
    (node.op == Op::Binary(BinaryOp::Add) && node.ty.dtype != to).then(|| concat_of(graph, node, to))?
}

/// The parts of a sum, of type `dtype` before they are widened.
fn concat_of(graph: &Graph, node: &Node, dtype: DType) -> Option<Direct> {
    let mut terms = Vec::new();
    let mut left = node.operands.clone();
    while let Some(id) = left.pop() {
        let mut term = graph.node(id);
        if term.op == Op::Binary(BinaryOp::Add) {
            left.extend(&term.operands);
            continue;
        }
        if matches!(term.op, Op::Cast(_)) && graph.ty(term.operands[0]).dtype == dtype {
            term = graph.node(term.operands[0]);
        }
        let Op::Pad { low, high, .. } = &term.op else { return None };
        if term.ty.dtype != dtype || !pads_with_zeros(&term.op) || terms.len() == MOST_PARTS {
            return None;
        }
        let mut padded = (0..low.len()).filter(|&axis| !low[axis].is_zero() || !high[axis].is_zero());
        let (Some(axis), None) = (padded.next(), padded.next()) else { return None };
        terms.push((axis, low[axis].as_const()?, term.operands[0]));
    }
    let axis = terms.first()?.0;
    terms.sort_unstable_by_key(|(_, low, _)| *low);
    let mut end = 0;
    for &(along, low, part) in &terms {
        if along != axis || low != end {
            return None;
        }
        end += graph.ty(part).shape[axis].as_const()?;
    }
    let parts = terms.iter().map(|(_, _, part)| *part).collect();
    (node.ty.shape[axis].as_const() == Some(end)).then_some(Direct::Concat { axis, parts })
}

/// Parts of one concatenation.
const MOST_PARTS: usize = 16;
/// From so many parts on a sum of them is a concatenation on any target.
const MANY_PARTS: usize = 4;

impl Direct {
    /// What the node is made of then.
    pub(crate) fn operands(&self, node: &Node) -> Vec<NodeId> {
        match self {
            Direct::Choice => node.operands.clone(),
            Direct::Updates { updates, .. } => vec![*updates],
            Direct::Concat { parts, .. } => parts.clone(),
        }
    }

    /// Adds what the node becomes; `operands` are those of [`Direct::operands`], `ty` is the node's type.
    pub(crate) fn build(
        &self,
        op: &Op,
        operands: &[NodeId],
        mut add: impl FnMut(Op, &[NodeId]) -> Result<NodeId, Error>,
        ty: &TensorType,
    ) -> Result<NodeId, Error> {
        let shape = ty.shape.clone();
        match (self, op) {
            (Direct::Choice, Op::Scatter { axis, .. }) => {
                let &[base, index, updates] = operands else { return Ok(operands[0]) };
                let places = add(Op::Iota { dtype: DType::I64, shape: shape.clone(), axis: *axis }, &[])?;
                let index = add(Op::Expand { shape: shape.clone() }, &[index])?;
                let updates = add(Op::Expand { shape }, &[updates])?;
                let here = add(Op::Compare(CompareOp::Eq), &[places, index])?;
                let added = add(Op::Binary(BinaryOp::Add), &[base, updates])?;
                add(Op::Select, &[here, added, base])
            }
            (Direct::Updates { negated, .. }, _) => {
                let negative = if *negated { add(Op::Unary(UnaryOp::Neg), operands)? } else { operands[0] };
                // A sum of zeros is the positive one.
                let zero = add(Op::Full { value: Scalar::float(ty.dtype, 0.0), shape }, &[])?;
                add(Op::Binary(BinaryOp::Add), &[zero, negative])
            }
            (Direct::Concat { axis, .. }, _) => add(Op::Concat { axis: *axis }, operands),
            (Direct::Choice, _) => Ok(operands[0]),
        }
    }
}
