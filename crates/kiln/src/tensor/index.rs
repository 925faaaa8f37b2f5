//! Indexing: `x.i((0, 1..3, .., None))`.

use crate::tensor::dim;
use crate::tensor::ops::views::from_start;
use crate::{Dim, Error, Result, Size, Tensor};
use kiln_ir::Source;
use std::ops::{Range, RangeFrom, RangeFull, RangeInclusive, RangeTo, RangeToInclusive};

/// One part of an index.
#[derive(Debug, Clone)]
pub enum Index {
    /// One position; the axis is removed.
    At(Dim),
    /// Positions from the first to the second (excluded) or the end, with a step.
    Range(Dim, Option<Dim>, usize),
    /// All remaining axes, whole.
    Rest,
    /// A new axis of size 1.
    NewAxis,
    /// The positions in an integer tensor of one axis.
    Places(Tensor),
}

/// All remaining axes, as NumPy's `...`.
///
/// ```
/// use kiln::{DType, Device, Ellipsis, Tensor};
/// let x = Tensor::zeros([2, 3, 4], DType::F32, Device::Cpu)?;
/// assert_eq!(x.i((Ellipsis, 0))?.shape(), [2, 3]);
/// # Ok::<(), kiln::Error>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Ellipsis;

/// Makes a range with a step: `step(1..9, 2)`.
///
/// ```
/// use kiln::{DType, Device, Tensor, step};
/// let x = Tensor::arange(10, DType::I64, Device::Cpu)?;
/// assert_eq!(x.i(step(1..9, 3))?.to_vec::<i64>()?, [1, 4, 7]);
/// # Ok::<(), kiln::Error>(())
/// ```
pub fn step(range: impl Into<Index>, step: usize) -> Index {
    match range.into() {
        Index::Range(start, end, _) => Index::Range(start, end, step),
        other => other,
    }
}

macro_rules! index_from {
    ($($type:ty)*) => { $(
        impl From<$type> for Index {
            fn from(i: $type) -> Index {
                Index::At(i.to_dim())
            }
        }
        impl From<Range<$type>> for Index {
            fn from(r: Range<$type>) -> Index {
                Index::Range(r.start.to_dim(), Some(r.end.to_dim()), 1)
            }
        }
        impl From<RangeFrom<$type>> for Index {
            fn from(r: RangeFrom<$type>) -> Index {
                Index::Range(r.start.to_dim(), None, 1)
            }
        }
        impl From<RangeTo<$type>> for Index {
            fn from(r: RangeTo<$type>) -> Index {
                Index::Range(Dim::plain(0), Some(r.end.to_dim()), 1)
            }
        }
        impl From<RangeInclusive<$type>> for Index {
            fn from(r: RangeInclusive<$type>) -> Index {
                Index::Range(r.start().to_dim(), after(r.end().to_dim()), 1)
            }
        }
        impl From<RangeToInclusive<$type>> for Index {
            fn from(r: RangeToInclusive<$type>) -> Index {
                Index::Range(Dim::plain(0), after(r.end.to_dim()), 1)
            }
        }
    )* };
}
index_from! { i32 i64 isize usize Dim }

/// The exclusive end of a range that includes `last`: −1 is the last place, after which the axis ends.
fn after(last: Dim) -> Option<Dim> {
    if last.is_plain() && last.hint() == -1 { None } else { Some(last + 1) }
}

impl From<RangeFull> for Index {
    fn from(_: RangeFull) -> Index {
        Index::Range(Dim::plain(0), None, 1)
    }
}

impl From<Ellipsis> for Index {
    fn from(_: Ellipsis) -> Index {
        Index::Rest
    }
}

/// `None` makes a new axis.
impl From<Option<Ellipsis>> for Index {
    fn from(axis: Option<Ellipsis>) -> Index {
        axis.map_or(Index::NewAxis, Index::from)
    }
}

impl From<&Tensor> for Index {
    fn from(places: &Tensor) -> Index {
        Index::Places(places.clone())
    }
}

/// The argument of [`Tensor::i`]: one index or a tuple of them.
pub trait Indices {
    /// The parts, in order.
    fn indices(self) -> Vec<Index>;
}

impl<T: Into<Index>> Indices for T {
    fn indices(self) -> Vec<Index> {
        vec![self.into()]
    }
}

macro_rules! index_tuples {
    ($(($($t:ident $n:tt)*))*) => { $(
        impl<$($t: Into<Index>),*> Indices for ($($t,)*) {
            fn indices(self) -> Vec<Index> {
                vec![$(self.$n.into()),*]
            }
        }
    )* };
}
index_tuples! {
    (A 0) (A 0 B 1) (A 0 B 1 C 2) (A 0 B 1 C 2 D 3) (A 0 B 1 C 2 D 3 E 4) (A 0 B 1 C 2 D 3 E 4 F 5)
}

impl Tensor {
    /// Indexes a tensor. A number selects one position of an axis, a range several, `..` the whole axis, [`Ellipsis`] all
    /// remaining axes, `None` inserts a new axis, and an integer tensor of one axis gathers its positions. Negative numbers
    /// count from the end. A range outside of its axis is an error. The result is a view unless an index is a tensor.
    ///
    /// ```
    /// use kiln::{DType, Device, Tensor};
    /// let x = Tensor::arange(24, DType::I64, Device::Cpu)?.reshape([2, 3, 4])?;
    /// assert_eq!(x.i(0)?.shape(), [3, 4]);
    /// assert_eq!(x.i((0, 1..3, .., None))?.shape(), [2, 4, 1]);
    /// assert_eq!(x.i((-1, -1, -2..))?.to_vec::<i64>()?, [22, 23]);
    /// assert!(x.i((0, 5)).is_err());
    /// # Ok::<(), kiln::Error>(())
    /// ```
    #[track_caller]
    pub fn i(&self, index: impl Indices) -> Result<Tensor> {
        let at = Source::caller();
        let parts = index.indices();
        let taken = parts.iter().filter(|p| !matches!(p, Index::Rest | Index::NewAxis)).count();
        let rests = parts.iter().filter(|p| matches!(p, Index::Rest)).count();
        if taken > self.rank() || rests > 1 {
            return Err(Error::TooManyIndices { count: parts.len(), shape: self.hint().to_vec(), at });
        }
        let mut result = self.clone();
        let mut axis = 0;
        for part in parts {
            match part {
                Index::At(index) => result = result.select_at("index", axis, index, &at)?,
                Index::Range(start, end, step) => {
                    result = result.range(axis, start, end, step, &at)?;
                    axis += 1;
                }
                Index::Rest => axis += self.rank() - taken,
                Index::NewAxis => {
                    result = result.unsqueeze(axis)?;
                    axis += 1;
                }
                Index::Places(places) => {
                    result = result.index_places(axis, &places, &at)?;
                    axis += 1;
                }
            }
        }
        Ok(result)
    }

    fn range(&self, axis: usize, start: Dim, end: Option<Dim>, step: usize, at: &Source) -> Result<Tensor> {
        let (first, last) = resolve_range("index", self.extent(axis), start, end, at)?;
        self.slice_at("index", axis, first, last, step, at)
    }
}

/// The places of an axis that a range names, negative ones counting from the end.
pub(crate) fn resolve_range(
    op: &'static str,
    size: Dim,
    start: Dim,
    end: Option<Dim>,
    at: &Source,
) -> Result<(Dim, Dim)> {
    let first = from_start(start, size, at);
    let last = end.map_or(size, |end| from_start(end, size, at));
    if Dim::plain(0).at_most(first, at) && first.at_most(last, at) && last.at_most(size, at) {
        return Ok((first, last));
    }
    let (end, size) = (end.unwrap_or(size).hint(), dim::hints(&[size])[0]);
    Err(Error::BadRange { op, start: start.hint(), end, size, at: at.clone() })
}
