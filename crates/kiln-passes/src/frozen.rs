//! Which values of a graph depend on frozen inputs alone: the analysis behind [`crate::split_frozen`].

use kiln_ir::{DType, Dim, Graph, Node, NodeId, Op, TensorType};
use std::cell::Cell;

/// What a node's value depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Depends {
    /// No input at all.
    Nothing,
    /// Frozen inputs, and no size that a call brings.
    Frozen,
    /// Arguments of each call.
    Calls,
}

/// What every node of a graph depends on. An input that the graph updates is never frozen.
pub(crate) fn dependences(graph: &Graph, frozen: &[bool]) -> Vec<Depends> {
    let updated = |input: usize| graph.outputs().iter().any(|output| output.updates == Some(input));
    let mut all: Vec<Depends> = Vec::with_capacity(graph.nodes().len());
    for node in graph.nodes() {
        let own = match node.op {
            Op::Input { index } if frozen.get(index) == Some(&true) && !updated(index) => Depends::Frozen,
            Op::Input { .. } => Depends::Calls,
            _ => Depends::Nothing,
        };
        let own = if is_fixed(node) { own } else { Depends::Calls };
        all.push(node.operands.iter().map(|operand| all[operand.index()]).fold(own, Ord::max));
    }
    all
}

/// True if no size in a node is symbolic.
fn is_fixed(node: &Node) -> bool {
    let fixed = Cell::new(node.ty.shape.iter().all(|size| size.as_const().is_some()));
    node.op.map_dims(&|size: &Dim| {
        fixed.set(fixed.get() && size.as_const().is_some());
        size.clone()
    });
    fixed.get()
}

/// The value that a chain of views, of casts that are free in loads and of quantised blocks starts from: blocks are smaller
/// than their elements, and products unpack them while reading.
pub(crate) fn anchor(graph: &Graph, mut id: NodeId) -> NodeId {
    loop {
        let node = graph.node(id);
        match widened(graph, id) {
            Some(short) => id = short,
            None if node.op.is_view() || matches!(node.op, Op::Dequantize { .. }) => id = node.operands[0],
            None => return id,
        }
    }
}

/// The short floats that a node widens to f32, or the bytes that it makes floats of: free and exact, since kernels widen
/// while loading.
pub(crate) fn widened(graph: &Graph, id: NodeId) -> Option<NodeId> {
    let node = graph.node(id);
    let short = *node.operands.first()?;
    let widens = match (graph.ty(short).dtype, &node.op) {
        (DType::F16 | DType::Bf16, Op::Cast(to)) => *to == DType::F32,
        (DType::I8 | DType::U8, Op::Cast(to)) => matches!(to, DType::F32 | DType::F16 | DType::Bf16),
        _ => false,
    };
    widens.then_some(short)
}

/// Whether some values together are at most `growth` times as large as the inputs and constants they are made of.
pub(crate) fn pays(graph: &Graph, ids: &[NodeId], growth: usize) -> bool {
    let (mut open, mut seen, mut bytes) = (ids.to_vec(), vec![false; graph.nodes().len()], 0usize);
    while let Some(at) = open.pop() {
        if std::mem::replace(&mut seen[at.index()], true) {
            continue;
        }
        let node = graph.node(at);
        if matches!(node.op, Op::Input { .. } | Op::Constant(_)) {
            bytes = bytes.saturating_add(bytes_of(&node.ty));
        }
        open.extend(&node.operands);
    }
    let made = ids.iter().map(|&id| bytes_of(graph.ty(id))).fold(0, usize::saturating_add);
    made <= bytes.saturating_mul(growth)
}

/// Bytes of a value of constant sizes.
pub(crate) fn bytes_of(ty: &TensorType) -> usize {
    let elements = ty.fixed_shape().and_then(|shape| shape.iter().try_fold(1usize, |n, &size| n.checked_mul(size)));
    elements.and_then(|n| ty.dtype.bytes_for(n)).unwrap_or(usize::MAX)
}
