//! Points of several axes, one after the other.

use super::Extent;

/// A point of some axes.
pub(super) struct Odometer<'a> {
    axes: &'a [Extent],
    point: crate::small_vec::SmallVec<i64>,
}

impl<'a> Odometer<'a> {
    pub(super) fn new(axes: &'a [Extent], position: usize) -> Odometer<'a> {
        let mut point: crate::small_vec::SmallVec<i64> = axes.iter().map(|_| 0).collect();
        let mut rest = position;
        for (at, axis) in point.iter_mut().zip(axes).rev() {
            *at = (rest % axis.size.max(1)) as i64;
            rest /= axis.size.max(1);
        }
        Odometer { axes, point }
    }

    /// A linear expression at the point.
    pub(super) fn at(&self, coefficients: &[isize]) -> isize {
        self.point.iter().zip(coefficients).map(|(&x, c)| x as isize * c).sum()
    }

    /// Steps to the end of the last axis.
    pub(super) fn left(&self) -> usize {
        match (self.axes.last(), self.point.last()) {
            (Some(axis), Some(&at)) => axis.size - at as usize,
            _ => 1,
        }
    }

    pub(super) fn advance(&mut self) {
        self.skip(1);
    }

    /// Goes on by no more than what is left of the last axis.
    pub(super) fn skip(&mut self, steps: usize) {
        let mut steps = steps as i64;
        for (at, axis) in self.point.iter_mut().zip(self.axes).rev() {
            *at += steps;
            if *at < axis.size as i64 {
                return;
            }
            *at = 0;
            steps = 1;
        }
    }
}
