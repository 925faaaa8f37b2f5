//! The layout of a tensor in its buffer: sizes, strides and the offset of its first element, all in elements. Views are
//! made by changing a layout; memory is never touched.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::{Deref, DerefMut};

/// Sizes, strides and offset.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Layout {
    shape: Axes<usize>,
    strides: Axes<isize>,
    offset: usize,
}

/// Axes up to which their numbers need no memory of their own.
const INLINE: usize = 6;

/// A number an axis.
#[derive(Clone)]
enum Axes<T> {
    Inline { rank: u8, numbers: [T; INLINE] },
    Long(Box<[T]>),
}

impl<T: Copy + Default> Axes<T> {
    /// As many as there are axes, all zero.
    #[inline]
    fn zero(rank: usize) -> Axes<T> {
        match rank {
            0..=INLINE => Axes::Inline { rank: rank as u8, numbers: [T::default(); INLINE] },
            _ => Axes::Long(vec![T::default(); rank].into()),
        }
    }

    #[inline]
    fn of(numbers: &[T]) -> Axes<T> {
        Axes::from_fn(numbers.len(), |axis| numbers[axis])
    }

    #[inline]
    fn from_fn(rank: usize, number: impl Fn(usize) -> T) -> Axes<T> {
        let mut axes = Axes::zero(rank);
        axes.iter_mut().enumerate().for_each(|(axis, to)| *to = number(axis));
        axes
    }
}

impl<T> Deref for Axes<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        match self {
            Axes::Inline { rank, numbers } => &numbers[..usize::from(*rank)],
            Axes::Long(numbers) => numbers,
        }
    }
}

impl<T> DerefMut for Axes<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        match self {
            Axes::Inline { rank, numbers } => &mut numbers[..usize::from(*rank)],
            Axes::Long(numbers) => numbers,
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for Axes<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: PartialEq> PartialEq for Axes<T> {
    fn eq(&self, other: &Axes<T>) -> bool {
        **self == **other
    }
}

impl<T: Eq> Eq for Axes<T> {}

impl<T: Hash> Hash for Axes<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (**self).hash(state);
    }
}

impl Layout {
    /// Returns the row-major layout at the start of a buffer.
    pub fn contiguous(shape: impl AsRef<[usize]>) -> Layout {
        let shape = Axes::of(shape.as_ref());
        let mut strides = Axes::zero(shape.len());
        fill_contiguous(&shape, &mut strides);
        Layout { shape, strides, offset: 0 }
    }

    /// Makes a layout from its parts; missing strides are 0, and strides of axes with fewer than two elements do not
    /// matter. [`crate::Tensor::from_buffer`] checks it against a buffer.
    pub fn new(shape: impl AsRef<[usize]>, strides: impl AsRef<[isize]>, offset: usize) -> Layout {
        let (shape, given) = (Axes::of(shape.as_ref()), strides.as_ref());
        let stride = |axis: usize| if shape[axis] < 2 { 0 } else { given.get(axis).copied().unwrap_or(0) };
        let strides = Axes::from_fn(shape.len(), stride);
        Layout { shape, strides, offset }
    }

    /// Returns whether every element is within a buffer of so many elements; false also if the arithmetic overflows.
    pub(crate) fn fits(&self, capacity: usize) -> bool {
        let Some(elements) = crate::tensor::shape::checked_elements(&self.shape) else { return false };
        if elements == 0 {
            return true;
        }
        let (mut low, mut high) = (self.offset as i128, self.offset as i128);
        for (&size, &stride) in self.shape.iter().zip(self.strides.iter()) {
            let last = (size as i128 - 1) * stride as i128;
            if last < 0 { low += last } else { high += last }
        }
        low >= 0 && high < capacity as i128
    }

    /// Returns the sizes.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Returns the stride of each axis in elements; strides may be 0 or negative.
    pub fn strides(&self) -> &[isize] {
        &self.strides
    }

    /// Returns the offset of the first element.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Returns the number of axes.
    pub fn rank(&self) -> usize {
        self.shape.len()
    }

    /// Returns the number of elements.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Returns whether the elements are in row-major order without gaps.
    pub fn is_contiguous(&self) -> bool {
        let mut expected = 1isize;
        for (&size, &stride) in self.shape.iter().zip(self.strides.iter()).rev() {
            if size == 0 {
                return true;
            }
            if size != 1 {
                if stride != expected {
                    return false;
                }
                expected *= size as isize;
            }
        }
        true
    }

    /// Returns the smallest and the largest element position, relative to the offset; `None` when there are no elements.
    pub fn reach(&self) -> Option<(isize, isize)> {
        let (mut low, mut high) = (0, 0);
        for (&size, &stride) in self.shape.iter().zip(self.strides.iter()) {
            let last = stride * (size as isize).checked_sub(1).filter(|&n| n >= 0)?;
            if last < 0 { low += last } else { high += last }
        }
        Some((low, high))
    }

    /// Permutes the axes: axis `i` of the result is axis `order[i]`.
    pub fn permute(&self, order: &[usize]) -> Layout {
        let shape = Axes::from_fn(order.len(), |axis| self.shape[order[axis]]);
        let strides = Axes::from_fn(order.len(), |axis| self.strides[order[axis]]);
        Layout { shape, strides, offset: self.offset }
    }

    /// Repeats axes of size 1; the rank stays the same.
    pub fn expand(&self, shape: impl AsRef<[usize]>) -> Layout {
        let shape = Axes::of(shape.as_ref());
        let same = |i: usize| self.shape[i] == shape[i];
        let strides = Axes::from_fn(shape.len(), |i| if same(i) { self.strides[i] } else { 0 });
        Layout { shape, strides, offset: self.offset }
    }

    /// Takes `size` elements of each axis from `start`, with a step of `step`.
    pub fn slice(&self, start: &[usize], size: &[usize], step: &[usize]) -> Layout {
        // With no elements the first position may be outside of the buffer, so the offset is not changed.
        let moved = |i: usize| start[i] as isize * self.strides[i];
        let offset = if size.contains(&0) { 0 } else { (0..size.len()).map(moved).sum() };
        let strides = Axes::from_fn(self.rank(), |axis| self.strides[axis] * step[axis] as isize);
        Layout { shape: Axes::of(size), strides, offset: (self.offset as isize + offset) as usize }
    }

    /// Reverses axes.
    pub fn flip(&self, axes: &[usize]) -> Layout {
        let mut flipped = self.clone();
        if self.shape.contains(&0) {
            return flipped;
        }
        for &axis in axes {
            let last = (self.shape[axis] - 1) as isize * self.strides[axis];
            flipped.offset = (flipped.offset as isize + last) as usize;
            flipped.strides[axis] = -self.strides[axis];
        }
        flipped
    }

    /// Returns sliding windows along an axis; the new last axis is the position within a window.
    pub fn unfold(&self, axis: usize, size: usize, stride: usize, dilation: usize) -> Layout {
        let reach = size.saturating_sub(1) * dilation + 1;
        let windows = self.shape[axis].checked_sub(reach).map_or(0, |room| room / stride + 1);
        let rank = self.rank();
        let shape = Axes::from_fn(rank + 1, |i| match i {
            _ if i == rank => size,
            _ if i == axis => windows,
            _ => self.shape[i],
        });
        let strides = Axes::from_fn(rank + 1, |i| match i {
            _ if i == rank => self.strides[axis] * dilation as isize,
            _ if i == axis => self.strides[axis] * stride as isize,
            _ => self.strides[i],
        });
        Layout { shape, strides, offset: self.offset }
    }

    /// Returns a layout of another shape for the same elements in row-major order, if strides can express it.
    pub fn reshape(&self, shape: &[usize]) -> Option<Layout> {
        if self.is_contiguous() {
            return Some(Layout { offset: self.offset, ..Layout::contiguous(shape) });
        }
        // Axes of size 1 say nothing; runs of the others are matched, shortest first, by their number of elements.
        let old: Vec<(usize, isize)> =
            self.shape.iter().copied().zip(self.strides.iter().copied()).filter(|&(size, _)| size != 1).collect();
        let mut strides = Axes::zero(shape.len());
        let (mut from, mut to) = (0, 0);
        while from < old.len() {
            let (mut from_end, mut to_end) = (from + 1, to + 1);
            let (mut had, mut wanted) = (old[from].0, *shape.get(to)?);
            while had != wanted {
                if had < wanted {
                    had *= old.get(from_end)?.0;
                    from_end += 1;
                } else {
                    wanted *= shape.get(to_end)?;
                    to_end += 1;
                }
            }
            let run = &old[from..from_end];
            let gapless = run.windows(2).all(|pair| pair[0].1 == pair[1].0 as isize * pair[1].1);
            if !gapless {
                return None;
            }
            let mut stride = run[run.len() - 1].1;
            for i in (to..to_end).rev() {
                strides[i] = stride;
                stride *= shape[i] as isize;
            }
            (from, to) = (from_end, to_end);
        }
        Some(Layout { shape: Axes::of(shape), strides, offset: self.offset })
    }
}

/// Writes row-major strides.
fn fill_contiguous(shape: &[usize], strides: &mut [isize]) {
    let mut stride = 1;
    for (to, &size) in strides.iter_mut().zip(shape).rev() {
        *to = stride;
        stride *= size.max(1) as isize;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The places of all elements in row-major order.
    fn places(layout: &Layout) -> Vec<isize> {
        let mut places = vec![layout.offset as isize];
        for (&size, &stride) in layout.shape.iter().zip(layout.strides.iter()) {
            places = places.iter().flat_map(|&p| (0..size as isize).map(move |i| p + i * stride)).collect();
        }
        places
    }

    #[test]
    fn a_reshape_visits_the_same_places() {
        let base = Layout::contiguous(vec![4, 6, 5]);
        let views = [
            base.clone(),
            base.permute(&[1, 0, 2]),
            base.permute(&[2, 1, 0]),
            base.slice(&[0, 0, 0], &[4, 6, 2], &[1, 1, 2]),
            base.slice(&[1, 2, 0], &[2, 3, 5], &[2, 1, 1]),
            base.flip(&[0]),
            base.flip(&[1, 2]),
            Layout::contiguous(vec![4, 1, 5]).expand(vec![4, 6, 5]),
            Layout::contiguous(vec![1, 1, 1]).expand(vec![4, 6, 5]),
        ];
        let (mut viewed, mut copied) = (0, 0);
        for view in &views {
            let n = view.elements();
            for a in (1..=n).filter(|a| n.is_multiple_of(*a)) {
                for b in (1..=n / a).filter(|b| (n / a).is_multiple_of(*b)) {
                    match view.reshape(&[a, 1, b, n / a / b]) {
                        Some(reshaped) => {
                            assert_eq!(places(&reshaped), places(view), "{view:?} to {:?}", reshaped.shape);
                            viewed += 1;
                        }
                        None => copied += 1,
                    }
                }
            }
        }
        assert!(viewed > 100 && copied > 100, "{viewed} views, {copied} copies");
    }

    #[test]
    fn a_reshape_that_only_moves_ones_is_a_view() {
        let view = Layout::contiguous(vec![4, 6, 5]).permute(&[2, 0, 1]);
        assert!(view.reshape(&[1, 5, 4, 1, 6, 1]).is_some());
        assert!(view.reshape(&[5, 24]).is_some());
        assert!(view.reshape(&[20, 6]).is_none());
    }

    #[test]
    fn contiguity() {
        assert!(Layout::contiguous(vec![2, 0, 3]).is_contiguous());
        assert!(Layout::contiguous(vec![]).is_contiguous());
        assert!(Layout::new(vec![1, 3], vec![77, 1], 5).is_contiguous());
        assert!(!Layout::new(vec![2, 3], vec![4, 1], 0).is_contiguous());
        assert!(!Layout::contiguous(vec![3]).flip(&[0]).is_contiguous());
    }

    #[test]
    fn windows() {
        let x = Layout::contiguous(vec![7]);
        assert_eq!(places(&x.unfold(0, 3, 2, 1)), [0, 1, 2, 2, 3, 4, 4, 5, 6]);
        assert_eq!(places(&x.unfold(0, 2, 3, 3)), [0, 3, 3, 6]);
        assert_eq!(x.unfold(0, 9, 1, 1).shape(), [0, 9]);
    }
}
