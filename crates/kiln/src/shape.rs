//! Shapes and axes as arguments: arrays, slices, tuples, plain numbers; negative axes count from the end.

use crate::{Error, Result};
use kiln_ir::Source;
use std::ops::RangeFull;

/// An integer that may be a size or an axis.
pub trait Size: Copy {
    /// As i64; a value beyond saturates, which no shape accepts.
    fn to_i64(self) -> i64;
}

macro_rules! sizes {
    ($($type:ty)*) => { $(
        impl Size for $type {
            fn to_i64(self) -> i64 {
                i64::try_from(self).unwrap_or(i64::MAX)
            }
        }
    )* };
}
sizes! { usize u32 u64 i32 i64 isize }

/// What can be given where a shape is wanted: `[2, 3]`, `(b, 3)`, `&[2, 3]`, a `Vec`, one number, or `()` for no axes.
/// [`crate::Tensor::reshape`] takes one −1 among the sizes.
///
/// ```
/// use kiln::Shape;
/// let batch: usize = 2;
/// assert_eq!((batch, -1, 4).sizes(), [2, -1, 4]);
/// assert_eq!([2, 3].sizes(), [2, 3]);
/// assert_eq!(7.sizes(), [7]);
/// ```
pub trait Shape {
    /// The sizes, in order.
    fn sizes(&self) -> Vec<i64>;
}

impl<T: Size> Shape for T {
    fn sizes(&self) -> Vec<i64> {
        vec![self.to_i64()]
    }
}

impl<T: Size, const N: usize> Shape for [T; N] {
    fn sizes(&self) -> Vec<i64> {
        self.iter().map(|n| n.to_i64()).collect()
    }
}

impl<T: Size, const N: usize> Shape for &[T; N] {
    fn sizes(&self) -> Vec<i64> {
        self.iter().map(|n| n.to_i64()).collect()
    }
}

impl<T: Size> Shape for &[T] {
    fn sizes(&self) -> Vec<i64> {
        self.iter().map(|n| n.to_i64()).collect()
    }
}

impl<T: Size> Shape for Vec<T> {
    fn sizes(&self) -> Vec<i64> {
        self.iter().map(|n| n.to_i64()).collect()
    }
}

impl<T: Size> Shape for &Vec<T> {
    fn sizes(&self) -> Vec<i64> {
        self.iter().map(|n| n.to_i64()).collect()
    }
}

impl Shape for () {
    fn sizes(&self) -> Vec<i64> {
        vec![]
    }
}

macro_rules! tuples {
    ($(($($t:ident $n:tt)*))*) => { $(
        impl<$($t: Size),*> Shape for ($($t,)*) {
            fn sizes(&self) -> Vec<i64> {
                vec![$(self.$n.to_i64()),*]
            }
        }
    )* };
}
tuples! { (A 0) (A 0 B 1) (A 0 B 1 C 2) (A 0 B 1 C 2 D 3) (A 0 B 1 C 2 D 3 E 4) (A 0 B 1 C 2 D 3 E 4 F 5) }

/// What can be given where axes are wanted: one axis, several, or `..` for all. Negative axes count from the end.
///
/// ```
/// use kiln::Axes;
/// assert_eq!((-1).axes(3), [-1]);
/// assert_eq!([0, 1].axes(3), [0, 1]);
/// assert_eq!((..).axes(3), [0, 1, 2]);
/// ```
pub trait Axes {
    /// The axes as given, for a tensor of this rank.
    fn axes(&self, rank: usize) -> Vec<i64>;
}

impl<T: Size> Axes for T {
    fn axes(&self, _rank: usize) -> Vec<i64> {
        vec![self.to_i64()]
    }
}

impl<T: Size, const N: usize> Axes for [T; N] {
    fn axes(&self, _rank: usize) -> Vec<i64> {
        self.sizes()
    }
}

impl<T: Size> Axes for &[T] {
    fn axes(&self, _rank: usize) -> Vec<i64> {
        self.sizes()
    }
}

impl<T: Size> Axes for Vec<T> {
    fn axes(&self, _rank: usize) -> Vec<i64> {
        self.sizes()
    }
}

impl<T: Size> Axes for &Vec<T> {
    fn axes(&self, _rank: usize) -> Vec<i64> {
        self.sizes()
    }
}

impl Axes for RangeFull {
    fn axes(&self, rank: usize) -> Vec<i64> {
        (0..rank as i64).collect()
    }
}

/// A shape without negative sizes.
pub(crate) fn resolve_shape(op: &'static str, shape: impl Shape, at: &Source) -> Result<Vec<usize>> {
    let sizes = shape.sizes();
    match sizes.iter().map(|&n| usize::try_from(n).ok()).collect() {
        Some(shape) => Ok(shape),
        None => Err(Error::BadShape { op, sizes, at: at.clone() }),
    }
}

/// One axis; `extra` is 1 where a place after the last axis is meant too.
pub(crate) fn resolve_axis(
    op: &'static str,
    axis: impl Size,
    shape: &[usize],
    extra: usize,
    at: &Source,
) -> Result<usize> {
    let axis = axis.to_i64();
    let rank = shape.len() + extra;
    let resolved = if axis < 0 { axis + rank as i64 } else { axis };
    match usize::try_from(resolved) {
        Ok(resolved) if resolved < rank => Ok(resolved),
        _ => Err(Error::AxisOutOfRange { op, axis, shape: shape.to_vec(), at: at.clone() }),
    }
}

/// Several axes, ascending, none of them twice.
pub(crate) fn resolve_axes(op: &'static str, axes: impl Axes, shape: &[usize], at: &Source) -> Result<Vec<usize>> {
    let mut resolved = Vec::new();
    for axis in axes.axes(shape.len()) {
        let axis = resolve_axis(op, axis, shape, 0, at)?;
        if resolved.contains(&axis) {
            return Err(Error::DuplicateAxis { op, axis, shape: shape.to_vec(), at: at.clone() });
        }
        resolved.push(axis);
    }
    resolved.sort_unstable();
    Ok(resolved)
}

/// The shape that both broadcast to, by NumPy's rule: aligned at the end, sizes equal or one of them 1.
pub(crate) fn broadcast(op: &'static str, lhs: &[usize], rhs: &[usize], at: &Source) -> Result<Vec<usize>> {
    let rank = lhs.len().max(rhs.len());
    let size = |shape: &[usize], axis: usize| (axis + shape.len()).checked_sub(rank).map_or(1, |i| shape[i]);
    let mut shape = Vec::with_capacity(rank);
    for axis in 0..rank {
        match (size(lhs, axis), size(rhs, axis)) {
            (a, b) if a == b => shape.push(a),
            (1, b) => shape.push(b),
            (a, 1) => shape.push(a),
            (a, b) => {
                let (lhs, rhs) = (lhs.to_vec(), rhs.to_vec());
                return Err(Error::ShapeMismatch { op, lhs, rhs, sizes: Some((a, b)), at: at.clone() });
            }
        }
    }
    Ok(shape)
}

/// The product of the sizes; `None` beyond what a signed 64-bit position reaches.
pub(crate) fn checked_elements(shape: &[usize]) -> Option<usize> {
    if shape.contains(&0) {
        return Some(0);
    }
    let product = shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d))?;
    (product <= isize::MAX as usize / 8).then_some(product)
}
