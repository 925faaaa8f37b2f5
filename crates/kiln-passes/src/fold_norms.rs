//! Folds a factor a channel into the weights of the convolution before it, where both are frozen: a batch norm in evaluation costs an offset then, not a
//! factor and two offsets. Runs on request, under `freeze`, before the passes of the list.
//!
//! ```text
//!  (conv(x, w) + b − m) · f + c      w, b, m, f, c frozen, one number of each a channel
//!
//!  conv(x, w · f) + (b·f − m·f + c)  all but the convolution and one sum computed once
//! ```
//!
//! Products of rounded weights round differently, so that results are the same within the error of a convolution, not bit for bit.

use crate::frozen::{Depends, dependences};
use crate::rewrite::set_outputs;
use kiln_ir::build::{self, Emit, GraphBuilder};
use kiln_ir::{BinaryOp, DType, Dim, Error, Graph, NodeId, Op};

/// An offset of a channel: what is added, or taken away.
#[derive(Debug, Clone, Copy)]
struct Offset {
    number: NodeId,
    negative: bool,
}

/// A convolution, and the frozen numbers a channel that are added to it in order.
#[derive(Debug)]
struct Affine {
    conv: NodeId,
    offsets: Vec<Offset>,
}

/// What is multiplied by numbers a channel, and what is added to it afterwards.
#[derive(Debug)]
struct Scaled {
    affine: Affine,
    factor: NodeId,
    after: Vec<Offset>,
}

/// The graph in which factors of frozen convolutions are parts of their weights, or nothing if it has none. Inputs are frozen where `frozen` says so.
///
/// ```
/// use kiln_ir::Graph;
/// let graph = Graph::parse("graph(%0: f32[n, 3, 8, 8], %1: f32[4, 3, 1, 1], %2: f32[1, 4, 1, 1]) {
///   %3: f32[n, 4, 8, 8] = conv %0, %1 {stride=[1, 1], padding=[(0, 0), (0, 0)], dilation=[1, 1], input_dilation=[1, 1], groups=1}
///   %4: f32[n, 4, 8, 8] = expand %2
///   %5: f32[n, 4, 8, 8] = mul %3, %4
///   return %5
/// }").unwrap();
/// let folded = kiln_passes::fold_norms(&graph, &[false, true, true]).unwrap().unwrap();
/// let last = folded.node(folded.outputs()[0].node);
/// assert!(matches!(last.op, kiln_ir::Op::Conv(_)));
/// ```
pub fn fold_norms(graph: &Graph, frozen: &[bool]) -> Result<Option<Graph>, Error> {
    if !graph.nodes().iter().any(|node| matches!(node.op, Op::Conv(_))) {
        return Ok(None);
    }
    let depends = dependences(graph, frozen);
    let mut uses = vec![0usize; graph.nodes().len()];
    graph.nodes().iter().flat_map(|node| &node.operands).for_each(|operand| uses[operand.index()] += 1);
    graph.outputs().iter().for_each(|output| uses[output.node.index()] += 1);
    let view = View { graph, depends: &depends, uses: &uses };
    let mut b = GraphBuilder::new();
    let (mut map, mut changed): (Vec<NodeId>, bool) = (Vec::with_capacity(graph.nodes().len()), false);
    for (id, node) in graph.iter() {
        b.set_source(Some(node.source.clone()));
        let found = view.scaled(id);
        let made = match (&node.op, found) {
            (Op::Input { .. }, _) => b.input(node.ty.clone())?,
            (_, Some(scaled)) => {
                changed = true;
                folded(&mut b, &view, &map, &scaled, id)?
            }
            (op, None) => {
                let operands: Vec<NodeId> = node.operands.iter().map(|operand| map[operand.index()]).collect();
                b.emit(op.clone(), &operands)?
            }
        };
        map.push(made);
    }
    if !changed {
        return Ok(None);
    }
    let mut made = b.finish();
    set_outputs(&mut made, graph.outputs().to_vec(), &map);
    Ok(Some(made))
}

struct View<'g> {
    graph: &'g Graph,
    depends: &'g [Depends],
    uses: &'g [usize],
}

impl View<'_> {
    /// A value as a frozen convolution times numbers a channel.
    fn scaled(&self, id: NodeId) -> Option<Scaled> {
        let node = self.graph.node(id);
        let (Op::Binary(op), &[x, y]) = (&node.op, &node.operands[..]) else { return None };
        match op {
            BinaryOp::Mul => [(x, y), (y, x)].into_iter().find_map(|(value, factor)| {
                Some(Scaled { affine: self.affine(value)?, factor: self.channel(factor)?, after: Vec::new() })
            }),
            BinaryOp::Add | BinaryOp::Sub => self.sides(*op, [x, y]).iter().find_map(|&(value, offset)| {
                let number = self.channel(offset).filter(|_| self.uses[value.index()] == 1)?;
                let mut scaled = self.scaled(value)?;
                scaled.after.push(Offset { number, negative: *op == BinaryOp::Sub });
                Some(scaled)
            }),
            _ => None,
        }
    }

    /// Values and what is added to them. A number less a convolution is none with an offset.
    fn sides(&self, op: BinaryOp, [x, y]: [NodeId; 2]) -> Vec<(NodeId, NodeId)> {
        if op == BinaryOp::Sub { vec![(x, y)] } else { vec![(x, y), (y, x)] }
    }

    /// A value as a frozen convolution with offsets a channel, none of which anybody else reads.
    fn affine(&self, id: NodeId) -> Option<Affine> {
        let node = self.graph.node(id);
        if self.uses[id.index()] != 1 || node.ty.dtype != DType::F32 {
            return None;
        }
        match (&node.op, &node.operands[..]) {
            (Op::Conv(_), &[_, w]) => {
                let is_frozen = self.depends[w.index()] == Depends::Frozen;
                is_frozen.then_some(Affine { conv: id, offsets: Vec::new() })
            }
            (Op::Binary(op @ (BinaryOp::Add | BinaryOp::Sub)), &[x, y]) => {
                self.sides(*op, [x, y]).iter().find_map(|&(value, offset)| {
                    let number = self.channel(offset)?;
                    let mut affine = self.affine(value)?;
                    affine.offsets.push(Offset { number, negative: *op == BinaryOp::Sub });
                    Some(affine)
                })
            }
            _ => None,
        }
    }

    /// The frozen numbers, `[1, channels, 1, …]`, that a value repeats.
    fn channel(&self, id: NodeId) -> Option<NodeId> {
        let node = self.graph.node(id);
        let (Op::Expand { .. }, &[of]) = (&node.op, &node.operands[..]) else { return None };
        let ty = self.graph.ty(of);
        let is_one = |size: &Dim| size.as_const() == Some(1);
        let of_channels = ty.rank() >= 3 && ty.shape.iter().enumerate().all(|(axis, size)| axis == 1 || is_one(size));
        let all = ty.shape.get(1) == node.ty.shape.get(1);
        (of_channels && all && ty.dtype == DType::F32 && self.depends[of.index()] <= Depends::Frozen).then_some(of)
    }
}

/// The convolution with the factor in its weights, and its offsets: those before the factor times it.
fn folded(b: &mut GraphBuilder, view: &View<'_>, map: &[NodeId], scaled: &Scaled, id: NodeId) -> Result<NodeId, Error> {
    let conv = view.graph.node(scaled.affine.conv);
    let factor = map[scaled.factor.index()];
    let [x, w] = [0, 1].map(|operand: usize| map[conv.operands[operand].index()]);
    let shape = view.graph.ty(conv.operands[1]).shape.clone();
    let mut rows = vec![Dim::from(1); shape.len()];
    rows[0] = shape[0].clone();
    let along = b.emit(Op::Reshape { shape: rows }, &[factor])?;
    let spread = b.emit(Op::Expand { shape }, &[along])?;
    let w = b.emit(Op::Binary(BinaryOp::Mul), &[w, spread])?;
    let y = b.emit(conv.op.clone(), &[x, w])?;
    let mut offset: Option<NodeId> = None;
    let before = scaled.affine.offsets.iter().map(|part| (part, true));
    for (part, is_before) in before.chain(scaled.after.iter().map(|part| (part, false))) {
        let number = map[part.number.index()];
        let number = if is_before { b.emit(Op::Binary(BinaryOp::Mul), &[number, factor])? } else { number };
        offset = Some(match (offset, part.negative) {
            (None, false) => number,
            (None, true) => build::neg(b, &number)?,
            (Some(sum), false) => b.emit(Op::Binary(BinaryOp::Add), &[sum, number])?,
            (Some(sum), true) => b.emit(Op::Binary(BinaryOp::Sub), &[sum, number])?,
        });
    }
    let Some(offset) = offset else { return Ok(y) };
    let spread = b.emit(Op::Expand { shape: view.graph.ty(id).shape.clone() }, &[offset])?;
    b.emit(Op::Binary(BinaryOp::Add), &[y, spread])
}
