//! A graph of one example as a graph of many: every op gets a new first axis, along which the examples lie.
//!
//! ```text
//!  y[…] = op(x[…], w[…])          ──▶   y[b, …] = op(x[b, …], w[…])       x is batched, w is the same for all
//! ```
//!
//! What does not depend on a batched value is computed once. There is one rule an op, and a test walks over all of them.

use kiln_ir::build::{BuildError, Emit, GraphBuilder};
use kiln_ir::{
    Branches, ConvDims, Dim, DotDims, Error, Graph, Node, NodeId, Op, Region, Source, TensorType, TypeError, WindowDims,
};
use std::sync::Arc;

/// A value of the graph of many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Vectorized {
    /// The node.
    pub node: NodeId,
    /// Whether its first axis counts examples; otherwise it is the same for all.
    pub is_batched: bool,
}

/// Writes a graph of one example for `size` examples: `inputs` are its inputs in order. Every result has the axis of examples. An error where
/// an op has no form for many: a loop until a condition fails, random numbers of batched seeds, a choice an example between sides that may fail.
pub fn vectorize(b: &mut GraphBuilder, graph: &Graph, size: &Dim, inputs: &[Vectorized]) -> Result<Vec<NodeId>, Error> {
    let mut values: Vec<Vectorized> = Vec::with_capacity(graph.nodes().len());
    for node in graph.nodes() {
        values.push(match &node.op {
            Op::Input { index } => inputs[*index],
            op => {
                let operands: Vec<Vectorized> = node.operands.iter().map(|id| values[id.index()]).collect();
                vectorize_op(b, op, &operands, size)?
            }
        });
    }
    graph.outputs().iter().map(|output| lead(b, values[output.node.index()], size)).collect()
}

/// A value with the axis of examples.
fn lead(b: &mut GraphBuilder, value: Vectorized, size: &Dim) -> Result<NodeId, Error> {
    if value.is_batched {
        return Ok(value.node);
    }
    let shape = b.ty(&value.node).shape;
    let one: Vec<Dim> = [Dim::from(1)].into_iter().chain(shape.iter().cloned()).collect();
    let all: Vec<Dim> = [size.clone()].into_iter().chain(shape).collect();
    let first = b.emit(Op::Reshape { shape: one }, &[value.node])?;
    b.emit(Op::Expand { shape: all }, &[first])
}

fn shifted(axes: &[usize]) -> Vec<usize> {
    axes.iter().map(|axis| axis + 1).collect()
}

fn with_first<T: Clone>(first: T, rest: &[T]) -> Vec<T> {
    [first].into_iter().chain(rest.iter().cloned()).collect()
}

/// Moves an axis to the front.
fn to_front(b: &mut GraphBuilder, x: NodeId, axis: usize) -> Result<NodeId, Error> {
    if axis == 0 {
        return Ok(x);
    }
    let rank = b.ty(&x).rank();
    let order = [axis].into_iter().chain((0..rank).filter(|&other| other != axis)).collect();
    b.emit(Op::Permute { order }, &[x])
}

/// Joins the first two axes.
fn fold(b: &mut GraphBuilder, x: NodeId) -> Result<NodeId, Error> {
    let shape = b.ty(&x).shape;
    let joined = with_first(&shape[0] * &shape[1], &shape[2..]);
    b.emit(Op::Reshape { shape: joined }, &[x])
}

/// Splits the first axis into examples and what each of them has.
fn unfold(b: &mut GraphBuilder, x: NodeId, size: &Dim, inner: &Dim) -> Result<NodeId, Error> {
    let shape = b.ty(&x).shape;
    let apart = [size.clone(), inner.clone()].into_iter().chain(shape[1..].iter().cloned()).collect();
    b.emit(Op::Reshape { shape: apart }, &[x])
}

fn refused(what: &'static str, ty: TensorType) -> Error {
    let cause = Box::new(TypeError::BadAttribute { what, ty });
    Error::from(BuildError { function: "vectorize", cause, at: Source::default() })
}

/// An op of many examples.
fn vectorize_op(b: &mut GraphBuilder, op: &Op, operands: &[Vectorized], size: &Dim) -> Result<Vectorized, Error> {
    let plain: Vec<NodeId> = operands.iter().map(|operand| operand.node).collect();
    if operands.iter().all(|operand| !operand.is_batched) {
        return Ok(Vectorized { node: b.emit(op.clone(), &plain)?, is_batched: false });
    }
    let all = |b: &mut GraphBuilder| -> Result<Vec<NodeId>, Error> {
        operands.iter().map(|&operand| lead(b, operand, size)).collect()
    };
    let node = match op {
        Op::Input { .. } | Op::Full { .. } | Op::Constant(_) | Op::Iota { .. } => {
            unreachable!("an op without operands has none that is batched")
        }
        Op::RandomBits { .. } => return Err(refused("random numbers of a seed an example", b.ty(&plain[0]))),
        // Element by element, or along the last axis.
        Op::Unary(_)
        | Op::Binary(_)
        | Op::Compare(_)
        | Op::Select
        | Op::Cast(_)
        | Op::Bitcast(_)
        | Op::Dequantize { .. } => {
            let operands = all(b)?;
            b.emit(op.clone(), &operands)?
        }
        // Along axes, which are one further.
        Op::Reduce { kind, axes } => b.emit(Op::Reduce { kind: *kind, axes: shifted(axes) }, &plain)?,
        Op::ArgReduce { kind, axis } => b.emit(Op::ArgReduce { kind: *kind, axis: axis + 1 }, &plain)?,
        Op::Scan { kind, axis, reverse } => {
            b.emit(Op::Scan { kind: *kind, axis: axis + 1, reverse: *reverse }, &plain)?
        }
        Op::SortIndices { axis, descending, count } => {
            b.emit(Op::SortIndices { axis: axis + 1, descending: *descending, count: count.clone() }, &plain)?
        }
        Op::Flip { axes } => b.emit(Op::Flip { axes: shifted(axes) }, &plain)?,
        Op::Unfold { axis, size, stride, dilation } => {
            let (size, stride, dilation) = (*size, *stride, *dilation);
            b.emit(Op::Unfold { axis: axis + 1, size, stride, dilation }, &plain)?
        }
        Op::Concat { axis } => {
            let operands = all(b)?;
            b.emit(Op::Concat { axis: axis + 1 }, &operands)?
        }
        Op::Gather { axis } => {
            let operands = all(b)?;
            b.emit(Op::Gather { axis: axis + 1 }, &operands)?
        }
        Op::Scatter { axis, kind } => {
            let operands = all(b)?;
            b.emit(Op::Scatter { axis: axis + 1, kind: *kind }, &operands)?
        }
        // Shapes, with the examples first.
        Op::Reshape { shape } => b.emit(Op::Reshape { shape: with_first(size.clone(), shape) }, &plain)?,
        Op::Expand { shape } => b.emit(Op::Expand { shape: with_first(size.clone(), shape) }, &plain)?,
        Op::Permute { order } => b.emit(Op::Permute { order: with_first(0, &shifted(order)) }, &plain)?,
        Op::Slice { start, size: sizes, step } => {
            let (start, sizes) = (with_first(Dim::from(0), start), with_first(size.clone(), sizes));
            b.emit(Op::Slice { start, size: sizes, step: with_first(1, step) }, &plain)?
        }
        Op::Pad { low, high, value } => {
            let (low, high) = (with_first(Dim::from(0), low), with_first(Dim::from(0), high));
            b.emit(Op::Pad { low, high, value: *value }, &plain)?
        }
        Op::ReduceWindow { kind, dims } => {
            let dims = Box::new(WindowDims {
                size: with_first(1, &dims.size),
                stride: with_first(1, &dims.stride),
                dilation: with_first(1, &dims.dilation),
                padding: with_first((0, 0), &dims.padding),
            });
            b.emit(Op::ReduceWindow { kind: *kind, dims }, &plain)?
        }
        Op::Dot { dims, out } => dot(b, dims, *out, operands)?,
        Op::Conv(dims) => conv(b, dims, operands, size)?,
        // The examples are more of the first axis.
        Op::Attention { .. } | Op::AttentionLogsumexp { .. } | Op::AttentionGradient { .. } => {
            let operands = all(b)?;
            let inner = b.ty(&operands[0]).shape[1].clone();
            let folded: Vec<NodeId> = operands.into_iter().map(|x| fold(b, x)).collect::<Result<_, _>>()?;
            let y = b.emit(op.clone(), &folded)?;
            unfold(b, y, size, &inner)?
        }
        Op::Loop { region, result } => looped(b, region, *result, operands, size)?,
        Op::Cond { branches, result } => chosen(b, branches, *result, operands, size)?,
    };
    Ok(Vectorized { node, is_batched: true })
}

/// The examples are a batch axis if both sides have them, and rows or columns otherwise.
fn dot(b: &mut GraphBuilder, dims: &DotDims, out: kiln_ir::DType, operands: &[Vectorized]) -> Result<NodeId, Error> {
    let (lhs, rhs) = (operands[0], operands[1]);
    let moved = |axes: &[usize], is_batched: bool| if is_batched { shifted(axes) } else { axes.to_vec() };
    let mut wide = DotDims {
        lhs_batch: moved(&dims.lhs_batch, lhs.is_batched),
        rhs_batch: moved(&dims.rhs_batch, rhs.is_batched),
        lhs_contract: moved(&dims.lhs_contract, lhs.is_batched),
        rhs_contract: moved(&dims.rhs_contract, rhs.is_batched),
    };
    if lhs.is_batched && rhs.is_batched {
        wide.lhs_batch.insert(0, 0);
        wide.rhs_batch.insert(0, 0);
    }
    let rank = b.ty(&lhs.node).rank();
    let (batch, free) = (wide.lhs_batch.len(), rank - wide.lhs_batch.len() - wide.lhs_contract.len());
    let y = b.emit(Op::Dot { dims: Box::new(wide), out }, &[lhs.node, rhs.node])?;
    match (lhs.is_batched, rhs.is_batched) {
        (true, true) => Ok(y),
        (true, false) => to_front(b, y, batch),
        (false, _) => to_front(b, y, batch + free),
    }
}

/// More images for one weight; a weight an example is a group of channels an example.
fn conv(b: &mut GraphBuilder, dims: &ConvDims, operands: &[Vectorized], size: &Dim) -> Result<NodeId, Error> {
    let (x, w) = (operands[0], operands[1]);
    if !w.is_batched {
        let inner = b.ty(&x.node).shape[1].clone();
        let folded = fold(b, x.node)?;
        let y = b.emit(Op::Conv(Box::new(dims.clone())), &[folded, w.node])?;
        return unfold(b, y, size, &inner);
    }
    let Some(count) = size.as_usize() else {
        return Err(refused("a weight an example for a symbolic number of examples", b.ty(&w.node)));
    };
    // [examples, n, c, …] as [n, examples · c, …].
    let x = lead(b, x, size)?;
    let rank = b.ty(&x).rank();
    let swapped: Vec<usize> = [1, 0].into_iter().chain(2..rank).collect();
    let x = b.emit(Op::Permute { order: swapped.clone() }, &[x])?;
    let shape = b.ty(&x).shape;
    let joined = [shape[0].clone(), &shape[1] * &shape[2]].into_iter().chain(shape[3..].iter().cloned()).collect();
    let x = b.emit(Op::Reshape { shape: joined }, &[x])?;
    let outputs = b.ty(&w.node).shape[1].clone();
    let w = fold(b, w.node)?;
    let y = b.emit(Op::Conv(Box::new(ConvDims { groups: dims.groups * count, ..dims.clone() })), &[x, w])?;
    let shape = b.ty(&y).shape;
    let apart = [shape[0].clone(), size.clone(), outputs].into_iter().chain(shape[2..].iter().cloned()).collect();
    let y = b.emit(Op::Reshape { shape: apart }, &[y])?;
    b.emit(Op::Permute { order: swapped }, &[y])
}

/// A loop whose body is one of many examples: all that is carried has the examples first, rows have them behind the axis of turns.
fn looped(
    b: &mut GraphBuilder,
    region: &Region,
    result: usize,
    operands: &[Vectorized],
    size: &Dim,
) -> Result<NodeId, Error> {
    if region.is_conditional() {
        return Err(refused("a loop until a condition fails", b.ty(&operands[0].node)));
    }
    let (carried, scanned) = (region.carried(), region.scanned());
    let mut body = GraphBuilder::new();
    let (mut given, mut inputs) = (Vec::new(), Vec::new());
    for (number, &operand) in operands.iter().enumerate() {
        let is_row = (carried..carried + scanned).contains(&number);
        let is_batched = operand.is_batched || number < carried;
        let node = match (number < carried, is_row && operand.is_batched) {
            (true, _) => lead(b, operand, size)?,
            (_, true) => to_front(b, operand.node, 1)?,
            _ => operand.node,
        };
        let ty = b.ty(&node);
        let ty = if is_row { TensorType::new(ty.dtype, &ty.shape[1..]) } else { ty };
        given.push(node);
        inputs.push(Vectorized { node: body.input(ty)?, is_batched });
    }
    for output in vectorize(&mut body, region.body(), size, &inputs)? {
        body.output(output);
    }
    let region = Region::new(body.finish(), region.turns().clone(), carried, scanned, region.reverse());
    let y = b.emit(Op::Loop { region: Arc::new(region), result }, &given)?;
    if result < carried { Ok(y) } else { to_front(b, y, 1) }
}

/// One side for all examples where they have one predicate; where each has its own, both sides and a choice an example.
fn chosen(
    b: &mut GraphBuilder,
    branches: &Branches,
    result: usize,
    operands: &[Vectorized],
    size: &Dim,
) -> Result<NodeId, Error> {
    let (predicate, given) = (operands[0], &operands[1..]);
    if predicate.is_batched {
        // An index that is out of range on the side an example does not take is not looked at.
        let may_fail = |node: &Node| matches!(node.op, Op::Gather { .. } | Op::Scatter { .. }) || node.op.has_bodies();
        if [branches.then(), branches.otherwise()].into_iter().flat_map(Graph::nodes).any(may_fail) {
            return Err(refused("a choice an example of what may fail", b.ty(&predicate.node)));
        }
        let then = vectorize(b, branches.then(), size, given)?[result];
        let otherwise = vectorize(b, branches.otherwise(), size, given)?[result];
        let shape = b.ty(&then).shape;
        let ones = (0..shape.len()).map(|axis| if axis == 0 { size.clone() } else { Dim::from(1) }).collect();
        let mask = b.emit(Op::Reshape { shape: ones }, &[predicate.node])?;
        let mask = b.emit(Op::Expand { shape }, &[mask])?;
        return b.emit(Op::Select, &[mask, then, otherwise]);
    }
    let side = |b: &mut GraphBuilder, graph: &Graph| -> Result<Graph, Error> {
        let mut body = GraphBuilder::new();
        let mut inputs = Vec::new();
        for operand in given {
            inputs.push(Vectorized { node: body.input(b.ty(&operand.node))?, is_batched: operand.is_batched });
        }
        for output in vectorize(&mut body, graph, size, &inputs)? {
            body.output(output);
        }
        Ok(body.finish())
    };
    let branches = Branches::new(side(b, branches.then())?, side(b, branches.otherwise())?);
    let nodes: Vec<NodeId> = operands.iter().map(|operand| operand.node).collect();
    b.emit(Op::Cond { branches: Arc::new(branches), result }, &nodes)
}
