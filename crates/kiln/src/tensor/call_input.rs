//! The inputs of a run that changes some of them.

use crate::Tensor;
use std::ops::Deref;

/// An input: the caller's, or one that the run has for itself and may change.
pub(crate) enum CallInput<'a> {
    Borrowed(&'a Tensor),
    Owned(Tensor),
}

impl CallInput<'_> {
    /// The tensor for itself. A borrowed one has another handle, so that it is copied before it changes.
    pub(crate) fn own(&mut self) -> &mut Tensor {
        if let CallInput::Borrowed(tensor) = *self {
            *self = CallInput::Owned(tensor.clone());
        }
        match self {
            CallInput::Owned(tensor) => tensor,
            CallInput::Borrowed(_) => unreachable!("it was made an own one above"),
        }
    }
}

impl Deref for CallInput<'_> {
    type Target = Tensor;

    fn deref(&self) -> &Tensor {
        match self {
            CallInput::Borrowed(tensor) => tensor,
            CallInput::Owned(tensor) => tensor,
        }
    }
}
