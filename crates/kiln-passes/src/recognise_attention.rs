//! Attention as other programs write it, in the words of [`Op::Attention`]: keys that were copied for every head that shares them, masks
//! that add 0 or −∞, and, for targets that take bounds of the visible keys, masks that compare a key's place with a number a row.
//! Graphs with gradients of attention stay as they are: attention and its gradients have the same operands.
//!
//! ```text
//!  reshape(expand(k: [b, g, 1, s, d]))       ▶ k: [b, g, s, d]
//!  select(seen, 0, −∞)                       ▶ seen
//!  iota ≤ last  ∧  iota > before             ▶ bounds: [before + 1, last + 1]
//! ```

use crate::rewrite::{Found, Rewriter, rewrite};
use crate::{Options, Rewritten};
use kiln_ir::{BinaryOp, CompareOp, DType, Dim, Error, Graph, Node, NodeId, Op, Scalar};

/// Comparisons of one mask that are looked at.
const MOST_TERMS: usize = 8;

/// The pass.
pub(crate) fn run(graph: Graph, options: &Options) -> Result<Rewritten, Error> {
    let forward = |op: &Op| matches!(op, Op::Attention { .. });
    let backward = |op: &Op| op.is_attention() && !forward(op);
    let has = |kind: &dyn Fn(&Op) -> bool| graph.nodes().iter().any(|node| kind(&node.op));
    if !has(&forward) || has(&backward) {
        return Ok(Rewritten { graph, changed: false });
    }
    rewrite(graph, if options.keep_bounds { rule_with_bounds } else { rule })
}

fn rule(rw: &mut Rewriter, node: &Node) -> Found {
    let Op::Attention { mask, .. } = node.op else { return Ok(None) };
    if let (Some(k), Some(v)) = (shared(rw, node.operands[1]), shared(rw, node.operands[2]))
        && rw.ty(k).shape[1] == rw.ty(v).shape[1]
    {
        let [k, v] = [k, v].map(|x| {
            let shape: Vec<Dim> = [0, 1, 3, 4].map(|axis| rw.ty(x).shape[axis].clone()).to_vec();
            rw.emit(node, Op::Reshape { shape }, &[x])
        });
        let mut operands = node.operands.clone();
        (operands[1], operands[2]) = (k?, v?);
        return rw.replace(node, node.op.clone(), &operands);
    }
    let Some(seen) = mask.then(|| kept(rw, node.operands[3])).flatten() else { return Ok(None) };
    let shape = rw.ty(node.operands[3]).shape.clone();
    let seen = rw.emit(node, Op::Expand { shape }, &[seen])?;
    let operands = [&node.operands[..3], &[seen]].concat();
    rw.replace(node, node.op.clone(), &operands)
}

fn rule_with_bounds(rw: &mut Rewriter, node: &Node) -> Found {
    if let Some(found) = rule(rw, node)? {
        return Ok(Some(found));
    }
    let Op::Attention { mask: true, .. } = node.op else { return Ok(None) };
    let mut bounds = Bounds::default();
    if !bounds.read(rw, node.operands[3], MOST_TERMS) {
        return Ok(None);
    }
    let mask = bounds.emit(rw, node)?;
    let operands = [&node.operands[..3], &[mask]].concat();
    rw.replace(node, node.op.clone(), &operands)
}

/// Keys or values `[b, g, 1, s, d]` of which those of an operand, `[b, g·n, s, d]`, are copies for n heads.
fn shared(rw: &Rewriter, x: NodeId) -> Option<NodeId> {
    let Op::Reshape { shape } = rw.op(x) else { return None };
    let expanded = rw.operand(x);
    let Op::Expand { shape: copies } = rw.op(expanded) else { return None };
    let source = rw.operand(expanded);
    let ty = rw.ty(source);
    let [b, g, n, s, d] = &copies[..] else { return None };
    let one = |axis: usize, size: &Dim| ty.shape[axis] == *size;
    let fits = ty.rank() == 5 && one(0, b) && one(1, g) && ty.shape[2] == 1 && one(3, s) && one(4, d);
    (fits && shape[..] == [b.clone(), g * n, s.clone(), d.clone()]).then_some(source)
}

/// The condition of a mask that adds 0 where it holds and −∞ elsewhere.
fn kept(rw: &Rewriter, mask: NodeId) -> Option<NodeId> {
    let select = match rw.op(mask) {
        Op::Expand { .. } => rw.operand(mask),
        _ => mask,
    };
    let Op::Select = rw.op(select) else { return None };
    let &[seen, zero, lowest] = &rw.node(select).operands[..] else { return None };
    let is = |id: NodeId, value: f64| rw.splat(id).is_some_and(|own| own.as_f64() == value);
    (rw.ty(seen).rank() == 4 && is(zero, 0.0) && is(lowest, f64::NEG_INFINITY)).then_some(seen)
}

/// What a row's visible keys are between; `[…, rows, 1]` each, of some type of whole numbers, and what is added to it.
#[derive(Default)]
struct Bounds {
    first: Vec<(NodeId, i64)>,
    end: Vec<(NodeId, i64)>,
}

impl Bounds {
    /// Reads a mask of bools. Returns whether it is nothing but bounds.
    fn read(&mut self, rw: &Rewriter, mask: NodeId, left: usize) -> bool {
        let node = rw.node(mask);
        match (&node.op, &node.operands[..]) {
            _ if node.ty.rank() != 4 => false,
            (Op::Expand { .. }, &[x]) if rw.ty(x).shape[3] != 1 => self.read(rw, x, left),
            (Op::Binary(BinaryOp::And), &[a, b]) if left > 1 && node.ty.dtype == DType::Bool => {
                self.read(rw, a, left / 2) && self.read(rw, b, left / 2)
            }
            (Op::Compare(op), &[a, b]) => match (is_place(rw, a), row(rw, b), is_place(rw, b), row(rw, a)) {
                (true, Some(row), ..) => self.add(*op, row),
                (_, _, true, Some(row)) => self.add(mirrored(*op), row),
                _ => false,
            },
            _ => false,
        }
    }

    /// Adds that a key's place compares with a number so.
    fn add(&mut self, op: CompareOp, row: NodeId) -> bool {
        match op {
            CompareOp::Lt => self.end.push((row, 0)),
            CompareOp::Le => self.end.push((row, 1)),
            CompareOp::Ge => self.first.push((row, 0)),
            CompareOp::Gt => self.first.push((row, 1)),
            CompareOp::Eq | CompareOp::Ne => return false,
        }
        true
    }

    /// The bounds as the mask of attention.
    fn emit(self, rw: &mut Rewriter, at: &Node) -> Result<NodeId, Error> {
        let keys = rw.ty(at.operands[1]).shape[2].clone();
        // Before it is expanded to all heads.
        let mask = at.operands[3];
        let own = if matches!(rw.op(mask), Op::Expand { .. }) { rw.operand(mask) } else { mask };
        let mut shape = rw.ty(own).shape.clone();
        shape[3] = Dim::from(1);
        let mut sides = Vec::new();
        for (list, op) in [(self.first, BinaryOp::Max), (self.end, BinaryOp::Min)] {
            let mut side: Option<NodeId> = None;
            for (row, more) in list {
                let mut own = rw.emit(at, Op::Cast(DType::I64), &[row])?;
                if more != 0 {
                    let more = rw.full_like(at, Scalar::int(DType::I64, more), own)?;
                    own = rw.emit(at, Op::Binary(BinaryOp::Add), &[own, more])?;
                }
                let own = rw.emit(at, Op::Expand { shape: shape.clone() }, &[own])?;
                side = Some(match side {
                    Some(had) => rw.emit(at, Op::Binary(op), &[had, own])?,
                    None => own,
                });
            }
            let side = match (side, keys.as_const(), op) {
                (Some(side), ..) => side,
                (None, _, BinaryOp::Max) => {
                    rw.emit(at, Op::Full { value: Scalar::int(DType::I64, 0), shape: shape.clone() }, &[])?
                }
                // As many keys as there can be.
                (None, keys, _) => {
                    let value = Scalar::int(DType::I64, keys.unwrap_or(i64::from(i32::MAX)));
                    rw.emit(at, Op::Full { value, shape: shape.clone() }, &[])?
                }
            };
            sides.push(side);
        }
        let bounds = rw.emit(at, Op::Concat { axis: 3 }, &sides)?;
        let mut shape = rw.ty(mask).shape.clone();
        shape[3] = Dim::from(2);
        rw.emit(at, Op::Expand { shape }, &[bounds])
    }
}

/// Whether a value is the place of its key: the index along the last axis.
fn is_place(rw: &Rewriter, x: NodeId) -> bool {
    match rw.op(x) {
        Op::Iota { axis: 3, dtype: DType::I64 | DType::I32, .. } => rw.ty(x).rank() == 4,
        Op::Expand { .. } => rw.ty(rw.operand(x)).shape[3] == rw.ty(x).shape[3] && is_place(rw, rw.operand(x)),
        _ => false,
    }
}

/// The numbers that a value has one a row of, if they are whole.
fn row(rw: &Rewriter, x: NodeId) -> Option<NodeId> {
    let ty = rw.ty(x);
    match rw.op(x) {
        _ if !matches!(ty.dtype, DType::I64 | DType::I32) => None,
        Op::Expand { .. } if rw.ty(rw.operand(x)).shape[3] == 1 => Some(rw.operand(x)),
        _ => None,
    }
}

/// The comparison of the operands in the other order.
fn mirrored(op: CompareOp) -> CompareOp {
    match op {
        CompareOp::Lt => CompareOp::Gt,
        CompareOp::Le => CompareOp::Ge,
        CompareOp::Gt => CompareOp::Lt,
        CompareOp::Ge => CompareOp::Le,
        other => other,
    }
}
