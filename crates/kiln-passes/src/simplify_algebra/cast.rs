//! Chains of conversions. A conversion through a narrower float rounds and stays.

use crate::facts::lossless;
use crate::rewrite::{Found, Rewriter};
use kiln_ir::{DType, Node, Op};

pub(super) fn cast(rw: &mut Rewriter, node: &Node, to: DType) -> Found {
    let inner = node.operands[0];
    let Op::Cast(middle) = *rw.op(inner) else { return Ok(None) };
    let x = rw.operand(inner);
    let from = rw.ty(x).dtype;
    // A lossless first step keeps the value, so the second step converts the value itself. A NaN stays a NaN.
    // Integers that wrap twice keep the low bits; the second step sees all the bits it keeps if it is no wider.
    let whole = |dtype: DType| dtype.is_int();
    let wraps = whole(from) && whole(middle) && whole(to) && to.size_in_bits() <= middle.size_in_bits();
    if !lossless(from, middle) && !wraps {
        return Ok(None);
    }
    if from == to { Ok(Some(x)) } else { rw.replace(node, Op::Cast(to), &[x]) }
}

pub(super) fn bitcast(rw: &mut Rewriter, node: &Node, to: DType) -> Found {
    let inner = node.operands[0];
    let Op::Bitcast(_) = *rw.op(inner) else { return Ok(None) };
    let x = rw.operand(inner);
    if rw.ty(x).dtype == to { Ok(Some(x)) } else { rw.replace(node, Op::Bitcast(to), &[x]) }
}
