//! The inputs of a run that changes some of them.

use crate::Tensor;
use std::ops::Deref;

/// An input: the caller's, or one that the run has for itself and may change.
pub(crate) enum Given<'a> {
    Borrowed(&'a Tensor),
    Owned(Tensor),
}

impl Given<'_> {
    /// The tensor for itself. A borrowed one has another handle, so that it is copied before it changes.
    pub(crate) fn own(&mut self) -> &mut Tensor {
        if let Given::Borrowed(tensor) = *self {
            *self = Given::Owned(tensor.clone());
        }
        match self {
            Given::Owned(tensor) => tensor,
            Given::Borrowed(_) => unreachable!("it was made an own one above"),
        }
    }
}

impl Deref for Given<'_> {
    type Target = Tensor;

    fn deref(&self) -> &Tensor {
        match self {
            Given::Borrowed(tensor) => tensor,
            Given::Owned(tensor) => tensor,
        }
    }
}
