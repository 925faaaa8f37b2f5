//! Strides as functions of sizes, so that a program is for tensors of many sizes that are no row-major ones: transposed, channels last,
//! parts of larger tensors.

use crate::Tensor;
use kiln_ir::Dim;
use kiln_kernels::InputLayout;

/// The stride of an axis at any sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum AxisStride {
    /// This, whatever the sizes are.
    Is(isize),
    /// What all places of another axis take, and so many elements more.
    After { axis: usize, gap: isize },
}

/// The sizes and strides of a tensor.
#[derive(Clone, Copy)]
pub(crate) struct Seen<'a> {
    pub(crate) shape: &'a [usize],
    pub(crate) strides: &'a [isize],
}

impl<'a> From<&'a Tensor> for Seen<'a> {
    fn from(tensor: &'a Tensor) -> Seen<'a> {
        Seen { shape: tensor.shape(), strides: tensor.strides() }
    }
}

impl Seen<'_> {
    /// Whether an axis has a stride that matters.
    fn has(self, axis: usize) -> bool {
        self.shape[axis] >= 2
    }

    /// How far beyond all places of another axis an axis steps; nothing where that cannot be seen.
    fn gap(self, axis: usize, after: usize) -> Option<isize> {
        let is_seen = self.has(axis) && self.has(after);
        is_seen.then(|| self.strides[axis] - self.shape[after] as isize * self.strides[after])
    }

    /// Whether the strides here may be as the rule says.
    fn may_be(self, axis: usize, rule: AxisStride) -> bool {
        match rule {
            AxisStride::Is(stride) => !self.has(axis) || self.strides[axis] == stride,
            AxisStride::After { axis: after, gap } => self.gap(axis, after).is_none_or(|own| own == gap),
        }
    }
}

/// The strides of a tensor as functions of its sizes: such as hold for an earlier one, too, where there are some. Says also whether they do.
/// Nothing for a tensor that runs backwards, or that has no elements.
pub(crate) fn rules(now: Seen<'_>, before: Option<Seen<'_>>) -> Option<(Vec<AxisStride>, bool)> {
    let rank = now.shape.len();
    if now.shape.contains(&0) || (0..rank).any(|axis| now.has(axis) && now.strides[axis] < 0) {
        return None;
    }
    let before = before.filter(|before| before.shape.len() == rank);
    let mut holds = true;
    let rule = |axis: usize| {
        // Inner axes first: they are what strides follow, as a rule. One that takes less room is never after this one.
        let others = (axis + 1..rank).chain((0..axis).rev());
        let inner: Vec<usize> =
            others.filter(|&other| now.has(other) && (1..now.strides[axis]).contains(&now.strides[other])).collect();
        if !now.has(axis) {
            // As in row-major order.
            let next = (axis + 1..rank).find(|&other| now.has(other) && now.strides[other] > 0);
            return next.map_or(AxisStride::Is(1), |axis| AxisStride::After { axis, gap: 0 });
        }
        let after = |gapless: bool| {
            let gap = move |&other: &usize| Some((other, now.gap(axis, other)?));
            let after = inner.iter().filter_map(gap).filter(move |(_, gap)| if gapless { *gap == 0 } else { *gap > 0 });
            after.map(|(axis, gap)| AxisStride::After { axis, gap })
        };
        let is = AxisStride::Is(now.strides[axis]);
        let known = |rule: &AxisStride| before.is_none_or(|before| before.may_be(axis, *rule));
        let plain = after(true).chain([is]);
        let found = plain.clone().find(known).or_else(|| after(false).find(known));
        holds &= found.is_some();
        found.or_else(|| plain.clone().next()).unwrap_or(is)
    };
    let rules = (0..rank).map(rule).collect();
    Some((rules, holds))
}

/// The stride of an axis at these sizes.
pub(crate) fn stride_at(rules: &[AxisStride], shape: &[usize], axis: usize) -> isize {
    match rules[axis] {
        AxisStride::Is(stride) => stride,
        AxisStride::After { axis, gap } => shape[axis] as isize * stride_at(rules, shape, axis) + gap,
    }
}

/// Whether a tensor has these strides, but for axes of fewer than two places.
pub(crate) fn hold(rules: &[AxisStride], tensor: &Tensor) -> bool {
    let (shape, strides) = (tensor.shape(), tensor.strides());
    (0..shape.len()).all(|axis| shape[axis] < 2 || strides[axis] == stride_at(rules, shape, axis))
}

/// The layout of a tensor of this shape.
pub(crate) fn layout(rules: &[AxisStride], shape: &[Dim]) -> InputLayout {
    fn stride(rules: &[AxisStride], shape: &[Dim], axis: usize) -> Dim {
        match rules[axis] {
            AxisStride::Is(stride) => Dim::from(stride as i64),
            AxisStride::After { axis, gap } => shape[axis].clone() * stride(rules, shape, axis) + Dim::from(gap as i64),
        }
    }
    let own = |axis: usize| if shape[axis].is_one() { Dim::from(0) } else { stride(rules, shape, axis) };
    InputLayout { strides: (0..shape.len()).map(own).collect(), offset: Dim::from(0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(rules: &[AxisStride], shape: &[usize]) -> Vec<isize> {
        (0..shape.len()).map(|axis| stride_at(rules, shape, axis)).collect()
    }

    /// The rules for a tensor, and after another.
    fn of(now: (&[usize], &[isize]), before: Option<(&[usize], &[isize])>) -> Vec<AxisStride> {
        let seen = |(shape, strides)| Seen { shape, strides };
        rules(seen(now), before.map(seen)).unwrap().0
    }

    #[test]
    fn strides_follow_sizes() {
        let transposed = of((&[5, 16], &[1, 5]), None);
        assert_eq!(at(&transposed, &[7, 16]), [1, 7]);
        let channels_last = of((&[2, 3, 4, 5], &[60, 1, 15, 3]), None);
        assert_eq!(at(&channels_last, &[6, 3, 7, 8]), [168, 1, 24, 3]);
        let columns = of((&[5, 16], &[32, 1]), None);
        assert_eq!(at(&columns, &[9, 16]), [32, 1]);
        let repeated = of((&[4, 5, 16], &[0, 1, 5]), None);
        assert_eq!(at(&repeated, &[2, 3, 16]), [0, 1, 3]);
    }

    #[test]
    fn an_earlier_tensor_says_which_of_them() {
        // All columns of a wider matrix, and then fewer: the stride is the matrix's.
        assert_eq!(at(&of((&[5, 32], &[32, 1]), Some((&[5, 20], &[32, 1]))), &[5, 7]), [32, 1]);
        assert_eq!(at(&of((&[5, 32], &[32, 1]), Some((&[5, 20], &[20, 1]))), &[5, 7]), [7, 1]);
        // All tokens but the last.
        assert_eq!(at(&of((&[5, 32], &[33, 1]), Some((&[5, 20], &[21, 1]))), &[5, 7]), [8, 1]);
        // A transposed matrix, after a row-major one.
        assert_eq!(at(&of((&[5, 32], &[1, 5]), Some((&[5, 20], &[20, 1]))), &[6, 7]), [1, 6]);
    }

    #[test]
    fn nothing_follows_backwards() {
        let seen = |shape, strides| Seen { shape, strides };
        assert!(rules(seen(&[4, 5], &[-5, 1]), None).is_none());
        assert!(rules(seen(&[0, 5], &[5, 1]), None).is_none());
    }
}
