//! How a tensor lies in its buffer: sizes, strides and the place of its first element, all in elements. Views are made by changing a
//! layout; memory is never touched.

/// Sizes, strides and offset.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Layout {
    shape: Vec<usize>,
    strides: Vec<isize>,
    offset: usize,
}

impl Layout {
    /// Row-major from the buffer's start.
    pub fn contiguous(shape: Vec<usize>) -> Layout {
        let strides = contiguous_strides(&shape);
        Layout { shape, strides, offset: 0 }
    }

    /// A layout of any kind; strides that are missing are 0, and those of axes with fewer than two places do not matter.
    /// [`crate::Tensor::from_buffer`] checks it against a buffer.
    pub fn new(shape: Vec<usize>, mut strides: Vec<isize>, offset: usize) -> Layout {
        strides.resize(shape.len(), 0);
        for (stride, _) in strides.iter_mut().zip(&shape).filter(|(_, size)| **size < 2) {
            *stride = 0;
        }
        Layout { shape, strides, offset }
    }

    /// Whether every element lies in a buffer of so many elements; false also where that is beyond arithmetic.
    pub(crate) fn fits(&self, capacity: usize) -> bool {
        let Some(elements) = crate::tensor::shape::checked_elements(&self.shape) else { return false };
        if elements == 0 {
            return true;
        }
        let (mut low, mut high) = (self.offset as i128, self.offset as i128);
        for (&size, &stride) in self.shape.iter().zip(&self.strides) {
            let last = (size as i128 - 1) * stride as i128;
            if last < 0 { low += last } else { high += last }
        }
        low >= 0 && high < capacity as i128
    }

    /// Sizes.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Elements that a step along each axis moves; may be 0 or negative.
    pub fn strides(&self) -> &[isize] {
        &self.strides
    }

    /// Place of the first element.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Number of axes.
    pub fn rank(&self) -> usize {
        self.shape.len()
    }

    /// Number of elements.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// True when the elements lie in row-major order without gaps.
    pub fn is_contiguous(&self) -> bool {
        let mut expected = 1isize;
        for (&size, &stride) in self.shape.iter().zip(&self.strides).rev() {
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

    /// The smallest and the largest place touched, relative to the offset; `None` when there are no elements.
    pub fn reach(&self) -> Option<(isize, isize)> {
        let (mut low, mut high) = (0, 0);
        for (&size, &stride) in self.shape.iter().zip(&self.strides) {
            let last = stride * (size as isize).checked_sub(1).filter(|&n| n >= 0)?;
            if last < 0 { low += last } else { high += last }
        }
        Some((low, high))
    }

    /// Axis `i` of the result is axis `order[i]`.
    pub fn permute(&self, order: &[usize]) -> Layout {
        let shape = order.iter().map(|&axis| self.shape[axis]).collect();
        let strides = order.iter().map(|&axis| self.strides[axis]).collect();
        Layout { shape, strides, offset: self.offset }
    }

    /// Repeats axes of size 1; same rank.
    pub fn expand(&self, shape: Vec<usize>) -> Layout {
        let same = |i: usize| self.shape[i] == shape[i];
        let strides = (0..shape.len()).map(|i| if same(i) { self.strides[i] } else { 0 }).collect();
        Layout { shape, strides, offset: self.offset }
    }

    /// `size` elements an axis, from `start`, every `step`th.
    pub fn slice(&self, start: &[usize], size: &[usize], step: &[usize]) -> Layout {
        // With no elements the first place may lie beyond the buffer, so it is left where it is.
        let moved = |i: usize| start[i] as isize * self.strides[i];
        let offset = if size.contains(&0) { 0 } else { (0..size.len()).map(moved).sum() };
        let strides = self.strides.iter().zip(step).map(|(&stride, &step)| stride * step as isize).collect();
        Layout { shape: size.to_vec(), strides, offset: (self.offset as isize + offset) as usize }
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

    /// Windows along an axis; the new last axis counts inside a window.
    pub fn unfold(&self, axis: usize, size: usize, stride: usize, dilation: usize) -> Layout {
        let mut unfolded = self.clone();
        let reach = size.saturating_sub(1) * dilation + 1;
        unfolded.shape[axis] = self.shape[axis].checked_sub(reach).map_or(0, |room| room / stride + 1);
        unfolded.strides[axis] = self.strides[axis] * stride as isize;
        unfolded.shape.push(size);
        unfolded.strides.push(self.strides[axis] * dilation as isize);
        unfolded
    }

    /// The same elements in row-major order under another shape of as many elements, if strides can say that.
    pub fn reshape(&self, shape: &[usize]) -> Option<Layout> {
        if self.is_contiguous() {
            return Some(Layout { offset: self.offset, ..Layout::contiguous(shape.to_vec()) });
        }
        // Axes of size 1 say nothing; runs of the others are matched, shortest first, by their number of elements.
        let old: Vec<(usize, isize)> =
            self.shape.iter().copied().zip(self.strides.iter().copied()).filter(|&(size, _)| size != 1).collect();
        let mut strides = vec![0; shape.len()];
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
        Some(Layout { shape: shape.to_vec(), strides, offset: self.offset })
    }
}

/// Row-major strides.
pub(crate) fn contiguous_strides(shape: &[usize]) -> Vec<isize> {
    let mut strides = vec![1; shape.len()];
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis] * shape[axis].max(1) as isize;
    }
    strides
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The places of all elements in row-major order.
    fn places(layout: &Layout) -> Vec<isize> {
        let mut places = vec![layout.offset as isize];
        for (&size, &stride) in layout.shape.iter().zip(&layout.strides) {
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
