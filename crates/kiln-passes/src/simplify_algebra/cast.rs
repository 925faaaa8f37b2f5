//! Chains of conversions. A conversion through a narrower float rounds and stays.

use crate::facts::lossless;
use crate::rewrite::{Found, Rewriter};
use kiln_ir::{DType, Node, NodeId, Op};

pub(super) fn cast(rw: &mut Rewriter, node: &Node, to: DType) -> Found {
    let inner = node.operands[0];
    let middle = match rw.op(inner) {
        Op::Cast(middle) => *middle,
        // A count converted is a count in the other dtype, which converts from whole numbers too. In 64 bits it cannot wrap.
        Op::Iota { dtype: DType::I64, shape, axis } if !to.is_storage_only() && to != DType::Bool => {
            let iota = Op::Iota { dtype: to, shape: shape.clone(), axis: *axis };
            return rw.replace(node, iota, &[]);
        }
        Op::Concat { axis } => return of_concat(rw, node, inner, *axis, to),
        _ => return Ok(None),
    };
    let x = rw.operand(inner);
    let from = rw.ty(x).dtype;
    // A lossless first step keeps the value, so the second step converts the value itself. A NaN stays a NaN.
    // Integers that wrap twice keep the low bits; the second step gets all the bits it keeps if it is no wider.
    let whole = |dtype: DType| dtype.is_int();
    let wraps = whole(from) && whole(middle) && whole(to) && to.size_in_bits() <= middle.size_in_bits();
    if !lossless(from, middle) && !wraps {
        return Ok(None);
    }
    if from == to { Ok(Some(x)) } else { rw.replace(node, Op::Cast(to), &[x]) }
}

/// A few pieces that are put together and narrowed (the rotated halves of a head) are narrowed first: what computes them then
/// writes them where they belong, in their last type.
fn of_concat(rw: &mut Rewriter, node: &Node, inner: NodeId, axis: usize, to: DType) -> Found {
    const FEW: usize = 4;
    let parts = rw.node(inner).operands.clone();
    if parts.len() > FEW || to.size_in_bits() >= rw.ty(inner).dtype.size_in_bits() {
        return Ok(None);
    }
    let mut narrowed = Vec::with_capacity(parts.len());
    for part in parts {
        narrowed.push(rw.emit(node, Op::Cast(to), &[part])?);
    }
    rw.replace(node, Op::Concat { axis }, &narrowed)
}

pub(super) fn bitcast(rw: &mut Rewriter, node: &Node, to: DType) -> Found {
    let inner = node.operands[0];
    let Op::Bitcast(_) = *rw.op(inner) else { return Ok(None) };
    let x = rw.operand(inner);
    if rw.ty(x).dtype == to { Ok(Some(x)) } else { rw.replace(node, Op::Bitcast(to), &[x]) }
}
