//! The frozen weights of a program: whether they have changed, and whether they are still there.

use crate::torch::Torch;
use kiln::FrozenGraph;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyTuple, PyWeakrefReference};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// The weights that a frozen program has copies of.
pub(crate) struct Frozen {
    /// By frozen input, the parameter that it is if the program has a copy of it.
    sources: Vec<Option<usize>>,
    held: Arc<Held>,
}

/// What was copied, until one of the tensors is gone.
struct Held {
    graph: Arc<FrozenGraph>,
    weights: Mutex<Weights>,
}

#[derive(Default)]
struct Weights {
    versions: Vec<u64>,
    /// Aliases of the tensors: while they live, their addresses belong to nobody else. With each a weak reference to the tensor itself.
    tensors: Vec<(Py<PyAny>, Py<PyWeakrefReference>)>,
}

/// Called by PyTorch when a tensor is gone: then nobody needs the copies.
#[pyclass(frozen)]
struct Forget(Weak<Held>);

#[pymethods]
impl Forget {
    fn __call__(&self, _reference: &Bound<'_, PyAny>) {
        if let Some(held) = self.0.upgrade() {
            held.graph.clear();
            let weights = std::mem::take(&mut *held.weights.lock().unwrap_or_else(PoisonError::into_inner));
            // After the lock is released: what is freed may call back.
            drop(weights);
        }
    }
}

impl Frozen {
    /// `parameter` says which parameter of the program a frozen input is.
    pub(crate) fn new(graph: &Arc<FrozenGraph>, parameter: impl Fn(usize) -> Option<usize>) -> Frozen {
        let source = |&input: &usize| graph.sources().contains(&input).then(|| parameter(input)).flatten();
        let sources = graph.frozen().iter().map(source).collect();
        Frozen { sources, held: Arc::new(Held { graph: graph.clone(), weights: Mutex::default() }) }
    }

    /// For each frozen input, a number that changes with its elements: of its address, and of what PyTorch counts.
    pub(crate) fn versions(&self, torch: &Torch, arguments: &Bound<'_, PyTuple>) -> PyResult<Vec<u64>> {
        let py = arguments.py();
        let version = |source: &Option<usize>| {
            let Some(number) = *source else { return Ok(0) };
            let tensor = arguments.get_borrowed_item(number)?;
            let address = torch.tensors.describe(tensor)?.ptr() as u64;
            // Tensors of inference mode are not counted: nothing changes them in place outside of it.
            let changes = match tensor.getattr(intern!(py, "_version")) {
                Ok(changes) => changes.extract::<u64>()?,
                Err(_) => 0,
            };
            Ok((address ^ changes.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xbf58_476d_1ce4_e5b9))
        };
        self.sources.iter().map(version).collect()
    }

    /// Whether there are copies, or aliases of what they were made of.
    pub(crate) fn holds(&self) -> bool {
        let is_held = !self.held.weights.lock().unwrap_or_else(PoisonError::into_inner).tensors.is_empty();
        is_held || self.held.graph.is_ready()
    }

    /// Keeps the memory of the weights that were packed.
    pub(crate) fn hold(&self, arguments: &Bound<'_, PyTuple>, versions: Vec<u64>) -> PyResult<()> {
        let py = arguments.py();
        if self.held.weights.lock().unwrap_or_else(PoisonError::into_inner).versions == versions {
            return Ok(());
        }
        let forget = Bound::new(py, Forget(Arc::downgrade(&self.held)))?;
        let mut tensors = Vec::new();
        for &number in self.sources.iter().flatten() {
            let tensor = arguments.get_item(number)?;
            let alias = tensor.call_method0(intern!(py, "detach"))?.unbind();
            tensors.push((alias, PyWeakrefReference::new_with(&tensor, &forget)?.unbind()));
        }
        let weights = Weights { versions, tensors };
        let before = std::mem::replace(&mut *self.held.weights.lock().unwrap_or_else(PoisonError::into_inner), weights);
        drop(before);
        Ok(())
    }
}
