//! Views of what is generated rather than stored: one value everywhere, or a count along an axis.

use crate::rewrite::{Found, Rewriter};
use kiln_ir::{Node, Op, Scalar};

pub(super) fn view(rw: &mut Rewriter, node: &Node) -> Found {
    match rw.op(node.operands[0]) {
        Op::Full { value, .. } => {
            let value = *value;
            rw.replace_by_full(node, value)
        }
        Op::Iota { axis, .. } => of_iota(rw, node, *axis),
        _ => Ok(None),
    }
}

/// The axis counted along after the view, where the count still starts at 0 and goes up by 1.
fn of_iota(rw: &mut Rewriter, node: &Node, axis: usize) -> Found {
    let dtype = node.ty.dtype;
    let before = &rw.ty(node.operands[0]).shape;
    if before[axis] == 1 {
        return rw.replace_by_full(node, Scalar::int(dtype, 0));
    }
    let after = match &node.op {
        Op::Permute { order } => order.iter().position(|&from| from == axis),
        Op::Expand { .. } => Some(axis),
        Op::Slice { start, step, .. } => (start[axis].is_zero() && step[axis] == 1).then_some(axis),
        Op::Flip { axes } => (!axes.contains(&axis)).then_some(axis),
        Op::Unfold { axis: windows, .. } => (*windows != axis).then_some(axis),
        Op::Reshape { shape } => {
            // Axes of size 1 may come and go; the others must be the same ones.
            let long =
                |shape: &[kiln_ir::Dim]| -> Vec<usize> { (0..shape.len()).filter(|&axis| shape[axis] != 1).collect() };
            let (from, to) = (long(before), long(shape));
            let same = from.len() == to.len() && from.iter().zip(&to).all(|(&f, &t)| before[f] == shape[t]);
            let place = from.iter().position(|&f| f == axis).filter(|_| same);
            place.map(|place| to[place])
        }
        _ => None,
    };
    match after {
        Some(axis) => rw.replace(node, Op::Iota { dtype, shape: node.ty.shape.clone(), axis }, &[]),
        None => Ok(None),
    }
}
