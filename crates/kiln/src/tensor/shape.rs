//! Shapes and axes as arguments: arrays, slices, tuples, plain numbers; negative axes count from the end.

use crate::tensor::dim;
use crate::{DType, Dim, Error, Result};
use kiln_ir::Source;
use std::ops::RangeFull;

/// An integer that may be a size or an axis.
pub trait Size: Copy {
    /// As i64; a value beyond saturates, which no shape accepts. Of a [`Dim`] this asks for the number.
    #[track_caller]
    fn to_i64(self) -> i64;

    /// As a size to compute with.
    fn to_dim(self) -> Dim;
}

macro_rules! sizes {
    ($($type:ty)*) => { $(
        impl Size for $type {
            fn to_i64(self) -> i64 {
                i64::try_from(self).unwrap_or(i64::MAX)
            }
            fn to_dim(self) -> Dim {
                self.into()
            }
        }
    )* };
}
sizes! { usize u32 u64 i32 i64 isize }

impl Size for Dim {
    #[track_caller]
    fn to_i64(self) -> i64 {
        self.number(&Source::caller())
    }
    fn to_dim(self) -> Dim {
        self
    }
}

/// A type that can be passed as a shape: `[2, 3]`, `(b, 3)`, `&[2, 3]`, a `Vec`, one number, or `()` for no axes. Each size
/// is a number or a [`Dim`]. [`crate::Tensor::reshape`] accepts one −1 among them.
///
/// ```
/// use kiln::{Dim, Shape};
/// let (batch, rows): (usize, Dim) = (2, Dim::from(6));
/// assert_eq!((batch, -1, rows / 3).sizes(), [2, -1, 2]);
/// assert_eq!([2, 3].sizes(), [2, 3]);
/// assert_eq!(7.sizes(), [7]);
/// ```
pub trait Shape {
    /// The sizes, in order.
    fn sizes(&self) -> Vec<Dim>;
}

impl<T: Size> Shape for T {
    fn sizes(&self) -> Vec<Dim> {
        vec![self.to_dim()]
    }
}

impl<T: Size, const N: usize> Shape for [T; N] {
    fn sizes(&self) -> Vec<Dim> {
        self.iter().map(|n| n.to_dim()).collect()
    }
}

impl<T: Size, const N: usize> Shape for &[T; N] {
    fn sizes(&self) -> Vec<Dim> {
        self.iter().map(|n| n.to_dim()).collect()
    }
}

impl<T: Size> Shape for &[T] {
    fn sizes(&self) -> Vec<Dim> {
        self.iter().map(|n| n.to_dim()).collect()
    }
}

impl<T: Size> Shape for Vec<T> {
    fn sizes(&self) -> Vec<Dim> {
        self.iter().map(|n| n.to_dim()).collect()
    }
}

impl<T: Size> Shape for &Vec<T> {
    fn sizes(&self) -> Vec<Dim> {
        self.iter().map(|n| n.to_dim()).collect()
    }
}

impl Shape for () {
    fn sizes(&self) -> Vec<Dim> {
        vec![]
    }
}

macro_rules! tuples {
    ($(($($t:ident $n:tt)*))*) => { $(
        impl<$($t: Size),*> Shape for ($($t,)*) {
            fn sizes(&self) -> Vec<Dim> {
                vec![$(self.$n.to_dim()),*]
            }
        }
    )* };
}
tuples! { (A 0) (A 0 B 1) (A 0 B 1 C 2) (A 0 B 1 C 2 D 3) (A 0 B 1 C 2 D 3 E 4) (A 0 B 1 C 2 D 3 E 4 F 5) }

/// A type that can be passed as axes: one axis, several, or `..` for all. Negative axes count from the end.
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
        self.iter().map(|n| n.to_i64()).collect()
    }
}

impl<T: Size> Axes for &[T] {
    fn axes(&self, _rank: usize) -> Vec<i64> {
        self.iter().map(|n| n.to_i64()).collect()
    }
}

impl<T: Size> Axes for Vec<T> {
    fn axes(&self, _rank: usize) -> Vec<i64> {
        self.iter().map(|n| n.to_i64()).collect()
    }
}

impl<T: Size> Axes for &Vec<T> {
    fn axes(&self, _rank: usize) -> Vec<i64> {
        self.iter().map(|n| n.to_i64()).collect()
    }
}

impl Axes for RangeFull {
    fn axes(&self, rank: usize) -> Vec<i64> {
        (0..rank as i64).collect()
    }
}

/// A shape without negative sizes.
pub(crate) fn resolve_shape(op: &'static str, shape: impl Shape, at: &Source) -> Result<Vec<Dim>> {
    resolve_sizes(op, shape.sizes(), at)
}

/// A shape without negative sizes.
pub(crate) fn resolve_sizes(op: &'static str, sizes: Vec<Dim>, at: &Source) -> Result<Vec<Dim>> {
    if sizes.iter().all(|size| Dim::plain(0).at_most(*size, at)) {
        return Ok(sizes);
    }
    Err(Error::BadShape { op, sizes: sizes.iter().map(|size| size.hint()).collect(), at: at.clone() })
}

/// A shape of plain numbers; a [`Dim`] in it is read as its number.
pub(crate) fn resolve_numbers(op: &'static str, shape: impl Shape, at: &Source) -> Result<Vec<usize>> {
    let sizes = resolve_shape(op, shape, at)?;
    Ok(sizes.iter().map(|size| usize::try_from(size.number(at)).unwrap_or(0)).collect())
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
pub(crate) fn broadcast(op: &'static str, lhs: &[Dim], rhs: &[Dim], at: &Source) -> Result<Vec<Dim>> {
    let rank = lhs.len().max(rhs.len());
    let one = Dim::plain(1);
    let size = |shape: &[Dim], axis: usize| (axis + shape.len()).checked_sub(rank).map_or(one, |i| shape[i]);
    let is_one = |size: Dim| size.is_plain() && size.hint() == 1;
    let mut shape = Vec::with_capacity(rank);
    for axis in 0..rank {
        let (a, b) = (size(lhs, axis), size(rhs, axis));
        // What is surely 1 comes first: it asks nothing of the other.
        shape.push(if is_one(b) {
            a
        } else if is_one(a) {
            b
        } else if a.equals(b, at) || b.equals(one, at) {
            a
        } else if a.equals(one, at) {
            b
        } else {
            let (lhs, rhs) = (dim::hints(lhs), dim::hints(rhs));
            let sizes = dim::hints(&[a, b]);
            return Err(Error::ShapeMismatch { op, lhs, rhs, sizes: Some((sizes[0], sizes[1])), at: at.clone() });
        });
    }
    Ok(shape)
}

/// Refuses a shape of more elements than a signed 64-bit position reaches; not known of sizes that are symbolic.
pub(crate) fn check_elements(op: &'static str, shape: &[Dim], dtype: DType, at: &Source) -> Result<()> {
    let numbers = dim::hints(shape);
    match checked_elements(&numbers) {
        Some(_) => Ok(()),
        None => Err(Error::TooLarge { op, dtype, shape: numbers, at: at.clone() }),
    }
}

/// The product of the sizes; `None` beyond what a signed 64-bit position reaches.
pub(crate) fn checked_elements(shape: &[usize]) -> Option<usize> {
    if shape.contains(&0) {
        return Some(0);
    }
    let product = shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d))?;
    (product <= isize::MAX as usize / 8).then_some(product)
}
