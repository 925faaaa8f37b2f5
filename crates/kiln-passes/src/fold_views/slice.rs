//! Slices: of slices, of expansions and permutations, of padding and of concatenations.

use crate::dims::{at_least, slice_end};
use crate::rewrite::{Found, Rewriter};
use kiln_ir::{Dim, Node, NodeId, Op};

pub(super) fn rule(rw: &mut Rewriter, node: &Node, start: &[Dim], size: &[Dim], step: &[i64]) -> Found {
    let x = node.operands[0];
    // All elements, then: from the first, one after the other.
    if rw.ty(x).shape == size {
        return Ok(Some(x));
    }
    match rw.op(x) {
        Op::Slice { .. } => of_slice(rw, node, start, size, step),
        Op::Permute { order } => {
            let order = order.clone();
            let mut inner_axis = vec![0; order.len()];
            order.iter().enumerate().for_each(|(axis, &from)| inner_axis[from] = axis);
            let before = |axis: &usize| (start[*axis].clone(), size[*axis].clone(), step[*axis]);
            let (start, (size, step)) = inner_axis.iter().map(before).map(|(a, b, c)| (a, (b, c))).unzip();
            let inner = rw.operand(x);
            let taken = rw.emit(node, Op::Slice { start, size, step }, &[inner])?;
            rw.replace(node, Op::Permute { order }, &[taken])
        }
        Op::Expand { .. } => of_expand(rw, node, start, size, step),
        Op::Pad { .. } => of_pad(rw, node, start, size, step),
        Op::Concat { axis } => of_concat(rw, node, *axis, start, size, step),
        _ => Ok(None),
    }
}

/// Index i of the outer is `start + i·step` of the inner. Where nothing may be left to take, a step of the inner could carry
/// the start beyond the end, so those stay.
fn of_slice(rw: &mut Rewriter, node: &Node, start: &[Dim], size: &[Dim], step: &[i64]) -> Found {
    let x = node.operands[0];
    let Op::Slice { start: start0, step: step0, .. } = rw.op(x) else { return Ok(None) };
    let within = |axis: usize| step0[axis] == 1 || at_least(&size[axis], &Dim::from(1));
    let Some(joined) = step.iter().zip(step0).map(|(&outer, &inner)| outer.checked_mul(inner)).collect() else {
        return Ok(None);
    };
    if !(0..step.len()).all(within) {
        return Ok(None);
    }
    let start = start.iter().zip(start0.iter().zip(step0)).map(|(outer, (inner, &by))| inner + outer * by).collect();
    let inner = rw.operand(x);
    rw.replace(node, Op::Slice { start, size: size.to_vec(), step: joined }, &[inner])
}

/// Along a repeated axis every index shows the same element.
fn of_expand(rw: &mut Rewriter, node: &Node, start: &[Dim], size: &[Dim], step: &[i64]) -> Found {
    let inner = rw.operand(node.operands[0]);
    let repeated: Vec<bool> = rw.ty(inner).shape.iter().map(Dim::is_one).collect();
    let pick = |axis: usize, of: &Dim, one: i64| if repeated[axis] { Dim::from(one) } else { of.clone() };
    let start = start.iter().enumerate().map(|(axis, of)| pick(axis, of, 0)).collect();
    let size = size.iter().enumerate().map(|(axis, of)| pick(axis, of, 1)).collect();
    let step = step.iter().enumerate().map(|(axis, &of)| if repeated[axis] { 1 } else { of }).collect();
    let taken = rw.emit(node, Op::Slice { start, size, step }, &[inner])?;
    rw.replace(node, Op::Expand { shape: node.ty.shape.clone() }, &[taken])
}

/// A slice that leaves an axis whole keeps the padding there; one that stays inside needs none.
fn of_pad(rw: &mut Rewriter, node: &Node, start: &[Dim], size: &[Dim], step: &[i64]) -> Found {
    let x = node.operands[0];
    let Op::Pad { low, high, value } = rw.op(x) else { return Ok(None) };
    let (inner, value) = (rw.operand(x), *value);
    let (mut low, mut high) = (low.clone(), high.clone());
    let (mut start, mut size, mut step) = (start.to_vec(), size.to_vec(), step.to_vec());
    let (padded, within) = (&rw.ty(x).shape, &rw.ty(inner).shape);
    for axis in 0..padded.len() {
        if size[axis] == padded[axis] {
            (start[axis], size[axis], step[axis]) = (Dim::from(0), within[axis].clone(), 1);
            continue;
        }
        let end = slice_end(&start[axis], &size[axis], step[axis]);
        let inside = at_least(&start[axis], &low[axis]) && at_least(&(&low[axis] + &within[axis]), &end);
        if !inside || !at_least(&size[axis], &Dim::from(1)) {
            return Ok(None);
        }
        start[axis] -= &low[axis];
        (low[axis], high[axis]) = (Dim::from(0), Dim::from(0));
    }
    let taken = rw.emit(node, Op::Slice { start, size, step }, &[inner])?;
    if low.iter().chain(&high).all(Dim::is_zero) {
        return Ok(Some(taken));
    }
    rw.replace(node, Op::Pad { low, high, value }, &[taken])
}

/// A slice that falls inside one part is a slice of that part.
fn of_concat(rw: &mut Rewriter, node: &Node, axis: usize, start: &[Dim], size: &[Dim], step: &[i64]) -> Found {
    if !at_least(&size[axis], &Dim::from(1)) {
        return Ok(None);
    }
    let end = slice_end(&start[axis], &size[axis], step[axis]);
    let mut offset = Dim::from(0);
    let mut found: Option<(NodeId, Dim)> = None;
    for &part in &rw.node(node.operands[0]).operands {
        let next = &offset + &rw.ty(part).shape[axis];
        if at_least(&start[axis], &offset) && at_least(&next, &end) {
            found = Some((part, &start[axis] - &offset));
            break;
        }
        offset = next;
    }
    let Some((part, first)) = found else { return Ok(None) };
    let mut start = start.to_vec();
    start[axis] = first;
    rw.replace(node, Op::Slice { start, size: size.to_vec(), step: step.to_vec() }, &[part])
}
