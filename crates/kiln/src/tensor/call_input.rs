//! The inputs of a run: tensors by number, and which of them stay the same from run to run.

use crate::Tensor;
use crate::tensor::compiled_graph::view;
use kiln_runtime::{InputView, Inputs, Pinned};
use std::sync::atomic::{AtomicU64, Ordering};

/// The inputs of a run of a graph, which somebody holds meanwhile.
///
/// # Safety
/// That of [`Inputs`]: two runs for which `pinned` gives the same key have the same tensors but for those among [`Pinned::others`].
pub(crate) unsafe trait CallInputs {
    fn count(&self) -> usize;

    fn tensor(&self, input: usize) -> &Tensor;

    /// An input that is an output, too.
    fn as_output(&self, input: usize) -> Tensor {
        self.tensor(input).clone()
    }

    /// See [`Inputs::pinned`].
    fn pinned(&self) -> Option<Pinned<'_>> {
        None
    }
}

impl dyn CallInputs + '_ {
    /// All of them, one after the other.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Tensor> {
        (0..self.count()).map(|input| self.tensor(input))
    }

    /// All of them as a list.
    pub(crate) fn list(&self) -> Vec<&Tensor> {
        self.iter().collect()
    }
}

// SAFETY: nothing is pinned.
unsafe impl CallInputs for &[&Tensor] {
    fn count(&self) -> usize {
        self.len()
    }

    fn tensor(&self, input: usize) -> &Tensor {
        self[input]
    }
}

// SAFETY: nothing is pinned.
unsafe impl CallInputs for Vec<Tensor> {
    fn count(&self) -> usize {
        self.len()
    }

    fn tensor(&self, input: usize) -> &Tensor {
        &self[input]
    }
}

/// Inputs as a program reads them.
pub(crate) struct Views<'a>(pub(crate) &'a dyn CallInputs);

// SAFETY: the contract of `CallInputs` is the same.
unsafe impl Inputs for Views<'_> {
    fn count(&self) -> usize {
        self.0.count()
    }

    fn view(&self, input: usize) -> InputView<'_> {
        view(self.0.tensor(input))
    }

    fn pinned(&self) -> Option<Pinned<'_>> {
        self.0.pinned()
    }
}

/// A number that was never given before, for what is pinned.
pub(crate) fn new_pin() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
