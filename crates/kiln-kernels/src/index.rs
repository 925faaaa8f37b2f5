//! Index arithmetic of views: given the index of an element of a view, the index of that element in the view's operand.

use kiln_ir::{Dim, Op, Ranges};

/// Row-major strides of a shape, in elements.
pub(crate) fn contiguous_strides(shape: &[Dim]) -> Vec<Dim> {
    let mut strides = vec![Dim::from(1); shape.len()];
    for at in (1..shape.len()).rev() {
        strides[at - 1] = &strides[at] * &shape[at];
    }
    strides
}

/// The product of sizes.
pub(crate) fn product(shape: &[Dim]) -> Dim {
    shape.iter().product()
}

/// A division met while a reshape was traced that ranges could not decide: `value` by `divisor`. Splitting an axis of
/// `value` may make it exact.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Division {
    /// The dividend.
    pub value: Dim,
    /// The divisor.
    pub divisor: Dim,
}

/// The index, under shape `to`, of the element that has `index` under shape `from`; both shapes have as many elements.
///
/// Axes are matched in the smallest runs of equal product, so that most reshapes divide nothing or little. Divisions that
/// stay are added to `open`.
pub(crate) fn reshape_index(
    from: &[Dim],
    index: &[Dim],
    to: &[Dim],
    ranges: &Ranges,
    open: &mut Vec<Division>,
) -> Vec<Dim> {
    let mut out = vec![Dim::default(); to.len()];
    let (mut i, mut j) = (0, 0);
    loop {
        while i < from.len() && from[i].is_one() {
            i += 1;
        }
        while j < to.len() && to[j].is_one() {
            j += 1;
        }
        if i >= from.len() || j >= to.len() {
            return out;
        }
        let (first_i, first_j) = (i, j);
        let (mut left, mut right) = (from[i].clone(), to[j].clone());
        (i, j) = (i + 1, j + 1);
        while left != right && (i < from.len() || j < to.len()) {
            let grow_left = match (left.as_const(), right.as_const()) {
                (Some(l), Some(r)) => l < r,
                _ => left.div_exact(&right).is_none(),
            };
            if (grow_left && i < from.len()) || j == to.len() {
                left *= &from[i];
                i += 1;
            } else {
                right *= &to[j];
                j += 1;
            }
        }
        // Sizes of one at the end of a run belong to it; they change nothing.
        match_run(&from[first_i..i], &index[first_i..i], &to[first_j..j], &mut out[first_j..j], ranges, open);
    }
}

fn match_run(from: &[Dim], index: &[Dim], to: &[Dim], out: &mut [Dim], ranges: &Ranges, open: &mut Vec<Division>) {
    let mut linear = Dim::default();
    for (size, at) in from.iter().zip(index) {
        linear = linear * size + at;
    }
    if let [only] = out {
        *only = linear.simplify(ranges);
        return;
    }
    let strides = contiguous_strides(to);
    for (at, slot) in out.iter_mut().enumerate() {
        let stride = &strides[at];
        let mut value = if stride.is_one() { linear.clone() } else { linear.floor_div(stride) };
        if at > 0 {
            value = value.modulo(&to[at]);
        }
        *slot = value.simplify(ranges);
    }
    for stride in strides.iter().filter(|s| !s.is_one()) {
        open.push(Division { value: linear.clone(), divisor: stride.clone() });
    }
}

/// The operand's index for a view with attributes but no arithmetic of its own (every view but a reshape).
pub(crate) fn view_index(op: &Op, operand_shape: &[Dim], index: &[Dim]) -> Option<Vec<Dim>> {
    match op {
        Op::Permute { order } => {
            let mut out = vec![Dim::default(); index.len()];
            for (at, &axis) in order.iter().enumerate() {
                out[axis] = index[at].clone();
            }
            Some(out)
        }
        Op::Expand { .. } => {
            let pairs = operand_shape.iter().zip(index);
            Some(pairs.map(|(size, at)| if size.is_one() { Dim::default() } else { at.clone() }).collect())
        }
        Op::Slice { start, step, .. } => {
            Some(index.iter().zip(start).zip(step).map(|((at, start), &step)| at * step + start).collect())
        }
        Op::Flip { axes } => {
            let mut out = index.to_vec();
            for &axis in axes {
                out[axis] = &operand_shape[axis] - 1 - &index[axis];
            }
            Some(out)
        }
        Op::Unfold { axis, stride, dilation, .. } => {
            let (inner, outer) = index.split_last()?;
            let mut out = outer.to_vec();
            out[*axis] = &outer[*axis] * (*stride as i64) + inner * (*dilation as i64);
            Some(out)
        }
        _ => None,
    }
}

/// The index of an element of a view, given its index in the operand; for views that only move elements about.
pub(crate) fn forward_index(
    op: &Op,
    shapes: (&[Dim], &[Dim]),
    index: &[Dim],
    ranges: &Ranges,
    open: &mut Vec<Division>,
) -> Option<Vec<Dim>> {
    let (operand_shape, shape) = shapes;
    match op {
        Op::Reshape { .. } => Some(reshape_index(operand_shape, index, shape, ranges, open)),
        Op::Permute { order } => Some(order.iter().map(|&axis| index[axis].clone()).collect()),
        Op::Flip { .. } => view_index(op, operand_shape, index),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kiln_ir::Symbol;

    fn dims(sizes: &[i64]) -> Vec<Dim> {
        sizes.iter().map(|&n| Dim::from(n)).collect()
    }

    fn reshaped(from: &[Dim], to: &[Dim]) -> Vec<String> {
        let mut ranges = Ranges::new();
        for (at, size) in from.iter().enumerate() {
            ranges.set_below(Symbol::axis(at), size.clone());
        }
        let index: Vec<Dim> = (0..from.len()).map(Dim::axis).collect();
        reshape_index(from, &index, to, &ranges, &mut Vec::new()).iter().map(Dim::to_string).collect()
    }

    #[test]
    fn runs_of_equal_product_match() {
        assert_eq!(reshaped(&dims(&[2, 3, 4]), &dims(&[6, 4])), ["i0*3 + i1", "i2"]);
        assert_eq!(reshaped(&dims(&[6, 1, 4]), &dims(&[2, 3, 4, 1])), ["i0 // 3", "i0 % 3", "i2", "0"]);
        assert_eq!(reshaped(&dims(&[3, 8]), &dims(&[6, 4])), ["i0*2 + i1 // 4", "i1 % 4"]);
    }

    #[test]
    fn symbolic_runs_match() {
        let (b, t) = (Dim::symbol("b").unwrap(), Dim::symbol("t").unwrap());
        let from = [b.clone(), t.clone(), Dim::from(12)];
        assert_eq!(reshaped(&from, &[&b * &t, Dim::from(3), Dim::from(4)]), ["i0*t + i1", "i2 // 4", "i2 % 4"]);
        let back = [&b * &t, Dim::from(12)];
        assert_eq!(reshaped(&back, &[b, t, Dim::from(12)]), ["i0 // t", "i0 % t", "i1"]);
    }
}
