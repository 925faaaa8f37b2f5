//! Finds values that results do not depend on although they are computed from them: the maximum that softmax and its like
//! subtract first and cancel by dividing. Their cotangents are sums that cancel to 0, and are not worth computing.
//!
//! ```text
//!  m += δ:   x − m  ─▶ −δ    exp ─▶ ·e⁻ᵟ    Σ ─▶ ·e⁻ᵟ    quotient of the two ─▶ as before
//! ```

use super::{Derivative, derivative, is_differentiable};
use kiln_ir::{BinaryOp, Graph, Node, NodeId, Op, ReduceKind, UnaryOp};
use std::collections::HashMap;

/// How a value changes when δ is added to the one in question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    /// Not at all.
    None,
    /// A multiple of δ is added.
    Plus(i32),
    /// It is multiplied by e to a multiple of δ.
    Times(i32),
}

/// For each node whether it is a maximum or minimum, perhaps with some places replaced, that no target depends on.
pub(super) fn find(graph: &Graph, targets: &[NodeId], depends: &[bool]) -> Vec<bool> {
    let mut found = vec![false; graph.nodes().len()];
    let is_extreme = |id: NodeId| {
        matches!(graph.node(id).op, Op::Reduce { kind: ReduceKind::Max | ReduceKind::Min, .. }) && depends[id.index()]
    };
    let candidate = |id: NodeId, node: &Node| {
        is_extreme(id) || matches!(node.op, Op::Select) && node.operands[1..].iter().any(|&o| is_extreme(o))
    };
    if !graph.iter().any(|(id, node)| candidate(id, node)) {
        return found;
    }
    let useful = ways_to(graph, targets);
    let users = graph.users();
    for (id, node) in graph.iter() {
        if candidate(id, node) && useful[id.index()] {
            found[id.index()] = cancels(graph, id, targets, &useful, &users);
        }
    }
    found
}

/// For each node whether a change of it can change a target.
fn ways_to(graph: &Graph, targets: &[NodeId]) -> Vec<bool> {
    let mut useful = vec![false; graph.nodes().len()];
    targets.iter().for_each(|target| useful[target.index()] = true);
    for (id, node) in graph.iter().rev() {
        let passes = derivative(node.op.kind()) == Derivative::Rule && is_differentiable(node.ty.dtype);
        if useful[id.index()] && passes {
            let floats = node.operands.iter().filter(|o| is_differentiable(graph.ty(**o).dtype));
            floats.for_each(|operand| useful[operand.index()] = true);
        }
    }
    useful
}

/// True when adding anything to a node leaves every target as it is. Follows the change through the graph until it is gone.
fn cancels(graph: &Graph, start: NodeId, targets: &[NodeId], useful: &[bool], users: &[Vec<NodeId>]) -> bool {
    let mut changes: HashMap<NodeId, Change> = HashMap::from([(start, Change::Plus(1))]);
    // Users come later in the graph, and each is looked at when all of its operands have been.
    let mut waiting = std::collections::BTreeSet::from([start]);
    while let Some(id) = waiting.pop_first() {
        if id != start {
            match change(graph, graph.node(id), &changes, start) {
                Some(Change::None) => continue,
                Some(change) => changes.insert(id, change),
                None => return false,
            };
        }
        if targets.contains(&id) {
            return false;
        }
        waiting.extend(users[id.index()].iter().filter(|user| useful[user.index()]));
    }
    true
}

/// What becomes of a node; nothing where that cannot be said in these terms. The change is the same along the axes on which
/// the start has size 1.
fn change(graph: &Graph, node: &Node, changes: &HashMap<NodeId, Change>, start: NodeId) -> Option<Change> {
    use Change::{None as Same, Plus, Times};
    let of = |i: usize| changes.get(&node.operands[i]).copied().unwrap_or(Same);
    let plus = |n: i32| if n == 0 { Same } else { Plus(n) };
    let times = |n: i32| if n == 0 { Same } else { Times(n) };
    let constant_along = |axes: &[usize]| axes.iter().all(|&axis| graph.ty(start).shape[axis].is_one());
    Some(match (&node.op, of(0)) {
        (Op::Expand { .. } | Op::Cast(_), change) => change,
        (Op::Unary(UnaryOp::Neg), Plus(n)) => Plus(-n),
        (Op::Unary(UnaryOp::Neg), Times(n)) => Times(n),
        (Op::Unary(UnaryOp::Recip), Times(n)) => Times(-n),
        (Op::Unary(UnaryOp::Exp), Plus(n)) => Times(n),
        (Op::Unary(UnaryOp::Log), Times(n)) => Plus(n),
        (Op::Reduce { kind: ReduceKind::Sum, axes }, Times(n)) if constant_along(axes) => Times(n),
        (Op::Reduce { kind: ReduceKind::Max | ReduceKind::Min, axes }, Plus(n)) if constant_along(axes) => Plus(n),
        (Op::Binary(op), first) => match (op, first, of(1)) {
            (BinaryOp::Add, Plus(n), Plus(m)) => plus(n + m),
            (BinaryOp::Add, Plus(n), Same) | (BinaryOp::Add, Same, Plus(n)) => Plus(n),
            (BinaryOp::Sub, Plus(n), Plus(m)) => plus(n - m),
            (BinaryOp::Sub, Plus(n), Same) => Plus(n),
            (BinaryOp::Sub, Same, Plus(m)) => Plus(-m),
            (BinaryOp::Mul, Times(n), Times(m)) => times(n + m),
            (BinaryOp::Mul, Times(n), Same) | (BinaryOp::Mul, Same, Times(n)) => Times(n),
            (BinaryOp::Div, Times(n), Times(m)) => times(n - m),
            (BinaryOp::Div, Times(n), Same) => Times(n),
            (BinaryOp::Div, Same, Times(m)) => Times(-m),
            _ => return None,
        },
        (Op::Select, _) if of(1) == of(2) => of(1),
        _ => return None,
    })
}
