//! What of PyTorch the native part calls: given once, when the Python package is imported.

use crate::dlpack::Tensors;
use crate::shim::Shim;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;
use std::sync::atomic::{AtomicBool, Ordering};

static TORCH: PyOnceLock<Torch> = PyOnceLock::new();
/// Whether kernels run on as many threads as PyTorch's.
static FOLLOWS: AtomicBool = AtomicBool::new(true);

/// Functions of PyTorch, and the one that takes events.
pub(crate) struct Torch {
    pub(crate) tensors: Tensors,
    pub(crate) shim: Option<Shim>,
    threads: Py<PyAny>,
    emit: Py<PyAny>,
}

impl Torch {
    pub(crate) fn get(py: Python<'_>) -> PyResult<&Torch> {
        TORCH.get(py).ok_or_else(|| PyRuntimeError::new_err("import kiln, not kiln._kiln"))
    }

    /// Reports an event.
    pub(crate) fn emit(&self, py: Python<'_>, kind: &str, graph: &str, text: &str) -> PyResult<()> {
        self.emit.call1(py, (kind, graph, text)).map(drop)
    }

    /// Lets kernels run on as many threads as PyTorch's ops do, unless the user has chosen a number.
    pub(crate) fn follow_threads(&self, py: Python<'_>) -> PyResult<()> {
        if FOLLOWS.load(Ordering::Relaxed) {
            let threads = self.threads.bind(py).call0()?.extract::<usize>()?.min(kiln::threads::MOST_THREADS);
            if threads != kiln::threads() {
                kiln::set_threads(threads).map_err(|error| PyRuntimeError::new_err(error.to_string()))?;
            }
        }
        Ok(())
    }
}

/// Gives the functions of PyTorch: the type of tensors, `threads()`, `emit(kind, graph, text)`, and for
/// [`Shim::find`] addresses of C functions and tensors to try them with.
#[pyfunction]
pub(crate) fn connect(
    py: Python<'_>,
    tensor_type: &Bound<'_, PyAny>,
    threads: Py<PyAny>,
    emit: Py<PyAny>,
    functions: &Bound<'_, PyDict>,
    probes: Vec<Bound<'_, PyAny>>,
) -> PyResult<()> {
    let shim = Shim::find(functions, &probes)?;
    let torch = Torch { tensors: Tensors::new(tensor_type)?, shim, threads, emit };
    // Who imports the package twice means the same functions.
    let _ = TORCH.set(py, torch);
    Ok(())
}

/// Sets the number of threads that kernels run on; without one, kernels run on as many as PyTorch's ops do.
#[pyfunction]
#[pyo3(signature = (threads=None))]
pub(crate) fn set_threads(py: Python<'_>, threads: Option<usize>) -> PyResult<()> {
    FOLLOWS.store(threads.is_none(), Ordering::Relaxed);
    match threads {
        Some(threads) => kiln::set_threads(threads).map_err(|error| PyRuntimeError::new_err(error.to_string())),
        None => Torch::get(py)?.follow_threads(py),
    }
}

/// The number of threads that kernels run on.
#[pyfunction]
pub(crate) fn threads(py: Python<'_>) -> PyResult<usize> {
    Torch::get(py)?.follow_threads(py)?;
    Ok(kiln::threads())
}
