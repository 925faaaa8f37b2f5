//! The tape: how a tensor came about, as far as gradients need to know.
//!
//! A node holds the operands that its gradient reads, without tapes of their own, and edges to the nodes of the operands. Nothing
//! else keeps a tape alive but the tensors at its end.

use super::rule::Rule;
use crate::var::Slot;
use crate::{DType, Result, Tensor};
use kiln_ir::{Op, Source};
use kiln_passes::is_differentiable;
use std::cell::Cell;
use std::sync::{Arc, Mutex, PoisonError};

/// The place of a tensor on the tape: a result of a node.
#[derive(Clone)]
pub(crate) struct Tape {
    pub(super) node: Arc<Node>,
    pub(super) result: usize,
}

impl Tape {
    /// The start of the tapes of a variable's values.
    pub(crate) fn leaf(slot: Arc<Slot>) -> Tape {
        Tape { node: Node::leaf(Some(slot)), result: 0 }
    }

    /// The start of a tape that no variable is behind.
    pub(super) fn start() -> Tape {
        Tape { node: Node::leaf(None), result: 0 }
    }

    /// Whether gradients were asked for already, which let go of it.
    pub(crate) fn is_released(&self) -> bool {
        self.node.edges.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }

    /// Whether both are the same result of the same node.
    pub(super) fn same(&self, other: &Tape) -> bool {
        Arc::ptr_eq(&self.node, &other.node) && self.result == other.result
    }
}

pub(crate) struct Node {
    pub(super) kind: Kind,
    /// Gone once the tape was released.
    edges: Mutex<Option<Edges>>,
}

/// One an operand: where it came from, or nothing if no gradient of it is wanted.
pub(super) type Edges = Vec<Option<Tape>>;

pub(super) enum Kind {
    /// The start of a tape: a variable, whose gradient is collected, or a tensor that gradients are asked for by.
    Leaf(Option<Arc<Slot>>),
    /// A view, or an op whose gradient needs nothing but types.
    View { op: Op, dtype: DType, shape: Vec<usize>, at: Source },
    /// An operation with the operands that its gradient reads.
    Operation { rule: Arc<Rule>, saved: Vec<Option<Tensor>>, at: Source },
}

impl Node {
    fn new(kind: Kind, edges: Edges) -> Arc<Node> {
        Arc::new(Node { kind, edges: Mutex::new(Some(edges)) })
    }

    /// The start of a tape.
    pub(crate) fn leaf(slot: Option<Arc<Slot>>) -> Arc<Node> {
        Node::new(Kind::Leaf(slot), Vec::new())
    }

    /// Where the operands came from; nothing if the tape was released.
    pub(super) fn edges(&self) -> Option<Edges> {
        self.edges.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Lets go of what came before.
    pub(super) fn release(&self) {
        let edges = self.edges.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop_all(edges.into_iter().flatten().flatten().collect());
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let edges = self.edges.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        drop_all(edges.into_iter().flatten().flatten().collect());
    }
}

/// Drops nodes one after another: a tape may be longer than the stack is deep.
fn drop_all(mut waiting: Vec<Tape>) {
    while let Some(tape) = waiting.pop() {
        let Some(mut node) = Arc::into_inner(tape.node) else { continue };
        let edges = node.edges.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        waiting.extend(edges.into_iter().flatten().flatten());
    }
}

thread_local! {
    static ENABLED: Cell<bool> = const { Cell::new(true) };
}

/// Whether operations on this thread are recorded if their operands are.
#[inline]
pub(crate) fn is_enabled() -> bool {
    ENABLED.get()
}

/// Runs `f` with recording on or off.
pub(crate) fn with_enabled<T>(enabled: bool, f: impl FnOnce() -> T) -> T {
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            ENABLED.set(self.0);
        }
    }
    let _restore = Restore(ENABLED.replace(enabled));
    f()
}

/// Whether an operation on these operands goes on the tape.
#[inline]
pub(crate) fn is_recorded(operands: &[&Tensor]) -> bool {
    operands.iter().any(|t| t.tape().is_some()) && is_enabled()
}

/// The results of an operation, on the tape.
#[cold]
pub(crate) fn record(rule: Arc<Rule>, operands: &[&Tensor], results: Vec<Tensor>, at: &Source) -> Result<Vec<Tensor>> {
    let edges: Edges = operands.iter().map(|t| edge(t)).collect();
    let carries: Vec<bool> = results.iter().map(|t| is_differentiable(t.dtype())).collect();
    if !carries.contains(&true) || edges.iter().all(Option::is_none) {
        return Ok(results);
    }
    let wanted: Vec<bool> = edges.iter().map(Option::is_some).collect();
    // An operation without a gradient is refused when its gradient is asked for.
    let saved = match rule.gradient(&wanted, &carries) {
        Ok(gradient) => (0..operands.len()).map(|i| gradient.reads(i).then(|| operands[i].detached())).collect(),
        Err(_) => vec![None; operands.len()],
    };
    let node = Node::new(Kind::Operation { rule, saved, at: at.clone() }, edges);
    let place = |(result, (tensor, carries)): (usize, (Tensor, bool))| {
        if carries { tensor.into_taped(Tape { node: node.clone(), result }) } else { tensor }
    };
    Ok(results.into_iter().zip(carries).enumerate().map(place).collect())
}

/// The results of a whole program, on the tape. Its gradient is derived when it is asked for, so every operand is kept.
#[cold]
pub(crate) fn record_whole(
    rule: Arc<Rule>,
    operands: &[&Tensor],
    results: Vec<Tensor>,
    taped: &[bool],
    at: &Source,
) -> Vec<Tensor> {
    let edges: Edges = operands.iter().map(|t| edge(t)).collect();
    let saved = operands.iter().map(|t| Some(t.detached())).collect();
    let node = Node::new(Kind::Operation { rule, saved, at: at.clone() }, edges);
    let place = |(result, tensor): (usize, Tensor)| {
        let carries = taped.get(result) == Some(&true) && is_differentiable(tensor.dtype());
        if carries { tensor.into_taped(Tape { node: node.clone(), result }) } else { tensor }
    };
    results.into_iter().enumerate().map(place).collect()
}

/// A view of a tensor, on the tape.
#[cold]
pub(crate) fn record_view(op: Op, operand: &Tensor, view: Tensor, at: &Source) -> Tensor {
    let Some(edge) = edge(operand) else { return view };
    let kind = Kind::View { op, dtype: operand.dtype(), shape: operand.shape().to_vec(), at: at.clone() };
    let node = Node::new(kind, vec![Some(edge)]);
    view.into_taped(Tape { node, result: 0 })
}

fn edge(tensor: &Tensor) -> Option<Tape> {
    tensor.tape().filter(|_| is_differentiable(tensor.dtype())).cloned()
}
