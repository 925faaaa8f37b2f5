//! Computes what depends on nothing but constants, by the reference interpreter.

use crate::rewrite::{Found, Rewriter, rewrite};
use crate::{Options, Rewritten};
use kiln_ir::{Dim, Error, Graph, HostTensor, Literal, Node, NodeId, Op, Scalar, Source, interpret};

/// Elements, of operands and result together, above which a constant is left to be computed at run time: folding is to save
/// work, not to turn formulas into tables.
const MAX_ELEMENTS: usize = 8192;

/// The pass.
pub(crate) fn run(graph: Graph, _: &Options) -> Result<Rewritten, Error> {
    rewrite(graph, rule)
}

fn rule(rw: &mut Rewriter, node: &Node) -> Found {
    match &node.op {
        Op::Input { .. } | Op::Full { .. } => Ok(None),
        // A tensor without elements may have any value.
        _ if node.ty.shape.iter().any(Dim::is_zero) => rw.replace_by_full(node, Scalar::int(node.ty.dtype, 0)),
        Op::Constant(literal) => match repeated(literal) {
            Some(value) => rw.replace_by_full(node, value),
            None => Ok(None),
        },
        Op::Iota { axis, shape, dtype } if shape[*axis] == 1 => rw.replace_by_full(node, Scalar::int(*dtype, 0)),
        // Copies are made by their readers.
        Op::Expand { .. } | Op::Unfold { .. } | Op::RandomBits { .. } => Ok(None),
        _ if node.operands.is_empty() => Ok(None),
        op if op.is_pointwise() && node.operands.iter().all(|&x| rw.splat(x).is_some()) => splats(rw, node),
        _ => tensors(rw, node),
    }
}

/// The value of a constant whose elements are all the same.
fn repeated(literal: &Literal) -> Option<Scalar> {
    let elements: usize = literal.shape.iter().product();
    if elements == 0 || elements > MAX_ELEMENTS {
        return None;
    }
    let tensor = HostTensor::from_literal(literal).ok()?;
    let first = tensor.get(0);
    (1..elements).all(|i| tensor.get(i) == first).then_some(first)
}

/// One value from one value each, for any shape.
fn splats(rw: &mut Rewriter, node: &Node) -> Found {
    let values = node.operands.iter().filter_map(|&x| rw.splat(x)).map(HostTensor::scalar).collect();
    match evaluate(&node.op, values) {
        Some(result) => rw.replace_by_full(node, result.get(0)),
        None => Ok(None),
    }
}

fn tensors(rw: &mut Rewriter, node: &Node) -> Found {
    if !node.operands.iter().any(|&x| matches!(rw.op(x), Op::Constant(_))) {
        return Ok(None);
    }
    let Some(mut elements) = size(&node.ty) else { return Ok(None) };
    let mut values = Vec::with_capacity(node.operands.len());
    for &x in &node.operands {
        let Some(more) = size(rw.ty(x)) else { return Ok(None) };
        elements = elements.saturating_add(more);
        if elements > MAX_ELEMENTS {
            return Ok(None);
        }
        let Some(value) = constant(rw, x) else { return Ok(None) };
        values.push(value);
    }
    match evaluate(&node.op, values) {
        Some(result) => rw.replace(node, Op::Constant(result.to_literal()), &[]),
        None => Ok(None),
    }
}

fn size(ty: &kiln_ir::TensorType) -> Option<usize> {
    ty.elements().as_usize()
}

fn constant(rw: &Rewriter, id: NodeId) -> Option<HostTensor> {
    match rw.op(id) {
        Op::Constant(literal) => HostTensor::from_literal(literal).ok(),
        Op::Full { value, .. } => HostTensor::full(&rw.ty(id).fixed_shape()?, *value).ok(),
        _ => None,
    }
}

/// The result of one op; nothing where it is an error, which is then left to happen at run time.
fn evaluate(op: &Op, values: Vec<HostTensor>) -> Option<HostTensor> {
    let mut graph = Graph::new();
    let mut operands = Vec::with_capacity(values.len());
    for value in &values {
        let ty = kiln_ir::TensorType::fixed(value.dtype(), value.shape());
        operands.push(graph.input(ty, Source::default()).ok()?);
    }
    let result = graph.add(op.clone(), &operands, Source::default()).ok()?;
    graph.output(result);
    interpret::run(&graph, &values).ok()?.pop()
}
