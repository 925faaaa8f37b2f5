//! The tape: how a tensor was computed, as far as gradients need it.
//!
//! A node holds the operands that its gradient reads, without tapes of their own, and edges to the nodes of the operands. Nothing
//! else keeps a tape alive but the tensors at its end.

mod dependence;
mod rule;

pub(crate) use dependence::Operands;
pub(crate) use rule::Rule;

use crate::tensor::tracer;
use crate::tensor::var::Slot;
use crate::{DType, Result, Tensor, Var};
use kiln_ir::{Op, Source};
use kiln_passes::is_differentiable;
use std::cell::Cell;
use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

/// The place of a tensor on the tape: a result of a node.
#[derive(Clone)]
pub(crate) struct Tape {
    pub(crate) node: Arc<Node>,
    pub(crate) result: usize,
}

impl Tape {
    /// The start of the tapes of a variable's values.
    pub(crate) fn leaf(slot: Arc<Slot>) -> Tape {
        Tape { node: Node::leaf(Some(slot)), result: 0 }
    }

    /// The start of a tape that no variable is behind.
    pub(crate) fn start() -> Tape {
        Tape { node: Node::leaf(None), result: 0 }
    }

    /// The start of the tape of an argument of a function being captured: gradients go on to the argument's own tape.
    pub(crate) fn argument(number: usize) -> Tape {
        Tape { node: Node::new(Kind::Argument(number), Vec::new()), result: 0 }
    }

    /// The tapes of the results, by number, of an operation that computes its gradient itself.
    pub(crate) fn of_custom(gradient: Box<dyn CustomGradient>, edges: Edges) -> impl Fn(usize) -> Tape {
        let node = Node::new(Kind::Custom(gradient), edges);
        move |result| Tape { node: node.clone(), result }
    }

    /// Whether it starts here.
    pub(crate) fn is_start(&self) -> bool {
        matches!(self.node.kind, Kind::Leaf(_) | Kind::Argument(_))
    }

    /// Whether it was released, because gradients were computed already.
    pub(crate) fn is_released(&self) -> bool {
        self.node.edges.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }

    /// Releases what came before.
    pub(crate) fn release(&self) {
        self.node.release();
    }

    /// Whether both are the same result of the same node.
    pub(crate) fn same(&self, other: &Tape) -> bool {
        Arc::ptr_eq(&self.node, &other.node) && self.result == other.result
    }
}

pub(crate) struct Node {
    pub(crate) kind: Kind,
    /// Gone once the tape was released.
    edges: Mutex<Option<Edges>>,
}

/// One an operand: where it came from, or nothing if no gradient of it is wanted.
pub(crate) type Edges = Vec<Option<Tape>>;

pub(crate) enum Kind {
    /// A leaf: a variable, whose gradient is accumulated, or a tensor that gradients can be computed by.
    Leaf(Option<Arc<Slot>>),
    /// A view, or an op whose gradient needs nothing but types.
    View { op: Op, dtype: DType, shape: Vec<usize>, at: Source },
    /// An operation with the operands that its gradient reads.
    Operation { rule: Arc<Rule>, saved: Vec<Option<Tensor>>, at: Source },
    /// A result of a whole program, as it is.
    Result,
    /// An argument, of this number, of the function being captured, which is on a tape outside of it.
    Argument(usize),
    /// An operation that computes its gradient itself.
    Custom(Box<dyn CustomGradient>),
}

/// The gradient of an operation that has no [`Rule`]: of a function with a gradient of its own, or of a disabled part of a function being
/// captured, which is computed at every call, as the part itself is.
pub(crate) trait CustomGradient: Send + Sync {
    /// The cotangents of what the operation, which is this node, depends on, one for each edge, given those of its results.
    fn gradient(
        &self,
        node: &Arc<Node>,
        edges: &Edges,
        cotangents: &[Option<Tensor>],
        at: &Source,
    ) -> Result<Vec<Option<Tensor>>>;
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
    pub(crate) fn edges(&self) -> Option<Edges> {
        self.edges.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Lets go of what came before.
    pub(crate) fn release(&self) {
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

/// Whether operations are recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Switch {
    /// They are not.
    Off,
    /// They are.
    On,
    /// While a function is captured they are; at a call they are if they are where it is called.
    AsCaller,
}

impl Switch {
    /// Runs `f` as this was when it was read, inside of a call of the function that was captured then.
    pub(crate) fn within<T>(self, f: impl FnOnce() -> T) -> T {
        match self {
            Switch::Off => with_enabled(false, f),
            Switch::On => with_enabled(true, f),
            Switch::AsCaller => f(),
        }
    }
}

thread_local! {
    static ENABLED: Cell<Switch> = const { Cell::new(Switch::On) };
}

/// Whether operations on this thread are recorded if their operands are.
#[inline]
pub(crate) fn is_enabled() -> bool {
    ENABLED.get() != Switch::Off
}

/// The switch of this thread.
pub(crate) fn switch() -> Switch {
    ENABLED.get()
}

/// Runs `f` with recording on or off.
pub(crate) fn with_enabled<T>(enabled: bool, f: impl FnOnce() -> T) -> T {
    with_switch(if enabled { Switch::On } else { Switch::Off }, f)
}

/// Runs `f`, which is captured.
pub(crate) fn with_switch<T>(switch: Switch, f: impl FnOnce() -> T) -> T {
    struct Restore(Switch);
    impl Drop for Restore {
        fn drop(&mut self) {
            ENABLED.set(self.0);
        }
    }
    let _restore = Restore(ENABLED.replace(switch));
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
    // An operation without a gradient is an error when its gradient is computed.
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

/// The results of a whole program, on the tape as far as `taped` says so. Its gradient is derived when it is needed:
/// `saved` are the operands that it may read.
#[cold]
pub(crate) fn record_whole(
    rule: Arc<Rule>,
    edges: Edges,
    saved: Vec<Option<Tensor>>,
    results: Vec<Tensor>,
    taped: &[bool],
    at: &Source,
) -> Vec<Tensor> {
    let node = Node::new(Kind::Operation { rule, saved, at: at.clone() }, edges);
    let place = |(result, tensor): (usize, Tensor)| {
        if taped.get(result) != Some(&true) || !is_differentiable(tensor.dtype()) {
            return tensor;
        }
        // A node each, so that letting go of one is not letting go of the others.
        let own = Node::new(Kind::Result, vec![Some(Tape { node: node.clone(), result })]);
        tensor.into_taped(Tape { node: own, result: 0 })
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

/// The variables that gradients of these tensors go to, without going past the tapes in `cuts`; in the order of their
/// numbers. What was released goes nowhere.
pub(crate) fn variables<'a, 'b>(
    ends: impl Iterator<Item = &'a Tape>,
    cuts: impl Iterator<Item = &'b &'b Tape>,
) -> Vec<Var> {
    let mut found: Vec<Var> = slots(ends, cuts).iter().filter_map(|slot| slot.var()).collect();
    found.sort_unstable_by_key(Var::id);
    found
}

/// Where gradients of these tensors go to whose variables the captured function made for itself.
pub(crate) fn local_slots<'a>(ends: impl Iterator<Item = &'a Tape>) -> Vec<Arc<Slot>> {
    slots(ends, [].iter()).into_iter().filter(|slot| slot.is_local()).collect()
}

/// Where gradients of these tensors are collected, without going past the tapes in `cuts`.
fn slots<'a, 'b>(ends: impl Iterator<Item = &'a Tape>, cuts: impl Iterator<Item = &'b &'b Tape>) -> Vec<Arc<Slot>> {
    let mut seen: HashSet<*const Node> = cuts.map(|cut| Arc::as_ptr(&cut.node)).collect();
    let mut waiting: Vec<Arc<Node>> = ends.map(|end| end.node.clone()).collect();
    let mut found = Vec::new();
    while let Some(node) = waiting.pop() {
        if !seen.insert(Arc::as_ptr(&node)) {
            continue;
        }
        if let Kind::Leaf(Some(slot)) = &node.kind {
            found.push(slot.clone());
        }
        waiting.extend(node.edges().into_iter().flatten().flatten().map(|edge| edge.node));
    }
    found
}

/// Where gradients of an operand go on.
pub(crate) fn edge(tensor: &Tensor) -> Option<Tape> {
    tensor.tape().filter(|_| is_differentiable(tensor.dtype())).cloned()
}

impl Tensor {
    /// Returns whether it requires gradients, or was computed from something that does.
    pub fn has_tape(&self) -> bool {
        self.tape().is_some()
    }

    /// Returns the same elements without a tape: gradients do not go past it.
    ///
    /// ```
    /// use kiln::{Device, Tensor};
    /// let x = Tensor::new([3f32], Device::Cpu)?.requires_grad();
    /// let y = (&x * x.detach())?.sum(..)?;
    /// assert_eq!(y.gradients(&[&x])?.get(&x).unwrap().to_vec::<f32>()?, [3.]);
    /// # Ok::<(), kiln::Error>(())
    /// ```
    #[track_caller]
    pub fn detach(&self) -> Tensor {
        if self.is_traced() { tracer::cut(self, &Source::caller()) } else { self.detached() }
    }
}
