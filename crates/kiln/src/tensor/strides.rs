//! Strides as functions of sizes, so that a program is for tensors of many sizes that are no row-major ones: transposed, channels last,
//! parts of larger tensors.

use crate::Tensor;
use kiln_ir::Dim;
use kiln_kernels::InputLayout;

/// The stride of an axis at any sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct AxisStride {
    step: Step,
    /// Whether the axis runs from high places to low ones.
    backwards: bool,
}

/// How far an axis steps, in either direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Step {
    /// This far, whatever the sizes are.
    Is(isize),
    /// What all places of another axis take, and so many elements more.
    After { axis: usize, gap: isize },
}

impl AxisStride {
    /// Whether all places of the axis are one.
    pub(crate) fn is_repeated(self) -> bool {
        self.step == Step::Is(0)
    }
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

    fn step(self, axis: usize) -> isize {
        self.strides[axis].abs()
    }

    /// Whether an axis runs backwards; nothing where that does not matter.
    fn backwards(self, axis: usize) -> Option<bool> {
        self.has(axis).then(|| self.strides[axis] < 0)
    }

    /// How far beyond all places of another axis an axis steps; nothing where that cannot be seen.
    fn gap(self, axis: usize, after: usize) -> Option<isize> {
        let is_seen = self.has(axis) && self.has(after);
        is_seen.then(|| self.step(axis) - self.shape[after] as isize * self.step(after))
    }

    /// Whether the strides here may be as the rule says.
    fn may_be(self, axis: usize, step: Step) -> bool {
        match step {
            Step::Is(step) => !self.has(axis) || self.step(axis) == step,
            Step::After { axis: after, gap } => self.gap(axis, after).is_none_or(|own| own == gap),
        }
    }
}

/// The strides of a tensor as functions of its sizes: such as hold for an earlier one, too, where there are some. Says also whether they do.
/// Nothing for a tensor that has no elements.
pub(crate) fn rules(now: Seen<'_>, before: Option<Seen<'_>>) -> Option<(Vec<AxisStride>, bool)> {
    let rank = now.shape.len();
    if now.shape.contains(&0) {
        return None;
    }
    let before = before.filter(|before| before.shape.len() == rank);
    let mut holds = true;
    let mut step = |axis: usize| {
        // Inner axes first: they are what strides follow, as a rule. One that takes less room is never after this one.
        let others = (axis + 1..rank).chain((0..axis).rev());
        let inner: Vec<usize> =
            others.filter(|&other| now.has(other) && (1..now.step(axis)).contains(&now.step(other))).collect();
        if !now.has(axis) {
            // As in row-major order.
            let next = (axis + 1..rank).find(|&other| now.has(other) && now.step(other) > 0);
            return next.map_or(Step::Is(1), |axis| Step::After { axis, gap: 0 });
        }
        let after = |gapless: bool| {
            let gap = move |&other: &usize| Some((other, now.gap(axis, other)?));
            let after = inner.iter().filter_map(gap).filter(move |(_, gap)| if gapless { *gap == 0 } else { *gap > 0 });
            after.map(|(axis, gap)| Step::After { axis, gap })
        };
        let is = Step::Is(now.step(axis));
        let known = |step: &Step| before.is_none_or(|before| before.may_be(axis, *step));
        let plain = after(true).chain([is]);
        let found = plain.clone().find(known).or_else(|| after(false).find(known));
        holds &= found.is_some();
        found.or_else(|| plain.clone().next()).unwrap_or(is)
    };
    let steps: Vec<Step> = (0..rank).map(&mut step).collect();
    let direction = |(axis, step): (usize, Step)| {
        let earlier = before.and_then(|before| before.backwards(axis));
        let own = now.backwards(axis);
        holds &= own.is_none() || earlier.is_none() || own == earlier;
        AxisStride { step, backwards: own.or(earlier).unwrap_or(false) }
    };
    let rules = steps.into_iter().enumerate().map(direction).collect();
    Some((rules, holds))
}

/// The stride of an axis at these sizes.
pub(crate) fn stride_at(rules: &[AxisStride], shape: &[usize], axis: usize) -> isize {
    fn step(rules: &[AxisStride], shape: &[usize], axis: usize) -> isize {
        match rules[axis].step {
            Step::Is(step) => step,
            Step::After { axis, gap } => shape[axis] as isize * step(rules, shape, axis) + gap,
        }
    }
    let step = step(rules, shape, axis);
    if rules[axis].backwards { -step } else { step }
}

/// Whether a tensor has these strides, but for axes of fewer than two places.
pub(crate) fn hold(rules: &[AxisStride], tensor: &Tensor) -> bool {
    let (shape, strides) = (tensor.shape(), tensor.strides());
    (0..shape.len()).all(|axis| shape[axis] < 2 || strides[axis] == stride_at(rules, shape, axis))
}

/// The layout of a tensor of this shape, from the lowest place that it touches.
pub(crate) fn layout(rules: &[AxisStride], shape: &[Dim]) -> InputLayout {
    fn step(rules: &[AxisStride], shape: &[Dim], axis: usize) -> Dim {
        match rules[axis].step {
            Step::Is(step) => Dim::from(step as i64),
            Step::After { axis, gap } => shape[axis].clone() * step(rules, shape, axis) + Dim::from(gap as i64),
        }
    }
    let mut layout = InputLayout { strides: Vec::with_capacity(shape.len()), offset: Dim::from(0) };
    for (axis, size) in shape.iter().enumerate() {
        let stride = match (size.is_one(), rules[axis].backwards) {
            (true, _) => Dim::from(0),
            (false, false) => step(rules, shape, axis),
            (false, true) => {
                let step = step(rules, shape, axis);
                layout.offset += (size.clone() - Dim::from(1)) * step.clone();
                step * Dim::from(-1)
            }
        };
        layout.strides.push(stride);
    }
    layout
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
    fn axes_run_backwards() {
        let reversed = of((&[4, 5], &[-5, 1]), None);
        assert_eq!(at(&reversed, &[7, 3]), [-3, 1]);
        let layout = layout(&reversed, &[Dim::from(7), Dim::from(3)]);
        assert_eq!((layout.strides[0].as_const(), layout.offset.as_const()), (Some(-3), Some(18)));
        // An axis of one place runs as it did before.
        assert_eq!(at(&of((&[1, 5], &[0, 1]), Some((&[4, 5], &[-5, 1]))), &[3, 2]), [-2, 1]);
        let seen = |shape, strides| Seen { shape, strides };
        let turned = rules(seen(&[4, 5], &[5, -1]), Some(seen(&[4, 6], &[6, 1]))).unwrap();
        assert!(!turned.1);
    }

    #[test]
    fn nothing_follows_nothing() {
        assert!(rules(Seen { shape: &[0, 5], strides: &[5, 1] }, None).is_none());
    }
}
